//! One input of a decision, to be changed at will.

use api::backup::{BackupKind, BackupSource};
use api::operation::{Action as Asked, RecreateLease, Request, Switchover};
use api::spec::{
    ClusteredDatabaseSpec, DurabilitySpec, FailoverSpec, PostgresSpec, RetentionPolicy, SchedulingSpec, StorageSpec,
    VolumeSpec,
};
use api::status::{DeletionOutcome, DurabilityMode, MemberStatus, NotedRequest, WaitReason};
use api::{ClusteredDatabaseStatus, Phase, WantedDurability};
use chrono::{DateTime, TimeDelta, Utc};

use crate::cluster::{
    Action, Claim, Decision, Facts, ImageError, Known, Observed, OwnedObject, OwnedState, Pod, Resources,
    StatefulSetView, StorageClass, Volume, WalVolumes, Wanted, decide, due, image_in_use, status,
};
use crate::cluster::{StatusChange, StatusWrite};
use crate::protocol::{
    Epoch, HolderRecord, Incarnation, LeaseRecord, MemberId, MemberReport, MemberState, Timeline, settings_hash,
};
use crate::quorum::SyncRule;
use crate::units::{Bytes, Millis};

/// The name of every scene's database.
pub const NAME: &str = "demo";
/// Its UID.
pub const UID: &str = "11111111-2222-3333-4444-555555555555";
const GIBIBYTE: Bytes = Bytes::gib(1);
/// Stands in revisions of templates with a WAL volume.
const WITH_WAL: &str = "~wal";

/// One input of a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// What the user asks for.
    pub spec: ClusteredDatabaseSpec,
    /// See [`Wanted::resource_version`].
    pub resource_version: String,
    /// See [`Wanted::generation`].
    pub generation: i64,
    /// See [`Wanted::deleting`].
    pub deleting: bool,
    /// See [`Wanted::finalizer`].
    pub finalizer: bool,
    /// See [`Wanted::invalid`].
    pub invalid: Option<String>,
    /// See [`Wanted::revision`]. What stands behind a `+` is cpu and memory, and [`Wanted::base_revision`] goes without it.
    pub revision: String,
    /// See [`Wanted::default_image`].
    pub default_image: String,
    /// See [`Wanted::data_bytes`].
    pub data_bytes: Bytes,
    /// See [`Wanted::wal_bytes`]; of no meaning if the spec asks for no WAL volume.
    pub wal_bytes: Bytes,
    /// See [`Wanted::request`].
    pub request: Option<Request>,
    /// See [`Wanted::backup`].
    pub backup: Option<String>,
    /// See [`Wanted::backup_source`].
    pub backup_source: BackupSource,
    /// See [`Wanted::backup_kind`].
    pub backup_kind: BackupKind,
    /// See [`Wanted::deletes_archive`].
    pub deletes_archive: bool,
    /// What is observed.
    pub observed: Observed,
    /// The status as it is stored.
    pub stored: ClusteredDatabaseStatus,
    /// The time.
    pub now: DateTime<Utc>,
}

impl Scene {
    /// A resource that was just created: nothing of it exists.
    pub fn new(replicas: u32) -> Self {
        let mut observed = Observed {
            pods: Known::Known(Vec::new()),
            claims: Known::Known(Vec::new()),
            lease: Known::Known(None),
            unschedulable_nodes: Known::Known(Default::default()),
            storage_class: Known::Known(StorageClass::Present { expandable: true }),
            wal_storage_class: Known::Known(StorageClass::Present { expandable: true }),
            ..Observed::default()
        };
        for kind in OwnedObject::ALL {
            observed.children[kind] = Known::Known(OwnedState::Missing);
        }
        Self {
            spec: spec(replicas),
            resource_version: "1".to_owned(),
            generation: 1,
            deleting: false,
            finalizer: false,
            invalid: None,
            revision: "r1".to_owned(),
            default_image: "postgres:17".to_owned(),
            data_bytes: GIBIBYTE,
            wal_bytes: GIBIBYTE,
            request: None,
            backup: None,
            backup_source: BackupSource::default(),
            backup_kind: BackupKind::default(),
            deletes_archive: false,
            observed,
            stored: ClusteredDatabaseStatus::default(),
            now: DateTime::UNIX_EPOCH + TimeDelta::days(20_000),
        }
    }

