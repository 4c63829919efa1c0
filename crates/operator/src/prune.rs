//! Pruning: caches keep only the fields of objects that a decision or a comparison reads.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::ClusteredDatabase;
use api::names::{CONTAINER, MAX_INSTANCES, OWN_KEYS};
use api::rules::shortest_alike;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, Node, NodeSpec, PersistentVolumeClaim, Pod, PodSpec, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Resource;
use kube::core::{ObjectMeta, PartialObjectMeta};

use crate::observe::{DEFAULT_CLASS, is_wal};

/// Keeps, of a resource, the operator's own annotations, and drops the statements of `postInitApplicationSQL`, which agents read
/// from the API server.
pub fn database(db: &mut ClusteredDatabase) {
    own_metadata(&mut db.metadata);
    db.metadata.labels = None;
    if let Some(initdb) = db.spec.initdb_mut() {
        initdb.post_init_application_sql = shortest_alike(&initdb.post_init_application_sql);
    }
}

/// Drops labels, and annotations of others.
pub fn names_only<K: Resource>(object: &mut K) {
    own_metadata(object.meta_mut());
    object.meta_mut().labels = None;
}

/// Keeps all annotations of a ServiceAccount, since the spec may ask for some; so it is with Services and claims.
pub fn service_account(account: &mut ServiceAccount) {
    lean(&mut account.metadata);
    account.secrets = None;
}

/// Keeps the metadata that [`own_metadata`] keeps.
pub fn role(role: &mut Role) {
    own_metadata(&mut role.metadata);
}

/// Keeps the metadata that [`own_metadata`] keeps.
pub fn role_binding(binding: &mut RoleBinding) {
    own_metadata(&mut binding.metadata);
}

/// Keeps the metadata that [`own_metadata`] keeps.
pub fn secret(secret: &mut PartialObjectMeta<Secret>) {
    own_metadata(&mut secret.metadata);
}

/// Keeps the data: what primaries tell.
pub fn config_map(map: &mut ConfigMap) {
    own_metadata(&mut map.metadata);
    map.binary_data = None;
}

/// Drops the status.
pub fn service(service: &mut Service) {
    lean(&mut service.metadata);
    service.status = None;
}

/// Keeps the metadata and the addresses. One address more than a database has pods is enough to find one that belongs
/// to no pod.
pub fn endpoint_slice(slice: &mut EndpointSlice) {
    own_metadata(&mut slice.metadata);
    let endpoints = std::mem::take(&mut slice.endpoints).into_iter();
    let all = endpoints.flat_map(|endpoint| endpoint.addresses);
    let addresses: BTreeSet<String> = all.filter(|address| address.parse::<IpAddr>().is_ok()).collect();
    let bound = usize::try_from(MAX_INSTANCES).unwrap_or(usize::MAX).saturating_add(1);
    slice.endpoints = vec![Endpoint {
        addresses: addresses.into_iter().take(bound).collect(),
        ..Endpoint::default()
    }];
    slice.ports = None;
}

/// Keeps the metadata that [`own_metadata`] keeps.
pub fn lease(lease: &mut Lease) {
    own_metadata(&mut lease.metadata);
}

/// Drops the status.
pub fn budget(budget: &mut PodDisruptionBudget) {
    own_metadata(&mut budget.metadata);
    budget.status = None;
}

/// Keeps the metadata that [`own_metadata`] keeps.
pub fn network_policy(policy: &mut NetworkPolicy) {
    own_metadata(&mut policy.metadata);
}

/// Keeps which Pooler it belongs to, and how many of its pods serve.
pub fn deployment(deployment: &mut Deployment) {
    own_metadata(&mut deployment.metadata);
    deployment.spec = None;
    if let Some(status) = &mut deployment.status {
        status.conditions = None;
    }
}

/// Drops the status.
pub fn stateful_set(set: &mut StatefulSet) {
    own_metadata(&mut set.metadata);
    set.status = None;
}

/// Keeps, of a pod, its node, its WAL volume, its status, and the resources of PostgreSQL's container.
pub fn pod(pod: &mut Pod) {
    own_metadata(&mut pod.metadata);
    if let Some(spec) = &mut pod.spec {
        let node_name = spec.node_name.take();
        let volumes = spec.volumes.take().into_iter().flatten();
        let wal: Vec<_> = volumes.filter(|volume| is_wal(&volume.name)).collect();
        let postgres = spec.containers.iter_mut().find(|container| container.name == CONTAINER);
        let resources = postgres.and_then(|container| container.resources.take());
        *spec = PodSpec {
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

/// Keeps all of it.
pub fn claim(claim: &mut PersistentVolumeClaim) {
    lean(&mut claim.metadata);
}

/// Keeps whether a class is the default, and whether its volumes can grow.
pub fn storage_class(class: &mut StorageClass) {
    lean(&mut class.metadata);
    retain_annotations(&mut class.metadata, |name| name == DEFAULT_CLASS);
    class.metadata.labels = None;
    class.allowed_topologies = None;
    class.mount_options = None;
    class.parameters = None;
}

/// Keeps, of a node, its name, and the fields that say whether it is cordoned.
pub fn node(node: &mut Node) {
    lean(&mut node.metadata);
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

/// Keeps the operator's and the agents' own annotations.
fn own_metadata(metadata: &mut ObjectMeta) {
    lean(metadata);
    retain_annotations(metadata, |name| name.starts_with(OWN_KEYS));
}

/// Drops the metadata that no decision reads of any object.
fn lean(metadata: &mut ObjectMeta) {
    metadata.deletion_grace_period_seconds = None;
    metadata.generate_name = None;
    metadata.managed_fields = None;
    metadata.self_link = None;
}

fn retain_annotations(metadata: &mut ObjectMeta, is_read: impl Fn(&str) -> bool) {
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|name, _| is_read(name));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_pods_volumes_the_one_for_wal_is_kept() {
        let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": format!("{name}-db-1")}});
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": "db-1"}, "spec": {
            "nodeName": "n1", "containers": [{"name": CONTAINER}], "volumes": [claim("data"), claim("wal")]}}))
        .unwrap();
        super::pod(&mut pod);
        let spec = serde_json::to_value(pod.spec).unwrap();
        assert_eq!(
            (&spec["nodeName"], &spec["volumes"]),
            (&json!("n1"), &json!([claim("wal")]))
        );
    }

    #[test]
    fn of_a_route_so_many_addresses_are_kept_that_one_is_no_pods() {
        let kept = |count: u8| {
            let endpoint = |last: u8| json!({"addresses": [format!("10.0.0.{last}"), "no address"], "nodeName": "n1"});
            let endpoints: Vec<_> = (0..count).map(endpoint).collect();
            let mut slice: EndpointSlice = serde_json::from_value(json!({"metadata": {"name": "db-rw"},
                "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 5432}]}))
            .unwrap();
            super::endpoint_slice(&mut slice);
            assert_eq!((slice.endpoints.len(), slice.ports), (1, None));
            (slice.endpoints[0].addresses.len(), slice.endpoints[0].node_name.clone())
        };
        assert_eq!(
            [0, 1, 9, 10, 200].map(kept),
            [0, 1, 9, 10, 10].map(|count| (count, None))
        );
    }
}
