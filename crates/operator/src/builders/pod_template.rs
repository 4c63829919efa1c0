//! What a member's pod looks like, and the revision of it.

use std::collections::BTreeMap;

use api::names::{
    AGENT_PATH, ANNOTATION_BASE_REVISION, ANNOTATION_RESTARTED_BY, ANNOTATION_REVISION, APP_PATH, CONTAINER, DATA_PATH,
    DATA_VOLUME, ENV_ARCHIVES, ENV_WAL_OF, IDENTITY_KEY, LABEL_ROLE, PEER_PORT, PROBE_PORT, RECOVERY_STORE_PATH,
    RECOVERY_STORE_VOLUME_PATH, ROLE_REPLICA, RUN_PATH, STORE_PATH, STORE_VOLUME_PATH, TLS_PATH, WAL_PATH, WAL_VOLUME,
    volume_in,
};
use api::spec::{IdentitySecretRef, ImagePullPolicy, PullSecret};
use api::store::StoreSpec;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource, ExecAction, HTTPGetAction,
    KeyToPath, LocalObjectReference, ObjectFieldSelector, PersistentVolumeClaimVolumeSource, PodSecurityContext,
    PodSpec, PodTemplateSpec, Probe, ProjectedVolumeSource, SeccompProfile, SecretProjection, SecretVolumeSource,
    SecurityContext, TopologySpreadConstraint, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use machine::cluster::WalVolumes;

use super::Subject;
use super::resources;
use super::secrets::PASSWORD_KEY;
use super::services::{PEER_PORT_NAME, POSTGRES_PORT_NAME};
use crate::drift::hash;

/// User and group of the official PostgreSQL images; a volume written under one image is readable under another.
pub const POSTGRES_UID: i64 = 999;
/// PGDATA: a directory of the data volume, not its root, which belongs to root and may hold `lost+found`.
pub const PGDATA: &str = "/var/lib/postgresql/data/pgdata";
/// How long a pod may take to stop, in seconds. A clean stop writes a checkpoint and sends the standbys the rest of
/// the WAL; a minute is enough for both on any disk that keeps up with its load, and what is cut off after it is a
/// crash, which loses nothing. Longer would hold up every drain of a node whose disk hangs.
pub const TERMINATION_SECONDS: i64 = 60;

/// Name of the port of probes and metrics.
pub const PROBES_PORT_NAME: &str = "probes";
pub(super) const AGENT_VOLUME: &str = "agent";
pub(super) const RUN_VOLUME: &str = "run";
pub(super) const TMP_VOLUME: &str = "tmp";
const SHM_VOLUME: &str = "shm";
pub(super) const TLS_VOLUME: &str = "tls";
const APP_VOLUME: &str = "app";
const STORE_VOLUME: &str = "store";
const RECOVERY_STORE_VOLUME: &str = "recovery-store";
const BACKUPS_VOLUME: &str = "backups";
const RECOVERY_BACKUPS_VOLUME: &str = "recovery-backups";
/// The file of the store's authority in [`STORE_PATH`].
const AUTHORITY_KEY: &str = "ca.crt";
/// Read by the group (fsGroup) and by nobody else; PostgreSQL refuses keys that others may read.
pub(super) const SECRET_MODE: i32 = 0o440;

/// The pod template, with its revisions as annotations.
pub fn pod_template(subject: &Subject<'_>) -> PodTemplateSpec {
    let metadata = &subject.db.spec.pods.metadata;
    let mut labels = metadata.labels.clone();
    labels.extend(subject.labels());
    // The operator turns it into `primary` where that is so; until then a pod must not be taken for one.
    labels.insert(LABEL_ROLE.to_owned(), ROLE_REPLICA.to_owned());
    let mut annotations = metadata.annotations.clone();
    let restarted_by = subject.restarted_by().map(str::to_owned);
    annotations.extend(restarted_by.map(|uid| (ANNOTATION_RESTARTED_BY.to_owned(), uid)));
    let mut template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(pod_spec(subject)),
    };
    let revisions = [
        (ANNOTATION_REVISION, revision(&template)),
        (ANNOTATION_BASE_REVISION, base_revision(&template)),
    ];
    if let Some(metadata) = &mut template.metadata {
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.extend(revisions.map(|(name, revision)| (name.to_owned(), revision)));
    }
    if let (WalVolumes::Of(ordinal), Some(spec)) = (subject.wal, &mut template.spec) {
        name_wal_claim(subject, spec, ordinal);
    }
    template
}