    /// A database at rest: everything is as it should be, and the status says so.
    pub fn ready(replicas: u32) -> Self {
        let mut scene = Self::new(replicas);
        scene.finalizer = true;
        for kind in OwnedObject::ALL {
            scene.observed.children[kind] = Known::Known(OwnedState::Current { uid: child_uid(kind) });
        }
        scene.observed.stateful_set = Some(set(replicas));
        scene.observed.lease = Known::Known(Some(empty_lease()));
        for ordinal in 0..replicas {
            scene.add_pod(ordinal);
        }
        scene.elect(0);
        scene.remember();
        scene
    }

    /// Lets the status remember what it would after a creation with this outcome.
    fn remember(&mut self) {
        self.stored.phase = Some(Phase::Creating);
        self.stored.memo.lease_made = true;
        self.stored.memo.durability = Some(self.spec.wanted_durability(None));
        for kind in [OwnedObject::CaSecret, OwnedObject::AppSecret] {
            self.stored
                .memo
                .made
                .insert(format!("{NAME}{}", kind.suffix()), child_uid(kind));
        }
        self.stored.system_identifier = Some("7400".to_owned());
        for pod in self.pods().to_vec() {
            let member = MemberStatus {
                pod_uid: Some(pod.uid.clone()),
                claim_uid: Some(claim_uid(pod.ordinal)),
                certificate: Some("PEM".to_owned()),
                certified_key: Some(format!("key-{}", pod.ordinal)),
                ..MemberStatus::default()
            };
            self.stored.members.insert(pod.name, member);
        }
        self.store();
        self.store();
    }

    /// Adds a ready pod with its claim and, if there is a Lease, its report as a streaming standby.
    pub fn add_pod(&mut self, ordinal: u32) {
        let pod = pod(ordinal, &self.revision, self.now);
        let report = self.report(&pod, MemberState::Streaming);
        self.pods_mut().push(pod.clone());
        let claim = claim(ordinal, self.data_bytes);
        self.claims_mut().push(claim);
        if let Some(lease) = self.lease_mut() {
            lease.members.insert(pod.name, report);
        }
    }

    /// Makes the pod with this ordinal the serving holder of the Lease.
    pub fn elect(&mut self, ordinal: u32) {
        for pod in self.pods_mut() {
            pod.role = Some(if pod.ordinal == ordinal { "primary" } else { "replica" }.to_owned());
        }
        let Some(pod) = self.pods().iter().find(|pod| pod.ordinal == ordinal).cloned() else {
            return;
        };
        let Some(lease) = self.lease_mut() else { return };
        lease.epoch = Epoch(lease.epoch.0 + 1);
        lease.system_id = Some("7400".to_owned());
        lease.holder = Some(holder(&pod, true));
        for (name, report) in &mut lease.members {
            report.state = if *name == pod.name {
                MemberState::Primary
            } else {
                MemberState::Streaming
            };
        }
        self.synchronize();
    }

    /// Puts the rule in force that the spec asks for, with all standbys that have reported and are to stay.
    pub fn synchronize(&mut self) {
        let required = self.spec.wanted_durability(self.stored.memo.durability).standbys;
        let replicas = u32::try_from(self.spec.replicas).unwrap_or(0);
        let stays = |name: &MemberId| name.ordinal().is_some_and(|ordinal| ordinal < replicas);
        let Some(lease) = self.lease_mut() else { return };
        let holder = lease.holder.as_ref().map(|holder| holder.incarnation.member.clone());
        let names = lease.members.values().map(|report| report.member.clone());
        let standbys = names.filter(|name| Some(name) != holder.as_ref() && stays(name));
        lease.rule = if required == 0 {
            SyncRule::default()
        } else {
            SyncRule::any(required, standbys)
        };
    }

