//! What every action must satisfy.

use api::spec::{NetworkPolicyMode, VolumeFate};
use chrono::TimeDelta;
use machine::cluster::model::Scene;
use machine::cluster::{
    Action, ApplyHow, Claim, Facts, Fault, FaultKind, Known, LeaseChange, Left, ObjectVersion, OwnedObject, OwnedState,
    Pod, Resizing, Resources, StatusChange, Target, Volume,
};

use crate::handover::{assert_handover, switching};

/// True if the observed object has this identity and version.
fn is_observed(scene: &Scene, exact: &ObjectVersion) -> bool {
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
    let drifted = OwnedObject::ALL.iter().any(|kind| {
        matches!(scene.observed.children[*kind].get(), Some(OwnedState::Drifted { uid, .. } | OwnedState::Damaged { uid, .. } | OwnedState::Foreign { left: Some(Left { uid, .. }), .. }) if uid == exact.uid())
    });
    pod || claim || set || drifted
}

/// Invariant 27: without this claim, an instance that stays still has data. A reverted WAL volume never counts as data.
fn keeps_data(scene: &Scene, claims: &[Claim], claim: &Claim) -> bool {
    let stays =
        |other: &Claim| other.volume == Volume::Data && i32::try_from(other.ordinal).unwrap() < scene.spec.replicas;
    claim.volume == Volume::Wal
        || claims
            .iter()
            .any(|other| other.uid != claim.uid && stays(other) && !other.terminating)
}

fn changes_volumes(scene: &Scene) -> bool {
    let sets = scene.stored.memo.volumes.as_ref();
    sets.is_some_and(|sets| sets.next.is_some())
}

