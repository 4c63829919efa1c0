use api::Phase;
use api::spec::FailoverProfile;

use super::super::Action;
use super::super::health::Reason;
use super::super::model::Scene;
use super::*;

#[test]
fn the_only_instance_loses_all_with_its_volume() {
    let bound = |replicas| promised(&Scene::ready(replicas)).loss_bound;
    assert!(bound(1).starts_with("none while the volume survives"), "{}", bound(1));
    let mut copied = Scene::ready(2);
    copied.lease_mut().unwrap().rule = Default::default();
    let bound = promised(&copied).loss_bound;
    assert!(bound.starts_with("the last commits"), "{bound}");
}

fn promised(scene: &Scene) -> DurabilityStatus {
    scene.status(&scene.decide()).durability.unwrap()
}

#[test]
fn bounds_are_numbers_too_and_absent_where_nobody_can_tell() {
    let of = |scene: &Scene| {
        let found = promised(scene);
        let recovery = found.expected_recovery_milliseconds;
        (found.synchronous_standbys, found.max_loss_bytes, recovery)
    };
    let mut scene = Scene::ready(3);
    assert_eq!(of(&scene), (1, Some(0), Some(4_700)));
    scene.lease_mut().unwrap().holder = None;
    assert_eq!(of(&scene), (1, Some(0), None), "in the middle of an outage");
    assert!(promised(&scene).recovery_bound.starts_with("no primary serves"));
    let mut scene = Scene::ready(3);
    let local = ("synchronous_commit".to_owned(), "local".to_owned());
    scene.edit(|spec| spec.postgres.parameters.extend([local]));
    assert_eq!(of(&scene).1, None);
    let mut scene = Scene::ready(3);
    scene.lease_mut().unwrap().rule = Default::default();
    assert_eq!(of(&scene), (0, Some(16 << 20), Some(12_000)));
    assert_eq!(of(&Scene::ready(1)), (0, None, None));
}

#[test]
fn the_promise_is_recorded_and_stays_when_the_number_of_instances_changes() {
    let recorded = |scene: &Scene| match scene.decide().action {
        Action::WriteStatus(changes) => changes.into_iter().find_map(|change| match change {
            StatusChange::RecordDurability(wanted) => Some((wanted.mode, wanted.standbys)),
            _ => None,
        }),
        _ => None,
    };
    let mut scene = Scene::ready(3);
    assert_eq!(recorded(&scene), None);
    scene.stored.memo.durability = None;
    assert_eq!(recorded(&scene), Some((DurabilityMode::Required, 1)));
    // A status that was lost takes it from the rule in force.
    let mut scene = Scene::ready(5);
    scene.stored.memo.durability = None;
    scene.spec.replicas = 3;
    assert_eq!(recorded(&scene), Some((DurabilityMode::Required, 2)));
    let mut scene = Scene::ready(3);
    for replicas in [2, 9, 1] {
        scene.spec.replicas = replicas;
        let wanted = scene.with_wanted(|wanted| wanted.spec.wanted_durability(scene.stored.memo.durability));
        assert_eq!((wanted.mode, wanted.standbys), (DurabilityMode::Required, 1));
    }
    scene.edit(|spec| (spec.replicas, spec.durability.mode) = (3, Some(DurabilityMode::Preferred)));
    assert_eq!(recorded(&scene), Some((DurabilityMode::Preferred, 1)));
}

#[test]
fn the_status_says_what_is_in_force() {
    let of = |scene: &Scene| {
        let found = promised(scene);
        (found.mode, found.loss_bound, found.recovery_bound)
    };
    let mut scene = Scene::ready(3);
    let (mode, loss, recovery) = of(&scene);
    assert_eq!(
        (mode, loss.as_str()),
        (DurabilityMode::Required, "none by any single failure")
    );
    assert_eq!(
        recovery,
        "about 4.7 s after the primary is lost: 2.7 s of silence, then an election and a promotion"
    );
    scene.edit(|spec| spec.failover.stale_reads = StaleReads::Forbid);
    assert!(
        of(&scene)
            .2
            .starts_with("about 12 s after the primary is lost: 10 s until its lease has run out, by")
    );
    scene.lease_mut().unwrap().rule.required = 0;
    let (mode, loss, recovery) = of(&scene);
    assert_eq!(mode, DurabilityMode::Async);
    assert!(
        loss.starts_with("the last commits") && loss.ends_with("(spec.durability asks for 1 standby)"),
        "{loss}"
    );
    assert!(recovery.contains("since commits wait for no standby"), "{recovery}");
    let five = Scene::ready(5);
    assert_eq!(of(&five).1, "none by any 2 failures at once");
    let one = Scene::ready(1);
    assert_eq!(
        (of(&one).0, of(&one).2.as_str()),
        (DurabilityMode::Async, "until the pod runs again on its volume")
    );
    let mut fast = Scene::ready(3);
    fast.edit(|spec| spec.failover.profile = FailoverProfile::Fast);
    assert!(of(&fast).2.contains("1.2 s of silence"), "{}", of(&fast).2);
    let mut preferred = Scene::ready(3);
    preferred.edit(|spec| spec.durability.mode = Some(DurabilityMode::Preferred));
    assert_eq!(of(&preferred).0, DurabilityMode::Preferred);
    let mut hasty = Scene::ready(3);
    for (value, bound) in [
        ("off", "the last commits"),
        ("LOCAL", "the last commits"),
        ("remote_apply", "none by"),
        (" ON", "none by"),
    ] {
        hasty.edit(|spec| {
            let parameters = &mut spec.postgres.parameters;
            parameters.insert("synchronous_commit".to_owned(), value.to_owned());
        });
        assert!(of(&hasty).1.starts_with(bound), "{value}: {}", of(&hasty).1);
    }
    hasty.edit(|spec| {
        let parameters = &mut spec.postgres.parameters;
        parameters.insert("Synchronous_Commit".to_owned(), "off".to_owned());
        parameters.remove("synchronous_commit");
    });
    assert!(of(&hasty).1.contains("sets synchronous_commit to off"));
    hasty.lease_mut().unwrap().rule.required = 0;
    assert!(
        of(&hasty).1.contains("no standby has received them"),
        "nothing waits at all"
    );
}

