//! What an operator knows: what each of its watches has shown, and newer answers to its own writes.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use machine::cluster::{Claim, Fault, Known, Observed, OwnedObject, OwnedState, Pod, StorageClass, Target, Wanted};
use machine::protocol::LeaseRecord;

use super::super::names::CLUSTER;
use super::objects::{BYTES, Database, Set};
use super::requests::Answer;

/// The name of the database.
pub const NAME: &str = "orders";

/// A kind of object, which has a watch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Database,
    Lease,
    Set,
    Pods,
    Claims,
    Nodes,
}

impl Kind {
    pub const ALL: [Kind; 6] = [
        Kind::Database,
        Kind::Lease,
        Kind::Set,
        Kind::Pods,
        Kind::Claims,
        Kind::Nodes,
    ];
}

/// All objects of one kind, as a watch has shown them up to then.
#[derive(Clone, Debug)]
pub enum Seen {
    Database(Rc<Database>),
    Lease(Rc<LeaseRecord>),
    Set(Rc<Set>),
    Pods(u64, Rc<BTreeMap<u32, Pod>>),
    Claims(u64, Rc<BTreeMap<u32, Claim>>),
    /// Names of nodes that accept no pods.
    Nodes(Rc<BTreeSet<String>>),
}

/// The cache.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub database: Option<Rc<Database>>,
    pub lease: Option<Rc<LeaseRecord>>,
    set: Option<Rc<Set>>,
    pods: Option<(u64, Rc<BTreeMap<u32, Pod>>)>,
    claims: Option<(u64, Rc<BTreeMap<u32, Claim>>)>,
    nodes: Option<Rc<BTreeSet<String>>>,
    /// Pods from answers to writes that the watch has not shown yet, and pods that such answers said are gone.
    written: BTreeMap<u32, Pod>,
    gone: BTreeSet<String>,
    /// UIDs of claims that it has deleted.
    deleted: BTreeSet<String>,
}

fn known<T>(value: Option<T>) -> Known<T> {
    value.map_or(Known::Unknown, Known::Known)
}

