//! Writing the Lease, with one compare-and-swap and a time limit, and without retries. And reading it without its
//! watch.

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

/// Time limit of a request. It is shorter if renewals are more frequent.
const REQUEST: Duration = Duration::from_secs(2);

/// A Lease that was written.
#[derive(Debug)]
pub struct Written {
    /// The Lease as the API server keeps it now.
    pub lease: Lease,
    /// When the request was sent.
    pub sent: BootTime,
}

/// Why a write of the Lease failed. Only [`LeaseWriteError::Conflict`] proves that it was not written.
#[derive(Debug, thiserror::Error)]
pub enum LeaseWriteError {
    /// The Lease has changed since it was read.
    #[error("the Lease has changed meanwhile")]
    Conflict {
        /// The Lease as it is now, if it could be read.
        now: Option<Box<Lease>>,
    },
    /// The API server did not answer in time.
    #[error("the API server did not answer within {0:?}")]
    Silent(Duration),
    /// The API server refused, or could not be reached.
    #[error("write the Lease: {0}")]
    Failed(#[from] Box<kube::Error>),
    /// The API server's answer is not understood.
    #[error("the Lease cannot be read: {0}")]
    Unreadable(String),
}

/// Why a Lease was not read.
#[derive(Debug, thiserror::Error)]
pub enum LeaseReadError {
    /// The API server did not answer in time.
    #[error("the API server did not answer within {0:?}")]
    Silent(Duration),
    /// The API server refused, or could not be reached.
    #[error("read the Lease: {0}")]
    Failed(#[from] Box<kube::Error>),
    /// The Lease exists and is not understood.
    #[error("the Lease cannot be read: {0}")]
    Unreadable(String),
}

impl Clients {
    /// Reads the Lease over the connection of writes: the watch may be dead.
    ///
    /// # Errors
    /// Fails with [`LeaseReadError`] if the API server does not answer in time, refuses, or returns a Lease that is not
    /// understood.
    pub async fn read_lease(&self) -> Result<Lease, LeaseReadError> {
        let name = self.names().lease();
        match tokio::time::timeout(REQUEST, self.leases().get(&name)).await {
            Ok(read) => (read.map_err(Box::new)?.0).map_err(|unreadable| LeaseReadError::Unreadable(unreadable.why)),
            Err(_) => Err(LeaseReadError::Silent(REQUEST)),
        }
    }

    /// Replaces the Lease that was read as `base` by one with `content`.
    ///
    /// # Errors
    /// Fails with [`LeaseWriteError::Conflict`] if the Lease has changed since; then nothing was written. After any
    /// other error the Lease may have been written.
    pub async fn write_lease(
        &self,
        base: &Lease,
        content: &LeaseContent,
        timing: Timing,
    ) -> Result<Written, LeaseWriteError> {
        let limit = REQUEST.min(timing.renew.duration());
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
