use super::super::fixtures::*;
use super::super::*;
use crate::protocol::Epoch;
use crate::timing::BootTime;
use api::status::RestartPermit;

fn permitted() -> Observed {
    let mut observed = standby();
    observed.postgres.answer.as_mut().unwrap().pending_restart = true;
    cluster(&mut observed).restart = Some(RestartPermit {
        pod: observed.own.pod.clone(),
        pod_uid: observed.own.pod_uid.clone(),
        settings: SETTINGS.to_owned(),
    });
    observed
}

fn decided(observed: &Observed) -> Decision {
    decide(observed, &Memo::default(), BootTime(1_200))
}

#[test]
fn changed_settings_are_reloaded() {
    let mut observed = standby();
    cluster(&mut observed).settings = "new".to_owned();
    let expected = Action::Configure {
        settings: "new".to_owned(),
        upstream: Some(Upstream {
            address: "10.0.0.2".to_owned(),
            epoch: Epoch(1),
        }),
    };
    assert_eq!(decided(&observed).action, expected);
    assert_eq!(decided(&observed).because, "the settings have changed");
    observed.tasks.configure.running = Some(Work::Configure);
    assert_ne!(decided(&observed).rule, "configure");
}

#[test]
fn a_server_that_refuses_its_agent_is_reconfigured_and_a_silent_one_is_not() {
    for observed in [primary(), standby()] {
        let mut observed = observed;
        observed.tasks.lease.running = Some(Work::WriteLease);
        observed.postgres.answer = None;
        cluster(&mut observed).settings = "good again".to_owned();
        assert_ne!(decided(&observed).rule, "configure", "it may still recover");
        observed.postgres.refusal = Some("no".to_owned());
        let decision = decided(&observed);
        assert_eq!(
            (decision.rule, &*decision.because),
            ("configure", "the settings have changed")
        );
        cluster(&mut observed).settings = SETTINGS.to_owned();
        assert_ne!(decided(&observed).rule, "configure", "no setting needs to be reverted");
    }
}

/// Its control file names an old end of its WAL.
#[test]
fn a_standby_that_refuses_its_agent_keeps_its_upstream() {
    let mut observed = left_behind(standby(), 0x80, false);
    let postgres = standby().postgres;
    observed.postgres = postgres;
    let configured = observed.postgres.configured.as_mut().unwrap();
    configured.upstream = Some(Upstream {
        address: "10.0.0.3".to_owned(),
        epoch: Epoch(0),
    });
    let former = configured.upstream.clone();
    (observed.postgres.answer, observed.postgres.refusal) = (None, Some("no".to_owned()));
    assert_ne!(decided(&observed).rule, "configure");
    cluster(&mut observed).settings = "good again".to_owned();
    let action = Action::Configure {
        settings: "good again".to_owned(),
        upstream: former,
    };
    assert_eq!(decided(&observed).action, action);
}

#[test]
fn a_standby_that_uses_another_upstream_than_was_written_is_configured_again() {
    let mut observed = standby();
    observed.postgres.answer.as_mut().unwrap().other_upstream = true;
    let expected = Action::Configure {
        settings: SETTINGS.to_owned(),
        upstream: observed.postgres.configured.clone().unwrap().upstream,
    };
    assert_eq!(decided(&observed).action, expected);
    let spoil: [fn(&mut Observed); 3] = [
        |o| o.tasks.promise.running = Some(Work::Promise),
        |o| o.tasks.configure.running = Some(Work::Configure),
        // It should follow no primary: a remaining name does no harm.
        |o| {
            record(o).holder = None;
            o.postgres.configured.as_mut().unwrap().upstream = None;
        },
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut observed = observed.clone();
        spoil(&mut observed);
        assert_ne!(decided(&observed).rule, "configure", "{index}");
    }
}

#[test]
fn limits_that_were_raised_for_the_primary_follow_it() {
    let mut observed = standby();
    let more = EnforcedSettings {
        max_connections: 200,
        ..EnforcedSettings::default()
    };
    observed.postgres.configured.as_mut().unwrap().raised = Some(more);
    observed.postgres.enforced = more;
    assert_ne!(decided(&observed).rule, "configure");
    let own = |observed: &Observed| {
        report::status(observed, &Memo::default(), BootTime(1_200))
            .unwrap()
            .report
    };
    assert!(own(&observed).lowers_limits, "it reports that they wait for a restart");
    observed.postgres.enforced.max_connections = 50;
    let decision = decided(&observed);
    assert_eq!(decision.rule, "configure");
    assert!(decision.because.starts_with("the primary's limits have changed"));
    observed.postgres.configured.as_mut().unwrap().raised = None;
    assert_ne!(decided(&observed).rule, "configure", "nothing was raised");
    assert!(!own(&observed).lowers_limits);
}

