//! The event loop. An event comes, the world is brought up to date, the machine decides, and one action after the other
//! is carried out until the machine waits.

mod archive;
mod asked;
mod config;
mod log;
mod measure;
mod secrets;
mod startup;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use api::names::TERMINATION_BOOTSTRAP;
use machine::access::Published;
use machine::instance::observer::Event as Seen;
use machine::instance::{Action, Decision, Observed, Reading, decide, fence, report};
use machine::timing::BootTime;
use machine::units::Millis;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

pub use config::Config;

use crate::deadman::{DeadMan, boot_time};
use crate::event::{Event, Settling, Unread};
use crate::execute::Executor;
use crate::http::{Health, Metrics};
use crate::kubernetes::{Clients, read_route};
use crate::observe::{Poll, Secret, World, id};
use crate::peer::{Request, Signed};
use crate::postgres::Server;
use crate::process::Exit;
use crate::tools::Tools;

/// The longest sleep. The runtime's timers stand still while the machine sleeps, but the deadlines do not.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);
/// The most actions without a pause; more are a defect. After them other events get their turn.
const MOST_ACTIONS: usize = 32;
/// Pause between tries to find PostgreSQL's programs, or to read the volume or the control file.
const READ_AGAIN: Millis = Millis::seconds(2);

/// What is declared is compared with PostgreSQL again after this long, though nothing has changed.
const SETTLE_AGAIN: Millis = Millis::minutes(10);
/// What was refused is tried again after this long: a database or a schema may have been made meanwhile.
const REFUSED: Millis = Millis::minutes(1);

/// The pause after the WAL volume had no room this many times in a row: up to a minute.
fn pause_after(no_room: u32) -> Millis {
    let pause = u64::try_from(machine::backoff::delay(no_room).as_millis());
    Millis(pause.unwrap_or(u64::MAX)).max(READ_AGAIN)
}

/// Where the kubelet reads a container's termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Runs the agent; returns when the container is to end. Run it on a thread of its own, where nothing blocks: the
/// renewal of the lease in time depends on it. All other work is done by `workers`.
///
/// # Errors
/// Fails if the API server cannot be found, or as [`run_with`].
pub async fn run(config: Config, dead_man: DeadMan, workers: Handle) -> anyhow::Result<()> {
    let clients = Clients::in_cluster(&config.namespace, config.names.clone()).context("find the API server")?;
    run_with(config, clients, dead_man, workers).await
}

/// As [`run`], with the API server of `clients`.
///
/// # Errors
/// Fails if the agent cannot be started, if the dead-man does not take deadlines, or if the machine gives the database
/// up.
pub async fn run_with(config: Config, clients: Clients, dead_man: DeadMan, workers: Handle) -> anyhow::Result<()> {
    let (agent, events) = startup::start(config, clients, dead_man, workers).await?;
    agent.live(events).await
}

/// The event loop and its tools.
struct Agent {
    world: World,
    executor: Executor,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    /// The members' addresses, for the server of peers.
    known_members: watch::Sender<BTreeSet<IpAddr>>,
    poll: watch::Sender<Poll>,
    log: log::Decisions,
    asked: asked::Asked,
    certificates: secrets::Duty,
    password: secrets::Duty,
    access: secrets::Duty,
    /// What DatabaseUsers and Databases declare, by their UIDs.
    declared: BTreeMap<String, Published>,
    archive: Option<archive::Archive>,
    /// PGDATA, by a path without links.
    pgdata: PathBuf,
    /// The deadline that was last set at the dead-man.
    armed: Option<BootTime>,
    /// The volume is being read outside a task.
    reading: bool,
    /// The volume must be read again: PostgreSQL has ended since its reading began, or that reading failed.
    read_again: bool,
    /// The volume is not read before this time.
    read_at: Option<BootTime>,
    /// How many times in a row the WAL volume had no room.
    no_room: u32,
    /// When the control file's demands are read next; `None` while they are being read.
    enforced_at: Option<BootTime>,
}

