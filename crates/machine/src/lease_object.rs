//! The Lease as Kubernetes keeps it, to and from [`LeaseRecord`].

use std::collections::BTreeMap;

use api::names::{
    LEASE_HISTORY, LEASE_HOLDER, LEASE_LOSSY, LEASE_MEMBERS, LEASE_POSITIONS, LEASE_RELEASE, LEASE_RULE,
    LEASE_SYSTEM_ID, LEASE_TIMELINE,
};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::json::{self, InvalidJson};
use crate::protocol::{Epoch, Fork, HolderRecord, LeaseRecord, MemberReport, Position, Release, Timeline};
use crate::quorum::SyncRule;

/// Why a Lease cannot be understood. Treated like a Lease that could not be read: nobody acts on it.
#[derive(Debug, thiserror::Error)]
pub enum InvalidLease {
    /// A field that the API server always sets is missing.
    #[error("it has no {0}")]
    Incomplete(&'static str),
    /// An annotation is not the JSON that it should be.
    #[error("its annotation {annotation} cannot be read")]
    Annotation {
        /// Name of the annotation.
        annotation: &'static str,
        /// What is wrong with it, and where.
        source: InvalidJson,
    },
    /// A number of `spec` that no Lease of ours has.
    #[error("its {field} is {value}, which is out of range")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// What it says.
        value: i32,
    },
    /// `spec.holderIdentity` and the holder annotation name different holders.
    #[error("its holder is {spec:?} by its spec and {annotation:?} by its annotation")]
    TwoHolders {
        /// `spec.holderIdentity`.
        spec: String,
        /// [`HolderRecord`]'s identity.
        annotation: String,
    },
}

/// The new content of the Lease, for one compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseContent {
    /// `metadata.uid` and `metadata.resourceVersion` of the Lease that this content was computed from.
    pub uid: String,
    /// See `uid`.
    pub version: String,
    /// Who holds it from now on; `None` releases it.
    pub holder: Option<HolderRecord>,
    /// How long it stays valid without a renewal, in milliseconds (whole seconds).
    pub duration: u64,
    /// See [`LeaseRecord::epoch`].
    pub epoch: Epoch,
    /// See [`LeaseRecord::system_id`].
    pub system_id: Option<String>,
    /// See [`LeaseRecord::release`].
    pub release: Option<Release>,
    /// See [`LeaseRecord::rule`].
    pub rule: SyncRule,
    /// See [`LeaseRecord::timeline`].
    pub timeline: Option<Timeline>,
    /// See [`LeaseRecord::lossy`].
    pub lossy: Option<Timeline>,
    /// See [`LeaseRecord::history`].
    pub history: Vec<Fork>,
    /// See [`LeaseRecord::members`].
    pub members: BTreeMap<String, MemberReport>,
    /// See [`LeaseRecord::positions`].
    pub positions: BTreeMap<String, Position>,
}

/// Understands a Lease.
pub fn read(lease: &Lease) -> Result<LeaseRecord, InvalidLease> {
    let spec = lease.spec.as_ref();
    let named = spec
        .and_then(|spec| spec.holder_identity.clone())
        .filter(|holder| !holder.is_empty());
    let described: Option<HolderRecord> = annotation(lease, LEASE_HOLDER)?;
    let identity = described.as_ref().map(|holder| holder.incarnation.identity());
    if named != identity {
        return Err(InvalidLease::TwoHolders {
            spec: named.unwrap_or_default(),
            annotation: identity.unwrap_or_default(),
        });
    }
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
    let system_id = text(lease, LEASE_SYSTEM_ID).map(str::to_owned);
    let epoch = match spec.and_then(|spec| spec.lease_transitions) {
        Some(transitions) => number("spec.leaseTransitions", transitions)?,
        // Nobody has held it yet.
        None if system_id.is_none() => 0,
        None => return Err(InvalidLease::Incomplete("spec.leaseTransitions")),
    };
    Ok(LeaseRecord {
        version: lease
            .metadata
            .resource_version
            .clone()
            .ok_or(InvalidLease::Incomplete("resourceVersion"))?,
        uid: lease.metadata.uid.clone().ok_or(InvalidLease::Incomplete("uid"))?,
        holder: described,
        renewal: spec
            .and_then(|spec| spec.renew_time.as_ref())
            .map(|time| time.0.to_string()),
        duration: number("spec.leaseDurationSeconds", seconds.unwrap_or(0))? * 1_000,
        epoch: Epoch(epoch),
        system_id,
        release: annotation(lease, LEASE_RELEASE)?,
        rule: annotation(lease, LEASE_RULE)?.unwrap_or_default(),
        timeline: annotation(lease, LEASE_TIMELINE)?,
        lossy: annotation(lease, LEASE_LOSSY)?,
        history: annotation(lease, LEASE_HISTORY)?.unwrap_or_default(),
        members: annotation(lease, LEASE_MEMBERS)?.unwrap_or_default(),
        positions: annotation(lease, LEASE_POSITIONS)?.unwrap_or_default(),
    })
}

