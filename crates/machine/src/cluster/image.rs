//! Which image with PostgreSQL the instances of a database run.
//!
//! Who leaves it to the operator gets the operator's default once: it is on record (`status.memo.image`) and kept, so that an
//! operator with another default restarts nothing. It changes with `spec.postgres`, or by an operation (`takeImage`).

use api::ClusteredDatabaseStatus;
use api::spec::PostgresSpec;
use api::status::{ChosenImage, RequestOutcome};

use super::action::StatusChange;
use super::facts::Facts;
use super::rollout;
use super::rule::Progress;

/// The image that instances are to run. `default` is the operator's for this major version, and `running` what the pods there
/// are were made with: what is kept where nothing is on record, of a database that an older operator has made.
pub fn image_in_use<'a>(
    postgres: &'a PostgresSpec,
    status: &'a ClusteredDatabaseStatus,
    default: &'a str,
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
    kept.unwrap_or(default)
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
    Some(record(facts, image, by_default))
}

fn record(facts: &Facts<'_>, image: &str, by_default: bool) -> StatusChange {
    StatusChange::RecordImage(ChosenImage {
        image: image.to_owned(),
        major_version: facts.wanted.spec.postgres.major_version,
        by_default,
    })
}

/// What becomes of an operation that asks for the default image `image`. It is done when all instances run it.
pub(super) fn take(facts: &Facts<'_>, image: &str) -> Option<Progress> {
    let (postgres, default) = (&facts.wanted.spec.postgres, facts.wanted.default_image);
    if let Some(named) = &postgres.image {
        let why = format!("spec.postgres.image names {named}: change or remove that instead");
        return Some(Progress::Ends(RequestOutcome::GivenUp, why));
    }
    if facts.wanted.image == image {
        let instances = rollout::finished(facts)?;
        return Some(Progress::Ends(RequestOutcome::Done, format!("{instances} run {image}")));
    }
    if default != image {
        let major = postgres.major_version;
        let why =
            format!("the operator's default image for PostgreSQL {major} is {default}, and not {image}: ask for that");
        return Some(Progress::Ends(RequestOutcome::GivenUp, why));
    }
    facts.bootstrapped().then(|| {
        let why = format!("{image} is taken instead of {}", facts.wanted.image);
        Progress::Changes(record(facts, image, true), why)
    })
}

/// That the operator's default is another one, and how it is taken.
pub(super) fn other_default(facts: &Facts<'_>) -> Option<String> {
    let (name, image, default) = (facts.wanted.name, facts.wanted.image, facts.wanted.default_image);
    let other = facts.wanted.spec.postgres.image.is_none() && facts.bootstrapped() && image != default;
    other.then(|| {
        format!(
            "instances run {image}, and the operator's default is {default}; to take it, which replaces the pods one at a time: \
             kubectl cdb take-image {name} {default}"
        )
    })
}

#[cfg(test)]
mod tests;
