use api::operation::{Action as Asked, Restart};
use api::spec::PrimaryUpdatePolicy;

use super::super::model::Scene;
use super::*;
use crate::protocol::FAULT_ENDS;

fn outdated(primary: u32) -> Scene {
    let mut scene = Scene::ready(3);
    scene.elect(primary);
    scene.revision = "r2".to_owned();
    scene
}

#[test]
fn the_highest_standby_first_and_the_primary_last() {
    for (primary, order) in [(0, [2, 1, 0]), (2, [1, 0, 2]), (1, [2, 0, 1])] {
        let mut scene = outdated(primary);
        let [first, second, last] = order;
        for ordinal in [first, second] {
            assert_eq!(scene.replaced(), Some(format!("demo-{ordinal}")));
            scene.pod_mut(ordinal).revision = Some("r2".to_owned());
        }
        assert_eq!(scene.decide().rule, "switch-over");
        scene.elect(first);
        assert_eq!(scene.replaced(), Some(format!("demo-{last}")), "it is a standby now");
    }
}

#[test]
fn a_member_that_fails_at_the_target_halts_the_rollout() {
    let mut scene = outdated(0);
    scene.pod_mut(2).revision = Some("r2".to_owned());
    scene.pod_mut(2).ready = false;
    assert_eq!(scene.replaced(), None);
    assert_eq!(scene.decide().rule, "await-standbys");
    scene.revision = "r1".to_owned();
    assert_eq!(scene.replaced(), Some("demo-2".to_owned()), "a revert frees it");
}

#[test]
fn a_silent_member_does_not_serve_and_halts_the_rollout() {
    let mut scene = outdated(0);
    scene.pod_mut(2).revision = Some("r2".to_owned());
    scene.report_mut(2).fault = Some(crate::protocol::FAULT_SILENT.to_owned());
    assert_eq!(scene.replaced(), None);
    scene.report_mut(2).fault = Some("a rewind failed".to_owned());
    assert_eq!(scene.replaced(), Some("demo-1".to_owned()), "it serves again");
    scene.report_mut(2).fault = Some(format!("{FAULT_ENDS} 3 times in a row, soon after its start"));
    let decision = scene.store();
    assert_eq!((decision.rule, scene.replaced()), ("await-settled", None));
    let who = scene.stored.waiting.clone().unwrap().who_can_end_it;
    assert!(who.contains("3 times in a row"), "{who}");
}

#[test]
fn a_new_pod_has_to_stay_up_before_the_next_one_goes() {
    let mut scene = outdated(0);
    scene.pod_mut(0).ready_since = Some(scene.now);
    assert_eq!(scene.replaced(), Some("demo-2".to_owned()), "old ones have stayed up");
    scene.pod_mut(2).revision = Some("r2".to_owned());
    scene.pod_mut(2).ready_since = Some(scene.now);
    let decision = scene.store();
    assert_eq!((decision.rule, decision.wake), ("await-settled", scene.now + SETTLES));
    let mut late = scene.clone();
    late.pod_mut(2).ready_since = Some(scene.now + TimeDelta::hours(1));
    late.store();
    for scene in [&mut scene, &mut late] {
        scene.now += SETTLES - TimeDelta::seconds(1);
        assert_eq!(scene.replaced(), None);
        scene.now += TimeDelta::seconds(1);
        assert_eq!(scene.replaced(), Some("demo-1".to_owned()), "by whichever clock");
    }
    scene.pod_mut(1).revision = Some("r2".to_owned());
    scene.pod_mut(1).ready_since = Some(scene.now);
    assert_eq!(scene.store().rule, "await-settled", "the primary stays meanwhile");
    let mut drained = scene.clone();
    drained.cordon(0, true);
    assert_eq!(drained.decide().rule, "switch-over", "a drain waits for nothing new");
    scene.now += SETTLES;
    assert_eq!(scene.decide().rule, "switch-over");
}

