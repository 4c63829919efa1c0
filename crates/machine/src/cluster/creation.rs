//! Creation: the finalizer first, then every object, and while the first database is not there, what it waits for.

use api::status::{LateObject, WaitActor, WaitReason};
use chrono::TimeDelta;

use super::action::Action;
use super::decision::Step;
use super::facts::late::{LateMember, Lateness, lacking, late_members, unmade};
use super::facts::{Facts, list, shortened};
use super::failure;
use super::observed::{Known, Pod, Target};
use super::owned::OwnedObject;
use super::resting;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::{Lack, WaitKey};
use super::{room, wait_limit};
use crate::reconcile::ObjectVersion;

/// See [`Rule::what`].
pub const FINALIZER: Rule = Rule {
    name: "finalizer",
    family: "creation",
    what: "A resource without our finalizer gets it before anything is made, so that nothing is left behind.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: finalizer,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const AWAIT_DATABASE: Rule = Rule {
    name: "await-database",
    family: "creation",
    what: "Until the first primary has made the database, everything waits for it.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_database,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const AWAIT_STANDBYS: Rule = Rule {
    name: "await-standbys",
    family: "creation",
    what: "Members that do not serve yet are waited for.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_standbys,
    on_backoff: OnBackoff::Hold,
};

/// A pod that has no node is looked at again after this long: nodes and volumes come without any event of ours.
pub(super) const PENDING_RECHECK: TimeDelta = TimeDelta::seconds(15);

fn finalizer(facts: &Facts<'_>) -> Option<Proposal> {
    let wanted = facts.wanted;
    if wanted.finalizer {
        return None;
    }
    let action = Action::AddFinalizer(ObjectVersion::new(wanted.name, wanted.uid, wanted.resource_version));
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
            None => {
                let key = WaitKey::child(facts, WaitReason::PodCreation, OwnedObject::StatefulSet);
                missing(facts, Step::Bootstrap, key, format!("pods of StatefulSet {name}"))
            }
            Some(pod) => pending(facts, Step::Bootstrap, pod),
        };
    };
    match pods.iter().find(|pod| pod.name == grant.pod && !pod.terminating) {
        None => missing(
            facts,
            Step::Bootstrap,
            WaitKey::pod(WaitReason::PodCreation, &grant.pod),
            format!("pod {}, which may make the first database", grant.pod),
        ),
        Some(pod) if pod.does_not_run() => pending(facts, Step::Bootstrap, pod),
        Some(pod) => {
            let key = WaitKey::pod(WaitReason::FirstDatabase, &pod.name);
            let what = format!("{} to make the first database", pod.name);
            let who = format!("the agent in pod {}", pod.name);
            Proposal::wait(facts, Step::Bootstrap, key, what, who)
        }
    }
}

/// Waits for a pod that does not exist. Why there is none is said by whoever should make it.
fn missing(facts: &Facts<'_>, step: Step, key: WaitKey, what: String) -> Option<Proposal> {
    let lack = unmade(facts).unwrap_or_else(|| Lack {
        actor: key.reason.actor(),
        key,
        what,
        who: "the StatefulSet controller".to_owned(),
    });
    Proposal::lack(facts, step, lack)
}

/// What Kubernetes says of pods that do not run or cannot be made, as the end of a sentence.
pub(super) fn troubles(facts: &Facts<'_>) -> String {
    let of_pod = |pod: &Pod| {
        let trouble = pod.trouble.as_ref()?;
        Some(format!("; {}: {}", pod.name, shortened(&trouble.message)))
    };
    let unmade = unmade(facts).map(|lack| format!("; {}: {}", lack.what, lack.who));
    facts.pods().iter().filter_map(of_pod).chain(unmade).collect()
}

/// What a pod that does not run yet waits for, and who can end that.
pub(super) fn lacks(pod: &Pod) -> Lack {
    let name = &pod.name;
    let mut actor = lacking(pod).actor();
    let (what, who) = if let Some(error) = &pod.image_error {
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
        actor = WaitActor::Kubernetes;
        (
            format!("pod {name} to be ready ({})", trouble.reason),
            format!("the kubelet, once this is mended: {}", shortened(&trouble.message)),
        )
    } else {
        (format!("pod {name} to be ready"), "its agent".to_owned())
    };
    Lack {
        key: WaitKey::pod(lacking(pod), name),
        actor,
        what,
        who,
    }
}

