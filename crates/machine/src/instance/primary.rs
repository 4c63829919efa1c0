//! The holder's work: start PostgreSQL for writing, point `-rw` at it, admit members.

use std::collections::BTreeSet;

use super::context::Context;
use super::crash::may_start;
use super::identity::is_sound;
use super::{Action, Draft, Mode, Route, Verdict, members, settings, shutdown};
use crate::protocol::MemberId;

/// Longest wait between failed tries, in milliseconds.
const RETRY: u64 = 2_000;

/// A standby whose member holds the lease is stopped, to be started for writing.
pub(super) fn leave_standby(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.held()?;
    if context.running() != Some(Mode::Standby) {
        return None;
    }
    shutdown::stop(
        context,
        draft,
        "this member holds the lease, and PostgreSQL runs as standby",
    )
}

/// Starts PostgreSQL for writing: only while the lease is held now, and only on the data that the Lease names.
pub(super) fn start(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (epoch, until) = context.held()?;
    if !is_sound(context) || !may_start(context, draft) {
        return None;
    }
    let settings = settings::to_start_with(context)?;
    Verdict::new(
        Action::StartPrimary { epoch, until, settings },
        "this member holds the lease",
    )
}

/// Points `-rw` at this member once it accepts writes.
pub(super) fn route(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (epoch, _) = context.held()?;
    let address = &context.observed.own.address;
    let wanted = Route {
        address: address.clone(),
        epoch,
    };
    if !context.serving() || context.observed.route.as_ref() == Some(&wanted) {
        return None;
    }
    let free = context.tasks().route.free_at(RETRY)?;
    if context.now < free {
        draft.wake(free);
        return None;
    }
    Verdict::new(
        Action::Route {
            address: wanted.address,
            epoch,
        },
        "this member accepts writes",
    )
}

/// Makes the replication role and slot of a member that reports, unless it is forgotten: its slot would keep WAL for ever.
pub(super) fn admit(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.held()?;
    if !context.serving() {
        return None;
    }
    let listed = members::reports(context, draft);
    let peers = &context.observed.peers;
    let new = peers
        .iter()
        .find(|(pod, peer)| listed.contains_key(*pod) && !context.observed.admitted.contains(&peer.report.member));
    let (pod, peer) = new?;
    let free = context.tasks().admit.free_at(RETRY)?;
    if context.now < free {
        draft.wake(free);
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
    context.held()?;
    if !context.serving() {
        return None;
    }
    let reports = members::reports(context, draft);
    let keep: BTreeSet<MemberId> = reports.into_values().map(|report| report.member).collect();
    let task = &context.tasks().admit;
    if draft.memo.kept.as_ref() == Some(&keep) && task.failures == 0 {
        return None;
    }
    let free = task.free_at(RETRY)?;
    if context.now < free {
        draft.wake(free);
        return None;
    }
    draft.memo.kept = Some(keep.clone());
    Verdict::new(Action::DropSlots { keep }, "the set of members has changed")
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
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
    fn the_route_follows_when_writes_are_accepted() {
        let mut observed = primary();
        observed.route = None;
        assert_eq!(decided(&observed, 1_200).rule, "route");
        observed.postgres.answer.as_mut().unwrap().in_recovery = true;
        observed.tasks.lease.running = Some(Work::WriteLease);
        assert_eq!(decided(&observed, 1_200).action, Action::Wait);
    }

    #[test]
    fn a_reporting_member_is_admitted_and_the_slot_of_a_former_one_dropped() {
        let mut observed = primary();
        observed.admitted.clear();
        let decision = decide(&observed, &settled(), BootTime(1_200));
        assert_eq!(
            decision.action,
            Action::Admit {
                member: observed.peers["orders-1"].report.member.clone()
            }
        );
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
    fn a_member_that_is_forgotten_is_not_admitted_again() {
        let mut observed = primary();
        observed.admitted.clear();
        cluster(&mut observed).replicas = 1;
        observed.lease.confirmed.as_mut().unwrap().sent = BootTime(11_000);
        observed.tasks.lease.running = Some(Work::WriteLease);
        let before = decide(&observed, &settled(), BootTime(10_999));
        assert_eq!(before.rule, "admit");
        let after = decide(&observed, &settled(), BootTime(11_000));
        assert_eq!(after.rule, "drop slots");
        assert_ne!(decide(&observed, &after.memo, BootTime(11_000)).rule, "admit");
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
    fn a_standby_that_holds_the_lease_is_stopped_to_start_for_writing() {
        let mut observed = primary();
        observed.postgres.process = Process::Running { mode: Mode::Standby };
        observed.tasks.lease.running = Some(Work::WriteLease);
        assert_eq!(decided(&observed, 1_200).action, Action::Stop(Stop::Fast));
    }
}
