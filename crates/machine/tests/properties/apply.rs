//! One change of a situation, carried out.

use api::Phase;
use api::operation::OperationPhase;
use api::spec::{BootstrapSpec, NEWEST, PrimaryUpdatePolicy, RetainedVolumes, VolumeFate};
use api::status::{BootstrapGrant, FailureStatus, NotedRequest, RequestOutcome, RestartPermit, SwitchoverMemo};
use chrono::TimeDelta;
use machine::cluster::model::{Scene, switchover};
use machine::cluster::{Fault, ImageError, Known, OpenBackup, OwnedObject, OwnedState, Resizing, StorageClass};
use machine::quorum::SyncRule;
use serde_json::json;

use crate::scenes::{Change, FORMER};

fn pod(scene: &mut Scene, ordinal: u32, change: impl FnOnce(&mut machine::cluster::Pod)) {
    if let Known::Known(pods) = &mut scene.observed.pods
        && let Some(pod) = pods.iter_mut().find(|pod| pod.ordinal == ordinal)
    {
        change(pod);
    }
}

fn claim(scene: &mut Scene, ordinal: u32, change: impl FnOnce(&mut machine::cluster::Claim)) {
    if let Known::Known(claims) = &mut scene.observed.claims
        && let Some(claim) = claims.iter_mut().find(|claim| claim.ordinal == ordinal)
    {
        change(claim);
    }
}

fn lease(scene: &mut Scene, change: impl FnOnce(&mut machine::protocol::LeaseRecord)) {
    if let Known::Known(Some(lease)) = &mut scene.observed.lease {
        change(lease);
    }
}

fn report(scene: &mut Scene, ordinal: u32, change: impl FnOnce(&mut machine::protocol::MemberReport)) {
    lease(scene, |lease| {
        if let Some(report) = lease.members.get_mut(&format!("demo-{ordinal}")) {
            change(report);
        }
    });
}

