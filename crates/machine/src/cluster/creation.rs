//! Creation: the finalizer first, then every object, and while the first database is not there, what it waits for.

use chrono::TimeDelta;

use super::action::{Action, Exact};
use super::decision::Step;
use super::facts::{Facts, list};
use super::failure;
use super::fenced;
use super::observed::{ChildKind, FaultKind, Known, Pod, Target};
use super::room;
use super::rule::{Proposal, Rule};

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
mod tests {
    use super::super::testing::Scene;
    use super::super::{Action, ChildKind, Fault, FaultKind, Known, Target, Trouble};
    use super::*;

    #[test]
    fn nothing_is_made_before_the_finalizer() {
        let decision = Scene::new(3).decide();
        assert_eq!((decision.rule, decision.action.name()), ("finalizer", "AddFinalizer"));
    }

    #[test]
    fn objects_are_made_in_order_and_the_stateful_set_last() {
        let mut scene = Scene::new(3);
        scene.finalizer = true;
        scene.edit(|spec| spec.network_policy.mode = api::spec::NetworkPolicyMode::Managed);
        for kind in ChildKind::ALL {
            let Action::Apply(apply) = scene.decide().action else {
                panic!("{:?}", scene.decide())
            };
            assert_eq!(apply.kind, kind);
            scene.set_child(kind, super::super::ChildState::Current { uid: "u".to_owned() });
        }
    }

