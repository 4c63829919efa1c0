use super::super::model::Scene;
use super::*;

#[test]
fn restarts_are_permitted_one_after_another() {
    let mut scene = Scene::pending_restart(false);
    for ordinal in [2, 1, 0] {
        let name = format!("demo-{ordinal}");
        assert_eq!(scene.permitted(), Some(name));
        scene.store();
        scene.report_mut(ordinal).state = crate::protocol::MemberState::Starting;
        assert!(matches!(scene.decide().action, Action::Wait(_)), "while it restarts");
        let state = if ordinal == 0 { "Primary" } else { "Streaming" };
        let report = scene.report_mut(ordinal);
        report.pending_restart = false;
        report.state = serde_json::from_value(state.into()).unwrap();
    }
    scene.store();
    assert_eq!(
        (scene.stored.intent.restart.clone(), scene.decide().rule),
        (None, "rest")
    );
}

#[test]
fn a_permit_that_is_not_used_goes_on_to_the_others_and_is_not_given_again_for_ever() {
    let mut scene = Scene::pending_restart(false);
    for ordinal in [2, 1, 2] {
        assert_eq!(scene.permitted(), Some(format!("demo-{ordinal}")));
        scene.store();
        let decision = scene.decide();
        let restart = (api::status::WaitReason::PermittedRestart, format!("pod/demo-{ordinal}"));
        assert_eq!(scene.awaits(), restart);
        assert_eq!(decision.wake, scene.now + RESTART_LIMIT);
        if ordinal == 1 {
            scene.report_mut(1).pending_restart = false;
        } else {
            scene.now = decision.wake;
        }
    }
    let decision = scene.store();
    assert_eq!((decision.rule, decision.step), ("await-settings", Some(Step::Settings)));
    let waiting = scene.stored.waiting.clone().unwrap();
    assert_eq!(
        (waiting.reason, waiting.object.as_deref()),
        (Some(api::status::WaitReason::PermittedRestart), Some("pod/demo-2")),
        "the primary goes after it"
    );
    scene.now = waiting.deadline.unwrap();
    let decision = scene.store();
    assert!(matches!(decision.action, Action::Wait(_)), "{decision:?}");
    let found = scene
        .stored
        .conditions
        .iter()
        .find(|found| found.type_ == "Progressing");
    assert_eq!(found.unwrap().reason, "DeadlineExceeded");
    let mut changed = scene.clone();
    changed.revision = "r2".to_owned();
    changed.store();
    assert_eq!(
        changed.replaced(),
        Some("demo-2".to_owned()),
        "a new pod needs no permit"
    );
    scene.report_mut(2).pending_restart = false;
    assert_eq!(scene.permitted(), Some("demo-0".to_owned()));
}

#[test]
fn the_primary_restarts_first_when_a_limit_is_lowered() {
    assert_eq!(Scene::pending_restart(true).permitted(), Some("demo-0".to_owned()));
}

#[test]
fn a_lowered_limit_is_in_force_once_the_standbys_have_followed_the_primary() {
    let mut scene = Scene::ready(3);
    let keeps = |scene: &mut Scene, keeps: bool| {
        for ordinal in [1, 2] {
            scene.report_mut(ordinal).lowers_limits = keeps;
        }
    };
    keeps(&mut scene, true);
    (scene.report_mut(0).pending_restart, scene.report_mut(0).lowers_limits) = (true, true);
    assert_eq!(scene.permitted(), Some("demo-0".to_owned()));
    scene.store();
    (scene.report_mut(0).pending_restart, scene.report_mut(0).lowers_limits) = (false, false);
    scene.store();
    let decision = scene.decide();
    assert_eq!(
        (decision.rule, decision.phase),
        ("await-settings", api::Phase::Updating)
    );
    assert_eq!(decision.because.to_string(), "demo-1, demo-2 to take up the settings");
    keeps(&mut scene, false);
    scene.report_mut(1).pending_restart = true;
    assert_eq!(scene.permitted(), Some("demo-1".to_owned()));
}

#[test]
fn a_member_that_does_not_serve_restarts_first() {
    let mut scene = Scene::pending_restart(false);
    scene.pod_mut(1).ready = false;
    assert_eq!(scene.permitted(), Some("demo-1".to_owned()));
}

#[test]
fn nobody_restarts_for_settings_that_are_refused_somewhere_or_not_there_yet() {
    let mut scene = Scene::pending_restart(false);
    scene.report_mut(1).settings = "older".to_owned();
    assert_eq!(scene.permitted(), None);
    let mut scene = Scene::pending_restart(false);
    scene.report_mut(1).settings_error = Some("invalid value for parameter \"work_mem\"".to_owned());
    assert_eq!(scene.permitted(), None);
    let decision = scene.decide();
    assert_eq!(decision.rule, "await-settings");
    assert!(
        decision
            .because
            .to_string()
            .ends_with("invalid value for parameter \"work_mem\"")
    );
}

