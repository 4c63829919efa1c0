//! What people are told by Kubernetes events: a change of phase, a wait that takes too long, the end of a requested
//! switchover, a resource that cannot be read.

use api::declared::Drift;
use api::status::{RequestOutcome, Transition};
use api::{ClusteredDatabase, Phase};
use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use machine::cluster::health::{ConditionKind, FOREIGN_ROUTE, Reason};

use crate::builders::MANAGER;
use crate::drift::hash;

/// An event's text may have this many bytes.
const LONGEST_NOTE: usize = 1_024;

/// A change of phase, decided by `rule`.
pub fn transition(db: &ClusteredDatabase, transition: &Transition, rule: &str, identity: &str) -> Event {
    let told = Told {
        warning: matches!(transition.to, Phase::Failed | Phase::FailingOver),
        reason: transition.to.as_str(),
        action: rule,
        note: &transition.because,
        at: transition.at,
    };
    told.event(&db.metadata, identity)
}

/// What is waited for takes too long: the condition `Progressing` has just turned so.
pub fn late(before: &ClusteredDatabase, after: &ClusteredDatabase, at: DateTime<Utc>, identity: &str) -> Option<Event> {
    let message = |db: &ClusteredDatabase| {
        let conditions = db
            .status
            .as_ref()
            .map(|status| status.conditions.clone())
            .unwrap_or_default();
        let late = |found: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
            found.type_ == ConditionKind::Progressing.as_str() && found.reason == Reason::DeadlineExceeded.as_str()
        };
        conditions.into_iter().find(late).map(|found| found.message)
    };
    let note = message(after).filter(|_| message(before).is_none())?;
    let told = Told {
        warning: true,
        reason: Reason::DeadlineExceeded.as_str(),
        action: "Wait",
        note: &note,
        at,
    };
    Some(told.event(&after.metadata, identity))
}

/// What an operation asked for has come to its end.
pub fn request(
    before: &ClusteredDatabase,
    after: &ClusteredDatabase,
    at: DateTime<Utc>,
    identity: &str,
) -> Option<Event> {
    let ended = |db: &ClusteredDatabase| {
        let noted = db.status.as_ref()?.memo.request.clone()?;
        Some((noted.request, noted.outcome?, noted.message.unwrap_or_default()))
    };
    let (request, outcome, note) = ended(after).filter(|ended_now| ended(before).as_ref() != Some(ended_now))?;
    let name = request.action.name();
    let told = Told {
        warning: outcome == RequestOutcome::GivenUp,
        reason: match outcome {
            RequestOutcome::Done => &format!("{name}Done"),
            RequestOutcome::GivenUp => &format!("{name}GivenUp"),
        },
        action: name,
        note: &note,
        at,
    };
    Some(told.event(&after.metadata, identity))
}

/// The operator's own code failed for this database, as its status says by now.
pub fn internal_error(db: &ClusteredDatabase, message: &str, at: DateTime<Utc>, identity: &str) -> Event {
    let told = Told {
        warning: true,
        reason: Reason::InternalError.as_str(),
        action: "Look",
        note: message,
        at,
    };
    told.event(&db.metadata, identity)
}

/// An object of this database cannot be read: the condition `Degraded` has just turned so, or names another object.
pub fn unreadable_object(
    before: &ClusteredDatabase,
    after: &ClusteredDatabase,
    at: DateTime<Utc>,
    identity: &str,
) -> Option<Event> {
    let message = |db: &ClusteredDatabase| degraded_for(db, Reason::UnreadableObject);
    let note = message(after).filter(|now| message(before).as_ref() != Some(now))?;
    let told = Told {
        warning: true,
        reason: Reason::UnreadableObject.as_str(),
        action: "Watch",
        note: &note,
        at,
    };
    Some(told.event(&after.metadata, identity))
}

/// `-rw` leads to no pod of this database: the condition that says so has just come.
pub fn foreign_route(
    before: &ClusteredDatabase,
    after: &ClusteredDatabase,
    at: DateTime<Utc>,
    identity: &str,
) -> Option<Event> {
    let message = |db: &ClusteredDatabase| {
        let mut conditions = db.status.iter().flat_map(|status| &status.conditions);
        let found = conditions.find(|found| found.type_ == FOREIGN_ROUTE)?;
        Some(found.message.clone())
    };
    let note = message(after).filter(|_| message(before).is_none())?;
    let told = Told {
        warning: true,
        reason: FOREIGN_ROUTE,
        action: "Watch",
        note: &note,
        at,
    };
    Some(told.event(&after.metadata, identity))
}

