//! PostgreSQL ended by itself: what is left of it is killed, and it is started again, soon at first.

use super::context::Context;
use super::{Action, Draft, Memo, Observed, Process, Stop, Stopping, Verdict};
use crate::protocol::FAULT_ENDS;

/// A PostgreSQL that ran this long (in milliseconds) before it ended starts a new count.
const STABLE: u64 = 60_000;
/// Distance between the second and the third start, in milliseconds; doubles. The first restart is immediate: one crash
/// says nothing about the next, and every millisecond is an outage.
const FIRST_BACKOFF: u64 = 200;
/// Longest distance, in milliseconds.
const LONGEST_BACKOFF: u64 = 10_000;
/// Distance between repeated kills, in milliseconds.
const KILL_AGAIN: u64 = 100;
/// Longest wait between failed starts, in milliseconds.
const START_RETRY: u64 = 5_000;
/// So many ends in a row are reported as a fault.
const MANY: u32 = 3;

/// Counts an end of PostgreSQL that is not counted yet.
pub(super) fn count(observed: &Observed, mut memo: Memo) -> Memo {
    let Process::Stopped { exit: Some(exit) } = observed.postgres.process else {
        return memo;
    };
    if memo.last_exit == Some(exit.at) {
        return memo;
    }
    memo.last_exit = Some(exit.at);
    memo.crashes = match (exit.asked, exit.ran >= STABLE) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => memo.crashes.saturating_add(1),
    };
    memo
}

/// Kills PostgreSQL processes that have outlived their postmaster: they may still write, and hold the shared memory.
pub(super) fn kill_strays(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let orphaned = context.running().is_none() && context.starting().is_none() && context.observed.postgres.strays > 0;
    if !orphaned {
        return None;
    }
    if let Some(stopping) = draft.memo.stopping.filter(|stopping| stopping.stop == Stop::Kill) {
        let next = stopping.since.plus(KILL_AGAIN);
        if !context.reached(next, draft) {
            return None;
        }
    }
    draft.memo.stopping = Some(Stopping {
        stop: Stop::Kill,
        since: context.now,
    });
    draft.wake(context.now.plus(KILL_AGAIN));
    Verdict::new(
        Action::Stop(Stop::Kill),
        "PostgreSQL processes have outlived their postmaster",
    )
}

/// PostgreSQL may be started now.
pub(super) fn may_start(context: &Context, draft: &mut Draft) -> bool {
    if !context.at_rest() || !context.knows_data() {
        return false;
    }
    let Some(free) = context.tasks().start.free_at(START_RETRY) else {
        return false;
    };
    let backoff = match draft.memo.crashes {
        0 | 1 => 0,
        crashes => (FIRST_BACKOFF << (crashes - 2).min(16)).min(LONGEST_BACKOFF),
    };
    let at = draft.memo.last_exit.map_or(free, |exit| free.max(exit.plus(backoff)));
    context.reached(at, draft)
}

