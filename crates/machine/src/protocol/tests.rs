use super::*;

#[test]
fn every_part_tells_one_run_from_another() {
    let holder = lease().holder.unwrap().incarnation;
    let others: [fn(&mut Incarnation); 4] = [
        |o| o.pod = "orders-1".to_owned(),
        |o| o.pod_uid = "q".to_owned(),
        |o| o.run = "s".to_owned(),
        |o| o.member = MemberId::new(0, "11112222-0000", 2),
    ];
    for (index, change) in others.iter().enumerate() {
        let mut other = holder.clone();
        change(&mut other);
        assert_ne!(other.identity(), holder.identity(), "{index}");
    }
}

#[test]
fn a_report_says_that_it_lowers_limits_only_if_it_does() {
    let mut report = lease().members["orders-0"].clone();
    for lowers in [false, true] {
        report.lowers_limits = lowers;
        let written = serde_json::to_value(&report).unwrap();
        assert_eq!(written.get("lowersLimits").is_some(), lowers);
        assert_eq!(serde_json::from_value::<MemberReport>(written).unwrap(), report);
    }
}

#[test]
fn a_report_is_bounded_in_each_field() {
    let report = || lease().members["orders-0"].clone();
    assert_eq!(report().check(), Ok(()));
    let long = "x".repeat(1_025);
    type Spoil = fn(&mut MemberReport, &str);
    let spoil: [(&str, Spoil); 10] = [
        ("address", |report, text| report.address = text.to_owned()),
        ("podUid", |report, text| report.pod_uid = text.to_owned()),
        ("settings", |report, text| report.settings = text.to_owned()),
        ("agentVersion", |report, text| report.agent_version = text.to_owned()),
        ("serverVersion", |report, text| {
            report.server_version = Some(text.to_owned())
        }),
        ("certificates", |report, text| {
            report.certificates = Some(text.to_owned())
        }),
        ("replicationCertificate", |report, text| {
            report.replication_certificate = Some(text.to_owned())
        }),
        ("publicKey", |report, text| report.public_key = Some(text.to_owned())),
        ("kept", |report, text| report.kept.extend([text.to_owned()])),
        ("impostors", |report, text| report.impostors.extend([text.to_owned()])),
    ];
    for (field, spoil) in spoil {
        for text in [&*long, "a\u{0}b", "a\nb", "ä"] {
            let mut report = report();
            spoil(&mut report, text);
            let refused = report.check().unwrap_err();
            assert!(
                refused.starts_with(&format!("{field}: ")) && refused.len() < 200,
                "{refused}"
            );
        }
    }
    let mut wordy = report();
    wordy.fault = Some("ä\u{0}\n".repeat(2_000));
    wordy.kept = (0..9).map(|number| number.to_string()).collect();
    wordy.cut();
    let fault = wordy.fault.clone().unwrap();
    assert!(
        fault.len() <= WORDS && fault.ends_with('…') && fault.starts_with("ä  ä"),
        "{fault}"
    );
    assert_eq!(wordy.kept.len(), KEPT);
    let once = wordy.clone();
    wordy.cut();
    assert_eq!(
        wordy.fault.unwrap().len(),
        once.fault.unwrap().len(),
        "cut once is cut for good"
    );
}

#[test]
fn data_leaves_a_history_where_the_first_of_both_ends_on_their_newest_common_timeline() {
    let forks = |ends: &[(u32, u64)]| -> Vec<Fork> {
        let fork = |&(timeline, end): &(u32, u64)| Fork {
            timeline: Timeline(timeline),
            end: Lsn(end),
        };
        ends.iter().map(fork).collect()
    };
    let parts = |own: &[(u32, u64)], timeline, others: &[(u32, u64)]| {
        parting(&forks(own), Timeline(timeline), &forks(others)).0
    };
    assert_eq!(parts(&[], 1, &[(1, 10), (2, 20)]), 10);
    assert_eq!(parts(&[(1, 10)], 2, &[(1, 10), (2, 20)]), 20);
    assert_eq!(parts(&[(1, 8)], 2, &[(1, 10)]), 8, "it left before that");
    assert_eq!(parts(&[(1, 12)], 2, &[(1, 10)]), 10);
    assert_eq!(parts(&[], 2, &[(1, 10)]), 0, "its ancestors are not known");
}

#[test]
fn settings_hash_tells_names_from_values() {
    let of = |name: &str, value: &str| settings_hash(&BTreeMap::from([(name.to_owned(), value.to_owned())]));
    assert_eq!(settings_hash(&BTreeMap::new()), "cbf29ce484222325");
    assert_ne!(of("work_mem", "4MB"), of("work_mem", "8MB"));
    assert_ne!(of("ab", "c"), of("a", "bc"));
    // What other versions have written is compared with it.
    assert_eq!(of("work_mem", "4MB"), "fccd85898e728d97");
}

fn at(timeline: u32, lsn: u64) -> Position {
    Position {
        timeline: Timeline(timeline),
        lsn: Lsn(lsn),
    }
}

