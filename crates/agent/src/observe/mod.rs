//! The agent's observations: they are passed to the machine's [`Observer`]. This module keeps the handles that actions
//! need.

mod canary;
mod cluster;
mod done;
mod lease;
mod postgres;
mod refusals;
mod secrets;
mod volume;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{ClusteredDatabase, ClusteredDatabaseSpec};
use k8s_openapi::api::coordination::v1::Lease;
use machine::instance::observer::{Event, Note, Observer, ServerId};
use machine::instance::{Memo, Observed, Own, Reading};
use machine::protocol::settings_hash;
use machine::timing::{BootTime, Timing};

pub use canary::{canary, greet};
pub use done::{Done, Effect, Failure, Handle};
pub use postgres::{Poll, poll};
pub use refusals::Refusals;
pub use secrets::{Secret, watch_secrets};
pub use volume::{Scan, scan, watch_kept, watch_room};

use crate::peer::Signer;
use crate::postgres::{Server, Status};
use crate::tools::Tools;

/// What the agent knows, and the handles with which the executor carries out an action.
pub struct World {
    /// The machine's observer of events.
    pub observer: Observer,
    /// The machine's memory.
    pub memo: Memo,
    /// The spec of the ClusteredDatabase as last read.
    pub spec: Option<ClusteredDatabaseSpec>,
    /// The Lease that [`Observer::newest_lease`] names: writes replace it.
    pub lease: Option<Lease>,
    /// PostgreSQL's programs, once found.
    pub tools: Option<Arc<Tools>>,
    /// The running server.
    pub server: Option<Arc<Server>>,
    /// The user's settings that PostgreSQL last ran well with.
    pub good_settings: BTreeMap<String, String>,
    /// PostgreSQL's last status, with the fields that the observer does not keep.
    pub status: Option<Box<Status>>,
    /// WAL senders that belong to no member, or that a member has twice.
    strange: Vec<String>,
    /// Signs this agent's messages to other agents.
    pub signer: Signer,
    /// Limits how often refused messages are logged.
    pub refusals: Refusals,
}

impl World {
    /// Nothing is known yet.
    pub fn new(own: Own, cluster_uid: String) -> Self {
        Self {
            observer: Observer::new(own, cluster_uid),
            memo: Memo::default(),
            spec: None,
            lease: None,
            tools: None,
            server: None,
            good_settings: BTreeMap::new(),
            status: None,
            strange: Vec::new(),
            signer: Signer::default(),
            refusals: Refusals::default(),
        }
    }

    /// The observations, for the machine.
    pub fn observed(&self) -> &Observed {
        self.observer.observed()
    }

    /// Takes an event that brings no handle. Drops the handles of things that are gone.
    pub fn observe(&mut self, event: Event, now: BootTime) {
        let note = self.observer.observe(event, now);
        self.take_note(note, now);
    }

    fn take_note(&mut self, note: Option<Note>, now: BootTime) {
        if self.observer.server().is_none() {
            (self.server, self.status) = (None, None);
        }
        if self.observer.newest_lease().is_none() {
            self.lease = None;
        }
        match note {
            Some(Note::Failed { work, message }) => tracing::warn!(?work, "{message}"),
            Some(Note::Ended { server, exit }) => tracing::info!(
                pid = server.0,
                ran_milliseconds = exit.ran.0,
                asked = exit.asked,
                "PostgreSQL has ended"
            ),
            Some(Note::Refused { what, reason }) => self.refusals.tell(what, &reason, now),
            // The caller that passed the event logs these, since it knows more.
            Some(Note::AnotherCluster | Note::Silent | Note::Unanswered | Note::SettingsProved) | None => {}
        }
    }

