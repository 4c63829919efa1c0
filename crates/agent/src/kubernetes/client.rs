//! Two clients: one that watches, and one for writes that must not wait.

use std::time::Duration;

use api::names::Names;
use api::{ClusteredDatabase, Guarded};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, Config};

/// The agent's access to its own three objects.
#[derive(Clone)]
pub struct Clients {
    watching: Client,
    writing: Client,
    namespace: String,
    names: Names,
}

/// How long a connection may take to be made. Much shorter than the fence time, so that a dead API server behind one
/// address does not use it up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

impl Clients {
    /// Clients of the cluster that this pod runs in.
    pub fn in_cluster(namespace: &str, names: Names) -> anyhow::Result<Self> {
        Self::from_config(Config::incluster()?, namespace, names)
    }

    /// Clients with an explicit configuration.
    pub fn from_config(config: Config, namespace: &str, names: Names) -> anyhow::Result<Self> {
        let watching = Client::try_from(config.clone())?;
        let mut direct = config;
        // Repeating is decided by the machine, which counts the time; a client that repeats by itself may take minutes.
        direct.default_retry = false;
        direct.connect_timeout = Some(CONNECT_TIMEOUT);
        let writing = Client::try_from(direct)?;
        Ok(Self {
            watching,
            writing,
            namespace: namespace.to_owned(),
            names,
        })
    }

    /// Clients that send everything to `client`.
    #[cfg(test)]
    pub(super) fn of(client: Client, names: Names) -> Self {
        Self {
            watching: client.clone(),
            writing: client,
            namespace: "default".to_owned(),
            names,
        }
    }

    /// The names of this database's objects.
    pub fn names(&self) -> &Names {
        &self.names
    }
    /// To watch the ClusteredDatabase.
    pub fn clusters(&self) -> Api<Guarded<ClusteredDatabase>> {
        Api::namespaced(self.watching.clone(), &self.namespace)
    }
    /// To watch the Lease.
    pub fn watched_leases(&self) -> Api<Guarded<Lease>> {
        Api::namespaced(self.watching.clone(), &self.namespace)
    }
    /// To watch the EndpointSlice.
    pub fn watched_routes(&self) -> Api<Guarded<EndpointSlice>> {
        Api::namespaced(self.watching.clone(), &self.namespace)
    }
    /// To write the Lease.
    pub(super) fn leases(&self) -> Api<Guarded<Lease>> {
        Api::namespaced(self.writing.clone(), &self.namespace)
    }
    /// To write the EndpointSlice.
    pub(super) fn routes(&self) -> Api<Guarded<EndpointSlice>> {
        Api::namespaced(self.writing.clone(), &self.namespace)
    }
}
