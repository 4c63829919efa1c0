//! Elections by table, and properties that hold for each of them, whatever was promised.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::election::GONE;
use super::fixtures::*;
use super::*;
use crate::lease_object::LeaseContent;
use crate::protocol::{Epoch, Lsn, MemberId, Position, PromiseReply, Timeline};
use crate::quorum::SyncRule;

/// From this time on a standby that needs no promise of another member also suspects.
const NOW: BootTime = BootTime(SILENT + 1_000);
/// Where the candidate's WAL ends, unless the test says otherwise.
const OWN: u64 = 0x100;

/// A member's answer: its number, the epoch that it has promised, and where its WAL ends (timeline and LSN).
type Answer = (u32, u64, Option<(u32, u64)>);

/// The member with this number; 0 is the candidate.
fn name(number: u32) -> MemberId {
    match number {
        0 => volume(&mut standby()).member.clone().expect("a member").id,
        number => MemberId::new(number, "bbbb0000-2222", number),
    }
}

fn rule(required: usize, names: &[u32]) -> SyncRule {
    SyncRule::any(required, names.iter().map(|number| name(*number)))
}

fn position((timeline, lsn): (u32, u64)) -> Position {
    Position {
        timeline: Timeline(timeline),
        lsn: Lsn(lsn),
    }
}

fn promised((number, promised, end): &Answer) -> Promised {
    Promised {
        reply: PromiseReply {
            member: name(*number),
            promised: Epoch(*promised),
            suspects: true,
            position: end.map(position),
        },
        at: BootTime(4_000),
    }
}

/// The candidate has promised epoch 2; the highest timeline that was reserved is 2.
fn ballot(rule: SyncRule, own: (u32, u64), answers: &[Answer]) -> Observed {
    let mut observed = asking(2);
    let record = record(&mut observed);
    (record.rule, record.timeline) = (rule, Some(Timeline(2)));
    let answer = observed.postgres.answer.as_mut().expect("an answer");
    answer.position = Some(position(own));
    for (index, answer) in answers.iter().enumerate() {
        observed.promises.insert(format!("pod-{index}"), promised(answer));
    }
    observed
}

/// The take that the machine decides on, if it does.
fn take(observed: &Observed) -> Option<LeaseContent> {
    take_at(observed, &settled(), NOW)
}

fn take_at(observed: &Observed, memo: &Memo, now: BootTime) -> Option<LeaseContent> {
    let decision = decide(observed, memo, now);
    match decision.action {
        Action::WriteLease {
            content,
            purpose: Purpose::Take,
            ..
        } => Some(*content),
        _ => None,
    }
}

/// An election may lose commits if they waited for no standby or the user accepted a loss. It records the first
/// timeline that may lack them.
#[test]
fn an_election_that_may_lose_commits_says_from_which_timeline_on() {
    let lossy = |mut observed: Observed, memo: &Memo, now: u64| {
        record(&mut observed).lossy = Some(Timeline(1));
        match decide(&observed, memo, BootTime(now)).action {
            Action::WriteLease { content, .. } => (content.timeline, content.lossy),
            other => panic!("{other:?}"),
        }
    };
    let (next, before) = (Some(Timeline(3)), Some(Timeline(1)));
    let answers = [(2, 2, Some((1, OWN)))];
    let quorum = ballot(rule(1, &[0, 2]), (1, OWN), &answers);
    assert_eq!(lossy(quorum.clone(), &settled(), NOW.0), (next, before));
    let memo = Memo {
        suspected: Some((Epoch(1), BootTime(SILENT))),
        accepted_loss: Some((Epoch(1), BootTime(SILENT))),
        ..settled()
    };
    let late = SILENT + 600_000;
    let mut clock = quorum.clone();
    record(&mut clock).rule = SyncRule::default();
    assert_eq!(lossy(clock, &memo, late), (next, next));
    let mut accepted = quorum;
    accepted.promises.clear();
    cluster(&mut accepted).accepted_loss = Some(Epoch(1));
    assert_eq!(lossy(accepted, &memo, late), (next, next));
}

