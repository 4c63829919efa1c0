use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use proptest::prelude::*;

use super::super::model::Scene;
use super::*;

fn addresses(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|&address| address.to_owned()).collect()
}

fn said(scene: &Scene) -> Option<Condition> {
    let conditions = scene.status(&scene.decide()).conditions;
    conditions.into_iter().find(|found| found.type_ == FOREIGN_ROUTE)
}

fn foreign() -> Scene {
    let mut scene = Scene::ready(3);
    scene.observed.foreign_route = Some(ForeignRoute {
        addresses: addresses(&["10.9.9.9"]),
        since: scene.now,
    });
    scene
}

#[test]
fn an_address_that_no_pod_has_is_named_after_a_minute() {
    let mut scene = foreign();
    assert_eq!((said(&scene), scene.decide().wake), (None, scene.now + WAIT_LIMIT));
    scene.now += WAIT_LIMIT;
    let found = said(&scene).unwrap();
    assert_eq!(
        (found.status.as_str(), found.reason.as_str()),
        ("True", "AddressOfNoPod")
    );
    for words in ["-rw leads to 10.9.9.9", "pod demo-0", "endpointslice demo-rw"] {
        assert!(found.message.contains(words), "{}", found.message);
    }
    scene.pod_mut(0).ready = false;
    let found = said(&scene).unwrap();
    assert!(
        found.message.contains("the next primary corrects it"),
        "{}",
        found.message
    );
}

#[test]
fn a_new_operator_goes_on_saying_it_until_it_is_over() {
    let mut scene = foreign();
    scene.now += WAIT_LIMIT;
    scene.store();
    scene.observed.foreign_route.as_mut().unwrap().since = scene.now;
    assert!(said(&scene).is_some());
    scene.observed.foreign_route = None;
    assert_eq!(said(&scene), None);
}

#[test]
fn nothing_is_said_without_pods_or_of_an_endpoint_slice_that_is_another_ones() {
    let foreign_slice = |scene: &mut Scene| {
        let why = "owned by ClusteredDatabase demo".to_owned();
        scene.observed.children[OwnedObject::EndpointSlice] = Known::Known(OwnedState::Foreign { why, left: None });
    };
    let spoils: [fn(&mut Scene); 3] = [
        |scene| scene.spec.hibernated = true,
        |scene| scene.deleting = true,
        foreign_slice,
    ];
    for (index, spoil) in spoils.into_iter().enumerate() {
        let mut scene = foreign();
        spoil(&mut scene);
        assert_eq!(scene.with_facts(lasts_at), None, "{index}");
        scene.now += WAIT_LIMIT;
        assert_eq!(said(&scene), None, "{index}");
    }
}

proptest! {
    #[test]
    fn what_is_foreign_is_what_no_pod_has_and_unknown_pods_change_nothing(
        steps in prop::collection::vec((prop::option::of(0_u8..8), prop::option::of(0_u8..8)), 1..8),
    ) {
        let some = |bits: Option<u8>| bits.map_or(Known::Unknown, |bits| {
            let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
            let of: Vec<_> = (0..3).filter(|bit| bits & (1 << bit) != 0).map(|bit| all[bit]).collect();
            Known::Known(addresses(&of))
        });
        let (mut before, mut since) = (None, None);
        for (second, (routed, own)) in (0..).zip(steps) {
            let now = DateTime::UNIX_EPOCH + TimeDelta::seconds(second);
            let after = foreign_route(before.as_ref(), &some(routed), &some(own), now);
            if let (Some(routed), Some(own)) = (routed, own) {
                since = (routed & !own != 0).then(|| since.unwrap_or(now));
                let found = after.as_ref().map_or(0, |found| found.addresses.len());
                prop_assert_eq!(found, (routed & !own).count_ones() as usize);
            } else {
                prop_assert_eq!(&after, &before);
            }
            prop_assert_eq!(after.as_ref().map(|found| found.since), since);
            before = after;
        }
    }
}
