//! Whether the user has put the whole database down, and how far that, or its return, has come.

use super::Facts;

/// Nothing is to run: the user wants it so, or another set of volumes is to be used; and it is not being deleted.
pub(in crate::cluster) fn wanted(facts: &Facts<'_>) -> bool {
    (facts.wanted.spec.hibernated || changes_volumes(facts)) && !facts.wanted.deleting
}

/// Another set of volumes is to be used.
pub(in crate::cluster) fn changes_volumes(facts: &Facts<'_>) -> bool {
    let sets = facts.status.memo.volumes.as_ref();
    sets.is_some_and(|sets| sets.next.is_some())
}

/// The user wants it so, and nothing else is done before it rests.
pub(in crate::cluster) fn is_asked(facts: &Facts<'_>) -> bool {
    facts.wanted.spec.hibernated && !facts.wanted.deleting && !changes_volumes(facts)
}

/// No pod is there, and none will be made.
pub(in crate::cluster) fn is_down(facts: &Facts<'_>) -> bool {
    let no_pods = facts.observed.pods.get().is_some_and(Vec::is_empty);
    wanted(facts)
        && no_pods
        && facts
            .observed
            .stateful_set
            .as_ref()
            .is_some_and(|set| set.replicas == 0)
}

/// No pod is there, and everything else is as it should be.
pub(in crate::cluster) fn rests(facts: &Facts<'_>) -> bool {
    is_down(facts) && is_asked(facts) && facts.wanted.invalid.is_none() && facts.children_are_current()
}

/// It was put down on purpose, need not be down any more, and nobody has served since.
pub(in crate::cluster) fn wakes(facts: &Facts<'_>) -> bool {
    let put_down = facts.status.intent.stop || facts.status.memo.put_down.is_some();
    !wanted(facts) && put_down && !is_back(facts)
}

/// A primary serves in a later epoch than that in which all instances were told to stop. (One that has not stopped yet
/// still serves in that very epoch.)
pub(in crate::cluster) fn is_back(facts: &Facts<'_>) -> bool {
    let before = facts.status.memo.put_down;
    let later = facts.lease.is_some_and(|lease| Some(lease.epoch.0) > before);
    before.is_some() && later && facts.primary().is_some()
}
