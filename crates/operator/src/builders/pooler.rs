//! The objects of a Pooler: its pods with PgBouncer, the Service, and what the pods may read.

use std::collections::BTreeMap;

use api::Pooler;
use api::names::{
    AGENT_PATH, ENV_CLUSTER, ENV_NAMESPACE, ENV_POOLER, ENV_PROCESSES, LABEL_CLUSTER, LABEL_POOLED, LABEL_POOLER,
    POOLER_CONTAINER, POOLER_HOSTS, POOLER_PORT, PROBE_PORT, RUN_PATH, TLS_PATH,
};
use api::pooler::PoolerSpec;
use api::user::UserCertificate;
use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use machine::access::POOLER_ROLE;
use serde_json::{Value, json};

use super::pod_template::{
    self, AGENT_VOLUME, RUN_VOLUME, SECRET_MODE, TLS_VOLUME, TMP_VOLUME, agent, alive_probe, container_security,
    default_spread, field, pod_security, ready_probe, value,
};
use super::secrets::{self, CA_CERTIFICATE_KEY, CERTIFICATE_KEY, KEY_KEY};
use super::services::POSTGRES_PORT_NAME;
use super::{MANAGER, Subject, add_metadata};
use crate::certificates::{self, CertificateError, Pair};
use crate::drift::hash;

/// Keys of the certificate with which PgBouncer logs in.
const CLIENT_CERTIFICATE_KEY: &str = "client.crt";
const CLIENT_KEY_KEY: &str = "client.key";
/// What a pod needs to end after its clients, in seconds, if PostgreSQL stops at the same time.
const TO_END: i64 = 20;

/// A Pooler and its cluster.
pub struct PoolerSubject<'a> {
    /// The Pooler.
    pub pooler: &'a Pooler,
    /// The cluster.
    pub cluster: Subject<'a>,
    /// How many pods there are to be.
    pub replicas: i32,
}

impl PoolerSubject<'_> {
    fn name(&self) -> String {
        self.pooler.name_any()
    }

    /// Name of the objects that people have no business with.
    pub fn inner(&self) -> String {
        format!("{}-pooler", self.name())
    }

    fn selector(&self) -> BTreeMap<String, String> {
        [(LABEL_POOLER.to_owned(), self.name())].into()
    }

    /// Metadata of an object: it goes with the Pooler.
    pub fn meta(&self, name: String) -> ObjectMeta {
        let mut labels = self.selector();
        labels.insert("app.kubernetes.io/name".to_owned(), "pgbouncer".to_owned());
        labels.insert("app.kubernetes.io/instance".to_owned(), self.name());
        labels.insert("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned());
        ObjectMeta {
            name: Some(name),
            namespace: self.pooler.namespace(),
            labels: Some(labels),
            owner_references: Some(vec![OwnerReference {
                api_version: Pooler::api_version(&()).into_owned(),
                kind: Pooler::kind(&()).into_owned(),
                name: self.name(),
                uid: self.pooler.uid().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        }
    }

    fn image(&self) -> String {
        let own = self.pooler.spec.image.clone();
        own.unwrap_or_else(|| self.cluster.config.pooler_image.clone())
    }

    /// Every name by which clients can reach it.
    fn host_names(&self) -> Vec<String> {
        let (name, cluster) = (self.name(), &self.cluster);
        let (namespace, domain) = (&cluster.namespace, &cluster.config.cluster_domain);
        vec![
            name.clone(),
            format!("{name}.{namespace}"),
            format!("{name}.{namespace}.svc"),
            format!("{name}.{namespace}.svc.{domain}"),
            "localhost".to_owned(),
        ]
    }
}

/// The pods' identity.
pub fn service_account(subject: &PoolerSubject<'_>) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": subject.meta(subject.inner())})
}

/// What a pod may read: its Pooler, and where the primary is. It may write nothing.
pub fn role(subject: &PoolerSubject<'_>) -> Value {
    let rule = |group: &str, resource: &str, name: String| json!({"apiGroups": [group], "resources": [resource], "resourceNames": [name], "verbs": ["get", "list", "watch"]});
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": subject.meta(subject.inner()),
        "rules": [
            rule(api::GROUP, "poolers", subject.name()),
            rule("discovery.k8s.io", "endpointslices", subject.cluster.names.rw()),
        ],
    })
}

/// Gives that to the pods.
pub fn role_binding(subject: &PoolerSubject<'_>) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": subject.meta(subject.inner()),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": subject.inner()},
        "subjects": [{"kind": "ServiceAccount", "name": subject.inner(), "namespace": subject.pooler.namespace()}],
    })
}

