//! Nothing can be done now: what this member waits for, and who can end the wait.

use std::borrow::Cow;

use super::bootstrap::is_granted;
use super::facts::following::is_admitted;
use super::facts::{Context, Tenure};
use super::{Data, Draft, Mode, OnBackoff, Reading, Rule, RuleKind, Verdict, Work, election, handover, own};

pub(super) const WAIT: Rule = Rule {
    name: "wait",
    family: "waiting",
    what: "Does nothing, and says what this member waits for and who can end the wait.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: wait,
    on_backoff: OnBackoff::Yield,
};

/// Always applies.
fn wait(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    Verdict::wait(in_flight(context).or_else(|| unread(context)).unwrap_or_else(|| {
        match election::waiting(context, draft.memo)
            .map(Cow::into_owned)
            .or_else(|| own::fault(context, draft.memo))
            .or_else(|| handover::waiting(context))
        {
            Some(waited_for) => waited_for.into(),
            None => role(context),
        }
    }))
}

fn in_flight(context: &Context) -> Option<Cow<'static, str>> {
    let work = context.tasks().volume.running.or(context.tasks().start.running)?;
    Some(match work {
        Work::Initdb => "the first database is being made".into(),
        Work::Clone => "the primary is being copied".into(),
        Work::StartPrimary => "PostgreSQL is being started for writing".into(),
        Work::StartStandby => "PostgreSQL is being started as standby".into(),
        Work::CreateMember
        | Work::StoreCertificate
        | Work::DiscardStaging
        | Work::TakeSnapshot
        | Work::Configure
        | Work::WriteLease
        | Work::ReadLease
        | Work::Route
        | Work::Admit
        | Work::DropSlots
        | Work::Report
        | Work::Promise
        | Work::Ask
        | Work::Failsafe
        | Work::SetSync
        | Work::Open
        | Work::Checkpoint
        | Work::Rewind
        | Work::FetchWal
        | Work::SetAside
        | Work::DiscardKept
        | Work::Promote => "the volume is being prepared".into(),
    })
}

fn unread(context: &Context) -> Option<Cow<'static, str>> {
    if context.observed.cluster.is().is_none() {
        return Some("the ClusteredDatabase has not been read".into());
    }
    match &context.observed.lease.record {
        Reading::Unknown => return Some("the Lease has not been read".into()),
        Reading::Missing => return Some("the Lease is missing: it must not be made again without proof".into()),
        Reading::Is(_) => {}
    }
    let Some(volume) = context.volume() else {
        return Some("the data volume could not be read".into());
    };
    if volume.data == Data::Unknown {
        return Some("what is on the data volume could not be read".into());
    }
    if volume.member.is_none() {
        return Some("the operator has not published the UID of this pod's claim (status.instances)".into());
    }
    None
}

fn role(context: &Context) -> Cow<'static, str> {
    let empty = context.database().is_none();
    match (context.tenure(), context.running()) {
        (Tenure::Held { .. }, Some(Mode::Primary)) if context.serving() => {
            "this member holds the lease and serves writes".into()
        }
        (Tenure::Held { .. }, Some(_)) if context.accepting() => {
            "PostgreSQL can write, and opens once the synchronous members have all WAL that is in doubt".into()
        }
        (Tenure::Held { .. }, Some(_)) => "PostgreSQL recovers, to serve writes".into(),
        (Tenure::Held { .. }, None) => "PostgreSQL is about to be started again".into(),
        (Tenure::Lapsed, _) => "the lease must be renewed".into(),
        (Tenure::OwnBefore(_), _) => "the lease of the previous run must run out".into(),
        (Tenure::Other(holder), Some(_)) if streams(context) => {
            format!("streams from {}", holder.incarnation.pod).into()
        }
        (Tenure::Other(holder), Some(_)) => {
            format!("PostgreSQL must start to stream from {}", holder.incarnation.pod).into()
        }
        (Tenure::Other(holder), None) if empty => to_clone(context, &holder.incarnation.pod),
        (Tenure::Other(_), None) => "PostgreSQL is about to be started as standby".into(),
        (Tenure::Vacant, Some(_)) => "the lease has no holder; reads are served".into(),
        (Tenure::Vacant, None) if empty && is_granted(context) => "the first database will be made here".into(),
        (Tenure::Vacant, None) if empty => {
            "the lease has no holder, and the bootstrap is not granted to this volume".into()
        }
        (Tenure::Vacant, None) => "the lease has no holder".into(),
        (Tenure::Unknown, _) => "the Lease cannot be read".into(),
    }
}

fn streams(context: &Context) -> bool {
    context.observed.postgres.answer.is_some_and(|answer| answer.streaming)
}

fn to_clone(context: &Context, primary: &str) -> Cow<'static, str> {
    if !is_admitted(context) {
        return format!("{primary} has not made this member's replication slot yet").into();
    }
    if context.member().is_some_and(|member| member.certificate.is_none()) {
        return "the operator has not signed the replication certificate yet".into();
    }
    format!("{primary} must serve before it can be copied").into()
}

#[cfg(test)]
mod tests;
