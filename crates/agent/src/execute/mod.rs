//! Carrying out actions: some at once, others as tasks that report their end as an event. No decision is made in this
//! module.

mod deadline;
mod election;
mod members;
mod poolers;
mod secrets;
mod server;
mod sync;
mod volume;
mod writes;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use machine::instance::observer::News;
use machine::instance::{Action, Stop, Work};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Mutex, Notify};

pub use deadline::Deadline;
pub use poolers::Poolers;
pub use server::Written;

use crate::archive::Archiving;
use crate::deadman::DeadMan;
use crate::event::Event;
use crate::kubernetes::Clients;
use crate::observe::{Done, Effect, Failure, World};
use crate::peer;
use crate::postgres::{Files, Sql, StopMode};
use crate::process::Supervisor;
use crate::volume::Volume;

/// Time limit of a start: checking the configuration and starting one process. Recovery comes after it.
const START: Duration = Duration::from_secs(60);
/// Time limit of a change of the configuration.
const CONFIGURE: Duration = Duration::from_secs(30);
/// Time limit of small statements and small files.
const SMALL: Duration = Duration::from_secs(10);

/// Carries out actions.
pub struct Executor {
    /// Where tasks run. Only tasks that the lease depends on run beside the event loop, on its own thread: writes to
    /// Kubernetes, and killing.
    pub workers: Handle,
    /// The channel on which tasks report.
    pub events: UnboundedSender<Event>,
    /// Kubernetes.
    pub clients: Clients,
    /// Peers.
    pub peers: peer::Client,
    /// The volume.
    pub volume: Volume,
    /// The places of PostgreSQL's files.
    pub files: Files,
    /// Processes.
    pub supervisor: Supervisor,
    /// The dead-man.
    pub dead_man: Arc<DeadMan>,
    /// The name of the application's password file.
    pub password_file: PathBuf,
    /// A connection for changes; status and canary have their own.
    pub sql: Arc<Mutex<Option<Sql>>>,
    /// The content of the configuration files beside the settings. Held while the files are written.
    pub written: Arc<Mutex<Written>>,
    /// The time until which something may be started for writing.
    pub deadline: Arc<Deadline>,
    /// A start in flight is to be undone.
    pub undo_start: Arc<AtomicBool>,
    /// Tells a running copy to end.
    pub cancelled: Arc<Notify>,
    /// All processes are being killed already.
    pub killing: Arc<AtomicBool>,
    /// How PostgreSQL archives WAL; `None` if it does not.
    pub archive: Option<Archiving>,
    /// What a recovery needs beside the spec.
    pub recovering: Recovering,
    /// The poolers that ask.
    pub poolers: Arc<Poolers>,
}

/// What a recovery needs beside the spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovering {
    /// The namespace of this database.
    pub namespace: String,
    /// Its own folder in a store.
    pub folder: String,
    /// The agent's program.
    pub program: PathBuf,
    /// Where the Secrets of the source's store are mounted, if there are any.
    pub access: PathBuf,
    /// Where the volume is mounted that is the source's store, if it is one.
    pub volume: PathBuf,
}

/// Ends WAL senders of the running server; see [`crate::postgres::Server::end_senders_if`].
fn end_senders(world: &World, ends: impl Fn(i32, &str) -> bool) {
    if let Some(server) = &world.server
        && let Err(error) = server.end_senders_if(ends)
    {
        tracing::error!("end WAL senders: {error}");
    }
}

