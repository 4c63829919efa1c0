//! Start-up and the event loop: an event comes, the world is brought up to date, the machine decides, one action after
//! the other is carried out until it waits.

mod asked;
mod config;
mod log;
mod measure;
mod secrets;
mod startup;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use api::ClusteredDatabase;
use api::names::TERMINATION_BOOTSTRAP;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use machine::instance::observer::Event as Seen;
use machine::instance::{Action, Decision, Observed, Reading, decide, fence, report};
use machine::timing::BootTime;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

pub use config::Config;

use crate::deadman::{DeadMan, boot_time};
use crate::execute::Executor;
use crate::http::{Health, Metrics};
use crate::kubernetes::{Clients, read_route};
use crate::observe::{Done, Poll, Scan, Secret, World, id};
use crate::peer::{Request, Signed};
use crate::postgres::{Server, SqlError, Status, Tools};
use crate::process::Exit;
use crate::volume::EnforcedSettings;

/// Something that has happened.
pub enum Event {
    /// The ClusteredDatabase was read.
    Cluster(Box<Reading<ClusteredDatabase>>),
    /// The Lease was read.
    Lease(Reading<Lease>),
    /// The EndpointSlice of `-rw` was read.
    Route(Reading<EndpointSlice>),
    /// PostgreSQL's programs were found, or not.
    Tools(Result<Arc<Tools>, String>),
    /// The volume was read.
    Scanned(Result<Box<Scan>, Unread>),
    /// A child has ended.
    Exited(Exit),
    /// A task has ended.
    Done(Done),
    /// A peer asks.
    Peer(Request),
    /// Something that brings the agent no handle.
    Seen(Seen),
    /// PostgreSQL has answered, or not.
    Status(u32, BootTime, Result<Box<Status>, SqlError>),
    /// What the control file demands of a standby; `None` if it could not be read.
    Enforced(Option<EnforcedSettings>),
    /// A Secret's files have changed.
    Secret(Secret),
    /// The application's role has the password of the Secret; `true` if it was changed.
    Password(Result<bool, String>),
    /// Something has changed that shows by looking.
    Look,
}

/// Why the volume was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    why: String,
    /// The WAL volume has no room for the write-ahead log: each try may copy much of it for nothing.
    no_room: bool,
}

impl From<String> for Unread {
    fn from(why: String) -> Self {
        Self { why, no_room: false }
    }
}

/// The longest sleep: the runtime's timers stand still while the machine sleeps, the deadlines do not.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);
/// More actions than this without a pause are a defect: it is logged, and other events get their turn.
const MOST_ACTIONS: usize = 32;
/// Distance between tries to find PostgreSQL's programs or to read the volume or the control file, in milliseconds.
const LOOK_AGAIN: u64 = 2_000;

/// The same after the WAL volume was found to have no room so many times in a row: up to a minute.
fn look_again(no_room: u32) -> u64 {
    let rest = u64::try_from(machine::backoff::delay(no_room).as_millis());
    rest.unwrap_or(u64::MAX).max(LOOK_AGAIN)
}

/// Where the kubelet reads a container's termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// The agent's life; returns when the container is to end. To be run on a thread of its own, where nothing blocks: on it
/// depends that the lease is renewed in time. All other work is done by `workers`.
pub async fn run(config: Config, dead_man: DeadMan, workers: Handle) -> anyhow::Result<()> {
    let clients = Clients::in_cluster(&config.namespace, config.names.clone()).context("find the API server")?;
    run_with(config, clients, dead_man, workers).await
}

/// As [`run`], with the API server that `clients` know.
pub async fn run_with(config: Config, clients: Clients, dead_man: DeadMan, workers: Handle) -> anyhow::Result<()> {
    let (agent, events) = startup::start(config, clients, dead_man, workers).await?;
    agent.live(events).await
}

/// The event loop and what it works with.
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
    password: secrets::Password,
    /// PGDATA, by a path without links.
    pgdata: PathBuf,
    /// The deadline that the dead-man was last told.
    armed: Option<BootTime>,
    /// The volume is being looked at outside a task.
    looking: bool,
    /// PostgreSQL has ended since the reading of the volume began, or that reading failed.
    look_again: bool,
    /// Not to be looked at before.
    look_at: Option<BootTime>,
    /// How many times in a row the WAL volume had no room.
    no_room: u32,
    /// When what the control file demands is to be read again; `None` while it is being read.
    enforced_at: Option<BootTime>,
}

