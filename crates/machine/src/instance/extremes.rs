//! Numbers at the ends of their ranges, in every input. They are refused by name, or decided on without a panic and
//! without wrapping.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde_json::Value;

use super::fixtures::*;
use super::*;
use crate::lease_object::{self, LeaseContent};
use crate::protocol::{Epoch, Lsn, MemberId, MemberReport, Timeline, UNUSED};
use crate::quorum::SyncRule;
use crate::units::Millis;

const SITUATIONS: [fn() -> Observed; 9] = [
    blank,
    made_first,
    primary,
    restarted,
    standby,
    silenced,
    || asking(2),
    || promised(Epoch::MAX.0),
    elected,
];

/// The Lease object that reads as the situation's record.
fn lease(observed: &Observed) -> Lease {
    let record = observed.lease.record.is().expect("a record").clone();
    let content = LeaseContent {
        uid: record.uid,
        version: record.version,
        holder: record.holder,
        duration: record.duration,
        epoch: record.epoch,
        system_id: record.system_id,
        release: record.release,
        rule: record.rule,
        timeline: record.timeline,
        lossy: record.lossy,
        history: record.history,
        members: record.members,
        positions: record.positions,
        archive: record.archive,
    };
    written(&content)
}

fn written(content: &LeaseContent) -> Lease {
    let base = Lease {
        metadata: ObjectMeta::default(),
        spec: None,
    };
    lease_object::write(&base, content, MicroTime(Timestamp::UNIX_EPOCH))
}

/// A value that replaces one in a valid input.
fn extreme() -> impl Strategy<Value = Value> {
    let numbers = [
        "0",
        "1",
        "-1",
        "2147483646",
        "2147483647",
        "2147483648",
        "4294967295",
        "4294967296",
    ];
    let beyond = [
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775808",
        "1e300",
        "0.5",
    ];
    let others = [
        r#""""#,
        r#""FFFFFFFF/FFFFFFFF""#,
        r#""100000000/0""#,
        r#""-1""#,
        "null",
        "[]",
        "{}",
        "true",
    ];
    let all = numbers.into_iter().chain(beyond).chain(others);
    let parsed: Vec<Value> = all.map(|text| serde_json::from_str(text).expect("JSON")).collect();
    prop_oneof![
        10 => prop::sample::select(parsed),
        1 => any::<u64>().prop_map(Value::from),
        1 => "\\PC{0,80}".prop_map(Value::from)
    ]
}

/// Collects the paths of all values in `value` that hold no other values.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(at, value)| (at.to_string(), value))
            .collect(),
        _ => return found.push(path.to_owned()),
    };
    for (name, value) in inner {
        leaves(value, &format!("{path}/{name}"), found);
    }
}

