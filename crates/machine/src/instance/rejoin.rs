//! Data that cannot follow the primary. It went another way: it is rewound, or set aside and copied anew (protocol.md rule 17).
//! It was left behind, by WAL that the primary has removed: it is copied anew.

use super::context::Context;
use super::copying::Copied;
use super::identity::volume_is_free;
use super::lineage::{Lineage, lineage};
use super::memo::Change;
use super::{Action, Draft, Memo, Mode, Process, Rule, Verdict, report, shutdown, standby};
use crate::protocol::{Epoch, Lsn, MemberState, Position};
use crate::timing::BootTime;

/// So many failures in a row, and the data is copied anew: a primary that restarts refuses rewinds for some seconds.
const REWINDS: u32 = 6;

/// A rewind that has ended well and changed nothing is made again so much later, in milliseconds: PostgreSQL 15's does so before the
/// source's first checkpoint on its timeline.
const AGAIN: u64 = 200;
/// For so long that may go on, in milliseconds, before the data is copied anew: `pg_rewind` goes by the control file, and may never
/// see a need for it. A checkpoint of a large, slow primary takes minutes.
const UNCHANGED: u64 = 600_000;

/// For so long a rewind waits for the primary to serve, in milliseconds: what is in doubt is sent to its standbys in a moment, or
/// they are not able to.
const OPENS: u64 = 10_000;
/// The same once the primary says that it waits for this very member, in milliseconds: who is able to begins to stream within half a
/// second.
const STREAMS: u64 = 2_000;

/// So many changes of timeline the Lease remembers: 25 KiB of the 256 that an object's annotations may have. Whose data is of
/// an older one has been away for so many changes of the primary.
pub(super) const FORKS: usize = 500;

/// For so long a member must miss WAL before it is copied anew, in milliseconds: longer than a view of the primary that is
/// just changing.
const MISSES: u64 = 10_000;
/// For so long an answer of the primary says which WAL it has, in milliseconds.
const FRESH: u64 = 5_000;

/// A rewind was begun of this data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rewound {
    /// In which epoch.
    pub epoch: Epoch,
    /// Where the data was, by its control file.
    pub data: Position,
    /// Since when.
    pub since: BootTime,
}

/// A member needs WAL that the primary has removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MissingWal {
    /// In which epoch.
    pub epoch: Epoch,
    /// Since when.
    pub since: BootTime,
    /// Where this member's WAL ended when the primary last said so: once it has more, it receives.
    pub end: Lsn,
    /// When the primary was asked that last said so.
    pub confirmed: BootTime,
}

/// The data is of a timeline from before all that the Lease remembers: whether it is part of the history is not known any more.
fn is_forgotten(context: &Context) -> bool {
    let Some(record) = context.record().filter(|record| record.history.len() >= FORKS) else {
        return false;
    };
    let own = context.database().map(|database| database.timeline);
    record.history.first().is_some_and(|oldest| own < Some(oldest.timeline))
}

/// Whether the primary has removed WAL after `end`, by an answer of its that was asked for after `since`; `None` if it does not
/// say.
fn is_removed(context: &Context, end: Lsn, since: BootTime) -> Option<bool> {
    let (reply, record) = (context.observed.reply.as_ref()?, context.record()?);
    let fresh = context.now.since(reply.sent) < FRESH && reply.sent > since;
    let said = reply
        .oldest
        .filter(|_| fresh && reply.epoch == record.epoch && standby::is_admitted(context));
    said.map(|oldest| end < oldest)
}

