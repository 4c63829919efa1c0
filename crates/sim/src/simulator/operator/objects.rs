//! The objects that the operator works on, as the API server has them; how users change them, and how agents read them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use api::names::{ROLE_PRIMARY, ROLE_REPLICA};
use api::operation::Request;
use api::spec::{ClusteredDatabaseSpec, DurabilitySpec, FailoverProfile, VolumeFate};
use api::status::{DurabilityMode, Intent, MemberStatus, Memo};
use api::{ClusteredDatabaseStatus, Phase, WantedDurability};
use machine::cluster::model::Scene;
use machine::cluster::{Claim, Pod, Resources, StatefulSetView, Volume, WalVolumes};
use machine::protocol::settings_hash;
use machine::timing::Timing;
use machine::units::Bytes;

use super::super::event::Event;
use super::super::names::{CLUSTER, SYSTEM_ID, claim, key, member, number, pod, pod_uid};
use super::super::plan::Plan;
use super::super::random::Random;
use super::super::world::World;
use super::view::{Kind, Seen};
use super::wall;

/// The parameter of PostgreSQL that an edit changes; it needs a restart.
pub const PARAMETER: &str = "max_connections";
/// The size of each volume.
pub const BYTES: Bytes = Bytes::gib(1);

/// All objects.
#[derive(Clone, Debug)]
pub struct Objects {
    pub database: Rc<Database>,
    pub set: Rc<Set>,
    pub pods: Rc<BTreeMap<u32, Pod>>,
    /// The version of the pods' list.
    pub pods_version: u64,
    pub claims: Rc<BTreeMap<u32, Claim>>,
    /// Names of nodes that accept no pods.
    pub cordoned: Rc<BTreeSet<String>>,
    /// Values of [`PARAMETER`], by the hash of settings.
    pub limits: BTreeMap<String, u32>,
    /// Pods made so far.
    made: u32,
}

/// The `ClusteredDatabase`.
#[derive(Clone, Debug)]
pub struct Database {
    pub version: u64,
    pub generation: i64,
    pub spec: ClusteredDatabaseSpec,
    /// Counts changes of the image, and the resulting revision of the template.
    pub image: u32,
    pub revision: String,
    /// Hash of the parameters.
    pub settings: String,
    /// The request of an operation.
    pub request: Option<Request>,
    pub status: ClusteredDatabaseStatus,
}

/// The StatefulSet: the parts that decisions need, and the revision of its template.
#[derive(Clone, Debug)]
pub struct Set {
    pub facts: StatefulSetView,
    pub template: String,
}

impl Set {
    pub fn version(&self) -> u64 {
        self.facts.resource_version.parse().unwrap_or(0)
    }
}

impl Objects {
    /// An idle database.
    pub fn new(plan: &Plan) -> Self {
        let members = u32::try_from(plan.replicas).unwrap_or(u32::MAX);
        let mut spec = Scene::new(members).spec;
        spec.durability = durability(plan.durability);
        if Random::of(plan.seed, "claims").chance(500) {
            spec.storage.retention_policy.when_scaled = VolumeFate::Delete;
        }
        if plan.timing == Timing::FAST {
            spec.failover.profile = FailoverProfile::Fast;
        }
        let mut database = Database {
            version: 1,
            generation: 1,
            spec,
            image: 0,
            revision: String::new(),
            settings: String::new(),
            request: None,
            status: status(plan),
        };
        database.describe();
        let facts = StatefulSetView {
            uid: "set".to_owned(),
            resource_version: "1".to_owned(),
            replicas: members,
            wal: WalVolumes::Withheld,
        };
        let template = database.revision.clone();
        let pods = (0..members).map(|ordinal| {
            let mut made = new_pod(ordinal, &pod_uid(ordinal as usize), &template, 0, 1);
            made.role = Some(if ordinal == 0 { ROLE_PRIMARY } else { ROLE_REPLICA }.to_owned());
            (made.node, made.unschedulable) = (Some(node_name(ordinal)), None);
            (ordinal, made)
        });
        Self {
            pods: Rc::new(pods.collect()),
            pods_version: 1,
            claims: Rc::new(
                (0..members)
                    .map(|ordinal| (ordinal, new_claim(ordinal, 0, 1, 0)))
                    .collect(),
            ),
            cordoned: Rc::default(),
            limits: BTreeMap::from([(database.settings.clone(), 100)]),
            set: Rc::new(Set { facts, template }),
            database: Rc::new(database),
            made: 0,
        }
    }
}

impl Database {
    fn describe(&mut self) {
        self.revision = format!("r{}", self.image);
        self.settings = settings_hash(&self.spec.postgres.settings());
    }

    /// `spec.replicas`.
    pub fn replicas(&self) -> u32 {
        u32::try_from(self.spec.replicas).unwrap_or(0)
    }
}

/// As a spec states it.
pub fn durability(wanted: WantedDurability) -> DurabilitySpec {
    let standbys = u32::try_from(wanted.standbys).ok();
    DurabilitySpec {
        mode: Some(wanted.mode),
        synchronous_standbys: standbys.filter(|_| wanted.mode != DurabilityMode::Async),
    }
}

