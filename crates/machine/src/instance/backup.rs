//! Which member copies the files of a backup, in which attempt, and what the Lease tells of it.
//!
//! The holder chooses the source and writes it into the Lease. The agent of the source makes the copy and stores it; if that is a
//! standby, it tells the holder how far it is with each report. Only the holder writes the Lease, so its word about an attempt counts.

use std::cmp::Reverse;

use api::backup::{BackupKind, BackupOrigin, BackupRole, BackupSource, BackupState, BackupTask};
use serde::{Deserialize, Serialize};

use super::archive::charge;
use super::facts::{Context, is_wanted};
use super::memo::Attempt;
use super::{Memo, Mode, Observed, members};
use crate::archive::{ArchiveRecord, Charge};
use crate::protocol::{LeaseRecord, MemberState};
use crate::timing::BootTime;
use crate::units::{Bytes, Millis};

/// How many attempts there are at most at one backup, those included that ended because another member became the primary.
const MOST: u32 = 5;
/// In so many attempts a standby may be the source. If its files cannot be copied twice, the next copy is the primary's.
const OF_STANDBYS: u32 = 2;
/// So much WAL may a source lack, in what it has received and in what it has replayed. The copy is as old as what it has replayed, and a
/// primary that writes fast is ahead by some of it at any moment.
const NEAR: Bytes = Bytes::mib(256);
/// How long a new holder waits for a standby that can be the source: after a failover they need some seconds to stream again.
const SETTLES: Millis = Millis::seconds(30);
/// How long a source may be silent. It is longer than for an election: a copy of hours is lost by it.
const LOST: Millis = Millis::seconds(30);
/// How long a source may take until it reports that it has begun.
const BEGINS: Millis = Millis::seconds(30);

/// A copy that this member makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupCopy {
    /// UID of the DatabaseBackup.
    pub uid: String,
    /// The number of the attempt.
    pub attempt: u32,
    /// This member.
    pub origin: BackupOrigin,
    /// Whether its files are copied, or a VolumeSnapshot of them is made.
    #[serde(default)]
    pub kind: BackupKind,
    /// Pages with wrong checksums are copied as they are.
    #[serde(default)]
    pub accepts_damage: bool,
}

impl BackupCopy {
    fn is_of(&self, task: &BackupTask) -> bool {
        (&task.uid, task.attempt) == (&self.uid, self.attempt)
    }
}

/// The copy that this member is to make now: the holder has chosen it, and it has not told the copy's end.
///
/// A copy that has begun goes on while the lease cannot be renewed, or while no primary serves: it may have taken hours, it overwrites
/// nothing, and it is complete only when its WAL is in the archive, which only a holder fills.
pub fn copy_to_make(observed: &Observed, memo: &Memo, now: BootTime) -> Option<BackupCopy> {
    let context = Context::new(observed, now);
    let told = observed.backup.as_ref();
    let (copy, may_begin) = match charge(observed, memo, now) {
        Charge::Push { .. } => (chosen_here(&context, memo)?, true),
        Charge::Wait if context.accepting() => (chosen_here(&context, memo)?, false),
        Charge::Confirm { .. } => {
            let streams = observed.postgres.answer.is_some_and(|answer| answer.streaming);
            (chosen_by_holder(&context)?, streams)
        }
        Charge::Wait if context.running() == Some(Mode::Standby) && !context.promoted_standby() => {
            (chosen_by_holder(&context)?, false)
        }
        Charge::Wait | Charge::End | Charge::Nowhere => return None,
    };
    match told.filter(|task| copy.is_of(task)) {
        Some(task) if task.state.is_final() => None,
        Some(_) => Some(copy),
        None => Some(copy).filter(|_| may_begin),
    }
}

/// How far the backup is that is asked for, if this member copies its files for it, or how its copy has ended.
///
/// A copy that it makes no more is not reported, for example if PostgreSQL has stopped: its process has ended without a word, and the
/// holder would wait for it for ever.
pub(super) fn reported(context: &Context, memo: &Memo) -> Option<BackupTask> {
    let wanted = context.cluster()?.backup.as_ref()?;
    let task = context.observed.backup.as_ref().filter(|task| task.uid == *wanted)?;
    let goes_on = copy_to_make(context.observed, memo, context.now).is_some_and(|copy| copy.is_of(task));
    (task.state.is_final() || goes_on).then(|| task.clone())
}

