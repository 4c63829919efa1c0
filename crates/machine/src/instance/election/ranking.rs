//! Which member has the most WAL, among those whose answers count (protocol.md rule 9).

use std::collections::BTreeSet;

use crate::instance::facts::Context;
use crate::instance::observed::Promised;
use crate::protocol::{Epoch, LeaseRecord, MemberId, Position, PromiseReply, Timeline};
use crate::timing::BootTime;

/// The members whose positions are missing in a Lease that was made again, to elect `own`.
pub(super) fn unheard<'a>(
    record: &'a LeaseRecord,
    answers: impl Iterator<Item = &'a MemberId>,
    own: &MemberId,
) -> BTreeSet<&'a MemberId> {
    let mut unheard = record.to_be_heard();
    unheard.remove(own);
    for member in answers {
        unheard.remove(member);
    }
    unheard
}

/// The position, if its timeline was reserved in the Lease or is the first one. WAL on any other timeline was not
/// written by a holder of the lease.
pub(super) fn reserved(record: &LeaseRecord, position: Position) -> Option<Position> {
    (position.timeline <= record.timeline.unwrap_or(Timeline(1))).then_some(position)
}

/// The final position of a member that has promised.
pub(super) struct Known<'a> {
    pub(super) member: &'a MemberId,
    pub(super) position: Position,
    /// When it last answered.
    pub(super) at: BootTime,
}

/// Ranks the members that have promised `epoch` and whose final position is known. Returns those that have no more WAL than
/// `own`: their promises count. Of those that have more it returns the one that answered last: the candidate waits for it.
///
/// If the promises that count are enough by the synchronous rule, the surplus WAL of the others has no acknowledged
/// commit (protocol.md rule 9).
pub(super) fn ranked<'a>(
    context: &'a Context,
    record: &LeaseRecord,
    epoch: Epoch,
    own: Position,
) -> (Vec<&'a MemberId>, Option<Known<'a>>) {
    let answers = context.observed.promises.values();
    let known = answers.filter_map(|Promised { reply, at }| {
        Some(Known {
            member: &reply.member,
            position: counted(record, epoch, reply)?,
            at: *at,
        })
    });
    let (level, more): (Vec<_>, Vec<_>) = known.partition(|known| own >= known.position);
    let members = level.into_iter().map(|known| known.member).collect();
    (members, more.into_iter().max_by_key(|known| known.at))
}

/// The final position in this answer, if it promises `epoch`.
pub(super) fn counted(record: &LeaseRecord, epoch: Epoch, reply: &PromiseReply) -> Option<Position> {
    let position = reserved(record, reply.position?)?;
    (reply.promised >= epoch).then_some(position)
}

#[cfg(test)]
mod tests;
