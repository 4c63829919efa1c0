//! Stubs of the agents: what healthy ones, in pods that run, write into the Lease and the EndpointSlice. One move of all
//! of them at a time, as in `machine::cluster::model::World`, from which their rules are taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use api::ClusteredDatabase;
use api::backup::{
    BackupKind, BackupOrigin, BackupRole, BackupSource, BackupState, BackupTask, SnapshotState, StoredBackup,
    snapshot_name,
};
use api::declared::{Drift, PlannedStatement};
use api::names::{DATA_VOLUME, parse_claim};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, TimeDelta, Utc};
use fake_api::stubs::Stubs;
use fake_api::{Call, Store, Verb};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use machine::access::{Catalogue, DatabaseChange, Published, Report, Statement, plan};
use machine::archive::RecoveryChecked;
use machine::lease_object::{LeaseContent, read, write};
use machine::protocol::{
    Epoch, FAULT_SILENT, HolderRecord, Incarnation, LeaseRecord, MemberId, MemberReport, MemberState, Release,
    Timeline, certificate_digest, settings_hash,
};
use machine::quorum::SyncRule;
use machine::units::Millis;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use serde_json::{Value, json};

use super::world::{NAME, NAMESPACE};

/// How often a holder renews.
const RENEWAL: TimeDelta = TimeDelta::seconds(5);

/// A value that PostgreSQL refuses.
pub const REFUSED: &str = "refused";

/// The agents of one database.
#[derive(Debug, Default)]
pub struct Agents {
    /// How many times the first database was made.
    pub initdbs: usize,
    /// How many times a backup was begun.
    pub backups: usize,
    /// No backup can be taken.
    pub store_is_away: bool,
    /// Who has been primary, in order.
    pub primaries: Vec<String>,
    /// They stand still: no report, no renewal, no election.
    pub still: bool,
    /// Quarantined data, by instance.
    pub kept: BTreeMap<String, BTreeSet<String>>,
    /// Nodes without power: nothing runs there.
    pub lost: BTreeSet<String>,
    /// No report reaches the primary.
    pub mute: bool,
    /// Roles, databases and grants in PostgreSQL.
    pub catalogue: Catalogue,
    /// Databases with sessions.
    pub busy: BTreeSet<String>,
    /// Claims (by UID) with a database on them, of the identity that its agent had.
    data: BTreeMap<String, MemberId>,
    /// Parameters that PostgreSQL started with, by the pod's UID.
    in_force: BTreeMap<String, BTreeMap<String, String>>,
    renewed: Option<DateTime<Utc>>,
    /// The pod (its UID) to which `-rw` was pointed last.
    routed: Option<String>,
    /// The version of everything after the last move.
    seen: Option<u64>,
}

/// A pod that runs.
struct Pod {
    name: String,
    ordinal: u32,
    uid: String,
    /// UID of the claim that is mounted.
    volume: String,
    address: String,
    ready: bool,
}

/// What the agents see, and what they make of the Lease.
struct View {
    db: ClusteredDatabase,
    pods: Vec<Pod>,
    /// Pods without power.
    dark: BTreeSet<String>,
    lease: LeaseRecord,
    /// Digest of what the Secret `-tls` holds: agents and servers load it at once.
    certificates: Option<String>,
}

impl Agents {
    /// `max_connections` that this pod's PostgreSQL started with.
    pub fn connections(&self, pod_uid: &str) -> Option<u32> {
        self.in_force.get(pod_uid).map(connections)
    }

    /// Parameters that this pod's PostgreSQL started with.
    pub fn parameters(&self, pod_uid: &str) -> BTreeMap<String, String> {
        self.in_force.get(pod_uid).cloned().unwrap_or_default()
    }

