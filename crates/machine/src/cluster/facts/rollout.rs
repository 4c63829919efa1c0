//! Which pods are not as the wanted template says, and whose turn it is to be changed.

use api::spec::PrimaryUpdatePolicy;

use super::{Facts, fenced, resize, wal};
use crate::cluster::observed::Pod;

pub(in crate::cluster) fn outdated<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a Pod> {
    facts
        .pods()
        .iter()
        .rev()
        .filter(move |pod| !pod.terminating && !facts.current_revision(pod) && !fenced::is_kept(facts, pod))
}

/// The pod of an older template whose turn it is, if all serve.
pub(in crate::cluster) fn next<'a>(facts: &Facts<'a>) -> Option<&'a Pod> {
    let primary = facts.primary();
    let is_primary = |pod: &&Pod| primary.is_some_and(|primary| primary.uid == pod.uid);
    let standbys = || outdated(facts).filter(|pod| !is_primary(pod));
    let is_due = |pod: &&Pod| !wal::is_not_yet_due(facts, pod);
    standbys()
        .find(is_due)
        .or_else(|| outdated(facts).find(|pod| is_due(pod) && !wal::lacks_nothing_else(facts, pod)))
        .or_else(|| standbys().next())
        .or_else(|| outdated(facts).next())
}

/// Only a new pod can be as the wanted template says.
pub(in crate::cluster) fn needs_replacing(facts: &Facts<'_>, pod: &Pod) -> bool {
    !facts.current_revision(pod) && !resize::suffices(facts, pod)
}

/// The primary's pod may go before this one: it is as wanted, or lacks only a WAL volume that cannot be had yet, while the
/// primary lacks more.
pub(in crate::cluster) fn lets_primary_go(facts: &Facts<'_>, primary: &Pod, pod: &Pod) -> bool {
    let waits = wal::is_not_yet_due(facts, pod) && !wal::lacks_nothing_else(facts, primary);
    facts.current_revision(pod) || waits
}

pub(in crate::cluster) fn supervised(facts: &Facts<'_>) -> bool {
    facts.wanted.spec.primary.update_policy == PrimaryUpdatePolicy::Supervised
}
