use super::super::Action;
use api::operation::{Action as Asked, TakeImage};

use super::super::model::Scene;
use super::*;

fn chosen(image: &str, by_default: bool) -> Option<ChosenImage> {
    Some(ChosenImage {
        image: image.to_owned(),
        major_version: 17,
        by_default,
    })
}

#[test]
fn another_default_is_told_of_a_database_that_was_made_with_one() {
    let told = |change: fn(&mut Scene)| {
        let mut scene = Scene::ready(3);
        scene.store();
        scene.default_image = "postgres:17.7".to_owned();
        change(&mut scene);
        scene.with_facts(super::other_default).is_some()
    };
    assert!(told(|_| {}));
    assert!(!told(|scene| scene.default_image = Scene::ready(3).default_image));
    assert!(!told(|scene| scene.spec.postgres.image = Some("mine".to_owned())));
    assert!(!told(|scene| {
        scene.stored.system_identifier = None;
        scene.lease_mut().unwrap().system_id = None;
    }));
}

#[test]
fn a_default_is_kept_until_the_spec_or_the_record_changes_it() {
    let (mut postgres, mut status) = (PostgresSpec::default(), ClusteredDatabaseStatus::default());
    let with = |postgres: &PostgresSpec, status: &ClusteredDatabaseStatus, running| {
        image_in_use(postgres, status, "b", running).to_owned()
    };
    assert_eq!(with(&postgres, &status, Some("a")), "b", "nothing was made yet");
    status.system_identifier = Some("7400".to_owned());
    assert_eq!(with(&postgres, &status, Some("a")), "a", "an older operator made it");
    assert_eq!(with(&postgres, &status, None), "b");
    status.memo.image = chosen("c", true);
    assert_eq!(with(&postgres, &status, Some("a")), "c");
    postgres.major_version = 18;
    assert_eq!(with(&postgres, &status, Some("a")), "b");
    postgres.image = Some("mine".to_owned());
    assert_eq!(with(&postgres, &status, Some("a")), "mine");
    postgres = PostgresSpec::default();
    status.memo.image = chosen("mine", false);
    assert_eq!(with(&postgres, &status, Some("mine")), "b", "the spec names it no more");
}

#[test]
fn what_instances_run_is_on_record_before_anything_is_changed_for_it() {
    let mut scene = Scene::ready(3);
    let known = |scene: &Scene| scene.stored.memo.image.clone();
    assert_eq!(known(&scene), chosen("postgres:17", true));
    scene.stored.memo.image = None;
    assert_eq!(
        scene.decide().rule,
        "record",
        "of a database that an older operator has made"
    );
    scene.store();
    assert_eq!(
        (known(&scene), scene.decide().rule),
        (chosen("postgres:17", true), "rest")
    );
    scene.edit(|spec| spec.postgres.image = Some("mine".to_owned()));
    scene.revision = "r2".to_owned();
    let Action::WriteStatus(changes) = scene.decide().action else {
        panic!("{:?}", scene.decide())
    };
    assert_eq!(changes, [StatusChange::RecordImage(chosen("mine", false).unwrap())]);
    scene.store();
    assert_eq!(scene.replaced(), Some("demo-2".to_owned()));
}

#[test]
fn another_default_is_told_with_the_order_that_takes_it() {
    let mut scene = Scene::ready(3);
    let told = |scene: &Scene| {
        let status = scene.status(&scene.decide());
        let found = status
            .conditions
            .into_iter()
            .find(|found| found.type_ == "OtherDefaultImage");
        found.map(|found| found.message)
    };
    assert_eq!(told(&scene), None);
    scene.default_image = "postgres:17.7".to_owned();
    assert_eq!(scene.decide().rule, "rest", "nothing is done about it");
    let order = "kubectl cdb take-image demo postgres:17.7";
    assert!(told(&scene).unwrap().ends_with(order), "{:?}", told(&scene));
    scene.stored.memo.image = chosen("postgres:17.7", true);
    assert_eq!(told(&scene), None);
}

