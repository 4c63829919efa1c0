//! What a member says of itself: to the primary, to the kubelet; and what the primary answers.

use super::context::{Context, Tenure};
use super::lineage::{Lineage, lineage};
use super::{
    Action, Draft, Memo, Mode, Observed, Rule, Verdict, Work, crash, durability, give_way, identity, room, stalled,
    standby,
};
use crate::protocol::{Epoch, MemberReport, MemberState, ReportReply, ReportRequest};
use crate::timing::BootTime;

/// Distance between reports that say nothing new, in milliseconds.
const INTERVAL: u64 = 1_000;
/// The same while something is waited for that only the primary's answer can tell, in milliseconds.
const INTERVAL_WAITING: u64 = 200;
/// Longest wait between failed reports, in milliseconds.
const RETRY: u64 = 1_000;

pub(super) const REPORT: Rule = Rule {
    name: "report",
    family: "report",
    what: "Tells the primary about this member: news at once, otherwise each second.",
    protocol: &[7],
    decide: send,
};

/// Tells the primary: at once what is new, else every second (its position, and that it is there).
pub(super) fn send(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let primary = standby::upstream(context)?;
    let epoch = context.record()?.epoch;
    let report = own_with(context, draft.memo)?;
    let free = context.tasks().report.free_at(RETRY)?;
    let (due, because) = match &context.observed.reply {
        // A later epoch than this member knows of is no news of its own: it waits for the Lease.
        Some(reply) if reply.epoch >= epoch && reply.report == report => {
            let distance = if reply.admitted { INTERVAL } else { INTERVAL_WAITING };
            (reply.sent.plus(distance), "the primary is told the position again")
        }
        Some(_) | None => (context.now, "the primary is told something new"),
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
    };
    Verdict::new(
        Action::Report {
            address: primary.address.clone(),
            request: Box::new(request),
        },
        because,
    )
}

/// The answer to a member's report; `Err` says why it is refused. A report that is answered is to be remembered
/// ([`super::heard::report`]).
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
    // Who receives WAL misses none.
    let receives = observed.postgres.receiving.contains_key(member);
    Ok(ReportReply {
        epoch,
        admitted: context.accepting() && observed.admitted.contains(member),
        gives_way: give_way::is_said(memo, epoch),
        oldest: observed.postgres.oldest.filter(|_| !receives),
        awaits: durability::awaits(&context, member),
    })
}

/// This member, as it would report itself now; `None` before it has an identity.
pub fn status(observed: &Observed, memo: &Memo, now: BootTime) -> Option<ReportRequest> {
    let context = Context::new(observed, now);
    Some(ReportRequest {
        epoch: context.record().map(|record| record.epoch).unwrap_or_default(),
        pod: observed.own.pod.clone(),
        report: own_with(&context, memo)?,
        position: observed.postgres.answer.and_then(|answer| answer.position),
        replayed: observed.postgres.answer.and_then(|answer| answer.replayed),
        promised: promised(&context),
    })
}

fn promised(context: &Context) -> Epoch {
    let promise = context.volume().and_then(|volume| volume.promise);
    promise.map(|promise| promise.epoch).unwrap_or_default()
}

/// Whether this member serves in its role; if not, why.
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
            Err("the standby's data went another way than the primary's".to_owned())
        }
        (Some(Mode::Primary | Mode::Standby), Some(_)) if give_way::is_mute(&context) => {
            Err("PostgreSQL takes no new sessions".to_owned())
        }
        (Some(Mode::Primary | Mode::Standby), Some(_)) => Ok(()),
    }
}

/// This member's report, without what only the memo knows: what the holder writes about itself.
pub(super) fn own(context: &Context) -> Option<MemberReport> {
    own_with(context, &Memo::default())
}

fn own_with(context: &Context, memo: &Memo) -> Option<MemberReport> {
    let observed = context.observed;
    let member = context.member()?;
    let postgres = &observed.postgres;
    let running = context.running().and(postgres.configured.as_ref());
    let refused = postgres.refused.as_ref();
    let refused = refused.filter(|refused| {
        context
            .cluster()
            .is_some_and(|cluster| cluster.settings == refused.settings)
    });
    let mut report = MemberReport {
        pod_uid: observed.own.pod_uid.clone(),
        member: member.id.clone(),
        address: observed.own.address.clone(),
        state: state(context),
        settings: running
            .map(|configured| configured.settings.clone())
            .unwrap_or_default(),
        pending_restart: postgres.answer.is_some_and(|answer| answer.pending_restart),
        lowers_limits: running.is_some_and(|configured| configured.raised.is_some())
            || postgres
                .answer
                .is_some_and(|answer| answer.pending_restart && answer.lowers_limits),
        settings_error: refused.map(|refused| refused.error.clone()),
        public_key: Some(member.public_key.clone()),
        server_version: postgres.version.clone(),
        agent_version: observed.own.agent_version.clone(),
        fault: fault(context, memo),
        kept: observed.kept.clone(),
        impostors: postgres
            .doubt
            .as_ref()
            .map(|doubt| doubt.roles.clone())
            .unwrap_or_default(),
        full: observed.full.clone(),
    };
    report.cut();
    Some(report)
}

fn state(context: &Context) -> MemberState {
    match context.tasks().volume.running {
        Some(Work::Initdb) => return MemberState::Initializing,
        Some(Work::Clone) => return MemberState::Cloning,
        Some(_) | None => {}
    }
    let held = matches!(context.tenure(), Tenure::Held { .. });
    match (context.running(), context.observed.postgres.answer) {
        (Some(Mode::Primary), Some(_)) if held && context.serving() => MemberState::Primary,
        (Some(Mode::Standby), Some(answer)) if answer.streaming => MemberState::Streaming,
        (Some(Mode::Standby), Some(_)) => MemberState::CatchingUp,
        (Some(_), _) => MemberState::Starting,
        (None, _) if context.starting().is_some() => MemberState::Starting,
        (None, _) if context.stop_intended() || context.fenced() || context.observed.terminating => {
            MemberState::Stopped
        }
        (None, _) => MemberState::Waiting,
    }
}

/// What keeps this member from its work, in words.
pub(super) fn fault(context: &Context, memo: &Memo) -> Option<String> {
    let failed = |what: &str, task: &super::Task| {
        let error = task.error.as_ref().filter(|_| task.failures > 0)?;
        Some(format!("{what}: {error}"))
    };
    // One that runs needed it no more: it is not tried again, and nobody would hand over to what has failed.
    let is_idle = context.running().is_none();
    identity::fault(context)
        .or_else(|| refusal(context))
        .or_else(|| standby::fault(context))
        .or_else(|| room::fault(context))
        .or_else(|| stalled::fault(context, memo))
        .or_else(|| crash::fault(context, memo))
        .or_else(|| failed("prepare the volume", &context.tasks().volume).filter(|_| is_idle))
        .or_else(|| failed("start PostgreSQL", &context.tasks().start))
}

/// PostgreSQL runs, and refuses its agent.
fn refusal(context: &Context) -> Option<String> {
    let words = context.observed.postgres.refusal.as_ref()?;
    context.running()?;
    Some(format!(
        "PostgreSQL refuses its agent; correct spec.postgres.parameters: {words}"
    ))
}

#[cfg(test)]
mod tests;
