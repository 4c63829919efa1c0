//! A standby that follows the holder, by all that its agent has done, and does not stream: its WAL receiver hangs, a reload was lost, its
//! credential is gone. What it is, is not known here. It is configured again, after ever longer waits, and started again once.

use super::context::Context;
use super::lineage::{Lineage, lineage};
use super::memo::Change;
use super::{Action, Draft, Memo, Mode, Rule, Upstream, Verdict, rejoin, settings, shutdown, standby};
use crate::protocol::Lsn;
use crate::timing::BootTime;

/// For so long PostgreSQL is left to itself, in milliseconds. It tries again 50 ms after a failure, gives up a connection that nobody
/// answers after 10 s (`tcp_user_timeout`: a WAL receiver ignores `connect_timeout`), and one that is silent after the time of suspicion; the WAL sender of before keeps its slot for 5 s, or 10 s if
/// its connection takes nothing; and WAL that the primary has removed is known after 10 s ([`rejoin`]).
const PATIENCE: u64 = 20_000;
/// Each try that did not help doubles that, up to this.
const LONGEST: u64 = 300_000;
/// So many times it is configured again before it is started again: that takes it from its readers.
const CONFIGURED: u32 = 2;

/// A standby that is to stream, and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// Whom it follows.
    pub upstream: Upstream,
    /// What it has replayed.
    pub replayed: Option<Lsn>,
    /// Since when that is so, nothing else keeps it from streaming, and nothing was tried.
    pub since: BootTime,
    /// What was tried so far: so many times it was configured, or started.
    pub tries: u32,
    /// What was known of it then, in words.
    pub said: String,
}

/// Since when it does not stream. What keeps it from that for a known reason begins the time anew; what was tried is forgotten when it
/// streams, and when there is another to follow.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let Some(primary) = standby::upstream(context) else {
        pause(context, memo);
        return;
    };
    let upstream = standby::to_follow(context, primary);
    memo.stalled = memo
        .stalled
        .take()
        .filter(|stalled| !streams(context) && Some(&stalled.upstream) == upstream.as_ref());
    let (true, Some(upstream)) = (is_to_stream(context, memo), upstream) else {
        pause(context, memo);
        return;
    };
    let replayed = context.observed.postgres.answer.and_then(|answer| answer.replayed);
    let before = memo.stalled.take();
    memo.stalled = Some(Stalled {
        upstream,
        replayed,
        since: before
            .as_ref()
            .filter(|before| before.replayed == replayed)
            .map_or(context.now, |before| before.since),
        tries: before.as_ref().map_or(0, |before| before.tries),
        said: before.map(|before| before.said).unwrap_or_default(),
    });
}

fn pause(context: &Context, memo: &mut Memo) {
    if let Some(stalled) = &mut memo.stalled {
        stalled.since = context.now;
    }
}

/// It streams, and hears the primary: a WAL receiver that stands still says that it streams for ever.
fn streams(context: &Context) -> bool {
    context.observed.postgres.answer.is_some_and(|answer| {
        let hears = |heard: BootTime| context.now < heard.plus(PATIENCE);
        answer.streaming && answer.heard.is_none_or(hears)
    })
}

/// The holder serves and says so to this member, which has its slot there, follows it, and has no other work.
fn is_to_stream(context: &Context, memo: &Memo) -> bool {
    let follows = |holder: &crate::protocol::HolderRecord| {
        holder.serving && standby::follows(context, holder) && !streams(context)
    };
    let recovers = context
        .observed
        .postgres
        .answer
        .is_some_and(|answer| answer.in_recovery);
    let gives_way = context.observed.reply.as_ref().is_some_and(|reply| reply.gives_way);
    let tasks = context.tasks();
    let idle = context.starting().is_none() && tasks.configure.running.is_none() && tasks.promise.running.is_none();
    let stops = context.stop_intended() || context.fenced() || context.observed.terminating || memo.stopping.is_some();
    standby::upstream(context).is_some_and(follows)
        && context.running() == Some(Mode::Standby)
        && lineage(context) == Lineage::Follows
        && recovers
        && idle
        && standby::is_admitted(context)
        && rejoin::is_heard(context)
        && !(gives_way || stops)
        && memo.misses_wal.is_none()
        && memo.suspected.is_none()
}

pub(super) const FOLLOW_AGAIN: Rule = Rule {
    name: "follow-again",
    family: "stalled",
    what: "Configures a standby again that should stream and does not; after two tries it is restarted.",
    protocol: &[],
    decide: follow_again,
};

/// Configures it again, or starts it again: only while PostgreSQL itself waits for WAL. One that replays what it has opens no stream.
fn follow_again(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    const BECAUSE: &str = "it follows the primary, and has not streamed for long";
    let stalled = draft.memo.stalled.clone()?;
    if stalled.tries > CONFIGURED && draft.memo.stopping.is_some() && context.running() == Some(Mode::Standby) {
        // The stop is under way: harder, if it takes too long.
        return shutdown::stop(context, draft, BECAUSE);
    }
    let wait = (PATIENCE << stalled.tries.min(8)).min(LONGEST);
    let waits = context
        .observed
        .postgres
        .answer
        .is_some_and(|answer| answer.waits_for_wal);
    if !context.reached(stalled.since.plus(wait), draft) || !waits {
        return None;
    }
    let settings = settings::to_start_with(context)?;
    let upstream = Some(stalled.upstream.clone());
    let starts = stalled.tries == CONFIGURED;
    let tried = Stalled {
        since: context.now,
        tries: stalled.tries.saturating_add(1),
        said: said(context),
        ..stalled
    };
    let verdict = match starts {
        true => shutdown::stop(context, draft, BECAUSE),
        false => Verdict::new(Action::Configure { settings, upstream }, BECAUSE),
    };
    verdict.map(|verdict| verdict.and(Change::FollowsAgain(tried)))
}

fn said(context: &Context) -> String {
    let configure = &context.tasks().configure;
    match (&configure.error, &context.observed.postgres.receiver) {
        (Some(error), _) if configure.failures > 0 => format!("its settings could not be changed: {error}"),
        (_, Some(status)) => format!("PostgreSQL says of its WAL receiver: {status}"),
        (_, None) => "PostgreSQL had no WAL receiver".to_owned(),
    }
}

/// It did not stream, something was tried, and it does not yet.
pub(super) fn fault(context: &Context, memo: &Memo) -> Option<String> {
    let stalled = memo.stalled.as_ref().filter(|stalled| stalled.tries > 0)?;
    let primary = &standby::upstream(context)?.incarnation.pod;
    let tried = match stalled.tries > CONFIGURED {
        true => "configured and started again",
        false => "configured again",
    };
    Some(format!(
        "it does not stream from {primary}, which serves and has a slot for it ({}); it was {tried}, and that goes on; PostgreSQL's log \
         of this instance and of {primary} says why, and whoever ends that cause ends this",
        stalled.said
    ))
}

#[cfg(test)]
mod tests;
