//! All members except the holder: they copy the primary if they have no data, and otherwise follow it.

use super::crash::may_start;
use super::facts::following::{is_admitted, to_follow, to_start_with, upstream, was_primary};
use super::facts::lineage::{Lineage, lineage};
use super::facts::promises::is_kept;
use super::facts::{Context, Tenure};
use super::identity::{is_sound, volume_is_free};
use super::memo::Change;
use super::{Action, Copied, Data, Draft, Memo, Mode, OnBackoff, Rule, RuleKind, Verdict, loss, stopping};
use crate::timing::BootTime;
use crate::units::Millis;

/// How long after its start a standby that answers no questions is left alone before it is stopped to follow another
/// primary. If its data is nearly consistent it answers by then, and a reload gives it the new address.
const MUTE: Millis = Millis::seconds(5);

/// Longest back-off between failed tries to end a stream.
const RETRY: Millis = Millis::seconds(1);

pub(super) const CLONE: Rule = Rule {
    name: "clone",
    family: "standby",
    what: "Copies the primary onto an empty volume.",
    protocol: &[6],
    kind: RuleKind::Act,
    decide: clone,
    on_backoff: OnBackoff::Yield,
};

fn clone(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let primary = upstream(context)?;
    let volume = context.volume()?;
    let member = volume.member.as_ref()?;
    let system_id = context.record()?.system_id.clone()?;
    if volume.data != Data::Empty || member.certificate.is_none() || primary.timeline.is_none() || !is_admitted(context)
    {
        return None;
    }
    if context.alive() || context.stop_intended() || !volume_is_free(context, draft) {
        return None;
    }
    let copied = Copied::of(&primary.incarnation.member);
    let action = Action::Clone {
        upstream: primary.address.clone(),
        member: member.id.clone(),
        system_id,
    };
    Verdict::noting(
        action,
        format!("the volume is empty and {} serves", primary.incarnation.pod),
        [Change::Copies(Some(copied))],
    )
}

pub(super) const START_STANDBY: Rule = Rule {
    name: "start-standby",
    family: "standby",
    what: "Starts PostgreSQL as a standby, which follows the primary if its data is part of its history.",
    protocol: &[6, 9],
    kind: RuleKind::Act,
    decide: start,
    on_backoff: OnBackoff::Yield,
};

/// Starts PostgreSQL as standby. The last holder waits instead, because it may take the lease again.
fn start(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let lineage = lineage(context);
    let (upstream, because) = match context.tenure() {
        Tenure::Other(holder) if lineage == Lineage::Follows => (
            to_follow(context, holder),
            format!("{} holds the lease", holder.incarnation.pod),
        ),
        Tenure::Other(holder) => (
            None,
            format!(
                "{} holds the lease; this member can follow once it is known where its own WAL ends",
                holder.incarnation.pod
            ),
        ),
        Tenure::Vacant if !context.was_last_holder() => (None, "the lease has no holder; reads are served".to_owned()),
        Tenure::Vacant | Tenure::Held { .. } | Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Unknown => return None,
    };
    let rewinding = context.volume().is_some_and(|volume| volume.rewinding);
    let (upstream, because) = match may_follow(context, lineage) {
        true => (upstream, because),
        false if is_needed(context, draft) => (
            None,
            "the primary is gone, and an election needs to know where this member's WAL ends".to_owned(),
        ),
        false => return None,
    };
    if rewinding || !is_sound(context) || !may_start(context, draft) {
        return None;
    }
    let settings = to_start_with(context)?;
    let start = Action::StartStandby {
        upstream,
        settings,
        was_primary: lineage != Lineage::Follows && was_primary(context),
    };
    Verdict::new(start, because)
}

/// Since when an election may need this member's WAL although the data should be rewound: the primary is suspected. The
/// member has all WAL that it ever acknowledged, so its answer counts, and it may win (protocol.md rule 9). If commits
/// wait for no standby, other answers would not show what it lacks: then only the user can decide to elect it.
pub(super) fn needed_since(context: &Context, memo: &Memo) -> Option<BootTime> {
    let record = context.record()?;
    let counts = record.rule.is_synchronous() || loss::is_accepted(context, record);
    memo.suspected.filter(|_| counts).map(|(_, since)| since)
}

/// True if that has been so for a lease's duration: a primary to rewind it to may never return. PostgreSQL is started
/// to find its WAL end, and follows no primary. A standby that has not streamed serves no reads.
fn is_needed(context: &Context, draft: &mut Draft) -> bool {
    let lease = context.timing().lease;
    needed_since(context, draft.memo).is_some_and(|since| context.reached(since.plus(lease), draft))
}

