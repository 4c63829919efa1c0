//! The snapshot of `status`, kept up to date by watches: a change needs no new read.

use std::collections::BTreeMap;

use api::ClusteredDatabase;
use api::names::LABEL_CLUSTER;
use chrono::{SubsecRound, Utc};
use futures::StreamExt;
use futures::stream::{BoxStream, select_all};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject};
use kube::core::ApiResource;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::Value;

use crate::cluster::{Cluster, value};
use crate::snapshot::{self, Snapshot};

/// An event of a watch, and its kind.
pub type Change = (ApiResource, watcher::Result<Event<DynamicObject>>);

/// The events of the database called `name`, its Lease and its pods, for the kinds that `snapshot` shows to be readable.
pub fn changes(cluster: &Cluster, name: &str, snapshot: &Snapshot) -> BoxStream<'static, Change> {
    let named = Config::default().fields(&format!("metadata.name={name}"));
    let labelled = Config::default().labels(&format!("{LABEL_CLUSTER}={name}"));
    let watched = [
        (ApiResource::erase::<ClusteredDatabase>(&()), named.clone()),
        (ApiResource::erase::<Lease>(&()), named),
        (ApiResource::erase::<Pod>(&()), labelled),
    ];
    let streams = watched
        .into_iter()
        .filter(|(kind, _)| snapshot.complete.contains(&kind.kind))
        .map(|(kind, config)| {
            let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &kind);
            let events = watcher(api, config).default_backoff();
            events.map(move |event| (kind.clone(), event)).boxed()
        });
    select_all(streams).boxed()
}

/// A snapshot that follows its watches.
pub struct Watched {
    snapshot: Snapshot,
    /// By kind: the objects of an incomplete list so far.
    listed: BTreeMap<String, Vec<Value>>,
}

impl Watched {
    /// Follows from this snapshot on.
    pub fn new(snapshot: Snapshot) -> Self {
        Self {
            snapshot,
            listed: BTreeMap::new(),
        }
    }

    /// The objects as they are now.
    pub fn now(&mut self) -> &Snapshot {
        self.snapshot.at = Utc::now().trunc_subsecs(3);
        &self.snapshot
    }

    /// Applies an event; false if it changes nothing yet.
    pub fn take(&mut self, kind: &ApiResource, event: Event<DynamicObject>) -> bool {
        match event {
            Event::Init => drop(self.listed.insert(kind.kind.clone(), Vec::new())),
            Event::InitApply(object) => {
                let listed = self.listed.entry(kind.kind.clone()).or_default();
                listed.push(value(object, kind));
            }
            Event::InitDone => {
                let listed = self.listed.remove(&kind.kind).unwrap_or_default();
                self.snapshot.objects.retain(|object| object["kind"] != kind.kind);
                self.snapshot.objects.extend(listed);
                return true;
            }
            Event::Apply(object) => {
                let object = value(object, kind);
                self.forget(kind, snapshot::name(&object));
                self.snapshot.objects.push(object);
                return true;
            }
            Event::Delete(object) => {
                self.forget(kind, object.metadata.name.as_deref().unwrap_or_default());
                return true;
            }
        }
        false
    }

    fn forget(&mut self, kind: &ApiResource, name: &str) {
        let objects = &mut self.snapshot.objects;
        objects.retain(|object| object["kind"] != kind.kind || snapshot::name(object) != name);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn pod(name: &str, uid: &str) -> DynamicObject {
        serde_json::from_value(json!({"metadata": {"name": name, "uid": uid}})).unwrap()
    }

    fn uids(watched: &mut Watched) -> Vec<String> {
        let pods = watched.now().of("Pod");
        pods.map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn objects_come_change_and_go_and_a_list_replaces_all_at_once() {
        let kind = ApiResource::erase::<Pod>(&());
        let mut watched = Watched::new(Snapshot {
            objects: vec![value(pod("demo-0", "a"), &kind), json!({"kind": "Lease"})],
            complete: BTreeSet::new(),
            unreadable: BTreeMap::new(),
            at: Utc::now(),
        });
        assert!(watched.take(&kind, Event::Apply(pod("demo-1", "b"))));
        assert!(watched.take(&kind, Event::Apply(pod("demo-0", "c"))));
        assert_eq!(uids(&mut watched), ["b", "c"]);
        assert!(watched.take(&kind, Event::Delete(pod("demo-1", "b"))));
        assert_eq!(uids(&mut watched), ["c"]);
        assert!(!watched.take(&kind, Event::Init));
        assert!(!watched.take(&kind, Event::InitApply(pod("demo-2", "d"))));
        assert_eq!(uids(&mut watched), ["c"], "half a list is none");
        assert!(watched.take(&kind, Event::InitDone));
        assert_eq!(uids(&mut watched), ["d"]);
        assert_eq!(watched.now().of("Lease").count(), 1, "other kinds stay");
    }
}
