use super::super::fixtures::*;
use super::super::*;
use super::*;

const NOW: BootTime = BootTime(1_200);

/// A primary whose rule is `ANY 1` of the two others, not open yet; one of them has all WAL that is in doubt.
fn closed() -> Observed {
    let mut observed = primary();
    let rule = SyncRule::any(1, [other_holder().incarnation.member, third()]);
    cluster(&mut observed).durability = Some(api::WantedDurability {
        mode: DurabilityMode::Required,
        standbys: 1,
    });
    record(&mut observed).rule = rule.clone();
    let postgres = &mut observed.postgres;
    (postgres.open, postgres.in_doubt, postgres.sync.proven) = (false, Some(Lsn(0x100)), rule);
    postgres.receiving = BTreeMap::from([(third(), Lsn(0x100))]);
    observed
}

fn opens(observed: &Observed) -> bool {
    let verdict = open(&Context::new(observed, NOW), &mut Draft::new(&Memo::default()));
    verdict.is_some_and(|verdict| verdict.action == Action::Open)
}

#[test]
fn a_promise_that_a_status_has_lost_leaves_the_rule_in_force() {
    let mut observed = closed();
    let goal = |observed: &Observed| goal(&Context::new(observed, NOW), &mut Draft::new(&Memo::default()));
    assert!(goal(&observed).is_some());
    cluster(&mut observed).durability = None;
    assert_eq!(goal(&observed), None);
}

#[test]
fn applications_wait_until_enough_members_hold_what_is_in_doubt() {
    assert!(opens(&closed()));
    let spoil: [fn(&mut Observed); 6] = [
        |o| o.postgres.receiving.clear(),
        |o| o.postgres.receiving.extend([(third(), Lsn(0xff))]),
        |o| o.postgres.in_doubt = None,
        |o| o.postgres.sync.proven = SyncRule::default(),
        |o| record(o).rule.required = 2,
        |o| record(o).rule.names.retain(|name| *name != third()),
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut observed = closed();
        spoil(&mut observed);
        assert!(!opens(&observed), "{index}");
    }
}

#[test]
fn the_answer_to_a_report_says_whether_the_primary_waits_for_that_member() {
    let first = other_holder().incarnation.member;
    let told = |observed: &Observed| [&first, &third()].map(|member| awaits(&Context::new(observed, NOW), member));
    let mut observed = closed();
    observed.postgres.receiving.clear();
    assert_eq!(told(&observed), [true, true], "either");
    observed.postgres.receiving.insert(third(), Lsn(0));
    assert_eq!(told(&observed), [false, true], "one will flush it soon");
    record(&mut observed).rule.required = 2;
    assert_eq!(told(&observed), [true, true], "both");
    let unneeded: [fn(&mut Observed); 4] = [
        |o| o.postgres.open = true,
        |o| o.postgres.answer = None,
        |o| record(o).rule = SyncRule::default(),
        |o| record(o).rule.names.clear(),
    ];
    for (index, change) in unneeded.iter().enumerate() {
        let mut observed = observed.clone();
        change(&mut observed);
        assert_eq!(told(&observed), [false, false], "{index}");
    }
}

#[test]
fn applications_wait_until_the_rule_is_known() {
    let mut observed = closed();
    observed.tasks.lease.running = Some(Work::WriteLease);
    assert!(!opens(&observed), "a write may change it");
    observed.tasks.lease.running = None;
    observed.tasks.lease.failures = 1;
    assert!(!opens(&observed), "a write may have changed it");
}

/// The same primary, serving; both others stream from it.
fn followed() -> Observed {
    let mut observed = closed();
    let first = other_holder().incarnation.member;
    observed.postgres.open = true;
    observed
        .postgres
        .standbys
        .extend([(first, Lsn(0x100)), (third(), Lsn(0x100))]);
    let members = &mut record(&mut observed).members;
    let mut report = members["orders-1"].clone();
    report.member = third();
    members.insert("orders-2".to_owned(), report);
    observed
}

fn changed(observed: &Observed) -> Option<Verdict> {
    change(&Context::new(observed, NOW), &mut Draft::new(&Memo::default()))
}

