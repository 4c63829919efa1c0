//! Judges the answers to clients and the final lists. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fmt::Write;

use crate::availability::record::Outcome;
use crate::soak::cycles::{Because, Graph};
use crate::soak::record::{Key, Lists, Step, Transaction, Value};

/// What is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A transaction that wrote nothing, or was not acknowledged, may miss commits that were acknowledged less than
    /// this before it began, in nanoseconds: an old primary that is cut off answers reads until it stops
    /// (`failover.staleReads: Allow`).
    pub stale: u64,
}

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anomaly {
    /// An append was acknowledged and is not in the final list.
    Lost,
    /// A number is in the list more than once.
    Duplicated,
    /// An append of a transaction that failed is in the final list.
    Resurrected,
    /// A number is in the list that no client appended to it.
    Unexplained,
    /// Of a transaction of unknown outcome, some appends are in the lists and some are not.
    Torn,
    /// A read is not a prefix of the final list.
    NotAPrefix,
    /// A read shows an append of a transaction that failed.
    AbortedRead,
    /// A read shows some of the appends that another transaction made to that list, and not all.
    IntermediateRead,
    /// A read does not end with what its own transaction had appended.
    OwnAppendMissing,
    /// A read lacks what was acknowledged before its transaction began.
    Stale,
    /// A read shows less than an earlier one on the same connection.
    WentBack,
    /// Transactions depend on each other in a circle.
    Cycle,
}

/// One thing that must never happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind of anomaly.
    pub anomaly: Anomaly,
    /// The list, and the number in it, if there is one.
    pub place: Option<(Key, Option<Value>)>,
    /// Numbers of the transactions that show it; the first is the one that is wrong.
    pub transactions: Vec<usize>,
    /// For a cycle: why each comes before the next.
    pub because: Vec<Because>,
}

/// Judges a history against the final lists. The findings are ordered by their evidence, least first.
#[must_use]
pub fn check(transactions: &[Transaction], lists: &Lists, rules: Rules) -> Vec<Finding> {
    let mut check = Check::new(transactions, lists, rules);
    check.final_lists();
    check.endings();
    check.reads();
    check.connections();
    check.dependencies();
    let mut findings = check.findings;
    findings.sort_by_key(|finding| (finding.transactions.len(), finding.anomaly));
    findings
}

/// Findings as text, each with its transactions; at most `most` of them.
#[must_use]
pub fn describe(findings: &[Finding], transactions: &[Transaction], most: usize) -> String {
    let zero = transactions
        .iter()
        .map(|transaction| transaction.begun)
        .min()
        .unwrap_or(0);
    let mut text = String::new();
    for finding in findings.iter().take(most) {
        let _ = writeln!(text, "{finding}");
        for (place, number) in finding.transactions.iter().enumerate() {
            if let Some(transaction) = transactions.get(*number) {
                let _ = writeln!(text, "    {}", transaction.line(zero));
            }
            if let Some(because) = finding.because.get(place) {
                let _ = writeln!(text, "      which {because}");
            }
        }
    }
    if findings.len() > most {
        let _ = writeln!(text, "and {} more", findings.len() - most);
    }
    text
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.anomaly)?;
        match self.place {
            Some((key, Some(value))) => write!(f, " in list {key}, number {value}"),
            Some((key, None)) => write!(f, " in list {key}"),
            None => Ok(()),
        }
    }
}

struct Check<'a> {
    transactions: &'a [Transaction],
    lists: &'a Lists,
    rules: Rules,
    /// The transaction that tried to append a number, and its list.
    writers: BTreeMap<Value, (usize, Key)>,
    /// Transactions that certainly committed: acknowledged, or seen.
    committed: BTreeSet<usize>,
    findings: Vec<Finding>,
}

impl<'a> Check<'a> {
    fn new(transactions: &'a [Transaction], lists: &'a Lists, rules: Rules) -> Self {
        let mut writers = BTreeMap::new();
        for (number, transaction) in transactions.iter().enumerate() {
            writers.extend(transaction.appends().map(|(key, value)| (value, (number, key))));
        }
        let there = |(key, value): (Key, Value)| lists.get(&key).is_some_and(|list| list.contains(&value));
        let committed = transactions
            .iter()
            .enumerate()
            .filter(|(_, transaction)| match transaction.outcome {
                Outcome::Acked => true,
                Outcome::Unknown => transaction.appends().any(there),
                Outcome::Error => false,
            });
        Self {
            committed: committed.map(|(number, _)| number).collect(),
            transactions,
            lists,
            rules,
            writers,
            findings: Vec::new(),
        }
    }

