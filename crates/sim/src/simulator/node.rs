//! One member's node: its clock, its disk, its container.

use std::collections::{BTreeMap, BTreeSet};

use machine::protocol::MemberId;
use machine::timing::BootTime;

use super::agent::Agent;
use super::archive::{WalFiles, Worker};
use super::event::Event;
use super::operator::Sandbox;
use super::postgres::Server;
use super::wal::End;

/// A kernel's clock. Its rate is fixed for a run, within the stated skew of 5 % between any two.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Its time when the world began, in milliseconds.
    pub base: u64,
    /// How much faster it runs than the world's clock, in millionths.
    pub fast: i64,
}

impl Clock {
    /// Its time at a time of the world.
    pub fn at(&self, now: u64) -> BootTime {
        let drift = i128::from(now) * i128::from(self.fast) / 1_000_000;
        BootTime((i128::from(self.base + now) + drift) as u64)
    }
    /// When it first shows `boot`.
    pub fn when(&self, boot: BootTime) -> u64 {
        let elapsed = boot.0.saturating_sub(self.base);
        let scale = (1_000_000 + self.fast) as u128;
        let mut now = (u128::from(elapsed) * 1_000_000 / scale) as u64;
        while self.at(now) < boot {
            now += 1;
        }
        now
    }
}

/// The content of a volume, beside and in PGDATA.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Counts lost volumes: each new one has a claim of its own.
    pub number: u32,
    pub member: Option<MemberId>,
    /// The claim that its member was made for.
    pub claim: String,
    pub certificate: bool,
    pub data: Option<Data>,
    pub promise: u64,
    pub promoting: Option<u32>,
    /// The key file that the WAL receiver reads.
    pub credential: bool,
    pub rewinding: bool,
    /// True if the data was a primary's before it was started as a standby.
    pub was_primary: bool,
    /// Quarantined data and copies of WAL.
    pub aside: Vec<Aside>,
}

/// Quarantined data, or WAL that was copied aside before a rewind.
#[derive(Clone, Copy, Debug)]
pub struct Aside {
    /// It has the WAL from here on.
    pub from: u64,
    pub end: End,
}

/// PGDATA.
#[derive(Clone, Debug)]
pub struct Data {
    /// End of the flushed WAL, which survives every fault.
    pub end: End,
    /// The redo location of the last checkpoint.
    pub redo: u64,
    /// A standby's data is not consistent before its WAL reaches this.
    pub consistent: Option<End>,
    pub primary: bool,
    pub clean: bool,
    /// Replication slots.
    pub slots: BTreeSet<MemberId>,
    /// Full segments in `pg_wal`, and their marks.
    pub files: WalFiles,
}

/// A disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk {
    /// How many faults keep it from flushing.
    pub hung: u8,
    /// How many faults keep WAL from being written; a standby starts nevertheless.
    pub full: u8,
    /// Additional time of a flush, in milliseconds.
    pub slow: u64,
}

/// A node and the pod on it.
pub struct Node {
    pub clock: Clock,
    pub volume: Volume,
    pub disk: Disk,
    /// A promise that hangs in the disk, and that its agent has given up.
    pub late_promise: Option<u64>,
    pub postgres: Option<Server>,
    pub agent: Option<Agent>,
    /// The archive's worker, of the same run.
    pub archive: Worker,
    /// The pod that the kubelet runs here, if there is an operator.
    pub sandbox: Sandbox,
    /// Runs of the agent so far.
    pub runs: u32,
    /// True if it is switched on.
    pub on: bool,
    /// How many faults have stopped the agent (SIGSTOP). Its events wait.
    pub agent_frozen: u8,
    pub agent_waits: Vec<Event>,
    /// How many faults have stopped PostgreSQL.
    pub postgres_frozen: u8,
    pub postgres_waits: Vec<Event>,
    /// True if all of the pod is stopped. The dead-man's events wait.
    pub pod_frozen: bool,
    pub pod_waits: Vec<Event>,
    /// When the dead-man kills everything.
    pub armed: Option<BootTime>,
    /// Until when this run may have WAL written, by its own clock: the latest time that it was ever granted.
    pub granted: BootTime,
    /// True if the watch is broken and will be restarted.
    pub watch_broken: bool,
    /// Counts restarts of the watch: only the last of several pending ones counts.
    pub watch: u32,
    /// Failed tries in a row to continue the watch; `None`: it has not begun yet.
    pub watch_tries: Option<u32>,
    /// Additional delay of news from the API server, in milliseconds.
    pub watch_lag: u64,
    /// How many faults have cut the watch's connection unnoticed: nothing arrives by it.
    pub watch_dead: u8,
    /// When the last news arrives: news stay in order.
    pub watch_last: u64,
    /// Where `-rw` points according to the proxy here, from a time of the world on.
    pub routes: BTreeMap<u64, usize>,
}

impl Node {
    pub fn now(&self, now: u64) -> BootTime {
        self.clock.at(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_a_time_first_when_it_says_so() {
        for fast in [-24_000, 0, 24_000] {
            let clock = Clock { base: 5_000, fast };
            for boot in [5_000, 5_001, 17_345, 200_000] {
                let when = clock.when(BootTime(boot));
                assert!(clock.at(when) >= BootTime(boot));
                assert!(when == 0 || clock.at(when - 1) < BootTime(boot));
            }
        }
        assert!(Clock { base: 0, fast: 24_000 }.at(10_000) == BootTime(10_240));
    }
}
