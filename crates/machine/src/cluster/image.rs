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
mod tests;
