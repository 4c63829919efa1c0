//! A switchover that an operation asks for once ([`crate::operation::request`]). What came of it is remembered with the
//! request's text, so that only another operation asks again. How it is done is in [`super::switchover`].

use api::status::{RequestOutcome, SwitchoverRequest};
use chrono::TimeDelta;

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::facts::Facts;
use super::fenced;
use super::observed::Pod;
use super::restarts;
use super::rule::{Proposal, Rule};
use crate::protocol::MemberState;

/// See [`Rule::what`].
pub const REQUEST: Rule = Rule {
    name: "request",
    family: "request",
    what: "A switchover that an operation asks for is noted, and its outcome is. It is given up at once where spec.primary.prefer names another instance, and after 5 min in which it could not begin.",
    propose: request,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_REQUEST: Rule = Rule {
    name: "await-request",
    family: "request",
    what: "What keeps a requested switchover from beginning is said.",
    propose: await_request,
    passable: false,
};

/// Somebody stands by and expects it: one that happens much later is a surprise.
const PATIENCE: TimeDelta = TimeDelta::minutes(5);
/// Of the request's text so many bytes count: the status is to hold it.
const LONGEST: usize = 128;

/// The request's text.
fn value<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    let value = facts.wanted.switchover?;
    let end = (0..=LONGEST.min(value.len()))
        .rev()
        .find(|end| value.is_char_boundary(*end));
    Some(&value[..end.unwrap_or(0)])
}

/// The instance that a value names.
fn instance(value: &str) -> &str {
    value.split_once('/').map_or(value, |(instance, _)| instance)
}

/// The instance that is to be the primary by a request that is still open.
pub(super) fn open<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    let value = value(facts)?;
    let noted = facts.status.memo.request.as_ref()?;
    (noted.value == value && noted.outcome.is_none()).then(|| instance(value))
}

/// The open request, with the outcome that it has now.
pub(super) fn ended(facts: &Facts<'_>, outcome: RequestOutcome, why: String) -> Option<StatusChange> {
    open(facts)?;
    let noted = facts.status.memo.request.clone()?;
    Some(StatusChange::NoteRequest(Some(SwitchoverRequest {
        outcome: Some(outcome),
        message: Some(why),
        ..noted
    })))
}

fn write(change: StatusChange, because: String) -> Option<Proposal> {
    Proposal::act(Step::Switchover, Action::WriteStatus(vec![change]), because)
}

fn request(facts: &Facts<'_>) -> Option<Proposal> {
    let noted = facts.status.memo.request.as_ref();
    let Some(value) = value(facts) else {
        let taken_back = noted.filter(|noted| noted.outcome.is_none())?;
        let because = format!("the request {} was taken back", taken_back.value);
        return write(StatusChange::NoteRequest(None), because);
    };
    let Some(noted) = noted.filter(|noted| noted.value == value) else {
        let new = SwitchoverRequest {
            value: value.to_owned(),
            since: facts.now,
            outcome: None,
            message: None,
        };
        let because = format!("a switchover to {} is requested", instance(value));
        return write(StatusChange::NoteRequest(Some(new)), because);
    };
    let target = open(facts)?;
    let (outcome, why) = if facts.primary().is_some_and(|primary| primary.name == target) {
        (RequestOutcome::Done, format!("{target} is the primary"))
    } else if let Some(prefer) = contradicts(facts, target) {
        let why = format!(
            "the switchover to {target} is refused: spec.primary.prefer names {prefer}; change or remove that instead"
        );
        (RequestOutcome::GivenUp, why)
    } else if facts.now >= noted.since + PATIENCE && facts.status.intent.primary.as_deref() != Some(target) {
        let minutes = PATIENCE.num_minutes();
        let why = format!(
            "the switchover to {target} could not begin within {minutes} min: {}",
            obstacle(facts, target)
        );
        (RequestOutcome::GivenUp, why)
    } else {
        return None;
    };
    write(ended(facts, outcome, why.clone())?, why)
}

/// The instance that the spec prefers instead.
fn contradicts<'a>(facts: &Facts<'a>, target: &str) -> Option<&'a str> {
    let prefer = facts.wanted.spec.primary.preferred();
    prefer.filter(|prefer| *prefer != target)
}

fn obstacle(facts: &Facts<'_>, target: &str) -> String {
    match facts.primary() {
        None => "no primary serves that could hand over".to_owned(),
        Some(primary) => unfit(facts, primary, target).unwrap_or_else(|| "another change is under way".to_owned()),
    }
}

/// Why `primary` cannot hand over to the instance `target` now.
pub(super) fn unfit(facts: &Facts<'_>, primary: &Pod, target: &str) -> Option<String> {
    let replicas = facts.wanted.replicas();
    if (0..replicas).all(|ordinal| format!("{}-{ordinal}", facts.wanted.name) != target) {
        return Some(format!("there is no instance {target} among {replicas}"));
    }
    let Some(pod) = facts.pods().iter().find(|pod| pod.name == target) else {
        return Some(format!("{target} has no pod"));
    };
    if fenced::is_fenced(facts, target) {
        return Some(format!("spec.fenced names {target}"));
    }
    if !streams(facts, pod) {
        return Some(format!("{target} does not stream from the primary"));
    }
    if !facts.takes_pods(pod) && facts.takes_pods(primary) {
        return Some(format!(
            "the node of {target} takes no pods, so it would not stay primary"
        ));
    }
    if facts.current_revision(primary) && !facts.current_revision(pod) {
        return Some(format!("the pod of {target} is of an older template"));
    }
    let permit = restarts::restarting(facts)?;
    Some(format!("{} restarts PostgreSQL", permit.pod))
}

/// It serves as a standby that receives WAL.
pub(super) fn streams(facts: &Facts<'_>, pod: &Pod) -> bool {
    let report = facts.report(pod);
    let serves = facts.serves(pod) && !fenced::is_fenced(facts, &pod.name);
    serves && report.is_some_and(|report| report.state == MemberState::Streaming)
}

fn await_request(facts: &Facts<'_>) -> Option<Proposal> {
    let target = open(facts)?;
    let deadline = facts.status.memo.request.as_ref()?.since + PATIENCE;
    let what = format!("the requested switchover to {target}: {}", obstacle(facts, target));
    let who = "the agents, or the user by taking the operation back (spec.cancel)";
    Some(Proposal::wait(facts, Step::Switchover, what, who)?.until(deadline))
}

#[cfg(test)]
mod tests;
