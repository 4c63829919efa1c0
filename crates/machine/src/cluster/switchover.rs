//! Switchover: the operator names who is to be primary (`status.intent.primary`), and the agents hand the lease over:
//! the primary stops cleanly, the other takes over from its very end. Who does not become primary in time never does: the
//! primary of before goes on, and the operator tries again later.
//!
//! The reasons are ordered, and a primary moves only to one that is better by that order: so they never send it to and fro.

use api::spec::PrimaryUpdates;
use api::status::{RequestOutcome, SwitchoverMemo};
use chrono::{DateTime, TimeDelta, Utc};

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::drift;
use super::facts::{Facts, list};
use super::fenced;
use super::observed::Pod;
use super::request;
use super::rule::{Proposal, Rule};
use super::volumes;
use super::{restarts, rollout, wal};
use crate::protocol::Position;

/// See [`Rule::what`].
pub const SWITCH_OVER: Rule = Rule {
    name: "switch-over",
    family: "switchover",
    what: "A primary that is to go (its ordinal is above the new size, its node takes no pods while a standby's does, the user requests it, its pod is the last of an older template, or another instance is preferred) hands over to a standby that serves; while it does, nothing else is changed. After 50 s it is given up.",
    propose: switch_over,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_SWITCHOVER: Rule = Rule {
    name: "await-switchover",
    family: "switchover",
    what: "A switchover that was given up rests before it is asked for again, and one that no standby is fit for yet is waited for; both are said.",
    propose: await_switchover,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_REFUGE: Rule = Rule {
    name: "await-refuge",
    family: "switchover",
    what: "A primary whose node takes no pods any more, while no instance could take over on one that does, stays; that and what can be done is said.",
    propose: await_refuge,
    passable: false,
};

/// The agents hand over in a second or two, and give up by themselves sooner than this: then the primary of before serves
/// again. Less than the minute after which an agent that is still asked to tries again: the wish is gone by then.
const PATIENCE: TimeDelta = TimeDelta::seconds(50);
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
    let due = rollout::needs_replacing(facts, primary) && !wal::is_not_yet_due(facts, primary);
    let template = due && facts.wanted.spec.primary.updates == PrimaryUpdates::Automatic;
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
    let node = primary.node.as_deref().filter(|_| !facts.takes_pods(primary));
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
    } else if !facts.takes_pods(pod) {
        Some(format!("{name} is on {node}, which takes none either"))
    } else {
        None
    }
}

fn await_refuge(facts: &Facts<'_>) -> Option<Proposal> {
    let primary = facts.primary()?;
    let node = primary.node.as_deref().filter(|_| !facts.takes_pods(primary))?;
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
    Proposal::wait(facts, Step::Switchover, what, who)
}

/// The instance that the spec prefers to this primary. While its node takes no pods it is not preferred: it would have to
/// move away again.
fn preferred_instead<'a>(facts: &Facts<'a>, primary: &Pod) -> Option<&'a str> {
    let prefer = facts.wanted.spec.primary.preferred()?;
    let drained = |pod: &Pod| pod.name == prefer && !facts.takes_pods(pod);
    (prefer != primary.name && !facts.pods().iter().any(drained)).then_some(prefer)
}

/// This primary may stay, and is not being moved. (A request that cannot be met yet takes nothing from a database.)
pub(super) fn settled(facts: &Facts<'_>, primary: &Pod) -> bool {
    !under_way(facts) && reasons(facts, primary).all(|reason| matches!(reason, Reason::Requested(_)))
}

