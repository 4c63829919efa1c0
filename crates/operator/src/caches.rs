//! Everything that the operator watches: the resources, and what carries the label of one.

use std::sync::Arc;

use api::names::{CONTAINER, DATA_VOLUME, LABEL_CLUSTER, LEASE_POSITIONS, WAL_VOLUME};
use api::{ClusteredDatabase, Guarded, Unreadable};
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    Container, Node, NodeSpec, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::{ObjectMeta, PartialObjectMeta};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use machine::cluster::ChildKind;
use tokio::task::JoinSet;

use crate::builders::stateful_set::SELECTED_NODE;
use crate::cache::{Cache, Key};

/// One cache a kind.
#[derive(Debug)]
pub struct Caches {
    /// The resources.
    pub databases: Cache<ClusteredDatabase>,
    /// See the kind.
    pub service_accounts: Cache<ServiceAccount>,
    /// See the kind.
    pub roles: Cache<Role>,
    /// See the kind.
    pub role_bindings: Cache<RoleBinding>,
    /// Metadata only: no secret is ever kept.
    pub secrets: Cache<PartialObjectMeta<Secret>>,
    /// See the kind.
    pub services: Cache<Service>,
    /// See the kind.
    pub endpoint_slices: Cache<EndpointSlice>,
    /// See the kind.
    pub leases: Cache<Lease>,
    /// See the kind.
    pub budgets: Cache<PodDisruptionBudget>,
    /// See the kind.
    pub stateful_sets: Cache<StatefulSet>,
    /// See the kind.
    pub pods: Cache<Pod>,
    /// All claims with names that could be a database's, labelled or not: a StatefulSet takes what has the right name.
    pub claims: Cache<PersistentVolumeClaim>,
    /// See the kind. Of no database in particular.
    pub storage_classes: Cache<StorageClass>,
    /// See the kind. Of no database in particular.
    pub nodes: Cache<Node>,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            databases: Cache::new("ClusteredDatabase", itself, always),
            service_accounts: Cache::new("ServiceAccount", labelled, always),
            roles: Cache::new("Role", labelled, always),
            role_bindings: Cache::new("RoleBinding", labelled, always),
            secrets: Cache::new("Secret", labelled, always),
            services: Cache::new("Service", labelled, always),
            endpoint_slices: Cache::new("EndpointSlice", labelled, metadata_changes),
            leases: Cache::new("Lease", labelled, lease_changes),
            budgets: Cache::new("PodDisruptionBudget", labelled, always),
            stateful_sets: Cache::new("StatefulSet", labelled, always),
            pods: Cache::new("Pod", labelled, always),
            claims: Cache::new("PersistentVolumeClaim", claimed, always),
            storage_classes: Cache::new(STORAGE_CLASS, |_| Some(Key::all()), always),
            nodes: Cache::new(NODE, |_| Some(Key::all()), takes_pods_changes),
        }
    }
}

