//! What every action must be.

use api::spec::{NetworkPolicyMode, VolumeFate};
use chrono::TimeDelta;
use machine::cluster::testing::Scene;
use machine::cluster::{
    Action, ApplyHow, ChildKind, ChildState, Claim, Exact, Facts, Fault, FaultKind, Known, Pod, Resizing, Resources,
    StatusChange, Target, Volume,
};

use crate::handover::{assert_handover, switching};

/// Whether this very object, at this very version, is what is observed.
fn is_observed(scene: &Scene, exact: &Exact) -> bool {
    let pod = scene
        .pods()
        .iter()
        .any(|pod| (pod.name.as_str(), pod.uid.as_str()) == (exact.name(), exact.uid()));
    let claim = scene.observed.claims.get().is_some_and(|claims| {
        claims
            .iter()
            .any(|claim| (claim.name.as_str(), claim.uid.as_str()) == (exact.name(), exact.uid()))
    });
    let set = scene
        .observed
        .stateful_set
        .as_ref()
        .is_some_and(|set| set.uid == exact.uid());
    let drifted = ChildKind::ALL.iter().any(|kind| {
        matches!(scene.observed.children[*kind].get(), Some(ChildState::Drifted { uid, .. } | ChildState::Damaged { uid, .. }) if uid == exact.uid())
    });
    pod || claim || set || drifted
}

/// Invariant 27: without this claim there is still data of an instance that stays. What the user has taken back is never data.
fn keeps_data(scene: &Scene, claims: &[Claim], claim: &Claim) -> bool {
    let stays =
        |other: &Claim| other.volume == Volume::Data && i32::try_from(other.ordinal).unwrap() < scene.spec.replicas;
    claim.volume == Volume::Wal
        || claims
            .iter()
            .any(|other| other.uid != claim.uid && stays(other) && !other.terminating)
}

pub fn assert_action(scene: &Scene, action: &Action) {
    let children = &scene.observed.children;
    if matches!(children[ChildKind::StatefulSet].get(), Some(ChildState::Foreign { .. })) {
        let touched = matches!(
            action,
            Action::DeleteStatefulSet(_) | Action::OrphanStatefulSet(_) | Action::ReplacePod(_)
        );
        assert!(!touched, "a foreign StatefulSet and its pods are left alone");
    }
    match action {
        Action::Wait(waiting) => assert!(!waiting.what.is_empty() && !waiting.who_can_end_it.is_empty()),
        Action::AddFinalizer(_) => assert!(!scene.finalizer && !scene.deleting),
        Action::RemoveFinalizer(_) => assert!(scene.finalizer && scene.deleting),
        Action::Apply(apply) => match &apply.how {
            ApplyHow::Make => {
                assert_eq!(
                    children[apply.kind],
                    Known::Known(ChildState::Missing),
                    "Unknown is never absent"
                );
                if apply.kind == ChildKind::StatefulSet {
                    assert!(scene.observed.pods != Known::Unknown && scene.observed.claims != Known::Unknown);
                }
                let made = apply.kind == ChildKind::CaSecret && scene.stored.system_identifier.is_some();
                assert!(!made, "an authority is made once");
            }
            ApplyHow::Change(exact) | ApplyHow::Renew(exact) => assert!(is_observed(scene, exact)),
        },
        Action::RecreateLease { .. } => {
            assert!(scene.recreate_lease.is_some() && scene.observed.lease == Known::Known(None));
        }
        Action::WriteStatus(changes) => assert!(!changes.is_empty()),
        Action::LabelPod { pod, .. }
        | Action::MarkPod { pod, .. }
        | Action::ResizePod(pod)
        | Action::ReplacePod(pod) => {
            assert!(is_observed(scene, pod));
        }
        Action::DeleteNetworkPolicy(exact) => {
            assert!(is_observed(scene, exact));
            assert_eq!(scene.spec.network_policy.mode, NetworkPolicyMode::Off);
        }
        Action::DeleteRoleBinding(exact) | Action::OrphanStatefulSet(exact) | Action::DeleteStatefulSet(exact) => {
            assert!(is_observed(scene, exact))
        }
        Action::MakeWalClaim { .. } => assert!(scene.observed.claims != Known::Unknown),
        Action::ResizeClaim { claim, .. } => assert!(is_observed(scene, claim)),
        Action::DeleteClaim(exact) => {
            assert!(is_observed(scene, exact));
            let policy = &scene.spec.volume_policy;
            let fate = if scene.deleting {
                policy.on_delete
            } else {
                policy.on_scale_down
            };
            assert_eq!(fate, VolumeFate::Delete);
            let claims = scene.observed.claims.get().unwrap();
            let claim = claims.iter().find(|claim| claim.uid == exact.uid()).unwrap();
            assert_ne!(claim.cluster_uid.as_deref(), Some("theirs"));
            assert!(scene.deleting || i32::try_from(claim.ordinal).unwrap() >= scene.spec.replicas);
            assert!(matches!(claim.volume, Volume::Data | Volume::Wal));
            assert!(scene.deleting || keeps_data(scene, claims, claim), "the last data goes");
        }
    }
}

