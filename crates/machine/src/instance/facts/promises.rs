//! What this member has promised, and how it is bound by that now (protocol.md rules 4 and 19).

use super::Context;
use crate::timing::BootTime;

/// Until when this member has promised the present holder not to take its lease, if that time is still to come. The
/// promise is bound to the holder's run, not to its epoch: the holder may be raising its epoch at this moment, and
/// still rely on the promise.
pub(in crate::instance) fn given_until(context: &Context) -> Option<BootTime> {
    let given = context.observed.failsafe_given.as_ref()?;
    let record = context.record()?;
    let holds = |run: &String| *run == given.run && record.epoch >= given.epoch;
    let holder = record.holder.as_ref()?;
    (holds(&holder.incarnation.run) && context.now < given.until).then_some(given.until)
}

/// True if the promise on the volume was completed: the WAL receiver was proved to be gone. A promise is persisted
/// before that, and the remaining steps may have failed.
pub(in crate::instance) fn is_kept(context: &Context) -> bool {
    let task = &context.tasks().promise;
    task.running.is_none() && task.failures == 0
}
