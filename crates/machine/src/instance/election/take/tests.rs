use super::super::fixtures::*;
use super::super::suspicion::ALONE;
use super::*;
use crate::protocol::{Lsn, MemberReport, Timeline};
use crate::timing::{BootTime, Timing};

#[test]
fn after_a_lease_was_made_again_only_the_user_can_give_up_the_wal_of_missing_members() {
    let mut observed = made_again(asking(2));
    record(&mut observed).rule = member_rule(1, &[]);
    let memo = Memo {
        suspected: Some((Epoch(1), BootTime(1_000))),
        accepted_loss: Some((Epoch(1), BootTime(1_000))),
        ..settled()
    };
    let rule = |observed: &Observed, now: u64| decide(observed, &memo, BootTime(now)).rule;
    assert_eq!(rule(&observed, 600_000), "wait");
    cluster(&mut observed).accepted_loss = Some(Epoch(1));
    assert_eq!(rule(&observed, 1_001), "wait", "the missing may still answer");
    let Action::WriteLease { content, .. } = decide(&observed, &memo, BootTime(600_000)).action else {
        panic!("{:?}", decide(&observed, &memo, BootTime(600_000)))
    };
    assert_eq!(content.lossy, content.timeline, "commits may be lost");
    let mut more = answer_of_last_holder(0x101);
    more.at = BootTime(600_000);
    observed.promises.insert("orders-1".to_owned(), more);
    assert_eq!(rule(&observed, 600_000), "wait", "a member that answers has more");
}

#[test]
fn the_member_with_the_most_wal_wins_with_enough_promises() {
    let outcome = |third: Option<Promised>, now: u64| {
        let mut observed = asking(2);
        observed
            .promises
            .extend(third.map(|third| ("orders-2".to_owned(), third)));
        decided(&observed, now)
    };
    assert_eq!(outcome(None, SILENT).action, Action::Wait, "one of two is not enough");
    assert_eq!(
        outcome(Some(answer_of_third(1, Some(0x80))), SILENT).action,
        Action::Wait,
        "an old promise"
    );
    assert_eq!(
        outcome(Some(answer_of_third(2, None)), SILENT).action,
        Action::Wait,
        "no position"
    );
    assert_eq!(
        outcome(Some(answer_of_third(2, Some(0x180))), SILENT).action,
        Action::Wait,
        "it has more"
    );
    for lsn in [0x80, 0x100] {
        let decision = outcome(Some(answer_of_third(2, Some(lsn))), SILENT);
        let Action::WriteLease { content, purpose, .. } = &decision.action else {
            panic!("{decision:?}")
        };
        assert_eq!(
            (*purpose, content.epoch, content.timeline),
            (Purpose::Take, Epoch(2), Some(Timeline(2)))
        );
        assert_eq!(
            content.rule,
            SyncRule::any(1, [other_holder().incarnation.member, third()])
        );
        assert_eq!(content.version, "7");
    }
    assert_eq!(
        outcome(Some(answer_of_third(2, Some(0x80))), SILENT - 1).action,
        Action::Wait,
        "the primary is heard"
    );
}

/// How long after [`SILENT`], when it could be elected, this member takes the lease, and why.
fn takes_after(observed: &Observed) -> (Millis, String) {
    let first = decided(observed, SILENT);
    if first.rule == "win-election" {
        return (Millis::ZERO, first.because.into_owned());
    }
    let at = first.wake.expect("it is decided again");
    assert_eq!(decide(observed, &first.memo, BootTime(at.0 - 1)).rule, "wait");
    let then = decide(observed, &first.memo, at);
    assert_eq!(then.rule, "win-election");
    (at.since(BootTime(SILENT)), then.because.into_owned())
}

#[test]
fn among_members_with_equal_wal_the_preferred_one_has_a_round_to_take_the_lease() {
    let after = |lsn: u64, preferred: Option<&str>| {
        let mut observed = asking(2);
        "orders-2".clone_into(&mut observed.own.pod);
        let answer = answer_of_third(2, Some(lsn));
        observed.promises.insert("orders-0".to_owned(), answer);
        cluster(&mut observed).preferred = preferred.map(str::to_owned);
        takes_after(&observed)
    };
    let late = "orders-0, which has as much WAL and is preferred, did not take it within 100 ms";
    let table = [
        (0x100, Some("orders-0"), PAUSE, late),
        (0x100, Some("orders-2"), Millis::ZERO, "spec.primary.prefer names it"),
        (0x100, Some("orders-1"), Millis::ZERO, "none of them has more WAL"),
        (0x100, None, Millis::ZERO, "none of them has more WAL"),
        (0xFF, Some("orders-0"), Millis::ZERO, "none of them has more WAL"),
    ];
    for (lsn, preferred, wait, why) in table {
        let (waited, because) = after(lsn, preferred);
        assert_eq!(waited, wait, "{lsn}, {preferred:?}");
        assert!(because.contains(why), "{because}");
    }
}

