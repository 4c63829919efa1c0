//! How often PostgreSQL is asked for its state. That depends on what the agent waits for.

use super::facts::{Context, Tenure};
use super::memo::Memo;
use super::observed::{Mode, Observed, Task};
use super::{checkpoint, handover};
use crate::pooler::pause::Asked;
use crate::timing::BootTime;
use crate::units::Millis;

/// Interval while PostgreSQL serves in its role and the primary is heard.
const STEADY: Millis = Millis::seconds(1);
/// Interval while a change is expected. On average it delays the change by half of this.
const EXPECTING: Millis = Millis(100);
/// Interval while nobody can write until an answer shows a change that takes milliseconds. A question costs about 5 ms
/// of CPU.
const SOON: Millis = Millis(20);
/// How long [`SOON`] is used after its cause. What takes longer is not noticed sooner by more questions.
const SHORT: Millis = Millis::seconds(2);

impl Observed {
    /// What poolers see of this instance.
    pub fn as_asked_by_poolers(&self, memo: &Memo, now: BootTime) -> Asked {
        checkpoint::as_asked(&Context::new(self, now), memo)
    }

    /// How long after an answer, or a failed question, PostgreSQL is asked again.
    pub fn asks_again_after(&self, now: BootTime) -> Millis {
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

/// True if PostgreSQL serves in its role, and the primary is heard.
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
        // A primary waits for standbys before it opens and before it hands the lease over. It also waits for an
        // impostor to end.
        let postgres = &context.observed.postgres;
        return postgres.open && postgres.impostors.is_empty() && !handover::is_imminent(context);
    }
    let lately = |heard| context.now.since(heard) <= context.timing().suspect() / 2;
    answer.streaming && answer.heard.is_some_and(lately)
}

/// True if nobody can write until the next answer.
///
/// - A primary was started or promoted a moment ago and is not open yet: it begins to write, or standbys flush what is
///   in doubt.
/// - A standby may have to take over, and its WAL end is not known: it has lost its primary, has promised, or was
///   started to be promoted.
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
    use crate::pooler::pause::Asked;
    use crate::timing::{BootTime, Timing};
    use crate::units::Millis;

    const NOW: u64 = 2_200;

    fn after(observed: &Observed, now: u64) -> Millis {
        observed.asks_again_after(BootTime(now))
    }

    #[test]
    fn a_server_that_serves_is_asked_seldom() {
        assert_eq!(after(&primary(), NOW), STEADY);
        assert_eq!(after(&voter(), NOW), STEADY);
        let silent = NOW + Timing::DEFAULT.suspect().0;
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
        assert_eq!(after(&observed, now), STEADY, "no other primary is wanted");
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
    fn poolers_see_a_planned_stop_from_its_checkpoint_on_and_whether_it_is_called_off() {
        let now = 30_000;
        let asked = |observed: &Observed, memo: &Memo| observed.as_asked_by_poolers(memo, BootTime(now));
        let mut observed = primary();
        assert_eq!(asked(&observed, &settled()), Asked::Serves);
        observed.tasks.checkpoint.running = Some(Work::Checkpoint);
        assert_eq!(asked(&observed, &settled()), Asked::Stops);
        observed.tasks.checkpoint.running = None;
        observed.tasks.checkpoint.ended = BootTime(now - 1_000);
        assert_eq!(asked(&observed, &settled()), Asked::Stops);
        // It has stopped and serves again.
        observed.tasks.start.ended = BootTime(now - 500);
        assert_eq!(asked(&observed, &settled()), Asked::Serves);
        let stopping = Memo {
            stopping: Some(Stopping {
                stop: Stop::Fast,
                since: BootTime(now - 9_000),
            }),
            ..settled()
        };
        assert_eq!(asked(&observed, &stopping), Asked::Stops);
        observed.postgres.open = false;
        assert_eq!(asked(&observed, &settled()), Asked::Away);
        assert_eq!(asked(&voter(), &settled()), Asked::Away);
    }

    #[test]
    fn a_primary_is_asked_soon_until_it_opens_but_not_for_long() {
        let mut closed = primary();
        closed.postgres.open = false;
        closed.tasks.start.ended = BootTime(NOW);
        assert_eq!(after(&closed, NOW + SHORT.0 - 1), SOON);
        assert_eq!(after(&closed, NOW + SHORT.0), EXPECTING);
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
        assert_eq!(after(&promised, NOW + SHORT.0), EXPECTING);
        let mut left = voter();
        ends(&mut left, false);
        assert_eq!(after(&left, NOW), EXPECTING, "the primary is there");
        record(&mut left).holder = None;
        left.lease.holder_since = BootTime(NOW);
        assert_eq!(after(&left, NOW), SOON);
        assert_eq!(after(&left, NOW + SHORT.0), EXPECTING);
        let mut started = elected();
        ends(&mut started, false);
        started.tasks.start.ended = BootTime(NOW);
        assert_eq!(after(&started, NOW), SOON);
        started.lease.confirmed = None;
        assert_eq!(after(&started, NOW), EXPECTING, "it is not to be promoted");
    }
}
