//! What follows from one observation, found once for all rules. Borrows; makes nothing.
//!
//! The files below this one say what several families of rules ask about the same thing; none of them knows a rule.

pub(super) mod fenced;
pub(super) mod hibernation;
pub(super) mod late;
pub(super) mod request;
pub(super) mod resize;
pub(super) mod restarts;
pub(super) mod rollout;
pub(super) mod switchover;
pub(super) mod volumes;
pub(super) mod wal;

use api::ClusteredDatabaseStatus;
use api::names::{DATA_VOLUME, WAL_VOLUME, parse_claim, volume_in};
use api::status::{LateObject, MemberStatus, WaitReason};
use chrono::{DateTime, Utc};

use super::observed::{Claim, Known, Observed, OwnedState, Pod, StorageClass, Target, Volume};
use super::owned::{OwnedObject, is_wanted};
use super::wait::WaitKey;
use super::wanted::Wanted;
use crate::archive::ArchiveRecord;
use crate::protocol::{HolderRecord, LeaseRecord, MemberId, MemberReport, MemberState};
use crate::reconcile::ObjectVersion;

/// The input of a decision, and what every rule asks about it.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// What the user wants.
    pub wanted: &'a Wanted<'a>,
    /// What is observed.
    pub observed: &'a Observed,
    /// The status as it is stored.
    pub status: &'a ClusteredDatabaseStatus,
    /// The time.
    pub now: DateTime<Utc>,
    /// The Lease's content, if it is known and there is one. An empty one in the place of one that is lost says nothing.
    pub lease: Option<&'a LeaseRecord>,
}

impl<'a> Facts<'a> {
    /// The facts of one observation.
    pub fn new(
        wanted: &'a Wanted<'a>,
        observed: &'a Observed,
        status: &'a ClusteredDatabaseStatus,
        now: DateTime<Utc>,
    ) -> Self {
        let lease = observed.lease.get().and_then(Option::as_ref);
        let lease = lease.filter(|lease| status.system_identifier.is_none() || !lease.is_empty());
        // Somebody else's says nothing of this database.
        let is_foreign = matches!(
            observed.children[OwnedObject::Lease].get(),
            Some(OwnedState::Foreign { .. })
        );
        let lease = lease.filter(|_| !is_foreign);
        Self {
            wanted,
            observed,
            status,
            now,
            lease,
        }
    }