#[test]
fn an_outdated_member_that_does_not_serve_goes_first_even_if_all_fail() {
    let mut scene = outdated(0);
    for ordinal in 0..3 {
        scene.pod_mut(ordinal).ready = false;
    }
    scene.store();
    assert_eq!(scene.replaced(), None, "any of them may be elected");
    scene.now += HOLDER_LIMIT;
    assert_eq!(scene.replaced(), Some("demo-2".to_owned()));
    scene.pod_mut(2).revision = Some("r2".to_owned());
    assert_eq!(scene.replaced(), Some("demo-1".to_owned()));
}

#[test]
fn the_holder_is_not_taken_down_for_a_flap_of_its_readiness() {
    let mut scene = outdated(2);
    scene.pod_mut(2).ready = false;
    scene.store();
    assert_eq!((scene.replaced(), scene.decide().rule), (None, "replace-idle"));
    let wake = scene.now + HOLDER_LIMIT;
    assert_eq!(scene.decide().wake, wake);
    let mut unready = scene.clone();
    unready.pod_mut(0).ready = false;
    assert_eq!(unready.replaced(), None, "it may be elected");
    unready.store();
    unready.now += HOLDER_LIMIT;
    assert_eq!(unready.replaced(), Some("demo-0".to_owned()), "others go first");
    let mut unscheduled = scene.clone();
    unscheduled.pod_mut(2).node = None;
    assert_eq!(unscheduled.replaced(), Some("demo-2".to_owned()));
    let mut back = scene.clone();
    back.pod_mut(2).ready = true;
    assert_eq!(back.replaced(), Some("demo-1".to_owned()));
    scene.now = wake;
    assert_eq!(
        scene.replaced(),
        Some("demo-2".to_owned()),
        "it may need the new template"
    );
}

#[test]
fn no_two_members_are_down_for_a_rollout_at_once() {
    let mut scene = outdated(0);
    scene.pod_mut(2).terminating = true;
    scene.pod_mut(1).ready = false;
    assert_eq!(scene.replaced(), None);
    scene.pod_mut(1).node = None;
    assert_eq!(scene.replaced(), Some("demo-1".to_owned()), "it takes nothing down");
}

#[test]
fn no_pod_is_replaced_by_an_image_that_is_known_not_to_run() {
    let mut scene = outdated(0);
    let error = scene.image_error();
    let pod = scene.pod_mut(2);
    (pod.revision, pod.ready, pod.image_error) = (Some("r2".to_owned()), false, Some(error));
    scene.pod_mut(1).ready = false;
    assert_eq!(scene.replaced(), None);
    scene.pod_mut(1).node = None;
    assert_eq!(scene.replaced(), None, "nor one that never ran");
    scene.revision = "r3".to_owned();
    assert!(scene.replaced().is_some(), "the spec was changed again");
}

/// A pod of the wanted template, spoiled in some way; the primary of before, of the older one, is away.
fn doubtful(spoil: fn(&mut Scene)) -> Scene {
    let mut scene = outdated(0);
    scene.pod_mut(2).revision = Some("r2".to_owned());
    scene.pod_mut(2).ready = false;
    scene.elect(1);
    scene.pod_mut(0).ready = false;
    spoil(&mut scene);
    scene
}

const SPOILS: [fn(&mut Scene); 5] = [
    |scene| scene.pod_mut(2).node = None,
    |scene| scene.pod_mut(2).unstarted = true,
    |scene| scene.pod_mut(2).restarts = MANY,
    |scene| scene.report_mut(2).fault = Some("its image is of another version".to_owned()),
    |scene| scene.pods_mut().retain(|pod| pod.ordinal != 2),
];