    /// The primary's agent gives PostgreSQL what is declared, and tells what became of it.
    fn settle_access(&mut self, store: &mut Store, now: DateTime<Utc>) {
        let name = format!("{NAME}-access");
        let (secret, told) = (
            store.get("secrets", NAMESPACE, &name),
            store.get("configmaps", NAMESPACE, &name),
        );
        let Some(told) = told else { return };
        let entries = secret
            .and_then(|secret| secret["data"].as_object().cloned())
            .unwrap_or_default();
        let published: Vec<Published> = entries
            .values()
            .map(|text| serde_json::from_slice(&STANDARD.decode(text.as_str().unwrap()).unwrap()).unwrap())
            .collect();
        let others: BTreeSet<&str> = entries.keys().map(String::as_str).collect();
        let mut data = serde_json::Map::new();
        for gone in told["data"].as_object().into_iter().flatten() {
            data.insert(gone.0.clone(), Value::Null);
        }
        for published in &published {
            let planned = |catalogue: &Catalogue| {
                plan(&published.declared, catalogue, &others, |stored, wanted| {
                    stored == wanted
                })
            };
            let first = planned(&self.catalogue);
            let mut steps = first.steps.iter();
            let error = steps.try_for_each(|step| match &step.statement {
                Statement::Database { name, change }
                    if matches!(change, DatabaseChange::Drop { .. }) && self.busy.contains(name) =>
                {
                    Err(format!("database {name:?} is being accessed by other users"))
                }
                statement => self.catalogue.run(step.database.as_deref().unwrap_or(""), statement),
            });
            let left = planned(&self.catalogue);
            let ran = first.steps.iter().filter(|step| !left.steps.contains(step));
            let statements: Vec<_> = ran
                .map(|step| PlannedStatement {
                    sql: format!("{:?}", step.statement),
                    takes: step.takes,
                    ..PlannedStatement::default()
                })
                .collect();
            let drift = Drift {
                at: now,
                statements,
                more: None,
            };
            let before = told["data"][published.declared.uid()].as_str();
            let before: Option<Report> = before.map(|text| serde_json::from_str(text).unwrap());
            let report = Report {
                of: published.at,
                oid: published.declared.oid(&self.catalogue),
                waits: left.refusal.is_none() && left.waits.is_some(),
                refusal: left.refusal.or(left.waits),
                error: error.err(),
                drift: Some(drift).filter(|drift| !drift.statements.is_empty()),
                ..Report::default()
            };
            let report = report.after(before.as_ref());
            data.insert(
                published.declared.uid().to_owned(),
                serde_json::to_string(&report).unwrap().into(),
            );
        }
        data.retain(|uid, text| told["data"][uid] != *text);
        if !data.is_empty() {
            let change = json!({ "data": data });
            let call = Call::new(Verb::Merge, "configmaps", NAMESPACE, &name, change);
            store.call(&call, now);
        }
    }

    /// Every agent makes one move.
    pub fn tick(&mut self, store: &mut Store, stubs: &mut Stubs, now: DateTime<Utc>) {
        let renewal = self.renewed.is_none_or(|renewed| now - renewed >= RENEWAL);
        if self.still || (self.seen == Some(store.version()) && !renewal) {
            return;
        }
        self.moves(store, stubs, now, renewal);
        self.seen = Some(store.version());
    }

    fn moves(&mut self, store: &mut Store, stubs: &mut Stubs, now: DateTime<Utc>, renewal: bool) {
        let Some((mut view, base)) = look(store, stubs, &self.lost) else {
            return;
        };
        let before = view.lease.clone();
        view.stop_the_dead();
        for index in 0..view.pods.len() {
            self.agent(&mut view, index);
        }
        for pod in &view.pods {
            match pod.ready {
                true => stubs.ready.insert(pod.uid.clone()),
                false => stubs.ready.remove(&pod.uid),
            };
        }
        view.note_the_silent(self.mute);
        if view.lease != before || (renewal && view.lease.holder.is_some()) {
            self.renewed = Some(now);
            put(store, &base, &view.lease, now);
        }
        let serving = view.lease.holder.as_ref().filter(|holder| holder.serving);
        if let Some(holder) = serving {
            self.settle_access(store, now);
            let incarnation = &holder.incarnation;
            if self.primaries.last() != Some(&incarnation.pod) {
                self.primaries.push(incarnation.pod.clone());
            }
            if self.routed.as_ref() != Some(&incarnation.pod_uid) {
                self.routed = Some(incarnation.pod_uid.clone());
                route(store, holder, view.lease.epoch, now);
            }
        }
    }

