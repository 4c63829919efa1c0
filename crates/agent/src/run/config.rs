//! The agent's configuration, from the environment that the operator gives to the container.

use std::path::PathBuf;

use anyhow::Context;
use api::names::{
    AGENT_PATH, ALIVE_SOCKET, APP_PATH, DATA_PATH, ENV_ADDRESS, ENV_ARCHIVES, ENV_CLUSTER, ENV_CLUSTER_UID,
    ENV_NAMESPACE, ENV_POD, ENV_POD_UID, ENV_WAL_OF, Names, RECOVERY_STORE_PATH, RECOVERY_STORE_VOLUME_PATH, RUN_PATH,
    STORE_PATH, STORE_VOLUME_PATH, TLS_PATH, WAL_PATH,
};
use backup::layout::ClusterFolder;

use crate::archive::Archiving;

/// The agent's configuration: its pod, its database, and its paths.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names of its database's objects.
    pub names: Names,
    /// UID of its ClusteredDatabase.
    pub cluster_uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// The number at the end of the pod's name.
    pub ordinal: u32,
    /// The pod's UID.
    pub pod_uid: String,
    /// The pod's address.
    pub address: String,
    /// The data volume.
    pub data: PathBuf,
    /// The WAL volume, if there is one.
    pub wal: Option<PathBuf>,
    /// The pod that the WAL volume belongs to, if it is another one.
    pub wal_of_another: Option<String>,
    /// Directory of the Unix socket.
    pub socket: PathBuf,
    /// The Unix socket on which the agent gives its sign of life.
    pub alive: PathBuf,
    /// The cluster's certificate.
    pub tls: PathBuf,
    /// File with the application user's password.
    pub password: PathBuf,
    /// How PostgreSQL archives its WAL; `None` if it does not. A container keeps that for its life, since PostgreSQL has to be started
    /// for it.
    pub archive: Option<Archiving>,
    /// The agent's program.
    pub program: PathBuf,
    /// Where the Secrets of the store are mounted that the database is recovered from, if there are any.
    pub recovery_access: PathBuf,
    /// Where the volume is mounted that is that store, if it is one.
    pub recovery_volume: PathBuf,
}

impl Config {
    /// Reads the configuration from the environment.
    ///
    /// # Errors
    /// Fails if a variable is missing, or the pod's name has no number at its end; the error names it.
    pub fn from_environment() -> anyhow::Result<Self> {
        let variable =
            |name: &str| std::env::var(name).with_context(|| format!("read the environment variable {name}"));
        let names = Names::new(variable(ENV_CLUSTER)?);
        let pod = variable(ENV_POD)?;
        let ordinal = names
            .ordinal(&pod)
            .with_context(|| format!("find the number in the pod's name {pod:?}"))?;
        let wal = PathBuf::from(WAL_PATH);
        Ok(Self {
            names,
            ordinal,
            wal_of_another: std::env::var(ENV_WAL_OF).ok().filter(|of| *of != pod),
            pod,
            cluster_uid: variable(ENV_CLUSTER_UID)?,
            namespace: variable(ENV_NAMESPACE)?,
            pod_uid: variable(ENV_POD_UID)?,
            address: variable(ENV_ADDRESS)?,
            data: DATA_PATH.into(),
            wal: wal.is_dir().then_some(wal),
            socket: PathBuf::from(RUN_PATH).join("socket"),
            alive: ALIVE_SOCKET.into(),
            tls: TLS_PATH.into(),
            password: PathBuf::from(APP_PATH).join("password"),
            program: PathBuf::from(AGENT_PATH).join("agent"),
            recovery_access: RECOVERY_STORE_PATH.into(),
            recovery_volume: RECOVERY_STORE_VOLUME_PATH.into(),
            archive: std::env::var_os(ENV_ARCHIVES).map(|_| Archiving {
                program: PathBuf::from(AGENT_PATH).join("agent"),
                socket: PathBuf::from(RUN_PATH).join("archive"),
                access: STORE_PATH.into(),
                volume: STORE_VOLUME_PATH.into(),
            }),
        })
    }

    /// This database's own folder in a store.
    ///
    /// # Errors
    /// Fails if a name has no place in a path.
    pub(super) fn folder(&self) -> anyhow::Result<String> {
        let folder = ClusterFolder::new(&self.namespace, self.names.cluster(), &self.cluster_uid);
        Ok(folder.context("name the archive's folder")?.to_string())
    }

    /// The name that all agents of this database share in their certificate.
    pub fn peer_name(&self) -> String {
        format!("{}.{}.svc", self.names.rw(), self.namespace)
    }
}

/// Name of the user that this process runs as, as PostgreSQL's `peer` method sees it.
///
/// # Errors
/// Fails if `/etc/passwd` cannot be read, or does not name the user.
pub(super) fn system_user() -> anyhow::Result<String> {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let passwd = std::fs::read_to_string("/etc/passwd").context("read /etc/passwd")?;
    find_user(&passwd, &uid).with_context(|| format!("find the user {uid} in /etc/passwd: the image must know it"))
}

fn find_user(passwd: &str, uid: &str) -> Option<String> {
    let mut users = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    users
        .find(|fields| fields.get(2) == Some(&uid))
        .map(|fields| fields[0].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_found_by_its_number() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\npostgres:x:999:999::/var/lib/postgresql:/bin/bash\n";
        assert_eq!(find_user(passwd, "999").as_deref(), Some("postgres"));
        assert_eq!(find_user(passwd, "26"), None);
    }
}