#[test]
fn only_one_instance_that_nobody_follows_is_alone() {
    let alone = |scene: &Scene| promised(scene).recovery_bound == "until the pod runs again on its volume";
    let mut scene = Scene::ready(2);
    scene.scaled(1);
    assert!(!alone(&scene), "the second one is still there");
    let mut scene = Scene::ready(1);
    assert!(alone(&scene));
    scene.scaled(2);
    assert!(!alone(&scene), "another one comes");
    let mut lost = Scene::ready(3);
    lost.lease_mut().unwrap().holder = None;
    assert!(
        promised(&lost).loss_bound.starts_with("none by"),
        "the user has not put it down"
    );
}

#[test]
fn ready_needs_the_promise_in_force() {
    let mut scene = Scene::ready(3);
    scene.lease_mut().unwrap().rule.required = 0;
    let decision = scene.decide();
    assert_eq!((decision.rule, decision.phase), ("await-durability", Phase::Updating));
    assert_eq!(
        decision.because.to_string(),
        "commits to wait for 1 standby, as spec.durability says; they wait for no standby"
    );
    let safe = |scene: &Scene| {
        let status = scene.status(&scene.decide());
        let found = status
            .conditions
            .into_iter()
            .find(|found| found.type_ == "DataSafe")
            .unwrap();
        (found.status, found.reason)
    };
    assert_eq!(
        safe(&scene),
        ("False".to_owned(), Reason::DurabilityReduced.as_str().to_owned())
    );
    scene.edit(|spec| spec.durability.mode = Some(DurabilityMode::Async));
    scene.store();
    assert_eq!((scene.decide().rule, scene.decide().phase), ("rest", Phase::Ready));
    scene.lease_mut().unwrap().rule.required = 1;
    assert_eq!(
        scene.decide().rule,
        "await-durability",
        "commits that wait for nothing asked for"
    );
    assert_ne!(safe(&scene).1, Reason::DurabilityReduced.as_str(), "more is not less");
}

#[test]
fn data_is_not_safe_while_a_role_replicates_under_a_members_name() {
    let mut scene = Scene::ready(3);
    let safe = |scene: &Scene| {
        let conditions = scene.status(&scene.decide()).conditions;
        let found = conditions.into_iter().find(|found| found.type_ == "DataSafe").unwrap();
        (found.status, found.reason, found.message)
    };
    scene.report_mut(0).impostors = ["cdc".to_owned(), "o'r \"x\"".to_owned()].into();
    let (status, reason, message) = safe(&scene);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", Reason::MemberImpersonated.as_str())
    );
    assert!(
        message.contains(r#"whenever they do: "cdc", "o'r \"x\"";"#),
        "{message}"
    );
    assert_eq!(scene.decide().phase, Phase::Ready, "nothing is to be changed");
    scene.report_mut(1).impostors = std::mem::take(&mut scene.report_mut(0).impostors);
    assert_eq!(safe(&scene).0, "True", "nobody waits for what a standby sends");
    scene.report_mut(0).impostors = scene.report_mut(1).impostors.clone();
    scene.edit(|spec| spec.durability.mode = Some(DurabilityMode::Async));
    scene.lease_mut().unwrap().rule.required = 0;
    assert_eq!(safe(&scene).0, "True", "commits wait for nobody");
}

#[test]
fn members_leave_the_rule_before_they_go() {
    let mut scene = Scene::ready(5);
    let lower = |spec: &mut api::ClusteredDatabaseSpec| {
        (spec.durability.mode, spec.durability.synchronous_standbys) = (Some(DurabilityMode::Required), Some(1));
    };
    scene.edit(lower);
    scene.scaled(3);
    let decision = scene.decide();
    assert_eq!(decision.rule, "await-scale");
    assert_eq!(
        decision.because.to_string(),
        "commits to do without demo-3, demo-4, to scale down"
    );
    let rule = &mut scene.lease_mut().unwrap().rule;
    rule.names.retain(|name| name.ordinal() < Some(3));
    assert_eq!(
        scene.decide().because.to_string(),
        "commits to wait for no more than 1 standby, to scale down"
    );
    scene.lease_mut().unwrap().rule.required = 1;
    assert!(matches!(scene.decide().action, Action::Apply(apply) if apply.replicas == Some(3)));
}

#[test]
fn a_standby_that_commits_need_is_not_scaled_away_while_another_is_broken() {
    let mut scene = Scene::ready(3);
    scene.edit(|spec| (spec.replicas, spec.durability.mode) = (2, Some(DurabilityMode::Required)));
    scene.report_mut(1).state = crate::protocol::MemberState::CatchingUp;
    let decision = scene.decide();
    assert_eq!(
        (decision.rule, decision.because.to_string().as_str()),
        (
            "await-staying",
            "demo-1, which is to stay, to serve, before demo-2 goes, which does"
        )
    );
    scene.scaled(3);
    assert_eq!(scene.decide().rule, "await-standbys", "a revert is possible");
}