impl Executor {
    /// Begins to carry out `action`, and returns at once.
    pub fn execute(&self, world: &mut World, action: Action) {
        let waits = world.observed().postgres.sync.waits();
        world.observer.begins(&action);
        match action {
            Action::Wait | Action::Exit | Action::GiveUp { .. } => {}
            Action::Stop(stop) => self.stop(world, stop),
            Action::EndSenders { keep } => {
                end_senders(world, |_, member| keep.iter().all(|kept| kept.as_str() != member));
            }
            Action::EndImpostors { impostors } => {
                for impostor in &impostors {
                    tracing::warn!(
                        pid = impostor.pid,
                        role = impostor.role,
                        name = impostor.name,
                        "ending a WAL sender that bears a member's name and is of another role"
                    );
                }
                end_senders(world, |pid, _| impostors.iter().any(|impostor| impostor.pid == pid));
            }
            Action::CreateMember { claim_uid } => self.create_member(world, claim_uid),
            Action::StoreCertificate { pem, member: _ } => self.store_certificate(world, pem),
            Action::DiscardStaging => self.discard_staging(world),
            Action::TakeSnapshot => self.take_snapshot(world),
            Action::Initdb {
                cluster_uid,
                from_backup: None,
            } => self.initdb(world, cluster_uid),
            Action::Initdb {
                cluster_uid,
                from_backup: Some(after),
            } => self.recover(world, cluster_uid, after),
            Action::Clone {
                upstream,
                member,
                system_id,
            } => self.clone_primary(world, &upstream, member, system_id),
            Action::WriteLease {
                content,
                purpose,
                timing,
            } => self.write_lease(world, *content, purpose, timing),
            Action::ReadLease => self.read_lease(),
            Action::StartPrimary {
                until,
                settings,
                epoch: _,
                rule,
            } => self.start_primary(world, until, settings, rule),
            Action::StartStandby {
                upstream,
                settings,
                was_primary,
            } => self.start_standby(world, upstream, settings, was_primary),
            Action::Configure { settings, upstream } => self.configure(world, settings, upstream),
            Action::Route { address, epoch } => self.route(world, address, epoch),
            Action::Admit { member } => self.admit(world, member),
            Action::DropSlots { keep } => self.drop_slots(world, keep),
            Action::Report { address, request } => self.report(world, &address, *request),
            Action::Promise { epoch } => self.promise(world, epoch),
            Action::Ask { peers, request } => self.ask(peers, request),
            Action::AskFailsafe { peers, request } => self.ask_failsafe(peers, request),
            Action::Promote {
                epoch: _,
                until,
                timeline,
                rule,
                members,
            } => self.promote(world, until, timeline, rule, members),
            Action::SetSync { rule } => self.set_sync(world, rule, waits),
            Action::Open => self.open(world),
            Action::Checkpoint => self.checkpoint(world),
            Action::Rewind { upstream, member, keep } => self.rewind(world, upstream, member, keep),
            Action::CancelCopy => self.cancelled.notify_waiters(),
            Action::FetchWal(fetch) => self.fetch_wal(world, fetch),
            Action::SetAside { keep } => self.set_aside(world, keep),
            Action::DiscardKept { name } => self.discard_kept(name),
        }
    }

    fn stop(&self, world: &World, stop: Stop) {
        self.undo_start.store(true, Ordering::SeqCst);
        let mode = match stop {
            Stop::Fast => StopMode::Fast,
            Stop::Immediate => StopMode::Immediate,
            Stop::Kill => return self.kill_everything(),
        };
        if let Some(server) = &world.server
            && let Err(error) = server.stop(mode)
        {
            tracing::error!("stop PostgreSQL: {error}");
        }
    }

    fn kill_everything(&self) {
        if self.killing.swap(true, Ordering::SeqCst) {
            return;
        }
        let (supervisor, killing, events) = (self.supervisor.clone(), Arc::clone(&self.killing), self.events.clone());
        let spared = self.dead_man.pid();
        tokio::spawn(async move {
            if let Err(error) = supervisor.kill_everything_else(&[spared]).await {
                tracing::error!("kill everything: {error}");
            }
            killing.store(false, Ordering::SeqCst);
            let _ = events.send(Event::Look);
        });
    }

    /// Runs a task, within `limit` if there is one, and reports its end, also if it panics.
    fn spawn<F>(&self, work: Work, limit: Option<Duration>, task: F)
    where
        F: Future<Output = Result<Effect, Failure>> + Send + 'static,
    {
        self.spawn_on(&self.workers, work, limit, task);
    }

    /// Runs a task beside the event loop, where nothing else can delay it. It must never block.
    fn spawn_vital<F>(&self, work: Work, task: F)
    where
        F: Future<Output = Result<Effect, Failure>> + Send + 'static,
    {
        self.spawn_on(&Handle::current(), work, None, task);
    }

    fn spawn_on<F>(&self, runtime: &Handle, work: Work, limit: Option<Duration>, task: F)
    where
        F: Future<Output = Result<Effect, Failure>> + Send + 'static,
    {
        let events = self.events.clone();
        runtime.spawn(async move {
            let bounded = async move {
                match limit {
                    None => task.await,
                    Some(limit) => tokio::time::timeout(limit, task)
                        .await
                        .unwrap_or_else(|_| Err(Failure::said(format!("it did not end within {} s", limit.as_secs())))),
                }
            };
            let result = tokio::spawn(bounded).await;
            let result = result.unwrap_or_else(|error| Err(Failure::said(format!("the task broke: {error}"))));
            let _ = events.send(Event::Done(Done { work, result }));
        });
    }

    /// Reports that a task has failed before it could begin.
    fn fail(&self, work: Work, message: &str) {
        let result = Err(Failure::said(message));
        let _ = self.events.send(Event::Done(Done { work, result }));
    }
}

/// Adds to a failure the promise that is stored now: the failed task may have stored one.
async fn telling_promise(volume: &Volume, failure: Failure) -> Failure {
    let volume = volume.clone();
    failure.teaching(blocking(move || volume.promise()).await.ok().map(News::Promise))
}

/// Runs file operations on a thread that may block.
async fn blocking<T: Send + 'static>(
    operation: impl FnOnce() -> Result<T, crate::volume::VolumeError> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(operation).await {
        Ok(result) => result.map_err(Failure::from),
        Err(error) => Err(Failure::said(format!("the operation broke: {error}"))),
    }
}
