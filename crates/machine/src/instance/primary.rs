//! The holder's work: start PostgreSQL for writing, point `-rw` at it, admit members.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::context::Context;
use super::crash::may_start;
use super::identity::is_sound;
use super::lease_rules::{self, Write};
use super::recovery::{self, Way};
use super::{Action, Draft, Purpose, Route, Verdict, election, members, room, settings, standby};
use crate::protocol::{Epoch, Incarnation, LeaseRecord, MemberId, MemberState, Timeline};

/// Longest wait between failed tries, in milliseconds.
const RETRY: u64 = 2_000;

/// Promotes the standby of a member that was elected, to the timeline that the Lease reserves for it (protocol.md rules 13, 14).
pub(super) fn promote(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (epoch, until) = context.held()?;
    let record = context.record()?;
    let timeline = record.timeline?;
    let own = context.electable_position()?.timeline;
    if is_spent(timeline, own, context.promise()?.promoting) || context.stop_intended() {
        return None;
    }
    if !context.is_free(&context.tasks().start, RETRY, draft) || !room::may_be_promoted(context, draft) {
        return None;
    }
    let action = Action::Promote {
        epoch,
        until,
        timeline,
        rule: record.rule.clone(),
        members: followers(context, record, epoch, own),
    };
    Verdict::new(
        action,
        format!(
            "this member was elected, and timeline {} is reserved for it",
            timeline.0
        ),
    )
}

/// Of the rule's names those that may stream as soon as this member, whose WAL is of timeline `own`, is promoted (protocol.md rule 6).
///
/// A standby that has heard of nothing since this member was primary before, and was rewound since, streams from here by itself, before
/// its agent knows of this epoch: PostgreSQL serves it if the fork is in its last segment, and counts all that it says it has, which is
/// more. Without a slot it does not. So at once only those get one who have promised this epoch, and stream when their agent has looked
/// at their data; and those that had WAL of `own`: whoever wrote that, this member has all that they got from there.
fn followers(context: &Context, record: &LeaseRecord, epoch: Epoch, own: Timeline) -> BTreeSet<MemberId> {
    let promises = context.observed.promises.values().map(|promised| &promised.reply);
    let promised = promises
        .filter(|reply| reply.promised >= epoch)
        .map(|reply| &reply.member);
    let with = record.positions.iter().filter(|(_, position)| position.timeline == own);
    let with = with.filter_map(|(pod, _)| Some(&record.members.get(pod)?.member));
    let known = promised.chain(with);
    known
        .filter(|member| record.rule.names.contains(*member))
        .cloned()
        .collect()
}

/// The number was used: this member's WAL is of it, or a promotion to it was begun here. One that was begun to a lower number
/// says nothing of this one.
fn is_spent(timeline: Timeline, own: Timeline, begun: Option<Timeline>) -> bool {
    own >= timeline || begun.is_some_and(|begun| begun >= timeline)
}

/// Reserves another timeline when a promotion to the one on record was begun and not finished: a number is used once
/// (protocol.md rule 14).
pub(super) fn reserve_again(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.held()?;
    let record = context.record()?;
    let own = context.final_position()?.timeline;
    let begun = context.promise()?.promoting;
    let spent = record.timeline.is_none_or(|timeline| is_spent(timeline, own, begun));
    let busy = context.tasks().start.running.is_some();
    if !spent || busy || !room::may_be_promoted(context, draft) || !lease_rules::is_free(context, draft) {
        return None;
    }
    let reserved = election::next_timeline(record, own)?.max(begun.map_or(Some(own), Timeline::next)?);
    let write = Write {
        epoch: record.epoch.next()?,
        timeline: Some(reserved),
        purpose: Purpose::Take,
        ..Write::renewal(record)
    };
    Verdict::new(
        write.action(context, draft),
        "a promotion to the reserved timeline was begun and not finished: another one is reserved",
    )
}

/// A primary's data on the timeline that is reserved for the holder: it may be written without a promotion.
fn is_primarys(context: &Context) -> bool {
    let reserved = context.record().and_then(|record| record.timeline);
    context
        .database()
        .is_some_and(|database| database.primary && reserved.is_none_or(|reserved| database.timeline == reserved))
}

