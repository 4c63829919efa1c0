//! The clients of a soak: each appends numbers to lists and reads them, in transactions of one to four statements.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use e2e::availability::record::Outcome;
use e2e::soak::random::Random;
use e2e::soak::record::{Key, LISTS_TABLE, Note, Status, Step, Transaction, Value, is_locked};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::session::{Answer, Session};
use crate::settings::{Lists, Settings};
use crate::tls::Tls;
use crate::{files, notes};

/// Bound of a statement, by the client; a wait for another transaction's lock is within it.
const STATEMENT: Duration = Duration::from_secs(3);
/// Bound of a commit, by the client: it may wait for a standby.
const COMMIT: Duration = Duration::from_secs(5);
/// Between two transactions of a client, in milliseconds.
const PAUSE: std::ops::RangeInclusive<u64> = 20..=60;
/// Pause after a failure that cost the connection. It doubles each time: a server whose commits wait keeps each
/// abandoned session.
const RECONNECT: Duration = Duration::from_millis(100);
/// The longest such pause.
const RECONNECT_MOST: Duration = Duration::from_secs(4);
/// How often the notes and the status are written to the file.
const FLUSH: Duration = Duration::from_millis(100);
/// How long a set of lists is in use. Sets stay short, and with them every note of a read.
const USE: u64 = 2;
/// Lists of each kind in a set.
const SET: u64 = 4;
/// Percentage of statements on a list of an earlier set: there a loss, or a return, of rows by a failover shows.
const EARLIER: u64 = 15;
/// How many sets back that list may be.
const BACK: u64 = 30;
/// Numbers of a client begin at its own number times this.
const NUMBERS: Value = 10_000_000;
/// A statement is never cancelled while it waits for standbys: that would end the guarantee (docs/operation.md,
/// *Durability*).
/// So there is no `statement_timeout`, but there are bounds for waits on what another session left behind.
const SETTINGS: &str = "SET lock_timeout = '2s'; SET idle_in_transaction_session_timeout = '4s'; \
                        SET client_connection_check_interval = '2s'";

/// Runs the clients until the stop command; then waits to be removed.
///
/// # Errors
/// When the notes cannot be written.
pub async fn run(settings: Settings) -> Result<()> {
    let lists = settings.lists.context("LISTS is not set")?;
    let (sender, receiver) = unbounded_channel();
    let keeper = tokio::spawn(keep(settings.node.clone(), receiver));
    let tls = Tls::new().context("set up TLS")?;
    let settings = Arc::new(settings);
    make_table(&settings, &tls).await;
    let clients: Vec<_> = (0..lists.clients)
        .map(|number| Client::new(settings.clone(), tls.clone(), lists, number, sender.clone()))
        .map(|client| tokio::spawn(client.run()))
        .collect();
    drop(sender);
    for client in clients {
        client.await.context("a client broke")?;
    }
    keeper.await.context("the notes broke")??;
    std::future::pending().await
}

async fn make_table(settings: &Settings, tls: &Tls) {
    let statement = format!(
        "CREATE TABLE IF NOT EXISTS {LISTS_TABLE} (run text, key bigint, items bigint[] NOT NULL, PRIMARY KEY (run, key))"
    );
    while !files::is_stopped() {
        match Session::connect(settings.service, &settings.login, tls).await {
            Ok(session) => match session.query(&statement).await {
                Ok(_) => return,
                Err(error) => eprintln!("make the table: {error:#}"),
            },
            Err(error) => eprintln!("make the table: {error:#}"),
        }
        sleep(RECONNECT).await;
    }
}

struct Client {
    settings: Arc<Settings>,
    tls: Tls,
    lists: Lists,
    number: u32,
    random: Random,
    session: Option<Session>,
    /// How many connections it has had.
    connections: u32,
    last: Value,
    notes: UnboundedSender<Note>,
}

impl Client {
    fn new(settings: Arc<Settings>, tls: Tls, lists: Lists, place: u32, notes: UnboundedSender<Note>) -> Self {
        let number = lists.first + place;
        Self {
            settings,
            tls,
            lists,
            number,
            random: Random::new(lists.seed.wrapping_add(u64::from(number))),
            session: None,
            connections: 0,
            last: Value::from(number) * NUMBERS,
            notes,
        }
    }