/// The copy of the holder's own files.
fn chosen_here(context: &Context, memo: &Memo) -> Option<BackupCopy> {
    let (attempt, cluster) = (memo.backup.as_ref()?, context.cluster()?);
    let is_asked_for = cluster.backup.as_ref() == Some(&attempt.uid);
    (is_asked_for && attempt.ended.is_none() && attempt.pod == context.observed.own.pod).then(|| BackupCopy {
        uid: attempt.uid.clone(),
        attempt: attempt.number,
        origin: attempt.origin(context),
        kind: cluster.backup_kind,
        accepts_damage: attempt.accepts_damage,
    })
}

/// The copy that the holder has chosen this standby for.
fn chosen_by_holder(context: &Context) -> Option<BackupCopy> {
    let wanted = context.cluster()?.backup.as_ref()?;
    let task = context.record()?.archive.as_ref()?.backup.as_ref()?;
    let origin = task.source.clone()?;
    let is_own = origin.member == context.observed.own.pod && origin.role == BackupRole::Standby;
    (is_own && task.uid == *wanted && !task.state.is_final()).then(|| BackupCopy {
        uid: task.uid.clone(),
        attempt: task.attempt,
        origin,
        kind: BackupKind::Full,
        accepts_damage: false,
    })
}

/// True if this holder is to close the segment that it writes: the last segment of a standby's copy is archived once it is closed, and
/// only the primary can do that.
pub fn closes_segment(observed: &Observed, memo: &Memo, now: BootTime) -> bool {
    let context = Context::new(observed, now);
    let Some(attempt) = memo.backup.as_ref().filter(|attempt| attempt.ended.is_none()) else {
        return false;
    };
    let pushes = matches!(charge(observed, memo, now), Charge::Push { .. });
    let of_standby = attempt.pod != observed.own.pod;
    let told = word(&context, memo, attempt);
    pushes && of_standby && told.is_some_and(|task| task.state == BackupState::WaitingForWal)
}

impl Attempt {
    fn origin(&self, context: &Context) -> BackupOrigin {
        BackupOrigin {
            member: self.pod.clone(),
            role: match self.pod == context.observed.own.pod {
                true => BackupRole::Primary,
                false => BackupRole::Standby,
            },
        }
    }
}

/// Begins attempts, and ends those whose source has failed. Only a holder that fills the archive has one.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    if memo.stopping.is_some() {
        memo.backup = None;
        return;
    }
    match charge(context.observed, memo, context.now) {
        Charge::Push { .. } => {}
        Charge::Wait if context.accepting() => return,
        Charge::Wait | Charge::Confirm { .. } | Charge::End | Charge::Nowhere => {
            memo.backup = None;
            return;
        }
    }
    let known = memo.backup.take();
    let Some(uid) = open(context) else { return };
    memo.backup = match known.filter(|attempt| attempt.uid == *uid) {
        None => first(context, memo, uid),
        Some(attempt) if attempt.ended.is_some() => Some(attempt),
        Some(attempt) => match end(context, memo, &attempt) {
            None => Some(attempt),
            Some(why) => Some(follow(context, memo, attempt, why)),
        },
    };
}

/// UID of the backup that is asked for, if no primary has told its end.
fn open<'a>(context: &Context<'a>) -> Option<&'a String> {
    let wanted = context.cluster()?.backup.as_ref()?;
    let has_ended = recorded_task(context, wanted).is_some_and(|task| task.state.is_final());
    (!has_ended).then_some(wanted)
}

/// What the Lease tells of this backup.
fn recorded_task<'a>(context: &Context<'a>, uid: &str) -> Option<&'a BackupTask> {
    let task = context.record()?.archive.as_ref()?.backup.as_ref();
    task.filter(|task| task.uid == uid)
}

