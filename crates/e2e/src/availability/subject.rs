//! The database that is measured: any PostgreSQL behind a Service.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use testbed::Testbed;

use crate::Namespace;
use crate::wait::{Seen, until};

/// Label by which an EndpointSlice names its Service.
const SLICE_SERVICE: &str = "kubernetes.io/service-name";

/// The database that is measured.
#[derive(Clone)]
pub struct Subject {
    /// Its namespace.
    pub namespace: Namespace,
    /// The Service through which rows are written.
    pub service: String,
    /// Secret with user, password, and perhaps the database's name.
    pub secret: String,
    /// The database, if the Secret does not name it.
    pub database: Option<String>,
    /// Selects its pods.
    pub selector: String,
    /// PostgreSQL's container in its pods.
    pub container: String,
    /// How many pods it has when it is complete.
    pub replicas: usize,
    /// Name of the `ClusteredDatabase`, if it is one.
    pub own: Option<String>,
    /// The operator's pods: namespace and selector.
    pub operator: Option<(String, String)>,
    /// The testbed that it runs on, for faults that need access to the machine.
    pub testbed: Option<Arc<Testbed>>,
}

/// One pod of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The pod.
    pub pod: String,
    /// Its address.
    pub address: IpAddr,
    /// Its node.
    pub node: String,
    /// Its readiness probe succeeds.
    pub ready: bool,
}

/// The keys of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Key of the user's name.
    pub user: String,
    /// Key of the password.
    pub password: String,
    /// Key of the database's name, if there is one.
    pub database: Option<String>,
}

impl Subject {
    /// Its running pods, by name.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn members(&self) -> Result<Vec<Member>> {
        let pods = self.namespace.api::<Pod>();
        let list = pods.list(&ListParams::default().labels(&self.selector)).await;
        let mut members: Vec<Member> = list.context("list the pods")?.iter().filter_map(member).collect();
        members.sort_by(|a, b| a.pod.cmp(&b.pod));
        Ok(members)
    }

    /// The pod that the Service leads to.
    ///
    /// # Errors
    /// When it leads to none of the pods, or to several.
    pub async fn primary(&self) -> Result<Member> {
        let slices: Api<EndpointSlice> = self.namespace.api();
        let mine = ListParams::default().labels(&format!("{SLICE_SERVICE}={}", self.service));
        let slices = slices.list(&mine).await.context("list the EndpointSlices")?;
        let addresses: Vec<String> = slices.iter().flat_map(ready_addresses).collect();
        let mut leads = self.members().await?;
        leads.retain(|member| addresses.contains(&member.address.to_string()));
        ensure!(
            leads.len() == 1,
            "Service {} leads to {} pods of {:?}, not to one",
            self.service,
            leads.len(),
            self.selector
        );
        leads.pop().context("a primary")
    }

    /// Address and port of the Service.
    ///
    /// # Errors
    /// When it has none.
    pub async fn address(&self) -> Result<(IpAddr, i32)> {
        let services: Api<Service> = self.namespace.api();
        let service = services.get(&self.service).await.context("read the Service")?;
        let spec = service.spec.context("a Service has a spec")?;
        let address = spec.cluster_ip.unwrap_or_default().parse();
        let port = spec.ports.unwrap_or_default().first().map_or(5432, |port| port.port);
        Ok((address.context("a Service of type ClusterIP is needed")?, port))
    }

    /// Which keys of the Secret hold which value: operators name them differently.
    ///
    /// # Errors
    /// When one is missing.
    pub async fn keys(&self) -> Result<Keys> {
        let secrets: Api<Secret> = self.namespace.api();
        let data = secrets.get(&self.secret).await.context("read the Secret")?.data;
        let data = data.unwrap_or_default();
        let first = |names: &[&str]| {
            names
                .iter()
                .find(|name| data.contains_key(**name))
                .map(|n| (*n).to_owned())
        };
        let keys = Keys {
            user: first(&["username", "user"]).context("the Secret has no key username or user")?,
            password: first(&["password"]).context("the Secret has no key password")?,
            database: first(&["dbname", "database"]),
        };
        ensure!(
            self.database.is_some() || keys.database.is_some(),
            "the Secret names no database: give it by --database"
        );
        Ok(keys)
    }

    /// The version of its agents; `None` for another operator's database.
    ///
    /// # Errors
    /// When the API server does not say.
    pub async fn agent_version(&self) -> Result<Option<String>> {
        let Some(name) = &self.own else { return Ok(None) };
        let status = self.namespace.get(name).await?.status.unwrap_or_default();
        let mut members = status.members.into_values();
        Ok(members.find_map(|member| member.agent_version))
    }

    /// Returns what is missing for the database to be complete; `None` if nothing is. The newest spec counts.
    ///
    /// # Errors
    /// When the API server does not say.
    pub async fn missing(&self) -> Result<Option<String>> {
        if let Some(name) = &self.own {
            let database = self.namespace.get(name).await?;
            let status = database.status.clone().unwrap_or_default();
            let current = status.observed_generation == database.metadata.generation;
            if !current || status.phase != Some(api::Phase::Ready) {
                return Ok(Some(crate::namespace::summary(&database)));
            }
        }
        let ready = self.members().await?.iter().filter(|member| member.ready).count();
        Ok((ready != self.replicas).then(|| format!("{ready} of {} pods are ready", self.replicas)))
    }

    /// Waits until the database is complete.
    ///
    /// # Errors
    /// After `limit`, with what is missing.
    pub async fn wait_whole(&self, limit: Duration) -> Result<()> {
        until("the database to be whole", limit, || async {
            Ok(match self.missing().await? {
                None => Seen::Yes(()),
                Some(missing) => Seen::NotYet(missing),
            })
        })
        .await?;
        Ok(())
    }

    /// A node for the writer that no fault at the primary affects, and without a member if possible.
    ///
    /// # Errors
    /// When the primary's node is the only one.
    pub async fn writer_node(&self, primary: &Member, members: &[Member]) -> Result<String> {
        let others: Vec<String> = usable_nodes(&self.namespace.client)
            .await?
            .into_iter()
            .filter(|node| *node != primary.node)
            .collect();
        let empty = others
            .iter()
            .find(|node| members.iter().all(|member| member.node != **node));
        let node = empty
            .or(others.first())
            .context("the writer needs a node beside the primary's")?;
        Ok(node.clone())
    }
}