/// A database at rest under an operator with another default image, which an operation asks for.
fn asked(image: &str) -> Scene {
    let mut scene = Scene::ready(3);
    scene.default_image = "postgres:17.7".to_owned();
    scene.ask(Asked::TakeImage(TakeImage {
        image: image.to_owned(),
    }));
    scene.store();
    scene
}

fn outcome(scene: &Scene) -> (Option<RequestOutcome>, String) {
    let noted = scene.stored.memo.request.clone().unwrap();
    (noted.outcome, noted.message.unwrap_or_default())
}

#[test]
fn an_operation_takes_the_default_and_is_done_when_all_instances_run_it() {
    let mut scene = asked("postgres:17.7");
    assert_eq!(outcome(&scene).0, None, "it is noted first");
    scene.store();
    assert_eq!(scene.stored.memo.image, chosen("postgres:17.7", true));
    scene.revision = "r2".to_owned();
    for ordinal in [2, 1] {
        assert_eq!(scene.replaced(), Some(format!("demo-{ordinal}")));
        scene.pod_mut(ordinal).revision = Some("r2".to_owned());
        scene.store();
        assert_eq!(outcome(&scene).0, None);
    }
    scene.pod_mut(0).revision = Some("r2".to_owned());
    scene.pod_mut(1).ready = false;
    scene.store();
    assert_eq!(outcome(&scene).0, None, "one does not serve");
    scene.pod_mut(1).ready = true;
    scene.stored.intent.primary = None;
    scene.stored.memo.switchover = None;
    scene.store();
    let done = "all instances run postgres:17.7".to_owned();
    assert_eq!(outcome(&scene), (Some(RequestOutcome::Done), done));
    assert_eq!(scene.decide().rule, "rest");
}

#[test]
fn an_operation_for_the_image_that_runs_is_done_at_once() {
    let mut scene = asked("postgres:17");
    scene.store();
    let done = "all instances run postgres:17".to_owned();
    assert_eq!(outcome(&scene), (Some(RequestOutcome::Done), done));
}

#[test]
fn another_image_than_the_default_is_refused_and_so_is_any_where_the_spec_names_one() {
    let refused = |scene: &mut Scene, why: &str| {
        scene.store();
        let (outcome, message) = outcome(scene);
        assert_eq!(outcome, Some(RequestOutcome::GivenUp));
        assert!(message.contains(why), "{message}");
        assert_eq!(
            scene.stored.memo.image.as_ref().map(|known| &*known.image),
            Some(scene.with_wanted(|wanted| wanted.image.to_owned()).as_str())
        );
    };
    refused(&mut asked("other:1"), "is postgres:17.7, and not other:1: ask for that");
    let mut named = asked("postgres:17.7");
    named.edit(|spec| spec.postgres.image = Some("mine".to_owned()));
    named.store();
    refused(&mut named, "spec.postgres.image names mine: change or remove that");
}

#[test]
fn supervised_updates_end_the_operation_before_the_primary_and_a_fenced_instance_is_left_out() {
    let mut scene = asked("postgres:17.7");
    scene.store();
    scene.revision = "r2".to_owned();
    scene.edit(|spec| {
        spec.primary.update_policy = api::spec::PrimaryUpdatePolicy::Supervised;
        spec.fenced = vec!["demo-2".to_owned()];
    });
    scene.store();
    assert_eq!(outcome(&scene).0, None);
    scene.pod_mut(1).revision = Some("r2".to_owned());
    scene.store();
    let (outcome, message) = outcome(&scene);
    assert_eq!(outcome, Some(RequestOutcome::Done));
    let others =
        "all instances but the primary demo-0, since spec.primary.updatePolicy is Supervised, demo-2, which is fenced,";
    assert!(message.starts_with(others), "{message}");
}

#[test]
fn one_that_is_taken_back_leaves_what_is_on_record() {
    let mut scene = asked("postgres:17.7");
    scene.store();
    scene.request = None;
    scene.store();
    assert_eq!(
        (scene.stored.memo.request.clone(), scene.stored.memo.image.clone()),
        (None, chosen("postgres:17.7", true))
    );
}
