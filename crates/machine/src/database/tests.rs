use api::declared::{Adoption, DeclaredPhase, ManagementPolicy};
use chrono::{DateTime, Utc};
use serde_json::json;

use super::*;
use crate::access::{Published, Report};
use crate::cluster::Known;
use crate::declaration::{Action, Cluster, Credentials, Decision, Observed};
use crate::reconcile::Controller;

fn now() -> DateTime<Utc> {
    "2027-01-01T00:00:00Z".parse().unwrap()
}

fn spec(more: &serde_json::Value) -> DatabaseSpec {
    let mut spec = json!({"clusterRef": {"name": "shop"}, "owner": "app"});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

fn wanted(spec: &DatabaseSpec, deleting: bool) -> Wanted<'_, DatabaseSpec> {
    Wanted {
        name: "orders",
        uid: "u1",
        generation: 3,
        deleting,
        finalizer: true,
        spec,
    }
}

/// It was handed on, and the primary has told this of it.
fn observed(spec: &DatabaseSpec, report: Report) -> Observed {
    let published = Published {
        at: now(),
        declared: Database::declared(&wanted(spec, false)),
    };
    Observed {
        cluster: Known::Known(Some(Cluster::default())),
        older: Known::Known(None),
        credentials: Credentials::NotNeeded,
        published: Known::Known(Some(published)),
        report: Known::Known(Some(Report { of: now(), ..report })),
        has_reports: true,
        foreign: None,
        parts: Default::default(),
        instances: None,
        certificate: None,
        faults: Default::default(),
    }
}

fn decided(spec: &DatabaseSpec, deleting: bool, observed: &Observed) -> Decision {
    Database::decide(&wanted(spec, deleting), observed, &DatabaseStatus::default(), now())
}

#[test]
fn all_that_the_spec_says_is_declared() {
    let spec = spec(&json!({
        "name": "Orders", "locale": "C", "connectionLimit": 7, "publicConnect": false, "adoption": "Full",
        "managementPolicy": "Observe", "extensions": [{"name": "pg_trgm", "version": "1.6", "schema": "sales"}],
        "schemas": [{"name": "sales", "owner": "seller"}],
    }));
    let Declared::Database(declared) = Database::declared(&wanted(&spec, false)) else {
        panic!("a database")
    };
    let extension = DeclaredExtension {
        name: "pg_trgm".to_owned(),
        version: Some("1.6".to_owned()),
        schema: Some("sales".to_owned()),
    };
    let schema = DeclaredSchema {
        name: "sales".to_owned(),
        owner: Some("seller".to_owned()),
    };
    let expected = DeclaredDatabase {
        uid: "u1".to_owned(),
        name: "Orders".to_owned(),
        owner: "app".to_owned(),
        locale: Some("C".to_owned()),
        connection_limit: Some(7),
        public_connect: false,
        extensions: vec![extension],
        schemas: vec![schema],
        adoption: Adoption::Full,
        policy: ManagementPolicy::Observe,
        drop: false,
        oid: None,
    };
    assert_eq!(declared, expected);
}

/// Users and databases stand in one Secret, and an entry says itself what it declares.
#[test]
fn an_entry_is_read_as_what_it_was_written() {
    let spec = spec(&json!({"schemas": [{"name": "sales"}]}));
    let declared = Database::declared(&wanted(&spec, false));
    let text = serde_json::to_string(&declared).unwrap();
    assert_eq!(serde_json::from_str::<Declared>(&text).unwrap(), declared);
}

