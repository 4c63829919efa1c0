//! The last decisions about each database, its operations and its backups, kept in memory for whoever wants to know later why
//! something was done (`kubectl cdb record`). A decision is kept when it is another one than that before about the same object,
//! so a database at rest adds nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::ClusteredDatabaseStatus;
use chrono::{DateTime, Utc};
use machine::cluster::{Action, Decision, Observed, Wanted};
use serde::Serialize;

use crate::cache::Key;
use crate::drift::hash;
use crate::recording::{Entry, FORMAT, Header, Line, VERSION};

/// How many decisions are kept of one database. A creation has some forty, a failover some ten: that is a bad day's.
const MOST_OF_ONE: usize = 256;
/// How many bytes are kept of all of them, a small part of the operator's memory limit (256 MiB). A decision about three
/// instances has some 15 KB.
const MOST_BYTES: usize = 8 << 20;

/// The last decisions.
#[derive(Debug)]
pub struct Decisions {
    kept: Mutex<Kept>,
    most_bytes: usize,
}

#[derive(Debug, Default)]
struct Kept {
    /// Bytes of all lines.
    bytes: usize,
    databases: BTreeMap<Key, Log>,
}

/// What is known of one database.
#[derive(Debug)]
struct Log {
    uid: String,
    /// The hash of the last one about each object.
    last: BTreeMap<Key, String>,
    /// The oldest first.
    lines: VecDeque<Box<str>>,
    /// Bytes of the lines.
    bytes: usize,
    dropped: u64,
}

impl Default for Decisions {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            most_bytes: MOST_BYTES,
        }
    }
}

impl Decisions {
    /// Keeps this decision about a database, if it is another one than the last.
    pub fn note(
        &self,
        key: &Key,
        wanted: &Wanted<'_>,
        observed: &Observed,
        stored: &ClusteredDatabaseStatus,
        decision: &Decision,
        now: DateTime<Utc>,
    ) {
        let line = || Line::Database(Box::new(Entry::new(wanted, observed, stored, decision, now)));
        self.note_about(key, wanted.uid, key, &timeless(decision), line);
    }

    /// Keeps a decision about `object`, which is the database `of` or belongs to it, if it is another one than the last. `uid` is
    /// that of the database, `decided` the decision without times that move on, `line` what is kept.
    pub fn note_about(&self, of: &Key, uid: &str, object: &Key, decided: &impl Serialize, line: impl FnOnce() -> Line) {
        let hash = hash(decided);
        let is_last = |log: &Log| log.uid == uid && log.last.get(object) == Some(&hash);
        if self.kept().databases.get(of).is_some_and(is_last) {
            return;
        }
        match serde_json::to_string(&line()) {
            Ok(text) => self.kept().add(of, uid, (object, hash), text.into(), self.most_bytes),
            Err(error) => tracing::warn!(%object, %error, "cannot write a decision down"),
        }
    }

    /// Forgets an object that is gone; a database with all that was kept of it.
    pub fn forget(&self, key: &Key) {
        self.kept().forget(key);
    }

    /// The text of the decisions about a database ([`crate::recording`]); `None` if there are none.
    pub fn text(&self, key: &Key) -> Option<String> {
        let kept = self.kept();
        let log = kept.databases.get(key)?;
        let header = Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            operator: env!("CARGO_PKG_VERSION").to_owned(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: log.uid.clone(),
            dropped: log.dropped,
        };
        let mut text = serde_json::to_string(&header).ok()?;
        text.push('\n');
        for line in &log.lines {
            text.push_str(line);
            text.push('\n');
        }
        Some(text)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The decision without the times of a wait: until they stand in the status they move on.
fn timeless(decision: &Decision) -> Decision {
    let mut decision = decision.clone();
    decision.wake = DateTime::UNIX_EPOCH;
    if let Action::Wait(wait) = &mut decision.action {
        (wait.since, wait.deadline) = (DateTime::UNIX_EPOCH, None);
    }
    decision
}

impl Log {
    /// Drops the oldest line; returns its bytes.
    fn drop_oldest(&mut self) -> usize {
        let Some(line) = self.lines.pop_front() else { return 0 };
        self.bytes -= line.len();
        self.dropped += 1;
        line.len()
    }
}

impl Kept {
    fn add(&mut self, key: &Key, uid: &str, (object, hash): (&Key, String), text: Box<str>, most_bytes: usize) {
        if self.databases.get(key).is_some_and(|log| log.uid != uid) {
            self.forget(key);
        }
        let log = self.databases.entry(key.clone()).or_insert_with(|| Log {
            uid: uid.to_owned(),
            last: BTreeMap::new(),
            lines: VecDeque::new(),
            bytes: 0,
            dropped: 0,
        });
        log.last.insert(object.clone(), hash);
        log.bytes += text.len();
        self.bytes += text.len();
        log.lines.push_back(text);
        if log.lines.len() > MOST_OF_ONE {
            self.bytes -= log.drop_oldest();
        }
        self.make_room(most_bytes);
    }

    /// The longest record gives way: databases that change all the time leave those of others alone.
    fn make_room(&mut self, most_bytes: usize) {
        while self.bytes > most_bytes {
            let longest = self.databases.values_mut().max_by_key(|log| log.bytes);
            let freed = longest.map_or(0, Log::drop_oldest);
            if freed == 0 {
                break;
            }
            self.bytes -= freed;
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(log) = self.databases.remove(key) {
            self.bytes -= log.bytes;
        }
        for log in self.databases.values_mut() {
            log.last.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