/// Since when WAL is missed. What a standby has missed holds for its data, until that is gone or the primary does not confirm it.
///
/// What ends the count: an answer that its WAL is there, WAL that this member has received since, another primary, other data, a
/// fence. An answer that does not say ends it not at once: a standby that misses WAL connects five times a second, and is often
/// seen while it uses its slot. One that answers nobody may have received what it missed, if that lasts for [`FRESH`]: of one that
/// answers, the end is known as it is now.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let epoch = context.record().map(|record| record.epoch);
    let closed = standby::upstream(context).is_some_and(|holder| holder.timeline.is_some() && !holder.serving);
    let known = memo.closed.filter(|(of, _)| Some(*of) == epoch);
    memo.closed = known.or(epoch.map(|epoch| (epoch, context.now))).filter(|_| closed);
    let answer = context
        .observed
        .postgres
        .answer
        .filter(|_| context.running() == Some(Mode::Standby));
    // A position that grows by what was received before says nothing.
    let position = answer
        .filter(|answer| answer.knows_end)
        .and_then(|answer| answer.position);
    let receives = |missing: &MissingWal| position.is_some_and(|own| own.lsn > missing.end);
    let before = memo
        .misses_wal
        .filter(|missing| Some(missing.epoch) == epoch && !receives(missing));
    let confirmed = before.filter(|missing| context.now.since(missing.confirmed) < FRESH);
    let missed = |epoch, end| MissingWal {
        epoch,
        since: before.map_or(context.now, |missing| missing.since),
        end,
        confirmed: context.observed.reply.as_ref().map_or(context.now, |reply| reply.sent),
    };
    let lineage = lineage(context);
    memo.misses_wal = match (epoch, answer) {
        _ if context.fenced() || matches!(lineage, Lineage::Diverged { .. }) => None,
        _ if lineage == Lineage::Unknown => confirmed,
        (Some(epoch), Some(_)) => match position.and_then(|own| missing_after(context, own.lsn)) {
            Some((true, end)) => Some(missed(epoch, end)),
            Some((false, _)) => None,
            // Its slot is in use, for a moment or by a stream that lasts: that one brings more.
            None => before.filter(|_| is_heard(context)),
        },
        // Before its data is consistent it answers nobody; as long as it has received nothing, what it has is on the volume.
        (Some(epoch), None) if starves(context) => {
            match context.database().and_then(|own| missing_after(context, own.written)) {
                Some((true, end)) => Some(missed(epoch, end)),
                Some((false, _)) => None,
                None => confirmed,
            }
        }
        _ if context.alive() => before,
        _ => before.filter(|_| context.database().is_some() && context.now < stopped_at(context).plus(FRESH)),
    };
}

/// Whether the primary has removed WAL after `end`, as it said last; and that end.
fn missing_after(context: &Context, end: Lsn) -> Option<(bool, Lsn)> {
    is_removed(context, end, BootTime(0)).map(|removed| (removed, end))
}

/// A standby that has never answered as one that streams.
fn starves(context: &Context) -> bool {
    let postgres = &context.observed.postgres;
    context.running() == Some(Mode::Standby) && context.starting().is_none() && !postgres.streamed
}

/// The primary has answered lately.
pub(super) fn is_heard(context: &Context) -> bool {
    let reply = context.observed.reply.as_ref();
    reply.is_some_and(|reply| context.now.since(reply.sent) < FRESH)
}

/// When PostgreSQL ended.
fn stopped_at(context: &Context) -> BootTime {
    match context.observed.postgres.process {
        Process::Stopped { exit: Some(exit) } => exit.at,
        Process::Stopped { exit: None } | Process::Running { .. } => BootTime(0),
    }
}

/// This member was left behind, and only a new copy helps.
fn is_left_behind(context: &Context, draft: &mut Draft) -> bool {
    let Some(missing) = draft.memo.misses_wal else {
        return false;
    };
    context.reached(missing.since.plus(MISSES), draft)
}

/// Its data goes, once the primary has said again, after PostgreSQL has stopped here, that it lives and has removed the WAL; until
/// then it is asked. Data that commits may still wait for is kept.
fn copy_anew(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let stopped = stopped_at(context);
    // Not what it has replayed, which may be far behind; nor what it would have to reach, to be consistent: it may never have had
    // that.
    let end = context.database()?.written;
    let held = context.expires_at().is_some_and(|expiry| context.now < expiry);
    if !held || is_removed(context, end, stopped) != Some(true) {
        draft.wake(stopped.plus(FRESH));
        return report::send(context, draft).or_else(|| Verdict::wait("the primary is asked again which WAL it has"));
    }
    // So are commits that were acknowledged by a primary alone.
    let rule = &context.record()?.rule;
    let keep = !rule.is_synchronous() || rule.names.contains(&context.member()?.id);
    Verdict::new(
        Action::SetAside { keep },
        "the primary has removed WAL that this member needs, and has all that this member has: it is copied anew",
    )
}

pub(super) const STOP_DIVERGED: Rule = Rule {
    name: "stop-diverged",
    family: "rejoin",
    what: "Stops a standby that cannot follow the primary, so that it can be rewound or copied again.",
    protocol: &[17],
    decide: stop_diverged,
};

/// Stops a standby that cannot follow the primary: it is to be rewound, or copied anew.
fn stop_diverged(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    if context.running() != Some(Mode::Standby) || context.starting().is_some() {
        return None;
    }
    let needed = standby::needed_since(context, draft.memo).is_some();
    let because = match lineage(context) {
        // What was begun is ended: until then it answers nobody, and is not started again.
        _ if needed && draft.memo.stopping.is_some() => {
            return shutdown::stop(
                context,
                draft,
                "a stop that was begun takes too long, and an election may need this member",
            );
        }
        // Nobody is there to rewind it to, and what it has may be needed.
        Lineage::Diverged { .. } if needed => return None,
        Lineage::Diverged { timeline } => format!(
            "the data went another way on timeline {}: it is to be rewound",
            timeline.0
        ),
        Lineage::Follows if is_left_behind(context, draft) => {
            "the primary has removed WAL that this member needs: it is to be copied anew".to_owned()
        }
        Lineage::Follows | Lineage::Unknown => return None,
    };
    shutdown::stop(context, draft, because)
        .or_else(|| Verdict::wait("PostgreSQL is stopping, to follow the primary again"))
}

