use super::super::model::Scene;
use super::super::wal::tests::{added, claim, give, make, template, unbound};
use super::super::{Known, WalVolumes};
use super::*;

fn without_class(scene: &mut Scene) {
    scene.observed.wal_storage_class = Known::Known(StorageClass::NoDefault);
}

fn name_class(scene: &mut Scene, name: &str) {
    scene.edit(|spec| {
        if let Some(wal) = &mut spec.storage.wal {
            wal.storage_class_name = Some(name.to_owned());
        }
    });
}

fn removed(scene: &Scene) -> Option<String> {
    match scene.decide().action {
        Action::DeleteClaim(claim) => Some(claim.name().to_owned()),
        _ => None,
    }
}

fn waits_for(scene: &mut Scene, what: &str, who: &str) {
    let decision = scene.store();
    assert_eq!(decision.rule, "await-wal-volume", "{decision:#?}");
    let waiting = scene.stored.waiting.clone().unwrap();
    assert!(waiting.what.starts_with(what), "{}", waiting.what);
    assert!(waiting.who_can_end_it.contains(who), "{}", waiting.who_can_end_it);
}

#[test]
fn a_class_that_is_missing_costs_no_pod_and_is_named() {
    let mut scene = added();
    without_class(&mut scene);
    waits_for(
        &mut scene,
        "a default StorageClass for WAL volumes",
        "the cluster's administrator, or the user by taking spec.storage.wal away",
    );
    assert_ne!(scene.stored.phase, Some(api::Phase::Failed), "it serves as before");
    unbound(&mut scene, 2);
    assert_eq!(scene.decide().failure, None, "no pod waits for it");
}

#[test]
fn a_missing_class_is_told_for_the_volumes_that_lack_it() {
    let mut scene = Scene::with_wal(3);
    without_class(&mut scene);
    scene.scaled(4);
    assert_eq!(scene.decide().failure, None);
    unbound(&mut scene, 3);
    let failure = scene.decide().failure.unwrap();
    let message = "there is no default StorageClass for WAL volumes: mark one as default";
    assert!(failure.message.starts_with(message), "{}", failure.message);
    scene.observed.storage_class = Known::Known(StorageClass::NoDefault);
    assert_eq!(scene.decide().failure.unwrap(), failure, "no data volume lacks it");
}

#[test]
fn a_pod_that_differs_in_more_is_replaced_without_a_volume_that_cannot_be_had() {
    let mut scene = added();
    without_class(&mut scene);
    scene.revision = scene.revision.replace("r1", "r2");
    for ordinal in [2, 1] {
        assert_eq!(scene.replaced(), Some(format!("demo-{ordinal}")));
        make(&mut scene, ordinal, None);
        scene.pod_mut(ordinal).revision = Some("r2".to_owned());
    }
    assert_eq!(scene.store().rule, "switch-over", "the primary gets it, too");
    scene.elect(2);
    scene.store();
    assert_eq!(scene.replaced(), Some("demo-0".to_owned()));
    make(&mut scene, 0, None);
    scene.pod_mut(0).revision = Some("r2".to_owned());
    assert_eq!((scene.decide().rule, scene.replaced()), ("await-wal-volume", None));
}

#[test]
fn an_only_instance_gets_an_image_while_a_volume_cannot_be_had() {
    let mut scene = Scene::ready(1);
    scene.add_wal_volume();
    without_class(&mut scene);
    assert_eq!(scene.replaced(), None);
    scene.revision = scene.revision.replace("r1", "r2");
    assert_eq!(scene.replaced(), Some("demo-0".to_owned()));
}

#[test]
fn a_supervised_primary_that_lacks_more_than_its_volume_waits_for_leave() {
    let mut scene = added();
    without_class(&mut scene);
    scene.edit(|spec| spec.primary.update_policy = api::spec::PrimaryUpdatePolicy::Supervised);
    assert_eq!(scene.decide().rule, "await-wal-volume");
    scene.revision = scene.revision.replace("r1", "r2");
    for ordinal in [2, 1] {
        make(&mut scene, ordinal, None);
        scene.pod_mut(ordinal).revision = Some("r2".to_owned());
    }
    assert_eq!(scene.decide().rule, "await-supervisor");
}