    /// What the agent of `pod` says of itself.
    pub fn report(&self, pod: &Pod, state: MemberState) -> MemberReport {
        MemberReport {
            pod_uid: pod.uid.clone(),
            member: member_id(pod.ordinal),
            address: format!("10.0.0.{}", pod.ordinal),
            state,
            settings: settings_hash(&self.spec.postgres.settings()),
            pending_restart: false,
            lowers_limits: false,
            settings_error: None,
            public_key: Some(format!("key-{}", pod.ordinal)),
            server_version: Some("17.6".to_owned()),
            agent_version: "0.1.0".to_owned(),
            fault: None,
            kept: Default::default(),
            impostors: Default::default(),
            full: Default::default(),
            certificates: None,
            replication_certificate: None,
        }
    }

    /// The pods.
    pub fn pods(&self) -> &[Pod] {
        self.observed.pods.get().map_or(&[], Vec::as_slice)
    }

    /// The pods, known from now on.
    pub fn pods_mut(&mut self) -> &mut Vec<Pod> {
        known_mut(&mut self.observed.pods)
    }

    /// The pod with this ordinal.
    ///
    /// # Panics
    /// If there is none.
    pub fn pod_mut(&mut self, ordinal: u32) -> &mut Pod {
        let found = self.pods_mut().iter_mut().find(|pod| pod.ordinal == ordinal);
        found.unwrap_or_else(|| panic!("the scene has no pod {ordinal}"))
    }

    /// The node of the pod with this ordinal takes new pods, or does so no more.
    pub fn cordon(&mut self, ordinal: u32, cordoned: bool) {
        let nodes = known_mut(&mut self.observed.unschedulable_nodes);
        let node = format!("node-{ordinal}");
        if cordoned {
            nodes.insert(node);
        } else {
            nodes.remove(&node);
        }
    }

    /// The claims, known from now on.
    pub fn claims_mut(&mut self) -> &mut Vec<Claim> {
        known_mut(&mut self.observed.claims)
    }

    /// These steps of the deletion are over.
    pub fn end_deletion_steps(&mut self, steps: &[&str]) {
        let over = steps.iter().map(|step| DeletionOutcome {
            step: (*step).to_owned(),
            outcome: String::new(),
            time: self.now,
        });
        self.stored.deletion.extend(over);
    }

    /// The steps of the deletion that are over.
    pub fn deletion_steps(&self) -> Vec<&str> {
        self.stored.deletion.iter().map(|done| done.step.as_str()).collect()
    }

    /// The Lease, if there is one.
    pub fn lease_mut(&mut self) -> Option<&mut LeaseRecord> {
        known_mut(&mut self.observed.lease).as_mut()
    }

    /// The report of the pod with this ordinal in the Lease.
    ///
    /// # Panics
    /// If there is none.
    pub fn report_mut(&mut self, ordinal: u32) -> &mut MemberReport {
        let found = self
            .lease_mut()
            .and_then(|lease| lease.members.get_mut(&format!("{NAME}-{ordinal}")));
        found.unwrap_or_else(|| panic!("the scene has no report of pod {ordinal}"))
    }

    /// Sets where an object stands.
    pub fn set_child(&mut self, kind: OwnedObject, state: OwnedState) {
        self.observed.children[kind] = Known::Known(state);
    }

    /// Changes the spec as a user would.
    pub fn edit(&mut self, change: impl FnOnce(&mut ClusteredDatabaseSpec)) {
        change(&mut self.spec);
        self.generation += 1;
    }

    /// Changes the number of instances, as a user would.
    pub fn scale(&mut self, replicas: i32) {
        let chosen = self.stored.memo.durability;
        self.edit(|spec| set_replicas(spec, replicas, chosen));
    }

    /// As [`Self::scale`], and the operator has recorded what commits are to wait for.
    pub fn scaled(&mut self, replicas: i32) {
        self.scale(replicas);
        self.stored.memo.durability = Some(self.spec.wanted_durability(self.stored.memo.durability));
    }

