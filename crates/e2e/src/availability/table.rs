//! Summary of many runs, as text and as JSON.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::availability::record::Outcome;
use crate::availability::report::Report;

/// One run of one scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// The scenario.
    pub scenario: String,
    /// Counted from 1 within the scenario.
    pub run: usize,
    /// The operator's pods were killed at the same moment.
    pub operator_killed: bool,
    /// Version of the agents that were measured; absent for another operator's database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Node of the first primary.
    pub primary_node: String,
    /// Node of the writer.
    pub writer_node: String,
    /// From the fault until complete recovery, in milliseconds; absent when the bound passed.
    pub ready: Option<f64>,
    /// Set for the scenario `load` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// What the writers saw.
    pub report: Report,
}

/// How busy the machine was, and what happened to the lead, which must not change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Load {
    /// How long it lasted.
    pub seconds: f64,
    /// CPUs of the machine, each with a busy thread.
    pub cpus: usize,
    /// How much of their time they were busy, in percent: neither idle nor waiting for a disk.
    pub used: f64,
    /// How much of it the busy threads got, in percent; the database and everything else had the remainder.
    pub threads: f64,
    /// Load averages of 1, 5 and 15 minutes at the end.
    pub average: [f64; 3],
    /// The leader before.
    pub before: Leads,
    /// The leader at the end.
    pub after: Leads,
}

/// What a Lease says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Leads {
    /// Its holder.
    pub holder: String,
    /// How often it was taken.
    pub transitions: i32,
}

impl Load {
    /// True if no other process took the lead, and the holder did not take it again.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.before == self.after
    }
}

