//! An abstract cluster: it carries out what is decided, and its controllers and agents move on by themselves. Only what
//! the operator can see is in it; what it knows of PostgreSQL is who has a database and who streams.

mod steps;

pub use steps::{Refusal, Write};

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use super::scene::{NAME, Scene, UID, bare_of, child_uid, claim, empty_lease, holder, pod, set, wal_claim};
use crate::cluster::budgets::{primary_stays, replicas_stay};
use crate::cluster::{
    Action, Apply, ApplyHow, ChildKind, ChildState, Claim, Decision, Due, Exact, Fault, FaultKind, Growth, ImageError,
    Known, Pod, PodMark, Resources, SetFacts, Target, Volume, WalVolumes,
};
use crate::protocol::{Epoch, MemberId, MemberReport, MemberState, Release, settings_hash};

/// How often the world moves.
const TICK: TimeDelta = TimeDelta::milliseconds(100);

/// So long after it is ready a server ends that does not stay up.
const LIFE: TimeDelta = TimeDelta::seconds(5);

/// For so long a lost primary is away: the others have elected one by then.
const OUTAGE: TimeDelta = TimeDelta::seconds(5);

/// The cpu and memory of a revision. Words that sort later are more memory.
fn resources_of(revision: &str) -> &str {
    revision.split_once('+').map_or("", |(_, resources)| resources)
}

/// The name of a member's WAL claim.
fn wal_name(ordinal: u32) -> String {
    format!("wal-{NAME}-{ordinal}")
}

/// When the operator dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Never.
    Never,
    /// Right after its write with this number (counted from 1); a new one begins with nothing in memory.
    After(usize),
}

/// What becomes of a change of a running pod's cpu and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resizes {
    /// The kubelet does it.
    Done,
    /// The API server refuses it, or does not offer it.
    Refused,
    /// The kubelet says that it cannot.
    Infeasible,
    /// The kubelet waits for room.
    Deferred,
    /// An admission webhook makes others of them; the executor counts that as a failure.
    Rewritten,
}

/// An abstract cluster with one database and one operator.
#[derive(Clone, Debug)]
pub struct World {
    /// What the operator sees.
    pub scene: Scene,
    /// Every write of the operator, by what it was.
    pub writes: Vec<String>,
    /// How many times the first database was made.
    pub initdbs: usize,
    /// The resource is gone.
    pub gone: bool,
    /// How many ticks (of 100 ms) agents and kubelets need for each of their moves.
    pub pace: u32,
    /// Revisions of the template whose image does not run.
    pub broken: BTreeSet<String>,
    /// Revisions of the template whose PostgreSQL ends for good, 5 s after it is ready.
    pub dying: BTreeSet<String>,
    /// Agents do not hand the lease over when they are asked to.
    pub stubborn: bool,
    /// What becomes of changes of cpu and memory in running pods.
    pub resizes: Resizes,
    /// Objects that an admission webhook refuses.
    pub refused: BTreeSet<ChildKind>,
    /// Who has been primary, in order.
    pub primaries: Vec<String>,
    /// Parameters that PostgreSQL takes up only with a restart, as they are in force in each pod (by UID).
    in_force: BTreeMap<String, String>,
    /// Cpu and memory that each pod (by UID) asks for and that it has got, as they stand in revisions.
    resources: BTreeMap<String, (String, String)>,
    /// Pods (by UID) whose PostgreSQL is dead until then.
    dead: BTreeMap<String, DateTime<Utc>>,
    /// Claims (by UID) with a database of this identity on them.
    data: BTreeMap<String, MemberId>,
    /// Data claims (by UID) whose database has its WAL on its WAL volume.
    moved: BTreeSet<String>,
    /// No volumes can be had for claims.
    pub no_volumes: bool,
    /// A volume's file system grows only when a new pod mounts it.
    pub grows_unmounted: bool,
    /// Revision of the StatefulSet's template.
    template: String,
    /// The generation that was looked at last.
    generation: i64,
    crash: Crash,
    due_since: Option<DateTime<Utc>>,
    serial: u32,
    ticks: u32,
}

