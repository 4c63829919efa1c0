//! The first process of a pooler's pod: it keeps PgBouncer running as [`machine::pooler::pod`] decides. It reads its Pooler and the
//! EndpointSlice of the primary, and writes nothing in Kubernetes: while the API server or the operator is away, what runs goes on.

mod calls;
mod console;
mod metrics;

use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use api::names::{
    ALIVE_SOCKET, ENV_CLUSTER, ENV_NAMESPACE, ENV_POOLER, ENV_PROCESSES, Names, POOLER_HOSTS, POOLER_PORT, PROBE_PORT,
    RUN_PATH, TLS_PATH,
};
use api::pooler::{PoolerRole, PoolerSpec};
use api::{Guarded, Pooler};
use http_body_util::Full;
use hyper::{Response, StatusCode};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use listen::{Bounds, Port};
use machine::instance::Reading;
use machine::pooler::pause::{Pause, pauses};
use machine::pooler::pod::{self, Action, Observed, Paused, Process, Stop, Wanted};
use machine::pooler::settings::{Places, Server, configuration};
use machine::protocol::PoolerReply;
use sha2::{Digest, Sha256};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use self::calls::Ask;
use self::console::Pools;
use crate::deadman::boot_time;
use crate::kubernetes::watch as watch_object;
use crate::process::{Exit, Signal, Supervisor};
use crate::run::set_if_changed;

/// PgBouncer's program.
const PROGRAM: &str = "pgbouncer";
/// How often the mounted certificates are read: nothing tells of a change.
const CERTIFICATES: Duration = Duration::from_secs(2);
/// The longest time without a decision.
const TICK: Duration = Duration::from_secs(1);
/// How often PgBouncer is asked for its pools: for scrapers, while clients may leave, and while it pauses.
const LOOKS: Duration = Duration::from_secs(10);
const LOOKS_STOPPING: Duration = Duration::from_millis(500);
const LOOKS_PAUSING: Duration = Duration::from_millis(30);
/// A pause breaks connections off that log in, and the next client might be told so: for so long they may finish.
const LOGINS: Duration = Duration::from_millis(200);
/// The event loop counts as hung after this long.
const HUNG: Duration = Duration::from_secs(10);
/// Connections to the port of probes and metrics.
const BOUNDS: Bounds = Bounds {
    all: 64,
    each_source: 32,
};
const LIMIT: Duration = Duration::from_secs(3);

/// What the loop is told.
enum Event {
    Pooler(Box<Reading<Pooler>>),
    Route(Box<Reading<EndpointSlice>>),
    Certificates(String),
    /// What the primary's agent says of a pause.
    Told(PoolerReply),
    /// What the process with this number has said of its pools, and when it was asked; `None`: it does not answer.
    Pools {
        number: usize,
        asked: Instant,
        pools: Option<Pools>,
    },
    Terminating,
}

/// What probes and scrapers are told.
struct Told {
    ready: Result<(), String>,
    beat: Instant,
    metrics: String,
}

/// Runs until the pod is terminating and all processes have ended.
///
/// # Errors
/// Fails if the environment or the container is not as the operator makes it.
pub fn work() -> anyhow::Result<()> {
    crate::logs::init();
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        anyhow::bail!("install the cryptography provider");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = runtime.block_on(run());
    if let Err(error) = &result {
        tracing::error!("{error:#}");
    }
    crate::logs::flush();
    // When the first process exits, the kernel ends what is left.
    std::process::exit(i32::from(result.is_err()));
}

/// Makes the file that the container mounts as `/etc/hosts`: for the init container.
///
/// # Errors
/// Fails if it cannot be written.
pub fn make_hosts(path: &Path) -> anyhow::Result<()> {
    fs::write(path, "127.0.0.1 localhost\n::1 localhost\n").with_context(|| format!("write {}", path.display()))
}

