//! Which phase may follow which. The diagram in the documentation is made from this table.

use api::Phase;

/// For each phase, those that may follow it (besides itself).
pub const TRANSITIONS: [(Phase, &[Phase]); 10] = [
    (
        Phase::Creating,
        &[Phase::Ready, Phase::Hibernated, Phase::Failed, Phase::Deleting],
    ),
    (
        Phase::Restoring,
        &[
            Phase::Creating,
            Phase::Ready,
            Phase::Updating,
            Phase::Hibernated,
            Phase::Failed,
            Phase::Deleting,
        ],
    ),
    (
        Phase::Ready,
        &[
            Phase::Restoring,
            Phase::Updating,
            Phase::SwitchingOver,
            Phase::FailingOver,
            Phase::Upgrading,
            Phase::Hibernated,
            Phase::Deleting,
            Phase::Failed,
        ],
    ),
    (
        Phase::Updating,
        &[
            Phase::Restoring,
            Phase::Ready,
            Phase::SwitchingOver,
            Phase::FailingOver,
            Phase::Hibernated,
            Phase::Deleting,
            Phase::Failed,
        ],
    ),
    (
        Phase::SwitchingOver,
        &[
            Phase::Restoring,
            Phase::Ready,
            Phase::Updating,
            Phase::FailingOver,
            Phase::Deleting,
            Phase::Failed,
        ],
    ),
    (
        Phase::FailingOver,
        &[
            Phase::Restoring,
            Phase::Ready,
            Phase::Updating,
            Phase::Deleting,
            Phase::Failed,
        ],
    ),
    (
        Phase::Upgrading,
        &[
            Phase::Restoring,
            Phase::Ready,
            Phase::Updating,
            Phase::FailingOver,
            Phase::Deleting,
            Phase::Failed,
        ],
    ),
    (
        Phase::Hibernated,
        &[
            Phase::Creating,
            Phase::Restoring,
            Phase::Ready,
            Phase::Updating,
            Phase::Deleting,
            Phase::Failed,
        ],
    ),
    (Phase::Deleting, &[]),
    (
        Phase::Failed,
        &[
            Phase::Creating,
            Phase::Restoring,
            Phase::Ready,
            Phase::Updating,
            Phase::FailingOver,
            Phase::Hibernated,
            Phase::Deleting,
        ],
    ),
];

/// Whether `to` may follow `from`. A resource without a phase may enter any: its status may have been wiped.
pub fn may_follow(from: Option<Phase>, to: Phase) -> bool {
    from.is_none_or(|from| {
        from == to
            || TRANSITIONS
                .iter()
                .any(|(phase, next)| *phase == from && next.contains(&to))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::model::Scene;
    use super::super::{Facts, Known, OwnedObject, OwnedState, stored_phase};
    use super::*;

    #[test]
    fn every_phase_stands_in_the_table_once() {
        assert_eq!(TRANSITIONS.map(|(phase, _)| phase), Phase::ALL);
    }

    #[test]
    fn every_phase_but_deleting_can_be_left_and_deleted() {
        for phase in Phase::ALL {
            assert!(may_follow(Some(phase), Phase::Deleting), "{phase}");
            let resting = may_follow(Some(phase), Phase::Ready);
            assert_eq!(resting, phase != Phase::Deleting, "{phase}");
        }
    }

    /// Situations that between them ask for every phase that is decided today.
    fn situations() -> Vec<Scene> {
        let changed = |change: fn(&mut Scene)| {
            let mut scene = Scene::ready(3);
            change(&mut scene);
            scene
        };
        let mut all = vec![Scene::new(3), Scene::ready(1), Scene::ready(3)];
        all.extend([
            changed(|scene| scene.deleting = true),
            changed(|scene| scene.spec.paused = true),
            changed(|scene| scene.invalid = Some("no".to_owned())),
            changed(|scene| scene.revision = "r2".to_owned()),
            changed(|scene| scene.pod_mut(0).ready = false),
            changed(|scene| scene.pod_mut(2).ready = false),
            changed(|scene| scene.observed.lease = Known::Unknown),
            changed(|scene| scene.observed.pods = Known::Unknown),
            changed(|scene| scene.observed.namespace_terminating = true),
            changed(|scene| scene.set_child(OwnedObject::CaSecret, OwnedState::Missing)),
            changed(|scene| scene.set_child(OwnedObject::RService, OwnedState::Missing)),
            changed(|scene| {
                scene.set_child(
                    OwnedObject::RService,
                    OwnedState::Foreign {
                        why: "owned".to_owned(),
                        left: None,
                    },
                )
            }),
            changed(|scene| scene.stored.system_identifier = None),
            changed(|scene| scene.spec.fenced = vec!["demo-2".to_owned()]),
            changed(|scene| scene.spec.hibernated = true),
            changed(|scene| {
                scene.spec.hibernated = true;
                scene.pods_mut().clear();
                scene.observed.stateful_set.as_mut().expect("a StatefulSet").replicas = 0;
            }),
        ]);
        all
    }

    #[test]
    fn no_decision_leaves_the_table_from_any_phase() {
        let mut reached = BTreeSet::new();
        for phase in Phase::ALL.map(Some).into_iter().chain([None]) {
            for mut scene in situations() {
                scene.stored.phase = phase;
                let decision = scene.decide();
                let from = scene
                    .with_wanted(|wanted| stored_phase(&Facts::new(wanted, &scene.observed, &scene.stored, scene.now)));
                assert!(
                    may_follow(from, decision.phase),
                    "{phase:?} -> {}: {decision:#?}",
                    decision.phase
                );
                reached.insert(decision.phase);
            }
        }
        for phase in [
            Phase::Creating,
            Phase::Ready,
            Phase::Updating,
            Phase::Hibernated,
            Phase::Deleting,
            Phase::Failed,
        ] {
            assert!(reached.contains(&phase), "no situation asks for {phase}");
        }
    }
}
