//! What the archive's worker is told.

use std::collections::BTreeSet;
use std::path::PathBuf;

use machine::instance::archive::{charge, deletes, line};
use machine::instance::backup::{BackupCopy, closes_segment, copy_to_make};
use machine::retention::keeping;
use machine::timing::BootTime;
use tokio::sync::watch;

use super::{Config, set_if_changed};
use crate::archive::{Archiving, Order, Target, place};
use crate::base::{self, Closing};
use crate::observe::World;

/// Tells the worker what it may do, and which backup is to be made. Without an archive there is no worker.
pub(super) struct Archive {
    orders: watch::Sender<Option<Order>>,
    backups: watch::Sender<Option<base::Order>>,
    closing: watch::Sender<Option<Closing>>,
    access: PathBuf,
    volume: PathBuf,
    socket: PathBuf,
    folder: String,
    cluster_uid: String,
    pod_uid: String,
}

impl Archive {
    pub(super) fn new(config: &Config, archiving: &Archiving) -> anyhow::Result<Self> {
        Ok(Self {
            orders: watch::Sender::default(),
            backups: watch::Sender::default(),
            closing: watch::Sender::default(),
            access: archiving.access.clone(),
            volume: archiving.volume.clone(),
            socket: config.socket.clone(),
            folder: config.folder()?,
            cluster_uid: config.cluster_uid.clone(),
            pod_uid: config.pod_uid.clone(),
        })
    }

    /// What the archive's worker may do.
    pub(super) fn orders(&self) -> watch::Receiver<Option<Order>> {
        self.orders.subscribe()
    }

    /// Which backup is to be made.
    pub(super) fn backups(&self) -> watch::Receiver<Option<base::Order>> {
        self.backups.subscribe()
    }

    /// Which segments are to be closed for a backup.
    pub(super) fn closing(&self) -> watch::Receiver<Option<Closing>> {
        self.closing.subscribe()
    }

    pub(super) fn publish(&self, world: &World, now: BootTime) {
        let observed = world.observed();
        let cluster = observed.cluster.is();
        let policy = world
            .spec
            .as_ref()
            .and_then(|spec| spec.backup.as_ref()?.retention.as_ref());
        let proven = cluster.and_then(|cluster| cluster.proven_backup.as_deref());
        let order = Order {
            charge: charge(observed, &world.memo, now),
            target: self.target(world),
            retention: policy.map(|policy| keeping(policy, proven)),
            newest_backup: newest_backup(world),
            snapshots: cluster.map_or_else(BTreeSet::new, |cluster| cluster.snapshots.clone()),
            deletes: deletes(observed, now),
            check: cluster.and_then(|cluster| cluster.recovery_check.clone()),
        };
        set_if_changed(&self.orders, Some(order));
        let copy = copy_to_make(observed, &world.memo, now);
        set_if_changed(&self.backups, copy.and_then(|copy| self.backup(world, copy)));
        let closing = closes_segment(observed, &world.memo, now).then(|| closing(world));
        set_if_changed(&self.closing, closing.flatten());
    }

    fn backup(&self, world: &World, copy: BackupCopy) -> Option<base::Order> {
        Some(base::Order {
            target: self.target(world)?,
            access: self.access.clone(),
            copy,
            snapshot: world.observed().cluster.is()?.snapshot.clone(),
            socket_directory: self.socket.clone(),
            port: world.spec.as_ref()?.postgres.port,
        })
    }

    fn target(&self, world: &World) -> Option<Target> {
        let backup = world.spec.as_ref()?.backup.as_ref()?;
        let encryption = backup.encryption.as_ref();
        Some(Target {
            place: place(&backup.store, &self.volume)?,
            recipients: encryption.map_or_else(Vec::new, |encryption| encryption.recipients.clone()),
            folder: self.folder.clone(),
            line: line(world.observed()),
            cluster_uid: self.cluster_uid.clone(),
            system_id: world.observed().lease.record.is()?.system_id.clone()?,
            pod_uid: self.pod_uid.clone(),
        })
    }
}

fn closing(world: &World) -> Option<Closing> {
    Some(Closing {
        port: world.spec.as_ref()?.postgres.port,
        major: world.major(),
    })
}

/// Name of the backup that a holder has completed last.
fn newest_backup(world: &World) -> Option<String> {
    let archive = world.observed().lease.record.is()?.archive.as_ref()?;
    Some(archive.backup.as_ref()?.backup.as_ref()?.name.clone())
}
