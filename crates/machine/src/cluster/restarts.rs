//! Settings: taken up by every agent; those that need a restart by one member after another, by permit.

use api::status::RestartPermit;
use chrono::{DateTime, TimeDelta, Utc};

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::facts::{Facts, list};
use super::fenced;
use super::observed::Pod;
use super::resize;
use super::rollout::{next, supervised};
use super::rule::{Proposal, Rule};
use super::wal;

/// See [`Rule::what`].
pub const RESTART: Rule = Rule {
    name: "restart",
    family: "rollout",
    what: "Members whose settings need a restart get the permit one after another; the primary last, or first if a limit that binds standbys is lowered. A standby that makes no use of it for 2 min lets the other standbys go before it.",
    propose: restart,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_SETTINGS: Rule = Rule {
    name: "await-settings",
    family: "rollout",
    what: "Members that have not taken up the wanted settings are waited for; PostgreSQL's refusal is shown.",
    propose: await_settings,
    passable: false,
};

fn restart(facts: &Facts<'_>) -> Option<Proposal> {
    let permit = facts.status.intent.restart.as_ref();
    if let Some(permit) = restarting(facts) {
        let who = format!("the agent in pod {}", permit.pod);
        let wait = Proposal::wait(facts, Step::Settings, restart_of(permit), who)?;
        return Some(wait.until(restart_deadline(facts, permit)));
    }
    let spent = permit.filter(|permit| in_use(facts, permit));
    if let Some(pod) = next_restart(facts, spent) {
        if spent.is_some_and(|spent| spent.pod_uid == pod.uid) {
            // It has the permit: to give it once more changes nothing. That it is waited for is said by `await-settings`.
            return None;
        }
        let given = RestartPermit {
            pod: pod.name.clone(),
            pod_uid: pod.uid.clone(),
            settings: facts.wanted.settings.to_owned(),
        };
        let because = format!("{} has settings that need a restart", pod.name);
        return Proposal::act(
            Step::Settings,
            Action::WriteStatus(vec![StatusChange::PermitRestart(given)]),
            because,
        );
    }
    let permit = permit?;
    let because = if in_use(facts, permit) {
        let minutes = RESTART_PATIENCE.num_minutes();
        format!(
            "{} does not serve {minutes} min after it was let restart: the others go on",
            permit.pod
        )
    } else {
        format!("{} has restarted, or need not any more", permit.pod)
    };
    Proposal::act(
        Step::Settings,
        Action::WriteStatus(vec![StatusChange::EndRestart]),
        because,
    )
}

/// A standby that is not back after this long may never be (its volume, its settings): it is waited for no more, and keeps
/// no primary where it is. Less than the time in which a requested switchover has to begin.
const RESTART_PATIENCE: TimeDelta = TimeDelta::minutes(2);

fn restart_of(permit: &RestartPermit) -> String {
    format!("{} to restart PostgreSQL", permit.pod)
}

fn restart_deadline(facts: &Facts<'_>, permit: &RestartPermit) -> DateTime<Utc> {
    let given = facts.status.memo.restart_since;
    given.unwrap_or_else(|| facts.waiting_since(&restart_of(permit))) + RESTART_PATIENCE
}

/// The leave to restart that somebody makes use of.
pub(super) fn restarting<'a>(facts: &Facts<'a>) -> Option<&'a RestartPermit> {
    let permit = facts.status.intent.restart.as_ref()?;
    (in_use(facts, permit) && facts.now < restart_deadline(facts, permit)).then_some(permit)
}

/// The permitted restart is still to be expected: same pod, same settings, and not yet served with them since.
fn in_use(facts: &Facts<'_>, permit: &RestartPermit) -> bool {
    let pod = facts
        .pods()
        .iter()
        .find(|pod| pod.name == permit.pod && pod.uid == permit.pod_uid && !pod.terminating);
    let done = |pod: &Pod| {
        facts.serves(pod)
            && facts
                .report(pod)
                .is_some_and(|now| now.settings == permit.settings && !now.pending_restart)
    };
    let possible = permit.settings == facts.wanted.settings && !fenced::is_fenced(facts, &permit.pod);
    possible && pod.is_some_and(|pod| !done(pod))
}

