//! What the agent has seen, gathered from events into the machine's [`Observed`].

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
use machine::instance::{Memo, Observed, Own, Promise, Reading};
use machine::protocol::settings_hash;
use machine::timing::{BootTime, Timing};

pub use canary::{canary, greet};
pub use done::{Contacted, Done, Effect, Failure, News};
pub use postgres::{Poll, poll};
pub use refusals::Refusals;
pub use secrets::{Secret, watch_secrets};
pub use volume::{Scan, scan, watch_kept, watch_room};

use crate::peer::Signer;
use crate::postgres::{Following, Server, Status, Tools};

/// All that the agent knows: the machine's view, and what the executor needs to carry out an action that names it.
pub struct World {
    /// For the machine.
    pub observed: Observed,
    /// The machine's own memory.
    pub memo: Memo,
    /// UID of the ClusteredDatabase that this pod belongs to.
    pub cluster_uid: String,
    /// Its spec as last read.
    pub spec: Option<ClusteredDatabaseSpec>,
    /// The Lease that [`Observed::lease`] describes.
    pub lease: Option<Lease>,
    /// PostgreSQL's programs, once found.
    pub tools: Option<Arc<Tools>>,
    /// The running server.
    pub server: Option<Running>,
    /// When PostgreSQL was asked how it is, right after its settings had changed last.
    pub configured_at: BootTime,
    /// How a standby finds whom it follows, by what was written for it last.
    following: Following,
    /// The user's settings that PostgreSQL last ran well with.
    pub good_settings: BTreeMap<String, String>,
    /// PostgreSQL's last answer, whole.
    pub status: Option<Box<Status>>,
    /// Answers of PostgreSQL that did not come, in a row.
    silent: u32,
    /// When the WAL receiver heard the primary last, also if there is none any more.
    heard: Option<BootTime>,
    /// When the promise was known that [`Observed::volume`] tells.
    promised_at: BootTime,
    /// WAL senders that are no member's, or are one's twice.
    strange: Vec<String>,
    /// With it this agent signs what it says to others.
    pub signer: Signer,
    /// Messages of others that counted as nothing.
    pub refusals: Refusals,
}

/// The server that this agent has started.
pub struct Running {
    /// To stop and reload it.
    pub server: Arc<Server>,
    /// When it was started.
    pub since: BootTime,
    /// The agent has asked it to stop.
    pub asked: bool,
}

impl World {
    /// Nothing is known yet.
    pub fn new(own: Own, cluster_uid: String) -> Self {
        Self {
            observed: Observed::nothing(own),
            memo: Memo::default(),
            cluster_uid,
            spec: None,
            lease: None,
            tools: None,
            server: None,
            configured_at: BootTime(0),
            following: Following::default(),
            good_settings: BTreeMap::new(),
            status: None,
            silent: 0,
            heard: None,
            promised_at: BootTime(0),
            strange: Vec::new(),
            signer: Signer::default(),
            refusals: Refusals::default(),
        }
    }

    /// Takes a version of the ClusteredDatabase. One that is gone, or another of the same name, changes nothing: the
    /// database goes on with what was wanted last.
    pub fn cluster(&mut self, reading: Reading<ClusteredDatabase>) {
        let Reading::Is(cluster) = reading else { return };
        if cluster.metadata.uid.as_ref() != Some(&self.cluster_uid) {
            tracing::warn!(
                uid = cluster.metadata.uid,
                "the ClusteredDatabase of this name is another one"
            );
            return;
        }
        let before = self
            .observed
            .cluster
            .is()
            .map_or(Timing::DEFAULT, |cluster| cluster.timing);
        self.observed.cluster = Reading::Is(cluster::view(&cluster, &self.observed.own.pod, before));
        self.spec = Some(cluster.spec);
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
        let wanted = self.spec.as_ref().map(|spec| &spec.postgres.parameters);
        let none = BTreeMap::new();
        let known = wanted.into_iter().chain([&self.good_settings, &none]);
        known
            .into_iter()
            .find(|settings| settings_hash(settings) == hash)
            .cloned()
    }

    /// Takes what was read from the volume. If it cannot be read again, what was read before still is what was there then.
    pub fn scanned(&mut self, scan: Result<Scan, String>) {
        match scan {
            // It began before the one that is known.
            Ok(scan)
                if self
                    .observed
                    .volume
                    .is()
                    .is_some_and(|known| known.read > scan.view.read) => {}
            Ok(mut scan) => {
                // A promise that was made while the volume was read.
                if let Some(known) = self.observed.volume.is()
                    && self.promised_at > scan.view.read
                {
                    scan.view.promise = known.promise;
                }
                self.signer.set(scan.key);
                self.observed.volume = Reading::Is(scan.view);
                self.observed.forget_overtaken_upstream();
                if let Some(limits) = scan.limits {
                    self.observed.postgres.enforced = limits;
                }
                if let Some(settings) = scan.good_settings {
                    self.observed.postgres.good_settings = settings_hash(&settings);
                    self.good_settings = settings;
                }
            }
            Err(error) => {
                tracing::error!("read the volume: {error}");
            }
        }
    }

    /// Takes what has just been promised durably.
    pub fn promised(&mut self, promise: Promise, now: BootTime) {
        let Some(new) = self.observed.promised(promise) else {
            return;
        };
        self.promised_at = now;
        if new {
            self.configured_at = now;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use machine::instance::Peer;
    use machine::protocol::Epoch;

    use super::*;

    /// The member in pod `orders-2`, which has reported this key.
    pub(crate) fn peer(key: &str) -> Peer {
        let report = serde_json::json!({
            "podUid": "u", "member": "cdb_2_aaaa_00000001", "address": "10.0.0.3", "state": "Waiting", "settings": "s",
            "agentVersion": "0", "publicKey": key,
        });
        Peer {
            report: serde_json::from_value(report).expect("a report"),
            position: None,
            replayed: None,
            promised: Epoch(0),
            heard: BootTime(0),
        }
    }

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
            "apiVersion": "clustereddatabase.io/v1alpha1",
            "kind": "ClusteredDatabase",
            "metadata": {"name": "orders", "uid": uid},
            "spec": {"storage": {"size": "1Gi"}, "postgres": {"parameters": {"work_mem": "8MB"}}},
        }))
        .expect("a resource")
    }

    #[test]
    fn another_resource_of_the_same_name_changes_nothing() {
        let mut world = world();
        world.cluster(Reading::Is(cluster("another")));
        assert_eq!(world.observed.cluster, Reading::Unknown);
        world.cluster(Reading::Is(cluster("c0ffee")));
        assert!(world.observed.cluster.is().is_some());
        world.cluster(Reading::Missing);
        assert!(world.observed.cluster.is().is_some(), "the database goes on");
    }

    #[test]
    fn settings_are_found_by_their_hash() {
        let mut world = world();
        world.cluster(Reading::Is(cluster("c0ffee")));
        let wanted = BTreeMap::from([("work_mem".to_owned(), "8MB".to_owned())]);
        assert_eq!(world.settings(&settings_hash(&wanted)), Some(wanted));
        assert_eq!(world.settings(&settings_hash(&BTreeMap::new())), Some(BTreeMap::new()));
        assert_eq!(world.settings("unheard of"), None);
    }
}