#[test]
fn a_template_that_does_not_run_costs_one_member_whoever_else_is_away() {
    for (index, spoil) in SPOILS.into_iter().enumerate() {
        let mut scene = doubtful(spoil);
        for _ in 0..3 {
            assert_eq!(scene.replaced(), None, "{index}: demo-0 is away for a moment");
            scene.store();
            scene.now += HOLDER_LIMIT;
        }
        let mut unscheduled = scene.clone();
        unscheduled.pod_mut(0).node = None;
        assert_eq!(
            unscheduled.replaced(),
            Some("demo-0".to_owned()),
            "{index}: it takes nothing down"
        );
        scene.pod_mut(1).ready = false;
        scene.store();
        scene.now += HOLDER_LIMIT;
        assert_eq!(scene.replaced(), None, "{index}: nor is the last one given up");
    }
    let scene = doubtful(|_| {});
    assert_eq!(
        scene.replaced(),
        Some("demo-0".to_owned()),
        "it may wait for a primary only"
    );
    let silent = doubtful(|scene| scene.report_mut(2).fault = Some(crate::protocol::FAULT_SILENT.to_owned()));
    assert_eq!(silent.replaced(), Some("demo-0".to_owned()), "nothing is known of it");
}

#[test]
fn a_revert_reaches_the_pod_that_fails_though_another_does_not_come_up_either() {
    for (index, spoil) in SPOILS.into_iter().enumerate() {
        let mut scene = doubtful(spoil);
        scene.revision = "r1".to_owned();
        let fails = scene.pods().iter().find(|pod| pod.ordinal == 2);
        let fails = fails.map(|pod| pod.name.clone());
        assert_eq!(scene.replaced(), fails, "{index}");
        scene.pod_mut(0).node = None;
        assert_eq!(scene.replaced(), fails, "{index}: demo-1 shows that its template runs");
    }
}

#[test]
fn one_instance_is_replaced_though_no_other_serves() {
    let mut scene = Scene::ready(1);
    scene.revision = "r2".to_owned();
    assert_eq!(scene.replaced(), Some("demo-0".to_owned()));
}

fn supervised(scene: &mut Scene) {
    scene.edit(|spec| spec.primary.update_policy = PrimaryUpdatePolicy::Supervised);
}

fn leave(scene: &mut Scene) -> String {
    let decision = scene.store();
    assert_eq!(
        (decision.rule, decision.step),
        ("await-supervisor", Some(Step::Supervised))
    );
    let waiting = scene.stored.waiting.clone().unwrap();
    assert_eq!(waiting.deadline, None, "the user may take as long as they like");
    format!("{}: {}", waiting.what, waiting.who_can_end_it)
}

#[test]
fn a_supervised_rollout_stops_before_the_primary_until_a_switchover_is_requested() {
    let mut scene = outdated(0);
    supervised(&mut scene);
    for ordinal in [2, 1] {
        assert_eq!(scene.replaced(), Some(format!("demo-{ordinal}")));
        scene.pod_mut(ordinal).revision = Some("r2".to_owned());
    }
    let text = leave(&mut scene);
    assert!(
        text.contains("demo-0: spec.primary.updatePolicy is Supervised, and its pod is of an older template"),
        "{text}"
    );
    assert!(text.contains("kubectl cdb promote demo demo-1 "), "{text}");
    scene.ask_switchover("demo-1", "2");
    scene.store();
    scene.store();
    assert_eq!(scene.stored.intent.primary.as_deref(), Some("demo-1"));
    scene.elect(1);
    scene.store();
    scene.store();
    assert_eq!(scene.replaced(), Some("demo-0".to_owned()), "it is a standby now");
}

#[test]
fn a_supervised_rollout_goes_on_when_it_is_automatic_again() {
    let mut scene = outdated(0);
    supervised(&mut scene);
    for ordinal in [2, 1] {
        scene.pod_mut(ordinal).revision = Some("r2".to_owned());
    }
    assert!(leave(&mut scene).contains("{\"spec\":{\"primary\":{\"updatePolicy\":\"Automatic\"}}}"));
    scene.edit(|spec| spec.primary.update_policy = PrimaryUpdatePolicy::Automatic);
    assert_eq!(scene.decide().rule, "switch-over");
}