#[test]
fn a_pod_that_differs_in_more_waits_a_minute_for_its_volume() {
    let mut scene = added();
    scene.revision = scene.revision.replace("r1", "r2");
    assert_eq!(scene.decide().action.name(), "MakeWalClaim");
    unbound(&mut scene, 2);
    let decision = scene.store();
    assert_eq!((decision.rule, scene.replaced()), ("await-wal-volume", None));
    assert_eq!(decision.wake, scene.now + WAIT_LIMIT);
    let mut bound = scene.clone();
    claim(&mut bound, 2).bound = true;
    give(&mut bound, 2);
    assert_eq!(template(&bound), Some(WalVolumes::Of(2)), "one replacement for both");
    let mut given_up = scene.clone();
    claim(&mut given_up, 2).selected_node = None;
    assert_eq!(given_up.replaced(), Some("demo-2".to_owned()));
    scene.now = decision.wake;
    assert_eq!(scene.replaced(), Some("demo-2".to_owned()));
}

#[test]
fn no_primary_is_moved_before_its_volume_is_there() {
    let mut scene = added();
    for ordinal in [2, 1] {
        claim(&mut scene, ordinal);
        make(&mut scene, ordinal, Some(ordinal));
    }
    assert!(matches!(&scene.decide().action, Action::MakeWalClaim { name, .. } if name == "wal-demo-0"));
    unbound(&mut scene, 0);
    assert_eq!(scene.store().rule, "await-wal-volume");
    claim(&mut scene, 0).bound = true;
    assert_eq!(scene.store().rule, "switch-over");
    scene.elect(2);
    scene.store();
    give(&mut scene, 0);
    assert_eq!(template(&scene), Some(WalVolumes::Of(0)));
}

#[test]
fn a_primary_whose_volume_is_there_first_waits_for_the_standbys() {
    let mut scene = added();
    claim(&mut scene, 0);
    claim(&mut scene, 2);
    make(&mut scene, 2, Some(2));
    assert!(matches!(&scene.decide().action, Action::MakeWalClaim { name, .. } if name == "wal-demo-1"));
    unbound(&mut scene, 1);
    assert_eq!(scene.decide().rule, "await-wal-volume");
}

#[test]
fn settings_get_their_restart_while_a_volume_cannot_be_had() {
    let mut scene = Scene::pending_restart(false);
    scene.add_wal_volume();
    without_class(&mut scene);
    assert_eq!(scene.permitted(), Some("demo-2".to_owned()));
}

#[test]
fn the_preferred_instance_becomes_primary_while_a_volume_cannot_be_had() {
    let mut scene = added();
    without_class(&mut scene);
    scene.edit(|spec| spec.primary.prefer = Some("demo-1".to_owned()));
    assert_eq!(scene.store().rule, "switch-over");
    scene.elect(1);
    scene.store();
    assert_eq!(scene.decide().rule, "await-wal-volume", "and stays it");
}

#[test]
fn a_claim_of_another_database_is_left_alone() {
    let mut scene = added();
    unbound(&mut scene, 2).cluster_uid = Some("another".to_owned());
    assert_eq!((scene.decide().rule, scene.replaced()), ("await-wal-volume", None));
    scene.take_wal_volume_back();
    assert_eq!(removed(&scene), None);
}

#[test]
fn what_is_taken_back_leaves_no_claim_that_never_had_a_volume() {
    let mut scene = added();
    unbound(&mut scene, 2);
    claim(&mut scene, 1);
    scene.take_wal_volume_back();
    assert_eq!(removed(&scene), Some("wal-demo-2".to_owned()));
    let mut used = scene.clone();
    used.pod_mut(2).wal_claim = Some("wal-demo-2".to_owned());
    assert_eq!(removed(&used), None, "a pod uses it");
    let mut lost = scene.clone();
    claim(&mut lost, 2).had_volume = true;
    assert_eq!(removed(&lost), None, "something may be on it");
    let mut unknown = scene.clone();
    unknown.observed.pods = Known::Unknown;
    assert_eq!(removed(&unknown), None, "who uses it is not known");
    scene.claims_mut().retain(|claim| claim.name != "wal-demo-2");
    scene.store();
    assert_eq!(scene.decide().rule, "rest", "what has a volume stays, unused");
}