    #[test]
    fn a_pod_that_is_going_away_is_for_its_kubelet_or_whoever_knows_that_its_node_is_off() {
        let mut scene = Scene::ready(3);
        scene.pod_mut(2).terminating = true;
        let who = |scene: &Scene| match scene.decide().action {
            Action::Wait(waiting) => (waiting.what, waiting.who_can_end_it),
            other => panic!("{other:?}"),
        };
        let (what, words) = who(&scene);
        assert_eq!(what, "pod demo-2");
        assert!(words.starts_with("the kubelet of node-2,"), "{words}");
        assert!(
            words.contains("kubectl taint node node-2 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
                && words.ends_with("kubectl delete pod demo-2 --force"),
            "{words}"
        );
        scene.pod_mut(2).node = None;
        assert_eq!(who(&scene).1, "the API server");
        scene.pods_mut().pop();
        assert_eq!(who(&scene).1, "the StatefulSet controller");
    }

    #[test]
    fn standbys_are_waited_for_by_name_and_the_scheduler_is_quoted() {
        let mut scene = Scene::ready(3);
        scene.pod_mut(1).ready = false;
        scene.pod_mut(2).ready = false;
        assert_eq!(
            scene.decide().because.to_string(),
            "demo-1, demo-2 to stream from the primary"
        );
        scene.pod_mut(2).unschedulable = Some("0/3 nodes are available".to_owned());
        scene.pod_mut(2).node = None;
        assert_eq!(
            scene.decide().because.to_string(),
            "a node for pod demo-2 (0/3 nodes are available)"
        );
        scene.pods_mut().truncate(2);
        assert_eq!(scene.decide().because.to_string(), "pod demo-2");
    }

    /// What is waited for, who can end it, and for how long that may last.
    fn waits(scene: &mut Scene) -> (String, String, i64) {
        scene.store();
        let waiting = scene.stored.waiting.clone().unwrap();
        let patience = waiting
            .deadline
            .map_or(0, |deadline| (deadline - waiting.since).num_minutes());
        (waiting.what, waiting.who_can_end_it, patience)
    }

    fn killed() -> Option<Trouble> {
        Some(Trouble {
            reason: "OOMKilled, exit code 137".to_owned(),
            message: "container postgres has ended 3 times".to_owned(),
        })
    }

    #[test]
    fn a_pod_that_does_not_stay_up_is_told_in_kubernetes_words_and_is_late_sooner_than_a_copy() {
        let mut scene = Scene::ready(3);
        scene.stored.phase = Some(api::Phase::Updating);
        scene.pod_mut(2).ready = false;
        assert_eq!(waits(&mut scene).2, 60, "it may copy the database");
        scene.pod_mut(2).trouble = killed();
        let (what, who, patience) = waits(&mut scene);
        assert_eq!(what, "pod demo-2 to be ready (OOMKilled, exit code 137)");
        assert_eq!(
            who,
            "the kubelet, once this is mended: container postgres has ended 3 times"
        );
        assert_eq!(patience, 10);
        scene.pod_mut(1).ready = false;
        scene.edit(|spec| spec.fenced = vec!["demo-2".to_owned()]);
        assert_eq!(waits(&mut scene).0, "demo-1 to stream from the primary");
    }

    #[test]
    fn a_pod_that_cannot_be_made_is_told_in_the_controllers_words() {
        let words = "create Pod demo-2 failed error: no PriorityClass with name nope was found";
        let fault = |kind| Fault {
            target: Target::Pod("demo-2".to_owned()),
            kind,
            message: words.to_owned(),
            attempts: 1,
            at: Scene::ready(3).now,
        };
        let mut scene = Scene::ready(3);
        scene.stored.phase = Some(api::Phase::Updating);
        scene.pods_mut().pop();
        scene.observed.faults = vec![fault(FaultKind::Conflict)];
        assert_eq!(
            waits(&mut scene).1,
            "the StatefulSet controller",
            "that was about the pod before"
        );
        scene.observed.faults = vec![fault(FaultKind::Forbidden)];
        let (what, who, patience) = waits(&mut scene);
        assert_eq!((what.as_str(), patience), ("pod demo-2 to be made", 10));
        assert_eq!(who, format!("the StatefulSet controller, once this is mended: {words}"));
    }

    #[test]
    fn the_first_database_and_a_single_instance_wait_in_kubernetes_words_as_well() {
        let mut scene = Scene::ready(1);
        scene.pod_mut(0).ready = false;
        scene.pod_mut(0).trouble = killed();
        let (what, who, _) = waits(&mut scene);
        assert_eq!(what, "pod demo-0 to be ready (OOMKilled, exit code 137)");
        assert!(who.ends_with("container postgres has ended 3 times"), "{who}");
        scene.stored.system_identifier = None;
        scene.lease_mut().unwrap().system_id = None;
        scene.stored.intent.bootstrap = Some(api::status::BootstrapGrant {
            pod: "demo-0".to_owned(),
            claim_uid: scene.claims_mut()[0].uid.clone(),
        });
        assert_eq!(waits(&mut scene).0, what);
    }

    #[test]
    fn the_first_database_waits_for_a_pod_that_does_not_go() {
        let waits = |granted: bool, change: fn(&mut Scene)| {
            let mut scene = Scene::ready(1);
            scene.stored.system_identifier = None;
            scene.lease_mut().unwrap().system_id = None;
            scene.stored.intent.bootstrap = granted.then(|| api::status::BootstrapGrant {
                pod: "demo-0".to_owned(),
                claim_uid: scene.claims_mut()[0].uid.clone(),
            });
            scene.pod_mut(0).ready = false;
            change(&mut scene);
            match scene.with_facts(await_database).unwrap().action {
                Action::Wait(waiting) => waiting.what.into_owned(),
                other => panic!("{other:?}"),
            }
        };
        let going: fn(&mut Scene) = |scene| scene.pod_mut(0).terminating = true;
        assert_eq!(waits(false, |_| {}), "pod demo-0 to be ready");
        assert_eq!(waits(false, going), "pods of StatefulSet demo");
        assert_eq!(waits(true, |_| {}), "demo-0 to make the first database");
        assert_eq!(waits(true, going), "pod demo-0, which may make the first database");
    }

    #[test]
    fn a_pod_that_does_not_run_is_looked_at_again_or_late() {
        let mut scene = Scene::ready(1);
        let wait = |scene: &Scene| {
            let found = scene
                .with_facts(|facts| pending(facts, Step::Standbys, &facts.pods()[0]))
                .unwrap();
            let Action::Wait(waiting) = found.action else {
                panic!("{:?}", found.action)
            };
            (waiting.deadline, found.wake)
        };
        assert_eq!(wait(&scene), (None, None));
        scene.pod_mut(0).node = None;
        assert_eq!(wait(&scene), (None, Some(scene.now + PENDING_RECHECK)));
        scene.pod_mut(0).image_error = Some(scene.image_error());
        let late = scene
            .with_facts(|facts| failure::image_deadline(facts, &facts.pods()[0]))
            .unwrap();
        assert_eq!(wait(&scene).0, Some(late));
        scene.now = late;
        assert_eq!(wait(&scene).0, None, "it has become a failure");
    }

    #[test]
    fn a_failover_that_waits_for_a_pod_that_does_not_stay_up_says_why() {
        let mut scene = Scene::ready(3);
        scene.pod_mut(0).ready = false;
        scene.pod_mut(0).trouble = killed();
        let (_, who, _) = waits(&mut scene);
        assert!(who.ends_with("; demo-0: container postgres has ended 3 times"), "{who}");
    }

    #[test]
    fn an_unreadable_lease_is_no_lost_one() {
        let mut scene = Scene::ready(3);
        scene.observed.lease = Known::Unknown;
        let decision = scene.decide();
        assert_eq!(
            (decision.rule, decision.because.to_string().as_str()),
            ("await-primary", "the Lease to be read")
        );
        assert_eq!(
            decision.phase,
            api::Phase::Ready,
            "what cannot be read changes no phase"
        );
    }
}
