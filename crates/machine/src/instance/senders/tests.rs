use super::super::fixtures::*;
use super::super::*;
use super::{AGAIN, KEEPS_UP};
use crate::instance::handover::LAG;
use crate::instance::stopping::LAST;
use crate::protocol::{Lsn, MemberId};

/// When the stop began.
const SINCE: u64 = 30_000;

/// A primary that should stop, with two standbys that have all WAL; `orders-1` has some more, by its report.
fn stopping() -> (Observed, Memo) {
    let mut observed = primary();
    observed.terminating = true;
    observed.lease.confirmed.as_mut().unwrap().sent = BootTime(SINCE);
    observed.tasks.lease.running = Some(Work::WriteLease);
    let lsn = Lsn(position().lsn.0 + LAG.0);
    own_position(&mut observed).lsn = lsn;
    let mut other = observed.peers["orders-1"].clone();
    other.report.member = third();
    observed
        .peers
        .get_mut("orders-1")
        .unwrap()
        .position
        .as_mut()
        .unwrap()
        .lsn = lsn;
    observed.peers.insert("orders-2".to_owned(), other);
    observed
        .peers
        .values_mut()
        .for_each(|peer| peer.heard = BootTime(SINCE));
    cluster(&mut observed).replicas = 3;
    for member in [first(), third()] {
        observed.postgres.receiving.insert(member.clone(), position().lsn);
        observed.postgres.standbys.insert(member, position().lsn);
    }
    let memo = Memo {
        stopping: Some(Stopping {
            stop: Stop::Fast,
            since: BootTime(SINCE),
        }),
        ..settled()
    };
    (observed, memo)
}

fn first() -> MemberId {
    primary().peers["orders-1"].report.member.clone()
}

/// The members whose WAL senders are left when the others are ended.
fn kept(observed: &Observed, memo: &Memo, after: u64) -> Option<Vec<MemberId>> {
    let now = SINCE + after;
    let mut observed = observed.clone();
    observed.peers.values_mut().for_each(|peer| peer.heard = BootTime(now));
    observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now);
    match decide(&observed, memo, BootTime(now)).action {
        Action::EndSenders { keep } => Some(keep.into_iter().collect()),
        Action::Wait => None,
        other => panic!("{other:?}"),
    }
}

fn lags(observed: &mut Observed, member: &MemberId) {
    let lsn = Lsn(position().lsn.0 - 1);
    observed.postgres.standbys.insert(member.clone(), lsn);
}

#[test]
fn a_stop_waits_long_only_for_the_successor() {
    let (observed, memo) = stopping();
    assert_eq!(kept(&observed, &memo, 0), None, "all keep up");
    let waits = decide(&observed, &memo, BootTime(SINCE));
    assert_eq!(waits.wake, Some(BootTime(SINCE).plus(KEEPS_UP)));
    assert_eq!(kept(&observed, &memo, KEEPS_UP.0 - 1), None);
    assert_eq!(kept(&observed, &memo, KEEPS_UP.0), Some(vec![first()]));
    assert_eq!(kept(&observed, &memo, LAST.0), Some(vec![]), "an unclean stop is worse");
    let harder = Memo {
        stopping: memo.stopping.map(|stopping| Stopping {
            stop: Stop::Immediate,
            ..stopping
        }),
        ..memo
    };
    assert_eq!(kept(&observed, &harder, KEEPS_UP.0), None, "it ends without them");
}

#[test]
fn a_stop_does_not_wait_for_a_standby_that_is_far_behind_unless_it_takes_over() {
    let (mut observed, memo) = stopping();
    lags(&mut observed, &third());
    assert_eq!(kept(&observed, &memo, 0), Some(vec![first()]));
    observed.postgres.standbys.remove(&third());
    assert_eq!(kept(&observed, &memo, 0), Some(vec![first()]), "it catches up");
    let (mut observed, memo) = stopping();
    lags(&mut observed, &first());
    assert_eq!(kept(&observed, &memo, 0), None);
}

#[test]
fn the_successor_stays_the_same_once_other_wal_senders_were_ended() {
    let (mut observed, memo) = stopping();
    lags(&mut observed, &third());
    let ended = decide(&observed, &memo, BootTime(SINCE)).memo;
    assert_eq!(kept(&observed, &ended, AGAIN.0 - 1), None);
    assert_eq!(
        kept(&observed, &ended, AGAIN.0),
        Some(vec![first()]),
        "one signal may not be enough"
    );
    let more = observed.peers["orders-1"].position;
    observed.peers.get_mut("orders-1").unwrap().position = Some(position());
    observed.peers.get_mut("orders-2").unwrap().position = more;
    assert_eq!(kept(&observed, &ended, KEEPS_UP.0), Some(vec![first()]));
    assert_eq!(kept(&observed, &memo, KEEPS_UP.0), Some(vec![third()]));
}

#[test]
fn a_stop_waits_for_all_if_the_successor_is_not_known() {
    let spoil: [fn(&mut Observed); 2] = [|o| o.peers.clear(), |o| cluster(o).stop = true];
    for (index, spoil) in spoil.iter().enumerate() {
        let (mut observed, memo) = stopping();
        lags(&mut observed, &third());
        spoil(&mut observed);
        assert_eq!(kept(&observed, &memo, LAST.0 - 1), None, "{index}");
        assert_eq!(kept(&observed, &memo, LAST.0), Some(vec![]), "{index}");
    }
}

#[test]
fn a_restart_in_place_waits_long_for_no_standby() {
    let (mut observed, memo) = stopping();
    observed.terminating = false;
    observed.tasks.admit.running = Some(Work::Admit);
    observed.postgres.answer.as_mut().unwrap().pending_restart = true;
    cluster(&mut observed).restart = Some(api::status::RestartPermit {
        pod: observed.own.pod.clone(),
        pod_uid: observed.own.pod_uid.clone(),
        settings: SETTINGS.to_owned(),
    });
    let memo = Memo {
        restarted_for: Some(SETTINGS.to_owned()),
        ..memo
    };
    let ends = |after: u64| decide(&observed, &memo, BootTime(SINCE + after)).action;
    assert!(!matches!(ends(KEEPS_UP.0 - 1), Action::EndSenders { .. }));
    assert_eq!(ends(KEEPS_UP.0), Action::EndSenders { keep: [].into() });
}
