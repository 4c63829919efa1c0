//! Stopping on purpose: SIGTERM, the operator's intent to stop all instances, or the user's fence on this one. The primary
//! hands its lease back with its last position; when all are to stop, standbys stop after it.

use std::borrow::Cow;

use super::context::{Context, Tenure};
use super::senders::{self, Needs};
use super::{Action, Draft, Memo, Mode, Stop, Stopping, Verdict, checkpoint, handover, lease_rules};

/// How long a fast stop may take before SIGQUIT, in milliseconds. It waits for the shutdown checkpoint, and for standbys
/// to receive it; 20 s of the container's grace are more than either needs, and leave time for the rest.
const PATIENCE: u64 = 20_000;
/// For so long of that anybody is waited for at all, in milliseconds: an end without the last record at a standby is a clean one.
pub(super) const LAST: u64 = 15_000;
/// How long SIGQUIT may take before SIGKILL, in milliseconds: the postmaster itself sends SIGKILL after 5 s.
const QUIT_PATIENCE: u64 = 6_000;
/// How long the agent tries to hand back its lease before it ends without, in milliseconds.
const RELEASE_PATIENCE: u64 = 3_000;
/// For so long an agent that has handed its lease back waits for somebody to take it, in milliseconds: as long as the others
/// leave it to the chosen successor.
const SUCCESSION: u64 = 2_000;
/// For so long after that it stays, in milliseconds: `-rw` moves when the promotion begins, and the nodes' proxies take up to a
/// second for it.
const ROUTES: u64 = 1_100;
/// For so long a primary whose container is asked to end serves on, if somebody can succeed it, in milliseconds. The nodes' proxies have
/// just taken up that the pod ends (it leaves `-r`), and take up nothing else for a second (kube-proxy's `minSyncPeriod`): clients that
/// are disconnected at once reach the successor no sooner than those that are now.
const SERVES_ON: u64 = 400;
/// For so long it does until a checkpoint has ended, in milliseconds: of the 60 s that a pod has, stopping may take 29 more.
const CHECKPOINT: u64 = 5_000;

/// Asks PostgreSQL to stop, harder when it takes too long. `None` while there is nothing to do but wait.
pub(super) fn stop(context: &Context, draft: &mut Draft, because: impl Into<Cow<'static, str>>) -> Option<Verdict> {
    let now = context.now;
    let (stop, patience) = match draft.memo.stopping {
        None => (Stop::Fast, PATIENCE),
        Some(Stopping { stop, since }) => {
            let (next, patience) = match stop {
                Stop::Fast => (Stop::Immediate, PATIENCE),
                Stop::Immediate | Stop::Kill => (Stop::Kill, QUIT_PATIENCE),
            };
            if now < since.plus(patience) {
                draft.wake(since.plus(patience));
                return None;
            }
            (next, QUIT_PATIENCE)
        }
    };
    draft.memo.stopping = Some(Stopping { stop, since: now });
    draft.wake(now.plus(patience));
    Verdict::new(Action::Stop(stop), because)
}

/// PostgreSQL is stopping as planned, and has its time for that still.
pub(super) fn is_stopping_fast(context: &Context, memo: &Memo) -> bool {
    let fast = memo.stopping.filter(|stopping| stopping.stop == Stop::Fast);
    fast.is_some_and(|stopping| context.now < stopping.since.plus(PATIENCE))
}

/// As [`stop`]; a primary waits for standbys as far as somebody needs it.
pub(super) fn stop_primary(
    context: &Context,
    draft: &mut Draft,
    needs: &Needs,
    because: impl Into<Cow<'static, str>>,
) -> Option<Verdict> {
    stop(context, draft, because).or_else(|| senders::end(context, draft, needs))
}

/// The lease is to be handed back now: this instance stops on purpose, and nothing of PostgreSQL lives (rule 6 of design §2.4).
pub(super) fn may_release(context: &Context, draft: &Draft) -> bool {
    let ours = matches!(context.tenure(), Tenure::Held { .. } | Tenure::Lapsed);
    let stops = why(context).is_some() || draft.memo.handing_over.is_some();
    ours && stops && !context.alive()
}