fn status(plan: &Plan) -> ClusteredDatabaseStatus {
    let members = (0..plan.replicas).map(|node| {
        let known = MemberStatus {
            pod_uid: Some(pod_uid(node)),
            claim_uid: Some(claim(node, 0)),
            member_id: Some(member(node, 0).to_string()),
            certificate: Some("pem".to_owned()),
            certified_key: Some(key(&member(node, 0))),
            ..MemberStatus::default()
        };
        (pod(node), known)
    });
    let made = ["CaSecret", "AppSecret"].into_iter().zip(["orders-ca", "orders-app"]);
    ClusteredDatabaseStatus {
        phase: Some(Phase::Ready),
        system_identifier: Some(SYSTEM_ID.to_owned()),
        epoch: Some(1),
        members: members.collect(),
        memo: Memo {
            lease_made: true,
            made: made.map(|(uid, name)| (name.to_owned(), uid.to_owned())).collect(),
            ..Memo::default()
        },
        ..ClusteredDatabaseStatus::default()
    }
}

fn node_name(ordinal: u32) -> String {
    format!("node-{ordinal}")
}

fn new_pod(ordinal: u32, uid: &str, template: &str, now: u64, version: u64) -> Pod {
    Pod {
        name: pod(ordinal as usize),
        ordinal,
        uid: uid.to_owned(),
        resource_version: version.to_string(),
        created: wall(now),
        node: None,
        unschedulable: Some("no node fits".to_owned()),
        ready: false,
        ready_since: None,
        unstarted: false,
        restarts: 0,
        terminating: false,
        revision: Some(template.to_owned()),
        base_revision: Some(template.to_owned()),
        wal_claim: None,
        resizing: None,
        resources: Resources::Given,
        role: Some(ROLE_REPLICA.to_owned()),
        token_revoked: false,
        image_error: None,
        trouble: None,
        bootstrap_error: None,
    }
}

fn new_claim(ordinal: u32, volume: u32, version: u64, now: u64) -> Claim {
    Claim {
        name: format!("data-{}", pod(ordinal as usize)),
        volume: Volume::Data,
        set: 0,
        ordinal,
        uid: claim(ordinal as usize, volume),
        resource_version: version.to_string(),
        terminating: false,
        bound: true,
        had_volume: true,
        created: wall(now),
        class: None,
        selected_node: None,
        requested: BYTES,
        capacity: None,
        growth: None,
        cluster_uid: Some(CLUSTER.to_owned()),
        differs: false,
    }
}

impl World {
    /// The user changes the resource.
    pub fn edit_database(&mut self, what: &'static str, change: impl FnOnce(&mut Database)) {
        let version = self.api.next();
        let database = Rc::make_mut(&mut self.api.objects.database);
        change(database);
        database.describe();
        (database.version, database.generation) = (version, database.generation + 1);
        let value = database.spec.postgres.parameters.get(PARAMETER);
        let value = value.and_then(|value| value.parse().ok()).unwrap_or(100);
        let settings = database.settings.clone();
        self.api.objects.limits.insert(settings, value);
        self.note_edit(what);
        self.database_changed();
    }

    /// The resource's watchers learn of it: operators, and agents in their own form.
    pub fn database_changed(&mut self) {
        let database = Rc::clone(&self.api.objects.database);
        let spec = &mut self.api.spec;
        let status = &database.status;
        let node_of = |pod: &String| Some(number(pod)).filter(|node| *node < spec.certified.len());
        spec.members = database.replicas() as usize;
        spec.durability = database.spec.wanted_durability(status.memo.durability);
        spec.preferred = database.spec.primary.prefer.as_ref().and_then(node_of);
        spec.settings.clone_from(&database.settings);
        let Intent {
            restart, primary, stop, ..
        } = status.intent.clone();
        (spec.restart, spec.stop) = (restart, stop);
        spec.primary = primary.as_ref().and_then(node_of);
        spec.fenced = database.spec.fenced.iter().filter_map(node_of).collect();
        spec.epoch = status.epoch.unwrap_or(0);
        for node in 0..spec.certified.len() {
            let member = status.members.get(&pod(node)).cloned().unwrap_or_default();
            spec.claims[node] = member.claim_uid;
            spec.certified[node] = member.certificate.and(member.member_id);
        }
        self.show(Kind::Database);
        self.spec_changed();
    }

    /// Changes the pods, or one of them.
    pub fn change_pods(&mut self, change: impl FnOnce(&mut BTreeMap<u32, Pod>, &str)) {
        let version = self.api.next();
        let objects = &mut self.api.objects;
        change(Rc::make_mut(&mut objects.pods), &version.to_string());
        objects.pods_version = version;
        self.came_back();
        self.show(Kind::Pods);
    }

    pub fn pod_object(&self, node: usize) -> Option<&Pod> {
        self.api.objects.pods.get(&u32::try_from(node).ok()?)
    }