    fn agent(&mut self, view: &mut View, index: usize) {
        let name = view.pods[index].name.clone();
        let uid = view.pods[index].uid.clone();
        let Some(status) = view.db.status.clone() else { return };
        if status.intent.stop || view.db.spec.fenced.contains(&name) {
            if let Some(report) = view.lease.members.get_mut(&name) {
                report.state = MemberState::Stopped;
            }
            view.pods[index].ready = false;
            return view.stop(&uid);
        }
        let Some(member) = status.members.get(&name) else {
            return;
        };
        let (Some(claim), true) = (member.claim_uid.clone(), member.pod_uid.as_ref() == Some(&uid)) else {
            return;
        };
        let volume = view.pods[index].volume.clone();
        let identity = MemberId::new(view.pods[index].ordinal, &claim, made_of(&volume));
        let granted = status
            .intent
            .bootstrap
            .as_ref()
            .is_some_and(|grant| grant.claim_uid == claim);
        if self.data.get(&volume).is_some_and(|made| *made != identity) {
            // Data of another claim: it is left alone.
            view.pods[index].ready = false;
            return;
        }
        let has_data = self.data.contains_key(&volume);
        let report = self.report(view, index, &identity);
        let holder = view.lease.holder.as_ref();
        let holds = holder.is_some_and(|holder| holder.incarnation.pod_uid == uid);
        let untaken = view.lease.system_id.is_none();
        if holds {
            view.hold(index, report);
            view.check_recovery();
            self.backups += usize::from(view.back_up(self.store_is_away));
        } else if has_data && (view.may_take(index, &identity) || (untaken && granted)) {
            view.take(index, identity, report);
        } else if untaken {
            if granted && !has_data {
                self.initdbs += 1;
                self.data.insert(volume, identity);
            }
        } else if holder.is_some_and(|holder| holder.serving) && view.follow(index, report, has_data) {
            self.data.insert(volume, identity);
        }
    }

    /// What this instance has quarantined: not what it is to remove.
    fn kept(&mut self, view: &View, name: &str) -> BTreeSet<String> {
        let kept = self.kept.entry(name.to_owned()).or_default();
        let discard = view
            .db
            .status
            .as_ref()
            .and_then(|status| status.intent.discard.as_ref());
        if let Some(discard) = discard.filter(|discard| discard.instance == name) {
            kept.remove(&discard.name);
        }
        kept.clone()
    }

    /// What the agent says of itself, but for its state.
    fn report(&mut self, view: &View, index: usize, identity: &MemberId) -> MemberReport {
        let pod = &view.pods[index];
        let wanted = &view.db.spec.postgres.settings();
        let settings = settings_hash(wanted);
        let holder = view.lease.holder.as_ref().map(|holder| &holder.incarnation.pod_uid);
        let primary_with = holder
            .filter(|uid| **uid != pod.uid)
            .and_then(|uid| self.in_force.get(uid));
        // A standby keeps what its primary has more of, and lowers it after it.
        let raised = primary_with.is_some_and(|with| connections(wanted) < connections(with));
        let started_with = self.in_force.entry(pod.uid.clone()).or_insert_with(|| wanted.clone());
        let permit = view
            .db
            .status
            .as_ref()
            .and_then(|status| status.intent.restart.as_ref());
        if permit.is_some_and(|permit| permit.pod_uid == pod.uid && permit.settings == settings) {
            started_with.clone_from(wanted);
        }
        let refused = wanted.iter().find(|(_, value)| value.as_str() == REFUSED);
        let refused = refused.map(|(name, value)| format!("invalid value for parameter \"{name}\": \"{value}\""));
        let pending_restart = refused.is_none() && !raised && started_with != wanted;
        let lowers_limits = raised || pending_restart && connections(wanted) < connections(started_with);
        let kept = self.kept(view, &pod.name);
        let known = view
            .lease
            .members
            .get(&pod.name)
            .filter(|report| report.pod_uid == pod.uid);
        MemberReport {
            pod_uid: pod.uid.clone(),
            member: identity.clone(),
            address: pod.address.clone(),
            state: known.map_or(MemberState::Waiting, |known| known.state),
            pending_restart,
            settings,
            lowers_limits,
            settings_error: refused,
            public_key: Some(public_key(pod.ordinal).to_owned()),
            server_version: Some("17.6".to_owned()),
            agent_version: "0.1.0".to_owned(),
            fault: None,
            kept,
            impostors: BTreeSet::new(),
            full: BTreeSet::new(),
            certificates: view.certificates.clone(),
            replication_certificate: view.stored(&pod.name),
        }
    }
}

