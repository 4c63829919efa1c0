//! Instances that are expected and do not serve, and what they lack.

use api::status::{LateObject, WaitReason};

use super::{Facts, fenced, shortened};
use crate::cluster::observed::{Pod, Target};
use crate::cluster::owned::OwnedObject;
use crate::cluster::wait::{Lack, WaitKey};
use crate::reconcile::FaultKind;

/// A pod that the StatefulSet cannot make, and who can end that.
pub(in crate::cluster) fn unmade(facts: &Facts<'_>) -> Option<Lack> {
    let mut absent = (0..facts.expected()).filter(|ordinal| facts.pod(*ordinal).is_none());
    absent.find_map(|ordinal| {
        let name = format!("{}-{ordinal}", facts.wanted.name);
        let targets = [Target::Pod(name.clone()), Target::Child(OwnedObject::StatefulSet)];
        let mut faults = facts.observed.faults.iter();
        let fault = faults.find(|fault| targets.contains(&fault.target) && fault.kind != FaultKind::Conflict)?;
        // Here, and not with what is waited for: that stays the same while these words change.
        let words = shortened(&fault.message);
        Some(Lack {
            key: WaitKey::pod(WaitReason::PodCreation, &name),
            actor: WaitReason::PodCreation.actor(),
            what: format!("pod {name} to be made"),
            who: format!("the StatefulSet controller, once this is mended: {words}"),
        })
    })
}

/// It does not run for a reason that is known, unless it is fenced and runs nothing on purpose.
fn is_stuck(facts: &Facts<'_>, pod: &Pod) -> bool {
    let fails = pod.trouble.is_some() && !fenced::is_fenced(facts, &pod.name);
    pod.image_error.is_some() || pod.unschedulable.is_some() || fails
}

/// The reason of the wait for a pod that does not run yet.
pub(in crate::cluster) fn lacking(pod: &Pod) -> WaitReason {
    if pod.image_error.is_some() {
        WaitReason::ImageAvailability
    } else if pod.unschedulable.is_some() || pod.node.is_none() {
        WaitReason::PodScheduling
    } else {
        WaitReason::PodReadiness
    }
}

/// An instance that is expected and does not serve.
pub(in crate::cluster) struct LateMember {
    pub(in crate::cluster) name: String,
    pub(in crate::cluster) why: Lateness,
}

/// What an instance that does not serve lacks. The order is the one in which instances are named.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::cluster) enum Lateness {
    /// It has no pod.
    Absent,
    /// Its pod is going away.
    Leaving,
    /// Its pod does not run, and Kubernetes tells why.
    Stuck(WaitReason),
    /// It runs, and does not stream from the primary yet.
    Joining,
}

impl LateMember {
    /// What the timer of the wait for it hangs on.
    pub(in crate::cluster) fn key(&self) -> WaitKey {
        let reason = match self.why {
            Lateness::Absent => WaitReason::PodCreation,
            Lateness::Leaving => WaitReason::PodRemoval,
            Lateness::Stuck(reason) => reason,
            Lateness::Joining => WaitReason::StandbyJoining,
        };
        WaitKey::pod(reason, &self.name)
    }
}

/// All instances that are expected, are not fenced, and do not serve.
pub(in crate::cluster) fn late_members(facts: &Facts<'_>) -> Vec<LateMember> {
    let why = |ordinal: u32| {
        let Some(pod) = facts.pod(ordinal) else {
            return Some(Lateness::Absent);
        };
        if pod.terminating {
            Some(Lateness::Leaving)
        } else if is_stuck(facts, pod) {
            Some(Lateness::Stuck(lacking(pod)))
        } else {
            let late = !facts.serves(pod) && !fenced::is_fenced(facts, &pod.name);
            late.then_some(Lateness::Joining)
        }
    };
    let late = (0..facts.expected()).filter_map(|ordinal| {
        why(ordinal).map(|why| LateMember {
            name: format!("{}-{ordinal}", facts.wanted.name),
            why,
        })
    });
    late.collect()
}

/// This pod cannot be made, or does not run: it is late sooner than one that copies a database.
pub(in crate::cluster) fn is_obstructed(facts: &Facts<'_>, late: &LateObject) -> bool {
    let is_late = |member: &LateMember| member.key().object.as_ref() == Some(&late.object);
    late_members(facts).iter().any(|member| match member.why {
        Lateness::Stuck(_) => is_late(member),
        Lateness::Absent => is_late(member) && unmade(facts).is_some(),
        Lateness::Leaving | Lateness::Joining => false,
    })
}