    /// What the holder says of the archive.
    pub fn archive(&self) -> Option<&'a ArchiveRecord> {
        self.lease?.archive.as_ref()
    }

    /// Pods, empty if unknown.
    pub fn pods(&self) -> &'a [Pod] {
        self.observed.pods.get().map_or(&[], Vec::as_slice)
    }

    /// Claims, empty if unknown.
    pub fn claims(&self) -> &'a [Claim] {
        self.observed.claims.get().map_or(&[], Vec::as_slice)
    }

    /// The pod with this ordinal.
    pub fn pod(&self, ordinal: u32) -> Option<&'a Pod> {
        self.pods().iter().find(|pod| pod.ordinal == ordinal)
    }

    /// The data claim of this ordinal.
    pub fn data_claim(&self, ordinal: u32) -> Option<&'a Claim> {
        self.claims()
            .iter()
            .find(|claim| claim.ordinal == ordinal && claim.volume == Volume::Data)
    }

    /// The claim was made for this database, and not for one of the same name before it.
    pub fn owns(&self, claim: &Claim) -> bool {
        claim.cluster_uid.as_deref() == Some(self.wanted.uid)
    }

    /// The WAL claim of this ordinal.
    pub fn wal_claim(&self, ordinal: u32) -> Option<&'a Claim> {
        self.claims()
            .iter()
            .find(|claim| claim.ordinal == ordinal && claim.volume == Volume::Wal)
    }

    /// The name of a pod's claim in the set of volumes in use.
    pub fn claim_name(&self, volume: Volume, pod: &str) -> String {
        let volume = match volume {
            Volume::Data => DATA_VOLUME,
            Volume::Wal => WAL_VOLUME,
        };
        format!("{}-{pod}", volume_in(volume, self.status.memo.volume_set()))
    }

    /// Whether such volumes can be had, if that is known and they are wanted.
    pub fn storage_class(&self, volume: Volume) -> Option<&'a StorageClass> {
        match volume {
            Volume::Data => self.observed.storage_class.get(),
            Volume::Wal => {
                self.wanted.spec.storage.wal.as_ref()?;
                self.observed.wal_storage_class.get()
            }
        }
    }

    /// Where an object stands, if that is known.
    pub fn child(&self, kind: OwnedObject) -> Option<&'a OwnedState> {
        self.observed.children[kind].get()
    }

    /// It is there, and ours.
    pub fn exists(&self, kind: OwnedObject) -> bool {
        matches!(
            self.child(kind),
            Some(OwnedState::Current { .. } | OwnedState::Drifted { .. })
        )
    }

    /// Whether an object is known to be missing.
    pub fn missing(&self, kind: OwnedObject) -> bool {
        self.child(kind) == Some(&OwnedState::Missing)
    }

    /// An object's name.
    pub fn child_name(&self, kind: OwnedObject) -> String {
        format!("{}{}", self.wanted.name, kind.suffix())
    }

    /// Who holds the Lease.
    pub fn holder(&self) -> Option<&'a HolderRecord> {
        self.lease?.holder.as_ref()
    }

    /// The pod of the holder's very incarnation, if it still exists.
    pub fn holder_pod(&self) -> Option<&'a Pod> {
        let holder = &self.holder()?.incarnation;
        self.pods()
            .iter()
            .find(|pod| pod.name == holder.pod && pod.uid == holder.pod_uid)
    }

    /// The primary's pod: it holds the Lease, says that it serves, and is ready.
    pub fn primary(&self) -> Option<&'a Pod> {
        self.holder().filter(|holder| holder.serving)?;
        self.holder_pod().filter(|pod| pod.ready && !pod.terminating)
    }

    /// What a pod's agent says of itself, if it speaks of this very pod.
    pub fn report(&self, pod: &Pod) -> Option<&'a MemberReport> {
        self.lease?
            .members
            .get(&pod.name)
            .filter(|report| report.pod_uid == pod.uid)
    }

    /// What the status holds on a pod, if it speaks of this very pod.
    pub fn member(&self, pod: &Pod) -> Option<&'a MemberStatus> {
        self.status
            .members
            .get(&pod.name)
            .filter(|member| member.pod_uid.as_deref() == Some(pod.uid.as_str()))
    }

    /// The database was made: it has a system identifier.
    pub fn bootstrapped(&self) -> bool {
        self.status.system_identifier.is_some() || self.lease.is_some_and(|lease| lease.system_id.is_some())
    }

    /// The first primary has served: it does, or an epoch after the first has begun.
    pub fn has_served(&self) -> bool {
        let serves = |lease: &LeaseRecord| lease.epoch.0 > 1 || lease.holder.as_ref().is_some_and(|it| it.serving);
        self.lease.is_some_and(serves)
    }

    /// This pod serves in its role. A member that has fallen silent may do anything; other faults are told by members
    /// that may well serve (crashes before, a task that failed).
    pub fn serves(&self, pod: &Pod) -> bool {
        pod.ready
            && !pod.terminating
            && self
                .report(pod)
                .filter(|report| !report.is_silent())
                .is_some_and(|report| match report.state {
                    MemberState::Streaming => true,
                    // What a primary of before said last is not true any more.
                    MemberState::Primary => self.holder_pod().is_some_and(|holder| holder.uid == pod.uid),
                    MemberState::Waiting
                    | MemberState::Initializing
                    | MemberState::Cloning
                    | MemberState::Starting
                    | MemberState::CatchingUp
                    | MemberState::Stopped => false,
                })
    }

    /// Somebody empties the pod's node on purpose, as far as that is known.
    pub fn is_cordoned(&self, pod: &Pod) -> bool {
        let cordoned = self.observed.unschedulable_nodes.get();
        let node = pod.node.as_ref();
        cordoned.is_some_and(|nodes| node.is_some_and(|node| nodes.contains(node)))
    }

    /// This pod has a WAL volume if the spec asks for one, and it is its own.
    pub fn has_wal_volume(&self, pod: &Pod) -> bool {
        let named =
            |claim: &str| parse_claim(claim).is_some_and(|(volume, _, of)| volume == WAL_VOLUME && of == pod.name);
        self.wanted.spec.storage.wal.is_none() || pod.wal_claim.as_deref().is_some_and(named)
    }

    /// Since when this has been waited for: by the wait in the status, or as one of several late objects.
    pub fn waiting_since(&self, key: &WaitKey) -> DateTime<Utc> {
        let late = self.status.memo.late.iter();
        let mut late = late.filter(|late| late.reason == key.reason && Some(&late.object) == key.object.as_ref());
        let waiting = self.status.waiting.as_ref();
        let waiting = waiting.filter(|waiting| waiting.reason == Some(key.reason) && waiting.object == key.object);
        let since = late.next().map(|late| late.since);
        since.or(waiting.map(|waiting| waiting.since)).unwrap_or(self.now)
    }

    /// These objects, each with the time since when it has been waited for.
    pub(super) fn late(&self, keys: impl Iterator<Item = WaitKey>) -> Vec<LateObject> {
        let late = keys.filter_map(|key| {
            let since = self.waiting_since(&key);
            let (reason, object) = (key.reason, key.object?);
            Some(LateObject { reason, object, since })
        });
        late.collect()
    }

    /// How many instances there are to be by the StatefulSet as it is now; as many as wanted while there is none.
    pub fn expected(&self) -> u32 {
        self.observed
            .stateful_set
            .as_ref()
            .map_or(self.wanted.replicas(), |set| set.replicas)
    }

    /// All expected members but `except` exist and serve in their roles.
    pub fn all_serve_except(&self, except: Option<u32>) -> bool {
        (0..self.expected())
            .filter(|ordinal| Some(*ordinal) != except)
            .all(|ordinal| self.pod(ordinal).is_some_and(|pod| self.serves(pod)))
    }

    /// This pod's agent has the wanted settings in force.
    pub fn current_settings(&self, pod: &Pod) -> bool {
        self.report(pod).is_some_and(|report| {
            report.settings == self.wanted.settings && !report.pending_restart && report.settings_error.is_none()
        })
    }

    /// The same, and it keeps no limit that stands higher only because the primary has more.
    pub fn settled_settings(&self, pod: &Pod) -> bool {
        let keeps = self.report(pod).is_some_and(|report| report.lowers_limits);
        self.current_settings(pod) && !keeps
    }

    /// Everything that the rules look at could be read.
    pub fn all_known(&self) -> bool {
        matches!(self.observed.pods, Known::Known(_))
            && matches!(self.observed.claims, Known::Known(_))
            && matches!(self.observed.lease, Known::Known(_))
            && self.wanted_children().all(|kind| self.child(kind).is_some())
    }

    /// The kinds of the objects that the spec asks for.
    pub fn wanted_children(&self) -> impl Iterator<Item = OwnedObject> {
        let spec = self.wanted.spec;
        OwnedObject::ALL.into_iter().filter(move |kind| is_wanted(spec, *kind))
    }

    /// Each object is as it should be: one that the spec does not ask for is gone, or somebody else's.
    pub fn children_are_current(&self) -> bool {
        OwnedObject::ALL
            .into_iter()
            .all(|kind| match (is_wanted(self.wanted.spec, kind), self.child(kind)) {
                (true, state) => matches!(state, Some(OwnedState::Current { .. })),
                (false, state) => !matches!(state, Some(OwnedState::Drifted { .. })),
            })
    }

    /// UID under which an object was recorded as made.
    pub fn recorded_uid(&self, kind: OwnedObject) -> Option<&'a str> {
        let made = self.status.memo.made.iter();
        made.into_iter()
            .find(|(name, _)| name.strip_prefix(self.wanted.name) == Some(kind.suffix()))
            .map(|(_, uid)| uid.as_str())
    }

    /// The ordinal of a member of the status, from its pod's name.
    pub fn ordinal(&self, pod: &str) -> Option<u32> {
        pod.strip_prefix(self.wanted.name)?.strip_prefix('-')?.parse().ok()
    }

    /// When the stored phase began.
    pub fn phase_since(&self) -> DateTime<Utc> {
        self.status.memo.phase_since.unwrap_or(self.now)
    }
}

