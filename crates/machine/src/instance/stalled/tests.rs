use super::super::fixtures::*;
use super::super::*;
use super::*;
use crate::protocol::Lsn;
use proptest::prelude::*;

/// A standby at `now` that follows `orders-1` and hears it, but has no stream.
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

/// The actions of the decision rule and their times, if each second `observe` is observed. (The escalation of a stop is
/// not listed.)
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
        if decision.rule == "follow-again" && !harder {
            down = matches!(decision.action, Action::Stop(_));
            did.push((now, decision.action.work()));
        }
        memo = decision.memo;
    }
    (did, memo)
}

#[test]
fn it_is_configured_again_with_growing_back_off_and_restarted_once() {
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
    assert!(begins.wake.is_some_and(|wake| wake <= BootTime(2_000).plus(LIMIT)));
    let again = decide(&streaming(700_500), &memo, BootTime(700_500));
    assert_eq!(again.memo.stalled, None, "it streams");
}

#[test]
fn it_is_configured_with_its_upstream() {
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
fn a_hung_wal_receiver_does_not_stream() {
    let hung = |now: u64| {
        let mut observed = stalls(now);
        let answer = observed.postgres.answer.as_mut().unwrap();
        (answer.streaming, answer.heard) = (true, Some(BootTime(2_000)));
        observed
    };
    assert_eq!(course(70_000, hung).0, [(42_000, Some(Work::Configure))]);
}

#[test]
fn a_stop_that_takes_too_long_is_escalated() {
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
    assert_eq!(
        others.action,
        Action::Wait,
        "the decision rule that began that stop escalates it"
    );
    let stop = decide(&stalls(90_000), &memo, BootTime(90_000));
    assert_eq!((stop.rule, stop.action), ("follow-again", Action::Stop(Stop::Fast)));
    let early = decide(&stalls(100_000), &stop.memo, BootTime(100_000));
    assert_eq!(early.action, Action::Wait);
    let late = decide(&stalls(110_000), &stop.memo, BootTime(110_000));
    assert_eq!(late.action, Action::Stop(Stop::Immediate));
}

/// Reasons for which a standby does not stream and need not.
const HINDRANCES: &[fn(&mut Observed)] = &[
    |o| o.postgres.answer.as_mut().unwrap().waits_for_wal = false,
    |o| o.postgres.answer = None,
    |o| record(o).holder.as_mut().unwrap().serving = false,
    |o| record(o).holder = None,
    |o| o.lease.record = Reading::Unknown,
    |o| o.reply.as_mut().unwrap().admitted = false,
    |o| o.reply.as_mut().unwrap().sent = BootTime(0),
    |o| o.reply.as_mut().unwrap().steps_down = true,
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
fn a_standby_that_need_not_stream_is_left_alone() {
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
    /// A standby that streamed, or had a reason not to, within PostgreSQL's own time is never disturbed. None is
    /// restarted more than once before it streams.
    #[test]
    fn only_a_lasting_stall_is_acted_upon(seen in prop::collection::vec((0..60_u64, 0..2 * HINDRANCES.len()), 1..40)) {
        let (mut until, mut phases) = (LIMIT.0, vec![(LIMIT.0, 0)]);
        for (seconds, what) in seen {
            until += seconds * 1_000;
            phases.push((until, what));
        }
        let is = |now: u64| phases.iter().find(|(until, _)| now < *until).map_or(0, |(_, what)| *what);
        // 0: it streams; 1 to n: it has a reason not to; otherwise it stalls.
        let well = |now: u64| (0..LIMIT.0).step_by(1_000).any(|ago| {
            // A replay that is over only explains why it was not disturbed before.
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
