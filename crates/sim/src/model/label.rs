//! Describes what happened.

use std::fmt;

use machine::archive::WalFile;

use super::observe::Effect;
use super::state::{Reply, Task, Wal};

/// What happened, and to which member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The member; `None`: the world.
    pub actor: Option<u8>,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // `Display` describes each.
pub enum What {
    Decides(Effect),
    HandsOverNoMore,
    Done(Task),
    Asks { other: u8, reply: Reply },
    AsksFailsafe { other: u8 },
    SeesLease,
    WriteArrives(bool),
    HearsOfWrite(bool),
    Writes,
    Streams(u8),
    Receives(Wal),
    Flushes,
    Acknowledges(Wal),
    DoesNotHear,
    HearsAgain,
    IsKilled,
    Reboots,
    CannotBePromoted,
    CannotRenew,
    GivesUpWrite,
    LosesWrite,
    DiesPromoting(u8),
    DiesRewinding,
    LeaseIsDeleted,
    LeaseIsScribbled,
    LeaseIsPutRight,
    LeaseIsMadeEmpty,
    Fails(Task),
    LateWriteArrives(bool),
    TimePasses { slow: bool },
    UserWants(u8),
    UserFences(u8),
    UserFencesNobody,
    UserWantsStandbys(u8),
    UserPrefersStandbys(bool),
    UserAcceptsLoss(u8),
    LooksAtArchive,
    Pushes(WalFile),
    ReachesStore(WalFile),
    HearsOfPush(WalFile),
    StrikesOff(WalFile),
    GivesUp(WalFile),
}

impl fmt::Display for Label {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        match self.actor {
            Some(actor) => write!(to, "{actor}: {}", self.what),
            None => write!(to, "{}", self.what),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        match self {
            What::Decides(effect) => write!(to, "{effect}"),
            What::HandsOverNoMore => write!(to, "cancels the handover"),
            What::Done(task) => write!(to, "is done: {task:?}"),
            What::Asks { other, reply } => {
                let position = reply.position.map_or("no position".to_owned(), |wal| wal.to_string());
                let suspects = if reply.suspects { ", suspects" } else { "" };
                write!(to, "asks {other}: promised {}, {position}{suspects}", reply.promised)
            }
            What::AsksFailsafe { other } => write!(to, "gets the promise of {other} not to take the lease"),
            What::SeesLease => write!(to, "sees the Lease"),
            What::WriteArrives(taken) => write!(to, "its write arrives, taken: {taken}"),
            What::HearsOfWrite(taken) => write!(to, "gets the answer to its write, taken: {taken}"),
            What::Writes => write!(to, "writes a record"),
            What::Streams(from) => write!(to, "streams from {from}"),
            What::Receives(wal) => write!(to, "receives {wal}"),
            What::Flushes => write!(to, "flushes"),
            What::Acknowledges(wal) => write!(to, "acknowledges {wal}"),
            What::DoesNotHear => write!(to, "does not hear the primary"),
            What::HearsAgain => write!(to, "hears the primary again"),
            What::IsKilled => write!(to, "its container is killed"),
            What::Reboots => write!(to, "its machine loses power"),
            What::CannotBePromoted => write!(to, "its promotions never end from now on"),
            What::CannotRenew => write!(to, "could not renew in time"),
            What::GivesUpWrite => write!(to, "gives up a write that is still in flight"),
            What::LosesWrite => write!(to, "a write or its answer is lost"),
            What::DiesPromoting(timeline) => write!(to, "its PostgreSQL dies when timeline {timeline} has begun"),
            What::DiesRewinding => write!(to, "its container is killed, and its data is half rewound"),
            What::LeaseIsDeleted => write!(to, "a user deletes the Lease"),
            What::LeaseIsScribbled => write!(to, "a user edits the Lease, and no agent understands it"),
            What::LeaseIsPutRight => write!(to, "a user corrects the edited Lease"),
            What::LeaseIsMadeEmpty => write!(to, "the operator makes an empty Lease"),
            What::Fails(task) => write!(to, "fails: {task:?}"),
            What::LateWriteArrives(taken) => write!(to, "a late write arrives, taken: {taken}"),
            What::TimePasses { slow: false } => write!(to, "time passes"),
            What::TimePasses { slow: true } => write!(to, "time passes, and its clock does not advance"),
            What::UserWants(member) => write!(to, "the user wants {member} to be primary"),
            What::UserFences(member) => write!(to, "the user fences {member}"),
            What::UserFencesNobody => write!(to, "the user fences no instance any more"),
            What::UserWantsStandbys(0) => write!(to, "the user wants commits to wait for no standby"),
            What::UserPrefersStandbys(true) => write!(to, "the user wants commits to wait only for available standbys"),
            What::UserPrefersStandbys(false) => write!(to, "the user wants commits to wait for all that are required"),
            What::UserAcceptsLoss(epoch) => write!(to, "the user accepts a loss in epoch {epoch}"),
            What::LooksAtArchive => write!(to, "looks how far the archive is"),
            What::Pushes(file) => write!(to, "pushes {}", named(*file)),
            What::ReachesStore(file) => write!(to, "{} reaches the store", named(*file)),
            What::HearsOfPush(file) => write!(to, "hears that {} is in the store", named(*file)),
            What::StrikesOff(file) => write!(to, "strikes off {}", named(*file)),
            What::GivesUp(file) => write!(to, "gives up {}", named(*file)),
            What::UserWantsStandbys(number) => write!(to, "the user wants commits to wait for {number}"),
        }
    }
}

/// A file of the archive.
pub(super) fn named(file: WalFile) -> String {
    match file {
        WalFile::History(timeline) => format!("the history of timeline {}", timeline.0),
        WalFile::Segment(segment) => format!("segment {} of timeline {}", segment.number, segment.timeline.0),
        WalFile::Partial(segment) => format!("half of segment {} of timeline {}", segment.number, segment.timeline.0),
        WalFile::BackupNote => "the note about a backup".to_owned(),
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Effect::Begin(task) => write!(to, "begins: {task:?}"),
            Effect::Write { release: true, .. } => write!(to, "releases the lease"),
            Effect::Write { content, .. } => {
                let (epoch, rule) = (content.epoch, content.rule);
                write!(
                    to,
                    "writes the Lease: epoch {epoch}, {} of {:#b}",
                    rule.required, rule.names
                )
            }
            Effect::Ask(epoch) => write!(to, "asks for promises of epoch {epoch}"),
            Effect::AskFailsafe(epoch) => write!(to, "asks the others to leave epoch {epoch} alone"),
            Effect::Kill => write!(to, "kills PostgreSQL"),
            Effect::Stop => write!(to, "stops PostgreSQL"),
        }
    }
}

impl fmt::Display for Wal {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        write!(to, "{}/{}", self.timeline, self.end)
    }
}
