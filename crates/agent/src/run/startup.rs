//! Starting the agent: sources of events, and servers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use api::names::{PEER_PORT, PROBE_PORT};
use listen::Port;
use machine::instance::observer::Event as Seen;
use machine::instance::{Own, Reading};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;

use super::{Agent, Config, archive, asked, config, log, secrets};
use crate::deadman::{DeadMan, boot_time};
use crate::event::{Event, Unread};
use crate::execute::Executor;
use crate::execute::Recovering;
use crate::http::{self, Health, Metrics};
use crate::kubernetes::{Clients, read_declarations, watch as watch_object};
use crate::observe::{Poll, Scan, World, canary, greet, id, poll, scan, watch_kept, watch_room, watch_secrets};
use crate::peer;
use crate::postgres::Files;
use crate::process::{Exit, Supervisor};
use crate::tools::Tools;
use crate::volume::{Volume, VolumeError};

/// How many requests of peers may wait for the event loop.
const PEER_BACKLOG: usize = 64;

pub(super) async fn start(
    config: Config,
    clients: Clients,
    dead_man: DeadMan,
    workers: Handle,
) -> anyhow::Result<(Agent, UnboundedReceiver<Event>)> {
    let (events, received) = mpsc::unbounded_channel();
    forward_signals(&events)?;
    let (supervisor, exits) = Supervisor::start().context("start the supervisor of processes")?;
    forward_exits(&events, exits);
    let health = Arc::new(Health::new(boot_time()));
    let metrics = Arc::new(Metrics::new());
    workers.spawn(Arc::clone(&health).beat_for_workers());
    let asked = Arc::clone(&health);
    listen::alive::answer(&config.alive, move || asked.alive(boot_time()))
        .with_context(|| format!("listen at {}", config.alive.display()))?;
    let probes = bind(&workers, PROBE_PORT).await.context("listen for probes")?;
    workers.spawn(http::serve(probes, Arc::clone(&health), Arc::clone(&metrics)));
    let (known_members, known) = watch::channel(BTreeSet::new());
    let world = World::new(own(&config)?, config.cluster_uid.clone());
    let signer = world.signer.clone();
    let peers = serve_peers(&config, &events, &workers, known, Arc::clone(&metrics), signer).await?;
    watch_objects(&clients, &config.cluster_uid, &events);
    let volume =
        Volume::new(config.data.clone(), config.wal.clone()).with_wal_of_another(config.wal_of_another.clone());
    let files = Files {
        socket: config.socket.clone(),
        tls: config.tls.clone(),
        certificate: volume.certificate_file(),
        key: volume.key_file(),
        credential: volume.credential_file(),
        system_user: config::system_user()?,
    };
    let poll = start_poll(&config, &events, &workers);
    follow_secrets(&config, &events, &workers);
    let mount = config.data.clone();
    let mount = tokio::task::spawn_blocking(move || std::fs::canonicalize(mount)).await?;
    let pgdata = mount.context("find the data volume")?.join("pgdata");
    let tell = events.clone();
    workers.spawn(watch_kept(volume.clone(), move |kept| {
        let _ = tell.send(Event::Seen(Seen::Kept(kept)));
    }));
    let tell = events.clone();
    workers.spawn(watch_room(volume.clone(), move |full| {
        let _ = tell.send(Event::Seen(Seen::Full(full)));
    }));
    let folder = config.folder()?;
    let archive = start_archive(&config, &pgdata, &supervisor, &events, &workers)?;
    let agent = Agent {
        world,
        executor: Executor {
            workers,
            events,
            clients,
            peers,
            volume,
            files,
            supervisor,
            dead_man: Arc::new(dead_man),
            password_file: config.password,
            sql: Arc::default(),
            written: Arc::default(),
            deadline: Arc::default(),
            undo_start: Arc::default(),
            cancelled: Arc::default(),
            killing: Arc::default(),
            archive: config.archive,
            recovering: Recovering {
                namespace: config.namespace,
                folder,
                program: config.program,
                access: config.recovery_access,
                volume: config.recovery_volume,
            },
            poolers: Arc::default(),
        },
        health,
        metrics,
        known_members,
        poll,
        log: log::Decisions::default(),
        asked: asked::Asked::default(),
        certificates: secrets::Duty::default(),
        password: secrets::Duty::default(),
        access: secrets::Duty::default(),
        declared: BTreeMap::new(),
        archive,
        pgdata,
        armed: None,
        reading: false,
        read_again: false,
        read_at: None,
        no_room: 0,
        enforced_at: Some(machine::timing::BootTime(0)),
    };
    Ok((agent, received))
}

