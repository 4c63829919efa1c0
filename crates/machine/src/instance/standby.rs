//! Everybody but the holder: copy the primary if there is no data, else follow it.

use super::context::{Context, Tenure};
use super::copying::Copied;
use super::crash::may_start;
use super::identity::{is_sound, volume_is_free};
use super::lineage::{Lineage, lineage};
use super::memo::Change;
use super::{Action, Data, Draft, Memo, Mode, Rule, Upstream, Verdict};
use super::{election, loss, settings, shutdown};
use crate::protocol::HolderRecord;
use crate::timing::BootTime;

/// So long after its start a standby that answers nobody is waited for before it is stopped to follow another primary, in
/// milliseconds: one whose data is nearly consistent answers by then, and takes the address up by a reload.
const MUTE: u64 = 5_000;

/// Longest wait between failed tries to end what is received, in milliseconds.
const RETRY: u64 = 1_000;

/// The primary to follow: another member that holds the lease.
pub(super) fn upstream<'a>(context: &Context<'a>) -> Option<&'a HolderRecord> {
    match context.tenure() {
        Tenure::Other(holder) => Some(holder),
        Tenure::Held { .. } | Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Vacant | Tenure::Unknown => None,
    }
}

/// The primary has said, in this epoch, that this member's role and slot exist.
pub(super) fn is_admitted(context: &Context) -> bool {
    let (Some(reply), Some(record)) = (&context.observed.reply, context.record()) else {
        return false;
    };
    let same_member = context.member().is_some_and(|member| member.id == reply.report.member);
    reply.admitted && reply.epoch == record.epoch && same_member
}

/// `holder`, to be followed in the epoch of the Lease; `None` while this member has promised a higher one, or what it has
/// promised cannot be read (protocol.md rules 2, 6 and 7).
pub(super) fn to_follow(context: &Context, holder: &HolderRecord) -> Option<Upstream> {
    let epoch = context.record()?.epoch;
    let promised = context.promise()?.epoch;
    (promised <= epoch).then(|| Upstream {
        address: holder.address.clone(),
        epoch,
    })
}

/// It follows `holder` already, in the epoch of the Lease.
pub(super) fn follows(context: &Context, holder: &HolderRecord) -> bool {
    let configured = context.running().and(context.observed.postgres.configured.as_ref());
    let followed = configured.and_then(|configured| configured.upstream.as_ref());
    followed.is_some() && followed == to_follow(context, holder).as_ref()
}

pub(super) const CLONE: Rule = Rule {
    name: "clone",
    family: "standby",
    what: "Copies the primary onto an empty volume.",
    protocol: &[6],
    decide: clone,
};

/// Copies the primary onto an empty volume.
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
    decide: start,
};

/// Starts PostgreSQL as standby. A member that held the lease last waits instead: it may hold it again.
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
                "{} holds the lease; whether this member can follow it is known when it says where its WAL ends",
                holder.incarnation.pod
            ),
        ),
        Tenure::Vacant if !context.was_last_holder() => (None, "nobody holds the lease; reads are served".to_owned()),
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
    let settings = settings::to_start_with(context)?;
    let start = Action::StartStandby {
        upstream,
        settings,
        was_primary: lineage != Lineage::Follows && was_primary(context),
    };
    Verdict::new(start, because)
}

/// The data is a primary's, or was one's and has not been found since to be part of another primary's history.
pub(super) fn was_primary(context: &Context) -> bool {
    let noted = context.volume().is_some_and(|volume| volume.was_primary);
    noted || context.database().is_some_and(|database| database.primary)
}

/// Since when an election may need what this member has, though it was to be rewound: the primary is suspected. It has all that it ever
/// acknowledged, so its answer counts, and it may win (protocol.md rule 9). Where commits wait for nobody no other answer would
/// tell what it lacks: there only the user's word goes so far.
pub(super) fn needed_since(context: &Context, memo: &Memo) -> Option<BootTime> {
    let record = context.record()?;
    let counts = record.rule.is_synchronous() || loss::is_accepted(context, record);
    memo.suspected.filter(|_| counts).map(|(_, since)| since)
}

