//! Changes of settings and of the pod template: standbys first from the highest ordinal, the primary last, one at a time.
//!
//! Two rules hold it together. A member that is not at the target and does not serve may always be brought there. One
//! that serves is only taken down while all others serve: so a change that does not work stops after one member.

use api::status::RestartPermit;

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::facts::{Facts, list};
use super::members::exact;
use super::observed::Pod;
use super::rule::{Proposal, Rule};

/// See [`Rule::what`].
pub const REPLACE_IDLE: Rule = Rule {
    name: "replace-idle",
    family: "rollout",
    what: "A pod of an older template that is not ready is replaced at once, unless the wanted image is known not to run.",
    propose: replace_idle,
    passable: false,
};

/// See [`Rule::what`].
pub const REPLACE_SERVING: Rule = Rule {
    name: "replace-serving",
    family: "rollout",
    what: "A pod of an older template that serves is replaced while all others serve: the highest standby first, the primary last.",
    propose: replace_serving,
    passable: false,
};

/// See [`Rule::what`].
pub const RESTART: Rule = Rule {
    name: "restart",
    family: "rollout",
    what: "Members whose settings need a restart get the permit one after another; the primary last, or first if a limit that binds standbys is lowered.",
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

fn outdated<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a Pod> {
    let revision = facts.wanted.revision;
    facts
        .pods()
        .iter()
        .rev()
        .filter(move |pod| !pod.terminating && pod.revision.as_deref() != Some(revision))
}

fn replace(pod: &Pod, because: String) -> Option<Proposal> {
    Proposal::act(Step::Rollout, Action::ReplacePod(exact(pod)), because)
}

fn replace_idle(facts: &Facts<'_>) -> Option<Proposal> {
    let pod = outdated(facts).find(|pod| !pod.ready)?;
    // Replacing it by one that cannot run helps nobody; a spec that is changed again makes the failing one outdated.
    let cannot_run = |pod: &Pod| facts.current_revision(pod) && !pod.terminating && pod.image_error.is_some();
    if facts.pods().iter().any(cannot_run) {
        return None;
    }
    replace(pod, format!("{} is of an older template and not ready", pod.name))
}

fn replace_serving(facts: &Facts<'_>) -> Option<Proposal> {
    let primary = facts.primary();
    let is_primary = |pod: &Pod| primary.is_some_and(|primary| primary.uid == pod.uid);
    let pod = outdated(facts)
        .find(|pod| !is_primary(pod))
        .or_else(|| outdated(facts).next())?;
    if primary.is_some() && facts.status.intent.restart.is_none() && facts.all_serve_except(Some(pod.ordinal)) {
        return replace(
            pod,
            format!("{} is of an older template, and all others serve", pod.name),
        );
    }
    None
}

fn restart(facts: &Facts<'_>) -> Option<Proposal> {
    let permit = facts.status.intent.restart.as_ref();
    if let Some(permit) = permit.filter(|permit| in_use(facts, permit)) {
        let what = format!("{} to restart PostgreSQL", permit.pod);
        return Proposal::wait(facts, Step::Settings, what, format!("the agent in pod {}", permit.pod));
    }
    let next = next_restart(facts);
    if let Some(pod) = next {
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
    let because = format!("{} has restarted, or need not any more", permit.pod);
    Proposal::act(
        Step::Settings,
        Action::WriteStatus(vec![StatusChange::EndRestart]),
        because,
    )
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
    permit.settings == facts.wanted.settings && pod.is_some_and(|pod| !done(pod))
}

/// The member that may restart now.
fn next_restart<'a>(facts: &Facts<'a>) -> Option<&'a Pod> {
    if outdated(facts).next().is_some() || refusal(facts).is_some() {
        return None;
    }
    let pending = |pod: &&Pod| {
        let report = facts.report(pod);
        report.is_some_and(|report| report.pending_restart && report.settings == facts.wanted.settings)
    };
    let mut all = facts.pods().iter().rev().filter(|pod| !pod.terminating).filter(pending);
    if let Some(idle) = all.clone().find(|pod| !facts.serves(pod)) {
        return Some(idle);
    }
    let primary = facts.primary()?;
    let lowers = facts
        .report(primary)
        .is_some_and(|report| report.pending_restart && report.lowers_limits);
    let next = if lowers {
        all.find(|pod| pod.uid == primary.uid)
    } else {
        all.clone().find(|pod| pod.uid != primary.uid)
    };
    let next = next.or_else(|| all.next())?;
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
    let late = || facts.pods().iter().filter(|pod| !facts.current_settings(pod));
    late().next()?;
    let what = format!("{} to take up the settings", list(late().map(|pod| pod.name.as_str())));
    Proposal::wait(facts, Step::Settings, what, "their agents")
}

/// See [`Rule::what`].
pub const AWAIT_ROLLOUT: Rule = Rule {
    name: "await-rollout",
    family: "rollout",
    what: "Pods of an older template that may not be replaced now are waited for, and that is said.",
    propose: await_rollout,
    passable: false,
};

fn await_rollout(facts: &Facts<'_>) -> Option<Proposal> {
    outdated(facts).next()?;
    let what = format!(
        "all others to serve, to replace {}",
        list(outdated(facts).map(|pod| pod.name.as_str()))
    );
    Proposal::wait(
        facts,
        Step::Rollout,
        what,
        "the agents, or the user by a change of the spec",
    )
}