impl World {
    /// Nothing but the resource.
    pub fn new(replicas: u32) -> Self {
        Self {
            scene: Scene::new(replicas),
            writes: Vec::new(),
            initdbs: 0,
            gone: false,
            pace: 1,
            broken: BTreeSet::new(),
            dying: BTreeSet::new(),
            stubborn: false,
            refused: BTreeSet::new(),
            resizes: Resizes::Done,
            primaries: Vec::new(),
            resources: BTreeMap::new(),
            in_force: BTreeMap::new(),
            dead: BTreeMap::new(),
            data: BTreeMap::new(),
            moved: BTreeSet::new(),
            no_volumes: false,
            grows_unmounted: false,
            template: String::new(),
            generation: 1,
            crash: Crash::Never,
            due_since: None,
            serial: 0,
            ticks: 0,
        }
    }

    /// Sets when the operator dies.
    pub fn crashing(mut self, crash: Crash) -> Self {
        self.crash = crash;
        self
    }

    /// Goes on until `done`, at most `limit` of the world's time. Says whether it was reached.
    pub fn run_until(&mut self, limit: TimeDelta, mut done: impl FnMut(&World, &Decision) -> bool) -> bool {
        let end = self.scene.now + limit;
        while self.scene.now < end {
            self.look();
            let decision = self.scene.decide();
            if self.gone || done(self, &decision) {
                return true;
            }
            let idle = matches!(decision.action, Action::Wait(_));
            self.operate(&decision);
            if idle {
                self.scene.now += TICK;
                self.tick();
            }
        }
        false
    }

    /// Goes on until the database rests and its status says so.
    pub fn settle(&mut self) -> bool {
        self.run_until(TimeDelta::minutes(10), |world, decision| {
            let resting = matches!(&decision.action, Action::Wait(waiting) if waiting.resting);
            resting && world.scene.due(decision) == Due::Never
        })
    }

    /// One round of the operator.
    fn operate(&mut self, decision: &Decision) {
        let next = self.scene.status(decision);
        let write = match self.scene.due(decision) {
            Due::Now => true,
            Due::Never => {
                self.due_since = None;
                false
            }
            Due::Within(time) => {
                let since = *self.due_since.get_or_insert(self.scene.now);
                self.scene.now - since >= TimeDelta::from_std(time).unwrap_or(TimeDelta::MAX)
            }
        };
        if write {
            let transition = next.phase != self.scene.stored.phase;
            self.scene.stored = next;
            self.due_since = None;
            if self.wrote(format!("status for {}", decision.rule)) {
                return;
            }
            if transition && self.wrote(format!("event {:?}", decision.phase)) {
                return;
            }
        }
        if !matches!(decision.action, Action::Wait(_) | Action::WriteStatus(_)) {
            self.execute(&decision.action);
            self.wrote(format!("{} {:?}", decision.action.name(), decision.action.target()));
        }
    }

    /// Counts a write; true if the operator died of it.
    fn wrote(&mut self, what: String) -> bool {
        self.writes.push(what);
        let dies = self.crash == Crash::After(self.writes.len());
        if dies {
            self.due_since = None;
            self.scene.observed.faults.clear();
        }
        dies
    }