#[test]
fn a_claim_that_comes_to_nothing_is_made_anew_once_a_minute() {
    let asks_for_more = |scene: &mut Scene| claim(scene, 2).requested.0 *= 2;
    let given_up = |scene: &mut Scene| claim(scene, 2).selected_node = None;
    let elsewhere = |scene: &mut Scene| scene.pod_mut(2).node = Some("node-7".to_owned());
    let of_another_class = |scene: &mut Scene| name_class(scene, "fast");
    let changes: [&dyn Fn(&mut Scene); 4] = [&asks_for_more, &given_up, &elsewhere, &of_another_class];
    for (number, change) in changes.into_iter().enumerate() {
        let mut scene = added();
        unbound(&mut scene, 2);
        scene.now += WAIT_LIMIT;
        assert_eq!(removed(&scene), None, "it may come yet");
        scene.now -= WAIT_LIMIT;
        change(&mut scene);
        let decision = scene.store();
        assert_eq!(
            (decision.rule, decision.wake),
            ("await-wal-volume", scene.now + WAIT_LIMIT),
            "{number}"
        );
        scene.now = decision.wake;
        assert_eq!(removed(&scene), Some("wal-demo-2".to_owned()), "{number}");
        assert_eq!(scene.replaced(), None);
    }
}

#[test]
fn a_volume_that_may_not_be_reached_costs_no_pod() {
    let mut scene = added();
    claim(&mut scene, 2).class = Some("local".to_owned());
    assert_eq!(scene.store().rule, "replace-serving");
    scene.pod_mut(2).node = Some("node-7".to_owned());
    let what = "claim wal-demo-2 to go away, which has a volume that was made for node-2, while demo-2 is on node-7";
    let mut waits = scene.clone();
    waits.stored.memo.wal_volumes.clear();
    waits_for(&mut waits, what, "the user, by deleting the claim");
    waits.pod_mut(2).ready = false;
    assert_eq!(waits.decide().rule, "replace-idle", "it has nothing to lose");
    let mut network = waits.clone();
    network.pod_mut(2).ready = true;
    claim(&mut network, 2).class = Some("standard".to_owned());
    assert_eq!(
        network.decide().rule,
        "replace-serving",
        "its data was reached from both"
    );
}

#[test]
fn a_volume_of_another_class_is_not_used() {
    let mut scene = added();
    claim(&mut scene, 2).class = Some("slow".to_owned());
    name_class(&mut scene, "fast");
    waits_for(
        &mut scene,
        "claim wal-demo-2 to go away, which is of StorageClass slow, and not of fast",
        "the user",
    );
}

#[test]
fn only_a_claim_that_may_get_its_volume_is_waited_for() {
    let mut scene = added();
    scene.revision = scene.revision.replace("r1", "r2");
    unbound(&mut scene, 2);
    assert_eq!(scene.replaced(), None);
    for spoil in [
        |claim: &mut Claim| claim.cluster_uid = Some("another".to_owned()),
        |claim: &mut Claim| claim.terminating = true,
    ] {
        let mut scene = scene.clone();
        spoil(claim(&mut scene, 2));
        assert_eq!(scene.replaced(), Some("demo-2".to_owned()));
    }
}

#[test]
fn an_only_instance_that_differs_in_more_gets_its_claim_first() {
    let mut scene = Scene::ready(1);
    scene.add_wal_volume();
    scene.revision = scene.revision.replace("r1", "r2");
    assert_eq!(scene.decide().action.name(), "MakeWalClaim");
}

#[test]
fn there_is_a_limit_only_where_a_pod_is_replaced_then() {
    let wait = |scene: &Scene| {
        let proposal = scene.with_facts(await_volume).unwrap();
        let Action::Wait(waiting) = proposal.action else {
            panic!()
        };
        (waiting.what.into_owned(), waiting.deadline, proposal.wake)
    };
    let mut scene = added();
    assert!(wait(&scene).0.starts_with("claim wal-demo-2 to be made"));
    let mut unscheduled = scene.clone();
    unscheduled.pod_mut(2).node = None;
    assert!(wait(&unscheduled).0.starts_with("a node for pod demo-2"));
    let mut classless = scene.clone();
    without_class(&mut classless);
    assert_eq!(wait(&classless).2, Some(scene.now + STORAGE_CLASS_RECHECK));
    unbound(&mut scene, 2);
    let until = Some(scene.now + WAIT_LIMIT);
    let (_, deadline, wake) = wait(&scene);
    assert_eq!((deadline, wake), (None, until), "it lacks nothing else, and stays");
    let mut differs = scene.clone();
    differs.revision = scene.revision.replace("r1", "r2");
    let (_, deadline, wake) = wait(&differs);
    assert_eq!((deadline, wake), (until, until));
    scene.now += WAIT_LIMIT;
    assert_eq!(wait(&scene).2, None);
}
