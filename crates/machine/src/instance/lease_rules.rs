//! Taking the lease again and renewing it. Releasing it belongs to [`super::shutdown`], taking another member's to
//! [`super::election`].
//!
//! The member that held the lease last may always take it again: it has every acknowledged write, in every mode.

use std::borrow::Cow;

use api::status::DurabilityMode;

use super::context::{Context, Tenure};
use super::{Action, Database, Draft, Mode, Process, Purpose, Rule, Verdict};
use super::{election, loss, members, rejoin, shutdown};
use crate::lease_object::LeaseContent;
use crate::protocol::{Epoch, Fork, HolderRecord, LeaseRecord, MemberReport, MemberState, Position, Release, Timeline};
use crate::quorum::SyncRule;

/// For so long after a release the last holder leaves the lease to members that streamed from it, in milliseconds: longer
/// than they leave it to a chosen successor among them.
const HANDBACK: u64 = 4_000;

/// The new content of the Lease that `record` was read from.
pub(super) struct Write<'a> {
    pub record: &'a LeaseRecord,
    pub holder: Option<HolderRecord>,
    pub epoch: Epoch,
    pub system_id: Option<String>,
    pub release: Option<Release>,
    pub rule: SyncRule,
    pub timeline: Option<Timeline>,
    pub lossy: Option<Timeline>,
    pub purpose: Purpose,
}

impl<'a> Write<'a> {
    /// All as it is on record.
    pub(super) fn renewal(record: &'a LeaseRecord) -> Self {
        Self {
            record,
            holder: record.holder.clone(),
            epoch: record.epoch,
            system_id: record.system_id.clone(),
            release: record.release.clone(),
            rule: record.rule.clone(),
            timeline: record.timeline,
            lossy: record.lossy,
            purpose: Purpose::Renew,
        }
    }
    pub(super) fn action(self, context: &Context, draft: &mut Draft) -> Action {
        let (reports, positions) = members::view(context, draft);
        Action::WriteLease {
            content: Box::new(LeaseContent {
                uid: self.record.uid.clone(),
                version: self.record.version.clone(),
                holder: self.holder,
                duration: context.timing().lease,
                epoch: self.epoch,
                system_id: self.system_id,
                release: self.release,
                rule: self.rule,
                timeline: self.timeline,
                lossy: self.lossy,
                history: history(context, self.record),
                members: reports,
                positions,
            }),
            purpose: self.purpose,
            timing: context.timing(),
        }
    }
}

/// The newest part of the history of the timeline that is written here, or of what is on record.
fn history(context: &Context, record: &LeaseRecord) -> Vec<Fork> {
    let known = if context.accepting() {
        &context.observed.postgres.history
    } else {
        &record.history
    };
    known[known.len().saturating_sub(rejoin::FORKS)..].to_vec()
}

pub(super) const RENEW: Rule = Rule {
    name: "renew",
    family: "lease_rules",
    what: "The holder renews its lease: when that is due, and at once when its content changes or a member has promised a higher epoch.",
    protocol: &[7],
    decide: renew,
};

/// Keeps the lease, before anything else; at once when what it says about the holder has changed, or about a member. News of members
/// wait for the next renewal while nobody is served: in a takeover all have some, and each write costs time there.
fn renew(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let record = context.record()?;
    let held = match context.tenure() {
        Tenure::Held { .. } => true,
        Tenure::Lapsed => false,
        Tenure::OwnBefore(_) | Tenure::Other(_) | Tenure::Vacant | Tenure::Unknown => return None,
    };
    if shutdown::may_release(context, draft) || draft.memo.gives_way.is_some() {
        return None;
    }
    let timing = context.timing();
    let sent = context.observed.lease.confirmed.map(|confirmed| confirmed.sent);
    let due = sent.map_or(context.now, |sent| sent.plus(timing.renew));
    let accepted = loss::is_accepted(context, record);
    let used_up = record.epoch.next().filter(|_| accepted).unwrap_or(record.epoch);
    let epoch = used_up.max(promised_above(context));
    let holder = holder(context, record)?;
    let because: Cow<'static, str> = if !held {
        "the Lease names this run, but it was not renewed in time".into()
    } else if context.now >= due {
        "the lease is due for renewal".into()
    } else if accepted {
        "a loss is accepted in this epoch, and there is none: the epoch is raised, so that it is not accepted later"
            .into()
    } else if epoch > record.epoch {
        "a member has promised a higher epoch: it is taken up, so that it may follow again".into()
    } else if record.holder.as_ref() != Some(&holder) {
        match (
            holder.serving,
            record.holder.as_ref().is_some_and(|before| before.serving),
        ) {
            (true, false) => "this member serves writes now",
            (false, true) => "this member does not serve writes any more",
            _ => "this member has something new to tell of itself",
        }
        .into()
    } else if record.duration != timing.lease {
        "the lease's duration was changed".into()
    } else if let Some(pod) = members::changed(context, draft).filter(|_| context.serving()) {
        format!("{pod} has something new to tell").into()
    } else {
        draft.wake(due);
        return None;
    };
    if !is_free(context, draft) {
        return None;
    }
    let write = Write {
        epoch,
        holder: Some(holder),
        ..Write::renewal(record)
    };
    Verdict::new(write.action(context, draft), because)
}

