//! The operator's parts, put together.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use api::Unreadable;
use kube::runtime::watcher;
use kube::{Client, Config as ClientConfig};
use listen::Port;
use machine::cluster::FaultKind;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::alive::Beat;
use crate::cache::Key;
use crate::caches::{Caches, Report, is_forbidden, unread};
use crate::config::{Arguments, Config};
use crate::decisions::Decisions;
use crate::events;
use crate::execute::Executor;
use crate::http::{Pages, serve, serve_decisions};
use crate::leader::{self, Lead};
use crate::lists;
use crate::metrics::Metrics;
use crate::queue::{Queue, WORKERS};
use crate::requests::Requests;

/// How long a look that is under way may go on after the signal to end; the pod's grace period is 30 s.
const DRAIN: Duration = Duration::from_secs(20);

/// Runs the operator until it is told to end, or until it has lost the lead (an error).
///
/// # Errors
/// Fails if the operator cannot start (no API server, or an address in use), or if it has lost the lead.
pub async fn run(arguments: Arguments) -> Result<()> {
    let config = Config::new(&arguments, std::env::vars());
    let client = client().await?;
    let metrics = Metrics::default();
    let caches = Arc::new(Caches::default());
    let queue = Arc::new(Queue::default());
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        namespace = arguments.namespace.as_deref().unwrap_or("(all)"),
        image = config.agent_image,
        "operator starts"
    );

    if let Some(socket) = &arguments.alive_socket {
        let beat = Beat::default();
        tokio::spawn(beat.clone().keep());
        listen::alive::answer(socket, move || beat.check())
            .with_context(|| format!("listen at {}", socket.display()))?;
    }
    let listener = Port::bind(arguments.listen).with_context(|| format!("listen on {}", arguments.listen))?;
    let pages = Pages {
        metrics: metrics.clone(),
        caches: Arc::clone(&caches),
        queue: Arc::clone(&queue),
    };
    let mut pages = tokio::spawn(serve(listener, pages));

    let requests = Requests::new(client.clone(), metrics.clone());
    let reporter = Arc::new(Reporter {
        queue: Arc::clone(&queue),
        caches: Arc::clone(&caches),
        metrics: metrics.clone(),
        requests: requests.clone(),
        identity: arguments.identity.clone(),
        forbidden: Mutex::default(),
    });
    let mut watches = caches.watch(
        &lists::in_small_pages(client.clone()),
        arguments.namespace.as_deref(),
        &reporter,
    );

    let lead = match arguments.no_leader_election {
        true => Lead::without_election(),
        false => Lead::default(),
    };
    let executor = Executor::new(
        requests,
        Arc::clone(&caches),
        config,
        metrics.clone(),
        arguments.identity.clone(),
    )
    .with_lead(lead.clone());
    let mut decisions = tokio::spawn(offer_decisions(
        arguments.decisions,
        executor.decisions(),
        metrics.clone(),
    ));
    let mut election = Election::start(&arguments, lead);
    let mut workers = Workers {
        executor: Arc::new(executor),
        queue: Arc::clone(&queue),
        tasks: JoinSet::new(),
    };
    let ended = async {
        election.won().await?;
        metrics.set_leader(true);
        tracing::info!(identity = arguments.identity, "leads");
        workers.start();
        tokio::select! {
            lost = election.lost() => lost,
            ended = a_worker_ended(&mut workers.tasks) => ended,
        }
    };
    tokio::select! {
        lost = ended => lost.context("stop acting")?,
        stopped = terminated() => stopped?,
        page = &mut pages => page.context("serve metrics and readiness")?,
        page = &mut decisions => page.context("serve the decisions")?,
        watch = watches.join_next() => anyhow::bail!("a watch ended: {watch:?}"),
    }
    tracing::info!("ends: lets what is under way finish");
    workers.drain().await;
    election.stop().await
}

/// A client whose requests are sent once: it is for us to decide whether a write is repeated.
async fn client() -> Result<Client> {
    let mut config = ClientConfig::infer().await.context("find the API server")?;
    config.default_retry = false;
    Client::try_from(config).context("make a client for the API server")
}

/// Serves the decisions for ever. They only help people: that they cannot be served, since something else has the port, ends
/// nothing.
async fn offer_decisions(address: SocketAddr, decisions: Arc<Decisions>, metrics: Metrics) {
    match Port::bind(address) {
        Ok(listener) => serve_decisions(listener, decisions, metrics).await,
        Err(error) => {
            tracing::warn!(%address, %error, "cannot listen: `kubectl cdb record` will not get the decisions");
            std::future::pending().await
        }
    }
}

async fn terminated() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    Ok(())
}

/// Puts into the queue what the watches report.
struct Reporter {
    queue: Arc<Queue>,
    caches: Arc<Caches>,
    metrics: Metrics,
    /// To tell people of resources that cannot be read.
    requests: Requests,
    identity: String,
    /// Kinds of which it was said that they cannot be read.
    forbidden: Mutex<BTreeSet<&'static str>>,
}

impl Report for Reporter {
    fn touched(&self, key: Key) {
        let now = Instant::now();
        if key == Key::all() {
            self.caches
                .databases
                .keys()
                .into_iter()
                .for_each(|key| self.queue.add(key, now));
        } else {
            self.queue.add(key, now);
        }
    }

