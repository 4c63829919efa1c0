//! The state of the small world. It is as compact as possible, because millions of states are kept.

use super::archive::{Marks, Objects};

/// A set of members, one bit each.
pub type Set = u8;

/// End of WAL: timeline and position, both small numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wal {
    /// Timeline of the last record.
    pub timeline: u8,
    /// How many records there are.
    pub end: u8,
}

/// `ANY required (names)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// How many names must acknowledge.
    pub required: u8,
    /// The names.
    pub names: Set,
}

/// How a Lease was lost. Its last content stays in [`Lease`]: in the world's, the real one; in a member's, what that
/// member read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// It no longer exists.
    Missing,
    /// The operator has made an empty one in its place.
    Empty,
    /// A user has edited it so that no agent understands it.
    Scribbled,
}

/// The Lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// Counts its writes.
    pub version: u8,
    /// Set if the Lease is lost; then the other fields are its last content. Epoch 0 in a member's: that member has
    /// never read it.
    pub loss: Option<Loss>,
    /// Member and run of the holder.
    pub holder: Option<(u8, u8)>,
    /// The epoch.
    pub epoch: u8,
    /// The reserved timeline; 0: none.
    pub reserved: u8,
    /// The newest timeline that was reserved by an election that may have lost acknowledged commits; 0: none.
    pub lossy: u8,
    /// The synchronous rule in it.
    pub rule: Rule,
    /// The member that released it, and where its WAL ended.
    pub release: Option<(u8, Option<Wal>)>,
    /// The member to which it was released.
    pub successor: Option<u8>,
    /// Where the holder's WAL ended when it took the lease, until it reports which timeline it writes.
    pub had: Option<Wal>,
    /// Timeline that the holder reports to write; 0: none yet.
    pub written: u8,
    /// True if the holder reports that it serves.
    pub serving: bool,
    /// End of the parent of each timeline of the published history, as of `written`.
    pub history: [u8; TIMELINES],
    /// Up to where the archive is complete, as a holder has told.
    pub archived: Option<Wal>,
}

/// Timelines are numbered from 1; this many are kept.
pub const TIMELINES: usize = 6;

/// PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Postgres {
    /// It does not run; `clean`: it was stopped as a primary with a shutdown checkpoint.
    Down {
        /// True after a shutdown checkpoint as a primary.
        clean: bool,
    },
    /// It runs as standby.
    Standby {
        /// The primary that it follows, and in which epoch.
        upstream: Option<(u8, u8)>,
        /// True if it has a WAL receiver.
        receiving: bool,
    },
    /// It runs as primary.
    Primary {
        /// True if applications may connect.
        open: bool,
        /// WAL that may be in doubt ends here.
        in_doubt: u8,
        /// The setting that all WAL senders use.
        proven: Rule,
        /// End of the WAL when that was proven.
        proven_at: u8,
        /// A setting that some WAL senders may use.
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
    /// To start as standby, with this upstream.
    StartStandby(Option<(u8, u8)>),
    /// To follow another primary.
    Configure(Option<(u8, u8)>),
    /// To change the synchronous setting.
    SetSync(Rule),
    /// To open to applications.
    Open,
    /// To rewind to the primary.
    Rewind {
        /// The primary.
        from: u8,
        /// Its epoch.
        epoch: u8,
        /// True if its WAL is copied aside before.
        keep: bool,
    },
    /// To move the data aside; `true`: it is quarantined.
    SetAside(bool),
    /// To copy the primary.
    Clone(u8),
    /// To stop with a checkpoint.
    Stop,
}

/// A compare-and-swap of the Lease in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Write {
    /// The new content; its `version` is the expected one.
    pub content: Lease,
    /// True if it is a release.
    pub release: bool,
    /// Whether the API server has accepted it; `None`: it has not arrived.
    pub answer: Option<bool>,
    /// Ticks since it was sent.
    pub age: u8,
}

/// A write that may have been accepted, or may still be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unsettled {
    /// The version that it expects.
    pub version: u8,
    /// The rule that it would record.
    pub rule: Rule,
    /// True if it is a release.
    pub release: bool,
}

/// An answer to a request for a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reply {
    /// The promised epoch.
    pub promised: u8,
    /// True if that member suspects the primary.
    pub suspects: bool,
    /// The final position.
    pub position: Option<Wal>,
}

