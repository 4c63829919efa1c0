use super::super::GONE;
use super::super::fixtures::*;
use super::*;
use crate::protocol::Lsn;
use crate::quorum::SyncRule;

#[test]
fn a_lease_that_was_made_again_is_taken_by_the_member_with_the_most_wal() {
    let third = member_rule(1, &[third()]);
    let alone = member_rule(1, &[]);
    let none = SyncRule::default();
    for (rule, asks_third) in [(third, true), (alone, false), (none, false)] {
        let mut observed = made_again(asking(2));
        record(&mut observed).rule = rule.clone();
        let elected = |observed: &Observed| decided(observed, SILENT).rule == "win-election";
        if asks_third {
            third_answers(&mut observed, 2, Some(0x80));
        }
        assert!(!elected(&observed), "{rule:?}: the last holder may have more");
        let waits = decided(&observed, SILENT).because;
        let words = format!("is not known: {}. They must", other_holder().incarnation.member);
        assert!(waits.contains(&words), "{waits}");
        let mut least = observed.clone();
        least
            .promises
            .insert("orders-1".to_owned(), answer_of_last_holder(0x101));
        assert!(!elected(&least), "{rule:?}: it has more");
        observed
            .promises
            .insert("orders-1".to_owned(), answer_of_last_holder(0x100));
        assert!(elected(&observed), "{rule:?}");
        if asks_third {
            observed.promises.remove("orders-2");
            assert!(!elected(&observed), "{rule:?}");
        }
    }
}

#[test]
fn the_election_does_not_wait_for_a_gone_member_with_more_wal_if_enough_others_have_promised() {
    let mut observed = asking(2);
    record(&mut observed).rule.required = 2;
    let answer = |ordinal: u32, lsn: u64| {
        let mut answer = answer_of_third(2, Some(lsn));
        answer.reply.member = MemberId::new(ordinal, "cccc", ordinal);
        (format!("orders-{ordinal}"), answer)
    };
    for ordinal in [3, 4] {
        let (pod, answer) = answer(ordinal, 0x80);
        record(&mut observed).rule.names.insert(answer.reply.member.clone());
        observed.promises.insert(pod, answer);
    }
    let rule = |observed: &Observed, now: u64| decided(observed, now).rule;
    let (gone, at) = (answer_of_third(2, Some(0x180)), SILENT + 60_000);
    assert_eq!(rule(&observed, at), "win-election", "three of four have promised");
    observed.promises.insert(
        "orders-2".to_owned(),
        Promised {
            at: BootTime(at),
            ..gone
        },
    );
    assert_eq!(rule(&observed, at + GONE.0 - 1), "wait", "it has more");
    assert_eq!(decided(&observed, at).wake, Some(BootTime(at).plus(GONE)));
    assert_eq!(rule(&observed, at + GONE.0), "win-election");
    observed.promises.remove("orders-4");
    let waits = decided(&observed, at + GONE.0);
    assert_eq!(waits.rule, "wait", "the promise of the one that is gone is needed");
    let missing = format!("these do not answer: {}", third());
    assert!(waits.because.contains(&missing), "{}", waits.because);
    let mut again = made_again(asking(2));
    record(&mut again).rule = member_rule(1, &[]);
    let answer = answer_of_last_holder(0x101);
    again.promises.insert("orders-1".to_owned(), answer);
    assert_eq!(rule(&again, at + GONE.0), "wait", "all must be heard, and have no more");
}

/// For example because it does not reach the API server.
#[test]
fn the_election_waits_for_a_member_with_more_wal_that_takes_no_lease_only_if_it_needs_its_promise() {
    const LATE: u64 = SILENT + GONE.0;
    let mut observed = asking(2);
    record(&mut observed).rule.required = 2;
    for (ordinal, lsn) in [(2, 0x80), (3, 0x80), (4, 0x80), (5, 0x180)] {
        let mut answer = answer_of_third(2, Some(lsn));
        answer.at = BootTime(LATE);
        if ordinal > 2 {
            answer.reply.member = MemberId::new(ordinal, "cccc", ordinal);
        }
        record(&mut observed).rule.names.insert(answer.reply.member.clone());
        observed.promises.insert(format!("orders-{ordinal}"), answer);
    }
    let memo = Memo {
        suspected: Some((Epoch(1), BootTime(SILENT))),
        ..settled()
    };
    let at = |observed: &Observed, now: u64| decide(observed, &memo, BootTime(now));
    let early = at(&observed, LATE - 1);
    assert_eq!(early.rule, "wait", "it may take the lease itself");
    assert!(early.wake.is_some_and(|wake| wake <= BootTime(LATE)));
    assert_eq!(at(&observed, LATE).rule, "win-election", "four of five are enough");
    let mut needed = observed.clone();
    needed.promises.remove("orders-4");
    let waits = at(&needed, LATE);
    assert_eq!(waits.rule, "wait");
    assert!(waits.because.contains("has WAL up to 0/180"), "{}", waits.because);
    let mut alone = asynchronous(observed);
    cluster(&mut alone).durability.as_mut().expect("chosen").mode = api::status::DurabilityMode::Async;
    assert_eq!(at(&alone, LATE).rule, "wait", "what it has may be acknowledged");
}

/// The published history of the last holder says nothing about a timeline beside it.
#[test]
fn a_former_primary_is_judged_by_its_own_history() {
    let mut observed = asking(2);
    third_answers(&mut observed, 2, Some(0x80));
    let record = record(&mut observed);
    (record.timeline, record.history) = (
        Some(Timeline(4)),
        vec![crate::protocol::Fork {
            timeline: Timeline(2),
            end: Lsn(0x300),
        }],
    );
    own_position(&mut observed).timeline = Timeline(3);
    assert_eq!(decided(&observed, SILENT).rule, "win-election");
}

#[test]
fn wal_of_an_unreserved_timeline_does_not_count() {
    let mut observed = asking(2);
    let mut stray = answer_of_third(2, Some(0x180));
    stray.reply.position.as_mut().unwrap().timeline = Timeline(2);
    observed.promises.insert("orders-2".to_owned(), stray);
    assert_eq!(decided(&observed, SILENT).action, Action::Wait);
}

#[test]
fn positions_rank_by_the_timeline_first_and_only_by_one_that_is_reserved() {
    let decided = |own: u32, third: u32, reserved: u32| {
        let mut observed = promised(2);
        observed.tasks.ask.running = Some(Work::Ask);
        record(&mut observed).timeline = Some(Timeline(reserved));
        own_position(&mut observed).timeline = Timeline(own);
        let mut promised = answer_of_third(2, Some(0x80));
        promised.reply.position.as_mut().unwrap().timeline = Timeline(third);
        observed.promises.insert("orders-2".to_owned(), promised);
        decided(&observed, SILENT).rule
    };
    assert_eq!(decided(1, 1, 2), "win-election");
    assert_eq!(decided(2, 1, 2), "win-election");
    assert_ne!(decided(1, 2, 2), "win-election", "it has WAL of a later primary");
    assert_ne!(
        decided(2, 1, 1),
        "win-election",
        "that timeline was reserved for no member"
    );
}
