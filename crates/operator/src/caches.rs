//! Everything that the operator watches: the resources, and what carries the label of one.

use std::fmt::Debug;
use std::sync::Arc;

use api::ClusteredDatabase;
use api::names::{DATA_VOLUME, LABEL_CLUSTER, LEASE_POSITIONS, WAL_VOLUME};
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

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
            storage_classes: Cache::new("StorageClass", |_| Some(Key::all()), always),
        }
    }
}

/// What a watch tells: the databases that an event concerns, or that the watch failed.
pub trait Report: Send + Sync + 'static {
    /// Something of this database changed.
    fn touched(&self, key: Key);
    /// The watch of this kind failed; it goes on by itself, after a while.
    fn failed(&self, kind: &'static str, error: &watcher::Error);
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
                let caches = Arc::clone(self);
                let stream = follow($api, $config, $prune);
                let report = Arc::clone(report);
                tasks.spawn(async move { feed(stream, &caches.$field, &*report).await });
            };
        }
        watch!(databases, scoped(client, namespace), all.clone(), |_| {});
        watch!(service_accounts, scoped(client, namespace), ours.clone(), |_| {});
        watch!(roles, scoped(client, namespace), ours.clone(), |_| {});
        watch!(role_bindings, scoped(client, namespace), ours.clone(), |_| {});
        watch!(secrets, scoped(client, namespace), ours.clone(), |_| {});
        watch!(services, scoped(client, namespace), ours.clone(), |_| {});
        watch!(endpoint_slices, scoped(client, namespace), ours.clone(), |_| {});
        watch!(leases, scoped(client, namespace), ours.clone(), |_| {});
        watch!(budgets, scoped(client, namespace), ours.clone(), |_| {});
        watch!(stateful_sets, scoped(client, namespace), ours.clone(), |_| {});
        watch!(pods, scoped(client, namespace), ours, prune_pod);
        watch!(claims, scoped(client, namespace), all.clone(), prune_claim);
        watch!(storage_classes, Api::<StorageClass>::all(client.clone()), all, |_| {});
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
            storage_classes
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

fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    prune: fn(&mut K),
) -> impl futures::Stream<Item = watcher::Result<watcher::Event<K>>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(api, config).default_backoff().modify(move |object| {
        object.meta_mut().managed_fields = None;
        prune(object);
    })
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
            Err(error) => report.failed(cache.kind, &error),
        }
    }
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

/// Keeps of a pod what decisions look at: metadata, node, conditions, what the containers do.
fn prune_pod(pod: &mut Pod) {
    if let Some(spec) = &mut pod.spec {
        let node_name = spec.node_name.take();
        *spec = k8s_openapi::api::core::v1::PodSpec {
            node_name,
            ..Default::default()
        };
    }
}

fn prune_claim(claim: &mut PersistentVolumeClaim) {
    claim.metadata.annotations = None;
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
