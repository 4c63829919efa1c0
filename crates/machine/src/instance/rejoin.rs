//! Data that cannot follow the primary. Diverged data is rewound, or moved aside and copied again (protocol.md rule
//! 17). Data that needs WAL that the primary has removed gets it from the archive, or is copied again.

use super::archive;
use super::facts::Context;
use super::facts::following::{FRESH, is_admitted, is_heard, to_follow, upstream, was_primary};
use super::facts::lineage::{Lineage, lineage};
use super::identity::volume_is_free;
use super::lease_rules::FORKS;
use super::memo::Change;
use super::{
    Action, Copied, Draft, Fetched, Memo, MissingWal, Mode, OnBackoff, Process, Rewound, Rule, RuleKind, Verdict,
    report, standby, stopping,
};
use crate::protocol::{Lsn, MemberState, Position};
use crate::timing::BootTime;
use crate::units::Millis;

/// After this many failures in a row the data is copied again. A primary that restarts refuses rewinds for some
/// seconds.
const REWINDS: u32 = 6;

/// How long after a successful rewind that changed nothing the next one begins. In PostgreSQL 15 a rewind changes
/// nothing before the source's first checkpoint on its timeline.
const AGAIN: Millis = Millis(200);
/// How long such rewinds are repeated before the data is copied again. `pg_rewind` compares control files and may never
/// see a difference. A checkpoint of a large, slow primary takes minutes.
const UNCHANGED: Millis = Millis::minutes(10);

/// How long a rewind waits for the primary to serve. Its standbys receive what is in doubt in a moment, or cannot.
const OPENS: Millis = Millis::seconds(10);
/// The same once the primary says that it waits for this member. A standby that can stream begins within half a second.
const STREAMS: Millis = Millis::seconds(2);

/// How long a member must miss WAL before it is copied again. This is longer than an outdated view of a primary that is
/// just changing.
const MISSES: Millis = Millis::seconds(10);

/// How many times WAL is fetched for data whose recovery begins at the same place.
const FETCHES: u32 = 3;

/// True if the data's timeline is older than the history in the Lease: whether it is part of the primary's history is
/// no longer known.
fn is_forgotten(context: &Context) -> bool {
    let Some(record) = context.record().filter(|record| record.history.len() >= FORKS) else {
        return false;
    };
    let own = context.database().map(|database| database.timeline);
    record.history.first().is_some_and(|oldest| own < Some(oldest.timeline))
}

/// Whether the primary has removed WAL after `end`, by an answer to a report that was sent after `since`; `None` if it
/// does not say.
fn is_removed(context: &Context, end: Lsn, since: BootTime) -> Option<bool> {
    let (reply, record) = (context.observed.reply.as_ref()?, context.record()?);
    let fresh = context.now.since(reply.sent) < FRESH && reply.sent > since;
    let said = reply
        .oldest
        .filter(|_| fresh && reply.epoch == record.epoch && is_admitted(context));
    said.map(|oldest| end < oldest)
}

/// Remembers since when WAL is missed. After a standby has stopped, this still holds for its data, until the data is
/// gone or the primary no longer confirms it.
///
/// The count ends with an answer that the WAL exists, WAL that this member has received since, another primary, other
/// data, or a fence. An answer that does not say ends it only after a while: a standby that misses WAL connects five
/// times a second and is often seen with its slot in use. A standby that answers no questions may have received what it
/// missed if that lasts for [`FRESH`]; of one that answers, the end is known.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let epoch = context.record().map(|record| record.epoch);
    let closed = upstream(context).is_some_and(|holder| holder.timeline.is_some() && !holder.serving);
    let known = memo.closed.filter(|(of, _)| Some(*of) == epoch);
    memo.closed = known.or(epoch.map(|epoch| (epoch, context.now))).filter(|_| closed);
    let answer = context
        .observed
        .postgres
        .answer
        .filter(|_| context.running() == Some(Mode::Standby));
    // A position that only now includes WAL from before proves no stream.
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
            // Its slot is in use, for a moment or by a lasting stream, which brings more WAL.
            None => before.filter(|_| is_heard(context)),
        },
        // Before its data is consistent it answers no questions. While it has received nothing, its WAL is what is on
        // the volume.
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

/// The primary's last answer whether it has removed WAL after `end`; and that end.
fn missing_after(context: &Context, end: Lsn) -> Option<(bool, Lsn)> {
    is_removed(context, end, BootTime(0)).map(|removed| (removed, end))
}

/// True for a standby that has never answered a question while streaming.
fn starves(context: &Context) -> bool {
    let postgres = &context.observed.postgres;
    context.running() == Some(Mode::Standby) && context.starting().is_none() && !postgres.streamed
}

/// When PostgreSQL ended.
fn stopped_at(context: &Context) -> BootTime {
    match context.observed.postgres.process {
        Process::Stopped { exit: Some(exit) } => exit.at,
        Process::Stopped { exit: None } | Process::Running { .. } => BootTime(0),
    }
}

/// True if this member misses removed WAL, which no stream brings.
fn is_left_behind(context: &Context, draft: &mut Draft) -> bool {
    let Some(missing) = draft.memo.misses_wal else {
        return false;
    };
    context.reached(missing.since.plus(MISSES), draft)
}

