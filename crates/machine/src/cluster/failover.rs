//! Failover: the agents do it by themselves. Here is only said how it stands, what is missing, and who can end it.

use std::collections::BTreeSet;

use api::Phase;
use api::status::WaitReason;
use chrono::{DateTime, TimeDelta, Utc};

use super::action::Action;
use super::creation::{pending, remover, troubles};
use super::decision::Step;
use super::facts::late::unmade;
use super::facts::{Facts, fenced, hibernation, list};
use super::observed::{Known, Pod};
use super::owned::OwnedObject;
use super::room;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::transitions::may_follow;
use super::wait::WaitKey;
use crate::protocol::{ASYNC_LOSS, LeaseRecord, MemberId, Position};
use crate::timing::Timing;

/// See [`Rule::what`].
pub const AWAIT_PRIMARY: Rule = Rule {
    name: "await-primary",
    family: "failover",
    what: "While no lease holder serves, everything waits for the agents to elect one or to bring it back; the status shows where each member's WAL ends.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_primary,
    on_backoff: OnBackoff::Hold,
};

/// Beside the lease's time: an election, a promotion, and the replay of what a standby had not replayed.
const ELECTION: TimeDelta = TimeDelta::minutes(1);

/// There is a database, and no holder serves, though nobody has taken the primary, or all instances, down on purpose. With one instance
/// there is nobody to fail over to: its repair is an update.
pub(super) fn under_way(facts: &Facts<'_>) -> bool {
    facts.bootstrapped()
        && facts.lease.is_some()
        && facts.expected() > 1
        && facts.primary().is_none()
        && !restarts_on_purpose(facts)
        && !(fenced::all(facts) || hibernation::wanted(facts) || hibernation::wakes(facts))
}

/// For so long a primary that leaves, and its successor, have time: a clean stop is given 20 s, and a promotion takes one.
const LEAVES: TimeDelta = TimeDelta::seconds(30);

/// The primary's pod was told to end: its agent stops PostgreSQL, releases the Lease and names who is to take it. It may not
/// live any more: after some time it is a failover, and at once if the pod is not ready while its agent has not said why.
pub(super) fn is_left(facts: &Facts<'_>) -> bool {
    left_until(facts).is_some()
}

/// When it is a failover, unless it has ended.
fn left_until(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    let stored = facts.status.phase;
    let since = match stored {
        Some(Phase::SwitchingOver) => facts.phase_since(),
        stored if may_follow(stored, Phase::SwitchingOver) => facts.now,
        _ => return None,
    };
    let goes_on = stored == Some(Phase::SwitchingOver);
    let leaves = facts.lease.is_some_and(|lease| match (&lease.holder, &lease.release) {
        // Its successor holds the Lease then, and does not serve yet.
        (Some(holder), _) if goes_on && !holder.serving => true,
        (Some(holder), _) => {
            let alive = |pod: &Pod| goes_on || pod.ready || !holder.serving;
            facts.holder_pod().is_some_and(|pod| pod.terminating && alive(pod))
        }
        (None, release) => release.as_ref().is_some_and(|release| release.successor.is_some()),
    });
    let until = since + LEAVES;
    (leaves && facts.now < until).then_some(until)
}

/// The holder restarts with the operator's permit.
fn restarts_on_purpose(facts: &Facts<'_>) -> bool {
    let permit = facts.status.intent.restart.as_ref();
    let holder = facts.holder().map(|holder| &holder.incarnation.pod_uid);
    permit.is_some_and(|permit| Some(&permit.pod_uid) == holder)
}

fn await_primary(facts: &Facts<'_>) -> Option<Proposal> {
    if facts.primary().is_some() {
        return None;
    }
    if facts.observed.pods.get().is_none() {
        return Proposal::unread(facts, Step::Primary, "the pods");
    }
    let Known::Known(lease) = &facts.observed.lease else {
        return Proposal::unread(facts, Step::Primary, "the Lease");
    };
    let name = facts.wanted.name;
    let Some(lease) = lease.as_ref().filter(|_| facts.lease.is_some()) else {
        let key = WaitKey::child(facts, WaitReason::ObjectRestoration, OwnedObject::Lease);
        return Proposal::wait(facts, Step::Primary, key, format!("Lease {name}"), "the user");
    };
    if let Some(full) = room::which(facts).filter(|_| room::is_awaited(facts)) {
        let what = format!("room on volumes ({full}), and then {}", what(facts, lease));
        let (actor, who) = room::way_out(facts);
        let wait = Proposal::wait(facts, Step::Primary, WaitReason::VolumeRoom, what, who)?;
        return bounded(facts, wait.by(actor));
    }
    if facts.expected() > 1 {
        let (what, who) = (what(facts, lease), who(facts, lease));
        let wait = Proposal::wait(facts, Step::Primary, WaitReason::PrimaryElection, what, who)?;
        return bounded(facts, wait);
    }
    let Some(last) = last(lease) else {
        let what = format!("somebody to take Lease {name}");
        return Proposal::wait(facts, Step::Primary, WaitReason::PrimaryElection, what, "the agents");
    };
    match pod_of(facts, last) {
        Some(pod) if pod.does_not_run() => pending(facts, Step::Primary, pod),
        Some(pod) => {
            let what = format!("the primary {} to serve", pod.name);
            let key = WaitKey::pod(WaitReason::PrimaryStart, &pod.name);
            let who = format!("the agent in pod {}", pod.name);
            Proposal::wait(facts, Step::Primary, key, what, who)
        }
        None => {
            let what = format!("the pod of the member {last}, which held the Lease last");
            let leaving = last.ordinal().and_then(|ordinal| facts.pod(ordinal));
            let maker = || unmade(facts).map_or_else(|| "the StatefulSet controller".to_owned(), |lack| lack.who);
            let reason = leaving.map_or(WaitReason::PodCreation, |_| WaitReason::PodRemoval);
            let who = leaving.map_or_else(maker, remover);
            let key = WaitKey::pod(reason, &pod_name(facts, last));
            Proposal::wait(facts, Step::Primary, key, what, who)
        }
    }
}

