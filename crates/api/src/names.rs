//! The names of everything that belongs to a database, derived from its own name. One place, so that the operator,
//! the agents and the tools cannot disagree.

/// The API group as a literal: nothing else in this crate spells it, but for `#[kube(group)]`, which takes literals alone.
/// `just rename-group` changes it, and all that is checked in with it.
macro_rules! group {
    () => {
        "clustereddatabase.io"
    };
}
/// The key of a label or an annotation of this project.
macro_rules! key {
    ($name:literal) => {
        concat!(group!(), "/", $name)
    };
}

/// The API group of every resource of this project.
pub const GROUP: &str = group!();
/// The version of the API.
pub const VERSION: &str = "v1alpha2";
/// `apiVersion` of this project's resources.
pub const API_VERSION: &str = key!("v1alpha2");
/// The beginning of the keys of this project's labels and annotations.
pub const OWN_KEYS: &str = key!("");
/// Who keeps the EndpointSlice of the primary, as Kubernetes' own controllers read it.
pub const SLICE_MANAGER: &str = concat!("agent.", group!());

/// The longest name a `ClusteredDatabase` may have: the StatefulSet's pods get a `controller-revision-hash` label of
/// the set's name, a dash and ten characters, and a label value holds 63. Two are kept in reserve for pod ordinals of
/// claim names (`data-<name>-8`).
pub const MAX_NAME: usize = 40;
/// The most instances that a `ClusteredDatabase` may have (`spec.replicas`): ordinals are below it.
pub const MAX_INSTANCES: u32 = 9;

/// Label with the database's name on every object that belongs to it.
pub const LABEL_CLUSTER: &str = key!("cluster");
/// Label with the name of the Pooler on its pods.
pub const LABEL_POOLER: &str = key!("pooler");
/// Label with the name of the database that the pods of a Pooler connect to.
pub const LABEL_POOLED: &str = key!("pooled");
/// Label with a pod's role (`primary` or `replica`). `-ro`, the budgets and people use it, no decision does.
pub const LABEL_ROLE: &str = key!("role");
/// Value of [`LABEL_ROLE`] on the primary's pod.
pub const ROLE_PRIMARY: &str = "primary";
/// Value of [`LABEL_ROLE`] on every other pod.
pub const ROLE_REPLICA: &str = "replica";
/// Annotation with the hash of the desired content that the operator last applied to an object.
pub const ANNOTATION_APPLIED: &str = key!("applied-hash");
/// Annotation on a pod template: the revision (hash of everything that needs a new pod).
pub const ANNOTATION_REVISION: &str = key!("revision");
/// Annotation on a pod template: the revision without cpu and memory, which can be changed in a running pod.
pub const ANNOTATION_BASE_REVISION: &str = key!("base-revision");
/// Annotation on a pod template: UID of the operation that asked last for a restart of all instances. Part of the revision, and
/// absent where none was ever asked for.
pub const ANNOTATION_RESTARTED_BY: &str = key!("restarted-by");
/// Annotation on a pod whose cpu and memory are being changed: the revision that it is to have then, a space, and since
/// when (RFC 3339).
pub const ANNOTATION_RESIZING: &str = key!("resizing");
/// Annotation with which the user confirms that all backups and WAL of a database that is being deleted go: its UID.
pub const ANNOTATION_DELETE_ARCHIVE: &str = key!("delete-archive");
/// Label on volume claims: UID of the ClusteredDatabase that they were made for.
pub const LABEL_CLUSTER_UID: &str = key!("uid");
/// Label that a user puts on a Secret: the name of the one database that may use it as its `passwordSecretRef`. Without this
/// consent, a user who may create a database could read any Secret of the namespace that has a key `password`.
pub const LABEL_PASSWORD_FOR: &str = key!("password-for");
/// The finalizer on a `ClusteredDatabase`.
pub const FINALIZER: &str = key!("cleanup");

/// Lease annotation: the holder's address, ports and incarnation (`protocol::HolderRecord` of crate `machine`, JSON).
pub const LEASE_HOLDER: &str = key!("holder");
/// Lease annotation: the primary's knowledge of every member (`BTreeMap<pod name, MemberReport>`, JSON).
pub const LEASE_MEMBERS: &str = key!("members");
/// Lease annotation: how far the archive of WAL is complete.
pub const LEASE_ARCHIVE: &str = key!("archive");
/// Lease annotation: WAL positions of the members; apart from [`LEASE_MEMBERS`] because it changes all the time.
pub const LEASE_POSITIONS: &str = key!("positions");
/// Lease annotation: the PostgreSQL system identifier of this database's data.
pub const LEASE_SYSTEM_ID: &str = key!("system-identifier");
/// Lease annotation: the final position that a holder left on release (JSON).
pub const LEASE_RELEASE: &str = key!("release");