    fn execute(&mut self, action: &Action) {
        match action {
            Action::Wait(_) | Action::WriteStatus(_) => {}
            Action::AddFinalizer(_) => self.scene.finalizer = true,
            Action::RemoveFinalizer(_) => {
                self.scene.finalizer = false;
                self.gone = true;
            }
            Action::Apply(apply) if self.refused.contains(&apply.kind) => {
                self.refuse(Target::Child(apply.kind), FaultKind::Forbidden);
            }
            Action::Apply(apply) => self.apply(apply),
            Action::RecreateLease {
                member,
                epoch,
                system_id,
                rule,
                timeline,
                lossy,
            } => {
                let mut lease = empty_lease();
                (lease.epoch, lease.system_id) = (*epoch, Some(system_id.clone()));
                (lease.rule, lease.timeline, lease.lossy) = (rule.clone(), *timeline, Some(*lossy));
                lease.release = Some(Release {
                    member: member.clone(),
                    position: None,
                    successor: None,
                });
                self.make(ChildKind::Lease);
                self.scene.observed.lease = Known::Known(Some(lease));
            }
            Action::LabelPod { pod, role } => self.pod(pod).role = Some((*role).to_owned()),
            Action::MarkPod { pod, mark } => {
                let pod = self.pod(pod);
                match mark {
                    PodMark::Resizing(resizing) => pod.resizing = Some(resizing.clone()),
                    PodMark::Current { revision } => (pod.revision, pod.resizing) = (Some(revision.clone()), None),
                }
            }
            Action::ResizePod(exact) => self.resize(exact),
            Action::ReplacePod(exact) => self.pod(exact).terminating = true,
            Action::DeleteRoleBinding(_) => self.scene.set_child(ChildKind::RoleBinding, ChildState::Missing),
            Action::OrphanStatefulSet(_) => self.orphan(),
            Action::MakeWalClaim { name, node } => self.make_wal_claim(name, Some(node.clone())),
            Action::DeleteStatefulSet(_) => {
                self.remove_set();
                for pod in self.scene.pods_mut() {
                    pod.terminating = true;
                }
            }
            Action::ResizeClaim { claim, .. } => {
                let (data, wal) = (self.scene.data_bytes, self.scene.wal_bytes);
                let (waits, since) = (self.grows_unmounted, self.scene.now);
                let claims = self.scene.claims_mut();
                for found in claims.iter_mut().filter(|found| found.uid == claim.uid()) {
                    assert!(found.bound, "only a volume grows");
                    found.capacity = Some(found.requested).filter(|_| waits);
                    found.growth = waits.then(|| Growth {
                        stage: "FileSystemResizePending".to_owned(),
                        message: "waiting for a pod to be started".to_owned(),
                        since,
                    });
                    found.requested = if found.volume == Volume::Wal { wal } else { data };
                }
            }
            Action::DeleteClaim(claim) => {
                let uses = |pod: &Pod| pod.wal_claim.as_deref() == Some(claim.name());
                assert!(!self.scene.pods().iter().any(uses), "a pod uses {}", claim.name());
                self.scene.claims_mut().retain(|found| found.uid != claim.uid());
            }
        }
    }

    fn resize(&mut self, exact: &Exact) {
        let uid = self.pod(exact).uid.clone();
        let mut taken = Some(resources_of(&self.scene.revision).to_owned());
        if matches!(self.resizes, Resizes::Refused | Resizes::Rewritten) {
            self.refuse(Target::Resize(exact.name().to_owned()), FaultKind::Invalid);
            taken = (self.resizes == Resizes::Rewritten).then(|| "rewritten".to_owned());
        }
        if let (Some((asked, _)), Some(taken)) = (self.resources.get_mut(&uid), taken) {
            *asked = taken;
        }
    }

    /// What the operator's executor does before a decision: failures end with the spec that they were about, and each
    /// pod's cpu and memory are compared with the wanted.
    fn look(&mut self) {
        if self.generation != self.scene.generation {
            self.generation = self.scene.generation;
            self.scene.observed.faults.clear();
        }
        let wanted = resources_of(&self.scene.revision).to_owned();
        let resizes = self.resizes;
        for pod in self.scene.pods_mut() {
            let Some((asked, given)) = self.resources.get(&pod.uid) else {
                continue;
            };
            pod.resources = match resizes {
                _ if *asked > wanted => Resources::MoreMemory,
                _ if *asked != wanted => Resources::Other,
                _ if *given == wanted => Resources::Given,
                Resizes::Infeasible => Resources::Refused {
                    message: "Node didn't have enough capacity: cpu".to_owned(),
                },
                Resizes::Done | Resizes::Refused | Resizes::Rewritten => Resources::Asked { message: None },
                Resizes::Deferred => Resources::Asked {
                    message: Some("Node didn't have enough resource: cpu".to_owned()),
                },
            };
        }
    }

    /// The pod that an action names; with another UID the API server would refuse.
    fn pod(&mut self, exact: &Exact) -> &mut Pod {
        let found = self.scene.pods_mut().iter_mut().find(|pod| pod.uid == exact.uid());
        found.unwrap_or_else(|| panic!("there is no pod {} with UID {}", exact.name(), exact.uid()))
    }