/// Counted from when the primary was left or lost, whatever is waited for meanwhile.
fn bounded(facts: &Facts<'_>, mut proposal: Proposal) -> Option<Proposal> {
    let stored = facts.status.phase;
    let left_until = left_until(facts);
    let goes_on = stored == Some(Phase::FailingOver) || stored == Some(Phase::SwitchingOver) && left_until.is_some();
    let began = if goes_on {
        facts.phase_since()
    } else if under_way(facts) && may_follow(stored, Phase::FailingOver) {
        facts.now
    } else {
        return Some(proposal);
    };
    let timing = Timing::of(&facts.wanted.spec.failover).unwrap_or(Timing::DEFAULT);
    let lease = TimeDelta::milliseconds(i64::try_from(timing.lease.0).unwrap_or(i64::MAX));
    let counted = began + lease + ELECTION;
    // The phase may have begun after the wait: whoever was to leave has become lost.
    let deadline = told(facts).map_or(counted, |told| told.min(counted));
    if let Action::Wait(waiting) = &mut proposal.action {
        waiting.deadline = Some(deadline);
    }
    let wakes = [Some(deadline), left_until].into_iter().flatten();
    proposal.wake = wakes.filter(|wake| *wake > facts.now).min();
    Some(proposal)
}

/// The deadline that was told while a primary was waited for in one of these phases.
fn told(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    let away = matches!(facts.status.phase, Some(Phase::SwitchingOver | Phase::FailingOver));
    let primary = facts.status.step.as_deref() == Some(Step::Primary.as_str());
    facts.status.waiting.as_ref().filter(|_| away && primary)?.deadline
}

/// Who holds the Lease, or held it last.
fn last(lease: &LeaseRecord) -> Option<&MemberId> {
    let holder = lease.holder.as_ref().map(|holder| &holder.incarnation.member);
    holder.or(lease.release.as_ref().map(|release| &release.member))
}

/// The pod that this member's volume belongs to.
fn pod_of<'a>(facts: &Facts<'a>, member: &MemberId) -> Option<&'a Pod> {
    let ordinal = member.ordinal()?;
    facts.pod(ordinal).filter(|pod| !pod.terminating)
}

fn what(facts: &Facts<'_>, lease: &LeaseRecord) -> String {
    let stands = match (&lease.holder, &lease.release) {
        (Some(holder), _) => {
            let pod = &holder.incarnation.pod;
            match facts.holder_pod() {
                None => format!("{pod} holds the Lease, and its pod is gone"),
                Some(found) if found.terminating => format!("{pod} holds the Lease and is going away"),
                Some(_) if holder.serving => format!("{pod} holds the Lease and is not ready"),
                Some(_) => format!("{pod} holds the Lease and does not serve yet"),
            }
        }
        (None, Some(release)) if lease.is_made_again() => {
            format!("the Lease was made again for {}", pod_name(facts, &release.member))
        }
        (None, Some(release)) => {
            let to = release
                .successor
                .as_ref()
                .map_or(String::new(), |to| format!(" to {to}"));
            format!("{} has released the Lease{to}", pod_name(facts, &release.member))
        }
        (None, None) => "nobody holds the Lease".to_owned(),
    };
    if hibernation::wakes(facts) {
        format!("a primary to serve after hibernation: {stands}")
    } else {
        format!("a primary to serve: {stands}")
    }
}

fn pod_name(facts: &Facts<'_>, member: &MemberId) -> String {
    let name = facts.wanted.name;
    member
        .ordinal()
        .map_or_else(|| member.to_string(), |ordinal| format!("{name}-{ordinal}"))
}