pub(super) const LEAVE_FORMER_PRIMARY: Rule = Rule {
    name: "leave-former-primary",
    family: "standby",
    what: "Ends what a standby receives from a former primary, so that the end of its WAL can be compared.",
    protocol: &[4, 6],
    kind: RuleKind::Act,
    decide: leave_former_primary,
    on_backoff: OnBackoff::Yield,
};

/// Ends the stream from a former primary before the member may follow the present one: only then its WAL has an end
/// that can be compared ([`super::facts::lineage`]). For that it promises the present epoch. An emptied
/// `primary_conninfo` would be no proof (protocol.md rule 4).
fn leave_former_primary(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let primary = upstream(context)?;
    let epoch = context.record()?.epoch;
    let answers = context.running() == Some(Mode::Standby) && context.position().is_some();
    if !answers || context.promise()?.epoch > epoch || lineage(context) != Lineage::Unknown {
        return None;
    }
    let followed = context.observed.postgres.configured.as_ref()?.upstream.as_ref();
    let receives = match followed {
        Some(followed) => followed.epoch < epoch,
        // A promise ended the stream, but the end of the WAL receiver was not verified.
        None => !is_kept(context),
    };
    if !receives || draft.memo.stopping.is_some() || !context.is_free(&context.tasks().promise, RETRY, draft) {
        return None;
    }
    let because = format!(
        "{} is primary now, and may lack WAL that the former primary still sends: that stream is ended",
        primary.incarnation.pod
    );
    Verdict::new(Action::Promise { epoch }, because)
}

pub(super) const STOP_STRANDED: Rule = Rule {
    name: "stop-stranded",
    family: "standby",
    what: "Stops a standby that waits for WAL of a former primary before it can answer, so that it starts with the present one.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: stop_stranded,
    on_backoff: OnBackoff::Yield,
};

/// Stops a standby that has no consistent data, so it answers no questions, and that waits for WAL of a former primary.
/// It would wait for ever. It is started again to follow the present primary, once for each primary. (A later promise
/// ends that, see [`super::Observed::promised`].)
fn stop_stranded(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let primary = upstream(context)?;
    let postgres = &context.observed.postgres;
    let standby = context.running() == Some(Mode::Standby) && context.starting().is_none();
    let mute = postgres.answer.is_none() && !postgres.streamed;
    let busy = context.tasks().configure.running.is_some() || context.stop_intended();
    if !standby || !mute || busy || lineage(context) != Lineage::Follows {
        return None;
    }
    let wanted = to_follow(context, primary)?;
    let followed = postgres.configured.as_ref()?.upstream.as_ref();
    let receives = followed.is_some_and(|followed| followed.address == wanted.address);
    if receives || !context.reached(context.tasks().start.ended.plus(MUTE), draft) {
        return None;
    }
    let because = format!(
        "its data is not consistent, and only {} has the WAL that it lacks: it is started again, to follow that primary",
        primary.incarnation.pod
    );
    stopping::stop(context, draft, because)
        .or_else(|| Verdict::wait("PostgreSQL is stopping, to follow the present primary"))
}

pub(super) const STOP_TORN: Rule = Rule {
    name: "stop-torn",
    family: "standby",
    what: "Restarts a standby whose WAL ends before its own timeline begins, so that elections can count it.",
    protocol: &[5, 9],
    kind: RuleKind::Act,
    decide: stop_torn,
    on_backoff: OnBackoff::Yield,
};

/// Applies when the primary is suspected. Such a standby lost the primary while the new timeline's first segment was
/// arriving ([`Context::electable_position`]), and can neither stand nor be counted. The agent removes that segment
/// before a start. Once for each suspicion.
fn stop_torn(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (_, since) = draft.memo.suspected?;
    let begins = context.observed.postgres.answer?.begins?;
    let position = context.final_position().filter(|position| position.lsn < begins)?;
    let tasks = context.tasks();
    if tasks.start.ended >= since || tasks.configure.running.is_some() || context.stop_intended() {
        return None;
    }
    let because = format!(
        "its WAL ends at {}, before its timeline {} begins: it is started again, without that timeline's first segment",
        position.lsn, position.timeline.0
    );
    stopping::stop(context, draft, because)
        .or_else(|| Verdict::wait("PostgreSQL is stopping, to be elected or counted"))
}

/// A standby's data may always be started as a standby. A primary's data only if it is known to be part of the new
/// primary's history: before its rewind it could serve rows that exist nowhere else.
fn may_follow(context: &Context, lineage: Lineage) -> bool {
    match lineage {
        Lineage::Follows => true,
        Lineage::Diverged { .. } => false,
        Lineage::Unknown => context.database().is_some_and(|database| !database.primary),
    }
}

#[cfg(test)]
mod tests;
