//! Following the Lease: versions arrive from the watch and from the agent's own writes, in any order.

use k8s_openapi::api::coordination::v1::Lease;
use machine::instance::{Confirmed, Purpose, Reading};
use machine::lease_object;
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
                self.observed.lease.record = Reading::Missing;
                self.lease = None;
            }
            Reading::Unknown => {}
        }
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
        self.lease_version(written.lease, now);
    }

    /// Takes any version of the Lease, unless a newer one is known.
    pub fn lease_version(&mut self, lease: Lease, now: BootTime) {
        if self.lease.as_ref().is_some_and(|known| is_older(&lease, known)) {
            return;
        }
        match lease_object::read(&lease) {
            Ok(record) => {
                let before = self.observed.lease.record.is();
                if before.is_none_or(|before| sign_of_life(before) != sign_of_life(&record)) {
                    self.observed.lease.changed = now;
                }
                self.observed.lease.record = Reading::Is(record);
            }
            Err(error) => {
                tracing::error!("understand the Lease: {error}");
                self.observed.lease.record = Reading::Unknown;
            }
        }
        self.lease = Some(lease);
    }
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
    fn a_lease_that_is_gone_is_missing_and_not_empty() {
        let mut world = world();
        world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
        world.lease_read(Reading::Missing, BootTime(2));
        assert_eq!(world.observed.lease.record, Reading::Missing);
    }
}
