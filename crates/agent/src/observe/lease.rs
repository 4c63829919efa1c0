//! The Lease as an object: its content for the observer, and the version that the next write replaces.

use api::names::LABEL_CLUSTER_UID;
use k8s_openapi::api::coordination::v1::Lease;
use machine::instance::observer::{Event, SeenLease};
use machine::instance::{LeaseVersion, Reading};
use machine::lease_object;
use machine::timing::BootTime;

use super::World;

impl World {
    /// Takes a version of the Lease from the watch, or its absence.
    pub fn lease_read(&mut self, reading: Reading<Lease>, now: BootTime) {
        match reading {
            Reading::Is(lease) => {
                self.observe(Event::Lease(Reading::Is(Box::new(seen(&lease)))), now);
                self.keep_lease(lease);
            }
            Reading::Missing => {
                tracing::error!("the Lease is missing");
                self.observe(Event::Lease(Reading::Missing), now);
            }
            Reading::Unknown => self.observe(Event::Lease(Reading::Unknown), now),
        }
    }

    /// Keeps the Lease if it is the version that the observer uses.
    pub(super) fn keep_lease(&mut self, lease: Lease) {
        if self.observer.newest_lease() == Some(&version(&lease)) {
            self.lease = Some(lease);
        }
    }
}

/// A version of the Lease, in the observer's terms.
pub(super) fn seen(lease: &Lease) -> SeenLease {
    let record = lease_object::read(lease)
        .inspect_err(|error| tracing::error!("understand the Lease: {error}"))
        .ok();
    SeenLease {
        place: version(lease),
        record,
    }
}

/// The object's UID, its version, and for which database the operator has made it.
fn version(lease: &Lease) -> LeaseVersion {
    let labels = lease.metadata.labels.as_ref();
    LeaseVersion {
        uid: lease.metadata.uid.clone().unwrap_or_default(),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
        owner: labels.and_then(|labels| labels.get(LABEL_CLUSTER_UID)).cloned(),
    }
}

#[cfg(test)]
mod tests;
