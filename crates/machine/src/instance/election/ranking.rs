//! Which member has most WAL, of those whose answer counts (protocol.md rule 9).

use std::collections::BTreeSet;

use crate::instance::context::Context;
use crate::instance::observed::Promised;
use crate::protocol::{Epoch, LeaseRecord, MemberId, Position, PromiseReply, Timeline};
use crate::timing::BootTime;

/// Whose position a Lease that was made again lacks, to elect `own`.
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

/// Its timeline was reserved in the Lease, or is the first one: WAL on any other was written by nobody who held the lease.
pub(super) fn reserved(record: &LeaseRecord, position: Position) -> Option<Position> {
    (position.timeline <= record.timeline.unwrap_or(Timeline(1))).then_some(position)
}

/// The final position of a member that has promised.
pub(super) struct Known<'a> {
    pub(super) member: &'a MemberId,
    pub(super) position: Position,
    /// When it answered last.
    pub(super) at: BootTime,
}

/// Of the members that have promised `epoch` and whose final position is known: those that have no more than `own`, and of the others the one
/// that has answered last. Whatever these have, an election that counts none of them loses nothing.
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