/// The volume that a claim template would give to this pod, and whose it is: an agent that is given another's touches
/// nothing. Not part of the revision, since the pod is as one from the claim template.
fn name_wal_claim(subject: &Subject<'_>, spec: &mut PodSpec, ordinal: u32) {
    spec.volumes.get_or_insert_default().push(Volume {
        name: volume_in(WAL_VOLUME, subject.volume_set()),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: subject.names.wal_claim(subject.volume_set(), ordinal),
            read_only: None,
        }),
        ..Volume::default()
    });
    for container in &mut spec.containers {
        container.env.get_or_insert_default().push(EnvVar {
            name: ENV_WAL_OF.to_owned(),
            value: Some(subject.names.pod(ordinal)),
            ..EnvVar::default()
        });
    }
}

/// Hash of everything in the template that needs a new pod. The image that brings the agent is left out: a new version
/// of the operator restarts no database, and a new agent arrives with the pod's next replacement.
pub fn revision(template: &PodTemplateSpec) -> String {
    let mut template = template.clone();
    if let Some(annotations) = template
        .metadata
        .as_mut()
        .and_then(|metadata| metadata.annotations.as_mut())
    {
        annotations.remove(ANNOTATION_REVISION);
        annotations.remove(ANNOTATION_BASE_REVISION);
    }
    for container in template
        .spec
        .iter_mut()
        .flat_map(|spec| spec.init_containers.iter_mut().flatten())
    {
        container.image = None;
    }
    hash(&template)
}

/// The same without cpu and memory, which Kubernetes changes in a running pod. The container that copies the agent has run;
/// the bound of shared memory stays what it was until there is a new pod, and what is used counts against the limit anyway.
fn base_revision(template: &PodTemplateSpec) -> String {
    let mut template = template.clone();
    if let Some(spec) = &mut template.spec {
        let containers = spec
            .containers
            .iter_mut()
            .chain(spec.init_containers.iter_mut().flatten());
        containers.for_each(|container| resources::remove(&mut container.resources));
        let mut volumes = spec.volumes.iter_mut().flatten();
        let shared = volumes.find(|volume| volume.name == SHM_VOLUME);
        if let Some(source) = shared.and_then(|volume| volume.empty_dir.as_mut()) {
            source.size_limit = None;
        }
    }
    revision(&template)
}

fn pod_spec(subject: &Subject<'_>) -> PodSpec {
    let scheduling = &subject.db.spec.scheduling;
    let pull_secrets = &subject.db.spec.postgres.image_pull_secrets;
    let reference = |secret: &PullSecret| LocalObjectReference {
        name: secret.name.clone(),
    };
    PodSpec {
        service_account_name: Some(subject.names.cluster().to_owned()),
        automount_service_account_token: Some(true),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(TERMINATION_SECONDS),
        security_context: Some(pod_security()),
        image_pull_secrets: (!pull_secrets.is_empty()).then(|| pull_secrets.iter().map(reference).collect()),
        init_containers: Some(vec![install_container(subject)]),
        containers: vec![postgres_container(subject)],
        volumes: Some(volumes(subject)),
        affinity: scheduling.affinity.clone(),
        tolerations: (!scheduling.tolerations.is_empty()).then(|| scheduling.tolerations.clone()),
        node_selector: (!scheduling.node_selector.is_empty()).then(|| scheduling.node_selector.clone()),
        priority_class_name: scheduling.priority_class_name.clone(),
        topology_spread_constraints: Some(
            scheduling
                .topology_spread_constraints
                .clone()
                .unwrap_or_else(|| default_spread(&subject.selector())),
        ),
        ..PodSpec::default()
    }
}

