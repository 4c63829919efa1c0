//! What an operation asks for once ([`api::operation::Request`]). It is noted before anything is done for it, and its outcome
//! is noted with it, so that only another operation asks again. A requested switchover is carried out in
//! [`super::switchover`].

use api::operation::{Action as Asked, Request};
use api::status::{NotedRequest, RequestOutcome, WaitReason};
use chrono::TimeDelta;

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::facts::Facts;
use super::facts::request::{open, open_request};
use super::facts::switchover::unfit;
use super::rule::{OnBackoff, Progress, Proposal, Rule, RuleKind};
use super::wait::WaitKey;
use super::{certificates, drift, image, in_place, loss, quarantine, rollout};

/// See [`Rule::what`].
pub const REQUEST: Rule = Rule {
    name: "request",
    family: "request",
    what: "What an operation asks for is noted, and so is its outcome.\n\
           - A default image is recorded if it is the operator's.\n\
           - A restart of all instances is a change of their template.\n\
           - A switchover is given up at once where spec.primary.prefer names another instance, and after 5 min in which it could not begin.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: request,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const ACCEPT_LOSS: Rule = Rule {
    name: "accept-loss",
    family: "request",
    what: "The loss of what missing instances have is accepted by an operation, in the Lease's present epoch and while no primary serves.\n\
           - Also where the database is paused or its spec invalid.\n\
           - The acceptance ends with the next epoch, and when the operation is taken back.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: accept_loss,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const AWAIT_REQUEST: Rule = Rule {
    name: "await-request",
    family: "request",
    what: "The status says what delays a requested switchover or a recovery in place.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_request,
    on_backoff: OnBackoff::Hold,
};

/// Somebody stands by and expects it: one that happens much later is a surprise.
const WAIT_LIMIT: TimeDelta = TimeDelta::minutes(5);

/// The open request, with the outcome that it has now.
pub(super) fn ended(facts: &Facts<'_>, outcome: RequestOutcome, why: String) -> Option<StatusChange> {
    open_request(facts)?;
    Some(closed(facts.status.memo.request.as_ref()?, outcome, why))
}

fn closed(noted: &NotedRequest, outcome: RequestOutcome, why: String) -> StatusChange {
    StatusChange::NoteRequest(Some(NotedRequest {
        outcome: Some(outcome),
        message: Some(why),
        ..noted.clone()
    }))
}

fn write(action: &Asked, change: StatusChange, because: String) -> Option<Proposal> {
    let step = match action {
        Asked::Switchover(_) => Step::Switchover,
        Asked::TakeImage(_) | Asked::Restart(_) => Step::Rollout,
        Asked::AcceptLoss(_) => Step::Primary,
        Asked::DiscardQuarantined(_) => Step::Volumes,
        Asked::RecreateLease(_) | Asked::RotateAuthority(_) => Step::Repair,
        Asked::Recover(_) | Asked::UndoRecovery(_) | Asked::ConfirmRecovery(_) => Step::Volumes,
    };
    Proposal::act(step, Action::WriteStatus(vec![change]), because)
}

/// Whether it goes before everything that keeps the operator from other work.
fn is_urgent(request: &Request) -> bool {
    match request.action {
        Asked::AcceptLoss(_) => true,
        Asked::Switchover(_)
        | Asked::TakeImage(_)
        | Asked::Restart(_)
        | Asked::DiscardQuarantined(_)
        | Asked::RecreateLease(_)
        | Asked::Recover(_)
        | Asked::UndoRecovery(_)
        | Asked::ConfirmRecovery(_)
        | Asked::RotateAuthority(_) => false,
    }
}

fn request(facts: &Facts<'_>) -> Option<Proposal> {
    proceed(facts, |request| !is_urgent(request))
}

fn accept_loss(facts: &Facts<'_>) -> Option<Proposal> {
    proceed(facts, is_urgent)
}

/// The next step of a request that `is_ours`.
fn proceed(facts: &Facts<'_>, is_ours: fn(&Request) -> bool) -> Option<Proposal> {
    let noted = facts.status.memo.request.as_ref();
    let Some(asked) = facts.wanted.request.filter(|asked| is_ours(asked)) else {
        let taken_back = noted.filter(|noted| noted.outcome.is_none() && is_ours(&noted.request))?;
        return take_back(facts, taken_back);
    };
    let Some(noted) = noted.filter(|noted| noted.request == *asked) else {
        return note(facts, asked);
    };
    let action = &open_request(facts)?.action;
    let progress = match action {
        Asked::Switchover(switchover) => switch_over(facts, noted, &switchover.to)?,
        Asked::TakeImage(take) => image::take(facts, &take.image)?,
        Asked::Restart(_) => rollout::restart_all(facts, &asked.uid)?,
        Asked::AcceptLoss(accept) => loss::accept(facts, accept.epoch)?,
        Asked::DiscardQuarantined(discard) => quarantine::discard(facts, discard)?,
        Asked::RecreateLease(_) => drift::recreated(facts)?,
        Asked::Recover(recover) => in_place::recover(facts, recover, &asked.uid)?,
        Asked::UndoRecovery(_) => in_place::undo(facts, &asked.uid)?,
        Asked::ConfirmRecovery(_) => in_place::confirm(facts, &asked.uid)?,
        Asked::RotateAuthority(_) => {
            Progress::Ends(RequestOutcome::Done, certificates::is_followed(facts, &asked.uid)?)
        }
    };
    match progress {
        Progress::Ends(outcome, why) => write(action, closed(noted, outcome, why.clone()), why),
        Progress::Changes(change, why) => write(action, change, why),
    }
}

