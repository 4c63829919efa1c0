//! The names of everything that belongs to a database, derived from its own name. One place, so that the operator,
//! the agents and the tools cannot disagree.

/// The longest name a `ClusteredDatabase` may have: the StatefulSet's pods get a `controller-revision-hash` label of
/// the set's name, a dash and ten characters, and a label value holds 63. Two are kept in reserve for pod ordinals of
/// claim names (`data-<name>-8`).
pub const MAX_NAME: usize = 40;
/// The most instances that a `ClusteredDatabase` may have (`spec.replicas`): ordinals are below it.
pub const MAX_INSTANCES: u32 = 9;

/// Label with the database's name on every object that belongs to it.
pub const LABEL_CLUSTER: &str = "clustereddatabase.io/cluster";
/// Label with a pod's role (`primary` or `replica`); for `-ro`, the budgets and people, never for a decision.
pub const LABEL_ROLE: &str = "clustereddatabase.io/role";
/// Value of [`LABEL_ROLE`] on the primary's pod.
pub const ROLE_PRIMARY: &str = "primary";
/// Value of [`LABEL_ROLE`] on every other pod.
pub const ROLE_REPLICA: &str = "replica";
/// Annotation with the hash of the desired content that the operator last applied to an object.
pub const ANNOTATION_APPLIED: &str = "clustereddatabase.io/applied-hash";
/// Annotation on a pod template: the revision (hash of everything that needs a new pod).
pub const ANNOTATION_REVISION: &str = "clustereddatabase.io/revision";
/// Annotation on a pod template: the revision without cpu and memory, which can be changed in a running pod.
pub const ANNOTATION_BASE_REVISION: &str = "clustereddatabase.io/base-revision";
/// Annotation on a pod whose cpu and memory are being changed: the revision that it is to have then, a space, and since
/// when (RFC 3339).
pub const ANNOTATION_RESIZING: &str = "clustereddatabase.io/resizing";
/// Label on volume claims: UID of the ClusteredDatabase that they were made for.
pub const LABEL_CLUSTER_UID: &str = "clustereddatabase.io/uid";
/// Annotation that a user puts on a `ClusteredDatabase` whose Lease was lost: its UID as value asks the operator to make
/// the Lease again for the member that is known to have held it last.
pub const ANNOTATION_RECREATE_LEASE: &str = "clustereddatabase.io/recreate-lease";
/// Annotation that a user puts on a `ClusteredDatabase` whose missing instances are lost for good: its UID, a slash, and the
/// epoch of the Lease (`status.epoch`) let the instances that are left elect a primary without them. Commits that only the
/// lost ones have are lost with them.
pub const ANNOTATION_ACCEPT_LOSS: &str = "clustereddatabase.io/accept-loss";
/// Annotation that a user puts on a `ClusteredDatabase` to have data removed that an instance has set aside and kept
/// (condition `DataSetAside`): the instance's name, a slash, and the name of what it keeps.
pub const ANNOTATION_DISCARD_KEPT: &str = "clustereddatabase.io/discard-kept";
/// Annotation that a user puts on a `ClusteredDatabase` without `spec.postgres.image` to have the operator's present default
/// image taken, which this names (condition `OtherDefaultImage`).
pub const ANNOTATION_TAKE_IMAGE: &str = "clustereddatabase.io/take-image";
/// Label that a user puts on a Secret: the name of the one database that may use it as its `passwordSecret`. Without this
/// consent, whoever may create a database could read any Secret of the namespace that has a key `password`.
pub const LABEL_PASSWORD_FOR: &str = "clustereddatabase.io/password-for";
/// The finalizer on a `ClusteredDatabase`.
pub const FINALIZER: &str = "clustereddatabase.io/cleanup";