#[test]
fn commits_wait_for_new_names_before_elections_count_by_them() {
    let mut observed = followed();
    assert!(changed(&observed).is_none(), "everything is as wanted");
    let both = std::mem::take(&mut record(&mut observed).rule);
    observed.postgres.sync.proven = SyncRule::default();
    let Verdict { action, because, .. } = changed(&observed).unwrap();
    assert_eq!(action, Action::SetSync { rule: both.clone() });
    let first = other_holder().incarnation.member;
    assert_eq!(because, format!("commits should wait for 1 of {first}, {}", third()));
    let busy: [fn(&mut Observed); 3] = [
        |o| o.tasks.lease.running = Some(Work::WriteLease),
        |o| o.tasks.sync.running = Some(Work::SetSync),
        |o| o.postgres.answer.as_mut().unwrap().in_recovery = true,
    ];
    for (index, busy) in busy.iter().enumerate() {
        let mut observed = observed.clone();
        busy(&mut observed);
        assert!(changed(&observed).is_none(), "{index}");
    }
    observed.postgres.sync.proven = both.clone();
    let verdict = changed(&observed).unwrap();
    let Action::WriteLease { content, .. } = verdict.action else {
        panic!("{:?}", verdict.action)
    };
    assert_eq!(content.rule, both);
    record(&mut observed).rule = both;
    cluster(&mut observed).durability.as_mut().expect("chosen").mode = DurabilityMode::Async;
    let because = changed(&observed).unwrap().because;
    assert_eq!(because, "elections should count by no standby");
}

#[test]
fn the_rule_names_wanted_members_that_stream_or_did_a_moment_ago() {
    let named = |observed: &Observed, away: u64| {
        let memo = Memo {
            away: BTreeMap::from([(third(), BootTime(NOW.0 - away))]),
            ..Memo::default()
        };
        let mut draft = Draft::new(&memo);
        let names = goal(&Context::new(observed, NOW), &mut draft).unwrap().names;
        (names.contains(&third()), draft.wake)
    };
    let mut observed = followed();
    assert!(named(&observed, 0).0);
    observed.postgres.standbys.remove(&third());
    assert_eq!(named(&observed, AWAY.0 - 1), (true, Some(NOW.plus(Millis(1)))));
    assert!(!named(&observed, AWAY.0).0, "one is enough");
    let mut unwanted = followed();
    cluster(&mut unwanted).replicas = 2;
    assert!(!named(&unwanted, 0).0);
}

#[test]
fn under_required_no_name_leaves_while_too_few_stream() {
    let wanted = |mode: DurabilityMode| {
        let mut observed = closed();
        cluster(&mut observed).durability.as_mut().expect("chosen").mode = mode;
        observed.postgres.standbys.clear();
        let names = record(&mut observed).rule.names.clone();
        let memo = Memo {
            away: names.into_iter().map(|name| (name, BootTime(0))).collect(),
            ..Memo::default()
        };
        let mut draft = Draft::new(&memo);
        goal(&Context::new(&observed, NOW), &mut draft)
    };
    let recorded = record(&mut closed()).rule.clone();
    assert_eq!(wanted(DurabilityMode::Required), Some(recorded));
    assert_eq!(wanted(DurabilityMode::Preferred), Some(SyncRule::default()));
}

#[test]
fn an_absence_counts_from_its_first_moment_until_the_member_streams() {
    let away = |observed: &Observed, since: Option<BootTime>| {
        let mut memo = Memo {
            away: since.map(|since| (third(), since)).into_iter().collect(),
            ..Memo::default()
        };
        super::remember(&Context::new(observed, NOW), &mut memo);
        memo.away.get(&third()).copied()
    };
    let mut absent = followed();
    absent.postgres.standbys.remove(&third());
    let since = Some(BootTime(7));
    assert_eq!((away(&absent, None), away(&absent, since)), (Some(NOW), since));
    assert_eq!((away(&followed(), None), away(&followed(), since)), (None, None));
    record(&mut absent).members.remove("orders-2");
    absent.peers.remove("orders-2");
    assert_eq!(away(&absent, None), None, "no pod belongs to that member");
    record(&mut absent).rule.names.remove(&third());
    assert_eq!(away(&absent, since), None, "the rule does not name it");
}
