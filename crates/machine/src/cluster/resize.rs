//! CPU and memory changed in the running pods (Kubernetes 1.33 or later): no restart, no switchover. A pod has its turn
//! where it would be replaced: standbys first from the highest ordinal, the primary last, one at a time, while all others
//! serve.
//!
//! Where a pod stands is read off it, never remembered: it is noted on it that it is being resized, and for what, before
//! anything is asked for, and at the end that it is as the template says. In between it counts as outdated, so that a
//! change that is taken back on the way is taken back in the pod, too.

use chrono::{DateTime, TimeDelta, Utc};

use super::action::{Action, PodMark};
use super::decision::Step;
use super::facts::Facts;
use super::members::exact;
use super::observed::{Fault, Pod, Resizing, Resources, Target};
use super::rollout;
use super::rule::{Proposal, Rule};
use super::volumes;
use crate::reconcile::FaultKind;

/// See [`Rule::what`].
pub const RESIZE: Rule = Rule {
    name: "resize",
    family: "rollout",
    what: "A pod that differs from the template in cpu and memory alone gets them in place while all others serve: the highest standby first, the primary last. Less memory comes after the restart that its settings need, more before. Where Kubernetes refuses that, or does not do it in a minute, the pod is replaced like any other, and others that would have to restart for less memory are, too.",
    propose: resize,
    passable: false,
};

/// A kubelet does it in a few seconds, if it can. One that waits for room on its node may wait for ever, while another
/// node may have it.
const PATIENCE: TimeDelta = TimeDelta::minutes(1);

/// This pod of an older template need not be replaced: it can be given the wanted resources in place, as far as is known.
pub(super) fn suffices(facts: &Facts<'_>, pod: &Pod) -> bool {
    only_resources_differ(facts, pod) && obstacle(facts, pod).is_none()
}

/// This pod is to have less memory, and its PostgreSQL may need what it has until it has restarted with the wanted
/// settings: it is not resized before. (More memory comes before the restart: see [`rollout`].)
pub(super) fn waits_for_settings(facts: &Facts<'_>, pod: &Pod) -> bool {
    pod.resources == Resources::MoreMemory && suffices(facts, pod) && !facts.current_settings(pod)
}

/// Why this pod, which differs in cpu and memory alone, is replaced all the same.
pub(super) fn obstacle(facts: &Facts<'_>, pod: &Pod) -> Option<String> {
    if !only_resources_differ(facts, pod) {
        return None;
    }
    match &pod.resources {
        Resources::Given => None,
        Resources::Refused { message } => Some(message.clone()),
        Resources::Asked { message } => {
            let late = is_late(facts, pod);
            let said = message.as_ref().map_or(String::new(), |message| format!(": {message}"));
            late.then(|| format!("not done in {} s{said}", PATIENCE.num_seconds()))
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

fn deadline(facts: &Facts<'_>, pod: &Pod) -> Option<DateTime<Utc>> {
    begun(facts, pod)?.since.checked_add_signed(PATIENCE)
}

fn is_late(facts: &Facts<'_>, pod: &Pod) -> bool {
    deadline(facts, pod).is_some_and(|deadline| facts.now >= deadline)
}

fn resize(facts: &Facts<'_>) -> Option<Proposal> {
    let pod = rollout::next(facts).filter(|pod| suffices(facts, pod) && !waits_for_settings(facts, pod))?;
    if facts.primary().is_none() || facts.status.intent.restart.is_some() || !facts.all_serve_except(Some(pod.ordinal))
    {
        return None;
    }
    let name = &pod.name;
    let act = |action, because| Proposal::act(Step::Rollout, action, because);
    let mark = |mark| Action::MarkPod { pod: exact(pod), mark };
    let to = facts.wanted.revision.to_owned();
    match (&pod.resources, deadline(facts, pod)) {
        (Resources::Given, _) => act(
            mark(PodMark::Current { revision: to }),
            format!("{name} has the wanted cpu and memory"),
        ),
        (_, None) => act(
            mark(PodMark::Resizing(Resizing { to, since: facts.now })),
            format!("{name} differs from the template in cpu and memory alone, and all others serve"),
        ),
        (Resources::Asked { message }, Some(deadline)) => {
            let said = message
                .as_ref()
                .map_or(String::new(), |message| format!(" ({message})"));
            let what = format!("{name} to get the wanted cpu and memory in place{said}");
            let node = pod.node.as_deref().unwrap_or("its node");
            let who = format!("the kubelet of {node}; else {name} is replaced");
            Some(Proposal::wait(facts, Step::Rollout, what, who)?.until(deadline))
        }
        (Resources::Other | Resources::MoreMemory | Resources::Refused { .. }, Some(deadline)) => {
            let because = format!("{name} asks for other cpu or memory than the template, and all others serve");
            Some(act(Action::ResizePod(exact(pod)), because)?.looking_again(deadline))
        }
    }
}

#[cfg(test)]
mod tests;