    fn find(&mut self, anomaly: Anomaly, place: (Key, Option<Value>), transactions: Vec<usize>) {
        self.findings.push(Finding {
            anomaly,
            place: Some(place),
            transactions,
            because: Vec::new(),
        });
    }

    /// The transaction that appended `value` to the list `key`.
    fn writer(&self, key: Key, value: Value) -> Option<usize> {
        let (number, to) = self.writers.get(&value)?;
        (*to == key).then_some(*number)
    }

    fn list(&self, key: Key) -> &'a [Value] {
        self.lists.get(&key).map_or(&[], Vec::as_slice)
    }

    fn outcome(&self, number: usize) -> Option<Outcome> {
        self.transactions.get(number).map(|transaction| transaction.outcome)
    }

    /// Every number of the final lists is there once, and belongs to a transaction that did not fail.
    fn final_lists(&mut self) {
        for (key, list) in self.lists {
            let mut seen = BTreeSet::new();
            for value in list {
                let place = (*key, Some(*value));
                let writer = self.writer(*key, *value);
                if !seen.insert(*value) {
                    self.find(Anomaly::Duplicated, place, writer.into_iter().collect());
                } else if let Some(writer) = writer {
                    if self.outcome(writer) == Some(Outcome::Error) {
                        self.find(Anomaly::Resurrected, place, vec![writer]);
                    }
                } else {
                    self.find(Anomaly::Unexplained, place, Vec::new());
                }
            }
        }
    }

    /// Every transaction has taken effect completely or not at all.
    fn endings(&mut self) {
        for (number, transaction) in self.transactions.iter().enumerate() {
            let anomaly = match transaction.outcome {
                Outcome::Acked => Anomaly::Lost,
                Outcome::Unknown if self.committed.contains(&number) => Anomaly::Torn,
                Outcome::Unknown | Outcome::Error => continue,
            };
            for (key, value) in transaction.appends() {
                if !self.list(key).contains(&value) {
                    self.find(anomaly, (key, Some(value)), vec![number]);
                }
            }
        }
    }

    fn reads(&mut self) {
        for number in 0..self.transactions.len() {
            for read in reads_of(self.transactions, number) {
                self.read(&read);
            }
        }
    }

    fn read(&mut self, read: &Read<'a>) {
        let place = (read.key, None);
        let Some(base) = read.found.strip_suffix(read.own.as_slice()) else {
            self.find(Anomaly::OwnAppendMissing, place, vec![read.by]);
            return;
        };
        let list = self.list(read.key);
        let shown = if self.committed.contains(&read.by) {
            read.found
        } else {
            base
        };
        if !list.starts_with(shown) {
            self.explain(read, base);
            return;
        }
        let next = list.get(base.len()).and_then(|value| self.writer(read.key, *value));
        let last = base.last().and_then(|value| self.writer(read.key, *value));
        if let (Some(next), Some(last)) = (next, last)
            && next == last
            && last != read.by
        {
            self.find(Anomaly::IntermediateRead, place, vec![read.by, last]);
        }
        if let Some((value, writer)) = self.missed(read, base) {
            self.find(Anomaly::Stale, (read.key, Some(value)), vec![read.by, writer]);
        }
    }

    /// Why a read is not a prefix of the final list.
    fn explain(&mut self, read: &Read<'a>, base: &[Value]) {
        let failed = |value: &&Value| {
            let writer = self.writer(read.key, **value);
            writer.is_some_and(|writer| self.outcome(writer) == Some(Outcome::Error))
        };
        let anomaly = if base.iter().any(|value| failed(&value)) {
            Anomaly::AbortedRead
        } else if base.iter().any(|value| self.writer(read.key, *value).is_none()) {
            Anomaly::Unexplained
        } else {
            Anomaly::NotAPrefix
        };
        let list = self.list(read.key);
        let wrong = match anomaly {
            Anomaly::AbortedRead => base.iter().find(failed),
            _ => read
                .found
                .iter()
                .enumerate()
                .find(|(at, value)| list.get(*at) != Some(*value))
                .map(|(_, value)| value),
        };
        let writer = wrong.and_then(|value| self.writer(read.key, *value));
        let shown = std::iter::once(read.by).chain(writer.filter(|writer| *writer != read.by));
        self.find(anomaly, (read.key, wrong.copied()), shown.collect());
    }

    /// An append that was acknowledged before the read's transaction began, and that the read lacks.
    fn missed(&self, read: &Read<'a>, base: &[Value]) -> Option<(Value, usize)> {
        let transaction = self.transactions.get(read.by)?;
        let exact = transaction.outcome == Outcome::Acked && transaction.is_write();
        let allowed = if exact { 0 } else { self.rules.stale };
        let missing = self.list(read.key).get(base.len()..)?;
        missing.iter().find_map(|value| {
            let writer = self.writer(read.key, *value).filter(|writer| *writer != read.by)?;
            let appended = self.transactions.get(writer)?;
            let known = appended.outcome == Outcome::Acked && appended.done.saturating_add(allowed) < transaction.begun;
            known.then_some((*value, writer))
        })
    }

    /// On one connection, lists only grow.
    fn connections(&mut self) {
        let mut order: Vec<usize> = (0..self.transactions.len()).collect();
        order.sort_by_key(|number| self.transactions.get(*number).map(|transaction| transaction.begun));
        // How far each connection has seen each list, and in which transaction.
        let mut reached: BTreeMap<(u32, u32, Key), (usize, usize)> = BTreeMap::new();
        for number in order {
            let Some(transaction) = self.transactions.get(number) else {
                continue;
            };
            let of = |key| (transaction.client, transaction.session, key);
            for read in reads_of(self.transactions, number) {
                let length = read.found.len().saturating_sub(read.own.len());
                match reached.get(&of(read.key)) {
                    Some((seen, by)) if *seen > length => {
                        self.find(Anomaly::WentBack, (read.key, None), vec![number, *by]);
                    }
                    _ => {
                        reached.insert(of(read.key), (length, number));
                    }
                }
            }
            if transaction.outcome == Outcome::Acked {
                for (key, value) in transaction.appends() {
                    if let Some(at) = self.list(key).iter().position(|there| *there == value) {
                        reached.insert(of(key), (at + 1, number));
                    }
                }
            }
        }
    }

    /// Edges between neighbours of every list, and from and to its readers; then cycles among them.
    fn dependencies(&mut self) {
        let mut graph = Graph::default();
        for (key, list) in self.lists {
            for pair in list.windows(2) {
                if let [Some(first), Some(then)] = [pair.first(), pair.get(1)].map(|v| self.writer(*key, *v?)) {
                    graph.add(first, then, Because::AppendedBefore(*key));
                }
            }
        }
        for number in self.committed.iter().copied() {
            for read in reads_of(self.transactions, number) {
                let list = self.list(read.key);
                let Some(base) = read.found.strip_suffix(read.own.as_slice()) else {
                    continue;
                };
                if !list.starts_with(base) {
                    continue;
                }
                if let Some(writer) = base.last().and_then(|value| self.writer(read.key, *value)) {
                    graph.add(writer, number, Because::WasRead(read.key));
                }
                if let Some(writer) = list.get(base.len()).and_then(|value| self.writer(read.key, *value)) {
                    graph.add(number, writer, Because::DidNotSee(read.key));
                }
            }
        }
        if let Some(cycle) = graph.shortest_cycle() {
            let (transactions, because) = cycle.into_iter().unzip();
            self.findings.push(Finding {
                anomaly: Anomaly::Cycle,
                place: None,
                transactions,
                because,
            });
        }
    }
}

/// A read that was answered.
struct Read<'a> {
    by: usize,
    key: Key,
    found: &'a [Value],
    /// What its transaction had appended to that list before.
    own: Vec<Value>,
}

fn reads_of(transactions: &[Transaction], by: usize) -> Vec<Read<'_>> {
    let mut appended: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
    let mut reads = Vec::new();
    for step in transactions.get(by).map_or(&[][..], |transaction| &transaction.steps) {
        match step {
            Step::Append(key, value) => appended.entry(*key).or_default().push(*value),
            Step::Read(key, found) => reads.push(Read {
                by,
                key: *key,
                found,
                own: appended.get(key).cloned().unwrap_or_default(),
            }),
        }
    }
    reads
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
