//! Settings: taken up by a reload when the spec changes; by a restart in place when the operator permits it.

use super::context::{Context, Tenure};
use super::lineage::{Lineage, lineage};
use super::senders::Needs;
use super::{Action, Draft, Mode, Verdict, checkpoint, shutdown, standby};

/// Longest wait between failed tries, in milliseconds.
const RETRY: u64 = 5_000;

/// Hash of the settings to start with: the wanted ones, or the last good ones if PostgreSQL has refused those.
pub(super) fn to_start_with(context: &Context) -> Option<String> {
    let wanted = &context.cluster()?.settings;
    let refused = context.observed.postgres.refused.as_ref();
    let good = &context.observed.postgres.good_settings;
    Some(
        if refused.is_some_and(|refused| refused.settings == *wanted) {
            good
        } else {
            wanted
        }
        .clone(),
    )
}

/// Writes the configuration and reloads it, when the settings or the primary's address have changed, PostgreSQL goes by another one
/// than was written, or limits that a standby has kept for its primary need not be so high any more.
///
/// A PostgreSQL that is silent, or takes no sessions yet, is left alone. One that refuses its agent may do so by the very settings
/// that are to be taken back: it reads the new ones.
pub(super) fn configure(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let mode = context.running()?;
    let configured = context.observed.postgres.configured.as_ref()?;
    let settings = to_start_with(context)?;
    let upstream = match (mode, context.tenure()) {
        (Mode::Primary, _) => None,
        // Who cannot follow, or is not known to be able to, receives nothing, and nothing more from a former primary. A PostgreSQL that
        // refuses its agent does not say where its WAL ends: it goes on with what it follows.
        (Mode::Standby, Tenure::Other(holder)) if context.position().is_some() => {
            standby::to_follow(context, holder).filter(|_| lineage(context) == Lineage::Follows)
        }
        // Nobody to follow, or nobody knows whom: what it follows now does no harm.
        (Mode::Standby, _) => configured.upstream.clone(),
    };
    let moved = configured.upstream != upstream;
    // A promise takes away the credential, and empties `primary_conninfo` before that is known here.
    let promises = context.tasks().promise.running.is_some();
    let other = context
        .observed
        .postgres
        .answer
        .is_some_and(|answer| answer.other_upstream);
    let lost = other && upstream.is_some();
    let raised = configured.raised.filter(|_| mode == Mode::Standby);
    let eased = raised.is_some_and(|raised| raised != context.observed.postgres.enforced);
    if !(moved || lost || eased || configured.settings != settings)
        || promises
        || draft.memo.stopping.is_some()
        || !is_reached(context)
    {
        return None;
    }
    if !context.is_free(&context.tasks().configure, RETRY, draft) {
        return None;
    }
    let because = if moved {
        "the address of the primary has changed"
    } else if configured.settings != settings {
        "the settings have changed"
    } else if lost {
        "PostgreSQL does not go by the primary's address that was written"
    } else {
        "the primary's limits have changed, to which some of this standby's were raised"
    };
    Verdict::new(Action::Configure { settings, upstream }, because)
}

/// PostgreSQL answers its agent, or refuses to.
fn is_reached(context: &Context) -> bool {
    let postgres = &context.observed.postgres;
    postgres.answer.is_some() || postgres.refusal.is_some()
}

/// Restarts PostgreSQL in place for settings that need it: with the operator's permit for exactly these, and once.
pub(super) fn restart(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    const BECAUSE: &str = "the operator permits the restart that the settings need";
    context.running()?;
    let answer = context.observed.postgres.answer;
    let pending = answer.is_some_and(|answer| answer.pending_restart);
    if answer.is_some() && !pending && draft.memo.stopping.is_none() {
        // It has brought what it was for; should these settings need another one (after a promotion, say), it may be made.
        draft.memo.restarted_for = None;
    }
    let permit = context.cluster()?.restart.as_ref()?;
    let own = &context.observed.own;
    let applied = context
        .observed
        .postgres
        .configured
        .as_ref()
        .is_some_and(|configured| configured.settings == permit.settings);
    let ours = permit.pod == own.pod && permit.pod_uid == own.pod_uid;
    if !ours || !applied {
        return None;
    }
    if draft.memo.restarted_for.as_ref() == Some(&permit.settings) {
        // The stop may be under way: harder, if it takes too long.
        return draft
            .memo
            .stopping
            .and_then(|_| shutdown::stop_primary(context, draft, &Needs::Nobody, BECAUSE));
    }
    let idle = context.tasks().configure.running.is_none();
    let can_start_again = match context.tenure() {
        Tenure::Held { .. } => true,
        Tenure::Other(_) => standby::fault(context).is_none(),
        Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Vacant | Tenure::Unknown => false,
    };
    if !pending || !idle || !can_start_again {
        return None;
    }
    if context.serving() && !checkpoint::is_made(context) {
        return checkpoint::make(context, "for a restart");
    }
    draft.memo.restarted_for = Some(permit.settings.clone());
    shutdown::stop(context, draft, BECAUSE)
}

#[cfg(test)]
mod tests {
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
    fn a_server_that_refuses_its_agent_takes_up_other_settings_and_a_silent_one_none() {
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
            assert_ne!(decided(&observed).rule, "configure", "nothing is to be taken back");
        }
    }

    /// Its control file names the end of an earlier time.
    #[test]
    fn a_standby_that_refuses_its_agent_is_told_of_no_other_primary() {
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
    fn a_standby_that_goes_by_another_primary_than_was_written_is_configured_again() {
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
            // It is to follow nobody: a name that is left does no harm.
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
        assert!(own(&observed).lowers_limits, "it is said that they wait");
        observed.postgres.enforced.max_connections = 50;
        let decision = decided(&observed);
        assert_eq!(decision.rule, "configure");
        assert!(decision.because.starts_with("the primary's limits have changed"));
        observed.postgres.configured.as_mut().unwrap().raised = None;
        assert_ne!(decided(&observed).rule, "configure", "nothing was raised");
        assert!(!own(&observed).lowers_limits);
    }

    #[test]
    fn a_server_that_stops_takes_up_no_settings() {
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
    fn nobody_restarts_who_could_not_start_again_or_whose_settings_are_being_written() {
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
    fn only_who_serves_makes_a_checkpoint_before_it_restarts() {
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
        // A restart that has brought what it was for may be repeated, should the same settings need another one.
        let mut done = observed.clone();
        done.postgres.answer.as_mut().unwrap().pending_restart = false;
        cluster(&mut done).restart = None;
        let memo = decide(&done, &memo, BootTime(9_000)).memo;
        assert_eq!(decide(&observed, &memo, BootTime(9_100)).rule, "restart");
    }

    #[test]
    fn a_restart_is_over_when_a_server_that_stays_answers_and_needs_none() {
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
}
