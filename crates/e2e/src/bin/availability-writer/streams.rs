//! The streams of attempts.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use e2e::availability::record::{Attempt, Outcome, PROBES_TABLE, ROWS_TABLE, Record, Stream, To};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use crate::session::{Answer, Session};
use crate::settings::Settings;
use crate::tls::Tls;
use crate::{files, notes};

/// Between two rows of a stream.
const ROW: Duration = Duration::from_millis(10);
/// Between two rows of the held session: it only shows when the session ends.
const HELD_ROW: Duration = Duration::from_millis(50);
/// Before a new connection after a failure.
const RECONNECT: Duration = Duration::from_millis(20);
/// Between two checks of a standby's rows, and of the commands.
const LOOK: Duration = Duration::from_millis(100);

/// What all streams share.
struct Shared {
    settings: Settings,
    tls: Tls,
    records: UnboundedSender<Record>,
}

/// Writes until the stop command; then waits to be removed.
///
/// # Errors
/// When the notes cannot be written.
pub async fn run(settings: Settings) -> Result<()> {
    let (records, notes) = unbounded_channel();
    let keeper = tokio::spawn(notes::keep(settings.clone(), notes));
    let shared = Arc::new(Shared {
        settings,
        tls: Tls::new().context("set up TLS")?,
        records,
    });
    shared.make_tables().await;
    let to_service = (!shared.settings.inside).then(|| tokio::spawn(service(shared.clone())));
    let to_held = tokio::spawn(held(shared.clone()));
    follow_targets(&shared).await;
    for stream in to_service.into_iter().chain([to_held]) {
        stream.await.context("a stream broke")?;
    }
    // This was the last sender: the notes are complete.
    drop(shared);
    keeper.await.context("the notes broke")??;
    std::future::pending().await
}

impl Shared {
    fn stream(&self, to: To) -> Stream {
        Stream {
            inside: self.settings.inside,
            to,
        }
    }

    fn send(&self, record: Record) {
        // The receiver only ends if the notes failed, and then the program ends.
        let _ = self.records.send(record);
    }

    /// Makes the tables, as soon as the database can be reached.
    async fn make_tables(&self) {
        while !files::is_stopped() {
            if let Ok(session) = Session::connect(self.settings.service, &self.settings.login, &self.tls).await {
                let table = |name: &str| {
                    format!(
                        "CREATE TABLE IF NOT EXISTS {name} (run text, stream text, seq bigint, PRIMARY KEY (run, stream, seq))"
                    )
                };
                let both = format!("{}; {}", table(ROWS_TABLE), table(PROBES_TABLE));
                match session.query(&both).await {
                    Ok(_) => return,
                    Err(error) => eprintln!("make the tables: {error:#}"),
                }
            }
            sleep(LOOK).await;
        }
    }

    /// One attempt on `session`, which is opened if necessary, and dropped if it cannot be used again.
    async fn attempt(&self, session: &mut Option<Session>, address: SocketAddr, stream: &Stream, seq: u64) -> Attempt {
        let table = match stream.to {
            To::Service | To::Held => ROWS_TABLE,
            To::Pod(_) => PROBES_TABLE,
        };
        let sent = notes::monotonic();
        let answer = match self.open(session, address).await {
            Ok(session) => session.write(table, &self.settings.run, stream, seq).await,
            Err(error) => Answer::refused(&error),
        };
        let keep = answer.usable && (answer.outcome != Outcome::Error || stream.to != To::Service);
        if !keep {
            *session = None;
        }
        Attempt {
            stream: stream.clone(),
            seq,
            count: 1,
            sent,
            done: notes::monotonic(),
            outcome: answer.outcome,
            server: answer.server,
            timeline: answer.timeline,
            error: answer.error,
        }
    }

    async fn open<'a>(&self, session: &'a mut Option<Session>, address: SocketAddr) -> Result<&'a Session> {
        let open = match session.take() {
            Some(open) => open,
            None => Session::connect(address, &self.settings.login, &self.tls).await?,
        };
        Ok(session.insert(open))
    }
}