/// The member that may restart now. The one whose permit is spent, its time over, lets others of its kind go before it.
fn next_restart<'a>(facts: &Facts<'a>, spent: Option<&RestartPermit>) -> Option<&'a Pod> {
    let changes_first = |pod: &Pod| !resize::waits_for_settings(facts, pod) && !wal::is_not_yet_due(facts, pod);
    if next(facts).is_some_and(changes_first) || refusal(facts).is_some() {
        return None;
    }
    let pending = |pod: &&Pod| {
        let report = facts.report(pod);
        let pending = report.is_some_and(|report| {
            report.pending_restart && report.settings == facts.wanted.settings && !report.is_silent()
        });
        pending && !fenced::is_fenced(facts, &pod.name)
    };
    let stays = |pod: &&Pod| !pod.terminating && pod.ordinal < facts.expected();
    let mut all = facts.pods().iter().rev().filter(stays).filter(pending);
    let unspent = |pod: &&Pod| spent.is_none_or(|spent| spent.pod_uid != pod.uid);
    // Who is ready may only be between two primaries: while another is away, it is one of those that are left.
    let there = |pod: &Pod| pod.ready && !pod.terminating;
    let all_there = (0..facts.expected()).all(|ordinal| facts.pod(ordinal).is_some_and(there));
    let mut idle = all
        .clone()
        .filter(|pod| !facts.serves(pod) && (all_there || !pod.ready));
    if let Some(idle) = idle.clone().find(unspent).or_else(|| idle.next()) {
        return Some(idle);
    }
    let primary = facts.primary()?;
    let lowers = facts
        .report(primary)
        .is_some_and(|report| report.pending_restart && report.lowers_limits);
    let next = if lowers {
        all.find(|pod| pod.uid == primary.uid)
    } else {
        let mut standbys = all.clone().filter(|pod| pod.uid != primary.uid);
        standbys.clone().find(unspent).or_else(|| standbys.next())
    };
    let next = next.or_else(|| all.next())?;
    if next.uid == primary.uid && supervised(facts) {
        return None;
    }
    let reloaded = |ordinal: u32| {
        let report = facts.pod(ordinal).and_then(|pod| facts.report(pod));
        report.is_some_and(|report| report.settings == facts.wanted.settings)
    };
    ((0..facts.expected()).all(reloaded) && facts.all_serve_except(Some(next.ordinal))).then_some(next)
}

/// A member whose PostgreSQL refuses the settings, and its words.
pub(super) fn refusal<'a>(facts: &Facts<'a>) -> Option<(&'a Pod, &'a str)> {
    facts
        .pods()
        .iter()
        .find_map(|pod| Some((pod, facts.report(pod)?.settings_error.as_deref()?)))
}

fn await_settings(facts: &Facts<'_>) -> Option<Proposal> {
    if let Some((pod, error)) = refusal(facts) {
        let what = format!("settings that PostgreSQL accepts; {} says: {error}", pod.name);
        return Proposal::wait(
            facts,
            Step::Settings,
            what,
            "the user, by changing spec.postgres.parameters",
        );
    }
    let permit = facts.status.intent.restart.as_ref();
    if let Some(permit) = permit.filter(|permit| in_use(facts, permit)) {
        let who = format!("the agent in pod {}, which was let do it long ago", permit.pod);
        return Proposal::wait(facts, Step::Settings, restart_of(permit), who);
    }
    let late = || facts.pods().iter().filter(|pod| !facts.settled_settings(pod));
    late().next()?;
    let what = format!("{} to take up the settings", list(late().map(|pod| pod.name.as_str())));
    Proposal::wait(facts, Step::Settings, what, "their agents")
}

#[cfg(test)]
mod tests {
    use super::super::testing::Scene;
    use super::*;

    #[test]
    fn restarts_are_permitted_one_after_another() {
        let mut scene = Scene::pending_restart(false);
        for ordinal in [2, 1, 0] {
            let name = format!("demo-{ordinal}");
            assert_eq!(scene.permitted(), Some(name));
            scene.store();
            scene.report_mut(ordinal).state = crate::protocol::MemberState::Starting;
            assert!(matches!(scene.decide().action, Action::Wait(_)), "while it restarts");
            let state = if ordinal == 0 { "Primary" } else { "Streaming" };
            let report = scene.report_mut(ordinal);
            report.pending_restart = false;
            report.state = serde_json::from_value(state.into()).unwrap();
        }
        scene.store();
        assert_eq!(
            (scene.stored.intent.restart.clone(), scene.decide().rule),
            (None, "rest")
        );
    }