/// So it has been for a lease's duration: nobody may ever be there to rewind it to. It is started to say where it ends, and follows
/// nobody; a standby that has not streamed serves no reads.
fn is_needed(context: &Context, draft: &mut Draft) -> bool {
    let lease = context.timing().lease;
    needed_since(context, draft.memo).is_some_and(|since| context.reached(since.plus(lease), draft))
}

pub(super) const LEAVE_FORMER_PRIMARY: Rule = Rule {
    name: "leave-former-primary",
    family: "standby",
    what: "Ends what a standby receives from a former primary, so that the end of its WAL can be compared.",
    protocol: &[4, 6],
    decide: leave_former_primary,
};

/// Ends what a standby receives from a former primary, before it may follow the present one: only then its WAL has an end that
/// can be compared ([`super::lineage`]). It promises the present epoch for that. An emptied `primary_conninfo` would be no proof
/// (protocol.md rule 4).
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
        // A promise ended that, but did not see the WAL receiver end.
        None => !election::is_kept(context),
    };
    if !receives || draft.memo.stopping.is_some() || !context.is_free(&context.tasks().promise, RETRY, draft) {
        return None;
    }
    let because = format!(
        "{} is primary now, and may lack what the former primary still sends: nothing more is received from that one",
        primary.incarnation.pod
    );
    Verdict::new(Action::Promise { epoch }, because)
}

pub(super) const STOP_STRANDED: Rule = Rule {
    name: "stop-stranded",
    family: "standby",
    what: "Stops a standby that waits for WAL of a former primary before it can answer, so that it starts with the present one.",
    protocol: &[],
    decide: stop_stranded,
};

/// Stops a standby that answers nobody, as long as its data is not consistent, and waits for WAL of another than the primary: it would
/// wait for ever, and is started again, to follow the primary. Once for each primary: then it follows that one. (A promise since ends
/// that, see [`super::Observed::promised`].)
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
        "its data is not consistent, and what it lacks only {} has now: it is started again, to follow it",
        primary.incarnation.pod
    );
    shutdown::stop(context, draft, because)
        .or_else(|| Verdict::wait("PostgreSQL is stopping, to follow the primary of now"))
}

pub(super) const STOP_TORN: Rule = Rule {
    name: "stop-torn",
    family: "standby",
    what: "Restarts a standby whose WAL ends before its own timeline begins, so that elections can count it.",
    protocol: &[5, 9],
    decide: stop_torn,
};

/// Stops a standby whose WAL ends before its own timeline begins ([`Context::electable_position`]), when the primary is suspected: it
/// lost the primary while the new timeline's first segment came in. It can neither stand nor be counted with that; the agent removes
/// the segment before a start. Once for each suspicion.
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
    shutdown::stop(context, draft, because)
        .or_else(|| Verdict::wait("PostgreSQL is stopping, to be elected or counted"))
}

/// A standby's data may always be started as one. A primary's only if it is known to be part of the new primary's history:
/// started before it is rewound, it could serve what nobody else has.
fn may_follow(context: &Context, lineage: Lineage) -> bool {
    match lineage {
        Lineage::Follows => true,
        Lineage::Diverged { .. } => false,
        Lineage::Unknown => context.database().is_some_and(|database| !database.primary),
    }
}

/// The data cannot follow the primary: it went another way, and is to be rewound.
pub(super) fn fault(context: &Context) -> Option<String> {
    let primary = upstream(context)?;
    match lineage(context) {
        Lineage::Diverged { timeline } => Some(format!(
            "the data went another way on timeline {}, the primary {} is on {}: it is to be rewound",
            timeline.0, primary.incarnation.pod, primary.timeline?.0
        )),
        Lineage::Follows | Lineage::Unknown => None,
    }
}

#[cfg(test)]
mod tests;
