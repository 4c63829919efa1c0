//! CPU and memory changed in the running pods (Kubernetes 1.33 or later): no restart, no switchover. A pod has its turn
//! where it would be replaced: standbys first from the highest ordinal, the primary last, one at a time, while all others
//! serve.
//!
//! Where a pod stands is read off it, never remembered: it is noted on it that it is being resized, and for what, before
//! anything is asked for, and at the end that it is as the template says. In between it counts as outdated, so that a
//! change that is taken back on the way is taken back in the pod, too.

use api::status::WaitReason;

use super::action::{Action, PodMark};
use super::decision::Step;
use super::facts::resize::{deadline, suffices, waits_for_settings};
use super::facts::{Facts, exact, rollout};
use super::observed::{Resizing, Resources};
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::WaitKey;
use crate::reconcile::FaultKind;

/// See [`Rule::what`].
pub const RESIZE: Rule = Rule {
    name: "resize",
    family: "rollout",
    what: "A pod that differs from the template in cpu and memory alone gets them in place while all others serve: the highest standby first, the primary last.\n\
           - Less memory comes after the restart that its settings need, more memory before it.\n\
           - If Kubernetes refuses, or needs more than a minute, the pod is replaced like any other.\n\
           - Then others that would have to restart for less memory are replaced, too.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: resize,
    on_backoff: OnBackoff::Hold,
};

/// The API server's words for a path that it does not serve: Kubernetes before 1.33 has no subresource `resize`.
const NO_SUCH_RESOURCE: &str = "could not find the requested resource";
/// The API server's words for a user that may not change a pod's cpu and memory in place.
const MAY_NOT_RESIZE: &str = "cannot patch resource \"pods/resize\"";

/// Why this refusal to change a pod in place will not go away: the server does not offer it, or this operator may not do it.
/// The pod is replaced then. `None` for all others: what admission refuses here it would refuse of a new pod as well.
pub fn why_never_resized(kind: FaultKind, message: &str) -> Option<String> {
    match kind {
        FaultKind::Conflict if message.contains(NO_SUCH_RESOURCE) => {
            Some(format!("the API server does not offer it: {message}"))
        }
        FaultKind::Forbidden if message.contains(MAY_NOT_RESIZE) => Some(message.to_owned()),
        FaultKind::Conflict | FaultKind::Forbidden | FaultKind::Quota | FaultKind::Invalid | FaultKind::Transient => {
            None
        }
    }
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
            let key = WaitKey::pod(WaitReason::InPlaceResize, name);
            Some(Proposal::wait(facts, Step::Rollout, key, what, who)?.until(deadline))
        }
        (Resources::Other | Resources::MoreMemory | Resources::Refused { .. }, Some(deadline)) => {
            let because = format!("{name} asks for other cpu or memory than the template, and all others serve");
            Some(act(Action::ResizePod(exact(pod)), because)?.looking_again(deadline))
        }
    }
}

#[cfg(test)]
mod tests;