/// Nothing but cpu and memory keeps this pod from being as the template says, and it is not known that it cannot get them.
fn resizable(scene: &Scene, facts: &Facts<'_>, pod: &Pod) -> bool {
    let base = scene.revision.split('+').next();
    // What is refused to another is not restarted for.
    let elsewhere = pod.resources == Resources::MoreMemory && !facts.current_settings(pod);
    let refused = |fault: &Fault| {
        let own = fault.target == Target::Resize(pod.name.clone());
        fault.kind == FaultKind::Invalid && (own || elsewhere && matches!(fault.target, Target::Resize(_)))
    };
    let late =
        |resizing: &Resizing| resizing.to == scene.revision && scene.now >= resizing.since + TimeDelta::seconds(60);
    let possible = match &pod.resources {
        Resources::Given => true,
        Resources::Other | Resources::MoreMemory => !scene.observed.faults.iter().any(refused),
        Resources::Asked { .. } => !pod.resizing.as_ref().is_some_and(late),
        Resources::Refused { .. } => false,
    };
    !facts.current_revision(pod) && pod.base_revision.as_deref() == base && possible
}

/// Nothing is known that keeps this instance from running: its image, its node, a refusal of its pod.
fn comes_up(scene: &Scene, facts: &Facts<'_>, ordinal: u32) -> bool {
    let refused = |fault: &Fault| match &fault.target {
        Target::Pod(name) => facts.ordinal(name) == Some(ordinal),
        target => *target == Target::Child(ChildKind::StatefulSet),
    };
    match facts.pod(ordinal) {
        None => !scene.observed.faults.iter().any(refused),
        Some(pod) if pod.ready || pod.terminating || pod.token_void => true,
        Some(pod) => pod.node.is_some() && pod.image_error.is_none(),
    }
}

/// Every pod of the wanted template has been ready for 10 s. No scene waits for that: it counts from the pods alone.
pub fn new_ones_stay(scene: &Scene, facts: &Facts<'_>) -> bool {
    let new = scene
        .pods()
        .iter()
        .filter(|pod| facts.current_revision(pod) && !pod.terminating);
    let mut since = new.filter_map(|pod| pod.ready_since);
    since.all(|since| scene.now >= since + TimeDelta::seconds(10))
}

/// A volume whose claim was deleted goes with its pod only if another member has what is on it.
fn assert_copy(scene: &Scene, facts: &Facts<'_>, pod: &Pod) {
    let claims = scene.observed.claims.get();
    let stays = |claim: &Claim| claim.name == format!("data-{}", pod.name) && !claim.terminating;
    let kept = pod.node.is_none() || claims.is_some_and(|claims| claims.iter().any(stays));
    let primary = facts.primary();
    let other = |other: &Pod| other.uid != pod.uid && facts.serves(other);
    let copied = primary.is_some_and(|primary| primary.uid != pod.uid || scene.pods().iter().any(other));
    assert!(
        kept || copied || !facts.bootstrapped(),
        "the data of {} goes with it",
        pod.name
    );
}

