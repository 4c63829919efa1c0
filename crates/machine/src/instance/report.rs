//! What a member reports to the primary and to the kubelet, and what the primary answers.

use super::facts::Context;
use super::facts::following::upstream;
use super::facts::lineage::{Lineage, lineage};
use super::own::{own_with, refusal};
use super::{Action, Draft, Memo, Mode, Observed, OnBackoff, Rule, RuleKind, Verdict, backup, durability, step_down};
use crate::protocol::{Epoch, ReportReply, ReportRequest};
use crate::timing::BootTime;
use crate::units::Millis;

/// Interval between reports without news.
const INTERVAL: Millis = Millis::seconds(1);
/// The same while this member waits for something that only the primary's answer can show.
const INTERVAL_WAITING: Millis = Millis(200);
/// Longest back-off between failed reports.
const RETRY: Millis = Millis::seconds(1);

pub(super) const REPORT: Rule = Rule {
    name: "report",
    family: "report",
    what: "Reports this member to the primary: news at once, otherwise each second.",
    protocol: &[7],
    kind: RuleKind::Act,
    decide: send,
    on_backoff: OnBackoff::Yield,
};

/// Reports news at once, and otherwise each second (the member's position, and that it is alive).
pub(super) fn send(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let primary = upstream(context)?;
    let epoch = context.record()?.epoch;
    let report = own_with(context, draft.memo)?;
    let free = context.tasks().report.free_at(RETRY)?;
    let (due, because) = match &context.observed.reply {
        // An answer of a later epoch is no reason to report: this member waits for the Lease to show it.
        Some(reply) if reply.epoch >= epoch && reply.report == report => {
            let distance = if reply.admitted { INTERVAL } else { INTERVAL_WAITING };
            (reply.sent.plus(distance), "the position is reported again")
        }
        Some(_) | None => (context.now, "the report has news for the primary"),
    };
    let due = due.max(free);
    if !context.reached(due, draft) {
        return None;
    }
    let answer = context.observed.postgres.answer;
    let request = ReportRequest {
        epoch,
        pod: context.observed.own.pod.clone(),
        report,
        position: answer.and_then(|answer| answer.position),
        replayed: answer.and_then(|answer| answer.replayed),
        promised: promised(context),
        backup: backup::reported(context, draft.memo),
    };
    Verdict::new(
        Action::Report {
            address: primary.address.clone(),
            request: Box::new(request),
        },
        because,
    )
}

/// The answer to a member's report; `Err` says why it is refused. An answered report must be remembered
/// ([`super::heard::report`]).
///
/// # Errors
/// Fails if this member does not hold the lease, or the report does not fit the Lease.
pub(super) fn answer(
    observed: &Observed,
    memo: &Memo,
    now: BootTime,
    request: &ReportRequest,
) -> Result<ReportReply, String> {
    let context = Context::new(observed, now);
    let Some((epoch, _)) = context.held() else {
        return Err("this member does not hold the lease".to_owned());
    };
    if request.epoch > epoch {
        return Err(format!(
            "this member holds the lease of epoch {}, not of {}",
            epoch.0, request.epoch.0
        ));
    }
    if request.pod == observed.own.pod {
        return Err("this is the pod that reports".to_owned());
    }
    let member = &request.report.member;
    // A member that receives WAL misses none.
    let receives = observed.postgres.receiving.contains_key(member);
    Ok(ReportReply {
        epoch,
        admitted: context.accepting() && observed.admitted.contains(member),
        steps_down: step_down::is_said(memo, epoch),
        oldest: observed.postgres.oldest.filter(|_| !receives),
        awaits: durability::awaits(&context, member),
    })
}

/// This member's report as of now; `None` before it has an identity.
pub fn status(observed: &Observed, memo: &Memo, now: BootTime) -> Option<ReportRequest> {
    let context = Context::new(observed, now);
    Some(ReportRequest {
        epoch: context.record().map(|record| record.epoch).unwrap_or_default(),
        pod: observed.own.pod.clone(),
        report: own_with(&context, memo)?,
        position: observed.postgres.answer.and_then(|answer| answer.position),
        replayed: observed.postgres.answer.and_then(|answer| answer.replayed),
        promised: promised(&context),
        backup: backup::reported(&context, memo),
    })
}

fn promised(context: &Context) -> Epoch {
    let promise = context.volume().and_then(|volume| volume.promise);
    promise.map(|promise| promise.epoch).unwrap_or_default()
}

/// True if this member serves in its role; otherwise the error says why not.
///
/// # Errors
/// Says why the member does not serve: `spec.fenced` names it, PostgreSQL is not available, or it does not have the
/// role, lease or data for serving.
pub fn readiness(observed: &Observed, now: BootTime) -> Result<(), String> {
    let context = Context::new(observed, now);
    if context.fenced() {
        return Err("spec.fenced names this instance".to_owned());
    }
    match (context.running(), observed.postgres.answer) {
        (None, _) => Err("PostgreSQL does not run".to_owned()),
        (Some(_), None) => Err(refusal(&context).unwrap_or_else(|| "PostgreSQL accepts no connections".to_owned())),
        (Some(Mode::Primary), Some(_)) if context.held().is_none() => Err("the lease is not held".to_owned()),
        (Some(Mode::Primary), Some(answer)) if answer.in_recovery => Err("PostgreSQL recovers".to_owned()),
        (Some(Mode::Standby), Some(answer)) if !answer.in_recovery => {
            Err("the standby was promoted by hand, without the lease".to_owned())
        }
        (Some(Mode::Standby), Some(_)) if !observed.postgres.streamed => {
            Err("the standby has not streamed from the primary yet".to_owned())
        }
        (Some(Mode::Standby), Some(_)) if matches!(lineage(&context), Lineage::Diverged { .. }) => {
            Err("the standby's data has diverged from the primary's".to_owned())
        }
        (Some(Mode::Primary | Mode::Standby), Some(_)) if step_down::is_mute(&context) => {
            Err("PostgreSQL accepts no new sessions".to_owned())
        }
        (Some(Mode::Primary | Mode::Standby), Some(_)) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