/// Hands the lease over to the member that is to have it (a switchover): stops first, so that what is measured is final,
/// then releases with the position that the successor must have. If nobody takes it, this member takes it back.
pub(super) fn hand_over(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    if draft.memo.handing_over.is_none() {
        let target = handover::target(context, draft)?;
        if !checkpoint::is_made(context) {
            return checkpoint::make(context, "to hand the lease over");
        }
        if !handover::is_seen(context) {
            return None;
        }
        draft.memo.handing_over = Some(target);
        draft.memo.handed_over = Some(context.now);
        if let Some(wish) = &mut draft.memo.wished {
            wish.tries = wish.tries.saturating_add(1);
        }
    }
    let successor = draft.memo.handing_over.clone()?;
    if context.alive() {
        let because = format!("the lease is handed over to {successor}");
        let needs = Needs::of(context, Some(&successor));
        return stop_primary(context, draft, &needs, because)
            .or_else(|| Verdict::wait("PostgreSQL is stopping, to hand over"));
    }
    lease_rules::release(context, draft, Some(successor)).or_else(|| Verdict::wait("the lease is being handed over"))
}

/// Why this instance is to stop, if it is.
fn why(context: &Context) -> Option<&'static str> {
    if context.observed.terminating {
        Some("the container is asked to end")
    } else if context.stop_intended() {
        Some("all instances are to stop")
    } else if context.fenced() {
        Some("spec.fenced names this instance")
    } else {
        None
    }
}

/// Stops, releases, and ends (or, when all instances are to stop, stays idle; or goes on as a fenced one).
pub(super) fn shut_down(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let why = why(context)?;
    let terminating = context.observed.terminating;
    // Elected, and not promoted: what it has is left to the others before it stops.
    let unpromoted = context.held().is_some() && context.final_position().is_some();
    let heir = || handover::heir(context).filter(|_| terminating && !context.stop_intended());
    if unpromoted && let Some(verdict) = lease_rules::release(context, draft, heir()) {
        return Some(verdict);
    }
    if context.alive() {
        let stays = !terminating && !context.fenced() && context.running() == Some(Mode::Standby);
        if stays && !may_standby_stop(context, draft) {
            // Goes on as before, and still reports.
            return None;
        }
        let heir = handover::heir(context).filter(|_| !context.stop_intended());
        if terminating && heir.is_some() && serves_on(context, draft) {
            return match checkpoint::is_made(context) {
                true => None,
                false => checkpoint::make(context, "to leave the lease to another member"),
            };
        }
        let needs = Needs::of(context, heir.as_ref());
        return stop_primary(context, draft, &needs, why).or_else(|| Verdict::wait("PostgreSQL is stopping"));
    }
    if may_release(context, draft) {
        let heir = heir();
        let left = heir.is_some().then_some(context.now);
        if let Some(verdict) = lease_rules::release(context, draft, heir) {
            draft.memo.left = left;
            return Some(verdict);
        }
        let since = draft
            .memo
            .terminating_since
            .unwrap_or(context.now)
            .max(draft.memo.last_exit.unwrap_or_default());
        let patience = since.plus(RELEASE_PATIENCE);
        if !terminating || context.now < patience {
            draft.wake(patience);
            return Verdict::wait("the lease is being handed back");
        }
    }
    if terminating && is_succeeded(context, draft) {
        return Verdict::new(Action::Exit, why);
    }
    if terminating {
        return Verdict::wait("clients are refused here, until they are led to the successor");
    }
    if !context.stop_intended() {
        return None;
    }
    Verdict::wait("all instances are to stop, and this one has")
}

/// The stop is not to begin yet: until then everything goes on as before.
fn serves_on(context: &Context, draft: &mut Draft) -> bool {
    let since = draft.memo.terminating_since.filter(|_| draft.memo.stopping.is_none());
    let Some(since) = since.filter(|_| context.serving()) else {
        return false;
    };
    let made = checkpoint::is_made(context) || context.reached(since.plus(CHECKPOINT), draft);
    !made || !context.reached(since.plus(SERVES_ON), draft)
}

