//! The worker: a process that archives what PostgreSQL hands over, as far as the agent's order allows.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use api::status::{BackupCatalogue, RecoveryCheck};
use backup::{Fence, Problem};
use chrono::Utc;
use machine::archive::{
    Answer, ArchiveFence, ArchiveLine, ArchiveRecord, Charge, Forecast, Lineage, RecoveryChecked, RecoveryOutline,
    Room, WalFile, answer,
};
use machine::protocol::Epoch;
use machine::recovery::Refusal;
use machine::units::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::attached::{Attached, attach, version};
use super::catalogue;
use super::client::Reply;
use super::delete::delete_folder;
use super::pushes::{Fault, Pushes};
use super::source::{Source, SourceError};
use super::{Order, Paths, Target};
use crate::deadman::boot_time;
use crate::stamp::Stamp;
use crate::volume::{marks, segment_size};

/// How often the holder's worker looks how far the archive is.
const LOOK: Duration = Duration::from_secs(1);
/// The pause between tries to use a store that nothing is to be pushed to yet.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// How long a standby's worker waits for the holder to tell that a segment is archived. The holder needs a few seconds for that.
/// PostgreSQL asks three times at once, and then says in its log that the archive fails.
const CONFIRMED: Duration = Duration::from_secs(10);
/// Characters of a refusal that are told: it may name all backups, and stands in the Lease.
const LONGEST: usize = 1_000;
/// How often the holder's worker looks at the backups though nothing has changed.
const CATALOGUE: Duration = Duration::from_secs(60 * 60);
/// The same after it could not.
const CATALOGUE_AGAIN: Duration = Duration::from_secs(60);

type Orders = watch::Receiver<Option<Order>>;

/// Works until standard input ends: orders come from there, as lines of JSON. What is known of the archive goes to standard output in the
/// same way, and what is wrong to standard error, in words.
///
/// # Errors
/// Fails if the socket cannot be made.
pub fn work(paths: Paths) -> anyhow::Result<()> {
    give_way_to_others();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (tell, orders) = watch::channel(None);
    std::thread::Builder::new().name("orders".into()).spawn(move || {
        for line in std::io::stdin().lock().lines() {
            match line.map(|line| serde_json::from_str::<Order>(&line)) {
                Ok(Ok(order)) => {
                    let _ = tell.send(Some(order));
                }
                Ok(Err(error)) => eprintln!("an order cannot be read: {error}"),
                Err(_) => break,
            }
        }
        // The agent has ended, or wants no worker any more.
        std::process::exit(0);
    })?;
    runtime.block_on(async move {
        let _ = std::fs::remove_file(&paths.socket);
        let listener =
            UnixListener::bind(&paths.socket).with_context(|| format!("listen at {}", paths.socket.display()))?;
        let worker = Arc::new(Worker {
            paths,
            orders,
            attached: tokio::sync::Mutex::default(),
            pushes: Mutex::default(),
            fault: Mutex::default(),
            given_up: AtomicU64::new(0),
            conflict: Mutex::default(),
            catalogue: Mutex::default(),
            deleted: AtomicBool::new(false),
            checked: Mutex::default(),
        });
        tokio::spawn(Arc::clone(&worker).report());
        tokio::spawn(Arc::clone(&worker).keep_catalogue());
        tokio::spawn(Arc::clone(&worker).check_recoveries());
        tokio::spawn(Arc::clone(&worker).delete_all());
        loop {
            let (stream, _) = listener.accept().await.context("accept a question")?;
            let worker = Arc::clone(&worker);
            tokio::spawn(async move {
                if let Err(error) = worker.serve(stream).await {
                    eprintln!("answer PostgreSQL's archiver: {error}");
                }
            });
        }
    })
}

/// PostgreSQL and the agent come first: with the processor, and when memory is short.
pub(crate) fn give_way_to_others() {
    if let Err(error) = rustix::process::nice(19) {
        eprintln!("lower the priority: {error}");
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "1000") {
        eprintln!("be the first that is ended when memory is short: {error}");
    }
}