/// Nodes that pods can be put on.
pub(crate) async fn usable_nodes(client: &Client) -> Result<Vec<String>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut names = Vec::new();
    for node in nodes.list(&ListParams::default()).await.context("list the nodes")? {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.clone());
        let ready = conditions
            .unwrap_or_default()
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let spec = node.spec.clone().unwrap_or_default();
        let tainted = spec
            .taints
            .unwrap_or_default()
            .iter()
            .any(|taint| taint.effect != "PreferNoSchedule");
        if ready && !tainted && spec.unschedulable != Some(true) {
            names.push(node.name_any());
        }
    }
    names.sort();
    Ok(names)
}

/// Addresses to which a slice leads.
pub(super) fn ready_addresses(slice: &EndpointSlice) -> Vec<String> {
    let ready = |endpoint: &&k8s_openapi::api::discovery::v1::Endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|conditions| conditions.ready) != Some(false)
    };
    let endpoints = slice.endpoints.iter().filter(ready);
    let mut addresses: Vec<String> = endpoints.flat_map(|endpoint| endpoint.addresses.clone()).collect();
    addresses.sort();
    addresses
}

fn member(pod: &Pod) -> Option<Member> {
    let status = pod.status.clone().unwrap_or_default();
    let ready = status
        .conditions
        .unwrap_or_default()
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    if pod.metadata.deletion_timestamp.is_some() || status.phase.as_deref() != Some("Running") {
        return None;
    }
    Some(Member {
        pod: pod.name_any(),
        address: status.pod_ip?.parse().ok()?,
        node: pod.spec.as_ref()?.node_name.clone()?,
        ready,
    })
}

/// Pods by name and address, for the writer.
#[must_use]
pub fn targets(members: &[Member]) -> BTreeMap<String, IpAddr> {
    members
        .iter()
        .map(|member| (member.pod.clone(), member.address))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Option<Member> {
        member(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn only_running_pods_with_an_address_are_members() {
        let running = json!({"metadata": {"name": "db-0"}, "spec": {"containers": [], "nodeName": "n1"},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "False"}]}});
        let found = pod(running.clone()).unwrap();
        assert_eq!(
            (found.pod.as_str(), found.node.as_str(), found.ready),
            ("db-0", "n1", false)
        );
        let mut going = running.clone();
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(pod(going), None);
        let mut pending = running;
        pending["status"]["podIP"] = json!(null);
        assert_eq!(pod(pending), None);
    }

    #[test]
    fn a_slice_leads_only_to_endpoints_that_are_ready() {
        let slice = json!({"addressType": "IPv4", "metadata": {"name": "s"}, "endpoints": [
            {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
            {"addresses": ["10.0.0.3"]},
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true}}]});
        assert_eq!(
            ready_addresses(&serde_json::from_value(slice).unwrap()),
            ["10.0.0.1", "10.0.0.3"]
        );
    }
}