/// Those that may take over now, the fittest first: one on a node that takes pods, the requested, an updated, the preferred
/// one, then by how much WAL they were known to have.
fn candidates<'a>(facts: &Facts<'a>, primary: &Pod, reason: Reason<'_>) -> Vec<&'a Pod> {
    // While others are away a primary is moved only if nothing else can go on without it, or the user says so.
    let calm = facts.all_serve_except(Some(primary.ordinal));
    let pods = facts.pods();
    let rolled_out = || {
        let mut others = pods.iter().filter(|pod| pod.uid != primary.uid);
        others.all(|pod| facts.current_revision(pod) || wal::is_not_yet_due(facts, pod))
    };
    let may_follow = |pod: &Pod| rollout::lets_primary_go(facts, primary, pod);
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
            Reason::Drained(_) => facts.takes_pods(pod),
            Reason::Requested(name) => pod.name == name && request::unfit(facts, primary, name).is_none(),
            Reason::Template => may_follow(pod) && (facts.takes_pods(pod) || !facts.takes_pods(primary)),
            Reason::Preferred(name) => pod.name == name,
        };
        pod.uid != primary.uid && pod.ordinal < facts.wanted.replicas() && request::streams(facts, pod) && asked
    };
    let open = open && restarts::restarting(facts).is_none();
    let mut found: Vec<&Pod> = pods.iter().filter(|_| open).filter(fit).collect();
    let position = |pod: &Pod| facts.lease.and_then(|lease| lease.positions.get(&pod.name).copied());
    let rank = |pod: &Pod| {
        (
            facts.takes_pods(pod),
            request::open(facts) == Some(pod.name.as_str()),
            facts.current_revision(pod),
            facts.wanted.spec.primary.preferred() == Some(pod.name.as_str()),
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
    let deadline = asked.since + PATIENCE;
    if facts.now >= deadline {
        let because = format!("{target} did not take over within {} s", PATIENCE.num_seconds());
        let mut changes = vec![StatusChange::GiveUpSwitchover(facts.now)];
        if request::open(facts) == Some(target.as_str()) {
            changes.extend(request::ended(facts, RequestOutcome::GivenUp, because.clone()));
        }
        return Proposal::act(Step::Switchover, Action::WriteStatus(changes), because);
    }
    let what = format!("{target} to take over as primary");
    let who = format!("the agents of the primary and of {target}");
    Some(Proposal::wait(facts, Step::Switchover, what, who)?.until(deadline))
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
            PATIENCE.num_seconds()
        );
        let who = format!(
            "time, or the agents of {} and {}, whose logs say why",
            primary.name, memo.target
        );
        return Some(Proposal::wait(facts, Step::Switchover, what, who)?.until(again));
    }
    // Then it is the settings that are waited for.
    if matches!(reason, Reason::Preferred(_)) && facts.pods().iter().any(|pod| !facts.current_settings(pod)) {
        return None;
    }
    let what = format!("a standby that is fit to take over: {why}");
    Proposal::wait(facts, Step::Switchover, what, "the agents of the standbys")
}

#[cfg(test)]
mod tests {
    use api::Phase;

    use super::super::ChildKind;
    use super::super::testing::Scene;
    use super::*;
    use crate::protocol::{Lsn, MemberState, Timeline};

    fn moved(scene: &Scene) -> Option<String> {
        let Action::WriteStatus(changes) = scene.decide().action else {
            return None;
        };
        changes.into_iter().find_map(|change| match change {
            StatusChange::MovePrimary { memo, .. } => Some(memo.target),
            _ => None,
        })
    }

    fn replaced(scene: &Scene) -> Option<String> {
        match scene.decide().action {
            Action::ReplacePod(pod) => Some(pod.name().to_owned()),
            _ => None,
        }
    }

    /// The primary's pod is the only one of an older template.
    fn primary_outdated() -> Scene {
        let mut scene = Scene::ready(3);
        scene.revision = "r2".to_owned();
        for ordinal in [1, 2] {
            scene.pod_mut(ordinal).revision = Some("r2".to_owned());
        }
        scene
    }

    fn at(scene: &mut Scene, ordinal: u32, lsn: u64) {
        let position = Position {
            timeline: Timeline(1),
            lsn: Lsn(lsn),
        };
        scene
            .lease_mut()
            .unwrap()
            .positions
            .insert(format!("demo-{ordinal}"), position);
    }

    #[test]
    fn an_outdated_primary_hands_over_and_is_replaced_as_a_standby() {
        let mut scene = primary_outdated();
        at(&mut scene, 1, 7);
        at(&mut scene, 2, 8);
        assert_eq!(moved(&scene), Some("demo-2".to_owned()), "the one with the most WAL");
        let decision = scene.store();
        assert_eq!((decision.rule, decision.phase), ("switch-over", Phase::SwitchingOver));
        assert_eq!(scene.stored.intent.primary.as_deref(), Some("demo-2"));
        assert!(!scene.stored.intent.urgent, "nobody waits for it");
        assert_eq!(scene.stored.step.as_deref(), Some("Switchover"));
        // On the way nobody serves, and the pod of the older template is not ready.
        scene.pod_mut(0).ready = false;
        scene.lease_mut().unwrap().holder = None;
        let decision = scene.decide();
        assert_eq!((decision.phase, decision.rule), (Phase::SwitchingOver, "switch-over"));
        assert_eq!(decision.because.to_string(), "demo-2 to take over as primary");
        assert_eq!(decision.wake, scene.now + PATIENCE);
        scene.pod_mut(0).ready = true;
        scene.elect(2);
        let decision = scene.store();
        assert_eq!(decision.because.to_string(), "demo-2 is the primary");
        assert_eq!(
            (
                scene.stored.intent.primary.clone(),
                scene.stored.memo.switchover.clone()
            ),
            (None, None)
        );
        assert_eq!(replaced(&scene), Some("demo-0".to_owned()));
    }

