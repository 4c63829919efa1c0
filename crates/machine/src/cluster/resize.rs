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
use super::observed::{Fault, FaultKind, Pod, Resizing, Resources, Target};
use super::rollout;
use super::rule::{Proposal, Rule};
use super::volumes;

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
mod tests {
    use api::Phase;
    use api::spec::PrimaryUpdates;

    use super::super::testing::Scene;
    use super::*;
    use crate::protocol::MemberState;

    /// A database whose cpu and memory are changed, with the primary in pod 0.
    fn changed() -> Scene {
        let mut scene = Scene::ready(3);
        scene.revision = "r1+large".to_owned();
        for pod in scene.pods_mut() {
            pod.resources = Resources::Other;
        }
        scene
    }

    /// Carries out what is decided, as a kubelet does that takes its time; returns the pod and what was done.
    fn step(scene: &mut Scene) -> (u32, &'static str) {
        let decision = scene.decide();
        let (Action::MarkPod { pod, .. } | Action::ResizePod(pod) | Action::ReplacePod(pod)) = &decision.action else {
            panic!("{decision:#?}")
        };
        let found = scene
            .pods_mut()
            .iter_mut()
            .find(|found| found.uid == pod.uid())
            .unwrap();
        match &decision.action {
            Action::MarkPod { mark, .. } => match mark {
                PodMark::Resizing(resizing) => found.resizing = Some(resizing.clone()),
                PodMark::Current { revision } => (found.revision, found.resizing) = (Some(revision.clone()), None),
            },
            Action::ResizePod(_) => found.resources = Resources::Asked { message: None },
            _ => {}
        }
        (found.ordinal, decision.action.name())
    }

    #[test]
    fn every_pod_gets_it_in_place_one_after_another_the_primary_last() {
        let mut scene = changed();
        scene.elect(1);
        for ordinal in [2, 0, 1] {
            assert_eq!(step(&mut scene), (ordinal, "MarkPod"));
            assert_eq!(step(&mut scene), (ordinal, "ResizePod"));
            let decision = scene.decide();
            assert!(matches!(decision.action, Action::Wait(_)), "{decision:#?}");
            assert_eq!((decision.rule, decision.phase), ("resize", Phase::Updating));
            assert_eq!(decision.wake, scene.now + PATIENCE);
            scene.pod_mut(ordinal).resources = Resources::Given;
            assert_eq!(step(&mut scene), (ordinal, "MarkPod"));
        }
        scene.store();
        assert_eq!(scene.decide().rule, "rest");
    }

    #[test]
    fn nothing_is_resized_while_another_instance_is_away() {
        let mut scene = changed();
        scene.report_mut(1).state = MemberState::CatchingUp;
        let decision = scene.decide();
        assert!(matches!(decision.action, Action::Wait(_)), "{decision:#?}");
        assert_ne!(decision.rule, "resize");
    }

    #[test]
    fn a_pod_that_is_ready_and_does_not_stream_gets_it_as_well() {
        for state in [MemberState::CatchingUp, MemberState::Waiting] {
            let mut scene = changed();
            scene.report_mut(2).state = state;
            assert_eq!(step(&mut scene), (2, "MarkPod"), "what is missing to it may be memory");
            assert_eq!(step(&mut scene), (2, "ResizePod"));
            let mut refused = scene.clone();
            refused.pod_mut(2).resources = Resources::Refused {
                message: "no".to_owned(),
            };
            assert_eq!(step(&mut refused), (2, "ReplacePod"));
            scene.pod_mut(2).resources = Resources::Given;
            assert_eq!(step(&mut scene), (2, "MarkPod"));
            assert!(
                matches!(scene.decide().action, Action::Wait(_)),
                "the others have to wait"
            );
        }
    }