pub(super) const fn pull_policy(policy: ImagePullPolicy) -> &'static str {
    match policy {
        ImagePullPolicy::IfNotPresent => "IfNotPresent",
        ImagePullPolicy::Always => "Always",
        ImagePullPolicy::Never => "Never",
    }
}

/// Copies the agent into the pod; PostgreSQL's image stays as it is.
fn install_container(subject: &Subject<'_>) -> Container {
    Container {
        name: "install-agent".to_owned(),
        image: Some(subject.config.agent_image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec!["/agent".to_owned(), "install".to_owned(), agent()]),
        // A pod needs the larger of its init containers and its containers: the same again costs nothing, and a quota
        // that demands limits on every container is obeyed.
        resources: subject.db.spec.resources.clone(),
        security_context: Some(container_security()),
        volume_mounts: Some(vec![mount(AGENT_VOLUME, AGENT_PATH)]),
        ..Container::default()
    }
}

/// The agent's binary.
pub(super) fn agent() -> String {
    format!("{AGENT_PATH}/agent")
}

fn postgres_container(subject: &Subject<'_>) -> Container {
    let mut mounts = vec![
        mount(&volume_in(DATA_VOLUME, subject.volume_set()), DATA_PATH),
        // A superuser of SQL acts as this container's user: it must not replace the agent of the next start.
        read_only(AGENT_VOLUME, AGENT_PATH),
        mount(RUN_VOLUME, RUN_PATH),
        mount(TMP_VOLUME, "/tmp"),
        mount(SHM_VOLUME, "/dev/shm"),
        read_only(TLS_VOLUME, TLS_PATH),
        read_only(APP_VOLUME, APP_PATH),
    ];
    if subject.db.spec.storage.wal.is_some() && subject.wal != WalVolumes::Withheld {
        mounts.push(mount(&volume_in(WAL_VOLUME, subject.volume_set()), WAL_PATH));
    }
    let stores = store_volumes(subject);
    mounts.extend(stores.map(|(volume, path)| match path {
        STORE_VOLUME_PATH => mount(&volume.name, path),
        _ => read_only(&volume.name, path),
    }));
    Container {
        name: CONTAINER.to_owned(),
        image: Some(subject.image()),
        image_pull_policy: Some(pull_policy(subject.db.spec.postgres.image_pull_policy).to_owned()),
        command: Some(vec![agent(), "run".to_owned()]),
        env: Some(environment(subject)),
        ports: Some(vec![
            port(POSTGRES_PORT_NAME, subject.db.spec.postgres.port),
            port(PEER_PORT_NAME, PEER_PORT),
            port(PROBES_PORT_NAME, PROBE_PORT),
        ]),
        resources: subject.db.spec.resources.clone(),
        security_context: Some(container_security()),
        // The agent answers soon after its start, whatever PostgreSQL does: two minutes without are a broken pod.
        startup_probe: Some(alive_probe(1, 120)),
        // Half a minute: a stalled node must not turn into restarts of all its databases. Not more often than each 10 s,
        // since each probe is a process.
        liveness_probe: Some(alive_probe(10, 3)),
        readiness_probe: Some(ready_probe(1, 3)),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

/// A variable with a field of the pod.
pub(super) fn field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: Some("v1".to_owned()),
                field_path: path.to_owned(),
            }),
            ..EnvVarSource::default()
        }),
    }
}

/// A variable with this value.
pub(super) fn value(name: &str, value: String) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value),
        ..EnvVar::default()
    }
}

