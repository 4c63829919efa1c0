//! Everything that the operator watches: the resources, and what carries the label of one.

use std::sync::Arc;

use api::ClusteredDatabase;
use api::names::{CONTAINER, DATA_VOLUME, LABEL_CLUSTER, LEASE_POSITIONS, WAL_VOLUME};
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
use kube::core::{DeserializeGuard, ObjectMeta, PartialObjectMeta};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
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
    /// This resource is stored in a form that cannot be read: nothing is done for it until that changes.
    fn unreadable(&self, metadata: &ObjectMeta, error: &str);
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
                watch!($field, pruned(watcher($api, $config), $prune));
            };
            ($field:ident, $stream:expr) => {
                let (caches, report, stream) = (Arc::clone(self), Arc::clone(report), $stream);
                tasks.spawn(async move { feed(stream, &caches.$field, &*report).await });
            };
        }
        let guarded: Api<DeserializeGuard<ClusteredDatabase>> = scoped(client, namespace);
        let readable = {
            let (caches, report) = (Arc::clone(self), Arc::clone(report));
            pruned(watcher(guarded, all.clone()), |_| {})
                .filter_map(move |event| std::future::ready(readable(event, &caches.databases, &*report)))
        };
        watch!(databases, readable);
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
        watch!(
            storage_classes,
            Api::<StorageClass>::all(client.clone()),
            all.clone(),
            |_| {}
        );
        watch!(nodes, Api::<Node>::all(client.clone()), all, prune_node);
        tasks
    }

    /// Kind, silence and stale events of every cache.
    pub fn health(&self) -> Vec<(&'static str, std::time::Duration, u64)> {
        macro_rules! each {
            ($($field:ident),*) => { vec![$((self.$field.kind, self.$field.silence(), self.$field.stale_events())),*] };
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

    /// The resources have been listed: there is something to decide about.
    pub fn are_ready(&self) -> bool {
        self.databases.is_listed()
    }
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
    stream: impl futures::Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
    prune: fn(&mut K),
) -> impl futures::Stream<Item = watcher::Result<watcher::Event<K>>> + Send {
    stream.default_backoff().modify(move |object| {
        object.meta_mut().managed_fields = None;
        prune(object);
    })
}

/// An event without objects that cannot be read: these are reported, and not in the cache.
fn readable(
    event: watcher::Result<watcher::Event<DeserializeGuard<ClusteredDatabase>>>,
    cache: &Cache<ClusteredDatabase>,
    report: &impl Report,
) -> Option<watcher::Result<watcher::Event<ClusteredDatabase>>> {
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
    let (object, wrap): (_, fn(ClusteredDatabase) -> watcher::Event<ClusteredDatabase>) = match event {
        Err(error) => return Some(Err(error)),
        Ok(Init) => return Some(Ok(Init)),
        Ok(InitDone) => return Some(Ok(InitDone)),
        Ok(Apply(object)) => (object, Apply),
        Ok(InitApply(object)) => (object, InitApply),
        Ok(Delete(object)) => (object, Delete),
    };
    match object.0 {
        Ok(object) => Some(Ok(wrap(object))),
        Err(invalid) => {
            let (namespace, name) = (invalid.metadata.namespace.clone()?, invalid.metadata.name.clone()?);
            let key = Key { namespace, name };
            if cache.lose(&key, &key.name) {
                report.touched(key);
            }
            report.unreadable(&invalid.metadata, &invalid.error);
            None
        }
    }
}

async fn feed<K: ResourceExt + Clone>(
    stream: impl futures::Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
    cache: &Cache<K>,
    report: &impl Report,
) {
    futures::pin_mut!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                let first = matches!(event, watcher::Event::InitDone) && !cache.is_listed();
                cache.observe(event).into_iter().for_each(|key| report.touched(key));
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

fn itself(database: &ClusteredDatabase) -> Option<Key> {
    Some(Key {
        namespace: database.namespace()?,
        name: database.metadata.name.clone()?,
    })
}

fn labelled<K: ResourceExt>(object: &K) -> Option<Key> {
    Some(Key {
        namespace: object.namespace()?,
        name: object.labels().get(LABEL_CLUSTER)?.clone(),
    })
}

/// The database that a claim of this name is for: `data-<database>-<ordinal>`.
fn claimed(claim: &PersistentVolumeClaim) -> Option<Key> {
    let name = claim.metadata.name.as_deref()?;
    let (volume, pod) = name.split_once('-')?;
    let (database, ordinal) = pod.rsplit_once('-')?;
    let fits = [DATA_VOLUME, WAL_VOLUME].contains(&volume) && ordinal.parse::<u32>().is_ok();
    fits.then(|| {
        Some(Key {
            namespace: claim.namespace()?,
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
        let api: Api<PartialObjectMeta<Secret>> = scoped(&Client::new(service, "default"), None);
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
        fn unreadable(&self, metadata: &ObjectMeta, error: &str) {
            let text = format!("{}: {error}", metadata.name.clone().unwrap());
            self.0.lock().unwrap().1.push(text);
        }
    }

    #[test]
    fn a_resource_that_cannot_be_read_is_reported_and_holds_up_no_other() {
        let (caches, reported) = (Caches::default(), Reported::default());
        let guard = |name: &str, replicas: serde_json::Value| -> DeserializeGuard<ClusteredDatabase> {
            serde_json::from_value(json!({
                "apiVersion": "clustereddatabase.io/v1alpha1", "kind": "ClusteredDatabase",
                "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "5"},
                "spec": {"replicas": replicas, "storage": {"size": "1Gi"}},
            }))
            .unwrap()
        };
        let see = |event| {
            if let Some(Ok(event)) = readable(Ok(event), &caches.databases, &reported) {
                caches.databases.observe(event);
            }
        };
        see(watcher::Event::Init);
        see(watcher::Event::InitApply(guard("bad", json!("three"))));
        see(watcher::Event::InitApply(guard("good", json!(3))));
        see(watcher::Event::InitDone);
        let names = || {
            caches
                .databases
                .keys()
                .into_iter()
                .map(|key| key.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(), ["good"]);
        see(watcher::Event::Apply(guard("good", json!("three"))));
        assert!(names().is_empty(), "nothing is done for it by what it was before");
        let (touched, unreadable) = &*reported.0.lock().unwrap();
        assert_eq!(
            touched.iter().map(|key| key.name.as_str()).collect::<Vec<_>>(),
            ["good"]
        );
        assert_eq!(unreadable.len(), 2);
        assert!(
            unreadable[0].starts_with("bad: ") && unreadable[0].contains("three"),
            "{unreadable:?}"
        );
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
        let of = |name: &str| claimed(&claim(name)).map(|key| key.name);
        assert_eq!(of("data-my-db-12").as_deref(), Some("my-db"));
        assert_eq!(of("wal-db-0").as_deref(), Some("db"));
        for other in ["data-db", "data-db-x", "cache-db-0", "data", "data--"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