#[test]
fn a_server_that_stops_is_not_reconfigured() {
    let mut observed = standby();
    cluster(&mut observed).settings = "new".to_owned();
    let memo = Memo {
        stopping: Some(Stopping {
            stop: Stop::Fast,
            since: BootTime(1_190),
        }),
        ..Memo::default()
    };
    assert_ne!(decide(&observed, &memo, BootTime(1_200)).rule, "configure");
}

#[test]
fn a_member_that_could_not_start_again_or_is_being_configured_does_not_restart() {
    assert_eq!(decided(&permitted()).rule, "restart");
    let spoil: [fn(&mut Observed); 2] = [
        |o| record(o).holder = None,
        |o| o.tasks.configure.running = Some(Work::Configure),
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut observed = permitted();
        spoil(&mut observed);
        assert_ne!(decided(&observed).rule, "restart", "{index}");
    }
}

#[test]
fn only_a_serving_member_makes_a_checkpoint_before_it_restarts() {
    let now = BootTime(30_000);
    let permit = cluster(&mut permitted()).restart.clone();
    let restart = |mut observed: Observed| {
        cluster(&mut observed).restart = permit.clone();
        observed.postgres.answer.as_mut().unwrap().pending_restart = true;
        if let Some(confirmed) = &mut observed.lease.confirmed {
            confirmed.sent = BootTime(29_900);
        }
        observed.tasks.lease.running = Some(Work::WriteLease);
        decide(&observed, &settled(), now).action
    };
    assert_eq!(restart(primary()), Action::Checkpoint);
    assert_eq!(restart(standby()), Action::Stop(Stop::Fast));
}

#[test]
fn refused_settings_are_not_tried_again_and_the_old_ones_stay() {
    let mut observed = standby();
    cluster(&mut observed).settings = "bad".to_owned();
    observed.postgres.refused = Some(Refused {
        settings: "bad".to_owned(),
        error: "no".to_owned(),
    });
    assert_ne!(decided(&observed).rule, "configure");
    let mut corrected = observed.clone();
    cluster(&mut corrected).settings = "corrected".to_owned();
    assert_eq!(decided(&corrected).rule, "configure", "others were refused");
    observed.postgres = PostgresView {
        refused: observed.postgres.refused.clone(),
        ..stopped()
    };
    match decided(&observed).action {
        Action::StartStandby { settings, .. } => assert_eq!(settings, SETTINGS),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_permit_restarts_once() {
    let observed = permitted();
    let first = decided(&observed);
    assert_eq!((first.rule, &first.action), ("restart", &Action::Stop(Stop::Fast)));
    let memo = Memo {
        stopping: None,
        ..first.memo
    };
    assert_ne!(decide(&observed, &memo, BootTime(9_000)).rule, "restart");
    // A restart that has done its work may be repeated if the same settings need another one.
    let mut done = observed.clone();
    done.postgres.answer.as_mut().unwrap().pending_restart = false;
    cluster(&mut done).restart = None;
    let memo = decide(&done, &memo, BootTime(9_000)).memo;
    assert_eq!(decide(&observed, &memo, BootTime(9_100)).rule, "restart");
}

#[test]
fn a_restart_is_over_when_the_server_answers_and_needs_none() {
    let restarted = |change: fn(&mut Observed, &mut Memo)| {
        let mut observed = permitted();
        observed.postgres.answer.as_mut().unwrap().pending_restart = false;
        let mut memo = Memo {
            restarted_for: Some(SETTINGS.to_owned()),
            ..Memo::default()
        };
        change(&mut observed, &mut memo);
        decide(&observed, &memo, BootTime(1_200)).memo.restarted_for
    };
    assert_eq!(restarted(|_, _| {}), None);
    let still = Some(SETTINGS.to_owned());
    assert_eq!(restarted(|observed, _| observed.postgres.answer = None), still);
    let stops = |_: &mut Observed, memo: &mut Memo| {
        let (stop, since) = (Stop::Fast, BootTime(1_190));
        memo.stopping = Some(Stopping { stop, since });
    };
    assert_eq!(restarted(stops), still);
}

#[test]
fn a_permit_for_another_pod_or_other_settings_restarts_nothing() {
    let spoil: [fn(&mut Observed); 5] = [
        |o| cluster(o).restart.as_mut().unwrap().pod = "orders-9".to_owned(),
        |o| cluster(o).restart.as_mut().unwrap().pod_uid = "older".to_owned(),
        |o| cluster(o).restart.as_mut().unwrap().settings = "other".to_owned(),
        |o| o.postgres.answer.as_mut().unwrap().pending_restart = false,
        |o| cluster(o).restart = None,
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut observed = permitted();
        spoil(&mut observed);
        assert_ne!(decided(&observed).rule, "restart", "{index}");
    }
}
