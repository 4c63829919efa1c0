//! WAL volumes that are added, reverted and changed, in situations of their own.

use chrono::TimeDelta;
use machine::cluster::model::Scene;
use machine::cluster::{Action, Claim, Facts, Known, Pod, StatusChange, StorageClass, Volume, WalVolumes};
use proptest::prelude::*;

/// One change of a scene with three instances.
#[derive(Clone, Debug)]
enum Change {
    Add,
    TakeBack,
    Image,
    Size,
    Class(StorageClass),
    NamedClass,
    Set(WalVolumes),
    Given(u32),
    /// Made this many seconds ago for this node, with a volume now, and ever.
    Claim(u32, i64, Option<u32>, bool, bool),
    ClaimForeign(u32),
    ClaimTerminating(u32),
    /// Made again, with the WAL claim of that instance.
    Pod(u32, Option<u32>),
    PodNode(u32, Option<u32>),
    PodAway(u32),
    PodGone(u32),
    Primary(u32),
    Fenced(u32),
    Hibernated,
    Supervised,
    PodsUnknown,
    ClaimsUnknown,
}

fn change() -> impl Strategy<Value = Change> {
    let number = || 0..3_u32;
    let set = prop_oneof![
        Just(WalVolumes::Withheld),
        Just(WalVolumes::Templated),
        number().prop_map(WalVolumes::Of)
    ];
    let class = prop_oneof![
        Just(StorageClass::NoDefault),
        any::<bool>().prop_map(|expandable| StorageClass::Present { expandable }),
    ];
    let claim = (
        number(),
        0..120_i64,
        prop::option::of(number()),
        any::<bool>(),
        any::<bool>(),
    );
    prop_oneof![
        2 => Just(Change::Add),
        2 => Just(Change::TakeBack),
        2 => Just(Change::Image),
        1 => Just(Change::Size),
        2 => class.prop_map(Change::Class),
        1 => Just(Change::NamedClass),
        2 => set.prop_map(Change::Set),
        3 => number().prop_map(Change::Given),
        8 => claim.prop_map(|(of, ago, node, bound, had)| Change::Claim(of, ago, node, bound, had)),
        1 => number().prop_map(Change::ClaimForeign),
        1 => number().prop_map(Change::ClaimTerminating),
        6 => (number(), prop::option::of(number())).prop_map(|(pod, of)| Change::Pod(pod, of)),
        2 => (number(), prop::option::of(number())).prop_map(|(pod, node)| Change::PodNode(pod, node)),
        2 => number().prop_map(Change::PodAway),
        1 => number().prop_map(Change::PodGone),
        1 => number().prop_map(Change::Primary),
        1 => number().prop_map(Change::Fenced),
        1 => Just(Change::Hibernated),
        1 => Just(Change::Supervised),
        1 => Just(Change::PodsUnknown),
        1 => Just(Change::ClaimsUnknown),
    ]
}

fn pod(scene: &mut Scene, ordinal: u32, change: impl FnOnce(&mut Pod)) {
    if let Known::Known(pods) = &mut scene.observed.pods
        && let Some(pod) = pods.iter_mut().find(|pod| pod.ordinal == ordinal)
    {
        change(pod);
    }
}

fn claim(scene: &mut Scene, ordinal: u32, change: impl FnOnce(&mut Claim)) {
    if let Known::Known(claims) = &mut scene.observed.claims
        && let Some(claim) = claims
            .iter_mut()
            .find(|claim| claim.ordinal == ordinal && claim.volume == Volume::Wal)
    {
        change(claim);
    }
}

fn apply(scene: &mut Scene, change: Change) {
    let now = scene.now;
    match change {
        Change::Add if scene.spec.storage.wal.is_none() => scene.add_wal_volume(),
        Change::TakeBack => scene.take_wal_volume_back(),
        Change::Image => scene.revision = scene.revision.replace("r1", "r2"),
        Change::Size => scene.wal_bytes.0 *= 2,
        Change::Class(class) => scene.observed.wal_storage_class = Known::Known(class),
        Change::NamedClass => scene.edit(|spec| {
            if let Some(wal) = &mut spec.storage.wal {
                wal.storage_class_name = Some("fast".to_owned());
            }
        }),
        Change::Set(wal) => {
            if let Some(set) = &mut scene.observed.stateful_set {
                set.wal = wal;
            }
        }
        Change::Given(of) => scene.stored.memo.wal_volumes.push(format!("demo-{of}")),
        Change::Claim(of, ago, node, bound, had) => {
            let wal = Scene::with_wal(3)
                .claims_mut()
                .iter()
                .find(|claim| claim.name == format!("wal-demo-{of}"))
                .cloned();
            if let (Known::Known(claims), Some(made)) = (&mut scene.observed.claims, wal) {
                claims.retain(|claim| claim.name != made.name);
                claims.push(Claim {
                    bound,
                    had_volume: bound || had,
                    created: now - TimeDelta::seconds(ago),
                    selected_node: node.map(|node| format!("node-{node}")),
                    ..made
                });
            }
        }
        Change::ClaimForeign(of) => claim(scene, of, |claim| claim.cluster_uid = Some("theirs".to_owned())),
        Change::ClaimTerminating(of) => claim(scene, of, |claim| claim.terminating = true),
        Change::Pod(ordinal, of) => {
            let revision = scene.revision.clone();
            pod(scene, ordinal, |pod| {
                pod.wal_claim = of.map(|of| format!("wal-demo-{of}"));
                pod.revision = Some(if of.is_some() {
                    revision
                } else {
                    revision.replace("~wal", "")
                });
            });
        }
        Change::PodNode(ordinal, node) => pod(scene, ordinal, |pod| {
            pod.node = node.map(|node| format!("node-{node}"));
            pod.ready &= pod.node.is_some();
        }),
        Change::PodAway(ordinal) => pod(scene, ordinal, |pod| pod.ready = false),
        Change::PodGone(ordinal) => {
            if let Known::Known(pods) = &mut scene.observed.pods {
                pods.retain(|pod| pod.ordinal != ordinal);
            }
        }
        Change::Primary(ordinal) => scene.elect(ordinal),
        Change::Fenced(ordinal) => scene.edit(|spec| spec.fenced = vec![format!("demo-{ordinal}")]),
        Change::Hibernated => scene.edit(|spec| spec.hibernated = true),
        Change::Supervised => {
            scene.edit(|spec| spec.primary.update_policy = api::spec::PrimaryUpdatePolicy::Supervised)
        }
        Change::PodsUnknown => scene.observed.pods = Known::Unknown,
        Change::ClaimsUnknown => scene.observed.claims = Known::Unknown,
        Change::Add => {}
    }
}