    /// Deleted claims that no pod uses any more are removed.
    fn let_go_of_claims(&mut self) {
        let objects = &self.api.objects;
        let goes = |claim: &&Claim| claim.terminating && !objects.pods.contains_key(&claim.ordinal);
        let going: Vec<u32> = objects
            .claims
            .values()
            .filter(goes)
            .map(|claim| claim.ordinal)
            .collect();
        going.into_iter().for_each(|ordinal| self.drop_claim(ordinal as usize));
    }

    /// The StatefulSet's controller ends surplus pods, all at once, and makes missing ones.
    pub fn control(&mut self) {
        if self.api.down > 0 {
            return self.control_soon();
        }
        self.let_go_of_claims();
        let set = Rc::clone(&self.api.objects.set);
        let surplus = |pod: &&Pod| pod.ordinal >= set.facts.replicas && !pod.terminating;
        let surplus = self.api.objects.pods.values().filter(surplus);
        let surplus: Vec<u32> = surplus.map(|pod| pod.ordinal).collect();
        for ordinal in surplus {
            self.change_pod(ordinal as usize, |pod| pod.terminating = true);
            self.kubelet_soon(ordinal as usize);
        }
        let missing = (0..set.facts.replicas).find(|ordinal| !self.api.objects.pods.contains_key(ordinal));
        let Some(ordinal) = missing else { return };
        if !self.api.objects.claims.contains_key(&ordinal) {
            self.make_claim(ordinal as usize);
        }
        self.api.objects.made += 1;
        let (made, now) = (self.api.objects.made, self.now);
        self.change_pods(|pods, version| {
            let uid = format!("uid-{ordinal}-{made}");
            let version = version.parse().unwrap_or(0);
            pods.insert(ordinal, new_pod(ordinal, &uid, &set.template, now, version));
        });
        self.schedule();
        self.control_soon();
    }

    /// Pods are bound to the nodes of their volumes, if these accept pods.
    pub fn schedule(&mut self) {
        let cordoned = Rc::clone(&self.api.objects.cordoned);
        let waits = |pod: &&Pod| pod.node.is_none() && !cordoned.contains(&node_name(pod.ordinal));
        let waits = self.api.objects.pods.values().filter(waits);
        let waits: Vec<u32> = waits.map(|pod| pod.ordinal).collect();
        for ordinal in waits {
            self.change_pod(ordinal as usize, |pod| {
                (pod.node, pod.unschedulable) = (Some(node_name(ordinal)), None);
            });
            self.kubelet_soon(ordinal as usize);
        }
    }

    /// A node stops accepting pods, or accepts them again.
    pub fn cordon(&mut self, node: usize, cordoned: bool) {
        let name = node_name(u32::try_from(node).unwrap_or(u32::MAX));
        let nodes = Rc::make_mut(&mut self.api.objects.cordoned);
        if cordoned {
            nodes.insert(name);
        } else {
            nodes.remove(&name);
        }
        self.show(Kind::Nodes);
        self.schedule();
    }

    pub fn control_soon(&mut self) {
        let delay = self.random.operator.between(20, 400);
        self.after(delay, Event::Control);
    }

    /// A claim is made for the volume that exists on this node.
    pub fn make_claim(&mut self, node: usize) {
        let (version, volume) = (self.api.next(), self.nodes[node].volume.number);
        let ordinal = u32::try_from(node).unwrap_or(u32::MAX);
        let now = self.now;
        Rc::make_mut(&mut self.api.objects.claims).insert(ordinal, new_claim(ordinal, volume, version, now));
        self.show(Kind::Claims);
    }

    /// A claim is deleted. It is removed once no pod uses it any more, and that is noticed.
    pub fn delete_claim(&mut self, node: usize) {
        let ordinal = u32::try_from(node).unwrap_or(u32::MAX);
        if self
            .api
            .objects
            .claims
            .get(&ordinal)
            .is_none_or(|claim| claim.terminating)
        {
            return;
        }
        let version = self.api.next();
        if let Some(claim) = Rc::make_mut(&mut self.api.objects.claims).get_mut(&ordinal) {
            (claim.terminating, claim.resource_version) = (true, version.to_string());
        }
        self.show(Kind::Claims);
        self.control_soon();
    }

    /// A claim is removed, and its volume with all data.
    pub fn drop_claim(&mut self, node: usize) {
        self.empty_volume(node);
        self.api.next();
        let ordinal = u32::try_from(node).unwrap_or(u32::MAX);
        Rc::make_mut(&mut self.api.objects.claims).remove(&ordinal);
        self.show(Kind::Claims);
    }

    /// The present objects of one kind.
    pub fn seen(&self, kind: Kind) -> Seen {
        let objects = &self.api.objects;
        match kind {
            Kind::Database => Seen::Database(Rc::clone(&objects.database)),
            Kind::Lease => Seen::Lease(Rc::clone(&self.api.lease)),
            Kind::Set => Seen::Set(Rc::clone(&objects.set)),
            Kind::Pods => Seen::Pods(objects.pods_version, Rc::clone(&objects.pods)),
            Kind::Claims => Seen::Claims(self.api.version, Rc::clone(&objects.claims)),
            Kind::Nodes => Seen::Nodes(Rc::clone(&objects.cordoned)),
        }
    }
}