fn environment(subject: &Subject<'_>) -> Vec<EnvVar> {
    let archives = subject.db.spec.backup.is_some();
    let archives = archives.then(|| value(ENV_ARCHIVES, "true".to_owned()));
    let always = [
        field("POD_NAME", "metadata.name"),
        field("POD_UID", "metadata.uid"),
        field("POD_IP", "status.podIP"),
        field("POD_NAMESPACE", "metadata.namespace"),
        value("CLUSTER_NAME", subject.names.cluster().to_owned()),
        value("CLUSTER_UID", subject.uid.clone()),
        value("PGDATA", PGDATA.to_owned()),
        // So that `psql` in the container just works.
        value("PGHOST", format!("{RUN_PATH}/socket")),
        value("PGPORT", subject.db.spec.postgres.port.to_string()),
        value("PGUSER", "postgres".to_owned()),
    ];
    always.into_iter().chain(archives).collect()
}

fn volumes(subject: &Subject<'_>) -> Vec<Volume> {
    let empty = |name: &str, source: EmptyDirVolumeSource| Volume {
        name: name.to_owned(),
        empty_dir: Some(source),
        ..Volume::default()
    };
    let secret = |name: &str, secret: String, items: Option<Vec<KeyToPath>>| Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret),
            default_mode: Some(SECRET_MODE),
            items,
            optional: Some(false),
        }),
        ..Volume::default()
    };
    let (app, key) = match &subject.db.spec.initdb().password_secret_ref {
        Some(own) => (own.name.clone(), own.key.clone()),
        None => (subject.names.app_secret(), PASSWORD_KEY.to_owned()),
    };
    let password = KeyToPath {
        key,
        path: PASSWORD_KEY.to_owned(),
        mode: None,
    };
    let always = [
        empty(AGENT_VOLUME, EmptyDirVolumeSource::default()),
        empty(RUN_VOLUME, EmptyDirVolumeSource::default()),
        empty(TMP_VOLUME, EmptyDirVolumeSource::default()),
        empty(SHM_VOLUME, shared_memory(subject)),
        secret(TLS_VOLUME, subject.names.tls_secret(), None),
        secret(APP_VOLUME, app, Some(vec![password])),
    ];
    always
        .into_iter()
        .chain(store_volumes(subject).map(|(volume, _)| volume))
        .collect()
}

/// The volumes with the Secrets of the stores that the spec names, and those that are stores themselves, and where each is mounted.
fn store_volumes(subject: &Subject<'_>) -> impl Iterator<Item = (Volume, &'static str)> {
    let spec = &subject.db.spec;
    let backup = spec.backup.as_ref();
    let own = backup.map(|backup| &backup.store);
    // After a recovery in place the database comes from its own backups.
    let recovery = if subject.volume_set() == 0 {
        let from = subject.db.recovery_source();
        from.and_then(|from| Some((from.store.as_ref()?, from.identity_secret_ref.as_ref())))
    } else {
        backup.map(|backup| (&backup.store, backup.identity_secret_ref()))
    };
    let claim = |name: &str, store: Option<&StoreSpec>| {
        let claim = store?.volume.as_ref()?;
        Some(Volume {
            name: name.to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.claim_name.clone(),
                read_only: None,
            }),
            ..Volume::default()
        })
    };
    let recovery_claim = claim(RECOVERY_BACKUPS_VOLUME, recovery.map(|(store, _)| store));
    let recovery = recovery.and_then(|(store, identity)| store_volume(RECOVERY_STORE_VOLUME, store, identity));
    let volumes = [
        // Nothing here needs the private key: neither archiving nor a backup.
        own.and_then(|store| Some((store_volume(STORE_VOLUME, store, None)?, STORE_PATH))),
        claim(BACKUPS_VOLUME, own).map(|volume| (volume, STORE_VOLUME_PATH)),
        recovery.map(|volume| (volume, RECOVERY_STORE_PATH)),
        recovery_claim.map(|volume| (volume, RECOVERY_STORE_VOLUME_PATH)),
    ];
    volumes.into_iter().flatten()
}