/// The first attempt of this holder; `None` while a standby may still come. An attempt of another holder ended with that holder's
/// tenure.
fn first(context: &Context, memo: &Memo, uid: &str) -> Option<Attempt> {
    let before = recorded_task(context, uid);
    let number = before.map_or(1, |task| task.attempt.saturating_add(1));
    let tried = before.and_then(|task| Some(task.source.as_ref()?.member.as_str()));
    let settled = memo
        .holding_since
        .is_some_and(|since| context.now >= since.plus(SETTLES));
    let pod = match choose(context, memo, number, tried) {
        Source::Standby(pod) => pod,
        Source::NoneIsFit if !settled => return None,
        Source::NoneIsFit | Source::Primary => context.observed.own.pod.clone(),
    };
    let because = before.map(|_| "the primary has changed, or its agent has started again".to_owned());
    Some(attempt(context, uid, number, pod, because))
}

/// What comes after an attempt that has not ended well.
fn follow(context: &Context, memo: &Memo, before: Attempt, why: String) -> Attempt {
    let own = &context.observed.own.pod;
    let is_damaged = word(context, memo, &before).is_some_and(|task| task.damaged_pages);
    if before.pod == *own && is_damaged && !before.accepts_damage {
        // Damaged pages would be in every backup from now on, and one with them is better than none.
        let number = before.number.saturating_add(1);
        let because = Some(format!("{}: {why}", before.pod));
        let next = attempt(context, &before.uid, number, before.pod, because);
        return Attempt {
            accepts_damage: true,
            ..next
        };
    }
    // What the primary's process says at its end would meet another attempt as well.
    if before.pod == *own {
        return Attempt {
            ended: Some(why),
            ..before
        };
    }
    let number = before.number.saturating_add(1);
    let pod = match choose(context, memo, number, Some(&before.pod)) {
        Source::Standby(pod) => pod,
        Source::NoneIsFit | Source::Primary => own.clone(),
    };
    attempt(
        context,
        &before.uid,
        number,
        pod,
        Some(format!("{}: {why}", before.pod)),
    )
}

/// An attempt that begins now, `because` the one before it has ended, or the end after too many.
fn attempt(context: &Context, uid: &str, number: u32, pod: String, because: Option<String>) -> Attempt {
    let too_many = || {
        let because = because.as_deref().unwrap_or_default();
        format!("{MOST} attempts have not ended well; the last: {because}")
    };
    Attempt {
        uid: uid.to_owned(),
        number: number.min(MOST),
        pod,
        since: context.now,
        ended: (number > MOST).then(too_many),
        because,
        accepts_damage: false,
    }
}

/// Whose files an attempt copies.
enum Source {
    /// The primary's, as the user wants, or since standbys have failed.
    Primary,
    /// Those of the standby in this pod.
    Standby(String),
    /// Those of a standby, of which none can be the source now.
    NoneIsFit,
}

/// The source of attempt `number`, after one from `tried`.
fn choose(context: &Context, memo: &Memo, number: u32, tried: Option<&str>) -> Source {
    let Some(cluster) = context.cluster() else {
        return Source::NoneIsFit;
    };
    // A standby copies from its last restartpoint on, which is in the line before.
    let begins_line = context
        .record()
        .and_then(|record| record.archive.as_ref())
        .is_some_and(ArchiveRecord::lacks_backup);
    // A snapshot need not show all files at the same moment. Only in a primary's WAL stands when they are consistent.
    let of_primary = cluster.backup_source == BackupSource::Primary || cluster.backup_kind == BackupKind::Snapshot;
    if begins_line || of_primary || number > OF_STANDBYS || cluster.replicas < 2 {
        return Source::Primary;
    }
    let fit = members::heard(context, memo).filter(|(pod, peer)| is_fit(context, pod, peer));
    // Rather not one that has just failed, or that is to become the primary when it can.
    let best = fit.max_by_key(|(pod, _)| {
        let preferred = cluster.preferred.as_ref() == Some(*pod);
        (Some(pod.as_str()) != tried, Reverse(preferred), *pod)
    });
    best.map_or(Source::NoneIsFit, |(pod, _)| Source::Standby(pod.clone()))
}

