//! Taking the lease again and renewing it. Releasing it belongs to [`super::shutdown`].
//!
//! The decision rule `take` of this file is not the take of an election, which is `win-election` in
//! [`super::election`].
//!
//! The member that held the lease last may always take it again, because it has every acknowledged write, in every
//! mode.

use std::borrow::Cow;

use api::status::DurabilityMode;

use super::facts::{Context, Tenure};
use super::stopping::may_release;
use super::{Action, Database, Draft, Mode, OnBackoff, Process, Purpose, Rule, RuleKind, Verdict};
use super::{archive, backup, loss, members};
use crate::lease_object::LeaseContent;
use crate::protocol::{
    Epoch, Fork, HolderRecord, LeaseRecord, MemberReport, MemberState, Position, Release, Timeline, UNUSED,
};
use crate::quorum::SyncRule;
use crate::units::Millis;

/// How long after a release the last holder leaves the lease to members that streamed from it. This is longer than
/// those members leave it to a chosen successor.
const HANDBACK: Millis = Millis::seconds(4);

/// The Lease remembers at most this many forks: 25 KiB of the 256 KiB that an object's annotations may have. A member
/// whose data is older has missed that many changes of the primary.
pub(super) const FORKS: usize = 500;

/// The new content of the Lease, based on `record`.
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
    /// Everything as it is in the Lease.
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
        let backup = backup::recorded(context, draft.memo, self.record);
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
                archive: archive::recorded(context, self.record, backup),
            }),
            purpose: self.purpose,
            timing: context.timing(),
        }
    }
}

/// The newest part of the history of the timeline that is written here, or of the recorded one.
fn history(context: &Context, record: &LeaseRecord) -> Vec<Fork> {
    let known = if context.accepting() {
        &context.observed.postgres.history
    } else {
        &record.history
    };
    known[known.len().saturating_sub(FORKS)..].to_vec()
}

pub(super) const RENEW: Rule = Rule {
    name: "renew",
    family: "lease_rules",
    what: "The holder renews its lease: when that is due, and at once when its content changes or a member has promised a higher epoch.",
    protocol: &[7],
    kind: RuleKind::Act,
    decide: renew,
    on_backoff: OnBackoff::Yield,
};

