//! A standby that should stream from the holder, by all that its agent has done, and does not: its WAL receiver hangs,
//! a reload was lost, or its credential is missing. The cause is not known here. The standby is configured again, after
//! growing back-offs, and restarted once.

use super::facts::Context;
use super::facts::following::{follows, is_admitted, is_heard, to_follow, to_start_with, upstream};
use super::facts::lineage::{Lineage, lineage};
use super::memo::Change;
use super::{Action, Draft, Memo, Mode, OnBackoff, Rule, RuleKind, Stalled, Verdict, stopping};
use crate::timing::BootTime;
use crate::units::Millis;

/// How long PostgreSQL has to solve this by itself. It retries 50 ms after a failure. It gives up an unanswered
/// connection after 10 s (`tcp_user_timeout`: a WAL receiver ignores `connect_timeout`), and a silent one after the
/// time of suspicion. The old WAL sender keeps its slot for 5 s, or for 10 s if its connection accepts nothing. WAL
/// that the primary has removed is known after 10 s ([`super::rejoin`]).
const LIMIT: Millis = Millis::seconds(20);
/// Each unsuccessful try doubles that time, up to this.
const LONGEST: Millis = Millis::minutes(5);
/// How often it is configured again before it is restarted, because a restart disconnects its readers.
const CONFIGURED: u32 = 2;

/// Remembers since when it does not stream. A known reason not to stream restarts the count. The tries are forgotten
/// when it streams, or when it has another primary to follow.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let Some(primary) = upstream(context) else {
        pause(context, memo);
        return;
    };
    let upstream = to_follow(context, primary);
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

/// True if it streams and hears the primary. A hung WAL receiver reports `streaming` for ever.
fn streams(context: &Context) -> bool {
    context.observed.postgres.answer.is_some_and(|answer| {
        let hears = |heard: BootTime| context.now < heard.plus(LIMIT);
        answer.streaming && answer.heard.is_none_or(hears)
    })
}

/// True if the holder serves and says so to this member, which has its slot there, follows it, and has no other work.
fn is_to_stream(context: &Context, memo: &Memo) -> bool {
    let follows =
        |holder: &crate::protocol::HolderRecord| holder.serving && follows(context, holder) && !streams(context);
    let recovers = context
        .observed
        .postgres
        .answer
        .is_some_and(|answer| answer.in_recovery);
    let steps_down = context.observed.reply.as_ref().is_some_and(|reply| reply.steps_down);
    let tasks = context.tasks();
    let idle = context.starting().is_none() && tasks.configure.running.is_none() && tasks.promise.running.is_none();
    let stops = context.stop_intended() || context.fenced() || context.observed.terminating || memo.stopping.is_some();
    upstream(context).is_some_and(follows)
        && context.running() == Some(Mode::Standby)
        && lineage(context) == Lineage::Follows
        && recovers
        && idle
        && is_admitted(context)
        && is_heard(context)
        && !(steps_down || stops)
        && memo.misses_wal.is_none()
        && memo.suspected.is_none()
}

pub(super) const FOLLOW_AGAIN: Rule = Rule {
    name: "follow-again",
    family: "stalled",
    what: "Configures a standby again that should stream and does not; after two tries it is restarted.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: follow_again,
    on_backoff: OnBackoff::Yield,
};

/// Only while PostgreSQL itself waits for WAL: a standby that replays existing WAL opens no stream.
fn follow_again(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    const BECAUSE: &str = "it follows the primary, but has not streamed for long";
    let stalled = draft.memo.stalled.clone()?;
    if stalled.tries > CONFIGURED && draft.memo.stopping.is_some() && context.running() == Some(Mode::Standby) {
        // The stop is under way: it is escalated if it takes too long.
        return stopping::stop(context, draft, BECAUSE);
    }
    let wait = LIMIT.doubled(stalled.tries, LONGEST);
    let waits = context
        .observed
        .postgres
        .answer
        .is_some_and(|answer| answer.waits_for_wal);
    if !context.reached(stalled.since.plus(wait), draft) || !waits {
        return None;
    }
    let settings = to_start_with(context)?;
    let upstream = Some(stalled.upstream.clone());
    let starts = stalled.tries == CONFIGURED;
    let tried = Stalled {
        since: context.now,
        tries: stalled.tries.saturating_add(1),
        said: said(context),
        ..stalled
    };
    let verdict = match starts {
        true => stopping::stop(context, draft, BECAUSE),
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

/// The fault text of a standby that did not stream, was configured or restarted, and still does not.
pub(super) fn fault(context: &Context, memo: &Memo) -> Option<String> {
    let stalled = memo.stalled.as_ref().filter(|stalled| stalled.tries > 0)?;
    let primary = &upstream(context)?.incarnation.pod;
    let tried = match stalled.tries > CONFIGURED {
        true => "configured and started again",
        false => "configured again",
    };
    Some(format!(
        "it does not stream from {primary}, which serves and has a slot for it ({}); it was {tried}, and is still without a stream; PostgreSQL's log \
         of this instance and of {primary} says why: correct that cause",
        stalled.said
    ))
}

#[cfg(test)]
mod tests;
