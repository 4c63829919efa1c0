//! Which image with PostgreSQL the instances of a database run.
//!
//! Who leaves it to the operator gets the operator's default once: it is on record (`status.memo.image`) and kept, so that an
//! operator with another default restarts nothing. It changes with `spec.postgres`, or by the user's order.

use api::ClusteredDatabaseStatus;
use api::names::ANNOTATION_TAKE_IMAGE;
use api::spec::PostgresSpec;
use api::status::ChosenImage;

use super::action::StatusChange;
use super::facts::Facts;

/// The image that instances are to run. `default` is the operator's for this major version, `order` the value of
/// [`ANNOTATION_TAKE_IMAGE`], and `running` what the pods there are were made with: what is kept where nothing is on record,
/// of a database that an older operator has made.
pub fn image_in_use<'a>(
    postgres: &'a PostgresSpec,
    status: &'a ClusteredDatabaseStatus,
    default: &'a str,
    order: Option<&str>,
    running: Option<&'a str>,
) -> &'a str {
    if let Some(image) = &postgres.image {
        return image;
    }
    let kept = match &status.memo.image {
        Some(chosen) => {
            let still = chosen.by_default && chosen.major_version == postgres.major_version;
            still.then_some(chosen.image.as_str())
        }
        None => running.filter(|_| status.system_identifier.is_some()),
    };
    // An order names what it takes: one that is left behind does not take what comes later.
    kept.filter(|_| order != Some(default)).unwrap_or(default)
}

/// What is to be on record of it and is not. An operator that did not know this says nothing of images.
pub(super) fn unrecorded(facts: &Facts<'_>) -> Option<StatusChange> {
    let postgres = &facts.wanted.spec.postgres;
    let (image, by_default) = (facts.wanted.image, postgres.image.is_none());
    let is_same = |known: &ChosenImage| {
        (known.image.as_str(), known.major_version, known.by_default) == (image, postgres.major_version, by_default)
    };
    if image.is_empty() || facts.status.memo.image.as_ref().is_some_and(is_same) {
        return None;
    }
    Some(StatusChange::RecordImage(ChosenImage {
        image: image.to_owned(),
        major_version: postgres.major_version,
        by_default,
    }))
}

/// That the operator's default is another one, and how it is taken.
pub(super) fn other_default(facts: &Facts<'_>) -> Option<String> {
    let (name, image, default) = (facts.wanted.name, facts.wanted.image, facts.wanted.default_image);
    let other = facts.wanted.spec.postgres.image.is_none() && facts.bootstrapped() && image != default;
    other.then(|| {
        format!(
            "instances run {image}, and the operator's default is {default}; to take it, which replaces the pods one at a time: \
             kubectl annotate cdb {name} --overwrite {ANNOTATION_TAKE_IMAGE}={default}"
        )
    })
}

#[cfg(test)]
mod tests {
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
}