/// The highest epoch that a member, or this one, has promised (protocol.md rule 7).
pub(super) fn promised_above(context: &Context) -> Epoch {
    let own = context.promise().map(|promise| promise.epoch);
    let peers = context.observed.peers.values().map(|peer| peer.promised);
    peers.chain(own).max().unwrap_or_default()
}

pub(super) const TAKE: Rule = Rule {
    name: "take",
    family: "lease_rules",
    what: "The member that held the lease last takes it again, without an election; the first database takes the first lease.",
    protocol: &[14, 16],
    decide: take,
};

/// Takes the lease, if this member's data was the last to be written or is the very first.
fn take(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let record = context.record()?;
    let basis = basis(context, record, draft)?;
    let database = context.database()?;
    // A standby may run: it writes nothing.
    let stands_by = context.running() == Some(Mode::Standby) && context.starting().is_none() && !context.writable();
    if !is_free(context, draft) || !context.knows_data() || !(stands_by || context.at_rest()) {
        return None;
    }
    let write = Write {
        holder: Some(new_holder(context)?),
        epoch: record.epoch.next()?.max(promised_above(context)),
        system_id: Some(database.system_id.clone()),
        release: None,
        rule: rule_again(context, record),
        timeline: timeline_again(context, record, database)?,
        purpose: Purpose::Take,
        ..Write::renewal(record)
    };
    Verdict::new(write.action(context, draft), basis)
}

/// As it is on record. In a Lease that was made again that is a guess: its names may lack what was acknowledged before, unless commits
/// are to wait for somebody in any case. Elections count by a rule again when its names have flushed all (protocol.md rule 10).
fn rule_again(context: &Context, record: &LeaseRecord) -> SyncRule {
    let mode = context.cluster().map(|cluster| cluster.durability.mode);
    if record.is_made_again() && mode != Some(DurabilityMode::Required) {
        return SyncRule::default();
    }
    record.rule.clone()
}

/// A primary's data goes on with its timeline. A promotion that was not finished is begun again with another number
/// (protocol.md rule 14); `None` if there is none.
fn timeline_again(context: &Context, record: &LeaseRecord, database: &Database) -> Option<Option<Timeline>> {
    let primarys = context.at_rest() && database.primary;
    if primarys && record.timeline.is_none_or(|reserved| database.timeline == reserved) {
        return Some(record.timeline);
    }
    let replayed = context
        .position()
        .map_or(database.timeline, |position| position.timeline);
    election::next_timeline(record, database.timeline.max(replayed)).map(Some)
}

/// Why this run may take the lease now.
fn basis(context: &Context, record: &LeaseRecord, draft: &mut Draft) -> Option<&'static str> {
    let cluster = context.cluster()?;
    // A Lease behind the status is an old view of it, or was put back by somebody: either way it decides nothing.
    if cluster.epoch.is_some_and(|seen| seen > record.epoch) {
        return None;
    }
    match context.tenure() {
        Tenure::Vacant if is_first(context, record) => Some("this volume holds the first database, made by the grant"),
        Tenure::Vacant if context.was_last_holder() && context.is_our_data() => {
            let others_first = context.observed.lease.holder_since.plus(HANDBACK);
            if others_could(context, record) && context.now < others_first {
                draft.wake(others_first);
                return None;
            }
            Some("this member released the lease itself, and nobody else has taken it")
        }
        Tenure::OwnBefore(holder) if context.is_our_data() => {
            let fresh = context.observed.lease.confirmed.is_none();
            if context.is_own_pod(holder) && fresh {
                return Some("the holder was an earlier run in this pod: its processes are gone with its container");
            }
            let expiry = context.expires_at()?;
            if context.now >= expiry {
                return Some("the holder was an earlier pod on this volume, and its lease has run out");
            }
            draft.wake(expiry);
            None
        }
        Tenure::Vacant
        | Tenure::OwnBefore(_)
        | Tenure::Held { .. }
        | Tenure::Lapsed
        | Tenure::Other(_)
        | Tenure::Unknown => None,
    }
}

