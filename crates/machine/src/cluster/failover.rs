//! Failover: the agents do it by themselves. Here is only said how it stands, what is missing, and who can end it.

use std::collections::BTreeSet;

use api::Phase;
use api::names::ANNOTATION_ACCEPT_LOSS;
use chrono::{DateTime, TimeDelta, Utc};

use super::action::Action;
use super::creation::{does_not_run, pending, remover, troubles, unmade};
use super::decision::Step;
use super::facts::{Facts, list};
use super::fenced;
use super::hibernation;
use super::observed::{Known, Pod};
use super::room;
use super::rule::{Proposal, Rule};
use super::transitions::may_follow;
use crate::protocol::{ASYNC_LOSS, LeaseRecord, MemberId, Position, accepted_loss};
use crate::timing::Timing;

/// See [`Rule::what`].
pub const AWAIT_PRIMARY: Rule = Rule {
    name: "await-primary",
    family: "failover",
    what: "While no holder of the Lease serves, everything waits for the agents to elect one or to bring it back; where each member's WAL ends and who can end the wait is said.",
    propose: await_primary,
    passable: false,
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
        return Proposal::wait(facts, Step::Primary, format!("Lease {name}"), "the user");
    };
    if let Some(full) = room::which(facts).filter(|_| room::is_awaited(facts)) {
        let what = format!("room on volumes ({full}), and then {}", what(facts, lease));
        return bounded(facts, Proposal::wait(facts, Step::Primary, what, room::who(facts))?);
    }
    if facts.expected() > 1 {
        return bounded(
            facts,
            Proposal::wait(facts, Step::Primary, what(facts, lease), who(facts, lease))?,
        );
    }
    let Some(last) = last(lease) else {
        let what = format!("somebody to take Lease {name}");
        return Proposal::wait(facts, Step::Primary, what, "the agents");
    };
    match pod_of(facts, last) {
        Some(pod) if does_not_run(pod) => pending(facts, Step::Primary, pod),
        Some(pod) => {
            let what = format!("the primary {} to serve", pod.name);
            Proposal::wait(facts, Step::Primary, what, format!("the agent in pod {}", pod.name))
        }
        None => {
            let what = format!("the pod of the member {last}, which held the Lease last");
            let leaving = last.ordinal().and_then(|ordinal| facts.pod(ordinal));
            let maker = || unmade(facts).map_or_else(|| "the StatefulSet controller".to_owned(), |(_, who)| who);
            let who = leaving.map_or_else(maker, remover);
            Proposal::wait(facts, Step::Primary, what, who)
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
    let lease = TimeDelta::milliseconds(i64::try_from(timing.lease).unwrap_or(i64::MAX));
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
            ASYNC_LOSS >> 20,
            acceptance(facts, lease)
        ),
        _ => "an agent with the data, once the Lease is released or has run out".to_owned(),
    }
}

