//! What a run showed: gaps, lost and unexpected rows, two servers that acknowledge at once.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::availability::agents::AgentStages;
use crate::availability::history::History;
use crate::availability::record::{Attempt, Outcome, Rows, Stream, To};

/// Shortest time between two acknowledged rows that counts as an outage: rows are tried every 10 ms, and a busy machine
/// or a checkpoint delays single ones.
pub const GAP: u64 = 100_000_000;
/// The most rows that a report names; the history has the others.
const NAMED: usize = 20;
const MILLI: u64 = 1_000_000;

/// The stream whose gaps are the outage.
pub const SERVICE: Stream = Stream {
    inside: false,
    to: To::Service,
};
/// The session that was open before the fault.
pub const HELD: Stream = Stream {
    inside: false,
    to: To::Held,
};

/// What is known of a run in addition to its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The pod that served before.
    pub primary: String,
    /// When the fault began, in nanoseconds since the epoch.
    pub injected: u64,
    /// When the fault that kept the old primary away was undone, if there was one.
    pub released: Option<u64>,
    /// What the tables hold at the end.
    pub rows: Vec<Rows>,
}

/// What a run showed. Times in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The pod that served before the fault.
    pub primary: String,
    /// The pod that acknowledged last.
    pub primary_after: String,
    /// Outcomes of the attempts through the Service.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Longest gap before the fault: the machine's own delays.
    pub baseline_gap: f64,
    /// Longest time between two acknowledged rows through the Service, from the fault on.
    pub outage: f64,
    /// That gap had not ended when the run did.
    pub outage_open: bool,
    /// Sum of the gaps above 100 ms from the fault on.
    pub gaps_sum: f64,
    /// How many those are.
    pub gaps: usize,
    /// Where the time of the longest gap was spent, as seen from outside.
    pub stages: Stages,
    /// The same by the agents' logs; only for a database of this operator.
    #[serde(default)]
    pub agents: AgentStages,
    /// Rows that were acknowledged and are not there.
    pub lost: Finding,
    /// Rows of unknown outcome that are there.
    pub ghosts: Finding,
    /// Rows that were refused and exist nevertheless, or that no client tried.
    pub unexplained: Finding,
    /// Two servers that acknowledged at once.
    pub overlap: Option<Overlap>,
    /// From the fault to the last row of the session held from before; absent when it outlived the run.
    pub held_until: Option<f64>,
    /// From the fault until each other pod showed rows that were written after the outage; or from when the fault was
    /// undone, if that was later. For the old primary it is the time until it streams again.
    pub streaming: BTreeMap<String, f64>,
}

/// Rows of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How many.
    pub count: u64,
    /// The first of them, as `stream number`.
    pub first: Vec<String>,
}

/// When each stage was first seen, in milliseconds from the fault; absent: not seen, or not needed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stages {
    /// The last row before the longest gap: the old primary is dead, fenced, or out of reach.
    pub stopped: Option<f64>,
    /// The Lease got another holder, or the same one took it again.
    pub elected: Option<f64>,
    /// A pod acknowledged a row that was sent to it directly.
    pub promoted: Option<f64>,
    /// The Service's EndpointSlice was written.
    pub routed: Option<f64>,
    /// The first row through the Service.
    pub reconnected: Option<f64>,
}

/// Two servers acknowledged at once: the most serious finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overlap {
    /// The server that should have stopped.
    pub old: String,
    /// The server that was acknowledging already.
    pub new: String,
    /// From the new one's first acknowledgement to the old one's last.
    pub milliseconds: f64,
    /// Rows that the old one acknowledged although they were sent after the new one's first acknowledgement.
    pub rows: u64,
}

impl Report {
    /// Measures a run.
    #[must_use]
    pub fn of(history: &History, facts: &Facts) -> Self {
        let acks: Vec<&Attempt> = history.acks(&SERVICE).collect();
        // The writers do not end at the same moment: later rows of the others are no gap of this one.
        let tried = history.attempts.iter().rfind(|attempt| attempt.stream == SERVICE);
        let end = tried.map_or(facts.injected, |last| last.done);
        let longest = gaps_after(&acks, facts.injected, end);
        let worst = longest.iter().copied().max_by_key(Gap::length);
        let long: Vec<&Gap> = longest.iter().filter(|gap| gap.length() > GAP).collect();
        let found = Tally::of(history, &facts.rows);
        let since = |at: u64| millis_between(facts.injected, at);
        let primary_after = acks.last().map_or("?".to_owned(), |ack| history.server(ack));
        Self {
            primary: facts.primary.clone(),
            agents: AgentStages::of(history, facts.injected, &facts.primary, &primary_after),
            primary_after,
            outcomes: outcomes(history),
            baseline_gap: baseline(&acks, facts.injected),
            outage: worst.map_or(0.0, |gap| millis(gap.length())),
            outage_open: worst.is_some_and(|gap| gap.open),
            gaps_sum: millis(long.iter().map(|gap| gap.length()).sum()),
            gaps: long.len(),
            stages: worst.map_or_else(Stages::default, |gap| stages(history, facts, gap)),
            lost: found.lost,
            ghosts: found.ghosts,
            unexplained: found.unexplained,
            overlap: overlap(history),
            held_until: held_until(history, end).map(since),
            streaming: streaming(history, facts, worst),
        }
    }

