//! Situations: an idle database or a new one, with random changes.

use api::Phase;
use api::operation::{AcceptLoss, Action, DiscardQuarantined, RecreateLease, Restart, TakeImage};
use api::status::{DurabilityMode, FailureReason};
use machine::cluster::model::Scene;
use machine::cluster::{FaultKind, Left, OwnedObject, OwnedState, Resources, Target};
use machine::protocol::MemberState;
use proptest::prelude::*;

use crate::apply::apply;

/// One change of a scene.
#[derive(Clone, Debug)]
pub enum Change {
    Child(OwnedObject, Option<OwnedState>),
    PodsUnknown,
    FinalBackup(u8, u8),
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
    TokenRevoked(u32),
    PodUid(u32),
    PodImage(u32, i64),
    PodNode(u32),
    PodUnstarted(u32),
    PodReadySince(u32, i64),
    PodRestarts(u32, u32),
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
    Ask(Action, bool),
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
    /// Volumes are to be taken over; it may be on record already.
    Adopts(bool),
    ClaimLeft(u32),
}

/// UID of a deleted database of the same name.
pub const FORMER: &str = "0f0f0f0f-1111-2222-3333-444444444444";

fn kind() -> impl Strategy<Value = OwnedObject> {
    prop::sample::select(OwnedObject::ALL.to_vec())
}

fn child_state() -> impl Strategy<Value = Option<OwnedState>> {
    let drifted = |immutable| OwnedState::Drifted {
        uid: "other".to_owned(),
        resource_version: "9".to_owned(),
        what: "spec".to_owned(),
        immutable,
    };
    prop_oneof![
        Just(None),
        Just(Some(OwnedState::Missing)),
        any::<bool>().prop_map(|is_left| Some(OwnedState::Foreign {
            why: "owned by Deployment other".to_owned(),
            left: is_left.then(|| Left {
                by: FORMER.to_owned(),
                uid: "left".to_owned(),
                resource_version: "9".to_owned(),
            }),
        })),
        Just(Some(OwnedState::Current {
            uid: "other".to_owned()
        })),
        any::<bool>().prop_map(move |immutable| Some(drifted(immutable))),
        any::<bool>().prop_map(|recoverable| Some(OwnedState::Damaged {
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
        1 => pod().prop_map(Change::TokenRevoked),
        1 => (pod(), 0..300_i64).prop_map(|(pod, seconds)| Change::PodImage(pod, seconds)),
        1 => pod().prop_map(Change::PodNode),
        1 => pod().prop_map(Change::PodUnstarted),
        2 => (pod(), 0..20_i64).prop_map(|(pod, ago)| Change::PodReadySince(pod, ago)),
        1 => (pod(), 0..5_u32).prop_map(|(pod, times)| Change::PodRestarts(pod, times)),
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
        3 => (asks(), any::<bool>()).prop_map(|(action, noted)| Change::Ask(action, noted)),
        1 => mode.prop_map(Change::Durability),
        2 => (0..3_usize, 0..5_u32).prop_map(|(required, replicas)| Change::Rule(required, replicas)),
        3 => (0..4_u32, 0..90_i64, prop::option::of(0..90_i64)).prop_map(|(to, ago, ended)| Change::Switchover(to, ago, ended)),
        1 => (0..4_u32).prop_map(Change::Wish),
        1 => (0..4_u32).prop_map(Change::Permit),
        1 => Just(Change::Stop),
        2 => (0..8_u8).prop_map(Change::Fence),
        2 => Just(Change::Hibernated),
        1 => (0..5_u8).prop_map(Change::Done),
        1 => (0..3_u8, 0..4_u8).prop_map(|(policy, found)| Change::FinalBackup(policy, found)),
        1 => (0..600_i64).prop_map(Change::Later),
        1 => any::<bool>().prop_map(Change::Adopts),
        1 => (0..4_u32).prop_map(Change::ClaimLeft),
    ]
}

pub fn scene() -> impl Strategy<Value = Scene> {
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

/// An idle database, and several reasons for its primary to move.
pub fn planned() -> impl Strategy<Value = Scene> {
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

/// One instance, or a second one beside it, and events that may remove its data: first some changes, and more of them
/// after the decision was written.
pub fn alone() -> impl Strategy<Value = Scene> {
    let pod = || 0..2_u32;
    let change = prop_oneof![
        3 => pod().prop_map(Change::ClaimTerminating),
        2 => pod().prop_map(Change::ClaimGone),
        1 => pod().prop_map(Change::ClaimUid),
        1 => Just(Change::ClaimsUnknown),
        3 => (1..3_u8).prop_map(Change::Revision),
        2 => (pod(), 0..3_u8).prop_map(|(pod, revision)| Change::PodRevision(pod, revision)),
        1 => (0..2_u8).prop_map(Change::Resources),
        1 => (pod(), resources()).prop_map(|(pod, resources)| Change::PodResources(pod, resources)),
        2 => (pod(), any::<bool>()).prop_map(|(pod, ready)| Change::PodReady(pod, ready)),
        1 => (pod(), 0..5_u32).prop_map(|(pod, times)| Change::PodRestarts(pod, times)),
        1 => pod().prop_map(Change::PodGone),
        1 => pod().prop_map(Change::PodTerminating),
        1 => pod().prop_map(Change::PodNode),
        1 => pod().prop_map(Change::PodUnstarted),
        1 => pod().prop_map(Change::TokenRevoked),
        1 => pod().prop_map(Change::AddPod),
        1 => (pod(), any::<bool>()).prop_map(|(pod, serving)| Change::Holder(pod, serving)),
        1 => Just(Change::NoHolder),
        1 => (pod(), member_state()).prop_map(|(pod, state)| Change::Report(pod, state)),
        2 => (1..3_i32).prop_map(Change::Replicas),
        1 => Just(Change::Fates(true)),
        1 => (0..4_u8).prop_map(Change::Fence),
        2 => Just(Change::Hibernated),
        1 => Just(Change::Stop),
        2 => (0..600_i64).prop_map(Change::Later),
    ];
    let changes = || prop::collection::vec(change.clone(), 0..6);
    let base = prop_oneof![3 => Just(1), 1 => Just(2)].prop_map(Scene::ready);
    (base, changes(), changes()).prop_map(|(mut scene, before, after)| {
        before.into_iter().for_each(|change| apply(&mut scene, change));
        scene.store();
        after.into_iter().for_each(|change| apply(&mut scene, change));
        scene
    })
}

/// Requests of operations, besides a switchover.
fn asks() -> impl Strategy<Value = Action> {
    let quarantined = |name: &str| DiscardQuarantined {
        instance: "demo-1".to_owned(),
        name: name.to_owned(),
    };
    let image = |image: &str| TakeImage {
        image: image.to_owned(),
    };
    prop_oneof![
        Just(Action::Restart(Restart {})),
        Just(Action::RecreateLease(RecreateLease {})),
        Just(Action::TakeImage(image("postgres:17"))),
        (0..4_u64).prop_map(|epoch| Action::AcceptLoss(AcceptLoss { epoch })),
        Just(Action::DiscardQuarantined(quarantined("1-0_3000060-1"))),
    ]
}