/// Lease annotation: the holder's address, ports and incarnation (`protocol::HolderRecord` of crate `machine`, JSON).
pub const LEASE_HOLDER: &str = "clustereddatabase.io/holder";
/// Lease annotation: what the primary knows of every member (`BTreeMap<pod name, MemberReport>`, JSON).
pub const LEASE_MEMBERS: &str = "clustereddatabase.io/members";
/// Lease annotation: WAL positions of the members; apart from [`LEASE_MEMBERS`] because it changes all the time.
pub const LEASE_POSITIONS: &str = "clustereddatabase.io/positions";
/// Lease annotation: the PostgreSQL system identifier of this database's data.
pub const LEASE_SYSTEM_ID: &str = "clustereddatabase.io/system-identifier";
/// Lease annotation: the final position that a holder left on release (JSON).
pub const LEASE_RELEASE: &str = "clustereddatabase.io/release";

/// Lease annotation: the synchronous rule in force, `{"required": k, "names": [members]}`; absent while commits wait for nobody.
pub const LEASE_RULE: &str = "clustereddatabase.io/synchronous-rule";
/// Lease annotation: the timeline reserved for the holder.
pub const LEASE_TIMELINE: &str = "clustereddatabase.io/timeline";
/// Lease annotation: the newest timeline that was begun by an election which may have lost acknowledged commits.
pub const LEASE_LOSSY: &str = "clustereddatabase.io/lossy-timeline";
/// Lease annotation: where the ancestors of the primary's timeline ended (JSON).
pub const LEASE_HISTORY: &str = "clustereddatabase.io/history";

/// EndpointSlice annotation of `-rw`: the epoch of the holder that wrote it; an older holder never overwrites it.
pub const ROUTE_EPOCH: &str = "clustereddatabase.io/epoch";

/// Environment variable of the agent: name of its `ClusteredDatabase`.
pub const ENV_CLUSTER: &str = "CLUSTER_NAME";
/// Environment variable of the agent: UID of its `ClusteredDatabase`.
pub const ENV_CLUSTER_UID: &str = "CLUSTER_UID";
/// Environment variable of the agent: its pod's namespace (`metadata.namespace`).
pub const ENV_NAMESPACE: &str = "POD_NAMESPACE";
/// Environment variable of the agent: its pod's name (`metadata.name`).
pub const ENV_POD: &str = "POD_NAME";
/// Environment variable of the agent: its pod's UID (`metadata.uid`).
pub const ENV_POD_UID: &str = "POD_UID";
/// Environment variable of the agent: its pod's address (`status.podIP`).
pub const ENV_ADDRESS: &str = "POD_IP";

/// Environment variable of the agent: whose the WAL volume is that its pod was given, where the pod template names one.
pub const ENV_WAL_OF: &str = "WAL_VOLUME_OF";

/// How the agent's termination message begins when it ended because the first database could not be made; PostgreSQL's
/// own words follow.
pub const TERMINATION_BOOTSTRAP: &str = "bootstrap failed: ";

/// Name of PostgreSQL's port, on pods, Services and in the EndpointSlice.
pub const POSTGRES_PORT: &str = "postgres";
/// Container name of PostgreSQL in a member's pod.
pub const CONTAINER: &str = "postgres";
/// Claim template of the data volume.
pub const DATA_VOLUME: &str = "data";
/// Claim template of the WAL volume.
pub const WAL_VOLUME: &str = "wal";
/// Where the data volume is mounted.
pub const DATA_PATH: &str = "/var/lib/postgresql/data";
/// Where the WAL volume is mounted.
pub const WAL_PATH: &str = "/var/lib/postgresql/wal";
/// Where the agent's binary lives: a volume that the postgres container cannot write.
pub const AGENT_PATH: &str = "/cdb/agent";
/// Where the sockets and the generated files live (an emptyDir).
pub const RUN_PATH: &str = "/cdb/run";
/// The Unix socket at which the agent gives its sign of life, for the start-up and liveness probes.
pub const ALIVE_SOCKET: &str = "/cdb/run/alive";
/// Where the cluster's TLS Secret is mounted.
pub const TLS_PATH: &str = "/cdb/tls";
/// Where the application user's Secret is mounted.
pub const APP_PATH: &str = "/cdb/app";
/// Port of the agent's mutually authenticated peer API.
pub const PEER_PORT: u16 = 8433;
/// Port of the agent's readiness and metrics (plain HTTP).
pub const PROBE_PORT: u16 = 8080;