/// The holder's data is a standby's: it is started as one, to be promoted.
pub(super) fn start_to_promote(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.held()?;
    if is_primarys(context) || !is_sound(context) || context.stop_intended() || !may_start(context, draft) {
        return None;
    }
    let settings = settings::to_start_with(context)?;
    let upstream = None;
    Verdict::new(
        Action::StartStandby {
            upstream,
            settings,
            was_primary: context.volume()?.was_primary,
        },
        "this member holds the lease, and its data is a standby's: it is to be promoted",
    )
}

/// Starts PostgreSQL for writing: only while the lease is held now, and only on the data that the Lease names.
pub(super) fn start(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (epoch, until) = context.held()?;
    if !is_primarys(context) || !is_sound(context) || !may_start(context, draft) {
        return None;
    }
    let settings = settings::to_start_with(context)?;
    let because = match recovery::of(context, &draft.memo) {
        Some(Way::InPlace(why) | Way::GiveWay(why)) => format!("this member holds the lease: {why}").into(),
        None => Cow::from("this member holds the lease"),
    };
    Verdict::new(
        Action::StartPrimary {
            epoch,
            until,
            settings,
            rule: context.record()?.rule.clone(),
        },
        because,
    )
}

/// Points `-rw` at this member, in one write, as soon as it starts or is promoted for writing: clients are refused here until
/// it opens, as they were there, and the proxies of the nodes, which take up to a second, work meanwhile.
pub(super) fn route(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (epoch, _) = context.held()?;
    let address = &context.observed.own.address;
    let wanted = Route {
        address: address.clone(),
        epoch,
    };
    let writes_soon = context.writable() && draft.memo.stopping.is_none();
    if !writes_soon || context.observed.route.as_ref() == Some(&wanted) {
        return None;
    }
    if !context.is_free(&context.tasks().route, RETRY, draft) {
        return None;
    }
    Verdict::new(
        Action::Route {
            address: wanted.address,
            epoch,
        },
        "this member holds the lease, and is or becomes the primary",
    )
}

/// Whether nobody who held the lease wrote an EndpointSlice with a higher epoch than `epoch`, the one of `holder`.
/// `lease` must have been read after that EndpointSlice: each holder writes the Lease before it, and epochs only grow.
pub fn is_route_forged(lease: &LeaseRecord, holder: &Incarnation, epoch: Epoch) -> bool {
    let held_by = lease.holder.as_ref().map(|record| &record.incarnation);
    lease.epoch == epoch && held_by == Some(holder)
}

/// Makes the replication role and slot of a member that reports now (the slot of one that is away would keep WAL until it is lost,
/// again and again), unless it is forgotten: its slot would keep WAL for ever. A standby that runs has promised this epoch before
/// ([`followers`]).
pub(super) fn admit(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (epoch, _) = context.held()?;
    if !context.accepting() {
        return None;
    }
    let listed = members::reports(context, draft);
    let peers = &context.observed.peers;
    let new = peers
        .iter()
        .filter(|(_, peer)| context.now.since(peer.heard) < members::SILENT)
        .filter(|(_, peer)| {
            let runs = matches!(peer.report.state, MemberState::Streaming | MemberState::CatchingUp);
            !runs || peer.promised >= epoch
        })
        .find(|(pod, peer)| listed.contains_key(*pod) && !context.observed.admitted.contains(&peer.report.member));
    let (pod, peer) = new?;
    if !context.is_free(&context.tasks().admit, RETRY, draft) {
        return None;
    }
    let action = Action::Admit {
        member: peer.report.member.clone(),
    };
    Verdict::new(
        action,
        format!("{pod} reports as a member that has no replication slot here"),
    )
}

/// Drops the slots of members that are no more: they would keep WAL for ever. Once per set of members, and again until
/// none of them is in use.
pub(super) fn drop_slots(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    if has_followed(context) {
        return drop_all_slots(context, draft);
    }
    context.held()?;
    if !context.accepting() {
        return None;
    }
    let reports = members::reports(context, draft);
    let keep: BTreeSet<MemberId> = reports.into_values().map(|report| report.member).collect();
    let task = &context.tasks().admit;
    if draft.memo.kept.as_ref() == Some(&keep) && task.failures == 0 {
        return None;
    }
    if !context.is_free(task, RETRY, draft) {
        return None;
    }
    draft.memo.kept = Some(keep.clone());
    Verdict::new(Action::DropSlots { keep }, "the set of members has changed")
}

/// It follows another member, which has become primary.
fn has_followed(context: &Context) -> bool {
    let promoted = standby::upstream(context).filter(|holder| holder.timeline.is_some());
    promoted.is_some_and(|holder| standby::follows(context, holder)) && context.starting().is_none()
}

