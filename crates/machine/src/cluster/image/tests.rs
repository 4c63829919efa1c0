use super::super::Action;
use super::super::testing::Scene;
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
fn a_default_is_kept_until_the_spec_or_an_order_changes_it() {
    let (mut postgres, mut status) = (PostgresSpec::default(), ClusteredDatabaseStatus::default());
    let with = |postgres: &PostgresSpec, status: &ClusteredDatabaseStatus, order, running| {
        image_in_use(postgres, status, "b", order, running).to_owned()
    };
    assert_eq!(with(&postgres, &status, None, Some("a")), "b", "nothing was made yet");
    status.system_identifier = Some("7400".to_owned());
    assert_eq!(
        with(&postgres, &status, None, Some("a")),
        "a",
        "an older operator made it"
    );
    assert_eq!(with(&postgres, &status, None, None), "b");
    status.memo.image = chosen("c", true);
    assert_eq!(with(&postgres, &status, None, Some("a")), "c");
    assert_eq!(
        with(&postgres, &status, Some("b"), Some("a")),
        "b",
        "by the user's order"
    );
    assert_eq!(
        with(&postgres, &status, Some("d"), Some("a")),
        "c",
        "an order of another time"
    );
    postgres.major_version = 18;
    assert_eq!(with(&postgres, &status, None, Some("a")), "b");
    postgres.image = Some("mine".to_owned());
    assert_eq!(with(&postgres, &status, Some("b"), Some("a")), "mine");
    postgres = PostgresSpec::default();
    status.memo.image = chosen("mine", false);
    assert_eq!(
        with(&postgres, &status, None, Some("mine")),
        "b",
        "the spec names it no more"
    );
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
    let order = "kubectl annotate cdb demo --overwrite clustereddatabase.io/take-image=postgres:17.7";
    assert!(told(&scene).unwrap().ends_with(order), "{:?}", told(&scene));
    scene.take_image = Some("postgres:17.7".to_owned());
    assert_eq!(scene.store().rule, "record");
    assert_eq!(scene.stored.memo.image, chosen("postgres:17.7", true));
    assert_eq!(told(&scene), None);
}
