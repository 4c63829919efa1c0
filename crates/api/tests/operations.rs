//! The rules about operations say the same in Rust and in CEL.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use api::operation::{ClusteredDatabaseOperationSpec, crd, refusal};
use serde_json::{Value, json};

fn schema() -> Value {
    let schema = crd().spec.versions[0].schema.clone().unwrap();
    serde_json::to_value(schema.open_api_v3_schema.unwrap()).unwrap()
}

/// What the rules in CEL say of a spec, and of changing `old` into it.
fn cel(schema: &Value, spec: &Value, old: Option<&Value>) -> Vec<String> {
    let whole = |spec: &Value| kube_cel::apply_defaults(schema, &json!({ "spec": spec }));
    match kube_cel::Validator::new().validate(schema, &whole(spec), old.map(whole).as_ref()) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.into_vec().into_iter().map(|error| error.message).collect(),
    }
}

#[test]
fn each_rule_refuses_what_it_is_for_in_both_languages() {
    let schema = schema();
    let to = |cluster: &str, to: &str| json!({"clusterRef": {"name": cluster}, "switchover": {"to": to}});
    let cancelled = |cancel: bool| {
        let mut spec = to("shop", "shop-1");
        spec["cancel"] = json!(cancel);
        spec
    };
    let nothing = json!({"clusterRef": {"name": "shop"}});
    let good = to("shop", "shop-1");
    let table = [
        (good.clone(), None, ""),
        (cancelled(true), Some(good.clone()), ""),
        (cancelled(true), Some(cancelled(false)), ""),
        (good.clone(), Some(cancelled(false)), ""),
        (nothing.clone(), None, "add switchover"),
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
