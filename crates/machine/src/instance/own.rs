//! What a member reports about itself.

use super::facts::lineage;
use super::facts::{Context, Tenure};
use super::{Memo, Mode, Work, crash, identity, room, stalled};
use crate::protocol::{MemberReport, MemberState, certificate_digest};

/// This member's report, without what only the memory knows. The holder writes it into the Lease about itself.
pub(super) fn own(context: &Context) -> Option<MemberReport> {
    own_with(context, &Memo::default())
}

pub(super) fn own_with(context: &Context, memo: &Memo) -> Option<MemberReport> {
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
        certificates: observed.certificates.clone(),
        replication_certificate: member
            .certificate
            .as_ref()
            .map(|certificate| certificate_digest(certificate.as_bytes(), b"")),
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

/// What keeps this member from its work, as text.
pub(super) fn fault(context: &Context, memo: &Memo) -> Option<String> {
    let failed = |what: &str, task: &super::Task| {
        let error = task.error.as_ref().filter(|_| task.failures > 0)?;
        Some(format!("{what}: {error}"))
    };
    // A running member no longer needed the failed work: it is not repeated, and a member with a fault would not be
    // chosen for a handover.
    let is_idle = context.running().is_none();
    identity::fault(context)
        .or_else(|| refusal(context))
        .or_else(|| lineage::fault(context))
        .or_else(|| room::fault(context))
        .or_else(|| stalled::fault(context, memo))
        .or_else(|| crash::fault(context, memo))
        .or_else(|| failed("prepare the volume", &context.tasks().volume).filter(|_| is_idle))
        .or_else(|| failed("start PostgreSQL", &context.tasks().start))
}

/// Why PostgreSQL, which runs, refuses its agent.
pub(super) fn refusal(context: &Context) -> Option<String> {
    let words = context.observed.postgres.refusal.as_ref()?;
    context.running()?;
    Some(format!(
        "PostgreSQL refuses its agent; correct spec.postgres.parameters: {words}"
    ))
}