    #[test]
    fn a_permit_that_is_not_used_goes_on_to_the_others_and_is_not_given_again_for_ever() {
        let mut scene = Scene::pending_restart(false);
        for ordinal in [2, 1, 2] {
            assert_eq!(scene.permitted(), Some(format!("demo-{ordinal}")));
            scene.store();
            let decision = scene.decide();
            assert_eq!(
                decision.because.to_string(),
                format!("demo-{ordinal} to restart PostgreSQL")
            );
            assert_eq!(decision.wake, scene.now + RESTART_PATIENCE);
            if ordinal == 1 {
                scene.report_mut(1).pending_restart = false;
            } else {
                scene.now = decision.wake;
            }
        }
        let decision = scene.store();
        assert_eq!((decision.rule, decision.step), ("await-settings", Some(Step::Settings)));
        let waiting = scene.stored.waiting.clone().unwrap();
        assert_eq!(
            waiting.what, "demo-2 to restart PostgreSQL",
            "the primary goes after it"
        );
        scene.now = waiting.deadline.unwrap();
        let decision = scene.store();
        assert!(matches!(decision.action, Action::Wait(_)), "{decision:?}");
        let found = scene
            .stored
            .conditions
            .iter()
            .find(|found| found.type_ == "Progressing");
        assert_eq!(found.unwrap().reason, "DeadlineExceeded");
        let mut changed = scene.clone();
        changed.revision = "r2".to_owned();
        changed.store();
        assert_eq!(
            changed.replaced(),
            Some("demo-2".to_owned()),
            "a new pod needs no permit"
        );
        scene.report_mut(2).pending_restart = false;
        assert_eq!(scene.permitted(), Some("demo-0".to_owned()));
    }

    #[test]
    fn the_primary_restarts_first_when_a_limit_is_lowered() {
        assert_eq!(Scene::pending_restart(true).permitted(), Some("demo-0".to_owned()));
    }

    #[test]
    fn a_lowered_limit_is_in_force_once_the_standbys_have_followed_the_primary() {
        let mut scene = Scene::ready(3);
        let keeps = |scene: &mut Scene, keeps: bool| {
            for ordinal in [1, 2] {
                scene.report_mut(ordinal).lowers_limits = keeps;
            }
        };
        keeps(&mut scene, true);
        (scene.report_mut(0).pending_restart, scene.report_mut(0).lowers_limits) = (true, true);
        assert_eq!(scene.permitted(), Some("demo-0".to_owned()));
        scene.store();
        (scene.report_mut(0).pending_restart, scene.report_mut(0).lowers_limits) = (false, false);
        scene.store();
        let decision = scene.decide();
        assert_eq!(
            (decision.rule, decision.phase),
            ("await-settings", api::Phase::Updating)
        );
        assert_eq!(decision.because.to_string(), "demo-1, demo-2 to take up the settings");
        keeps(&mut scene, false);
        scene.report_mut(1).pending_restart = true;
        assert_eq!(scene.permitted(), Some("demo-1".to_owned()));
    }

    #[test]
    fn a_member_that_does_not_serve_restarts_first() {
        let mut scene = Scene::pending_restart(false);
        scene.pod_mut(1).ready = false;
        assert_eq!(scene.permitted(), Some("demo-1".to_owned()));
    }

    #[test]
    fn nobody_restarts_for_settings_that_are_refused_somewhere_or_not_there_yet() {
        let mut scene = Scene::pending_restart(false);
        scene.report_mut(1).settings = "older".to_owned();
        assert_eq!(scene.permitted(), None);
        let mut scene = Scene::pending_restart(false);
        scene.report_mut(1).settings_error = Some("invalid value for parameter \"work_mem\"".to_owned());
        assert_eq!(scene.permitted(), None);
        let decision = scene.decide();
        assert_eq!(decision.rule, "await-settings");
        assert!(
            decision
                .because
                .to_string()
                .ends_with("invalid value for parameter \"work_mem\"")
        );
    }

    #[test]
    fn who_is_between_two_primaries_does_not_restart_while_another_is_away() {
        let mut scene = Scene::pending_restart(false);
        scene.report_mut(2).pending_restart = false;
        scene.report_mut(1).state = crate::protocol::MemberState::CatchingUp;
        assert_eq!(scene.permitted(), Some("demo-1".to_owned()));
        let mut both = scene.clone();
        both.report_mut(2).pending_restart = true;
        both.report_mut(2).state = crate::protocol::MemberState::CatchingUp;
        assert_eq!(both.permitted(), Some("demo-2".to_owned()), "all are there");
        let mut leaves = scene.clone();
        leaves.pod_mut(2).terminating = true;
        assert_eq!(leaves.permitted(), None);
        scene.pod_mut(2).ready = false;
        assert_eq!(scene.permitted(), None);
    }