    fn failed(&self, kind: &'static str, error: &watcher::Error) {
        if let Some(consequence) = unread(kind).filter(|_| is_forbidden(error)) {
            let mut told = self.forbidden.lock().unwrap_or_else(PoisonError::into_inner);
            if told.insert(kind) {
                tracing::info!(kind, "may not be read: {consequence}");
            }
            return;
        }
        self.metrics.watch_failed(kind);
        tracing::warn!(kind, error = format!("{error:#}"), "a watch failed; it is tried again");
    }

    fn unreadable(&self, kind: &'static str, object: &Unreadable) {
        let metadata = &object.metadata;
        let (namespace, name) = (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone());
        tracing::error!(
            kind,
            namespace,
            name,
            error = object.why,
            "an object cannot be read: only what it belongs to waits"
        );
        // Of another kind, the status of its database tells, and an event with it.
        if !self.caches.of_ours().any(|cache| cache.kind() == kind) {
            return;
        }
        let event = events::unreadable(kind, metadata, &object.why, &self.identity);
        let requests = self.requests.clone();
        tokio::spawn(async move {
            match requests.create(&namespace, &event).await {
                Ok(_) => {}
                // Told before, by us or by the operator that stands by.
                Err(error) if error.kind() == FaultKind::Conflict => {}
                Err(error) => tracing::warn!(namespace, %error, "cannot write an event"),
            }
        });
    }
}

struct Workers {
    executor: Arc<Executor>,
    queue: Arc<Queue>,
    tasks: JoinSet<()>,
}

impl Workers {
    fn start(&mut self) {
        for _ in 0..WORKERS {
            let (executor, queue) = (Arc::clone(&self.executor), Arc::clone(&self.queue));
            self.tasks.spawn(async move {
                while let Some(key) = queue.next().await {
                    let looked = executor.look(&key).await;
                    if let Some(wait) = looked.again {
                        queue.add(key.clone(), Instant::now() + wait);
                    }
                    looked.wakes.into_iter().for_each(|key| queue.add(key, Instant::now()));
                    queue.done(&key);
                }
            });
        }
    }

    async fn drain(&mut self) {
        self.queue.close();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN, all).await.is_err() {
            tracing::warn!("what is under way is cut off after {} s", DRAIN.as_secs());
        }
    }
}

/// Returns an error when a worker has ended before it was told to: it panicked, and the database that it looked at would
/// never have its turn again. A new process finds everything out again.
async fn a_worker_ended(tasks: &mut JoinSet<()>) -> Result<()> {
    match tasks.join_next().await {
        Some(Err(error)) => Err(error).context("look at databases"),
        Some(Ok(())) | None => anyhow::bail!("a worker ended"),
    }
}

/// The election, on a thread of its own: work must not hold up a renewal.
struct Election {
    leading: watch::Receiver<bool>,
    stop: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<Result<()>>>,
}

impl Election {
    fn start(arguments: &Arguments, lead: Lead) -> Self {
        let (leads, leading) = watch::channel(arguments.no_leader_election);
        let (stop, stopped) = watch::channel(false);
        // Fresh for every process: the machine takes a holder of its own name for a former write of its own.
        let identity = format!("{}_{}_{}", arguments.identity, std::process::id(), leader::now().0);
        let namespace = arguments.leader_namespace.clone();
        let elect = !arguments.no_leader_election;
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("start the election's runtime")?;
            runtime.block_on(async {
                let mut stopped = stopped;
                if elect {
                    let client = client().await?;
                    return leader::run(client, &namespace, &identity, lead, &leads, stopped).await;
                }
                // A dropped sender means that the process ends.
                let _ = stopped.wait_for(|stop| *stop).await;
                drop(leads);
                Ok(())
            })
        });
        Self {
            leading,
            stop,
            thread: Some(thread),
        }
    }

    async fn won(&mut self) -> Result<()> {
        if self.leading.wait_for(|leading| *leading).await.is_err() {
            return self.result().await;
        }
        Ok(())
    }

    /// Returns an error when the lead is lost.
    async fn lost(&mut self) -> Result<()> {
        let _ = self.leading.wait_for(|leading| !*leading).await;
        self.result().await?;
        anyhow::bail!("the election ended")
    }

    async fn stop(mut self) -> Result<()> {
        // Nobody listens if the election has ended already.
        let _ = self.stop.send(true);
        self.result().await
    }

    async fn result(&mut self) -> Result<()> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let joined = tokio::task::spawn_blocking(move || thread.join())
            .await
            .context("wait for the election")?;
        joined.map_err(|_| anyhow::anyhow!("the election panicked"))?
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_port_that_another_has_ends_nothing() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let serving = offer_decisions(taken.local_addr().unwrap(), Arc::default(), Metrics::default());
        let ended = tokio::time::timeout(Duration::from_secs(60), serving).await;
        assert!(ended.is_err(), "{ended:?}");
    }

    #[tokio::test]
    async fn a_worker_that_panics_ends_the_operator() {
        let mut tasks = JoinSet::new();
        tasks.spawn(std::future::pending());
        tasks.spawn(async { panic!("a bug") });
        let error = a_worker_ended(&mut tasks).await.unwrap_err();
        assert!(format!("{error:#}").contains("panicked"), "{error:#}");
    }
}