/// A new request is open, unless it is refused as things are.
fn note(facts: &Facts<'_>, asked: &Request) -> Option<Proposal> {
    let refusal = match &asked.action {
        Asked::RecreateLease(_) => drift::refusal_to_recreate(facts)?,
        Asked::Recover(_) => in_place::refusal(facts),
        Asked::UndoRecovery(_)
        | Asked::ConfirmRecovery(_)
        | Asked::Switchover(_)
        | Asked::TakeImage(_)
        | Asked::Restart(_)
        | Asked::AcceptLoss(_)
        | Asked::DiscardQuarantined(_)
        | Asked::RotateAuthority(_) => None,
    };
    let because = format!("{} is requested", asked.action);
    let new = NotedRequest {
        request: asked.clone(),
        since: facts.now,
        outcome: refusal.is_some().then_some(RequestOutcome::GivenUp),
        message: refusal,
    };
    write(&asked.action, StatusChange::NoteRequest(Some(new)), because)
}

/// Nothing more is done for an open request. One that has been used meanwhile is done.
fn take_back(facts: &Facts<'_>, noted: &NotedRequest) -> Option<Proposal> {
    let action = &noted.request.action;
    let used = match action {
        Asked::AcceptLoss(accept) => loss::is_used(facts, accept.epoch),
        Asked::RotateAuthority(_) => certificates::is_followed(facts, &noted.request.uid),
        Asked::Switchover(_)
        | Asked::TakeImage(_)
        | Asked::Restart(_)
        | Asked::DiscardQuarantined(_)
        | Asked::RecreateLease(_)
        | Asked::Recover(_)
        | Asked::UndoRecovery(_)
        | Asked::ConfirmRecovery(_) => None,
    };
    if let Some(why) = used {
        return write(action, closed(noted, RequestOutcome::Done, why.clone()), why);
    }
    let because = format!("the request for {action} was taken back");
    write(action, StatusChange::NoteRequest(None), because)
}

fn switch_over(facts: &Facts<'_>, noted: &NotedRequest, target: &str) -> Option<Progress> {
    let (outcome, why) = if facts.primary().is_some_and(|primary| primary.name == target) {
        (RequestOutcome::Done, format!("{target} is the primary"))
    } else if let Some(prefer) = contradicts(facts, target) {
        let why = format!(
            "the switchover to {target} is refused: spec.primary.prefer names {prefer}; change or remove that instead"
        );
        (RequestOutcome::GivenUp, why)
    } else if facts.now >= noted.since + WAIT_LIMIT && facts.status.intent.primary.as_deref() != Some(target) {
        let minutes = WAIT_LIMIT.num_minutes();
        let why = format!(
            "the switchover to {target} could not begin within {minutes} min: {}",
            obstacle(facts, target)
        );
        (RequestOutcome::GivenUp, why)
    } else {
        return None;
    };
    Some(Progress::Ends(outcome, why))
}

/// The instance that the spec prefers instead.
fn contradicts<'a>(facts: &Facts<'a>, target: &str) -> Option<&'a str> {
    let prefer = facts.wanted.spec.primary.prefer.as_deref();
    prefer.filter(|prefer| *prefer != target)
}

fn obstacle(facts: &Facts<'_>, target: &str) -> String {
    match facts.primary() {
        None => "no primary serves that could hand over".to_owned(),
        Some(primary) => unfit(facts, primary, target).unwrap_or_else(|| "another change is under way".to_owned()),
    }
}

fn await_request(facts: &Facts<'_>) -> Option<Proposal> {
    if let Some(check) = in_place::await_check(facts) {
        return Some(check);
    }
    let target = open(facts)?;
    let deadline = facts.status.memo.request.as_ref()?.since + WAIT_LIMIT;
    let what = format!("the requested switchover to {target}: {}", obstacle(facts, target));
    let who = "the agents, or the user by taking the operation back (spec.cancel)";
    let key = WaitKey::pod(WaitReason::SwitchoverStart, target);
    Some(Proposal::wait(facts, Step::Switchover, key, what, who)?.until(deadline))
}

#[cfg(test)]
mod tests;
