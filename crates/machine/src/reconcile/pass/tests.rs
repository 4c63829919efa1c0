use api::operation::{Actions, ClusterReference, ClusteredDatabaseOperationSpec, OperationStatus};

use super::*;
use crate::cluster::model::Scene;
use crate::cluster::{Action, Cluster, Known, Target};
use crate::operation::{self, Operation};

fn now() -> DateTime<Utc> {
    "2027-01-01T00:00:00Z".parse().unwrap()
}

fn fails(pass: &mut Pass<u8>, kind: FaultKind, known: &str) {
    pass.failed(1, Some(known.to_owned()), kind, "no".to_owned(), now());
}

fn begin(pass: &mut Pass<u8>, version: &str) {
    pass.begin("a", 1, |_| Some(version.to_owned()));
}

#[test]
fn failures_are_counted_until_a_success_or_another_spec_or_resource() {
    let mut pass = Pass::default();
    begin(&mut pass, "7");
    fails(&mut pass, FaultKind::Transient, "7");
    fails(&mut pass, FaultKind::Quota, "7");
    assert_eq!(
        (pass.faults()[&1].attempts, pass.faults()[&1].kind),
        (2, FaultKind::Quota)
    );
    pass.succeeded(&1);
    assert!(pass.faults().is_empty());
    fails(&mut pass, FaultKind::Transient, "7");
    assert_eq!(pass.begin("a", 2, |_| None), Changed::Spec);
    assert!(pass.faults().is_empty(), "a changed spec is tried at once");
    fails(&mut pass, FaultKind::Transient, "7");
    assert_eq!(pass.begin("b", 2, |_| None), Changed::Resource);
    assert!(pass.faults().is_empty());
    assert_eq!(pass.begin("b", 2, |_| None), Changed::Nothing);
}

#[test]
fn after_a_conflict_it_rests_longer_each_time_until_another_version_is_known() {
    let mut pass = Pass::default();
    let rest = |pass: &Pass<u8>| pass.rests(&1, now()).map(|again| (again - now()).num_milliseconds());
    for expected in [100, 200, 400] {
        begin(&mut pass, "7");
        fails(&mut pass, FaultKind::Conflict, "7");
        assert_eq!(rest(&pass), Some(expected));
    }
    begin(&mut pass, "8");
    assert_eq!(rest(&pass), None);
    fails(&mut pass, FaultKind::Conflict, "8");
    assert_eq!(rest(&pass), Some(100), "counted anew");
    // Something else is wrong: another version mends nothing.
    fails(&mut pass, FaultKind::Forbidden, "8");
    begin(&mut pass, "9");
    assert_eq!(pass.faults()[&1].kind, FaultKind::Forbidden);
    assert_eq!(rest(&pass), None, "only a conflict is sure to be met again");
}

/// What follows in this scene, with the status that belongs to its decision.
fn next(pass: &mut Pass<Target>, scene: &Scene) -> Next {
    let decision = scene.decide();
    let status = scene.status(&decision);
    pass.next::<Cluster>(&scene.observed, &scene.stored, &status, &decision, scene.now)
}

#[test]
fn a_promise_is_written_before_the_action_and_what_takes_something_away_is_confirmed() {
    let (mut scene, mut pass) = (Scene::ready(3), Pass::default());
    assert!(matches!(next(&mut pass, &scene), Next::Sleep(_)));
    scene.revision = "r2".to_owned();
    assert!(scene.replaced().is_some());
    assert_eq!(next(&mut pass, &scene), Next::WriteStatus, "the phase is another one");
    scene.store();
    assert_eq!(next(&mut pass, &scene), Next::Confirm);
    let mut scene = Scene::ready(3);
    scene.pod_mut(1).role = None;
    assert!(matches!(scene.decide().action, Action::LabelPod { .. }));
    assert_eq!(next(&mut pass, &scene), Next::Perform);
}

#[test]
fn what_relies_on_a_status_that_met_a_conflict_waits_for_it() {
    let (mut scene, mut pass) = (Scene::ready(3), Pass::default());
    scene.revision = "r2".to_owned();
    let conflict = FaultKind::Conflict;
    pass.failed(
        Target::Status,
        Some("7".to_owned()),
        conflict,
        "changed".to_owned(),
        scene.now,
    );
    let again = scene.now + TimeDelta::milliseconds(100);
    assert_eq!(next(&mut pass, &scene), Next::Sleep(again));
    scene.now = again;
    assert_eq!(next(&mut pass, &scene), Next::WriteStatus);
}

#[test]
fn what_only_people_look_at_is_written_when_it_has_settled() {
    let (mut scene, mut pass) = (Scene::ready(3), Pass::default());
    scene
        .stored
        .members
        .values_mut()
        .for_each(|member| member.ready = false);
    let second = TimeDelta::seconds(1);
    for _ in 0..3 {
        assert_eq!(next(&mut pass, &scene), Next::Sleep(scene.now + second));
        scene.now += second;
    }
    assert_eq!(next(&mut pass, &scene), Next::WriteStatus);
    pass.status_written(&Target::Status);
    assert_eq!(
        next(&mut pass, &scene),
        Next::Sleep(scene.now + second),
        "it counts anew"
    );
}

#[test]
fn a_status_that_never_comes_to_rest_does_not_hold_up_the_action() {
    let (mut scene, mut pass) = (Scene::ready(3), Pass::default());
    scene.revision = "r2".to_owned();
    for _ in 0..MAX_STATUS_WRITES {
        assert_eq!(next(&mut pass, &scene), Next::WriteStatus);
        pass.status_written(&Target::Status);
    }
    assert_eq!(next(&mut pass, &scene), Next::Confirm);
}

#[test]
fn what_failed_is_not_tried_again_before_its_time_also_where_no_rule_says_so() {
    let (mut pass, stored) = (Pass::default(), OperationStatus::default());
    let spec = ClusteredDatabaseOperationSpec {
        cluster_ref: ClusterReference {
            name: "demo".to_owned(),
        },
        actions: Actions::default(),
        cancel: false,
    };
    let mut follows = |now: DateTime<Utc>| {
        let wanted = operation::Wanted {
            uid: "u",
            generation: 1,
            created: now,
            spec: &spec,
        };
        let observed = operation::Observed {
            cluster: Known::Unknown,
            before: Known::Unknown,
        };
        let decision = Operation::decide(&wanted, &observed, &stored, now);
        let status = Operation::status(&wanted, &observed, &stored, &decision, &(), now);
        let next = pass.next::<Operation>(&observed, &stored, &status, &decision, now);
        if next == Next::WriteStatus {
            pass.failed(
                operation::Target::Status,
                None,
                FaultKind::Forbidden,
                "no".to_owned(),
                now,
            );
        }
        next
    };
    let mut at = now();
    for pause in [1, 2, 4] {
        assert_eq!(follows(at), Next::WriteStatus);
        let again = at + TimeDelta::seconds(pause);
        assert_eq!(follows(at + AFTER_FAILURE), Next::Sleep(again));
        at = again;
    }
}