/// Lease annotation: the synchronous rule in force, `{"required": k, "names": [members]}`; absent while commits wait for no standby.
pub const LEASE_RULE: &str = key!("synchronous-rule");
/// Lease annotation: the set of volumes that the content of this Lease is about, and the content about the former set (JSON).
pub const LEASE_VOLUMES: &str = key!("volumes");
/// Lease annotation: the timeline reserved for the holder.
pub const LEASE_TIMELINE: &str = key!("timeline");
/// Lease annotation: the newest timeline of an election that may have lost acknowledged commits.
pub const LEASE_LOSSY: &str = key!("lossy-timeline");
/// Lease annotation: the ends of the ancestors of the primary's timeline (JSON).
pub const LEASE_HISTORY: &str = key!("history");

/// EndpointSlice annotation of `-rw`: the epoch of the holder that wrote it; an older holder never overwrites it.
pub const ROUTE_EPOCH: &str = key!("epoch");

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

/// Environment variable of a pooler's pod: name of its Pooler.
pub const ENV_POOLER: &str = "POOLER_NAME";
/// Environment variable of a pooler's pod: number of its processes.
pub const ENV_PROCESSES: &str = "POOLER_PROCESSES";

/// Environment variable of the agent: the pod that owns the WAL volume in the pod template, if the template names one.
pub const ENV_WAL_OF: &str = "WAL_VOLUME_OF";
/// Environment variable of a container whose PostgreSQL archives its WAL: `true`. It is absent otherwise.
pub const ENV_ARCHIVES: &str = "ARCHIVES_WAL";

/// First words of the agent's termination message when the first database could not be made; PostgreSQL's own text follows.
pub const TERMINATION_BOOTSTRAP: &str = "bootstrap failed: ";

/// Name of PostgreSQL's port, on pods, Services and in the EndpointSlice.
pub const POSTGRES_PORT: &str = "postgres";
/// Container name of PostgreSQL in a member's pod.
pub const CONTAINER: &str = "postgres";
/// Port of PgBouncer for clients: PostgreSQL's own default, whatever the cluster's is.
pub const POOLER_PORT: u16 = 5432;
/// What a pooler's container mounts as `/etc/hosts`, in [`RUN_PATH`].
pub const POOLER_HOSTS: &str = "hosts";
/// Container name of PgBouncer in a pooler's pod.
pub const POOLER_CONTAINER: &str = "pgbouncer";
/// Claim template of the data volume.
pub const DATA_VOLUME: &str = "data";
/// Claim template of the WAL volume.
pub const WAL_VOLUME: &str = "wal";
/// Where the data volume is mounted.
pub const DATA_PATH: &str = "/var/lib/postgresql/data";
/// Where the WAL volume is mounted.
pub const WAL_PATH: &str = "/var/lib/postgresql/wal";
/// Folder of the agent's binary: a volume that the postgres container cannot write.
pub const AGENT_PATH: &str = "/cdb/agent";
/// Folder of the sockets and the generated files (an emptyDir).
pub const RUN_PATH: &str = "/cdb/run";
/// The Unix socket at which the agent gives its sign of life, for the start-up and liveness probes.
pub const ALIVE_SOCKET: &str = "/cdb/run/alive";
/// Where the cluster's TLS Secret is mounted.
pub const TLS_PATH: &str = "/cdb/tls";
/// Where the application user's Secret is mounted.
pub const APP_PATH: &str = "/cdb/app";
/// Where the Secrets with the credentials and the authority of the store of backups are mounted.
pub const STORE_PATH: &str = "/cdb/store";
/// The same of the store that the database is recovered from.
pub const RECOVERY_STORE_PATH: &str = "/cdb/recovery-store";
/// The file there with the private keys that open encrypted backups.
pub const IDENTITY_KEY: &str = "identity";
/// Where the volume is mounted that is the store of backups.
pub const STORE_VOLUME_PATH: &str = "/cdb/backups";
/// The same of the store that the database is recovered from.
pub const RECOVERY_STORE_VOLUME_PATH: &str = "/cdb/recovery-backups";
/// Port of the agent's mutually authenticated peer API.
pub const PEER_PORT: u16 = 8433;
/// Port of the agent's readiness and metrics (plain HTTP).
pub const PROBE_PORT: u16 = 8080;

