//! Switchover: the operator names who is to be primary (`status.intent.primary`), and the agents hand the lease over:
//! the primary stops cleanly, the other takes over from its very end. Who does not become primary in time never does: the
//! primary of before goes on, and the operator tries again later.
//!
//! The reasons are ordered, and a primary moves only to one that is better by that order: so they never send it to and fro.

use api::spec::PrimaryUpdatePolicy;
use api::status::{RequestOutcome, SwitchoverMemo, WaitReason};
use chrono::{DateTime, TimeDelta, Utc};

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::facts::rollout::{lets_primary_go, needs_replacing};
use super::facts::switchover::{streams, unfit};
use super::facts::{Facts, fenced, list, request, restarts, volumes, wal};
use super::observed::Pod;
use super::request::ended;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::WaitKey;
use super::{drift, rollout};
use crate::protocol::Position;

/// See [`Rule::what`].
pub const SWITCH_OVER: Rule = Rule {
    name: "switch-over",
    family: "switchover",
    what: "A primary that has to go hands over to a standby that serves; meanwhile nothing else is changed. The switchover is given up after 50 s.\n\
           - It has to go if its ordinal is above the new size, if its node takes no pods while a standby's node does, or if the user requests it.\n\
           - It also has to go if its pod is the last one of an older template, or if another instance is preferred.",
    protocol: &[16],
    kind: RuleKind::Act,
    decide: switch_over,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const AWAIT_SWITCHOVER: Rule = Rule {
    name: "await-switchover",
    family: "switchover",
    what: "A switchover that was given up is tried again after a pause; one that no standby is fit for yet is waited for.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_switchover,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const AWAIT_SCHEDULABLE_STANDBY: Rule = Rule {
    name: "await-refuge",
    family: "switchover",
    what: "A primary whose node takes no pods stays while no instance could take over on a node that does; the status says what can be done.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_refuge,
    on_backoff: OnBackoff::Hold,
};

/// The agents hand over in a second or two, and begin none by themselves that was asked for 40 s ago
/// (`instance/handover`). So what is given up does not happen later, whenever the primary's agent hears of that.
const WAIT_LIMIT: TimeDelta = TimeDelta::seconds(50);
/// The first rest after a switchover that failed; it doubles each time.
const FIRST_REST: TimeDelta = TimeDelta::minutes(1);
/// The longest rest: each try costs clients a moment without a primary.
const LONGEST_REST: TimeDelta = TimeDelta::minutes(10);

/// Why the primary is to be another one, the most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason<'a> {
    /// It is among the instances that are to go.
    Scale(u32),
    /// Its node is being drained, and another instance is elsewhere.
    Drained(&'a str),
    /// The user has asked for this one.
    Requested(&'a str),
    /// Its pod is of an older template.
    Template,
    /// The spec names another.
    Preferred(&'a str),
}

impl Reason<'_> {
    fn describe(self, facts: &Facts<'_>, primary: &Pod) -> String {
        let name = &primary.name;
        match self {
            Reason::Scale(replicas) => format!("{name} is primary, and {replicas} instances leave no room for it"),
            Reason::Drained(node) => format!("{name} is primary, and its node {node} takes no pods any more"),
            Reason::Requested(pod) => format!("{name} is primary, and a switchover to {pod} is requested"),
            Reason::Template => format!(
                "{name} is primary, and its pod {}",
                volumes::why_made_again(facts, primary)
            ),
            Reason::Preferred(pod) => format!("{name} is primary, and spec.primary.prefer names {pod}"),
        }
    }
}

/// Why this primary is to go. Nothing to hand over to is no reason to stay.
fn reasons<'a>(facts: &Facts<'a>, primary: &'a Pod) -> impl Iterator<Item = Reason<'a>> {
    let replicas = facts.wanted.replicas();
    let due = needs_replacing(facts, primary) && !wal::is_not_yet_due(facts, primary);
    let template = due && facts.wanted.spec.primary.update_policy == PrimaryUpdatePolicy::Automatic;
    let reasons = if facts.expected() <= 1 {
        [None; 5]
    } else {
        [
            (primary.ordinal >= replicas).then_some(Reason::Scale(replicas)),
            drained(facts, primary).map(Reason::Drained),
            request::open(facts).map(Reason::Requested),
            template.then_some(Reason::Template),
            preferred_instead(facts, primary).map(Reason::Preferred),
        ]
    };
    reasons.into_iter().flatten()
}

/// The node of this primary, if it takes no pods any more while an instance that is to stay has one that does. If all
/// nodes are cordoned, nothing is gained by moving.
fn drained<'a>(facts: &Facts<'_>, primary: &'a Pod) -> Option<&'a str> {
    let node = primary.node.as_deref().filter(|_| facts.is_cordoned(primary));
    let refuge = |pod: &Pod| pod.uid != primary.uid && no_refuge(facts, pod).is_none();
    node.filter(|_| facts.pods().iter().any(refuge))
}

/// Why no primary finds refuge in this pod from a node that is drained.
fn no_refuge(facts: &Facts<'_>, pod: &Pod) -> Option<String> {
    let name = &pod.name;
    let Some(node) = &pod.node else {
        return Some(format!("{name} has no node"));
    };
    if pod.ordinal >= facts.wanted.replicas() || pod.terminating {
        Some(format!("{name} is going away"))
    } else if fenced::is_fenced(facts, name) {
        Some(format!("spec.fenced names {name}"))
    } else if facts.is_cordoned(pod) {
        Some(format!("{name} is on {node}, which takes none either"))
    } else {
        None
    }
}

fn await_refuge(facts: &Facts<'_>) -> Option<Proposal> {
    let primary = facts.primary()?;
    let node = primary.node.as_deref().filter(|_| facts.is_cordoned(primary))?;
    let name = &primary.name;
    let others: Vec<String> = facts
        .pods()
        .iter()
        .filter(|pod| pod.uid != primary.uid)
        .map(|pod| no_refuge(facts, pod))
        .collect::<Option<_>>()?;
    let (why, who) = if facts.expected() <= 1 {
        let who = format!(
            "who drains the node: kubectl uncordon {node} keeps the database where it is; a drain evicts it, and it is away until \
             its pod runs on another node; or the user, by a second instance (spec.replicas) that can take over"
        );
        ("it is the only instance".to_owned(), who)
    } else {
        let who = format!(
            "who drains nodes: kubectl uncordon {node}, or the node of another instance, or a new node that another instance \
             can move to; until then the primary is not evicted, and a drain of {node} waits"
        );
        (list(others.iter().map(String::as_str)), who)
    };
    let what = format!("another place for the primary {name}, whose node {node} takes no pods any more: {why}");
    let key = WaitKey::of(WaitReason::NodeForPrimary, "node", node);
    Proposal::wait(facts, Step::Switchover, key, what, who)
}

/// The instance that the spec prefers to this primary. While its node takes no pods it is not preferred: it would have to
/// move away again.
fn preferred_instead<'a>(facts: &Facts<'a>, primary: &Pod) -> Option<&'a str> {
    let prefer = facts.wanted.spec.primary.prefer.as_deref()?;
    let drained = |pod: &Pod| pod.name == prefer && facts.is_cordoned(pod);
    (prefer != primary.name && !facts.pods().iter().any(drained)).then_some(prefer)
}

