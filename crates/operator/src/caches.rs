//! Everything that the operator watches: the resources, and what carries the label of one.

use std::sync::Arc;
use std::time::Duration;

use api::names::{DATA_VOLUME, LABEL_CLUSTER, LEASE_POSITIONS, Names, WAL_VOLUME};
use api::{ClusteredDatabase, Guarded, Unreadable};
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::core::{ObjectMeta, PartialObjectMeta};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use machine::cluster::ChildKind;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cache::{Cache, Kept, Key};
use crate::prune;
use crate::requests::{Refused, Requests};

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
    pub network_policies: Cache<NetworkPolicy>,
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
    /// The resources have been listed. What belongs to databases is listed after them: of what belongs to none nothing is kept.
    listed: Notify,
    made: Instant,
}

/// Hands the fields of what belongs to single databases to another macro, behind `$more`.
macro_rules! of_databases {
    ($each:ident $(, $more:ident)*) => {
        $each!(
            $($more,)*
            service_accounts, roles, role_bindings, secrets, services, endpoint_slices, leases, budgets, network_policies,
            stateful_sets, pods, claims
        )
    };
}

/// A StatefulSet or a resource may be so large after pruning: users choose annotations, affinities and tolerations.
const LARGE: usize = 512 << 10;
/// For so long after the start nothing is decided while a kind has not been listed: a thousand databases take seconds.
const LISTING: Duration = Duration::from_secs(30);
/// How many objects are asked for at a time. A StatefulSet has some 20 KB with its `managedFields`.
const PAGE: u32 = 100;