struct Worker {
    paths: Paths,
    orders: Orders,
    /// The store in use, and the version of the credentials that it was opened with.
    attached: tokio::sync::Mutex<Option<(Arc<Attached>, Target, Stamp)>>,
    pushes: Mutex<Pushes>,
    /// Why the last attempt failed.
    fault: Mutex<Option<String>>,
    given_up: AtomicU64,
    /// The line that takes no more WAL.
    conflict: Mutex<Option<ArchiveLine>>,
    /// The backups in the store, as they were seen last.
    catalogue: Mutex<Option<BackupCatalogue>>,
    /// All that this database had in the store is deleted.
    deleted: AtomicBool,
    /// The recovery that the store was looked through for last.
    checked: Mutex<Option<RecoveryChecked>>,
}

impl Worker {
    async fn serve(&self, stream: UnixStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut name = String::new();
        stream.read_line(&mut name).await?;
        let reply = self.reply(name.trim_end()).await;
        stream.get_mut().write_all(&[reply.byte()]).await
    }

    async fn reply(&self, name: &str) -> Reply {
        let mut orders = self.orders.clone();
        let until = tokio::time::Instant::now() + CONFIRMED;
        loop {
            let order = orders.borrow_and_update().clone();
            let follows = matches!(order.as_ref().map(|order| order.charge), Some(Charge::Confirm { .. }));
            match self.reply_now(name, order, &orders).await {
                Reply::Later if follows => match tokio::time::timeout_at(until, orders.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => return Reply::Later,
                },
                reply => return reply,
            }
        }
    }

    async fn reply_now(&self, name: &str, order: Option<Order>, orders: &Orders) -> Reply {
        let Some(order) = order else {
            return Reply::Later;
        };
        let (file, size, room, lineage) = match self.look(name) {
            Ok(looked) => looked,
            Err(error) => {
                eprintln!("{name}: {error}");
                return Reply::Later;
            }
        };
        match answer(order.charge, file, size, room, boot_time()) {
            Answer::Archived => Reply::Archived,
            Answer::Later => Reply::Later,
            Answer::End => Reply::End,
            Answer::GiveUp => {
                self.given_up.fetch_add(1, Ordering::Relaxed);
                eprintln!(
                    "{name} is given up: {} wait for the archive and {} are free; unless another instance archives it, the archive has a gap there",
                    room.waiting, room.left
                );
                Reply::Archived
            }
            Answer::Push(epoch) => {
                tokio::select! {
                    pushed = self.push((name, file), &order, epoch, (size, &lineage)) => pushed,
                    // A push that is under way goes on, and does no harm: only this server's own WAL is written, under its own name.
                    reply = no_longer_pushes(orders.clone()) => reply,
                }
            }
        }
    }

    fn look(&self, name: &str) -> anyhow::Result<(WalFile, Bytes, Room, Lineage)> {
        let wal = &self.paths.wal;
        let size = Bytes(segment_size(wal).context("find the size of a segment")?);
        let file = WalFile::parse(name, size).context("this is no file of WAL")?;
        let (progress, lineage) = marks::read(wal, size).context("read what waits")?;
        let room = room(wal, progress.waiting).context("measure the volume")?;
        Ok((lineage.file(file, size), size, room, lineage))
    }

