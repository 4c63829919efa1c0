//! Writes to Kubernetes, and the reading of the Lease that does not wait for a watch.

use machine::instance::{Purpose, Work, observer};
use machine::lease_object::LeaseContent;
use machine::protocol::Epoch;
use machine::timing::Timing;

use super::Executor;
use crate::kubernetes::{LeaseWriteError, read_route};
use crate::observe::{Effect, Failure, World};

impl Executor {
    pub(super) fn write_lease(&self, world: &World, content: LeaseContent, purpose: Purpose, timing: Timing) {
        let Some(base) = world.lease.clone() else {
            return self.fail(Work::WriteLease, "the Lease is not known");
        };
        let clients = self.clients.clone();
        self.spawn_vital(Work::WriteLease, async move {
            match clients.write_lease(&base, &content, timing).await {
                Ok(written) => Ok(Effect::lease_written(written, purpose, timing)),
                Err(LeaseWriteError::Conflict { now }) => {
                    let failure = Failure::said(LeaseWriteError::Conflict { now: None }.to_string());
                    Err(match now {
                        Some(lease) => failure.with_lease(*lease),
                        None => failure,
                    })
                }
                Err(error) => Err(error.into()),
            }
        });
    }

    pub(super) fn read_lease(&self) {
        let clients = self.clients.clone();
        self.spawn_vital(Work::ReadLease, async move {
            Ok(Effect::lease_read(clients.read_lease().await?))
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
