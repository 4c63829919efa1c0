//! What holds of every decision about who is primary.

use api::Phase;
use api::status::SwitchoverMemo;
use chrono::TimeDelta;
use machine::cluster::Facts;
use machine::cluster::testing::Scene;
use machine::protocol::MemberState;

/// A switchover was asked for less than 50 s ago.
pub fn switching(facts: &Facts<'_>) -> bool {
    let memo = facts.status.memo.switchover.as_ref();
    let asked = memo.filter(|memo| facts.status.intent.primary.as_ref() == Some(&memo.target) && memo.ended.is_none());
    asked.is_some_and(|memo| facts.now < memo.since + TimeDelta::seconds(50))
}

/// A primary hands over only while it serves, to one that streams from it, and while nobody else is away (unless it has
/// to go anyway).
pub fn assert_handover(scene: &Scene, facts: &Facts<'_>, memo: &SwitchoverMemo) {
    let primary = facts.primary().expect("only a primary that serves can hand over");
    let pod = scene.pods().iter().find(|pod| pod.name == memo.target).unwrap();
    assert!(pod.uid != primary.uid && facts.serves(pod) && pod.ordinal < facts.wanted.replicas());
    assert_eq!(facts.report(pod).unwrap().state, MemberState::Streaming);
    let leaves = primary.ordinal >= facts.wanted.replicas();
    assert!(
        leaves || facts.all_serve_except(Some(primary.ordinal)),
        "one disruption at a time"
    );
    let preferred = scene.spec.primary.prefer.as_ref() == Some(&pod.name);
    assert!(leaves || !facts.current_revision(primary) || preferred);
    assert_eq!((scene.stored.intent.restart.as_ref(), memo.ended), (None, None));
}

/// A primary that is lost without the operator's doing is a failover, at once.
pub fn assert_failover(scene: &Scene, facts: &Facts<'_>, phase: Phase) {
    let lost = facts.primary().is_none() && facts.bootstrapped() && facts.lease.is_some() && facts.expected() > 1;
    let known = facts.all_known() && !scene.spec.paused;
    if known && phase == Phase::FailingOver {
        assert!(lost);
    }
    let by_permit = scene.stored.intent.restart.is_some();
    if known && lost && !by_permit && scene.stored.phase == Some(Phase::Ready) {
        assert_ne!(phase, Phase::Updating);
    }
}
