//! The agents' logs of a run, as marks.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::LogParams;
use serde_json::Value;

use crate::availability::agents;
use crate::availability::pod::wall_clock;
use crate::availability::subject::Subject;

/// How many seconds before the fault are read as well.
const BEFORE: u64 = 5;
/// Actions that are steps, and all actions that stop PostgreSQL.
const STEPS: [&str; 7] = [
    "Promise",
    "TakeLease",
    "ReleaseLease",
    "Promote",
    "StartPrimary",
    "Route",
    "Open",
];

/// The marks of the agents since the fault `begun` (nanoseconds since the epoch), from the logs that still exist.
pub(super) async fn marks(subject: &Subject, begun: u64) -> Vec<(u64, String)> {
    let mut marks = Vec::new();
    let Ok(members) = subject.members().await else {
        return marks;
    };
    let age = wall_clock().saturating_sub(begun) / 1_000_000_000;
    let pods = subject.namespace.api::<Pod>();
    for member in members {
        for previous in [true, false] {
            let parameters = LogParams {
                container: Some(subject.container.clone()),
                since_seconds: i64::try_from(age + BEFORE).ok(),
                previous,
                ..LogParams::default()
            };
            // A previous container is rare.
            let log = pods.logs(&member.pod, &parameters).await.unwrap_or_default();
            marks.extend(log.lines().filter_map(|line| mark(&member.pod, line)));
        }
    }
    marks
}

/// The mark for a line of an agent's log, if the line reports a step.
fn mark(pod: &str, line: &str) -> Option<(u64, String)> {
    let line: Value = serde_json::from_str(line).ok()?;
    let text = |key: &str| line[key].as_str();
    let action = text("action").filter(|_| text("message") == Some("decided"))?;
    if !STEPS.contains(&action) && !action.starts_with("Stop") {
        return None;
    }
    let at: Timestamp = text("timestamp")?.parse().ok()?;
    let at = u64::try_from(at.as_nanosecond()).ok()?;
    Some((at, agents::mark(pod, action, text("rule")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(action: &str) -> String {
        format!(
            r#"{{"timestamp":"2026-11-22T09:00:02.500001Z","level":"INFO","message":"decided","rule":"win-election","action":"{action}","because":"x: y","target":"agent::run::log"}}"#
        )
    }

    #[test]
    fn steps_are_distinguished_from_other_lines() {
        let (at, what) = mark("db-1", &line("TakeLease")).expect("a step");
        assert_eq!(
            (at % 1_000_000_000, what.as_str()),
            (500_001_000, "agent db-1: TakeLease by win-election")
        );
        assert!(mark("db-1", &line("StopImmediate")).is_some());
        for other in ["", "text", "{}", r#"{"message":"decided"}"#, &line("Wait")] {
            assert_eq!(mark("db-1", other), None, "{other}");
        }
    }
}