    /// Takes a version of the ClusteredDatabase. If the resource is gone, or is another one of the same name, nothing
    /// changes: the database goes on with what was wanted last.
    pub fn cluster(&mut self, reading: Reading<ClusteredDatabase>, now: BootTime) {
        let Reading::Is(cluster) = reading else { return };
        let known = self.observed().cluster.is();
        let before = known.map_or(Timing::DEFAULT, |cluster| cluster.timing);
        let view = cluster::view(&cluster, &self.observed().own.pod, before);
        if self.observer.observe(Event::Cluster(Box::new(view)), now) == Some(Note::AnotherCluster) {
            tracing::warn!(
                uid = cluster.metadata.uid,
                "the ClusteredDatabase of this name has another UID: nothing is taken from it"
            );
            return;
        }
        self.spec = Some(cluster::spec(cluster));
    }

    /// PostgreSQL's port, if the spec is known.
    pub fn port(&self) -> Option<u16> {
        self.spec.as_ref().map(|spec| spec.postgres.port)
    }

    /// PostgreSQL's major version.
    pub fn major(&self) -> u16 {
        let wanted = self.spec.as_ref().map_or(0, |spec| spec.postgres.major_version);
        self.tools.as_ref().map_or(wanted, |tools| tools.major())
    }

    /// The user's settings with this hash, if they are known.
    pub fn settings(&self, hash: &str) -> Option<BTreeMap<String, String>> {
        let wanted = self.spec.as_ref().map(|spec| spec.postgres.settings());
        let known = wanted.into_iter().chain([self.good_settings.clone(), BTreeMap::new()]);
        known.into_iter().find(|settings| settings_hash(settings) == hash)
    }

    /// Takes a reading of the volume outside a task. After an error the last reading stays valid.
    pub fn scanned(&mut self, scan: Result<Scan, String>, now: BootTime) {
        match scan {
            Ok(scan) => {
                self.observe(Event::Scanned(Box::new(scan.seen())), now);
                self.keep_scan(scan);
            }
            Err(error) => tracing::error!("read the volume: {error}"),
        }
    }

    /// Keeps the handles of a reading of the volume, if the observer has taken it.
    fn keep_scan(&mut self, scan: Scan) {
        let taken = self.observed().volume.is().map(|view| view.read);
        if taken == Some(scan.view.read) {
            self.signer.set(scan.key);
            if let Some(settings) = scan.good_settings {
                self.good_settings = settings;
            }
        }
    }
}

/// The observer's name of the server with process id `pid`.
pub fn id(pid: u32) -> ServerId {
    ServerId(u64::from(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn world() -> World {
        let own = Own {
            pod: "orders-0".to_owned(),
            ordinal: 0,
            pod_uid: "pod-0".to_owned(),
            run: "run".to_owned(),
            address: "10.0.0.1".to_owned(),
            agent_version: "0.1.0".to_owned(),
        };
        World::new(own, "c0ffee".to_owned())
    }

    fn cluster(uid: &str) -> ClusteredDatabase {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "clustereddatabase.io/v1alpha2",
            "kind": "ClusteredDatabase",
            "metadata": {"name": "orders", "uid": uid},
            "spec": {"storage": {"data": {"size": "1Gi"}}, "postgres": {"parameters": {"work_mem": "8MB"}}},
        }))
        .expect("a resource")
    }

    #[test]
    fn another_resource_of_the_same_name_changes_nothing() {
        let mut world = world();
        world.cluster(Reading::Is(cluster("another")), BootTime(0));
        assert_eq!(world.observed().cluster, Reading::Unknown);
        world.cluster(Reading::Is(cluster("c0ffee")), BootTime(0));
        assert!(world.observed().cluster.is().is_some());
        world.cluster(Reading::Missing, BootTime(0));
        assert!(world.observed().cluster.is().is_some(), "the database goes on");
    }

    #[test]
    fn settings_are_found_by_their_hash() {
        let mut world = world();
        world.cluster(Reading::Is(cluster("c0ffee")), BootTime(0));
        let wanted = BTreeMap::from([("work_mem".to_owned(), "8MB".to_owned())]);
        assert_eq!(world.settings(&settings_hash(&wanted)), Some(wanted));
        assert_eq!(world.settings(&settings_hash(&BTreeMap::new())), Some(BTreeMap::new()));
        assert_eq!(world.settings("unheard of"), None);
    }
}
