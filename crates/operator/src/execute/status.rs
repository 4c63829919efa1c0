//! Certificates to be signed, the status, and the event that goes with a change of phase.

use std::collections::BTreeMap;

use api::{ClusteredDatabase, ClusteredDatabaseStatus};
use chrono::{DateTime, Utc};
use k8s_openapi::api::events::v1::Event;
use machine::cluster::health::Reason;
use machine::cluster::{Action, Decision, FaultKind, StatusChange, with_internal_error};

use super::{Executor, Failure};
use crate::builders::Subject;
use crate::cache::Key;
use crate::certificates;
use crate::events;

/// What came of the keys that a decision asks to be signed, by pod name.
#[derive(Debug, Default)]
pub(super) struct Signed {
    /// The certificates, PEM.
    pub certificates: BTreeMap<String, String>,
    /// Why a key cannot be signed.
    pub refused: BTreeMap<String, String>,
}

impl Executor {
    /// Signs what the decision asks to be signed; nothing if a member's claim is not the one that was decided upon.
    pub(super) async fn sign(
        &self,
        key: &Key,
        subject: &Subject<'_>,
        decision: &Decision,
        now: DateTime<Utc>,
    ) -> Result<Option<Signed>, Failure> {
        let mut signed = Signed::default();
        let Action::WriteStatus(changes) = &decision.action else {
            return Ok(Some(signed));
        };
        let mut authority = None;
        for change in changes {
            let StatusChange::SignCertificate {
                pod,
                claim,
                member,
                public_key,
            } = change
            else {
                continue;
            };
            if !self.is_there(key, claim).await? {
                return Ok(None);
            }
            let authority = match &mut authority {
                Some(authority) => authority,
                none => none.insert(super::authority(&self.requests, subject).await?.0),
            };
            match certificates::member(member, public_key, authority, now) {
                Ok(certificate) => drop(signed.certificates.insert(pod.clone(), certificate)),
                Err(error @ certificates::CertificateError::PublicKey { .. }) => {
                    signed.refused.insert(pod.clone(), error.to_string());
                }
                Err(error) => {
                    return Err(Failure {
                        kind: FaultKind::Transient,
                        message: error.to_string(),
                    });
                }
            }
        }
        Ok(Some(signed))
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
        let kept = written.status.clone().unwrap_or_default();
        self.caches.databases.put(written);
        if (&kept.intent, &kept.memo) != (&next.intent, &next.memo) {
            // A definition on the server that lacks one of our fields drops it; every decision would write it again.
            return Err(Failure {
                kind: FaultKind::Invalid,
                message:
                    "the API server does not keep the whole status: the installed definition of ClusteredDatabase is \
                          older than this operator; apply the one of its manifests"
                        .to_owned(),
            });
        }
        tracing::debug!(database = %key, phase = %decision.phase, rule = decision.rule, "status written");
        if let Some(transition) = next.history.last().filter(|_| stored.phase != next.phase) {
            tracing::info!(
                database = %key, from = ?transition.from, to = %transition.to, because = transition.because, "phase"
            );
            self.publish(key, &events::transition(db, transition, decision.rule, &self.identity))
                .await;
        }
        let now = (self.clock)();
        let more = [
            events::late(db, &changed, now, &self.identity),
            events::request(db, &changed, now, &self.identity),
            events::unreadable_object(db, &changed, now, &self.identity),
            events::foreign_route(db, &changed, now, &self.identity),
        ];
        for event in more.into_iter().flatten() {
            self.publish(key, &event).await;
        }
        Ok(())
    }

    /// Says in the status, and by an event, that the operator's own code failed for this database at `place`: once, as long
    /// as the status says so.
    pub(super) async fn tell_of_internal_error(&self, key: &Key, place: &str, now: DateTime<Utc>) {
        let Some(Some(db)) = self.caches.databases.get(key, &key.name) else {
            return;
        };
        let stored = db.status.clone().unwrap_or_default();
        let generation = db.metadata.generation.unwrap_or(0);
        let mut changed = (*db).clone();
        changed.status = Some(with_internal_error(&stored, generation, place, now));
        if changed.status == db.status {
            return;
        }
        match self.requests.replace_status(&key.namespace, &key.name, &changed).await {
            Ok(written) => self.caches.databases.put(written),
            Err(error) => return tracing::warn!(database = %key, %error, "cannot say so in the status"),
        }
        let message = events::degraded_for(&changed, Reason::InternalError).unwrap_or_default();
        self.publish(key, &events::internal_error(&db, &message, now, &self.identity))
            .await;
    }

    /// Tells people. Not telling them is no reason to stop.
    async fn publish(&self, key: &Key, event: &Event) {
        if let Err(error) = self.requests.create(&key.namespace, event).await {
            tracing::warn!(database = %key, %error, "cannot write an event");
        }
    }
}
