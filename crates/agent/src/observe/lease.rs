//! Following the Lease: versions arrive from the watch and from the agent's own writes, in any order.

use k8s_openapi::api::coordination::v1::Lease;
use machine::instance::{Confirmed, Contact, LeaseVersion, Purpose, Reading, Unsettled};
use machine::lease_object::{self, LeaseContent};
use machine::protocol::LeaseRecord;
use machine::timing::{BootTime, Timing};

use super::World;
use crate::kubernetes::Written;

impl World {
    /// Takes a version of the Lease from the watch, or its absence.
    pub fn lease_read(&mut self, reading: Reading<Lease>, now: BootTime) {
        match reading {
            Reading::Is(lease) => self.lease_version(lease, now),
            Reading::Missing => {
                tracing::error!("the Lease is missing");
                self.observed.lease.see(None, now);
                self.lease = None;
            }
            // It is there, as a version that is newer than all that were read, and nothing can be written on top of it.
            Reading::Unknown => {
                self.observed.lease.see(None, now);
                self.observed.lease.record = Reading::Unknown;
            }
        }
    }

    /// A write of this agent begins: from now on it may be in the Lease, whatever becomes of its answer.
    pub fn lease_write_begins(&mut self, content: &LeaseContent, purpose: Purpose) {
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
    pub fn lease_written(&mut self, written: Written, purpose: Purpose, timing: Timing, now: BootTime) {
        let epoch = lease_object::read(&written.lease).map(|record| record.epoch);
        self.observed.lease.confirmed = match (purpose, epoch) {
            (Purpose::Take | Purpose::Renew, Ok(epoch)) => Some(Confirmed {
                epoch,
                sent: written.sent,
                timing,
            }),
            (Purpose::Release, _) | (_, Err(_)) => None,
        };
        self.observed.failsafe.clear();
        self.observed.lease.unsettled = None;
        // It was lost meanwhile: the answer tells what stood in it.
        let record = lease_object::read(&written.lease);
        if record.is_ok_and(|record| self.observed.lease.recall(&record)) {
            return;
        }
        self.lease_version(written.lease, now);
    }

    /// Takes any version of the Lease, unless a newer one is known.
    pub fn lease_version(&mut self, lease: Lease, now: BootTime) {
        if self.lease.as_ref().is_some_and(|known| is_older(&lease, known)) {
            return;
        }
        let record = lease_object::read(&lease)
            .inspect_err(|error| tracing::error!("understand the Lease: {error}"))
            .ok();
        let before = self.observed.lease.record.clone();
        self.observed.lease.see(Some((version(&lease), record)), now);
        if let Reading::Is(record) = &self.observed.lease.record {
            let before = before.is();
            if before.is_none_or(|before| tenancy(before) != tenancy(record)) {
                self.observed.lease.holder_since = now;
                self.observed.contact = Contact::default();
            }
            if before.is_none_or(|before| sign_of_life(before) != sign_of_life(record)) {
                self.observed.lease.changed = now;
            }
        }
        self.lease = Some(lease);
    }
}

/// Which version of which object this is, and whose.
fn version(lease: &Lease) -> LeaseVersion {
    let owners = lease.metadata.owner_references.iter().flatten();
    LeaseVersion {
        uid: lease.metadata.uid.clone().unwrap_or_default(),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
        owner: owners
            .filter(|owner| owner.controller == Some(true))
            .map(|owner| owner.uid.clone())
            .next(),
    }
}

/// Who holds it, and in which epoch.
fn tenancy(record: &LeaseRecord) -> (Option<&str>, u64) {
    let run = record.holder.as_ref().map(|holder| holder.incarnation.run.as_str());
    (run, record.epoch.0)
}

/// What a living holder changes.
fn sign_of_life(record: &LeaseRecord) -> (Option<String>, Option<&String>, u64) {
    let holder = record.holder.as_ref().map(|holder| holder.incarnation.identity());
    (holder, record.renewal.as_ref(), record.epoch.0)
}

/// Versions of one object grow; they can be compared as numbers (promised since Kubernetes 1.35, true before).
fn is_older(lease: &Lease, known: &Lease) -> bool {
    let version = |lease: &Lease| {
        lease
            .metadata
            .resource_version
            .as_ref()
            .and_then(|version| version.parse::<u64>().ok())
    };
    match (version(lease), version(known)) {
        (Some(version), Some(known_version)) => lease.metadata.uid == known.metadata.uid && version < known_version,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