#[test]
fn a_candidate_without_equals_does_not_wait() {
    let mut alone = asking(2);
    "orders-2".clone_into(&mut alone.own.pod);
    cluster(&mut alone).preferred = Some("orders-0".to_owned());
    let own = volume(&mut alone).member.clone().unwrap().id;
    record(&mut alone).rule = SyncRule::any(1, [own]);
    let since = SILENT + ALONE.0;
    assert_eq!(decided(&alone, since).rule, "win-election", "no other is asked");
    let mut silent = alone.clone();
    record(&mut silent).rule = SyncRule::any(2, record(&mut alone).rule.names.iter().cloned().chain([third()]));
    assert_eq!(
        decided(&silent, since).rule,
        "win-election",
        "the preferred one does not answer"
    );
    silent.promises.insert("orders-0".to_owned(), answer_of_third(2, None));
    assert_eq!(
        decided(&silent, since).rule,
        "win-election",
        "it does not report its position"
    );
    silent
        .promises
        .insert("orders-0".to_owned(), answer_of_third(1, Some(0x100)));
    assert_eq!(decided(&silent, since).rule, "win-election", "it has not promised");
    let mut named = vacant(Some(0x100), Some("orders-2"));
    "orders-2".clone_into(&mut named.own.pod);
    named
        .promises
        .insert("orders-0".to_owned(), answer_of_third(2, Some(0x100)));
    assert_eq!(decided(&named, SILENT).rule, "win-election", "it was handed over to");
}

#[test]
fn expiry_alone_elects_no_member_under_a_synchronous_rule() {
    let observed = asking(2);
    assert_eq!(decided(&observed, 10_000_000).action, Action::Wait);
}

#[test]
fn a_promise_of_another_epoch_does_not_count() {
    for epoch in [1, 3] {
        let mut observed = asking(epoch);
        third_answers(&mut observed, epoch, Some(0x80));
        assert!(!matches!(decided(&observed, SILENT).action, Action::WriteLease { .. }));
    }
}

#[test]
fn nothing_is_elected_by_a_lease_behind_the_status() {
    let mut observed = asking(2);
    third_answers(&mut observed, 2, Some(0x80));
    assert_eq!(decided(&observed, SILENT).rule, "win-election");
    cluster(&mut observed).epoch = Some(Epoch(2));
    assert_eq!(decided(&observed, SILENT).action, Action::Wait);
}

#[test]
fn without_a_rule_the_best_member_that_answers_is_elected_by_the_clock() {
    let mut observed = asking(2);
    record(&mut observed).rule = SyncRule::default();
    let expiry = Timing::DEFAULT.lease.0;
    let memo = Memo {
        suspected: Some((Epoch(1), BootTime(expiry))),
        ..settled()
    };
    let rule = |observed: &Observed, now: u64| decide(observed, &memo, BootTime(now)).rule;
    assert_eq!(decided(&observed, expiry - 1).action, Action::Wait);
    assert_eq!(rule(&observed, expiry), "wait", "the others may still answer");
    assert_eq!(rule(&observed, expiry + MUSTER.0), "win-election");
    third_answers(&mut observed, 2, Some(0x80));
    assert_eq!(rule(&observed, expiry), "win-election", "all have answered");
    third_answers(&mut observed, 2, Some(0x180));
    assert_eq!(rule(&observed, expiry + MUSTER.0), "wait", "another has more");
}

#[test]
fn a_large_loss_needs_the_users_consent() {
    let behind = |lacks: u64, release: bool| {
        let mut observed = asynchronous(if release { vacant(None, None) } else { asking(2) });
        let left = Position {
            timeline: Timeline(1),
            lsn: Lsn(0x100 + lacks),
        };
        let holder = other_holder().incarnation;
        let record = record(&mut observed);
        record.positions.insert(holder.pod.clone(), left);
        record.members.insert(
            holder.pod,
            MemberReport {
                member: holder.member,
                ..record.members["orders-2"].clone()
            },
        );
        observed
    };
    for release in [false, true] {
        assert!(elected_at(&behind(ASYNC_LOSS.0, release)).is_some(), "{release}");
        let waits = decided(&behind(ASYNC_LOSS.0, release), 1_000 + RETURN.0).because;
        assert!(!waits.contains("that member must come back"), "{waits}");
        let mut far = behind(ASYNC_LOSS.0 + 1, release);
        assert_eq!(elected_at(&far), None, "{release}");
        let waits = decided(&far, 1_000 + RETURN.0).because;
        assert!(
            waits.contains("lacks 16777217 bytes of it: that member must come back, or the user"),
            "{waits}"
        );
        cluster(&mut far).accepted_loss = Some(Epoch(1));
        let memo = Memo {
            suspected: Some((Epoch(1), BootTime(1_000))),
            accepted_loss: Some((Epoch(1), BootTime(1_000))),
            ..settled()
        };
        assert_eq!(
            decide(&far, &memo, BootTime(1_000).plus(RETURN)).rule,
            "win-election",
            "{release}"
        );
    }
}
