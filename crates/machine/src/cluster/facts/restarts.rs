//! Who restarts PostgreSQL by permit, and whose PostgreSQL refuses the settings.

use api::status::{RestartPermit, WaitReason};
use chrono::{DateTime, TimeDelta, Utc};

use super::{Facts, fenced};
use crate::cluster::observed::Pod;
use crate::cluster::wait::WaitKey;

/// A standby that is not back after this long may never be (its volume, its settings): it is waited for no more, and keeps
/// no primary where it is. Less than the time in which a requested switchover has to begin.
pub(in crate::cluster) const RESTART_LIMIT: TimeDelta = TimeDelta::minutes(2);

/// What the timer of the wait for a permitted restart hangs on.
pub(in crate::cluster) fn restart_of(permit: &RestartPermit) -> WaitKey {
    WaitKey::pod(WaitReason::PermittedRestart, &permit.pod)
}

pub(in crate::cluster) fn restart_deadline(facts: &Facts<'_>, permit: &RestartPermit) -> DateTime<Utc> {
    let given = facts.status.memo.restart_since;
    given.unwrap_or_else(|| facts.waiting_since(&restart_of(permit))) + RESTART_LIMIT
}

/// The leave to restart that somebody makes use of.
pub(in crate::cluster) fn restarting<'a>(facts: &Facts<'a>) -> Option<&'a RestartPermit> {
    let permit = facts.status.intent.restart.as_ref()?;
    (in_use(facts, permit) && facts.now < restart_deadline(facts, permit)).then_some(permit)
}

/// The permitted restart is still to be expected: same pod, same settings, and not yet served with them since.
pub(in crate::cluster) fn in_use(facts: &Facts<'_>, permit: &RestartPermit) -> bool {
    let pod = facts
        .pods()
        .iter()
        .find(|pod| pod.name == permit.pod && pod.uid == permit.pod_uid && !pod.terminating);
    let done = |pod: &Pod| {
        facts.serves(pod)
            && facts
                .report(pod)
                .is_some_and(|now| now.settings == permit.settings && !now.pending_restart)
    };
    let possible = permit.settings == facts.wanted.settings && !fenced::is_fenced(facts, &permit.pod);
    possible && pod.is_some_and(|pod| !done(pod))
}

/// A member whose PostgreSQL refuses the settings, and its words.
pub(in crate::cluster) fn refusal<'a>(facts: &Facts<'a>) -> Option<(&'a Pod, &'a str)> {
    facts
        .pods()
        .iter()
        .find_map(|pod| Some((pod, facts.report(pod)?.settings_error.as_deref()?)))
}
