//! Which backups, and which WAL, a store need not keep any longer.
//!
//! Only a beginning is ever removed: everything older than one backup, the anchor, and the WAL before all kept backups. Whatever is kept
//! can be recovered to any time after it, as before.
//!
//! The anchor lies in the history of the newest timeline, so a database that goes on from there never has fewer backups of its own than
//! the policy asks for, however many an abandoned timeline has. All later backups begin behind the anchor: a backup that is being taken
//! misses no WAL. What the policy holds stays beside that, with the WAL that it needs to be consistent: it can be recovered to its own end,
//! and not to what comes after.

use std::cmp::Reverse;

use api::spec::BackupRetention;
use chrono::{DateTime, TimeDelta, Utc};

use crate::archive::Segment;
use crate::protocol::Lsn;
use crate::recovery::{Backup, Stored, of_newest_timeline};
use crate::units::Bytes;

/// What need not be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Names of backups, the oldest first.
    pub backups: Vec<String>,
    /// The name of the anchor. `None` if everything is kept.
    pub anchor: Option<String>,
    /// Segments with a lower number need not be kept, on whatever timeline. 0 if all are kept.
    pub first_segment: u64,
    /// The backups that are held, though they are older than the anchor.
    pub held: Vec<Held>,
}

/// A backup that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its name.
    pub name: String,
    /// The first segment of WAL that it needs.
    pub first: u64,
    /// The last one.
    pub last: u64,
}

impl Removal {
    /// True if an unfinished backup of this name need not be kept either: it began before the anchor, as its name says, which begins with
    /// the time. A later one may be under way.
    pub fn takes_unfinished(&self, name: &str) -> bool {
        self.anchor.as_deref().is_some_and(|anchor| name < anchor)
    }

    /// True if no kept backup needs this segment.
    pub fn takes_segment(&self, segment: Segment) -> bool {
        let is_held = |held: &Held| (held.first..=held.last).contains(&segment.number);
        segment.number < self.first_segment && !self.held.iter().any(is_held)
    }
}

/// `policy`, with which the backup is kept, too, that the last drill has recovered that succeeded: whatever comes after it may be of no use.
pub fn keeping(policy: &BackupRetention, proven: Option<&str>) -> BackupRetention {
    let mut policy = policy.clone();
    policy.hold.extend(proven.map(str::to_owned));
    policy
}

/// What `policy` does not keep of `backups`, which are all complete ones. Of the WAL, `stored` needs to have the history files, and one
/// segment of each timeline that has any.
///
/// Nothing is removed while there are too few backups to keep, or none is as old as the window.
pub fn removal(
    backups: &[Backup],
    stored: &Stored,
    policy: &BackupRetention,
    segment_size: Bytes,
    now: DateTime<Utc>,
) -> Removal {
    let Some(anchor) = anchor(backups, stored, policy, now) else {
        return Removal::default();
    };
    let (mut removed, kept): (Vec<&Backup>, Vec<&Backup>) =
        backups.iter().partition(|backup| backup.stop_time < anchor.stop_time);
    let held = removed.extract_if(.., |backup| policy.hold.contains(&backup.name));
    let segment = |lsn: Lsn| lsn.0 / segment_size.0.max(1);
    let held = held.map(|backup| Held {
        name: backup.name.clone(),
        first: segment(backup.start),
        last: segment(backup.stop),
    });
    let held = held.collect();
    removed.sort_by_key(|backup| backup.stop_time);
    let first = kept.iter().map(|backup| backup.start).min();
    Removal {
        backups: removed.into_iter().map(|backup| backup.name.clone()).collect(),
        anchor: Some(anchor.name.clone()),
        first_segment: first.map_or(0, segment),
        held,
    }
}

/// The newest backup with which the policy is fulfilled.
fn anchor<'a>(
    backups: &'a [Backup],
    stored: &Stored,
    policy: &BackupRetention,
    now: DateTime<Utc>,
) -> Option<&'a Backup> {
    let mut own = of_newest_timeline(backups, stored);
    // What is damaged is kept beside what the policy asks for.
    own.retain(|backup| !backup.damaged_pages);
    own.sort_by_key(|backup| Reverse(backup.stop_time));
    let least = usize::try_from(policy.min_backups.unwrap_or(1)).ok()?.max(1);
    let by_number = *own.get(least - 1)?;
    // What no storage of snapshots can lose stays: the newest copy in the store.
    let newest_copy = own.iter().find(|backup| !backup.is_snapshot).copied();
    let anchor = by_policy(own, by_number, policy, now)?;
    Some(
        newest_copy
            .filter(|copy| copy.stop_time < anchor.stop_time)
            .unwrap_or(anchor),
    )
}

/// The newest backup with which the policy is fulfilled, as far as that goes by age and number. `own` are the newest first.
fn by_policy<'a>(
    own: Vec<&'a Backup>,
    by_number: &'a Backup,
    policy: &BackupRetention,
    now: DateTime<Utc>,
) -> Option<&'a Backup> {
    match policy.window_days {
        // To recover to the window's begin, a backup is needed that had ended by then.
        Some(days) => {
            let begin = now.checked_sub_signed(TimeDelta::days(days.into()))?;
            let mut old = own.into_iter().filter(|backup| backup.stop_time <= begin);
            let by_age = old.next()?;
            Some(if by_age.stop_time < by_number.stop_time {
                by_age
            } else {
                by_number
            })
        }
        None if policy.min_backups.is_some() => Some(by_number),
        None => None,
    }
}

#[cfg(test)]
mod tests;
