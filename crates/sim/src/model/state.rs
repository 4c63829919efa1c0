//! The state of the small world: as compact as possible, since millions of them are kept.

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

/// How a Lease was lost. What stood in it before stays in [`Lease`]: in the world's, as what really was; in a member's, as what
/// that member read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// There is none any more.
    Missing,
    /// The operator has made an empty one in its place.
    Empty,
    /// Somebody has edited it, and nobody understands it.
    Scribbled,
}

/// The Lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// Counts its writes.
    pub version: u8,
    /// It was lost, and what follows stood in it before. Epoch 0 in a member's: that member has never read it.
    pub loss: Option<Loss>,
    /// Member and run of the holder.
    pub holder: Option<(u8, u8)>,
    /// The epoch.
    pub epoch: u8,
    /// The reserved timeline; 0: none.
    pub reserved: u8,
    /// The newest timeline that was reserved by an election that may have lost what was acknowledged; 0: none.
    pub lossy: u8,
    /// The rule on record.
    pub rule: Rule,
    /// Who released it, and where its WAL ended.
    pub release: Option<(u8, Option<Wal>)>,
    /// To whom it was released.
    pub successor: Option<u8>,
    /// Where the WAL of the holder ended when it took the lease, until it says which timeline it writes.
    pub had: Option<Wal>,
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
    /// To rewind to the primary.
    Rewind {
        /// The primary.
        from: u8,
        /// Its epoch.
        epoch: u8,
        /// Its own WAL is kept before.
        keep: bool,
    },
    /// To move the data aside; `true`: it is kept.
    SetAside(bool),
    /// To copy the primary.
    Clone(u8),
    /// To stop with a checkpoint.
    Stop,
}

/// A compare-and-swap of the Lease on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Write {
    /// What it would write; its `version` is the one that it expects.
    pub content: Lease,
    /// It is a release.
    pub release: bool,
    /// Whether the API server has taken it; `None`: it has not arrived.
    pub answer: Option<bool>,
    /// Ticks since it was sent.
    pub age: u8,
}

/// A write that may have been taken, or may still be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unsettled {
    /// The version that it expects.
    pub version: u8,
    /// The rule in it.
    pub rule: Rule,
    /// It is a release.
    pub release: bool,
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

/// A promise not to take the lease, as the member keeps it that has given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Given {
    /// The epoch.
    pub epoch: u8,
    /// The holder's run.
    pub run: u8,
    /// Ticks that are left.
    pub left: u8,
}

/// The data on a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Data {
    /// A database.
    #[default]
    Sound,
    /// A rewind of it has failed too often.
    Stubborn,
    /// A rewind of it was broken off.
    HalfRewound,
    /// Nothing: it was moved aside.
    Empty,
}

/// One member: its volume, its PostgreSQL, its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member<const N: usize> {
    /// Number of the agent's run.
    pub run: u8,
    /// PostgreSQL.
    pub postgres: Postgres,
    /// What is on the volume.
    pub wal: Wal,
    /// How much of what a standby has received is flushed; `None`: all.
    pub flushed: Option<Wal>,
    /// Whether there is anything.
    pub data: Data,
    /// The data was last written by a primary.
    pub primary_data: bool,
    /// The promised epoch, on the volume.
    pub promise: u8,
    /// A promotion to this timeline was begun; 0: none. On the volume.
    pub promoting: u8,
    /// What a candidate asked for.
    pub asked: u8,
    /// What others answered.
    pub replies: [Option<Reply>; N],
    /// The Lease as seen.
    pub seen: Lease,
    /// Ticks since it was seen to change.
    pub changed: u8,
    /// The epoch in which this run holds the lease, renewed in time.
    pub confirmed: Option<u8>,
    /// Ticks since the write was sent that is confirmed.
    pub sent: u8,
    /// This run's clock has lost a tick since it was sent.
    pub slow: bool,
    /// Promises of others not to take the lease: epoch, and ticks since the request was sent.
    pub failsafe: [Option<(u8, u8)>; N],
    /// Those that were asked for since the loss of the Lease was seen as it is.
    pub since_loss: Set,
    /// This run's writes that may have been in the Lease when it was lost: their rules, and whether they release it.
    pub doubts: [Option<(Rule, bool)>; 2],
    /// What this member has promised the holder.
    pub given: Option<Given>,
    /// To whom this holder hands over, and the epoch in which it began.
    pub handing: Option<(u8, u8)>,
    /// A write of the Lease in flight.
    pub write: Option<Write>,
    /// Whether the last one may have been taken without an answer.
    pub write_failed: bool,
    /// That one.
    pub unsettled: Option<Unsettled>,
    /// Work in flight.
    pub task: Option<Task>,
    /// It does not hear the primary.
    pub silent: bool,
}

