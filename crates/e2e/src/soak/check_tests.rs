use proptest::prelude::*;

use super::*;
use crate::soak::random::Random;

const EXACT: Rules = Rules { stale: 0 };

fn transaction(client: u32, begun: u64, outcome: Outcome, steps: Vec<Step>) -> Transaction {
    Transaction {
        client,
        session: 1,
        begun,
        done: begun + 5,
        outcome,
        steps,
        error: None,
    }
}

fn append(key: Key, value: Value) -> Step {
    Step::Append(key, value)
}

fn read(key: Key, found: &[Value]) -> Step {
    Step::Read(key, found.to_vec())
}

fn lists(of: &[(Key, &[Value])]) -> Lists {
    of.iter().map(|(key, list)| (*key, list.to_vec())).collect()
}

fn found(transactions: &[Transaction], lists: &Lists) -> Vec<Anomaly> {
    found_by(transactions, lists, EXACT)
}

fn found_by(transactions: &[Transaction], lists: &Lists, rules: Rules) -> Vec<Anomaly> {
    let mut anomalies: Vec<Anomaly> = check(transactions, lists, rules)
        .into_iter()
        .map(|finding| finding.anomaly)
        .collect();
    anomalies.sort();
    anomalies.dedup();
    anomalies
}

use Outcome::{Acked, Error, Unknown};

#[test]
fn an_acknowledged_append_must_be_there_once() {
    let history = [transaction(1, 0, Acked, vec![append(2, 7)])];
    assert_eq!(found(&history, &lists(&[(2, &[7])])), []);
    assert_eq!(found(&history, &lists(&[])), [Anomaly::Lost]);
    assert_eq!(found(&history, &lists(&[(2, &[7, 7])])), [Anomaly::Duplicated]);
    // In another list it does not count.
    assert_eq!(
        found(&history, &lists(&[(4, &[7])])),
        [Anomaly::Lost, Anomaly::Unexplained]
    );
}

#[test]
fn failed_appends_are_never_there_and_unknown_ones_wholly_or_not_at_all() {
    let history = |outcome| [transaction(1, 0, outcome, vec![append(2, 7), append(4, 8)])];
    let (none, half, whole) = (lists(&[]), lists(&[(2, &[7])]), lists(&[(2, &[7]), (4, &[8])]));
    assert_eq!(found(&history(Error), &none), []);
    assert_eq!(found(&history(Error), &half), [Anomaly::Resurrected]);
    assert_eq!(found(&history(Unknown), &none), []);
    assert_eq!(found(&history(Unknown), &whole), []);
    assert_eq!(found(&history(Unknown), &half), [Anomaly::Torn]);
    assert_eq!(found(&history(Acked), &half), [Anomaly::Lost]);
}

#[test]
fn a_read_is_a_beginning_of_the_final_list() {
    let writes = |outcome| {
        vec![
            transaction(1, 0, Acked, vec![append(2, 7)]),
            transaction(1, 10, outcome, vec![append(2, 8)]),
        ]
    };
    let with = |outcome, found: &[Value]| {
        let mut history = writes(outcome);
        history.push(transaction(2, 12, Acked, vec![read(2, found)]));
        history
    };
    let both = lists(&[(2, &[7, 8])]);
    assert_eq!(found(&with(Acked, &[7, 8]), &both), []);
    assert_eq!(found(&with(Acked, &[7]), &both), []);
    assert_eq!(found(&with(Acked, &[8, 7]), &both), [Anomaly::NotAPrefix]);
    // A transaction saw what was never acknowledged, and it is gone.
    assert_eq!(
        found(&with(Unknown, &[7, 8]), &lists(&[(2, &[7])])),
        [Anomaly::NotAPrefix]
    );
    assert_eq!(
        found(&with(Error, &[7, 8]), &lists(&[(2, &[7])])),
        [Anomaly::AbortedRead]
    );
    assert_eq!(found(&with(Acked, &[7, 9]), &both), [Anomaly::Unexplained]);
}

