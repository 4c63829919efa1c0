//! `spec.fenced`: instances whose PostgreSQL the user has stopped, to look at what is on their volumes. Their agents stop
//! it, and a primary hands over; here they are left alone, and it is said who they are and who can end it.

use super::decision::Step;
use super::facts::{Facts, list};
use super::observed::Pod;
use super::rule::{Proposal, Rule};

/// See [`Rule::what`].
pub const ALL_FENCED: Rule = Rule {
    name: "all-fenced",
    family: "fenced",
    what: "While spec.fenced names all instances, or the one that is to make the first database, nothing can go on, and only the user can end that.",
    propose: all_fenced,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_FENCED: Rule = Rule {
    name: "await-fenced",
    family: "fenced",
    what: "While spec.fenced names an instance and all others serve, that is said; it lasts as long as the user likes.",
    propose: await_fenced,
    passable: false,
};

/// The user has fenced the instance in this pod.
pub(super) fn is_fenced(facts: &Facts<'_>, pod: &str) -> bool {
    facts.wanted.spec.fenced.iter().any(|fenced| fenced == pod)
}

/// There may be something to look at in this pod, and the user wants to: it stays as it is.
pub(super) fn is_kept(facts: &Facts<'_>, pod: &Pod) -> bool {
    is_fenced(facts, &pod.name) && pod.node.is_some() && pod.image_error.is_none()
}

/// Some instance is fenced.
pub(super) fn any(facts: &Facts<'_>) -> bool {
    !facts.wanted.spec.fenced.is_empty()
}

/// All instances that there are to be are fenced: nobody can be primary.
pub(super) fn all(facts: &Facts<'_>) -> bool {
    any(facts) && (0..facts.expected()).all(|ordinal| is_fenced(facts, &format!("{}-{ordinal}", facts.wanted.name)))
}

/// Who is fenced, in a sentence.
pub(super) fn names(facts: &Facts<'_>) -> String {
    list(facts.wanted.spec.fenced.iter().map(String::as_str))
}

fn wait(facts: &Facts<'_>, what: String) -> Option<Proposal> {
    Proposal::wait(facts, Step::Fenced, what, "the user, by changing spec.fenced")
}

fn all_fenced(facts: &Facts<'_>) -> Option<Proposal> {
    if all(facts) {
        let what = format!("an instance that may be primary: {} are all fenced", names(facts));
        return wait(facts, what);
    }
    let grant = facts.status.intent.bootstrap.as_ref();
    let maker = grant.filter(|grant| !facts.bootstrapped() && is_fenced(facts, &grant.pod))?;
    wait(facts, format!("{} to make the first database: it is fenced", maker.pod))
}

fn await_fenced(facts: &Facts<'_>) -> Option<Proposal> {
    if !any(facts) {
        return None;
    }
    wait(facts, format!("{} to be fenced no more", names(facts)))
}

#[cfg(test)]
mod tests {
    use api::Phase;

    use super::super::testing::Scene;
    use super::super::{Action, ImageError};
    use super::*;
    use crate::protocol::MemberState;

    /// These instances are fenced, and their PostgreSQL has stopped.
    fn fenced(ordinals: &[u32]) -> Scene {
        let mut scene = Scene::ready(3);
        let names = ordinals.iter().map(|ordinal| format!("demo-{ordinal}"));
        scene.edit(|spec| spec.fenced = names.collect());
        for ordinal in ordinals {
            scene.pod_mut(*ordinal).ready = false;
            scene.report_mut(*ordinal).state = MemberState::Stopped;
        }
        scene
    }

    fn condition(scene: &Scene, kind: &str) -> (String, String, String) {
        let status = scene.status(&scene.decide());
        let found = status.conditions.into_iter().find(|found| found.type_ == kind).unwrap();
        (found.status, found.reason, found.message)
    }

    #[test]
    fn a_fenced_standby_is_said_at_once_and_for_as_long_as_it_lasts() {
        let scene = fenced(&[2]);
        let decision = scene.decide();
        assert_eq!(
            (decision.rule, decision.phase, decision.step),
            ("await-fenced", Phase::Updating, Some(Step::Fenced))
        );
        let Action::Wait(waiting) = decision.action else {
            panic!("{:?}", scene.decide())
        };
        assert_eq!(
            (waiting.what.as_ref(), waiting.deadline),
            ("demo-2 to be fenced no more", None)
        );
        let (status, reason, message) = condition(&scene, "Ready");
        assert_eq!((status.as_str(), reason.as_str()), ("False", "Fenced"));
        assert!(message.contains("demo-2"), "{message}");
        assert_eq!(condition(&scene, "Degraded").1, "Fenced");
        assert_eq!(condition(&scene, "Available").0, "True");
        let mut lifted = scene.clone();
        lifted.edit(|spec| spec.fenced.clear());
        assert_eq!(lifted.decide().rule, "await-standbys");
        let mut broken = scene;
        broken.pod_mut(1).ready = false;
        assert_eq!(broken.decide().because.to_string(), "demo-1 to stream from the primary");
    }

    #[test]
    fn one_that_serves_for_a_moment_longer_is_not_ready_any_more() {
        let mut scene = Scene::ready(3);
        scene.edit(|spec| spec.fenced = vec!["demo-1".to_owned()]);
        assert_eq!(scene.decide().phase, Phase::Updating);
    }

    #[test]
    fn the_others_replace_a_fenced_primary_and_when_all_are_fenced_nobody_can() {
        let scene = fenced(&[0]);
        let decision = scene.decide();
        assert_eq!((decision.rule, decision.phase), ("await-primary", Phase::FailingOver));
        let Action::Wait(waiting) = decision.action else {
            panic!("{:?}", scene.decide())
        };
        assert!(
            waiting
                .who_can_end_it
                .starts_with("the agents in 2 of the pods demo-1, demo-2")
        );
        let down = fenced(&[0, 1, 2]);
        let decision = down.decide();
        assert_eq!((decision.rule, decision.phase), ("all-fenced", Phase::Updating));
        assert_eq!(condition(&down, "Available").1, "Fenced");
        assert_eq!(condition(&down, "Degraded").1, "Fenced");
    }

    #[test]
    fn a_fenced_member_is_named_among_those_that_cannot_elect() {
        let mut scene = fenced(&[1]);
        scene.pods_mut().remove(0);
        let Action::Wait(waiting) = scene.decide().action else {
            panic!("{:?}", scene.decide())
        };
        let who = waiting.who_can_end_it;
        assert!(who.contains("but demo-1 is fenced"), "{who}");
        assert!(!who.contains("accept-loss"), "it is not lost: {who}");
    }

    #[test]
    fn the_pod_of_a_fenced_instance_is_not_replaced_unless_it_never_ran() {
        let mut scene = fenced(&[2]);
        scene.revision = "r2".to_owned();
        assert_eq!(scene.decide().rule, "await-fenced");
        let pod = scene.pod_mut(2);
        pod.image_error = Some(ImageError {
            reason: "ErrImagePull".to_owned(),
            image: "nothing".to_owned(),
            message: String::new(),
            since: pod.created,
        });
        assert_eq!(scene.decide().action.name(), "ReplacePod");
    }

    #[test]
    fn a_fenced_instance_is_neither_preferred_nor_permitted_to_restart() {
        let mut scene = Scene::ready(3);
        scene.edit(|spec| {
            spec.fenced = vec!["demo-1".to_owned()];
            spec.primary.prefer = Some("demo-1".to_owned());
        });
        assert_eq!(scene.decide().rule, "await-fenced", "though it still serves");
        let mut scene = Scene::ready(3);
        scene.report_mut(2).pending_restart = true;
        scene.store();
        assert!(scene.stored.intent.restart.is_some());
        scene.edit(|spec| spec.fenced = vec!["demo-2".to_owned()]);
        scene.pod_mut(2).ready = false;
        scene.store();
        assert_eq!(scene.stored.intent.restart, None);
    }

    #[test]
    fn the_first_database_is_made_by_one_that_is_not_fenced() {
        let mut scene = Scene::ready(3);
        scene.stored = Default::default();
        let lease = scene.lease_mut().unwrap();
        (lease.holder, lease.system_id, lease.epoch.0) = (None, None, 0);
        lease.members.clear();
        scene.edit(|spec| spec.fenced = vec!["demo-0".to_owned()]);
        for _ in 0..4 {
            scene.store();
        }
        let granted = scene.stored.intent.bootstrap.clone().map(|grant| grant.pod);
        assert_eq!(granted.as_deref(), Some("demo-1"));
        scene.edit(|spec| spec.fenced = vec!["demo-1".to_owned()]);
        let decision = scene.decide();
        assert_eq!((decision.rule, decision.phase), ("all-fenced", Phase::Creating));
    }
}
