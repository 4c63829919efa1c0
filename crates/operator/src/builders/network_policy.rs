//! Who may connect to the database's pods.

use api::names::LABEL_POOLED;
use api::spec::NetworkPolicySpec;
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec as PolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Subject;
use super::pod_template::PROBES_PORT_NAME;
use super::services::{PEER_PORT_NAME, POSTGRES_PORT_NAME};

/// The namespace whose pods read metrics if the spec names nobody.
const MONITORING: &str = "monitoring";

/// The policy of `spec.networkPolicy`, if its mode is `Managed`. Probes come from the node, which no policy holds up.
pub fn network_policy(subject: &Subject<'_>) -> NetworkPolicy {
    let NetworkPolicySpec {
        clients, monitoring, ..
    } = &subject.db.spec.network_policy;
    let pods = |selector| NetworkPolicyPeer {
        pod_selector: Some(labels(selector)),
        ..NetworkPolicyPeer::default()
    };
    let poolers = (LABEL_POOLED.to_owned(), subject.names.cluster().to_owned());
    let own = vec![pods(subject.selector()), pods([poolers].into())];
    let prometheus = || {
        let namespace = ("kubernetes.io/metadata.name".to_owned(), MONITORING.to_owned());
        vec![NetworkPolicyPeer {
            namespace_selector: Some(labels([namespace].into())),
            ..NetworkPolicyPeer::default()
        }]
    };
    let rules = [
        from(Some(own), &[POSTGRES_PORT_NAME, PEER_PORT_NAME]),
        from(clients.clone(), &[POSTGRES_PORT_NAME]),
        from(Some(monitoring.clone().unwrap_or_else(prometheus)), &[PROBES_PORT_NAME]),
    ];
    NetworkPolicy {
        metadata: subject.meta(subject.names.cluster().to_owned()),
        spec: Some(PolicySpec {
            pod_selector: Some(labels(subject.selector())),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(rules.into_iter().flatten().collect()),
            egress: None,
        }),
    }
}

/// Lets these connect to these ports: everybody if `None`. A rule with an empty list would let everybody in, too, so there is
/// no rule for an empty list.
fn from(peers: Option<Vec<NetworkPolicyPeer>>, ports: &[&str]) -> Option<NetworkPolicyIngressRule> {
    if peers.as_ref().is_some_and(Vec::is_empty) {
        return None;
    }
    let port = |name: &&str| NetworkPolicyPort {
        port: Some(IntOrString::String((*name).to_owned())),
        protocol: Some("TCP".to_owned()),
        end_port: None,
    };
    Some(NetworkPolicyIngressRule {
        from: peers,
        ports: Some(ports.iter().map(port).collect()),
    })
}

fn labels(labels: std::collections::BTreeMap<String, String>) -> LabelSelector {
    LabelSelector {
        match_labels: Some(labels),
        match_expressions: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::builders::fixture::database;
    use crate::config::Config;

    /// Who may connect to each port by name: `null` is everybody, a port without an entry nobody.
    fn allowed(network_policy: Value) -> Vec<(String, Value)> {
        let db = database(json!({"storage": {"data": {"size": "1Gi"}}, "networkPolicy": network_policy}));
        let config = Config::default();
        let policy = serde_json::to_value(super::network_policy(&Subject::new(&db, &config).unwrap())).unwrap();
        assert_eq!(
            policy["spec"]["podSelector"]["matchLabels"],
            json!({"clustereddatabase.io/cluster": "db"})
        );
        assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]));
        let rules = policy["spec"]["ingress"].as_array().unwrap().iter();
        rules
            .flat_map(|rule| {
                let ports = rule["ports"].as_array().unwrap().iter();
                ports.map(|port| (port["port"].as_str().unwrap().to_owned(), rule["from"].clone()))
            })
            .collect()
    }

    fn to(port: &str, from: Value) -> (String, Value) {
        (port.to_owned(), from)
    }

    /// Instances and poolers of the database.
    fn own() -> Value {
        json!([
            {"podSelector": {"matchLabels": {"clustereddatabase.io/cluster": "db"}}},
            {"podSelector": {"matchLabels": {"clustereddatabase.io/pooled": "db"}}},
        ])
    }

    #[test]
    fn without_a_list_of_clients_everybody_reaches_postgresql_and_nobody_else_the_peer_port() {
        let own = own();
        let monitoring = json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]);
        let expected = [
            to("postgres", own.clone()),
            to("peer", own.clone()),
            to("postgres", Value::Null),
            to("probes", monitoring.clone()),
        ];
        assert_eq!(allowed(json!({"mode": "Managed"})), expected);
        let shop = json!([{"namespaceSelector": {"matchLabels": {"team": "shop"}}, "podSelector": {}}]);
        let metrics = json!([{"ipBlock": {"cidr": "10.1.0.0/16"}}]);
        let named = allowed(json!({"mode": "Managed", "clients": shop, "monitoring": metrics}));
        let expected = [
            to("postgres", own.clone()),
            to("peer", own.clone()),
            to("postgres", shop),
            to("probes", metrics),
        ];
        assert_eq!(named, expected);
    }

    #[test]
    fn an_empty_list_lets_nobody_in_but_poolers() {
        let own = own();
        let nobody = allowed(json!({"mode": "Managed", "clients": [], "monitoring": []}));
        let expected = [to("postgres", own.clone()), to("peer", own)];
        assert_eq!(nobody, expected);
    }
}
