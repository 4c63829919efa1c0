//! Many runs summed up, as text and as JSON.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::availability::report::{Report, Stages};

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
    /// Node of the first primary.
    pub primary_node: String,
    /// Node of the writer.
    pub writer_node: String,
    /// From the fault until all was as before, in milliseconds; absent when the bound passed.
    pub ready: Option<f64>,
    /// What the writers saw.
    pub report: Report,
}

impl Run {
    /// The row of the table that it belongs to.
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
    /// What was measured: the Service, and what the user called it.
    pub subject: String,
    /// All runs.
    pub runs: Vec<Run>,
}

const HEAD: [&str; 11] = [
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

    /// No run showed what must never happen.
    #[must_use]
    pub fn is_safe(&self) -> bool {
        self.runs.iter().all(|run| run.report.is_safe())
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
        stages(runs),
    ]
}

/// When each stage was reached, in the run in the middle: which one costs the time.
fn stages(runs: &[&Run]) -> String {
    let of: [fn(&Stages) -> Option<f64>; 5] = [
        |stages| stages.stopped,
        |stages| stages.elected,
        |stages| stages.promoted,
        |stages| stages.routed,
        |stages| stages.reconnected,
    ];
    let middle = of.map(|stage| {
        let reached = runs.iter().filter_map(|run| stage(&run.report.stages));
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

/// The upper one: of two runs the worse.
fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

fn seconds(millis: f64) -> String {
    format!("{:.2}", millis / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::availability::report::{Finding, Overlap};

    fn run(scenario: &str, outage: f64, lost: u64) -> Run {
        let finding = |count| Finding { count, first: vec![] };
        Run {
            scenario: scenario.to_owned(),
            run: 1,
            operator_killed: false,
            primary_node: "n1".to_owned(),
            writer_node: "n2".to_owned(),
            ready: Some(5_000.0),
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
            results.runs.push(one);
        }
        let table = results.table();
        let cells: Vec<&str> = table.lines().nth(2).unwrap().split('|').map(str::trim).collect();
        assert_eq!(cells[1..4], ["cut", "10", "0.60 / 1.00"]);
        assert_eq!(cells[11], "0.01, 9.00, -, -, -");
    }

    #[test]
    fn what_did_not_end_is_said() {
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