impl Default for Caches {
    fn default() -> Self {
        Self {
            databases: Cache::new("ClusteredDatabase", itself, always)
                .pruning(prune::database)
                .up_to(LARGE),
            service_accounts: Cache::new("ServiceAccount", |object| child(object, "ServiceAccount"), always)
                .pruning(prune::service_account),
            roles: Cache::new("Role", |object| child(object, "Role"), always).pruning(prune::role),
            role_bindings: Cache::new("RoleBinding", |object| child(object, "RoleBinding"), always)
                .pruning(prune::role_binding),
            secrets: Cache::new("Secret", |object| child(object, "Secret"), always).pruning(prune::secret),
            services: Cache::new("Service", |object| child(object, "Service"), always).pruning(prune::service),
            endpoint_slices: Cache::new("EndpointSlice", |object| child(object, "EndpointSlice"), route_changes)
                .pruning(prune::endpoint_slice),
            leases: Cache::new("Lease", |object| child(object, "Lease"), lease_changes).pruning(prune::lease),
            budgets: Cache::new(
                "PodDisruptionBudget",
                |object| child(object, "PodDisruptionBudget"),
                always,
            )
            .pruning(prune::budget),
            network_policies: Cache::new("NetworkPolicy", |object| child(object, "NetworkPolicy"), always)
                .pruning(prune::network_policy),
            stateful_sets: Cache::new("StatefulSet", |object| child(object, "StatefulSet"), always)
                .pruning(prune::stateful_set)
                .up_to(LARGE),
            pods: Cache::new("Pod", member, always).pruning(prune::pod),
            claims: Cache::new("PersistentVolumeClaim", claimed, always).pruning(prune::claim),
            storage_classes: Cache::new(STORAGE_CLASS, |_| Some(Key::all()), always).pruning(prune::storage_class),
            nodes: Cache::new(NODE, |_| Some(Key::all()), takes_pods_changes).pruning(prune::node),
            listed: Notify::new(),
            made: Instant::now(),
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
        let all = watcher::Config::default().page_size(PAGE);
        let ours = all.clone().labels(LABEL_CLUSTER);
        macro_rules! watch {
            ($field:ident, $api:expr, $config:expr) => {
                let (caches, report) = (Arc::clone(self), Arc::clone(report));
                let stream = watcher($api, $config).default_backoff();
                tasks.spawn(async move {
                    let exists = |key: &Key| *key == Key::all() || caches.databases.has(key);
                    caches.databases_listed().await;
                    feed(stream, &caches.$field, &*report, exists, |_, _| ()).await;
                });
            };
        }
        watch!(service_accounts, scoped(client, namespace), ours.clone());
        watch!(roles, scoped(client, namespace), ours.clone());
        watch!(role_bindings, scoped(client, namespace), ours.clone());
        // By its type this asks for metadata only: no content of a Secret comes by a watch.
        watch!(secrets, scoped(client, namespace), ours.clone());
        watch!(services, scoped(client, namespace), ours.clone());
        watch!(endpoint_slices, scoped(client, namespace), ours.clone());
        watch!(leases, scoped(client, namespace), ours.clone());
        watch!(budgets, scoped(client, namespace), ours.clone());
        watch!(network_policies, scoped(client, namespace), ours.clone());
        watch!(stateful_sets, scoped(client, namespace), ours.clone());
        watch!(pods, scoped(client, namespace), ours);
        watch!(claims, scoped(client, namespace), all.clone());
        watch!(storage_classes, Api::all(client.clone()), all.clone());
        watch!(nodes, Api::all(client.clone()), all.clone());
        let (caches, report) = (Arc::clone(self), Arc::clone(report));
        let stream = watcher(scoped(client, namespace), all).default_backoff();
        tasks.spawn(async move {
            let settle = |concerned: &[Key], first: bool| {
                let gone = concerned.iter().filter(|key| !caches.databases.has(key));
                gone.for_each(|key| caches.forget_contents(key));
                if first {
                    caches.listed.notify_waiters();
                }
            };
            // That a database is gone has to be looked at, too.
            feed(stream, &caches.databases, &*report, |_| true, settle).await;
        });
        tasks
    }

    /// Returns when the resources have been listed.
    async fn databases_listed(&self) {
        loop {
            let listed = self.listed.notified();
            tokio::pin!(listed);
            // From here on it is not missed.
            listed.as_mut().enable();
            if self.are_ready() {
                return;
            }
            listed.await;
        }
    }

    /// All that a decision looks at has been listed; or something cannot be listed, and databases are told that they wait for it.
    pub fn are_complete(&self) -> bool {
        macro_rules! each {
            ($($field:ident),*) => {
                $(self.$field.is_listed())&&*
            };
        }
        let listed = of_databases!(each, databases);
        listed || self.made.elapsed() > LISTING
    }

    /// Forgets what the objects of a database hold that does not exist.
    fn forget_contents(&self, key: &Key) {
        macro_rules! each {
            ($($field:ident),*) => {
                $(self.$field.forget_contents(key);)*
            };
        }
        of_databases!(each);
    }

    /// Reads what the watches have shown of a database before it existed, since nothing of it was kept then.
    ///
    /// # Errors
    /// When one of these objects cannot be asked for.
    pub async fn read_not_kept(&self, key: &Key, requests: &Requests) -> Result<(), Refused> {
        macro_rules! each {
            ($($field:ident),*) => {
                $(read_not_kept(&self.$field, key, requests).await?;)*
            };
        }
        of_databases!(each);
        Ok(())
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
        let mut all = of_databases!(each, databases);
        all.extend(each!(storage_classes, nodes));
        all
    }

    /// How many bytes are kept of the objects of one database, by kind.
    pub fn bytes(&self, key: &Key) -> Vec<(&'static str, usize)> {
        macro_rules! each {
            ($($field:ident),*) => {
                vec![$((self.$field.kind, self.$field.bytes(key))),*]
            };
        }
        of_databases!(each, databases)
    }

    /// The objects of one database that cannot be read.
    pub fn unreadable(&self, key: &Key) -> Vec<machine::cluster::Unreadable> {
        let mut found = Vec::new();
        macro_rules! each {
            ($($field:ident),*) => {
                $(for object in self.$field.unreadable(key) {
                    let name = object.metadata.name.as_deref().unwrap_or_default();
                    let object_name = format!("{} {name}", self.$field.kind);
                    found.push(machine::cluster::Unreadable { object: object_name, why: object.why.clone() });
                })*
            };
        }
        of_databases!(each);
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
    pub silence: Duration,
    /// How many events were older than our own writes.
    pub stale_events: u64,
    /// How many of its objects cannot be read.
    pub unreadable: usize,
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

/// Takes in what a watch tells, for ever. Only databases that `exists` knows are reported, and only their objects are kept.
/// `settle` is called after each event, before anything is reported: with the databases that it concerns, and whether it ends the
/// first list.
async fn feed<K: Kept>(
    stream: impl futures::Stream<Item = watcher::Result<watcher::Event<Guarded<K>>>> + Send,
    cache: &Cache<K>,
    report: &impl Report,
    exists: impl Fn(&Key) -> bool + Send,
    settle: impl Fn(&[Key], bool) + Send,
) {
    futures::pin_mut!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                let first = matches!(event, watcher::Event::InitDone) && !cache.is_listed();
                let place = match &event {
                    watcher::Event::Apply(object) | watcher::Event::InitApply(object) => cache.place(object.meta()),
                    watcher::Event::Delete(_) | watcher::Event::Init | watcher::Event::InitDone => None,
                };
                let unreadable = || place.as_ref().and_then(|(key, name)| cache.find_unreadable(key, name));
                let before = unreadable();
                let concerned = cache.take(event);
                settle(&concerned, first);
                if let Some((key, _)) = place.as_ref().filter(|(key, _)| !exists(key)) {
                    cache.forget_contents(key);
                }
                concerned
                    .into_iter()
                    .filter(|key| exists(key))
                    .for_each(|key| report.touched(key));
                let is_news = |now: &Arc<Unreadable>| before.as_ref().is_none_or(|before| before.why != now.why);
                if let Some(object) = unreadable().filter(is_news) {
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

async fn read_not_kept<K>(cache: &Cache<K>, key: &Key, requests: &Requests) -> Result<(), Refused>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Kept + std::fmt::Debug,
{
    for (name, uid) in cache.not_kept(key) {
        let api: Api<Guarded<K>> = Api::namespaced(requests.client().clone(), &key.namespace);
        // What the operator watches it may list; it may not read each kind by name.
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        match requests.limited(api.list(&named)).await?.items.pop() {
            Some(object) => cache.put_guarded(object),
            None => cache.forget(key, &name, &uid),
        }
    }
    Ok(())
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
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(60);

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

/// The database whose label an object has.
fn labelled(metadata: &ObjectMeta) -> Option<Key> {
    Some(Key {
        namespace: metadata.namespace.clone()?,
        name: metadata.labels.as_ref()?.get(LABEL_CLUSTER)?.clone(),
    })
}

/// The database of an object that is made once, by label and name: one of another name is never looked at.
fn child(metadata: &ObjectMeta, kind: &str) -> Option<Key> {
    let name = metadata.name.as_deref()?;
    let key = labelled(metadata)?;
    let suffix = name.strip_prefix(&*key.name)?;
    let mut children = ChildKind::ALL.into_iter();
    let is_child = children.any(|child| child.kind() == kind && child.suffix() == suffix);
    is_child.then_some(key)
}

/// The database of a member's pod, by label and name.
fn member(metadata: &ObjectMeta) -> Option<Key> {
    let key = labelled(metadata)?;
    Names::new(&*key.name).ordinal(metadata.name.as_deref()?)?;
    Some(key)
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

fn route_changes(old: &EndpointSlice, new: &EndpointSlice) -> bool {
    metadata_changes(old, new) || old.endpoints != new.endpoints
}

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
        let stream = watcher(api, watcher::Config::default()).default_backoff();
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
            feed(events, &caches.databases, &reported, |_| true, |_, _| ()).await;
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

    fn key() -> Key {
        Key {
            namespace: "ns".to_owned(),
            name: "db".to_owned(),
        }
    }

    /// An object of the database with annotations of 256 KiB, the most that Kubernetes takes, and more.
    fn object<K: Kept>(name: &str, more: &serde_json::Value) -> K {
        let mut object = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": "1",
                "labels": {LABEL_CLUSTER: "db"}, "annotations": {"a": long()}},
        });
        object
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn long() -> String {
        "x".repeat(256 << 10)
    }

    fn see<K: Kept>(cache: &Cache<K>, name: &str, more: &serde_json::Value) {
        cache.observe(watcher::Event::Init);
        cache.observe(watcher::Event::InitApply(object(name, more)));
        cache.observe(watcher::Event::InitDone);
    }

    #[test]
    fn what_nothing_reads_is_not_kept() {
        fn bytes<K: Kept>(cache: &Cache<K>, key: &Key, name: &str, more: &serde_json::Value) -> (&'static str, usize) {
            see(cache, name, more);
            assert!(matches!(cache.get(key, name), Some(Some(_))), "{}", cache.kind);
            (cache.kind, cache.bytes(key))
        }
        let (caches, key) = (Caches::default(), key());
        let db = json!({"apiVersion": "clustereddatabase.io/v1alpha1", "kind": "ClusteredDatabase",
            "spec": {"storage": {"size": "1Gi"}, "bootstrap": {"initdb": {"postInitSql": [long()]}}}});
        let reference = json!({"roleRef": {"apiGroup": "", "kind": "Role", "name": "db"}});
        let condition = json!([{"type": "X", "status": "True", "reason": "X", "message": long(),
            "lastTransitionTime": "2027-01-01T00:00:00Z"}]);
        let template = json!({"metadata": {}, "spec": {"containers": []}});
        let set = json!({"spec": {"serviceName": "s", "selector": {}, "template": template},
            "status": {"replicas": 1, "conditions": condition}});
        let container = json!({"name": "other", "image": long(), "env": [{"name": "A", "value": long()}]});
        let image = json!([{"names": [long()]}]);
        let kept = [
            // An annotation of the user's own is asked for in a ServiceAccount, and each violation of the SQL counts.
            bytes(&caches.databases, &key, "db", &db),
            bytes(&caches.roles, &key, "db", &json!({})),
            bytes(&caches.role_bindings, &key, "db", &reference),
            bytes(&caches.secrets, &key, "db-app", &json!({})),
            bytes(
                &caches.services,
                &key,
                "db-rw",
                &json!({"status": {"conditions": condition}}),
            ),
            bytes(
                &caches.endpoint_slices,
                &key,
                "db-rw",
                &json!({"addressType": "IPv4", "endpoints": [{"addresses": [long()]}]}),
            ),
            bytes(&caches.leases, &key, "db", &json!({})),
            bytes(
                &caches.budgets,
                &key,
                "db",
                &json!({"status": {"conditions": condition, "currentHealthy": 0,
                "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}}),
            ),
            bytes(&caches.stateful_sets, &key, "db", &set),
            bytes(
                &caches.pods,
                &key,
                "db-1",
                &json!({"spec": {"containers": [container]}}),
            ),
            bytes(&caches.claims, &key, "data-db-1", &json!({})),
            bytes(
                &caches.storage_classes,
                &Key::all(),
                "c",
                &json!({"provisioner": "p", "parameters": {"a": long()}}),
            ),
            bytes(&caches.nodes, &Key::all(), "n", &json!({"status": {"images": image}})),
        ];
        for (kind, bytes) in kept {
            assert!(bytes < 1_000, "{bytes} of a {kind}");
        }
    }

    #[test]
    fn what_is_too_large_cannot_be_read_and_what_has_another_name_is_not_there() {
        let caches = Caches::default();
        see(&caches.service_accounts, "db", &json!({}));
        assert_eq!(
            (
                caches.service_accounts.get(&key(), "db"),
                caches.service_accounts.bytes(&key())
            ),
            (None, 0)
        );
        let found = caches.unreadable(&key());
        assert_eq!(found[0].object, "ServiceAccount db");
        assert!(found[0].why.ends_with("at most 65536 are taken"), "{}", found[0].why);
        see(&caches.roles, "db-of-a-stranger", &json!({}));
        see(&caches.pods, "db-x", &json!({}));
        assert!(!caches.roles.has(&key()) && !caches.pods.has(&key()));
    }

    /// An API server with this Role, and nothing else.
    fn server_with_a_role() -> Requests {
        let role: Role = object(
            "db",
            &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}),
        );
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
            assert!(
                path.ends_with("/namespaces/ns/roles") && query.contains("metadata.name%3Ddb"),
                "{path}?{query}"
            );
            let list = json!({"apiVersion": "v1", "kind": "RoleList", "metadata": {}, "items": [role]});
            let answer = http::Response::new(kube::client::Body::from(list.to_string().into_bytes()));
            async { Ok::<_, std::convert::Infallible>(answer) }
        });
        Requests::new(Client::new(service, "default"), crate::metrics::Metrics::default())
    }

    #[tokio::test]
    async fn nothing_is_kept_of_a_database_that_does_not_exist() {
        use watcher::Event::{Apply, Init, InitApply, InitDone};
        let (caches, reported) = (Caches::default(), Reported::default());
        let events = [Init, InitApply(object::<Role>("db", &json!({})).into()), InitDone];
        let events = futures::stream::iter(events.into_iter().map(Ok));
        feed(
            events,
            &caches.roles,
            &reported,
            |key| caches.databases.has(key),
            |_, _| (),
        )
        .await;
        assert_eq!(reported.0.lock().unwrap().0, [Key::all()], "nobody is to look at it");
        assert_eq!((caches.roles.bytes(&key()), caches.roles.get(&key(), "db")), (0, None));

        let db = json!({"apiVersion": "clustereddatabase.io/v1alpha1", "kind": "ClusteredDatabase",
            "spec": {"storage": {"size": "1Gi"}}});
        caches.databases.observe(Apply(object("db", &db)));
        caches.read_not_kept(&key(), &server_with_a_role()).await.unwrap();
        assert!(
            matches!(caches.roles.get(&key(), "db"), Some(Some(_))),
            "now it is looked at"
        );
        // The same version comes by the watch.
        assert!(caches.roles.observe(Apply(object("db", &json!({})))).is_empty());

        caches.forget_contents(&key());
        assert_eq!((caches.roles.bytes(&key()), caches.roles.get(&key(), "db")), (0, None));
        // Seen again with a database, it is kept again, even at the same version.
        assert_eq!(caches.roles.observe(Apply(object("db", &json!({})))), [key()]);
        assert!(caches.roles.bytes(&key()) > 0);
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
        let see = |version: &str, more| caches.nodes.observe(watcher::Event::Apply(node(version, more))).len();
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
