//! PostgreSQL's answers about its state, and the content of a volume.

use std::collections::BTreeSet;

use machine::instance::observer::{Following, Receiver, Scan, Status};
use machine::instance::{Data, Database, Member, Promise, VolumeView, WalSender};
use machine::protocol::{Epoch, Lsn, Timeline};
use machine::timing::BootTime;

use super::names::{SYSTEM_ID, address, key};
use super::postgres::{Impostor, Sender};
use super::world::World;

impl World {
    /// The state of a member's PostgreSQL; `None` while it accepts no connections.
    pub fn status(&self, node: usize) -> Option<Status> {
        let server = self.nodes[node]
            .postgres
            .as_ref()
            .filter(|server| server.up && server.stop.is_none())?;
        let data = self.nodes[node].volume.data.as_ref()?;
        // A standby reports its flushed position too.
        let end = data.end;
        let sender = |(stream, sender): (&u64, &Sender)| WalSender {
            pid: i32::try_from(*stream).unwrap_or(i32::MAX),
            role: sender.member.to_string(),
            name: sender.member.to_string(),
            streaming: sender.streaming,
            flushed: Some(Lsn(sender.flushed)),
        };
        let impostor = |(stream, impostor): (&u64, &Impostor)| WalSender {
            pid: i32::try_from(*stream).unwrap_or(i32::MAX),
            role: "cdc".to_owned(),
            name: impostor.name.to_string(),
            streaming: true,
            flushed: Some(Lsn(end.lsn)),
        };
        let senders = server.senders.iter().map(sender);
        let limit = |settings: &String| self.api.objects.limits.get(settings);
        let receiver = server.receiver.as_ref().filter(|receiver| receiver.connected);
        let (recovers, position) = (server.in_recovery, self.wal.position(end));
        let begins = Lsn(self.wal.0[end.branch].base.map_or(0, |base| base.lsn));
        Some(Status {
            in_recovery: recovers,
            position,
            begins: receiver.is_none().then_some(begins),
            inserted: (!recovers).then_some(Lsn(server.end.lsn)),
            replayed: recovers.then_some(position.lsn),
            received_all: recovers && receiver.is_none(),
            knows_end: recovers,
            waits_for_wal: recovers && receiver.is_none(),
            following: following(server.upstream),
            history: self.wal.history(server.end.branch),
            oldest: None,
            // A WAL receiver that is not connected yet is not reported.
            receiver: receiver.map(|receiver| Receiver {
                status: "streaming".to_owned(),
                heard_age: Some(self.boot_time(node).since(receiver.heard)),
            }),
            senders: senders.chain(server.impostors.iter().map(impostor)).collect(),
            slots: data.slots.clone(),
            lost_slots: BTreeSet::new(),
            pending_restart: server.configured != server.started_with,
            lowers_limits: limit(&server.configured) < limit(&server.started_with),
        })
    }

    /// The content of a volume, by a reading that began at that time.
    pub fn scan(&self, node: usize, read: BootTime) -> Box<Scan> {
        let volume = &self.nodes[node].volume;
        let data = volume.data.as_ref().map(|data| {
            let redo = Lsn(data.redo.min(data.end.lsn));
            // The control file has the position that a standby's data must reach, and the last checkpoint. WAL
            // continues after that, perhaps on another timeline.
            let at = match data.consistent {
                Some(consistent) => consistent,
                None if data.primary => data.end,
                None => self.wal.at(data.end, redo.0),
            };
            let checkpoint = match data.consistent {
                Some(consistent) => consistent.lsn,
                None => redo.0,
            };
            Data::Present(Database {
                system_id: SYSTEM_ID.to_owned(),
                timeline: Timeline(self.wal.timeline(at.branch)),
                checkpoint: Lsn(checkpoint),
                redo,
                written: Lsn(data.end.lsn),
                clean: data.clean,
                primary: data.primary,
            })
        });
        let view = VolumeView {
            member: volume.member.clone().map(|id| Member {
                public_key: key(&id),
                id,
                claim_uid: volume.claim.clone(),
                certificate: volume.certificate.then(|| "pem".to_owned()),
            }),
            made_for: None,
            data: data.unwrap_or(Data::Empty),
            promise: Some(self.promise_on(node)),
            rewinding: volume.rewinding,
            was_primary: volume.was_primary,
            read,
        };
        Box::new(Scan {
            view,
            enforced: None,
            good_settings: None,
        })
    }

    /// The content of a member's promise store.
    pub fn promise_on(&self, node: usize) -> Promise {
        let volume = &self.nodes[node].volume;
        Promise {
            epoch: Epoch(volume.promise),
            promoting: volume.promoting.map(Timeline),
        }
    }
}

/// How a standby's settings name its upstream.
pub fn following(upstream: Option<usize>) -> Following {
    Following {
        conninfo: upstream.map(address).unwrap_or_default(),
        slot: String::new(),
    }
}
