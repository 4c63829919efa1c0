use proptest::prelude::*;

use super::*;

fn id(n: u32) -> MemberId {
    MemberId::new(n, "aaaa", n)
}
fn rule(required: usize, names: &[u32]) -> SyncRule {
    SyncRule::any(required, names.iter().copied().map(id))
}
fn subsets(names: &BTreeSet<MemberId>) -> Vec<BTreeSet<MemberId>> {
    names.iter().fold(vec![BTreeSet::new()], |sets, name| {
        let with = sets.iter().cloned().map(|mut set| {
            set.insert(name.clone());
            set
        });
        with.chain(sets.clone()).collect()
    })
}

/// Member 3 has lost its volume, and came back as 5.
#[test]
fn an_older_setting_that_names_a_lost_member_gives_way_to_the_rule_on_record() {
    let (recorded, proven, goal) = (rule(1, &[2]), rule(1, &[1, 2, 3, 4]), rule(1, &[1, 2, 4, 5]));
    let flushed = BTreeMap::new();
    let now = InForce {
        recorded: &recorded,
        proven: &proven,
        pending: None,
        flushed: &flushed,
        proven_at: Lsn(0),
    };
    assert_eq!(next_step(&now, &goal), Some(Step::Set(recorded.clone())));
    let then = InForce {
        proven: &recorded,
        ..now
    };
    assert_eq!(next_step(&then, &goal), Some(Step::Record(goal.clone())));
}

#[test]
fn an_election_needs_more_than_n_minus_k() {
    assert_eq!(rule(1, &[1, 2]).promises_needed(), 2);
    assert_eq!(rule(2, &[1, 2, 3, 4]).promises_needed(), 3);
    assert_eq!(rule(1, &[1]).promises_needed(), 1);
    assert!(!rule(0, &[]).can_elect(&[id(1)]));
    assert!(
        !rule(1, &[1, 2]).can_elect(&[id(1), id(3)]),
        "others' promises do not count"
    );
    assert!(!rule(1, &[1, 2]).can_elect(&[id(1), id(1)]), "nobody counts twice");
    assert!(rule(1, &[1, 2]).can_elect(&[id(1), id(2)]));
}

#[test]
fn shrinking_sets_first_and_records_once_the_rest_has_everything() {
    let (recorded, goal) = (rule(1, &[1, 2]), rule(1, &[1]));
    let mut flushed = BTreeMap::from([(id(1), Lsn(5))]);
    let step = |proven: &SyncRule, flushed: &BTreeMap<MemberId, Lsn>| {
        let now = InForce {
            recorded: &recorded,
            proven,
            pending: None,
            flushed,
            proven_at: Lsn(7),
        };
        next_step(&now, &goal)
    };
    assert_eq!(step(&recorded, &flushed), Some(Step::Set(goal.clone())));
    assert_eq!(step(&goal, &flushed), Some(Step::AwaitFlush(goal.clone())));
    flushed.insert(id(1), Lsn(7));
    assert_eq!(step(&goal, &flushed), Some(Step::Record(goal.clone())));
}

/// `recorded` is in force everywhere, and nobody has flushed anything yet.
fn settled(recorded: &SyncRule) -> InForce<'_> {
    static NOTHING: BTreeMap<MemberId, Lsn> = BTreeMap::new();
    InForce {
        recorded,
        proven: recorded,
        pending: None,
        flushed: &NOTHING,
        proven_at: Lsn(7),
    }
}

#[test]
fn growing_records_first() {
    let (recorded, goal) = (rule(1, &[1]), rule(1, &[1, 2]));
    let now = settled(&recorded);
    assert_eq!(next_step(&now, &goal), Some(Step::Record(goal.clone())));
    let now = InForce { recorded: &goal, ..now };
    assert_eq!(next_step(&now, &goal), Some(Step::Set(goal.clone())));
}

#[test]
fn nothing_is_recorded_that_a_setting_under_way_does_not_keep() {
    let (recorded, goal) = (rule(1, &[1, 2]), rule(2, &[1, 2]));
    let now = InForce {
        proven: &goal,
        ..settled(&recorded)
    };
    assert_eq!(next_step(&now, &goal), Some(Step::AwaitFlush(goal.clone())));
    let now = InForce {
        pending: Some(&recorded),
        ..now
    };
    assert_eq!(
        next_step(&now, &goal),
        Some(Step::Set(goal.clone())),
        "some may use the old one"
    );
}

