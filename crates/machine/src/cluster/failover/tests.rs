use super::super::model::Scene;
use super::super::{ImageError, OwnedObject, OwnedState, StatusWrite};
use super::*;
use crate::protocol::{Lsn, Release, Timeline};

/// The primary's pod went away without a word; where the members stood is on record.
fn lost() -> Scene {
    let mut scene = Scene::ready(3);
    for ordinal in 0..3_u64 {
        let position = Position {
            timeline: Timeline(2),
            lsn: Lsn(0x300_0148 + ordinal),
        };
        scene
            .lease_mut()
            .unwrap()
            .positions
            .insert(format!("demo-{ordinal}"), position);
    }
    scene.lease_mut().unwrap().positions.remove("demo-2");
    scene.pods_mut().remove(0);
    scene
}

#[test]
fn a_lost_primary_is_a_failover_and_names_positions_and_electors() {
    let mut scene = lost();
    let decision = scene.decide();
    assert_eq!(
        (decision.rule, decision.phase, decision.step),
        ("await-primary", Phase::FailingOver, Some(Step::Primary))
    );
    let (what, who) = scene.waiting();
    assert_eq!(what, "a primary to serve: demo-0 holds the Lease, and its pod is gone");
    let known = "; last known ends of WAL: \
                     demo-0 0/3000148 on timeline 2, demo-1 0/3000149 on timeline 2, demo-2 unknown";
    assert_eq!(
        who,
        format!("the agents in 2 of the pods demo-1, demo-2, by an election{known}")
    );
    scene.pod_mut(2).node = None;
    assert_eq!(
        scene.waiting().1,
        format!(
            "the agents in 2 of the pods demo-1, demo-2, by an election; but demo-2 has no node. If they are lost for \
                 good and the last primary's node is off, the commits that only they have can be given up: kubectl \
                 cdb accept-loss demo 1{known}"
        )
    );
    scene.stored.intent.accept_loss = Some(0);
    assert!(
        scene.waiting().1.contains("kubectl cdb accept-loss demo 1"),
        "of another epoch"
    );
    scene.stored.intent.accept_loss = Some(1);
    assert!(scene.waiting().1.contains("is accepted: the others go on without them"));
    scene.elect(1);
    assert_ne!(scene.decide().phase, Phase::FailingOver, "a holder serves");
}

#[test]
fn the_deadline_counts_from_the_beginning_and_does_not_move() {
    let mut scene = lost();
    scene.store();
    let began = scene.now;
    let deadline = began + TimeDelta::seconds(10) + ELECTION;
    assert_eq!(scene.stored.waiting.clone().unwrap().deadline, Some(deadline));
    let decision = scene.decide();
    assert_eq!((decision.wake, scene.due(&decision)), (deadline, StatusWrite::None));
    scene.now += TimeDelta::seconds(20);
    scene.lease_mut().unwrap().holder = None;
    scene.store();
    let stored = scene.stored.waiting.clone().unwrap();
    assert_eq!((stored.since, stored.deadline), (began, Some(deadline)));
    scene.now = deadline;
    scene.store();
    let progressing = scene
        .stored
        .conditions
        .iter()
        .find(|found| found.type_ == "Progressing")
        .unwrap();
    assert_eq!(progressing.reason, "DeadlineExceeded");
    let decision = scene.decide();
    assert!(
        decision.wake > scene.now && scene.due(&decision) == StatusWrite::None,
        "{decision:?}"
    );
}

#[test]
fn a_release_tells_the_position_and_async_goes_by_the_clock() {
    let mut scene = lost();
    let lease = scene.lease_mut().unwrap();
    let member = lease.holder.take().unwrap().incarnation.member;
    let position = Some(Position {
        timeline: Timeline(2),
        lsn: Lsn(0x400_0000),
    });
    lease.release = Some(Release {
        member,
        position,
        successor: None,
    });
    lease.rule = Default::default();
    let (what, who) = scene.waiting();
    assert_eq!(what, "a primary to serve: demo-0 has released the Lease");
    let expected = "an agent with the data, once the Lease is released or has run out; last known ends of WAL: \
                        demo-0 0/4000000 on timeline 2, ";
    assert!(who.starts_with(expected), "{who}");
    scene
        .lease_mut()
        .unwrap()
        .release
        .as_mut()
        .unwrap()
        .position
        .as_mut()
        .unwrap()
        .lsn
        .0 += ASYNC_LOSS.0;
    let who = scene.waiting().1;
    let expected = "a member with the WAL of the last primary; the others lack more than 16 MiB of it, which is not given \
                        up unasked. If they are lost for good";
    assert!(who.starts_with(expected), "{who}");
}

