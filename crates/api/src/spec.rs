//! What the user asks for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, ResourceRequirements, Toleration, TopologySpreadConstraint};
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ClusteredDatabaseStatus;
use crate::status::DurabilityMode;

/// A highly available PostgreSQL database.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "clustereddatabase.io",
    version = "v1alpha1",
    kind = "ClusteredDatabase",
    plural = "clustereddatabases",
    shortname = "cdb",
    category = "all",
    namespaced,
    derive = "PartialEq",
    doc = "A highly available PostgreSQL database.",
    status = "ClusteredDatabaseStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name": "Phase", "type": "string", "description": "Where the database stands.", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "description": "Ready and wanted instances.", "jsonPath": ".status.ready"}"#,
    printcolumn = r#"{"name": "Primary", "type": "string", "description": "Pod that serves writes.", "jsonPath": ".status.currentPrimary"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "description": "Version of the running PostgreSQL.", "jsonPath": ".status.version"}"#,
    printcolumn = r#"{"name": "Timeline", "type": "integer", "description": "PostgreSQL timeline of the primary.", "jsonPath": ".status.timeline", "priority": 1}"#,
    printcolumn = r#"{"name": "Durability", "type": "string", "description": "When a commit is acknowledged.", "jsonPath": ".status.durability.mode", "priority": 1}"#,
    printcolumn = r#"{"name": "Waiting", "type": "string", "description": "What the next step waits for.", "jsonPath": ".status.waiting.for", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "description": "Time since the database was asked for.", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ClusteredDatabaseSpec {
    /// How many instances: one primary and the rest standbys (1 to 9).
    #[serde(default = "default_replicas")]
    pub replicas: i32,
    /// Which PostgreSQL, and its settings.
    #[serde(default)]
    pub postgres: PostgresSpec,
    /// The volumes.
    pub storage: StorageSpec,
    /// CPU and memory of each instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// How soon a silent primary is given up.
    #[serde(default)]
    pub failover: FailoverSpec,
    /// When a commit is acknowledged.
    #[serde(default)]
    pub durability: DurabilitySpec,
    /// Which instance is to be the primary.
    #[serde(default)]
    pub primary: PrimarySpec,
    /// How the first data comes to be. Cannot be changed later.
    #[serde(default)]
    pub bootstrap: BootstrapSpec,
    /// On which nodes the instances may run.
    #[serde(default)]
    pub scheduling: SchedulingSpec,
    /// Annotations for the instances' ServiceAccount (for a cloud's workload identity).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("default" = {}))]
    pub service_account_annotations: BTreeMap<String, String>,
    /// Labels and annotations for the instances' pods.
    #[serde(default)]
    pub pod_metadata: PodMetadata,
    /// Who may connect to the instances' pods.
    #[serde(default)]
    pub network_policy: NetworkPolicySpec,
    /// What becomes of volumes that are no longer needed.
    #[serde(default)]
    pub volume_policy: VolumePolicy,
    /// Names of instances (pods) whose PostgreSQL is stopped cleanly, and stays stopped while they are named here: their
    /// pods and volumes stay, to be looked at. A primary hands over first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fenced: Vec<String>,
    /// Stop the whole database cleanly and take its pods away. Volumes and all other objects stay, and when this is false
    /// again the database goes on from where it stopped.
    #[serde(default)]
    pub hibernated: bool,
    /// Stop reconciling: the operator changes nothing until this is false again. The database goes on.
    #[serde(default)]
    pub paused: bool,
}

/// Which PostgreSQL, and its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PostgresSpec {
    /// Container image with PostgreSQL's binaries of `majorVersion`; if absent, the operator's default of the time at which the
    /// database was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// PostgreSQL's major version (15 to 18). Cannot be changed later.
    #[serde(default = "default_major_version")]
    pub major_version: u16,
    /// Server settings (`postgresql.conf`), by name. Settings that the operator manages are refused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("default" = {}))]
    pub parameters: BTreeMap<String, String>,
    /// TCP port of the server and of its Services. Cannot be changed later.
    #[serde(default = "default_port")]
    pub port: u16,
}

/// The volumes of each instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageSpec {
    /// Size of the data volume, as a Kubernetes quantity (such as `10Gi`). Can grow, never shrink.
    pub size: String,
    /// StorageClass; the cluster's default class if absent. Cannot be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// A volume of its own for the write-ahead log. Can be added later, and taken away again until the first instance
    /// gets its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wal: Option<WalStorageSpec>,
}

/// A volume of its own for the write-ahead log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WalStorageSpec {
    /// Size of the WAL volume, as a Kubernetes quantity. Can grow, never shrink.
    pub size: String,
    /// StorageClass; the cluster's default class if absent. Cannot be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
}

/// How soon a silent primary is given up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailoverSpec {
    /// A ready-made set of times.
    #[serde(default)]
    pub profile: FailoverProfile,
    /// Times of one's own, instead of the profile's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<FailoverTiming>,
    /// Whether an old primary that is cut off may still answer reads while a new one already writes.
    #[serde(default)]
    pub reads: FailoverReads,
}

/// What an old primary that is cut off may still do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailoverReads {
    /// Answer reads with old data, for at most the fence time: a new primary is elected without waiting for it.
    #[default]
    Stale,
    /// Nothing: the election waits until the old primary's lease has run out.
    Strict,
}

/// When a commit is acknowledged, for sessions with `synchronous_commit` of `on` or stronger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DurabilitySpec {
    /// What a commit waits for; `Required` from three instances on and `Async` below, if absent. With one instance there
    /// is only `Async`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<DurabilityMode>,
    /// How many standbys must have flushed a commit: 1 to `replicas` - 1; half of `replicas`, rounded down, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standbys: Option<u32>,
}