async fn run() -> anyhow::Result<()> {
    let variable = |name: &str| std::env::var(name).with_context(|| format!("read the environment variable {name}"));
    let (name, namespace) = (variable(ENV_POOLER)?, variable(ENV_NAMESPACE)?);
    let names = Names::new(variable(ENV_CLUSTER)?);
    let processes: u32 = variable(ENV_PROCESSES)?
        .parse()
        .context("read the number of processes")?;
    let told = Arc::new(Mutex::new(Told {
        ready: Err("it has only just started".to_owned()),
        beat: Instant::now(),
        metrics: String::new(),
    }));
    let alive = Arc::clone(&told);
    listen::alive::answer(Path::new(ALIVE_SOCKET), move || {
        let silent = lock(&alive).beat.elapsed();
        (silent < HUNG)
            .then_some(())
            .ok_or_else(|| format!("no decision for {} s", silent.as_secs()))
    })?;
    let (supervisor, exits) = Supervisor::start()?;
    let (events, received) = unbounded_channel();
    follow_signals(events.clone())?;
    let client = Client::try_default().await.context("find the API server")?;
    follow_objects(&client, &namespace, (name, names.rw()), &events);
    tokio::spawn(follow_certificates(events.clone()));
    let (asks, asked) = watch::channel(None);
    let shared = format!("{}.{namespace}.svc", names.rw());
    tokio::spawn(calls::ask(asked, shared, events.clone()));
    serve(Arc::clone(&told))?;
    let (looks, every) = watch::channel(LOOKS);
    let count = usize::try_from(processes)?;
    tokio::spawn(console::follow(count, every, events));
    let mut pooler = Runs {
        names,
        namespace,
        supervisor,
        told,
        spec: None,
        route: None,
        certificates: None,
        stopping: None,
        pause: Pause::default(),
        asks,
        looks,
        written: None,
        processes: (0..processes).map(|_| Runner::default()).collect(),
    };
    pooler.run(received, exits).await
}

fn lock(told: &Mutex<Told>) -> std::sync::MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

fn follow_signals(events: UnboundedSender<Event>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            let _ = events.send(Event::Terminating);
        }
    })?;
    Ok(())
}

fn follow_objects(
    client: &Client,
    namespace: &str,
    (pooler, route): (String, String),
    events: &UnboundedSender<Event>,
) {
    let poolers: Api<Guarded<Pooler>> = Api::namespaced(client.clone(), namespace);
    let routes: Api<Guarded<EndpointSlice>> = Api::namespaced(client.clone(), namespace);
    let (of_poolers, of_routes) = (events.clone(), events.clone());
    tokio::spawn(async move {
        watch_object(poolers, pooler, |reading| {
            let _ = of_poolers.send(Event::Pooler(Box::new(reading)));
            std::future::ready(())
        })
        .await;
    });
    tokio::spawn(async move {
        watch_object(routes, route, |reading| {
            let _ = of_routes.send(Event::Route(Box::new(reading)));
            std::future::ready(())
        })
        .await;
    });
}

async fn follow_certificates(events: UnboundedSender<Event>) {
    let mut known = None;
    loop {
        match read_certificates(Path::new(TLS_PATH)) {
            Ok(found) if known.as_ref() != Some(&found) => {
                known = Some(found.clone());
                let _ = events.send(Event::Certificates(found));
            }
            Ok(_) => {}
            Err(error) => tracing::warn!("read the certificates: {error}"),
        }
        tokio::time::sleep(CERTIFICATES).await;
    }
}

