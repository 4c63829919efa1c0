//! The simulator's API server under requests by somebody who looked some time ago: what it may be trusted for is what an API server does
//! that was itself held against a real one.

use std::collections::{BTreeMap, BTreeSet};

use api::names::{ROLE_PRIMARY, ROLE_REPLICA};
use machine::cluster::{ApplyHow, Exact};
use machine::lease_object::LeaseContent;
use machine::protocol::LeaseRecord;

use super::super::event::Event;
use super::super::names::pod;
use super::super::operator::{Answer, Doomed, Request};
use super::super::plan::{Fault, Plan};
use super::super::world::World;

/// Instances at first, and at most.
pub const INSTANCES: (u32, u32) = (3, 4);
/// Seconds in which controllers and kubelets do what they have to.
pub const SETTLES: u64 = 90;

/// What is asked for. Each request names the UID and the version of the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Nothing; but what there is now is known from here on.
    Look,
    /// The Lease is renewed.
    Renew,
    /// A status is written that says something new.
    Status,
    /// The StatefulSet is to have so many replicas.
    Scale(u32),
    /// A pod's role is to be primary, or replica.
    Label(u32, bool),
    /// A pod is to go.
    DeletePod(u32),
    /// The claim of an instance is to go.
    DeleteClaim(u32),
    /// Time passes.
    Settle,
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Nothing was asked for, or what was not there at the last look.
    Nothing,
    /// It is done, or under way.
    Done,
    /// It is another than was named.
    Conflict,
    /// It is gone.
    Gone,
}

/// What there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// `spec.replicas` of the StatefulSet.
    pub replicas: u32,
    /// Of each pod whether it is to go, and its role.
    pub pods: BTreeMap<u32, (bool, String)>,
    /// Of each claim whether it is to go.
    pub claims: BTreeMap<u32, bool>,
    /// UID and version of each object, by its name.
    pub versions: BTreeMap<String, (String, String)>,
}

impl Standing {
    /// What has another version now, or came, or went.
    pub fn changed(&self, before: &Self) -> BTreeSet<String> {
        let names = self.versions.keys().chain(before.versions.keys());
        let differs = |name: &&String| self.versions.get(*name) != before.versions.get(*name);
        names.filter(differs).cloned().collect()
    }
}

/// The simulator's API server, and who asks.
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
    /// A database of three at rest, and nobody who does anything.
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

    /// What there is now.
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

    /// Asks for something.
    pub fn ask(&mut self, ask: Ask) -> Said {
        let known = |name: String| {
            let (uid, version) = self.known.versions.get(&name)?;
            Some(Exact::new(name, uid, version))
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
        };
        let before = self.world.api.lease.version.clone();
        self.world.lease_arrives(0, 0, 0, &content, false);
        match self.world.api.lease.version == before {
            true => Said::Conflict,
            false => Said::Done,
        }
    }

    /// Kubelets look each second; no container is started.
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
