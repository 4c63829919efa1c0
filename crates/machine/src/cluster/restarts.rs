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
mod tests;
