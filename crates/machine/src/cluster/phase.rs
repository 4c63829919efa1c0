//! The phase: a word for people, found from what is observed, with the stored one as a hint where that leaves a choice.

use api::Phase;
use chrono::{DateTime, TimeDelta, Utc};

use super::action::Action;
use super::decision::Failure;
use super::facts::{Facts, fenced, hibernation, volumes};
use super::health::ConditionKind;
use super::transitions::may_follow;
use super::{durability, failover, switchover};

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
    let at_rest = ready(facts) || briefly_away(facts).is_some();
    let phase = if hibernation::rests(facts) && may_follow(stored, Phase::Hibernated) {
        Phase::Hibernated
    } else if at_rest && !switchover::begins(action) {
        Phase::Ready
    } else {
        moving(facts, action).unwrap_or_else(|| underway(facts))
    };
    (phase, None)
}

/// A refused object is tried again: whether the refusal still holds is known only afterwards.
fn tries_again(facts: &Facts<'_>, action: &Action) -> bool {
    use api::status::FailureReason::{InvalidSpec, QuotaExceeded};
    // A refusal of the object by the API server; a spec that is refused here is found in every observation.
    let of_object = facts.status.observed_generation == Some(facts.wanted.generation);
    let refused = facts
        .status
        .failure
        .as_ref()
        .is_some_and(|failure| failure.reason == QuotaExceeded || failure.reason == InvalidSpec && of_object);
    refused && matches!(action, Action::Apply(_))
}

fn stored_failure(facts: &Facts<'_>) -> Option<Failure> {
    let failure = facts.status.failure.as_ref()?;
    Some(Failure {
        reason: failure.reason,
        message: failure.message.clone().into(),
    })
}

/// The primary is on its way from one instance to another: as planned (on request, or because its pod is to end), or because it is lost; a creation stays one.
fn moving(facts: &Facts<'_>, action: &Action) -> Option<Phase> {
    let failover = failover::under_way(facts);
    let planned = switchover::under_way(facts) || switchover::begins(action);
    let phase = if planned || failover && failover::is_left(facts) {
        Phase::SwitchingOver
    } else if failover {
        Phase::FailingOver
    } else {
        return None;
    };
    (underway(facts) == Phase::Updating && may_follow(stored(facts), phase)).then_some(phase)
}

/// The first database is being made, from a backup or new; or it is there, and the other instances are to come.
fn making(facts: &Facts<'_>) -> Phase {
    match facts.wanted.spec.recovery() {
        Some(_) if facts.status.system_identifier.is_none() => Phase::Restoring,
        Some(_) | None => Phase::Creating,
    }
}

/// On the way to `Ready`: for the first time, or again. A database whose status was wiped after it was made is being
/// updated, since a creation that far has a phase.
fn underway(facts: &Facts<'_>) -> Phase {
    if hibernation::changes_volumes(facts) || facts.status.intent.recovery.is_some() {
        return Phase::Restoring;
    }
    match stored(facts) {
        Some(Phase::Restoring) if facts.status.memo.volumes.is_some() => Phase::Updating,
        Some(Phase::Creating | Phase::Restoring) => making(facts),
        Some(Phase::Failed | Phase::Hibernated) if facts.status.system_identifier.is_none() => making(facts),
        None if !facts.bootstrapped() => making(facts),
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

/// The primary serves, and it is one that the spec may have; as many members as wanted serve, at the wanted revision and
/// settings; commits wait for as many standbys as wanted; every object and every volume is as it should be.
pub fn ready(facts: &Facts<'_>) -> bool {
    intact(facts) && all_there(facts) && durability::in_force(facts)
}

/// A standby that restarts is back within this time; a phase that changed each time would say little.
const BRIEF: TimeDelta = TimeDelta::seconds(15);

/// Until when the database still counts as ready though a standby is away: the conditions tell of it at once.
pub fn briefly_away(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    let away = !all_there(facts) && !fenced::any(facts);
    let brief = facts.status.phase == Some(Phase::Ready) && intact(facts) && away;
    let until = away_since(facts) + BRIEF;
    (brief && facts.now < until).then_some(until)
}

/// Since when something has been missing, by the condition that says so.
fn away_since(facts: &Facts<'_>) -> DateTime<Utc> {
    let degraded = |found: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
        found.type_ == ConditionKind::Degraded.as_str() && found.status == "True"
    };
    let since = facts.status.conditions.iter().find(degraded);
    since
        .and_then(|found| DateTime::from_timestamp_millis(found.last_transition_time.0.as_millisecond()))
        .unwrap_or(facts.now)
}

/// As wanted, but for members that do not serve.
fn intact(facts: &Facts<'_>) -> bool {
    facts.wanted.invalid.is_none()
        && facts.wanted.finalizer
        && !facts.wanted.deleting
        && !hibernation::wanted(facts)
        && !facts.status.intent.stop
        && facts
            .primary()
            .is_some_and(|primary| switchover::settled(facts, primary))
        && facts.expected() == facts.wanted.replicas()
        && facts.pods().iter().all(|pod| facts.current_revision(pod))
        && facts
            .pods()
            .iter()
            .filter(|pod| facts.serves(pod))
            .all(|pod| facts.settled_settings(pod))
        && volumes::large_enough(facts)
        && facts.children_are_current()
}

/// All members serve, none is to stop, and there are no others.
fn all_there(facts: &Facts<'_>) -> bool {
    facts.all_serve_except(None)
        && !fenced::any(facts)
        && facts.pods().len() == facts.wanted.replicas() as usize
        && facts.pods().iter().all(|pod| facts.settled_settings(pod))
}

#[cfg(test)]
mod tests;
