//! The figures, and the table of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::tools::Tool;

/// What is measured once in each round, for each tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Figure {
    PushP50,
    PushP99,
    PushRate,
    SyncPushP50,
    Backlog,
    BacklogRate,
    Requests,
    Backup,
    Unpack,
    Restore,
    WorkerMemory,
    BackupMemory,
    Stored,
    PlainP50,
    PlainP99,
    PlainTps,
    IdleP50,
    IdleP99,
    IdleTps,
    BusyP99,
    Tps,
}

/// Whether a larger value is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Better {
    Larger,
    Smaller,
}

impl Figure {
    const ALL: [Self; 21] = [
        Self::PushP50,
        Self::PushP99,
        Self::SyncPushP50,
        Self::PushRate,
        Self::Backlog,
        Self::BacklogRate,
        Self::Requests,
        Self::Backup,
        Self::Unpack,
        Self::Restore,
        Self::Stored,
        Self::WorkerMemory,
        Self::BackupMemory,
        Self::PlainP50,
        Self::PlainP99,
        Self::PlainTps,
        Self::IdleP50,
        Self::IdleP99,
        Self::IdleTps,
        Self::BusyP99,
        Self::Tps,
    ];

    /// What is measured without an archive, and the same with one.
    const COSTS: [(Self, Self); 3] = [
        (Self::PlainP50, Self::IdleP50),
        (Self::PlainP99, Self::IdleP99),
        (Self::PlainTps, Self::IdleTps),
    ];

    fn about(self) -> (&'static str, Better) {
        use Better::{Larger, Smaller};
        match self {
            Self::PushP50 => ("push of one segment, p50, ms", Smaller),
            Self::PushP99 => ("… p99, ms", Smaller),
            Self::PushRate => ("push of one segment at p50, MB/s", Larger),
            Self::SyncPushP50 => ("… p50, pgBackRest without `archive-async`, ms", Smaller),
            Self::Backlog => ("backlog, segments/s", Larger),
            Self::BacklogRate => ("backlog, MB/s", Larger),
            Self::Requests => ("backlog, requests to the store for a GiB", Smaller),
            Self::Backup => ("full backup, MB/s", Larger),
            Self::Unpack => ("restore, not verified and not synchronized, MB/s", Larger),
            Self::Restore => ("restore, MB/s", Larger),
            Self::Stored => ("size of the stored backup, MB", Smaller),
            Self::WorkerMemory => ("archive worker at most (`VmHWM`), MiB", Smaller),
            Self::BackupMemory => ("backup process at most (`VmHWM`), MiB", Smaller),
            Self::PlainP50 => ("commit p50 without an archive, ms", Smaller),
            Self::PlainP99 => ("commit p99 without an archive, ms", Smaller),
            Self::PlainTps => ("transactions/s without an archive", Larger),
            Self::IdleP50 => ("commit p50 while WAL is archived, ms", Smaller),
            Self::IdleP99 => ("commit p99 while WAL is archived, ms", Smaller),
            Self::IdleTps => ("transactions/s while WAL is archived", Larger),
            Self::BusyP99 => ("commit p99 while a backup runs, ms", Smaller),
            Self::Tps => ("transactions/s while a backup runs", Larger),
        }
    }
}

/// The values of all rounds.
#[derive(Debug, Default)]
pub(super) struct Results(BTreeMap<(Figure, Tool), Vec<f64>>);

impl Results {
    /// Adds the value of a round.
    pub(super) fn add(&mut self, figure: Figure, tool: Tool, value: f64) {
        println!("    {}: {}: {}", tool.name(), figure.about().0, number(value));
        self.0.entry((figure, tool)).or_default().push(value);
    }

    fn of(&self, figure: Figure, tool: Tool) -> &[f64] {
        self.0.get(&(figure, tool)).map_or(&[], Vec::as_slice)
    }

    /// How many times better we are than `other`, round by round.
    fn ratios(&self, figure: Figure, other: Tool) -> Vec<f64> {
        let pairs = self.of(figure, Tool::Ours).iter().zip(self.of(figure, other));
        let ratio = |(own, other): (&f64, &f64)| match figure.about().1 {
            Better::Larger => own / other,
            Better::Smaller => other / own,
        };
        pairs.map(ratio).collect()
    }

    /// A table in Markdown: medians, each with minimum and maximum over the rounds.
    pub(super) fn table(&self) -> String {
        let mut table =
            "| figure | this operator | pgBackRest | barman-cloud | better than pgBackRest by | better than \
                         barman-cloud by |\n|---|---|---|---|---|---|\n"
                .to_owned();
        for figure in Figure::ALL {
            let values = Tool::ALL.map(|tool| cell(self.of(figure, tool), ""));
            let ratios = [Tool::PgBackRest, Tool::Barman].map(|tool| cell(&self.ratios(figure, tool), "×"));
            if values.iter().any(|cell| cell != "–") {
                let cells = [values.join(" | "), ratios.join(" | ")].join(" | ");
                // Writing to a text cannot fail.
                let _ = writeln!(table, "| {} | {cells} |", figure.about().0);
            }
        }
        table
    }

