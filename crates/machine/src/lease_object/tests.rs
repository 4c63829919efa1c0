use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use super::*;
use crate::archive::Progress;
use crate::protocol::{Incarnation, Lsn, MemberId, Timeline};
use crate::units::Bytes;

fn empty() -> Lease {
    let metadata = ObjectMeta {
        name: Some("orders".to_owned()),
        uid: Some("u".to_owned()),
        resource_version: Some("7".to_owned()),
        ..ObjectMeta::default()
    };
    Lease { metadata, spec: None }
}

fn content() -> LeaseContent {
    let member = MemberId::new(0, "11112222-0000", 1);
    let incarnation = Incarnation {
        pod: "orders-0".to_owned(),
        pod_uid: "p".to_owned(),
        run: "r".to_owned(),
        member: member.clone(),
    };
    LeaseContent {
        uid: "u".to_owned(),
        version: "7".to_owned(),
        holder: Some(HolderRecord {
            incarnation,
            address: "10.0.0.1".to_owned(),
            timeline: Some(Timeline(1)),
            serving: true,
        }),
        duration: Millis(10_000),
        epoch: Epoch(1),
        system_id: Some("74".to_owned()),
        release: Some(Release {
            member,
            position: None,
            successor: None,
        }),
        rule: SyncRule::any(1, [MemberId::new(1, "bb", 2)]),
        timeline: Some(Timeline(3)),
        lossy: Some(Timeline(2)),
        history: vec![Fork {
            timeline: Timeline(1),
            end: crate::protocol::Lsn(7),
        }],
        members: BTreeMap::new(),
        positions: BTreeMap::from([(
            "orders-0".to_owned(),
            Position {
                timeline: Timeline(1),
                lsn: Lsn(5),
            },
        )]),
        archive: Some(ArchiveRecord {
            progress: Progress {
                up_to: Some(Position {
                    timeline: Timeline(3),
                    lsn: Lsn(4),
                }),
                waiting: Bytes(1),
            },
            fault: Some("denied".to_owned()),
            ..ArchiveRecord::default()
        }),
    }
}

#[test]
fn reads_what_it_writes() {
    let content = content();
    let record = read(&write(&empty(), &content, MicroTime(Timestamp::UNIX_EPOCH))).unwrap();
    assert_eq!(record.holder, content.holder);
    assert_eq!(record.release, content.release);
    assert_eq!(record.positions, content.positions);
    assert_eq!(
        (record.epoch, record.duration, record.system_id),
        (Epoch(1), Millis(10_000), content.system_id)
    );
    assert_eq!(record.renewal.as_deref(), Some("1970-01-01T00:00:00Z"));
}

#[test]
fn a_fresh_lease_is_held_by_nobody() {
    let record = read(&empty()).unwrap();
    assert_eq!((record.holder, record.epoch, record.system_id), (None, Epoch(0), None));
}

#[test]
fn a_lease_edited_by_hand_is_not_understood() {
    let mut lease = write(&empty(), &content(), MicroTime(Timestamp::UNIX_EPOCH));
    lease.spec.as_mut().unwrap().holder_identity = Some("somebody".to_owned());
    assert!(matches!(read(&lease), Err(InvalidLease::TwoHolders { .. })));
    lease
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .insert(LEASE_HOLDER.to_owned(), "{".to_owned());
    assert!(matches!(read(&lease), Err(InvalidLease::Annotation { .. })));
}

#[test]
fn a_rule_of_another_kind_is_not_understood() {
    let mut lease = write(&empty(), &content(), MicroTime(Timestamp::UNIX_EPOCH));
    assert!(read(&lease).is_ok());
    for rule in [
        "FIRST 1 (cdb_1_bb_00000002)",
        r#"{"required":1,"names":["cdb_1_bb_00000002"],"method":"FIRST"}"#,
        r#"{"required":-1}"#,
        r#"{"required":1,"names":["*"]}"#,
    ] {
        let annotations = lease.metadata.annotations.as_mut().unwrap();
        annotations.insert(LEASE_RULE.to_owned(), rule.to_owned());
        assert!(matches!(read(&lease), Err(InvalidLease::Annotation { .. })), "{rule}");
    }
}

#[test]
fn a_lease_that_names_what_is_no_member_is_not_understood() {
    let whole = write(&empty(), &content(), MicroTime(Timestamp::UNIX_EPOCH));
    let report = r#"{"podUid": "p", "address": "10.0.0.2", "state": "Streaming", "settings": "s", "agentVersion": "0",
            "member": "cdb_1_11112222_00000001"}"#;
    let members = format!(r#"{{"orders-1": {report}}}"#);
    let with = |name: &str, value: &str| {
        let mut lease = whole.clone();
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(name.to_owned(), value.to_owned());
        read(&lease)
    };
    let holder = text(&whole, LEASE_HOLDER).unwrap();
    for (name, value, member) in [
        (LEASE_MEMBERS, members.as_str(), "cdb_1_11112222_00000001"),
        (LEASE_HOLDER, holder, "cdb_0_11112222_00000001"),
        (
            LEASE_RELEASE,
            r#"{"member": "cdb_0_11112222_00000001"}"#,
            "cdb_0_11112222_00000001",
        ),
    ] {
        assert!(with(name, value).is_ok(), "{name}");
        for other in ["cdb_1_11112222_00000001/CN=another", "cdb_1_11112222_", "*", ""] {
            let refused = with(name, &value.replace(member, other));
            assert!(
                matches!(refused, Err(InvalidLease::Annotation { .. })),
                "{name}: {other}"
            );
        }
    }
}