/// The message of the condition `Degraded`, if it is true for this reason.
pub fn degraded_for(db: &ClusteredDatabase, reason: Reason) -> Option<String> {
    let mut conditions = db.status.iter().flat_map(|status| &status.conditions);
    let found = conditions.find(|found| {
        found.type_ == ConditionKind::Degraded.as_str() && found.status == "True" && found.reason == reason.as_str()
    });
    found.map(|found| found.message.clone())
}

/// A resource that is stored in a form that this operator cannot read. The same for every look at the same version.
pub fn unreadable(kind: &str, metadata: &ObjectMeta, error: &str, identity: &str) -> Event {
    let told = Told {
        warning: true,
        reason: "Unreadable",
        action: "Watch",
        note: &format!("nothing is done for this resource until this operator can read it: {error}"),
        at: Utc::now(),
    };
    let mut event = told.event(metadata, identity);
    let distinct = hash(&(&metadata.uid, &metadata.resource_version, "Unreadable"));
    event.metadata.name = Some(name(metadata, &distinct));
    if let Some(regarding) = &mut event.regarding {
        regarding.kind = Some(kind.to_owned());
    }
    event
}

/// Statements were run for this resource of `kind` though its spec had not changed.
pub fn drift(kind: &str, about: &ObjectMeta, drift: &Drift, identity: &str) -> Event {
    let statements: Vec<&str> = drift.statements.iter().map(|step| step.sql.as_str()).collect();
    let more = drift.more.map_or(String::new(), |more| format!(", and {more} more"));
    let told = Told {
        warning: true,
        reason: "Drift",
        action: "Mend",
        note: &format!(
            "PostgreSQL differed from the spec, and was given again: {}{more}",
            statements.join("; ")
        ),
        at: drift.at,
    };
    let mut event = told.event(about, identity);
    if let Some(regarding) = &mut event.regarding {
        regarding.kind = Some(kind.to_owned());
    }
    event
}

/// What an event tells.
struct Told<'a> {
    warning: bool,
    reason: &'a str,
    action: &'a str,
    note: &'a str,
    at: DateTime<Utc>,
}

impl Told<'_> {
    fn event(&self, about: &ObjectMeta, identity: &str) -> Event {
        let when = Timestamp::from_millisecond(self.at.timestamp_millis()).unwrap_or_default();
        let distinct = hash(&(&about.uid, self.reason, self.at.timestamp_micros()));
        Event {
            metadata: ObjectMeta {
                name: Some(name(about, &distinct)),
                namespace: about.namespace.clone(),
                ..ObjectMeta::default()
            },
            type_: Some(if self.warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(self.reason.to_owned()),
            action: Some(self.action.to_owned()),
            note: Some(shortened(self.note)),
            event_time: Some(MicroTime(when)),
            regarding: Some(ObjectReference {
                api_version: Some(ClusteredDatabase::api_version(&()).into_owned()),
                kind: Some(ClusteredDatabase::kind(&()).into_owned()),
                name: about.name.clone(),
                namespace: about.namespace.clone(),
                uid: about.uid.clone(),
                resource_version: about.resource_version.clone(),
                field_path: None,
            }),
            reporting_controller: Some(format!("{}{MANAGER}", api::names::OWN_KEYS)),
            reporting_instance: Some(identity.to_owned()),
            ..Event::default()
        }
    }
}

fn name(about: &ObjectMeta, distinct: &str) -> String {
    format!("{}.{distinct}", about.name.as_deref().unwrap_or_default())
}