    async fn run(mut self) {
        let mut pause = RECONNECT;
        while !files::is_stopped() {
            let Some(session) = self.session().await else {
                sleep(pause).await;
                pause = (pause * 2).min(RECONNECT_MOST);
                continue;
            };
            let steps = self.steps();
            let begun = notes::monotonic();
            let done = attempt(&session, &self.settings.run, steps).await;
            let transaction = Transaction {
                client: self.number,
                session: self.connections,
                begun,
                done: notes::monotonic(),
                outcome: done.answer.outcome,
                steps: done.steps,
                error: done.answer.error,
            };
            // The receiver only ends if the notes failed, and then the program ends.
            let _ = self.notes.send(Note::Transaction(transaction));
            if done.answer.usable {
                self.session = Some(session);
                pause = RECONNECT;
                sleep(Duration::from_millis(self.random.within(PAUSE))).await;
            } else {
                sleep(pause).await;
                pause = (pause * 2).min(RECONNECT_MOST);
            }
        }
    }

    /// The previous session, or a new one.
    async fn session(&mut self) -> Option<Session> {
        if let Some(session) = self.session.take() {
            return Some(session);
        }
        let settings = &self.settings;
        let session = Session::connect_with(settings.service, &settings.login, &self.tls, SETTINGS).await;
        self.connections += 1;
        session.ok()
    }

    /// What the next transaction does. Lists are taken in the order of their keys, so that transactions rarely wait for
    /// each other in a circle.
    fn steps(&mut self) -> Vec<Step> {
        let kind = self.random.within(0..=1);
        let count = self.random.within(1..=4);
        let mut keys: Vec<Key> = (0..count).map(|_| self.key(kind)).collect();
        keys.sort_unstable();
        keys.into_iter()
            .map(|key| {
                if self.random.chance(50) {
                    self.last += 1;
                    Step::Append(key, self.last)
                } else {
                    Step::Read(key, Vec::new())
                }
            })
            .collect()
    }

    fn key(&mut self, kind: u64) -> Key {
        let seconds = (notes::wall() / 1_000_000_000).saturating_sub(self.lists.began);
        let back = if self.random.chance(EARLIER) {
            self.random.within(1..=BACK)
        } else {
            0
        };
        let set = (seconds / USE).saturating_sub(back);
        let key = (set * SET + self.random.within(0..=SET - 1)) * 2 + kind;
        Key::try_from(key).unwrap_or(Key::MAX)
    }
}

/// A transaction that was tried.
struct Done {
    /// The steps that were sent, with what the reads found.
    steps: Vec<Step>,
    answer: Answer,
}

async fn attempt(session: &Session, run: &str, planned: Vec<Step>) -> Done {
    let mut steps = Vec::new();
    let locked = planned.iter().any(|step| is_locked(key_of(step)));
    let level = if locked { "READ COMMITTED" } else { "SERIALIZABLE" };
    let mut failed = session
        .ask(&format!("BEGIN ISOLATION LEVEL {level}"), STATEMENT)
        .await
        .err();
    for step in planned {
        if failed.is_some() {
            break;
        }
        let asked = session.ask(&statement(run, &step), STATEMENT).await;
        match (step, asked) {
            (Step::Read(key, _), Ok(rows)) => {
                let found = rows.first().and_then(|row| row.get(0)).map(serde_json::from_str);
                match found.transpose() {
                    Ok(found) => steps.push(Step::Read(key, found.unwrap_or_default())),
                    Err(error) => failed = Some(Answer::refused(&anyhow::Error::new(error).context("read a list"))),
                }
            }
            (append @ Step::Append(..), asked) => {
                steps.push(append);
                failed = asked.err();
            }
            (Step::Read(..), Err(answer)) => failed = Some(answer),
        }
    }
    let answer = match failed {
        None => session.commit(COMMIT).await,
        Some(answer) => rolled_back(session, answer).await,
    };
    Done { steps, answer }
}

