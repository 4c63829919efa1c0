//! What holds of every decision, whatever is observed: scenes are changed at random, also into what no cluster would show.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod apply;
mod assertions;
mod handover;
mod scenes;
mod wal;

use api::Phase;
use chrono::TimeDelta;
use machine::cluster::{
    Action, Due, Facts, RULES, StatusChange, Step, briefly_away, due, may_follow, ready, rests, stored_phase,
};
use proptest::prelude::*;

use assertions::{assert_action, assert_changes, assert_voluntary};
use handover::assert_failover;
use scenes::{alone, planned, scene};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(8_192)))]

    #[test]
    fn every_decision_keeps_the_rules(scene in scene()) {
        let decision = scene.decide();
        prop_assert_eq!(&decision, &scene.decide(), "deterministic");
        prop_assert!(RULES.iter().any(|rule| rule.name == decision.rule));
        prop_assert!(decision.wake >= scene.now && decision.wake <= scene.now + TimeDelta::minutes(2));
        prop_assert_eq!(decision.failure.is_some(), decision.phase == Phase::Failed);
        assert_action(&scene, &decision.action);
        if scene.spec.paused && !scene.deleting {
            prop_assert!(matches!(decision.action, Action::Wait(_)), "{:?}", decision.action);
        }
        if scene.invalid.is_some() && !scene.deleting {
            let touches = matches!(
                decision.action,
                Action::Apply(_) | Action::ReplacePod(_) | Action::ResizePod(_) | Action::MarkPod { .. } | Action::ResizeClaim { .. } | Action::MakeWalClaim { .. } | Action::OrphanStatefulSet(_)
            );
            prop_assert!(!touches, "{:?}", decision.action);
        }
        scene.with_wanted(|wanted| {
            let facts = Facts::new(wanted, &scene.observed, &scene.stored, scene.now);
            assert!(may_follow(stored_phase(&facts), decision.phase), "{:?} -> {:?}", scene.stored.phase, decision.phase);
            assert_voluntary(&scene, &facts, &decision.action);
            assert_changes(&scene, &facts, &decision.action);
            if let Action::Wait(waiting) = &decision.action
                && !rests(decision.phase)
                && !waiting.resting
                && (!scene.spec.paused || scene.deleting)
                && !matches!(decision.step, Some(Step::Supervised | Step::Fenced))
            {
                assert!(waiting.deadline.is_some(), "a wait without end: {waiting:?}");
            }
            assert_failover(&scene, &facts, decision.phase);
            let resting = matches!(&decision.action, Action::Wait(waiting) if waiting.resting);
            assert!(!resting || ready(&facts), "rests, and is not ready");
            if decision.phase == Phase::Ready && facts.all_known() && !scene.spec.paused {
                assert!(ready(&facts) || briefly_away(&facts).is_some());
            }
        });
    }

    /// Invariant 27: what there is only once goes with nobody's pod, and with no scale-down.
    #[test]
    fn the_only_copy_of_the_data_stays(scene in alone()) {
        let decision = scene.decide();
        assert_action(&scene, &decision.action);
        scene.with_wanted(|wanted| {
            let facts = Facts::new(wanted, &scene.observed, &scene.stored, scene.now);
            assert_voluntary(&scene, &facts, &decision.action);
        });
    }

    /// Once the primary has moved, nothing sends it back as long as nothing else changes.
    #[test]
    fn no_primary_is_moved_to_and_fro(scene in planned()) {
        let mut scene = scene;
        let mut before = Vec::new();
        for _ in 0..30 {
            let lease = scene.observed.lease.get().and_then(Option::as_ref);
            let holder = lease.and_then(|lease| lease.holder.as_ref()).map(|holder| holder.incarnation.pod.clone());
            let decision = scene.store();
            match &decision.action {
                Action::WriteStatus(changes) => {
                    let target = changes.iter().find_map(|change| match change {
                        StatusChange::MovePrimary { memo, .. } => Some(memo.target.clone()),
                        _ => None,
                    });
                    let Some(target) = target else { continue };
                    before.push(holder.unwrap());
                    prop_assert!(!before.contains(&target), "back to {target}: {:?}", decision.because);
                    let ordinal = scene.pods().iter().find(|pod| pod.name == target).map(|pod| pod.ordinal);
                    scene.elect(ordinal.unwrap());
                }
                Action::ReplacePod(exact) => {
                    // What is updated may become primary again.
                    before.clear();
                    let revision = scene.revision.clone();
                    let pod = scene.pods_mut().iter_mut().find(|pod| pod.uid == exact.uid()).unwrap();
                    pod.revision = Some(revision);
                }
                _ => return Ok(()),
            }
        }
        prop_assert!(false, "it never comes to rest: {:#?}", scene.decide());
    }

    /// A status that was written is not written again while nothing changes.
    #[test]
    fn a_status_is_stable(scene in scene()) {
        let mut scene = scene;
        for _ in 0..12 {
            let before = scene.stored.phase;
            let decision = scene.store();
            if matches!(decision.action, Action::Wait(_)) {
                let again = scene.decide();
                if again.phase != decision.phase {
                    prop_assert!(!may_follow(before, again.phase), "it could have been said at once");
                    continue;
                }
                if again.action == decision.action {
                    let next = scene.status(&again);
                    prop_assert_eq!(due(&scene.stored, &next, &again), Due::Never);
                    return Ok(());
                }
            } else if !matches!(decision.action, Action::WriteStatus(_)) {
                // An effect that is not carried out here.
                return Ok(());
            }
        }
        prop_assert!(false, "it writes without end: {:#?}", scene.decide());
    }

    /// `Ready=True` speaks of the present generation, of one primary, and of members that all serve.
    #[test]
    fn ready_is_true_only_of_the_present_spec(scene in scene()) {
        let status = scene.status(&scene.decide());
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready").unwrap();
        if ready.status == "True" {
            prop_assert_eq!(status.observed_generation, Some(scene.generation));
            prop_assert_eq!(ready.observed_generation, Some(scene.generation));
            prop_assert!(status.current_primary.is_some());
            prop_assert_eq!(status.ready_replicas, scene.spec.replicas);
            let promised = scene.spec.wanted_durability();
            let in_force = scene.observed.lease.get().and_then(Option::as_ref).map(|lease| lease.rule.required);
            prop_assert_eq!(in_force, Some(promised.standbys), "the promise is in force");
            let mode = status.durability.map(|durability| durability.mode);
            prop_assert!(promised.standbys == 0 || mode == Some(promised.mode));
        }
    }
}
