//! Everything that the operator watches: the resources, and what carries the label of one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::names::{DATA_VOLUME, LABEL_CLUSTER, LEASE_POSITIONS, Names, WAL_VOLUME};
use api::operation::OperationPhase;
use api::status::SwitchoverRequest;
use api::{ClusteredDatabase, ClusteredDatabaseOperation, Guarded, Unreadable};
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
use kube::{Api, Client, Resource, ResourceExt};
use machine::cluster::ChildKind;
use machine::operation::Candidate;
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
    /// Each under its own key.
    pub operations: Cache<ClusteredDatabaseOperation>,
    /// See the kind. Of no database in particular.
    pub storage_classes: Cache<StorageClass>,
    /// See the kind. Of no database in particular.
    pub nodes: Cache<Node>,
    /// The resources have been listed. What belongs to databases is listed after them: of what belongs to none nothing is kept.
    listed: Notify,
    /// The operations of each database that have not ended, by name.
    waiting: Mutex<BTreeMap<Key, BTreeSet<String>>>,
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
            operations: Cache::new(OPERATION, operation, always).pruning(prune::operation),
            storage_classes: Cache::new(STORAGE_CLASS, |_| Some(Key::all()), always).pruning(prune::storage_class),
            nodes: Cache::new(NODE, |_| Some(Key::all()), takes_pods_changes).pruning(prune::node),
            listed: Notify::new(),
            waiting: Mutex::default(),
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
        let (caches, reporter) = (Arc::clone(self), Arc::clone(report));
        let stream = watcher(scoped(client, namespace), all.clone()).default_backoff();
        tasks.spawn(async move {
            let settle = |concerned: &[Key], _: bool| {
                let databases = concerned.iter().flat_map(|key| caches.note_operation(key));
                databases.for_each(|database| reporter.touched(database));
            };
            feed(stream, &caches.operations, &*reporter, |_| true, settle).await;
        });
        let (caches, reporter) = (Arc::clone(self), Arc::clone(report));
        let stream = watcher(scoped(client, namespace), all).default_backoff();
        tasks.spawn(async move {
            let settle = |concerned: &[Key], first: bool| {
                let waiting = concerned.iter().flat_map(|key| caches.waiting_for(key));
                waiting.for_each(|operation| reporter.touched(operation));
                let gone = concerned.iter().filter(|key| !caches.databases.has(key));
                gone.for_each(|key| caches.forget_contents(key));
                if first {
                    caches.listed.notify_waiters();
                }
            };
            // That a database is gone has to be looked at, too.
            feed(stream, &caches.databases, &*reporter, |_| true, settle).await;
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
        let listed = of_databases!(each, databases, operations);
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
        all.extend(each!(operations, storage_classes, nodes));
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

    /// Notes whether an operation has not ended; returns the databases that this may concern.
    pub fn note_operation(&self, key: &Key) -> Vec<Key> {
        let found = self.operations.get(key, &key.name).flatten();
        let open = found.as_ref().filter(|found| !has_ended(found));
        let database = open.map(|open| Key::database(&*key.namespace, &*open.spec.cluster_ref.name));
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut concerned: Vec<Key> = Vec::new();
        waiting.retain(|of, names| {
            if of.namespace == key.namespace && database.as_ref() != Some(of) && names.remove(&key.name) {
                concerned.push(of.clone());
            }
            !names.is_empty()
        });
        if let Some(database) = database {
            waiting.entry(database.clone()).or_default().insert(key.name.clone());
            concerned.push(database);
        }
        concerned
    }

    /// The operations of a database that have not ended.
    pub fn waiting_for(&self, database: &Key) -> Vec<Key> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let names = waiting.get(database).into_iter().flatten();
        names
            .map(|name| Key::operation(&*database.namespace, &**name))
            .collect()
    }

    /// What the operations of a database ask it for: `None` if that cannot be known now.
    pub fn request(&self, database: &Key, noted: Option<&SwitchoverRequest>) -> Option<Option<Candidate>> {
        if !self.operations.is_listed() {
            return None;
        }
        let keys = self.waiting_for(database);
        let open = keys.iter().filter_map(|key| {
            let found = self.operations.get(key, &key.name)??;
            let status = found.status.clone().unwrap_or_default();
            let going = found.metadata.deletion_timestamp.is_some();
            let created = found.creation_timestamp().as_ref().map(crate::observe::time);
            let is_open = !going && machine::operation::is_open(&found.spec, &status);
            is_open.then(|| {
                Some(Candidate {
                    name: key.name.clone(),
                    created: created.unwrap_or_default(),
                    request: machine::operation::request(&found.spec, &found.uid()?)?,
                })
            })?
        });
        Some(machine::operation::next(open, noted))
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
const OPERATION: &str = "ClusteredDatabaseOperation";

/// What is not known without a kind that the operator can do without, or `None` if it cannot: an operator for one
/// namespace may have no rights beyond it.
pub fn unread(kind: &str) -> Option<&'static str> {
    match kind {
        STORAGE_CLASS => Some("whether one is missing, and whether volumes can grow, is not known"),
        OPERATION => Some("what operations ask for is not known, and none is done: is its definition installed?"),
        NODE => Some("which are drained is not known, and no primary is moved away from them"),
        _ => None,
    }
}

/// How often it is tried whether it may be read now.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(60);

/// The API server does not let us read this kind, or does not have it.
pub fn is_forbidden(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchFailed(kube::Error::Api(status))) = error
    else {
        return false;
    };
    status.is_forbidden() || status.is_not_found()
}

fn itself(metadata: &ObjectMeta) -> Option<Key> {
    Some(Key::database(metadata.namespace.clone()?, metadata.name.clone()?))
}

fn operation(metadata: &ObjectMeta) -> Option<Key> {
    Some(Key::operation(metadata.namespace.clone()?, metadata.name.clone()?))
}

fn has_ended(operation: &ClusteredDatabaseOperation) -> bool {
    let phase = operation.status.as_ref().and_then(|status| status.phase);
    phase.is_some_and(OperationPhase::is_final)
}

/// The database whose label an object has.
fn labelled(metadata: &ObjectMeta) -> Option<Key> {
    Some(Key::database(
        metadata.namespace.clone()?,
        metadata.labels.as_ref()?.get(LABEL_CLUSTER)?.clone(),
    ))
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
    fits.then(|| Some(Key::database(claim.namespace.clone()?, database.to_owned())))?
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
mod tests;