    #[test]
    fn no_primary_moves_before_all_standbys_are_updated_and_serve() {
        let mut scene = primary_outdated();
        scene.pod_mut(1).revision = Some("r1".to_owned());
        assert_eq!((moved(&scene), replaced(&scene)), (None, Some("demo-1".to_owned())));
        let mut scene = primary_outdated();
        scene.pod_mut(1).ready = false;
        assert_eq!((moved(&scene), replaced(&scene)), (None, None));
        let mut scene = primary_outdated();
        scene.report_mut(1).state = MemberState::CatchingUp;
        assert_eq!((moved(&scene), replaced(&scene)), (None, None));
    }

    #[test]
    fn a_switchover_that_does_not_happen_is_given_up_and_tried_again_later_and_elsewhere() {
        let mut scene = primary_outdated();
        at(&mut scene, 1, 9);
        scene.store();
        let began = scene.now;
        scene.now = began + PATIENCE - TimeDelta::seconds(1);
        assert!(matches!(scene.decide().action, Action::Wait(_)));
        scene.now = began + PATIENCE;
        scene.store();
        assert_eq!(scene.stored.intent.primary, None, "the agents need not try any more");
        let decision = scene.decide();
        assert_eq!((decision.rule, decision.phase), ("await-switchover", Phase::Updating));
        assert_eq!(
            decision.because.to_string(),
            "another try to move the primary: demo-0 is primary, and its pod is of an older template; demo-1 was asked \
             last and did not take over within 50 s (tried once)"
        );
        assert_eq!(replaced(&scene), None, "it is never just taken down");
        assert_eq!(decision.wake, scene.now + FIRST_REST);
        scene.now += FIRST_REST;
        assert_eq!(moved(&scene), Some("demo-2".to_owned()), "the other one has its turn");
        scene.store();
        scene.now += PATIENCE;
        scene.store();
        assert_eq!(scene.stored.memo.switchover.clone().unwrap().attempts, 2);
        scene.now += FIRST_REST;
        assert_eq!(moved(&scene), None, "the rests double");
        scene.now += FIRST_REST;
        assert_eq!(moved(&scene), Some("demo-1".to_owned()));
        for _ in 0..12 {
            scene.store();
            scene.now += LONGEST_REST;
        }
        let memo = scene.stored.memo.switchover.clone().unwrap();
        assert!(
            memo.attempts > 4,
            "it is tried again at least each {LONGEST_REST}: {memo:?}"
        );
    }

    #[test]
    fn a_revert_takes_the_wish_back_while_the_primary_still_serves() {
        let mut scene = primary_outdated();
        scene.store();
        assert!(scene.stored.intent.primary.is_some());
        scene.revision = "r1".to_owned();
        scene.store();
        assert_eq!(scene.stored.intent.primary, None);
        assert_eq!(moved(&scene), None);
        let mut scene = primary_outdated();
        scene.store();
        scene.now += PATIENCE;
        scene.store();
        scene.revision = "r1".to_owned();
        scene.store();
        assert_eq!(scene.stored.memo.switchover, None, "and its attempts are forgotten");
    }

    #[test]
    fn a_switchover_that_leaves_nobody_becomes_a_failover() {
        let mut scene = primary_outdated();
        scene.store();
        scene.lease_mut().unwrap().holder = None;
        scene.now += PATIENCE;
        scene.store();
        let decision = scene.decide();
        assert_eq!((decision.rule, decision.phase), ("await-primary", Phase::FailingOver));
        assert_eq!(
            scene.stored.intent.primary, None,
            "the agents are free to elect anybody"
        );
    }

    #[test]
    fn the_preferred_instance_becomes_primary_and_stays_it() {
        let mut scene = Scene::ready(3);
        scene.edit(|spec| spec.primary.prefer = Some("demo-2".to_owned()));
        assert_eq!(
            (moved(&scene), scene.decide().phase),
            (Some("demo-2".to_owned()), Phase::SwitchingOver)
        );
        scene.store();
        scene.elect(2);
        scene.store();
        let decision = scene.decide();
        assert_eq!((decision.rule, decision.phase), ("rest", Phase::Ready));
        for nobody in [None, Some("Any".to_owned())] {
            scene.edit(|spec| spec.primary.prefer = nobody);
            assert_eq!(scene.decide().rule, "rest", "any may stay");
        }
    }

