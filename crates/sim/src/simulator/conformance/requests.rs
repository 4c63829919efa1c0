//! The simulator's API server under requests from an outdated view. It is trusted for what another API server does,
//! which was itself compared with a real one.

use std::collections::{BTreeMap, BTreeSet};

use api::names::{ROLE_PRIMARY, ROLE_REPLICA};
use machine::cluster::{ApplyHow, ObjectVersion};
use machine::lease_object::LeaseContent;
use machine::protocol::LeaseRecord;

use super::super::event::Event;
use super::super::names::pod;
use super::super::operator::{Answer, Doomed, Request};
use super::super::plan::{Fault, Plan};
use super::super::world::World;

/// The number of instances at the beginning, and the highest.
pub const INSTANCES: (u32, u32) = (3, 4);
/// Seconds that controllers and kubelets have for their work.
pub const SETTLES: u64 = 90;

/// A request. Each names the UID and the version of the last view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// No request; the present state becomes the last view.
    Look,
    /// The Lease is renewed.
    Renew,
    /// A status with news is written.
    Status,
    /// The StatefulSet is scaled to this many replicas.
    Scale(u32),
    /// A pod gets the label of the primary, or of a replica.
    Label(u32, bool),
    /// A pod is deleted.
    DeletePod(u32),
    /// The claim of an instance is deleted.
    DeleteClaim(u32),
    /// Time passes.
    Settle,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Nothing was requested, or the object was not in the last view.
    Nothing,
    /// It is done, or in progress.
    Done,
    /// The object has another version than was named.
    Conflict,
    /// The object is gone.
    Gone,
}

/// The present objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// `spec.replicas` of the StatefulSet.
    pub replicas: u32,
    /// For each pod whether it is terminating, and its role.
    pub pods: BTreeMap<u32, (bool, String)>,
    /// For each claim whether it is terminating.
    pub claims: BTreeMap<u32, bool>,
    /// UID and version of each object, by its name.
    pub versions: BTreeMap<String, (String, String)>,
}

impl Standing {
    /// Objects that were changed, made or removed since `before`.
    pub fn changed(&self, before: &Self) -> BTreeSet<String> {
        let names = self.versions.keys().chain(before.versions.keys());
        let differs = |name: &&String| self.versions.get(*name) != before.versions.get(*name);
        names.filter(differs).cloned().collect()
    }
}

/// The simulator's API server, with the view of its client.
pub struct Server {
    world: World,
    lease: LeaseRecord,
    known: Standing,
    statuses: u64,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// An idle database of three instances; no operator and no agent acts.
    pub fn new() -> Self {
        let plan = Plan {
            whole: true,
            members: INSTANCES.1 as usize,
            replicas: INSTANCES.0 as usize,
            rates: vec![0; INSTANCES.1 as usize],
            ..Plan::failovers(1, Fault::Reboot, 0)
        };
        let mut world = World::new(plan, false);
        world.queue = Default::default();
        let mut server = Self {
            lease: LeaseRecord::clone(&world.api.lease),
            known: Standing::default(),
            statuses: 1,
            world,
        };
        server.known = server.standing();
        server
    }

    /// The present objects.
    pub fn standing(&self) -> Standing {
        let objects = &self.world.api.objects;
        let version = |name: &str, uid: &str, version: &str| (name.to_owned(), (uid.to_owned(), version.to_owned()));
        let set = &objects.set.facts;
        let mut versions = BTreeMap::from([
            version("lease", "", &self.world.api.lease.version),
            version("database", "", &objects.database.version.to_string()),
            version("set", &set.uid, &set.resource_version),
        ]);
        let pods = objects.pods.values();
        versions.extend(pods.map(|pod| version(&pod.name, &pod.uid, &pod.resource_version)));
        let claims = objects.claims.values();
        versions.extend(claims.map(|claim| version(&claim.name, &claim.uid, &claim.resource_version)));
        let role = |role: &Option<String>| role.clone().unwrap_or_default();
        let pods = objects.pods.iter();
        Standing {
            replicas: set.replicas,
            pods: pods
                .map(|(ordinal, pod)| (*ordinal, (pod.terminating, role(&pod.role))))
                .collect(),
            claims: objects
                .claims
                .iter()
                .map(|(ordinal, claim)| (*ordinal, claim.terminating))
                .collect(),
            versions,
        }
    }

    /// Sends a request.
    pub fn ask(&mut self, ask: Ask) -> Said {
        let known = |name: String| {
            let (uid, version) = self.known.versions.get(&name)?;
            Some(ObjectVersion::new(name, uid, version))
        };
        let request = match ask {
            Ask::Settle => {
                self.settle();
                return self.look();
            }
            Ask::Look => return self.look(),
            Ask::Renew => return self.renew(),
            Ask::Status => self.status(),
            Ask::Scale(replicas) => known("set".to_owned()).map(|set| Request::Apply {
                how: ApplyHow::Change(set),
                replicas: Some(replicas),
                template: self.world.api.objects.set.template.clone(),
            }),
            Ask::Label(ordinal, primary) => known(pod(ordinal as usize)).map(|pod| Request::Label {
                pod,
                role: if primary { ROLE_PRIMARY } else { ROLE_REPLICA },
            }),
            Ask::DeletePod(ordinal) => known(pod(ordinal as usize)).map(|pod| Request::Delete(Doomed::Pod(pod))),
            Ask::DeleteClaim(ordinal) => {
                let claim = known(format!("data-{}", pod(ordinal as usize)));
                claim.map(|claim| Request::Delete(Doomed::Claim(claim)))
            }
        };
        match request.map(|request| self.world.answer_to(request)) {
            None => Said::Nothing,
            Some(Answer::Conflict | Answer::Failed) => Said::Conflict,
            Some(Answer::Gone(_)) => Said::Gone,
            Some(_) => Said::Done,
        }
    }

    fn look(&mut self) -> Said {
        self.known = self.standing();
        self.lease = LeaseRecord::clone(&self.world.api.lease);
        Said::Nothing
    }

    fn status(&mut self) -> Option<Request> {
        self.statuses += 1;
        let mut status = self.world.api.objects.database.status.clone();
        status.epoch = Some(self.statuses);
        let (_, version) = self.known.versions.get("database")?.clone();
        let status = Box::new(status);
        Some(Request::Status { version, status })
    }

    fn renew(&mut self) -> Said {
        let LeaseRecord {
            version,
            uid,
            holder,
            renewal: _,
            duration,
            epoch,
            system_id,
            release,
            rule,
            timeline,
            lossy,
            history,
            members,
            positions,
            archive,
            volume_set: _,
            former_set: _,
        } = self.lease.clone();
        let content = LeaseContent {
            uid,
            version,
            holder,
            duration,
            epoch,
            system_id,
            release,
            rule,
            timeline,
            lossy,
            history,
            members,
            positions,
            archive,
        };
        let before = self.world.api.lease.version.clone();
        self.world.lease_arrives(0, 0, 0, &content, false);
        match self.world.api.lease.version == before {
            true => Said::Conflict,
            false => Said::Done,
        }
    }

    /// Kubelets check each second; no container is started.
    fn settle(&mut self) {
        for _ in 0..SETTLES {
            let until = self.world.now + 1_000;
            while let Some((at, event)) = self.world.queue.pop_before(until) {
                self.world.now = at;
                if !matches!(event, Event::Boot { .. }) {
                    self.world.happen(event);
                }
            }
            self.world.now = until;
            (0..INSTANCES.1 as usize).for_each(|node| self.world.kubelet(node, false));
        }
    }
}