/// This primary may stay, and is not being moved. (A request that cannot be met yet takes nothing from a database.)
pub(super) fn settled(facts: &Facts<'_>, primary: &Pod) -> bool {
    !under_way(facts) && reasons(facts, primary).all(|reason| matches!(reason, Reason::Requested(_)))
}

/// Those that may take over now, the fittest first: one on a node that is not cordoned, the requested, an updated, the preferred
/// one, then by how much WAL they were known to have.
fn candidates<'a>(facts: &Facts<'a>, primary: &Pod, reason: Reason<'_>) -> Vec<&'a Pod> {
    // While others are away a primary is moved only if nothing else can go on without it, or the user says so.
    let calm = facts.all_serve_except(Some(primary.ordinal));
    let pods = facts.pods();
    let rolled_out = || {
        let mut others = pods.iter().filter(|pod| pod.uid != primary.uid);
        others.all(|pod| facts.current_revision(pod) || wal::is_not_yet_due(facts, pod))
    };
    let may_follow = |pod: &Pod| lets_primary_go(facts, primary, pod);
    let open = match reason {
        Reason::Scale(_) | Reason::Drained(_) | Reason::Requested(_) => true,
        Reason::Template => {
            let all_new = pods.iter().all(|pod| pod.uid == primary.uid || may_follow(pod));
            calm && all_new && rollout::unsettled(facts).is_none()
        }
        Reason::Preferred(_) => calm && rolled_out() && pods.iter().all(|pod| facts.current_settings(pod)),
    };
    let fit = |pod: &&Pod| {
        let asked = match reason {
            Reason::Scale(_) => true,
            Reason::Drained(_) => !facts.is_cordoned(pod),
            Reason::Requested(name) => pod.name == name && unfit(facts, primary, name).is_none(),
            Reason::Template => may_follow(pod) && (!facts.is_cordoned(pod) || facts.is_cordoned(primary)),
            Reason::Preferred(name) => pod.name == name,
        };
        pod.uid != primary.uid && pod.ordinal < facts.wanted.replicas() && streams(facts, pod) && asked
    };
    let open = open && restarts::restarting(facts).is_none();
    let mut found: Vec<&Pod> = pods.iter().filter(|_| open).filter(fit).collect();
    let position = |pod: &Pod| facts.lease.and_then(|lease| lease.positions.get(&pod.name).copied());
    let rank = |pod: &Pod| {
        (
            !facts.is_cordoned(pod),
            request::open(facts) == Some(pod.name.as_str()),
            facts.current_revision(pod),
            facts.wanted.spec.primary.prefer.as_deref() == Some(pod.name.as_str()),
            position(pod).unwrap_or(Position::default()),
        )
    };
    found.sort_by_key(|pod| std::cmp::Reverse(rank(pod)));
    found
}