    #[test]
    fn less_memory_waits_until_the_settings_that_need_less_are_in_force() {
        let mut scene = changed();
        for ordinal in 0..3 {
            scene.pod_mut(ordinal).resources = Resources::MoreMemory;
        }
        assert_eq!(step(&mut scene.clone()), (2, "MarkPod"), "no setting is changed");
        scene.edit(|spec| {
            let parameters = &mut spec.postgres.parameters;
            parameters.insert("shared_buffers".to_owned(), "64MB".to_owned());
        });
        let decision = scene.decide();
        assert_eq!(
            decision.rule, "await-settings",
            "whether they need a restart is not known yet"
        );
        for ordinal in 0..3 {
            let settings = crate::protocol::settings_hash(&scene.spec.postgres.parameters);
            let report = scene.report_mut(ordinal);
            (report.settings, report.pending_restart) = (settings, true);
        }
        let decision = scene.store();
        assert_eq!(decision.rule, "restart", "{decision:#?}");
        assert_eq!(scene.stored.intent.restart.as_ref().unwrap().pod, "demo-2");
        assert!(matches!(scene.decide().action, Action::Wait(_)));
        let mut restarts = scene.clone();
        restarts.pod_mut(2).ready = false;
        assert_eq!(restarts.decide().rule, "restart", "it was let restart");
        restarts.now += TimeDelta::minutes(2);
        assert_eq!(step(&mut restarts), (2, "ReplacePod"), "it is not back in time");
        scene.report_mut(2).pending_restart = false;
        scene.store();
        assert_eq!(scene.stored.intent.restart, None);
        assert_eq!(step(&mut scene), (2, "MarkPod"));
        assert_eq!(step(&mut scene), (2, "ResizePod"));

        let mut refused = scene.clone();
        refused.report_mut(1).settings_error = Some("invalid value".to_owned());
        refused.pod_mut(2).resources = Resources::Given;
        assert_eq!(step(&mut refused), (2, "MarkPod"));
        assert_eq!(
            refused.decide().rule,
            "await-settings",
            "refused settings need as much as before"
        );
    }

    #[test]
    fn a_primary_that_restarts_first_is_given_less_memory_last() {
        let mut scene = changed();
        scene.edit(|spec| {
            let parameters = &mut spec.postgres.parameters;
            parameters.insert("max_connections".to_owned(), "20".to_owned());
        });
        for ordinal in 0..3 {
            scene.pod_mut(ordinal).resources = Resources::MoreMemory;
            let settings = crate::protocol::settings_hash(&scene.spec.postgres.parameters);
            let report = scene.report_mut(ordinal);
            (report.settings, report.pending_restart, report.lowers_limits) = (settings, true, true);
        }
        scene.store();
        assert_eq!(scene.stored.intent.restart.as_ref().unwrap().pod, "demo-0");
        let report = scene.report_mut(0);
        (report.pending_restart, report.lowers_limits) = (false, false);
        scene.store();
        scene.store();
        assert_eq!(scene.stored.intent.restart.as_ref().unwrap().pod, "demo-2");
    }

    #[test]
    fn a_primary_whose_updates_are_supervised_is_resized_without_leave() {
        let mut scene = changed();
        scene.edit(|spec| spec.primary.updates = PrimaryUpdates::Supervised);
        for ordinal in [2, 1] {
            let pod = scene.pod_mut(ordinal);
            (pod.revision, pod.resources) = (Some("r1+large".to_owned()), Resources::Given);
        }
        assert_eq!(step(&mut scene), (0, "MarkPod"));
        assert_eq!(step(&mut scene), (0, "ResizePod"));
    }

    #[test]
    fn a_template_that_differs_in_more_needs_a_new_pod() {
        let mut scene = changed();
        scene.revision = "r2+large".to_owned();
        assert_eq!(step(&mut scene), (2, "ReplacePod"));
        let mut before = changed();
        before.pod_mut(2).base_revision = None;
        assert_eq!(
            step(&mut before),
            (2, "ReplacePod"),
            "a pod that an older operator made"
        );
    }

    fn because(scene: &Scene) -> String {
        let decision = scene.decide();
        assert_eq!(decision.action.name(), "ReplacePod", "{decision:#?}");
        decision.because.to_string()
    }