    fn make_wal_claim(&mut self, name: &str, node: Option<String>) {
        let claims = self.scene.claims_mut();
        if claims.iter().any(|claim| claim.name == name) {
            return;
        }
        let ordinal = name
            .rsplit('-')
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        self.serial += 1;
        let class = self
            .scene
            .spec
            .storage
            .wal
            .as_ref()
            .and_then(|wal| wal.storage_class_name.clone());
        let made = Claim {
            uid: format!("uid-{name}-{}", self.serial),
            bound: false,
            had_volume: false,
            created: self.scene.now,
            selected_node: node,
            class: class.or_else(|| Some("standard".to_owned())),
            ..wal_claim(ordinal, self.scene.wal_bytes)
        };
        self.scene.claims_mut().push(made);
    }

    /// A pod that the StatefulSet's controller is making at this time would go with it.
    fn orphan(&mut self) {
        let replicas = self.scene.observed.stateful_set.as_ref().map_or(0, |set| set.replicas);
        let current = matches!(
            self.scene.observed.children[ChildKind::StatefulSet],
            Known::Known(ChildState::Current { .. })
        );
        let complete = (0..replicas).all(|ordinal| self.scene.pods().iter().any(|pod| pod.ordinal == ordinal));
        assert!(!current || complete, "a pod is being made");
        self.remove_set();
    }

    fn remove_set(&mut self) {
        self.scene.set_child(ChildKind::StatefulSet, ChildState::Missing);
        self.scene.observed.stateful_set = None;
    }

    fn make(&mut self, kind: ChildKind) {
        let missing = self.scene.observed.children[kind] == Known::Known(ChildState::Missing);
        assert!(missing, "{kind:?} is made twice");
        self.scene.set_child(kind, ChildState::Current { uid: child_uid(kind) });
    }

    /// The API server or a webhook refuses what is done to this; the executor counts that.
    fn refuse(&mut self, target: Target, kind: FaultKind) {
        let at = self.scene.now;
        let faults = &mut self.scene.observed.faults;
        if let Some(fault) = faults.iter_mut().find(|fault| fault.target == target) {
            (fault.attempts, fault.at) = (fault.attempts + 1, at);
            return;
        }
        faults.push(Fault {
            target,
            kind,
            message: "admission webhook no-objects denied the request".to_owned(),
            attempts: 1,
            at,
        });
    }

    fn apply(&mut self, apply: &Apply) {
        match apply.how {
            ApplyHow::Make => self.make(apply.kind),
            ApplyHow::Change(_) | ApplyHow::Renew(_) => {
                self.scene.set_child(
                    apply.kind,
                    ChildState::Current {
                        uid: child_uid(apply.kind),
                    },
                );
            }
        }
        if apply.kind == ChildKind::Lease {
            self.scene.observed.lease = Known::Known(Some(empty_lease()));
        }
        if apply.kind == ChildKind::StatefulSet {
            let before = self.scene.observed.stateful_set.as_ref().map(|set| set.wal);
            let mut new = set(apply.replicas.unwrap_or(0));
            let asked = self.scene.spec.storage.wal.is_some();
            new.wal = apply.wal.or(before).filter(|_| asked).unwrap_or_default();
            let kept = before.is_none_or(|before| {
                [before, new.wal]
                    .iter()
                    .all(|wal| *wal != WalVolumes::Templated || before == new.wal)
            });
            assert!(kept, "claim templates cannot be changed");
            let bare = new.wal == WalVolumes::Withheld;
            self.template = if bare {
                bare_of(&self.scene.revision)
            } else {
                self.scene.revision.clone()
            };
            self.scene.observed.stateful_set = Some(new);
        }
    }

    /// Controllers, kubelets and agents do what they do in a tenth of a second.
    fn tick(&mut self) {
        self.age();
        self.stateful_set_controller();
        self.scheduler();
        if !self.no_volumes {
            let claims = self.scene.claims_mut().iter_mut();
            for claim in claims.filter(|claim| claim.selected_node.is_some()) {
                (claim.bound, claim.had_volume) = (true, true);
            }
        }
        self.ticks = self.ticks.wrapping_add(1);
        if !self.ticks.is_multiple_of(self.pace) {
            return;
        }
        for index in 0..self.scene.pods().len() {
            self.agent(index);
        }
        self.age();
        let works = matches!(self.resizes, Resizes::Done | Resizes::Refused | Resizes::Rewritten);
        for (asked, given) in self.resources.values_mut().filter(|_| works) {
            given.clone_from(asked);
        }
        let holder = self.scene.lease_mut().and_then(|lease| lease.holder.as_ref());
        if let Some(serving) = holder.filter(|holder| holder.serving) {
            let pod = serving.incarnation.pod.clone();
            if self.primaries.last() != Some(&pod) {
                self.primaries.push(pod);
            }
        }
    }