#[test]
fn one_supervised_instance_is_asked_for_before_it_goes() {
    let mut scene = Scene::ready(1);
    supervised(&mut scene);
    scene.revision = "r2".to_owned();
    let text = leave(&mut scene);
    assert!(
        text.contains("the user: kubectl patch") && !text.contains("promote"),
        "{text}"
    );
    let mut scene = Scene::ready(1);
    supervised(&mut scene);
    scene.report_mut(0).pending_restart = true;
    let text = leave(&mut scene);
    assert!(text.contains("its settings need a restart: the user: kubectl patch"));
    // The command does what it says.
    let patch: serde_json::Value = serde_json::from_str(text.split('\'').nth(1).unwrap()).unwrap();
    let mut spec = serde_json::to_value(&scene.spec).unwrap();
    for (field, value) in patch["spec"]["primary"].as_object().unwrap() {
        spec["primary"][field] = value.clone();
    }
    let spec: api::ClusteredDatabaseSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(spec.primary.update_policy, PrimaryUpdatePolicy::Automatic);
}

#[test]
fn supervised_restarts_stop_before_the_primary() {
    let mut scene = Scene::pending_restart(false);
    supervised(&mut scene);
    for ordinal in [2, 1] {
        assert_eq!(scene.permitted(), Some(format!("demo-{ordinal}")));
        scene.store();
        scene.report_mut(ordinal).pending_restart = false;
    }
    scene.store();
    assert_eq!(scene.permitted(), None);
    assert!(leave(&mut scene).contains("kubectl cdb promote demo demo-1 "));
    scene.edit(|spec| spec.primary.prefer = Some("demo-0".to_owned()));
    assert!(
        !leave(&mut scene).contains("annotate"),
        "such a request would be refused"
    );
    let mut lowered = Scene::pending_restart(true);
    supervised(&mut lowered);
    assert_eq!(lowered.permitted(), None, "no standby can go first");
    assert!(
        !leave(&mut lowered).contains("annotate"),
        "nor would another primary be further"
    );
}

#[test]
fn who_may_be_given_up_for_a_doubtful_template() {
    let worth = |new_runs: bool, spoil: fn(&mut Pod)| {
        let mut scene = outdated(0);
        scene.pod_mut(2).revision = Some("r2".to_owned());
        scene.pod_mut(2).ready = new_runs;
        scene.pod_mut(1).ready = false;
        spoil(scene.pod_mut(1));
        scene.with_facts(|facts| is_worth_a_doubt(facts, &facts.pods()[1]))
    };
    let fails = |pod: &mut Pod| pod.restarts = MANY;
    assert!(!worth(true, |_| {}), "it may be back in a moment");
    assert!(!worth(false, fails), "another of the older template serves");
    assert!(worth(true, fails));
    assert!(worth(false, |pod| pod.unstarted = true));
    assert!(worth(false, |pod| pod.node = None));
}

#[test]
fn a_pod_is_new_with_its_wal_volume_and_while_it_lacks_nothing_else() {
    let mut lacks = Scene::ready(3);
    lacks.add_wal_volume();
    for (index, scene) in [Scene::ready(3), Scene::with_wal(3), lacks].iter().enumerate() {
        assert!(scene.with_facts(|facts| is_new(facts, &facts.pods()[2])), "{index}");
    }
}

#[test]
fn an_only_instance_is_replaced_at_once_though_nobody_holds_the_lease() {
    let mut scene = Scene::ready(1);
    scene.revision = "r2".to_owned();
    scene.lease_mut().unwrap().holder = None;
    scene.pod_mut(0).ready = false;
    assert_eq!(scene.replaced(), Some("demo-0".to_owned()));
}

#[test]
fn no_pod_goes_while_postgresql_restarts_in_one() {
    let mut scene = Scene::pending_restart(false);
    scene.store();
    assert!(scene.stored.intent.restart.is_some());
    scene.revision = "r2".to_owned();
    assert_eq!(scene.replaced(), None);
    scene.stored.intent.restart = None;
    assert_eq!(scene.replaced(), Some("demo-2".to_owned()));
}