/// Invariant 29: a serving member is taken down only while all others serve.
pub fn assert_voluntary(scene: &Scene, facts: &Facts<'_>, action: &Action) {
    if let Action::ReplacePod(exact) = action
        && !scene.deleting
    {
        let pod = scene.pods().iter().find(|pod| pod.uid == exact.uid()).unwrap();
        assert!(!facts.current_revision(pod) && !pod.terminating);
        let kept = |pod: &Pod| scene.spec.fenced.contains(&pod.name) && pod.node.is_some() && pod.image_error.is_none();
        assert!(!kept(pod), "{} is fenced, to be looked at", pod.name);
        assert_copy(scene, facts, pod);
        if pod.token_void {
            let holder = facts.holder_pod().is_some_and(|holder| holder.uid == pod.uid);
            let first = |other: &Pod| other.uid != pod.uid && other.token_void && !other.terminating && !kept(other);
            assert!(!holder || !scene.pods().iter().any(first), "the holder is the last");
            let all_come_up = (0..facts.expected()).all(|ordinal| comes_up(scene, facts, ordinal));
            assert!(
                !pod.ready || all_come_up,
                "{} serves, and a new pod cannot come up",
                pod.name
            );
            return;
        }
        let started = |pod: &Pod| pod.node.is_some() && pod.image_error.is_none() && !pod.unstarted;
        if facts.bootstrapped() && started(pod) {
            // One that is about to go for good says nothing: in a moment nobody knows of it.
            let stays = |pod: &&Pod| pod.ordinal < facts.expected();
            let new = || {
                scene
                    .pods()
                    .iter()
                    .filter(stays)
                    .filter(|pod| facts.current_revision(pod))
            };
            let missing = |ordinal| facts.pod(ordinal).is_none();
            let comes_up = new().all(|pod| pod.ready || pod.terminating || started(pod) && pod.restarts < 3);
            let doubtful = !comes_up || (0..facts.expected()).any(missing);
            assert!(
                !doubtful || new().any(|pod| pod.ready),
                "{} has run, and the wanted template may not",
                pod.name
            );
        }
        assert!(
            !pod.ready || new_ones_stay(scene, facts),
            "a new pod is to stay up first"
        );
        let alone = facts.all_serve_except(Some(pod.ordinal)) && facts.primary().is_some();
        assert!(!pod.ready || alone, "{} serves, and others do not", pod.name);
        let primary = facts.primary().is_some_and(|primary| primary.uid == pod.uid);
        assert!(!primary || facts.expected() == 1, "a primary hands over before it goes");
        assert!(!switching(facts), "nobody is taken away while a primary hands over");
        // What fails again and again may be given up.
        let failed = |fault: &Fault| {
            let is_final = !matches!(fault.kind, FaultKind::Quota | FaultKind::Forbidden);
            fault.target == Target::Resize(pod.name.clone()) && is_final
        };
        let tried = pod.resizing.is_some() && scene.observed.faults.iter().any(failed);
        assert!(
            !pod.ready || tried || !resizable(scene, facts, pod),
            "{} can be resized",
            pod.name
        );
    }
    if let Action::ResizePod(exact) | Action::MarkPod { pod: exact, .. } = action {
        let pod = scene.pods().iter().find(|pod| pod.uid == exact.uid()).unwrap();
        assert!(!scene.deleting && resizable(scene, facts, pod));
        assert!(facts.all_serve_except(Some(pod.ordinal)) && facts.primary().is_some() && !switching(facts));
        let last = |other: &Pod| {
            let kept = other.terminating || scene.spec.fenced.contains(&other.name);
            other.uid == pod.uid || facts.current_revision(other) || kept
        };
        let primary = facts.primary().is_some_and(|primary| primary.uid == pod.uid);
        assert!(!primary || scene.pods().iter().all(last), "the primary is the last");
    }
    if let Action::ResizePod(exact) = action {
        let pod = scene.pods().iter().find(|pod| pod.uid == exact.uid()).unwrap();
        let noted = pod
            .resizing
            .as_ref()
            .is_some_and(|resizing| resizing.to == scene.revision);
        assert!(
            noted && matches!(pod.resources, Resources::Other | Resources::MoreMemory),
            "it is noted before it is asked for"
        );
        let early = pod.resources == Resources::MoreMemory && !facts.current_settings(pod);
        assert!(!early, "settings that need less memory come first");
    }
    if let (Action::Apply(apply), Some(set)) = (action, &scene.observed.stateful_set)
        && let (ChildKind::StatefulSet, Some(replicas)) = (apply.kind, apply.replicas)
        && replicas < set.replicas
    {
        if scene.spec.hibernated {
            assert!(replicas == 0 && scene.stored.intent.stop, "they are told to stop first");
            let stays = |claim: &Claim| claim.volume == Volume::Data && !claim.terminating;
            let claims = scene.observed.claims.get();
            let left = claims.is_some_and(|claims| claims.iter().any(stays));
            let none = scene.pods().iter().all(|pod| pod.node.is_none());
            assert!(left || none || !facts.bootstrapped(), "no volume is left");
            return;
        }
        let primary = facts.primary().expect("scale down under a primary");
        assert!(primary.ordinal < replicas, "the primary is not scaled away");
        let serves = |ordinal: u32| facts.pod(ordinal).is_some_and(|pod| facts.serves(pod));
        assert!(
            (0..replicas).all(serves) || !(replicas..set.replicas).any(serves),
            "the broken stay"
        );
    }
}