fn shortened(note: &str) -> String {
    let end = (0..=LONGEST_NOTE.min(note.len()))
        .rev()
        .find(|&end| note.is_char_boundary(end))
        .unwrap_or(0);
    note[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builders::fixture::smallest;

    #[test]
    fn an_event_names_the_database_and_the_reason() {
        let change = Transition {
            from: Some(Phase::Creating),
            to: Phase::Failed,
            because: "ä".repeat(600),
            at: "2027-01-01T00:00:00Z".parse().unwrap(),
        };
        let event = transition(&smallest(), &change, "quota", "operator-0");
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.reason.as_deref(), Some("Failed"));
        let regarding = event.regarding.unwrap();
        assert_eq!(
            (regarding.name.as_deref(), regarding.kind.as_deref()),
            (Some("db"), Some("ClusteredDatabase"))
        );
        assert_eq!(event.note.unwrap().len(), 1_024);
        assert!(event.event_time.is_some());
    }

    #[test]
    fn a_wait_that_takes_too_long_is_told_once() {
        let with = |reason: &str| {
            let mut db = smallest();
            let conditions = json!({"conditions": [{"type": "Progressing", "status": "False", "reason": reason,
                "message": "since then", "lastTransitionTime": "2027-01-01T00:00:00Z"}]});
            db.status = Some(serde_json::from_value(conditions).unwrap());
            db
        };
        let at = "2027-01-01T00:00:00Z".parse().unwrap();
        let told = late(&with("NotAsWanted"), &with("DeadlineExceeded"), at, "x").unwrap();
        assert_eq!(told.note.as_deref(), Some("since then"));
        assert!(late(&with("DeadlineExceeded"), &with("DeadlineExceeded"), at, "x").is_none());
        assert!(late(&smallest(), &with("AsWanted"), at, "x").is_none());
    }

    #[test]
    fn the_end_of_a_request_is_told_once() {
        let with = |outcome: Option<&str>| {
            let mut db = smallest();
            let action = json!({"switchover": {"to": "db-1"}});
            let mut request = json!({"uid": "a", "action": action, "since": "2027-01-01T00:00:00Z"});
            if let Some(outcome) = outcome {
                request["outcome"] = json!(outcome);
                request["message"] = json!("there is no instance db-9");
            }
            db.status = Some(serde_json::from_value(json!({"memo": {"request": request}})).unwrap());
            db
        };
        let at = "2027-01-01T00:00:00Z".parse().unwrap();
        let told = request(&with(None), &with(Some("GivenUp")), at, "x").unwrap();
        assert_eq!(
            (told.type_.as_deref(), told.note.as_deref()),
            (Some("Warning"), Some("there is no instance db-9"))
        );
        let done = request(&with(None), &with(Some("Done")), at, "x").unwrap();
        assert_eq!(done.reason.as_deref(), Some("SwitchoverDone"));
        assert!(request(&with(Some("Done")), &with(Some("Done")), at, "x").is_none());
        assert!(request(&with(Some("Done")), &with(None), at, "x").is_none());
    }

    #[test]
    fn an_object_that_cannot_be_read_is_told_once() {
        let with = |reason: &str, message: &str| {
            let mut db = smallest();
            let conditions = json!({"conditions": [{"type": "Degraded", "status": "True", "reason": reason,
                "message": message, "lastTransitionTime": "2027-01-01T00:00:00Z"}]});
            db.status = Some(serde_json::from_value(conditions).unwrap());
            db
        };
        let at = "2027-01-01T00:00:00Z".parse().unwrap();
        let told = |before: &ClusteredDatabase, after: &ClusteredDatabase| unreadable_object(before, after, at, "x");
        let role = with("UnreadableObject", "Role db");
        let event = told(&with("NoPrimary", ""), &role).unwrap();
        assert_eq!(
            (event.reason.as_deref(), event.note.as_deref(), event.type_.as_deref()),
            (Some("UnreadableObject"), Some("Role db"), Some("Warning"))
        );
        assert!(told(&role, &role).is_none());
        assert!(told(&role, &with("UnreadableObject", "Lease db")).is_some());
        assert!(told(&role, &smallest()).is_none());
    }

    #[test]
    fn a_drift_is_told_of_its_resource() {
        let statement = api::declared::PlannedStatement {
            sql: "GRANT SELECT ON TABLE public.orders TO reader".to_owned(),
            ..Default::default()
        };
        let found = Drift {
            at: "2027-01-01T00:00:00Z".parse().unwrap(),
            statements: vec![statement],
            more: Some(3),
        };
        let event = drift("DatabaseUser", &smallest().metadata, &found, "x");
        assert_eq!(
            event.regarding.and_then(|about| about.kind).as_deref(),
            Some("DatabaseUser")
        );
        let note = event.note.unwrap();
        assert!(note.ends_with("TO reader, and 3 more"), "{note}");
    }

    #[test]
    fn an_unreadable_version_is_told_under_one_name() {
        let of = |error: &str| {
            unreadable("ClusteredDatabase", &smallest().metadata, error, "x")
                .metadata
                .name
        };
        assert_eq!(of("a"), of("b"));
    }
}