pub fn assert_action(scene: &Scene, action: &Action) {
    let children = &scene.observed.children;
    if matches!(
        children[OwnedObject::StatefulSet].get(),
        Some(OwnedState::Foreign { .. })
    ) {
        let touched = matches!(
            action,
            Action::DeleteStatefulSet(_) | Action::OrphanStatefulSet(_) | Action::ReplacePod(_)
        );
        assert!(!touched, "a foreign StatefulSet and its pods are left alone");
    }
    match action {
        Action::Wait(waiting) => assert!(!waiting.what.is_empty() && !waiting.who_can_end_it.is_empty()),
        Action::ChangeLease(_, LeaseChange::Volumes(set)) => {
            let lease = scene.observed.lease.get().cloned().flatten().unwrap();
            assert!(lease.holder.is_none() && lease.volume_set != *set);
            assert!(scene.pods().is_empty() && changes_volumes(scene));
        }
        Action::ChangeLease(_, LeaseChange::ForgetFormer) => {
            let sets = scene.stored.memo.volumes.as_ref().unwrap();
            assert!(sets.discarded.is_some() && sets.former.is_none());
        }
        Action::AddFinalizer(_) => assert!(!scene.finalizer && !scene.deleting),
        Action::RemoveFinalizer(_) => assert!(scene.finalizer && scene.deleting),
        Action::Apply(apply) => match &apply.how {
            ApplyHow::Make => {
                assert_eq!(
                    children[apply.kind],
                    Known::Known(OwnedState::Missing),
                    "Unknown is never absent"
                );
                if apply.kind == OwnedObject::StatefulSet {
                    assert!(scene.observed.pods != Known::Unknown && scene.observed.claims != Known::Unknown);
                }
                let made = apply.kind == OwnedObject::CaSecret && scene.stored.system_identifier.is_some();
                assert!(!made, "an authority is made once");
            }
            ApplyHow::Change(exact) | ApplyHow::Renew(exact) | ApplyHow::Rotate(exact, _) => {
                assert!(is_observed(scene, exact))
            }
        },
        Action::RecreateLease { .. } => {
            assert!(is_noted(scene) && scene.observed.lease == Known::Known(None));
        }
        Action::WriteStatus(changes) => assert!(!changes.is_empty()),
        Action::LabelPod { pod, .. }
        | Action::MarkPod { pod, .. }
        | Action::ResizePod(pod)
        | Action::ReplacePod(pod) => {
            assert!(is_observed(scene, pod));
        }
        Action::DeleteChild(OwnedObject::NetworkPolicy, exact) => {
            assert!(is_observed(scene, exact));
            assert_eq!(scene.spec.network_policy.mode, NetworkPolicyMode::Off);
        }
        Action::DeleteChild(OwnedObject::RoleBinding, exact) => assert!(is_observed(scene, exact)),
        Action::DeleteChild(kind, _) => {
            assert!(kind.owned().is_unique && scene.deleting, "{kind:?}");
            let kept = scene.spec.storage.retention_policy.when_deleted == VolumeFate::Retain;
            assert!(!kept || scene.stored.system_identifier.is_none(), "the volumes need it");
        }
        Action::OrphanStatefulSet(exact) | Action::DeleteStatefulSet(exact) => {
            assert!(is_observed(scene, exact))
        }
        Action::MakeWalClaim { .. } => assert!(scene.observed.claims != Known::Unknown),
        Action::MakeBackup { name, .. } => {
            let last = scene
                .stored
                .memo
                .final_backup
                .as_ref()
                .is_some_and(|memo| memo.name == *name);
            assert!(if last {
                scene.observed.final_backup == Known::Known(None)
            } else {
                scene.observed.scheduled != Known::Unknown
            });
        }
        Action::MakeSnapshot { name, .. } => {
            assert!(scene.stored.memo.snapshots.iter().any(|memo| memo.name == *name));
            assert_eq!(scene.observed.snapshots.get(name), Some(&Known::Known(None)));
        }
        Action::DeleteSnapshot(exact) => {
            let memos = &scene.stored.memo.snapshots;
            assert!(memos.iter().any(|memo| memo.name == exact.name()));
        }
        Action::MakeDataClaim { .. } => assert!(scene.stored.system_identifier.is_none()),
        Action::MakeDrill { .. } => assert!(scene.observed.drill == Known::Known(None)),
        Action::DeleteDrill(exact) => {
            let seen = scene
                .observed
                .drill
                .get()
                .and_then(Option::as_ref)
                .expect("it is there");
            assert!(
                seen.is_ours && seen.exact == *exact && scene.stored.memo.drill.as_ref().is_some_and(|run| run.ended)
            );
        }
        Action::ResizeClaim { claim, .. } | Action::UpdateClaim(claim) => assert!(is_observed(scene, claim)),
        Action::AdoptClaim(exact) => {
            assert!(is_observed(scene, exact));
            let claims = scene.observed.claims.get().unwrap();
            let claim = claims.iter().find(|claim| claim.uid == exact.uid()).unwrap();
            assert_eq!(
                claim.cluster_uid, scene.stored.memo.adopted,
                "nothing but what is on record"
            );
            assert!(
                !matches!(
                    children[OwnedObject::Lease].get(),
                    None | Some(OwnedState::Foreign { .. })
                ),
                "the Lease comes first"
            );
        }
        Action::DeleteClaim(exact) => {
            assert!(is_observed(scene, exact));
            let policy = &scene.spec.storage.retention_policy;
            let fate = if scene.deleting {
                policy.when_deleted
            } else {
                policy.when_scaled
            };
            assert_eq!(fate, VolumeFate::Delete);
            let claims = scene.observed.claims.get().unwrap();
            let claim = claims.iter().find(|claim| claim.uid == exact.uid()).unwrap();
            assert_ne!(claim.cluster_uid.as_deref(), Some("theirs"));
            assert!(scene.deleting || i32::try_from(claim.ordinal).unwrap() >= scene.spec.replicas);
            assert!(matches!(claim.volume, Volume::Data | Volume::Wal));
            assert!(
                scene.deleting || keeps_data(scene, claims, claim),
                "the last data is removed"
            );
        }
    }
}