#[test]
fn elections_by_table() {
    let all = |numbers: &[u32], lsn: u64| -> Vec<Answer> {
        numbers.iter().map(|number| (*number, 2, Some((1, lsn)))).collect()
    };
    let three = || rule(1, &[0, 2]);
    let five = || rule(2, &[0, 2, 3, 4]);
    let with = |mut answers: Vec<Answer>, more: Answer| {
        answers.push(more);
        answers
    };
    let table = [
        ("it has more than the other", three(), all(&[2], OWN - 1), true),
        ("a tie: one is as good as the other", three(), all(&[2], OWN), true),
        ("the other has more", three(), all(&[2], OWN + 1), false),
        ("no member answers", three(), vec![], false),
        (
            "where its WAL ends is not known yet",
            three(),
            vec![(2, 2, None)],
            false,
        ),
        (
            "promised for the epoch before",
            three(),
            vec![(2, 1, Some((1, 1)))],
            false,
        ),
        (
            "promised for a later epoch, too",
            three(),
            vec![(2, 3, Some((1, 1)))],
            true,
        ),
        ("one is missing of three that are needed", five(), all(&[2], 1), false),
        (
            "one is missing of four, and three are needed",
            five(),
            all(&[2, 3], 1),
            true,
        ),
        ("three that tie", five(), all(&[2, 3, 4], OWN), true),
        (
            "more members than may be missing have more",
            five(),
            with(all(&[2, 3], 1), (4, 2, Some((1, OWN + 1)))),
            false,
        ),
        (
            "the member with more has not promised",
            five(),
            with(all(&[2, 3], 1), (4, 1, Some((1, OWN + 1)))),
            true,
        ),
        (
            "a member without a position counts as missing",
            five(),
            with(all(&[2], 1), (3, 2, None)),
            false,
        ),
        (
            "commits waited for one of four: all are needed",
            rule(1, &[0, 2, 3, 4]),
            all(&[2, 3], 1),
            false,
        ),
        ("and all answer", rule(1, &[0, 2, 3, 4]), all(&[2, 3, 4], 1), true),
        (
            "commits waited for all four: each has them",
            rule(4, &[0, 2, 3, 4]),
            vec![],
            true,
        ),
        (
            "the candidate is not in the rule, and one answer is too few",
            rule(1, &[2, 3]),
            all(&[2], 1),
            false,
        ),
        (
            "the candidate is not in the rule, and all names answer",
            rule(1, &[2, 3]),
            all(&[2, 3], 1),
            true,
        ),
        ("a stranger's promise", three(), all(&[5], 1), false),
        (
            "a stranger that has more",
            three(),
            with(all(&[2], 1), (5, 2, Some((1, OWN + 1)))),
            false,
        ),
        ("one member by two pods", five(), all(&[2, 2], 1), false),
        (
            "a timeline that was never reserved, and it is needed",
            three(),
            vec![(2, 2, Some((3, 1)))],
            false,
        ),
        (
            "and it is not needed",
            five(),
            with(all(&[2, 3], 1), (4, 2, Some((3, OWN + 1)))),
            true,
        ),
        ("less, by a later primary", three(), vec![(2, 2, Some((2, 1)))], false),
    ];
    for (what, rule, answers, elected) in table {
        let observed = ballot(rule, (1, OWN), &answers);
        assert_eq!(take(&observed).is_some(), elected, "{what}");
    }
    let later = ballot(three(), (2, 1), &all(&[2], OWN));
    assert!(
        take(&later).is_some(),
        "WAL of a later primary counts as more than any WAL before it"
    );
    let stray = ballot(three(), (3, OWN), &all(&[2], 1));
    assert!(take(&stray).is_none(), "its own timeline was never reserved");
    let mut foreign = ballot(three(), (1, OWN), &all(&[2], 1));
    record(&mut foreign).system_id = Some("another".to_owned());
    assert!(take(&foreign).is_none(), "its data is another database's");
}

/// The same ballot, as `orders-2` sees it.
fn of_the_other(mut observed: Observed, answer: &Answer) -> Observed {
    (observed.own.pod, observed.own.pod_uid) = ("orders-2".to_owned(), "pod-2".to_owned());
    volume(&mut observed).member.as_mut().expect("a member").id = name(2);
    observed.promises = [("orders-0".to_owned(), promised(answer))].into();
    observed
}

#[test]
fn of_two_members_with_equal_wal_one_takes_the_lease() {
    let tie = (1, OWN);
    let one = ballot(rule(1, &[0, 2]), tie, &[(2, 2, Some(tie))]);
    let other = of_the_other(one.clone(), &(0, 2, Some(tie)));
    let takes = [one, other].map(|observed| take(&observed).expect("elected"));
    assert_ne!(takes[0].holder, takes[1].holder);
    assert_eq!(
        takes[0].version, takes[1].version,
        "both write over the same version, so one of them fails"
    );
    assert_eq!(takes[0].epoch, takes[1].epoch);
}

