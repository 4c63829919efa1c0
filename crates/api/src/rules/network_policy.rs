//! Rules about `spec.networkPolicy`.

use k8s_openapi::api::networking::v1::NetworkPolicyPeer;

use super::Rule;
use crate::ClusteredDatabase;
use crate::spec::NetworkPolicyMode;

/// So many entries a list may have.
const MAX_PEERS: usize = 32;

pub(super) fn rules() -> Vec<Rule> {
    let mut rules = vec![Rule::holds(
        "spec.networkPolicy",
        "self.mode == 'Managed' || !(has(self.clients) || has(self.monitoring))",
        "networkPolicy.clients and networkPolicy.monitoring do nothing without a policy: set networkPolicy.mode to Managed, or remove them",
        |resource| {
            let policy = &resource.spec.network_policy;
            policy.mode == NetworkPolicyMode::Managed || (policy.clients.is_none() && policy.monitoring.is_none())
        },
    )];
    rules.extend(of_list("spec.networkPolicy.clients", |resource| {
        resource.spec.network_policy.clients.as_deref()
    }));
    rules.extend(of_list("spec.networkPolicy.monitoring", |resource| {
        resource.spec.network_policy.monitoring.as_deref()
    }));
    rules
}

fn of_list(at: &'static str, list: fn(&ClusteredDatabase) -> Option<&[NetworkPolicyPeer]>) -> [Rule; 2] {
    let name = at.trim_start_matches("spec.");
    [
        Rule::holds(
            at,
            format!("self.size() <= {MAX_PEERS}"),
            format!("{name} must hold at most {MAX_PEERS} entries: let one selector match several, or remove some"),
            move |resource| list(resource).is_none_or(|peers| peers.len() <= MAX_PEERS),
        ),
        Rule::holds(
            at,
            "self.all(peer, has(peer.ipBlock) != (has(peer.namespaceSelector) || has(peer.podSelector)))",
            format!(
                "{name} must hold entries with an ipBlock, or with a namespaceSelector, a podSelector or both: correct the entry"
            ),
            move |resource| {
                let fits = |peer: &NetworkPolicyPeer| {
                    peer.ip_block.is_some() != (peer.namespace_selector.is_some() || peer.pod_selector.is_some())
                };
                list(resource).is_none_or(|peers| peers.iter().all(fits))
            },
        ),
    ]
}