/// Lays `content` over `base` (for its name, labels and owners), renewed at `now` by the writer's clock.
pub fn write(base: &Lease, content: &LeaseContent, now: MicroTime) -> Lease {
    let mut lease = base.clone();
    lease.metadata.uid = Some(content.uid.clone());
    lease.metadata.resource_version = Some(content.version.clone());
    lease.metadata.managed_fields = None;
    let annotations = lease.metadata.annotations.get_or_insert_default();
    set(annotations, LEASE_HOLDER, content.holder.as_ref().map(written));
    set(annotations, LEASE_SYSTEM_ID, content.system_id.clone());
    set(annotations, LEASE_RELEASE, content.release.as_ref().map(written));
    set(
        annotations,
        LEASE_RULE,
        content.rule.is_synchronous().then(|| written(&content.rule)),
    );
    set(
        annotations,
        LEASE_TIMELINE,
        content.timeline.map(|timeline| written(&timeline)),
    );
    set(
        annotations,
        LEASE_LOSSY,
        content.lossy.map(|timeline| written(&timeline)),
    );
    set(
        annotations,
        LEASE_HISTORY,
        (!content.history.is_empty()).then(|| written(&content.history)),
    );
    set(
        annotations,
        LEASE_MEMBERS,
        (!content.members.is_empty()).then(|| written(&content.members)),
    );
    set(
        annotations,
        LEASE_POSITIONS,
        (!content.positions.is_empty()).then(|| written(&content.positions)),
    );
    let before = base.spec.as_ref();
    let transitions = content.epoch.transitions();
    let same_epoch = before.and_then(|spec| spec.lease_transitions) == Some(transitions);
    let acquired = before.and_then(|spec| spec.acquire_time.clone()).filter(|_| same_epoch);
    lease.spec = Some(LeaseSpec {
        holder_identity: content.holder.as_ref().map(|holder| holder.incarnation.identity()),
        lease_duration_seconds: i32::try_from(content.duration.div_ceil(1_000)).ok(),
        lease_transitions: Some(transitions),
        acquire_time: acquired.or_else(|| Some(now.clone())),
        renew_time: Some(now),
        ..LeaseSpec::default()
    });
    lease
}

fn text<'a>(lease: &'a Lease, name: &str) -> Option<&'a str> {
    lease.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

fn annotation<T: DeserializeOwned>(lease: &Lease, name: &'static str) -> Result<Option<T>, InvalidLease> {
    text(lease, name)
        .map(|text| json::parse(text.as_bytes()))
        .transpose()
        .map_err(|source| InvalidLease::Annotation {
            annotation: name,
            source,
        })
}

fn number(field: &'static str, value: i32) -> Result<u64, InvalidLease> {
    u64::try_from(value).map_err(|_| InvalidLease::OutOfRange { field, value })
}

/// These types always serialise: their maps have text keys and nothing in them can fail.
fn written<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn set(annotations: &mut BTreeMap<String, String>, name: &str, value: Option<String>) {
    match value {
        Some(value) => annotations.insert(name.to_owned(), value),
        None => annotations.remove(name),
    };
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::protocol::{Incarnation, Lsn, MemberId, Timeline};

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
            duration: 10_000,
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
            (Epoch(1), 10_000, content.system_id)
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
            ..content()
        };
        let written = write(&before, &nothing, MicroTime(Timestamp::UNIX_EPOCH));
        let has = |lease: &Lease, name| text(lease, name).is_some();
        for name in [LEASE_RULE, LEASE_HISTORY, LEASE_POSITIONS, LEASE_LOSSY] {
            assert!(has(&before, name) && !has(&written, name), "{name}");
        }
        assert!(!has(&before, LEASE_MEMBERS) && has(&written, LEASE_TIMELINE));
    }
}
