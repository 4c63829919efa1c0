//! Times from outside: annotations of pods, the status of the resource. `chrono` reads years of six digits, and adding a minute
//! to the last one panics. Times that pass here have room on both sides for every duration of this project.

use chrono::{DateTime, Datelike, Utc};
use serde::{Deserialize, Deserializer};

/// `time`, if Kubernetes can write its year: 0 to 9999.
pub fn bounded(time: DateTime<Utc>) -> Option<DateTime<Utc>> {
    (0..=9_999).contains(&time.year()).then_some(time)
}

/// Reads a past time in RFC 3339. A time later than `now`, or a text that is no time, gives `None`.
pub fn parse_past(text: &str, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    bounded(text.parse().ok()?).filter(|time| *time <= now)
}

/// For serde: a time in these bounds, or an error.
///
/// # Errors
/// If the text is no time, or out of bounds.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DateTime<Utc>, D::Error> {
    let time = DateTime::deserialize(deserializer)?;
    bounded(time).ok_or_else(|| serde::de::Error::custom(format!("{time} is not between the years 0 and 9999")))
}

/// As [`deserialize`], for an optional time.
///
/// # Errors
/// If there is a text that is no time, or out of bounds.
pub fn deserialize_optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DateTime<Utc>>, D::Error> {
    let time: Option<DateTime<Utc>> = Option::deserialize(deserializer)?;
    time.map(|time| {
        bounded(time).ok_or_else(|| serde::de::Error::custom(format!("{time} is not between the years 0 and 9999")))
    })
    .transpose()
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::ClusteredDatabaseStatus;

    const NOW: &str = "2027-01-01T00:00:00Z";

    fn now() -> DateTime<Utc> {
        NOW.parse().unwrap()
    }

    #[test]
    fn only_a_time_that_has_passed_is_one() {
        let read = |text: &str| parse_past(text, now());
        assert_eq!(read(NOW), Some(now()));
        assert_eq!(read("2026-12-31T23:00:00-01:00"), Some(now()), "in any zone");
        for text in [
            "2027-01-01T00:00:00.001Z",
            "9999-12-31T23:59:59Z",
            "+262142-12-31T23:59:59Z",
            "-262143-01-01T00:00:00Z",
            "-0001-12-31T23:59:59Z",
            "yesterday",
            "",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_status_with_a_time_out_of_bounds_is_refused_as_a_whole() {
        let read = |status: serde_json::Value| serde_json::from_value::<ClusteredDatabaseStatus>(status);
        let all = |time: &str| {
            let waiting = json!({"message": "x", "endedBy": "y"});
            let mut statuses = vec![
                json!({"waiting": waiting}),
                json!({"waiting": waiting}),
                json!({"history": [{"to": "Ready", "message": "x"}]}),
                json!({"memo": {}}),
                json!({"memo": {}}),
                json!({"memo": {"switchover": {"target": "x", "attempts": 1, "since": NOW}}}),
                json!({"memo": {"switchover": {"target": "x", "attempts": 1, "since": NOW}}}),
                json!({"memo": {"request": {"uid": "x", "action": {"restart": {}}}}}),
            ];
            statuses[0]["waiting"]["startTime"] = json!(time);
            statuses[1]["waiting"]["startTime"] = json!(NOW);
            statuses[1]["waiting"]["deadlineTime"] = json!(time);
            statuses[2]["history"][0]["time"] = json!(time);
            statuses[3]["memo"]["phaseSince"] = json!(time);
            statuses[4]["memo"]["restartSince"] = json!(time);
            statuses[5]["memo"]["switchover"]["since"] = json!(time);
            statuses[6]["memo"]["switchover"]["ended"] = json!(time);
            statuses[7]["memo"]["request"]["since"] = json!(time);
            statuses
        };
        for status in all("9999-12-31T23:59:59Z") {
            assert!(read(status.clone()).is_ok(), "{status}");
        }
        for status in all("+262142-12-31T23:59:59Z") {
            let error = read(status.clone()).unwrap_err().to_string();
            assert!(error.contains("between the years"), "{status}: {error}");
        }
    }

    /// Any time, the extremes more often than others, as text.
    fn texts() -> impl Strategy<Value = String> {
        let extreme = prop_oneof![
            Just(DateTime::<Utc>::MAX_UTC),
            Just(DateTime::<Utc>::MIN_UTC),
            (DateTime::<Utc>::MIN_UTC.timestamp()..=DateTime::<Utc>::MAX_UTC.timestamp())
                .prop_map(|second| DateTime::from_timestamp(second, 0).unwrap()),
            (-70_000_000_000_i64..260_000_000_000).prop_map(|second| DateTime::from_timestamp(second, 0).unwrap()),
        ];
        prop_oneof![4 => extreme.prop_map(|time| time.to_rfc3339()), 1 => "\\PC{0,40}"]
    }

    proptest! {
        #[test]
        fn what_is_read_has_room_for_every_duration(text in texts()) {
            for time in [parse_past(&text, DateTime::<Utc>::MAX_UTC), serde_json::from_value::<ClusteredDatabaseStatus>(
                json!({"memo": {"phaseSince": text}})).ok().and_then(|status| status.memo.phase_since)].into_iter().flatten()
            {
                for days in [-36_500, 36_500] {
                    prop_assert!(time.checked_add_signed(TimeDelta::days(days)).is_some(), "{text}");
                }
            }
        }
    }
}