/// Drops the slots that a former primary, or one that was not promoted, still has for the others. Nobody streams from here: they keep
/// WAL for ever, and a standby tells its primary the oldest transaction that any of its slots knows, so that no row which has been
/// deleted since would be removed anywhere.
fn drop_all_slots(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    if context.observed.postgres.slots.is_empty() || !context.is_free(&context.tasks().admit, RETRY, draft) {
        return None;
    }
    let keep = BTreeSet::new();
    Verdict::new(
        Action::DropSlots { keep },
        "this member follows another one, and keeps WAL for nobody",
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::fixtures::*;
    use super::super::*;
    use crate::protocol::{LeaseRecord, Lsn, MemberId, MemberState, Position, Timeline};
    use crate::quorum::SyncRule;
    use crate::timing::{BootTime, Timing};

    fn decided(observed: &Observed, now: u64) -> Decision {
        decide(observed, &Memo::default(), BootTime(now))
    }

    #[test]
    fn the_holder_starts_for_writing() {
        let mut observed = primary();
        observed.postgres = stopped();
        record(&mut observed).holder.as_mut().unwrap().serving = false;
        observed.tasks.lease.running = Some(Work::WriteLease);
        let decision = decided(&observed, 1_200);
        let expected = Action::StartPrimary {
            epoch: crate::protocol::Epoch(1),
            until: BootTime(1_000 + Timing::DEFAULT.fence),
            settings: SETTINGS.to_owned(),
            rule: SyncRule::default(),
        };
        assert_eq!(decision.action, expected);
        assert_eq!(decision.dead_man, Some(BootTime(1_000 + Timing::DEFAULT.fence + 1_125)));
    }

    #[test]
    fn nobody_starts_for_writing_without_the_lease_and_sound_data() {
        let spoil: [fn(&mut Observed); 6] = [
            |o| o.lease.confirmed = None,
            |o| o.lease.confirmed.as_mut().unwrap().epoch = crate::protocol::Epoch(7),
            |o| hold_by(o, other_holder(), 2),
            |o| record(o).system_id = Some("another".to_owned()),
            |o| volume(o).data = Data::Unknown,
            |o| o.tasks.volume.running = Some(Work::StoreCertificate),
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            let mut observed = primary();
            observed.postgres = stopped();
            observed.tasks.lease.running = Some(Work::WriteLease);
            spoil(&mut observed);
            let decision = decided(&observed, 1_200);
            assert!(
                !matches!(decision.action, Action::StartPrimary { .. }),
                "{index}: {decision:?}"
            );
        }
    }

    #[test]
    fn a_route_of_a_higher_epoch_is_forged_only_while_the_lease_names_this_run_in_its_epoch() {
        let mut observed = primary();
        let held = record(&mut observed).clone();
        let own = held.holder.clone().unwrap().incarnation;
        assert!(is_route_forged(&held, &own, Epoch(1)));
        let spoils: [fn(&mut LeaseRecord); 5] = [
            |lease| lease.epoch = Epoch(2),
            |lease| lease.holder = None,
            |lease| lease.holder = Some(other_holder()),
            |lease| lease.holder.as_mut().unwrap().incarnation.run = "run-2".to_owned(),
            |lease| lease.holder.as_mut().unwrap().incarnation.pod_uid = "pod-9".to_owned(),
        ];
        for (index, spoil) in spoils.into_iter().enumerate() {
            let mut lease = held.clone();
            spoil(&mut lease);
            assert!(!is_route_forged(&lease, &own, Epoch(1)), "{index}");
        }
    }

    #[test]
    fn the_route_follows_when_a_promotion_begins() {
        let mut observed = elected();
        observed.route = None;
        assert_eq!(decided(&observed, 1_200).rule, "promote");
        observed.tasks.start.running = Some(Work::Promote);
        assert_eq!(decided(&observed, 1_200).rule, "route");
        // A primary that stops is no place to go to.
        let stopping = Memo {
            stopping: Some(Stopping {
                stop: Stop::Fast,
                since: BootTime(1_100),
            }),
            ..settled()
        };
        assert_ne!(decide(&observed, &stopping, BootTime(1_200)).rule, "route");
        let mut standby = elected();
        standby.route = None;
        standby.tasks.start.failures = 1;
        standby.tasks.start.ended = BootTime(1_190);
        assert_eq!(decided(&standby, 1_200).action, Action::Wait, "nothing is promoted yet");
    }

    #[test]
    fn a_reporting_member_is_admitted_and_the_slot_of_a_former_one_dropped() {
        let mut observed = primary();
        let peer = observed.peers.get_mut("orders-1").unwrap();
        peer.promised = Epoch(1);
        let member = peer.report.member.clone();
        let decided = |observed: &Observed| decide(observed, &settled(), BootTime(1_200));
        assert_ne!(decided(&observed).rule, "admit", "it is already");
        observed.admitted.clear();
        assert_eq!(decided(&observed).action, Action::Admit { member });
        observed.tasks.lease.running = Some(Work::WriteLease);
        for (state, admitted) in [
            (MemberState::Streaming, false),
            (MemberState::CatchingUp, false),
            (MemberState::Starting, true),
        ] {
            let peer = observed.peers.get_mut("orders-1").unwrap();
            (peer.promised, peer.report.state) = (Epoch(0), state);
            let rule = decided(&observed).rule;
            assert_eq!(
                rule == "admit",
                admitted,
                "it has not promised, and is {state:?}: {rule}"
            );
        }
        let peers = primary().peers;
        let decision = decide(
            &primary(),
            &Memo {
                kept: None,
                ..settled()
            },
            BootTime(1_200),
        );
        match decision.action {
            Action::DropSlots { keep } => assert!(keep.contains(&peers["orders-1"].report.member)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_member_that_is_silent_or_forgotten_is_not_admitted_again() {
        let decided = |memo: &Memo, now: u64| {
            let mut observed = primary();
            observed.admitted.clear();
            observed.peers.get_mut("orders-1").unwrap().promised = Epoch(1);
            cluster(&mut observed).replicas = 1;
            observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now);
            observed.tasks.lease.running = Some(Work::WriteLease);
            decide(&observed, memo, BootTime(now))
        };
        assert_eq!(decided(&settled(), 1_200).rule, "admit");
        let silent = 1_000 + super::super::members::SILENT;
        assert_ne!(
            decided(&settled(), silent).rule,
            "admit",
            "its slot would be lost again"
        );
        let after = decided(&settled(), 11_000);
        assert_eq!(after.rule, "drop slots");
        assert_ne!(decided(&after.memo, 11_000).rule, "admit");
    }

    #[test]
    fn a_slot_that_could_not_be_dropped_is_tried_again() {
        let mut observed = primary();
        assert_ne!(decide(&observed, &settled(), BootTime(1_200)).rule, "drop slots");
        observed.tasks.admit = Task {
            failures: 2,
            ended: BootTime(1_000),
            error: Some("it is in use".to_owned()),
            running: None,
        };
        let early = decide(&observed, &settled(), BootTime(1_399));
        assert_eq!((early.action, early.wake), (Action::Wait, Some(BootTime(1_400))));
        let due = decide(&observed, &settled(), BootTime(1_400));
        assert_eq!(due.rule, "drop slots");
    }

    #[test]
    fn who_follows_another_keeps_no_slots() {
        let mut observed = standby();
        observed.tasks.report.running = Some(Work::Report);
        assert_eq!(decided(&observed, 1_200).action, Action::Wait);
        observed.postgres.slots.extend([third()]);
        let keep = std::collections::BTreeSet::new();
        let decision = decided(&observed, 1_200);
        assert_eq!(decision.action, Action::DropSlots { keep });
        assert_eq!(
            decision.memo.kept, None,
            "as a primary it looks for former members again"
        );
        let spoil: [fn(&mut Observed); 6] = [
            |o| o.tasks.admit.running = Some(Work::DropSlots),
            |o| o.postgres.configured.as_mut().unwrap().upstream = None,
            |o| o.postgres.process = Process::Stopped { exit: None },
            |o| record(o).holder.as_mut().unwrap().timeline = None,
            |o| record(o).holder = None,
            |o| *o = elected(),
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            let mut observed = observed.clone();
            spoil(&mut observed);
            observed.postgres.slots.extend([third()]);
            assert_ne!(decided(&observed, 1_200).rule, "drop slots", "{index}");
        }
        let mut used = observed;
        used.tasks.admit = Task {
            failures: 1,
            ended: BootTime(1_100),
            ..Task::default()
        };
        let early = decided(&used, 1_200);
        assert_eq!((early.action, early.wake), (Action::Wait, Some(BootTime(1_300))));
    }

    #[test]
    fn only_who_has_promised_or_was_on_the_same_timeline_may_stream_from_a_promoted_primary_at_once() {
        let members = |observed: &Observed| match decided(observed, 1_200).action {
            Action::Promote { members, .. } => members,
            other => panic!("{other:?}"),
        };
        let only = |member: MemberId| BTreeSet::from([member]);
        let mut observed = elected();
        third_answers(&mut observed, 1, None);
        assert_eq!(members(&observed), BTreeSet::new());
        third_answers(&mut observed, 2, None);
        assert_eq!(members(&observed), only(third()));
        record(&mut observed).rule.names.remove(&third());
        assert_eq!(members(&observed), BTreeSet::new(), "it is none of those that count");

        let mut observed = elected();
        let second = record(&mut observed).members["orders-1"].member.clone();
        for (timeline, expected) in [(1, only(second)), (2, BTreeSet::new())] {
            let position = Position {
                timeline: Timeline(timeline),
                lsn: Lsn(0x80),
            };
            record(&mut observed).positions = BTreeMap::from([("orders-1".to_owned(), position)]);
            assert_eq!(members(&observed), expected, "timeline {timeline}");
        }
    }

    #[test]
    fn a_standby_that_was_elected_is_promoted_to_the_reserved_timeline_once() {
        let mut observed = elected();
        let promote = Action::Promote {
            epoch: Epoch(2),
            until: BootTime(FENCE),
            timeline: Timeline(2),
            rule: record(&mut observed).rule.clone(),
            members: BTreeSet::new(),
        };
        assert_eq!(decided(&observed, 1_200).action, promote);
        // It was begun and not finished: another number.
        volume(&mut observed).promise.as_mut().unwrap().promoting = Some(Timeline(2));
        observed.tasks.lease.running = None;
        let spent = observed.clone();
        let context = Context::new(&observed, BootTime(1_200));
        let decision = super::reserve_again(&context, &mut Draft::default()).expect("another number");
        let Action::WriteLease { content, purpose, .. } = decision.action else {
            panic!("a Lease is written")
        };
        assert_eq!(
            (content.epoch, content.timeline, purpose),
            (Epoch(3), Some(Timeline(3)), Purpose::Take)
        );
        // With that number on record it is promoted: it is not reserved again, and again.
        record(&mut observed).epoch = Epoch(3);
        record(&mut observed).timeline = Some(Timeline(3));
        observed.lease.confirmed.as_mut().unwrap().epoch = Epoch(3);
        observed.tasks.lease.running = Some(Work::WriteLease);
        let decision = decided(&observed, 1_200);
        assert!(
            matches!(
                decision.action,
                Action::Promote {
                    timeline: Timeline(3),
                    ..
                }
            ),
            "{decision:?}"
        );
        observed.tasks.lease.running = None;
        let context = Context::new(&observed, BootTime(1_200));
        assert!(super::reserve_again(&context, &mut Draft::default()).is_none());
        let busy: [fn(&mut Observed); 2] = [
            |o| o.tasks.lease.running = Some(Work::WriteLease),
            |o| o.tasks.start.running = Some(Work::StartStandby),
        ];
        for (index, busy) in busy.iter().enumerate() {
            let mut observed = spent.clone();
            busy(&mut observed);
            let context = Context::new(&observed, BootTime(1_200));
            assert!(
                super::reserve_again(&context, &mut Draft::default()).is_none(),
                "{index}"
            );
        }
        // What was elected by its running stream may be less after a crash.
        let mut torn = elected();
        torn.postgres.answer.as_mut().unwrap().begins = Some(crate::protocol::Lsn(u64::MAX));
        assert_ne!(decided(&torn, 1_200).rule, "promote");
        // While WAL may still come in, or is not replayed, nothing is promoted.
        let mut observed = elected();
        observed.postgres.answer.as_mut().unwrap().received_all = false;
        assert_ne!(decided(&observed, 1_200).rule, "promote");
    }

    #[test]
    fn a_standbys_data_is_never_started_for_writing() {
        let mut observed = elected();
        observed.postgres = stopped();
        assert_eq!(decided(&observed, 1_200).rule, "start to promote");
        data(&mut observed).primary = true;
        assert_eq!(
            decided(&observed, 1_200).rule,
            "start to promote",
            "another timeline is reserved"
        );
        data(&mut observed).timeline = Timeline(2);
        assert_eq!(decided(&observed, 1_200).rule, "start primary");
    }
}