/// True if this standby streams, is near the primary, and is not about to be stopped or promoted.
fn is_fit(context: &Context, pod: &String, peer: &super::Peer) -> bool {
    let Some(cluster) = context.cluster() else { return false };
    let (Some(flushed), Some(written)) = (
        context.observed.postgres.standbys.get(&peer.report.member),
        context.position(),
    ) else {
        return false;
    };
    let near = written.lsn.since(*flushed) <= NEAR && peer.queue() <= NEAR;
    let able =
        peer.report.state == MemberState::Streaming && peer.report.fault.is_none() && peer.report.full.is_empty();
    let restarts = cluster.restart.as_ref().is_some_and(|restart| restart.pod == *pod);
    let is_heard = context.now.since(peer.heard) < members::SILENT;
    let stays = is_wanted(context, pod) && !cluster.fenced.contains(pod) && !restarts;
    near && able && is_heard && stays && cluster.primary.as_ref() != Some(pod)
}

/// What the source tells of this attempt.
fn word<'a>(context: &Context<'a>, memo: &Memo, attempt: &Attempt) -> Option<&'a BackupTask> {
    let told = match attempt.pod == context.observed.own.pod {
        true => context.observed.backup.as_ref(),
        false => members::heard(context, memo)
            .find(|(pod, _)| **pod == attempt.pod)
            .and_then(|(_, peer)| peer.backup.as_ref()),
    };
    told.filter(|task| (&task.uid, task.attempt) == (&attempt.uid, attempt.number))
}

/// Why this attempt has come to no good end.
fn end(context: &Context, memo: &Memo, attempt: &Attempt) -> Option<String> {
    let told = word(context, memo, attempt);
    match told.map(|task| task.state) {
        Some(BackupState::Failed) => {
            let message = told.and_then(|task| task.message.clone());
            return Some(message.unwrap_or_else(|| "the agent has not said why".to_owned()));
        }
        Some(BackupState::Completed) => return None,
        Some(BackupState::Copying | BackupState::WaitingForWal) | None => {}
    }
    if attempt.pod == context.observed.own.pod {
        return None;
    }
    let heard = members::heard(context, memo).find(|(pod, _)| **pod == attempt.pod);
    let heard = heard.map_or(attempt.since, |(_, peer)| peer.heard.max(attempt.since));
    let silent = context.now >= heard.plus(LOST);
    let idle = told.is_none() && context.now >= attempt.since.plus(BEGINS);
    match (silent, idle) {
        (true, _) => Some(format!("it has not reported for {} s", LOST.0 / 1_000)),
        (false, true) => Some("its agent does not make the copy (any more)".to_owned()),
        (false, false) => None,
    }
}

/// What stands in the Lease about the backup from the next write on. A holder that has begun none leaves what the one before it has
/// written.
pub(super) fn recorded(context: &Context, memo: &Memo, record: &LeaseRecord) -> Option<BackupTask> {
    let kept = || record.archive.as_ref()?.backup.clone();
    let Some(attempt) = memo.backup.as_ref().filter(|_| context.accepting()) else {
        return kept();
    };
    let told = word(context, memo, attempt).filter(|_| attempt.ended.is_none());
    let state = match attempt.ended {
        Some(_) => BackupState::Failed,
        None => told.map_or(BackupState::Copying, |task| task.state),
    };
    let again = attempt
        .because
        .as_ref()
        .map(|because| format!("attempt {}: {because}", attempt.number));
    let message = attempt.ended.clone().or_else(|| told?.message.clone()).or(again);
    Some(BackupTask {
        uid: attempt.uid.clone(),
        attempt: attempt.number,
        source: Some(attempt.origin(context)),
        state,
        copied_bytes: told.and_then(|task| task.copied_bytes),
        total_bytes: told.and_then(|task| task.total_bytes),
        message,
        snapshot: told.and_then(|task| task.snapshot.clone()),
        damaged_pages: told.is_some_and(|task| task.damaged_pages),
        backup: told.and_then(|task| task.backup.clone()),
    })
}

#[cfg(test)]
mod tests;