impl WaitKey {
    /// About one of the database's objects.
    pub fn child(facts: &Facts<'_>, reason: WaitReason, kind: OwnedObject) -> Self {
        Self::of(reason, kind.kind(), &facts.child_name(kind))
    }

    /// About what an action is done to.
    pub fn target(facts: &Facts<'_>, reason: WaitReason, target: &Target) -> Self {
        match target {
            Target::Resource | Target::Status => Self::of(reason, "cdb", facts.wanted.name),
            Target::Child(kind) => Self::child(facts, reason, *kind),
            Target::Pod(name) | Target::Resize(name) | Target::Certificate(name) => Self::pod(reason, name),
            Target::Claim(name) => Self::claim(reason, name),
            Target::Backup(name) => Self::of(reason, "dbb", name),
            Target::Drill(name) => Self::of(reason, "cdb", name),
            Target::Snapshot(name) => Self::of(reason, "volumesnapshot", name),
        }
    }
}

/// A pod at the version that was seen.
pub(super) fn exact(pod: &Pod) -> ObjectVersion {
    ObjectVersion::new(&pod.name, &pod.uid, &pod.resource_version)
}

/// A claim at the version that was seen.
pub(super) fn exact_claim(claim: &Claim) -> ObjectVersion {
    ObjectVersion::new(&claim.name, &claim.uid, &claim.resource_version)
}

