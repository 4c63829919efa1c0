//! Volumes: grown before anything else is waited for, since a full one is what keeps a database from being healthy.

use super::action::Action;
use super::decision::Step;
use super::facts::Facts;
use super::members::exact_claim;
use super::observed::{Claim, StorageClass, Volume};
use super::rule::{Proposal, Rule};

/// See [`Rule::what`].
pub const GROW: Rule = Rule {
    name: "grow-volumes",
    family: "volumes",
    what: "A claim that asks for less than the spec is raised, whatever state the database is in.",
    propose: grow,
    passable: true,
};

/// See [`Rule::what`].
pub const AWAIT_EXPANDABLE: Rule = Rule {
    name: "await-expandable",
    family: "volumes",
    what: "A class that cannot expand its volumes keeps them as they are, and that is said.",
    propose: await_expandable,
    passable: false,
};

/// The first claim of this database that is to be larger, and its new size.
fn too_small<'a>(facts: &Facts<'a>) -> Option<(&'a Claim, &'a str)> {
    let storage = &facts.wanted.spec.storage;
    facts.claims().iter().find_map(|claim| {
        let (bytes, size) = match claim.volume {
            Volume::Data => (facts.wanted.data_bytes, storage.size.as_str()),
            Volume::Wal => (facts.wanted.wal_bytes?, storage.wal.as_ref()?.size.as_str()),
        };
        let ours = claim.cluster_uid.as_deref() == Some(facts.wanted.uid);
        let wanted = claim.ordinal < facts.expected().max(facts.wanted.replicas());
        (ours && wanted && claim.bound && !claim.terminating && claim.requested < bytes).then_some((claim, size))
    })
}

fn grow(facts: &Facts<'_>) -> Option<Proposal> {
    let (claim, size) = too_small(facts)?;
    if facts.observed.storage_class.get() == Some(&(StorageClass::Present { expandable: false })) {
        return None;
    }
    let because = format!(
        "claim {} asks for {} bytes, and the spec for {size}",
        claim.name, claim.requested
    );
    let action = Action::ResizeClaim {
        claim: exact_claim(claim),
        size: size.to_owned(),
    };
    Proposal::act(Step::Volumes, action, because)
}

fn await_expandable(facts: &Facts<'_>) -> Option<Proposal> {
    let (claim, size) = too_small(facts)?;
    let what = format!("a StorageClass that lets claim {} grow to {size}", claim.name);
    Proposal::wait(
        facts,
        Step::Volumes,
        what,
        "the cluster's administrator, or the user by the size of before",
    )
}
