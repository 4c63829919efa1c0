//! A standby that follows the holder, by all that its agent has done, and does not stream: its WAL receiver hangs, a reload was lost, its
//! credential is gone. What it is, is not known here. It is configured again, after ever longer waits, and started again once.

use super::context::Context;
use super::lineage::{Lineage, lineage};
use super::{Action, Draft, Memo, Mode, Upstream, Verdict, rejoin, settings, shutdown, standby};
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

/// Configures it again, or starts it again: only while PostgreSQL itself waits for WAL. One that replays what it has opens no stream.
pub(super) fn follow_again(context: &Context, draft: &mut Draft) -> Option<Verdict> {
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
    draft.memo.stalled = Some(Stalled {
        since: context.now,
        tries: stalled.tries.saturating_add(1),
        said: said(context),
        ..stalled
    });
    let starts = stalled.tries == CONFIGURED;
    match starts {
        true => shutdown::stop(context, draft, BECAUSE),
        false => Verdict::new(Action::Configure { settings, upstream }, BECAUSE),
    }
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
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::*;
    use proptest::prelude::*;

    /// A standby at `now` that follows `orders-1`, which it hears, and has no stream.
    fn stalls(now: u64) -> Observed {
        let mut observed = streaming(now);
        let own = observed.postgres.answer.as_mut().unwrap();
        (own.streaming, own.waits_for_wal) = (false, true);
        observed
    }

    fn streaming(now: u64) -> Observed {
        let mut observed = standby();
        (observed.lease.changed, observed.contact.heard) = (BootTime(now), Some(BootTime(now)));
        observed.reply.as_mut().unwrap().sent = BootTime(now - 500);
        observed.tasks.report.running = Some(Work::Report);
        observed
    }

    /// What the rule did, and when, if `observe` is what is seen each second. (That a stop is made harder, whoever asked for it, is no deed.)
    fn course(until: u64, mut observe: impl FnMut(u64) -> Observed) -> (Vec<(u64, Option<Work>)>, Memo) {
        let (mut memo, mut did, mut down) = (settled(), Vec::new(), false);
        for now in (2_000..until).step_by(1_000) {
            let mut observed = observe(now);
            if down {
                observed.postgres = stopped();
            }
            let decision = decide(&observed, &memo, BootTime(now));
            down = false;
            let harder = matches!(decision.action, Action::Stop(Stop::Immediate | Stop::Kill));
            if decision.rule == "follow again" && !harder {
                down = matches!(decision.action, Action::Stop(_));
                did.push((now, decision.action.work()));
            }
            memo = decision.memo;
        }
        (did, memo)
    }

    #[test]
    fn it_is_configured_again_ever_less_often_and_started_again_once() {
        let (did, memo) = course(700_000, stalls);
        let configure = Some(Work::Configure);
        let expected = [
            (22_000, configure),
            (62_000, configure),
            (142_000, None),
            (303_000, configure),
            (603_000, configure),
        ];
        assert_eq!(did, expected);
        let fault = |memo: &Memo| {
            report::status(&stalls(700_000), memo, BootTime(700_000))
                .unwrap()
                .report
                .fault
        };
        let words = fault(&memo).unwrap();
        assert!(
            words.contains("orders-1") && words.contains("no WAL receiver"),
            "{words}"
        );
        assert!(words.contains("configured and started again"), "{words}");
        let mut configured = memo.clone();
        configured.stalled.as_mut().unwrap().tries = CONFIGURED;
        let words = fault(&configured).unwrap();
        assert!(words.contains("it was configured again"), "{words}");
        let begins = decide(&stalls(2_000), &settled(), BootTime(2_000));
        assert_eq!(fault(&begins.memo), None, "nothing was tried");
        assert!(begins.wake.is_some_and(|wake| wake <= BootTime(2_000 + PATIENCE)));
        let again = decide(&streaming(700_500), &memo, BootTime(700_500));
        assert_eq!(again.memo.stalled, None, "it streams");
    }

    #[test]
    fn what_is_configured_is_whom_it_follows() {
        let begun = decide(&stalls(2_000), &settled(), BootTime(2_000)).memo;
        let mut observed = stalls(22_000);
        observed.postgres.receiver = Some("starting".to_owned());
        let decision = decide(&observed, &begun, BootTime(22_000));
        let expected = Action::Configure {
            settings: SETTINGS.to_owned(),
            upstream: Some(Upstream {
                address: "10.0.0.2".to_owned(),
                epoch: Epoch(1),
            }),
        };
        assert_eq!(decision.action, expected);
        assert_eq!(
            decision.memo.stalled.unwrap().said,
            "PostgreSQL says of its WAL receiver: starting"
        );
        observed.tasks.configure.error = Some("no".to_owned());
        let decision = decide(&observed, &begun, BootTime(22_000));
        assert!(
            decision.memo.stalled.unwrap().said.ends_with("starting"),
            "that was before"
        );
        observed.tasks.configure.failures = 1;
        let decision = decide(&observed, &begun, BootTime(22_000));
        assert!(decision.memo.stalled.unwrap().said.ends_with("changed: no"));
    }

    #[test]
    fn a_receiver_that_stands_still_does_not_stream() {
        let hung = |now: u64| {
            let mut observed = stalls(now);
            let answer = observed.postgres.answer.as_mut().unwrap();
            (answer.streaming, answer.heard) = (true, Some(BootTime(2_000)));
            observed
        };
        assert_eq!(course(70_000, hung).0, [(42_000, Some(Work::Configure))]);
    }

    #[test]
    fn a_stop_that_takes_too_long_is_made_harder() {
        let mut memo = decide(&stalls(2_000), &settled(), BootTime(2_000)).memo;
        memo.stalled.as_mut().unwrap().tries = CONFIGURED;
        let stopping = Some(Stopping {
            stop: Stop::Fast,
            since: BootTime(2_000),
        });
        let others = Memo {
            stopping,
            ..memo.clone()
        };
        let others = decide(&stalls(90_000), &others, BootTime(90_000));
        assert_eq!(others.action, Action::Wait, "who asked for that stop makes it harder");
        let stop = decide(&stalls(90_000), &memo, BootTime(90_000));
        assert_eq!((stop.rule, stop.action), ("follow again", Action::Stop(Stop::Fast)));
        let early = decide(&stalls(100_000), &stop.memo, BootTime(100_000));
        assert_eq!(early.action, Action::Wait);
        let late = decide(&stalls(110_000), &stop.memo, BootTime(110_000));
        assert_eq!(late.action, Action::Stop(Stop::Immediate));
    }

    /// Why a standby does not stream, and need not.
    const HINDRANCES: &[fn(&mut Observed)] = &[
        |o| o.postgres.answer.as_mut().unwrap().waits_for_wal = false,
        |o| o.postgres.answer = None,
        |o| record(o).holder.as_mut().unwrap().serving = false,
        |o| record(o).holder = None,
        |o| o.lease.record = Reading::Unknown,
        |o| o.reply.as_mut().unwrap().admitted = false,
        |o| o.reply.as_mut().unwrap().sent = BootTime(0),
        |o| o.reply.as_mut().unwrap().gives_way = true,
        |o| o.reply.as_mut().unwrap().oldest = Some(Lsn(u64::MAX)),
        |o| (o.contact.heard, o.lease.changed) = (None, BootTime(0)),
        |o| cluster(o).stop = true,
        |o| cluster(o).fenced = BTreeSet::from([o.own.pod.clone()]),
        |o| o.terminating = true,
        |o| o.tasks.configure.running = Some(Work::Configure),
        |o| o.tasks.promise.running = Some(Work::Promise),
        |o| o.tasks.start.running = Some(Work::StartStandby),
        |o| o.postgres.configured.as_mut().unwrap().upstream = None,
        |o| o.postgres = stopped(),
    ];

    #[test]
    fn who_need_not_stream_is_left_alone() {
        for (index, hinders) in HINDRANCES.iter().enumerate() {
            let hindered = |now: u64| {
                let mut observed = stalls(now);
                hinders(&mut observed);
                observed
            };
            assert_eq!(course(200_000, hindered).0, [], "{index}");
        }
        let replays = |now: u64| {
            let mut observed = stalls(now);
            observed.postgres.answer.as_mut().unwrap().replayed = Some(Lsn(now));
            observed
        };
        assert_eq!(course(200_000, replays).0, [], "it replays");
    }

    proptest! {
        /// A standby that streamed, or had a reason not to, within the time that PostgreSQL has for itself is never disturbed; nor is one
        /// started again more than once before it streams.
        #[test]
        fn only_a_lasting_stall_is_acted_upon(seen in prop::collection::vec((0..60_u64, 0..2 * HINDRANCES.len()), 1..40)) {
            let (mut until, mut phases) = (PATIENCE, vec![(PATIENCE, 0)]);
            for (seconds, what) in seen {
                until += seconds * 1_000;
                phases.push((until, what));
            }
            let is = |now: u64| phases.iter().find(|(until, _)| now < *until).map_or(0, |(_, what)| *what);
            // 0: it streams; 1 to n: it is hindered; else it stalls.
            let well = |now: u64| (0..PATIENCE).step_by(1_000).any(|ago| {
                // Replay that is over has kept it from nothing but to be disturbed.
                let what = is(now.saturating_sub(ago));
                what != 1 && what <= HINDRANCES.len()
            });
            let (did, _) = course(until + 2_000, |now| match is(now) {
                0 => streaming(now),
                what => {
                    let mut observed = stalls(now);
                    if let Some(hinders) = HINDRANCES.get(what - 1) {
                        hinders(&mut observed);
                    }
                    observed
                }
            });
            let mut restarted = None;
            for (now, work) in did {
                prop_assert!(!well(now) && is(now) > HINDRANCES.len(), "{} {:?}", now, phases);
                if work.is_none() {
                    let since = restarted.replace(now);
                    let streamed = |since: u64| (since..now).step_by(1_000).any(|at| is(at) == 0);
                    prop_assert!(since.is_none_or(streamed), "{} {:?}", now, phases);
                }
            }
        }
    }
}