#[test]
fn a_release_takes_the_holder_away() {
    let held = write(&empty(), &content(), MicroTime(Timestamp::UNIX_EPOCH));
    let released = LeaseContent {
        holder: None,
        ..content()
    };
    let record = read(&write(&held, &released, MicroTime(Timestamp::UNIX_EPOCH))).unwrap();
    assert_eq!((record.holder, record.release), (None, content().release));
}

#[test]
fn the_time_of_acquisition_is_that_of_the_epoch() {
    let at = |second| MicroTime(Timestamp::from_second(second).unwrap());
    let times = |lease: &Lease| {
        let spec = lease.spec.clone().unwrap();
        (spec.acquire_time, spec.renew_time)
    };
    let taken = write(&empty(), &content(), at(1));
    let renewed = write(&taken, &content(), at(2));
    assert_eq!(times(&renewed), (Some(at(1)), Some(at(2))));
    let next = LeaseContent {
        epoch: Epoch(2),
        ..content()
    };
    assert_eq!(times(&write(&renewed, &next, at(3))), (Some(at(3)), Some(at(3))));
}

#[test]
fn what_is_empty_stands_in_no_annotation() {
    let before = write(&empty(), &content(), MicroTime(Timestamp::UNIX_EPOCH));
    let nothing = LeaseContent {
        rule: SyncRule::default(),
        history: Vec::new(),
        positions: BTreeMap::new(),
        lossy: None,
        archive: None,
        ..content()
    };
    let written = write(&before, &nothing, MicroTime(Timestamp::UNIX_EPOCH));
    let has = |lease: &Lease, name| text(lease, name).is_some();
    for name in [LEASE_RULE, LEASE_HISTORY, LEASE_POSITIONS, LEASE_LOSSY, LEASE_ARCHIVE] {
        assert!(has(&before, name) && !has(&written, name), "{name}");
    }
    assert!(!has(&before, LEASE_MEMBERS) && has(&written, LEASE_TIMELINE));
}

/// The Lease after a merge patch of its annotations.
fn patched(lease: &Lease, changed: BTreeMap<&'static str, Option<String>>) -> Lease {
    let mut lease = lease.clone();
    let annotations = lease.metadata.annotations.get_or_insert_default();
    for (name, value) in changed {
        set(annotations, name, value);
    }
    lease
}

#[test]
fn what_is_said_of_one_set_of_volumes_is_kept_while_another_is_used() {
    let released = LeaseContent {
        holder: None,
        ..content()
    };
    let lease = write(&empty(), &released, MicroTime(Timestamp::UNIX_EPOCH));
    let first = read(&lease).unwrap();

    let lease = patched(&lease, volumes_changed(&lease, 1).unwrap());
    let new = read(&lease).unwrap();
    let goes_on = LeaseRecord {
        duration: first.duration,
        renewal: first.renewal.clone(),
        epoch: first.epoch,
        timeline: first.timeline,
        lossy: first.lossy,
        volume_set: 1,
        former_set: Some(0),
        ..LeaseRecord::empty("u", "7")
    };
    assert_eq!(new, goes_on, "nothing is said of the new set");

    let second = LeaseContent {
        epoch: Epoch(4),
        timeline: Some(Timeline(5)),
        system_id: Some("75".to_owned()),
        rule: SyncRule::default(),
        ..released
    };
    let lease = write(&lease, &second, MicroTime(Timestamp::UNIX_EPOCH));
    assert_eq!(
        read(&lease).unwrap().former_set,
        Some(0),
        "who writes the Lease keeps what is kept"
    );

    let back = patched(&lease, volumes_changed(&lease, 0).unwrap());
    let expected = LeaseRecord {
        epoch: Epoch(4),
        timeline: Some(Timeline(5)),
        volume_set: 0,
        former_set: Some(1),
        ..first
    };
    assert_eq!(read(&back).unwrap(), expected);
    let again = patched(&back, volumes_changed(&back, 1).unwrap());
    assert_eq!(read(&again).unwrap().system_id.as_deref(), Some("75"));

    let other = patched(&back, volumes_changed(&back, 2).unwrap());
    assert_eq!(
        read(&other).unwrap().system_id,
        None,
        "what is kept of one set is not said of another"
    );

    let forgotten = patched(&back, former_forgotten(&back).unwrap());
    let record = read(&forgotten).unwrap();
    assert_eq!((record.volume_set, record.former_set), (0, None));
    let new = patched(&forgotten, volumes_changed(&forgotten, 1).unwrap());
    assert_eq!(
        read(&new).unwrap().system_id,
        None,
        "what was forgotten does not come back"
    );
}