/// Where a member's WAL ended when it was told last: in its release, or in its report to the primary.
fn position(facts: &Facts<'_>, lease: &LeaseRecord, ordinal: u32) -> String {
    let pod = format!("{}-{ordinal}", facts.wanted.name);
    let released = lease
        .release
        .as_ref()
        .filter(|release| release.member.ordinal() == Some(ordinal));
    let known = released.and_then(|release| release.position);
    match known.or_else(|| lease.positions.get(&pod).copied()) {
        Some(Position { timeline, lsn }) => format!("{pod} {lsn} on timeline {}", timeline.0),
        None => format!("{pod} unknown"),
    }
}

/// The positions stand here, and not with what is waited for: they may move while that stays the same.
fn who(facts: &Facts<'_>, lease: &LeaseRecord) -> String {
    let positions: Vec<String> = (0..facts.expected())
        .map(|ordinal| position(facts, lease, ordinal))
        .collect();
    let (electors, positions) = (electors(facts, lease), list(positions.iter().map(String::as_str)));
    let holder = facts.holder_pod().filter(|pod| obstacle(facts, pod.ordinal).is_none());
    let own = holder.map_or_else(String::new, |pod| {
        format!("the agent in pod {} by serving, or ", pod.name)
    });
    format!(
        "{own}{electors}; last known ends of WAL: {positions}{}",
        troubles(facts)
    )
}

/// Who can elect: enough names of the rule on record, or under an asynchronous one whoever has the data; all of a Lease that was made
/// again.
fn electors(facts: &Facts<'_>, lease: &LeaseRecord) -> String {
    let all = lease.to_be_heard();
    if !lease.rule.is_synchronous() && all.is_empty() {
        return by_the_clock(facts, lease);
    }
    let needed = all.len().max(lease.rule.promises_needed());
    let counted: BTreeSet<_> = lease.rule.names.iter().chain(all).collect();
    let ordinals: Vec<u32> = counted.into_iter().filter_map(MemberId::ordinal).collect();
    let name = |ordinal: &u32| format!("{}-{ordinal}", facts.wanted.name);
    let all: Vec<String> = ordinals.iter().map(name).collect();
    let all = list(all.iter().map(String::as_str));
    let late = told(facts).is_some_and(|deadline| facts.now >= deadline);
    let unready = |ordinal: &u32| {
        facts
            .pod(*ordinal)
            .filter(|pod| late && !pod.ready)
            .map(|_| "is not ready")
    };
    let missing: Vec<String> = ordinals
        .iter()
        .filter_map(|ordinal| {
            Some(format!(
                "{} {}",
                name(ordinal),
                obstacle(facts, *ordinal).or_else(|| unready(ordinal))?
            ))
        })
        .collect();
    if !late && ordinals.len() - missing.len() >= needed {
        return format!("the agents in {needed} of the pods {all}, by an election");
    }
    let missing = match missing.is_empty() {
        true => "they have elected nobody in time".to_owned(),
        false => list(missing.iter().map(String::as_str)),
    };
    let way_out = if ordinals.iter().any(|ordinal| obstacle(facts, *ordinal) == Some(FENCED)) {
        "Who is fenced is not lost: the user can take it out of spec.fenced".to_owned()
    } else {
        acceptance(facts, lease)
    };
    format!("the agents in {needed} of the pods {all}, by an election; but {missing}. {way_out}")
}

/// Who can elect while commits wait for nobody.
fn by_the_clock(facts: &Facts<'_>, lease: &LeaseRecord) -> String {
    let own = last(lease).map(|member| pod_name(facts, member));
    let others = lease.positions.iter().filter(|(pod, _)| Some(*pod) != own.as_ref());
    match others.map(|(_, position)| lease.lacks(*position)).min() {
        Some(lacks) if lacks > ASYNC_LOSS => format!(
            "a member with the WAL of the last primary; the others lack more than {} MiB of it, which is not given up unasked. {}",
            ASYNC_LOSS.in_mib(),
            acceptance(facts, lease)
        ),
        _ => "an agent with the data, once the Lease is released or has run out".to_owned(),
    }
}

/// How the user can go on without those that are missing.
fn acceptance(facts: &Facts<'_>, lease: &LeaseRecord) -> String {
    let (name, epoch) = (facts.wanted.name, lease.epoch.0);
    if facts.status.intent.accept_loss == Some(epoch) {
        return "The loss of what only they have is accepted: the others go on without them, once the last holder's \
                lease has run out"
            .to_owned();
    }
    format!(
        "If they are lost for good and the last primary's node is off, the commits that only they have can be given up: \
         kubectl cdb accept-loss {name} {epoch}"
    )
}

/// See [`fenced`].
const FENCED: &str = "is named in spec.fenced";

/// What keeps the member with this ordinal from answering, as far as its pod shows it.
fn obstacle(facts: &Facts<'_>, ordinal: u32) -> Option<&'static str> {
    let Some(pod) = facts.pod(ordinal) else {
        return Some("has no pod");
    };
    if pod.terminating {
        Some("is going away")
    } else if pod.image_error.is_some() {
        Some("cannot run its image")
    } else if pod.node.is_none() {
        Some("has no node")
    } else if fenced::is_fenced(facts, &pod.name) {
        Some(FENCED)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
