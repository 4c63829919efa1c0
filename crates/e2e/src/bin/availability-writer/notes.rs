//! Writes the notes and the status.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use e2e::availability::record::{Attempt, Outcome, Record};
use e2e::availability::status::Status;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{MissedTickBehavior, interval};

use crate::files;
use crate::settings::Settings;

/// How often the notes and the status are written to the file.
const FLUSH: Duration = Duration::from_millis(100);
/// Errors of one kind are joined into one note of at most this length.
const JOINED: u64 = 500_000_000;

/// Nanoseconds on the monotonic clock, which all pods of a node share.
pub fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Nanoseconds since the epoch.
pub fn wall() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Writes what arrives, until all senders have ended.
///
/// # Errors
/// When the file cannot be written.
pub async fn keep(settings: Settings, mut records: UnboundedReceiver<Record>) -> Result<()> {
    let file = File::create(files::history_path()).context("make the notes")?;
    let (wall, mono) = (wall(), monotonic());
    let mut keeper = Keeper {
        file: BufWriter::new(file),
        joined: BTreeMap::new(),
        status: Status::default(),
        offset: wall.wrapping_sub(mono),
    };
    keeper.write(&Record::Start {
        run: settings.run,
        wall,
        mono,
        node: settings.node,
    })?;
    let mut flush = interval(FLUSH);
    flush.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            record = records.recv() => match record {
                Some(record) => keeper.note(record)?,
                None => break,
            },
            _ = flush.tick() => keeper.flush()?,
        }
    }
    keeper.status.done = true;
    keeper.finish()
}

struct Keeper {
    file: BufWriter<File>,
    /// Errors that wait for others of their kind, by stream.
    joined: BTreeMap<String, Attempt>,
    status: Status,
    /// From the monotonic to the wall clock.
    offset: u64,
}

impl Keeper {
    fn note(&mut self, record: Record) -> Result<()> {
        self.status.see(&record, self.offset);
        let Record::Attempt(attempt) = record else {
            return self.write(&record);
        };
        let stream = attempt.stream.to_string();
        if let Some(mut waiting) = self.joined.remove(&stream) {
            if join(&mut waiting, &attempt) {
                self.joined.insert(stream, waiting);
                return Ok(());
            }
            self.write(&Record::Attempt(waiting))?;
        }
        if attempt.outcome == Outcome::Error {
            self.joined.insert(stream, attempt);
            return Ok(());
        }
        self.write(&Record::Attempt(attempt))
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush().context("write the notes")?;
        self.status.now = monotonic().wrapping_add(self.offset);
        files::write_status(&serde_json::to_string(&self.status).context("write the status")?)
    }

    fn finish(&mut self) -> Result<()> {
        for (_, attempt) in std::mem::take(&mut self.joined) {
            self.write(&Record::Attempt(attempt))?;
        }
        self.flush()
    }

    fn write(&mut self, record: &Record) -> Result<()> {
        let line = serde_json::to_string(record).context("write a note")?;
        writeln!(self.file, "{line}").context("write a note")
    }
}

/// Merges an attempt into the previous note, if it failed like that one, right after it.
fn join(first: &mut Attempt, second: &Attempt) -> bool {
    let alike = second.outcome == Outcome::Error
        && first.error == second.error
        && second.seq == first.seq + first.count
        && second.done.saturating_sub(first.sent) <= JOINED;
    if alike {
        first.count += second.count;
        first.done = second.done;
    }
    alike
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(seq: u64, at: u64, error: &str) -> Attempt {
        Attempt {
            stream: "service".parse().unwrap(),
            seq,
            count: 1,
            sent: at,
            done: at + 1,
            outcome: Outcome::Error,
            server: None,
            timeline: None,
            error: Some(error.to_owned()),
        }
    }

    #[test]
    fn like_errors_in_succession_are_one_note() {
        let mut joined = failed(1, 0, "x");
        assert!(join(&mut joined, &failed(2, 10, "x")) && join(&mut joined, &failed(3, 20, "x")));
        assert_eq!((joined.seq, joined.count, joined.sent, joined.done), (1, 3, 0, 21));
        for other in [failed(4, 30, "y"), failed(5, 30, "x"), failed(4, JOINED, "x")] {
            assert!(!join(&mut joined, &other), "{other:?}");
        }
        let acked = Attempt {
            outcome: Outcome::Acked,
            ..failed(4, 30, "x")
        };
        assert!(!join(&mut joined, &acked));
        assert_eq!((joined.count, joined.done), (3, 21));
    }
}