pub fn assert_changes(scene: &Scene, facts: &Facts<'_>, action: &Action) {
    let Action::WriteStatus(changes) = action else { return };
    for change in changes {
        match change {
            StatusChange::GrantBootstrap { claim_uid, .. } => {
                assert!(!facts.bootstrapped(), "there is a database");
                let before = scene.stored.intent.bootstrap.as_ref().map(|grant| &grant.claim_uid);
                let claims = scene.observed.claims.get().unwrap();
                assert!(
                    !claims.iter().any(|claim| Some(&claim.uid) == before),
                    "the claim of before still exists"
                );
                assert!(claims.iter().any(|claim| claim.uid == *claim_uid));
            }
            StatusChange::SignCertificate { pod, member, .. } => {
                let stored = &scene.stored.members[pod];
                let claim = stored.claim_uid.as_ref().unwrap();
                assert!(
                    member.as_str().contains(&claim[..8]),
                    "{member} is not of claim {claim}"
                );
            }
            StatusChange::PermitRestart(permit) => {
                let pod = scene.pods().iter().find(|pod| pod.uid == permit.pod_uid).unwrap();
                assert!(facts.report(pod).is_some_and(|report| report.pending_restart));
                assert!(!facts.serves(pod) || facts.all_serve_except(Some(pod.ordinal)));
                let outdated = |pod: &Pod| {
                    let kept = pod.terminating || scene.spec.fenced.contains(&pod.name);
                    !facts.current_revision(pod) && !kept
                };
                let waits = |pod: &Pod| {
                    pod.resources == Resources::MoreMemory
                        && resizable(scene, facts, pod)
                        && !facts.current_settings(pod)
                };
                let mut pods = scene.pods().iter();
                let templates_first = pods.clone().any(waits) || !pods.any(outdated);
                assert!(templates_first, "only less memory comes after a restart");
            }
            StatusChange::MovePrimary { memo, .. } => {
                let kept = scene.stored.intent.restart.is_some() && !changes.contains(&StatusChange::EndRestart);
                assert!(!kept, "nobody has leave to restart while the primary hands over");
                assert_handover(scene, facts, memo);
            }
            StatusChange::RequestStop => assert!(scene.deleting || scene.spec.hibernated),
            StatusChange::EndStop => assert!(!scene.deleting && !scene.spec.hibernated),
            StatusChange::DeletionDone(_) => assert!(scene.deleting),
            StatusChange::PublishMember { .. }
            | StatusChange::ForgetMember { .. }
            | StatusChange::RecordSystemIdentifier(_)
            | StatusChange::RecordLeaseMade
            | StatusChange::RecordMade { .. }
            | StatusChange::GiveUpSwitchover(_)
            | StatusChange::EndSwitchover
            | StatusChange::GiveWalVolumes(_)
            | StatusChange::RecordGranted(_)
            | StatusChange::RecordImage(_)
            | StatusChange::NoteRequest(_)
            | StatusChange::EndRestart => {}
        }
    }
}
