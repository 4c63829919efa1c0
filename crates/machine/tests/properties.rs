//! What holds of every decision, whatever is observed: scenes are changed at random, also into what no cluster would show.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod handover;

use api::Phase;
use api::spec::{PrimaryUpdates, VolumeFate};
use api::status::{
    BootstrapGrant, DurabilityMode, FailureReason, FailureStatus, RequestOutcome, RestartPermit, SwitchoverMemo,
    SwitchoverRequest,
};
use chrono::TimeDelta;
use machine::cluster::testing::Scene;
use machine::cluster::{
    Action, ApplyHow, ChildKind, ChildState, Due, Exact, Fault, FaultKind, ImageError, Known, Pod, Resizing, Resources,
    StatusChange, Step, StorageClass, Target, Volume, briefly_away, due, may_follow, ready, rests, stored_phase,
};
use machine::cluster::{Facts, RULES};
use machine::protocol::MemberState;
use machine::quorum::SyncRule;
use proptest::prelude::*;

use handover::{assert_failover, assert_handover, switching};

/// One change of a scene.
#[derive(Clone, Debug)]
enum Change {
    Child(ChildKind, Option<ChildState>),
    PodsUnknown,
    ClaimsUnknown,
    LeaseUnknown,
    LeaseGone,
    LeaseUntouched,
    Holder(u32, bool),
    NoHolder,
    Report(u32, MemberState),
    NoReport(u32),
    Key(u32),
    Pending(u32, bool, bool),
    Refusal(u32),
    PodGone(u32),
    PodReady(u32, bool),
    PodTerminating(u32),
    PodRevision(u32, u8),
    PodResources(u32, Resources),
    PodResizing(u32, u8, i64),
    TokenVoid(u32),
    PodUid(u32),
    PodImage(u32, i64),
    PodNode(u32),
    BootstrapError(u32),
    ClaimGone(u32),
    ClaimUid(u32),
    ClaimForeign(u32),
    ClaimTerminating(u32),
    AddPod(u32),
    SetReplicas(u32),
    Class(u8),
    Namespace,
    Fault(Target, FaultKind, i64),
    Deleting,
    NoFinalizer,
    Paused,
    Invalid,
    Replicas(i32),
    Parameter,
    Size,
    Revision(u8),
    Resources(u8),
    Fates(bool),
    RecreateLease,
    Phase(Option<Phase>),
    Failure(FailureReason),
    Wiped,
    NoSystemId,
    Grant(u32),
    Prefer(u32),
    Supervised,
    Request(u32, u8, i64),
    NodesUnknown,
    Cordon(u32),
    Durability(Option<DurabilityMode>),
    Rule(usize, u32),
    Switchover(u32, i64, Option<i64>),
    Wish(u32),
    Permit(u32),
    Stop,
    Fence(u8),
    Hibernated,
    Done(u8),
    Later(i64),
}

fn kind() -> impl Strategy<Value = ChildKind> {
    prop::sample::select(ChildKind::ALL.to_vec())
}

fn child_state() -> impl Strategy<Value = Option<ChildState>> {
    let drifted = |immutable| ChildState::Drifted {
        uid: "other".to_owned(),
        resource_version: "9".to_owned(),
        what: "spec".to_owned(),
        immutable,
    };
    prop_oneof![
        Just(None),
        Just(Some(ChildState::Missing)),
        Just(Some(ChildState::Foreign {
            why: "owned by Deployment other".to_owned()
        })),
        Just(Some(ChildState::Current {
            uid: "other".to_owned()
        })),
        any::<bool>().prop_map(move |immutable| Some(drifted(immutable))),
        any::<bool>().prop_map(|recoverable| Some(ChildState::Damaged {
            uid: "other".to_owned(),
            resource_version: "9".to_owned(),
            what: "is empty".to_owned(),
            recoverable,
        })),
    ]
}

fn member_state() -> impl Strategy<Value = MemberState> {
    use MemberState::{CatchingUp, Cloning, Initializing, Primary, Starting, Stopped, Streaming, Waiting};
    prop::sample::select(vec![
        Waiting,
        Initializing,
        Cloning,
        Starting,
        Primary,
        Streaming,
        CatchingUp,
        Stopped,
    ])
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        Just(Target::Resource),
        Just(Target::Status),
        kind().prop_map(Target::Child),
        (0..5_u32).prop_map(|ordinal| Target::Pod(format!("demo-{ordinal}"))),
        (0..5_u32).prop_map(|ordinal| Target::Claim(format!("data-demo-{ordinal}"))),
        (0..5_u32).prop_map(|ordinal| Target::Certificate(format!("demo-{ordinal}"))),
        (0..5_u32).prop_map(|ordinal| Target::Resize(format!("demo-{ordinal}"))),
    ]
}

