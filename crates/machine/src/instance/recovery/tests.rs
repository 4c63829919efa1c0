use proptest::prelude::*;

use super::super::fixtures::*;
use super::super::*;
use super::*;
use crate::protocol::{Lsn, MemberState};
use crate::quorum::SyncRule;

const GB: u64 = 1_000_000_000;

#[test]
fn the_faster_way_is_taken() {
    let usual = Crashed {
        redo: Bytes(3 * GB),
        elapsed: Millis::ZERO,
        candidates: Some(Bytes::ZERO),
        stepped_down: false,
        writable: true,
    };
    let table = [
        (usual, true, "30 s"),
        (
            Crashed {
                redo: Bytes(GB / 2),
                ..usual
            },
            false,
            "an election may take 5 s",
        ),
        (
            Crashed {
                redo: Bytes(GB / 2 + REPLAYED),
                ..usual
            },
            true,
            "6 s",
        ),
        (
            Crashed {
                elapsed: Millis(24_999),
                ..usual
            },
            true,
            "6 s",
        ),
        (
            Crashed {
                elapsed: Millis(25_000),
                ..usual
            },
            false,
            "5 s",
        ),
        (
            Crashed {
                candidates: Some(Bytes(5 * GB / 2)),
                ..usual
            },
            false,
            "an election may take 30 s",
        ),
        (
            Crashed {
                candidates: Some(Bytes(2 * GB)),
                ..usual
            },
            true,
            "an election takes 25 s",
        ),
        (
            Crashed {
                candidates: None,
                ..usual
            },
            false,
            "no other member",
        ),
        (
            Crashed {
                stepped_down: true,
                ..usual
            },
            false,
            "stepped down before",
        ),
        (
            Crashed {
                writable: false,
                ..usual
            },
            false,
            "cannot be written",
        ),
        (
            Crashed {
                redo: Bytes::ZERO,
                ..usual
            },
            false,
            "0 MiB",
        ),
    ];
    for (crashed, steps_down, words) in table {
        let (gave, because) = match way(&crashed) {
            Way::StepDown(because) => (true, because),
            Way::InPlace(because) => (false, because),
        };
        assert_eq!(gave, steps_down, "{crashed:?}: {because}");
        assert!(because.contains(words), "{because:?} does not say {words:?}");
    }
}

proptest! {
    /// Without an electable member no holder steps down. More WAL to replay, or a shorter queue elsewhere, never keeps
    /// one from it that would.
    #[test]
    fn nobody_steps_down_for_nothing(
        redo in 0..100 * GB, elapsed in 0_u64..200_000, queue in prop::option::of(0..10 * GB), stepped_down: bool, writable: bool
    ) {
        let crashed = Crashed {
            redo: Bytes(redo), elapsed: Millis(elapsed), candidates: queue.map(Bytes), stepped_down, writable
        };
        if matches!(way(&crashed), Way::StepDown(_)) {
            prop_assert!(queue.is_some() && !stepped_down && writable);
            prop_assert!(redo / REPLAYED > elapsed + ELECTION.0);
            let worse = Crashed { redo: Bytes(redo * 2), candidates: queue.map(|queue| Bytes(queue / 2)), ..crashed };
            prop_assert!(matches!(way(&worse), Way::StepDown(_)));
        }
    }
}

/// `orders-0` held the lease, and its PostgreSQL was killed at 5 s; `orders-1` followed, and one standby must have each
/// commit.
fn crashed(redo: u64) -> Observed {
    let mut observed = primary();
    let exit = Exit {
        at: BootTime(5_000),
        ran: Millis(90_000),
        asked: false,
    };
    observed.postgres = PostgresView {
        process: Process::Stopped { exit: Some(exit) },
        ..stopped()
    };
    observed.lease.confirmed.as_mut().unwrap().sent = BootTime(5_000);
    record(&mut observed).rule = SyncRule::any(1, [other_holder().incarnation.member]);
    observed.peers.get_mut("orders-1").unwrap().heard = BootTime(5_000);
    volume(&mut observed).read = BootTime(5_010);
    let database = data(&mut observed);
    (database.clean, database.written) = (false, Lsn(database.redo.0 + redo));
    observed
}

fn data(observed: &mut Observed) -> &mut Database {
    match &mut volume(observed).data {
        Data::Present(database) => database,
        other => panic!("{other:?}"),
    }
}

fn decided(observed: &Observed, memo: &Memo, now: u64) -> Decision {
    decide(observed, memo, BootTime(now))
}

/// The decision while the Lease is being written, to record that the holder does not serve.
fn renewing(observed: &Observed, memo: &Memo, now: u64) -> Decision {
    let mut observed = observed.clone();
    observed.tasks.lease.running = Some(Work::WriteLease);
    decided(&observed, memo, now)
}

#[test]
fn only_a_holder_weighs_its_recovery() {
    let memo = Memo {
        unable_since: Some(BootTime(5_000)),
        ..settled()
    };
    let weighs = |observed: &Observed| of(&Context::new(observed, BootTime(5_020)), &memo).is_some();
    let mut observed = crashed(GB);
    assert!(weighs(&observed));
    observed.lease.confirmed = None;
    assert!(!weighs(&observed));
}