impl View {
    /// Digest of the replication certificate that an instance has stored: that in the status, at once.
    fn stored(&self, pod: &str) -> Option<String> {
        let certificate = self.db.status.as_ref()?.members.get(pod)?.certificate.as_ref()?;
        Some(certificate_digest(certificate.as_bytes(), b""))
    }

    /// A pod that is going stops its PostgreSQL cleanly, and lets the lease go; who is not wanted is forgotten.
    fn stop_the_dead(&mut self) {
        let runs = |uid: &str, pods: &[Pod]| pods.iter().any(|pod| pod.uid == uid);
        let holder = self.lease.holder.clone().map(|holder| holder.incarnation);
        if let Some(gone) = holder.filter(|holder| !runs(&holder.pod_uid, &self.pods)) {
            self.release(gone.member, None);
        }
        let replicas = self.db.spec.replicas;
        let wanted = |name: &str| ordinal(name).is_some_and(|ordinal| i64::from(ordinal) < i64::from(replicas));
        self.lease
            .members
            .retain(|name, report| wanted(name) || runs(&report.pod_uid, &self.pods));
    }

    /// The holder says who does not report to it.
    fn note_the_silent(&mut self, mute: bool) {
        let Some(holder) = &self.lease.holder else { return };
        let pod = &holder.incarnation.pod;
        let others = self.lease.members.iter_mut().filter(|(name, _)| *name != pod);
        for (_, report) in others.filter(|(name, _)| mute || self.dark.contains(*name)) {
            report.fault = Some(FAULT_SILENT.to_owned());
        }
    }

    fn stop(&mut self, uid: &str) {
        if let Some(held) = self.lease.holder.take_if(|holder| holder.incarnation.pod_uid == uid) {
            self.release(held.incarnation.member, None);
        }
    }

    fn release(&mut self, member: MemberId, successor: Option<String>) {
        self.lease.holder = None;
        self.lease.release = Some(Release {
            member,
            position: None,
            successor,
        });
    }

    /// This pod's member is the same as when it reported, and streamed.
    fn streams(&self, pod: &Pod) -> bool {
        let report = self.lease.members.get(&pod.name);
        report.is_some_and(|report| report.pod_uid == pod.uid && report.state == MemberState::Streaming)
    }

    /// Who may take a lease that is free: who released it, whoever streamed from it, and a chosen successor before all.
    fn may_take(&self, index: usize, identity: &MemberId) -> bool {
        let pod = &self.pods[index];
        let Some(release) = self.lease.release.as_ref().filter(|_| self.lease.holder.is_none()) else {
            return false;
        };
        let chosen = release.successor.as_ref();
        if chosen.is_some_and(|chosen| self.pods.iter().any(|pod| pod.name == *chosen && self.streams(pod))) {
            return chosen == Some(&pod.name);
        }
        release.member == *identity || self.streams(pod)
    }