/// Whether this identity was made by the pod with `ordinal` on the claim `claim_uid` (see [`MemberId::new`]).
pub(super) fn made_on(member: &MemberId, ordinal: u32, claim_uid: &str) -> bool {
    let mut parts = member.as_str().split('_').skip(1);
    let same_ordinal = parts.next().and_then(|text| text.parse().ok()) == Some(ordinal);
    let digits = claim_uid
        .bytes()
        .filter(u8::is_ascii_hexdigit)
        .take(8)
        .map(|byte| byte.to_ascii_lowercase());
    same_ordinal && parts.next().is_some_and(|claim| claim.bytes().eq(digits))
}

/// Names in a sentence: `a, b`.
pub(super) fn list<'n>(names: impl Iterator<Item = &'n str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// So much of the API server's words, or a webhook's, stands in a condition, in characters: what was wrong stands first.
const WORDS: usize = 300;

pub(super) fn shortened(message: &str) -> String {
    match message.char_indices().nth(WORDS) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Scene;
    use super::*;

    #[test]
    fn a_pod_that_was_made_again_holds_nothing() {
        let mut scene = Scene::ready(3);
        assert!(scene.with_facts(|facts| facts.primary().is_some()));
        scene.pod_mut(0).uid = "new".to_owned();
        assert!(scene.with_facts(|facts| facts.holder_pod().is_none() && facts.primary().is_none()));
    }

    #[test]
    fn all_is_known_only_if_every_part_is() {
        let unread: [fn(&mut Observed); 4] = [
            |observed| observed.pods = Known::Unknown,
            |observed| observed.claims = Known::Unknown,
            |observed| observed.lease = Known::Unknown,
            |observed| observed.children[OwnedObject::Role] = Known::Unknown,
        ];
        assert!(Scene::ready(3).with_facts(|facts| facts.all_known()));
        for (index, unread) in unread.into_iter().enumerate() {
            let mut scene = Scene::ready(3);
            unread(&mut scene.observed);
            assert!(!scene.with_facts(|facts| facts.all_known()), "{index}");
        }
    }
}