/// The certificates in short. The kubelet replaces all files of a Secret at once, by a link: all are read behind one.
fn read_certificates(folder: &Path) -> std::io::Result<String> {
    let folder = fs::canonicalize(folder.join("..data"))?;
    let mut digest = Sha256::new();
    for name in ["tls.crt", "tls.key", "ca.crt", "client.crt", "client.key"] {
        digest.update(fs::read(folder.join(name))?);
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn serve(told: Arc<Mutex<Told>>) -> anyhow::Result<()> {
    let listener = Port::bind((Ipv4Addr::UNSPECIFIED, PROBE_PORT).into()).context("listen for probes")?;
    let respond = |status: StatusCode, body: String| {
        let mut response = Response::new(Full::new(hyper::body::Bytes::from(body)));
        *response.status_mut() = status;
        response
    };
    let answer = move |path: &str| match path {
        "/readyz" => match &lock(&told).ready {
            Ok(()) => respond(StatusCode::OK, "ok\n".to_owned()),
            Err(why) => respond(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/metrics" => {
            let mut response = respond(StatusCode::OK, lock(&told).metrics.clone());
            let text = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(hyper::header::CONTENT_TYPE, text);
            response
        }
        _ => respond(StatusCode::NOT_FOUND, "there are /readyz and /metrics\n".to_owned()),
    };
    tokio::spawn(Port::new(listener, BOUNDS, LIMIT).serve_pages(answer));
    Ok(())
}

/// A process of PgBouncer.
#[derive(Default)]
struct Runner {
    pid: Option<u32>,
    ended: Option<Instant>,
    read: Option<String>,
    told: Option<Stop>,
    pause: Option<Pausing>,
    /// What it has said last.
    pools: Option<Pools>,
}

/// A process that is to pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pausing {
    /// Since then logins may finish.
    Soon(Instant),
    /// It was told then.
    Told(Instant),
    /// No connection to PostgreSQL is left.
    Wholly,
}

/// What is known and runs.
struct Runs {
    names: Names,
    namespace: String,
    supervisor: Supervisor,
    told: Arc<Mutex<Told>>,
    spec: Option<PoolerSpec>,
    /// Address and port of the primary.
    route: Option<(std::net::IpAddr, u16)>,
    certificates: Option<String>,
    stopping: Option<Instant>,
    /// The primary's agent is asked whether there is to be one.
    pause: Pause,
    asks: watch::Sender<Option<Ask>>,
    /// How often PgBouncer is asked for its pools.
    looks: watch::Sender<Duration>,
    written: Option<Wanted>,
    processes: Vec<Runner>,
}

fn milliseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Runs {
    async fn run(
        &mut self,
        mut events: UnboundedReceiver<Event>,
        mut exits: UnboundedReceiver<Exit>,
    ) -> anyhow::Result<()> {
        loop {
            let observed = self.observe();
            {
                let mut told = lock(&self.told);
                told.beat = Instant::now();
                told.ready = if pod::is_ready(&observed) {
                    Ok(())
                } else {
                    Err(self.lacks())
                };
            }
            self.ask(&observed);
            let wait = match pod::decide(&observed) {
                Action::Wait(wait) => wait.map_or(TICK, Duration::from_millis).min(TICK),
                Action::Exit => return Ok(()),
                action => {
                    if let Err(error) = self.perform(&action, &observed) {
                        tracing::error!("{error:#}");
                        tokio::time::sleep(TICK).await;
                    }
                    Duration::ZERO
                }
            };
            tokio::select! {
                biased;
                Some(exit) = exits.recv() => self.note_exit(&exit),
                Some(event) = events.recv() => self.note(event),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Why it takes no clients.
    fn lacks(&self) -> String {
        let lack = match (&self.spec, &self.route, &self.certificates, self.stopping) {
            (_, _, _, Some(_)) => "it is terminating",
            (None, ..) => "its Pooler is not known yet",
            (_, None, ..) => "there has been no primary yet",
            (_, _, None, _) => "its certificates cannot be read",
            (Some(_), Some(_), Some(_), None) => "PgBouncer does not run",
        };
        lack.to_owned()
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Pooler(reading) => {
                // The pod goes with the Pooler; until then it serves.
                if let Reading::Is(pooler) = *reading {
                    self.spec = Some(pooler.spec);
                }
            }
            Event::Route(reading) => {
                let found = match &*reading {
                    Reading::Is(slice) => primary(slice),
                    Reading::Missing | Reading::Unknown => None,
                };
                if found.is_some() && found != self.route {
                    tracing::info!(primary = ?found, "another primary");
                }
                // Without a primary clients wait for the next one.
                self.route = found.or(self.route);
            }
            Event::Certificates(found) => self.certificates = Some(found),
            Event::Told(reply) => self.pause.told(&reply, boot_time()),
            Event::Pools { number, asked, pools } => self.note_pools(number, asked, pools),
            Event::Terminating => {
                tracing::info!("the pod is terminating");
                self.stopping.get_or_insert_with(Instant::now);
            }
        }
    }

    fn note_exit(&mut self, exit: &Exit) {
        let found = self.processes.iter_mut().find(|process| process.pid == Some(exit.pid));
        if let Some(process) = found {
            if process.told.is_none() {
                tracing::error!(status = %exit.status, "PgBouncer has ended by itself");
            }
            *process = Runner {
                ended: Some(Instant::now()),
                ..Runner::default()
            };
        }
    }

    fn observe(&self) -> Observed {
        let spec = self.spec.as_ref();
        let drain = spec.map_or(0, |spec| u64::try_from(spec.drain_seconds).unwrap_or(0));
        Observed {
            wanted: self.wanted(),
            written: self.written.clone(),
            processes: self.processes.iter().map(Runner::observe).collect(),
            stopping_ms: self.stopping.map(milliseconds),
            drain_ms: drain * 1_000,
            clients: self.clients(),
            pause_ms: self.pause.left(boot_time()).map(|left| left.0),
        }
    }

    fn wanted(&self) -> Option<Wanted> {
        let (spec, (address, port)) = (self.spec.as_ref()?, self.route?);
        let server = match spec.role {
            PoolerRole::ReadWrite => Server::at(address, port, &self.names.headless(), &self.namespace),
            PoolerRole::ReadOnly => Server::of_service(&self.names.ro(), port, &self.namespace),
        };
        let places = Places {
            run: RUN_PATH.to_owned(),
            certificates: TLS_PATH.to_owned(),
            port: POOLER_PORT,
        };
        let count = u32::try_from(self.processes.len()).unwrap_or(1);
        Some(Wanted {
            files: (1..=count)
                .map(|process| configuration(spec, &server, &places, process, count))
                .collect(),
            server,
            certificates: self.certificates.clone()?,
        })
    }

    fn perform(&mut self, action: &Action, observed: &Observed) -> anyhow::Result<()> {
        match action {
            Action::Wait(_) | Action::Exit => {}
            Action::Pause(number) => self.processes[*number].pause = Some(Pausing::Soon(Instant::now())),
            Action::Resume(number) => {
                // What PgBouncer does by signals it does in their order, even if it hangs for a while.
                if self.processes[*number].pause.take().is_some_and(Pausing::is_told) {
                    self.signal(*number, Signal::USR2)?;
                }
            }
            Action::Write => {
                let wanted = observed.wanted.clone().context("there is nothing to write")?;
                write(&wanted)?;
                self.written = Some(wanted);
            }
            Action::Start(number) => {
                let mut command = Command::new(PROGRAM);
                command.arg(file(*number));
                let running = self.supervisor.spawn(PROGRAM, command)?;
                tracing::info!(pid = running.pid, process = number + 1, "PgBouncer starts");
                self.processes[*number] = Runner {
                    pid: Some(running.pid),
                    read: observed.written.as_ref().map(pod::digest),
                    ..Runner::default()
                };
            }
            Action::Reload(number) => {
                self.signal(*number, Signal::HUP)?;
                self.processes[*number].read = observed.written.as_ref().map(pod::digest);
            }
            Action::Stop(number, how) => {
                let signal = match how {
                    Stop::AfterTransactions => Signal::INT,
                    Stop::Now => Signal::QUIT,
                };
                tracing::info!(process = number + 1, ?how, "PgBouncer is to end");
                self.signal(*number, signal)?;
                self.processes[*number].told = Some(*how);
            }
        }
        Ok(())
    }

    /// Has the primary's agent asked whether this pod is to pause: one whose transactions end soon, and with the primary as its server.
    fn ask(&self, observed: &Observed) {
        let spec = self.spec.as_ref().filter(|spec| pauses(spec) && pod::asks(observed));
        let ask = spec.and(self.route).map(|(address, _)| Ask {
            address,
            paused: pod::is_paused(observed),
            every: self.pause.asks_after(boot_time()),
        });
        set_if_changed(&self.asks, ask);
        let pauses = observed.pause_ms.is_some() && !pod::is_paused(observed);
        let looks = match self.stopping {
            _ if pauses => LOOKS_PAUSING,
            Some(_) => LOOKS_STOPPING,
            None => LOOKS,
        };
        set_if_changed(&self.looks, looks);
    }

    fn clients(&self) -> Option<u64> {
        let clients = |process: &Runner| match process.pid {
            Some(_) => process.pools.as_ref().map(|pools| pools.clients),
            None => Some(0),
        };
        self.processes.iter().map(clients).sum()
    }

    fn note_pools(&mut self, number: usize, asked: Instant, pools: Option<Pools>) {
        let process = &mut self.processes[number];
        let next = match (process.pause, &pools) {
            (Some(Pausing::Soon(since)), Some(pools)) if pools.logins == 0 || since.elapsed() > LOGINS => {
                Some(Pausing::Told(Instant::now()))
            }
            (Some(Pausing::Told(since)), Some(pools)) if pools.servers == 0 && asked > since => Some(Pausing::Wholly),
            _ => None,
        };
        process.pools = pools;
        process.pause = next.or(process.pause);
        // It answers, so it knows the signal.
        if matches!(next, Some(Pausing::Told(_)))
            && let Err(error) = self.signal(number, Signal::USR1)
        {
            tracing::error!("{error:#}");
        }
        let processes = self.processes.iter().filter_map(|process| process.pools.as_ref());
        lock(&self.told).metrics = metrics::text(processes.map(|pools| &pools.values));
    }

    fn signal(&self, number: usize, signal: Signal) -> anyhow::Result<()> {
        if let Some(pid) = self.processes[number].pid {
            self.supervisor.signal(pid, signal)?;
        }
        Ok(())
    }
}

impl Runner {
    fn observe(&self) -> Process {
        match self.pid {
            Some(_) => Process::Up {
                read: self.read.clone(),
                told: self.told,
                pause: self.pause.map(|pause| match pause {
                    Pausing::Soon(_) | Pausing::Told(_) => Paused::Partly,
                    Pausing::Wholly => Paused::Wholly,
                }),
            },
            None => Process::Down {
                since_ms: self.ended.map(milliseconds),
            },
        }
    }
}

impl Pausing {
    fn is_told(self) -> bool {
        !matches!(self, Self::Soon(_))
    }
}

/// Address and port of the primary.
fn primary(slice: &EndpointSlice) -> Option<(std::net::IpAddr, u16)> {
    let address = slice.endpoints.first()?.addresses.first()?.parse().ok()?;
    let port = slice.ports.as_ref()?.first()?.port?;
    Some((address, port.try_into().ok()?))
}

fn file(number: usize) -> PathBuf {
    Path::new(RUN_PATH).join(format!("{}.ini", number + 1))
}

/// Writes the addresses first: PgBouncer looks them up when it has read the rest. The line of an earlier address stays, since each has a
/// name of its own, and nobody ever reads a file that lacks one.
fn write(wanted: &Wanted) -> anyhow::Result<()> {
    let hosts = Path::new(RUN_PATH).join(POOLER_HOSTS);
    if let Some(line) = wanted.server.line() {
        let known = fs::read_to_string(&hosts).context("read the addresses")?;
        if !known.contains(&line) {
            let mut file = fs::OpenOptions::new().append(true).open(&hosts)?;
            file.write_all(line.as_bytes()).context("write an address")?;
        }
    }
    for (number, text) in wanted.files.iter().enumerate() {
        let sockets = Path::new(RUN_PATH).join((number + 1).to_string());
        fs::create_dir_all(&sockets)?;
        fs::set_permissions(&sockets, fs::Permissions::from_mode(0o700))?;
        let (path, staged) = (file(number), file(number).with_extension("new"));
        fs::write(&staged, text).with_context(|| format!("write {}", staged.display()))?;
        fs::rename(&staged, &path)?;
    }
    Ok(())
}
