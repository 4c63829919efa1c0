use super::*;

fn now() -> DateTime<Utc> {
    "2027-01-01T00:00:00Z".parse().unwrap()
}

fn fails(pass: &mut Pass<u8>, kind: FaultKind, known: &str) {
    pass.failed(1, Some(known.to_owned()), kind, "no".to_owned(), now());
}

fn begin(pass: &mut Pass<u8>, version: &str) {
    pass.begin("a", 1, |_| Some(version.to_owned()));
}

#[test]
fn failures_are_counted_until_a_success_or_another_spec_or_resource() {
    let mut pass = Pass::default();
    begin(&mut pass, "7");
    fails(&mut pass, FaultKind::Transient, "7");
    fails(&mut pass, FaultKind::Quota, "7");
    assert_eq!(
        (pass.faults()[&1].attempts, pass.faults()[&1].kind),
        (2, FaultKind::Quota)
    );
    pass.succeeded(&1);
    assert!(pass.faults().is_empty());
    fails(&mut pass, FaultKind::Transient, "7");
    assert_eq!(pass.begin("a", 2, |_| None), Changed::Spec);
    assert!(pass.faults().is_empty(), "a changed spec is tried at once");
    fails(&mut pass, FaultKind::Transient, "7");
    assert_eq!(pass.begin("b", 2, |_| None), Changed::Resource);
    assert!(pass.faults().is_empty());
    assert_eq!(pass.begin("b", 2, |_| None), Changed::Nothing);
}

#[test]
fn after_a_conflict_it_rests_longer_each_time_until_another_version_is_known() {
    let mut pass = Pass::default();
    let rest = |pass: &Pass<u8>| pass.rests(&1, now()).map(|again| (again - now()).num_milliseconds());
    for expected in [100, 200, 400] {
        begin(&mut pass, "7");
        fails(&mut pass, FaultKind::Conflict, "7");
        assert_eq!(rest(&pass), Some(expected));
    }
    begin(&mut pass, "8");
    assert_eq!(rest(&pass), None);
    fails(&mut pass, FaultKind::Conflict, "8");
    assert_eq!(rest(&pass), Some(100), "counted anew");
    // Something else is wrong: another version mends nothing.
    fails(&mut pass, FaultKind::Forbidden, "8");
    begin(&mut pass, "9");
    assert_eq!(pass.faults()[&1].kind, FaultKind::Forbidden);
    assert_eq!(rest(&pass), None, "only a conflict is sure to be met again");
}