#[test]
fn who_is_between_two_primaries_does_not_restart_while_another_is_away() {
    let mut scene = Scene::pending_restart(false);
    scene.report_mut(2).pending_restart = false;
    scene.report_mut(1).state = crate::protocol::MemberState::CatchingUp;
    assert_eq!(scene.permitted(), Some("demo-1".to_owned()));
    let mut both = scene.clone();
    both.report_mut(2).pending_restart = true;
    both.report_mut(2).state = crate::protocol::MemberState::CatchingUp;
    assert_eq!(both.permitted(), Some("demo-2".to_owned()), "all are there");
    let mut leaves = scene.clone();
    leaves.pod_mut(2).terminating = true;
    assert_eq!(leaves.permitted(), None);
    scene.pod_mut(2).ready = false;
    assert_eq!(scene.permitted(), None);
}

#[test]
fn who_is_about_to_go_need_not_restart() {
    let mut scene = Scene::pending_restart(false);
    scene.scaled(2);
    scene.observed.stateful_set.as_mut().unwrap().replicas = 2;
    scene.report_mut(2).state = crate::protocol::MemberState::CatchingUp;
    assert_eq!(scene.permitted(), Some("demo-1".to_owned()));
}

#[test]
fn nobody_restarts_while_another_is_away() {
    let mut scene = Scene::pending_restart(false);
    scene.report_mut(1).pending_restart = false;
    assert_eq!(scene.permitted(), Some("demo-2".to_owned()));
    scene.pod_mut(1).ready = false;
    assert_eq!(scene.permitted(), None);
}

#[test]
fn a_permit_is_for_one_pod_and_for_the_settings_of_then() {
    let mut scene = Scene::pending_restart(false);
    scene.store();
    let ends: [fn(&mut Scene); 3] = [
        |scene| {
            scene.pod_mut(2).uid = "another".to_owned();
            scene.stored.members.get_mut("demo-2").unwrap().pod_uid = Some("another".to_owned());
        },
        |scene| scene.pod_mut(2).terminating = true,
        |scene| {
            scene.edit(|spec| {
                spec.postgres.parameters.insert("work_mem".to_owned(), "8MB".to_owned());
            });
        },
    ];
    for (index, end) in ends.into_iter().enumerate() {
        let mut scene = scene.clone();
        end(&mut scene);
        let ended = Action::WriteStatus(vec![StatusChange::EndRestart]);
        assert_eq!(scene.decide().action, ended, "{index}");
    }
    let goes_on: [fn(&mut Scene); 2] = [
        |scene| scene.report_mut(2).settings = "older".to_owned(),
        |scene| scene.report_mut(2).state = crate::protocol::MemberState::Starting,
    ];
    for (index, before) in goes_on.into_iter().enumerate() {
        let mut scene = scene.clone();
        scene.report_mut(2).pending_restart = false;
        before(&mut scene);
        assert_eq!(
            scene.awaits(),
            (api::status::WaitReason::PermittedRestart, "pod/demo-2".to_owned()),
            "{index}"
        );
    }
}

#[test]
fn one_that_does_not_serve_is_let_restart_only_if_that_can_help() {
    let mut scene = Scene::pending_restart(false);
    scene.pod_mut(2).ready = false;
    assert_eq!(scene.permitted(), Some("demo-2".to_owned()));
    let useless: [fn(&mut Scene); 3] = [
        |scene| scene.pod_mut(2).terminating = true,
        |scene| scene.report_mut(2).settings = "older".to_owned(),
        |scene| scene.report_mut(2).fault = Some(crate::protocol::FAULT_SILENT.to_owned()),
    ];
    for (index, useless) in useless.into_iter().enumerate() {
        let mut scene = scene.clone();
        useless(&mut scene);
        assert_eq!(scene.permitted(), None, "{index}");
    }
    scene.store();
    scene.now += RESTART_LIMIT;
    let again = scene.decide().action;
    assert!(
        matches!(again, Action::Wait(_)),
        "to give it once more changes nothing: {again:?}"
    );
    scene.pod_mut(1).ready = false;
    assert_eq!(
        scene.permitted(),
        Some("demo-1".to_owned()),
        "the other one has its turn"
    );
}

#[test]
fn the_primary_goes_after_a_standby_that_makes_no_use_of_its_permit_whatever_their_numbers() {
    let mut scene = Scene::pending_restart(false);
    scene.elect(2);
    scene.report_mut(1).pending_restart = false;
    assert_eq!(scene.permitted(), Some("demo-0".to_owned()));
    scene.store();
    scene.now += RESTART_LIMIT;
    assert_eq!(scene.permitted(), None);
}

#[test]
fn a_permit_ends_with_its_pod_or_its_settings() {
    let mut scene = Scene::pending_restart(false);
    scene.store();
    scene.pod_mut(2).uid = "another".to_owned();
    scene.stored.members.get_mut("demo-2").unwrap().pod_uid = Some("another".to_owned());
    let report = scene.report_mut(2);
    (report.pod_uid, report.pending_restart) = ("another".to_owned(), false);
    assert_eq!(scene.permitted(), Some("demo-1".to_owned()));
    scene.edit(|spec| {
        spec.postgres.parameters.insert("work_mem".to_owned(), "8MB".to_owned());
    });
    assert_eq!(scene.decide().action.name(), "WriteStatus", "the permit is taken back");
}