impl Agent {
    async fn live(mut self, mut events: mpsc::UnboundedReceiver<Event>) -> anyhow::Result<()> {
        let mut before = boot_time();
        loop {
            let now = boot_time();
            if self.world.observer.goes_on(before, now) {
                tracing::warn!("this agent was stalled for {}", now.since(before));
            }
            let (ends, wake) = self.act()?;
            if ends {
                return Ok(());
            }
            before = boot_time();
            let held = self.asked.answer(&self.world, boot_time());
            let wake = [wake, held].into_iter().flatten().min();
            let pause = wake.map_or(LONGEST_SLEEP, |wake| {
                wake.since(boot_time()).duration().min(LONGEST_SLEEP)
            });
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.apply(event),
                    None => anyhow::bail!("all sources of events have ended"),
                },
                () = tokio::time::sleep(pause) => {}
            }
            while let Ok(event) = events.try_recv() {
                self.apply(event);
            }
        }
    }

    /// Decides and acts until the machine waits. Returns whether the agent ends, and when to decide again.
    fn act(&mut self) -> anyhow::Result<(bool, Option<BootTime>)> {
        self.poll_state();
        let mut wake = None;
        for _ in 0..MOST_ACTIONS {
            let now = boot_time();
            self.health.beat(now);
            let Decision {
                rule,
                action,
                because,
                wake: at,
                dead_man,
                memo,
            } = decide(self.world.observed(), &self.world.memo, now);
            self.world.memo = memo;
            self.arm(dead_man)?;
            self.executor
                .deadline
                .set(fence::held_until(self.world.observed(), now));
            measure::count(&self.metrics, rule, &action);
            wake = at;
            // Logged after the action, so that the action does not wait for the log.
            let name = log::name(&action);
            let (ends, waits) = (action == Action::Exit, action == Action::Wait);
            let failed = match action {
                Action::GiveUp { message } => Some(give_up(&message)),
                action => {
                    self.executor.execute(&mut self.world, action);
                    None
                }
            };
            self.log.decision(rule, name, &because);
            match failed {
                Some(error) => return Err(error),
                None if ends => return Ok((true, None)),
                None if waits => break,
                None => {}
            }
        }
        self.publish();
        Ok((false, wake))
    }

    /// Sets the deadline of the dead-man. Without a dead-man, nothing may be writable in this container: the agent
    /// ends, and every process with it.
    fn arm(&mut self, deadline: Option<BootTime>) -> anyhow::Result<()> {
        if self.armed == deadline {
            return Ok(());
        }
        match deadline {
            Some(deadline) => self.executor.dead_man.arm(deadline)?,
            None => self.executor.dead_man.disarm()?,
        }
        self.armed = deadline;
        Ok(())
    }

    /// Finds out what no event tells.
    fn poll_state(&mut self) {
        let now = boot_time();
        self.world.look_for_strays(&self.pgdata, now);
        let due = self.read_at.is_none_or(|at| now >= at);
        let wanted = self.read_again || self.world.observed().volume.is().is_none();
        // While all processes are being killed, no tool can be started. A task on the volume reads it by itself.
        let possible = self.world.observed().postgres.strays == 0
            && !self.executor.killing.load(Ordering::SeqCst)
            && self.world.observed().tasks.volume.running.is_none();
        if due && wanted && possible {
            self.read_volume();
        }
        self.read_enforced(now);
    }

    /// As long as a standby's limits are higher than the settings say, reads whether they still have to be.
    fn read_enforced(&mut self, now: BootTime) {
        let configured = self.world.observed().postgres.configured.as_ref();
        let raised = configured.is_some_and(|configured| configured.raised.is_some());
        let (Some(tools), true) = (&self.world.tools, raised && self.world.server.is_some()) else {
            return;
        };
        if self.enforced_at.take_if(|at| now >= *at).is_none() {
            return;
        }
        let (events, volume, tools) = (
            self.executor.events.clone(),
            self.executor.volume.clone(),
            Arc::clone(tools),
        );
        self.executor.workers.spawn(async move {
            let control = volume.control_data(&tools).await;
            let enforced = control.inspect_err(|error| tracing::debug!("read the control file: {error}"));
            let _ = events.send(Event::Enforced(enforced.ok().map(|control| control.enforced)));
        });
    }

    /// Finds PostgreSQL's programs, then reads the volume with them.
    fn read_volume(&mut self) {
        let Some(spec) = &self.world.spec else { return };
        if std::mem::replace(&mut self.reading, true) {
            return;
        }
        // From now on, an event that asks for a reading asks for another one.
        self.read_again = false;
        let (events, volume) = (self.executor.events.clone(), self.executor.volume.clone());
        let (supervisor, major) = (self.executor.supervisor.clone(), spec.postgres.major_version);
        let known = self.world.tools.clone();
        self.executor.workers.spawn(async move {
            let tools = match known {
                Some(tools) => Ok(tools),
                None => Tools::find(&supervisor, major)
                    .await
                    .map(Arc::new)
                    .map_err(startup::describe),
            };
            let _ = events.send(Event::Tools(tools.clone()));
            let scan = match tools {
                Ok(tools) => startup::read_volume(volume, &tools).await,
                Err(error) => Err(Unread::from(error)),
            };
            let _ = events.send(Event::Scanned(scan));
        });
    }

    fn apply(&mut self, event: Event) {
        let now = boot_time();
        match event {
            Event::Cluster(cluster) => {
                self.world.cluster(*cluster, now);
                self.read_at = self.read_at.filter(|_| self.world.tools.is_some());
            }
            Event::Lease(lease) => self.world.lease_read(lease, now),
            // The last reading stays valid.
            Event::Route(Reading::Unknown) => {}
            // Without a known spec the route is unknown, too: the holder then writes it once more.
            Event::Route(slice) => {
                let route = |slice| read_route(slice, self.world.port()?);
                let route = slice.is().and_then(route);
                self.world.observe(Seen::Route(route), now);
            }
            Event::Tools(tools) => match tools {
                Ok(tools) => {
                    self.world.observe(Seen::Version(tools.version().to_owned()), now);
                    self.world.tools = Some(tools);
                }
                Err(error) => tracing::error!("find PostgreSQL's programs: {error}"),
            },
            Event::Scanned(scan) => {
                self.reading = false;
                self.read_again |= scan.is_err();
                let no_room = scan.as_ref().is_err_and(|unread| unread.no_room);
                self.no_room = if no_room { self.no_room.saturating_add(1) } else { 0 };
                let pause = pause_after(self.no_room);
                self.read_at = scan.is_err().then(|| now.plus(pause));
                let describe = |unread: Unread| format!("{} (again in {} s)", unread.why, pause.in_seconds());
                self.world.scanned(scan.map(|scan| *scan).map_err(describe), now);
            }
            Event::Exited(exit) => self.exited(&exit, now),
            Event::Done(done) => self.world.done(done, now),
            Event::Peer(request) => self.answer(request, now),
            Event::Status(pid, asked, status) => {
                if self.world.answered(pid, asked, status, now) {
                    self.executor.record_good_settings(&mut self.world);
                }
            }
            Event::Seen(event) => self.world.observe(event, now),
            Event::Enforced(enforced) => {
                self.enforced_at = Some(now.plus(READ_AGAIN));
                if let Some(enforced) = enforced {
                    self.world.observe(Seen::Enforced(enforced), now);
                }
            }
            Event::Secret(Secret::Certificate) => self.certificates.changed(),
            Event::Certificates(Ok(digest)) => {
                self.certificates.done(None);
                self.metrics.certificate.set(self.executor.peers.tls().ends());
                self.world.observe(Seen::Certificates(digest), now);
            }
            Event::Certificates(Err(error)) => {
                tracing::info!("PostgreSQL does not present the certificate of the Secret yet: {error}");
                self.certificates.failed(now, secrets::SOON);
            }
            Event::Secret(Secret::Password) => self.password.changed(),
            Event::Password(Ok(changed)) => {
                if changed {
                    tracing::info!("the application's password was changed to that of the Secret");
                }
                self.password.done(None);
            }
            Event::Password(Err(error)) => {
                tracing::warn!("set the application's password: {error}");
                self.password.failed(now, secrets::AGAIN);
            }
            Event::Declared(declared) => {
                if self.declared != declared {
                    self.declared = declared;
                    self.access.changed();
                }
            }
            Event::Settled(Settling::Whole) => self.access.done(Some(now.plus(SETTLE_AGAIN))),
            Event::Settled(Settling::Refused) => self.access.failed(now, REFUSED),
            Event::Settled(Settling::Failed(error)) => {
                tracing::warn!("settle what is declared: {error}");
                self.access.failed(now, secrets::AGAIN);
            }
            Event::Look => {}
        }
    }

    fn exited(&mut self, exit: &Exit, now: BootTime) {
        if exit.name != Server::NAME {
            return;
        }
        self.world.observe(Seen::Exited(id(exit.pid)), now);
        // The control file tells how PostgreSQL ended, and where its WAL ends.
        self.read_again = true;
    }

    fn answer(&mut self, request: Request, now: BootTime) {
        let world = &mut self.world;
        match request {
            Request::Report { request, key, reply } => {
                let answer = world.observer.report(&world.memo, *request, key.as_deref(), now);
                let _ = reply.send(answer.inspect_err(|reason| world.refusals.tell("report", reason, now)));
            }
            Request::Promise { request, key, reply } => {
                let signed = Signed { message: request, key };
                self.asked.take(world, signed, reply, now);
            }
            Request::Failsafe { request, key, reply } => {
                let answer = world.observer.holder(&request, key.as_deref(), now);
                let refused = |reason: &String| world.refusals.tell("request to leave the lease", reason, now);
                let _ = reply.send(answer.inspect_err(refused));
            }
            Request::Pooler { request, reply } => {
                let asked = world.observed().as_asked_by_poolers(&world.memo, now);
                let _ = reply.send(Ok(self.executor.poolers.answer(request, asked, now)));
            }
            Request::Status { reply } => {
                let _ = reply.send(report::status(world.observed(), &world.memo, now));
            }
        }
    }

    /// Updates the probes, the metrics and the poller.
    fn publish(&mut self) {
        let now = boot_time();
        let server = self.world.server.as_ref().map_or(0, |server| server.pid());
        // A server that is being started may have read the files of before.
        let is_starting = self.world.observed().tasks.start.running.is_some();
        if !is_starting && self.certificates.begins(server, now) {
            self.executor.check_certificates(&self.world);
        }
        if self.password.is_due(&self.world, now) {
            self.executor.set_password(&self.world);
        }
        if self.access.is_due(&self.world, now) {
            self.executor.settle_access(&self.world, self.declared.clone());
        }
        self.health.set_started();
        self.health.set_ready(report::readiness(self.world.observed(), now));
        measure::measure(&self.metrics, &self.world, now);
        set_if_changed(&self.known_members, known_members(self.world.observed()));
        let polling = self.world.observer.polling(now);
        let wanted = Poll {
            server: self.world.server.as_ref().map(|server| server.pid()),
            port: self.world.spec.as_ref().map_or(0, |spec| spec.postgres.port),
            major: self.world.major(),
            pause: polling.pause.duration(),
            writes: polling.writes,
            void_before: polling.void_before,
        };
        set_if_changed(&self.poll, wanted);
        if let Some(archive) = &self.archive {
            archive.publish(&self.world, now);
        }
    }
}