#[test]
fn what_the_primary_tells_is_told() {
    let spec = spec(&json!({}));
    let refusal = Some("there is no role app".to_owned());
    let table = [
        (
            Report {
                oid: Some(16_400),
                ..Report::default()
            },
            DeclaredPhase::Ready,
            "PostgreSQL has the database",
        ),
        (
            Report {
                refusal: refusal.clone(),
                waits: true,
                ..Report::default()
            },
            DeclaredPhase::Pending,
            "waiting: there is no role app",
        ),
        (
            Report {
                refusal,
                ..Report::default()
            },
            DeclaredPhase::Failed,
            "there is no role app",
        ),
        (
            Report {
                error: Some("it is locked".to_owned()),
                ..Report::default()
            },
            DeclaredPhase::Pending,
            "tries again: it is locked",
        ),
    ];
    for (report, phase, words) in table {
        let observed = observed(&spec, report);
        let decision = decided(&spec, false, &observed);
        assert_eq!((&decision.action, decision.phase), (&Action::Wait, phase), "{words}");
        assert!(decision.message.contains(words), "{}", decision.message);
        let stored = DatabaseStatus::default();
        let status = Database::status(&wanted(&spec, false), &observed, &stored, &decision, &(), now());
        assert_eq!(
            (status.declared.phase, status.database.as_deref()),
            (Some(phase), Some("orders"))
        );
    }
}

#[test]
fn a_drop_is_confirmed_and_names_the_database_by_its_oid() {
    let spec = spec(&json!({"onDelete": "Drop"}));
    let mut observed = observed(
        &spec,
        Report {
            oid: Some(16_400),
            ..Report::default()
        },
    );
    let decision = decided(&spec, true, &observed);
    assert!(Database::confirms(&observed, &decision.action), "{decision:?}");
    let Action::Publish(going) = decision.action else {
        panic!("{:?}", decision.action)
    };
    assert!(going.is_going());
    let Declared::Database(database) = &*going else {
        panic!("a database")
    };
    assert_eq!(database.oid, Some(16_400));
    // While PostgreSQL refuses it, that is told, and how it ends.
    observed.published = Known::Known(Some(Published {
        at: now(),
        declared: *going,
    }));
    let sessions = Some("database \"orders\" is being accessed by other users".to_owned());
    observed.report = Known::Known(Some(Report {
        of: now(),
        oid: Some(16_400),
        error: sessions,
        ..Report::default()
    }));
    let decision = decided(&spec, true, &observed);
    assert_eq!(
        (&decision.action, decision.phase),
        (&Action::Wait, DeclaredPhase::Deleting)
    );
    assert!(decision.message.contains("accessed by other users") && decision.message.contains("Retain"));
    // Once it is gone, what was handed on is taken back.
    observed.report = Known::Known(Some(Report {
        of: now(),
        ..Report::default()
    }));
    assert_eq!(decided(&spec, true, &observed).action, Action::Withdraw);
}

#[test]
fn a_drop_waits_while_nobody_can_look_and_ends_if_nothing_was_made() {
    let spec = spec(&json!({"onDelete": "Drop"}));
    let error = Some("PostgreSQL did not answer".to_owned());
    let report = |unseen| Report {
        unseen,
        error: error.clone(),
        ..Report::default()
    };
    let unknown = observed(&spec, report(true));
    let decision = decided(&spec, true, &unknown);
    assert_eq!(
        (&decision.action, decision.phase),
        (&Action::Wait, DeclaredPhase::Deleting)
    );
    assert!(
        decision.message.contains("is not known: PostgreSQL did not answer"),
        "{}",
        decision.message
    );
    let mut stored = DatabaseStatus::default();
    stored.declared.oid = Some(16_400);
    let status = Database::status(&wanted(&spec, true), &unknown, &stored, &decision, &(), now());
    assert_eq!(status.declared.oid, Some(16_400), "as it was");
    assert_eq!(
        decided(&spec, true, &observed(&spec, report(false))).action,
        Action::Withdraw
    );
}

#[test]
fn without_drop_the_database_stays() {
    let spec = spec(&json!({}));
    let observed = observed(
        &spec,
        Report {
            oid: Some(16_400),
            ..Report::default()
        },
    );
    let decision = decided(&spec, true, &observed);
    assert_eq!(decision.action, Action::Withdraw);
    assert!(!Database::confirms(&observed, &decision.action));
}
