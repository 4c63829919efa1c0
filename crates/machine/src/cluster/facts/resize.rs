//! Whether a pod can be given its cpu and memory in place, and how far that is.

use chrono::{DateTime, TimeDelta, Utc};

use super::{Facts, volumes};
use crate::cluster::observed::{Fault, Pod, Resizing, Resources, Target};
use crate::reconcile::FaultKind;

/// A kubelet does it in a few seconds, if it can. One that waits for room on its node may wait for ever, while another
/// node may have it.
pub(in crate::cluster) const WAIT_LIMIT: TimeDelta = TimeDelta::minutes(1);

/// This pod of an older template need not be replaced: it can be given the wanted resources in place, as far as is known.
pub(in crate::cluster) fn suffices(facts: &Facts<'_>, pod: &Pod) -> bool {
    only_resources_differ(facts, pod) && obstacle(facts, pod).is_none()
}

/// This pod is to have less memory, and its PostgreSQL may need what it has until it has restarted with the wanted
/// settings: it is not resized before. (More memory comes before the restart.)
pub(in crate::cluster) fn waits_for_settings(facts: &Facts<'_>, pod: &Pod) -> bool {
    pod.resources == Resources::MoreMemory && suffices(facts, pod) && !facts.current_settings(pod)
}

/// Why this pod, which differs in cpu and memory alone, is replaced all the same.
pub(in crate::cluster) fn obstacle(facts: &Facts<'_>, pod: &Pod) -> Option<String> {
    if !only_resources_differ(facts, pod) {
        return None;
    }
    match &pod.resources {
        Resources::Given => None,
        Resources::Refused { message } => Some(message.clone()),
        Resources::Asked { message } => {
            let late = is_late(facts, pod);
            let said = message.as_ref().map_or(String::new(), |message| format!(": {message}"));
            late.then(|| format!("not done in {} s{said}", WAIT_LIMIT.num_seconds()))
        }
        Resources::Other | Resources::MoreMemory => {
            if let Some(refusal) = refuses_less(facts, pod) {
                return Some(refusal.message.clone());
            }
            let target = Target::Resize(pod.name.clone());
            let mut faults = facts.observed.faults.iter();
            let fault = faults.find(|fault| fault.target == target)?;
            let refused = match fault.kind {
                FaultKind::Invalid => true,
                // A quota, or a rule of admission, would refuse a new pod as well.
                FaultKind::Quota | FaultKind::Forbidden => false,
                // What may go away by itself is tried again, as long as a kubelet is waited for.
                FaultKind::Conflict | FaultKind::Transient => is_late(facts, pod),
            };
            refused.then(|| fault.message.clone())
        }
    }
}

/// Kubernetes has refused some pod its resources, and this one would have to restart PostgreSQL first only to be refused
/// less memory, too: a new pod has the settings and the memory at once.
fn refuses_less<'a>(facts: &Facts<'a>, pod: &Pod) -> Option<&'a Fault> {
    let refused = |fault: &&Fault| matches!(fault.target, Target::Resize(_)) && fault.kind == FaultKind::Invalid;
    let less = pod.resources == Resources::MoreMemory && !facts.current_settings(pod);
    facts.observed.faults.iter().filter(|_| less).find(refused)
}

fn only_resources_differ(facts: &Facts<'_>, pod: &Pod) -> bool {
    let same = pod.base_revision.as_deref() == Some(facts.wanted.base_revision);
    let in_place = facts.has_wal_volume(pod) && volumes::awaits_new_pod(facts, pod).is_none();
    same && !facts.current_revision(pod) && in_place
}

/// The note on the pod, if it speaks of what is wanted now.
fn begun<'a>(facts: &Facts<'_>, pod: &'a Pod) -> Option<&'a Resizing> {
    let noted = pod.resizing.as_ref();
    noted.filter(|resizing| resizing.to == facts.wanted.revision)
}

pub(in crate::cluster) fn deadline(facts: &Facts<'_>, pod: &Pod) -> Option<DateTime<Utc>> {
    begun(facts, pod)?.since.checked_add_signed(WAIT_LIMIT)
}

fn is_late(facts: &Facts<'_>, pod: &Pod) -> bool {
    deadline(facts, pod).is_some_and(|deadline| facts.now >= deadline)
}
