//! The state of the small world: as compact as possible, since millions of them are kept.

/// Members of the world.
pub const MEMBERS: usize = 3;

/// A set of members, one bit each.
pub type Set = u8;

/// End of WAL: timeline and position, both small numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wal {
    /// Timeline of the last record.
    pub timeline: u8,
    /// Records there are.
    pub end: u8,
}

/// `ANY required (names)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// How many.
    pub required: u8,
    /// Of whom.
    pub names: Set,
}

/// The Lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    /// Counts its writes.
    pub version: u8,
    /// Member and run of the holder.
    pub holder: Option<(u8, u8)>,
    /// The epoch.
    pub epoch: u8,
    /// The reserved timeline; 0: none.
    pub reserved: u8,
    /// The rule on record.
    pub rule: Rule,
    /// Who released it, and where its WAL ended.
    pub release: Option<(u8, Option<Wal>)>,
    /// Timeline that the holder says it writes; 0: none yet.
    pub written: u8,
    /// The holder says that it serves.
    pub serving: bool,
    /// End of the parent of each timeline of the published history, as of `written`.
    pub history: [u8; TIMELINES],
}

/// Timelines are numbered from 1; so many are kept.
pub const TIMELINES: usize = 6;

/// PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Postgres {
    /// It does not run; `clean`: it was stopped as a primary with a shutdown checkpoint.
    Down {
        /// See above.
        clean: bool,
    },
    /// It runs as standby.
    Standby {
        /// Whom it follows, in which epoch.
        upstream: Option<(u8, u8)>,
        /// It has a WAL receiver.
        receiving: bool,
    },
    /// It runs as primary.
    Primary {
        /// Applications may connect.
        open: bool,
        /// What may be in doubt ends here.
        in_doubt: u8,
        /// The setting that all WAL senders use.
        proven: Rule,
        /// End of the WAL when that was proven.
        proven_at: u8,
        /// A setting that some may use.
        pending: Option<Rule>,
    },
}

/// Work in flight on a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// To promise this epoch.
    Promise(u8),
    /// To promote to this timeline under this rule.
    Promote(u8, Rule),
    /// To start for writing.
    StartPrimary(Rule),
    /// To start as standby.
    StartStandby(Option<(u8, u8)>),
    /// To follow another one.
    Configure(Option<(u8, u8)>),
    /// To change the synchronous setting.
    SetSync(Rule),
    /// To let applications in.
    Open,
    /// To rewind to the primary, in its epoch.
    Rewind(u8, u8),
    /// To stop with a checkpoint.
    Stop,
}

/// A compare-and-swap of the Lease on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Write {
    /// What it would write; its `version` is the one that it expects.
    pub content: Lease,
    /// It is a release.
    pub release: bool,
    /// Whether the API server has taken it; `None`: it has not arrived.
    pub answer: Option<bool>,
}

/// An answer to a request for a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reply {
    /// The promised epoch.
    pub promised: u8,
    /// Whether the primary is suspected there.
    pub suspects: bool,
    /// The final position.
    pub position: Option<Wal>,
}

/// One member: its volume, its PostgreSQL, its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// Number of the agent's run.
    pub run: u8,
    /// PostgreSQL.
    pub postgres: Postgres,
    /// What is on the volume.
    pub wal: Wal,
    /// The data was last written by a primary.
    pub primary_data: bool,
    /// The promised epoch, on the volume.
    pub promise: u8,
    /// A promotion to this timeline was begun; 0: none. On the volume.
    pub promoting: u8,
    /// What a candidate asked for.
    pub asked: u8,
    /// What others answered.
    pub replies: [Option<Reply>; MEMBERS],
    /// The Lease as seen.
    pub seen: Lease,
    /// The epoch in which this run holds the lease, renewed in time.
    pub confirmed: Option<u8>,
    /// A write of the Lease in flight.
    pub write: Option<Write>,
    /// Whether the last one may have been taken without an answer.
    pub write_failed: bool,
    /// Work in flight.
    pub task: Option<Task>,
    /// It does not hear the primary.
    pub silent: bool,
}

/// The whole world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct World {
    /// The Lease on the API server.
    pub lease: Lease,
    /// The members.
    pub members: [Member; MEMBERS],
    /// A write that was sent by a run that has ended, and may still arrive.
    pub ghost: Option<Lease>,
    /// Parent of each timeline and where it ended; (0, 0): never written.
    pub forks: [(u8, u8); TIMELINES],
    /// The newest acknowledged record of each timeline.
    pub acknowledged: [u8; TIMELINES],
    /// Faults so far.
    pub faults: u8,
}

impl Rule {
    /// As `machine` counts.
    pub fn is_met(self, holders: Set) -> bool {
        (self.names & holders).count_ones() >= u32::from(self.required)
    }
}

impl World {
    /// Whether a server whose WAL ends at `head` has the record at `at`.
    pub fn contains(&self, head: Wal, at: Wal) -> bool {
        let (mut timeline, mut end) = (head.timeline, head.end);
        loop {
            if timeline == at.timeline {
                return at.end <= end;
            }
            let (parent, fork) = self.forks[usize::from(timeline) % TIMELINES];
            if parent == 0 {
                return false;
            }
            (timeline, end) = (parent, fork.min(end));
        }
    }

    /// The last record that both have: where a rewind goes back to.
    pub fn common(&self, mine: Wal, theirs: Wal) -> Wal {
        let mut at = mine;
        loop {
            if self.contains(theirs, at) {
                return at;
            }
            let (parent, fork) = self.forks[usize::from(at.timeline) % TIMELINES];
            at = if parent != 0 && at.end <= fork + 1 {
                Wal {
                    timeline: parent,
                    end: fork,
                }
            } else {
                Wal {
                    end: at.end.saturating_sub(1),
                    ..at
                }
            };
            if at.end == 0 {
                return at;
            }
        }
    }
}