/// What a watch tells: the databases that an event concerns, or that the watch failed.
pub trait Report: Send + Sync + 'static {
    /// Something of this database changed.
    fn touched(&self, key: Key);
    /// The watch of this kind failed; it goes on by itself, after a while.
    fn failed(&self, kind: &'static str, error: &watcher::Error);
    /// This object cannot be read, and could before, or for another reason: its database alone waits until that changes.
    fn unreadable(&self, kind: &'static str, object: &Unreadable);
}

impl Caches {
    /// Watches everything in `namespace` (everywhere if `None`), for ever.
    pub fn watch<R: Report>(
        self: &Arc<Self>,
        client: &Client,
        namespace: Option<&str>,
        report: &Arc<R>,
    ) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let ours = watcher::Config::default().labels(LABEL_CLUSTER);
        let all = watcher::Config::default();
        macro_rules! watch {
            ($field:ident, $api:expr, $config:expr, $prune:expr) => {
                let (caches, report) = (Arc::clone(self), Arc::clone(report));
                let stream = pruned(watcher($api, $config), $prune);
                tasks.spawn(async move { feed(stream, &caches.$field, &*report).await });
            };
        }
        watch!(databases, scoped(client, namespace), all.clone(), |_| {});
        watch!(service_accounts, scoped(client, namespace), ours.clone(), |_| {});
        watch!(roles, scoped(client, namespace), ours.clone(), |_| {});
        watch!(role_bindings, scoped(client, namespace), ours.clone(), |_| {});
        // By its type this asks for metadata only: no content of a Secret comes by a watch.
        watch!(secrets, scoped(client, namespace), ours.clone(), |_| {});
        watch!(services, scoped(client, namespace), ours.clone(), |_| {});
        watch!(endpoint_slices, scoped(client, namespace), ours.clone(), |_| {});
        watch!(leases, scoped(client, namespace), ours.clone(), |_| {});
        watch!(budgets, scoped(client, namespace), ours.clone(), |_| {});
        watch!(stateful_sets, scoped(client, namespace), ours.clone(), |_| {});
        watch!(pods, scoped(client, namespace), ours, prune_pod);
        watch!(claims, scoped(client, namespace), all.clone(), prune_claim);
        watch!(storage_classes, Api::all(client.clone()), all.clone(), |_| {});
        watch!(nodes, Api::all(client.clone()), all, prune_node);
        tasks
    }

    /// What is told of every cache.
    pub fn health(&self) -> Vec<CacheHealth> {
        macro_rules! each {
            ($($field:ident),*) => {
                vec![$(CacheHealth {
                    kind: self.$field.kind,
                    silence: self.$field.silence(),
                    stale_events: self.$field.stale_events(),
                    unreadable: self.$field.count_unreadable(),
                }),*]
            };
        }
        each!(
            databases,
            service_accounts,
            roles,
            role_bindings,
            secrets,
            services,
            endpoint_slices,
            leases,
            budgets,
            stateful_sets,
            pods,
            claims,
            storage_classes,
            nodes
        )
    }

    /// The objects of one database that cannot be read and that a decision about it looks at.
    pub fn unreadable(&self, key: &Key) -> Vec<machine::cluster::Unreadable> {
        let mut found = Vec::new();
        macro_rules! each {
            ($($field:ident),*) => {
                $(for object in self.$field.unreadable(key) {
                    let name = object.metadata.name.clone().unwrap_or_default();
                    if is_looked_at(self.$field.kind, key, &name) {
                        let object_name = format!("{} {name}", self.$field.kind);
                        found.push(machine::cluster::Unreadable { object: object_name, why: object.why.clone() });
                    }
                })*
            };
        }
        each!(
            service_accounts,
            roles,
            role_bindings,
            secrets,
            services,
            endpoint_slices,
            leases,
            budgets,
            stateful_sets,
            pods,
            claims
        );
        found
    }

    /// The resources have been listed: there is something to decide about.
    pub fn are_ready(&self) -> bool {
        self.databases.is_listed()
    }
}

/// See [`Caches::health`].
#[derive(Clone, Copy, Debug)]
pub struct CacheHealth {
    /// The kind.
    pub kind: &'static str,
    /// How long ago its watch last reported anything.
    pub silence: std::time::Duration,
    /// How many events were older than our own writes.
    pub stale_events: u64,
    /// How many of its objects cannot be read.
    pub unreadable: usize,
}

/// Of objects that are made once for a database only those with its names count; of pods and claims all.
fn is_looked_at(kind: &str, database: &Key, name: &str) -> bool {
    let mut children = ChildKind::ALL
        .into_iter()
        .filter(|child| child.kind() == kind)
        .peekable();
    children.peek().is_none() || children.any(|child| name.strip_prefix(&database.name) == Some(child.suffix()))
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Failures are followed by longer and longer pauses; of objects only what is looked at is kept.
fn pruned<K: Resource>(
    stream: impl futures::Stream<Item = watcher::Result<watcher::Event<Guarded<K>>>> + Send,
    prune: fn(&mut K),
) -> impl futures::Stream<Item = watcher::Result<watcher::Event<Guarded<K>>>> + Send {
    stream.default_backoff().modify(move |object| {
        if let Ok(object) = &mut object.0 {
            prune(object);
        }
    })
}

/// The object of this event, if it cannot be read and that is news.
fn newly_unreadable<K: ResourceExt + Clone>(
    event: &watcher::Event<Guarded<K>>,
    cache: &Cache<K>,
) -> Option<Unreadable> {
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
    let object = match event {
        Apply(Guarded(Err(object))) | InitApply(Guarded(Err(object))) => object,
        Apply(_) | InitApply(_) | Delete(_) | Init | InitDone => return None,
    };
    (!cache.is_known_unreadable(object)).then(|| (**object).clone())
}

async fn feed<K: ResourceExt + Clone>(
    stream: impl futures::Stream<Item = watcher::Result<watcher::Event<Guarded<K>>>> + Send,
    cache: &Cache<K>,
    report: &impl Report,
) {
    futures::pin_mut!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                let first = matches!(event, watcher::Event::InitDone) && !cache.is_listed();
                let unreadable = newly_unreadable(&event, cache);
                cache.take(event).into_iter().for_each(|key| report.touched(key));
                if let Some(object) = unreadable {
                    report.unreadable(cache.kind, &object);
                }
                if first {
                    // What was unknown so far is known now, for every database.
                    report.touched(Key::all());
                }
            }
            Err(error) => {
                report.failed(cache.kind, &error);
                if unread(cache.kind).is_some() && is_forbidden(&error) {
                    tokio::time::sleep(FORBIDDEN_PAUSE).await;
                }
            }
        }
    }
}