/// Keeps the lease, before anything else. Writes at once when its content about the holder or a member has changed.
/// While no primary serves, news of members wait for the next renewal: in a takeover all members have some, and each
/// write costs time.
fn renew(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let record = context.record()?;
    let held = match context.tenure() {
        Tenure::Held { .. } => true,
        Tenure::Lapsed => false,
        Tenure::OwnBefore(_) | Tenure::Other(_) | Tenure::Vacant | Tenure::Unknown => return None,
    };
    if may_release(context, draft) || draft.memo.steps_down.is_some() {
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
        "a loss is accepted in this epoch, but none is needed: the epoch is raised, so that the acceptance cannot apply later"
            .into()
    } else if epoch > record.epoch {
        "a member has promised a higher epoch: the holder adopts it, so that the member may follow again".into()
    } else if record.holder.as_ref() != Some(&holder) {
        match (
            holder.serving,
            record.holder.as_ref().is_some_and(|before| before.serving),
        ) {
            (true, false) => "this member serves writes now",
            (false, true) => "this member does not serve writes any more",
            _ => "the report of this member has changed",
        }
        .into()
    } else if record.duration != timing.lease {
        "the lease's duration was changed".into()
    } else if let Some(pod) = members::changed(context, draft).filter(|_| context.serving()) {
        format!("the report of {pod} has changed").into()
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

/// The highest epoch that another member or this one has promised (protocol.md rule 7).
pub(super) fn promised_above(context: &Context) -> Epoch {
    let own = context.promise().map(|promise| promise.epoch);
    let peers = context.observed.peers.values().map(|peer| peer.promised);
    peers.chain(own).max().unwrap_or_default()
}

pub(super) const TAKE: Rule = Rule {
    name: "take",
    family: "lease_rules",
    what: "The member that held the lease last takes it again, and the first database takes the first lease: both without an election, which is `win-election`.",
    protocol: &[14, 16],
    kind: RuleKind::Act,
    decide: take,
    on_backoff: OnBackoff::Yield,
};

fn take(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let record = context.record()?;
    let basis = basis(context, record, draft)?;
    let database = context.database()?;
    // A standby may run, because it writes nothing.
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

/// The rule of the Lease. If the Lease was made again, its rule is a guess: unless commits must wait for a standby
/// anyway, its names may lack acknowledged commits. Elections use a rule again once its names have flushed everything
/// (protocol.md rule 10).
fn rule_again(context: &Context, record: &LeaseRecord) -> SyncRule {
    let mode = context.cluster().and_then(|cluster| Some(cluster.durability?.mode));
    if record.is_made_again() && mode != Some(DurabilityMode::Required) {
        return SyncRule::default();
    }
    record.rule.clone()
}

/// A primary's data continues its timeline. An unfinished promotion is begun again with another number (protocol.md
/// rule 14); `None` if no number is left.
fn timeline_again(context: &Context, record: &LeaseRecord, database: &Database) -> Option<Option<Timeline>> {
    let primarys = context.at_rest() && database.primary;
    // What was recovered is on a timeline that no election has reserved. It is from now on: only then do elections count its WAL, and no
    // other set of volumes gets its number.
    let recovered = record.timeline.is_none() || is_first(context, record);
    if primarys && recovered && record.timeline.unwrap_or(Timeline(1)) < database.timeline {
        return Some(Some(database.timeline));
    }
    if primarys && record.timeline.is_none_or(|reserved| database.timeline == reserved) {
        return Some(record.timeline);
    }
    let replayed = context
        .position()
        .map_or(database.timeline, |position| position.timeline);
    next_timeline(record, database.timeline.max(replayed)).map(Some)
}

/// Why this run may take the lease now.
fn basis(context: &Context, record: &LeaseRecord, draft: &mut Draft) -> Option<&'static str> {
    let cluster = context.cluster()?;
    // A Lease behind the status is an outdated view, or was restored by hand. Neither may decide.
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
            Some("this member released the lease itself, and no other member has taken it")
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

/// True if another member followed when the lease was released. Its stream may have ended for the same reason as the
/// release.
fn others_could(context: &Context, record: &LeaseRecord) -> bool {
    let own = &context.observed.own.pod;
    let follows = |report: &MemberReport| {
        matches!(report.state, MemberState::Streaming | MemberState::CatchingUp) && !report.is_silent()
    };
    record.members.iter().any(|(pod, report)| pod != own && follows(report))
}

/// True if the Lease never had a holder, nothing is recorded anywhere, and the data was made here by the grant for this
/// cluster.
fn is_first(context: &Context, record: &LeaseRecord) -> bool {
    let (Some(cluster), Some(volume)) = (context.cluster(), context.volume()) else {
        return false;
    };
    let untouched = record.epoch == cluster.begins && record.system_id.is_none() && record.release.is_none();
    let made_here = volume.made_for.as_ref() == Some(&cluster.uid);
    untouched
        && cluster.system_id.is_none()
        && made_here
        && super::bootstrap::is_granted(context)
        && context.database().is_some()
}

/// This run as the new holder of the lease.
pub(super) fn new_holder(context: &Context) -> Option<HolderRecord> {
    Some(HolderRecord {
        incarnation: context.incarnation()?,
        address: context.observed.own.address.clone(),
        timeline: None,
        serving: false,
    })
}

/// This run as the holder, with the content that the Lease should have.
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

/// True if a write of the Lease may begin now. Failed writes are repeated soon, because the fence deadline does not
/// wait.
pub(super) fn is_free(context: &Context, draft: &mut Draft) -> bool {
    let longest = context.timing().renew / 2;
    context.is_free(&context.tasks().lease, longest, draft)
}

/// Releases the lease, since no process of PostgreSQL here can write any more. The release records the end of the WAL
/// if that is known: after a clean stop, or of a standby that was not promoted, even if it has ended since.
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
        Some(_) => "nothing writes here any more: the lease is released with the last position",
        None => "nothing writes here any more: the lease is released",
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

/// The lowest timeline that was never reserved, for WAL of timeline `own`; `None` if there is none
/// ([`super::election::waiting`] reports why).
pub(super) fn next_timeline(record: &LeaseRecord, own: Timeline) -> Option<Timeline> {
    let newest = record.timeline.map_or(own, |reserved| reserved.max(own));
    (newest.0 - own.0 <= UNUSED).then(|| newest.next())?
}

#[cfg(test)]
mod tests;