#[test]
fn no_leave_is_asked_for_where_nothing_is_to_change_or_settings_are_refused() {
    let mut scene = Scene::ready(3);
    supervised(&mut scene);
    scene.store();
    assert_eq!(scene.decide().rule, "rest");
    scene.revision = "r2".to_owned();
    for ordinal in [2, 1] {
        scene.pod_mut(ordinal).revision = Some("r2".to_owned());
    }
    assert_eq!(scene.decide().rule, "await-supervisor");
    scene.report_mut(1).settings_error = Some("no such parameter".to_owned());
    assert_eq!(
        scene.decide().rule,
        "await-settings",
        "the refusal is what the user can end"
    );
}

#[test]
fn one_that_is_replaced_already_and_serves_keeps_no_idle_one_where_it_is() {
    let mut scene = outdated(0);
    scene.pod_mut(2).revision = Some("r2".to_owned());
    scene.pod_mut(1).ready = false;
    assert_eq!(scene.decide().rule, "replace-idle");
    let error = scene.image_error();
    scene.pod_mut(2).image_error = Some(error);
    assert_ne!(scene.decide().rule, "replace-idle", "it would not run either");
}

#[test]
fn pods_that_may_not_be_replaced_now_are_named() {
    let waits = |scene: &Scene| Some(scene.with_facts(await_rollout)?.because.to_string());
    let mut scene = outdated(0);
    scene.pod_mut(1).ready = false;
    assert_eq!(
        waits(&scene).as_deref(),
        Some("all others to serve, to replace demo-2, demo-1, demo-0")
    );
    assert_eq!(waits(&Scene::ready(3)), None);
}

#[test]
fn a_restart_by_an_operation_is_a_change_of_the_template_and_done_when_all_pods_are_new() {
    let mut scene = Scene::ready(3);
    let outcome = |scene: &Scene| {
        let noted = scene.stored.memo.request.clone().unwrap();
        (noted.outcome, noted.message.unwrap_or_default())
    };
    scene.ask(Asked::Restart(Restart {}));
    scene.store();
    assert_eq!(scene.stored.memo.restarted_by, None, "it is noted first");
    scene.store();
    assert_eq!(scene.stored.memo.restarted_by.as_deref(), Some("operation-Restart"));
    scene.revision = "r2".to_owned();
    for ordinal in [2, 1] {
        assert_eq!(scene.replaced(), Some(format!("demo-{ordinal}")));
        scene.pod_mut(ordinal).revision = Some("r2".to_owned());
        scene.store();
        assert_eq!(outcome(&scene).0, None);
    }
    let moved = scene.stored.intent.primary.clone().expect("the primary moves first");
    scene.elect(if moved == "demo-1" { 1 } else { 2 });
    scene.store();
    assert_eq!(scene.replaced(), Some("demo-0".to_owned()));
    scene.pod_mut(0).revision = Some("r2".to_owned());
    scene.store();
    let done = "all instances have new pods and serve".to_owned();
    assert_eq!(outcome(&scene), (Some(RequestOutcome::Done), done));
    assert_eq!(scene.decide().rule, "rest");
    // The next one is another template.
    scene.request.as_mut().unwrap().uid = "next".to_owned();
    scene.store();
    scene.store();
    assert_eq!(scene.stored.memo.restarted_by.as_deref(), Some("next"));
}

#[test]
fn a_restart_waits_for_a_database_that_is_made() {
    let mut scene = Scene::ready(3);
    let begins = |scene: &Scene| scene.with_facts(|facts| restart_all(facts, "operation").is_some());
    assert!(begins(&scene));
    scene.stored.system_identifier = None;
    scene.lease_mut().unwrap().system_id = None;
    assert!(!begins(&scene));
}