/// Decides at several times, until nothing is decided. Everything that is written into the Lease must read back as it
/// was meant.
fn decide_all(observed: &Observed) -> Result<(), TestCaseError> {
    for now in [0, 1_200, SILENT, SILENT + 60_000, u64::MAX] {
        let decision = decide(observed, &settled(), BootTime(now));
        if let Action::WriteLease { content, .. } = decision.action {
            let record = observed.lease.record.is().expect("a record");
            prop_assert!(
                content.epoch >= record.epoch,
                "{:?} {}",
                content.epoch,
                decision.because
            );
            prop_assert!(content.timeline >= record.timeline, "{:?}", content.timeline);
            let read = lease_object::read(&written(&content));
            let read = read.map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
            prop_assert_eq!((read.epoch, read.timeline), (content.epoch, content.timeline));
            prop_assert_eq!(read.positions, content.positions);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn each_value_of_a_lease(
        situation in prop::sample::select(SITUATIONS.to_vec()),
        annotation: prop::sample::Index,
        at: prop::sample::Index,
        by in extreme(),
    ) {
        let mut observed = situation();
        let mut lease = lease(&observed);
        let annotations = lease.metadata.annotations.as_mut().expect("annotations");
        if let Some(name) = annotations.keys().nth(annotation.index(annotations.len().max(1))).cloned() {
            let mut value: Value = serde_json::from_str(&annotations[&name]).unwrap_or(Value::Null);
            let mut paths = Vec::new();
            leaves(&value, "", &mut paths);
            let path = paths[at.index(paths.len())].clone();
            *value.pointer_mut(&path).expect("a value") = by;
            annotations.insert(name.clone(), value.to_string());
            match lease_object::read(&lease) {
                Ok(record) => {
                    observed.lease.record = Reading::Is(record);
                    decide_all(&observed)?;
                }
                Err(error) => {
                    let source = std::error::Error::source(&error).map_or(String::new(), ToString::to_string);
                    let words = format!("{error}: {source}");
                    let mut names = path.rsplit('/');
                    let field = names.find(|name| name.parse::<usize>().is_err()).unwrap_or_default();
                    // The error names no text of the holder, only the annotation.
                    let named = name == api::names::LEASE_HOLDER || words.contains(field);
                    let holder = matches!(error, lease_object::InvalidLease::TwoHolders { .. });
                    prop_assert!(holder || words.contains(&name) && named, "{path}: {words}");
                }
            }
        }
    }

    #[test]
    fn the_numbers_of_its_spec(
        situation in prop::sample::select(SITUATIONS.to_vec()),
        transitions in prop::option::of(number()),
        seconds in prop::option::of(number()),
    ) {
        let mut observed = situation();
        let mut lease = lease(&observed);
        let spec = lease.spec.as_mut().expect("a spec");
        (spec.lease_transitions, spec.lease_duration_seconds) = (transitions, seconds);
        match lease_object::read(&lease) {
            Ok(record) => {
                prop_assert_eq!(i64::try_from(record.epoch.0).unwrap(), i64::from(transitions.unwrap_or(0)));
                prop_assert_eq!(record.duration, Millis::seconds(u64::try_from(seconds.unwrap_or(0)).unwrap()));
                observed.lease.record = Reading::Is(record);
                decide_all(&observed)?;
            }
            Err(error) => {
                let words = error.to_string();
                let missing = transitions.is_none() && words.contains("leaseTransitions");
                prop_assert!(missing || transitions < Some(0) && words.contains("leaseTransitions")
                    || seconds < Some(0) && words.contains("leaseDurationSeconds"), "{words}");
            }
        }
    }

    #[test]
    fn what_others_and_the_volume_say(
        situation in prop::sample::select(SITUATIONS.to_vec()),
        promised in count(),
        timeline in count(),
        lsn: u64,
        status in prop::option::of(count()),
    ) {
        let mut observed = situation();
        let epoch = Epoch::new(promised).unwrap_or(Epoch::MAX);
        let position = Position {
            timeline: Timeline::new(timeline).unwrap_or(Timeline::MAX),
            lsn: Lsn(lsn),
        };
        for peer in observed.peers.values_mut() {
            (peer.promised, peer.position, peer.replayed) = (epoch, Some(position), Some(Lsn(!lsn)));
        }
        for answer in observed.promises.values_mut() {
            (answer.reply.promised, answer.reply.position) = (epoch, Some(position));
        }
        if let Some(status) = status {
            cluster(&mut observed).epoch = Some(Epoch(status));
        }
        observed.asked_for = Some(epoch);
        decide_all(&observed)?;
        if let Reading::Is(volume) = &mut observed.volume {
            volume.promise = Some(Promise {
                epoch,
                promoting: Some(position.timeline),
            });
        }
        decide_all(&observed)?;
    }
}

fn number() -> impl Strategy<Value = i32> {
    prop_oneof![
        prop::sample::select(vec![0, 1, -1, i32::MIN, i32::MAX, i32::MAX - 1]),
        any::<i32>()
    ]
}

fn count() -> impl Strategy<Value = u64> {
    let ends = [
        0,
        1,
        i32::MAX as u64,
        i32::MAX as u64 + 1,
        u64::from(u32::MAX),
        u64::MAX,
    ];
    prop_oneof![prop::sample::select(ends.to_vec()), any::<u64>(), 0..20_000_u64]
}

#[test]
fn a_lease_with_a_number_that_has_no_successor_is_not_taken_and_the_wait_says_so() {
    type Spoil = fn(&mut Observed);
    let spoil: [(&str, Spoil); 3] = [
        ("spec.leaseTransitions", |o| {
            record(o).epoch = Epoch::MAX;
            volume(o).promise = Some(Promise {
                epoch: Epoch::MAX,
                promoting: None,
            });
        }),
        (api::names::LEASE_TIMELINE, |o| record(o).timeline = Some(Timeline::MAX)),
        (api::names::LEASE_TIMELINE, |o| {
            record(o).timeline = Some(Timeline(UNUSED + 2))
        }),
    ];
    let now = BootTime(SILENT + 1_000);
    let elects = || {
        let mut observed = asking(2);
        third_answers(&mut observed, 2, Some(0));
        observed
    };
    assert_eq!(decide(&elects(), &settled(), now).rule, "win-election");
    for (field, spoil) in spoil {
        let mut observed = elects();
        spoil(&mut observed);
        let decision = decide(&observed, &settled(), now);
        assert!(
            !matches!(decision.action, Action::WriteLease { .. }),
            "{field}: {}",
            decision.because
        );
        let told = election::waiting(&Context::new(&observed, now), &Memo::default()).expect("words");
        assert!(told.contains(field), "{told}");
    }
    let mut far = elects();
    record(&mut far).timeline = Some(Timeline(UNUSED + 1));
    assert_eq!(
        decide(&far, &settled(), now).rule,
        "win-election",
        "that many promotions were not finished"
    );
}

/// All that members may report of themselves stays far below the 256 KiB that an object's annotations may have.
#[test]
fn the_largest_lease_is_small() {
    let pods = (0..api::names::MAX_INSTANCES).map(|ordinal| format!("{}-{ordinal}", "n".repeat(api::names::MAX_NAME)));
    let mut content = LeaseContent {
        uid: String::new(),
        version: String::new(),
        holder: None,
        duration: Millis(10_000),
        epoch: Epoch::MAX,
        system_id: Some(u64::MAX.to_string()),
        release: None,
        rule: SyncRule::default(),
        timeline: Some(Timeline::MAX),
        lossy: Some(Timeline::MAX),
        history: Vec::new(),
        members: BTreeMap::new(),
        positions: BTreeMap::new(),
        archive: None,
    };
    let position = Position {
        timeline: Timeline::MAX,
        lsn: Lsn(u64::MAX),
    };
    let fork = crate::protocol::Fork {
        timeline: Timeline::MAX,
        end: Lsn(u64::MAX),
    };
    content.history = vec![fork; lease_rules::FORKS];
    for pod in pods {
        let mut report: MemberReport = primary().peers["orders-1"].report.clone();
        let (words, long) = ("\"".repeat(100_000), "\"".repeat(64));
        report.member = MemberId::parse("cdb_1_aaaaaaaa_aaaaaaaa").expect("a member");
        report.address = "1111:1111:1111:1111:1111:1111:255.255.255.255".to_owned();
        (report.fault, report.settings_error) = (Some(words.clone()), Some("\0".repeat(100_000)));
        (report.pod_uid, report.settings, report.agent_version) = (long.clone(), long.clone(), long.clone());
        (report.server_version, report.public_key) = (Some(long.clone()), Some("\"".repeat(256)));
        report.kept = (0..100)
            .map(|number| format!("{}{number:02}", "\"".repeat(62)))
            .collect();
        report.cut();
        report.check().expect("within its bounds");
        content.rule.names.insert(report.member.clone());
        content.positions.insert(pod.clone(), position);
        content.members.insert(pod, report);
    }
    let annotations = written(&content).metadata.annotations.expect("annotations");
    let size: usize = annotations.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(size < 256 * 1024 / 3, "{size}");
}
