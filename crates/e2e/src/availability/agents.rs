//! When the agents took each step of a run, by their own logs: which part of an outage each step was.

use serde::{Deserialize, Serialize};

use crate::availability::history::History;

/// Begin of the marks of an agent's decisions.
pub const MARK: &str = "agent ";

/// When the agents decided on each step, in milliseconds from the fault, by the clocks of their nodes. Absent: not
/// decided, or the pod with the log is gone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStages {
    /// An agent noticed the fault: a standby promised to leave the primary, or the primary stopped, started or handed
    /// over.
    pub detected: Option<f64>,
    /// The first primary's agent stopped its PostgreSQL.
    pub fenced: Option<f64>,
    /// The next primary took the lease.
    pub elected: Option<f64>,
    /// It was promoted, or started for writing.
    pub promoted: Option<f64>,
    /// It pointed the Service at itself.
    pub routed: Option<f64>,
    /// It opened to applications.
    pub opened: Option<f64>,
}

/// What an agent decided.
struct Said<'a> {
    at: u64,
    pod: &'a str,
    action: &'a str,
}

impl AgentStages {
    /// The stages of a run in which `before` served at first, and `after` in the end.
    pub(super) fn of(history: &History, injected: u64, before: &str, after: &str) -> Self {
        let said: Vec<Said<'_>> = history.marks.iter().filter_map(read).collect();
        let first = |wanted: &dyn Fn(&Said<'_>) -> bool| {
            let found = said.iter().find(|said| said.at >= injected && wanted(said))?;
            let micros = u32::try_from((found.at - injected) / 1_000).unwrap_or(u32::MAX);
            Some(f64::from(micros) / 1_000.0)
        };
        let of = |actions: &[&str]| first(&|said| said.pod == after && actions.contains(&said.action));
        Self {
            detected: first(&|said| !["Route", "Open"].contains(&said.action)),
            fenced: first(&|said| said.pod == before && said.action.starts_with("Stop")),
            elected: of(&["TakeLease"]),
            promoted: of(&["Promote", "StartPrimary"]),
            routed: of(&["Route"]),
            opened: of(&["Open"]),
        }
    }
}

/// The text of a mark.
#[must_use]
pub fn mark(pod: &str, action: &str, rule: &str) -> String {
    format!("{MARK}{pod}: {action} by {rule}")
}

fn read((at, mark): &(u64, String)) -> Option<Said<'_>> {
    let (pod, rest) = mark.strip_prefix(MARK)?.split_once(": ")?;
    let (action, _) = rest.split_once(" by ")?;
    Some(Said { at: *at, pod, action })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_its_time_and_its_agent() {
        let mut history = History::default();
        for (at, pod, rule, action) in [
            (500, "a", "shut-down", "StopFast"),
            (2_500, "b", "promise", "Promise"),
            (2_400, "c", "promise", "Promise"),
            (2_600, "b", "win-election", "TakeLease"),
            (2_550, "c", "win-election", "TakeLease"),
            (2_700, "b", "promote", "Promote"),
            (2_710, "b", "route", "Route"),
            (3_100, "b", "open", "Open"),
            (6_000, "a", "fence", "StopImmediate"),
        ] {
            history.mark(at * 1_000_000, mark(pod, action, rule));
        }
        history.mark(2_000 * 1_000_000, "lease db b/1");
        let wanted = AgentStages {
            detected: Some(1_400.0),
            fenced: Some(5_000.0),
            elected: Some(1_600.0),
            promoted: Some(1_700.0),
            routed: Some(1_710.0),
            opened: Some(2_100.0),
        };
        let fault = 1_000 * 1_000_000;
        assert_eq!(AgentStages::of(&history, fault, "a", "b"), wanted);
        let nobody = AgentStages::of(&history, fault, "a", "a");
        assert_eq!((nobody.elected, nobody.opened), (None, None), "those were another's");
    }
}