/// Keeps the archive's worker running, and makes the backups that are asked for, if there is an archive.
fn start_archive(
    config: &Config,
    pgdata: &Path,
    supervisor: &Supervisor,
    events: &UnboundedSender<Event>,
    workers: &Handle,
) -> anyhow::Result<Option<archive::Archive>> {
    let Some(archiving) = &config.archive else {
        return Ok(None);
    };
    let archive = archive::Archive::new(config, archiving)?;
    let paths = crate::archive::Paths {
        socket: archiving.socket.clone(),
        wal: pgdata.join("pg_wal"),
        access: archiving.access.clone(),
    };
    let tell = events.clone();
    workers.spawn(crate::archive::keep(
        supervisor.clone(),
        archiving.program.clone(),
        paths,
        archive.orders(),
        move |record| {
            let _ = tell.send(Event::Seen(Seen::Archive(Box::new(record))));
        },
    ));
    let tell = events.clone();
    workers.spawn(crate::base::keep(
        supervisor.clone(),
        archiving.program.clone(),
        archive.backups(),
        move |task| {
            let _ = tell.send(Event::Seen(Seen::Backup(Box::new(task))));
        },
    ));
    workers.spawn(crate::base::close_segments(config.socket.clone(), archive.closing()));
    Ok(Some(archive))
}

fn own(config: &Config) -> anyhow::Result<Own> {
    let mut random = [0_u8; 8];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| anyhow::anyhow!("get random numbers"))?;
    Ok(Own {
        pod: config.pod.clone(),
        ordinal: config.ordinal,
        pod_uid: config.pod_uid.clone(),
        run: format!("{:016x}", u64::from_ne_bytes(random)),
        address: config.address.clone(),
        agent_version: version(option_env!("CDB_COMMIT")),
    })
}

/// The version, with the commit that `cargo xtask image` has built. It distinguishes two builds of one version.
fn version(commit: Option<&str>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    commit.map_or_else(|| version.to_owned(), |commit| format!("{version}+{commit}"))
}

fn any(port: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, port).into()
}

/// Binds the port on the runtime that serves its connections.
async fn bind(workers: &Handle, port: u16) -> anyhow::Result<TcpListener> {
    Ok(workers.spawn(async move { Port::bind(any(port)) }).await??)
}

fn forward_signals(events: &UnboundedSender<Event>) -> anyhow::Result<()> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind).context("listen for signals")?;
        let events = events.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                let _ = events.send(Event::Seen(Seen::Terminate));
            }
        });
    }
    Ok(())
}

fn forward_exits(events: &UnboundedSender<Event>, mut exits: UnboundedReceiver<Exit>) {
    let events = events.clone();
    tokio::spawn(async move {
        while let Some(exit) = exits.recv().await {
            let _ = events.send(Event::Exited(exit));
        }
    });
}

async fn serve_peers(
    config: &Config,
    events: &UnboundedSender<Event>,
    workers: &Handle,
    known: peer::KnownMembers,
    metrics: Arc<Metrics>,
    signer: peer::Signer,
) -> anyhow::Result<peer::Client> {
    let tls = peer::Tls::open(config.tls.clone(), &config.peer_name())?;
    let listener = bind(workers, PEER_PORT).await.context("listen for peers")?;
    let (requests, mut received) = mpsc::channel(PEER_BACKLOG);
    let dropped = move || metrics.dropped("peers");
    workers.spawn(peer::serve(
        listener,
        tls.clone(),
        signer.clone(),
        config.names.clone(),
        known,
        requests,
        dropped,
    ));
    let events = events.clone();
    tokio::spawn(async move {
        while let Some(request) = received.recv().await {
            let _ = events.send(Event::Peer(request));
        }
    });
    let resolver = peer::Resolver::new(&config.names.headless(), &config.namespace, "/etc/resolv.conf");
    Ok(peer::Client::new(tls).signed_by(signer).with_resolver(resolver))
}

