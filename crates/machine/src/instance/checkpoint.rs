//! A checkpoint while PostgreSQL still serves, before a planned stop of the primary: the one that the stop makes is short then, and
//! so is the time in which nobody is served. Patroni makes one before a switchover, too.

use super::context::Context;
use super::{Action, Verdict};

/// For so long one counts that has ended, in milliseconds: what is written meanwhile costs the stop little.
const RECENT: u64 = 10_000;

/// It was made just now, or has failed: then the stop has all to do.
pub(super) fn is_made(context: &Context) -> bool {
    let task = &context.tasks().checkpoint;
    task.running.is_none() && context.now.since(task.ended) < RECENT
}

/// Begins it; `None` while it goes on, in bounded time, and other rules with it.
pub(super) fn make(context: &Context, what_for: &str) -> Option<Verdict> {
    if context.tasks().checkpoint.running.is_some() {
        return None;
    }
    let because = format!("a checkpoint makes the stop short that comes next, {what_for}");
    Verdict::new(Action::Checkpoint, because)
}