/// PostgreSQL does not stay up, in words; until it has stayed up for some time.
pub(super) fn fault(context: &Context, memo: &Memo) -> Option<String> {
    let stays = memo
        .last_exit
        .is_none_or(|exit| context.now >= exit.plus(STABLE) && context.running().is_some());
    (memo.crashes >= MANY && !stays)
        .then(|| format!("{FAULT_ENDS} {} times in a row, soon after its start", memo.crashes))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use crate::timing::BootTime;

    fn crashed(at: u64, ran: u64) -> Observed {
        let mut observed = primary();
        observed.postgres.process = Process::Stopped {
            exit: Some(Exit {
                at: BootTime(at),
                ran,
                asked: false,
            }),
        };
        observed.postgres.answer = None;
        volume(&mut observed).read = BootTime(at);
        observed.tasks.lease.running = Some(Work::WriteLease);
        observed
    }

    #[test]
    fn a_postmaster_that_runs_looks_after_what_is_left_of_one_before() {
        let mut observed = primary();
        observed.postgres.strays = 3;
        assert_ne!(decide(&observed, &settled(), BootTime(1_200)).rule, "kill strays");
    }

    #[test]
    fn a_killed_postmaster_is_restarted_at_once_when_its_children_are_gone() {
        let mut observed = crashed(1_500, 90_000);
        observed.postgres.strays = 3;
        let killed = decide(&observed, &Memo::default(), BootTime(1_500));
        assert_eq!(killed.action, Action::Stop(Stop::Kill));
        assert_eq!(decide(&observed, &killed.memo, BootTime(1_510)).action, Action::Wait);
        observed.postgres.strays = 0;
        let started = decide(&observed, &killed.memo, BootTime(1_510));
        assert!(matches!(started.action, Action::StartPrimary { .. }), "{started:?}");
    }

    #[test]
    fn strays_are_killed_whatever_works_on_the_volume() {
        let mut observed = crashed(1_500, 90_000);
        observed.postgres.strays = 1;
        observed.tasks.volume.running = Some(Work::StoreCertificate);
        let decision = decide(&observed, &Memo::default(), BootTime(1_500));
        assert_eq!(decision.action, Action::Stop(Stop::Kill));
    }

    #[test]
    fn repeated_crashes_are_spaced_out() {
        let mut memo = Memo::default();
        let waits: Vec<u64> = (1..=9)
            .map(|crash| {
                let at = crash * 20_000;
                let mut observed = crashed(at, 100);
                observed.lease.confirmed = Some(Confirmed {
                    sent: BootTime(at),
                    ..observed.lease.confirmed.unwrap()
                });
                let decision = decide(&observed, &memo, BootTime(at));
                memo = decision.memo;
                match decision.action {
                    Action::StartPrimary { .. } => 0,
                    _ => decision.wake.unwrap().since(BootTime(at)),
                }
            })
            .collect();
        assert_eq!(waits[..5], [0, 200, 400, 800, 1_600]);
        assert!(waits[5..].iter().all(|wait| *wait <= 10_000));
    }

    #[test]
    fn ends_in_a_row_are_a_fault_until_postgresql_has_stayed_up() {
        let fault = |after: u64, runs: bool| {
            let now = BootTime(1_500 + after);
            let mut observed = crashed(1_500, 100);
            if runs {
                observed.postgres.process = Process::Running { mode: Mode::Primary };
            }
            let memo = Memo {
                crashes: 3,
                last_exit: Some(BootTime(1_500)),
                ..Memo::default()
            };
            report::status(&observed, &memo, now).unwrap().report.fault.is_some()
        };
        let stable = super::STABLE;
        assert_eq!((fault(stable - 1, true), fault(stable, true)), (true, false));
        assert!(fault(stable, false), "it does not come up");
    }

    #[test]
    fn each_end_counts_once_and_a_long_run_begins_a_new_count() {
        let before = Memo {
            crashes: 2,
            ..Memo::default()
        };
        let short = crashed(1_500, super::STABLE - 1);
        let first = decide(&short, &before, BootTime(1_500)).memo;
        let again = decide(&short, &first, BootTime(1_600)).memo;
        assert_eq!((first.crashes, again.crashes), (3, 3));
        let long = crashed(1_500, super::STABLE);
        assert_eq!(decide(&long, &before, BootTime(1_500)).memo.crashes, 1);
        let many = Memo {
            crashes: 1_000,
            ..Memo::default()
        };
        assert!(decide(&short, &many, BootTime(1_500)).wake.unwrap() <= BootTime(1_500 + super::LONGEST_BACKOFF));
    }

    #[test]
    fn what_a_fast_stop_leaves_over_is_killed_at_once() {
        let mut observed = crashed(1_500, 90_000);
        observed.postgres.strays = 3;
        let memo = Memo {
            stopping: Some(Stopping {
                stop: Stop::Fast,
                since: BootTime(1_490),
            }),
            ..Memo::default()
        };
        let decision = decide(&observed, &memo, BootTime(1_500));
        assert_eq!(decision.action, Action::Stop(Stop::Kill));
    }

    #[test]
    fn a_start_that_failed_is_not_tried_again_at_once() {
        let mut observed = crashed(1_000, 90_000);
        (observed.tasks.start.failures, observed.tasks.start.ended) = (1, BootTime(1_500));
        let decision = decide(&observed, &Memo::default(), BootTime(1_500));
        assert!(!matches!(decision.action, Action::StartPrimary { .. }), "{decision:?}");
        let later = decide(&observed, &decision.memo, BootTime(1_700));
        assert!(matches!(later.action, Action::StartPrimary { .. }), "{later:?}");
    }

    #[test]
    fn a_stop_that_was_asked_for_is_no_crash() {
        let mut observed = crashed(1_500, 100);
        observed.postgres.process = Process::Stopped {
            exit: Some(Exit {
                at: BootTime(1_500),
                ran: 100,
                asked: true,
            }),
        };
        let memo = Memo {
            crashes: 7,
            ..Memo::default()
        };
        let decision = decide(&observed, &memo, BootTime(1_500));
        assert!(matches!(decision.action, Action::StartPrimary { .. }));
        assert_eq!(decision.memo.crashes, 0);
    }
}