    /// Kubelets tell since when pods are ready; what does not stay up ends.
    fn age(&mut self) {
        let now = self.scene.now;
        let mut ended = Vec::new();
        for pod in self.scene.pods_mut() {
            pod.ready_since = pod.ready.then(|| pod.ready_since.unwrap_or(now));
            let dies = pod
                .revision
                .as_ref()
                .is_some_and(|revision| self.dying.contains(revision));
            if dies && pod.ready_since.is_some_and(|since| now >= since + LIFE) {
                pod.ready = false;
                ended.push(pod.uid.clone());
            }
        }
        for uid in ended {
            let lease = self.scene.observed.lease.get().and_then(Option::as_ref);
            let holder = lease.and_then(|lease| lease.holder.as_ref());
            if holder.is_some_and(|holder| holder.incarnation.pod_uid == uid) {
                self.lose_primary();
            }
            self.dead.insert(uid, now + TimeDelta::days(1));
        }
    }

    /// The primary is lost without a word: its postmaster is gone, and its lease runs out or is taken by an early
    /// election. The agents decide by themselves what comes then.
    pub fn lose_primary(&mut self) {
        let held = self.scene.lease_mut().and_then(|lease| lease.holder.take());
        let Some(held) = held else { return };
        self.dead
            .insert(held.incarnation.pod_uid.clone(), self.scene.now + OUTAGE);
        for pod in self
            .scene
            .pods_mut()
            .iter_mut()
            .filter(|pod| pod.uid == held.incarnation.pod_uid)
        {
            pod.ready = false;
        }
        self.release(held.incarnation.member, None);
    }

    /// The Lease is free: `successor`, or else anybody who had streamed to its end, may take it.
    fn release(&mut self, member: MemberId, successor: Option<String>) {
        let Some(lease) = self.scene.lease_mut() else { return };
        lease.holder = None;
        lease.release = Some(Release {
            member,
            position: None,
            successor,
        });
    }

    fn stateful_set_controller(&mut self) {
        let mut removed = false;
        let stopped: Vec<String> = self
            .scene
            .pods()
            .iter()
            .filter(|pod| pod.terminating)
            .map(|pod| pod.uid.clone())
            .collect();
        for uid in stopped {
            self.stop(&uid);
            self.scene.pods_mut().retain(|pod| pod.uid != uid);
            removed = true;
        }
        // It is seen that a pod is gone before the next one is there.
        if removed {
            return;
        }
        let Some(SetFacts { replicas, wal, .. }) = self.scene.observed.stateful_set.clone() else {
            return;
        };
        for pod in self.scene.pods_mut() {
            pod.terminating |= pod.ordinal >= replicas;
        }
        // The first one whose volumes are not those of the claim templates is put right, which is refused: the others wait.
        let fits = |pod: &Pod| self.scene.spec.storage.wal.is_none() || pod.wal_claim == Some(wal_name(pod.ordinal));
        if wal == WalVolumes::Templated && !self.scene.pods().iter().all(fits) {
            return;
        }
        // One pod for each tick, so that not all of them appear at once.
        if let Some(ordinal) = (0..replicas).find(|ordinal| self.scene.pods().iter().all(|pod| pod.ordinal != *ordinal))
        {
            self.start(ordinal);
        }
    }

    /// A pod waits for the node that its volume is on to take pods.
    fn scheduler(&mut self) {
        let cordoned = self
            .scene
            .observed
            .unschedulable_nodes
            .get()
            .cloned()
            .unwrap_or_default();
        let claims = self.scene.claims_mut().clone();
        let is_bound = |name: &String| claims.iter().any(|claim| claim.name == *name && claim.bound);
        let fits = |pod: &Pod| {
            pod.wal_claim
                .as_ref()
                .is_none_or(|claim| *claim == wal_name(pod.ordinal) && is_bound(claim))
        };
        let mut pods = self.scene.pods_mut().iter_mut();
        for pod in pods.by_ref().filter(|pod| pod.node.is_none() && fits(pod)) {
            pod.node = Some(format!("node-{}", pod.ordinal)).filter(|node| !cordoned.contains(node));
        }
    }

