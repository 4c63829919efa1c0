//! A checkpoint while PostgreSQL still serves, before a planned stop of the primary. It shortens the checkpoint of the
//! stop, and with it the time without a primary. Patroni does the same before a switchover. When it is made, poolers have paused.

use super::facts::Context;
use super::{Action, Memo, Verdict};
use crate::pooler::pause::{Asked, LONGEST, PATIENCE};
use crate::units::Millis;

/// How long a finished checkpoint counts as recent: WAL written since then costs the stop little time, and poolers still pause: they
/// began to before its end, by [`PATIENCE`] at most.
const RECENT: Millis = Millis::seconds(4);
const _: () = assert!(PATIENCE.0 + RECENT.0 < LONGEST.0);

/// True if a recent checkpoint of this run of the server exists. Also true if it failed: then the stop makes all of it.
pub(super) fn is_made(context: &Context) -> bool {
    let tasks = context.tasks();
    let task = &tasks.checkpoint;
    task.running.is_none() && context.now.since(task.ended) < RECENT && task.ended >= tasks.start.ended
}

/// What poolers see of this instance.
pub(super) fn as_asked(context: &Context, memo: &Memo) -> Asked {
    let is_near = context.tasks().checkpoint.running.is_some() || is_made(context) || memo.stopping.is_some();
    match context.serving() {
        true if is_near => Asked::Stops,
        true => Asked::Serves,
        false => Asked::Away,
    }
}

/// Begins the checkpoint. `None` while it runs: it has a time limit, and other decision rules go on meanwhile.
pub(super) fn make(context: &Context, what_for: &str) -> Option<Verdict> {
    if context.tasks().checkpoint.running.is_some() {
        return None;
    }
    let because = format!("a checkpoint makes the stop short that comes next, {what_for}");
    Verdict::new(Action::Checkpoint, because)
}
