//! The Lease: versions arrive from the watch, from direct reads and from the agent's own writes, in any order.

use super::{Observer, SeenLease};
use crate::instance::{Confirmed, Contact, LeaseVersion, Purpose, Reading, Unsettled};
use crate::lease_object::LeaseContent;
use crate::protocol::LeaseRecord;
use crate::timing::{BootTime, Timing};

impl Observer {
    /// Takes a report of the Lease's watch.
    pub(super) fn lease_read(&mut self, reading: Reading<Box<SeenLease>>, now: BootTime) {
        match reading {
            Reading::Is(lease) => self.lease_version(*lease, now),
            Reading::Missing => {
                self.observed.lease.see(None, now);
                self.newest_lease = None;
            }
            // The object exists, in a newer version than any that was read; nothing can be written on top of it.
            Reading::Unknown => {
                self.observed.lease.see(None, now);
                self.observed.lease.record = Reading::Unknown;
            }
        }
    }

    /// Notes that a write of this agent begins: from now on it may be in the Lease, whatever its answer is.
    pub(super) fn lease_write_begins(&mut self, content: &LeaseContent, purpose: Purpose) {
        let version = &content.version;
        let unsettled = &mut self.observed.lease.unsettled;
        let mut writes = unsettled
            .take()
            .filter(|before| before.version == *version)
            .unwrap_or_else(|| Unsettled {
                version: version.clone(),
                ..Unsettled::default()
            });
        writes.rules.insert(content.rule.clone());
        writes.releases |= purpose == Purpose::Release;
        *unsettled = Some(writes);
    }

    /// Takes a write of this agent that has succeeded.
    pub(super) fn lease_written(
        &mut self,
        written: SeenLease,
        sent: BootTime,
        purpose: Purpose,
        timing: Timing,
        now: BootTime,
    ) {
        let lease = &mut self.observed.lease;
        lease.confirmed = match (purpose, &written.record) {
            (Purpose::Take | Purpose::Renew, Some(record)) => Some(Confirmed {
                epoch: record.epoch,
                sent,
                timing,
            }),
            (Purpose::Release, _) | (_, None) => None,
        };
        lease.unsettled = None;
        self.observed.failsafe.clear();
        // The Lease was lost meanwhile: the answer shows its last content.
        if (written.record.as_ref()).is_some_and(|record| self.observed.lease.recall(record)) {
            return;
        }
        self.lease_version(written, now);
    }

    /// Takes any version of the Lease, unless a newer one is known.
    pub(super) fn lease_version(&mut self, seen: SeenLease, now: BootTime) {
        if (self.newest_lease.as_ref()).is_some_and(|known| is_older(&seen.place, known)) {
            return;
        }
        self.newest_lease = Some(seen.place.clone());
        let lease = &mut self.observed.lease;
        let before = lease.record.clone();
        lease.see(Some((seen.place, seen.record)), now);
        let Reading::Is(record) = &lease.record else { return };
        let before = before.is();
        if before.is_none_or(|before| tenancy(before) != tenancy(record)) {
            lease.holder_since = now;
            self.observed.contact = Contact::default();
        }
        if before.is_none_or(|before| sign_of_life(before) != sign_of_life(record)) {
            lease.changed = now;
        }
    }
}

/// The holder's run, and the epoch.
fn tenancy(record: &LeaseRecord) -> (Option<&str>, u64) {
    let run = record.holder.as_ref().map(|holder| holder.incarnation.run.as_str());
    (run, record.epoch.0)
}

/// The values that a living holder changes.
fn sign_of_life(record: &LeaseRecord) -> (Option<String>, Option<&String>, u64) {
    let holder = record.holder.as_ref().map(|holder| holder.incarnation.identity());
    (holder, record.renewal.as_ref(), record.epoch.0)
}

/// Versions of one object grow and can be compared as numbers (guaranteed since Kubernetes 1.35, true before).
fn is_older(version: &LeaseVersion, known: &LeaseVersion) -> bool {
    match (version.version.parse::<u64>(), known.version.parse::<u64>()) {
        (Ok(number), Ok(known_number)) => version.uid == known.uid && number < known_number,
        (Err(_), _) | (_, Err(_)) => false,
    }
}