/// A Lease that `orders-0` holds and has written with its WAL at 100 of timeline 3.
fn lease() -> LeaseRecord {
    let member = MemberId::new(0, "11112222-0000", 1);
    let report = serde_json::json!({
        "podUid": "p", "member": member, "address": "10.0.0.1", "state": MemberState::Streaming, "settings": "", "agentVersion": ""
    });
    let incarnation = Incarnation {
        pod: "orders-0".to_owned(),
        pod_uid: "p".to_owned(),
        run: "r".to_owned(),
        member,
    };
    LeaseRecord {
        version: "7".to_owned(),
        uid: "u".to_owned(),
        holder: Some(HolderRecord {
            incarnation,
            address: "10.0.0.1".to_owned(),
            timeline: Some(Timeline(3)),
            serving: true,
        }),
        renewal: None,
        duration: Millis(10_000),
        epoch: Epoch(3),
        system_id: Some("74".to_owned()),
        release: None,
        rule: SyncRule::default(),
        timeline: Some(Timeline(3)),
        lossy: None,
        history: vec![Fork {
            timeline: Timeline(2),
            end: Lsn(50),
        }],
        members: BTreeMap::from([("orders-0".to_owned(), serde_json::from_value(report).unwrap())]),
        positions: BTreeMap::from([("orders-0".to_owned(), at(3, 100)), ("orders-1".to_owned(), at(3, 200))]),
        archive: None,
        volume_set: 0,
        former_set: None,
    }
}

#[test]
fn what_a_member_lacks_is_counted_from_where_the_last_holder_was() {
    let mut record = lease();
    let lacks = |record: &LeaseRecord, timeline, lsn| record.lacks(at(timeline, lsn)).0;
    assert_eq!(lacks(&record, 3, 40), 60);
    assert_eq!((lacks(&record, 3, 100), lacks(&record, 3, 140)), (0, 0));
    assert_eq!(lacks(&record, 2, 30), 70);
    assert_eq!(lacks(&record, 2, 80), 50, "what is behind the fork is its own");
    assert_eq!(lacks(&record, 1, 99), u64::MAX);
    assert_eq!(lacks(&record, 4, 0), 0, "nothing is known of that");
    let holder = record.holder.take().unwrap();
    assert_eq!(record.left(), None);
    record.release = Some(Release {
        member: holder.incarnation.member,
        position: None,
        successor: None,
    });
    assert_eq!(record.left(), Some(at(3, 100)), "as it was written last");
    record.release.as_mut().unwrap().position = Some(at(3, 120));
    assert_eq!((record.left(), lacks(&record, 3, 40)), (Some(at(3, 120)), 80));
    record.release.as_mut().unwrap().position = None;
    record.members.clear();
    assert_eq!((record.left(), lacks(&record, 3, 40)), (None, 0));
}

#[test]
fn what_does_not_follow_may_have_more_where_commits_waited_for_nobody_or_an_election_took_a_loss() {
    let mut record = lease();
    assert!(record.may_have_lost(Timeline(9)));
    record.rule = SyncRule::any(1, [MemberId::new(1, "11112222-0000", 1)]);
    assert!(!record.may_have_lost(Timeline(1)));
    record.lossy = Some(Timeline(3));
    assert!(record.may_have_lost(Timeline(2)) && !record.may_have_lost(Timeline(3)));
}

#[test]
fn a_lease_that_was_made_again_names_whose_wal_is_to_be_known() {
    let (mut record, other) = (lease(), MemberId::new(1, "11112222-0000", 1));
    record.rule = SyncRule::any(1, [other.clone()]);
    let last = record.holder.take().unwrap().incarnation.member;
    record.release = Some(Release {
        member: last.clone(),
        position: None,
        successor: None,
    });
    assert!(record.to_be_heard().is_empty(), "there is a report");
    record.members.clear();
    assert_eq!(record.to_be_heard(), BTreeSet::from([&last, &other]));
    record.system_id = None;
    assert!(record.to_be_heard().is_empty(), "there are no data yet");
}

#[test]
fn member_ids_are_valid_slot_names() {
    let id = MemberId::new(2, "1A2B3c4d-5e6f-7081-92a3-b4c5d6e7f809", 0xBEEF);
    assert_eq!(id.as_str(), "cdb_2_1a2b3c4d_0000beef");
    assert_eq!(MemberId::parse(id.as_str()), Some(id));
    assert_eq!(MemberId::parse("cdb_1\"; DROP ROLE postgres"), None);
    assert_eq!(MemberId::parse("1_1a2b3c4d_0000beef"), None);
    for other in [
        "cdb_2_1a2b3c4d",
        "cdb_2_1a2b3c4d_",
        "cdb_2_1a2b3c4d_0000beef_x",
        "cdb_2_1a2b3c4d_0000beef0",
        "cdb_2_1a2b3c4d_0000beeg",
        "cdb_2_1a2b3c4d0_0000beef",
        "cdb_02_1a2b3c4d_0000beef",
        "cdb_+2_1a2b3c4d_0000beef",
        "cdb_4294967296_1a2b3c4d_0000beef",
        "cdb_members",
    ] {
        assert_eq!(MemberId::parse(other), None, "{other}");
        assert!(serde_json::from_value::<MemberId>(other.into()).is_err(), "{other}");
    }
}