    #[test]
    fn the_preferred_instance_waits_for_everything_else() {
        let prefer = |change: &dyn Fn(&mut Scene)| {
            let mut scene = Scene::ready(3);
            scene.edit(|spec| spec.primary.prefer = Some("demo-1".to_owned()));
            change(&mut scene);
            scene
        };
        let away = prefer(&|scene| scene.pod_mut(2).ready = false);
        assert_eq!(moved(&away), None);
        let behind = prefer(&|scene| scene.report_mut(1).state = MemberState::CatchingUp);
        assert_eq!((moved(&behind), behind.decide().rule), (None, "await-standbys"));
        let restarts = prefer(&|scene| scene.report_mut(2).pending_restart = true);
        assert_eq!(moved(&restarts), None);
        let outdated = prefer(&|scene| {
            let pod = scene.pod_mut(2);
            (pod.revision, pod.base_revision) = (Some("r0".to_owned()), Some("r0".to_owned()));
        });
        assert_eq!(
            (moved(&outdated), replaced(&outdated)),
            (None, Some("demo-2".to_owned()))
        );
    }

    #[test]
    fn a_primary_above_the_new_size_hands_over_to_one_below() {
        let mut scene = Scene::ready(5);
        scene.elect(4);
        at(&mut scene, 3, 100);
        at(&mut scene, 2, 50);
        scene.edit(|spec| spec.replicas = 3);
        assert_eq!(moved(&scene), Some("demo-2".to_owned()), "the best of those that stay");
        let decision = scene.decide();
        assert_eq!(
            decision.because.to_string(),
            "demo-4 is primary, and 3 instances leave no room for it: demo-2 is to take over"
        );
        for ordinal in 0..3 {
            scene.report_mut(ordinal).state = MemberState::CatchingUp;
        }
        assert_eq!(moved(&scene), None);
    }

    #[test]
    fn a_primary_leaves_a_node_that_is_drained_and_comes_not_back() {
        let mut scene = Scene::ready(3);
        scene.cordon(0, true);
        at(&mut scene, 2, 9);
        let decision = scene.decide();
        assert_eq!(
            (moved(&scene), decision.phase),
            (Some("demo-2".to_owned()), Phase::SwitchingOver)
        );
        assert_eq!(
            decision.because.to_string(),
            "demo-0 is primary, and its node node-0 takes no pods any more: demo-2 is to take over"
        );
        scene.store();
        assert!(scene.stored.intent.urgent, "the drain waits for it");
        scene.elect(2);
        scene.store();
        assert!(!scene.stored.intent.urgent);
        assert_eq!((scene.decide().rule, scene.decide().phase), ("rest", Phase::Ready));
        scene.cordon(2, true);
        assert_eq!(moved(&scene), Some("demo-1".to_owned()), "the only node that is left");
        scene.cordon(1, true);
        assert_eq!(
            (moved(&scene), scene.decide().rule),
            (None, "await-refuge"),
            "nothing is gained by moving"
        );
    }

    #[test]
    fn a_drain_with_nowhere_to_go_is_said_with_what_can_be_done() {
        let mut scene = Scene::ready(3);
        for ordinal in 0..3 {
            scene.cordon(ordinal, true);
        }
        let decision = scene.store();
        assert_eq!(
            (decision.rule, decision.phase, decision.step),
            ("await-refuge", Phase::Ready, None)
        );
        let waiting = scene.stored.waiting.clone().unwrap();
        assert_eq!(
            waiting.what,
            "another place for the primary demo-0, whose node node-0 takes no pods any more: demo-1 is on node-1, which takes \
             none either, demo-2 is on node-2, which takes none either"
        );
        assert!(
            waiting.who_can_end_it.contains("kubectl uncordon node-0"),
            "{waiting:?}"
        );
        assert_eq!(waiting.deadline, None, "the database is as it is wanted");
        assert_eq!(scene.due(&scene.decide()), super::super::Due::Never);
        let mut fenced = Scene::ready(3);
        fenced.cordon(0, true);
        fenced.cordon(2, true);
        fenced.edit(|spec| spec.fenced = vec!["demo-1".to_owned()]);
        assert_eq!(
            fenced.decide().rule,
            "await-fenced",
            "that holds it up, and is to be ended first"
        );
        let mut alone = Scene::ready(1);
        alone.cordon(0, true);
        alone.store();
        let waiting = alone.stored.waiting.clone().unwrap();
        assert!(waiting.what.ends_with("it is the only instance"), "{waiting:?}");
        assert!(waiting.who_can_end_it.contains("spec.replicas"), "{waiting:?}");
        alone.cordon(0, false);
        assert_eq!(alone.decide().rule, "rest");
    }