    fn take(&mut self, index: usize, identity: MemberId, mut report: MemberReport) {
        let pod = &self.pods[index];
        self.lease.epoch = Epoch(self.lease.epoch.0 + 1);
        self.lease.system_id.get_or_insert_with(|| "7400".to_owned());
        self.lease.release = None;
        self.lease.holder = Some(HolderRecord {
            incarnation: Incarnation {
                pod: pod.name.clone(),
                pod_uid: pod.uid.clone(),
                run: "run".to_owned(),
                member: identity,
            },
            address: pod.address.clone(),
            timeline: None,
            serving: false,
        });
        report.state = MemberState::Starting;
        self.lease.members.insert(pod.name.clone(), report);
    }

    /// The primary serves, or hands over as it is told.
    fn hold(&mut self, index: usize, mut report: MemberReport) {
        let name = self.pods[index].name.clone();
        let target = self.db.status.as_ref().and_then(|status| status.intent.primary.clone());
        let successor = target.filter(|target| {
            let found = self.pods.iter().find(|pod| pod.name == *target && *target != name);
            found.is_some_and(|pod| pod.ready && self.streams(pod))
        });
        if successor.is_some() {
            report.state = MemberState::Stopped;
            self.pods[index].ready = false;
            let member = report.member.clone();
            self.lease.members.insert(name, report);
            return self.release(member, successor);
        }
        let timeline = Timeline(u32::try_from(self.lease.epoch.0).unwrap_or(1));
        if let Some(holder) = &mut self.lease.holder {
            (holder.serving, holder.timeline) = (true, Some(timeline));
        }
        report.state = MemberState::Primary;
        self.pods[index].ready = true;
        self.lease.members.insert(name, report);
        self.change_rule();
    }

    /// The holder looks whether the store has all that a recovery needs, and says that it has.
    fn check_recovery(&mut self) {
        let status = self.db.status.as_ref();
        let asked = status.and_then(|status| status.intent.recovery_check.as_ref());
        if let Some(check) = asked.filter(|_| self.lease.holder.is_some()) {
            self.lease.archive.get_or_insert_default().checked = Some(RecoveryChecked {
                uid: check.uid.clone(),
                refusal: None,
                outline: None,
            });
        }
    }

    /// The backup that is asked for is taken, of a standby that streams or of the primary: it begins in one move, and is done in the
    /// next. One of kind Snapshot is the primary's, and waits for its VolumeSnapshot. Says whether it has begun.
    fn back_up(&mut self, store_is_away: bool) -> bool {
        let asked = self.db.status.as_ref().and_then(|status| status.intent.backup.clone());
        let Some(uid) = asked.filter(|_| self.lease.holder.is_some()) else {
            return false;
        };
        let intent = self.db.status.clone().unwrap_or_default().intent;
        let is_snapshot = intent.backup_kind == BackupKind::Snapshot;
        let of_standby = intent.backup_source == BackupSource::PreferStandby && !is_snapshot;
        let name = format!("20270101T000000Z-{}-{}", if is_snapshot { "S" } else { "F" }, &uid[..4]);
        let snapshot = is_snapshot.then(|| snapshot_name("db-1a2b3c4d", &name));
        let word = intent.snapshot.filter(|word| Some(&word.name) == snapshot.as_ref());
        let of = |state| self.lease.members.iter().find(|(_, report)| report.state == state);
        let of = |state, role| {
            of(state).map(|(pod, _)| BackupOrigin {
                member: pod.clone(),
                role,
            })
        };
        let standby = of(MemberState::Streaming, BackupRole::Standby);
        let standby = standby.filter(|_| of_standby);
        let source = standby.or_else(|| of(MemberState::Primary, BackupRole::Primary));
        let record = self.lease.archive.get_or_insert_default();
        let known = record.backup.as_ref().filter(|task| task.uid == uid);
        let (state, begins) = match known.map(|task| task.state) {
            None => (BackupState::Copying, true),
            Some(BackupState::Copying) if is_snapshot => match word.map(|word| word.state) {
                Some(SnapshotState::Ready) => (BackupState::Completed, false),
                Some(SnapshotState::Failed) => (BackupState::Failed, false),
                Some(SnapshotState::Asked | SnapshotState::Taken) | None => return false,
            },
            Some(BackupState::Copying | BackupState::WaitingForWal) if store_is_away => (BackupState::Failed, false),
            Some(BackupState::Copying | BackupState::WaitingForWal) => (BackupState::Completed, false),
            Some(BackupState::Completed | BackupState::Failed) => return false,
        };
        let time = "2027-01-01T00:00:00Z".parse().unwrap();
        let backup = (state == BackupState::Completed).then(|| StoredBackup {
            name,
            timeline: 1,
            start_lsn: "0/2000028".to_owned(),
            stop_lsn: "0/2000100".to_owned(),
            start_time: time,
            stop_time: time,
            data_bytes: 4,
            stored_bytes: 2,
            source: source.clone(),
            damaged_pages: false,
            snapshot: snapshot.clone(),
        });
        record.backup = Some(BackupTask {
            uid,
            attempt: 1,
            source,
            state,
            copied_bytes: Some(1),
            total_bytes: Some(4),
            message: (state == BackupState::Failed).then(|| "the store is away".to_owned()),
            snapshot: snapshot.filter(|_| state == BackupState::Copying),
            damaged_pages: false,
            backup,
        });
        begins
    }

