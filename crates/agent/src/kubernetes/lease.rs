//! Writing the Lease: one compare-and-swap, in bounded time, never repeated here. And reading it, beside its watch.

use std::time::Duration;

use api::Guarded;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use machine::lease_object::{self, LeaseContent};
use machine::timing::{BootTime, Timing};

use super::Clients;
use crate::deadman::boot_time;

/// The longest time that a request may take; less if renewals are more frequent.
const REQUEST: Duration = Duration::from_secs(2);

/// A Lease that was written.
#[derive(Debug)]
pub struct Written {
    /// As the API server keeps it now.
    pub lease: Lease,
    /// When the request was sent.
    pub sent: BootTime,
}

/// Why a Lease was not written. Only after [`LeaseWriteError::Conflict`] it is certain that it was not.
#[derive(Debug, thiserror::Error)]
pub enum LeaseWriteError {
    /// It has changed since it was read.
    #[error("the Lease has changed meanwhile")]
    Conflict {
        /// As it is now, if that could be read.
        now: Option<Box<Lease>>,
    },
    /// No answer in time.
    #[error("the API server did not answer within {0:?}")]
    Silent(Duration),
    /// The API server refused, or could not be reached.
    #[error("write the Lease: {0}")]
    Failed(#[from] Box<kube::Error>),
    /// The API server's answer cannot be read.
    #[error("the Lease cannot be read: {0}")]
    Unreadable(String),
}

/// Why a Lease was not read.
#[derive(Debug, thiserror::Error)]
pub enum LeaseReadError {
    /// No answer in time.
    #[error("the API server did not answer within {0:?}")]
    Silent(Duration),
    /// The API server refused, or could not be reached.
    #[error("read the Lease: {0}")]
    Failed(#[from] Box<kube::Error>),
    /// It is there and cannot be read.
    #[error("the Lease cannot be read: {0}")]
    Unreadable(String),
}

impl Clients {
    /// The Lease as it is now, by the connection of writes: not that of a watch that may be dead.
    pub async fn read_lease(&self) -> Result<Lease, LeaseReadError> {
        let name = self.names().lease();
        match tokio::time::timeout(REQUEST, self.leases().get(&name)).await {
            Ok(read) => (read.map_err(Box::new)?.0).map_err(|unreadable| LeaseReadError::Unreadable(unreadable.why)),
            Err(_) => Err(LeaseReadError::Silent(REQUEST)),
        }
    }

    /// Replaces the Lease that was read as `base` with `content`.
    pub async fn write_lease(
        &self,
        base: &Lease,
        content: &LeaseContent,
        timing: Timing,
    ) -> Result<Written, LeaseWriteError> {
        let limit = REQUEST.min(Duration::from_millis(timing.renew));
        let api = self.leases();
        let name = self.names().lease();
        let sent = boot_time();
        let lease = Guarded::from(lease_object::write(base, content, MicroTime(Timestamp::now())));
        let parameters = PostParams::default();
        match tokio::time::timeout(limit, api.replace(&name, &parameters, &lease)).await {
            Ok(Ok(Guarded(Ok(lease)))) => Ok(Written { lease, sent }),
            Ok(Ok(Guarded(Err(unreadable)))) => Err(LeaseWriteError::Unreadable(unreadable.why)),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
                let now = tokio::time::timeout(limit, api.get(&name))
                    .await
                    .ok()
                    .and_then(|read| read.ok()?.0.ok());
                Err(LeaseWriteError::Conflict { now: now.map(Box::new) })
            }
            Ok(Err(error)) => Err(LeaseWriteError::Failed(Box::new(error))),
            Err(_) => Err(LeaseWriteError::Silent(limit)),
        }
    }
}