fn resources() -> impl Strategy<Value = Resources> {
    let message = || Just("no room".to_owned());
    prop_oneof![
        Just(Resources::Other),
        Just(Resources::MoreMemory),
        prop::option::of(message()).prop_map(|message| Resources::Asked { message }),
        Just(Resources::Given),
        message().prop_map(|message| Resources::Refused { message }),
    ]
}

fn observed_change() -> impl Strategy<Value = Change> {
    let pod = || 0..5_u32;
    prop_oneof![
        8 => (kind(), child_state()).prop_map(|(kind, state)| Change::Child(kind, state)),
        1 => Just(Change::PodsUnknown),
        1 => Just(Change::ClaimsUnknown),
        1 => Just(Change::LeaseUnknown),
        1 => Just(Change::LeaseGone),
        1 => Just(Change::LeaseUntouched),
        2 => (pod(), any::<bool>()).prop_map(|(pod, serving)| Change::Holder(pod, serving)),
        1 => Just(Change::NoHolder),
        3 => (pod(), member_state()).prop_map(|(pod, state)| Change::Report(pod, state)),
        1 => pod().prop_map(Change::NoReport),
        1 => pod().prop_map(Change::Key),
        2 => (pod(), any::<bool>(), any::<bool>()).prop_map(|(pod, pending, lowers)| Change::Pending(pod, pending, lowers)),
        1 => pod().prop_map(Change::Refusal),
        1 => pod().prop_map(Change::PodGone),
        2 => (pod(), any::<bool>()).prop_map(|(pod, ready)| Change::PodReady(pod, ready)),
        1 => pod().prop_map(Change::PodTerminating),
        2 => (pod(), 0..3_u8).prop_map(|(pod, revision)| Change::PodRevision(pod, revision)),
        3 => (pod(), resources()).prop_map(|(pod, resources)| Change::PodResources(pod, resources)),
        2 => (pod(), 0..2_u8, 0..120_i64).prop_map(|(pod, to, ago)| Change::PodResizing(pod, to, ago)),
        1 => pod().prop_map(Change::PodUid),
        1 => pod().prop_map(Change::TokenVoid),
        1 => (pod(), 0..300_i64).prop_map(|(pod, seconds)| Change::PodImage(pod, seconds)),
        1 => pod().prop_map(Change::PodNode),
        1 => pod().prop_map(Change::BootstrapError),
        1 => pod().prop_map(Change::ClaimGone),
        1 => pod().prop_map(Change::ClaimUid),
        1 => pod().prop_map(Change::ClaimForeign),
        1 => pod().prop_map(Change::ClaimTerminating),
        1 => pod().prop_map(Change::AddPod),
        1 => pod().prop_map(Change::SetReplicas),
        1 => (0..3_u8).prop_map(Change::Class),
        1 => Just(Change::Namespace),
        1 => Just(Change::NodesUnknown),
        3 => pod().prop_map(Change::Cordon),
    ]
}

fn other_change() -> impl Strategy<Value = Change> {
    use FailureReason::{ForeignObject, ImageCannotRun, InvalidSpec, PartLost, QuotaExceeded};
    use FaultKind::{Conflict, Forbidden, Invalid, Quota, Transient};
    let fault = prop::sample::select(vec![Quota, Forbidden, Invalid, Conflict, Transient]);
    let reason = prop::sample::select(vec![
        ForeignObject,
        ImageCannotRun,
        InvalidSpec,
        PartLost,
        QuotaExceeded,
    ]);
    let mode = prop::option::of(prop::sample::select(vec![
        DurabilityMode::Async,
        DurabilityMode::Preferred,
        DurabilityMode::Required,
    ]));
    prop_oneof![
        2 => (target(), fault, 0..90_i64).prop_map(|(target, kind, ago)| Change::Fault(target, kind, ago)),
        2 => Just(Change::Deleting),
        1 => Just(Change::NoFinalizer),
        1 => Just(Change::Paused),
        1 => Just(Change::Invalid),
        2 => (1..6_i32).prop_map(Change::Replicas),
        1 => Just(Change::Parameter),
        1 => Just(Change::Size),
        2 => (0..3_u8).prop_map(Change::Revision),
        3 => (0..2_u8).prop_map(Change::Resources),
        1 => any::<bool>().prop_map(Change::Fates),
        1 => Just(Change::RecreateLease),
        3 => prop::option::of(prop::sample::select(Phase::ALL.to_vec())).prop_map(Change::Phase),
        1 => reason.prop_map(Change::Failure),
        1 => Just(Change::Wiped),
        1 => Just(Change::NoSystemId),
        1 => (0..4_u32).prop_map(Change::Grant),
        2 => (0..4_u32).prop_map(Change::Prefer),
        2 => Just(Change::Supervised),
        3 => (0..5_u32, 0..3_u8, 0..600_i64).prop_map(|(to, noted, ago)| Change::Request(to, noted, ago)),
        1 => mode.prop_map(Change::Durability),
        2 => (0..3_usize, 0..5_u32).prop_map(|(required, replicas)| Change::Rule(required, replicas)),
        3 => (0..4_u32, 0..90_i64, prop::option::of(0..90_i64)).prop_map(|(to, ago, ended)| Change::Switchover(to, ago, ended)),
        1 => (0..4_u32).prop_map(Change::Wish),
        1 => (0..4_u32).prop_map(Change::Permit),
        1 => Just(Change::Stop),
        2 => (0..8_u8).prop_map(Change::Fence),
        2 => Just(Change::Hibernated),
        1 => (0..3_u8).prop_map(Change::Done),
        1 => (0..600_i64).prop_map(Change::Later),
    ]
}

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