#[test]
fn a_read_shows_all_of_a_transaction_and_what_its_own_did_before() {
    let writer = transaction(1, 0, Acked, vec![append(2, 7), append(2, 8)]);
    let list = lists(&[(2, &[7, 8])]);
    let half = transaction(2, 2, Acked, vec![read(2, &[7])]);
    let findings = found(&[writer.clone(), half], &list);
    assert!(findings.contains(&Anomaly::IntermediateRead), "{findings:?}");
    let own = |seen: &[Value]| transaction(2, 20, Acked, vec![append(2, 9), read(2, seen)]);
    let list = lists(&[(2, &[7, 8, 9])]);
    assert_eq!(found(&[writer.clone(), own(&[7, 8, 9])], &list), []);
    assert_eq!(found(&[writer, own(&[7, 8])], &list), [Anomaly::OwnAppendMissing]);
}

#[test]
fn a_failed_transaction_may_have_seen_its_own_appends() {
    let history = [
        transaction(1, 0, Acked, vec![append(2, 7)]),
        transaction(2, 20, Error, vec![append(2, 9), read(2, &[7, 9])]),
        transaction(3, 20, Unknown, vec![append(2, 10), read(2, &[7, 10])]),
        transaction(4, 40, Acked, vec![append(2, 8)]),
    ];
    assert_eq!(found(&history, &lists(&[(2, &[7, 8])])), []);
}

#[test]
fn a_read_contains_what_was_acknowledged_before_its_transaction_began() {
    let history = |begun, key: Key| {
        let steps = vec![append(key, 7)];
        [
            transaction(1, 0, Acked, steps),
            transaction(2, begun, Acked, vec![read(key, &[])]),
        ]
    };
    let late = Rules { stale: 100 };
    for (key, begun, rules, stale) in [
        (2, 3, EXACT, false),
        (2, 6, EXACT, true),
        (2, 6, late, false),
        (2, 105, late, false),
        (2, 106, late, true),
        // A read that locks is acknowledged like a write: an old primary cannot.
        (3, 6, late, true),
    ] {
        let expected: &[Anomaly] = if stale { &[Anomaly::Stale] } else { &[] };
        let list = lists(&[(key, &[7])]);
        assert_eq!(found_by(&history(begun, key), &list, rules), expected, "{key} {begun}");
    }
}

#[test]
fn on_one_connection_lists_only_grow() {
    let mut history = [
        transaction(1, 0, Acked, vec![append(2, 7)]),
        transaction(2, 2, Acked, vec![read(2, &[7])]),
        transaction(2, 12, Acked, vec![read(2, &[])]),
    ];
    let late = Rules { stale: 100 };
    let list = lists(&[(2, &[7])]);
    assert_eq!(found_by(&history, &list, late), [Anomaly::WentBack]);
    history[2].session = 2;
    assert_eq!(found_by(&history, &list, late), []);
    // It must see its own appends from then on.
    history[2].client = 1;
    history[2].session = 1;
    assert_eq!(found_by(&history, &list, late), [Anomaly::WentBack]);
}

#[test]
fn transactions_in_a_circle_are_found() {
    // Write skew: each read the list that the other appended to.
    let history = [
        transaction(1, 0, Acked, vec![read(2, &[]), append(4, 8)]),
        transaction(2, 0, Acked, vec![read(4, &[]), append(2, 7)]),
    ];
    let findings = check(&history, &lists(&[(2, &[7]), (4, &[8])]), EXACT);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].anomaly, Anomaly::Cycle);
    assert_eq!(findings[0].transactions.len(), 2);
    let text = describe(&findings, &history, 5);
    assert!(text.contains("which read 2 without what was appended by"), "{text}");
    // Each read what the other appended.
    let history = [
        transaction(1, 0, Acked, vec![append(2, 7), read(4, &[8])]),
        transaction(2, 0, Acked, vec![append(4, 8), read(2, &[7])]),
    ];
    assert_eq!(found(&history, &lists(&[(2, &[7]), (4, &[8])])), [Anomaly::Cycle]);
    // Appends that cross.
    let history = [
        transaction(1, 0, Acked, vec![append(2, 1), append(4, 2)]),
        transaction(2, 0, Acked, vec![append(2, 3), append(4, 4)]),
    ];
    assert_eq!(found(&history, &lists(&[(2, &[1, 3]), (4, &[4, 2])])), [Anomaly::Cycle]);
}