/// No member's position is on record, nor whom commits waited for.
#[test]
fn a_lease_that_was_made_again_waits_for_all_members() {
    let mut scene = lost();
    let lease = scene.lease_mut().unwrap();
    let member = lease.holder.take().unwrap().incarnation.member;
    lease.release = Some(Release {
        member,
        position: None,
        successor: None,
    });
    lease.members.clear();
    lease.positions.clear();
    let (what, who) = scene.waiting();
    assert_eq!(what, "a primary to serve: the Lease was made again for demo-0");
    let expected = "the agents in 3 of the pods demo-0, demo-1, demo-2, by an election; but demo-0 has no pod. If they are lost \
                        for good and the last primary's node is off, the commits that only they have can be given up: kubectl";
    assert!(who.starts_with(expected), "{who}");
    scene.lease_mut().unwrap().rule = Default::default();
    let who = scene.waiting().1;
    assert!(
        who.starts_with("the agents in 1 of the pods demo-0, by an election; but demo-0 has no pod."),
        "{who}"
    );
}

/// Their pods may be there while they cannot answer.
#[test]
fn an_election_that_does_not_come_about_shows_the_way_out() {
    let mut scene = lost();
    scene.store();
    let deadline = scene.stored.waiting.clone().unwrap().deadline.unwrap();
    assert!(!scene.waiting().1.contains("accept-loss"));
    scene.now = deadline;
    assert!(
        scene
            .waiting()
            .1
            .contains("; but they have elected nobody in time. If they are lost for good")
    );
    scene.pod_mut(2).ready = false;
    assert!(
        scene
            .waiting()
            .1
            .contains("; but demo-2 is not ready. If they are lost for good")
    );
}

fn release(scene: &mut Scene, successor: Option<&str>) {
    let lease = scene.lease_mut().unwrap();
    let member = lease.holder.take().unwrap().incarnation.member;
    lease.release = Some(Release {
        member,
        position: None,
        successor: successor.map(str::to_owned),
    });
}

#[test]
fn a_primary_whose_pod_is_deleted_hands_over_and_only_in_the_end_it_is_a_failover() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(0).terminating = true;
    let mut node_lost = scene.clone();
    node_lost.pod_mut(0).ready = false;
    assert_eq!(node_lost.decide().phase, Phase::FailingOver, "its node was lost before");
    assert_eq!(scene.store().phase, Phase::SwitchingOver);
    scene.pod_mut(0).ready = false;
    assert_eq!(scene.store().phase, Phase::SwitchingOver, "it stops");
    assert!(scene.waiting().0.ends_with("demo-0 holds the Lease and is going away"));
    let mut silent = scene.clone();
    let deadline = |scene: &Scene| scene.stored.waiting.as_ref().unwrap().deadline.unwrap();
    let (began, told) = (scene.now, deadline(&silent));
    assert_eq!(silent.decide().wake, began + LEAVES, "it is looked at in time");
    silent.now += LEAVES - TimeDelta::seconds(1);
    assert_eq!(silent.store().phase, Phase::SwitchingOver);
    silent.now += TimeDelta::seconds(1);
    for _ in 0..2 {
        assert_eq!(silent.store().phase, Phase::FailingOver);
        assert_eq!(
            (deadline(&silent), silent.decide().wake),
            (told, told),
            "it does not move"
        );
    }
    release(&mut silent, Some("demo-1"));
    assert_eq!(silent.decide().phase, Phase::FailingOver, "it has become one");

    scene.pods_mut().remove(0);
    let mut nameless = scene.clone();
    release(&mut nameless, None);
    assert_eq!(
        nameless.decide().phase,
        Phase::FailingOver,
        "nobody was fit to take over"
    );
    release(&mut scene, Some("demo-1"));
    assert_eq!(scene.store().phase, Phase::SwitchingOver);
    let since = scene.stored.waiting.as_ref().unwrap().deadline;
    scene.now += TimeDelta::seconds(1);
    assert_eq!(
        scene.waiting().0,
        "a primary to serve: demo-0 has released the Lease to demo-1"
    );
    assert_eq!(scene.store().phase, Phase::SwitchingOver);
    assert_eq!(
        scene.stored.waiting.as_ref().unwrap().deadline,
        since,
        "it does not move"
    );
    scene.elect(1);
    scene.lease_mut().unwrap().holder.as_mut().unwrap().serving = false;
    scene.pod_mut(1).ready = false;
    assert_eq!(scene.store().phase, Phase::SwitchingOver);
    scene.elect(1);
    scene.pod_mut(1).ready = true;
    assert_eq!(scene.store().phase, Phase::Updating);
}

#[test]
fn a_holder_that_is_there_can_end_it_itself() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(0).ready = false;
    let (what, who) = scene.waiting();
    assert!(
        what.starts_with("a primary to serve: demo-0 holds the Lease and is not ready"),
        "{what}"
    );
    assert!(
        who.starts_with("the agent in pod demo-0 by serving, or the agents in 2 of"),
        "{who}"
    );
    assert_eq!(scene.decide().phase, Phase::FailingOver);
    scene.lease_mut().unwrap().holder.as_mut().unwrap().serving = false;
    assert!(
        scene
            .waiting()
            .0
            .contains("demo-0 holds the Lease and does not serve yet")
    );
}

