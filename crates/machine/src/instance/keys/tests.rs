use super::super::fixtures::*;
use super::super::members::SILENT;
use super::super::*;
use super::*;
use crate::protocol::{Epoch, FailsafeReply, FailsafeRequest, PromiseReply, PromiseRequest, ReportReply};
use crate::timing::BootTime;

const NOW: BootTime = BootTime(1_200);
const KEY: &str = "key-1";

fn one() -> MemberId {
    primary().peers["orders-1"].report.member.clone()
}

/// `orders-1` reports to the primary.
fn reports(
    observed: &mut Observed,
    proven: Proven,
    change: impl FnOnce(&mut MemberReport),
) -> Result<ReportReply, String> {
    let mut request = report_request();
    change(&mut request.report);
    heard::report(observed, &settled(), NOW, request, proven)
}

fn promise(member: &MemberId) -> PromiseReply {
    PromiseReply {
        member: member.clone(),
        promised: Epoch(2),
        suspects: true,
        position: Some(position()),
    }
}

/// Checks that only [`KEY`] is accepted, and that nothing is remembered of any other message.
fn only_its_key_counts<T: std::fmt::Debug>(
    observed: &Observed,
    mut says: impl FnMut(&mut Observed, Proven) -> Result<T, String>,
) {
    for proven in [None, Some("key"), Some("")] {
        let mut told = observed.clone();
        let refused = says(&mut told, proven).unwrap_err();
        assert!(refused.contains("signed"), "{refused}");
        assert_eq!(told, *observed, "nothing is remembered: {proven:?}");
    }
    let mut told = observed.clone();
    says(&mut told, Some(KEY)).unwrap();
}

#[test]
fn a_message_counts_only_with_the_key_of_the_member_that_it_names() {
    only_its_key_counts(&primary(), |observed, proven| reports(observed, proven, |_| {}));
    only_its_key_counts(&primary(), |observed, proven| {
        heard::answer(observed, "orders-1".to_owned(), promise(&one()), proven, NOW)
    });
    only_its_key_counts(&primary(), |observed, proven| {
        let reply = FailsafeReply {
            member: one(),
            epoch: Epoch(1),
        };
        heard::leaves_lease(observed, "orders-1".to_owned(), reply, proven, NOW)
    });
    only_its_key_counts(&standby(), |observed, proven| {
        let request = FailsafeRequest {
            epoch: Epoch(1),
            pod: "orders-1".to_owned(),
            lease: "lease".to_owned(),
        };
        heard::holder(observed, NOW, &request, proven)
    });
    only_its_key_counts(&standby(), |observed, proven| {
        let request = PromiseRequest {
            epoch: Epoch(2),
            pod: "orders-1".to_owned(),
            lease: "lease".to_owned(),
        };
        heard::candidate(observed, &request, proven, NOW)
    });
    only_its_key_counts(&standby(), |observed, proven| {
        heard::check_answer(heard::holders_key(observed, NOW).as_deref(), proven)
    });
}

#[test]
fn a_new_member_proves_the_key_that_it_reports_and_keeps_it() {
    let new = MemberId::new(1, "cccc", 9);
    let mut observed = primary();
    let says = |observed: &mut Observed, key: &str, proven: Proven| {
        let (new, key) = (new.clone(), key.to_owned());
        reports(observed, proven, |report| {
            (report.member, report.public_key) = (new, Some(key))
        })
    };
    for proven in [None, Some(KEY)] {
        says(&mut observed, "new", proven).unwrap_err();
    }
    says(&mut observed, "new", Some("new")).unwrap();
    assert_eq!(observed.peers["orders-1"].report.member, new);
    says(&mut observed, "other", Some("other")).unwrap_err();
    says(&mut observed, "new", Some("new")).unwrap();
}

#[test]
fn a_pod_whose_certified_member_is_heard_reports_as_no_other() {
    let new = MemberId::new(1, "cccc", 9);
    let now = 6_200;
    let says = |certified: bool, heard: u64, holding_since: u64| {
        let mut observed = primary();
        if certified {
            certify(&mut observed, &one());
        }
        observed.peers.get_mut("orders-1").unwrap().heard = BootTime(heard);
        observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now);
        let memo = Memo {
            holding_since: Some(BootTime(holding_since)),
            ..settled()
        };
        let mut request = report_request();
        (request.report.member, request.report.public_key) = (new.clone(), Some("new".to_owned()));
        heard::report(&mut observed, &memo, BootTime(now), request, Some("new")).is_ok()
    };
    let silent = now - SILENT.0;
    assert!(!says(true, silent + 1, 0));
    assert!(says(true, silent, 0), "its volume may have been replaced");
    assert!(!says(true, silent, silent + 1), "a new holder has not heard it yet");
    assert!(
        says(false, silent + 1, 0),
        "the operator has not certified the one before"
    );
}

fn certify(observed: &mut Observed, member: &MemberId) {
    let certified = CertifiedKey {
        member: member.clone(),
        key: KEY.to_owned(),
    };
    cluster(observed).certified.insert("orders-1".to_owned(), certified);
}

#[test]
fn a_certified_key_counts_before_the_leases_and_without_it() {
    let answers = |observed: &mut Observed, proven| {
        heard::answer(observed, "orders-1".to_owned(), promise(&one()), proven, NOW).is_ok()
    };
    let mut observed = standby();
    record(&mut observed).members.clear();
    assert!(!answers(&mut observed, Some(KEY)), "its key is not known");
    certify(&mut observed, &one());
    assert!(answers(&mut observed, Some(KEY)));
    let mut observed = standby();
    record(&mut observed).members.get_mut("orders-1").unwrap().public_key = Some("planted".to_owned());
    assert!(answers(&mut observed, Some("planted")));
    certify(&mut observed, &one());
    assert!(!answers(&mut observed, Some("planted")) && answers(&mut observed, Some(KEY)));
}