#[test]
fn the_least_evidence_comes_first() {
    let mut history = vec![transaction(1, 0, Acked, vec![append(6, 9)])];
    history.push(transaction(1, 10, Acked, vec![read(2, &[]), append(4, 8)]));
    history.push(transaction(2, 10, Acked, vec![read(4, &[]), append(2, 7)]));
    let findings = check(&history, &lists(&[(2, &[7]), (4, &[8])]), EXACT);
    let anomalies: Vec<Anomaly> = findings.iter().map(|finding| finding.anomaly).collect();
    assert_eq!(anomalies, [Anomaly::Lost, Anomaly::Cycle]);
    assert!(describe(&findings, &history, 1).contains("and 1 more"));
}

/// A history that a correct database may show. One transaction after another takes effect, at some time within its own
/// duration. Failed ones have no effect, and some of the unknown ones have. Returns the lists too.
fn correct(seed: u64, count: u64) -> (Vec<Transaction>, Lists) {
    let mut random = Random::new(seed);
    let (mut history, mut lists) = (Vec::new(), Lists::new());
    for number in 0..count {
        let effect = number * 10;
        let outcome = *random.pick(&[Acked, Acked, Acked, Acked, Error, Unknown]).unwrap();
        let takes_effect = outcome == Acked || (outcome == Unknown && random.chance(50));
        let parity = i64::try_from(random.within(0..=1)).unwrap();
        let mut after = lists.clone();
        let mut steps = Vec::new();
        for step in 0..random.within(1..=4) {
            let key = parity + 2 * i64::try_from(random.within(0..=2)).unwrap();
            if random.chance(50) {
                let value = i64::try_from(number * 10 + step).unwrap();
                after.entry(key).or_default().push(value);
                steps.push(append(key, value));
            } else {
                steps.push(read(key, after.get(&key).map_or(&[], Vec::as_slice)));
            }
        }
        if takes_effect {
            lists = after;
        }
        // Transactions of different clients overlap; those of one client do not.
        let reach = random.within(0..=40);
        history.push(Transaction {
            client: u32::try_from(number % 5).unwrap(),
            session: 1,
            begun: effect.saturating_sub(reach / 2),
            done: effect + 1 + reach / 2,
            outcome,
            steps,
            error: None,
        });
    }
    (history, lists)
}

/// A history into which an anomaly is planted: `n` chooses the place. Returns what must be found, or nothing if there
/// is no such place.
type Plant = fn(&mut Told, usize) -> Option<Anomaly>;

struct Told {
    history: Vec<Transaction>,
    lists: Lists,
}

/// The n-th of the acknowledged appends.
fn nth_acked(history: &[Transaction], n: usize) -> Option<(Key, Value)> {
    let acked = history.iter().filter(|transaction| transaction.outcome == Acked);
    let appends: Vec<(Key, Value)> = acked.flat_map(Transaction::appends).collect();
    appends.get(n % appends.len().max(1)).copied()
}

fn lose(Told { history, lists }: &mut Told, n: usize) -> Option<Anomaly> {
    let (key, value) = nth_acked(history, n)?;
    lists.get_mut(&key)?.retain(|there| *there != value);
    Some(Anomaly::Lost)
}

fn double(Told { history, lists }: &mut Told, n: usize) -> Option<Anomaly> {
    let (key, value) = nth_acked(history, n)?;
    lists.get_mut(&key)?.push(value);
    Some(Anomaly::Duplicated)
}

fn resurrect(Told { history, lists }: &mut Told, n: usize) -> Option<Anomaly> {
    let failed = history.iter().filter(|transaction| transaction.outcome == Error);
    let appends: Vec<(Key, Value)> = failed.flat_map(Transaction::appends).collect();
    let (key, value) = *appends.get(n % appends.len().max(1))?;
    lists.entry(key).or_default().push(value);
    Some(Anomaly::Resurrected)
}