    /// A standby clones, then streams; says whether it has data now.
    fn follow(&mut self, index: usize, mut report: MemberReport, has_data: bool) -> bool {
        let pod = &mut self.pods[index];
        let member = self.db.status.as_ref().and_then(|status| status.members.get(&pod.name));
        let certified = member.is_some_and(|member| member.certificate.is_some());
        let streams = certified && (has_data || report.state == MemberState::Cloning);
        report.state = match (certified, streams) {
            (_, true) => MemberState::Streaming,
            (true, false) => MemberState::Cloning,
            (false, false) => MemberState::Waiting,
        };
        pod.ready = streams;
        self.lease.members.insert(pod.name.clone(), report);
        streams
    }

    /// Commits wait for as many of the members that are to stay as the spec says; a rule is not weakened because members
    /// are away.
    fn change_rule(&mut self) {
        let chosen = self.db.status.as_ref().and_then(|status| status.memo.durability);
        let required = self.db.spec.wanted_durability(chosen).standbys;
        if required == 0 {
            self.lease.rule = SyncRule::default();
            return;
        }
        let replicas = i64::from(self.db.spec.replicas);
        let stays = |name: &String| ordinal(name).is_some_and(|ordinal| i64::from(ordinal) < replicas);
        let members = self.lease.members.iter().filter(|(name, _)| stays(name));
        let others = members.filter(|(_, report)| report.state != MemberState::Primary);
        let (streaming, rest): (Vec<_>, Vec<_>) =
            others.partition(|(_, report)| report.state == MemberState::Streaming);
        let mut names: BTreeSet<MemberId> = streaming.iter().map(|(_, report)| report.member.clone()).collect();
        if names.len() < required {
            if self.lease.rule == SyncRule::default() {
                return;
            }
            names.extend(rest.iter().map(|(_, report)| report.member.clone()));
        }
        self.lease.rule = SyncRule::any(required, names);
    }
}

fn connections(parameters: &BTreeMap<String, String>) -> u32 {
    let value = parameters.get("max_connections");
    value.and_then(|value| value.parse().ok()).unwrap_or(100)
}