    #[test]
    fn what_kubernetes_cannot_do_in_place_is_done_by_replacement_and_it_is_said_why() {
        let mut infeasible = changed();
        infeasible.pod_mut(2).resources = Resources::Refused {
            message: "Infeasible: too little".to_owned(),
        };
        let said = "demo-2 is of an older template, and all others serve; it cannot be resized in place: ";
        assert_eq!(because(&infeasible), format!("{said}Infeasible: too little"));

        let mut slow = changed();
        step(&mut slow);
        step(&mut slow);
        let message = Some("Deferred: no room".to_owned());
        slow.pod_mut(2).resources = Resources::Asked { message };
        slow.store();
        slow.now += PATIENCE - TimeDelta::seconds(1);
        assert_eq!(slow.decide().rule, "resize");
        slow.now += TimeDelta::seconds(1);
        assert_eq!(because(&slow), format!("{said}not done in 60 s: Deferred: no room"));
        slow.pod_mut(2).resources = Resources::Given;
        assert_eq!(step(&mut slow), (2, "MarkPod"), "late is not never");
    }

    fn fault(scene: &mut Scene, kind: FaultKind) {
        scene.observed.faults = vec![Fault {
            target: Target::Resize("demo-2".to_owned()),
            kind,
            message: "no".to_owned(),
            attempts: 1,
            at: scene.now,
        }];
    }

    #[test]
    fn a_request_that_is_refused_is_not_made_again_unless_a_new_pod_would_be_refused_as_well() {
        let mut scene = changed();
        step(&mut scene);
        fault(&mut scene, FaultKind::Invalid);
        assert!(because(&scene).ends_with("; it cannot be resized in place: no"));
        let others = [
            FaultKind::Transient,
            FaultKind::Conflict,
            FaultKind::Forbidden,
            FaultKind::Quota,
        ];
        for kind in others {
            fault(&mut scene, kind);
            assert!(matches!(scene.decide().action, Action::Wait(_)));
            let mut late = scene.clone();
            late.now += PATIENCE - TimeDelta::seconds(1);
            (late.observed.faults[0].attempts, late.observed.faults[0].at) = (20, late.now);
            let decision = late.decide();
            assert_eq!(
                (decision.rule, decision.wake),
                ("resize", late.now + TimeDelta::seconds(1))
            );
            late.now = decision.wake;
            match kind {
                FaultKind::Quota | FaultKind::Forbidden => {
                    assert!(
                        matches!(late.decide().action, Action::Wait(_)),
                        "a new pod would be refused as well"
                    );
                }
                _ => assert!(because(&late).ends_with("; it cannot be resized in place: no")),
            }
        }
        assert_eq!(
            scene.decide().failure.unwrap().reason,
            api::status::FailureReason::QuotaExceeded
        );
        let mut undone = scene.clone();
        let pod = undone.pod_mut(2);
        (pod.revision, pod.resizing) = (Some("r1+large".to_owned()), None);
        assert_eq!(undone.decide().failure, None, "nothing is refused any more");
        scene.now += TimeDelta::minutes(5);
        assert_eq!(step(&mut scene), (2, "ResizePod"), "it is tried again");
    }

