//! Carrying out one action: what is done on the spot, and tasks that report back as events. No choice is made here.

mod members;
mod server;
mod volume;
mod writes;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use machine::instance::{Action, Stop, Work};
use tokio::sync::Mutex;
use tokio::sync::mpsc::UnboundedSender;

use crate::deadman::DeadMan;
use crate::kubernetes::Clients;
use crate::observe::{Done, Effect, Failure, World};
use crate::peer;
use crate::postgres::{Files, Sql, StopMode};
use crate::process::Supervisor;
use crate::run::Event;
use crate::volume::Volume;

/// The longest that a start may take: checking the configuration and starting one process. Recovery comes after it.
const START: Duration = Duration::from_secs(60);
/// The longest that a change of the configuration may take.
const CONFIGURE: Duration = Duration::from_secs(30);
/// The longest that small statements and small files may take.
const SMALL: Duration = Duration::from_secs(10);

/// Carries out actions.
pub struct Executor {
    /// Where tasks report to.
    pub events: UnboundedSender<Event>,
    /// Kubernetes.
    pub clients: Clients,
    /// Peers.
    pub peers: peer::Client,
    /// The volume.
    pub volume: Volume,
    /// Where PostgreSQL finds files.
    pub files: Files,
    /// Processes.
    pub supervisor: Supervisor,
    /// The dead-man.
    pub dead_man: Arc<DeadMan>,
    /// The name of the application's password file.
    pub password_file: PathBuf,
    /// A connection for changes; status has its own.
    pub sql: Arc<Mutex<Option<Sql>>>,
    /// A start in flight is to be undone.
    pub undo_start: Arc<AtomicBool>,
    /// Everything is being killed already.
    pub killing: Arc<AtomicBool>,
}

impl Executor {
    /// Carries out `action`. Returns at once.
    pub fn execute(&self, world: &mut World, action: Action) {
        if let Some(work) = action.work() {
            world.begun(work);
        }
        match action {
            Action::Wait | Action::Exit | Action::GiveUp { .. } => {}
            Action::Stop(stop) => self.stop(world, stop),
            Action::CreateMember { claim_uid } => self.create_member(world, claim_uid),
            Action::StoreCertificate { pem, member: _ } => self.store_certificate(world, pem),
            Action::DiscardStaging => self.discard_staging(world),
            Action::Initdb { cluster_uid } => self.initdb(world, cluster_uid),
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
            Action::StartPrimary {
                until,
                settings,
                epoch: _,
            } => self.start_primary(world, until, settings),
            Action::StartStandby { upstream, settings } => self.start_standby(world, upstream, settings),
            Action::Configure { settings, upstream } => self.configure(world, settings, upstream),
            Action::Route { address, epoch } => self.route(world, address, epoch),
            Action::Admit { member } => self.admit(world, member),
            Action::DropSlots { keep } => self.drop_slots(world, keep),
            Action::Report { address, request } => self.report(&address, *request),
        }
    }

    fn stop(&self, world: &mut World, stop: Stop) {
        self.undo_start.store(true, Ordering::SeqCst);
        if let Some(running) = &mut world.server {
            running.asked = true;
        }
        let mode = match stop {
            Stop::Fast => StopMode::Fast,
            Stop::Immediate => StopMode::Immediate,
            Stop::Kill => return self.kill_everything(),
        };
        if let Some(running) = &world.server
            && let Err(error) = running.server.stop(mode)
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

    /// Runs a task in bounded time, if a bound is given, and reports its end; also if it panics.
    fn spawn<F>(&self, work: Work, limit: Option<Duration>, task: F)
    where
        F: Future<Output = Result<Effect, Failure>> + Send + 'static,
    {
        let events = self.events.clone();
        tokio::spawn(async move {
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

    /// A task that cannot even begin.
    fn fail(&self, work: Work, message: &str) {
        let result = Err(Failure::said(message));
        let _ = self.events.send(Event::Done(Done { work, result }));
    }
}

/// Runs file operations where they may block.
async fn blocking<T: Send + 'static>(
    operation: impl FnOnce() -> Result<T, crate::volume::VolumeError> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(operation).await {
        Ok(result) => result.map_err(Failure::from),
        Err(error) => Err(Failure::said(format!("the operation broke: {error}"))),
    }
}
