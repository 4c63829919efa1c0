//! Rules about `spec.networkPolicy`.

use k8s_openapi::api::networking::v1::NetworkPolicyPeer;

use super::Rule;
use crate::ClusteredDatabase;
use crate::spec::NetworkPolicyMode;

/// The most entries of a list.
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

fn of_list(at: &'static str, list: fn(&ClusteredDatabase) -> Option<&[NetworkPolicyPeer]>) -> [Rule; 3] {
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
        Rule::holds(
            at,
            "self.all(peer, !has(peer.ipBlock) || peer.ipBlock.cidr.matches('^[0-9a-fA-F.:]+/[0-9]{1,3}$'))",
            format!(
                "{name}[].ipBlock.cidr must be an address, a slash and a prefix length, such as 10.0.0.0/8: correct it"
            ),
            move |resource| {
                let fits =
                    |peer: &NetworkPolicyPeer| peer.ip_block.as_ref().is_none_or(|block| looks_like_cidr(&block.cidr));
                list(resource).is_none_or(|peers| peers.iter().all(fits))
            },
        ),
    ]
}

/// Whether this has the form of a CIDR. The API server checks the range of its numbers when the policy is made.
fn looks_like_cidr(text: &str) -> bool {
    text.split_once('/').is_some_and(|(address, prefix)| {
        let is_address = |c: char| c.is_ascii_hexdigit() || c == '.' || c == ':';
        !address.is_empty()
            && address.chars().all(is_address)
            && (1..=3).contains(&prefix.len())
            && prefix.chars().all(|c| c.is_ascii_digit())
    })
}