    #[test]
    fn less_memory_that_is_refused_to_one_is_not_restarted_for_by_the_others() {
        let mut scene = changed();
        scene.edit(|spec| {
            let parameters = &mut spec.postgres.parameters;
            parameters.insert("shared_buffers".to_owned(), "64MB".to_owned());
        });
        for ordinal in 0..3 {
            scene.pod_mut(ordinal).resources = Resources::MoreMemory;
            let settings = crate::protocol::settings_hash(&scene.spec.postgres.parameters);
            let report = scene.report_mut(ordinal);
            (report.settings, report.pending_restart) = (settings, true);
        }
        assert_eq!(scene.decide().rule, "restart");
        fault(&mut scene, FaultKind::Transient);
        assert_eq!(scene.decide().rule, "restart", "it may go away");
        fault(&mut scene, FaultKind::Invalid);
        let mut elsewhere = scene.clone();
        elsewhere.observed.faults[0].target = Target::Pod("demo-2".to_owned());
        assert_eq!(elsewhere.decide().rule, "restart", "that is no word on memory");
        let pod = scene.pod_mut(2);
        (pod.revision, pod.resources) = (Some("r1+large".to_owned()), Resources::Given);
        scene.report_mut(2).pending_restart = false;
        let mut more = scene.clone();
        more.pod_mut(1).resources = Resources::Other;
        assert_eq!(step(&mut more), (1, "MarkPod"), "it needs no restart first");
        assert_eq!(step(&mut scene), (1, "ReplacePod"));
        assert!(because(&scene).ends_with("; it cannot be resized in place: no"));
        scene.report_mut(1).pending_restart = false;
        assert_eq!(step(&mut scene), (1, "MarkPod"), "its settings need no more than that");
    }

    #[test]
    fn a_primary_that_cannot_be_resized_hands_over_first() {
        let mut scene = changed();
        for ordinal in [2, 1] {
            let pod = scene.pod_mut(ordinal);
            (pod.revision, pod.resources) = (Some("r1+large".to_owned()), Resources::Given);
        }
        scene.pod_mut(0).resources = Resources::Refused {
            message: "no".to_owned(),
        };
        assert_eq!(scene.decide().rule, "switch-over");
        let mut supervised = scene.clone();
        supervised.edit(|spec| spec.primary.updates = PrimaryUpdates::Supervised);
        assert_eq!(supervised.decide().rule, "await-supervisor");
        let mut alone = Scene::ready(1);
        alone.revision = "r1+large".to_owned();
        alone.pod_mut(0).resources = Resources::Other;
        assert_eq!(step(&mut alone), (0, "MarkPod"), "one instance is resized, too");
    }

    #[test]
    fn a_change_that_is_taken_back_on_the_way_is_taken_back_in_the_pod() {
        let mut scene = changed();
        step(&mut scene);
        step(&mut scene);
        scene.revision = "r1".to_owned();
        for (ordinal, resources) in [(0, Resources::Given), (1, Resources::Given), (2, Resources::Other)] {
            scene.pod_mut(ordinal).resources = resources;
        }
        assert_ne!(
            scene.decide().phase,
            Phase::Ready,
            "its note says that it is not as any template says"
        );
        assert_eq!(step(&mut scene), (2, "MarkPod"));
        assert_eq!(scene.pods()[2].resizing.as_ref().unwrap().to, "r1");
        assert_eq!(step(&mut scene), (2, "ResizePod"));
        scene.pod_mut(2).resources = Resources::Given;
        assert_eq!(step(&mut scene), (2, "MarkPod"));
        scene.store();
        assert_eq!(scene.decide().rule, "rest");
    }

    #[test]
    fn a_pod_that_is_not_ready_is_replaced_as_before() {
        let mut scene = changed();
        scene.pod_mut(1).ready = false;
        assert_eq!(step(&mut scene), (1, "ReplacePod"));
    }

    #[test]
    fn what_is_refused_at_its_limit_is_not_tried_all_the_time() {
        let mut scene = changed();
        let (to, since) = (scene.revision.clone(), scene.now);
        scene.pod_mut(2).resizing = Some(Resizing { to, since });
        assert_eq!(step(&mut scene.clone()), (2, "ResizePod"));
        scene.now += PATIENCE;
        scene.observed.faults = vec![Fault {
            target: Target::Resize("demo-2".to_owned()),
            kind: FaultKind::Forbidden,
            message: "no".to_owned(),
            attempts: 1,
            at: scene.now,
        }];
        let decision = scene.decide();
        assert_eq!((decision.rule, decision.action.name()), ("resize", "Wait"));
        assert!(decision.wake > scene.now);
    }
}