    #[test]
    fn a_standby_that_does_not_come_back_from_its_restart_keeps_no_primary_on_a_drained_node() {
        let mut scene = Scene::ready(3);
        scene.report_mut(2).pending_restart = true;
        scene.store();
        let report = scene.report_mut(2);
        (report.state, report.pending_restart) = (MemberState::Starting, false);
        report.settings.clear();
        report.fault = Some("start PostgreSQL: could not read the control file".to_owned());
        scene.pod_mut(2).ready = false;
        scene.cordon(0, true);
        scene.store();
        let deadline = scene.stored.waiting.clone().unwrap().deadline.unwrap();
        assert!(deadline <= scene.now + TimeDelta::minutes(2));
        let mut elsewhere = scene.clone();
        scene.now = deadline;
        assert_eq!(moved(&scene), Some("demo-1".to_owned()), "nothing waits for ever");
        scene.store();
        assert_eq!(
            (scene.stored.intent.restart.as_ref(), scene.stored.memo.restart_since),
            (None, None)
        );
        elsewhere.cordon(0, false);
        elsewhere.now = deadline;
        let decision = elsewhere.store();
        assert_eq!(decision.rule, "restart");
        assert!(decision.because.to_string().contains("2 min"), "{}", decision.because);
        assert_eq!(elsewhere.stored.intent.restart, None);
        let waiting = elsewhere.stored.waiting.clone().unwrap();
        assert_eq!(waiting.what, "demo-2 to stream from the primary");
        assert!(
            waiting.who_can_end_it.contains("could not read the control file"),
            "{waiting:?}"
        );
    }

    #[test]
    fn a_drained_primary_waits_for_a_standby_elsewhere_and_not_for_all() {
        let mut scene = Scene::ready(3);
        scene.cordon(0, true);
        scene.pod_mut(2).ready = false;
        assert_eq!(moved(&scene), Some("demo-1".to_owned()), "its node may go any moment");
        scene.cordon(1, true);
        assert_eq!((moved(&scene), scene.decide().phase), (None, Phase::Updating));
        scene.pod_mut(2).ready = true;
        assert_eq!(moved(&scene), Some("demo-2".to_owned()));
    }

    #[test]
    fn nothing_is_moved_where_nodes_cannot_be_read() {
        let mut scene = Scene::ready(3);
        scene.cordon(0, true);
        scene.observed.unschedulable_nodes = super::super::Known::Unknown;
        assert_eq!((moved(&scene), scene.decide().phase), (None, Phase::Ready));
    }

    #[test]
    fn an_uncordoned_node_keeps_its_primary() {
        let mut scene = Scene::ready(3);
        scene.cordon(0, true);
        scene.store();
        assert!(scene.stored.intent.primary.is_some());
        scene.cordon(0, false);
        scene.store();
        assert_eq!(
            (scene.stored.intent.primary.clone(), scene.decide().phase),
            (None, Phase::Ready)
        );
    }

    #[test]
    fn no_reason_sends_a_primary_to_a_node_that_is_drained() {
        let mut scene = primary_outdated();
        at(&mut scene, 1, 9);
        scene.cordon(1, true);
        assert_eq!(moved(&scene), Some("demo-2".to_owned()), "though it has less WAL");
        scene.cordon(2, true);
        assert_eq!((moved(&scene), scene.decide().rule), (None, "await-switchover"));
        scene.cordon(0, true);
        assert_eq!(moved(&scene), Some("demo-1".to_owned()), "all are alike");
        let mut scene = Scene::ready(3);
        scene.edit(|spec| spec.primary.prefer = Some("demo-1".to_owned()));
        scene.cordon(1, true);
        assert_eq!((moved(&scene), scene.decide().phase), (None, Phase::Ready));
        scene.cordon(1, false);
        assert_eq!(moved(&scene), Some("demo-1".to_owned()));
        let mut scene = Scene::ready(5);
        scene.elect(4);
        at(&mut scene, 0, 9);
        scene.cordon(0, true);
        scene.edit(|spec| spec.replicas = 2);
        assert_eq!(moved(&scene), Some("demo-1".to_owned()));
        scene.cordon(1, true);
        assert_eq!(moved(&scene), Some("demo-0".to_owned()), "it has to go somewhere");
    }

