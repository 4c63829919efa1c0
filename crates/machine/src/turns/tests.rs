use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn next(turns: &Turns, waiting: &[(&'static str, u32, u64)], now: u64) -> Next<(&'static str, u32), u64> {
    let waiting = waiting.iter().map(|(namespace, database, due)| Waiting {
        namespace,
        database: (*namespace, *database),
        due: *due,
    });
    turns.next(waiting, now)
}

#[test]
fn namespaces_take_turns_and_the_longest_due_is_first() {
    let mut turns = Turns::new(8);
    let waiting = [("a", 1, 3), ("a", 2, 1), ("a", 3, 2), ("b", 1, 9), ("c", 1, 20)];
    let mut order = Vec::new();
    let mut left = waiting.to_vec();
    while let Next::Now((namespace, database)) = next(&turns, &left, 10) {
        turns.begin(namespace);
        left.retain(|(other, of, _)| (*other, *of) != (namespace, database));
        order.push((namespace, database));
    }
    assert_eq!(order, [("a", 2), ("b", 1), ("a", 3), ("a", 1)]);
    assert_eq!(next(&turns, &left, 10), Next::At(20));
    assert_eq!(next(&turns, &[], 10), Next::Nothing);
}

#[test]
fn one_namespace_leaves_half_of_the_places_to_others() {
    let mut turns = Turns::new(8);
    let many: Vec<_> = (0..500).map(|database| ("many", database, 0)).collect();
    let with_other = [&many[..], &[("one", 0, 99)]].concat();
    for _ in 0..4 {
        assert!(matches!(next(&turns, &with_other, 1), Next::Now(("many", _))));
        turns.begin("many");
    }
    assert_eq!(
        next(&turns, &with_other, 1),
        Next::At(99),
        "the other may come any time"
    );
    assert_eq!(next(&turns, &with_other, 99), Next::Now(("one", 0)));
    assert!(
        matches!(next(&turns, &many, 1), Next::Now(_)),
        "without another one it may take all"
    );
    turns.end("many");
    assert!(matches!(next(&turns, &with_other, 1), Next::Now(("many", _))));
}

#[derive(Clone, Debug)]
enum Step {
    Add(usize, u32, u64),
    Begin,
    End(usize),
    Later(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..4_usize, 0..6_u32, 0..20_u64).prop_map(|(namespace, database, due)| Step::Add(namespace, database, due)),
        Just(Step::Begin),
        Just(Step::Begin),
        (0..8_usize).prop_map(Step::End),
        (1..5_u64).prop_map(Step::Later),
    ]
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

proptest! {
    /// With free places, whoever is due and may begins; no namespace is passed over twice by the same other one.
    #[test]
    fn nobody_who_may_begin_is_held_up(steps in prop::collection::vec(step(), 1..200)) {
        let places = 6;
        let mut turns = Turns::new(places);
        let mut waiting: Vec<(&'static str, u32, u64)> = Vec::new();
        let mut running: Vec<&'static str> = Vec::new();
        let mut now = 0;
        // By namespace that could begin: who has begun since.
        let mut passed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Add(namespace, database, due) => waiting.push((NAMES[namespace], database, due)),
                Step::Later(time) => now += time,
                Step::End(index) => {
                    if index < running.len() {
                        turns.end(running.remove(index));
                    }
                }
                Step::Begin if running.len() < places => {
                    let names = waiting.iter().map(|(name, ..)| *name).chain(running.iter().copied());
                    let several = names.collect::<BTreeSet<_>>().len() > 1;
                    let most = if several { places / 2 } else { places };
                    let taken = |name: &str| running.iter().filter(|other| **other == name).count();
                    let may: BTreeSet<_> = waiting
                        .iter()
                        .filter(|(name, _, due)| *due <= now && taken(name) < most)
                        .map(|(name, ..)| *name)
                        .collect();
                    passed.retain(|name, _| may.contains(name));
                    match next(&turns, &waiting, now) {
                        Next::Now((name, database)) => {
                            prop_assert!(may.contains(name), "{name} has all that it may have");
                            let index = waiting
                                .iter()
                                .enumerate()
                                .filter(|(_, (other, ..))| *other == name)
                                .min_by_key(|(_, (.., due))| *due)
                                .map(|(index, _)| index)
                                .unwrap();
                            let (_, first, due) = waiting[index];
                            prop_assert!(waiting.contains(&(name, database, due)), "{first} is due before {database}");
                            let index = waiting.iter().position(|found| *found == (name, database, due)).unwrap();
                            waiting.remove(index);
                            for other in may.iter().filter(|other| **other != name) {
                                let new = passed.entry(other).or_default().insert(name);
                                prop_assert!(new, "{name} has begun twice while {other} could");
                            }
                            passed.remove(name);
                            turns.begin(name);
                            running.push(name);
                        }
                        Next::At(later) => {
                            prop_assert!(may.is_empty() && later > now);
                        }
                        Next::Nothing => prop_assert!(may.is_empty() && waiting.iter().all(|(.., due)| *due <= now)),
                    }
                }
                Step::Begin => {}
            }
        }
    }
}
