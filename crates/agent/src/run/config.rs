//! Where this agent is: from the environment that the operator gives to the container.

use std::path::PathBuf;

use anyhow::Context;
use api::names::{
    ALIVE_SOCKET, APP_PATH, DATA_PATH, ENV_ADDRESS, ENV_CLUSTER, ENV_CLUSTER_UID, ENV_NAMESPACE, ENV_POD, ENV_POD_UID,
    ENV_WAL_OF, Names, RUN_PATH, TLS_PATH, WAL_PATH,
};

/// Where this agent is.
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
    /// The pod whose WAL volume it is, if that is another one.
    pub wal_of_another: Option<String>,
    /// Directory of the Unix socket.
    pub socket: PathBuf,
    /// The Unix socket at which the agent gives its sign of life.
    pub alive: PathBuf,
    /// The cluster's certificate.
    pub tls: PathBuf,
    /// File with the application user's password.
    pub password: PathBuf,
}

impl Config {
    /// From the environment.
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
        })
    }

    /// The name that all agents of this database share in their certificate.
    pub fn peer_name(&self) -> String {
        format!("{}.{}.svc", self.names.rw(), self.namespace)
    }
}

/// Name of the user that this process runs as, as PostgreSQL's `peer` method sees it.
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