    #[test]
    fn a_wish_that_nobody_remembers_is_taken_back() {
        let mut scene = Scene::ready(3);
        scene.stored.intent.primary = Some("demo-1".to_owned());
        scene.store();
        assert_eq!(scene.stored.intent.primary, None);
        assert_eq!(scene.decide().rule, "rest");
    }

    #[test]
    fn one_instance_has_nobody_to_hand_over_to() {
        let mut scene = Scene::ready(1);
        scene.revision = "r2".to_owned();
        assert_eq!((moved(&scene), replaced(&scene)), (None, Some("demo-0".to_owned())));
    }

    #[test]
    fn a_fault_of_another_part_holds_up_a_new_switchover_and_not_the_end_of_one() {
        let foreign = || super::super::ChildState::Foreign {
            why: "owned by Deployment other".to_owned(),
        };
        let mut scene = primary_outdated();
        scene.set_child(ChildKind::RoService, foreign());
        assert_eq!((moved(&scene), scene.decide().rule), (None, "blocked"));
        let mut scene = primary_outdated();
        scene.store();
        scene.set_child(ChildKind::RoService, foreign());
        scene.now += PATIENCE;
        scene.store();
        assert_eq!(scene.stored.intent.primary, None);
        assert_eq!(scene.decide().phase, Phase::Failed);
    }

    #[test]
    fn the_requested_and_then_the_preferred_instance_comes_before_others_that_are_as_fit() {
        let mut scene = Scene::ready(4);
        scene.elect(3);
        scene.edit(|spec| (spec.replicas, spec.primary.prefer) = (3, Some("demo-2".to_owned())));
        scene.synchronize();
        assert_eq!(moved(&scene), Some("demo-2".to_owned()));
        scene.edit(|spec| spec.primary.prefer = None);
        scene.switchover = Some("demo-1/1".to_owned());
        scene.store();
        assert_eq!(moved(&scene), Some("demo-1".to_owned()));
    }

    #[test]
    fn one_is_under_way_until_the_named_instance_serves() {
        let mut scene = primary_outdated();
        let under_way = |scene: &Scene| scene.with_facts(under_way);
        assert!(!under_way(&scene));
        scene.store();
        assert!(under_way(&scene));
        let target = scene.stored.intent.primary.clone().unwrap();
        let mut other = scene.clone();
        other.stored.intent.primary = Some("demo-0".to_owned());
        let because = format!("{}", other.decide().because);
        assert_eq!(because, "when demo-0 was to become primary is not on record");
        scene.elect(if target == "demo-1" { 1 } else { 2 });
        assert!(!under_way(&scene));
    }

    #[test]
    fn what_keeps_a_primary_from_moving_is_told() {
        let waits = |scene: &Scene| match scene.with_facts(await_switchover)?.action {
            Action::Wait(waiting) => Some(waiting.what.into_owned()),
            _ => None,
        };
        let mut scene = Scene::ready(3);
        scene.edit(|spec| spec.primary.prefer = Some("demo-1".to_owned()));
        let fit = "a standby that is fit to take over: demo-0 is primary, and spec.primary.prefer names demo-1";
        assert_eq!(waits(&scene).as_deref(), Some(fit));
        scene.stored.memo.switchover = Some(SwitchoverMemo {
            target: "demo-1".to_owned(),
            since: scene.now,
            attempts: 1,
            ended: Some(scene.now),
        });
        assert!(waits(&scene).unwrap().starts_with("another try"));
        scene.now += FIRST_REST;
        assert_eq!(waits(&scene).as_deref(), Some(fit), "the rest is over");
        scene.report_mut(2).settings = "of before".to_owned();
        assert_eq!(waits(&scene), None, "the settings are waited for");
    }

    #[test]
    fn there_is_no_refuge_in_a_pod_that_goes() {
        let mut scene = Scene::ready(3);
        scene.pod_mut(1).terminating = true;
        let why = scene.with_facts(|facts| no_refuge(facts, &facts.pods()[1]));
        assert_eq!(why.as_deref(), Some("demo-1 is going away"));
        scene.edit(|spec| spec.replicas = 2);
        let why = scene.with_facts(|facts| no_refuge(facts, &facts.pods()[2]));
        assert_eq!(why.as_deref(), Some("demo-2 is going away"));
    }
}
