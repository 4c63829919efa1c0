//! Properties of every decision, whatever is observed: scenes are changed at random, also into what no cluster would
//! show.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod apply;
mod assertions;
mod handover;
mod scenes;
mod wal;

use api::Phase;
use chrono::TimeDelta;
use machine::cluster::{
    Action, Facts, RULES, RuleKind, StatusChange, StatusWrite, Step, briefly_away, due, may_follow, ready, rests,
    stored_phase,
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
        if scene.spec.paused && !scene.deleting && decision.rule != "accept-loss" {
            prop_assert!(matches!(decision.action, Action::Wait(_)), "{:?}", decision.action);
        }
        if scene.invalid.is_some() && !scene.deleting {
            let touches = matches!(
                decision.action,
                Action::Apply(_) | Action::ReplacePod(_) | Action::ResizePod(_) | Action::MarkPod { .. } | Action::UpdateClaim(_) | Action::ResizeClaim { .. } | Action::MakeWalClaim { .. } | Action::OrphanStatefulSet(_)
            );
            prop_assert!(!touches, "{:?}", decision.action);
        }
        scene.with_wanted(|wanted| {
            let facts = Facts::new(wanted, &scene.observed, &scene.stored, scene.now);
            for rule in RULES.iter().filter(|rule| rule.kind == RuleKind::Explain) {
                let acts = (rule.decide)(&facts).filter(|proposal| !matches!(proposal.action, Action::Wait(_)));
                assert_eq!(acts, None, "{} is there to explain", rule.name);
            }
            assert!(may_follow(stored_phase(&facts), decision.phase), "{:?} -> {:?}", scene.stored.phase, decision.phase);
            assert_voluntary(&scene, &facts, &decision.action);
            assert_changes(&scene, &facts, &decision.action);
            if let Action::Wait(waiting) = &decision.action
                && !rests(decision.phase)
                && !waiting.resting
                && (!scene.spec.paused || scene.deleting)
                && !matches!(decision.step, Some(Step::Supervised | Step::Fenced))
            {
                assert!(waiting.deadline.is_some(), "a wait without a deadline: {waiting:?}");
            }
            assert_failover(&scene, &facts, decision.phase);
            let resting = matches!(&decision.action, Action::Wait(waiting) if waiting.resting);
            assert!(!resting || ready(&facts), "idle, but not ready");
            if decision.phase == Phase::Ready && facts.all_known() && !scene.spec.paused {
                assert!(ready(&facts) || briefly_away(&facts).is_some());
            }
        });
    }

    /// Invariant 27: data that exists only once is not removed with a pod, nor by a scale-down.
    #[test]
    fn the_only_copy_of_the_data_stays(scene in alone()) {
        let decision = scene.decide();
        assert_action(&scene, &decision.action);
        scene.with_wanted(|wanted| {
            let facts = Facts::new(wanted, &scene.observed, &scene.stored, scene.now);
            assert_voluntary(&scene, &facts, &decision.action);
        });
    }

    /// Once the primary has moved, nothing moves it back while nothing else changes.
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
                    // An updated instance may become primary again.
                    before.clear();
                    let revision = scene.revision.clone();
                    let pod = scene.pods_mut().iter_mut().find(|pod| pod.uid == exact.uid()).unwrap();
                    pod.revision = Some(revision);
                }
                _ => return Ok(()),
            }
        }
        prop_assert!(false, "it never becomes idle: {:#?}", scene.decide());
    }

    /// Texts in the status are for people: no decision, and so no deadline, depends on one.
    #[test]
    fn rewording_any_text_moves_no_deadline(scene in scene(), seconds in 0..8_000_i64) {
        let mut scene = scene;
        for _ in 0..3 {
            scene.store();
        }
        let mut reworded = scene.clone();
        if let Some(waiting) = &mut reworded.stored.waiting {
            waiting.what = "other words".to_owned();
            waiting.who_can_end_it = "somebody".to_owned();
        }
        for condition in &mut reworded.stored.conditions {
            condition.message = "other words".to_owned();
        }
        for change in &mut reworded.stored.history {
            change.because = "other words".to_owned();
        }
        for scene in [&mut scene, &mut reworded] {
            scene.now += TimeDelta::seconds(seconds);
        }
        prop_assert_eq!(scene.decide(), reworded.decide());
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
                    let said = (before, decision.phase, decision.rule, again.phase, again.rule);
                    prop_assert!(!may_follow(before, again.phase), "it could have been said at once: {said:?}");
                    continue;
                }
                if again.action == decision.action {
                    let next = scene.status(&again);
                    prop_assert_eq!(due(&scene.stored, &next, &again), StatusWrite::None);
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
        // A rest that the spec wants is told apart by its reason.
        if ready.status == "True" && ready.reason == "AsWanted" {
            prop_assert_eq!(status.observed_generation, Some(scene.generation));
            prop_assert_eq!(ready.observed_generation, Some(scene.generation));
            prop_assert!(status.current_primary.is_some());
            prop_assert_eq!(status.ready_replicas, scene.spec.replicas);
            let in_force = scene.observed.lease.get().and_then(Option::as_ref).map(|lease| lease.rule.required);
            // A status that has lost what was chosen takes it from the rule in force.
            if let Some(chosen) = scene.stored.memo.durability {
                let promised = scene.spec.wanted_durability(Some(chosen));
                prop_assert_eq!(in_force, Some(promised.standbys), "the promise is in force");
                let mode = status.durability.map(|durability| durability.mode);
                prop_assert!(promised.standbys == 0 || mode == Some(promised.mode));
            }
        }
    }
}
