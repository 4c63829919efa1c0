//! A recovery in place, its undoing and its confirmation, with a crash after each write, and taken back at each.

use std::collections::BTreeSet;

use api::Phase;
use api::operation::{Action as Asked, ConfirmRecovery, Recover, UndoRecovery};
use api::spec::VolumeFate;
use api::status::{RequestOutcome, WaitReason};
use chrono::TimeDelta;
use machine::cluster::model::{Crash, World};

use crate::{assert_rests, ready};

fn with_store(crash: Crash) -> World {
    let mut world = ready(3).crashing(crash);
    world.scene.edit(|spec| {
        let backup = serde_json::json!({"store": {"s3": {"bucket": "backups"}}});
        spec.backup = Some(serde_json::from_value(backup).unwrap());
    });
    world.scene.generation += 1;
    world.settle();
    world.writes.clear();
    world
}

/// Asks for it under a UID of its own, and goes on until the world rests.
fn ask(world: &mut World, action: Asked) -> bool {
    world.scene.ask(action);
    world.settle()
}

fn outcome(world: &World) -> (Option<RequestOutcome>, String) {
    let noted = world.scene.stored.memo.request.clone().unwrap();
    (noted.outcome, noted.message.unwrap_or_default())
}

/// UIDs of the claims in use, and of the others.
fn claims(world: &World) -> (BTreeSet<String>, BTreeSet<String>) {
    let observed = &world.scene.observed;
    let own = observed.claims.get().unwrap().iter().map(|claim| claim.uid.clone());
    let others = observed.other_claims.iter().map(|claim| claim.uid.clone());
    (own.collect(), others.collect())
}

/// Asks for it; it is done, and the world rests.
fn done(world: &mut World, action: Asked) {
    assert!(ask(world, action), "{:#?}", world.scene.decide());
    assert_rests(world);
    let (ended, why) = outcome(world);
    assert_eq!(ended, Some(RequestOutcome::Done), "{why}");
}

const RECOVER: Asked = Asked::Recover(Recover {
    backup: None,
    target: None,
    dry_run: false,
    keep_hours: None,
});

#[test]
fn it_recovers_on_new_volumes_and_goes_back_and_forth_until_it_is_confirmed() {
    let mut world = with_store(Crash::Never);
    let (first, none) = claims(&world);
    assert!(none.is_empty());
    let epoch = world.scene.stored.epoch;

    done(&mut world, RECOVER);
    let (second, kept) = claims(&world);
    assert_eq!((kept, second.len(), world.initdbs), (first.clone(), 3, 2));
    assert!(second.is_disjoint(&first));
    assert!(world.scene.stored.epoch > epoch, "the epoch goes on");
    assert_eq!(world.scene.stored.intent.recovery, None);
    let phases: Vec<Phase> = world.scene.stored.history.iter().map(|change| change.to).collect();
    assert!(
        phases.ends_with(&[Phase::Ready, Phase::Restoring, Phase::Updating, Phase::Ready]),
        "{phases:?}"
    );
    let conditions = &world.scene.stored.conditions;
    assert!(
        conditions
            .iter()
            .any(|found| found.type_ == "FormerVolumesKept" && found.status == "True")
    );

    world.scene.request.as_mut().unwrap().uid = "another".to_owned();
    assert!(world.settle());
    let (refused, why) = outcome(&world);
    assert_eq!(refused, Some(RequestOutcome::GivenUp));
    assert!(why.contains("confirm-recovery demo"), "{why}");

    done(&mut world, Asked::UndoRecovery(UndoRecovery {}));
    assert_eq!((claims(&world), world.initdbs), ((first.clone(), second.clone()), 2));

    done(&mut world, Asked::ConfirmRecovery(ConfirmRecovery {}));
    assert_eq!(claims(&world), (first, BTreeSet::new()));
    let lease = world.scene.observed.lease.get().cloned().flatten().unwrap();
    assert_eq!((lease.volume_set, lease.former_set), (0, None));
    assert!(
        world
            .scene
            .stored
            .conditions
            .iter()
            .all(|found| found.type_ != "FormerVolumesKept")
    );
}

