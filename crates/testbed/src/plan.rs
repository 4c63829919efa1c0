//! The address plan: every name and address of one testbed instance.
//!
//! All addresses come from 198.18.0.0/15, the range set aside for benchmarks
//! (RFC 2544): no real network that this machine talks to lies there. Instance
//! `i` owns a slice of it, so that several testbeds can run beside each other:
//!
//! | what | instance `i`, node `n` | instance 0 |
//! |---|---|---|
//! | pods | 198.18.(32i + 10 + n).0/24 | 198.18.11.0/24 … |
//! | services | 198.19.(16i).0/20 | 198.19.0.0/20 |
//! | host | 198.19.(240 + i).1 | 198.19.240.1 |
//! | nodes | 198.19.(240 + i).(10 + n) | 198.19.240.11 … |

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};

/// Largest instance number: eight /20 service ranges fit below 198.19.128.0.
pub const MAX_INSTANCE: u8 = 7;

/// Most nodes of one instance; enough for any placement test on one machine.
pub const MAX_NODES: u8 = 9;

/// The API server's port, Kubernetes' own default.
pub const API_PORT: u16 = 6443;

/// Port of CoreDNS' readiness page, its own default.
pub const DNS_READY_PORT: u16 = 8181;

/// The names and addresses of one testbed instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    instance: u8,
    nodes: u8,
}

impl Plan {
    /// The plan of `instance` with `nodes` nodes.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn new(instance: u8, nodes: u8) -> Result<Self> {
        ensure!(
            instance <= MAX_INSTANCE,
            "instance {instance} is out of range: 0 to {MAX_INSTANCE}"
        );
        ensure!(
            (1..=MAX_NODES).contains(&nodes),
            "{nodes} nodes are out of range: 1 to {MAX_NODES}"
        );
        Ok(Self { instance, nodes })
    }

    /// The instance number.
    #[must_use]
    pub fn instance(&self) -> u8 {
        self.instance
    }

    /// Numbers of all nodes, from 1.
    pub fn node_numbers(&self) -> impl Iterator<Item = u8> + use<> {
        1..=self.nodes
    }

    /// Names of all nodes: `n1`, `n2`, …
    #[must_use]
    pub fn node_names(&self) -> Vec<String> {
        self.node_numbers().map(node_name).collect()
    }

    /// The number of the node called `name`.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn node_number(&self, name: &str) -> Result<u8> {
        let found = self.node_numbers().find(|n| node_name(*n) == name);
        found.ok_or_else(|| {
            anyhow::anyhow!(
                "there is no node {name:?}; the testbed has {}",
                self.node_names().join(", ")
            )
        })
    }

    /// Address of the host on the bridge: API server, DNS and provisioner.
    #[must_use]
    pub fn host(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 19, 240 + self.instance, 1)
    }

    /// Address of node `n`.
    #[must_use]
    pub fn node(&self, n: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 19, 240 + self.instance, 10 + n)
    }

    /// Pod range of node `n`.
    #[must_use]
    pub fn pods(&self, n: u8) -> String {
        format!("198.18.{}.0/24", 32 * self.instance + 10 + n)
    }

    /// Pod range of the whole instance.
    #[must_use]
    pub fn all_pods(&self) -> String {
        format!("198.18.{}.0/19", 32 * self.instance)
    }

    /// Range of service addresses.
    #[must_use]
    pub fn services(&self) -> String {
        format!("198.19.{}.0/20", 16 * self.instance)
    }

    /// Service address of the API server: the first of the range.
    #[must_use]
    pub fn api_service(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 19, 16 * self.instance, 1)
    }

    /// Address of the API server as a URL.
    #[must_use]
    pub fn api_url(&self) -> String {
        format!("https://{}:{API_PORT}", self.host())
    }

    /// Client port of etcd on the loopback; the peer port is the next one.
    /// Away from etcd's own 2379, which a developer's etcd may hold.
    #[must_use]
    pub fn etcd_port(&self) -> u16 {
        12379 + 10 * u16::from(self.instance)
    }

    /// Name of the bridge.
    #[must_use]
    pub fn bridge(&self) -> String {
        format!("cdbtb{}", self.instance)
    }

    /// MAC address of the bridge. Without a fixed one a bridge adopts the lowest of its ports', which changes under
    /// live connections when a port is added (seen once: a node lost the API server for 45 s).
    #[must_use]
    pub fn bridge_mac(&self) -> String {
        format!("02:00:c6:13:f0:{:02x}", self.instance + 1)
    }

    /// Host side of node `n`'s virtual cable.
    #[must_use]
    pub fn cable(&self, n: u8) -> String {
        format!("cdbtb{}v{n}", self.instance)
    }

    /// Name of the control group that holds everything of this instance.
    #[must_use]
    pub fn cgroup(&self) -> String {
        cgroup_name(self.instance)
    }

    /// Name of the pod network in CNI's files.
    #[must_use]
    pub fn cni_network(&self) -> String {
        format!("cdb-testbed-{}", self.instance)
    }
}