#[test]
fn a_restart_on_purpose_is_no_failover() {
    let mut scene = Scene::ready(3);
    scene.report_mut(0).pending_restart = true;
    scene.store();
    assert!(scene.stored.intent.restart.is_some());
    scene.pod_mut(0).ready = false;
    assert_eq!(scene.decide().phase, Phase::Updating);
    scene.elect(1);
    scene.pod_mut(1).ready = false;
    assert_eq!(scene.decide().phase, Phase::FailingOver, "another one holds the Lease");
}

#[test]
fn one_instance_is_waited_for_by_the_name_of_its_pod() {
    let mut scene = Scene::ready(1);
    scene.pod_mut(0).ready = false;
    let decision = scene.decide();
    assert_eq!(
        (decision.phase, decision.because.to_string().as_str()),
        (Phase::Updating, "the primary demo-0 to serve")
    );
    scene.pod_mut(0).image_error = Some(ImageError {
        reason: "ErrImagePull".to_owned(),
        image: "postgres:17".to_owned(),
        message: String::new(),
        since: scene.now,
    });
    assert_eq!(
        scene.decide().because.to_string(),
        "pod demo-0 to run image postgres:17 (ErrImagePull)"
    );
    scene.pod_mut(0).terminating = true;
    assert!(
        scene.waiting().1.starts_with("the kubelet of node-0, "),
        "its node may be lost"
    );
    scene.pods_mut().clear();
    assert_eq!(scene.waiting().1, "the StatefulSet controller");
}

#[test]
fn a_first_primary_that_does_not_serve_yet_is_still_a_creation() {
    let mut scene = Scene::ready(3);
    scene.stored.phase = Some(Phase::Creating);
    scene.pod_mut(0).ready = false;
    assert_eq!(scene.decide().phase, Phase::Creating);
}

#[test]
fn a_limit_counts_from_when_the_primary_was_left_or_lost_whatever_was_waited_for_meanwhile() {
    let bound = TimeDelta::seconds(10) + ELECTION;
    let deadline = |scene: &Scene| scene.status(&scene.decide()).waiting.unwrap().deadline.unwrap();
    let mut left = Scene::ready(3);
    left.pod_mut(0).terminating = true;
    for mut scene in [lost(), left] {
        scene.now += TimeDelta::minutes(10);
        let until = scene.now + bound;
        assert_eq!(deadline(&scene), until, "the phase of before has nothing to do with it");
        scene.store();
        scene.now += TimeDelta::seconds(20);
        let (mut nothing, mut other) = (scene.clone(), scene);
        nothing.stored.waiting = None;
        other.stored.step = Some(Step::Rollout.as_str().to_owned());
        other.stored.waiting.as_mut().unwrap().deadline = Some(other.now);
        assert_eq!([deadline(&nothing), deadline(&other)], [until; 2]);
    }
    let mut before = lost();
    before.store();
    before.stored.phase = Some(Phase::Updating);
    before.stored.waiting.as_mut().unwrap().deadline = Some(before.now);
    assert_eq!(deadline(&before), before.now + bound, "that was of something else");
}

#[test]
fn whoever_was_not_told_to_leave_is_lost() {
    let mut new = Scene::ready(3);
    new.lease_mut().unwrap().holder.as_mut().unwrap().serving = false;
    assert_eq!(new.decide().phase, Phase::FailingOver);
    let mut moved = Scene::ready(3);
    moved.stored.phase = Some(Phase::SwitchingOver);
    moved.stored.memo.phase_since = Some(moved.now);
    moved.pod_mut(0).ready = false;
    assert_eq!(moved.decide().phase, Phase::FailingOver, "it served, and is not ready");
}

#[test]
fn a_lease_that_is_made_again_is_no_failover_yet() {
    let mut scene = Scene::ready(3);
    scene.set_child(OwnedObject::Lease, OwnedState::Missing);
    scene.observed.lease = Known::Known(None);
    scene.ask_for_a_lease();
    assert_eq!(scene.decide().phase, Phase::Updating);
}

#[test]
fn what_the_last_primary_itself_lacks_keeps_nobody_away() {
    let mut scene = lost();
    let lease = scene.lease_mut().unwrap();
    let member = lease.holder.take().unwrap().incarnation.member;
    let end = lease.positions["demo-0"];
    lease.release = Some(Release {
        member,
        position: Some(end),
        successor: None,
    });
    lease.rule = Default::default();
    let mut others = |lacks: u64| {
        let lsn = Lsn(end.lsn.0 - lacks);
        scene.lease_mut().unwrap().positions.get_mut("demo-1").unwrap().lsn = lsn;
        scene.waiting().1
    };
    assert!(others(ASYNC_LOSS.0).starts_with("an agent with the data"));
    assert!(others(ASYNC_LOSS.0 + 1).starts_with("a member with the WAL of the last primary"));
}