/// The switchover that is under way, if there is one.
fn asked(facts: &Facts<'_>) -> Option<SwitchoverMemo> {
    let target = facts.status.intent.primary.as_ref()?;
    let memo = facts.status.memo.switchover.as_ref()?;
    (memo.target == *target && memo.ended.is_none()).then(|| memo.clone())
}

/// A primary was named, and is not the one that serves.
pub(super) fn under_way(facts: &Facts<'_>) -> bool {
    asked(facts).is_some_and(|asked| facts.primary().is_none_or(|primary| primary.name != asked.target))
}

/// The action begins one.
pub(super) fn begins(action: &Action) -> bool {
    matches!(action, Action::WriteStatus(changes) if changes.iter().any(|change| matches!(change, StatusChange::MovePrimary { .. })))
}

fn write(change: StatusChange, because: String) -> Option<Proposal> {
    Proposal::act(Step::Switchover, Action::WriteStatus(vec![change]), because)
}

fn switch_over(facts: &Facts<'_>) -> Option<Proposal> {
    if let Some(asked) = asked(facts) {
        return watch(facts, &asked);
    }
    if let Some(target) = &facts.status.intent.primary {
        return write(
            StatusChange::EndSwitchover,
            format!("when {target} was to become primary is not on record"),
        );
    }
    let primary = facts.primary()?;
    let before = facts.status.memo.switchover.as_ref();
    if reasons(facts, primary).next().is_none() {
        before?;
        return write(
            StatusChange::EndSwitchover,
            format!("{} is primary, and may stay it", primary.name),
        );
    }
    if !drift::may_hand_over(facts) {
        return None;
    }
    let resting = before.and_then(again_at).is_some_and(|again| facts.now < again);
    // A user who asks now does not wait for what failed before.
    let possible = reasons(facts, primary).filter(|reason| !resting || matches!(reason, Reason::Requested(_)));
    let (reason, candidates) = possible
        .map(|reason| (reason, candidates(facts, primary, reason)))
        .find(|(_, candidates)| !candidates.is_empty())?;
    let attempts = before.map_or(0, |memo| memo.attempts);
    // One that did not succeed need not be tried for ever while others could.
    let turn = usize::try_from(attempts).unwrap_or(0) % candidates.len();
    let target = candidates.get(turn)?;
    let memo = SwitchoverMemo {
        target: target.name.clone(),
        since: facts.now,
        attempts: attempts.saturating_add(1),
        ended: None,
    };
    let because = format!("{}: {} is to take over", reason.describe(facts, primary), target.name);
    // Leave to restart that has come to nothing is taken back with it.
    let given = facts.status.intent.restart.as_ref().map(|_| StatusChange::EndRestart);
    let urgent = drained(facts, primary).is_some();
    let changes = given
        .into_iter()
        .chain([StatusChange::MovePrimary { memo, urgent }])
        .collect();
    Proposal::act(Step::Switchover, Action::WriteStatus(changes), because)
}

