//! The phase: a word for people, found from what is observed, with the stored one as a hint where that leaves a choice.

use api::Phase;

use super::action::Action;
use super::decision::Failure;
use super::facts::Facts;
use super::observed::{ChildKind, ChildState};
use super::volumes;

/// The stored phase, as far as it can be true. A resource that is not being deleted cannot have been before: such a
/// status was copied from another one.
pub fn stored(facts: &Facts<'_>) -> Option<Phase> {
    facts
        .status
        .phase
        .filter(|phase| *phase != Phase::Deleting || facts.wanted.deleting)
}

/// The phase, and why it is `Failed` if it is. `found` is the failure that is observed.
pub(super) fn after(facts: &Facts<'_>, found: Option<Failure>, action: &Action) -> (Phase, Option<Failure>) {
    if facts.wanted.deleting {
        return (Phase::Deleting, None);
    }
    if let Some(failure) = found {
        return (Phase::Failed, Some(failure));
    }
    let stored = stored(facts);
    let uncertain = !facts.all_known() || facts.wanted.spec.paused || tries_again(facts, action);
    if stored == Some(Phase::Failed) && uncertain {
        let failure = stored_failure(facts);
        return (
            failure.as_ref().map_or_else(|| underway(facts), |_| Phase::Failed),
            failure,
        );
    }
    if facts.wanted.spec.paused || !facts.all_known() {
        return (stored.unwrap_or_else(|| underway(facts)), None);
    }
    let phase = if ready(facts) { Phase::Ready } else { underway(facts) };
    (phase, None)
}

/// A refused object is tried again: whether the refusal still holds is known only afterwards.
fn tries_again(facts: &Facts<'_>, action: &Action) -> bool {
    use api::status::FailureReason::{InvalidSpec, QuotaExceeded};
    let refused = facts
        .status
        .failure
        .as_ref()
        .is_some_and(|failure| match failure.reason {
            QuotaExceeded => true,
            // A refusal of the object by the API server; a spec that is refused here is found in every observation.
            InvalidSpec => facts.status.observed_generation == Some(facts.wanted.generation),
            _ => false,
        });
    refused && matches!(action, Action::Apply(_))
}

fn stored_failure(facts: &Facts<'_>) -> Option<Failure> {
    let failure = facts.status.failure.as_ref()?;
    Some(Failure {
        reason: failure.reason,
        message: failure.message.clone().into(),
    })
}

/// On the way to `Ready`: for the first time, or again. A database whose status was wiped after it was made is being
/// updated, since a creation that far has a phase.
fn underway(facts: &Facts<'_>) -> Phase {
    match stored(facts) {
        Some(Phase::Creating | Phase::Restoring) => Phase::Creating,
        Some(Phase::Failed) if facts.status.system_identifier.is_none() => Phase::Creating,
        None if !facts.bootstrapped() => Phase::Creating,
        None
        | Some(
            Phase::Ready
            | Phase::Updating
            | Phase::SwitchingOver
            | Phase::FailingOver
            | Phase::Upgrading
            | Phase::Hibernated
            | Phase::Deleting
            | Phase::Failed,
        ) => Phase::Updating,
    }
}

/// The primary serves; as many members as wanted serve, at the wanted revision and settings; every object and
/// every volume is as it should be.
pub fn ready(facts: &Facts<'_>) -> bool {
    facts.wanted.invalid.is_none()
        && facts.wanted.finalizer
        && !facts.wanted.deleting
        && facts.primary().is_some()
        && facts.expected() == facts.wanted.replicas()
        && facts.all_serve_except(None)
        && facts.pods().len() == facts.wanted.replicas() as usize
        && facts
            .pods()
            .iter()
            .all(|pod| facts.current_revision(pod) && facts.current_settings(pod))
        && volumes::large_enough(facts)
        && ChildKind::ALL
            .iter()
            .all(|kind| matches!(facts.child(*kind), Some(ChildState::Current { .. })))
}
