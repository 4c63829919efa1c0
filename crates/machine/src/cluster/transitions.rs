//! Which phase may follow which. The diagram in the documentation is made from this table.

use api::Phase;

/// For each phase, those that may follow it (besides itself).
pub const TRANSITIONS: [(Phase, &[Phase]); 10] = [
    (Phase::Creating, &[Phase::Ready, Phase::Failed, Phase::Deleting]),
    (
        Phase::Restoring,
        &[Phase::Creating, Phase::Ready, Phase::Failed, Phase::Deleting],
    ),
    (
        Phase::Ready,
        &[
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
            Phase::Ready,
            Phase::Updating,
            Phase::FailingOver,
            Phase::Deleting,
            Phase::Failed,
        ],
    ),
    (
        Phase::FailingOver,
        &[Phase::Ready, Phase::Updating, Phase::Deleting, Phase::Failed],
    ),
    (
        Phase::Upgrading,
        &[
            Phase::Ready,
            Phase::Updating,
            Phase::FailingOver,
            Phase::Deleting,
            Phase::Failed,
        ],
    ),
    (
        Phase::Hibernated,
        &[Phase::Ready, Phase::Updating, Phase::Deleting, Phase::Failed],
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
}
