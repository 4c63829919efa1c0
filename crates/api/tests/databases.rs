//! The rules about databases say the same in Rust and in CEL.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[path = "support/cel.rs"]
mod support;

use api::database::{DatabaseSpec, crd, refusal};
use serde_json::{Value, json};
use support::{cel, schema};

fn database(more: &Value) -> Value {
    let mut spec = json!({"clusterRef": {"name": "shop"}, "owner": "orders"});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

#[test]
fn each_rule_refuses_what_it_is_for_in_both_languages() {
    let schema = schema(&crd());
    let (of_name, of_owner) = ("name must not be postgres", "owner must not be public");
    let (of_schemas, of_extensions) = ("schemas must not be PostgreSQL's own", "the schema of an extension");
    for (spec, words) in [
        (json!({}), ""),
        (json!({"name": "Orders \"1\""}), ""),
        (json!({"name": "postgres"}), of_name),
        (json!({"name": "template0"}), of_name),
        (json!({"name": "template1"}), of_name),
        (json!({"name": "cdb_new_1"}), of_name),
        (json!({"owner": "postgres"}), ""),
        (json!({"owner": "public"}), of_owner),
        (json!({"owner": "none"}), of_owner),
        (json!({"owner": "pg_monitor"}), of_owner),
        (json!({"owner": "cdb_members"}), of_owner),
        (json!({"locale": "en_US.UTF-8"}), ""),
        (json!({"locale": "C'; --"}), "locale must be the name"),
        (json!({"locale": ""}), "locale must be the name"),
        (json!({"connectionLimit": 2_147_483_647_u32}), ""),
        (
            json!({"connectionLimit": 2_147_483_648_u32}),
            "connectionLimit must be at most",
        ),
        (
            json!({"schemas": [{"name": "sales"}, {"name": "public", "owner": "a"}]}),
            "",
        ),
        (json!({"schemas": [{"name": "a"}, {"name": "pg_x"}]}), of_schemas),
        (json!({"schemas": [{"name": "information_schema"}]}), of_schemas),
        (json!({"schemas": [{"name": "a", "owner": "public"}]}), of_schemas),
        (
            json!({"extensions": [{"name": "pg_trgm", "version": "1.6", "schema": "sales"}]}),
            "",
        ),
        (
            json!({"extensions": [{"name": "pg_trgm", "schema": "pg_catalog"}]}),
            of_extensions,
        ),
        (json!({"onDelete": "Drop"}), ""),
        (
            json!({"onDelete": "Drop", "managementPolicy": "Observe"}),
            "needs managementPolicy: Full",
        ),
    ] {
        let spec = database(&spec);
        let read: DatabaseSpec = serde_json::from_value(spec.clone()).unwrap();
        let (in_rust, in_cel) = (refusal(&read, "orders").unwrap_or_default(), cel(&schema, &spec, None));
        assert_eq!(in_rust.is_empty(), words.is_empty(), "{spec}: {in_rust}");
        assert!(in_rust.contains(words), "{spec}: {in_rust}");
        let in_rust = Vec::from_iter(Some(in_rust).filter(|text| !text.is_empty()));
        assert_eq!(in_rust, in_cel, "{spec}");
    }
}

#[test]
fn cluster_name_and_locale_cannot_be_changed() {
    let schema = schema(&crd());
    let changed = [
        (json!({}), json!({"owner": "other", "publicConnect": false}), ""),
        (json!({"name": "a"}), json!({"name": "a", "connectionLimit": 3}), ""),
        (json!({"name": "a"}), json!({"name": "b"}), "name cannot be changed"),
        (json!({}), json!({"name": "b"}), "name cannot be changed"),
        (json!({"locale": "C"}), json!({}), "locale cannot be changed"),
        (
            json!({"locale": "C"}),
            json!({"locale": "C.UTF-8"}),
            "locale cannot be changed",
        ),
        (
            json!({}),
            json!({"clusterRef": {"name": "other"}}),
            "clusterRef cannot be changed",
        ),
    ];
    for (old, new, words) in changed {
        let refused = cel(&schema, &database(&new), Some(&database(&old)));
        assert_eq!(refused.len(), usize::from(!words.is_empty()), "{new}: {refused:?}");
        assert!(refused.iter().all(|message| message.contains(words)), "{refused:?}");
    }
}

/// The name of the resource, lengths in bytes, and repeated names.
#[test]
fn what_the_api_server_does_not_see_is_refused_all_the_same() {
    let read = |more: Value| serde_json::from_value::<DatabaseSpec>(database(&more)).unwrap();
    assert_eq!(refusal(&read(json!({})), "orders"), None);
    for name in ["postgres", "template1", "cdb_new", &"a".repeat(64)] {
        let why = refusal(&read(json!({})), name).unwrap();
        assert!(why.contains("set spec.name"), "{why}");
        assert_eq!(refusal(&read(json!({"name": "x"})), name), None);
    }
    let long = "ä".repeat(32);
    for (more, words) in [
        (json!({"name": long}), "63 bytes"),
        (json!({"owner": long}), "63 bytes"),
        (json!({"extensions": [{"name": "a\0"}]}), "63 bytes"),
        (json!({"extensions": [{"name": "a", "version": long}]}), "63 bytes"),
        (json!({"schemas": [{"name": "a", "owner": long}]}), "63 bytes"),
        (json!({"schemas": [{"name": "a"}, {"name": "a"}]}), "named twice"),
        (
            json!({"extensions": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}),
            "named twice",
        ),
    ] {
        let why = refusal(&read(more.clone()), "orders").unwrap_or_default();
        assert!(why.contains(words), "{more}: {why}");
    }
}
