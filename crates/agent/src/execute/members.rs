//! Members' roles and slots on the primary, and reports to it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use api::names::PEER_PORT;
use machine::instance::observer::{Contacted, Effect, News};
use machine::instance::{Reply, Work, heard};
use machine::protocol::{MemberId, ReportRequest};

use super::{Executor, SMALL};
use crate::deadman::boot_time;
use crate::observe::{Failure, World};
use crate::peer::PeerError;
use crate::postgres::Sql;

impl Executor {
    pub(super) fn admit(&self, world: &World, member: MemberId) {
        let (sql, own) = (Arc::clone(&self.sql), self.own_connection(world));
        self.spawn(Work::Admit, Some(SMALL), async move {
            let mut sql = sql.lock().await;
            let sql = sql.get_or_insert(own);
            let standby = sql.ensure_member(&member).await?;
            Ok(Effect::Admitted(standby.member).into())
        });
    }

    pub(super) fn drop_slots(&self, world: &World, keep: BTreeSet<MemberId>) {
        let (sql, own) = (Arc::clone(&self.sql), self.own_connection(world));
        self.spawn(Work::DropSlots, Some(SMALL), async move {
            let mut sql = sql.lock().await;
            let sql = sql.get_or_insert(own);
            let dropped = sql.drop_members_except(&keep).await?;
            if !dropped.is_empty() {
                tracing::info!(members = ?dropped, "dropped replication slots");
            }
            Ok(Effect::Kept(keep).into())
        });
    }

    pub(super) fn report(&self, world: &World, address: &str, request: ReportRequest) {
        let Ok(address) = address.parse::<IpAddr>() else {
            return self.fail(Work::Report, &format!("{address:?} is no address"));
        };
        let holder = world
            .observed()
            .lease
            .record
            .is()
            .and_then(|record| record.holder.as_ref());
        let run = holder.map(|holder| holder.incarnation.run.clone());
        let holders_key = heard::holders_key(world.observed(), boot_time());
        let peers = self.peers.clone();
        self.spawn(Work::Report, Some(SMALL), async move {
            let sent = boot_time();
            let called = peers.report(SocketAddr::new(address, PEER_PORT), &request).await;
            let failed = |contacted, failure: Failure| {
                let run = run.clone();
                failure.teaching(Some(News::Contact { contacted, run }))
            };
            let reply = called.map_err(|error| failed(contacted(&error), Failure::from(error)))?;
            // Another process has answered in the holder's place; so the holder was not heard.
            heard::check_answer(holders_key.as_deref(), reply.proven()).map_err(|reason| {
                let failure = Failure::said(format!("{address} answered a report, but not as the holder: {reason}"));
                failed(Contacted::Silent, failure)
            })?;
            let reply = reply.message;
            let reply = Reply {
                epoch: reply.epoch,
                admitted: reply.admitted,
                steps_down: reply.steps_down,
                oldest: reply.oldest,
                awaits: reply.awaits,
                report: request.report,
                sent,
            };
            Ok(Effect::Reported {
                reply: Box::new(reply),
                run,
            }
            .into())
        });
    }

    /// A connection of its own (not made yet), which waits for no other statements.
    pub(super) fn own_connection(&self, world: &World) -> Sql {
        let port = world.spec.as_ref().map_or(5432, |spec| spec.postgres.port);
        Sql::new(self.files.socket.clone(), port, world.major())
    }
}

/// Translates the error of a call. An agent that refuses a report does not hold the lease, or not in this epoch: it is
/// another run than the Lease names, or has fenced itself. In either case the holder was not heard.
fn contacted(error: &PeerError) -> Contacted {
    match error {
        PeerError::NotListening { .. } => Contacted::Refused,
        PeerError::Silent { .. }
        | PeerError::Unable { .. }
        | PeerError::Garbled { .. }
        | PeerError::Refused { .. }
        | PeerError::Failed { .. } => Contacted::Silent,
    }
}