const STORAGE_CLASS: &str = "StorageClass";
const NODE: &str = "Node";

/// What is not known without a kind that the operator can do without, or `None` if it cannot: an operator for one
/// namespace may have no rights beyond it.
pub fn unread(kind: &str) -> Option<&'static str> {
    match kind {
        STORAGE_CLASS => Some("whether one is missing, and whether volumes can grow, is not known"),
        NODE => Some("which are drained is not known, and no primary is moved away from them"),
        _ => None,
    }
}

/// How often it is tried whether it may be read now.
const FORBIDDEN_PAUSE: std::time::Duration = std::time::Duration::from_secs(60);

/// The API server does not let us read this kind.
pub fn is_forbidden(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchFailed(kube::Error::Api(status))) = error
    else {
        return false;
    };
    status.is_forbidden()
}

fn itself(metadata: &ObjectMeta) -> Option<Key> {
    Some(Key {
        namespace: metadata.namespace.clone()?,
        name: metadata.name.clone()?,
    })
}

fn labelled(metadata: &ObjectMeta) -> Option<Key> {
    Some(Key {
        namespace: metadata.namespace.clone()?,
        name: metadata.labels.as_ref()?.get(LABEL_CLUSTER)?.clone(),
    })
}

/// The database that a claim of this name is for: `data-<database>-<ordinal>`.
fn claimed(claim: &ObjectMeta) -> Option<Key> {
    let name = claim.name.as_deref()?;
    let (volume, pod) = name.split_once('-')?;
    let (database, ordinal) = pod.rsplit_once('-')?;
    let fits = [DATA_VOLUME, WAL_VOLUME].contains(&volume) && ordinal.parse::<u32>().is_ok();
    fits.then(|| {
        Some(Key {
            namespace: claim.namespace.clone()?,
            name: database.to_owned(),
        })
    })?
}

fn always<K>(_: &K, _: &K) -> bool {
    true
}

/// The endpoints are the agents' affair.
fn metadata_changes<K: Resource>(old: &K, new: &K) -> bool {
    let (old, new) = (old.meta(), new.meta());
    old.labels != new.labels
        || old.owner_references != new.owner_references
        || old.deletion_timestamp != new.deletion_timestamp
        || old.uid != new.uid
}

/// Renewals and WAL positions change all the time and decide nothing here.
fn lease_changes(old: &Lease, new: &Lease) -> bool {
    let told = |lease: &Lease| {
        let mut annotations = lease.metadata.annotations.clone().unwrap_or_default();
        annotations.remove(LEASE_POSITIONS);
        let spec = lease.spec.clone().unwrap_or_default();
        (annotations, spec.holder_identity, spec.lease_transitions)
    };
    metadata_changes(old, new) || told(old) != told(new)
}

/// Kubelets report all the time; what decisions look at changes when a node is drained.
fn takes_pods_changes(old: &Node, new: &Node) -> bool {
    takes_pods(old) != takes_pods(new)
}

/// Taints by which a node is emptied: `kubectl cordon`, the cluster autoscaler, Karpenter (two generations of it).
const DRAIN_TAINTS: [&str; 4] = [
    "node.kubernetes.io/unschedulable",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
];

/// New pods may come to this node: it is not being emptied.
pub fn takes_pods(node: &Node) -> bool {
    let Some(spec) = &node.spec else { return true };
    let mut taints = spec.taints.iter().flatten();
    let drains = |taint: &k8s_openapi::api::core::v1::Taint| {
        DRAIN_TAINTS.contains(&taint.key.as_str()) && ["NoSchedule", "NoExecute"].contains(&taint.effect.as_str())
    };
    spec.unschedulable != Some(true) && !taints.any(drains)
}

/// Keeps of a node its name, and what says whether it takes pods.
fn prune_node(node: &mut Node) {
    node.metadata.annotations = None;
    node.metadata.labels = None;
    node.status = None;
    if let Some(spec) = &mut node.spec {
        *spec = NodeSpec {
            unschedulable: spec.unschedulable,
            taints: spec.taints.take(),
            ..NodeSpec::default()
        };
    }
}