/// The name of a claim template: [`DATA_VOLUME`] or [`WAL_VOLUME`], and the number of the set of volumes unless it is the first.
pub fn volume_in(volume: &str, set: u32) -> String {
    match set {
        0 => volume.to_owned(),
        set => format!("{volume}{set}"),
    }
}

/// What the name of a claim says: [`DATA_VOLUME`] or [`WAL_VOLUME`], the set of volumes, and the pod; `None` for a claim that is no
/// instance's.
pub fn parse_claim(claim: &str) -> Option<(&'static str, u32, &str)> {
    let (template, pod) = claim.split_once('-')?;
    let (volume, set) = parse_volume(template)?;
    Some((volume, set, pod))
}

/// The inverse of [`volume_in`].
pub fn parse_volume(template: &str) -> Option<(&'static str, u32)> {
    let (volume, set) = [DATA_VOLUME, WAL_VOLUME]
        .into_iter()
        .find_map(|volume| Some((volume, template.strip_prefix(volume)?)))?;
    let set = if set.is_empty() { 0 } else { set.parse().ok()? };
    (volume_in(volume, set) == template).then_some((volume, set))
}

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
    /// The database's own name. Its StatefulSet, ServiceAccount, Role, RoleBinding, Lease and budget have it, too.
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
    /// The Secret with what DatabaseUsers and Databases declare, and the ConfigMap with what became of it.
    pub fn access(&self) -> String {
        format!("{}-access", self.cluster)
    }
    /// Secret with the application user's credentials.
    pub fn app_secret(&self) -> String {
        format!("{}-app", self.cluster)
    }
    /// The pod with this ordinal.
    pub fn pod(&self, ordinal: u32) -> String {
        format!("{}-{ordinal}", self.cluster)
    }
    /// The data claim of the pod with this ordinal, in a set of volumes.
    pub fn data_claim(&self, set: u32, ordinal: u32) -> String {
        format!("{}-{}-{ordinal}", volume_in(DATA_VOLUME, set), self.cluster)
    }
    /// The same of its WAL claim.
    pub fn wal_claim(&self, set: u32, ordinal: u32) -> String {
        format!("{}-{}-{ordinal}", volume_in(WAL_VOLUME, set), self.cluster)
    }
    /// The ordinal in the name of one of this database's pods; `None` if no StatefulSet makes a pod of that name. A user may scale
    /// a StatefulSet by hand to more pods than there can be instances.
    pub fn ordinal(&self, pod: &str) -> Option<u32> {
        let ordinal = pod.strip_prefix(&self.cluster)?.strip_prefix('-')?.parse().ok();
        ordinal.filter(|ordinal| *ordinal <= i32::MAX.unsigned_abs() && self.pod(*ordinal) == pod)
    }
    /// The ordinal of the instance with this pod; `None` if no instance can have it.
    pub fn instance(&self, pod: &str) -> Option<u32> {
        self.ordinal(pod).filter(|ordinal| *ordinal < MAX_INSTANCES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resources_are_of_this_group_and_version() {
        use kube::Resource;
        for (group, version) in [
            (
                crate::ClusteredDatabase::group(&()),
                crate::ClusteredDatabase::version(&()),
            ),
            (
                crate::ClusteredDatabaseOperation::group(&()),
                crate::ClusteredDatabaseOperation::version(&()),
            ),
        ] {
            assert_eq!((&*group, &*version), (GROUP, VERSION));
        }
        assert_eq!(API_VERSION, format!("{GROUP}/{VERSION}"));
    }

    #[test]
    fn a_claims_name_says_what_it_is_for() {
        for (claim, says) in [
            (Names::new("a").data_claim(0, 2), Some(("data", 0, "a-2"))),
            (Names::new("a-1").wal_claim(0, 2), Some(("wal", 0, "a-1-2"))),
            (Names::new("a").data_claim(17, 2), Some(("data", 17, "a-2"))),
            ("data0-a-2".to_owned(), None),
            ("data01-a-2".to_owned(), None),
            ("data+1-a-2".to_owned(), None),
            ("logs-a-2".to_owned(), None),
            ("data".to_owned(), None),
        ] {
            assert_eq!(parse_claim(&claim), says, "{claim}");
        }
    }

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
