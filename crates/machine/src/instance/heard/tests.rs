use super::super::fixtures::*;
use super::super::*;
use super::*;
use crate::protocol::{Lsn, Position, REACH};

const NOW: BootTime = BootTime(1_200);

/// `orders-1` reports to the primary.
fn reports(observed: &mut Observed, change: impl FnOnce(&mut ReportRequest)) -> Result<ReportReply, String> {
    let mut request = report_request();
    change(&mut request);
    super::report(observed, &settled(), NOW, request, Some("key-1"))
}

fn at(timeline: u32) -> Option<Position> {
    Some(Position {
        timeline: Timeline(timeline),
        lsn: Lsn(u64::MAX),
    })
}

#[test]
fn a_promise_in_reach_is_adopted_and_one_beyond_it_is_refused() {
    let highest = 1 + u64::from(REACH);
    for promised in [0, 2, highest] {
        let mut observed = primary();
        reports(&mut observed, |request| request.promised = Epoch(promised)).unwrap();
        assert_eq!(observed.peers["orders-1"].promised, Epoch(promised));
        let written = match decide(&observed, &settled(), NOW).action {
            Action::WriteLease { content, .. } => content.epoch,
            _ => Epoch(1),
        };
        assert_eq!(written, Epoch(promised.max(1)), "protocol.md rule 7");
    }
    for promised in [highest + 1, Epoch::MAX.0, u64::MAX] {
        let mut observed = primary();
        let refused = reports(&mut observed, |request| request.promised = Epoch(promised)).unwrap_err();
        assert!(refused.starts_with("promised: "), "{refused}");
        assert_eq!(observed, primary(), "nothing is remembered");
    }
}

#[test]
fn a_position_on_a_timeline_out_of_reach_is_refused() {
    let newest = 1 + REACH;
    for (timeline, fine) in [
        (0, true),
        (1, true),
        (newest, true),
        (newest + 1, false),
        (u32::MAX, false),
    ] {
        let mut observed = primary();
        let answer = reports(&mut observed, |request| request.position = at(timeline));
        assert_eq!(answer.is_ok(), fine, "{timeline}");
        if let Err(refused) = answer {
            assert!(refused.starts_with("position.timeline: "), "{refused}");
            assert_eq!(observed, primary(), "nothing is remembered");
        }
    }
    let mut observed = primary();
    record(&mut observed).timeline = Some(Timeline(7_000));
    reports(&mut observed, |request| request.position = at(7_001)).unwrap();
}

#[test]
fn a_candidate_for_an_epoch_out_of_reach_is_refused_and_leaves_nothing() {
    let mut observed = silenced();
    let request = |epoch, lease: &str| PromiseRequest {
        epoch: Epoch(epoch),
        pod: "orders-2".to_owned(),
        lease: lease.to_owned(),
    };
    let asks = |observed: &mut Observed, request: &PromiseRequest| {
        candidate(observed, request, Some("key-2"), BootTime(SILENT)).unwrap();
    };
    for epoch in [2 + u64::from(REACH), Epoch::MAX.0, u64::MAX] {
        asks(&mut observed, &request(epoch, "lease"));
        let refused = election::answer(&observed, BootTime(SILENT), &request(epoch, "lease")).unwrap_err();
        assert!(refused.starts_with("epoch: "), "{refused}");
    }
    asks(&mut observed, &request(2, "another"));
    assert_eq!(observed, silenced());
    asks(&mut observed, &request(3, "lease"));
    asks(&mut observed, &request(2, "lease"));
    assert_eq!(observed.asked_for, Some(Epoch(3)));
}

#[test]
fn a_pod_that_is_not_wanted_is_forgotten_when_it_is_not_heard() {
    let mut observed = primary();
    let mut gone = observed.peers["orders-1"].clone();
    gone.heard = BootTime(0);
    for pod in ["orders-3", "orders-8", "x", "orders-4294967295"] {
        observed.peers.insert(pod.to_owned(), gone.clone());
    }
    let later = BootTime(10_000);
    let request = report_request();
    observed.lease.confirmed.as_mut().unwrap().sent = later;
    super::report(&mut observed, &settled(), later, request, Some("key-1")).unwrap();
    assert_eq!(observed.peers.keys().collect::<Vec<_>>(), ["orders-1"]);
}