fn scene() -> impl Strategy<Value = Scene> {
    let base = prop_oneof![2 => Just(false), 1 => Just(true)].prop_map(|had| {
        if had {
            return Scene::with_wal(3);
        }
        let mut scene = Scene::ready(3);
        scene.add_wal_volume();
        scene
    });
    (base, prop::collection::vec(change(), 0..8)).prop_map(|(mut scene, changes)| {
        for change in changes {
            apply(&mut scene, change);
        }
        scene
    })
}

/// The WAL claim of this pod, with a volume of this database.
fn has_volume(scene: &Scene, ordinal: u32) -> bool {
    let claims = scene.observed.claims.get().into_iter().flatten();
    let mut own = claims.filter(|claim| claim.volume == Volume::Wal && claim.ordinal == ordinal);
    own.any(|claim| claim.bound && !claim.terminating && claim.cluster_uid.as_deref() != Some("theirs"))
}

fn is_given(scene: &Scene, pod: &str) -> bool {
    scene.stored.memo.wal_volumes.iter().any(|given| given == pod)
}

fn assert_wal_volumes(scene: &Scene, facts: &Facts<'_>, action: &Action) {
    let asked = scene.spec.storage.wal.is_some();
    match action {
        Action::MakeWalClaim { name, .. } => {
            let claims = scene.observed.claims.get().expect("the claims are known");
            assert!(asked && claims.iter().all(|claim| claim.name != *name));
        }
        Action::DeleteClaim(exact) => {
            let claims = scene.observed.claims.get().unwrap();
            let claim = claims.iter().find(|claim| claim.uid == exact.uid()).unwrap();
            assert!(claim.volume == Volume::Wal && claim.cluster_uid.as_deref() != Some("theirs"));
            assert!(
                !claim.bound && !claim.had_volume && !claim.terminating,
                "something may be on it"
            );
            let pods = scene.observed.pods.get().expect("the pods are known");
            assert!(
                pods.iter().all(|pod| pod.wal_claim.as_ref() != Some(&claim.name)),
                "a pod uses it"
            );
            let set = scene.observed.stateful_set.as_ref().unwrap();
            assert!(set.wal != WalVolumes::Templated && set.wal != WalVolumes::Of(claim.ordinal));
            let young = scene.now < claim.created + TimeDelta::minutes(1);
            assert!(!asked || !young, "it may still be provisioned");
        }
        Action::Apply(apply) => {
            if let Some(WalVolumes::Of(ordinal)) = apply.wal {
                assert!(is_given(scene, &format!("demo-{ordinal}")), "it is on record first");
                assert!(asked && has_volume(scene, ordinal));
            }
        }
        Action::WriteStatus(changes) => {
            let given = changes.iter().find_map(|change| match change {
                StatusChange::GiveWalVolumes(given) => Some(given),
                _ => None,
            });
            assert!(given.is_none() || asked, "it could not be reverted");
        }
        Action::ReplacePod(exact) => {
            let pod = scene.pods().iter().find(|pod| pod.uid == exact.uid()).unwrap();
            assert!(!pod.ready || facts.all_serve_except(Some(pod.ordinal)), "one at a time");
            let bare = scene.revision.replace("~wal", "");
            if asked && pod.wal_claim.is_none() && pod.revision.as_deref() == Some(&bare) {
                let set = scene.observed.stateful_set.as_ref().unwrap();
                let fits = [WalVolumes::Templated, WalVolumes::Of(pod.ordinal)].contains(&set.wal);
                assert!(fits && has_volume(scene, pod.ordinal), "it would be made as it is");
                assert!(is_given(scene, &pod.name));
            }
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(8_192)))]

    #[test]
    fn wal_volumes_come_and_go_by_the_rules(scene in scene()) {
        let decision = scene.decide();
        prop_assert_eq!(&decision, &scene.decide(), "deterministic");
        prop_assert!(decision.wake >= scene.now && decision.wake <= scene.now + TimeDelta::minutes(2));
        scene.with_wanted(|wanted| {
            let facts = Facts::new(wanted, &scene.observed, &scene.stored, scene.now);
            assert_wal_volumes(&scene, &facts, &decision.action);
        });
    }
}
