//! The nodes that the members' pods are on.

use std::collections::BTreeSet;

use crate::cache::Key;
use crate::caches::{Caches, is_cordoned};

/// Names of the nodes with pods of this database that are cordoned; `None` if nodes or pods cannot be read. A single node
/// that cannot be read counts as not cordoned.
pub fn cordoned(caches: &Caches, key: &Key) -> Option<BTreeSet<String>> {
    let pods = caches.pods.list(key).filter(|_| caches.nodes.is_listed())?;
    let named = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref());
    let mut found = BTreeSet::new();
    for name in named {
        let node = caches.nodes.get(&Key::all(), name).flatten();
        if node.is_some_and(|node| is_cordoned(&node)) {
            found.insert(name.to_owned());
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use api::Guarded;
    use k8s_openapi::api::core::v1::Node;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;

    fn caches(nodes: Option<Vec<Value>>) -> Caches {
        let caches = Caches::default();
        caches.pods.observe(Event::Init);
        for (ordinal, node) in ["n1", "n2", "gone"].iter().enumerate() {
            let pod = json!({"metadata": {"name": format!("db-{ordinal}"), "namespace": "ns", "uid": format!("u{ordinal}"),
                "resourceVersion": "1", "labels": {"clustereddatabase.io/cluster": "db"}}, "spec": {"nodeName": node, "containers": []}});
            caches
                .pods
                .observe(Event::InitApply(serde_json::from_value(pod).unwrap()));
        }
        caches.pods.observe(Event::InitDone);
        if let Some(nodes) = nodes {
            caches.nodes.observe(Event::Init);
            for node in nodes {
                caches
                    .nodes
                    .observe(Event::InitApply(serde_json::from_value(node).unwrap()));
            }
            caches.nodes.observe(Event::InitDone);
        }
        caches
    }

    fn found(caches: &Caches) -> Option<BTreeSet<String>> {
        let (namespace, name) = ("ns".to_owned(), "db".to_owned());
        cordoned(caches, &Key::database(namespace, name))
    }

    #[test]
    fn only_nodes_of_its_own_pods_are_named() {
        let node = |name: &str, cordoned: bool| json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": {"unschedulable": cordoned}});
        let all = caches(Some(vec![node("n1", true), node("n2", false), node("n3", true)]));
        assert_eq!(found(&all), Some(BTreeSet::from(["n1".to_owned()])));
    }

    #[test]
    fn a_node_that_cannot_be_read_hides_no_other() {
        let drained =
            json!({"metadata": {"name": "n1", "uid": "n1", "resourceVersion": "1"}, "spec": {"unschedulable": true}});
        let caches = caches(Some(vec![drained]));
        let bad: Guarded<Node> =
            serde_json::from_value(json!({"metadata": {"name": "n2", "resourceVersion": "2"}, "spec": {"taints": 7}}))
                .unwrap();
        caches.nodes.take(Event::Apply(bad));
        assert_eq!(found(&caches), Some(BTreeSet::from(["n1".to_owned()])));
    }

    #[test]
    fn without_the_right_to_read_nodes_nothing_is_known() {
        assert_eq!(found(&caches(None)), None);
    }
}