    async fn push(
        &self,
        (name, file): (&str, WalFile),
        order: &Order,
        epoch: Epoch,
        (size, lineage): (Bytes, &Lineage),
    ) -> Reply {
        let Some(target) = &order.target else {
            return Reply::Later;
        };
        let pushed = async {
            let store = self.store(target, size).await?;
            let begun = {
                let mut pushes = self.pushes.lock().unwrap_or_else(PoisonError::into_inner);
                pushes.begin(&store, &self.paths.wal, (name, file), epoch, (size, lineage))
            };
            begun.await
        };
        let pushed = pushed.await;
        self.pushes.lock().unwrap_or_else(PoisonError::into_inner).told(name);
        match pushed {
            Ok(()) => {
                self.set_fault(None);
                Reply::Archived
            }
            Err(Fault { words, is_conflict }) => {
                eprintln!("{name} cannot be archived: {words}");
                if is_conflict {
                    self.set_conflict(Some(target.line));
                }
                self.set_fault(Some(words));
                Reply::Later
            }
        }
    }

    /// The store, tried anew when its place or the credentials have changed.
    async fn store(&self, target: &Target, size: Bytes) -> Result<Arc<Attached>, String> {
        let mut attached = self.attached.lock().await;
        let version = version(&self.paths.access);
        if let Some((store, of, with)) = &*attached
            && of == target
            && *with == version
        {
            return Ok(Arc::clone(store));
        }
        *attached = None;
        let tried = async {
            let store = attach(target, &self.paths.access, size).await?;
            if store.has_ended().await? {
                return Ok(None);
            }
            match store.bring_histories(&self.paths.wal).await {
                Err(Problem::Conflict(_)) => Ok(None),
                brought => brought.map(|()| Some(Arc::new(store))),
            }
        };
        // What was told of another place, or of this one before, says nothing any more.
        self.set_conflict(None);
        let Some(store) = tried.await.map_err(|problem: Problem| problem.to_string())? else {
            self.set_conflict(Some(target.line));
            return Err(format!("line {} of the archive has ended", target.line.0));
        };
        *attached = Some((Arc::clone(&store), target.clone(), version));
        self.set_fault(None);
        // Pushes to another place say nothing about this one.
        *self.pushes.lock().unwrap_or_else(PoisonError::into_inner) = Pushes::default();
        Ok(store)
    }

    fn set_conflict(&self, line: Option<ArchiveLine>) {
        *self.conflict.lock().unwrap_or_else(PoisonError::into_inner) = line;
    }

