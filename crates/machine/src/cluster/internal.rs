//! What is done about a database for which the operator's own code failed (panicked). No rule is asked: one of them may be
//! what failed.

use api::ClusteredDatabaseStatus;
use chrono::{DateTime, TimeDelta, Utc};

use super::health::{ConditionKind, Reason, told};
use crate::backoff;

/// An event brings the next try forward to this part of the pause: it may have taken the cause away.
const EVENT_PART: i32 = 10;
/// No two tries follow each other faster.
const SHORTEST: TimeDelta = TimeDelta::seconds(1);

/// Failures of the operator's own code in a row, for one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InternalErrors {
    /// How many.
    attempts: u32,
    /// When the last one was.
    last: DateTime<Utc>,
    /// UID and generation of the resource that it was about.
    spec: (String, i64),
}

impl InternalErrors {
    /// Another failure, after those `before`.
    pub fn another(before: Option<&Self>, spec: (String, i64), now: DateTime<Utc>) -> Self {
        Self {
            attempts: before.map_or(1, |before| before.attempts.saturating_add(1)),
            last: now,
            spec,
        }
    }

    /// How long the database rests if nothing happens: 1 s, doubling to 10 min.
    pub fn pause(&self) -> TimeDelta {
        TimeDelta::from_std(backoff::delay_after_internal_error(self.attempts)).unwrap_or(SHORTEST)
    }

    /// When it is tried again, if not now. Whoever asks before the pause is over has been told of a change: a changed spec is
    /// tried at once, anything else after a tenth of the pause, and neither twice in a second.
    pub fn rests_until(&self, spec: &(String, i64), now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let least = if *spec == self.spec {
            (self.pause() / EVENT_PART).max(SHORTEST)
        } else {
            SHORTEST
        };
        let again = self.last.checked_add_signed(least)?;
        // A clock that was put back must not make the pause longer.
        (self.last <= now && now < again).then_some(again)
    }
}

/// `stored`, saying that the operator's own code failed at `place`. The next decision that comes about overwrites that.
pub fn with_internal_error(
    stored: &ClusteredDatabaseStatus,
    generation: i64,
    place: &str,
    now: DateTime<Utc>,
) -> ClusteredDatabaseStatus {
    let kind = ConditionKind::Degraded.as_str();
    let message = format!(
        "a bug in the operator stops its work for this database (panic at {place}); running instances are not touched, and it \
         tries again with pauses of up to 10 min: report the bug with the operator's log"
    );
    let condition = told(stored, (kind, "True"), Reason::InternalError, message, generation, now);
    let mut next = stored.clone();
    match next.conditions.iter_mut().find(|found| found.type_ == kind) {
        Some(found) => *found = condition,
        None => next.conditions.push(condition),
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap()
    }

    fn spec(generation: i64) -> (String, i64) {
        ("u".to_owned(), generation)
    }

    fn failed(attempts: u32) -> InternalErrors {
        let first = InternalErrors::another(None, spec(1), at(0));
        (1..attempts).fold(first, |before, _| {
            InternalErrors::another(Some(&before), spec(1), at(0))
        })
    }

    #[test]
    fn pauses_double_up_to_ten_minutes() {
        let pauses: Vec<i64> = [1, 2, 3, 9, 10, 11, 40]
            .map(|attempts| failed(attempts).pause().num_seconds())
            .into();
        assert_eq!(pauses, [1, 2, 4, 256, 512, 600, 600]);
    }

    #[test]
    fn an_event_or_another_spec_brings_the_next_try_forward_and_never_below_a_second() {
        let rests = |attempts: u32, generation: i64, second: i64| {
            let until = failed(attempts).rests_until(&spec(generation), at(second))?;
            Some((until - at(0)).num_seconds())
        };
        assert_eq!([rests(1, 1, 0), rests(1, 1, 1)], [Some(1), None]);
        assert_eq!([rests(11, 1, 59), rests(11, 1, 60)], [Some(60), None], "an event");
        assert_eq!([rests(11, 2, 0), rests(11, 2, 1)], [Some(1), None], "another spec");
        assert_eq!(rests(11, 1, -5), None, "a clock that was put back");
    }

    #[test]
    fn the_status_tells_it_and_keeps_everything_else() {
        use super::super::model::Scene;
        let mut scene = Scene::ready(3);
        scene.store();
        let told = with_internal_error(&scene.stored, 7, "a.rs:1", at(0));
        let degraded = |status: &ClusteredDatabaseStatus| {
            let found = status
                .conditions
                .iter()
                .find(|found| found.type_ == "Degraded")
                .unwrap();
            (
                found.status.clone(),
                found.reason.clone(),
                found.message.contains("a.rs:1"),
            )
        };
        assert_eq!(degraded(&told), ("True".to_owned(), "InternalError".to_owned(), true));
        assert_eq!(told.conditions.len(), scene.stored.conditions.len());
        assert_eq!(with_internal_error(&told, 7, "a.rs:1", at(60)), told, "told once");
        let conditions = scene.stored.conditions.clone();
        assert_eq!(
            ClusteredDatabaseStatus {
                conditions,
                ..told.clone()
            },
            scene.stored
        );
        scene.stored = told;
        scene.store();
        assert_eq!(degraded(&scene.stored).0, "False", "the next decision overwrites it");
    }
}
