//! Properties of every decision about the primary.

use api::Phase;
use api::spec::PrimaryUpdatePolicy;
use api::status::SwitchoverMemo;
use chrono::TimeDelta;
use machine::cluster::model::Scene;
use machine::cluster::{Facts, Pod};
use machine::protocol::{MemberReport, MemberState};

use crate::assertions::new_ones_stay;

/// True if a switchover was requested less than 50 s ago.
pub fn switching(facts: &Facts<'_>) -> bool {
    let memo = facts.status.memo.switchover.as_ref();
    let asked = memo.filter(|memo| facts.status.intent.primary.as_ref() == Some(&memo.target) && memo.ended.is_none());
    asked.is_some_and(|memo| facts.now < memo.since + TimeDelta::seconds(50))
}

/// A primary hands over only while it serves, to a member that streams from it, and while no other member is away
/// (unless it must be removed anyway).
pub fn assert_handover(scene: &Scene, facts: &Facts<'_>, memo: &SwitchoverMemo) {
    let primary = facts.primary().expect("only a primary that serves can hand over");
    let pod = scene.pods().iter().find(|pod| pod.name == memo.target).unwrap();
    assert!(pod.uid != primary.uid && facts.serves(pod) && pod.ordinal < facts.wanted.replicas());
    assert_eq!(facts.report(pod).unwrap().state, MemberState::Streaming);
    assert!(!scene.spec.fenced.contains(&memo.target) && !scene.spec.hibernated);
    let leaves = primary.ordinal >= facts.wanted.replicas();
    let (sheltered, target) = (!facts.is_cordoned(primary), !facts.is_cordoned(pod));
    assert!(
        leaves || target || !sheltered,
        "no primary moves to a node that is drained"
    );
    let open = scene
        .stored
        .memo
        .request
        .as_ref()
        .filter(|request| request.outcome.is_none());
    let requested = open.is_some_and(|request| {
        scene.request.as_ref() == Some(&request.request)
            && request.request.action
                == api::operation::Action::Switchover(api::operation::Switchover { to: pod.name.clone() })
    });
    let urgent = leaves || (!sheltered && target) || requested;
    assert!(
        urgent || facts.all_serve_except(Some(primary.ordinal)),
        "one disruption at a time"
    );
    let preferred = scene.spec.primary.prefer.as_ref() == Some(&pod.name);
    let template =
        !facts.current_revision(primary) && scene.spec.primary.update_policy == PrimaryUpdatePolicy::Automatic;
    assert!(urgent || template || preferred);
    assert!(
        urgent || preferred || new_ones_stay(scene, facts),
        "a new pod must stay up first"
    );
    assert_eq!(memo.ended, None);
    // A permit to restart that is still in use comes first.
    let Some(permit) = &scene.stored.intent.restart else {
        return;
    };
    let in_use = |pod: &Pod| {
        let named = pod.name == permit.pod && pod.uid == permit.pod_uid && !pod.terminating;
        let pending = |report: &MemberReport| report.settings != permit.settings || report.pending_restart;
        let done = facts.serves(pod) && !facts.report(pod).is_some_and(pending);
        named && permit.settings == facts.wanted.settings && !scene.spec.fenced.contains(&pod.name) && !done
    };
    assert!(!scene.pods().iter().any(in_use), "{} restarts", permit.pod);
}

/// A primary that is lost without the operator's action is a failover, at once.
pub fn assert_failover(scene: &Scene, facts: &Facts<'_>, phase: Phase) {
    let lost = facts.primary().is_none() && facts.bootstrapped() && facts.lease.is_some() && facts.expected() > 1;
    let known = facts.all_known() && !scene.spec.paused;
    if known && phase == Phase::FailingOver {
        assert!(lost);
    }
    let by_permit = scene.stored.intent.restart.is_some();
    let mut all = (0..facts.expected()).map(|ordinal| format!("demo-{ordinal}"));
    let put_down = scene.stored.intent.stop || scene.stored.memo.put_down.is_some();
    let by_user = scene.spec.hibernated || put_down || all.all(|pod| scene.spec.fenced.contains(&pod));
    if known && lost && !by_permit && !by_user && scene.stored.phase == Some(Phase::Ready) {
        assert_ne!(phase, Phase::Updating);
    }
}
