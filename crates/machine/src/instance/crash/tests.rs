use super::super::fixtures::*;
use super::super::*;
use crate::timing::BootTime;
use crate::units::Millis;

fn crashed(at: u64, ran: u64) -> Observed {
    let mut observed = primary();
    observed.postgres.process = Process::Stopped {
        exit: Some(Exit {
            at: BootTime(at),
            ran: Millis(ran),
            asked: false,
        }),
    };
    observed.postgres.answer = None;
    volume(&mut observed).read = BootTime(at);
    observed.tasks.lease.running = Some(Work::WriteLease);
    observed
}

#[test]
fn a_running_postmaster_keeps_processes_of_the_one_before() {
    let mut observed = primary();
    observed.postgres.strays = 3;
    assert_ne!(decide(&observed, &settled(), BootTime(1_200)).rule, "kill-strays");
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
    let waits: Vec<Millis> = (1..=9)
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
                Action::StartPrimary { .. } => Millis::ZERO,
                _ => decision.wake.unwrap().since(BootTime(at)),
            }
        })
        .collect();
    assert_eq!(waits[..5], [0, 200, 400, 800, 1_600].map(Millis));
    assert!(waits[5..].iter().all(|wait| *wait <= Millis::seconds(10)));
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
    let stable = super::STABLE.0;
    assert_eq!((fault(stable - 1, true), fault(stable, true)), (true, false));
    assert!(fault(stable, false), "it does not come up");
}

#[test]
fn each_end_counts_once_and_a_long_run_begins_a_new_count() {
    let before = Memo {
        crashes: 2,
        ..Memo::default()
    };
    let short = crashed(1_500, super::STABLE.0 - 1);
    let first = decide(&short, &before, BootTime(1_500)).memo;
    let again = decide(&short, &first, BootTime(1_600)).memo;
    assert_eq!((first.crashes, again.crashes), (3, 3));
    let long = crashed(1_500, super::STABLE.0);
    assert_eq!(decide(&long, &before, BootTime(1_500)).memo.crashes, 1);
    let many = Memo {
        crashes: 1_000,
        ..Memo::default()
    };
    assert!(decide(&short, &many, BootTime(1_500)).wake.unwrap() <= BootTime(1_500).plus(super::LONGEST_BACKOFF));
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
            ran: Millis(100),
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