/// The Service for applications. A client comes back to the same pod: only the pod that runs its statement can cancel it.
pub fn service(subject: &PoolerSubject<'_>) -> Value {
    let template = &subject.pooler.spec.service;
    let mut metadata = subject.meta(subject.name());
    add_metadata(&mut metadata, &template.metadata);
    let ranges = &template.load_balancer_source_ranges;
    let mut spec = json!({
        "type": template.kind,
        "selector": subject.selector(),
        "sessionAffinity": "ClientIP",
        "ports": [{"name": POSTGRES_PORT_NAME, "port": POOLER_PORT, "targetPort": POSTGRES_PORT_NAME, "protocol": "TCP"}],
    });
    if let Some(class) = &template.load_balancer_class {
        spec["loadBalancerClass"] = json!(class);
    }
    if !ranges.is_empty() {
        spec["loadBalancerSourceRanges"] = json!(ranges);
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
}

/// A drain takes one pod at a time.
pub fn budget(subject: &PoolerSubject<'_>) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": subject.meta(subject.name()),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": subject.selector()},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    })
}

/// The pods. `agent_image` brings the program that keeps PgBouncer running.
pub fn deployment(subject: &PoolerSubject<'_>, agent_image: &str) -> Value {
    let spec = &subject.pooler.spec;
    let mut metadata = subject.meta(subject.name());
    let labels = metadata.labels.get_or_insert_default();
    // By this label the operator's watch finds it. The pods have another one: they are no instances of the cluster.
    labels.insert(LABEL_CLUSTER.to_owned(), subject.cluster.names.cluster().to_owned());
    let mut pod_labels = subject.meta(String::new()).labels.unwrap_or_default();
    pod_labels.insert(LABEL_POOLED.to_owned(), subject.cluster.names.cluster().to_owned());
    let mut pod = pod_spec(subject, agent_image);
    add_optional(&mut pod, spec);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "replicas": subject.replicas,
            "selector": {"matchLabels": subject.selector()},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": pod_labels}, "spec": pod},
        },
    })
}

fn pod_spec(subject: &PoolerSubject<'_>, agent_image: &str) -> Value {
    let spec = &subject.pooler.spec;
    let postgres = &subject.cluster.db.spec.postgres;
    let pull_secrets: Vec<Value> = postgres
        .image_pull_secrets
        .iter()
        .map(|secret| json!({"name": secret.name}))
        .collect();
    let own_spread = spec.scheduling.topology_spread_constraints.clone();
    let spread = own_spread.unwrap_or_else(|| default_spread(&subject.selector()));
    let empty = |name: &str| json!({"name": name, "emptyDir": {}});
    let mounts = [
        json!({"name": AGENT_VOLUME, "mountPath": AGENT_PATH, "readOnly": true}),
        json!({"name": RUN_VOLUME, "mountPath": RUN_PATH}),
        json!({"name": TMP_VOLUME, "mountPath": "/tmp"}),
        json!({"name": TLS_VOLUME, "mountPath": TLS_PATH, "readOnly": true}),
        // The kubelet leaves alone what a container mounts itself.
        json!({"name": RUN_VOLUME, "mountPath": "/etc/hosts", "subPath": POOLER_HOSTS}),
    ];
    let environment = [
        field(ENV_NAMESPACE, "metadata.namespace"),
        value(ENV_CLUSTER, subject.cluster.names.cluster().to_owned()),
        value(ENV_POOLER, subject.name()),
        value(ENV_PROCESSES, spec.processes.to_string()),
    ];
    json!({
        "serviceAccountName": subject.inner(),
        "automountServiceAccountToken": true,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": i64::from(spec.drain_seconds) + TO_END,
        "securityContext": pod_security(),
        "imagePullSecrets": pull_secrets,
        "initContainers": [{
            "name": "install-agent",
            "image": agent_image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["/agent", "install", agent(), "--hosts", format!("{RUN_PATH}/{POOLER_HOSTS}")],
            "securityContext": container_security(),
            "volumeMounts": [
                {"name": AGENT_VOLUME, "mountPath": AGENT_PATH},
                {"name": RUN_VOLUME, "mountPath": RUN_PATH},
            ],
        }],
        "containers": [{
            "name": POOLER_CONTAINER,
            "image": subject.image(),
            "imagePullPolicy": pod_template::pull_policy(postgres.image_pull_policy),
            "command": [agent(), "pooler"],
            "env": environment,
            "ports": [
                {"name": POSTGRES_PORT_NAME, "containerPort": POOLER_PORT, "protocol": "TCP"},
                {"name": pod_template::PROBES_PORT_NAME, "containerPort": PROBE_PORT, "protocol": "TCP"},
            ],
            "securityContext": container_security(),
            "startupProbe": alive_probe(1, 120),
            "livenessProbe": alive_probe(10, 3),
            "readinessProbe": ready_probe(1, 3),
            "volumeMounts": mounts,
        }],
        "volumes": [
            empty(AGENT_VOLUME), empty(RUN_VOLUME), empty(TMP_VOLUME),
            {"name": TLS_VOLUME, "secret": {"secretName": subject.inner(), "defaultMode": SECRET_MODE, "optional": false}},
        ],
        "topologySpreadConstraints": spread,
    })
}