fn every(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Writes through the Service, as an application would: after any failure on a new connection.
async fn service(shared: Arc<Shared>) {
    let stream = shared.stream(To::Service);
    let address = shared.settings.service;
    let (mut session, mut ticks, mut seq) = (None, every(ROW), 0);
    while !files::is_stopped() {
        ticks.tick().await;
        seq += 1;
        let attempt = shared.attempt(&mut session, address, &stream, seq).await;
        shared.send(Record::Attempt(attempt));
        if session.is_none() {
            sleep(RECONNECT).await;
        }
    }
}

/// Writes on one session from before the fault, until that ends.
async fn held(shared: Arc<Shared>) {
    let stream = shared.stream(To::Held);
    let address = shared.settings.service;
    let mut session = None;
    while session.is_none() && !files::is_stopped() {
        session = Session::connect(address, &shared.settings.login, &shared.tls)
            .await
            .ok();
        sleep(RECONNECT).await;
    }
    let (mut ticks, mut seq) = (every(HELD_ROW), 0);
    while session.is_some() && !files::is_stopped() {
        ticks.tick().await;
        seq += 1;
        let attempt = shared.attempt(&mut session, address, &stream, seq).await;
        shared.send(Record::Attempt(attempt));
    }
}

/// Keeps streams to the pods that the targets file names, and to no others.
async fn follow_targets(shared: &Arc<Shared>) {
    let mut running: BTreeMap<(String, IpAddr), Target> = BTreeMap::new();
    let mut streams = Vec::new();
    // Numbers continue when a pod gets another address: a row's number is used once.
    let mut numbers: BTreeMap<String, Arc<AtomicU64>> = BTreeMap::new();
    while !files::is_stopped() {
        let wanted = files::targets();
        running.retain(|key, target| {
            let keep = wanted.contains(key);
            target.gone.store(!keep, Ordering::Relaxed);
            keep
        });
        for (pod, address) in wanted {
            if running.contains_key(&(pod.clone(), address)) {
                continue;
            }
            shared.send(Record::Target {
                pod: pod.clone(),
                address: address.to_string(),
                at: notes::monotonic(),
            });
            let target = Target {
                pod: pod.clone(),
                address: SocketAddr::new(address, shared.settings.service.port()),
                seq: numbers.entry(pod.clone()).or_default().clone(),
                gone: Arc::default(),
            };
            streams.push(tokio::spawn(probe(shared.clone(), target.clone())));
            streams.push(tokio::spawn(follow(shared.clone(), target.clone())));
            running.insert((pod, address), target);
        }
        sleep(LOOK).await;
    }
    for stream in streams {
        // They end by themselves, with their last attempt noted.
        let _ = stream.await;
    }
}

/// A pod that is written to directly.
#[derive(Clone)]
struct Target {
    pod: String,
    address: SocketAddr,
    /// Number of the last row.
    seq: Arc<AtomicU64>,
    /// True if the pod no longer exists, or has another address.
    gone: Arc<AtomicBool>,
}

impl Target {
    fn is_wanted(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) && !files::is_stopped()
    }
}

/// Writes to a pod directly: only a primary accepts the row.
async fn probe(shared: Arc<Shared>, target: Target) {
    let stream = shared.stream(To::Pod(target.pod.clone()));
    let (mut session, mut ticks) = (None, every(ROW));
    while target.is_wanted() {
        ticks.tick().await;
        let seq = target.seq.fetch_add(1, Ordering::Relaxed) + 1;
        let attempt = shared.attempt(&mut session, target.address, &stream, seq).await;
        shared.send(Record::Attempt(attempt));
        if session.is_none() {
            sleep(RECONNECT).await;
        }
    }
}

/// Checks which rows of the Service's writer a standby has.
async fn follow(shared: Arc<Shared>, target: Target) {
    if shared.settings.inside {
        return;
    }
    let statement = format!(
        "SELECT pg_is_in_recovery(), max(seq) FROM {ROWS_TABLE} WHERE run = '{}' AND stream = 'service'",
        shared.settings.run
    );
    let (mut session, mut ticks) = (None, every(LOOK));
    while target.is_wanted() {
        ticks.tick().await;
        let Ok(open) = shared.open(&mut session, target.address).await else {
            continue;
        };
        match open.query(&statement).await {
            Ok(rows) => {
                let row = rows.first();
                let column = |n: usize| row.and_then(|row| row.get(n));
                if let (Some("t"), Some(Ok(seq))) = (column(0), column(1).map(str::parse)) {
                    let (pod, at) = (target.pod.clone(), notes::monotonic());
                    shared.send(Record::Follow { pod, at, seq });
                }
            }
            Err(_) => session = None,
        }
    }
}