pub fn apply(scene: &mut Scene, change: Change) {
    let now = scene.now;
    match change {
        Change::Child(kind, state) => {
            if kind == OwnedObject::StatefulSet {
                let ours = matches!(state, Some(OwnedState::Current { .. } | OwnedState::Drifted { .. }));
                scene.observed.stateful_set = Scene::ready(3).observed.stateful_set.filter(|_| ours);
            }
            if kind == OwnedObject::Lease {
                match &state {
                    Some(OwnedState::Missing) => scene.observed.lease = Known::Known(None),
                    None => scene.observed.lease = Known::Unknown,
                    Some(_) => {}
                }
            }
            scene.observed.children[kind] = state.map_or(Known::Unknown, Known::Known);
        }
        Change::PodsUnknown => scene.observed.pods = Known::Unknown,
        Change::ClaimsUnknown => scene.observed.claims = Known::Unknown,
        Change::LeaseUnknown => scene.observed.lease = Known::Unknown,
        Change::LeaseGone => {
            scene.observed.lease = Known::Known(None);
            scene.set_child(OwnedObject::Lease, OwnedState::Missing);
        }
        Change::LeaseUntouched => lease(scene, |lease| {
            (lease.holder, lease.system_id, lease.release, lease.epoch.0) = (None, None, None, 0);
        }),
        Change::Holder(ordinal, serving) => {
            let fresh = Scene::ready(5);
            let pods = fresh.pods();
            let held = pods
                .iter()
                .find(|pod| pod.ordinal == ordinal)
                .map(|pod| pod.uid.clone());
            let mut donor = fresh.clone();
            donor.elect(ordinal);
            let holder = donor.lease_mut().and_then(|lease| lease.holder.clone());
            lease(scene, |lease| {
                lease.holder = holder.filter(|_| held.is_some());
                if let Some(holder) = &mut lease.holder {
                    holder.serving = serving;
                }
            });
        }
        Change::NoHolder => lease(scene, |lease| lease.holder = None),
        Change::Report(ordinal, state) => report(scene, ordinal, |report| report.state = state),
        Change::NoReport(ordinal) => lease(scene, |lease| {
            lease.members.remove(&format!("demo-{ordinal}"));
        }),
        Change::Key(ordinal) => report(scene, ordinal, |report| report.public_key = Some("new".to_owned())),
        Change::Pending(ordinal, pending, lowers) => report(scene, ordinal, |report| {
            (report.pending_restart, report.lowers_limits) = (pending, lowers);
        }),
        Change::Refusal(ordinal) => report(scene, ordinal, |report| report.settings_error = Some("no".to_owned())),
        Change::PodGone(ordinal) => {
            if let Known::Known(pods) = &mut scene.observed.pods {
                pods.retain(|pod| pod.ordinal != ordinal);
            }
        }
        Change::PodReady(ordinal, ready) => pod(scene, ordinal, |pod| pod.ready = ready),
        Change::PodTerminating(ordinal) => pod(scene, ordinal, |pod| pod.terminating = true),
        Change::PodRevision(ordinal, revision) => {
            pod(scene, ordinal, |pod| {
                pod.revision = (revision > 0).then(|| format!("r{revision}"))
            });
        }
        Change::PodResources(ordinal, resources) => pod(scene, ordinal, |pod| pod.resources = resources),
        Change::PodResizing(ordinal, to, ago) => pod(scene, ordinal, |pod| {
            pod.resizing = Some(Resizing {
                to: format!("r1+{to}"),
                since: now - TimeDelta::seconds(ago),
            });
        }),
        Change::TokenRevoked(ordinal) => pod(scene, ordinal, |pod| (pod.revision, pod.token_revoked) = (None, true)),
        Change::PodUid(ordinal) => pod(scene, ordinal, |pod| pod.uid = format!("new-{ordinal}")),
        Change::PodImage(ordinal, ago) => pod(scene, ordinal, |pod| {
            pod.ready = false;
            pod.image_error = Some(ImageError {
                reason: "ErrImagePull".to_owned(),
                image: "nothing".to_owned(),
                message: "no".to_owned(),
                since: now - TimeDelta::seconds(ago),
            });
        }),
        Change::PodNode(ordinal) => pod(scene, ordinal, |pod| (pod.node, pod.ready) = (None, false)),
        Change::PodReadySince(ordinal, ago) => {
            let since = now - TimeDelta::seconds(ago);
            pod(scene, ordinal, |pod| pod.ready_since = Some(since));
        }
        Change::PodUnstarted(ordinal) => pod(scene, ordinal, |pod| (pod.unstarted, pod.ready) = (true, false)),
        Change::PodRestarts(ordinal, times) => pod(scene, ordinal, |pod| (pod.restarts, pod.ready) = (times, false)),
        Change::BootstrapError(ordinal) => pod(scene, ordinal, |pod| pod.bootstrap_error = Some("no".to_owned())),
        Change::ClaimGone(ordinal) => {
            if let Known::Known(claims) = &mut scene.observed.claims {
                claims.retain(|claim| claim.ordinal != ordinal);
            }
        }
        Change::ClaimUid(ordinal) => claim(scene, ordinal, |claim| claim.uid = format!("{ordinal}-new")),
        Change::ClaimLeft(ordinal) => claim(scene, ordinal, |claim| claim.cluster_uid = Some(FORMER.to_owned())),
        Change::Adopts(recorded) => {
            let adopt = NEWEST.to_owned();
            scene.spec.bootstrap = Some(BootstrapSpec {
                initdb: None,
                volumes: Some(RetainedVolumes { adopt }),
                recovery: None,
            });
            scene.stored.memo.adopted = recorded.then(|| FORMER.to_owned());
        }
        Change::ClaimForeign(ordinal) => claim(scene, ordinal, |claim| claim.cluster_uid = Some("theirs".to_owned())),
        Change::ClaimTerminating(ordinal) => claim(scene, ordinal, |claim| claim.terminating = true),
        Change::AddPod(ordinal) => {
            if scene.pods().iter().all(|pod| pod.ordinal != ordinal) {
                scene.add_pod(ordinal);
            }
        }
        Change::SetReplicas(replicas) => {
            if let Some(set) = &mut scene.observed.stateful_set {
                set.replicas = replicas;
            }
        }
        Change::Class(class) => {
            scene.observed.storage_class = match class {
                0 => Known::Unknown,
                1 => Known::Known(StorageClass::NoDefault),
                _ => Known::Known(StorageClass::Present { expandable: false }),
            }
        }
        Change::Namespace => scene.observed.namespace_terminating = true,
        Change::Fault(target, kind, ago) => {
            let at = now - TimeDelta::seconds(ago);
            scene.observed.faults.push(Fault {
                target,
                kind,
                message: "no".to_owned(),
                attempts: 3,
                at,
            });
        }
        Change::Deleting => scene.deleting = true,
        Change::NoFinalizer => scene.finalizer = false,
        Change::Paused => scene.edit(|spec| spec.paused = true),
        Change::Invalid => scene.invalid = Some("replicas must be at most 9".to_owned()),
        Change::Replicas(replicas) => scene.scale(replicas),
        Change::Parameter => scene.edit(|spec| {
            spec.postgres.parameters.insert("work_mem".to_owned(), "8MB".to_owned());
        }),
        Change::Size => scene.data_bytes.0 *= 2,
        Change::Revision(revision) => scene.revision = format!("r{revision}"),
        Change::Resources(resources) => {
            scene.revision = format!("{}+{resources}", scene.revision.split('+').next().unwrap_or_default());
        }
        Change::Fates(delete) => scene.edit(|spec| {
            let fate = if delete { VolumeFate::Delete } else { VolumeFate::Retain };
            (
                spec.storage.retention_policy.when_deleted,
                spec.storage.retention_policy.when_scaled,
            ) = (fate, fate);
        }),
        Change::RecreateLease => scene.ask_for_a_lease(),
        Change::Phase(phase) => scene.stored.phase = phase,
        Change::Failure(reason) => {
            scene.stored.phase = Some(Phase::Failed);
            scene.stored.failure = Some(FailureStatus {
                reason,
                message: "no".to_owned(),
            });
        }
        Change::Wiped => scene.stored = Default::default(),
        Change::NoSystemId => scene.stored.system_identifier = None,
        Change::Grant(ordinal) => {
            let grant = BootstrapGrant {
                pod: format!("demo-{ordinal}"),
                claim_uid: format!("{ordinal}-new"),
            };
            scene.stored.intent.bootstrap = Some(grant);
        }
        Change::Prefer(ordinal) => scene.edit(|spec| spec.primary.prefer = Some(format!("demo-{ordinal}"))),
        Change::Supervised => scene.edit(|spec| spec.primary.update_policy = PrimaryUpdatePolicy::Supervised),
        Change::Request(ordinal, noted, ago) => {
            let request = switchover(&format!("demo-{ordinal}"), "x");
            scene.stored.memo.request = (noted > 0).then(|| NotedRequest {
                request: request.clone(),
                since: now - TimeDelta::seconds(ago),
                outcome: (noted > 1).then_some(RequestOutcome::GivenUp),
                message: None,
            });
            scene.request = Some(request);
        }
        Change::Ask(action, noted) => {
            scene.ask(action);
            scene.stored.memo.request = scene.request.clone().filter(|_| noted).map(|request| NotedRequest {
                request,
                since: now,
                outcome: None,
                message: None,
            });
            let quarantined = "1-0_3000060-1".to_owned();
            lease(scene, |lease| {
                if let Some(report) = lease.members.get_mut("demo-1") {
                    report.kept.insert(quarantined);
                }
            });
        }
        Change::NodesUnknown => scene.observed.unschedulable_nodes = Known::Unknown,
        Change::Cordon(ordinal) => scene.cordon(ordinal, true),
        Change::Durability(mode) => scene.edit(|spec| spec.durability.mode = mode),
        Change::Rule(required, replicas) => {
            let names = Scene::ready(5)
                .lease_mut()
                .map(|lease| lease.rule.names.clone())
                .unwrap();
            lease(scene, |lease| {
                let few = usize::try_from(replicas).unwrap();
                lease.rule = SyncRule::any(required, names.into_iter().take(few));
            });
        }
        Change::Switchover(ordinal, ago, ended) => {
            let target = format!("demo-{ordinal}");
            scene.stored.intent.primary = ended.is_none().then(|| target.clone());
            scene.stored.memo.switchover = Some(SwitchoverMemo {
                target,
                since: now - TimeDelta::seconds(ago),
                attempts: 1 + ordinal,
                ended: ended.map(|ended| now - TimeDelta::seconds(ended)),
            });
        }
        Change::Wish(ordinal) => scene.stored.intent.primary = Some(format!("demo-{ordinal}")),
        Change::Permit(ordinal) => {
            let settings = scene.with_wanted(|wanted| wanted.settings.to_owned());
            let (pod, pod_uid) = (format!("demo-{ordinal}"), format!("pod-{ordinal}"));
            scene.stored.intent.restart = Some(RestartPermit { pod, pod_uid, settings });
        }
        Change::Stop => scene.stored.intent.stop = true,
        Change::Fence(ordinals) => scene.edit(|spec| {
            let named = (0..3).filter(|ordinal| ordinals & (1 << ordinal) != 0);
            spec.fenced = named.map(|ordinal| format!("demo-{ordinal}")).collect();
        }),
        Change::Hibernated => scene.edit(|spec| spec.hibernated = true),
        Change::Done(step) => {
            let step = ["FinalBackup", "Archive", "Stopped", "PodsGone", "Volumes"][usize::from(step)];
            if !scene.deletion_steps().contains(&step) {
                scene.end_deletion_steps(&[step]);
            }
        }
        Change::FinalBackup(policy, found) => {
            let policy = ["None", "BestEffort", "Required"][usize::from(policy)];
            let backup = json!({"store": {"s3": {"bucket": "wal"}}, "onDelete": {"finalBackup": policy, "data": if policy == "None" { "Delete" } else { "Retain" }}});
            scene.edit(|spec| spec.backup = Some(serde_json::from_value(backup).unwrap()));
            let phases = [None, Some(OperationPhase::Running), Some(OperationPhase::Failed)];
            scene.observed.final_backup = match phases.get(usize::from(found)) {
                None => Known::Unknown,
                Some(None) => Known::Known(None),
                Some(phase) => Known::Known(Some(OpenBackup {
                    phase: *phase,
                    message: None,
                })),
            };
        }
        Change::Later(seconds) => scene.now += TimeDelta::seconds(seconds),
    }
}