/// How the user can go on without those that are missing.
fn acceptance(facts: &Facts<'_>, lease: &LeaseRecord) -> String {
    let (name, uid, epoch) = (facts.wanted.name, facts.wanted.uid, lease.epoch);
    let said = facts.wanted.accept_loss;
    if said.and_then(|said| accepted_loss(said, uid)) == Some(epoch) {
        return "The loss of what only they have is accepted: the others go on without them, once the last holder's \
                lease has run out"
            .to_owned();
    }
    let stale = said.map_or_else(String::new, |said| {
        format!("The annotation {ANNOTATION_ACCEPT_LOSS} says {said}, which is not of this resource and epoch. ")
    });
    format!(
        "{stale}If they are lost for good and the last primary's node is off, the commits that only they have can be \
         given up: kubectl annotate clustereddatabase {name} --overwrite {ANNOTATION_ACCEPT_LOSS}={uid}/{}",
        epoch.0
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
mod tests {
    use super::super::testing::Scene;
    use super::super::{ChildKind, ChildState, Due, ImageError};
    use super::*;
    use crate::protocol::{Lsn, Release, Timeline};

    /// The primary's pod went away without a word; where the members stood is on record.
    fn lost() -> Scene {
        let mut scene = Scene::ready(3);
        for ordinal in 0..3_u64 {
            let position = Position {
                timeline: Timeline(2),
                lsn: Lsn(0x300_0148 + ordinal),
            };
            scene
                .lease_mut()
                .unwrap()
                .positions
                .insert(format!("demo-{ordinal}"), position);
        }
        scene.lease_mut().unwrap().positions.remove("demo-2");
        scene.pods_mut().remove(0);
        scene
    }

    #[test]
    fn a_lost_primary_is_a_failover_and_names_positions_and_electors() {
        let mut scene = lost();
        let decision = scene.decide();
        assert_eq!(
            (decision.rule, decision.phase, decision.step),
            ("await-primary", Phase::FailingOver, Some(Step::Primary))
        );
        let (what, who) = scene.waiting();
        assert_eq!(what, "a primary to serve: demo-0 holds the Lease, and its pod is gone");
        let known = "; last known ends of WAL: \
                     demo-0 0/3000148 on timeline 2, demo-1 0/3000149 on timeline 2, demo-2 unknown";
        assert_eq!(
            who,
            format!("the agents in 2 of the pods demo-1, demo-2, by an election{known}")
        );
        scene.pod_mut(2).node = None;
        let uid = scene.with_wanted(|wanted| wanted.uid.to_owned());
        assert_eq!(
            scene.waiting().1,
            format!(
                "the agents in 2 of the pods demo-1, demo-2, by an election; but demo-2 has no node. If they are lost for \
                 good and the last primary's node is off, the commits that only they have can be given up: kubectl \
                 annotate clustereddatabase demo --overwrite clustereddatabase.io/accept-loss={uid}/1{known}"
            )
        );
        let unasked = scene.decide();
        for stale in [
            format!("{uid}/0"),
            format!("{uid}/2"),
            "another-uid/1".to_owned(),
            "1".to_owned(),
        ] {
            scene.accept_loss = Some(stale.clone());
            let told = format!("says {stale}, which is not of this resource and epoch. If they");
            assert!(scene.waiting().1.contains(&told), "{stale}");
            let decision = scene.decide();
            assert_eq!(
                (decision.phase, decision.rule),
                (unasked.phase, unasked.rule),
                "{stale}: nothing else changes"
            );
        }
        scene.accept_loss = Some(format!("{uid}/1"));
        assert!(scene.waiting().1.contains("is accepted: the others go on without them"));
        scene.elect(1);
        assert_ne!(scene.decide().phase, Phase::FailingOver, "a holder serves");
    }

    #[test]
    fn the_deadline_counts_from_the_beginning_and_does_not_move() {
        let mut scene = lost();
        scene.store();
        let began = scene.now;
        let deadline = began + TimeDelta::seconds(10) + ELECTION;
        assert_eq!(scene.stored.waiting.clone().unwrap().deadline, Some(deadline));
        let decision = scene.decide();
        assert_eq!((decision.wake, scene.due(&decision)), (deadline, Due::Never));
        scene.now += TimeDelta::seconds(20);
        scene.lease_mut().unwrap().holder = None;
        scene.store();
        let stored = scene.stored.waiting.clone().unwrap();
        assert_eq!((stored.since, stored.deadline), (scene.now, Some(deadline)));
        scene.now = deadline;
        scene.store();
        let progressing = scene
            .stored
            .conditions
            .iter()
            .find(|found| found.type_ == "Progressing")
            .unwrap();
        assert_eq!(progressing.reason, "DeadlineExceeded");
        let decision = scene.decide();
        assert!(
            decision.wake > scene.now && scene.due(&decision) == Due::Never,
            "{decision:?}"
        );
    }

    #[test]
    fn a_release_tells_the_position_and_async_goes_by_the_clock() {
        let mut scene = lost();
        let lease = scene.lease_mut().unwrap();
        let member = lease.holder.take().unwrap().incarnation.member;
        let position = Some(Position {
            timeline: Timeline(2),
            lsn: Lsn(0x400_0000),
        });
        lease.release = Some(Release {
            member,
            position,
            successor: None,
        });
        lease.rule = Default::default();
        let (what, who) = scene.waiting();
        assert_eq!(what, "a primary to serve: demo-0 has released the Lease");
        let expected = "an agent with the data, once the Lease is released or has run out; last known ends of WAL: \
                        demo-0 0/4000000 on timeline 2, ";
        assert!(who.starts_with(expected), "{who}");
        scene
            .lease_mut()
            .unwrap()
            .release
            .as_mut()
            .unwrap()
            .position
            .as_mut()
            .unwrap()
            .lsn
            .0 += ASYNC_LOSS;
        let who = scene.waiting().1;
        let expected = "a member with the WAL of the last primary; the others lack more than 16 MiB of it, which is not given \
                        up unasked. If they are lost for good";
        assert!(who.starts_with(expected), "{who}");
    }

    /// No member's position is on record, nor whom commits waited for.
    #[test]
    fn a_lease_that_was_made_again_waits_for_all_members() {
        let mut scene = lost();
        let lease = scene.lease_mut().unwrap();
        let member = lease.holder.take().unwrap().incarnation.member;
        lease.release = Some(Release {
            member,
            position: None,
            successor: None,
        });
        lease.members.clear();
        lease.positions.clear();
        let (what, who) = scene.waiting();
        assert_eq!(what, "a primary to serve: the Lease was made again for demo-0");
        let expected = "the agents in 3 of the pods demo-0, demo-1, demo-2, by an election; but demo-0 has no pod. If they are lost \
                        for good and the last primary's node is off, the commits that only they have can be given up: kubectl";
        assert!(who.starts_with(expected), "{who}");
        scene.lease_mut().unwrap().rule = Default::default();
        let who = scene.waiting().1;
        assert!(
            who.starts_with("the agents in 1 of the pods demo-0, by an election; but demo-0 has no pod."),
            "{who}"
        );
    }

    /// Their pods may be there while they cannot answer.
    #[test]
    fn an_election_that_does_not_come_about_shows_the_way_out() {
        let mut scene = lost();
        scene.store();
        let deadline = scene.stored.waiting.clone().unwrap().deadline.unwrap();
        assert!(!scene.waiting().1.contains("accept-loss"));
        scene.now = deadline;
        assert!(
            scene
                .waiting()
                .1
                .contains("; but they have elected nobody in time. If they are lost for good")
        );
        scene.pod_mut(2).ready = false;
        assert!(
            scene
                .waiting()
                .1
                .contains("; but demo-2 is not ready. If they are lost for good")
        );
    }

    fn release(scene: &mut Scene, successor: Option<&str>) {
        let lease = scene.lease_mut().unwrap();
        let member = lease.holder.take().unwrap().incarnation.member;
        lease.release = Some(Release {
            member,
            position: None,
            successor: successor.map(str::to_owned),
        });
    }

    #[test]
    fn a_primary_whose_pod_is_deleted_hands_over_and_only_in_the_end_it_is_a_failover() {
        let mut scene = Scene::ready(3);
        scene.pod_mut(0).terminating = true;
        let mut node_lost = scene.clone();
        node_lost.pod_mut(0).ready = false;
        assert_eq!(node_lost.decide().phase, Phase::FailingOver, "its node was lost before");
        assert_eq!(scene.store().phase, Phase::SwitchingOver);
        scene.pod_mut(0).ready = false;
        assert_eq!(scene.store().phase, Phase::SwitchingOver, "it stops");
        assert!(scene.waiting().0.ends_with("demo-0 holds the Lease and is going away"));
        let mut silent = scene.clone();
        let deadline = |scene: &Scene| scene.stored.waiting.as_ref().unwrap().deadline.unwrap();
        let (began, told) = (scene.now, deadline(&silent));
        assert_eq!(silent.decide().wake, began + LEAVES, "it is looked at in time");
        silent.now += LEAVES - TimeDelta::seconds(1);
        assert_eq!(silent.store().phase, Phase::SwitchingOver);
        silent.now += TimeDelta::seconds(1);
        for _ in 0..2 {
            assert_eq!(silent.store().phase, Phase::FailingOver);
            assert_eq!(
                (deadline(&silent), silent.decide().wake),
                (told, told),
                "it does not move"
            );
        }
        release(&mut silent, Some("demo-1"));
        assert_eq!(silent.decide().phase, Phase::FailingOver, "it has become one");

        scene.pods_mut().remove(0);
        let mut nameless = scene.clone();
        release(&mut nameless, None);
        assert_eq!(
            nameless.decide().phase,
            Phase::FailingOver,
            "nobody was fit to take over"
        );
        release(&mut scene, Some("demo-1"));
        assert_eq!(scene.store().phase, Phase::SwitchingOver);
        let since = scene.stored.waiting.as_ref().unwrap().deadline;
        scene.now += TimeDelta::seconds(1);
        assert_eq!(
            scene.waiting().0,
            "a primary to serve: demo-0 has released the Lease to demo-1"
        );
        assert_eq!(scene.store().phase, Phase::SwitchingOver);
        assert_eq!(
            scene.stored.waiting.as_ref().unwrap().deadline,
            since,
            "it does not move"
        );
        scene.elect(1);
        scene.lease_mut().unwrap().holder.as_mut().unwrap().serving = false;
        scene.pod_mut(1).ready = false;
        assert_eq!(scene.store().phase, Phase::SwitchingOver);
        scene.elect(1);
        scene.pod_mut(1).ready = true;
        assert_eq!(scene.store().phase, Phase::Updating);
    }

    #[test]
    fn a_holder_that_is_there_can_end_it_itself() {
        let mut scene = Scene::ready(3);
        scene.pod_mut(0).ready = false;
        let (what, who) = scene.waiting();
        assert!(
            what.starts_with("a primary to serve: demo-0 holds the Lease and is not ready"),
            "{what}"
        );
        assert!(
            who.starts_with("the agent in pod demo-0 by serving, or the agents in 2 of"),
            "{who}"
        );
        assert_eq!(scene.decide().phase, Phase::FailingOver);
        scene.lease_mut().unwrap().holder.as_mut().unwrap().serving = false;
        assert!(
            scene
                .waiting()
                .0
                .contains("demo-0 holds the Lease and does not serve yet")
        );
    }

    #[test]
    fn a_restart_on_purpose_is_no_failover() {
        let mut scene = Scene::ready(3);
        scene.report_mut(0).pending_restart = true;
        scene.store();
        assert!(scene.stored.intent.restart.is_some());
        scene.pod_mut(0).ready = false;
        assert_eq!(scene.decide().phase, Phase::Updating);
        scene.elect(1);
        scene.pod_mut(1).ready = false;
        assert_eq!(scene.decide().phase, Phase::FailingOver, "another one holds the Lease");
    }

    #[test]
    fn one_instance_is_waited_for_by_the_name_of_its_pod() {
        let mut scene = Scene::ready(1);
        scene.pod_mut(0).ready = false;
        let decision = scene.decide();
        assert_eq!(
            (decision.phase, decision.because.to_string().as_str()),
            (Phase::Updating, "the primary demo-0 to serve")
        );
        scene.pod_mut(0).image_error = Some(ImageError {
            reason: "ErrImagePull".to_owned(),
            image: "postgres:17".to_owned(),
            message: String::new(),
            since: scene.now,
        });
        assert_eq!(
            scene.decide().because.to_string(),
            "pod demo-0 to run image postgres:17 (ErrImagePull)"
        );
        scene.pod_mut(0).terminating = true;
        assert!(
            scene.waiting().1.starts_with("the kubelet of node-0, "),
            "its node may be lost"
        );
        scene.pods_mut().clear();
        assert_eq!(scene.waiting().1, "the StatefulSet controller");
    }

    #[test]
    fn a_first_primary_that_does_not_serve_yet_is_still_a_creation() {
        let mut scene = Scene::ready(3);
        scene.stored.phase = Some(Phase::Creating);
        scene.pod_mut(0).ready = false;
        assert_eq!(scene.decide().phase, Phase::Creating);
    }

    #[test]
    fn a_limit_counts_from_when_the_primary_was_left_or_lost_whatever_was_waited_for_meanwhile() {
        let bound = TimeDelta::seconds(10) + ELECTION;
        let deadline = |scene: &Scene| scene.status(&scene.decide()).waiting.unwrap().deadline.unwrap();
        let mut left = Scene::ready(3);
        left.pod_mut(0).terminating = true;
        for mut scene in [lost(), left] {
            scene.now += TimeDelta::minutes(10);
            let until = scene.now + bound;
            assert_eq!(deadline(&scene), until, "the phase of before has nothing to do with it");
            scene.store();
            scene.now += TimeDelta::seconds(20);
            let (mut nothing, mut other) = (scene.clone(), scene);
            nothing.stored.waiting = None;
            other.stored.step = Some(Step::Rollout.as_str().to_owned());
            other.stored.waiting.as_mut().unwrap().deadline = Some(other.now);
            assert_eq!([deadline(&nothing), deadline(&other)], [until; 2]);
        }
        let mut before = lost();
        before.store();
        before.stored.phase = Some(Phase::Updating);
        before.stored.waiting.as_mut().unwrap().deadline = Some(before.now);
        assert_eq!(deadline(&before), before.now + bound, "that was of something else");
    }

    #[test]
    fn whoever_was_not_told_to_leave_is_lost() {
        let mut new = Scene::ready(3);
        new.lease_mut().unwrap().holder.as_mut().unwrap().serving = false;
        assert_eq!(new.decide().phase, Phase::FailingOver);
        let mut moved = Scene::ready(3);
        moved.stored.phase = Some(Phase::SwitchingOver);
        moved.stored.memo.phase_since = Some(moved.now);
        moved.pod_mut(0).ready = false;
        assert_eq!(moved.decide().phase, Phase::FailingOver, "it served, and is not ready");
    }

    #[test]
    fn a_lease_that_is_made_again_is_no_failover_yet() {
        let mut scene = Scene::ready(3);
        scene.set_child(ChildKind::Lease, ChildState::Missing);
        scene.observed.lease = Known::Known(None);
        scene.recreate_lease = Some(scene.with_wanted(|wanted| wanted.uid.to_owned()));
        assert_eq!(scene.decide().phase, Phase::Updating);
    }

    #[test]
    fn what_the_last_primary_itself_lacks_keeps_nobody_away() {
        let mut scene = lost();
        let lease = scene.lease_mut().unwrap();
        let member = lease.holder.take().unwrap().incarnation.member;
        let end = lease.positions["demo-0"];
        lease.release = Some(Release {
            member,
            position: Some(end),
            successor: None,
        });
        lease.rule = Default::default();
        let mut others = |lacks: u64| {
            let lsn = Lsn(end.lsn.0 - lacks);
            scene.lease_mut().unwrap().positions.get_mut("demo-1").unwrap().lsn = lsn;
            scene.waiting().1
        };
        assert!(others(ASYNC_LOSS).starts_with("an agent with the data"));
        assert!(others(ASYNC_LOSS + 1).starts_with("a member with the WAL of the last primary"));
    }
}