/// Keeps of a pod what decisions look at: metadata, node, WAL volume, conditions, what the containers do.
fn prune_pod(pod: &mut Pod) {
    if let Some(spec) = &mut pod.spec {
        let node_name = spec.node_name.take();
        let volumes = spec.volumes.take().into_iter().flatten();
        let wal: Vec<_> = volumes.filter(|volume| volume.name == WAL_VOLUME).collect();
        let postgres = spec.containers.iter_mut().find(|container| container.name == CONTAINER);
        let resources = postgres.and_then(|container| container.resources.take());
        *spec = k8s_openapi::api::core::v1::PodSpec {
            node_name,
            containers: vec![Container {
                name: CONTAINER.to_owned(),
                resources,
                ..Default::default()
            }],
            volumes: Some(wal),
            ..Default::default()
        };
    }
}

fn prune_claim(claim: &mut PersistentVolumeClaim) {
    let annotations = claim.metadata.annotations.iter_mut();
    annotations.for_each(|annotations| annotations.retain(|name, _| name == SELECTED_NODE));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(renewed: &str, holder: &str, positions: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "ns", "annotations": {
                "clustereddatabase.io/positions": positions, "clustereddatabase.io/system-identifier": "1"}},
            "spec": {"holderIdentity": holder, "leaseTransitions": 1, "renewTime": renewed},
        }))
        .unwrap()
    }

    #[test]
    fn of_a_pods_volumes_the_one_for_wal_is_kept() {
        let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": format!("{name}-db-1")}});
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": "db-1"}, "spec": {
            "nodeName": "n1", "containers": [{"name": CONTAINER}], "volumes": [claim("data"), claim("wal")]}}))
        .unwrap();
        prune_pod(&mut pod);
        let spec = serde_json::to_value(pod.spec).unwrap();
        assert_eq!(
            (&spec["nodeName"], &spec["volumes"]),
            (&json!("n1"), &json!([claim("wal")]))
        );
    }

    #[test]
    fn of_a_claims_annotations_its_node_is_kept() {
        let mut claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "wal-db-0", "annotations": {SELECTED_NODE: "n1", "pv.kubernetes.io/bind-completed": "yes"}},
        }))
        .unwrap();
        prune_claim(&mut claim);
        assert_eq!(json!(claim.metadata.annotations), json!({SELECTED_NODE: "n1"}));
    }

    #[test]
    fn renewals_wake_nobody() {
        let old = lease("2027-01-01T00:00:00.000000Z", "a", "{}");
        assert!(!lease_changes(
            &old,
            &lease("2027-01-01T00:00:02.000000Z", "a", "{\"x\":1}")
        ));
        assert!(lease_changes(&old, &lease("2027-01-01T00:00:00.000000Z", "b", "{}")));
        let mut released = old.clone();
        released
            .metadata
            .annotations
            .as_mut()
            .unwrap()
            .insert("clustereddatabase.io/release".to_owned(), "{}".to_owned());
        assert!(lease_changes(&old, &released));
    }

    #[tokio::test]
    async fn of_secrets_only_metadata_is_asked_for() {
        let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            heard
                .lock()
                .unwrap()
                .push(request.headers()["accept"].to_str().unwrap().to_owned());
            async { Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("enough")) }
        });
        let api: Api<Guarded<PartialObjectMeta<Secret>>> = scoped(&Client::new(service, "default"), None);
        let stream = pruned(watcher(api, watcher::Config::default()), |_| {});
        futures::pin_mut!(stream);
        while !matches!(stream.next().await, Some(Err(_))) {}
        let asked = asked.lock().unwrap();
        assert!(
            !asked.is_empty()
                && asked
                    .iter()
                    .all(|accept| accept.contains("as=PartialObjectMetadataList")),
            "{asked:?}"
        );
    }

    #[derive(Default)]
    struct Reported(std::sync::Mutex<(Vec<Key>, Vec<String>)>);

    impl Report for Reported {
        fn touched(&self, key: Key) {
            self.0.lock().unwrap().0.push(key);
        }
        fn failed(&self, _: &'static str, _: &watcher::Error) {}
        fn unreadable(&self, kind: &'static str, object: &Unreadable) {
            let text = format!("{kind} {}: {}", object.metadata.name.clone().unwrap(), object.why);
            self.0.lock().unwrap().1.push(text);
        }
    }

    #[tokio::test]
    async fn a_resource_that_cannot_be_read_is_reported_and_holds_up_no_other() {
        use watcher::Event::{Apply, Init, InitApply, InitDone};
        let (caches, reported) = (Caches::default(), Reported::default());
        let guard = |name: &str, version: &str, replicas: serde_json::Value| -> Guarded<ClusteredDatabase> {
            serde_json::from_value(json!({
                "apiVersion": "clustereddatabase.io/v1alpha1", "kind": "ClusteredDatabase",
                "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version},
                "spec": {"replicas": replicas, "storage": {"size": "1Gi"}},
            }))
            .unwrap()
        };
        let see = async |events: Vec<watcher::Event<Guarded<ClusteredDatabase>>>| {
            let events = futures::stream::iter(events.into_iter().map(Ok));
            feed(events, &caches.databases, &reported).await;
            let (touched, unreadable) = std::mem::take(&mut *reported.0.lock().unwrap());
            (touched.into_iter().map(|key| key.name).collect::<Vec<_>>(), unreadable)
        };
        let known = |name: &str| {
            let (namespace, name) = ("ns".to_owned(), name.to_owned());
            caches
                .databases
                .get(
                    &Key {
                        namespace,
                        name: name.clone(),
                    },
                    &name,
                )
                .is_some()
        };
        let bad = || guard("bad", "5", json!("three"));
        let first = vec![
            Init,
            InitApply(bad()),
            InitApply(guard("good", "5", json!(3))),
            InitDone,
        ];
        let (touched, unreadable) = see(first).await;
        assert_eq!(touched, ["bad", "good", ""], "the last one is everybody");
        assert_eq!(unreadable.len(), 1);
        assert!(
            unreadable[0].starts_with("ClusteredDatabase bad: ") && unreadable[0].contains("three"),
            "{unreadable:?}"
        );
        assert_eq!((known("bad"), known("good")), (false, true));
        assert_eq!(
            see(vec![Apply(guard("bad", "6", json!("three")))]).await,
            (vec![], vec![]),
            "no news"
        );
        let (touched, unreadable) = see(vec![Apply(guard("good", "7", json!("three")))]).await;
        assert_eq!((touched, unreadable.len()), (vec!["good".to_owned()], 1));
        assert!(!known("good"), "nothing is done for it by what it was before");
    }

    fn node(version: &str, more: serde_json::Value) -> Node {
        let mut node = json!({"metadata": {"name": "n1", "uid": "n", "resourceVersion": version}});
        node.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn a_node_that_is_emptied_is_known_by_its_mark_or_its_taints() {
        let takes = |spec: serde_json::Value| takes_pods(&node("1", json!({"spec": spec})));
        let tainted = |key: &str, effect: &str| takes(json!({"taints": [{"key": key, "effect": effect}]}));
        assert!(takes(json!({})) && takes(json!({"unschedulable": false})) && takes_pods(&node("1", json!({}))));
        assert!(!takes(json!({"unschedulable": true})));
        for key in DRAIN_TAINTS {
            assert!(!tainted(key, "NoSchedule") && !tainted(key, "NoExecute"), "{key}");
            assert!(tainted(key, "PreferNoSchedule"), "{key}");
        }
        assert!(
            tainted("node.kubernetes.io/unreachable", "NoExecute"),
            "that is a fault, and nobody's plan"
        );
    }

    #[test]
    fn of_nodes_only_a_drain_wakes_anybody() {
        let caches = Caches::default();
        let see = |version: &str, more| {
            let mut node = node(version, more);
            prune_node(&mut node);
            caches.nodes.observe(watcher::Event::Apply(node)).len()
        };
        let status = |time: &str| json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": time}]}});
        assert_eq!(see("1", status("2027-01-01T00:00:00Z")), 1);
        assert_eq!(see("2", status("2027-01-01T00:05:00Z")), 0);
        assert_eq!(
            see(
                "3",
                json!({"metadata": {"name": "n1", "uid": "n", "resourceVersion": "3", "labels": {"a": "b"}}})
            ),
            0
        );
        let taint = json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]);
        assert_eq!(see("4", json!({"spec": {"unschedulable": true}})), 1);
        assert_eq!(
            see("5", json!({"spec": {"unschedulable": true, "taints": taint}})),
            0,
            "the same said twice"
        );
        assert_eq!(see("6", json!({"spec": {}})), 1);
    }

    #[test]
    fn claims_are_known_by_their_names() {
        let claim = |name: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns"}})).unwrap()
        };
        let of = |name: &str| claimed(&claim(name).metadata).map(|key| key.name);
        assert_eq!(of("data-my-db-12").as_deref(), Some("my-db"));
        assert_eq!(of("wal-db-0").as_deref(), Some("db"));
        for other in ["data-db", "data-db-x", "cache-db-0", "data", "data--"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