impl Run {
    /// The row of the table that this run belongs to.
    #[must_use]
    pub fn label(&self) -> String {
        if self.operator_killed {
            format!("{} + operator killed", self.scenario)
        } else {
            self.scenario.clone()
        }
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Results {
    /// What was measured: the Service, and the user's name for it.
    pub subject: String,
    /// All runs.
    pub runs: Vec<Run>,
}

const HEAD: [&str; 12] = [
    "scenario",
    "runs",
    "outage s (p50 / max)",
    "sum > 0.1 s (p50 / max)",
    "old primary streams s",
    "ready s",
    "lost",
    "ghosts",
    "unexplained",
    "overlap s",
    "stopped, elected, promoted, routed, reconnected s (p50)",
    "agents: detected, fenced, elected, promoted, routed, opened s (p50)",
];

impl Results {
    /// A Markdown table with one row per scenario, in the order in which they first ran.
    #[must_use]
    pub fn table(&self) -> String {
        let mut rows = vec![HEAD.map(str::to_owned)];
        for label in self.labels() {
            let runs: Vec<&Run> = self.runs.iter().filter(|run| run.label() == label).collect();
            rows.push(row(&label, &runs));
        }
        let widths: Vec<usize> = (0..HEAD.len())
            .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for (number, row) in rows.iter().enumerate() {
            for (cell, width) in row.iter().zip(&widths) {
                let _ = write!(text, "| {cell:width$} ");
            }
            text.push_str("|\n");
            if number == 0 {
                for width in &widths {
                    let _ = write!(text, "|{}", "-".repeat(width + 2));
                }
                text.push_str("|\n");
            }
        }
        text
    }

    /// True if no run showed anything that must never happen.
    #[must_use]
    pub fn is_safe(&self) -> bool {
        let calm = |run: &Run| run.load.as_ref().is_none_or(Load::is_calm);
        self.runs.iter().all(|run| run.report.is_safe() && calm(run))
    }

    /// A line for each run under load.
    #[must_use]
    pub fn loads(&self) -> String {
        self.runs.iter().filter_map(loaded).collect()
    }

    fn labels(&self) -> Vec<String> {
        let mut labels: Vec<String> = Vec::new();
        for label in self.runs.iter().map(Run::label) {
            if !labels.contains(&label) {
                labels.push(label);
            }
        }
        labels
    }
}

fn row(label: &str, runs: &[&Run]) -> [String; HEAD.len()] {
    let open = runs.iter().filter(|run| run.report.outage_open).count();
    let outage = spread(runs.iter().map(|run| Some(run.report.outage)));
    let sum = |of: fn(&Report) -> u64| runs.iter().map(|run| of(&run.report)).sum::<u64>().to_string();
    let overlap = runs
        .iter()
        .filter_map(|run| Some(run.report.overlap.as_ref()?.milliseconds));
    [
        label.to_owned(),
        runs.len().to_string(),
        if open == 0 {
            outage
        } else {
            format!("{outage} ({open} did not end)")
        },
        spread(runs.iter().map(|run| Some(run.report.gaps_sum))),
        spread(runs.iter().map(|run| run.report.old_primary_streaming())),
        spread(runs.iter().map(|run| run.ready)),
        sum(|report| report.lost.count),
        sum(|report| report.ghosts.count),
        sum(|report| report.unexplained.count),
        overlap.reduce(f64::max).map_or("0".to_owned(), seconds),
        middle(
            runs,
            [
                |report| report.stages.stopped,
                |report| report.stages.elected,
                |report| report.stages.promoted,
                |report| report.stages.routed,
                |report| report.stages.reconnected,
            ],
        ),
        middle(
            runs,
            [
                |report| report.agents.detected,
                |report| report.agents.fenced,
                |report| report.agents.elected,
                |report| report.agents.promoted,
                |report| report.agents.routed,
                |report| report.agents.opened,
            ],
        ),
    ]
}

fn loaded(run: &Run) -> Option<String> {
    let (load, report) = (run.load.as_ref()?, &run.report);
    let acked = report.outcomes.get(&Outcome::Acked).copied().unwrap_or(0);
    Some(format!(
        "{} {}: {:.1} minutes, {} CPUs used to {:.1} % ({:.1} % by the busy threads), load average {:.1} / {:.1} / {:.1}; \
         {} transitions of the Lease, holder {}; longest gap {} s, {acked} rows acknowledged, {} lost, overlap {}\n",
        run.scenario,
        run.run,
        load.seconds / 60.0,
        load.cpus,
        load.used,
        load.threads,
        load.average[0],
        load.average[1],
        load.average[2],
        i64::from(load.after.transitions) - i64::from(load.before.transitions),
        if load.after.holder == load.before.holder {
            "the same".to_owned()
        } else {
            format!("was {}, is {}", load.before.holder, load.after.holder)
        },
        seconds(report.outage),
        report.lost.count,
        report.overlap.as_ref().map_or("none".to_owned(), |overlap| format!(
            "{} s",
            seconds(overlap.milliseconds)
        )),
    ))
}

/// When each stage was reached, in the median run: it shows which stage takes the time.
fn middle<const N: usize>(runs: &[&Run], stages: [fn(&Report) -> Option<f64>; N]) -> String {
    let middle = stages.map(|stage| {
        let reached = runs.iter().filter_map(|run| stage(&run.report));
        median(&sorted(reached)).map_or("-".to_owned(), seconds)
    });
    middle.join(", ")
}

/// Median and maximum in seconds, and how many are missing.
fn spread(values: impl Iterator<Item = Option<f64>>) -> String {
    let all: Vec<Option<f64>> = values.collect();
    let seen = sorted(all.iter().flatten().copied());
    let missing = all.len() - seen.len();
    let text = match (median(&seen), seen.last()) {
        (Some(median), Some(max)) => format!("{} / {}", seconds(median), seconds(*max)),
        _ => return "-".to_owned(),
    };
    if missing == 0 {
        text
    } else {
        format!("{text} ({missing} without)")
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The upper median: of two runs the worse.
fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

fn seconds(millis: f64) -> String {
    format!("{:.2}", millis / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::availability::agents::AgentStages;
    use crate::availability::report::{Finding, Overlap, Stages};

    fn run(scenario: &str, outage: f64, lost: u64) -> Run {
        let finding = |count| Finding { count, first: vec![] };
        Run {
            scenario: scenario.to_owned(),
            run: 1,
            operator_killed: false,
            agent_version: None,
            primary_node: "n1".to_owned(),
            writer_node: "n2".to_owned(),
            ready: Some(5_000.0),
            load: None,
            report: Report {
                primary: "a".to_owned(),
                primary_after: "b".to_owned(),
                outcomes: [].into(),
                baseline_gap: 10.0,
                outage,
                outage_open: false,
                gaps_sum: outage,
                gaps: 1,
                stages: Stages::default(),
                agents: AgentStages::default(),
                lost: finding(lost),
                ghosts: finding(0),
                unexplained: finding(0),
                overlap: None,
                held_until: None,
                streaming: [("a".to_owned(), outage)].into(),
            },
        }
    }

    #[test]
    fn runs_of_a_scenario_are_summed_up_in_one_row() {
        let mut results = Results {
            subject: "s".to_owned(),
            runs: vec![
                run("kill", 900.0, 0),
                run("kill", 1_500.0, 2),
                run("kill", 1_000.0, 0),
                run("cut", 4_000.0, 0),
            ],
        };
        let table = results.table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        let cells: Vec<&str> = lines[2].split('|').map(str::trim).collect();
        assert_eq!(cells[1..4], ["kill", "3", "1.00 / 1.50"]);
        assert_eq!((cells[7], cells[10]), ("2", "0"));
        assert!(!results.is_safe());
        results.runs.remove(1);
        assert!(results.is_safe());
        results.runs[0].report.overlap = Some(Overlap {
            old: "a".to_owned(),
            new: "b".to_owned(),
            milliseconds: 171_000.0,
            rows: 9,
        });
        assert!(!results.is_safe());
        assert!(results.table().contains("171.00"));
    }

    #[test]
    fn of_ten_runs_the_middle_and_the_worst_are_shown_and_the_middle_of_each_stage() {
        let mut results = Results::default();
        for number in (1_u32..=10).rev() {
            let mut one = run("cut", f64::from(number) * 100.0, 0);
            one.report.stages.stopped = Some(f64::from(number));
            one.report.stages.elected = (number > 7).then(|| f64::from(number) * 1_000.0);
            one.report.agents.opened = Some(f64::from(number) * 10.0);
            results.runs.push(one);
        }
        let table = results.table();
        let cells: Vec<&str> = table.lines().nth(2).unwrap().split('|').map(str::trim).collect();
        assert_eq!(cells[1..4], ["cut", "10", "0.60 / 1.00"]);
        assert_eq!(cells[11..13], ["0.01, 9.00, -, -, -", "-, -, -, -, -, 0.06"]);
    }

    #[test]
    fn under_load_the_lead_may_not_change() {
        let leads = |holder: &str, transitions| Leads {
            holder: holder.to_owned(),
            transitions,
        };
        let mut one = run("load", 420.0, 0);
        one.report.outcomes = [(Outcome::Acked, 7_000)].into();
        one.load = Some(Load {
            seconds: 90.0,
            cpus: 2,
            used: 99.84,
            threads: 61.0,
            average: [9.0, 4.0, 2.0],
            before: leads("a", 3),
            after: leads("a", 3),
        });
        let mut results = Results {
            subject: "s".to_owned(),
            runs: vec![one, run("kill", 900.0, 0)],
        };
        assert!(results.is_safe());
        assert_eq!(
            results.loads(),
            "load 1: 1.5 minutes, 2 CPUs used to 99.8 % (61.0 % by the busy threads), load average 9.0 / 4.0 / 2.0; \
             0 transitions of the Lease, holder the same; longest gap 0.42 s, 7000 rows acknowledged, 0 lost, overlap none\n"
        );
        // The same holder again, another one, and a Lease that was made again.
        for after in [leads("a", 4), leads("b", 4), leads("b", 3)] {
            results.runs[0].load.as_mut().unwrap().after = after;
            assert!(!results.is_safe());
        }
        assert!(
            results
                .loads()
                .contains("0 transitions of the Lease, holder was a, is b")
        );
    }

    #[test]
    fn unfinished_runs_are_marked() {
        let mut open = run("cut", 60_000.0, 0);
        open.report.outage_open = true;
        open.report.streaming.clear();
        open.ready = None;
        let results = Results {
            subject: "s".to_owned(),
            runs: vec![run("cut", 4_000.0, 0), open],
        };
        let table = results.table();
        assert!(table.contains("(1 did not end)"), "{table}");
        assert!(table.contains("4.00 / 4.00 (1 without)"), "{table}");
    }
}