    /// What the archive costs the clients: each figure with it, as a multiple of that without one in the same round.
    pub(super) fn costs(&self) -> Vec<String> {
        let multiples = |(plain, with): (Figure, Figure), tool: Tool| {
            let pairs = self.of(with, tool).iter().zip(self.of(plain, tool));
            let multiples: Vec<f64> = pairs.map(|(with, plain)| with / plain).collect();
            let words = format!("{}, as a multiple of that without", with.about().0);
            (!multiples.is_empty()).then(|| format!("{words}: {}: {}", tool.name(), cell(&multiples, "×")))
        };
        let costs = Figure::COSTS.into_iter();
        let costs = costs.flat_map(|cost| Tool::ALL.map(|tool| multiples(cost, tool)));
        costs.flatten().collect()
    }

    /// Each goal of what was measured, and whether the median meets it.
    pub(super) fn goals(&self) -> Vec<String> {
        let ratios = [
            (Figure::PushP50, Tool::Barman, 5.0),
            (Figure::PushP50, Tool::PgBackRest, 1.0),
            (Figure::Backlog, Tool::Barman, 5.0),
            (Figure::Backlog, Tool::PgBackRest, 1.0),
            (Figure::Backup, Tool::PgBackRest, 1.0),
            (Figure::Restore, Tool::PgBackRest, 1.0),
        ];
        let ratios = ratios.into_iter().filter_map(|(figure, other, least)| {
            let seen = Spread::of(&self.ratios(figure, other))?;
            let what = format!("{}, {least} times as good as {}", figure.about().0, other.name());
            Some((what, seen.median >= least, cell(&self.ratios(figure, other), "×")))
        });
        let memory = [Figure::WorkerMemory, Figure::BackupMemory]
            .into_iter()
            .filter_map(|figure| {
                let seen = self.of(figure, Tool::Ours);
                let is_met = Spread::of(seen)?.max <= 128.0;
                Some((format!("{}, 128", figure.about().0), is_met, cell(seen, "")))
            });
        let goals = ratios.chain(memory);
        let verdict = |is_met| if is_met { "met" } else { "MISSED" };
        goals
            .map(|(what, is_met, seen)| format!("{}: {what}: {seen}", verdict(is_met)))
            .collect()
    }
}

/// Minimum, median and maximum of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// The middle one; of two the smaller.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`; `None` without any.
    pub fn of(values: &[f64]) -> Option<Self> {
        Some(Self {
            min: percentile(values, 0.0)?,
            median: percentile(values, 50.0)?,
            max: percentile(values, 100.0)?,
        })
    }
}

/// The smallest value that is not exceeded by `percent` of all; `None` without values.
pub(super) fn percentile(values: &[f64], percent: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

fn cell(values: &[f64], unit: &str) -> String {
    Spread::of(values).map_or("–".to_owned(), |Spread { min, median, max }| {
        format!("{}{unit} ({} to {})", number(median), number(min), number(max))
    })
}

/// Three digits that count.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(
            [0.0, 50.0, 99.0, 100.0].map(|percent| percentile(&hundred, percent)),
            [1.0, 50.0, 99.0, 100.0].map(Some)
        );
        assert_eq!(percentile(&[3.0, 1.0], 50.0), Some(1.0));
        assert_eq!(percentile(&[], 50.0), None);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn ratios_are_of_the_same_round_and_above_one_if_we_are_better() {
        let mut results = Results::default();
        for (own, other) in [(10.0, 20.0), (20.0, 100.0), (30.0, 30.0)] {
            for figure in [Figure::PushP50, Figure::Backup] {
                results.add(figure, Tool::Ours, own);
                results.add(figure, Tool::PgBackRest, other);
            }
        }
        assert_eq!(results.ratios(Figure::PushP50, Tool::PgBackRest), [2.0, 5.0, 1.0]);
        assert_eq!(results.ratios(Figure::Backup, Tool::PgBackRest), [0.5, 0.2, 1.0]);
        let table = results.table();
        let row = "| full backup, MB/s | 20.0 (10.0 to 30.0) | 30.0 (20.0 to 100) | – | 0.50× (0.20 to 1.00) | – |";
        assert!(table.lines().any(|line| line == row), "{table}");
        assert_eq!(table.lines().count(), 4);
        let goals = results.goals();
        let is = |start: &str| goals.iter().any(|goal| goal.starts_with(start));
        assert!(
            is("met: push of one segment, p50, ms, 1 times as good as pgBackRest: 2.00×"),
            "{goals:?}"
        );
        assert!(is("MISSED: full backup"));
        assert_eq!(goals.len(), 2, "what was not measured is no goal: {goals:?}");
    }

    #[test]
    fn the_cost_of_an_archive_is_a_multiple_of_the_same_round() {
        let mut results = Results::default();
        assert_eq!(results.costs(), Vec::<String>::new());
        for (plain, with) in [(1.0, 2.0), (4.0, 5.0), (2.0, 2.0)] {
            results.add(Figure::PlainP99, Tool::Ours, plain);
            results.add(Figure::IdleP99, Tool::Ours, with);
        }
        let cost =
            "commit p99 while WAL is archived, ms, as a multiple of that without: this operator: 1.25× (1.00 to 2.00)";
        assert_eq!(results.costs(), [cost]);
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(
            [0.1234, 9.999, 99.96, 1234.5].map(number),
            ["0.12", "10.0", "100", "1234"]
        );
    }
}