fn key_of(step: &Step) -> Key {
    match step {
        Step::Append(key, _) | Step::Read(key, _) => *key,
    }
}

/// A read under a lock is an update that changes nothing: unlike `SELECT … FOR UPDATE` it also locks a list that is not there yet.
fn statement(run: &str, step: &Step) -> String {
    match step {
        Step::Append(key, value) => format!(
            "INSERT INTO {LISTS_TABLE} AS l VALUES ('{run}', {key}, ARRAY[{value}]::bigint[]) \
             ON CONFLICT (run, key) DO UPDATE SET items = l.items || EXCLUDED.items"
        ),
        Step::Read(key, _) if is_locked(*key) => format!(
            "INSERT INTO {LISTS_TABLE} AS l VALUES ('{run}', {key}, '{{}}') \
             ON CONFLICT (run, key) DO UPDATE SET items = l.items RETURNING array_to_json(l.items)"
        ),
        Step::Read(key, _) => {
            format!("SELECT array_to_json(items) FROM {LISTS_TABLE} WHERE run = '{run}' AND key = {key}")
        }
    }
}

/// COMMIT was never sent: whatever the failure, nothing of the transaction can take effect.
async fn rolled_back(session: &Session, failure: Answer) -> Answer {
    let usable = is_ordinary(&failure) && session.ask("ROLLBACK", STATEMENT).await.is_ok();
    Answer {
        outcome: Outcome::Error,
        usable,
        ..failure
    }
}

/// True for a failure that says nothing about the server: transactions conflicted. After any other failure the
/// connection is closed, as an application would do: it may lead to a former primary, which refuses everything.
fn is_ordinary(failure: &Answer) -> bool {
    let rolled_back = |error: &String| error.starts_with("40");
    failure.usable && failure.error.as_ref().is_some_and(rolled_back)
}

/// Writes what arrives, until all clients have ended.
async fn keep(node: String, mut notes: UnboundedReceiver<Note>) -> Result<()> {
    let mut file = BufWriter::new(File::create(files::history_path()).context("make the notes")?);
    let mut status = Status::default();
    let start = Note::Start {
        wall: notes::wall(),
        mono: notes::monotonic(),
        node,
    };
    write(&mut file, &start)?;
    let mut flush = interval(FLUSH);
    flush.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !status.done {
        tokio::select! {
            note = notes.recv() => match note {
                Some(note) => {
                    if let Note::Transaction(transaction) = &note {
                        status.see(transaction);
                    }
                    write(&mut file, &note)?;
                }
                None => status.done = true,
            },
            _ = flush.tick() => tell(&mut file, &status)?,
        }
    }
    tell(&mut file, &status)
}

fn write(file: &mut BufWriter<File>, note: &Note) -> Result<()> {
    writeln!(file, "{}", serde_json::to_string(note).context("write a note")?).context("write a note")
}

fn tell(file: &mut BufWriter<File>, status: &Status) -> Result<()> {
    file.flush().context("write the notes")?;
    files::write_status(&serde_json::to_string(status).context("write the status")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_under_a_lock_writes_and_the_other_does_not() {
        assert!(statement("r", &Step::Read(3, vec![])).contains("ON CONFLICT"));
        assert!(statement("r", &Step::Read(4, vec![])).starts_with("SELECT"));
        let append = statement("r", &Step::Append(4, 7));
        assert!(append.contains("ARRAY[7]") && append.contains("'r', 4"), "{append}");
    }

    #[test]
    fn a_connection_is_kept_only_after_a_conflict_of_transactions() {
        let failed = |error: &str, usable| Answer {
            usable,
            ..Answer::refused(&anyhow::anyhow!(error.to_owned()))
        };
        assert!(is_ordinary(&failed("40001: could not serialize access", true)));
        assert!(!is_ordinary(&failed("40001: could not serialize access", false)));
        assert!(!is_ordinary(&failed(
            "0A000: cannot use serializable mode in a hot standby",
            true
        )));
        assert!(!is_ordinary(&failed(
            "25006: cannot execute INSERT in a read-only transaction",
            true
        )));
    }
}
