//! Two clients of the API server: one for watches, and one for writes that must not wait.

use std::time::Duration;

use api::names::Names;
use api::{ClusteredDatabase, Guarded};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, Config};

/// The agent's access to its own objects.
#[derive(Clone)]
pub struct Clients {
    watching: Client,
    writing: Client,
    namespace: String,
    names: Names,
}

/// Time limit for making a connection. It is much shorter than the fence time, so that one dead address of the API
/// server does not use that up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

impl Clients {
    /// Clients for the cluster that this pod runs in.
    ///
    /// # Errors
    /// Fails if the environment or the service account's files do not tell the API server.
    pub fn in_cluster(namespace: &str, names: Names) -> anyhow::Result<Self> {
        Self::from_config(Config::incluster()?, namespace, names)
    }

    /// Clients with an explicit configuration.
    ///
    /// # Errors
    /// Fails if no client can be made of the configuration.
    pub fn from_config(config: Config, namespace: &str, names: Names) -> anyhow::Result<Self> {
        let watching = Client::try_from(config.clone())?;
        let mut direct = config;
        // The machine decides about retries, since it keeps account of the time; a client that retries by itself may
        // take minutes.
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

    /// Clients that send all requests to `client`.
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
    /// The API for watching the ClusteredDatabase.
    pub fn clusters(&self) -> Api<Guarded<ClusteredDatabase>> {
        Api::namespaced(self.watching.clone(), &self.namespace)
    }
    /// The API for watching the Lease.
    pub fn watched_leases(&self) -> Api<Guarded<Lease>> {
        Api::namespaced(self.watching.clone(), &self.namespace)
    }
    /// The API for watching the EndpointSlice.
    pub fn watched_routes(&self) -> Api<Guarded<EndpointSlice>> {
        Api::namespaced(self.watching.clone(), &self.namespace)
    }
    /// The API for watching the Secret with what is declared.
    pub fn declarations(&self) -> Api<Guarded<Secret>> {
        Api::namespaced(self.watching.clone(), &self.namespace)
    }
    /// The API for writing the ConfigMap with what became of it.
    pub(super) fn reports(&self) -> Api<Guarded<ConfigMap>> {
        Api::namespaced(self.writing.clone(), &self.namespace)
    }
    /// The API for writing the Lease.
    pub(super) fn leases(&self) -> Api<Guarded<Lease>> {
        Api::namespaced(self.writing.clone(), &self.namespace)
    }
    /// The API for writing the EndpointSlice.
    pub(super) fn routes(&self) -> Api<Guarded<EndpointSlice>> {
        Api::namespaced(self.writing.clone(), &self.namespace)
    }
}