    fn set_fault(&self, fault: Option<String>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Tells the agent how far the archive is, as long as this member fills it, and tries the store before it is needed.
    async fn report(self: Arc<Self>) {
        let (mut told, mut tried, mut forecast) = (None, None::<tokio::time::Instant>, Forecast::default());
        loop {
            tokio::time::sleep(LOOK).await;
            let order = self.orders.borrow().clone();
            let fills = |order: &Order| matches!(order.charge, Charge::Push { .. });
            let Some((order, target)) = order
                .filter(|order| fills(order) || order.deletes)
                .and_then(|order| Some((order.clone(), order.target?)))
            else {
                (told, forecast) = (None, Forecast::default());
                self.set_conflict(None);
                continue;
            };
            let Ok(size) = segment_size(&self.paths.wal).map(Bytes) else {
                continue;
            };
            if fills(&order) && tried.is_none_or(|tried| tried.elapsed() >= TRY_AGAIN) {
                tried = Some(tokio::time::Instant::now());
                if let Err(error) = self.store(&target, size).await {
                    self.set_fault(Some(error));
                }
            }
            match self.record(&self.paths.wal, size, &mut forecast).await {
                Ok(record) if told.as_ref() != Some(&record) => {
                    let line = serde_json::to_string(&record).unwrap_or_default();
                    let mut out = std::io::stdout().lock();
                    if writeln!(out, "{line}").and_then(|()| out.flush()).is_ok() {
                        told = Some(record);
                    }
                }
                Ok(_) => {}
                Err(error) => eprintln!("read what is archived: {error}"),
            }
        }
    }

    async fn record(&self, wal: &Path, size: Bytes, forecast: &mut Forecast) -> std::io::Result<ArchiveRecord> {
        let progress = marks::read(wal, size)?.0;
        let room = room(wal, progress.waiting)?;
        let attached = self.attached.lock().await;
        let fence = attached.as_ref().map(|(store, ..)| match store.fence() {
            Fence::Enforced => ArchiveFence::Enforced,
            Fence::BestEffort => ArchiveFence::BestEffort,
        });
        Ok(ArchiveRecord {
            // The Lease says which one is used.
            line: ArchiveLine::default(),
            conflict: *self.conflict.lock().unwrap_or_else(PoisonError::into_inner),
            progress,
            fence,
            deleted: self.deleted.load(Ordering::Relaxed),
            given_up: self.given_up.load(Ordering::Relaxed),
            fault: self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            full_time: forecast.full(room, boot_time(), Utc::now()),
            backup: None,
            catalogue: self.catalogue.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            checked: self.checked.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        })
    }

    /// Deletes all that this database has in the store, if that is ordered.
    async fn delete_all(self: Arc<Self>) {
        let mut orders = self.orders.clone();
        let deletes = |order: &Option<Order>| order.as_ref().is_some_and(|order| order.deletes);
        while orders.wait_for(deletes).await.is_ok() {
            let target = self.orders.borrow().as_ref().and_then(|order| order.target.clone());
            let deleted = tokio::select! {
                deleted = self.try_deleting(target) => deleted,
                // What is left, the next holder deletes.
                _ = orders.wait_for(|order| !deletes(order)) => continue,
            };
            match deleted {
                Ok(()) => {
                    self.set_fault(None);
                    self.deleted.store(true, Ordering::Relaxed);
                    let _ = orders.wait_for(|order| !deletes(order)).await;
                    self.deleted.store(false, Ordering::Relaxed);
                }
                Err(problem) => {
                    self.set_fault(Some(format!("what is archived cannot be deleted: {problem}")));
                    tokio::time::sleep(TRY_AGAIN).await;
                }
            }
        }
    }

    async fn try_deleting(&self, target: Option<Target>) -> Result<(), Problem> {
        let target = target.ok_or_else(|| Problem::Unusable("it is not known where WAL is archived".to_owned()))?;
        // An attempt to use the store, or a push, that is under way would write behind the deletion.
        *self.attached.lock().await = None;
        while self.pushes.lock().unwrap_or_else(PoisonError::into_inner).under_way() > 0 {
            tokio::time::sleep(LOOK).await;
        }
        delete_folder(&target, &self.paths.access).await
    }

    /// Looks through the store for each recovery that is asked for while this member fills the archive.
    async fn check_recoveries(self: Arc<Self>) {
        let mut orders = self.orders.clone();
        let mut known = None;
        loop {
            let order = orders.borrow_and_update().clone();
            let order = order.filter(|order| matches!(order.charge, Charge::Push { .. }));
            let wanted = order.and_then(|order| Some((order.target?, order.check?)));
            if wanted != known {
                // What was found before, perhaps in another store or under another holder, says nothing any more.
                *self.checked.lock().unwrap_or_else(PoisonError::into_inner) = None;
                known = None;
            }
            if let Some((target, check)) = wanted.filter(|_| known.is_none()) {
                let found = tokio::select! {
                    found = self.look_through(&target, &check) => found,
                    _ = no_longer_pushes(self.orders.clone()) => continue,
                };
                *self.checked.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
                known = Some((target, check));
                continue;
            }
            if orders.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether there can be such a recovery, and from what.
    async fn look_through(&self, target: &Target, check: &RecoveryCheck) -> RecoveryChecked {
        let begun = tokio::time::Instant::now();
        let told = |refusal, outline| RecoveryChecked {
            uid: check.uid.clone(),
            refusal,
            outline,
        };
        loop {
            let refused = match self.try_plan(target, check).await {
                Ok(outline) => return told(None, outline),
                Err(refused) => refused,
            };
            // Segments are pushed beside each other, and a store may come back.
            let may_pass = match refused.downcast_ref() {
                Some(SourceError::Refused(Refusal::Missing { .. })) => true,
                Some(SourceError::Store { source, .. }) => source.is_transient(),
                Some(SourceError::Refused(_) | SourceError::NoIdentity { .. }) | None => false,
            };
            if !may_pass || begun.elapsed() >= TRY_AGAIN {
                return told(Some(format!("{refused:#}").chars().take(LONGEST).collect()), None);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn try_plan(&self, target: &Target, check: &RecoveryCheck) -> anyhow::Result<Option<RecoveryOutline>> {
        let recover = &check.recover;
        let (wanted, _) = machine::recovery::Target::of_spec(recover.target.as_ref()).map_err(anyhow::Error::msg)?;
        // The private keys are mounted only where something is recovered.
        let source = Source::open(&target.place, &self.paths.access, None, &target.folder)?;
        match source.plan(recover.backup.as_deref(), &wanted).await {
            Ok(planned) => Ok(Some(planned.outline())),
            // The rest is archived before all instances have stopped.
            Err(SourceError::Refused(Refusal::AfterEnd { .. })) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Looks at the backups in the store as long as this member fills the archive, and removes those that the retention does not keep.
    async fn keep_catalogue(self: Arc<Self>) {
        let mut looked = None::<(Order, tokio::time::Instant)>;
        loop {
            tokio::time::sleep(LOOK).await;
            let order = self.orders.borrow().clone();
            let Some(order) = order.filter(|order| matches!(order.charge, Charge::Push { .. })) else {
                looked = None;
                continue;
            };
            let is_new = |(of, _): &(Order, _)| {
                (&of.target, &of.retention, &of.newest_backup, &of.snapshots)
                    != (&order.target, &order.retention, &order.newest_backup, &order.snapshots)
            };
            let known = self.catalogue.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let pause = match known.as_ref().is_some_and(|known| known.fault.is_some()) {
                true => CATALOGUE_AGAIN,
                false => CATALOGUE,
            };
            if looked
                .as_ref()
                .is_some_and(|looked| !is_new(looked) && looked.1.elapsed() < pause)
            {
                continue;
            }
            let attached = self.attached.lock().await;
            let store = attached.as_ref().filter(|(_, of, _)| Some(of) == order.target.as_ref());
            let Some(store) = store.map(|(store, ..)| Arc::clone(store)) else {
                continue;
            };
            drop(attached);
            let Ok(size) = segment_size(&self.paths.wal).map(Bytes) else {
                continue;
            };
            let kept = tokio::select! {
                kept = catalogue::keep(&store, &self.paths.access, &order, size, Utc::now()) => kept,
                // What is begun of a removal, the next holder ends.
                _ = no_longer_pushes(self.orders.clone()) => continue,
            };
            let next = kept.unwrap_or_else(|problem| BackupCatalogue {
                fault: Some(problem.to_string()),
                ..known.unwrap_or_default()
            });
            *self.catalogue.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
            looked = Some((order, tokio::time::Instant::now()));
        }
    }
}

/// The space on the file system of `pg_wal`, of which so much is WAL that waits.
pub(super) fn room(wal: &Path, waiting: Bytes) -> std::io::Result<Room> {
    let space = rustix::fs::statvfs(wal)?;
    let left = Bytes(space.f_bavail.saturating_mul(space.f_frsize));
    Ok(Room { left, waiting })
}

/// Waits until this member is not to fill the archive any more; the answer for PostgreSQL then.
async fn no_longer_pushes(mut orders: Orders) -> Reply {
    loop {
        if orders.changed().await.is_err() {
            return std::future::pending().await;
        }
        match orders.borrow_and_update().as_ref().map(|order| order.charge) {
            Some(Charge::Push { .. }) => {}
            Some(Charge::End) => return Reply::End,
            Some(Charge::Nowhere | Charge::Confirm { .. } | Charge::Wait) | None => return Reply::Later,
        }
    }
}
