use super::super::fixtures::*;
use super::super::*;
use crate::protocol::{Epoch, Lsn, Position, Release, Timeline};
use crate::timing::BootTime;
use crate::units::Millis;

fn decided(observed: &Observed) -> Decision {
    decide(observed, &Memo::default(), BootTime(1_200))
}

#[test]
fn an_admitted_member_with_a_certificate_clones() {
    let observed = cloning();
    match decided(&observed).action {
        Action::Clone {
            upstream, system_id, ..
        } => {
            assert_eq!((upstream.as_str(), system_id.as_str()), ("10.0.0.2", SYSTEM_ID));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_cloned_over_data_or_without_a_primary() {
    let spoil: [fn(&mut Observed); 12] = [
        |o| o.tasks.start.running = Some(Work::StartStandby),
        |o| volume(o).data = Data::Unknown,
        |o| o.volume = Reading::Unknown,
        |o| o.lease.record = Reading::Unknown,
        |o| o.lease.record = Reading::Missing,
        |o| record(o).system_id = None,
        |o| record(o).holder.as_mut().unwrap().timeline = None,
        |o| record(o).holder = None,
        |o| record(o).epoch = Epoch(5),
        |o| o.reply.as_mut().unwrap().admitted = false,
        |o| cluster(o).stop = true,
        |o| o.tasks.volume.running = Some(Work::Clone),
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut observed = cloning();
        spoil(&mut observed);
        assert_ne!(decided(&observed).rule, "clone", "{index}");
    }
}

#[test]
fn data_of_this_cluster_follows_the_holder() {
    let mut observed = standby();
    observed.postgres = stopped();
    let expected = Action::StartStandby {
        upstream: Some(Upstream {
            address: "10.0.0.2".to_owned(),
            epoch: Epoch(1),
        }),
        settings: SETTINGS.to_owned(),
        was_primary: false,
    };
    assert_eq!(decided(&observed).action, expected);
    record(&mut observed).holder.as_mut().unwrap().timeline = Some(Timeline(0));
    assert_ne!(decided(&observed).rule, "start-standby", "it has diverged");
}

#[test]
fn data_whose_rewind_was_broken_off_is_not_started() {
    let mut observed = standby();
    observed.postgres = stopped();
    observed.reply = None;
    observed.tasks.report.running = Some(Work::Report);
    assert_eq!(decided(&observed).rule, "start-standby");
    volume(&mut observed).rewinding = true;
    assert_eq!(decided(&observed).action, Action::Wait);
}

#[test]
fn the_last_holder_waits_for_its_lease_instead_of_following() {
    let mut observed = restarted();
    observed.own.pod_uid = "new pod".to_owned();
    assert_eq!(decided(&observed).action, Action::Wait);
}

#[test]
fn a_member_that_has_released_the_lease_waits_for_the_others_and_does_not_start() {
    let mut observed = restarted();
    let member = volume(&mut observed).member.as_ref().unwrap().id.clone();
    data(&mut observed).primary = false;
    record(&mut observed).holder = None;
    record(&mut observed).release = Some(Release {
        member,
        position: None,
        successor: None,
    });
    observed.lease.holder_since = BootTime(1_000);
    assert_eq!(decided(&observed).action, Action::Wait);
    record(&mut observed).release.as_mut().unwrap().member = third();
    assert_eq!(decided(&observed).rule, "start-standby");
}

/// A former primary under `ANY 1`, up to 0x180 of timeline 1. The holder is on timeline 2, which began at 0x100, and
/// was last heard at 1 s.
fn former_primary() -> Observed {
    left_behind(voter(), 0x180, true)
}

/// A lease's duration after [`SILENT`].
const GONE: u64 = SILENT + crate::timing::Timing::DEFAULT.lease.0;

fn suspects() -> Memo {
    Memo {
        suspected: Some((Epoch(1), BootTime(SILENT))),
        ..settled()
    }
}

/// After a start as a standby the control file no longer shows it. So it is noted before, until the data is part of the
/// primary's history.
#[test]
fn that_the_data_was_a_primarys_is_noted_until_it_follows() {
    let noted = |primary: bool, was_primary: bool, end: u64, now: u64| {
        let mut observed = left_behind(voter(), end, primary);
        volume(&mut observed).was_primary = was_primary;
        match decide(&observed, &suspects(), BootTime(now)).action {
            Action::StartStandby { was_primary, .. } => was_primary,
            other => panic!("{other:?}"),
        }
    };
    assert!(noted(true, false, 0x180, GONE));
    assert!(noted(false, true, 0x180, GONE), "started again");
    assert!(!noted(false, false, 0x180, GONE), "a standby's as ever");
    assert!(!noted(false, true, 0x100, GONE), "it has been rewound");
    let mut elected = elected();
    elected.postgres = stopped();
    for was_primary in [true, false] {
        volume(&mut elected).was_primary = was_primary;
        let start = decided(&elected).action;
        assert!(
            matches!(start, Action::StartStandby { was_primary: noted, .. } if noted == was_primary),
            "{start:?}"
        );
    }
}

#[test]
fn a_former_primary_reports_its_wal_end_when_no_primary_exists_to_rewind_it_to() {
    let observed = former_primary();
    assert_eq!(decided(&observed).rule, "rewind");
    let early = decide(&observed, &suspects(), BootTime(GONE - 1));
    assert_eq!(early.action, Action::Wait, "the primary may come back");
    assert!(early.wake.is_some_and(|wake| wake <= BootTime(GONE)));
    let gone = |observed: &Observed| decide(observed, &suspects(), BootTime(GONE)).action;
    let start = Action::StartStandby {
        upstream: None,
        settings: SETTINGS.to_owned(),
        was_primary: true,
    };
    assert_eq!(gone(&observed), start);
    let mut vacant = observed.clone();
    record(&mut vacant).holder = None;
    assert_eq!(
        gone(&vacant),
        start,
        "the lease was released, and no member can take it"
    );
    let mut unknown = observed.clone();
    record(&mut unknown).holder.as_mut().unwrap().timeline = None;
    assert_eq!(gone(&unknown), start, "the holder was lost before its promotion");
    let mut torn = observed.clone();
    volume(&mut torn).rewinding = true;
    assert!(!matches!(gone(&torn), Action::StartStandby { .. }));
    let mut heard = observed.clone();
    heard.contact.heard = Some(BootTime(GONE));
    assert!(matches!(gone(&heard), Action::Rewind { .. }), "it lives");
}

#[test]
fn if_commits_wait_for_no_standby_a_former_primary_replaces_the_holder_only_by_the_users_order() {
    let mut observed = former_primary();
    record(&mut observed).rule = crate::quorum::SyncRule::default();
    let late = BootTime(90_000);
    let memo = suspects();
    assert_eq!(decide(&observed, &memo, late).action, Action::Wait);
    cluster(&mut observed).accepted_loss = Some(Epoch(1));
    assert_eq!(decide(&observed, &memo, late).rule, "start-standby");
}

#[test]
fn a_standby_with_a_truncated_segment_of_a_new_timeline_is_restarted_to_be_counted() {
    let mut observed = silenced();
    observed.postgres.answer.as_mut().unwrap().begins = Some(Lsn(u64::MAX));
    observed.tasks.ask.running = Some(Work::Ask);
    let rule = |observed: &Observed| decide(observed, &suspects(), BootTime(SILENT)).rule;
    assert_eq!(rule(&observed), "stop-torn");
    let spoil: [fn(&mut Observed); 6] = [
        |o| o.contact.heard = Some(BootTime(SILENT)),
        |o| {
            let answer = o.postgres.answer.as_mut().unwrap();
            answer.begins = answer.position.map(|position| position.lsn);
        },
        |o| o.postgres.answer.as_mut().unwrap().begins = Some(Lsn(0)),
        |o| o.postgres.answer.as_mut().unwrap().received_all = false,
        |o| o.tasks.start.ended = BootTime(SILENT),
        |o| o.tasks.configure.running = Some(Work::Configure),
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut observed = observed.clone();
        spoil(&mut observed);
        assert_ne!(rule(&observed), "stop-torn", "{index}");
    }
}

#[test]
fn a_former_primary_is_counted_and_elected_by_its_position() {
    let mut observed = former_primary();
    observed.postgres = promised(2).postgres;
    volume(&mut observed).promise.as_mut().unwrap().epoch = Epoch(2);
    observed.tasks.ask.running = Some(Work::Ask);
    let answer = observed.postgres.answer.as_mut().unwrap();
    answer.position = Some(Position {
        timeline: Timeline(1),
        lsn: Lsn(0x180),
    });
    let decided = |observed: &Observed| decide(observed, &suspects(), BootTime(GONE));
    assert_eq!(
        decided(&observed).action,
        Action::Wait,
        "it is not stopped to be rewound"
    );
    let request = crate::protocol::PromiseRequest {
        epoch: Epoch(2),
        pod: "orders-2".to_owned(),
        lease: record(&mut observed).uid.clone(),
    };
    let answer = election::answer(&observed, BootTime(GONE), &request).unwrap();
    assert_eq!(answer.position, observed.postgres.answer.unwrap().position);
    let mut newer = observed.clone();
    third_answers(&mut newer, 2, Some(0x100));
    let third = newer.promises.get_mut("orders-2").unwrap();
    third.reply.position.as_mut().unwrap().timeline = Timeline(2);
    assert_eq!(
        decided(&newer).rule,
        "wait",
        "a member with WAL of the lost primary has more"
    );
    third_answers(&mut observed, 2, Some(0x180));
    match decided(&observed).action {
        Action::WriteLease { content, .. } => assert_eq!(content.timeline, Some(Timeline(3))),
        other => panic!("{other:?}"),
    }
}

/// A standby whose data is not consistent, started at 1 s to follow `orders-1`; `orders-2` is the primary now.
fn stranded() -> Observed {
    let mut observed = standby();
    (observed.postgres.answer, observed.postgres.streamed) = (None, false);
    observed.tasks.start.ended = BootTime(1_000);
    observed.tasks.report.running = Some(Work::Report);
    let mut holder = other_holder();
    (holder.incarnation.member, holder.address) = (third(), "10.0.0.3".to_owned());
    holder.incarnation.pod = "orders-2".to_owned();
    hold_by(&mut observed, holder, 2);
    observed
}

#[test]
fn a_standby_that_is_not_consistent_is_started_again_to_follow_another_primary() {
    let mut observed = stranded();
    // The primary lives.
    let decide = |observed: &Observed, memo: &Memo, now: BootTime| {
        let mut observed = observed.clone();
        observed.lease.changed = now;
        observed.contact.heard = Some(now);
        super::super::decide(&observed, memo, now)
    };
    let at = BootTime(1_000).plus(super::MUTE);
    let early = decide(&observed, &Memo::default(), BootTime(at.0 - 1));
    assert_eq!((early.action, early.wake), (Action::Wait, Some(at)));
    let stop = decide(&observed, &Memo::default(), at);
    assert_eq!((stop.rule, stop.action), ("stop-stranded", Action::Stop(Stop::Fast)));
    let waits = decide(&observed, &stop.memo, at.plus(Millis(100)));
    assert_eq!(waits.action, Action::Wait);
    let hangs = decide(&observed, &stop.memo, at.plus(Millis(20_000)));
    assert_eq!(hangs.action, Action::Stop(Stop::Immediate));
    let mut ended = observed.clone();
    ended.postgres = stopped();
    let upstream = Upstream {
        address: "10.0.0.3".to_owned(),
        epoch: Epoch(2),
    };
    let expected = Action::StartStandby {
        upstream: Some(upstream.clone()),
        settings: SETTINGS.to_owned(),
        was_primary: false,
    };
    assert_eq!(decide(&ended, &stop.memo, at.plus(Millis(200))).action, expected);
    // It follows that primary in an earlier epoch; a promise since then has revoked the credential.
    let of_before = Upstream {
        epoch: Epoch(1),
        ..upstream.clone()
    };
    observed.postgres.configured.as_mut().unwrap().upstream = Some(of_before);
    assert_ne!(decide(&observed, &Memo::default(), at).rule, "stop-stranded");
    observed.promised(Promise {
        epoch: Epoch(2),
        promoting: None,
    });
    assert_eq!(decide(&observed, &Memo::default(), at).rule, "stop-stranded");
    // Now it follows that primary, and is left alone however long it takes.
    observed.postgres.configured.as_mut().unwrap().upstream = Some(upstream);
    assert_eq!(
        decide(&observed, &Memo::default(), at.plus(Millis(90_000))).action,
        Action::Wait
    );
    observed.postgres.configured.as_mut().unwrap().upstream = None;
    assert_eq!(
        decide(&observed, &Memo::default(), at).rule,
        "stop-stranded",
        "it follows no primary"
    );
}

#[test]
fn only_a_standby_that_waits_for_a_former_primary_is_started_again() {
    let spoil: [fn(&mut Observed); 9] = [
        |o| o.postgres.answer = standby().postgres.answer,
        |o| o.postgres.streamed = true,
        |o| o.tasks.start.running = Some(Work::StartStandby),
        |o| o.tasks.configure.running = Some(Work::Configure),
        |o| record(o).holder.as_mut().unwrap().address = "10.0.0.2".to_owned(),
        |o| {
            record(o).holder.as_mut().unwrap().timeline = None;
            record(o).timeline = Some(Timeline(2));
        },
        |o| record(o).holder = None,
        |o| volume(o).promise.as_mut().unwrap().epoch = Epoch(3),
        |o| {
            let own = elected();
            (o.lease, o.tasks.lease) = (own.lease, own.tasks.lease);
        },
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut observed = stranded();
        spoil(&mut observed);
        let decision = decide(&observed, &Memo::default(), BootTime(1_000).plus(super::MUTE));
        assert!(!matches!(decision.action, Action::Stop(_)), "{index}: {decision:?}");
    }
}

#[test]
fn a_new_address_of_the_holder_is_followed_by_a_reload() {
    let mut observed = standby();
    record(&mut observed).holder.as_mut().unwrap().address = "10.0.0.9".to_owned();
    let expected = Action::Configure {
        settings: SETTINGS.to_owned(),
        upstream: Some(Upstream {
            address: "10.0.0.9".to_owned(),
            epoch: Epoch(1),
        }),
    };
    assert_eq!(decided(&observed).action, expected);
}
