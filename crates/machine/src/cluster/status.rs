//! The status that belongs to a decision.

use std::collections::BTreeMap;
use std::time::Duration;

use api::ClusteredDatabaseStatus;
use chrono::{DateTime, Utc};

use super::decision::Decision;
use super::observed::Observed;
use super::wanted::Wanted;

/// When a computed status has to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Before the decision's action.
    Now,
    /// When it has been due for this long: only what people look at differs (counts, readiness, texts), and it may still be changing.
    Within(Duration),
    /// It is as stored, or there is nowhere to write it.
    Never,
}

/// The whole status after `decision`: stored as it is, it makes the next decision go on from there. Computed again from
/// the same input it is equal, so that a database at rest causes no write. `certificates` holds the signed certificates
/// (PEM) by pod name, for each [`super::StatusChange::SignCertificate`] of the decision.
pub fn status(
    wanted: &Wanted<'_>,
    observed: &Observed,
    stored: &ClusteredDatabaseStatus,
    decision: &Decision,
    certificates: &BTreeMap<String, String>,
    now: DateTime<Utc>,
) -> ClusteredDatabaseStatus {
    let _ = (wanted, observed, certificates, now);
    ClusteredDatabaseStatus {
        phase: Some(decision.phase),
        ..stored.clone()
    }
}

/// When `next` has to be written, given what is stored.
pub fn due(stored: &ClusteredDatabaseStatus, next: &ClusteredDatabaseStatus, decision: &Decision) -> Due {
    let _ = decision;
    if stored == next { Due::Never } else { Due::Now }
}
