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
mod tests {
    use super::super::tests::world;
    use super::*;
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
    use k8s_openapi::jiff::Timestamp;

    fn lease(version: &str, renewal: i64) -> Lease {
        let metadata = ObjectMeta {
            uid: Some("u".to_owned()),
            resource_version: Some(version.to_owned()),
            ..ObjectMeta::default()
        };
        let renew_time = Timestamp::from_second(renewal).ok().map(MicroTime);
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                renew_time,
                ..LeaseSpec::default()
            }),
        }
    }

    fn version(world: &World) -> &str {
        world
            .observed
            .lease
            .record
            .is()
            .map_or("", |record| record.version.as_str())
    }

    #[test]
    fn an_older_version_that_comes_late_changes_nothing() {
        let mut world = world();
        world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
        world.lease_read(Reading::Is(lease("9", 0)), BootTime(2));
        assert_eq!((version(&world), world.observed.lease.changed), ("10", BootTime(1)));
    }

    #[test]
    fn only_a_sign_of_life_starts_the_count_anew() {
        let mut world = world();
        world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
        world.lease_read(Reading::Is(lease("11", 1)), BootTime(2));
        assert_eq!((version(&world), world.observed.lease.changed), ("11", BootTime(1)));
        world.lease_read(Reading::Is(lease("12", 2)), BootTime(3));
        assert_eq!(world.observed.lease.changed, BootTime(3));
    }

    #[test]
    fn a_lease_that_cannot_be_read_is_unknown_until_it_can() {
        let mut world = world();
        world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
        world.lease_read(Reading::Unknown, BootTime(2));
        assert_eq!(world.observed.lease.record, Reading::Unknown);
        world.lease_read(Reading::Is(lease("12", 2)), BootTime(3));
        assert_eq!(version(&world), "12");
    }

    #[test]
    fn a_lease_that_is_gone_is_missing_and_not_empty() {
        let mut world = world();
        world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
        world.lease_read(Reading::Missing, BootTime(2));
        assert_eq!(world.observed.lease.record, Reading::Missing);
    }

    #[test]
    fn writes_are_remembered_until_one_succeeds_or_their_version_is_past() {
        use machine::quorum::SyncRule;
        let mut world = world();
        let content = |version: &str, required| LeaseContent {
            uid: "u".to_owned(),
            version: version.to_owned(),
            holder: None,
            duration: 10_000,
            epoch: machine::protocol::Epoch(1),
            system_id: None,
            release: None,
            rule: SyncRule {
                required,
                ..SyncRule::default()
            },
            timeline: None,
            lossy: None,
            history: Vec::new(),
            members: std::collections::BTreeMap::new(),
            positions: std::collections::BTreeMap::new(),
        };
        let known = |world: &World| {
            let unsettled = world.observed.lease.unsettled.clone()?;
            Some((unsettled.version, unsettled.rules.len(), unsettled.releases))
        };
        world.lease_write_begins(&content("7", 1), Purpose::Renew);
        world.lease_write_begins(&content("7", 1), Purpose::Renew);
        world.lease_write_begins(&content("7", 2), Purpose::Release);
        world.lease_write_begins(&content("7", 2), Purpose::Renew);
        assert_eq!(known(&world), Some(("7".to_owned(), 2, true)));
        world.lease_write_begins(&content("8", 1), Purpose::Renew);
        assert_eq!(known(&world), Some(("8".to_owned(), 1, false)));
        let promise = machine::instance::Failsafe {
            member: machine::protocol::MemberId::new(1, "aaaa", 1),
            epoch: machine::protocol::Epoch(1),
            sent: BootTime(5),
        };
        world.observed.failsafe.insert("orders-1".to_owned(), promise);
        let written = Written {
            lease: lease("9", 1),
            sent: BootTime(6),
        };
        world.lease_written(written, Purpose::Renew, Timing::DEFAULT, BootTime(7));
        assert_eq!(known(&world), None);
        assert!(world.observed.failsafe.is_empty(), "a renewal needs no promises");
    }
}