/// Fetches the WAL from the archive, or else moves the data aside, once the primary, asked again after PostgreSQL stopped here, has confirmed that it lives and
/// has removed the WAL. Until then it is asked again. Data that may have commits of a primary is quarantined.
fn catch_up(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let stopped = stopped_at(context);
    // The end of the WAL that exists: not the replayed position, which may be far behind; and not the position that it
    // must reach to be consistent, because it may never have had that WAL.
    let end = context.database()?.written;
    let held = context.expires_at().is_some_and(|expiry| context.now < expiry);
    if !held || is_removed(context, end, stopped) != Some(true) {
        draft.wake(stopped.plus(FRESH));
        return report::send(context, draft).or_else(|| Verdict::wait("the primary is asked again which WAL it has"));
    }
    if let Some((fetch, fetched)) = archive::fetch(context, end).zip(next_fetch(context, draft.memo.fetched)) {
        return Verdict::noting(
            Action::FetchWal(fetch),
            "the primary has removed WAL that this member needs, and the archive has it",
            [Change::Fetches(fetched)],
        );
    }
    // The same holds for commits that a primary acknowledged without a standby.
    let rule = &context.record()?.rule;
    let keep = !rule.is_synchronous() || rule.names.contains(&context.member()?.id);
    Verdict::new(
        Action::SetAside { keep },
        "the primary has removed WAL that this member needs, and has all WAL that this member has: it is copied again",
    )
}

/// What is noted of the next fetch; `None` if the last one brought nothing, or if replay has begun at the same place too often: a copy is
/// quicker then.
fn next_fetch(context: &Context, last: Option<Fetched>) -> Option<Fetched> {
    let database = context.database()?;
    let next = Fetched {
        from: database.written,
        checkpoint: database.checkpoint,
        rounds: 1,
    };
    match last {
        Some(last) if last.from == next.from => None,
        Some(last) if last.checkpoint == next.checkpoint => {
            let rounds = last.rounds + 1;
            (rounds <= FETCHES).then_some(Fetched { rounds, ..next })
        }
        Some(_) | None => Some(next),
    }
}

pub(super) const STOP_DIVERGED: Rule = Rule {
    name: "stop-diverged",
    family: "rejoin",
    what: "Stops a standby that cannot follow the primary, so that it can be rewound, get WAL from the archive, or be copied again.",
    protocol: &[17],
    kind: RuleKind::Act,
    decide: stop_diverged,
    on_backoff: OnBackoff::Yield,
};

fn stop_diverged(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    if context.running() != Some(Mode::Standby) || context.starting().is_some() {
        return None;
    }
    let needed = standby::needed_since(context, draft.memo).is_some();
    let because = match lineage(context) {
        // A stop that was begun is finished: until then the member answers no questions and is not started again.
        _ if needed && draft.memo.stopping.is_some() => {
            return stopping::stop(
                context,
                draft,
                "the stop takes too long, and an election may need this member",
            );
        }
        // No primary exists to rewind it to, and an election may need its WAL.
        Lineage::Diverged { .. } if needed => return None,
        Lineage::Diverged { timeline } => format!("the data diverged on timeline {}: it must be rewound", timeline.0),
        Lineage::Follows if is_left_behind(context, draft) => {
            "the primary has removed WAL that this member needs".to_owned()
        }
        Lineage::Follows | Lineage::Unknown => return None,
    };
    stopping::stop(context, draft, because)
        .or_else(|| Verdict::wait("PostgreSQL is stopping, to follow the primary again"))
}

/// True if the primary is about to serve: as many others as commits wait for follow it, and will flush what is in
/// doubt. Until then this data may be the only other copy of an acknowledged commit, and an interrupted rewind would
/// destroy it. If too few follow, the primary may wait for this member. The Lease shows that late, because members that
/// were lost with the old primary are still in it as before. The primary itself reports which members receive nothing
/// from it ([`super::durability::awaits`]).
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
    what: "Rewinds diverged data to the primary, and gets WAL that the primary has removed from the archive; data for which that fails is moved aside, to be copied again.",
    protocol: &[10, 17],
    kind: RuleKind::Act,
    decide: rewind,
    on_backoff: OnBackoff::Yield,
};

/// Rewinds diverged data. After failures, or an interrupted rewind, moves it aside to be copied again.
fn rewind(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let primary = upstream(context)?;
    let volume = context.volume()?;
    let member = volume.member.as_ref()?;
    let database = context.database()?;
    let diverged = matches!(lineage(context), Lineage::Diverged { .. });
    let left_behind = is_left_behind(context, draft);
    if !(diverged || volume.rewinding || left_behind) || primary.timeline.is_none() || !is_admitted(context) {
        return None;
    }
    // It would fail again and again, and in the end move aside data that an election may need.
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
    let upstream = to_follow(context, primary)?;
    if !(diverged || volume.rewinding) {
        return catch_up(context, draft);
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
    // An interrupted rewind has mixed two histories, so only a copy helps. Data that is too old would stay unchanged by
    // each rewind.
    if volume.rewinding || task.failures >= REWINDS || unchanged || is_forgotten(context) {
        // This volume may have the only copy of commits that the primary acknowledged alone.
        let keep = was_primary(context) || may_be_needed;
        return Verdict::new(
            Action::SetAside { keep },
            "the data cannot be rewound: it is moved aside, to be copied again",
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
        true => ", and may have commits that exist nowhere else: a copy of its WAL is kept",
        false => "",
    };
    Verdict::noting(
        action,
        format!("the data diverged from that of {}{because}", primary.incarnation.pod),
        [Change::Rewinds(rewound), Change::Copies(Some(copied))],
    )
}

#[cfg(test)]
mod tests;