/// Which instance is to be the primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrimarySpec {
    /// Name of the instance (pod) that is to be the primary; any if absent or `Any`. It becomes primary by a switchover
    /// once it streams and has caught up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefer: Option<String>,
    /// Whether a rolling change goes on to the primary by itself (`Automatic`), or stops before it, while `status.waiting`
    /// says how to let it go on (`Supervised`).
    #[serde(default)]
    pub updates: PrimaryUpdates,
}

impl PrimarySpec {
    /// What [`PrimarySpec::prefer`] says where no instance is preferred; no name of a pod has an upper-case letter.
    const ANY: &str = "Any";

    /// The instance that is to be the primary, if one is.
    pub fn preferred(&self) -> Option<&str> {
        self.prefer.as_deref().filter(|prefer| *prefer != Self::ANY)
    }
}

/// What a rolling change does when only the primary is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PrimaryUpdates {
    /// It goes on: the primary hands over to a standby, or is restarted in place.
    #[default]
    Automatic,
    /// It stops before that, and `status.waiting` says how to let it go on.
    Supervised,
}

/// A ready-made set of failover times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailoverProfile {
    /// Lease 10 s, renewed every 2 s, fenced after 6 s: rides out an API server stall of up to 6 s.
    #[default]
    Default,
    /// Lease 5 s, renewed every 0.8 s, fenced after 2.5 s: for API servers that never stall.
    Fast,
}

/// Failover times of one's own. `fenceMilliseconds + killMilliseconds` must be at most 95 % of the lease's duration
/// (5 % is for clocks that run at different rates), and the renewal interval at most a third of the fence time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailoverTiming {
    /// How long the lease of a silent primary stays valid, in seconds.
    pub lease_seconds: u32,
    /// How often the primary renews its lease, in milliseconds.
    pub renew_milliseconds: u32,
    /// After how long without a renewal the primary stops itself, in milliseconds.
    pub fence_milliseconds: u32,
    /// How long that stop may take, in milliseconds.
    pub kill_milliseconds: u32,
}

/// How the first data comes to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapSpec {
    /// Make a new, empty database.
    #[serde(default)]
    pub initdb: InitdbSpec,
}

/// How a new, empty database is made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InitdbSpec {
    /// Name of the application's database.
    #[serde(default = "default_database")]
    pub database: String,
    /// Role that owns the application's database; it logs in with a password.
    #[serde(default = "default_database")]
    pub owner: String,
    /// Name of a Secret (in the same namespace) whose key `password` is the owner's password; made up if absent. The Secret
    /// must name this database in its label `clustereddatabase.io/password-for`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_secret: Option<String>,
    /// Keep checksums of data pages.
    #[serde(default = "default_true")]
    pub data_checksums: bool,
    /// Locale of the databases (such as `C.UTF-8`); the encoding is always UTF-8.
    #[serde(default = "default_locale")]
    pub locale: String,
    /// SQL statements run once in the application's database, as superuser, when it is made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub post_init_sql: Vec<String>,
}

/// On which nodes the instances may run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingSpec {
    /// Node and pod affinity, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Tolerations, as in a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("default" = {}))]
    pub node_selector: BTreeMap<String, String>,
    /// How to spread the instances; a soft spread over hosts and zones if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_spread: Option<Vec<TopologySpreadConstraint>>,
    /// PriorityClass of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
}

/// Labels and annotations for the instances' pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodMetadata {
    /// Additional labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("default" = {}))]
    pub labels: BTreeMap<String, String>,
    /// Additional annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("default" = {}))]
    pub annotations: BTreeMap<String, String>,
}

/// Who may connect to the instances' pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicySpec {
    /// Whether the operator keeps a NetworkPolicy for the instances. It lets only them reach the peer port (8433).
    #[serde(default)]
    pub mode: NetworkPolicyMode,
    /// Who may connect to PostgreSQL, as in `ingress.from` of a NetworkPolicy; everybody if absent, only the instances if
    /// empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<Vec<NetworkPolicyPeer>>,
    /// Who may read the metrics (port 8080), as in `ingress.from` of a NetworkPolicy; pods of the namespace `monitoring` if
    /// absent, nobody if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitoring: Option<Vec<NetworkPolicyPeer>>,
}

/// Whether the operator keeps a NetworkPolicy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NetworkPolicyMode {
    /// There is none, unless you make one yourself.
    #[default]
    Off,
    /// The operator makes a NetworkPolicy with the database's name, and repairs it.
    Managed,
}

/// What becomes of volumes that are no longer needed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumePolicy {
    /// When the database is deleted.
    #[serde(default)]
    pub on_delete: VolumeFate,
    /// When an instance is removed by lowering `replicas`.
    #[serde(default)]
    pub on_scale_down: VolumeFate,
}

/// What becomes of a volume claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeFate {
    /// The claim, and the data on it, stay.
    #[default]
    Retain,
    /// The claim is deleted.
    Delete,
}

impl Default for PostgresSpec {
    fn default() -> Self {
        Self {
            image: None,
            major_version: default_major_version(),
            parameters: BTreeMap::new(),
            port: default_port(),
        }
    }
}

impl Default for InitdbSpec {
    fn default() -> Self {
        Self {
            database: default_database(),
            owner: default_database(),
            password_secret: None,
            data_checksums: true,
            locale: default_locale(),
            post_init_sql: Vec::new(),
        }
    }
}

fn default_replicas() -> i32 {
    3
}
fn default_major_version() -> u16 {
    17
}
fn default_port() -> u16 {
    5432
}
fn default_database() -> String {
    "app".to_owned()
}
fn default_locale() -> String {
    "C.UTF-8".to_owned()
}
fn default_true() -> bool {
    true
}