    /// Asks for a WAL volume, as a user would.
    pub fn add_wal_volume(&mut self) {
        self.edit(|spec| spec.storage.wal = Some(one_gib()));
        let (base, resources) = self.revision.split_once('+').unwrap_or((&self.revision, ""));
        let resources = Some(resources).filter(|resources| !resources.is_empty());
        self.revision = format!(
            "{base}{WITH_WAL}{}",
            resources.map_or(String::new(), |text| format!("+{text}"))
        );
    }

    /// Asks for none any more, as a user would.
    pub fn take_wal_volume_back(&mut self) {
        self.edit(|spec| spec.storage.wal = None);
        self.revision = bare_of(&self.revision);
    }

    /// A database at rest whose members have had WAL volumes from the beginning.
    pub fn with_wal(replicas: u32) -> Self {
        let mut scene = Self::ready(replicas);
        scene.add_wal_volume();
        let revision = scene.revision.clone();
        for ordinal in 0..replicas {
            let claim = wal_claim(ordinal, scene.wal_bytes);
            let pod = scene.pod_mut(ordinal);
            pod.wal_claim = Some(claim.name.clone());
            (pod.revision, pod.base_revision) = (Some(revision.clone()), Some(revision.clone()));
            scene.claims_mut().push(claim);
        }
        if let Some(set) = &mut scene.observed.stateful_set {
            set.wal = WalVolumes::Templated;
        }
        scene.store();
        scene.store();
        scene
    }