/// Tells the receivers only if it is another value.
pub(crate) fn set_if_changed<T: PartialEq>(sender: &watch::Sender<T>, wanted: T) {
    sender.send_if_modified(|value| {
        let changed = *value != wanted;
        *value = wanted;
        changed
    });
}

/// The addresses of all members, from the Lease and the members' own reports.
fn known_members(observed: &Observed) -> BTreeSet<IpAddr> {
    let record = observed.lease.record.is();
    let holder = record.and_then(|record| record.holder.as_ref());
    let members = record.into_iter().flat_map(|record| record.members.values());
    let reported = observed.peers.values().map(|peer| &peer.report);
    let addresses = members.chain(reported).map(|report| &report.address);
    addresses
        .chain(holder.map(|holder| &holder.address))
        .filter_map(|address| address.parse().ok())
        .collect()
}

/// Writes a message for the operator into the container's termination message.
fn give_up(message: &str) -> anyhow::Error {
    let text = format!("{TERMINATION_BOOTSTRAP}{message}");
    if let Err(error) = std::fs::write(TERMINATION_LOG, &text) {
        tracing::warn!("write the termination message: {error}");
    }
    anyhow::anyhow!(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_without_room_is_tried_ever_less_often() {
        let pauses = [0, 1, 3, 5, 7, u32::MAX].map(pause_after);
        assert_eq!(pauses, [2, 2, 4, 16, 60, 60].map(Millis::seconds));
    }
}