#[test]
fn a_short_recovery_runs_in_place_and_a_long_one_leads_to_a_step_down() {
    let short = renewing(&crashed(GB / 10), &settled(), 5_020);
    assert!(matches!(short.action, Action::StartPrimary { .. }), "{short:?}");
    assert!(short.because.contains("recovery replays 95 MiB"), "{}", short.because);
    let long = decided(&crashed(3 * GB), &settled(), 5_020);
    assert_eq!((long.rule, long.memo.steps_down), ("step-down", Some(Epoch(1))));
    assert!(long.because.contains("2861 MiB"), "{}", long.because);
    let Action::WriteLease { content, purpose, .. } = long.action else {
        panic!("no process lives: it is released at once")
    };
    assert_eq!((purpose, content.holder), (Purpose::Release, None));
    assert_eq!(
        content.release.unwrap().position,
        None,
        "where its WAL ends counts for nothing"
    );
}

#[test]
fn processes_that_outlived_the_postmaster_are_killed_before_the_lease_is_released() {
    let mut observed = crashed(3 * GB);
    observed.postgres.strays = 1;
    assert_eq!(decided(&observed, &settled(), 5_020).action, Action::Stop(Stop::Kill));
}

#[test]
fn a_running_recovery_ends_in_a_step_down_when_members_are_heard_again() {
    // A new container: the others' reports have not arrived yet.
    let mut observed = crashed(3 * GB);
    let peers = std::mem::take(&mut observed.peers);
    let begun = renewing(&observed, &settled(), 5_020);
    assert!(matches!(begun.action, Action::StartPrimary { .. }), "{begun:?}");
    observed.postgres.process = Process::Running { mode: Mode::Primary };
    observed.peers = peers;
    let heard = decided(&observed, &begun.memo, 5_900);
    assert_eq!((heard.rule, heard.action), ("step-down", Action::Stop(Stop::Immediate)));
    // The same with most of it done.
    observed.lease.confirmed.as_mut().unwrap().sent = BootTime(8_000);
    data(&mut observed).written = Lsn(8 * GB / 10);
    assert_ne!(decided(&observed, &begun.memo, 8_100).rule, "step-down");
}

/// The volume is not read while PostgreSQL runs. Its recovery no longer counts once the server has left it.
#[test]
fn a_server_that_has_recovered_does_not_step_down_for_what_it_had_to_replay() {
    let mut observed = crashed(3 * GB);
    observed.postgres.process = Process::Running { mode: Mode::Primary };
    assert_eq!(decided(&observed, &settled(), 5_900).rule, "step-down");
    observed.postgres.in_doubt = Some(Lsn(3 * GB));
    // It does not answer, for a moment or because it is shutting down.
    let silent = decided(&observed, &settled(), 5_900);
    assert_eq!((silent.rule == "step-down", silent.memo.steps_down), (false, None));
    observed.terminating = true;
    let ends = renewing(&observed, &settled(), 5_900);
    assert_eq!((ends.rule, ends.action), ("shut-down", Action::Stop(Stop::Fast)));
}

#[test]
fn no_holder_steps_down_without_need_or_without_a_successor() {
    let spoil: [fn(&mut Observed); 12] = [
        |o| data(o).primary = false,
        |o| data(o).system_id = "another".to_owned(),
        |o| o.peers.clear(),
        |o| o.peers.get_mut("orders-1").unwrap().heard = BootTime(0),
        |o| o.peers.get_mut("orders-1").unwrap().replayed = Some(Lsn(0)),
        |o| record(o).members.get_mut("orders-1").unwrap().state = MemberState::Cloning,
        |o| record(o).rule = SyncRule::any(1, [third()]),
        |o| record(o).rule = SyncRule::default(),
        |o| data(o).clean = true,
        |o| o.tasks.lease.failures = 1,
        |o| o.lease.confirmed.as_mut().unwrap().sent = BootTime(2_020),
        |o| cluster(o).stop = true,
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut observed = crashed(3 * GB);
        observed
            .peers
            .get_mut("orders-1")
            .unwrap()
            .position
            .as_mut()
            .unwrap()
            .lsn = Lsn(4 * GB);
        observed.peers.get_mut("orders-1").unwrap().replayed = Some(Lsn(4 * GB));
        assert!(decided(&observed, &settled(), 5_020).memo.steps_down.is_some());
        spoil(&mut observed);
        assert_eq!(decided(&observed, &settled(), 5_020).memo.steps_down, None, "{index}");
    }
}

/// Two members never step down in turn: an elected one has a standby's data until it serves, and one that took its
/// lease back because no other member did keeps it.
#[test]
fn the_lease_does_not_move_back_and_forth() {
    let mut elected = elected();
    data(&mut elected).written = Lsn(50 * GB);
    for running in [true, false] {
        if !running {
            elected.postgres = stopped();
        }
        let memo = Memo {
            unable_since: Some(BootTime(1_000)),
            ..settled()
        };
        assert_eq!(decided(&elected, &memo, 1_200).memo.steps_down, None);
    }
    let gave = decided(&crashed(3 * GB), &settled(), 5_020).memo;
    let mut again = crashed(3 * GB);
    hold_by(
        &mut again,
        primary().lease.record.is().unwrap().holder.clone().unwrap(),
        2,
    );
    again.lease.confirmed = Some(Confirmed {
        epoch: Epoch(2),
        sent: BootTime(9_500),
        timing: crate::timing::Timing::DEFAULT,
    });
    again.peers.get_mut("orders-1").unwrap().heard = BootTime(9_500);
    let mut memo = Memo {
        steps_down: None,
        unable_since: None,
        ..gave
    };
    let decision = renewing(&again, &memo, 9_600);
    assert!(matches!(decision.action, Action::StartPrimary { .. }), "{decision:?}");
    assert!(decision.because.contains("stepped down before"), "{}", decision.because);
    memo.stepped_down = None;
    assert_eq!(decided(&again, &memo, 9_600).rule, "step-down");
}
