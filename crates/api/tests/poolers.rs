//! The rules about poolers say the same in Rust and in CEL.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[path = "support/cel.rs"]
mod support;

use api::pooler::{PoolerSpec, crd, refusal};
use serde_json::{Value, json};
use support::{cel, schema};

fn pooler(more: &Value) -> Value {
    let mut spec = json!({"clusterRef": {"name": "shop"}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

fn refused(spec: &Value, resource: &str) -> String {
    let spec: PoolerSpec = serde_json::from_value(spec.clone()).unwrap();
    refusal(&spec, resource).unwrap_or_default()
}

#[test]
fn each_rule_refuses_what_it_is_for_in_both_languages() {
    let schema = schema(&crd());
    for (spec, words) in [
        (json!({}), ""),
        (json!({"replicas": 0}), ""),
        (
            json!({"replicas": 51, "limits": {"maxServerConnections": 60}}),
            "replicas must be",
        ),
        (json!({"replicas": -1}), "replicas must be"),
        (json!({"processes": 0}), "processes must be"),
        (json!({"processes": 17}), "processes must be"),
        (
            json!({"limits": {"maxClientConnections": 0}}),
            "limits.maxClientConnections must be",
        ),
        (json!({"limits": {"poolSize": 0}}), "limits.poolSize must be"),
        (
            json!({"limits": {"maxServerConnections": 0}}),
            "limits.maxServerConnections must be 1",
        ),
        (
            json!({"replicas": 5, "processes": 4, "limits": {"maxServerConnections": 19}}),
            "at least replicas times processes",
        ),
        (
            json!({"replicas": 5, "processes": 4, "limits": {"maxServerConnections": 20}}),
            "",
        ),
        (
            json!({"limits": {"maxServerConnections": 1}}),
            "at least replicas times processes",
        ),
        (json!({"drainSeconds": 3_601}), "drainSeconds must be"),
        (json!({"image": "a b"}), "image must be"),
        (json!({"image": ""}), "image must be"),
        (json!({"resources": {"claims": [{"name": "gpu"}]}}), "resources.claims"),
        (
            json!({"parameters": {"query_wait_timeout": "5", "ignore_startup_parameters": "extra_float_digits, options"}}),
            "",
        ),
    ] {
        let spec = pooler(&spec);
        let (rust, server) = (refused(&spec, "pool"), cel(&schema, &spec, None).join("; "));
        assert_eq!(rust.is_empty(), words.is_empty(), "{spec}: {rust}");
        assert!(rust.contains(words), "{spec}: {rust}");
        assert!(
            server.contains(words) && server.is_empty() == words.is_empty(),
            "{spec}: {server}"
        );
    }
}

#[test]
fn settings_that_would_break_what_is_promised_cannot_be_set() {
    for (name, value, words) in [
        ("auth_query", "SELECT 1", "parameters.auth_query cannot be set"),
        ("listen_port", "1", "cannot be set"),
        ("server_lifetime", "soon", "must be a number from 0"),
        ("server_lifetime", "-1", "must be a number from 0"),
        ("server_lifetime", "99999999999", "must be a number from 0"),
        ("query_wait_timeout", "0", "must be a number from 1"),
        (
            "track_extra_parameters",
            "IntervalStyle, Search_Path",
            "without search_path",
        ),
        (
            "ignore_startup_parameters",
            "a\nauth_type = any",
            "names of PostgreSQL's parameters",
        ),
        ("ignore_startup_parameters", "", "names of PostgreSQL's parameters"),
    ] {
        let told = refused(&pooler(&json!({"parameters": {name: value}})), "pool");
        assert!(told.contains(words), "{name}: {told}");
    }
}

#[test]
fn a_pooler_has_the_name_of_a_service() {
    let long = "a".repeat(51);
    for name in ["1pool", "Pool", "my.pool", "", &long] {
        assert!(
            refused(&pooler(&json!({})), name).contains("must have a name"),
            "{name}"
        );
    }
    assert_eq!(refused(&pooler(&json!({})), &long[..50]), "");
}
