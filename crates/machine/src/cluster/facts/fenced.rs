//! Which instances the user has fenced.

use super::{Facts, wal};
use crate::cluster::observed::Pod;

/// The user has fenced the instance in this pod.
pub(in crate::cluster) fn is_fenced(facts: &Facts<'_>, pod: &str) -> bool {
    facts.wanted.spec.fenced.iter().any(|fenced| fenced == pod)
}

/// There may be something to look at in this pod, and the user wants to: it stays as it is.
pub(in crate::cluster) fn is_kept(facts: &Facts<'_>, pod: &Pod) -> bool {
    let may_run = !pod.never_ran() && !wal::cannot_run(facts, pod);
    is_fenced(facts, &pod.name) && may_run
}

/// Some instance is fenced.
pub(in crate::cluster) fn any(facts: &Facts<'_>) -> bool {
    !facts.wanted.spec.fenced.is_empty()
}

/// All instances that there are to be are fenced: nobody can be primary.
pub(in crate::cluster) fn all(facts: &Facts<'_>) -> bool {
    any(facts) && (0..facts.expected()).all(|ordinal| is_fenced(facts, &format!("{}-{ordinal}", facts.wanted.name)))
}
