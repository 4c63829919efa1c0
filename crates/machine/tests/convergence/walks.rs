//! Random events, in any order.

use api::Phase;
use api::spec::PrimaryUpdatePolicy;
use api::status::DurabilityMode;
use chrono::TimeDelta;
use machine::cluster::model::{Crash, Resizes, World, switchover};
use machine::cluster::{Action, OwnedObject, OwnedState};
use proptest::prelude::*;

use crate::{assert_roles, assert_stays, drift};

/// One event, caused by a user or by the world.
#[derive(Clone, Debug)]
enum Event {
    Replicas(i32),
    Revision(u8),
    Resources(u8),
    Resizes(Resizes),
    Parameter(u8),
    KillPod(u32),
    LosePrimary,
    Prefer(Option<u32>),
    Durability(Option<DurabilityMode>),
    Stubborn(bool),
    Fence(Vec<u32>),
    Hibernate(bool),
    Cordon(u32, bool),
    Evict(u32),
    Request(Option<(u32, u8)>),
    Supervised(bool),
    LoseChild(OwnedObject),
    Wait(u8),
}

fn event() -> impl Strategy<Value = Event> {
    let lossy = [
        OwnedObject::StatefulSet,
        OwnedObject::RwService,
        OwnedObject::EndpointSlice,
        OwnedObject::TlsSecret,
    ];
    let modes = vec![
        DurabilityMode::Async,
        DurabilityMode::Preferred,
        DurabilityMode::Required,
    ];
    let resizes = vec![
        Resizes::Done,
        Resizes::Refused,
        Resizes::Infeasible,
        Resizes::Deferred,
        Resizes::Rewritten,
    ];
    prop_oneof![
        (1..=5).prop_map(Event::Replicas),
        (0..3_u8).prop_map(Event::Revision),
        (0..3_u8).prop_map(Event::Resources),
        prop::sample::select(resizes).prop_map(Event::Resizes),
        (0..3_u8).prop_map(Event::Parameter),
        (0..5_u32).prop_map(Event::KillPod),
        Just(Event::LosePrimary),
        prop::option::of(0..5_u32).prop_map(Event::Prefer),
        prop::option::of(prop::sample::select(modes)).prop_map(Event::Durability),
        any::<bool>().prop_map(Event::Stubborn),
        prop::collection::btree_set(0..5_u32, 0..3).prop_map(|fenced| Event::Fence(fenced.into_iter().collect())),
        any::<bool>().prop_map(Event::Hibernate),
        (0..5_u32, any::<bool>()).prop_map(|(node, cordoned)| Event::Cordon(node, cordoned)),
        (0..5_u32).prop_map(Event::Evict),
        prop::option::of((0..6_u32, 0..3_u8)).prop_map(Event::Request),
        any::<bool>().prop_map(Event::Supervised),
        prop::sample::select(lossy.to_vec()).prop_map(Event::LoseChild),
        (0..50_u8).prop_map(Event::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(128)))]

    /// Any events in any state: once they end, the database becomes as the spec wants it, and idle.
    #[test]
    fn every_walk_ends_in_ready(events in prop::collection::vec(event(), 1..20), crash in 1..60_usize) {
        let mut world = World::new(3).crashing(Crash::After(crash));
        for event in events {
            match event {
                Event::Replicas(replicas) => world.scene.scale(replicas),
                Event::Revision(revision) => {
                    let resources = world.scene.revision.split_once('+').map_or("", |(_, resources)| resources);
                    world.scene.revision = format!("r{revision}+{resources}");
                    if world.scene.observed.stateful_set.is_some() {
                        drift(&mut world);
                    }
                }
                Event::Resources(resources) => {
                    let base = world.scene.revision.split('+').next().unwrap_or_default();
                    world.scene.revision = format!("{base}+{resources}");
                    if world.scene.observed.stateful_set.is_some() {
                        drift(&mut world);
                    }
                }
                Event::Resizes(resizes) => world.resizes = resizes,
                Event::Parameter(value) => world.scene.edit(|spec| {
                    spec.postgres.parameters.insert("shared_buffers".to_owned(), format!("{value}MB"));
                }),
                Event::KillPod(ordinal) => {
                    for pod in world.scene.pods_mut().iter_mut().filter(|pod| pod.ordinal == ordinal) {
                        pod.terminating = true;
                    }
                }
                Event::LosePrimary => world.lose_primary(),
                Event::Prefer(ordinal) => world.scene.edit(|spec| {
                    spec.primary.prefer = ordinal.map(|ordinal| format!("demo-{ordinal}"));
                }),
                Event::Durability(mode) => world.scene.edit(|spec| spec.durability.mode = mode),
                Event::Stubborn(stubborn) => world.stubborn = stubborn,
                Event::Fence(ordinals) => world.scene.edit(|spec| {
                    spec.fenced = ordinals.iter().map(|ordinal| format!("demo-{ordinal}")).collect();
                }),
                Event::Hibernate(hibernated) => world.scene.edit(|spec| spec.hibernated = hibernated),
                Event::Cordon(node, cordoned) => world.scene.cordon(node, cordoned),
                Event::Evict(ordinal) => {
                    world.evict(ordinal);
                }
                Event::Request(request) => {
                    world.scene.request =
                        request.map(|(ordinal, token)| switchover(&format!("demo-{ordinal}"), &token.to_string()));
                }
                Event::Supervised(supervised) => world.scene.edit(|spec| {
                    spec.primary.update_policy = if supervised {
                        PrimaryUpdatePolicy::Supervised
                    } else {
                        PrimaryUpdatePolicy::Automatic
                    };
                }),
                Event::LoseChild(kind) => {
                    world.scene.set_child(kind, OwnedState::Missing);
                    if kind == OwnedObject::StatefulSet {
                        world.scene.observed.stateful_set = None;
                    }
                }
                Event::Wait(ticks) => {
                    world.run_until(TimeDelta::milliseconds(100 * i64::from(ticks)), |_, _| false);
                }
            }
        }
        world.stubborn = false;
        world.scene.edit(|spec| {
            (spec.hibernated, spec.fenced) = (false, Vec::new());
            // What the API server refuses does not persist.
            let there = |pod: &String| (0..spec.replicas).any(|ordinal| *pod == format!("demo-{ordinal}"));
            spec.primary.prefer = spec.primary.prefer.take().filter(there);
        });
        world.scene.scale(world.scene.spec.replicas);
        // Cordoned nodes and a supervised change may hold it up. Then the status says so, and nothing moves back and
        // forth.
        let _ = world.settle() || world.settle();
        let decision = world.scene.decide();
        prop_assert!(matches!(&decision.action, Action::Wait(_)), "{decision:#?}");
        prop_assert!(decision.phase == Phase::Ready || world.scene.stored.waiting.is_some(), "{decision:#?}");
        assert_stays(&mut world);
        for node in 0..5 {
            world.scene.cordon(node, false);
        }
        world.scene.edit(|spec| spec.primary.update_policy = PrimaryUpdatePolicy::Automatic);
        // After an abandoned switchover the operator backs off for at most ten minutes.
        prop_assert!(world.settle() || world.settle(), "{:#?}\n{:#?}", world.scene.decide(), world.scene);
        prop_assert_eq!(world.initdbs, 1);
        let primary = world.scene.stored.current_primary.clone().unwrap();
        assert_roles(&world, &primary);
        prop_assert!(world.scene.spec.primary.prefer.as_ref().is_none_or(|prefer| *prefer == primary));
        prop_assert_eq!(world.scene.stored.phase, Some(Phase::Ready));
        let wanted = world.scene.revision.split_once('+').map_or("", |(_, resources)| resources).to_owned();
        prop_assert!(world.resources().iter().all(|resources| *resources == wanted), "{:?}", world.resources());
        let kept = world.scene.pods().len();
        prop_assert_eq!(i32::try_from(kept).unwrap(), world.scene.spec.replicas);
    }
}