    /// From the fault until the old primary streams again, in milliseconds; `None` if it does not, or still serves.
    #[must_use]
    pub fn old_primary_streaming(&self) -> Option<f64> {
        self.streaming.get(&self.primary).copied()
    }

    /// True if nothing happened that must never happen.
    #[must_use]
    pub fn is_safe(&self) -> bool {
        self.lost.count == 0 && self.unexplained.count == 0 && self.overlap.is_none()
    }
}

/// Acknowledged attempts whose rows are not there.
#[must_use]
pub fn lost<'a>(history: &'a History, rows: &[Rows]) -> Vec<&'a Attempt> {
    let there = |attempt: &&Attempt| {
        let holds = |range: &Rows| range.stream == attempt.stream && (range.from..=range.to).contains(&attempt.seq);
        rows.iter().any(holds)
    };
    let acked = history
        .attempts
        .iter()
        .filter(|attempt| attempt.outcome == Outcome::Acked);
    acked.filter(|attempt| !there(attempt)).collect()
}

/// A time without an acknowledged row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    from: u64,
    to: u64,
    /// The run ended within it.
    open: bool,
}

impl Gap {
    fn length(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }
}

/// The times between acknowledged rows that reach beyond `from`; the last one lasts to `end`.
fn gaps_after(acks: &[&Attempt], from: u64, end: u64) -> Vec<Gap> {
    let times: Vec<u64> = acks.iter().map(|ack| ack.done).collect();
    let mut gaps: Vec<Gap> = times
        .windows(2)
        .filter_map(|pair| match pair {
            [a, b] if *b >= from => Some(Gap {
                from: *a,
                to: *b,
                open: false,
            }),
            _ => None,
        })
        .collect();
    let last = times.last().copied().unwrap_or(from);
    gaps.push(Gap {
        from: last,
        to: end.max(last),
        open: end.saturating_sub(last) > GAP,
    });
    gaps
}

fn baseline(acks: &[&Attempt], until: u64) -> f64 {
    let times: Vec<u64> = acks.iter().map(|ack| ack.done).filter(|at| *at < until).collect();
    let gaps = times.iter().zip(times.iter().skip(1)).map(|(a, b)| b - a);
    millis(gaps.max().unwrap_or(0))
}

fn outcomes(history: &History) -> BTreeMap<Outcome, u64> {
    let mut counts = BTreeMap::new();
    for attempt in history.attempts.iter().filter(|attempt| attempt.stream == SERVICE) {
        *counts.entry(attempt.outcome).or_default() += attempt.count;
    }
    counts
}

fn stages(history: &History, facts: &Facts, gap: Gap) -> Stages {
    let since = |at: u64| millis_between(facts.injected, at);
    let inside = |at: &u64| *at <= gap.to;
    let start = gap.from.max(facts.injected);
    Stages {
        stopped: Some(since(gap.from)),
        elected: history.marked("lease", start).filter(inside).map(since),
        promoted: promoted(history, &facts.primary, gap).map(since),
        routed: history.marked("route", start).filter(inside).map(since),
        reconnected: (!gap.open).then(|| since(gap.to)),
    }
}

/// When a pod first acknowledged a row that was sent to it directly, within the gap: another pod than the old primary, or
/// the same one after its longest silence.
fn promoted(history: &History, old: &str, gap: Gap) -> Option<u64> {
    let direct = |attempt: &&Attempt| {
        let to_pod = !attempt.stream.inside && matches!(attempt.stream.to, To::Pod(_));
        to_pod && attempt.outcome == Outcome::Acked && attempt.done <= gap.to
    };
    let acks: Vec<&Attempt> = history.attempts.iter().filter(direct).collect();
    let other = |ack: &&&Attempt| ack.sent > gap.from && history.server(ack) != old;
    if let Some(ack) = acks.iter().find(other) {
        return Some(ack.done);
    }
    let silences = acks
        .iter()
        .zip(acks.iter().skip(1))
        .map(|(a, b)| (b.done - a.done, b.done));
    let longest = silences.filter(|(length, end)| *length > GAP && *end > gap.from).max();
    longest.map(|(_, end)| end)
}

