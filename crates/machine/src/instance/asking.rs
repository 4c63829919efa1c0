//! How soon PostgreSQL is asked again how it is: by what is waited for.

use super::context::{Context, Tenure};
use super::handover;
use super::observed::{Mode, Observed, Task};
use crate::timing::BootTime;

/// While it serves in its role and the primary is heard, in milliseconds.
const STEADY: u64 = 1_000;
/// While something is expected to change: half of it is what this adds to it on average.
const EXPECTING: u64 = 100;
/// While nobody can write before an answer shows what takes milliseconds. A question takes some 5 ms of a processor.
const SOON: u64 = 20;
/// For so long after what began it: then it is no matter of milliseconds.
const SHORT: u64 = 2_000;

impl Observed {
    /// How long after an answer, or after its failing to come, PostgreSQL is asked again, in milliseconds.
    pub fn asks_again_after(&self, now: BootTime) -> u64 {
        let context = Context::new(self, now);
        if is_steady(&context) {
            STEADY
        } else if is_urgent(&context) {
            SOON
        } else {
            EXPECTING
        }
    }
}

/// PostgreSQL serves in its role, and the primary is heard.
fn is_steady(context: &Context) -> bool {
    let tasks = context.tasks();
    let mut awaited = [&tasks.start, &tasks.promise, &tasks.ask, &tasks.sync].into_iter();
    let Some(answer) = context
        .observed
        .postgres
        .answer
        .filter(|_| awaited.all(|task| task.running.is_none()))
    else {
        return false;
    };
    if !answer.in_recovery {
        // Until applications are let in, standbys are waited for; and before the lease is handed over to one. An impostor is to go.
        let postgres = &context.observed.postgres;
        return postgres.open && postgres.impostors.is_empty() && !handover::is_imminent(context);
    }
    let lately = |heard| context.now.since(heard) <= context.timing().suspect() / 2;
    answer.streaming && answer.heard.is_some_and(lately)
}

/// A primary was started or promoted a moment ago and is not open yet: it begins to write, or standbys flush what is in doubt. Or a
/// standby that may have to take over has lost its primary, promised, or been started to be promoted, and where its WAL ends is not
/// known yet.
fn is_urgent(context: &Context) -> bool {
    let tasks = context.tasks();
    let lately = |at: BootTime| context.now.since(at) < SHORT;
    let done = |task: &Task| task.running.is_none() && task.failures == 0 && lately(task.ended);
    match context.running() {
        Some(Mode::Primary) => done(&tasks.start) && !context.observed.postgres.open,
        Some(Mode::Standby) => {
            let knows_end = context
                .observed
                .postgres
                .answer
                .is_some_and(|answer| answer.received_all);
            let vacant = context.tenure() == Tenure::Vacant && lately(context.observed.lease.holder_since);
            let started = done(&tasks.start) && context.held().is_some();
            !knows_end && (vacant || started || done(&tasks.promise))
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::{EXPECTING, SHORT, SOON, STEADY};
    use crate::timing::{BootTime, Timing};

    const NOW: u64 = 2_200;

    fn after(observed: &Observed, now: u64) -> u64 {
        observed.asks_again_after(BootTime(now))
    }

    #[test]
    fn who_serves_is_asked_seldom() {
        assert_eq!(after(&primary(), NOW), STEADY);
        assert_eq!(after(&voter(), NOW), STEADY);
        let silent = NOW + Timing::DEFAULT.suspect();
        assert_eq!(after(&voter(), silent), EXPECTING, "the primary is not heard");
        let mut changing = primary();
        changing.tasks.sync.running = Some(Work::SetSync);
        assert_eq!(after(&changing, NOW), EXPECTING);
    }

    #[test]
    fn a_primary_that_is_about_to_hand_over_is_asked_at_once_and_often() {
        let now = 30_000;
        let mut observed = primary();
        observed.tasks.checkpoint.ended = BootTime(now);
        assert_eq!(after(&observed, now), STEADY, "nobody is wanted");
        cluster(&mut observed).primary = Some("orders-1".to_owned());
        assert_eq!(after(&observed, now), EXPECTING);
        assert_eq!(after(&observed, 2 * now), STEADY, "another checkpoint is to come");
        observed.tasks.checkpoint.running = Some(Work::Checkpoint);
        assert_eq!(after(&observed, now), STEADY);
        observed.tasks.checkpoint.running = None;
        cluster(&mut observed).primary = Some("orders-0".to_owned());
        assert_eq!(after(&observed, now), STEADY, "it is the one");
    }

    #[test]
    fn a_primary_is_asked_soon_until_it_opens_but_not_for_long() {
        let mut closed = primary();
        closed.postgres.open = false;
        closed.tasks.start.ended = BootTime(NOW);
        assert_eq!(after(&closed, NOW + SHORT - 1), SOON);
        assert_eq!(after(&closed, NOW + SHORT), EXPECTING);
        let mut starting = closed.clone();
        starting.postgres.answer = None;
        assert_eq!(after(&starting, NOW), SOON);
        starting.tasks.start.failures = 1;
        assert_eq!(after(&starting, NOW), EXPECTING, "it may fail again and again");
        closed.tasks.start.running = Some(Work::Promote);
        assert_eq!(after(&closed, NOW), EXPECTING, "the task itself asks");
    }

    #[test]
    fn a_standby_that_may_take_over_is_asked_soon_until_its_wal_has_ended() {
        let ends = |observed: &mut Observed, ended| {
            let answer = observed.postgres.answer.as_mut().unwrap();
            (answer.streaming, answer.received_all) = (false, ended);
        };
        let mut promised = promised(2);
        promised.tasks.promise.ended = BootTime(NOW);
        assert_eq!(after(&promised, NOW), EXPECTING, "its end is known");
        ends(&mut promised, false);
        assert_eq!(after(&promised, NOW), SOON);
        assert_eq!(after(&promised, NOW + SHORT), EXPECTING);
        let mut left = voter();
        ends(&mut left, false);
        assert_eq!(after(&left, NOW), EXPECTING, "the primary is there");
        record(&mut left).holder = None;
        left.lease.holder_since = BootTime(NOW);
        assert_eq!(after(&left, NOW), SOON);
        assert_eq!(after(&left, NOW + SHORT), EXPECTING);
        let mut started = elected();
        ends(&mut started, false);
        started.tasks.start.ended = BootTime(NOW);
        assert_eq!(after(&started, NOW), SOON);
        started.lease.confirmed = None;
        assert_eq!(after(&started, NOW), EXPECTING, "it is not to be promoted");
    }
}