/// Waits for a pod that does not run yet.
pub(super) fn pending(facts: &Facts<'_>, step: Step, pod: &Pod) -> Option<Proposal> {
    let proposal = Proposal::lack(facts, step, lacks(pod))?;
    if let Some(deadline) = failure::image_deadline(facts, pod).filter(|deadline| facts.now < *deadline) {
        return Some(proposal.until(deadline));
    }
    Some(if pod.node.is_none() {
        proposal.looking_again(facts.now + PENDING_RECHECK)
    } else {
        proposal
    })
}

/// Several instances may be late at the same time. Each has a deadline of its own, and one that is past it is named first: so
/// an instance that comes and goes hides no other one.
fn await_standbys(facts: &Facts<'_>) -> Option<Proposal> {
    let members = late_members(facts);
    let late = facts.late(members.iter().map(LateMember::key));
    let timed = || members.iter().zip(&late);
    let is_overdue =
        |late: &LateObject| facts.now >= late.since + wait_limit::limit_of(facts, Some(Step::Standbys), late);
    let overdue = timed()
        .filter(|(_, late)| is_overdue(late))
        .min_by_key(|(_, late)| late.since);
    let usual = timed().min_by_key(|(member, late)| {
        let rank = match member.why {
            Lateness::Absent | Lateness::Leaving => 0,
            Lateness::Stuck(_) => 1,
            Lateness::Joining => 2,
        };
        (rank, (rank == 2).then_some(late.since))
    });
    let surplus = facts.pods().iter().find(|pod| pod.ordinal >= facts.expected());
    let is_absent = |member: &LateMember| matches!(member.why, Lateness::Absent | Lateness::Leaving);
    if let Some(pod) = surplus.filter(|_| overdue.is_none() && !usual.is_some_and(|(member, _)| is_absent(member))) {
        let key = WaitKey::pod(WaitReason::PodRemoval, &pod.name);
        let what = format!("pod {} to be gone", pod.name);
        return Proposal::wait(facts, Step::Scaling, key, what, "its agent and the kubelet");
    }
    let (member, _) = overdue.or(usual)?;
    let pod = facts.pods().iter().find(|pod| pod.name == member.name);
    let wait = match (member.why, pod) {
        (Lateness::Absent, _) | (_, None) => {
            let what = format!("pod {}", member.name);
            missing(facts, Step::Standbys, member.key(), what)
        }
        (Lateness::Leaving, Some(pod)) => {
            let what = format!("pod {}", member.name);
            Proposal::wait(facts, Step::Standbys, member.key(), what, remover(pod))
        }
        (Lateness::Stuck(_), Some(pod)) => pending(facts, Step::Standbys, pod),
        (Lateness::Joining, Some(_)) => joining(facts, &members, member),
    }?;
    Some(wait.among(late))
}

/// Waits for instances that run and do not stream yet, `longest` for the longest time.
fn joining(facts: &Facts<'_>, members: &[LateMember], longest: &LateMember) -> Option<Proposal> {
    let named = |member: &LateMember| facts.pods().iter().find(|pod| pod.name == member.name);
    let is_joining = |member: &&LateMember| member.why == Lateness::Joining;
    let late = || members.iter().filter(is_joining).filter_map(named);
    let refused = late().find_map(|pod| {
        let fault = resting::rest_of(facts, &Target::Certificate(pod.name.clone()))?.0;
        Some((pod, fault))
    });
    if let Some((pod, fault)) = refused {
        let key = WaitKey::pod(WaitReason::CertificateSigning, &pod.name);
        let what = format!("a key of {} that can be signed: {}", pod.name, fault.message);
        let who = format!("the agent in pod {}", pod.name);
        return Proposal::wait(facts, Step::Standbys, key, what, who);
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
    let Some(full) = room::which(facts) else {
        return Proposal::wait(facts, Step::Standbys, longest.key(), what, agents);
    };
    let (actor, way_out) = room::way_out(facts);
    let who = format!("{full}; {way_out}; then {agents}");
    Some(Proposal::wait(facts, Step::Standbys, longest.key(), what, who)?.by(actor))
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