/// When the held session wrote its last row, if it ended before the run.
fn held_until(history: &History, end: u64) -> Option<u64> {
    let last = history.attempts.iter().rfind(|attempt| attempt.stream == HELD)?;
    let ended = last.outcome != Outcome::Acked || end.saturating_sub(last.done) > 2_000 * MILLI;
    let ack = history.acks(&HELD).last().map_or(last.done, |ack| ack.done);
    ended.then_some(ack)
}

/// From the fault until each pod showed a row that was written after the longest gap.
fn streaming(history: &History, facts: &Facts, worst: Option<Gap>) -> BTreeMap<String, f64> {
    let after = worst.filter(|gap| gap.length() > GAP && !gap.open);
    let from = after.map_or(facts.injected, |gap| gap.to);
    let Some(first) = history.acks(&SERVICE).find(|ack| ack.done >= from) else {
        return BTreeMap::new();
    };
    let mut seen = BTreeMap::new();
    for (at, pod, seq) in &history.follows {
        if *at >= from && *seq >= first.seq {
            let since = facts
                .released
                .filter(|released| released <= at)
                .unwrap_or(facts.injected);
            seen.entry(pod.clone()).or_insert_with(|| millis_between(since, *at));
        }
    }
    seen
}

/// Which servers acknowledged on which timelines, and when first.
struct Reign {
    server: String,
    timeline: u32,
    first_sent: u64,
    first_done: u64,
}

/// The longest time that two servers acknowledged at once. An acknowledgement counts against its server only if its row
/// was *sent* after another server had acknowledged on a higher timeline, or on the same one in the middle of its own.
fn overlap(history: &History) -> Option<Overlap> {
    let mut acks: Vec<(&Attempt, String)> = history
        .attempts
        .iter()
        .filter(|attempt| attempt.outcome == Outcome::Acked)
        .map(|attempt| (attempt, history.server(attempt)))
        .collect();
    acks.sort_by_key(|(ack, _)| ack.done);
    let mut reigns: Vec<Reign> = Vec::new();
    let mut found: BTreeMap<(String, String), Overlap> = BTreeMap::new();
    for (ack, server) in &acks {
        let timeline = ack.timeline.unwrap_or(0);
        let own = reigns
            .iter()
            .position(|r| r.server == *server && r.timeline == timeline);
        let own_done = own.and_then(|n| reigns.get(n)).map(|reign| reign.first_done);
        let newer = reigns.iter().find(|other| {
            let before = other.first_done < ack.sent && other.server != *server;
            let alternating = own_done.is_some_and(|done| done < other.first_sent);
            before && (other.timeline > timeline || (other.timeline == timeline && alternating))
        });
        if let Some(newer) = newer {
            let key = (server.clone(), newer.server.clone());
            let entry = found.entry(key).or_insert_with(|| Overlap {
                old: server.clone(),
                new: newer.server.clone(),
                milliseconds: 0.0,
                rows: 0,
            });
            entry.rows += 1;
            entry.milliseconds = entry.milliseconds.max(millis(ack.done - newer.first_done));
        }
        if own.is_none() {
            reigns.push(Reign {
                server: server.clone(),
                timeline,
                first_sent: ack.sent,
                first_done: ack.done,
            });
        }
    }
    found
        .into_values()
        .max_by(|a, b| a.milliseconds.total_cmp(&b.milliseconds))
}

#[derive(Debug, Default)]
struct Tally {
    lost: Finding,
    ghosts: Finding,
    unexplained: Finding,
}

impl Tally {
    /// Compares the history with the tables.
    fn of(history: &History, rows: &[Rows]) -> Self {
        let mut tally = Self::default();
        let mut present: BTreeSet<(&Stream, u64)> = BTreeSet::new();
        for range in rows {
            present.extend((range.from..=range.to).map(|seq| (&range.stream, seq)));
        }
        for attempt in &history.attempts {
            for seq in attempt.seq..attempt.seq + attempt.count {
                let there = present.remove(&(&attempt.stream, seq));
                match (attempt.outcome, there) {
                    (Outcome::Acked, false) => tally.lost.add(&attempt.stream, seq),
                    (Outcome::Unknown, true) => tally.ghosts.add(&attempt.stream, seq),
                    (Outcome::Error, true) => tally.unexplained.add(&attempt.stream, seq),
                    (Outcome::Acked, true) | (Outcome::Unknown | Outcome::Error, false) => {}
                }
            }
        }
        for (stream, seq) in present {
            tally.unexplained.add(stream, seq);
        }
        tally
    }
}

impl Finding {
    fn add(&mut self, stream: &Stream, seq: u64) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(format!("{stream} {seq}"));
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a run lasts minutes")]
fn millis(nanos: u64) -> f64 {
    (nanos / 1_000) as f64 / 1_000.0
}

/// Negative when `to` is before `from`.
fn millis_between(from: u64, to: u64) -> f64 {
    if to >= from {
        millis(to - from)
    } else {
        -millis(from - to)
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
