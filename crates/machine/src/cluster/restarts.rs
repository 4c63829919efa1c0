//! Settings: taken up by every agent; those that need a restart by one member after another, by permit.

use api::status::{RestartPermit, WaitReason};

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::facts::restarts::{RESTART_LIMIT, in_use, refusal, restart_deadline, restart_of, restarting};
use super::facts::rollout::{next, supervised};
use super::facts::{Facts, fenced, list, resize, wal};
use super::observed::Pod;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::WaitKey;

/// See [`Rule::what`].
pub const RESTART: Rule = Rule {
    name: "restart",
    family: "rollout",
    what: "Members whose settings need a restart get the permit one after another: the primary last, or first if a limit that binds standbys is lowered.\n\
           - A standby that does not use its permit for 2 min lets the other standbys go before it.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: restart,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const AWAIT_SETTINGS: Rule = Rule {
    name: "await-settings",
    family: "rollout",
    what: "Members that have not taken up the wanted settings are waited for; PostgreSQL's refusal is shown.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_settings,
    on_backoff: OnBackoff::Hold,
};

fn restart(facts: &Facts<'_>) -> Option<Proposal> {
    let permit = facts.status.intent.restart.as_ref();
    if let Some(permit) = restarting(facts) {
        let who = format!("the agent in pod {}", permit.pod);
        let wait = wait_for_restart(facts, permit, who)?;
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
        let minutes = RESTART_LIMIT.num_minutes();
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

fn wait_for_restart(facts: &Facts<'_>, permit: &RestartPermit, who: String) -> Option<Proposal> {
    let what = format!("{} to restart PostgreSQL", permit.pod);
    Proposal::wait(facts, Step::Settings, restart_of(permit), what, who)
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

fn await_settings(facts: &Facts<'_>) -> Option<Proposal> {
    if let Some((pod, error)) = refusal(facts) {
        let what = format!("settings that PostgreSQL accepts; {} says: {error}", pod.name);
        return Proposal::wait(
            facts,
            Step::Settings,
            WaitKey::pod(WaitReason::SettingsAcceptance, &pod.name),
            what,
            "the user, by changing spec.postgres.parameters",
        );
    }
    let permit = facts.status.intent.restart.as_ref();
    if let Some(permit) = permit.filter(|permit| in_use(facts, permit)) {
        let who = format!("the agent in pod {}, which was let do it long ago", permit.pod);
        return wait_for_restart(facts, permit, who);
    }
    let pods = facts.pods().iter();
    let late = pods
        .filter(|pod| !facts.settled_settings(pod))
        .map(|pod| pod.name.as_str());
    late.clone().next()?;
    let keys = late.clone().map(|name| WaitKey::pod(WaitReason::SettingsReload, name));
    let what = format!("{} to take up the settings", list(late));
    Proposal::wait_for_all(facts, Step::Settings, keys, what, "their agents")
}

#[cfg(test)]
mod tests;