/// A promise not to take the lease, as the promising member keeps it.
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
    /// A rewind of it was interrupted.
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
    /// End of the WAL on the volume.
    pub wal: Wal,
    /// How much of a standby's received WAL is flushed; `None`: all.
    pub flushed: Option<Wal>,
    /// The state of the data.
    pub data: Data,
    /// The data was last written by a primary.
    pub primary_data: bool,
    /// The promised epoch, on the volume.
    pub promise: u8,
    /// A promotion to this timeline was begun; 0: none. On the volume.
    pub promoting: u8,
    /// The epoch that a candidate asked for.
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
    /// Promises that were requested since the present state of the lost Lease was seen.
    pub since_loss: Set,
    /// This run's writes that may have been in the Lease when it was lost: their rules, and whether they release the
    /// lease.
    pub doubts: [Option<(Rule, bool)>; 2],
    /// What this member has promised the holder.
    pub given: Option<Given>,
    /// The member to which this holder hands over, and the epoch in which that began.
    pub handing: Option<(u8, u8)>,
    /// A write of the Lease in flight.
    pub write: Option<Write>,
    /// True if the last write may have been accepted although no answer came.
    pub write_failed: bool,
    /// That write.
    pub unsettled: Option<Unsettled>,
    /// Work in flight.
    pub task: Option<Task>,
    /// True if it does not hear the primary.
    pub silent: bool,
    /// The marks of PostgreSQL's archiver, on the volume.
    pub marks: Marks,
    /// Up to where the archive is complete, as a primary's worker tells: it follows from the marks.
    pub told: Option<Wal>,
}

impl<const N: usize> Member<N> {
    /// A standby with this WAL on its volume, whose agent has just started and has seen `lease`.
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
            marks: Marks::new(),
            told: None,
        }
    }

    /// The end of the WAL that survives a reboot.
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
    /// A write of a run that has ended, which may still arrive.
    pub ghost: Option<Lease>,
    /// Parent of each timeline and where it ended; (0, 0): never written.
    pub forks: [(u8, u8); TIMELINES],
    /// Timelines that began while elections counted no promises: they may lose WAL of others.
    pub loose: u8,
    /// Timelines that were reserved by an election that gave up WAL of missing members, as the user had accepted.
    pub given_up: u8,
    /// The newest acknowledged record of each timeline.
    pub acknowledged: [u8; TIMELINES],
    /// The newest record of each timeline that a promotion was allowed to lose: members that have it keep it.
    pub lost: [u8; TIMELINES],
    /// `spec.durability`: how many standbys a commit should wait for.
    pub durability: u8,
    /// Commits wait for as many standbys as are available: `Preferred`.
    pub preferred: bool,
    /// No member is elected before the old primary's reads have ended: `spec.failover.staleReads: Forbid`.
    pub strict: bool,
    /// The epoch in which the user accepts a loss; 0: in none.
    pub accepted: u8,
    /// The primary that the user wants.
    pub wanted: Option<u8>,
    /// `spec.fenced`.
    pub fenced: Set,
    /// Members whose promotion never ends.
    pub unfit: Set,
    /// Edits of the user so far.
    pub edits: u8,
    /// Faults so far.
    pub faults: u8,
    /// Reboots so far.
    pub reboots: u8,
    /// Records in a segment of WAL; 0: there is no archive.
    pub segment: u8,
    /// The store of the archive.
    pub store: Objects,
    /// Objects on their way to it. One whose request is lost stays here: it need not arrive.
    pub pushed: Objects,
    /// Segments that a member has given up, by number: they may be missing.
    pub excused: u16,
}

impl Rule {
    /// True if `holders` satisfies the rule, as `machine` counts.
    pub fn is_met(self, holders: Set) -> bool {
        (self.names & holders).count_ones() >= u32::from(self.required)
    }
}

impl<const N: usize> World<N> {
    /// True if a server whose WAL ends at `head` has the record at `at`.
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

    /// A record that was acknowledged and then lost, which a server whose WAL ends at `head` has and one at `other` has
    /// not.
    pub fn only_copy(&self, head: Wal, other: Wal) -> Option<Wal> {
        let lost = (1..TIMELINES).map(|timeline| Wal {
            timeline: timeline as u8,
            end: self.lost[timeline],
        });
        lost.filter(|at| at.end > 0)
            .find(|at| self.contains(head, *at) && !self.contains(other, *at))
    }

    /// The last record that both have: a rewind goes back to it.
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

    /// True if member `me` is no primary, and cannot be promoted.
    pub fn is_unfit(&self, me: usize) -> bool {
        self.unfit >> me & 1 == 1 && !matches!(self.members[me].postgres, Postgres::Primary { .. })
    }

    /// Counts of faults and edits so far.
    pub fn troubles(&self) -> [u8; 4] {
        [self.faults, self.reboots, self.unfit, self.edits]
    }

    /// The member that the Lease names.
    pub fn holder(&self) -> Option<usize> {
        self.lease.holder.map(|(holder, _)| usize::from(holder))
    }
}