fn answers() -> impl Strategy<Value = Vec<Answer>> {
    let end = prop::option::weighted(0.9, (prop_oneof![4 => Just(1), 1 => 2..4_u32], OWN - 3..OWN + 2));
    let promise = prop_oneof![1 => Just(1), 6 => Just(2), 1 => Just(3)];
    prop::collection::vec((2..6_u32, promise, end), 0..5)
}

fn rules() -> impl Strategy<Value = SyncRule> {
    let names = prop::sample::subsequence(vec![0, 2, 3, 4, 5], 1..=5);
    (0..4_usize, names).prop_map(|(required, names)| match required.min(names.len()) {
        0 => SyncRule::default(),
        required => rule(required, &names),
    })
}

/// Whatever is promised, these hold.
///
/// - The candidate that takes the lease writes over the version whose rule it counted. It writes the next epoch, which
///   it has promised itself.
/// - Enough names of the rule have promised that epoch and have no more WAL.
/// - Another member with more WAL is passed over only after it has had long enough to take the lease, and only if its
///   surplus cannot have been acknowledged.
/// - No two members take one epoch.
#[test]
fn no_input_lets_two_members_take_one_epoch() {
    let own = (prop_oneof![3 => Just(1), 1 => 2..4_u32], OWN - 2..OWN + 2);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let inputs = (rules(), own, answers(), 1..4_u64, flags);
    let (taken, twice, anew, passed) = (Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(20_000));
    let checked = runner.run(&inputs, |(rule, own, answers, promise, (later, made_again, waited))| {
        let mut observed = ballot(rule.clone(), own, &answers);
        let (mut memo, mut now) = (settled(), NOW);
        if waited {
            now = NOW.plus(GONE);
            memo.suspected = Some((Epoch(1), NOW));
            for promised in observed.promises.values_mut() {
                promised.at = now;
            }
        }
        if made_again {
            make_again(&mut observed, name(2));
        }
        volume(&mut observed).promise.as_mut().expect("a promise").epoch = Epoch(promise);
        let Some(content) = take_at(&observed, &memo, now) else {
            return Ok(());
        };
        taken.set(taken.get() + 1);
        prop_assert_eq!((content.version.as_str(), content.epoch), ("7", Epoch(2)));
        prop_assert_eq!(promise, 2);
        prop_assert_eq!(content.timeline, Some(Timeline(3)));
        prop_assert!(!content.rule.names.contains(&name(0)) && content.rule.required == rule.required);
        let counts = |answer: &&Answer| answer.1 >= 2 && answer.2.is_some_and(|(timeline, _)| timeline <= 2);
        let level = |answer: &&Answer| counts(answer) && answer.2 <= Some(own);
        if !answers.iter().filter(counts).all(|answer| level(&answer)) {
            passed.set(passed.get() + 1);
            prop_assert!(waited && rule.is_synchronous(), "the only copy may be lost");
        }
        if rule.is_synchronous() {
            let missing = rule.names.iter().filter(|missing| {
                let answered = answers.iter().filter(level).any(|answer| name(answer.0) == **missing);
                !answered && **missing != name(0)
            });
            prop_assert!(
                missing.count() < rule.required,
                "all members that acknowledged may be missing"
            );
        }
        if made_again {
            anew.set(anew.get() + 1);
            let heard = |member: &MemberId| answers.iter().filter(level).any(|answer| name(answer.0) == *member);
            let mut all = rule.names.iter().filter(|member| **member != name(0));
            prop_assert!(all.all(heard) && heard(&name(2)), "a member with more may be missing");
        }
        // Another candidate, which sees what the first one saw or the Lease that it wrote.
        let mut other = of_the_other(observed, &(0, 2, Some(own)));
        if later {
            let record = record(&mut other);
            (record.version, record.epoch, record.holder) = ("8".to_owned(), content.epoch, content.holder.clone());
        }
        if let Some(second) = take(&other) {
            twice.set(twice.get() + 1);
            prop_assert!(second.version == content.version || second.epoch > content.epoch);
        }
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
    assert!(
        taken.get() > 200 && twice.get() > 20 && anew.get() > 50 && passed.get() > 20,
        "{taken:?} {twice:?} {anew:?} {passed:?}"
    );
}
