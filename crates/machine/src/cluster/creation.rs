//! Creation: the finalizer, then every object in the order of [`ChildKind`].

use super::action::{Action, Exact};
use super::decision::Step;
use super::facts::Facts;
use super::rule::{Proposal, Rule};

/// Nothing is made before the finalizer stands, so that nothing is left behind.
pub const FINALIZER: Rule = Rule {
    name: "finalizer",
    family: "creation",
    what: "A resource without our finalizer gets it before anything is made.",
    propose: finalizer,
    passable: false,
};

fn finalizer(facts: &Facts<'_>) -> Option<Proposal> {
    let wanted = facts.wanted;
    if wanted.finalizer {
        return None;
    }
    let action = Action::AddFinalizer(Exact::new(wanted.name, wanted.uid, wanted.resource_version));
    Proposal::act(Step::Objects, action, "the resource has no finalizer yet")
}
