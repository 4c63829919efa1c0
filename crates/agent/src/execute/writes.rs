//! Writes to Kubernetes, and the one reading that waits for no watch.

use machine::instance::{Purpose, Work, observer};
use machine::lease_object::LeaseContent;
use machine::protocol::Epoch;
use machine::timing::Timing;

use super::Executor;
use crate::kubernetes::{LeaseWriteError, read_route};
use crate::observe::{Effect, Failure, News, World};

impl Executor {
    pub(super) fn write_lease(&self, world: &World, content: LeaseContent, purpose: Purpose, timing: Timing) {
        let Some(base) = world.lease.clone() else {
            return self.fail(Work::WriteLease, "the Lease is not known");
        };
        let clients = self.clients.clone();
        self.spawn_vital(Work::WriteLease, async move {
            match clients.write_lease(&base, &content, timing).await {
                Ok(written) => Ok(Effect::Lease {
                    written: Box::new(written),
                    purpose,
                    timing,
                }),
                Err(LeaseWriteError::Conflict { now }) => {
                    let message = LeaseWriteError::Conflict { now: None }.to_string();
                    Err(Failure {
                        message,
                        news: now.map(News::Lease),
                    })
                }
                Err(error) => Err(error.into()),
            }
        });
    }

    pub(super) fn read_lease(&self) {
        let clients = self.clients.clone();
        self.spawn_vital(Work::ReadLease, async move {
            Ok(Effect::LeaseRead(Box::new(clients.read_lease().await?)))
        });
    }

    pub(super) fn route(&self, world: &World, address: String, epoch: Epoch) {
        let record = world.observed().lease.record.is();
        let holder = record.and_then(|record| Some(record.holder.as_ref()?.incarnation.clone()));
        let (Some(holder), Some(port)) = (holder, world.port()) else {
            return self.fail(Work::Route, "the Lease or the ClusteredDatabase is not known");
        };
        let clients = self.clients.clone();
        self.spawn_vital(Work::Route, async move {
            let slice = clients.write_route(&holder, &address, port, epoch).await?;
            Ok(observer::Effect::Routed(read_route(&slice, port)).into())
        });
    }
}