    /// Evicts a pod, as a drain does, if the budget of its role allows it; false if not.
    pub fn evict(&mut self, ordinal: u32) -> bool {
        let replicas = u32::try_from(self.scene.spec.replicas).unwrap_or(0);
        let Some(pod) = self.scene.pods().iter().find(|pod| pod.ordinal == ordinal).cloned() else {
            return true;
        };
        let stays = match pod.role.as_deref() {
            Some(api::names::ROLE_PRIMARY) => primary_stays(replicas),
            Some(_) => replicas_stay(replicas),
            None => 0,
        };
        let healthy = |found: &&Pod| found.role == pod.role && found.ready && !found.terminating;
        let spare = self.scene.pods().iter().filter(healthy).count() > stays as usize;
        let allowed = pod.role.is_none() || !pod.ready || spare;
        self.scene.pod_mut(ordinal).terminating |= allowed;
        allowed
    }

    fn start(&mut self, ordinal: u32) {
        self.serial += 1;
        let mut new = pod(ordinal, &self.template, self.scene.now);
        (new.uid, new.ready, new.node) = (format!("pod-{}", self.serial), false, None);
        let resources = resources_of(&self.template).to_owned();
        self.resources.insert(new.uid.clone(), (resources.clone(), resources));
        if self.broken.contains(&self.template) {
            new.image_error = Some(ImageError {
                reason: "ImagePullBackOff".to_owned(),
                image: self.template.clone(),
                message: "not found".to_owned(),
                since: self.scene.now,
            });
        }
        new.wal_claim = match self.scene.observed.stateful_set.as_ref().map(|set| set.wal) {
            Some(WalVolumes::Of(named)) => Some(wal_name(named)),
            Some(WalVolumes::Templated) if self.scene.spec.storage.wal.is_some() => {
                // The scheduler chooses the node.
                self.make_wal_claim(&wal_name(ordinal), Some(format!("node-{ordinal}")));
                Some(wal_name(ordinal))
            }
            _ => None,
        };
        let bytes = self.scene.data_bytes;
        let serial = self.serial;
        let claims = self.scene.claims_mut();
        for claim in claims.iter_mut().filter(|claim| claim.ordinal == ordinal) {
            (claim.capacity, claim.growth) = (None, None);
        }
        if claims
            .iter()
            .all(|claim| claim.ordinal != ordinal || claim.volume != Volume::Data)
        {
            let mut made = claim(ordinal, bytes);
            made.uid = format!("{serial:08x}-aaaa-bbbb-cccc-dddddddddddd");
            claims.push(made);
            claims.sort_by_key(|claim| claim.ordinal);
        }
        let pods = self.scene.pods_mut();
        pods.push(new);
        pods.sort_by_key(|pod| pod.ordinal);
    }

    /// A pod's PostgreSQL stops cleanly; a holder lets the Lease go.
    fn stop(&mut self, uid: &str) {
        for pod in self.scene.pods_mut().iter_mut().filter(|pod| pod.uid == uid) {
            pod.ready = false;
        }
        let heir = self.heir(uid);
        let Some(lease) = self.scene.lease_mut() else { return };
        if let Some(held) = lease.holder.take_if(|holder| holder.incarnation.pod_uid == uid) {
            self.release(held.incarnation.member, heir);
        }
    }

    /// Whom a primary names whose pod goes away, unless all are to stop.
    fn heir(&self, uid: &str) -> Option<String> {
        let pods = self.scene.pods();
        pods.iter().find(|pod| pod.uid == uid && pod.terminating)?;
        let lease = self.scene.observed.lease.get()?.as_ref()?;
        let streams = |pod: &&Pod| {
            let report = lease.members.get(&pod.name).filter(|report| report.pod_uid == pod.uid);
            report.is_some_and(|report| report.state == MemberState::Streaming)
        };
        let able = |pod: &&Pod| pod.uid != uid && pod.ready && !pod.terminating && streams(pod);
        let heir = pods.iter().filter(|_| !self.scene.stored.intent.stop).find(able)?;
        Some(heir.name.clone())
    }

