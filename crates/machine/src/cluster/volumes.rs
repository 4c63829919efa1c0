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

/// The claims of this database that are to be larger, each with its new size.
fn too_small<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a Claim, &'a str)> {
    let facts = *facts;
    let storage = &facts.wanted.spec.storage;
    facts.claims().iter().filter_map(move |claim| {
        let (bytes, size) = match claim.volume {
            Volume::Data => (facts.wanted.data_bytes, storage.size.as_str()),
            Volume::Wal => (facts.wanted.wal_bytes?, storage.wal.as_ref()?.size.as_str()),
        };
        let ours = facts.owns(claim);
        let wanted = claim.ordinal < facts.expected().max(facts.wanted.replicas());
        (ours && wanted && claim.bound && !claim.terminating && claim.requested < bytes).then_some((claim, size))
    })
}

/// Every claim asks for what the spec asks for.
pub(super) fn large_enough(facts: &Facts<'_>) -> bool {
    too_small(facts).next().is_none()
}

fn grow(facts: &Facts<'_>) -> Option<Proposal> {
    let fixed = Some(&StorageClass::Present { expandable: false });
    let (claim, size) = too_small(facts).find(|(claim, _)| facts.storage_class(claim.volume) != fixed)?;
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
    let (claim, size) = too_small(facts).next()?;
    let what = format!("a StorageClass that lets claim {} grow to {size}", claim.name);
    Proposal::wait(
        facts,
        Step::Volumes,
        what,
        "the cluster's administrator, or the user by the size of before",
    )
}

#[cfg(test)]
mod tests {
    use super::super::testing::Scene;
    use super::super::{ChildKind, ChildState, Known};
    use super::*;

    #[test]
    fn volumes_grow_whatever_else_is_wrong() {
        let mut scene = Scene::ready(3);
        scene.data_bytes *= 2;
        scene.pod_mut(0).ready = false;
        scene.set_child(
            ChildKind::StatefulSet,
            ChildState::Drifted {
                uid: "u".to_owned(),
                resource_version: "1".to_owned(),
                what: "spec.volumeClaimTemplates".to_owned(),
                immutable: true,
            },
        );
        for ordinal in 0..3 {
            let Action::ResizeClaim { claim, .. } = scene.decide().action else {
                panic!("{:?}", scene.decide())
            };
            assert_eq!(claim.name(), format!("data-demo-{ordinal}"));
            scene.claims_mut()[ordinal].requested *= 2;
        }
        assert_eq!(scene.decide().action.name(), "OrphanStatefulSet", "then the templates");
    }

    #[test]
    fn a_class_that_cannot_expand_is_named_and_nothing_else_is_held_up() {
        let mut scene = Scene::ready(3);
        scene.data_bytes *= 2;
        scene.observed.storage_class = Known::Known(StorageClass::Present { expandable: false });
        assert_eq!(
            (scene.decide().rule, scene.decide().phase),
            ("await-expandable", api::Phase::Updating)
        );
        scene.set_child(ChildKind::RwService, ChildState::Missing);
        assert_eq!(scene.decide().rule, "children");
    }

    /// Three instances with WAL volumes, all of which are to be larger.
    fn with_wal() -> Scene {
        let mut scene = Scene::with_wal(3);
        (scene.data_bytes, scene.wal_bytes) = (scene.data_bytes * 2, scene.wal_bytes * 4);
        scene
    }

    #[test]
    fn wal_volumes_grow_as_data_volumes_do() {
        let mut scene = with_wal();
        for number in 0..6 {
            let Action::ResizeClaim { claim, .. } = scene.decide().action else {
                panic!("{number}: {:?}", scene.decide())
            };
            let (data, wal) = (scene.data_bytes, scene.wal_bytes);
            let mut claims = scene.claims_mut().iter_mut();
            let found = claims.find(|found| found.name == claim.name()).unwrap();
            found.requested = if found.volume == Volume::Wal { wal } else { data };
        }
        scene.store();
        assert_eq!(scene.decide().rule, "rest");
    }

    #[test]
    fn a_wal_class_that_cannot_expand_keeps_no_data_volume_from_growing() {
        for (fixed, grows) in [(Volume::Wal, "data-demo-"), (Volume::Data, "wal-demo-")] {
            let mut scene = with_wal();
            let class = Known::Known(StorageClass::Present { expandable: false });
            match fixed {
                Volume::Wal => scene.observed.wal_storage_class = class,
                Volume::Data => scene.observed.storage_class = class,
            }
            for ordinal in 0..3 {
                let Action::ResizeClaim { claim, .. } = scene.decide().action else {
                    panic!("{:?}", scene.decide())
                };
                assert_eq!(claim.name(), format!("{grows}{ordinal}"));
                let mut claims = scene.claims_mut().iter_mut();
                claims.find(|found| found.name == claim.name()).unwrap().requested *= 4;
            }
            assert_eq!(scene.decide().rule, "await-expandable");
        }
    }

    #[test]
    fn nothing_shrinks() {
        let mut scene = Scene::ready(3);
        scene.data_bytes /= 2;
        assert_eq!(scene.decide().rule, "rest");
    }
}