/// True if only CPU and memory keep this pod from matching the template, and it is not known that it cannot get them.
fn resizable(scene: &Scene, facts: &Facts<'_>, pod: &Pod) -> bool {
    let base = scene.revision.split('+').next();
    // If another instance was refused a resize, this one is not restarted for it.
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

/// True if nothing is known that keeps this instance from running: its image, its node, or a refusal of its pod.
fn comes_up(scene: &Scene, facts: &Facts<'_>, ordinal: u32) -> bool {
    let refused = |fault: &Fault| match &fault.target {
        Target::Pod(name) => facts.ordinal(name) == Some(ordinal),
        target => *target == Target::Child(OwnedObject::StatefulSet),
    };
    match facts.pod(ordinal) {
        None => !scene.observed.faults.iter().any(refused),
        Some(pod) if pod.ready || pod.terminating || pod.token_revoked => true,
        Some(pod) => pod.node.is_some() && pod.image_error.is_none(),
    }
}

/// True if every pod of the wanted template has been ready for 10 s. No scene waits for that, so it is computed from
/// the pods alone.
pub fn new_ones_stay(scene: &Scene, facts: &Facts<'_>) -> bool {
    let new = scene
        .pods()
        .iter()
        .filter(|pod| facts.current_revision(pod) && !pod.terminating);
    let mut since = new.filter_map(|pod| pod.ready_since);
    since.all(|since| scene.now >= since + TimeDelta::seconds(10))
}

/// A volume whose claim was deleted is removed with its pod only if another member has its data.
fn assert_copy(scene: &Scene, facts: &Facts<'_>, pod: &Pod) {
    let claims = scene.observed.claims.get();
    let stays = |claim: &Claim| claim.name == format!("data-{}", pod.name) && !claim.terminating;
    let kept = pod.node.is_none() || claims.is_some_and(|claims| claims.iter().any(stays));
    let primary = facts.primary();
    let other = |other: &Pod| other.uid != pod.uid && facts.serves(other);
    let copied = primary.is_some_and(|primary| primary.uid != pod.uid || scene.pods().iter().any(other));
    assert!(
        kept || copied || !facts.bootstrapped(),
        "the data of {} is removed with it",
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
        assert!(!kept(pod), "{} is fenced, to be inspected", pod.name);
        assert_copy(scene, facts, pod);
        if pod.token_revoked {
            let holder = facts.holder_pod().is_some_and(|holder| holder.uid == pod.uid);
            // A pod with a revoked token counts as made from an older template (`mark_revoked`).
            let is_revoked = |other: &Pod| other.token_revoked && !facts.current_revision(other);
            let first = |other: &Pod| other.uid != pod.uid && is_revoked(other) && !other.terminating && !kept(other);
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
            // An instance that is about to be removed reports nothing: in a moment it no longer exists.
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
            "a new pod must stay up first"
        );
        let alone = facts.all_serve_except(Some(pod.ordinal)) && facts.primary().is_some();
        assert!(!pod.ready || alone, "{} serves, and others do not", pod.name);
        let primary = facts.primary().is_some_and(|primary| primary.uid == pod.uid);
        assert!(
            !primary || facts.expected() == 1,
            "a primary hands over before it is removed"
        );
        assert!(
            !switching(facts),
            "no instance is taken away while a primary hands over"
        );
        // Work that fails repeatedly may be given up.
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
        && let (OwnedObject::StatefulSet, Some(replicas)) = (apply.kind, apply.replicas)
        && replicas < set.replicas
    {
        if scene.spec.hibernated {
            assert!(
                replicas == 0 && scene.stored.intent.stop,
                "they are asked to stop first"
            );
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

/// True if the request is recorded and has not ended.
fn is_noted(scene: &Scene) -> bool {
    let noted = scene.stored.memo.request.as_ref();
    noted.is_some_and(|noted| noted.outcome.is_none() && scene.request.as_ref() == Some(&noted.request))
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
                    "the previous claim still exists"
                );
                assert!(claims.iter().any(|claim| claim.uid == *claim_uid));
            }
            StatusChange::SignCertificate { pod, member, .. } => {
                let stored = &scene.stored.members[pod];
                let claim = stored.claim_uid.as_ref().unwrap();
                assert!(
                    member.as_str().contains(&claim[..8]),
                    "{member} was not made on claim {claim}"
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
                assert!(
                    !kept,
                    "no instance has a permit to restart while the primary hands over"
                );
                assert_handover(scene, facts, memo);
            }
            StatusChange::AcceptLoss(epoch) => {
                assert!(is_noted(scene));
                let now = facts.lease.map(|lease| lease.epoch.0);
                assert!(now == Some(*epoch) && facts.primary().is_none(), "{now:?}");
            }
            StatusChange::RestartAll(uid) => {
                assert!(is_noted(scene) && scene.request.as_ref().is_some_and(|asked| asked.uid == *uid));
            }
            StatusChange::Discard(discard) => {
                assert!(is_noted(scene));
                let lease = facts.lease.unwrap();
                assert!(lease.members[&discard.instance].kept.contains(&discard.name));
            }
            StatusChange::Adopt(from, ..) => {
                let Some(OwnedState::Foreign { left: Some(left), .. }) =
                    scene.observed.children[OwnedObject::Lease].get()
                else {
                    panic!("no Lease is left")
                };
                let asked = scene
                    .spec
                    .bootstrap
                    .as_ref()
                    .and_then(|bootstrap| bootstrap.volumes.as_ref());
                assert!(asked.is_some() && left.by == *from && scene.stored.system_identifier.is_none());
            }
            StatusChange::RequestStop => assert!(scene.deleting || scene.spec.hibernated || changes_volumes(scene)),
            StatusChange::EndStop => {
                assert!(!scene.deleting && !scene.spec.hibernated && !changes_volumes(scene));
            }
            StatusChange::SetVolumes(sets) => {
                let before = scene.stored.memo.volumes.clone().unwrap_or_default();
                let is_back = sets.next.is_none() || sets.next == before.former;
                let is_over = before.keep_until.is_some_and(|until| until <= scene.now);
                assert!(is_back || is_noted(scene), "volumes are changed for an operation alone");
                assert!(
                    [None, before.discarded].contains(&sets.discarded)
                        || is_noted(scene)
                        || is_over && sets.discarded == before.former,
                    "volumes are deleted for an operation, or when their time is over"
                );
                assert!(sets.current == before.current || scene.stored.memo.volumes.is_none());
            }
            StatusChange::EndRecovery(_) => assert!(facts.primary().is_some()),
            StatusChange::UseVolumes { set, .. } => {
                assert_eq!(facts.lease.map(|lease| lease.volume_set), Some(*set));
                assert!(scene.pods().is_empty() && facts.holder().is_none());
            }
            StatusChange::RecordRecoverySource(_) => assert_eq!(scene.stored.memo.recovery_source, None),
            StatusChange::RecordDrill(..) | StatusChange::ForgetDrill => {}
            StatusChange::RecordSnapshot(memo) => assert!(!memo.ready),
            StatusChange::ForgetSnapshot(name) => {
                assert!(scene.stored.memo.snapshots.iter().any(|memo| memo.name == *name));
            }
            StatusChange::RecordFinalBackup(_) | StatusChange::DeletionDone(..) => assert!(scene.deleting),
            StatusChange::PublishMember { .. }
            | StatusChange::ForgetMember { .. }
            | StatusChange::RecordSystemIdentifier(_)
            | StatusChange::RecordLeaseMade
            | StatusChange::RecordMade { .. }
            | StatusChange::GiveUpSwitchover(_)
            | StatusChange::EndSwitchover
            | StatusChange::GiveWalVolumes(_)
            | StatusChange::RecordGranted(_)
            | StatusChange::RecordDurability(_)
            | StatusChange::RecordImage(_)
            | StatusChange::NoteRequest(_)
            | StatusChange::RecordSchedule(..)
            | StatusChange::ForgetSchedule(_)
            | StatusChange::EndRestart => {}
        }
    }
}