/// Nobody is led here any more, or nobody is to succeed. With the container the pod's address goes: until the nodes' proxies know its
/// successor's, clients that connect would wait for an answer, instead of being refused and trying again at once.
fn is_succeeded(context: &Context, draft: &mut Draft) -> bool {
    let Some(left) = draft.memo.left else { return true };
    let taken = left.plus(SUCCESSION);
    let at = match context.tenure() {
        Tenure::Vacant => taken,
        Tenure::Other(_) => context.observed.lease.holder_since.min(taken).plus(ROUTES),
        Tenure::Held { .. } | Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Unknown => return true,
    };
    context.reached(at, draft)
}

/// Standbys stop after the primary, so that they have all that it wrote; or when it is not to be waited for.
fn may_standby_stop(context: &Context, draft: &mut Draft) -> bool {
    match context.tenure() {
        Tenure::Other(_) => context
            .expires_at()
            .is_some_and(|expiry| context.reached(expiry, draft)),
        Tenure::Held { .. } | Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Vacant | Tenure::Unknown => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::{ROUTES, SUCCESSION};
    use crate::protocol::{Lsn, MemberState, Position, Timeline};
    use crate::timing::BootTime;

    fn decided(observed: &Observed, now: u64) -> Decision {
        decide(observed, &settled(), BootTime(now))
    }

    #[test]
    fn a_primary_stops_fast_then_releases_with_its_position_then_ends() {
        let mut observed = primary();
        observed.terminating = true;
        observed.peers.clear();
        assert_eq!(decided(&observed, 1_200).action, Action::Stop(Stop::Fast));
        observed.postgres = stopped();
        observed.postgres.process = Process::Stopped {
            exit: Some(Exit {
                at: BootTime(1_300),
                ran: 9_000,
                asked: true,
            }),
        };
        volume(&mut observed).read = BootTime(1_250);
        assert_eq!(
            decided(&observed, 1_300).action,
            Action::Wait,
            "the control file was read before the stop"
        );
        volume(&mut observed).read = BootTime(1_300);
        match decided(&observed, 1_310).action {
            Action::WriteLease {
                content,
                purpose: Purpose::Release,
                ..
            } => {
                assert_eq!(content.holder, None);
                let release = content.release.unwrap();
                assert_eq!(
                    release.position,
                    Some(Position {
                        timeline: Timeline(1),
                        lsn: Lsn(0x100)
                    })
                );
                record(&mut observed).holder = None;
                record(&mut observed).release = Some(release);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(decided(&observed, 1_320).action, Action::Exit);
    }

    /// No Lease tells the history of such a timeline: others would compare their WAL with that of another branch.
    #[test]
    fn the_end_of_a_timeline_whose_promotion_was_not_seen_to_end_is_left_to_nobody() {
        let left = |promoting: Option<u32>, told: Option<u32>, inherited: Option<Position>| {
            let mut observed = primary();
            observed.terminating = true;
            observed.postgres = stopped();
            observed.tasks.lease.running = None;
            let database = data(&mut observed);
            (database.clean, database.timeline) = (true, Timeline(3));
            volume(&mut observed).promise.as_mut().unwrap().promoting = promoting.map(Timeline);
            record(&mut observed).holder.as_mut().unwrap().timeline = told.map(Timeline);
            let memo = Memo { inherited, ..settled() };
            match decide(&observed, &memo, BootTime(2_000)).action {
                Action::WriteLease { content, .. } => content.release.unwrap().position,
                other => panic!("{other:?}"),
            }
        };
        let timeline = |position: Option<Position>| position.map(|position| position.timeline.0);
        assert_eq!(timeline(left(None, None, None)), Some(3));
        assert_eq!(left(Some(3), None, None), None);
        assert_eq!(
            timeline(left(Some(2), None, None)),
            Some(3),
            "that was another promotion"
        );
        assert_eq!(timeline(left(Some(3), Some(3), None)), Some(3), "it has served since");
        let came = Position {
            timeline: Timeline(1),
            lsn: Lsn(0x100),
        };
        assert_eq!(
            left(Some(3), None, Some(came)),
            Some(came),
            "it has added nothing to that"
        );
    }

    #[test]
    fn a_primary_serves_on_while_clients_cannot_be_led_elsewhere() {
        const ASKED: u64 = 2_000;
        let observed = |now: u64, checkpoint: Option<u64>| {
            let mut observed = primary();
            observed.terminating = true;
            observed.tasks.lease.running = Some(Work::WriteLease);
            observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now);
            observed.peers.get_mut("orders-1").unwrap().heard = BootTime(now);
            match checkpoint {
                Some(ended) => observed.tasks.checkpoint.ended = BootTime(ended),
                None => observed.tasks.checkpoint.running = Some(Work::Checkpoint),
            }
            observed
        };
        let memo = Memo {
            terminating_since: Some(BootTime(ASKED)),
            ..settled()
        };
        let at = |observed: &Observed, now: u64| decide(observed, &memo, BootTime(now));
        let stops = |observed: &Observed, now: u64| at(observed, now).action == Action::Stop(Stop::Fast);
        let due = ASKED + super::SERVES_ON;
        let early = at(&observed(ASKED, Some(ASKED)), ASKED);
        assert_eq!((early.action, early.wake), (Action::Wait, Some(BootTime(due))));
        assert!(!stops(&observed(due - 1, Some(due - 1)), due - 1) && stops(&observed(due, Some(due)), due));
        // A checkpoint comes first, and is waited for, not without end.
        let now = ASKED + 20_000;
        let fresh = Memo {
            terminating_since: None,
            ..memo.clone()
        };
        let old = observed(now, Some(0));
        assert_eq!(decide(&old, &fresh, BootTime(now)).action, Action::Checkpoint);
        let late = ASKED + super::CHECKPOINT;
        assert!(!stops(&observed(late - 1, None), late - 1) && stops(&observed(late, None), late));
        // Nobody is disconnected later who would gain nothing by it, and a stop that has begun goes on.
        let spoil: [fn(&mut Observed); 4] = [
            |o| o.peers.clear(),
            |o| cluster(o).stop = true,
            |o| cluster(o).replicas = 1,
            |o| o.postgres.open = false,
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            let mut spoiled = observed(ASKED, Some(ASKED));
            spoil(&mut spoiled);
            assert!(stops(&spoiled, ASKED), "{index}");
        }
        let begun = Memo {
            stopping: Some(Stopping {
                stop: Stop::Fast,
                since: BootTime(ASKED),
            }),
            ..memo.clone()
        };
        let goes_on = decide(&observed(ASKED + 1, Some(ASKED)), &begun, BootTime(ASKED + 1));
        assert_eq!(goes_on.because, "PostgreSQL is stopping");
    }

    /// A primary that stops at SIGTERM has released the lease at 2 s, to a successor or to nobody in particular.
    fn released(heard: bool) -> (Observed, Memo) {
        let mut observed = primary();
        observed.terminating = true;
        observed.postgres = stopped();
        let peer = observed.peers.get_mut("orders-1").unwrap();
        peer.heard = BootTime(if heard { 1_900 } else { 0 });
        observed.tasks.lease.running = None;
        let decision = decide(&observed, &settled(), BootTime(2_000));
        let Action::WriteLease { content, .. } = decision.action else {
            panic!("{decision:?}")
        };
        record(&mut observed).holder = None;
        record(&mut observed).release = content.release;
        (observed.lease.confirmed, observed.lease.holder_since) = (None, BootTime(2_010));
        (observed, decision.memo)
    }

    #[test]
    fn who_has_handed_back_refuses_clients_until_they_are_led_to_the_successor() {
        let (mut observed, memo) = released(true);
        let action = |observed: &Observed, now: u64| decide(observed, &memo, BootTime(now)).action;
        let waits = decide(&observed, &memo, BootTime(2_020));
        assert_eq!(waits.action, Action::Wait);
        assert_eq!((waits.wake, waits.dead_man), (Some(BootTime(2_000 + SUCCESSION)), None));
        assert_eq!(action(&observed, 2_000 + SUCCESSION), Action::Exit, "nobody takes it");
        hold_by(&mut observed, other_holder(), 2);
        observed.lease.holder_since = BootTime(2_100);
        assert_eq!(action(&observed, 2_100 + ROUTES - 1), Action::Wait);
        assert_eq!(action(&observed, 2_100 + ROUTES), Action::Exit);
        // Another one after that, and another: it ends all the same.
        observed.lease.holder_since = BootTime(9_000);
        assert_eq!(action(&observed, 9_000), Action::Exit);
    }

    #[test]
    fn nobody_waits_for_a_successor_that_there_is_not() {
        let (observed, memo) = released(false);
        assert_eq!(decide(&observed, &memo, BootTime(2_020)).action, Action::Exit);
        let (mut unread, memo) = released(true);
        unread.lease.record = Reading::Unknown;
        assert_eq!(decide(&unread, &memo, BootTime(2_020)).action, Action::Exit);
        let (mut standby, _) = released(true);
        hold_by(&mut standby, other_holder(), 2);
        assert_eq!(
            decide(&standby, &settled(), BootTime(2_020)).action,
            Action::Exit,
            "it held nothing"
        );
    }

    /// Whom a primary whose container ends leaves the lease to, as far as it is heard.
    fn heir(change: impl FnOnce(&mut Observed)) -> Option<String> {
        let mut observed = primary();
        observed.terminating = true;
        observed.postgres = stopped();
        let first = observed.peers.get_mut("orders-1").unwrap();
        (first.heard, first.report.state) = (BootTime(3_000), MemberState::CatchingUp);
        first.position = Some(position());
        let mut second = first.clone();
        second.position = Some(Position {
            lsn: Lsn(position().lsn.0 - 1),
            ..position()
        });
        observed.peers.insert("orders-2".to_owned(), second);
        change(&mut observed);
        match decided(&observed, 3_500).action {
            Action::WriteLease {
                content,
                purpose: Purpose::Release,
                ..
            } => content.release.unwrap().successor,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_primary_that_ends_names_who_is_fit_best_to_take_over() {
        let (best, other) = (Some("orders-1".to_owned()), Some("orders-2".to_owned()));
        assert_eq!(heir(|_| ()), best);
        assert_eq!(heir(|o| cluster(o).primary = other.clone()), other);
        fn first(observed: &mut Observed) -> &mut Peer {
            observed.peers.get_mut("orders-1").unwrap()
        }
        let spoil: [fn(&mut Observed); 5] = [
            |o| first(o).heard = BootTime(3_500 - super::super::election::FRESH),
            |o| first(o).report.state = MemberState::Cloning,
            |o| first(o).report.fault = Some("its disk is full".to_owned()),
            |o| {
                // Both have more, and it has a quarter of a second's replay before it.
                for peer in o.peers.values_mut() {
                    let end = &mut peer.position.as_mut().unwrap().lsn;
                    end.0 += 32 << 20;
                    peer.replayed = Some(*end);
                }
                first(o).replayed = Some(Lsn(0));
            },
            |o| cluster(o).fenced.extend(["orders-1".to_owned()]),
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            assert_eq!(heir(spoil), other, "{index}");
        }
        let wanted_replays = |o: &mut Observed| {
            spoil[3](o);
            cluster(o).primary = Some("orders-1".to_owned());
        };
        assert_eq!(heir(wanted_replays), other, "its promotion would wait for the replay");
        let wanted_lacks = |more: u64| {
            heir(|o| {
                first(o).position.as_mut().unwrap().lsn.0 += more;
                cluster(o).primary = Some("orders-2".to_owned());
            })
        };
        assert_eq!(wanted_lacks((16 << 20) - 1), other);
        assert_eq!(wanted_lacks(16 << 20), best, "it could not cover what is left");
        assert_eq!(heir(|o| cluster(o).replicas = 1), None);
        assert_eq!(heir(|o| o.peers.clear()), None);
        assert_eq!(heir(|o| cluster(o).stop = true), None, "all are to stop");
        let fenced = |o: &mut Observed| {
            o.terminating = false;
            cluster(o).fenced.extend(["orders-0".to_owned()]);
        };
        assert_eq!(heir(fenced), None);
    }

    #[test]
    fn no_position_is_claimed_after_a_stop_that_was_not_clean() {
        let mut observed = primary();
        observed.terminating = true;
        observed.postgres = stopped();
        match &mut volume(&mut observed).data {
            Data::Present(database) => database.clean = false,
            other => panic!("{other:?}"),
        }
        match decided(&observed, 1_300).action {
            Action::WriteLease { content, .. } => assert_eq!(content.release.unwrap().position, None),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_lease_is_released_while_a_process_lives() {
        let mut observed = primary();
        observed.terminating = true;
        observed.postgres = PostgresView { strays: 1, ..stopped() };
        assert_eq!(decided(&observed, 1_300).action, Action::Stop(Stop::Kill));
    }

    #[test]
    fn a_stop_that_hangs_becomes_harder_while_the_lease_goes_on() {
        let mut observed = primary();
        observed.terminating = true;
        observed.peers.clear();
        let first = decided(&observed, 1_200);
        let renewal = decide(&observed, &first.memo, BootTime(3_100));
        assert_eq!(renewal.rule, "renew");
        observed.lease.confirmed.as_mut().unwrap().sent = BootTime(21_100);
        observed.tasks.lease.running = Some(Work::WriteLease);
        let second = decide(&observed, &first.memo, BootTime(21_200));
        assert_eq!(second.action, Action::Stop(Stop::Immediate));
    }

    #[test]
    fn a_planned_stop_has_its_time_though_others_could_take_over() {
        let at = |now: u64| {
            let mut observed = primary();
            observed.terminating = true;
            observed.tasks.lease.running = Some(Work::WriteLease);
            observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now - 100);
            observed.peers.get_mut("orders-1").unwrap().heard = BootTime(now - 100);
            (observed.postgres.answer, observed.postgres.wrote) = (None, Some(BootTime(1_100)));
            observed
        };
        let mut memo = decided(&primary(), 1_100).memo;
        for now in (1_200..1_200 + super::PATIENCE).step_by(900) {
            let decision = decide(&at(now), &memo, BootTime(now));
            let stops = matches!(decision.action, Action::Stop(_));
            assert_eq!((stops, decision.memo.gives_way), (now == 1_200, None), "at {now}");
            memo = decision.memo;
        }
        let late = 1_200 + super::PATIENCE;
        let decision = decide(&at(late), &memo, BootTime(late));
        assert_eq!(
            (decision.rule, decision.action),
            ("give way", Action::Stop(Stop::Immediate))
        );
    }

    #[test]
    fn without_an_api_server_the_agent_still_ends() {
        let mut observed = primary();
        observed.terminating = true;
        observed.postgres = stopped();
        observed.tasks.lease.running = Some(Work::WriteLease);
        let memo = Memo {
            terminating_since: Some(BootTime(1_000)),
            ..settled()
        };
        assert_eq!(decide(&observed, &memo, BootTime(3_999)).action, Action::Wait);
        assert_eq!(decide(&observed, &memo, BootTime(4_000)).action, Action::Exit);
    }

    #[test]
    fn a_standby_that_is_asked_to_end_waits_for_no_primary() {
        let mut observed = standby();
        observed.terminating = true;
        cluster(&mut observed).stop = true;
        assert_eq!(decided(&observed, 1_200).action, Action::Stop(Stop::Fast));
    }

    #[test]
    fn after_a_long_stop_there_is_time_to_hand_the_lease_back() {
        let mut observed = primary();
        observed.terminating = true;
        observed.postgres = stopped();
        observed.tasks.lease.running = Some(Work::WriteLease);
        let memo = Memo {
            terminating_since: Some(BootTime(1_000)),
            last_exit: Some(BootTime(20_000)),
            ..settled()
        };
        let at = |now| decide(&observed, &memo, BootTime(now)).action;
        let end = 20_000 + super::RELEASE_PATIENCE;
        assert_eq!((at(end - 1), at(end)), (Action::Wait, Action::Exit));
    }

    #[test]
    fn standbys_stop_after_the_primary_and_stay() {
        let mut observed = standby();
        cluster(&mut observed).stop = true;
        assert_ne!(decided(&observed, 1_200).rule, "shut down");
        record(&mut observed).holder = None;
        assert_eq!(decided(&observed, 1_200).action, Action::Stop(Stop::Fast));
        observed.postgres = stopped();
        assert_eq!(decided(&observed, 1_200).action, Action::Wait);
    }
}