/// The primary is about to serve: as many others as commits wait for follow it, and are to flush what is in doubt. Until then this
/// data may be the only other copy of a commit that was acknowledged, and a rewind that is broken off destroys it. If too few follow,
/// it may be this member that the primary waits for. By the Lease that is known late: who was lost with the primary of before stands
/// there as it was. The primary itself says who receives nothing from it ([`super::durability::awaits`]).
fn opens_soon(context: &Context, draft: &mut Draft) -> bool {
    let (Some((_, since)), Some(record), Some(own)) = (draft.memo.closed, context.record(), context.member()) else {
        return false;
    };
    let others = record.members.values().filter(|report| {
        let follows = matches!(report.state, MemberState::Streaming | MemberState::CatchingUp);
        let named = report.member != own.id && record.rule.names.contains(&report.member);
        named && follows && report.fault.is_none()
    });
    let reply = context.observed.reply.as_ref();
    let awaited = reply.is_some_and(|reply| reply.awaits && reply.sent >= since.plus(STREAMS));
    others.count() >= record.rule.required && !awaited && !context.reached(since.plus(OPENS), draft)
}

pub(super) const REWIND: Rule = Rule {
    name: "rewind",
    family: "rejoin",
    what: "Rewinds diverged data to the primary; data that cannot be rewound or lacks removed WAL is moved aside, to be copied again.",
    protocol: &[10, 17],
    decide: rewind,
};

/// Rewinds diverged data; after failures, or when a rewind was broken off, moves it aside, to be copied anew.
fn rewind(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let primary = standby::upstream(context)?;
    let volume = context.volume()?;
    let member = volume.member.as_ref()?;
    let database = context.database()?;
    let diverged = matches!(lineage(context), Lineage::Diverged { .. });
    let left_behind = is_left_behind(context, draft);
    if !(diverged || volume.rewinding || left_behind) || primary.timeline.is_none() || !standby::is_admitted(context) {
        return None;
    }
    // It would fail again and again, and in the end move aside what an election may need.
    if diverged && !volume.rewinding && draft.memo.suspected.is_some() {
        return None;
    }
    if diverged && opens_soon(context, draft) {
        return None;
    }
    if !context.at_rest()
        || !context.knows_data()
        || context.stop_intended()
        || !context.is_our_data()
        || !volume_is_free(context, draft)
    {
        return None;
    }
    let upstream = standby::to_follow(context, primary)?;
    if !(diverged || volume.rewinding) {
        return copy_anew(context, draft);
    }
    let task = &context.tasks().volume;
    let data = Position {
        timeline: database.timeline,
        lsn: database.checkpoint,
    };
    let before = draft
        .memo
        .rewound
        .filter(|before| (before.epoch, before.data) == (upstream.epoch, data));
    let since = before.map_or(context.now, |before| before.since);
    if before.is_some() && task.failures == 0 && !context.reached(task.ended.plus(AGAIN), draft) {
        return None;
    }
    let unchanged = context.now >= since.plus(UNCHANGED);
    let record = context.record()?;
    let may_be_needed = record.may_have_lost(database.timeline);
    // A rewind that was broken off has mixed two histories; only a copy helps. Data that is too old would be left as it is by a
    // rewind, again and again.
    if volume.rewinding || task.failures >= REWINDS || unchanged || is_forgotten(context) {
        // Commits that were acknowledged by the primary alone may be on this volume only.
        let keep = standby::was_primary(context) || may_be_needed;
        return Verdict::new(
            Action::SetAside { keep },
            "the data cannot be rewound: it is moved aside, to be copied anew",
        );
    }
    let rewound = Rewound {
        epoch: upstream.epoch,
        data,
        since,
    };
    let copied = Copied::of(&primary.incarnation.member);
    let action = Action::Rewind {
        upstream,
        member: member.id.clone(),
        keep: may_be_needed.then(|| record.history.clone()),
    };
    let because = match may_be_needed {
        true => ", and may have commits that nobody else has: its WAL is kept",
        false => "",
    };
    Verdict::noting(
        action,
        format!("the data went another way than {}{because}", primary.incarnation.pod),
        [Change::Rewinds(rewound), Change::Copies(Some(copied))],
    )
}

#[cfg(test)]
mod tests;