#[test]
fn three_to_four_members_raise_the_number_before_the_name_counts() {
    let (recorded, goal) = (rule(1, &[1, 2]), rule(2, &[1, 2, 3]));
    let now = settled(&recorded);
    assert_eq!(next_step(&now, &goal), Some(Step::Set(goal.clone())));
}

#[test]
fn going_asynchronous_is_recorded_before_it_is_set() {
    let (recorded, goal) = (rule(1, &[1, 2]), SyncRule::default());
    let now = settled(&recorded);
    assert_eq!(next_step(&now, &goal), Some(Step::Record(goal.clone())));
}

prop_compose! {
    fn some_rule()(names in proptest::collection::btree_set(1_u32..5, 0..=4), required in 0_usize..=4) -> SyncRule {
        let required = required.min(names.len());
        let names: Vec<_> = if required == 0 { Vec::new() } else { names.into_iter().collect() };
        rule(required, &names)
    }
}

fn all_rules() -> Vec<SyncRule> {
    let names: BTreeSet<_> = (1..5).map(id).collect();
    let synchronous = subsets(&names).into_iter().flat_map(|names| {
        (1..=names.len()).map(move |required| SyncRule {
            required,
            names: names.clone(),
        })
    });
    synchronous.chain([SyncRule::default()]).collect()
}

#[test]
fn whatever_a_covered_setting_acknowledges_meets_every_election() {
    let mut covered = 0;
    for recorded in all_rules().iter().filter(|rule| rule.is_synchronous()) {
        let elections: Vec<_> = subsets(&recorded.names)
            .into_iter()
            .filter(|set| recorded.can_elect(set))
            .collect();
        for setting in all_rules().iter().filter(|setting| recorded.covers(setting)) {
            covered += 1;
            for acknowledged in subsets(&setting.names)
                .into_iter()
                .filter(|set| set.len() >= setting.required)
            {
                assert!(
                    elections.iter().all(|promised| !acknowledged.is_disjoint(promised)),
                    "{recorded:?} {setting:?}"
                );
            }
        }
    }
    assert!(covered > 32, "few pairs were compared: {covered}");
}

/// While nobody was asked, everything may be on the primary alone.
#[test]
fn no_election_meets_what_one_member_acknowledged_alone() {
    assert!(!rule(0, &[]).intersects(&rule(1, &[1])));
    assert!(rule(1, &[1]).intersects(&rule(0, &[])));
}

proptest! {
    /// From any rule to any goal, members flushing in any order: the rule on record always covers what may be in
    /// force, whatever was acknowledged at any time is held by somebody of every electing set, and the goal is reached.
    #[test]
    fn every_change_is_safe_and_ends(
        start in some_rule(),
        goal in some_rule(),
        held in proptest::collection::vec(any::<bool>(), 5),
        proof_fails in proptest::collection::vec(any::<bool>(), 3),
    ) {
        let (mut recorded, mut proven, mut pending) = (start.clone(), start.clone(), None::<SyncRule>);
        // Who holds what was acknowledged before anything changed: some set that the first rule allows.
        let mut holders: BTreeSet<MemberId> =
            (1..5).filter(|n| held[*n as usize]).map(id).filter(|name| start.names.contains(name)).collect();
        let missing = start.names.iter().filter(|name| !holders.contains(*name)).cloned().collect::<Vec<_>>();
        let short = start.required.saturating_sub(holders.len());
        holders.extend(missing.into_iter().take(short));
        let mut failures = proof_fails.into_iter();
        for _ in 0..20 {
            let flushed = holders.iter().map(|name| (name.clone(), Lsn(1))).collect();
            let now = InForce { recorded: &recorded, proven: &proven, pending: pending.as_ref(), flushed: &flushed, proven_at: Lsn(1) };
            match next_step(&now, &goal) {
                None => break,
                Some(Step::Set(rule)) => {
                    if failures.next().unwrap_or(false) {
                        pending = Some(rule);
                    } else {
                        (proven, pending) = (rule, None);
                    }
                }
                Some(Step::Record(rule)) => recorded = rule,
                Some(Step::AwaitFlush(rule)) => holders.extend(rule.names),
            }
            prop_assert!(recorded.covers(&proven));
            prop_assert!(pending.iter().all(|pending| recorded.covers(pending)));
            if recorded.is_synchronous() && start.is_synchronous() {
                for promised in subsets(&recorded.names).into_iter().filter(|set| recorded.can_elect(set)) {
                    prop_assert!(!holders.is_disjoint(&promised), "{recorded:?} forgets {holders:?}");
                }
            }
        }
        prop_assert_eq!((&recorded, &proven, &pending), (&goal, &goal, &None));
    }
}
