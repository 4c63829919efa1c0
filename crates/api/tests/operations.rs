//! The rules about operations say the same in Rust and in CEL.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[path = "support/cel.rs"]
mod support;

use api::operation::{ClusteredDatabaseOperationSpec, crd, refusal};
use serde_json::{Value, json};
use support::{cel, schema};

#[test]
fn a_text_has_the_same_bound_in_both_languages() {
    let schema = schema(&crd());
    for (length, holds) in [(63, true), (64, false)] {
        let to = format!("shop-{}", "1".repeat(length - 5));
        let spec = json!({"clusterRef": {"name": "shop"}, "switchover": {"to": to}});
        let bound = schema["properties"]["spec"]["properties"]["switchover"]["properties"]["to"]["maxLength"].as_u64();
        assert_eq!(bound.unwrap() >= to.len() as u64, holds);
        let read = serde_json::from_value::<ClusteredDatabaseOperationSpec>(spec).unwrap();
        assert_eq!(refusal(&read, None).is_none(), holds);
    }
}

#[test]
fn each_rule_refuses_what_it_is_for_in_both_languages() {
    let schema = schema(&crd());
    let to = |cluster: &str, to: &str| json!({"clusterRef": {"name": cluster}, "switchover": {"to": to}});
    let cancelled = |cancel: bool| {
        let mut spec = to("shop", "shop-1");
        spec["cancel"] = json!(cancel);
        spec
    };
    let image = |image: &str| json!({"clusterRef": {"name": "shop"}, "takeImage": {"image": image}});
    let mut both = image("a:1");
    both["switchover"] = json!({"to": "shop-1"});
    let restart = json!({"clusterRef": {"name": "shop"}, "restart": {}});
    let accept = |epoch: u64| json!({"clusterRef": {"name": "shop"}, "acceptLoss": {"epoch": epoch}});
    let discard = |instance: &str, name: &str| json!({"clusterRef": {"name": "shop"}, "discardQuarantined": {"instance": instance, "name": name}});
    let lease = json!({"clusterRef": {"name": "shop"}, "recreateLease": {}});
    let recover = |recover: Value| json!({"clusterRef": {"name": "shop"}, "recover": recover});
    let to_target = |target: Value| recover(json!({"target": target}));
    let undo = json!({"clusterRef": {"name": "shop"}, "undoRecovery": {}});
    let confirm = json!({"clusterRef": {"name": "shop"}, "confirmRecovery": {}});
    let rotate =
        |compromised: bool| json!({"clusterRef": {"name": "shop"}, "rotateAuthority": {"compromised": compromised}});
    let nothing = json!({"clusterRef": {"name": "shop"}});
    let good = to("shop", "shop-1");
    let table = [
        (good.clone(), None, ""),
        (cancelled(true), Some(good.clone()), ""),
        (cancelled(true), Some(cancelled(false)), ""),
        (good.clone(), Some(cancelled(false)), ""),
        (recover(json!({"keepHours": 1})), None, ""),
        (recover(json!({"keepHours": 0})), None, "must be 1 to 10000"),
        (nothing.clone(), None, "one thing only"),
        (to("shop", "other-1"), None, "must name an instance of the cluster"),
        (
            to("shop", "shop-2"),
            Some(good.clone()),
            "make another one, and set cancel",
        ),
        (
            to("shop-1", "shop-1-1"),
            Some(good.clone()),
            "make another one, and set cancel",
        ),
        (good, Some(cancelled(true)), "stays so"),
        (image("a:1"), None, ""),
        (image("a:1"), Some(image("a:1")), ""),
        (image("a:2"), Some(image("a:1")), "make another one, and set cancel"),
        (
            image("a:1"),
            Some(to("shop", "shop-1")),
            "make another one, and set cancel",
        ),
        (both, None, "one thing only"),
        (restart.clone(), None, ""),
        (restart.clone(), Some(restart.clone()), ""),
        (restart, Some(image("a:1")), "make another one, and set cancel"),
        (discard("shop-1", "a"), None, ""),
        (discard("shop-1", "a"), Some(discard("shop-1", "a")), ""),
        (
            discard("shop-1", "b"),
            Some(discard("shop-1", "a")),
            "make another one, and set cancel",
        ),
        (discard("other-1", "a"), None, "must name an instance of the cluster"),
        (lease.clone(), None, ""),
        (lease.clone(), Some(lease.clone()), ""),
        (lease, Some(image("a:1")), "make another one, and set cancel"),
        (recover(json!({})), None, ""),
        (recover(json!({"backup": "20261124T230501Z-F-7f3a"})), None, ""),
        (
            recover(json!({"backup": "newest"})),
            None,
            "must be the name of a full backup",
        ),
        (
            recover(json!({"backup": "20261124T230501Z-S-7f3a"})),
            None,
            "must be the name of a full backup",
        ),
        (
            to_target(json!({"time": "2026-11-24T23:05:01Z", "exclusive": true})),
            None,
            "",
        ),
        (to_target(json!({"lsn": "16/B3000028"})), None, ""),
        (to_target(json!({"name": "before the release"})), None, ""),
        (to_target(json!({})), None, "must be one of"),
        (to_target(json!({"xid": 7, "immediate": true})), None, "must be one of"),
        (
            to_target(json!({"immediate": true, "exclusive": true})),
            None,
            "exclusive needs",
        ),
        (to_target(json!({"lsn": "7"})), None, "must be a position in the WAL"),
        (
            to_target(json!({"name": "a\nb"})),
            None,
            "must be the name of a restore point",
        ),
        (
            to_target(json!({"xid": 8})),
            Some(to_target(json!({"xid": 7}))),
            "make another one, and set cancel",
        ),
        (undo.clone(), Some(undo.clone()), ""),
        (undo, Some(confirm.clone()), "make another one, and set cancel"),
        (confirm.clone(), Some(confirm), ""),
        (rotate(false), Some(rotate(true)), "make another one, and set cancel"),
        (rotate(true), Some(rotate(true)), ""),
        (accept(7), None, ""),
        (accept(7), Some(accept(7)), ""),
        (accept(8), Some(accept(7)), "make another one, and set cancel"),
        (accept(0), None, "must be the epoch of the database's Lease"),
    ];
    for (new, old, expected) in table {
        let read = |spec: &Value| serde_json::from_value::<ClusteredDatabaseOperationSpec>(spec.clone()).unwrap();
        let rust = refusal(&read(&new), old.as_ref().map(&read).as_ref());
        let cel = cel(&schema, &new, old.as_ref());
        assert_eq!(cel.first().map(String::as_str), rust, "{new} over {old:?}");
        assert_eq!(cel.len(), usize::from(!expected.is_empty()), "{cel:?}");
        assert!(rust.unwrap_or_default().contains(expected), "{rust:?}");
    }
}