/// Name of the control group that holds everything of `instance`.
#[must_use]
pub fn cgroup_name(instance: u8) -> String {
    format!("cdb-testbed-{instance}")
}

/// Name of node `n`.
#[must_use]
pub fn node_name(n: u8) -> String {
    format!("n{n}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_zero_has_the_documented_addresses() {
        let plan = Plan::new(0, 3).unwrap();
        assert_eq!(plan.host().to_string(), "198.19.240.1");
        assert_eq!(plan.node(1).to_string(), "198.19.240.11");
        assert_eq!(plan.pods(1), "198.18.11.0/24");
        assert_eq!(plan.services(), "198.19.0.0/20");
        assert_eq!(plan.api_service().to_string(), "198.19.0.1");
        assert_eq!(plan.node_names(), ["n1", "n2", "n3"]);
    }

    #[test]
    fn no_two_instances_share_an_address_a_port_or_a_name() {
        let mut seen = std::collections::BTreeSet::new();
        for instance in 0..=MAX_INSTANCE {
            let plan = Plan::new(instance, MAX_NODES).unwrap();
            let mut names = vec![plan.host().to_string(), plan.services(), plan.all_pods()];
            names.extend([plan.bridge(), plan.bridge_mac(), plan.cgroup()]);
            names.extend([plan.etcd_port().to_string(), (plan.etcd_port() + 1).to_string()]);
            for n in plan.node_numbers() {
                names.extend([plan.node(n).to_string(), plan.pods(n), plan.cable(n)]);
            }
            for name in names {
                assert!(seen.insert(name.clone()), "{name} is used twice");
            }
        }
    }

    #[test]
    fn pods_of_a_node_lie_in_the_range_of_the_instance() {
        for instance in 0..=MAX_INSTANCE {
            let plan = Plan::new(instance, MAX_NODES).unwrap();
            let third = |range: &str| range.split('.').nth(2).unwrap().parse::<u16>().unwrap();
            let start = third(&plan.all_pods());
            for n in plan.node_numbers() {
                assert!((start..start + 32).contains(&third(&plan.pods(n))));
            }
        }
    }

    #[test]
    fn link_names_fit_the_kernels_fifteen_characters() {
        let plan = Plan::new(MAX_INSTANCE, MAX_NODES).unwrap();
        assert!(plan.cable(MAX_NODES).len() <= 15 && plan.bridge().len() <= 15);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert!(Plan::new(MAX_INSTANCE + 1, 3).is_err());
        assert!(Plan::new(0, 0).is_err());
        assert!(Plan::new(0, MAX_NODES + 1).is_err());
        let error = Plan::new(0, 2).unwrap().node_number("n3").unwrap_err();
        assert_eq!(error.to_string(), r#"there is no node "n3"; the testbed has n1, n2"#);
    }
}