fn look(store: &Store, stubs: &Stubs, lost: &BTreeSet<String>) -> Option<(View, Lease)> {
    let db = store.get("clustereddatabases", NAMESPACE, NAME)?;
    let lease = store.get("leases", NAMESPACE, NAME)?;
    let runs = |pod: &Value| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (dark, pods): (Vec<_>, Vec<_>) = store
        .list("pods")
        .into_iter()
        .partition(|pod| lost.contains(&text(&pod["spec"]["nodeName"])));
    let pods = pods
        .into_iter()
        .filter(|pod| runs(pod))
        .filter_map(|pod| {
            let name = text(&pod["metadata"]["name"]);
            let uid = text(&pod["metadata"]["uid"]);
            let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
            let mut claims = volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str());
            let data = claims.find(|claim| parse_claim(claim).is_some_and(|(volume, ..)| volume == DATA_VOLUME));
            let claim = data.and_then(|claim| store.get("persistentvolumeclaims", NAMESPACE, claim));
            Some(Pod {
                ordinal: ordinal(&name)?,
                volume: claim.map_or_else(String::new, |claim| text(&claim["metadata"]["uid"])),
                address: text(&pod["status"]["podIP"]),
                ready: stubs.ready.contains(&uid),
                name,
                uid,
            })
        })
        .collect();
    let lease: Lease = serde_json::from_value((*lease).clone()).unwrap();
    let view = View {
        db: serde_json::from_value((*db).clone()).unwrap(),
        pods,
        dark: dark.iter().map(|pod| text(&pod["metadata"]["name"])).collect(),
        lease: read(&lease).ok()?,
        certificates: store.get("secrets", NAMESPACE, &format!("{NAME}-tls")).map(|secret| {
            let part = |key: &str| STANDARD.decode(text(&secret["data"][key])).unwrap_or_default();
            certificate_digest(&part("tls.crt"), &part("ca.crt"))
        }),
    };
    Some((view, lease))
}

fn put(store: &mut Store, base: &Lease, lease: &LeaseRecord, now: DateTime<Utc>) {
    let lease = lease.clone();
    let content = LeaseContent {
        uid: lease.uid,
        version: lease.version,
        holder: lease.holder,
        duration: Millis::seconds(10),
        epoch: lease.epoch,
        system_id: lease.system_id,
        release: lease.release,
        rule: lease.rule,
        timeline: lease.timeline,
        lossy: lease.lossy,
        history: lease.history,
        members: lease.members,
        positions: lease.positions,
        archive: lease.archive,
    };
    let now_micro = MicroTime(Timestamp::from_microsecond(now.timestamp_micros()).unwrap());
    let object = serde_json::to_value(write(base, &content, now_micro)).unwrap();
    let call = Call::new(Verb::Update, "leases", NAMESPACE, NAME, object).with("fieldManager", "agent");
    let reply = store.call(&call, now);
    assert_eq!(reply.code, 200, "{reply:?}");
}

/// `-rw` leads to the holder.
fn route(store: &mut Store, holder: &HolderRecord, epoch: Epoch, now: DateTime<Utc>) {
    let change = json!({
        "metadata": {"annotations": {api::names::ROUTE_EPOCH: epoch.0.to_string()}},
        "endpoints": [{"addresses": [holder.address], "conditions": {"ready": true}}],
    });
    let name = format!("{NAME}-rw");
    let call = Call::new(Verb::Merge, "endpointslices", NAMESPACE, &name, change).with("fieldManager", "agent");
    // It may be missing for a moment, when somebody has deleted it; the next holder writes it.
    store.call(&call, now);
}

/// What is random in the identity that is made on this volume.
fn made_of(volume: &str) -> u32 {
    let digits = volume.get(..8).unwrap_or_default();
    u32::from_str_radix(digits, 16).unwrap_or_default()
}

fn ordinal(pod: &str) -> Option<u32> {
    pod.strip_prefix(NAME)?.strip_prefix('-')?.parse().ok()
}

/// A member's public key, the same in each run.
fn public_key(ordinal: u32) -> &'static str {
    static KEYS: OnceLock<Vec<String>> = OnceLock::new();
    let keys = KEYS.get_or_init(|| {
        let key = |_| {
            KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
                .unwrap()
                .subject_public_key_info()
        };
        (0..16).map(key).map(|key| STANDARD.encode(key)).collect()
    });
    &keys[ordinal as usize % keys.len()]
}
