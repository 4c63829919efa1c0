//! Creation: the finalizer first, then every object, and while the first database is not there, what it waits for.

use chrono::TimeDelta;

use super::action::Action;
use super::decision::Step;
use super::facts::{Facts, list};
use super::failure;
use super::fenced;
use super::observed::{ChildKind, Known, Pod, Target};
use super::room;
use super::rule::{Proposal, Rule};
use crate::reconcile::{Exact, FaultKind};

/// See [`Rule::what`].
pub const FINALIZER: Rule = Rule {
    name: "finalizer",
    family: "creation",
    what: "A resource without our finalizer gets it before anything is made, so that nothing is left behind.",
    propose: finalizer,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_DATABASE: Rule = Rule {
    name: "await-database",
    family: "creation",
    what: "Until the first primary has made the database, everything waits for it.",
    propose: await_database,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_STANDBYS: Rule = Rule {
    name: "await-standbys",
    family: "creation",
    what: "Members that do not serve yet are waited for.",
    propose: await_standbys,
    passable: false,
};

/// A pod that has no node is looked at again after this long: nodes and volumes come without any event of ours.
pub(super) const PENDING_RECHECK: TimeDelta = TimeDelta::seconds(15);

fn finalizer(facts: &Facts<'_>) -> Option<Proposal> {
    let wanted = facts.wanted;
    if wanted.finalizer {
        return None;
    }
    let action = Action::AddFinalizer(Exact::new(wanted.name, wanted.uid, wanted.resource_version));
    Proposal::act(Step::Objects, action, "the resource has no finalizer yet")
}

fn await_database(facts: &Facts<'_>) -> Option<Proposal> {
    if facts.bootstrapped() {
        return None;
    }
    let name = facts.wanted.name;
    let (Known::Known(pods), Known::Known(Some(_))) = (&facts.observed.pods, &facts.observed.lease) else {
        return Proposal::unread(facts, Step::Bootstrap, "the pods and the Lease");
    };
    let Some(grant) = &facts.status.intent.bootstrap else {
        return match pods.iter().find(|pod| !pod.terminating) {
            None => missing(facts, Step::Bootstrap, format!("pods of StatefulSet {name}")),
            Some(pod) => pending(facts, Step::Bootstrap, pod),
        };
    };
    match pods.iter().find(|pod| pod.name == grant.pod && !pod.terminating) {
        None => missing(
            facts,
            Step::Bootstrap,
            format!("pod {}, which may make the first database", grant.pod),
        ),
        Some(pod) if does_not_run(pod) => pending(facts, Step::Bootstrap, pod),
        Some(pod) => {
            let what = format!("{} to make the first database", pod.name);
            Proposal::wait(facts, Step::Bootstrap, what, format!("the agent in pod {}", pod.name))
        }
    }
}

/// Why there is no such pod is said by whoever should make it.
fn missing(facts: &Facts<'_>, step: Step, what: String) -> Option<Proposal> {
    let (what, who) = unmade(facts).unwrap_or_else(|| (what, "the StatefulSet controller".to_owned()));
    Proposal::wait(facts, step, what, who)
}

/// A pod that the StatefulSet cannot make, and who can end that.
pub(super) fn unmade(facts: &Facts<'_>) -> Option<(String, String)> {
    let mut absent = (0..facts.expected()).filter(|ordinal| facts.pod(*ordinal).is_none());
    absent.find_map(|ordinal| {
        let name = format!("{}-{ordinal}", facts.wanted.name);
        let targets = [Target::Pod(name.clone()), Target::Child(ChildKind::StatefulSet)];
        let mut faults = facts.observed.faults.iter();
        let fault = faults.find(|fault| targets.contains(&fault.target) && fault.kind != FaultKind::Conflict)?;
        // Here, and not with what is waited for: that stays the same while these words change.
        let words = failure::shortened(&fault.message);
        let who = format!("the StatefulSet controller, once this is mended: {words}");
        Some((format!("pod {name} to be made"), who))
    })
}

/// It does not run, or does not stay up, for a reason that Kubernetes tells.
pub(super) fn does_not_run(pod: &Pod) -> bool {
    pod.never_ran() || pod.trouble.is_some()
}

/// The first pod that does not run for a reason that is known, unless it is fenced and runs nothing on purpose.
fn stuck<'a>(facts: &Facts<'a>) -> Option<&'a Pod> {
    let fenced = |pod: &Pod| fenced::is_fenced(facts, &pod.name);
    facts
        .pods()
        .iter()
        .find(|pod| pod.image_error.is_some() || pod.unschedulable.is_some() || pod.trouble.is_some() && !fenced(pod))
}

/// Some pod cannot be made, or does not run: it is late sooner than one that copies a database.
pub(super) fn obstructed(facts: &Facts<'_>) -> bool {
    stuck(facts).is_some() || unmade(facts).is_some()
}