    /// Whether this member, whose data is `identity`'s, may take a Lease that nobody holds: who released it, whoever
    /// streamed from it until then, and while a chosen successor is there, that one alone.
    fn may_take(&self, pod: &Pod, identity: &MemberId) -> bool {
        let Some(lease) = self.scene.observed.lease.get().and_then(Option::as_ref) else {
            return false;
        };
        let Some(release) = lease.release.as_ref().filter(|_| lease.holder.is_none()) else {
            return false;
        };
        let streamed = |found: &Pod| {
            let report = lease
                .members
                .get(&found.name)
                .filter(|report| report.pod_uid == found.uid);
            !found.terminating && report.is_some_and(|report| report.state == MemberState::Streaming)
        };
        match &release.successor {
            Some(successor)
                if self
                    .scene
                    .pods()
                    .iter()
                    .any(|found| found.name == *successor && streamed(found)) =>
            {
                pod.name == *successor
            }
            _ => release.member == *identity || streamed(pod),
        }
    }

    /// The ServiceAccount was made again: the API server knows none of the agents in the pods that there are.
    pub fn void_tokens(&mut self) {
        for pod in self.scene.pods_mut() {
            (pod.revision, pod.base_revision, pod.token_void) = (None, None, true);
        }
    }

    fn holder_is_mute(&self) -> bool {
        let lease = self.scene.observed.lease.get().and_then(Option::as_ref);
        let Some(holder) = lease.and_then(|lease| lease.holder.as_ref()) else {
            return false;
        };
        let uid = &holder.incarnation.pod_uid;
        self.scene.pods().iter().any(|pod| pod.uid == *uid && pod.token_void)
    }

    /// Who the primary in `pod` hands over to, if it is asked to and can.
    fn successor(&self, pod: &Pod) -> Option<String> {
        let target = self.scene.stored.intent.primary.clone().filter(|_| !self.stubborn)?;
        let lease = self.scene.observed.lease.get()?.as_ref()?;
        let found = self
            .scene
            .pods()
            .iter()
            .find(|found| found.name == target && found.uid != pod.uid)?;
        let report = lease
            .members
            .get(&target)
            .filter(|report| report.pod_uid == found.uid)?;
        (found.ready && !found.terminating && report.state == MemberState::Streaming).then_some(target)
    }