/// The credentials, the authority and the private keys of a store, if the spec names any. A Secret that is missing keeps no pod from starting: the database
/// matters more than its archive, and the archive's fault is told.
fn store_volume(name: &str, store: &StoreSpec, identity: Option<&IdentitySecretRef>) -> Option<Volume> {
    let key = |key: &str, path: &str| KeyToPath {
        key: key.to_owned(),
        path: path.to_owned(),
        mode: None,
    };
    let source = |name: &str, items: Vec<KeyToPath>| VolumeProjection {
        secret: Some(SecretProjection {
            name: name.to_owned(),
            items: Some(items),
            optional: Some(true),
        }),
        ..VolumeProjection::default()
    };
    let credentials = store.credentials();
    let credentials = credentials.map(|(of, keys)| source(&of.name, keys.iter().map(|name| key(name, name)).collect()));
    let authority = store.authority();
    let authority = authority.map(|of| source(&of.name, vec![key(&of.key, AUTHORITY_KEY)]));
    let identity = identity.map(|of| source(&of.name, vec![key(&of.key, IDENTITY_KEY)]));
    let sources: Vec<VolumeProjection> = [credentials, authority, identity].into_iter().flatten().collect();
    (!sources.is_empty()).then(|| Volume {
        name: name.to_owned(),
        projected: Some(ProjectedVolumeSource {
            sources: Some(sources),
            default_mode: Some(SECRET_MODE),
        }),
        ..Volume::default()
    })
}

/// PostgreSQL's dynamic shared memory (parallel queries). What is used counts against the container's memory limit,
/// which is therefore the bound; without a limit it is 1 GiB instead of the container runtime's 64 MiB.
fn shared_memory(subject: &Subject<'_>) -> EmptyDirVolumeSource {
    let limits = subject
        .db
        .spec
        .resources
        .as_ref()
        .and_then(|resources| resources.limits.as_ref());
    let memory = limits.and_then(|limits| limits.get("memory"));
    EmptyDirVolumeSource {
        medium: Some("Memory".to_owned()),
        size_limit: Some(memory.cloned().unwrap_or_else(|| Quantity("1Gi".to_owned()))),
    }
}

/// Pods with these labels apart from each other if possible; a cluster with too few nodes or zones still runs all of them.
pub(super) fn default_spread(pods: &BTreeMap<String, String>) -> Vec<TopologySpreadConstraint> {
    ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        .map(|key| TopologySpreadConstraint {
            max_skew: 1,
            topology_key: key.to_owned(),
            when_unsatisfiable: "ScheduleAnyway".to_owned(),
            label_selector: Some(LabelSelector {
                match_labels: Some(pods.clone()),
                match_expressions: None,
            }),
            ..TopologySpreadConstraint::default()
        })
        .to_vec()
}

pub(super) fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_user: Some(POSTGRES_UID),
        run_as_group: Some(POSTGRES_UID),
        run_as_non_root: Some(true),
        fs_group: Some(POSTGRES_UID),
        // A recursive change of owner on a volume with many files takes minutes.
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

pub(super) fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            add: None,
            drop: Some(vec!["ALL".to_owned()]),
        }),
        privileged: Some(false),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        ..SecurityContext::default()
    }
}

/// Asks within the container: what fails here ends the container, and so must not depend on who reaches its ports.
pub(super) fn alive_probe(period: i32, failures: i32) -> Probe {
    Probe {
        exec: Some(ExecAction {
            command: Some(vec![agent(), "alive".to_owned()]),
        }),
        ..probe(period, failures)
    }
}

pub(super) fn ready_probe(period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some("/readyz".to_owned()),
            port: IntOrString::Int(PROBE_PORT.into()),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        ..probe(period, failures)
    }
}

fn probe(period: i32, failures: i32) -> Probe {
    Probe {
        period_seconds: Some(period),
        timeout_seconds: Some(period.max(2)),
        failure_threshold: Some(failures),
        success_threshold: Some(1),
        ..Probe::default()
    }
}

fn port(name: &str, port: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: port.into(),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        ..VolumeMount::default()
    }
}

fn read_only(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        read_only: Some(true),
        ..mount(volume, path)
    }
}

/// The revision that a pod or a template carries.
pub fn revision_of(annotations: &BTreeMap<String, String>) -> Option<&str> {
    annotations.get(ANNOTATION_REVISION).map(String::as_str)
}

#[cfg(test)]
mod tests;
