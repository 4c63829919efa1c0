//! A checkpoint while PostgreSQL still serves, before a planned stop of the primary. It shortens the checkpoint of the
//! stop, and with it the time without a primary. Patroni does the same before a switchover.

use super::facts::Context;
use super::{Action, Verdict};
use crate::units::Millis;

/// How long a finished checkpoint counts as recent: WAL written since then costs the stop little time.
const RECENT: Millis = Millis::seconds(10);

/// True if a recent checkpoint exists. Also true if it failed: then the stop makes all of it.
pub(super) fn is_made(context: &Context) -> bool {
    let task = &context.tasks().checkpoint;
    task.running.is_none() && context.now.since(task.ended) < RECENT
}

/// Begins the checkpoint. `None` while it runs: it has a time limit, and other decision rules go on meanwhile.
pub(super) fn make(context: &Context, what_for: &str) -> Option<Verdict> {
    if context.tasks().checkpoint.running.is_some() {
        return None;
    }
    let because = format!("a checkpoint makes the stop short that comes next, {what_for}");
    Verdict::new(Action::Checkpoint, because)
}
