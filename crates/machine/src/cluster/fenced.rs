//! `spec.fenced`: instances whose PostgreSQL the user has stopped, to look at what is on their volumes. Their agents stop
//! it, and a primary hands over; here they are left alone, and it is said who they are and who can end it.

use api::status::WaitReason;

use super::decision::Step;
use super::facts::fenced::{all, any, is_fenced};
use super::facts::{Facts, list};
use super::observed::Pod;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::WaitKey;
use crate::protocol::{MemberReport, MemberState};

/// See [`Rule::what`].
pub const ALL_FENCED: Rule = Rule {
    name: "all-fenced",
    family: "fenced",
    what: "While spec.fenced names all instances, or the one that is to make the first database, nothing can go on, and only the user can end that.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: all_fenced,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const AWAIT_FENCED: Rule = Rule {
    name: "await-fenced",
    family: "fenced",
    what: "While spec.fenced names an instance and all others serve, the status says so: first that it was asked to stop, then that it has stopped.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_fenced,
    on_backoff: OnBackoff::Hold,
};

/// PostgreSQL is known not to run in this instance: its agent says so. What an agent that is silent said last is no proof.
/// Nor is a pod that is gone, or that nothing runs in: the one before it may run on, on a node that nobody hears.
fn has_stopped(facts: &Facts<'_>, pod: &str) -> bool {
    let Some(pods) = facts.observed.pods.get() else {
        return false;
    };
    let says_so = |report: &MemberReport| report.state == MemberState::Stopped && !report.is_silent();
    let last_word = facts.lease.and_then(|lease| lease.members.get(pod));
    let never_was = !facts.status.members.contains_key(pod);
    let runs_something = |found: &&Pod| found.name == pod && found.node.is_some() && found.image_error.is_none();
    !facts.bootstrapped()
        || match pods.iter().find(runs_something) {
            Some(pod) => facts.report(pod).is_some_and(says_so),
            None => last_word.map_or(never_was, says_so),
        }
}

/// Fenced instances whose PostgreSQL may still run.
fn unconfirmed<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a str> {
    let fenced = facts.wanted.spec.fenced.iter().map(String::as_str);
    let facts = *facts;
    fenced.filter(move |pod| !has_stopped(&facts, pod))
}

/// PostgreSQL is known not to run in any instance that is fenced.
pub(super) fn is_confirmed(facts: &Facts<'_>) -> bool {
    unconfirmed(facts).next().is_none()
}

/// Where the fence of the instance in this pod stands, in words; `None` if it is not fenced.
pub fn fence_of(facts: &Facts<'_>, pod: &str) -> Option<&'static str> {
    is_fenced(facts, pod).then(|| {
        if has_stopped(facts, pod) {
            "fenced"
        } else {
            "to be fenced: that it has stopped is not confirmed"
        }
    })
}

/// Who is fenced, and who was only asked to stop, in a sentence.
pub(super) fn words(facts: &Facts<'_>) -> String {
    let stopped = facts.wanted.spec.fenced.iter().map(String::as_str);
    let stopped = list(stopped.filter(|pod| has_stopped(facts, pod)));
    let fenced = format!("fenced by the user: {stopped}");
    if is_confirmed(facts) {
        return fenced;
    }
    let asked = format!(
        "asked to stop by spec.fenced, and not confirmed{}: {}",
        since(facts),
        list(unconfirmed(facts))
    );
    if stopped.is_empty() {
        asked
    } else {
        format!("{asked}; {fenced}")
    }
}

/// Since when the stop is waited for, if it is.
fn since(facts: &Facts<'_>) -> String {
    let waiting = facts.status.waiting.as_ref();
    let since = waiting
        .filter(|waiting| waiting.reason == Some(WaitReason::FencedStop))
        .map(|waiting| waiting.since);
    since.map_or_else(String::new, |since| format!(" since {}", since.format("%FT%TZ")))
}

/// Waits for those that were asked to stop and have not confirmed it.
fn await_stop(facts: &Facts<'_>) -> Option<Proposal> {
    if is_confirmed(facts) {
        return None;
    }
    let is_silent = |pod: &&str| {
        facts
            .lease
            .is_some_and(|lease| lease.members.get(*pod).is_some_and(MemberReport::is_silent))
    };
    let silent = list(unconfirmed(facts).filter(is_silent));
    let who = if facts.holder().is_none() {
        "their agents, once a primary serves to whom they can report".to_owned()
    } else if silent.is_empty() {
        "their agents".to_owned()
    } else {
        format!("their agents; silent, so that PostgreSQL may still run there: {silent}")
    };
    let who = format!("{who}; or the user, by changing spec.fenced");
    let keys = unconfirmed(facts).map(|pod| WaitKey::pod(WaitReason::FencedStop, pod));
    let what = format!("PostgreSQL to stop in {}, by spec.fenced", list(unconfirmed(facts)));
    Proposal::wait_for_all(facts, Step::Stopping, keys, what, who)
}

fn wait(facts: &Facts<'_>, what: String) -> Option<Proposal> {
    let who = "the user, by changing spec.fenced";
    Proposal::wait(facts, Step::Fenced, WaitReason::Unfencing, what, who)
}

fn all_fenced(facts: &Facts<'_>) -> Option<Proposal> {
    if all(facts) {
        let names = list(facts.wanted.spec.fenced.iter().map(String::as_str));
        let what = format!("an instance that may be primary: {names} are all fenced");
        return await_stop(facts).or_else(|| wait(facts, what));
    }
    let grant = facts.status.intent.bootstrap.as_ref();
    let maker = grant.filter(|grant| !facts.bootstrapped() && is_fenced(facts, &grant.pod))?;
    wait(facts, format!("{} to make the first database: it is fenced", maker.pod))
}

fn await_fenced(facts: &Facts<'_>) -> Option<Proposal> {
    if !any(facts) {
        return None;
    }
    let names = list(facts.wanted.spec.fenced.iter().map(String::as_str));
    await_stop(facts).or_else(|| wait(facts, format!("{names} to be fenced no more")))
}

#[cfg(test)]
mod tests;