    /// One move of the agent in a pod.
    fn agent(&mut self, index: usize) {
        let mut pod = self.scene.pods()[index].clone();
        let dead = self.dead.get(&pod.uid).is_some_and(|until| self.scene.now < *until);
        if pod.terminating || pod.node.is_none() || pod.image_error.is_some() || dead {
            return;
        }
        if self.scene.stored.intent.stop {
            return self.stop(&pod.uid);
        }
        if self.scene.spec.fenced.contains(&pod.name) {
            let lease = self.scene.lease_mut();
            if let Some(report) = lease.and_then(|lease| lease.members.get_mut(&pod.name)) {
                report.state = MemberState::Stopped;
            }
            return self.stop(&pod.uid);
        }
        let Some(member) = self.scene.stored.members.get(&pod.name).cloned() else {
            return;
        };
        let (Some(claim), true) = (member.claim_uid, member.pod_uid.as_ref() == Some(&pod.uid)) else {
            return;
        };
        // An agent refuses another's WAL volume, and data whose WAL is on a volume that its pod has not got.
        if pod
            .wal_claim
            .as_ref()
            .is_some_and(|claim| *claim != wal_name(pod.ordinal))
            || (pod.wal_claim.is_none() && self.moved.contains(&claim))
        {
            return;
        }
        if pod.wal_claim.is_some() {
            self.moved.insert(claim.clone());
        }
        let identity = MemberId::new(pod.ordinal, &claim, 7);
        let granted = self
            .scene
            .stored
            .intent
            .bootstrap
            .as_ref()
            .is_some_and(|grant| grant.claim_uid == claim);
        let has_data = self.data.contains_key(&claim);
        let settings = settings_hash(&self.scene.spec.postgres.parameters);
        let started_with = self.in_force.entry(pod.uid.clone()).or_insert_with(|| settings.clone());
        let permit = self.scene.stored.intent.restart.as_ref();
        if permit.is_some_and(|permit| permit.pod_uid == pod.uid && permit.settings == settings) {
            started_with.clone_from(&settings);
        }
        let pending = *started_with != settings;
        let may_take = has_data && self.may_take(&pod, &identity);
        let successor = self.successor(&pod);
        let new_report = self.scene.report(&pod, MemberState::Waiting);
        let mute = self.holder_is_mute();
        let bootstrapped = self.scene.stored.system_identifier.is_some();
        let Some(lease) = self.scene.lease_mut() else { return };
        if mute {
            // A holder that the API server does not know serves on, by the others' leave, and streams; it writes nothing.
            let holder = lease.holder.as_ref().map(|holder| holder.incarnation.pod_uid.as_str());
            self.scene.pods_mut()[index].ready = has_data || holder == Some(pod.uid.as_str());
            return;
        }
        if bootstrapped && lease.is_empty() {
            // It is in the place of one that is lost: nobody takes it.
            return;
        }
        let report = lease.members.get(&pod.name).filter(|report| report.pod_uid == pod.uid);
        let mut report = report.cloned().unwrap_or(new_report);
        (report.member, report.settings, report.pending_restart) = (identity.clone(), settings, pending);
        report.public_key = Some(format!("key of {identity}"));

        let holds = lease
            .holder
            .as_ref()
            .is_some_and(|holder| holder.incarnation.pod_uid == pod.uid);
        if holds && successor.is_some() {
            (report.state, pod.ready) = (MemberState::Stopped, false);
            lease.members.insert(pod.name.clone(), report);
            self.scene.pods_mut()[index] = pod;
            return self.release(identity, successor);
        } else if holds {
            if let Some(holder) = &mut lease.holder {
                holder.serving = true;
            }
            (report.state, pod.ready) = (MemberState::Primary, true);
        } else if may_take || (lease.system_id.is_none() && lease.holder.is_none() && granted && has_data) {
            lease.epoch = Epoch(lease.epoch.0 + 1);
            lease.system_id.get_or_insert_with(|| "7400".to_owned());
            let mut taken = holder(&pod, false);
            taken.incarnation.member = identity;
            (lease.holder, lease.release) = (Some(taken), None);
            report.state = MemberState::Starting;
        } else if lease.system_id.is_none() {
            if granted {
                self.initdbs += 1;
                self.data.insert(claim, identity);
            }
            self.scene.pods_mut()[index] = pod;
            return;
        } else if !lease.holder.as_ref().is_some_and(|holder| holder.serving) {
            return;
        } else if member.certificate.is_some() {
            let streams = report.state == MemberState::Cloning || has_data;
            report.state = if streams {
                MemberState::Streaming
            } else {
                MemberState::Cloning
            };
            pod.ready = streams;
            if streams {
                self.data.insert(claim, identity);
            }
        }
        lease.members.insert(pod.name.clone(), report);
        self.scene.pods_mut()[index] = pod;
        if holds {
            self.change_rule();
        }
    }

    /// The primary's agent: commits wait for as many of the members that are to stay as the spec says.
    fn change_rule(&mut self) {
        self.scene.synchronize();
        let replicas = self.scene.spec.replicas;
        let Some(lease) = self.scene.lease_mut() else { return };
        let streaming: BTreeSet<_> = lease
            .members
            .values()
            .filter(|report| report.state == MemberState::Streaming)
            .map(|report| report.member.clone())
            .collect();
        let stays = |member: &MemberId| {
            member
                .ordinal()
                .is_some_and(|ordinal| i64::from(ordinal) < i64::from(replicas))
        };
        let others = |report: &&MemberReport| report.state != MemberState::Primary && stays(&report.member);
        lease.rule.names.retain(|name| streaming.contains(name));
        // A rule that is in force is not weakened because members are away.
        if lease.rule.names.len() < lease.rule.required {
            lease.rule.names = lease
                .members
                .values()
                .filter(others)
                .map(|report| report.member.clone())
                .collect();
        }
    }

    /// The cpu and memory that the pods have, as they stand in revisions.
    pub fn resources(&self) -> Vec<&str> {
        let pods = self.scene.pods().iter();
        pods.filter_map(|pod| Some(self.resources.get(&pod.uid)?.1.as_str()))
            .collect()
    }

    /// The database's name.
    pub const fn name(&self) -> &'static str {
        NAME
    }

    /// Its UID.
    pub const fn uid(&self) -> &'static str {
        UID
    }
}
