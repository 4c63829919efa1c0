//! How long each kind of wait may last before the status says that it takes too long.
//!
//! A wait that ends with something else being done has a deadline of its own. Every other one is ended by somebody else:
//! after its time the phase stays as it is, nothing is given up, and the condition `Progressing` turns `False`
//! (`DeadlineExceeded`), as that of a Deployment does. It turns back by itself when the wait ends or changes.

use api::Phase;
use api::status::LateObject;
use chrono::{DateTime, TimeDelta, Utc};

use super::action::Action;
use super::decision::Step;
use super::facts::{Facts, late};

/// As long as `progressDeadlineSeconds` of a Deployment: more than any controller, kubelet or agent takes in good health.
const USUAL: TimeDelta = TimeDelta::minutes(10);
/// A standby copies the whole database: at 100 MB/s this is for 360 GB, and a larger one is not wrong, only slow.
const CLONE: TimeDelta = TimeDelta::hours(1);
/// A pod that is replaced stops with a checkpoint, starts on another node, and replays what it missed.
const REPLACEMENT: TimeDelta = TimeDelta::minutes(30);

/// How long a wait in this step may last; without a step it is for something to be read.
pub const fn wait_limit(step: Option<Step>) -> TimeDelta {
    match step {
        Some(Step::Standbys | Step::Scaling | Step::BackingUp) => CLONE,
        Some(Step::Rollout) => REPLACEMENT,
        Some(
            Step::Objects
            | Step::Bootstrap
            | Step::Primary
            | Step::Switchover
            | Step::Repair
            | Step::Settings
            | Step::Volumes
            | Step::Stopping
            | Step::Removing
            | Step::Supervised
            | Step::Fenced
            | Step::Paused,
        )
        | None => USUAL,
    }
}

/// Whether a database may stay in this phase for as long as it likes.
pub const fn rests(phase: Phase) -> bool {
    match phase {
        Phase::Ready | Phase::Hibernated | Phase::Failed => true,
        Phase::Creating
        | Phase::Restoring
        | Phase::Updating
        | Phase::SwitchingOver
        | Phase::FailingOver
        | Phase::Upgrading
        | Phase::Deleting => false,
    }
}

/// How long this one of several late objects may be.
pub(super) fn limit_of(facts: &Facts<'_>, step: Option<Step>, late: &LateObject) -> TimeDelta {
    // Nothing is copied meanwhile.
    let obstructed = step == Some(Step::Standbys) && late::is_obstructed(facts, late);
    if obstructed { USUAL } else { wait_limit(step) }
}

/// Gives a wait its deadline, unless it has one, the phase rests, or the user wants it so (paused, fenced, supervised). Returns the
/// deadline if it is still to come.
pub(super) fn bound(facts: &Facts<'_>, action: &mut Action, phase: Phase, step: Option<Step>) -> Option<DateTime<Utc>> {
    let Action::Wait(waiting) = action else { return None };
    let wished = matches!(step, Some(Step::Supervised | Step::Fenced | Step::Paused));
    if waiting.deadline.is_some() || waiting.resting || rests(phase) || wished {
        return None;
    }
    let of_each = waiting.late.iter().map(|late| late.since + limit_of(facts, step, late));
    let deadline = of_each.min().unwrap_or(waiting.since + wait_limit(step));
    waiting.deadline = Some(deadline);
    (deadline > facts.now).then_some(deadline)
}

#[cfg(test)]
mod tests {
    use super::super::model::Scene;
    use super::super::{Fault, FaultKind, OwnedObject, StatusWrite, Target};
    use super::*;

    fn progressing(scene: &Scene) -> (String, String) {
        let found = scene
            .stored
            .conditions
            .iter()
            .find(|found| found.type_ == "Progressing");
        let found = found.unwrap();
        (found.status.clone(), found.reason.clone())
    }

    #[test]
    fn a_wait_that_lasts_too_long_is_said_once_and_goes_on() {
        let mut scene = Scene::ready(3);
        scene.stored.phase = Some(Phase::Updating);
        scene.pod_mut(2).ready = false;
        scene.store();
        let began = scene.now;
        let waiting = scene.stored.waiting.clone().unwrap();
        assert_eq!((waiting.since, waiting.deadline), (began, Some(began + CLONE)));
        assert_eq!(progressing(&scene), ("True".to_owned(), "StandbyJoining".to_owned()));
        scene.now = began + CLONE - TimeDelta::seconds(30);
        let decision = scene.decide();
        assert_eq!(scene.due(&decision), StatusWrite::None, "the deadline does not move");
        assert_eq!(decision.wake, began + CLONE, "it is looked at in time");
        scene.now = began + CLONE;
        scene.store();
        assert_eq!(progressing(&scene), ("False".to_owned(), "DeadlineExceeded".to_owned()));
        let decision = scene.decide();
        assert_eq!(
            (decision.phase, scene.due(&decision)),
            (Phase::Updating, StatusWrite::None)
        );
        assert!(decision.wake > scene.now, "it does not turn in circles");
        scene.pod_mut(2).ready = true;
        scene.store();
        assert_eq!(progressing(&scene), ("False".to_owned(), "AsWanted".to_owned()));
    }

    #[test]
    fn retries_do_not_move_the_deadline() {
        let mut scene = Scene::ready(3);
        scene.set_child(OwnedObject::RoService, super::super::OwnedState::Missing);
        let fault = |attempts, at| Fault {
            target: Target::Child(OwnedObject::RoService),
            kind: FaultKind::Transient,
            message: "no".to_owned(),
            attempts,
            at,
        };
        scene.observed.faults = vec![fault(4, scene.now)];
        scene.store();
        let deadline = scene.stored.waiting.clone().unwrap().deadline;
        assert_eq!(deadline, Some(scene.now + USUAL));
        scene.now += TimeDelta::seconds(40);
        scene.observed.faults = vec![fault(5, scene.now)];
        let decision = scene.decide();
        assert!(matches!(decision.action, Action::Wait(_)));
        assert_eq!(scene.due(&decision), StatusWrite::None);
    }

    #[test]
    fn a_paused_or_failed_database_has_no_deadline() {
        let mut scene = Scene::ready(3);
        scene.pod_mut(2).ready = false;
        scene.edit(|spec| spec.paused = true);
        scene.store();
        assert_eq!(scene.stored.waiting.clone().unwrap().deadline, None);
        let mut failed = Scene::ready(3);
        failed.invalid = Some("no".to_owned());
        failed.store();
        assert_eq!(failed.stored.phase, Some(Phase::Failed));
        assert_eq!(failed.stored.waiting.clone().unwrap().deadline, None);
    }
}