fn version(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

impl View {
    /// Takes what a watch delivers; returns whether that needs a reconcile.
    pub fn see(&mut self, seen: Seen) -> bool {
        match seen {
            Seen::Database(database) => self.put_database(database),
            Seen::Lease(lease) => {
                let told = |lease: &LeaseRecord| LeaseRecord {
                    version: String::new(),
                    renewal: None,
                    positions: BTreeMap::new(),
                    ..lease.clone()
                };
                let before = self.lease.clone();
                self.put_lease(lease);
                let after = self.lease.as_ref();
                before.as_ref().map(|lease| told(lease)) != after.map(|lease| told(lease))
            }
            Seen::Set(set) => self.put_set(set),
            Seen::Pods(version, pods) => {
                self.written
                    .retain(|_, pod| self::version(&pod.resource_version) > version);
                let newer = self.pods.as_ref().is_none_or(|(known, _)| *known < version);
                if newer {
                    self.pods = Some((version, pods));
                }
                newer
            }
            Seen::Claims(version, claims) => self.put_claims(version, claims),
            Seen::Nodes(nodes) => {
                self.nodes = Some(nodes);
                true
            }
        }
    }

    /// Takes the answer to a request of its own.
    pub fn put(&mut self, answer: Answer) {
        match answer {
            Answer::Database(database) => {
                self.put_database(database);
            }
            Answer::Lease(lease) => self.put_lease(lease),
            Answer::Claims(version, claims) => {
                self.put_claims(version, claims);
            }
            Answer::Set(set) => {
                self.put_set(set);
            }
            Answer::Pod(pod) => {
                let known = self.pods.as_ref().map_or(0, |(version, _)| *version);
                if version(&pod.resource_version) > known {
                    self.written.insert(pod.ordinal, *pod);
                }
            }
            Answer::Claim(claim) => {
                self.deleted.insert(claim.uid);
            }
            Answer::Gone(uid) => {
                self.gone.insert(uid);
            }
            Answer::Conflict | Answer::Failed => {}
        }
    }

    fn put_database(&mut self, database: Rc<Database>) -> bool {
        let newer = self
            .database
            .as_ref()
            .is_none_or(|known| known.version < database.version);
        if newer {
            self.database = Some(database);
        }
        newer
    }

    fn put_set(&mut self, set: Rc<Set>) -> bool {
        let newer = self.set.as_ref().is_none_or(|known| known.version() < set.version());
        if newer {
            self.set = Some(set);
        }
        newer
    }

    fn put_claims(&mut self, version: u64, claims: Rc<BTreeMap<u32, Claim>>) -> bool {
        let newer = self.claims.as_ref().is_none_or(|(known, _)| *known <= version);
        if newer {
            self.claims = Some((version, claims));
        }
        newer
    }

    fn put_lease(&mut self, lease: Rc<LeaseRecord>) {
        let known = self.lease.as_ref().map(|known| version(&known.version));
        if known.is_none_or(|known| known <= version(&lease.version)) {
            self.lease = Some(lease);
        }
    }

    /// The version by which it knows `target`.
    pub fn version(&self, target: &Target) -> Option<String> {
        match target {
            Target::Pod(name) => {
                let pods = self.pods()?;
                let found = pods.into_iter().find(|pod| pod.name == *name)?;
                Some(found.resource_version)
            }
            Target::Claim(name) => {
                let found = self.claims()?.into_iter().find(|claim| claim.name == *name)?;
                Some(found.resource_version)
            }
            Target::Child(_) => Some(self.set.as_ref()?.facts.resource_version.clone()),
            _ => Some(self.database.as_ref()?.version.to_string()),
        }
    }

    fn claims(&self) -> Option<Vec<Claim>> {
        let claims = self.claims.as_ref()?.1.values();
        let mut claims: Vec<_> = claims
            .filter(|claim| !self.gone.contains(&claim.uid))
            .cloned()
            .collect();
        for claim in &mut claims {
            claim.terminating |= self.deleted.contains(&claim.uid);
        }
        Some(claims)
    }

    fn pods(&self) -> Option<Vec<Pod>> {
        let (_, listed) = self.pods.as_ref()?;
        let mut pods = BTreeMap::clone(listed);
        pods.extend(self.written.iter().map(|(ordinal, pod)| (*ordinal, pod.clone())));
        pods.retain(|_, pod| !self.gone.contains(&pod.uid));
        Some(pods.into_values().collect())
    }

    /// Everything that a decision reads. All objects that are not modelled are as they should be.
    pub fn observed(&self, database: &Database, faults: &BTreeMap<Target, Fault>) -> Observed {
        let mut observed = Observed {
            stateful_set: self.set.as_ref().map(|set| set.facts.clone()),
            pods: known(self.pods()),
            claims: known(self.claims()),
            lease: known(self.lease.as_deref().cloned().map(Some)),
            unschedulable_nodes: known(self.nodes.as_deref().cloned()),
            storage_class: Known::Known(StorageClass::Present { expandable: true }),
            faults: faults.values().cloned().collect(),
            ..Observed::default()
        };
        for kind in OwnedObject::ALL {
            let current = || OwnedState::Current {
                uid: format!("{kind:?}"),
            };
            let state = match (kind, &self.set) {
                (OwnedObject::StatefulSet, None) => None,
                (OwnedObject::StatefulSet, Some(set)) if set.template != database.revision => {
                    Some(OwnedState::Drifted {
                        uid: set.facts.uid.clone(),
                        resource_version: set.facts.resource_version.clone(),
                        what: "spec.template".to_owned(),
                        immutable: false,
                    })
                }
                (OwnedObject::Lease, _) if self.lease.is_none() => None,
                _ => Some(current()),
            };
            observed.children[kind] = known(state);
        }
        observed
    }
}

/// The wanted state, by a version of the resource.
pub fn wanted<'a>(database: &'a Database, version: &'a str) -> Wanted<'a> {
    Wanted {
        name: NAME,
        uid: CLUSTER,
        resource_version: version,
        generation: database.generation,
        deleting: false,
        finalizer: true,
        spec: &database.spec,
        invalid: None,
        settings: &database.settings,
        revision: &database.revision,
        base_revision: &database.revision,
        bare_revision: &database.revision,
        image: "",
        default_image: "",
        restarted_by: None,
        data_bytes: BYTES,
        wal_bytes: None,
        request: database.request.as_ref(),
        backup: None,
        backup_source: Default::default(),
        backup_kind: Default::default(),
        deletes_archive: false,
    }
}