/// Until the named one serves as primary, nobody asks for it any more, or it takes too long.
fn watch(facts: &Facts<'_>, asked: &SwitchoverMemo) -> Option<Proposal> {
    let target = &asked.target;
    if let Some(primary) = facts.primary() {
        if primary.name == *target {
            return write(StatusChange::EndSwitchover, format!("{target} is the primary"));
        }
        if reasons(facts, primary).next().is_none() {
            let because = format!("{} is primary, and may stay it", primary.name);
            return write(StatusChange::EndSwitchover, because);
        }
    }
    let deadline = asked.since + WAIT_LIMIT;
    if facts.now >= deadline {
        let because = format!("{target} did not take over within {} s", WAIT_LIMIT.num_seconds());
        let mut changes = vec![StatusChange::GiveUpSwitchover(facts.now)];
        if request::open(facts) == Some(target.as_str()) {
            changes.extend(ended(facts, RequestOutcome::GivenUp, because.clone()));
        }
        return Proposal::act(Step::Switchover, Action::WriteStatus(changes), because);
    }
    let what = format!("{target} to take over as primary");
    let who = format!("the agents of the primary and of {target}");
    let key = WaitKey::pod(WaitReason::PrimaryTakeover, target);
    Some(Proposal::wait(facts, Step::Switchover, key, what, who)?.until(deadline))
}

/// When one that was given up may be asked for again.
fn again_at(memo: &SwitchoverMemo) -> Option<DateTime<Utc>> {
    let doublings = memo.attempts.saturating_sub(1).min(8);
    let rest = (FIRST_REST * (1 << doublings)).min(LONGEST_REST);
    Some(memo.ended? + rest)
}

fn await_switchover(facts: &Facts<'_>) -> Option<Proposal> {
    let primary = facts.primary()?;
    let reason = reasons(facts, primary).find(|reason| !matches!(reason, Reason::Requested(_)))?;
    let why = reason.describe(facts, primary);
    let before = facts.status.memo.switchover.as_ref();
    if let Some((memo, again)) = before
        .and_then(|memo| Some((memo, again_at(memo)?)))
        .filter(|(_, again)| facts.now < *again)
    {
        let times = if memo.attempts == 1 {
            "once".to_owned()
        } else {
            format!("{} times", memo.attempts)
        };
        let what = format!(
            "another try to move the primary: {why}; {} was asked last and did not take over within {} s (tried {times})",
            memo.target,
            WAIT_LIMIT.num_seconds()
        );
        let who = format!(
            "time, or the agents of {} and {}, whose logs say why",
            primary.name, memo.target
        );
        let key = WaitKey::pod(WaitReason::SwitchoverRetry, &memo.target);
        return Some(Proposal::wait(facts, Step::Switchover, key, what, who)?.until(again));
    }
    // Then it is the settings that are waited for.
    if matches!(reason, Reason::Preferred(_)) && facts.pods().iter().any(|pod| !facts.current_settings(pod)) {
        return None;
    }
    let what = format!("a standby that is fit to take over: {why}");
    let key = WaitReason::SwitchoverCandidate;
    Proposal::wait(facts, Step::Switchover, key, what, "the agents of the standbys")
}

#[cfg(test)]
mod tests;