#[test]
fn the_volumes_of_before_go_when_their_time_is_over() {
    let mut world = with_store(Crash::Never);
    let (first, _) = claims(&world);
    let for_a_day = Asked::Recover(Recover {
        backup: None,
        target: None,
        dry_run: false,
        keep_hours: Some(24),
    });
    done(&mut world, for_a_day);
    let (second, kept) = claims(&world);
    assert_eq!(kept, first);
    let until = world.scene.stored.memo.volumes.as_ref().unwrap().keep_until.unwrap();
    assert!(
        until > world.scene.now + TimeDelta::hours(23),
        "they are kept from the time when it serves on"
    );
    world.scene.now = until - TimeDelta::minutes(1);
    assert!(world.settle());
    assert_eq!(claims(&world), (second.clone(), first));
    world.scene.now = until;
    let mut without_primary = world.scene.clone();
    (0..3).for_each(|ordinal| without_primary.pod_mut(ordinal).ready = false);
    let decision = without_primary.decide();
    assert!(
        decision.wake > until && decision.rule != "discard-volumes",
        "{decision:?}"
    );
    assert!(world.settle());
    assert_eq!(claims(&world), (second, BTreeSet::new()));
    assert_rests(&world);
}

#[test]
fn a_dry_run_says_what_would_be_done_and_changes_nothing() {
    let mut world = with_store(Crash::Never);
    let before = (claims(&world), world.scene.stored.epoch);
    let dry_run = Asked::Recover(Recover {
        backup: None,
        target: None,
        dry_run: true,
        keep_hours: None,
    });
    done(&mut world, dry_run);
    let (_, told) = outcome(&world);
    for words in [
        "backup 20270101T000000Z-F-7f3a",
        "3 segments of WAL (12 MiB)",
        "All 3 instances would stop",
        "confirm-recovery demo",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!((claims(&world), world.scene.stored.epoch), before);
    assert_eq!((world.initdbs, &world.scene.stored.memo.volumes), (1, &None));
    world.unprovable = true;
    world.scene.request.as_mut().unwrap().uid = "another".to_owned();
    assert!(world.settle());
    assert_eq!(outcome(&world).0, Some(RequestOutcome::GivenUp));
}

#[test]
fn a_crash_after_any_write_changes_no_outcome() {
    let run = |crash: Crash| {
        let mut world = with_store(crash);
        for action in [RECOVER, Asked::ConfirmRecovery(ConfirmRecovery {})] {
            assert!(ask(&mut world, action), "{crash:?}: {:#?}", world.scene.decide());
            assert_eq!(outcome(&world).0, Some(RequestOutcome::Done), "{crash:?}");
        }
        assert_rests(&world);
        assert_eq!(world.initdbs, 2, "{crash:?}");
        assert!(claims(&world).1.is_empty(), "{crash:?}");
        world.writes.len()
    };
    let writes = run(Crash::Never);
    for write in 1..=writes {
        run(Crash::After(write));
    }
}

#[test]
fn taken_back_at_any_time_the_database_is_as_it_was_or_recovered() {
    let (mut as_before, mut recovered) = (0, 0);
    for write in 0.. {
        let mut world = with_store(Crash::Never);
        let before = claims(&world);
        world.scene.ask(RECOVER);
        let ended = |world: &World| outcome_of(world).is_some();
        world.run_until(TimeDelta::minutes(10), |world, _| {
            world.writes.len() >= write || ended(world)
        });
        let done = ended(&world);
        world.scene.request = None;
        assert!(world.settle(), "after {write}: {:#?}", world.scene.decide());
        assert_rests(&world);
        if claims(&world) == before {
            as_before += 1;
        } else {
            recovered += 1;
            assert_eq!(claims(&world).1, before.0, "after {write}");
        }
        if done {
            break;
        }
    }
    assert!(
        as_before > 10 && recovered > 0,
        "{as_before} as before, {recovered} recovered"
    );
}

fn outcome_of(world: &World) -> Option<RequestOutcome> {
    world.scene.stored.memo.request.as_ref()?.outcome
}

#[test]
fn a_recovery_that_fails_leaves_the_database_as_it_was() {
    let mut world = with_store(Crash::Never);
    let before = claims(&world);
    world.unrecoverable = true;
    assert!(ask(&mut world, RECOVER), "{:#?}", world.scene.decide());
    assert_rests(&world);
    let (refused, why) = outcome(&world);
    assert_eq!(refused, Some(RequestOutcome::GivenUp));
    assert!(
        why.contains("no backup reaches the target; the database goes on as it was"),
        "{why}"
    );
    assert_eq!((claims(&world), world.initdbs), (before, 1), "and its volumes are gone");
    let phases = world.scene.stored.history.iter();
    assert!(phases.map(|change| change.to).all(|phase| phase != Phase::Failed));
}

#[test]
fn nothing_stops_for_a_recovery_that_the_store_has_not_all_for() {
    let mut world = with_store(Crash::Never);
    let before = claims(&world);
    world.unprovable = true;
    assert!(ask(&mut world, RECOVER), "{:#?}", world.scene.decide());
    assert_rests(&world);
    let (refused, why) = outcome(&world);
    assert_eq!(refused, Some(RequestOutcome::GivenUp));
    assert_eq!(why, "a segment of WAL is missing; nothing was changed");
    assert_eq!(claims(&world), before);
    assert_eq!(world.scene.stored.intent.recovery_check, None);
    let mut phases = world.scene.stored.history.iter().map(|change| change.to);
    assert!(phases.all(|phase| phase != Phase::Restoring));
    // The word of before is none about another operation.
    world.unprovable = false;
    world.scene.request.as_mut().unwrap().uid = "another".to_owned();
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_eq!(outcome_of(&world), Some(RequestOutcome::Done));
}

#[test]
fn a_primary_that_tells_nothing_holds_no_recovery_up_for_ever() {
    let mut world = with_store(Crash::Never);
    world.never_checks = true;
    assert!(ask(&mut world, RECOVER), "{:#?}", world.scene.decide());
    let (refused, why) = outcome(&world);
    assert_eq!(refused, Some(RequestOutcome::GivenUp));
    assert!(
        why.contains("has not told within 5 min") && why.contains("kubectl cdb restart"),
        "{why}"
    );
    // What was true when it was asked for is looked at again.
    let mut world = with_store(Crash::Never);
    world.never_checks = true;
    world.scene.ask(RECOVER);
    world.run_until(TimeDelta::minutes(1), |world, _| {
        world.scene.stored.intent.recovery_check.is_some()
    });
    world.scene.edit(|spec| spec.backup = None);
    assert!(world.settle());
    assert!(outcome(&world).1.contains("names no store"), "{:?}", outcome(&world));
}

#[test]
fn what_cannot_be_recovered_in_place_is_refused_before_anything_stops() {
    let mut without = ready(3);
    let mut sealed = with_store(Crash::Never);
    sealed.scene.edit(|spec| {
        let encryption = serde_json::json!({"recipients": ["age1"]});
        spec.backup.as_mut().unwrap().encryption = Some(serde_json::from_value(encryption).unwrap());
    });
    for (world, expected) in [(&mut without, "names no store"), (&mut sealed, "identitySecretRef")] {
        let before = claims(world);
        assert!(ask(world, RECOVER));
        let (refused, why) = outcome(world);
        assert_eq!(refused, Some(RequestOutcome::GivenUp));
        assert!(why.contains(expected), "{why}");
        assert_eq!(claims(world), before);
    }
    for action in [
        Asked::UndoRecovery(UndoRecovery {}),
        Asked::ConfirmRecovery(ConfirmRecovery {}),
    ] {
        assert!(ask(&mut without, action));
        assert_eq!(outcome(&without).0, Some(RequestOutcome::GivenUp));
    }
}

#[test]
fn one_that_is_deleted_in_the_middle_ends() {
    for write in 0..30 {
        let mut world = with_store(Crash::Never);
        world.scene.ask(RECOVER);
        world.run_until(TimeDelta::minutes(10), |world, _| world.writes.len() >= write);
        world.scene.deleting = true;
        world
            .scene
            .edit(|spec| spec.storage.retention_policy.when_deleted = VolumeFate::Delete);
        assert!(
            world.settle() && world.gone,
            "after {write}: {:#?}",
            world.scene.decide()
        );
        assert_eq!(claims(&world), (BTreeSet::new(), BTreeSet::new()), "after {write}");
    }
}

/// What it has acknowledged last, nobody knows.
#[test]
fn volumes_are_not_changed_behind_a_primary_that_went_away_without_a_word() {
    let mut world = with_store(Crash::Never);
    let before = claims(&world);
    world.scene.ask(RECOVER);
    world.run_until(TimeDelta::minutes(1), |world, _| {
        world.scene.stored.memo.volumes.is_some()
    });
    world.scene.pods_mut().retain(|pod| pod.name != "demo-0");
    assert!(!world.settle());
    let (reason, object) = world.scene.awaits();
    assert_eq!((reason, object.as_str()), (WaitReason::CleanStop, "lease/demo"));
    world.scene.request = None;
    world.run_until(TimeDelta::minutes(1), |world, _| !world.scene.stored.intent.stop);
    // Its lease runs out.
    world.lose_primary();
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!((claims(&world), world.initdbs), (before, 1));
}

#[test]
fn an_undoing_that_is_taken_back_ends_on_one_set_of_volumes_and_keeps_the_other() {
    let recovered = || {
        let mut world = with_store(Crash::Never);
        assert!(ask(&mut world, RECOVER));
        world.writes.clear();
        world
    };
    let (second, first) = claims(&recovered());
    for write in 0..30 {
        let mut world = recovered();
        world.scene.ask(Asked::UndoRecovery(UndoRecovery {}));
        world.run_until(TimeDelta::minutes(10), |world, _| world.writes.len() >= write);
        world.scene.request = None;
        assert!(world.settle(), "after {write}: {:#?}", world.scene.decide());
        assert_rests(&world);
        let both = [(second.clone(), first.clone()), (first.clone(), second.clone())];
        assert!(both.contains(&claims(&world)), "after {write}");
    }
}

#[test]
fn a_lost_status_costs_no_volumes() {
    for undone in [false, true] {
        let mut world = with_store(Crash::Never);
        assert!(ask(&mut world, RECOVER));
        if undone {
            assert!(ask(&mut world, Asked::UndoRecovery(UndoRecovery {})));
        }
        let before = claims(&world);
        world.scene.request = None;
        world.scene.stored = Default::default();
        assert!(world.settle(), "{:#?}", world.scene.decide());
        assert_eq!(claims(&world), before, "{undone}");
        let sets = world.scene.stored.memo.volumes.clone().unwrap();
        assert_eq!(
            (sets.current, sets.former),
            if undone { (0, Some(1)) } else { (1, Some(0)) }
        );
    }
    // In the middle: the order is lost with it, and the volumes of before come back.
    for write in 0..30 {
        let mut world = with_store(Crash::Never);
        let before = claims(&world).0;
        world.scene.ask(RECOVER);
        world.run_until(TimeDelta::minutes(10), |world, _| world.writes.len() >= write);
        world.scene.request = None;
        world.scene.stored = Default::default();
        assert!(world.settle(), "after {write}: {:#?}", world.scene.decide());
        let (own, others) = claims(&world);
        assert!(own == before || others == before, "after {write}");
        assert!(world.scene.stored.current_primary.is_some(), "after {write}");
    }
}

#[test]
fn one_that_is_deleted_in_the_middle_leaves_what_its_kept_volumes_need() {
    for write in 0..30 {
        let mut world = with_store(Crash::Never);
        let before = claims(&world).0;
        world.scene.ask(RECOVER);
        world.run_until(TimeDelta::minutes(10), |world, _| world.writes.len() >= write);
        world.scene.deleting = true;
        assert!(world.settle() && world.gone, "after {write}");
        let (own, others) = claims(&world);
        assert!(before.is_subset(&own) || before.is_subset(&others), "after {write}");
        assert!(
            world.scene.observed.lease.get().is_some_and(Option::is_some),
            "after {write}"
        );
    }
}
