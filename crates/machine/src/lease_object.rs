//! The Lease as Kubernetes keeps it, to and from [`LeaseRecord`].

use std::collections::BTreeMap;

use api::names::{
    LEASE_ARCHIVE, LEASE_HISTORY, LEASE_HOLDER, LEASE_LOSSY, LEASE_MEMBERS, LEASE_POSITIONS, LEASE_RELEASE, LEASE_RULE,
    LEASE_SYSTEM_ID, LEASE_TIMELINE, LEASE_VOLUMES,
};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::archive::ArchiveRecord;
use crate::json::{self, InvalidJson};
use crate::protocol::{Epoch, Fork, HolderRecord, LeaseRecord, MemberReport, Position, Release, Timeline};
use crate::quorum::SyncRule;
use crate::units::Millis;

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
    /// How long it stays valid without a renewal, in whole seconds.
    pub duration: Millis,
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
    /// See [`LeaseRecord::archive`].
    pub archive: Option<ArchiveRecord>,
}

/// Understands a Lease.
///
/// # Errors
/// Fails if an entry is missing, is not understood or is out of its range, or if spec and annotation name two holders.
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
    let volumes = volumes(lease)?;
    Ok(LeaseRecord {
        volume_set: volumes.set,
        former_set: volumes.former.map(|former| former.set),
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
        duration: Millis::seconds(number("spec.leaseDurationSeconds", seconds.unwrap_or(0))?),
        epoch: Epoch(epoch),
        system_id,
        release: annotation(lease, LEASE_RELEASE)?,
        rule: annotation(lease, LEASE_RULE)?.unwrap_or_default(),
        timeline: annotation(lease, LEASE_TIMELINE)?,
        lossy: annotation(lease, LEASE_LOSSY)?,
        history: annotation(lease, LEASE_HISTORY)?.unwrap_or_default(),
        members: annotation(lease, LEASE_MEMBERS)?.unwrap_or_default(),
        positions: annotation(lease, LEASE_POSITIONS)?.unwrap_or_default(),
        archive: annotation(lease, LEASE_ARCHIVE)?,
    })
}

/// What [`LEASE_VOLUMES`] says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Volumes {
    /// The set of volumes that the Lease's content is about.
    set: u32,
    /// The former one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    former: Option<Former>,
}

/// The content that the Lease had for another set of volumes when its holder released it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Former {
    set: u32,
    /// The annotations of [`OF_A_SET`].
    content: BTreeMap<String, String>,
}

/// The annotations that belong to one set of volumes. The others, and the epoch, are common to all: the timeline grows over all sets, so that no
/// timeline is given twice, and what may be lost by the lossy one counts for all before it.
const OF_A_SET: [&str; 7] = [
    LEASE_ARCHIVE,
    LEASE_HISTORY,
    LEASE_MEMBERS,
    LEASE_POSITIONS,
    LEASE_RELEASE,
    LEASE_RULE,
    LEASE_SYSTEM_ID,
];

fn volumes(lease: &Lease) -> Result<Volumes, InvalidLease> {
    Ok(annotation(lease, LEASE_VOLUMES)?.unwrap_or_default())
}

/// The changes of annotations that switch a Lease, which nobody holds, to the set of volumes `to`. The content of the present set is kept
/// in [`LEASE_VOLUMES`], and the content that was kept for `to` is restored. A new set has none: its first member is made by the operator's
/// grant. `None` removes an annotation.
///
/// # Errors
/// Fails if the Lease cannot be understood.
pub fn volumes_changed(lease: &Lease, to: u32) -> Result<BTreeMap<&'static str, Option<String>>, InvalidLease> {
    let before = volumes(lease)?;
    let content = |name: &'static str| Some((name.to_owned(), text(lease, name)?.to_owned()));
    let kept = Former {
        set: before.set,
        content: OF_A_SET.into_iter().filter_map(content).collect(),
    };
    let mut back = before
        .former
        .filter(|former| former.set == to)
        .map(|former| former.content);
    let mut changed: BTreeMap<_, _> = OF_A_SET
        .into_iter()
        .map(|name| (name, back.as_mut().and_then(|back| back.remove(name))))
        .collect();
    let now = Volumes {
        set: to,
        former: Some(kept),
    };
    changed.insert(LEASE_VOLUMES, Some(written(&now)));
    Ok(changed)
}

/// The number of the set of volumes in an empty Lease, as the value of [`LEASE_VOLUMES`]; `None` for the first set.
pub fn volumes_of(set: u32) -> Option<String> {
    (set > 0).then(|| written(&Volumes { set, former: None }))
}

/// The changes of annotations that remove the content kept for the former set of volumes.
///
/// # Errors
/// Fails if the Lease cannot be understood.
pub fn former_forgotten(lease: &Lease) -> Result<BTreeMap<&'static str, Option<String>>, InvalidLease> {
    let now = Volumes {
        set: volumes(lease)?.set,
        former: None,
    };
    Ok(BTreeMap::from([(LEASE_VOLUMES, Some(written(&now)))]))
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
    set(annotations, LEASE_ARCHIVE, content.archive.as_ref().map(written));
    let before = base.spec.as_ref();
    let transitions = content.epoch.transitions();
    let same_epoch = before.and_then(|spec| spec.lease_transitions) == Some(transitions);
    let acquired = before.and_then(|spec| spec.acquire_time.clone()).filter(|_| same_epoch);
    lease.spec = Some(LeaseSpec {
        holder_identity: content.holder.as_ref().map(|holder| holder.incarnation.identity()),
        lease_duration_seconds: i32::try_from(content.duration.in_seconds()).ok(),
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
mod tests;