/// What Kubernetes says of pods that do not run or cannot be made, as the end of a sentence.
pub(super) fn troubles(facts: &Facts<'_>) -> String {
    let of_pod = |pod: &Pod| {
        let trouble = pod.trouble.as_ref()?;
        Some(format!("; {}: {}", pod.name, failure::shortened(&trouble.message)))
    };
    let unmade = unmade(facts).map(|(what, who)| format!("; {what}: {who}"));
    facts.pods().iter().filter_map(of_pod).chain(unmade).collect()
}

/// What a pod that does not run yet waits for, and who can end that.
pub(super) fn lacks(pod: &Pod) -> (String, String) {
    let name = &pod.name;
    if let Some(error) = &pod.image_error {
        let image = &error.image;
        (
            format!("pod {name} to run image {image} ({})", error.reason),
            "the kubelet, or a change of spec.postgres.image".to_owned(),
        )
    } else if let Some(why) = &pod.unschedulable {
        (
            format!("a node for pod {name} ({why})"),
            "the scheduler: a node that fits, or a change of spec.scheduling or spec.resources".to_owned(),
        )
    } else if pod.node.is_none() {
        (format!("a node for pod {name}"), "the scheduler".to_owned())
    } else if let Some(trouble) = &pod.trouble {
        (
            format!("pod {name} to be ready ({})", trouble.reason),
            format!(
                "the kubelet, once this is mended: {}",
                failure::shortened(&trouble.message)
            ),
        )
    } else {
        (format!("pod {name} to be ready"), "its agent".to_owned())
    }
}

/// Waits for a pod that does not run yet.
pub(super) fn pending(facts: &Facts<'_>, step: Step, pod: &Pod) -> Option<Proposal> {
    let (what, who) = lacks(pod);
    let proposal = Proposal::wait(facts, step, what, who)?;
    if let Some(deadline) = failure::image_deadline(facts, pod).filter(|deadline| facts.now < *deadline) {
        return Some(proposal.until(deadline));
    }
    Some(if pod.node.is_none() {
        proposal.looking_again(facts.now + PENDING_RECHECK)
    } else {
        proposal
    })
}

fn await_standbys(facts: &Facts<'_>) -> Option<Proposal> {
    let absent = (0..facts.expected()).find(|ordinal| facts.pod(*ordinal).is_none_or(|pod| pod.terminating));
    if let Some(ordinal) = absent {
        let what = format!("pod {}-{ordinal}", facts.wanted.name);
        return match facts.pod(ordinal) {
            Some(pod) => Proposal::wait(facts, Step::Standbys, what, remover(pod)),
            None => missing(facts, Step::Standbys, what),
        };
    }
    if let Some(pod) = facts.pods().iter().find(|pod| pod.ordinal >= facts.expected()) {
        let what = format!("pod {} to be gone", pod.name);
        return Proposal::wait(facts, Step::Scaling, what, "its agent and the kubelet");
    }
    if let Some(pod) = stuck(facts) {
        return pending(facts, Step::Standbys, pod);
    }
    let late = || {
        facts
            .pods()
            .iter()
            .filter(|pod| !facts.serves(pod) && !fenced::is_fenced(facts, &pod.name))
    };
    late().next()?;
    let refused = late().find_map(|pod| {
        let fault = failure::rest_of(facts, &Target::Certificate(pod.name.clone()))?.0;
        Some((pod, fault))
    });
    if let Some((pod, fault)) = refused {
        let what = format!("a key of {} that can be signed: {}", pod.name, fault.message);
        return Proposal::wait(facts, Step::Standbys, what, format!("the agent in pod {}", pod.name));
    }
    let names = late().map(|pod| pod.name.as_str());
    let what = format!("{} to stream from the primary", list(names));
    // Here, and not with what is waited for: that stays the same while these words change.
    let fault = |pod: &Pod| Some(format!("{}: {}", pod.name, facts.report(pod)?.fault.as_ref()?));
    let faults: Vec<String> = late().filter_map(fault).collect();
    let agents = if faults.is_empty() {
        "their agents".to_owned()
    } else {
        format!("their agents ({})", faults.join("; "))
    };
    let who = match room::which(facts) {
        Some(full) => format!("{full}; {}; then {agents}", room::who(facts)),
        None => agents,
    };
    Proposal::wait(facts, Step::Standbys, what, who)
}

/// Who can bring a pod that is going away to its end. Kubernetes makes no other of its name while it may run: what to do if its
/// node is lost is for people to decide (Kubernetes' pages "Force Delete StatefulSet Pods" and "Node Shutdowns").
pub(super) fn remover(pod: &Pod) -> String {
    let Some(node) = &pod.node else {
        return "the API server".to_owned();
    };
    format!(
        "the kubelet of {node}, which ends the pod that is going away; if that node is known to be off for good, the user: kubectl \
         taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, or kubectl delete pod {} --force",
        pod.name
    )
}

#[cfg(test)]
mod tests;
