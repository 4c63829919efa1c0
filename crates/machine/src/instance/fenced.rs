//! `spec.fenced`: an instance that the user has fenced. [`super::shutdown`] stops its PostgreSQL, and a primary
//! releases the lease. The decision rule of this file keeps it stopped, so that the user can inspect the volume:
//! nothing is started, copied, rewound or removed. The member stands for no election and takes no lease, not even back
//! its own. It may still promise, which binds only itself. It still reports, so that the holder knows that it exists.

use super::facts::Context;
use super::{Draft, OnBackoff, Rule, RuleKind, Verdict, election, report};

pub(super) const STAY_FENCED: Rule = Rule {
    name: "stay-fenced",
    family: "fenced",
    what: "Keeps PostgreSQL stopped while `spec.fenced` names this instance; the member still promises and reports.",
    protocol: &[4],
    kind: RuleKind::Act,
    decide: stay,
    on_backoff: OnBackoff::Yield,
};

/// Decides before all decision rules that would start PostgreSQL, take the lease or change the data.
fn stay(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    if !context.fenced() {
        return None;
    }
    election::promise(context, draft)
        .or_else(|| report::send(context, draft))
        .or_else(|| Verdict::wait("spec.fenced names this instance: PostgreSQL stays stopped"))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use crate::protocol::{MemberState, Release};
    use crate::timing::BootTime;

    /// `observed`, with this instance fenced.
    fn fenced(mut observed: Observed) -> Observed {
        cluster(&mut observed).fenced = BTreeSet::from(["orders-0".to_owned()]);
        observed
    }

    fn decided(observed: &Observed, now: u64) -> Decision {
        decide(observed, &settled(), BootTime(now))
    }

    #[test]
    fn a_fenced_primary_stops_fast_and_releases_with_its_position_and_does_not_take_the_lease_back() {
        let mut observed = fenced(primary());
        assert_eq!(decided(&observed, 1_200).action, Action::Stop(Stop::Fast));
        observed.postgres = stopped();
        let Action::WriteLease { content, purpose, .. } = decided(&observed, 1_300).action else {
            panic!("{:?}", decided(&observed, 1_300))
        };
        assert_eq!((content.holder.as_ref(), purpose), (None, Purpose::Release));
        assert_eq!(
            content.release.as_ref().and_then(|release| release.position),
            Some(position())
        );
        (record(&mut observed).holder, record(&mut observed).release) = (None, content.release);
        record(&mut observed).members.clear();
        let waits = decided(&observed, 60_000);
        assert_eq!((waits.rule, &waits.action), ("stay-fenced", &Action::Wait));
        cluster(&mut observed).fenced.clear();
        assert_eq!(decided(&observed, 60_000).rule, "take", "no other member has taken it");
    }

    #[test]
    fn a_fenced_standby_stops_at_once_and_starts_when_it_is_no_longer_named() {
        let mut observed = fenced(standby());
        assert_eq!(decided(&observed, 1_200).action, Action::Stop(Stop::Fast));
        observed.postgres = stopped();
        let report = decided(&observed, 1_200);
        match &report.action {
            Action::Report { request, .. } => assert_eq!(request.report.state, MemberState::Stopped),
            other => panic!("{other:?}"),
        }
        observed.tasks.report.running = Some(Work::Report);
        assert_eq!(decided(&observed, 1_200).rule, "stay-fenced");
        cluster(&mut observed).fenced = BTreeSet::from(["orders-1".to_owned()]);
        assert_eq!(decided(&observed, 1_200).rule, "start-standby");
    }

    #[test]
    fn a_fenced_elected_member_leaves_the_lease_to_the_others() {
        let mut observed = fenced(elected());
        observed.tasks.lease.running = None;
        let context = Context::new(&observed, BootTime(1_200));
        let decided = (shutdown::SHUT_DOWN.decide)(&context, &mut Draft::new(&Memo::default())).expect("a release");
        let Action::WriteLease { content, purpose, .. } = decided.action else {
            panic!("{:?}", decided.action)
        };
        assert_eq!(purpose, Purpose::Release);
        assert_eq!(content.release.and_then(|release| release.position), Some(position()));
    }

    #[test]
    fn a_fenced_member_promises_when_asked_and_asks_no_other() {
        let mut observed = fenced(silenced());
        observed.postgres = stopped();
        record(&mut observed).holder = None;
        record(&mut observed).release = Some(Release {
            member: other_holder().incarnation.member,
            position: Some(position()),
            successor: None,
        });
        assert_eq!(decided(&observed, 20_000).action, Action::Wait);
        observed.asked_for = Some(crate::protocol::Epoch(2));
        assert!(matches!(decided(&observed, 20_000).action, Action::Promise { .. }));
    }

    #[test]
    fn data_of_a_fenced_member_is_not_copied_over() {
        assert_eq!(decided(&cloning(), 1_200).rule, "clone");
        let decision = decided(&fenced(cloning()), 1_200);
        assert!(
            matches!(decision.action, Action::Wait | Action::Report { .. }),
            "{decision:?}"
        );
    }

    #[test]
    fn it_is_not_ready_from_the_moment_that_it_is_named() {
        assert_eq!(report::readiness(&standby(), BootTime(1_200)), Ok(()));
        let why = report::readiness(&fenced(standby()), BootTime(1_200));
        assert_eq!(why, Err("spec.fenced names this instance".to_owned()));
    }
}