/// The names of one database's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    cluster: String,
}

impl Names {
    /// Names for the database called `cluster`.
    pub fn new(cluster: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
        }
    }
    /// The database's own name; also that of its StatefulSet, ServiceAccount, Role, RoleBinding, Lease and budget.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }
    /// The budget that keeps the primary from being evicted; the replicas' has the database's own name.
    pub fn primary_budget(&self) -> String {
        format!("{}.primary", self.cluster)
    }
    /// The Lease that decides who is primary.
    pub fn lease(&self) -> String {
        self.cluster.clone()
    }
    /// The headless Service that gives pods their names.
    pub fn headless(&self) -> String {
        format!("{}-pods", self.cluster)
    }
    /// The Service of the primary; its EndpointSlice has the same name.
    pub fn rw(&self) -> String {
        format!("{}-rw", self.cluster)
    }
    /// The Service of the standbys.
    pub fn ro(&self) -> String {
        format!("{}-ro", self.cluster)
    }
    /// The Service of all members that may be read.
    pub fn r(&self) -> String {
        format!("{}-r", self.cluster)
    }
    /// Secret with the cluster's certificate authority and its key; only the operator reads it.
    pub fn ca_secret(&self) -> String {
        format!("{}-ca", self.cluster)
    }
    /// Secret with the agents' certificate (PostgreSQL's server certificate and the peer API's).
    pub fn tls_secret(&self) -> String {
        format!("{}-tls", self.cluster)
    }
    /// Secret with the application user's credentials.
    pub fn app_secret(&self) -> String {
        format!("{}-app", self.cluster)
    }
    /// The pod with this ordinal.
    pub fn pod(&self, ordinal: u32) -> String {
        format!("{}-{ordinal}", self.cluster)
    }
    /// The data claim of the pod with this ordinal.
    pub fn data_claim(&self, ordinal: u32) -> String {
        format!("{DATA_VOLUME}-{}-{ordinal}", self.cluster)
    }
    /// The WAL claim of the pod with this ordinal.
    pub fn wal_claim(&self, ordinal: u32) -> String {
        format!("{WAL_VOLUME}-{}-{ordinal}", self.cluster)
    }
    /// The ordinal in the name of one of this database's pods; `None` if no StatefulSet makes a pod of that name. A StatefulSet
    /// that somebody scales by hand may have more pods than there can be instances.
    pub fn ordinal(&self, pod: &str) -> Option<u32> {
        let ordinal = pod.strip_prefix(&self.cluster)?.strip_prefix('-')?.parse().ok();
        ordinal.filter(|ordinal| *ordinal <= i32::MAX.unsigned_abs() && self.pod(*ordinal) == pod)
    }
    /// The ordinal of the instance with this pod; `None` if none can have it.
    pub fn instance(&self, pod: &str) -> Option<u32> {
        self.ordinal(pod).filter(|ordinal| *ordinal < MAX_INSTANCES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinal_is_the_inverse_of_pod() {
        let names = Names::new("a-1");
        assert_eq!(names.ordinal(&names.pod(7)), Some(7));
        assert_eq!(names.ordinal("a-17"), None);
        assert_eq!(names.ordinal("b-1-7"), None);
        for none in [
            "a-1-2147483648",
            "a-1-4294967296",
            "a-1--1",
            "a-1-+1",
            "a-1-01",
            "a-1-",
            "a-1",
        ] {
            assert_eq!((names.ordinal(none), names.instance(none)), (None, None), "{none}");
        }
        assert_eq!(names.instance("a-1-8"), Some(8));
        for many in ["a-1-9", "a-1-2147483647"] {
            assert_eq!(
                (names.ordinal(many).is_some(), names.instance(many)),
                (true, None),
                "{many}"
            );
        }
    }
}
