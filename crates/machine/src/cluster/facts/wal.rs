//! WAL volumes: which pods have theirs, which may have one, and which cannot run without.

use super::Facts;
use crate::cluster::observed::{Claim, Pod, Volume, WalVolumes};

/// The claim of this pod has its volume, and it is this database's.
fn is_there(facts: &Facts<'_>, ordinal: u32) -> bool {
    let usable = |claim: &Claim| claim.bound && !claim.terminating && facts.owns(claim);
    facts.wal_claim(ordinal).is_some_and(usable)
}

/// Its data volume may need its WAL volume.
pub(in crate::cluster) fn is_given(facts: &Facts<'_>, pod: &str) -> bool {
    facts.status.memo.wal_volumes.iter().any(|given| given == pod)
}

/// Pods that have their WAL volumes, or had them and come back with them, and are not on record. All that come with a new
/// database are recorded together.
pub(in crate::cluster) fn unrecorded(facts: &Facts<'_>) -> Vec<String> {
    let Some(set) = facts.observed.stateful_set.as_ref() else {
        return Vec::new();
    };
    let asked = facts.wanted.spec.storage.wal.is_some();
    let filled = |claim: &Claim| claim.had_volume && facts.owns(claim);
    let all = || (0..facts.expected()).all(|ordinal| facts.wal_claim(ordinal).is_some_and(filled));
    if !asked || !(facts.bootstrapped() || all()) {
        return Vec::new();
    }
    let has = |pod: &Pod, claim: &Claim| pod.wal_claim.as_ref() == Some(&claim.name);
    let in_use = |claim: &&Claim| {
        let named = set.wal == WalVolumes::Templated || facts.pod(claim.ordinal).is_some_and(|pod| has(pod, claim));
        claim.volume == Volume::Wal && filled(claim) && named
    };
    let pods = facts.claims().iter().filter(in_use);
    let pods = pods.map(|claim| format!("{}-{}", facts.wanted.name, claim.ordinal));
    pods.filter(|pod| !is_given(facts, pod)).collect()
}

/// PostgreSQL cannot run in this pod: it has got the WAL claim of another one, or the WAL is on a volume that it has not got.
pub(in crate::cluster) fn cannot_run(facts: &Facts<'_>, pod: &Pod) -> bool {
    let without = || {
        let came_bare = is_given(facts, &pod.name) && facts.report(pod).is_none();
        came_bare && is_there(facts, pod.ordinal)
    };
    !facts.has_wal_volume(pod) && (pod.wal_claim.is_some() || without())
}

/// This pod lacks a WAL volume that is not there yet, and nothing else: a new one would be the same.
pub(in crate::cluster) fn is_not_yet_due(facts: &Facts<'_>, pod: &Pod) -> bool {
    lacks_claim(facts, pod) && lacks_nothing_else(facts, pod)
}

/// This pod is as wanted, but for a WAL volume that it may lack.
pub(in crate::cluster) fn lacks_nothing_else(facts: &Facts<'_>, pod: &Pod) -> bool {
    let bare = pod.wal_claim.is_none() && pod.revision.as_deref() == Some(facts.wanted.bare_revision);
    bare && pod.resizing.is_none()
}

/// This pod has no WAL volume, and none is there that a new one could use.
pub(in crate::cluster) fn lacks_claim(facts: &Facts<'_>, pod: &Pod) -> bool {
    pod.wal_claim.is_none() && !facts.has_wal_volume(pod) && !fits(facts, pod)
}

/// The WAL claim of this pod has its volume, and a new pod can use it.
pub(in crate::cluster) fn fits(facts: &Facts<'_>, pod: &Pod) -> bool {
    is_there(facts, pod.ordinal) && misfit(facts, pod).is_none()
}

/// Why a new pod could not use the volume that the WAL claim of this one has, and that it was not given yet.
pub(in crate::cluster) fn misfit(facts: &Facts<'_>, pod: &Pod) -> Option<String> {
    let claim = facts.wal_claim(pod.ordinal).filter(|claim| claim.bound)?;
    if is_given(facts, &pod.name) {
        return None;
    }
    if let Some(other) = other_class(facts, claim) {
        return Some(other);
    }
    // This pod's data was reached from both nodes: so are all volumes of that class.
    let as_data = facts
        .data_claim(pod.ordinal)
        .is_some_and(|data| data.class == claim.class);
    let (made_for, node) = (claim.selected_node.as_ref()?, pod.node.as_ref()?);
    let elsewhere = pod.ready && made_for != node && !as_data;
    elsewhere.then(|| {
        format!(
            "has a volume that was made for {made_for}, while {} is on {node}",
            pod.name
        )
    })
}

/// The claim is not of the class that the spec names.
pub(in crate::cluster) fn other_class(facts: &Facts<'_>, claim: &Claim) -> Option<String> {
    let wanted = facts.wanted.spec.storage.wal.as_ref()?.storage_class_name.as_ref()?;
    let class = claim.class.as_ref().filter(|class| *class != wanted)?;
    Some(format!("is of StorageClass {class}, and not of {wanted}"))
}

/// Nothing waits for the volume of this WAL claim: its pod serves without, or there is none.
pub(in crate::cluster) fn is_spare(facts: &Facts<'_>, claim: &Claim) -> bool {
    let set = facts.observed.stateful_set.as_ref();
    let named = set.is_none_or(|set| [WalVolumes::Templated, WalVolumes::Of(claim.ordinal)].contains(&set.wal));
    let uses = |pod: &Pod| pod.wal_claim.as_ref() == Some(&claim.name);
    claim.volume == Volume::Wal && facts.observed.pods.get().is_some() && !named && !facts.pods().iter().any(uses)
}

/// What a StatefulSet that is made now, with this many replicas, has to be like.
pub(in crate::cluster) fn of_new_set(facts: &Facts<'_>, replicas: u32) -> WalVolumes {
    if all_have_theirs(facts, replicas) {
        WalVolumes::Templated
    } else {
        WalVolumes::Withheld
    }
}

/// Every pod has its own WAL volume, and no member that is to come back without a pod now lacks one: its claim, made from
/// the template, might never get a volume. While all pods are to be away, that is every member with data.
pub(in crate::cluster) fn all_have_theirs(facts: &Facts<'_>, replicas: u32) -> bool {
    let returns = |claim: &&Claim| claim.volume == Volume::Data && (claim.ordinal < replicas || replicas == 0);
    let has_its_own = |claim: &Claim| facts.pod(claim.ordinal).is_some() || is_there(facts, claim.ordinal);
    facts.pods().iter().all(|pod| facts.has_wal_volume(pod))
        && (!facts.bootstrapped() || facts.claims().iter().filter(returns).all(has_its_own))
}