/// Adds what the spec says of where pods run, and what they need.
fn add_optional(pod: &mut Value, spec: &PoolerSpec) {
    let scheduling = &spec.scheduling;
    if let Some(affinity) = &scheduling.affinity {
        pod["affinity"] = json!(affinity);
    }
    if !scheduling.tolerations.is_empty() {
        pod["tolerations"] = json!(scheduling.tolerations);
    }
    if !scheduling.node_selector.is_empty() {
        pod["nodeSelector"] = json!(scheduling.node_selector);
    }
    if let Some(class) = &scheduling.priority_class_name {
        pod["priorityClassName"] = json!(class);
    }
    if let Some(resources) = &spec.resources {
        for container in ["/initContainers/0", "/containers/0"] {
            if let Some(container) = pod.pointer_mut(container) {
                container["resources"] = json!(resources);
            }
        }
    }
}

/// The image that brings the agent, in a Deployment.
pub fn agent_image(deployment: &Value) -> Option<&str> {
    deployment
        .pointer("/spec/template/spec/initContainers/0/image")
        .and_then(Value::as_str)
}

/// The Secret's content: what clients see, what PgBouncer logs in with, and whom both trust. What `found` has stays as long as it is good.
///
/// # Errors
/// If a certificate cannot be made.
pub fn secret(
    subject: &PoolerSubject<'_>,
    found: Option<&Secret>,
    (authority, trusted): (&Pair, &str),
    now: DateTime<Utc>,
) -> Result<Value, CertificateError> {
    let kept = |certificate: &str, key: &str| {
        let pair = secrets::pair(found?, certificate, key)?;
        certificates::is_current(&pair, authority, now).then_some(pair)
    };
    let server = match kept(CERTIFICATE_KEY, KEY_KEY) {
        Some(pair) => pair,
        None => certificates::server(&subject.name(), subject.host_names(), authority, now)?,
    };
    let client = match kept(CLIENT_CERTIFICATE_KEY, CLIENT_KEY_KEY) {
        Some(pair) => pair,
        None => certificates::client(POOLER_ROLE, authority, now)?,
    };
    let data = [
        (CA_CERTIFICATE_KEY, trusted.to_owned()),
        (CERTIFICATE_KEY, server.certificate),
        (KEY_KEY, server.key),
        (CLIENT_CERTIFICATE_KEY, client.certificate),
        (CLIENT_KEY_KEY, client.key),
    ];
    let data = data.map(|(key, text)| (key.to_owned(), text)).into();
    let mut secret = secrets::secret(subject.meta(subject.inner()), "Opaque", data);
    // Never another Secret's.
    secret.metadata.namespace = subject.pooler.namespace();
    let mut value = json!(secret);
    value["apiVersion"] = json!("v1");
    value["kind"] = json!("Secret");
    Ok(value)
}

/// What the certificate says with which PgBouncer logs in.
pub fn certificate(secret: &Secret) -> Option<UserCertificate> {
    certificates::told(&secrets::text(secret, CLIENT_CERTIFICATE_KEY)?)
}

/// What all of it follows from, in short.
pub fn basis(subject: &PoolerSubject<'_>) -> String {
    let db = subject.cluster.db;
    // Another authority issues, or is trusted.
    let certificates = db.status.as_ref().map(|status| &status.certificates);
    hash(&json!([
        deployment(subject, ""),
        service(subject),
        db.metadata.generation,
        certificates
    ]))
}

#[cfg(test)]
mod tests;
