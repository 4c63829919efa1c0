//! The rules about users say the same in Rust and in CEL.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[path = "support/cel.rs"]
mod support;

use api::user::{DatabaseUserSpec, PREDEFINED_ROLES, Permission, crd, refusal};
use serde_json::{Value, json};
use support::{cel, schema};

fn user(more: &Value) -> Value {
    let mut spec = json!({"clusterRef": {"name": "shop"}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

#[test]
fn each_rule_refuses_what_it_is_for_in_both_languages() {
    let schema = schema(&crd());
    for (spec, words) in [
        (json!({}), ""),
        (
            json!({"database": "app", "permissions": ["SELECT", "INSERT", "UPDATE"]}),
            "",
        ),
        (json!({"permissions": []}), ""),
        (json!({"permissions": ["SELECT"]}), "permissions needs database"),
        (json!({"name": "app_rw"}), ""),
        (json!({"name": "postgres"}), "name must not be postgres"),
        (json!({"name": "pg_read"}), "name must not be postgres"),
        (json!({"name": "cdb_x"}), "name must not be postgres"),
        (json!({"password": {}}), ""),
        (json!({"password": {"secretRef": {"name": "s"}}}), ""),
        (json!({"password": {"external": true, "none": false}}), ""),
        (
            json!({"password": {"external": true, "none": true}}),
            "password must be one of",
        ),
        (
            json!({"password": {"secretRef": {"name": "s"}, "external": true}}),
            "password must be one of",
        ),
        (json!({"connectionLimit": 2_147_483_647_u32}), ""),
        (
            json!({"connectionLimit": 2_147_483_648_u32}),
            "connectionLimit must be at most",
        ),
        (json!({"clientCertificate": true}), ""),
        (json!({"clientCertificate": true, "login": false}), ""),
        (json!({"clientCertificate": false, "password": {"none": true}}), ""),
        (
            json!({"clientCertificate": true, "password": {"external": true}}),
            "clientCertificate goes into the Secret that the operator makes",
        ),
        (
            json!({"clientCertificate": true, "validUntil": "2027-01-01T00:00:00Z"}),
            "clientCertificate goes into the Secret that the operator makes",
        ),
        (json!({"onDelete": "Drop", "reassignTo": "app"}), ""),
        (json!({"onDelete": "Retain", "managementPolicy": "Observe"}), ""),
        (
            json!({"onDelete": "Drop", "managementPolicy": "Additive"}),
            "need managementPolicy: Full",
        ),
        (
            json!({"onDelete": "Quarantine", "managementPolicy": "Observe"}),
            "need managementPolicy: Full",
        ),
        (json!({"reassignTo": "postgres"}), "reassignTo must not be postgres"),
        (
            json!({"memberOf": [{"role": "readers"}, {"role": "pg_monitor", "set": false}]}),
            "",
        ),
        (
            json!({"memberOf": [{"role": "pg_execute_server_program"}]}),
            "memberOf must not name",
        ),
        (
            json!({"memberOf": [{"role": "pg_read_server_files"}]}),
            "memberOf must not name",
        ),
        (
            json!({"memberOf": [{"role": "readers"}, {"role": "cdb_members"}]}),
            "memberOf must not name",
        ),
        (json!({"memberOf": [{"role": "postgres"}]}), "memberOf must not name"),
        (
            json!({"memberOf": [{"role": "pg_signal_backend"}]}),
            "memberOf must not name",
        ),
        (json!({"memberOf": [{"role": "pg_maintain"}]}), "memberOf must not name"),
        (
            json!({"memberOf": [{"role": "a", "admin": true, "inherit": false, "set": false}]}),
            "memberOf: admin alone",
        ),
        (json!({"grants": [{"database": "app"}]}), ""),
        (
            json!({"grants": [{"database": "app", "schemas": []}]}),
            "schemas must name a schema",
        ),
    ] {
        let spec = user(&spec);
        let read: DatabaseUserSpec = serde_json::from_value(spec.clone()).unwrap();
        let (in_rust, in_cel) = (refusal(&read, "app-rw").unwrap_or_default(), cel(&schema, &spec, None));
        assert_eq!(in_rust.is_empty(), words.is_empty(), "{spec}: {in_rust}");
        assert!(in_rust.contains(words), "{spec}: {in_rust}");
        assert_eq!(
            Vec::from_iter(Some(in_rust).filter(|text| !text.is_empty())),
            in_cel,
            "{spec}"
        );
    }
}

#[test]
fn each_predefined_role_that_may_have_members_may_in_both_languages() {
    let schema = schema(&crd());
    for role in PREDEFINED_ROLES {
        let spec = user(&json!({"memberOf": [{ "role": role }]}));
        let read: DatabaseUserSpec = serde_json::from_value(spec.clone()).unwrap();
        assert_eq!(
            (refusal(&read, "app-rw"), cel(&schema, &spec, None)),
            (None, Vec::new()),
            "{role}"
        );
    }
}

#[test]
fn cluster_and_name_cannot_be_changed() {
    let schema = schema(&crd());
    let other_cluster = json!({"clusterRef": {"name": "other"}});
    for (old, new, words) in [
        (user(&json!({})), user(&json!({"login": false})), ""),
        (
            user(&json!({"name": "a"})),
            user(&json!({"name": "a", "login": false})),
            "",
        ),
        (
            user(&json!({"name": "a"})),
            user(&json!({"name": "b"})),
            "name cannot be changed",
        ),
        (user(&json!({})), user(&json!({"name": "b"})), "name cannot be changed"),
        (user(&json!({})), other_cluster, "clusterRef cannot be changed"),
    ] {
        let refused = cel(&schema, &new, Some(&old));
        assert_eq!(refused.len(), usize::from(!words.is_empty()), "{new}: {refused:?}");
        assert!(refused.iter().all(|message| message.contains(words)), "{refused:?}");
    }
}

/// The name of the resource, and lengths in bytes, are not seen by the API server.
#[test]
fn what_the_api_server_cannot_count_is_refused_all_the_same() {
    let read = |more: Value| serde_json::from_value::<DatabaseUserSpec>(user(&more)).unwrap();
    assert_eq!(refusal(&read(json!({})), "app"), None);
    for name in ["postgres", "pg_read", &"a".repeat(64)] {
        assert!(
            refusal(&read(json!({})), name).unwrap().contains("set spec.name"),
            "{name}"
        );
        assert_eq!(refusal(&read(json!({"name": "x"})), name), None);
    }
    let long = "ä".repeat(32);
    assert!(
        refusal(&read(json!({"name": long})), "app")
            .unwrap()
            .contains("63 bytes")
    );
    for grants in [
        json!({"database": long}),
        json!({"grants": [{"database": "a", "schemas": ["a\0"]}]}),
        json!({"memberOf": [{"role": long}]}),
        json!({"reassignTo": long}),
    ] {
        assert!(refusal(&read(grants), "app").unwrap().contains("63 bytes"));
    }
    let twice = json!({"memberOf": [{"role": "a"}, {"role": "b"}, {"role": "a"}]});
    assert_eq!(
        refusal(&read(twice), "app").as_deref(),
        Some("memberOf names \"a\" twice: remove one of them")
    );
}

#[test]
fn the_shortest_form_is_a_grant_in_public() {
    let spec: DatabaseUserSpec =
        serde_json::from_value(user(&json!({"database": "app", "permissions": ["SELECT"]}))).unwrap();
    let [grant] = &spec.all_grants()[..] else { panic!("one") };
    assert_eq!(
        (grant.database.as_str(), grant.schemas.as_slice()),
        ("app", &["public".to_owned()][..])
    );
    assert_eq!(grant.permissions, [Permission::Select].into());
    assert!(grant.include_future && spec.login && spec.has_made_password());
}