    /// Calls `with` with what is wanted.
    pub fn with_wanted<R>(&self, with: impl FnOnce(&Wanted<'_>) -> R) -> R {
        let settings = settings_hash(&self.spec.postgres.settings());
        with(&Wanted {
            name: NAME,
            uid: UID,
            resource_version: &self.resource_version,
            generation: self.generation,
            deleting: self.deleting,
            finalizer: self.finalizer,
            spec: &self.spec,
            invalid: self.invalid.as_deref(),
            settings: &settings,
            revision: &self.revision,
            base_revision: base_of(&self.revision),
            bare_revision: &bare_of(&self.revision),
            image: image_in_use(&self.spec.postgres, &self.stored, &self.default_image, None),
            default_image: &self.default_image,
            restarted_by: self.stored.memo.restarted_by.as_deref(),
            data_bytes: self.data_bytes,
            wal_bytes: self.spec.storage.wal.as_ref().map(|_| self.wal_bytes),
            request: self.request.as_ref(),
            backup: self.backup.as_deref(),
            backup_source: self.backup_source,
            backup_kind: self.backup_kind,
            deletes_archive: self.deletes_archive,
        })
    }

    /// Calls `with` with what the rules see.
    pub fn with_facts<R>(&self, with: impl FnOnce(&Facts<'_>) -> R) -> R {
        self.with_wanted(|wanted| with(&Facts::new(wanted, &self.observed, &self.stored, self.now)))
    }

    /// The operation with this UID asks for a switchover.
    pub fn ask_switchover(&mut self, to: &str, uid: &str) {
        self.request = Some(switchover(to, uid));
    }

    /// An operation asks for this.
    pub fn ask(&mut self, action: Asked) {
        let uid = format!("operation-{}", action.name());
        self.request = Some(Request { uid, action });
    }

    /// An operation that asks for a lost Lease to be made again has been noted.
    pub fn ask_for_a_lease(&mut self) {
        self.ask(Asked::RecreateLease(RecreateLease {}));
        let since = self.now;
        self.stored.memo.request = self.request.clone().map(|request| NotedRequest {
            request,
            since,
            outcome: None,
            message: None,
        });
    }

    /// The decision about it.
    pub fn decide(&self) -> Decision {
        self.with_wanted(|wanted| decide(wanted, &self.observed, &self.stored, self.now))
    }

    /// The reason of the wait, and the object; panics if something is done instead.
    pub fn awaits(&self) -> (WaitReason, String) {
        let Action::Wait(waiting) = self.decide().action else {
            panic!("{:?}", self.decide())
        };
        (waiting.reason, waiting.object.unwrap_or_default())
    }

    /// What is waited for, and who can end it; panics if something is done instead.
    pub fn waiting(&self) -> (String, String) {
        let Action::Wait(waiting) = self.decide().action else {
            panic!("{:?}", self.decide())
        };
        (waiting.what.into_owned(), waiting.who_can_end_it.into_owned())
    }

    /// The status that belongs to `decision`, with a certificate for each key that it signs.
    pub fn status(&self, decision: &Decision) -> ClusteredDatabaseStatus {
        let mut certificates = std::collections::BTreeMap::new();
        if let crate::cluster::Action::WriteStatus(changes) = &decision.action {
            for change in changes {
                if let StatusChange::SignCertificate { pod, public_key, .. } = change {
                    certificates.insert(pod.clone(), format!("PEM of {public_key}"));
                }
            }
        }
        self.with_wanted(|wanted| status(wanted, &self.observed, &self.stored, decision, &certificates, self.now))
    }

    /// Whether the status of `decision` is due.
    pub fn due(&self, decision: &Decision) -> StatusWrite {
        due(&self.stored, &self.status(decision), decision)
    }

    /// Decides, and stores the status without carrying anything out.
    pub fn store(&mut self) -> Decision {
        let decision = self.decide();
        self.stored = self.status(&decision);
        decision
    }

    /// The pod that is replaced next, by name.
    pub fn replaced(&self) -> Option<String> {
        match self.decide().action {
            Action::ReplacePod(pod) => Some(pod.name().to_owned()),
            _ => None,
        }
    }

    /// The pod whose PostgreSQL gets the permit to restart next, by name.
    pub fn permitted(&self) -> Option<String> {
        match self.decide().action {
            Action::WriteStatus(changes) => changes.into_iter().find_map(|change| match change {
                StatusChange::PermitRestart(permit) => Some(permit.pod),
                _ => None,
            }),
            _ => None,
        }
    }

    /// A pod's complaint that its image cannot be had.
    pub fn image_error(&self) -> ImageError {
        ImageError {
            reason: "ErrImagePull".to_owned(),
            image: "nope".to_owned(),
            message: String::new(),
            since: self.now,
        }
    }

    /// Three members with settings that need a restart.
    pub fn pending_restart(lowers: bool) -> Self {
        let mut scene = Self::ready(3);
        for ordinal in 0..3 {
            let report = scene.report_mut(ordinal);
            (report.pending_restart, report.lowers_limits) = (true, lowers);
        }
        scene
    }
}

/// Sets the number of instances as a user may: with too few for what commits wait for, the API server demands that the promise
/// be lowered as well.
pub fn set_replicas(spec: &mut ClusteredDatabaseSpec, replicas: i32, chosen: Option<WantedDurability>) {
    let promised = spec.wanted_durability(chosen).standbys;
    spec.replicas = replicas;
    if i64::try_from(promised).is_ok_and(|promised| promised >= i64::from(replicas)) {
        spec.durability = DurabilitySpec {
            mode: Some(DurabilityMode::Async),
            synchronous_standbys: None,
        };
    }
}

/// What an operation with this UID asks for.
pub fn switchover(to: &str, uid: &str) -> Request {
    let action = Asked::Switchover(Switchover { to: to.to_owned() });
    let uid = uid.to_owned();
    Request { uid, action }
}

fn known_mut<T: Default>(value: &mut Known<T>) -> &mut T {
    if matches!(value, Known::Unknown) {
        *value = Known::Known(T::default());
    }
    match value {
        Known::Known(value) => value,
        Known::Unknown => unreachable!("it was made known"),
    }
}

fn one_gib() -> VolumeSpec {
    VolumeSpec {
        size: "1Gi".to_owned(),
        storage_class_name: None,
        volume_attributes_class_name: None,
        metadata: Default::default(),
    }
}

fn spec(replicas: u32) -> ClusteredDatabaseSpec {
    ClusteredDatabaseSpec {
        replicas: i32::try_from(replicas).unwrap_or(i32::MAX),
        postgres: PostgresSpec::default(),
        storage: StorageSpec {
            data: one_gib(),
            wal: None,
            retention_policy: RetentionPolicy::default(),
        },
        resources: None,
        failover: FailoverSpec::default(),
        durability: Default::default(),
        primary: Default::default(),
        bootstrap: None,
        scheduling: SchedulingSpec::default(),
        service_account: Default::default(),
        pods: Default::default(),
        services: Default::default(),
        backup: None,
        network_policy: Default::default(),
        certificates: None,
        fenced: Vec::new(),
        hibernated: false,
        paused: false,
    }
}

/// A revision without its cpu and memory.
pub(super) fn base_of(revision: &str) -> &str {
    revision.split_once('+').map_or(revision, |(base, _)| base)
}

/// A revision without its WAL volume.
pub(super) fn bare_of(revision: &str) -> String {
    revision.replace(WITH_WAL, "")
}

pub(super) fn child_uid(kind: OwnedObject) -> String {
    format!("uid-{kind:?}")
}

pub(super) fn set(replicas: u32) -> StatefulSetView {
    StatefulSetView {
        uid: child_uid(OwnedObject::StatefulSet),
        resource_version: "1".to_owned(),
        replicas,
        wal: WalVolumes::default(),
    }
}

pub(super) fn claim_uid(ordinal: u32) -> String {
    format!("{ordinal:08x}-aaaa-bbbb-cccc-dddddddddddd")
}

pub(super) fn member_id(ordinal: u32) -> MemberId {
    MemberId::new(ordinal, &claim_uid(ordinal), 7)
}

pub(super) fn pod(ordinal: u32, revision: &str, now: DateTime<Utc>) -> Pod {
    Pod {
        name: format!("{NAME}-{ordinal}"),
        ordinal,
        uid: format!("pod-{ordinal}"),
        resource_version: "1".to_owned(),
        created: now,
        node: Some(format!("node-{ordinal}")),
        unschedulable: None,
        ready: true,
        ready_since: None,
        unstarted: false,
        restarts: 0,
        terminating: false,
        revision: Some(revision.to_owned()),
        base_revision: Some(base_of(revision).to_owned()),
        wal_claim: None,
        resizing: None,
        resources: Resources::Given,
        role: Some("replica".to_owned()),
        token_revoked: false,
        image_error: None,
        trouble: None,
        bootstrap_error: None,
    }
}

pub(super) fn claim(ordinal: u32, requested: Bytes) -> Claim {
    Claim {
        name: format!("data-{NAME}-{ordinal}"),
        volume: Volume::Data,
        set: 0,
        ordinal,
        uid: claim_uid(ordinal),
        resource_version: "1".to_owned(),
        terminating: false,
        bound: true,
        had_volume: true,
        created: DateTime::UNIX_EPOCH,
        class: Some("standard".to_owned()),
        selected_node: Some(format!("node-{ordinal}")),
        requested,
        capacity: None,
        growth: None,
        cluster_uid: Some(UID.to_owned()),
        differs: false,
    }
}

pub(in crate::cluster) fn wal_claim(ordinal: u32, requested: Bytes) -> Claim {
    let name = format!("wal-{NAME}-{ordinal}");
    Claim {
        uid: format!("uid-{name}"),
        name,
        volume: Volume::Wal,
        ..claim(ordinal, requested)
    }
}

pub(super) fn holder(pod: &Pod, serving: bool) -> HolderRecord {
    HolderRecord {
        incarnation: Incarnation {
            pod: pod.name.clone(),
            pod_uid: pod.uid.clone(),
            run: "run".to_owned(),
            member: member_id(pod.ordinal),
        },
        address: format!("10.0.0.{}", pod.ordinal),
        timeline: serving.then_some(Timeline(1)),
        serving,
    }
}

/// A Lease as the operator makes it.
pub fn empty_lease() -> LeaseRecord {
    LeaseRecord {
        duration: Millis::seconds(10),
        ..LeaseRecord::empty(&child_uid(OwnedObject::Lease), "1")
    }
}