    #[test]
    fn who_is_about_to_go_need_not_restart() {
        let mut scene = Scene::pending_restart(false);
        scene.edit(|spec| spec.replicas = 2);
        scene.observed.stateful_set.as_mut().unwrap().replicas = 2;
        scene.report_mut(2).state = crate::protocol::MemberState::CatchingUp;
        assert_eq!(scene.permitted(), Some("demo-1".to_owned()));
    }

    #[test]
    fn nobody_restarts_while_another_is_away() {
        let mut scene = Scene::pending_restart(false);
        scene.report_mut(1).pending_restart = false;
        assert_eq!(scene.permitted(), Some("demo-2".to_owned()));
        scene.pod_mut(1).ready = false;
        assert_eq!(scene.permitted(), None);
    }

    #[test]
    fn a_permit_is_for_one_pod_and_for_the_settings_of_then() {
        let mut scene = Scene::pending_restart(false);
        scene.store();
        let ends: [fn(&mut Scene); 3] = [
            |scene| {
                scene.pod_mut(2).uid = "another".to_owned();
                scene.stored.members.get_mut("demo-2").unwrap().pod_uid = Some("another".to_owned());
            },
            |scene| scene.pod_mut(2).terminating = true,
            |scene| {
                scene.edit(|spec| {
                    spec.postgres.parameters.insert("work_mem".to_owned(), "8MB".to_owned());
                });
            },
        ];
        for (index, end) in ends.into_iter().enumerate() {
            let mut scene = scene.clone();
            end(&mut scene);
            let ended = Action::WriteStatus(vec![StatusChange::EndRestart]);
            assert_eq!(scene.decide().action, ended, "{index}");
        }
        let goes_on: [fn(&mut Scene); 2] = [
            |scene| scene.report_mut(2).settings = "older".to_owned(),
            |scene| scene.report_mut(2).state = crate::protocol::MemberState::Starting,
        ];
        for (index, before) in goes_on.into_iter().enumerate() {
            let mut scene = scene.clone();
            scene.report_mut(2).pending_restart = false;
            before(&mut scene);
            let decision = scene.decide();
            assert_eq!(decision.because.to_string(), "demo-2 to restart PostgreSQL", "{index}");
        }
    }

    #[test]
    fn one_that_does_not_serve_is_let_restart_only_if_that_can_help() {
        let mut scene = Scene::pending_restart(false);
        scene.pod_mut(2).ready = false;
        assert_eq!(scene.permitted(), Some("demo-2".to_owned()));
        let useless: [fn(&mut Scene); 3] = [
            |scene| scene.pod_mut(2).terminating = true,
            |scene| scene.report_mut(2).settings = "older".to_owned(),
            |scene| scene.report_mut(2).fault = Some(crate::protocol::FAULT_SILENT.to_owned()),
        ];
        for (index, useless) in useless.into_iter().enumerate() {
            let mut scene = scene.clone();
            useless(&mut scene);
            assert_eq!(scene.permitted(), None, "{index}");
        }
        scene.store();
        scene.now += RESTART_PATIENCE;
        let again = scene.decide().action;
        assert!(
            matches!(again, Action::Wait(_)),
            "to give it once more changes nothing: {again:?}"
        );
        scene.pod_mut(1).ready = false;
        assert_eq!(
            scene.permitted(),
            Some("demo-1".to_owned()),
            "the other one has its turn"
        );
    }

    #[test]
    fn the_primary_goes_after_a_standby_that_makes_no_use_of_its_permit_whatever_their_numbers() {
        let mut scene = Scene::pending_restart(false);
        scene.elect(2);
        scene.report_mut(1).pending_restart = false;
        assert_eq!(scene.permitted(), Some("demo-0".to_owned()));
        scene.store();
        scene.now += RESTART_PATIENCE;
        assert_eq!(scene.permitted(), None);
    }

    #[test]
    fn a_permit_ends_with_its_pod_or_its_settings() {
        let mut scene = Scene::pending_restart(false);
        scene.store();
        scene.pod_mut(2).uid = "another".to_owned();
        scene.stored.members.get_mut("demo-2").unwrap().pod_uid = Some("another".to_owned());
        let report = scene.report_mut(2);
        (report.pod_uid, report.pending_restart) = ("another".to_owned(), false);
        assert_eq!(scene.permitted(), Some("demo-1".to_owned()));
        scene.edit(|spec| {
            spec.postgres.parameters.insert("work_mem".to_owned(), "8MB".to_owned());
        });
        assert_eq!(scene.decide().action.name(), "WriteStatus", "the permit is taken back");
    }
}