impl Agent {
    async fn live(mut self, mut events: mpsc::UnboundedReceiver<Event>) -> anyhow::Result<()> {
        let mut before = boot_time();
        loop {
            let now = boot_time();
            if self.world.observer.goes_on(before, now) {
                tracing::warn!("this agent stood still for {} ms", now.since(before));
            }
            let (ends, wake) = self.act()?;
            if ends {
                return Ok(());
            }
            before = boot_time();
            let held = self.asked.answer(&self.world, boot_time());
            let wake = [wake, held].into_iter().flatten().min();
            let pause = wake.map_or(LONGEST_SLEEP, |wake| {
                Duration::from_millis(wake.since(boot_time())).min(LONGEST_SLEEP)
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

    /// Decides and acts until the machine waits. Says whether the agent ends, and when to decide again.
    fn act(&mut self) -> anyhow::Result<(bool, Option<BootTime>)> {
        self.look();
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
            // Logged after the deed, which does not wait for it.
            let what = log::name(&action);
            let (ends, waits) = (action == Action::Exit, action == Action::Wait);
            let failed = match action {
                Action::GiveUp { message } => Some(give_up(&message)),
                action => {
                    self.executor.execute(&mut self.world, action);
                    None
                }
            };
            self.log.decision(rule, what, &because);
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

    /// Sets the dead-man. Without it, nothing may be writable here: the agent ends, and everything with it.
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

    /// What is known by looking, not by events.
    fn look(&mut self) {
        let now = boot_time();
        self.world.look_for_strays(&self.pgdata, now);
        let due = self.look_at.is_none_or(|at| now >= at);
        let wanted = self.look_again || self.world.observed().volume.is().is_none();
        // While everything is being killed, no tool can be started; a task reads the volume itself.
        let possible = self.world.observed().postgres.strays == 0
            && !self.executor.killing.load(Ordering::SeqCst)
            && self.world.observed().tasks.volume.running.is_none();
        if due && wanted && possible {
            self.read_volume();
        }
        self.read_enforced(now);
    }

    /// As long as a standby's limits stand higher than the settings say, it is looked whether they still have to.
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
        if std::mem::replace(&mut self.looking, true) {
            return;
        }
        // From now on, what asks for a look asks for another one.
        self.look_again = false;
        let (events, volume) = (self.executor.events.clone(), self.executor.volume.clone());
        let (supervisor, major) = (self.executor.supervisor.clone(), spec.postgres.major_version);
        let known = self.world.tools.clone();
        self.executor.workers.spawn(async move {
            let tools = match known {
                Some(tools) => Ok(tools),
                None => Tools::find(&supervisor, major)
                    .await
                    .map(Arc::new)
                    .map_err(startup::words),
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
                self.look_at = self.look_at.filter(|_| self.world.tools.is_some());
            }
            Event::Lease(lease) => self.world.lease_read(lease, now),
            // What was read last stays valid.
            Event::Route(Reading::Unknown) => {}
            // With the spec unknown, it is none: the holder then writes it once more.
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
                self.looking = false;
                self.look_again |= scan.is_err();
                let no_room = scan.as_ref().is_err_and(|unread| unread.no_room);
                self.no_room = if no_room { self.no_room.saturating_add(1) } else { 0 };
                let pause = look_again(self.no_room);
                self.look_at = scan.is_err().then(|| now.plus(pause));
                let words = |unread: Unread| format!("{} (again in {} s)", unread.why, pause / 1_000);
                self.world.scanned(scan.map(|scan| *scan).map_err(words), now);
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
                self.enforced_at = Some(now.plus(LOOK_AGAIN));
                if let Some(enforced) = enforced {
                    self.world.observe(Seen::Enforced(enforced), now);
                }
            }
            Event::Secret(Secret::Certificate) => self.executor.reload_certificate(&self.world),
            Event::Secret(Secret::Password) => self.password.changed(),
            Event::Password(done) => self.password.done(done, now),
            Event::Look => {}
        }
    }

    fn exited(&mut self, exit: &Exit, now: BootTime) {
        if exit.name != Server::NAME {
            return;
        }
        self.world.observe(Seen::Exited(id(exit.pid)), now);
        // The control file tells how it ended, and where its WAL ends.
        self.look_again = true;
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
            Request::Status { reply } => {
                let _ = reply.send(report::status(world.observed(), &world.memo, now));
            }
        }
    }

    /// Tells probes and the poller how things are.
    fn publish(&mut self) {
        let now = boot_time();
        if self.password.is_due(&self.world, now) {
            self.executor.set_password(&self.world);
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
            pause: Duration::from_millis(polling.pause),
            writes: polling.writes,
            void_before: polling.void_before,
        };
        set_if_changed(&self.poll, wanted);
    }
}

fn set_if_changed<T: PartialEq>(sender: &watch::Sender<T>, wanted: T) {
    sender.send_if_modified(|value| {
        let changed = *value != wanted;
        *value = wanted;
        changed
    });
}

/// The addresses of all members, as the Lease and their own reports name them.
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

/// Leaves word for the operator in the container's termination message.
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
        let pauses: Vec<u64> = [0, 1, 3, 5, 7, u32::MAX].into_iter().map(look_again).collect();
        assert_eq!(pauses, [2_000, 2_000, 4_000, 16_000, 60_000, 60_000]);
    }
}