fn apply(scene: &mut Scene, change: Change) {
    let now = scene.now;
    match change {
        Change::Child(kind, state) => {
            if kind == ChildKind::StatefulSet {
                let ours = matches!(state, Some(ChildState::Current { .. } | ChildState::Drifted { .. }));
                scene.observed.stateful_set = Scene::ready(3).observed.stateful_set.filter(|_| ours);
            }
            if kind == ChildKind::Lease {
                match &state {
                    Some(ChildState::Missing) => scene.observed.lease = Known::Known(None),
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
            scene.set_child(ChildKind::Lease, ChildState::Missing);
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
        Change::TokenVoid(ordinal) => pod(scene, ordinal, |pod| (pod.revision, pod.token_void) = (None, true)),
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
        Change::BootstrapError(ordinal) => pod(scene, ordinal, |pod| pod.bootstrap_error = Some("no".to_owned())),
        Change::ClaimGone(ordinal) => {
            if let Known::Known(claims) = &mut scene.observed.claims {
                claims.retain(|claim| claim.ordinal != ordinal);
            }
        }
        Change::ClaimUid(ordinal) => claim(scene, ordinal, |claim| claim.uid = format!("{ordinal}-new")),
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
        Change::Replicas(replicas) => scene.edit(|spec| spec.replicas = replicas),
        Change::Parameter => scene.edit(|spec| {
            spec.postgres.parameters.insert("work_mem".to_owned(), "8MB".to_owned());
        }),
        Change::Size => scene.data_bytes *= 2,
        Change::Revision(revision) => scene.revision = format!("r{revision}"),
        Change::Resources(resources) => {
            scene.revision = format!("{}+{resources}", scene.revision.split('+').next().unwrap_or_default());
        }
        Change::Fates(delete) => scene.edit(|spec| {
            let fate = if delete { VolumeFate::Delete } else { VolumeFate::Retain };
            (spec.volume_policy.on_delete, spec.volume_policy.on_scale_down) = (fate, fate);
        }),
        Change::RecreateLease => scene.recreate_lease = Some(scene.with_wanted(|wanted| wanted.uid.to_owned())),
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
        Change::Supervised => scene.edit(|spec| spec.primary.updates = PrimaryUpdates::Supervised),
        Change::Request(ordinal, noted, ago) => {
            let value = format!("demo-{ordinal}/x");
            scene.stored.memo.request = (noted > 0).then(|| SwitchoverRequest {
                value: value.clone(),
                since: now - TimeDelta::seconds(ago),
                outcome: (noted > 1).then_some(RequestOutcome::GivenUp),
                message: None,
            });
            scene.switchover = Some(value);
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
            let step = ["Stopped", "PodsGone", "Volumes"][usize::from(step)];
            if scene.stored.memo.deletion_done.iter().all(|done| done != step) {
                scene.stored.memo.deletion_done.push(step.to_owned());
            }
        }
        Change::Later(seconds) => scene.now += TimeDelta::seconds(seconds),
    }
}

fn scene() -> impl Strategy<Value = Scene> {
    let base = prop_oneof![
        1 => (1..4_u32).prop_map(Scene::new),
        6 => (1..4_u32).prop_map(Scene::ready),
    ];
    let change = prop_oneof![observed_change(), other_change()];
    (base, prop::collection::vec(change, 0..8)).prop_map(|(mut scene, changes)| {
        for change in changes {
            apply(&mut scene, change);
        }
        scene
    })
}

/// A database at rest, and several reasons for its primary to move.
fn planned() -> impl Strategy<Value = Scene> {
    let change = prop_oneof![
        4 => (0..5_u32).prop_map(Change::Cordon),
        2 => (0..5_u32).prop_map(Change::Prefer),
        1 => (0..2_u8).prop_map(Change::Resources),
        1 => (0..5_u32, resources()).prop_map(|(pod, resources)| Change::PodResources(pod, resources)),
        2 => (0..5_u32).prop_map(|to| Change::Request(to, 1, 0)),
        1 => (0..5_u32, 1..3_u8).prop_map(|(pod, revision)| Change::PodRevision(pod, revision)),
        1 => (1..3_u8).prop_map(Change::Revision),
        1 => (0..5_u32, any::<bool>()).prop_map(|(pod, ready)| Change::PodReady(pod, ready)),
        1 => Just(Change::Supervised),
        1 => (2..6_i32).prop_map(Change::Replicas),
    ];
    (3..6_u32, 0..5_u32, prop::collection::vec(change, 1..8)).prop_map(|(replicas, primary, changes)| {
        let mut scene = Scene::ready(replicas);
        scene.elect(primary % replicas);
        for change in changes {
            apply(&mut scene, change);
        }
        scene
    })
}

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

fn assert_action(scene: &Scene, action: &Action) {
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
        Action::DeleteRoleBinding(exact) | Action::OrphanStatefulSet(exact) | Action::DeleteStatefulSet(exact) => {
            assert!(is_observed(scene, exact))
        }
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
        }
    }
}

/// Nothing but cpu and memory keeps this pod from being as the template says, and it is not known that it cannot get them.
fn resizable(scene: &Scene, facts: &Facts<'_>, pod: &Pod) -> bool {
    let base = scene.revision.split('+').next();
    let refused = |fault: &Fault| fault.target == Target::Resize(pod.name.clone()) && fault.kind == FaultKind::Invalid;
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

/// Invariant 29: a serving member is taken down only while all others serve.
fn assert_voluntary(scene: &Scene, facts: &Facts<'_>, action: &Action) {
    if let Action::ReplacePod(exact) = action
        && !scene.deleting
    {
        let pod = scene.pods().iter().find(|pod| pod.uid == exact.uid()).unwrap();
        assert!(!facts.current_revision(pod) && !pod.terminating);
        let kept = |pod: &Pod| scene.spec.fenced.contains(&pod.name) && pod.node.is_some() && pod.image_error.is_none();
        assert!(!kept(pod), "{} is fenced, to be looked at", pod.name);
        if pod.token_void {
            let holder = facts.holder_pod().is_some_and(|holder| holder.uid == pod.uid);
            let first = |other: &Pod| other.uid != pod.uid && other.token_void && !other.terminating && !kept(other);
            assert!(!holder || !scene.pods().iter().any(first), "the holder is the last");
            return;
        }
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
            return;
        }
        let primary = facts.primary().expect("scale down under a primary");
        assert!(primary.ordinal < replicas, "the primary is not scaled away");
    }
}

fn assert_changes(scene: &Scene, facts: &Facts<'_>, action: &Action) {
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
            StatusChange::MovePrimary(memo) => {
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
            | StatusChange::NoteRequest(_)
            | StatusChange::EndRestart => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(8_192)))]

    #[test]
    fn every_decision_keeps_the_rules(scene in scene()) {
        let decision = scene.decide();
        prop_assert_eq!(&decision, &scene.decide(), "deterministic");
        prop_assert!(RULES.iter().any(|rule| rule.name == decision.rule));
        prop_assert!(decision.wake >= scene.now && decision.wake <= scene.now + TimeDelta::minutes(2));
        prop_assert_eq!(decision.failure.is_some(), decision.phase == Phase::Failed);
        assert_action(&scene, &decision.action);
        if scene.spec.paused && !scene.deleting {
            prop_assert!(matches!(decision.action, Action::Wait(_)), "{:?}", decision.action);
        }
        if scene.invalid.is_some() && !scene.deleting {
            let touches = matches!(
                decision.action,
                Action::Apply(_) | Action::ReplacePod(_) | Action::ResizePod(_) | Action::MarkPod { .. } | Action::ResizeClaim { .. } | Action::OrphanStatefulSet(_)
            );
            prop_assert!(!touches, "{:?}", decision.action);
        }
        scene.with_wanted(|wanted| {
            let facts = Facts::new(wanted, &scene.observed, &scene.stored, scene.now);
            assert!(may_follow(stored_phase(&facts), decision.phase), "{:?} -> {:?}", scene.stored.phase, decision.phase);
            assert_voluntary(&scene, &facts, &decision.action);
            assert_changes(&scene, &facts, &decision.action);
            if let Action::Wait(waiting) = &decision.action
                && !rests(decision.phase)
                && !waiting.resting
                && (!scene.spec.paused || scene.deleting)
                && !matches!(decision.step, Some(Step::Supervised | Step::Fenced))
            {
                assert!(waiting.deadline.is_some(), "a wait without end: {waiting:?}");
            }
            assert_failover(&scene, &facts, decision.phase);
            let resting = matches!(&decision.action, Action::Wait(waiting) if waiting.resting);
            assert!(!resting || ready(&facts), "rests, and is not ready");
            if decision.phase == Phase::Ready && facts.all_known() && !scene.spec.paused {
                assert!(ready(&facts) || briefly_away(&facts).is_some());
            }
        });
    }

    /// Once the primary has moved, nothing sends it back as long as nothing else changes.
    #[test]
    fn no_primary_is_moved_to_and_fro(scene in planned()) {
        let mut scene = scene;
        let mut before = Vec::new();
        for _ in 0..30 {
            let lease = scene.observed.lease.get().and_then(Option::as_ref);
            let holder = lease.and_then(|lease| lease.holder.as_ref()).map(|holder| holder.incarnation.pod.clone());
            let decision = scene.store();
            match &decision.action {
                Action::WriteStatus(changes) => {
                    let target = changes.iter().find_map(|change| match change {
                        StatusChange::MovePrimary(memo) => Some(memo.target.clone()),
                        _ => None,
                    });
                    let Some(target) = target else { continue };
                    before.push(holder.unwrap());
                    prop_assert!(!before.contains(&target), "back to {target}: {:?}", decision.because);
                    let ordinal = scene.pods().iter().find(|pod| pod.name == target).map(|pod| pod.ordinal);
                    scene.elect(ordinal.unwrap());
                }
                Action::ReplacePod(exact) => {
                    // What is updated may become primary again.
                    before.clear();
                    let revision = scene.revision.clone();
                    let pod = scene.pods_mut().iter_mut().find(|pod| pod.uid == exact.uid()).unwrap();
                    pod.revision = Some(revision);
                }
                _ => return Ok(()),
            }
        }
        prop_assert!(false, "it never comes to rest: {:#?}", scene.decide());
    }

    /// A status that was written is not written again while nothing changes.
    #[test]
    fn a_status_is_stable(scene in scene()) {
        let mut scene = scene;
        for _ in 0..12 {
            let before = scene.stored.phase;
            let decision = scene.store();
            if matches!(decision.action, Action::Wait(_)) {
                let again = scene.decide();
                if again.phase != decision.phase {
                    prop_assert!(!may_follow(before, again.phase), "it could have been said at once");
                    continue;
                }
                if again.action == decision.action {
                    let next = scene.status(&again);
                    prop_assert_eq!(due(&scene.stored, &next, &again), Due::Never);
                    return Ok(());
                }
            } else if !matches!(decision.action, Action::WriteStatus(_)) {
                // An effect that is not carried out here.
                return Ok(());
            }
        }
        prop_assert!(false, "it writes without end: {:#?}", scene.decide());
    }

    /// `Ready=True` speaks of the present generation, of one primary, and of members that all serve.
    #[test]
    fn ready_is_true_only_of_the_present_spec(scene in scene()) {
        let status = scene.status(&scene.decide());
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready").unwrap();
        if ready.status == "True" {
            prop_assert_eq!(status.observed_generation, Some(scene.generation));
            prop_assert_eq!(ready.observed_generation, Some(scene.generation));
            prop_assert!(status.current_primary.is_some());
            prop_assert_eq!(status.ready_replicas, scene.spec.replicas);
            let promised = scene.spec.wanted_durability();
            let in_force = scene.observed.lease.get().and_then(Option::as_ref).map(|lease| lease.rule.required);
            prop_assert_eq!(in_force, Some(promised.standbys), "the promise is in force");
            let mode = status.durability.map(|durability| durability.mode);
            prop_assert!(promised.standbys == 0 || mode == Some(promised.mode));
        }
    }
}