/// Some other member followed when the lease was released; its stream may have ended with what the release was for.
fn others_could(context: &Context, record: &LeaseRecord) -> bool {
    let own = &context.observed.own.pod;
    let follows = |report: &MemberReport| {
        matches!(report.state, MemberState::Streaming | MemberState::CatchingUp) && !report.is_silent()
    };
    record.members.iter().any(|(pod, report)| pod != own && follows(report))
}

/// The Lease was never held, nothing is recorded anywhere, and the data here was made by the grant for this cluster.
fn is_first(context: &Context, record: &LeaseRecord) -> bool {
    let (Some(cluster), Some(volume)) = (context.cluster(), context.volume()) else {
        return false;
    };
    let untouched = record.epoch == Epoch(0) && record.system_id.is_none() && record.release.is_none();
    let made_here = volume.made_for.as_ref() == Some(&cluster.uid);
    untouched
        && cluster.system_id.is_none()
        && made_here
        && super::bootstrap::is_granted(context)
        && context.database().is_some()
}

/// This run, when it takes the lease.
pub(super) fn new_holder(context: &Context) -> Option<HolderRecord> {
    Some(HolderRecord {
        incarnation: context.incarnation()?,
        address: context.observed.own.address.clone(),
        timeline: None,
        serving: false,
    })
}

/// This run, as the Lease shall describe it.
pub(super) fn holder(context: &Context, record: &LeaseRecord) -> Option<HolderRecord> {
    let serving = context.serving();
    let position = context.observed.postgres.answer.and_then(|answer| answer.position);
    let timeline = position
        .filter(|_| context.accepting())
        .map(|position| position.timeline);
    let before = record.holder.as_ref().and_then(|holder| holder.timeline);
    Some(HolderRecord {
        incarnation: context.incarnation()?,
        address: context.observed.own.address.clone(),
        timeline: timeline.or(before),
        serving,
    })
}

/// A write of the Lease may begin now. Failures are repeated soon: the fence deadline does not wait.
pub(super) fn is_free(context: &Context, draft: &mut Draft) -> bool {
    let longest = context.timing().renew / 2;
    context.is_free(&context.tasks().lease, longest, draft)
}

/// Hands the lease back: nothing of PostgreSQL lives here that could write. What is left is the end of the WAL, if it is
/// known: after a clean stop, or of a standby that was not promoted, also if its server has ended since.
pub(super) fn release(context: &Context, draft: &mut Draft, successor: Option<String>) -> Option<Verdict> {
    let record = context.record()?;
    let member = context.member()?.id.clone();
    if !is_free(context, draft) {
        return None;
    }
    let position = match context.observed.postgres.process {
        Process::Running { .. } => Some(context.final_position()?),
        Process::Stopped { exit } => {
            let read = context.volume()?.read;
            if exit.is_some_and(|exit| read < exit.at) {
                return None;
            }
            let end = context.database().filter(|database| database.clean).map(end_of);
            end.or(draft.memo.inherited)
        }
    };
    let because = match position {
        Some(_) => "nothing writes here any more: the lease is handed back with the last position",
        None => "nothing writes here any more: the lease is handed back",
    };
    let write = Write {
        holder: None,
        release: Some(Release {
            member,
            position,
            successor,
        }),
        purpose: Purpose::Release,
        ..Write::renewal(record)
    };
    Verdict::new(write.action(context, draft), because)
}

fn end_of(database: &Database) -> Position {
    Position {
        timeline: database.timeline,
        lsn: database.checkpoint,
    }
}

#[cfg(test)]
mod tests;