fn reorder(Told { history, .. }: &mut Told, n: usize) -> Option<Anomaly> {
    let reads = history.iter_mut().flat_map(|transaction| {
        // Its own appends are expected at the end.
        let own: Vec<Value> = transaction.appends().map(|(_, value)| value).collect();
        transaction.steps.iter_mut().filter_map(move |step| match step {
            Step::Read(_, found) if found.len() >= 2 && found.iter().all(|value| !own.contains(value)) => Some(found),
            Step::Read(..) | Step::Append(..) => None,
        })
    });
    let mut reads: Vec<&mut Vec<Value>> = reads.collect();
    let count = reads.len().max(1);
    let read = reads.get_mut(n % count)?;
    let at = n % (read.len() - 1);
    read.swap(at, at + 1);
    Some(Anomaly::NotAPrefix)
}

fn show_failed(Told { history, .. }: &mut Told, n: usize) -> Option<Anomaly> {
    let failed: Vec<(Key, Value)> = history
        .iter()
        .filter(|transaction| transaction.outcome == Error)
        .flat_map(Transaction::appends)
        .collect();
    let (key, value) = *failed.get(n % failed.len().max(1))?;
    let late = history.iter().map(|transaction| transaction.done).max()? + 1;
    history.push(transaction(99, late, Acked, vec![read(key, &[value])]));
    Some(Anomaly::AbortedRead)
}

fn forget(Told { history, lists }: &mut Told, n: usize) -> Option<Anomaly> {
    let (key, value) = nth_acked(history, n)?;
    let list = lists.get(&key)?;
    let before = list.iter().position(|there| *there == value)?;
    let late = history.iter().map(|transaction| transaction.done).max()? + 1;
    let earlier = list[..before].to_vec();
    history.push(transaction(99, late, Acked, vec![read(key, &earlier)]));
    Some(Anomaly::Stale)
}

fn go_back(Told { history, lists }: &mut Told, n: usize) -> Option<Anomaly> {
    let (key, _) = nth_acked(history, n)?;
    let list = lists.get(&key)?.clone();
    let late = history.iter().map(|transaction| transaction.done).max()? + 1;
    history.push(transaction(99, late, Acked, vec![read(key, &list)]));
    history.push(transaction(
        99,
        late + 10,
        Error,
        vec![read(key, &list[..list.len() - 1])],
    ));
    Some(Anomaly::WentBack)
}

fn circle(Told { history, lists }: &mut Told, _: usize) -> Option<Anomaly> {
    let of = |key: Key| lists.get(&key).cloned().unwrap_or_default();
    let late = history.iter().map(|transaction| transaction.done).max()? + 1;
    let (first, second) = (of(0), of(2));
    history.push(transaction(98, late, Acked, vec![read(0, &first), append(2, -1)]));
    history.push(transaction(99, late, Acked, vec![read(2, &second), append(0, -2)]));
    lists.entry(2).or_default().push(-1);
    lists.entry(0).or_default().push(-2);
    Some(Anomaly::Cycle)
}

const PLANTS: [Plant; 8] = [lose, double, resurrect, reorder, show_failed, forget, go_back, circle];

proptest! {
    #[test]
    fn a_correct_history_shows_nothing(seed in any::<u64>(), count in 0u64..60) {
        let (history, lists) = correct(seed, count);
        let findings = check(&history, &lists, EXACT);
        prop_assert!(findings.is_empty(), "{}", describe(&findings, &history, 3));
    }

    #[test]
    fn every_planted_anomaly_is_found(seed in any::<u64>(), plant in 0usize..PLANTS.len(), n in 0usize..1000) {
        let (history, lists) = correct(seed, 40);
        let mut told = Told { history, lists };
        if let Some(expected) = PLANTS[plant](&mut told, n) {
            let anomalies = found(&told.history, &told.lists);
            prop_assert!(anomalies.contains(&expected), "{expected:?} not in {anomalies:?}");
        }
    }
}
