//! Certificates to be signed, the status, and the event that goes with a change of phase.

use std::collections::BTreeMap;

use api::status::Transition;
use api::{ClusteredDatabase, ClusteredDatabaseStatus, Phase};
use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use machine::cluster::{Action, Decision, FaultKind, StatusChange};

use super::{Executor, Failure};
use crate::builders::{MANAGER, Subject};
use crate::cache::Key;
use crate::certificates;
use crate::drift::hash;

/// An event's text may have this many bytes.
const LONGEST_NOTE: usize = 1_024;

impl Executor {
    /// Signs what the decision asks to be signed; by pod name, PEM.
    pub(super) async fn sign(
        &self,
        subject: &Subject<'_>,
        decision: &Decision,
        now: DateTime<Utc>,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let Action::WriteStatus(changes) = &decision.action else {
            return Ok(BTreeMap::new());
        };
        let mut authority = None;
        let mut certificates = BTreeMap::new();
        for change in changes {
            let StatusChange::SignCertificate {
                pod,
                member,
                public_key,
            } = change
            else {
                continue;
            };
            let authority = match &mut authority {
                Some(authority) => authority,
                none => none.insert(self.authority(subject).await?),
            };
            let certificate = certificates::member(member, public_key, authority, now).map_err(|error| Failure {
                kind: FaultKind::Transient,
                message: error.to_string(),
            })?;
            certificates.insert(pod.clone(), certificate);
        }
        Ok(certificates)
    }

    /// Writes the status over exactly the version that was decided upon.
    pub(super) async fn write_status(
        &self,
        key: &Key,
        db: &ClusteredDatabase,
        stored: &ClusteredDatabaseStatus,
        next: ClusteredDatabaseStatus,
        decision: &Decision,
    ) -> Result<(), Failure> {
        if *stored == next {
            let message = format!("rule {} asks for a status that is already stored", decision.rule);
            return Err(Failure {
                kind: FaultKind::Invalid,
                message,
            });
        }
        let mut changed = db.clone();
        changed.status = Some(next.clone());
        let written: ClusteredDatabase = self
            .requests
            .replace_status(&key.namespace, &key.name, &changed)
            .await?;
        if written.status.as_ref() != Some(&next) {
            // A definition on the server that lacks one of our fields drops it; every decision would write it again.
            tracing::error!(
                database = %key,
                "the API server does not keep the whole status: is the installed definition as new as this operator?"
            );
        }
        self.caches.databases.put(written);
        tracing::debug!(database = %key, phase = %decision.phase, rule = decision.rule, "status written");
        if let Some(transition) = next.history.last().filter(|_| stored.phase != next.phase) {
            tracing::info!(
                database = %key, from = ?transition.from, to = %transition.to, because = transition.because, "phase"
            );
            self.publish(key, db, transition, decision.rule).await;
        }
        Ok(())
    }

    /// Tells people of a change of phase. Not telling them is no reason to stop.
    async fn publish(&self, key: &Key, db: &ClusteredDatabase, transition: &Transition, rule: &str) {
        let event = event(db, transition, rule, &self.identity);
        if let Err(error) = self.requests.create(&key.namespace, &event).await {
            tracing::warn!(database = %key, %error, "cannot write an event");
        }
    }
}

fn event(db: &ClusteredDatabase, transition: &Transition, rule: &str, identity: &str) -> Event {
    let name = db.metadata.name.clone().unwrap_or_default();
    let regarding = ObjectReference {
        field_path: None,
        ..db.object_ref(&())
    };
    let when = Timestamp::from_millisecond(transition.at.timestamp_millis()).unwrap_or_default();
    let distinct = hash(&(
        &db.metadata.uid,
        transition.to.as_str(),
        transition.at.timestamp_micros(),
    ));
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{distinct}")),
            namespace: db.metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        type_: Some(
            if transition.to == Phase::Failed {
                "Warning"
            } else {
                "Normal"
            }
            .to_owned(),
        ),
        reason: Some(transition.to.as_str().to_owned()),
        action: Some(rule.to_owned()),
        note: Some(shortened(&transition.because)),
        event_time: Some(MicroTime(when)),
        regarding: Some(regarding),
        reporting_controller: Some(format!("clustereddatabase.io/{MANAGER}")),
        reporting_instance: Some(identity.to_owned()),
        ..Event::default()
    }
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
    use super::*;
    use crate::builders::fixture::smallest;

    #[test]
    fn an_event_names_the_database_and_the_reason() {
        let transition = Transition {
            from: Some(Phase::Creating),
            to: Phase::Failed,
            because: "ä".repeat(600),
            at: "2027-01-01T00:00:00Z".parse().unwrap(),
        };
        let event = event(&smallest(), &transition, "quota", "operator-0");
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.reason.as_deref(), Some("Failed"));
        assert_eq!(event.regarding.unwrap().name.as_deref(), Some("db"));
        assert_eq!(event.note.unwrap().len(), 1_024);
        assert!(event.event_time.is_some());
    }
}