fn watch_objects(clients: &Clients, cluster_uid: &str, events: &UnboundedSender<Event>) {
    let names = clients.names();
    let tell = events.clone();
    tokio::spawn(watch_object(
        clients.clusters(),
        names.cluster().to_owned(),
        move |cluster| {
            let _ = tell.send(Event::Cluster(Box::new(cluster)));
            std::future::ready(())
        },
    ));
    let tell = events.clone();
    tokio::spawn(watch_object(clients.watched_leases(), names.lease(), move |lease| {
        let _ = tell.send(Event::Lease(lease));
        std::future::ready(())
    }));
    let (tell, uid) = (events.clone(), cluster_uid.to_owned());
    tokio::spawn(watch_object(clients.declarations(), names.access(), move |secret| {
        let declared = match secret {
            Reading::Is(secret) => Some(read_declarations(&secret, &uid)),
            Reading::Missing => Some(BTreeMap::new()),
            // The last reading stays valid.
            Reading::Unknown => None,
        };
        if let Some(declared) = declared {
            let _ = tell.send(Event::Declared(declared));
        }
        std::future::ready(())
    }));
    let tell = events.clone();
    tokio::spawn(watch_object(clients.watched_routes(), names.rw(), move |slice| {
        let _ = tell.send(Event::Route(slice));
        std::future::ready(())
    }));
}

fn start_poll(config: &Config, events: &UnboundedSender<Event>, workers: &Handle) -> watch::Sender<Poll> {
    let (wanted, receiver) = watch::channel(Poll::default());
    let tell = events.clone();
    workers.spawn(canary(config.socket.clone(), receiver.clone(), move |pid, begun| {
        let server = id(pid);
        let _ = tell.send(Event::Seen(Seen::Wrote { server, begun }));
    }));
    let tell = events.clone();
    workers.spawn(greet(config.socket.clone(), receiver.clone(), move |pid, begun| {
        let server = id(pid);
        let _ = tell.send(Event::Seen(Seen::Greeted { server, begun }));
    }));
    let tell = events.clone();
    workers.spawn(poll(config.socket.clone(), receiver, move |pid, asked, answer| {
        let _ = tell.send(Event::Status(pid, asked, answer));
    }));
    wanted
}

fn follow_secrets(config: &Config, events: &UnboundedSender<Event>, workers: &Handle) {
    let tell = events.clone();
    let (tls, password) = (config.tls.clone(), config.password.clone());
    workers.spawn(watch_secrets(tls, password, move |secret| {
        let _ = tell.send(Event::Secret(secret));
    }));
}

/// Prepares and reserves the volume, moves its WAL if necessary, and reads it.
pub(super) async fn read_volume(volume: Volume, tools: &Tools) -> Result<Box<Scan>, Unread> {
    let preparing = volume.clone();
    let prepare = move || {
        preparing.prepare().and_then(|()| preparing.reserve()).map_err(unread)?;
        let no_room = |error: VolumeError| Unread {
            no_room: error.is_full(),
            ..unread(error)
        };
        preparing.move_wal().map_err(no_room)
    };
    tokio::task::spawn_blocking(prepare).await.map_err(unread)??;
    scan(&volume, tools).await.map(Box::new).map_err(unread)
}

fn unread(error: impl std::error::Error + Send + Sync + 'static) -> Unread {
    Unread::from(describe(error))
}

/// The text of an error with all its causes.
pub(super) fn describe(error: impl std::error::Error + Send + Sync + 'static) -> String {
    format!("{:#}", anyhow::Error::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_builds_of_one_version_are_told_apart_where_the_commit_is_known() {
        let version_alone = version(None);
        assert!(!version_alone.contains('+'), "{version_alone}");
        assert_eq!(version(Some("24dc5c2bc1f7")), format!("{version_alone}+24dc5c2bc1f7"));
    }
}