impl<const N: usize> Member<N> {
    /// A standby's volume with this WAL, and an agent that has just begun and has seen `lease`.
    pub const fn new(wal: Wal, lease: Lease) -> Self {
        Self {
            run: 1,
            postgres: Postgres::Down { clean: false },
            wal,
            flushed: None,
            data: Data::Sound,
            primary_data: false,
            promise: 0,
            promoting: 0,
            asked: 0,
            replies: [None; N],
            seen: lease,
            changed: 0,
            confirmed: None,
            sent: 0,
            slow: false,
            failsafe: [None; N],
            since_loss: 0,
            doubts: [None; 2],
            given: None,
            handing: None,
            write: None,
            write_failed: false,
            unsettled: None,
            task: None,
            silent: false,
        }
    }

    /// Where what survives a reboot ends.
    pub fn flushed(&self) -> Wal {
        self.flushed.unwrap_or(self.wal)
    }
}

/// The whole world of `N` members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct World<const N: usize> {
    /// The Lease on the API server.
    pub lease: Lease,
    /// The members.
    pub members: [Member<N>; N],
    /// A write that was sent by a run that has ended, and may still arrive.
    pub ghost: Option<Lease>,
    /// Parent of each timeline and where it ended; (0, 0): never written.
    pub forks: [(u8, u8); TIMELINES],
    /// Timelines that were begun while elections counted nobody: what others have may be lost by them.
    pub loose: u8,
    /// Timelines that were reserved by an election that gave up what missing members have, as the user had accepted.
    pub given_up: u8,
    /// The newest acknowledged record of each timeline.
    pub acknowledged: [u8; TIMELINES],
    /// The newest one of each timeline that a promotion was allowed to lose: who has it keeps it.
    pub lost: [u8; TIMELINES],
    /// `spec.durability`: for how many standbys a commit is to wait.
    pub durability: u8,
    /// Commits wait for as many as are there: `Preferred`.
    pub preferred: bool,
    /// Nobody is elected before the old primary's reads have ended: `spec.failover.reads: Strict`.
    pub strict: bool,
    /// The epoch in which the user accepts a loss; 0: in none.
    pub accepted: u8,
    /// The primary that the user wants.
    pub wanted: Option<u8>,
    /// `spec.fenced`.
    pub fenced: Set,
    /// Whose promotion never ends.
    pub unfit: Set,
    /// Edits of the user so far.
    pub edits: u8,
    /// Faults so far.
    pub faults: u8,
    /// Reboots so far.
    pub reboots: u8,
}

impl Rule {
    /// As `machine` counts.
    pub fn is_met(self, holders: Set) -> bool {
        (self.names & holders).count_ones() >= u32::from(self.required)
    }
}

impl<const N: usize> World<N> {
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

    /// A record that was acknowledged and then lost, and that a server whose WAL ends at `head` has and the one at `other` has not.
    pub fn only_copy(&self, head: Wal, other: Wal) -> Option<Wal> {
        let lost = (1..TIMELINES).map(|timeline| Wal {
            timeline: timeline as u8,
            end: self.lost[timeline],
        });
        lost.filter(|at| at.end > 0)
            .find(|at| self.contains(head, *at) && !self.contains(other, *at))
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

    /// Member `me` is no primary, and cannot be promoted to be one.
    pub fn is_unfit(&self, me: usize) -> bool {
        self.unfit >> me & 1 == 1 && !matches!(self.members[me].postgres, Postgres::Primary { .. })
    }

    /// What has gone wrong or was edited so far.
    pub fn troubles(&self) -> [u8; 4] {
        [self.faults, self.reboots, self.unfit, self.edits]
    }

    /// The member that the Lease names.
    pub fn holder(&self) -> Option<usize> {
        self.lease.holder.map(|(holder, _)| usize::from(holder))
    }
}
