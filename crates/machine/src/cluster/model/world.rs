//! An abstract cluster: it carries out what is decided, and its controllers and agents move on by themselves. Only what
//! the operator can see is in it; what it knows of PostgreSQL is who has a database and who streams.

mod agents;
mod controllers;
mod execute;
mod steps;

pub use steps::{Refusal, Write};

use std::collections::{BTreeMap, BTreeSet};

use api::names::Names;
use chrono::{DateTime, TimeDelta, Utc};

use super::scene::{NAME, Scene, UID, child_uid};
use crate::cluster::{Action, Cluster, Decision, OwnedObject, OwnedState, Resources, StatusWrite, Target};
use crate::protocol::{LeaseRecord, MemberId};
use crate::reconcile::{FaultKind, Next, Pass};

/// How often the world moves.
const TICK: TimeDelta = TimeDelta::milliseconds(100);

/// The cpu and memory of a revision. Words that sort later are more memory.
fn resources_of(revision: &str) -> &str {
    revision.split_once('+').map_or("", |(_, resources)| resources)
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
    pub refused: BTreeSet<OwnedObject>,
    /// What an action wanted that no cluster allows: a fault of the rules. The world does not go on then.
    pub impossible: Option<String>,
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
    /// What a backup is recovered with fails.
    pub unrecoverable: bool,
    /// The store lacks what a recovery needs.
    pub unprovable: bool,
    /// The agents do not look through the store, as those of earlier versions.
    pub never_checks: bool,
    /// No volumes can be had for claims.
    pub no_volumes: bool,
    /// A volume's file system grows only when a new pod mounts it.
    pub grows_unmounted: bool,
    /// Revision of the StatefulSet's template.
    template: String,
    /// The set of volumes that its claim templates are of.
    volume_set: u32,
    /// What the Lease says beside of another set of volumes.
    former: Option<LeaseRecord>,
    /// What the operator remembers.
    pass: Pass<Target>,
    crash: Crash,
    serial: u32,
    ticks: u32,
}

impl World {
    /// Nothing but the resource.
    pub fn new(replicas: u32) -> Self {
        let mut world = Self {
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
            impossible: None,
            primaries: Vec::new(),
            resources: BTreeMap::new(),
            in_force: BTreeMap::new(),
            dead: BTreeMap::new(),
            data: BTreeMap::new(),
            moved: BTreeSet::new(),
            unrecoverable: false,
            unprovable: false,
            never_checks: false,
            no_volumes: false,
            grows_unmounted: false,
            template: String::new(),
            volume_set: 0,
            former: None,
            pass: Pass::default(),
            crash: Crash::Never,
            serial: 0,
            ticks: 0,
        };
        world.look();
        world
    }

    /// Sets when the operator dies.
    pub fn crashing(mut self, crash: Crash) -> Self {
        self.crash = crash;
        self
    }

    /// Goes on until `done`, at most `limit` of the world's time. Says whether it was reached; not so if an action was
    /// [impossible](World::impossible).
    pub fn run_until(&mut self, limit: TimeDelta, mut done: impl FnMut(&World, &Decision) -> bool) -> bool {
        let end = self.scene.now + limit;
        while self.scene.now < end && self.impossible.is_none() {
            self.look();
            let decision = self.scene.decide();
            if self.gone || done(self, &decision) {
                return true;
            }
            if let Next::Sleep(_) = self.operate(&decision) {
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
            resting && world.scene.due(decision) == StatusWrite::None
        })
    }

    /// One step of the operator.
    fn operate(&mut self, decision: &Decision) -> Next {
        let status = self.scene.status(decision);
        let Scene { observed, stored, .. } = &self.scene;
        let next = self
            .pass
            .next::<Cluster>(observed, stored, &status, decision, self.scene.now);
        match next {
            Next::Sleep(_) => {}
            Next::WriteStatus => {
                let transition = status.phase != self.scene.stored.phase;
                self.scene.stored = status;
                self.answered(&Target::Status, Ok(()));
                let died = self.wrote(format!("status for {}", decision.rule));
                if transition && !died {
                    self.wrote(format!("event {:?}", decision.phase));
                }
            }
            Next::Confirm | Next::Perform => {
                let result = self.execute(&decision.action);
                if let Some(target) = decision.action.target() {
                    self.answered(&target, result);
                }
                self.wrote(format!("{} {:?}", decision.action.name(), decision.action.target()));
            }
        }
        next
    }

    /// What came of a write.
    fn answered(&mut self, target: &Target, result: Result<(), FaultKind>) {
        match result {
            Ok(()) if *target == Target::Status => self.pass.status_written(target),
            Ok(()) => self.pass.succeeded(target),
            Err(kind) => {
                let message = "admission webhook no-objects denied the request".to_owned();
                self.pass.failed(target.clone(), None, kind, message, self.scene.now);
            }
        }
        self.show_faults();
    }

    fn show_faults(&mut self) {
        self.scene.observed.faults = self.pass.faults().values().cloned().collect();
    }

    /// Counts a write; true if the operator died of it.
    fn wrote(&mut self, what: String) -> bool {
        self.writes.push(what);
        let dies = self.crash == Crash::After(self.writes.len());
        if dies {
            self.pass = Pass::default();
            self.show_faults();
        }
        dies
    }

    /// What the operator's executor does before a decision: failures end with the spec that they were about, and each
    /// pod's cpu and memory are compared with the wanted.
    fn look(&mut self) {
        self.pass.begin(UID, self.scene.generation, |_| None);
        self.show_faults();
        self.show_volumes();
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

    /// The claims of the set of volumes in use stand apart, and a StatefulSet with the templates of another one cannot be changed.
    fn show_volumes(&mut self) {
        let set = self.scene.stored.memo.volume_set();
        let mut all = std::mem::take(self.scene.claims_mut());
        all.append(&mut self.scene.observed.other_claims);
        all.sort_by_key(|claim| (claim.ordinal, claim.volume, claim.set));
        (*self.scene.claims_mut(), self.scene.observed.other_claims) =
            all.into_iter().partition(|claim| claim.set == set);
        if self.volume_set != set && self.scene.observed.stateful_set.is_some() {
            let drifted = OwnedState::Drifted {
                uid: child_uid(OwnedObject::StatefulSet),
                resource_version: "1".to_owned(),
                what: "spec.volumeClaimTemplates".to_owned(),
                immutable: true,
            };
            self.scene.set_child(OwnedObject::StatefulSet, drifted);
        }
    }

    /// The name of a member's WAL claim.
    fn wal_name(&self, ordinal: u32) -> String {
        Names::new(NAME).wal_claim(self.volume_set, ordinal)
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
