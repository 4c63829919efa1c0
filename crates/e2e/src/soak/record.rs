//! What the clients note, one JSON object a line. Times are CLOCK_MONOTONIC of the client's node, in nanoseconds.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::availability::record::Outcome;

/// Table of the lists.
pub const LISTS_TABLE: &str = "soak_lists";

/// Names a list.
pub type Key = i64;
/// What is appended; each number is tried once.
pub type Value = i64;
/// What the table holds.
pub type Lists = BTreeMap<Key, Vec<Value>>;

/// Whether transactions on this list run at READ COMMITTED and lock what they read; on the others they are SERIALIZABLE.
///
/// PostgreSQL promises a serial order among SERIALIZABLE transactions, and two-phase locking gives one to those that lock, but
/// there is none for a mixture. So no transaction touches lists of both kinds.
#[must_use]
pub fn is_locked(key: Key) -> bool {
    key % 2 != 0
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "k", rename_all = "lowercase")]
pub enum Note {
    /// The first line, which relates the clients' clock to the wall clock.
    Start {
        /// Nanoseconds since the epoch.
        wall: u64,
        /// The same moment on the monotonic clock.
        mono: u64,
        /// Node of the clients.
        node: String,
    },
    /// A transaction that ended.
    Transaction(Transaction),
}

/// A transaction, as its client knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// The client.
    #[serde(rename = "c")]
    pub client: u32,
    /// Number of its connection, counted from 1.
    #[serde(rename = "s")]
    pub session: u32,
    /// When, before its first statement was sent.
    #[serde(rename = "a")]
    pub begun: u64,
    /// When its outcome was known.
    #[serde(rename = "b")]
    pub done: u64,
    /// How it ended.
    #[serde(rename = "o")]
    pub outcome: Outcome,
    /// What it did, in order: all appends that were sent, and all reads that were answered.
    #[serde(rename = "q")]
    pub steps: Vec<Step>,
    /// What went wrong.
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One statement of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// This was put at the end of that list.
    #[serde(rename = "a")]
    Append(Key, Value),
    /// That list held this.
    #[serde(rename = "r")]
    Read(Key, Vec<Value>),
}

/// How the clients of a pod are doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Transactions by outcome.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// The last error.
    pub error: Option<String>,
    /// The clients have ended, and the notes are whole.
    pub done: bool,
}

impl Status {
    /// Takes a transaction into account.
    pub fn see(&mut self, transaction: &Transaction) {
        *self.outcomes.entry(transaction.outcome).or_default() += 1;
        if transaction.error.is_some() {
            self.error.clone_from(&transaction.error);
        }
    }

    /// How many transactions were acknowledged.
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.outcomes.get(&Outcome::Acked).copied().unwrap_or(0)
    }
}

impl Transaction {
    /// Its commit was acknowledged like that of a write: it appended, or locked what it read.
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.steps.iter().any(|step| match step {
            Step::Append(..) => true,
            Step::Read(key, _) => is_locked(*key),
        })
    }

    /// Its appends, in order.
    pub fn appends(&self) -> impl Iterator<Item = (Key, Value)> {
        self.steps.iter().filter_map(|step| match step {
            Step::Append(key, value) => Some((*key, *value)),
            Step::Read(..) => None,
        })
    }

    /// One line, with times in seconds after `zero`.
    #[must_use]
    pub fn line(&self, zero: u64) -> String {
        let steps: Vec<String> = self.steps.iter().map(Step::to_string).collect();
        let error = self.error.as_ref().map_or(String::new(), |error| format!(" ({error})"));
        format!(
            "client {} connection {}, {:.6} to {:.6} s, {:?}{error}: {}",
            self.client,
            self.session,
            seconds(zero, self.begun),
            seconds(zero, self.done),
            self.outcome,
            steps.join("; ")
        )
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Append(key, value) => write!(f, "append {value} to {key}"),
            Self::Read(key, found) => match found.as_slice() {
                [] => write!(f, "read {key}: empty"),
                [.., last] => write!(f, "read {key}: {} numbers up to {last}", found.len()),
            },
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn seconds(zero: u64, at: u64) -> f64 {
    (at.saturating_sub(zero) / 1_000) as f64 / 1_000_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_form() {
        let line = r#"{"k":"transaction","c":3,"s":1,"a":5,"b":9,"o":"acked","q":[{"a":[12,7]},{"r":[12,[4,7]]}]}"#;
        let note: Note = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_string(&note).unwrap(), line);
        let Note::Transaction(transaction) = note else {
            panic!("{note:?}")
        };
        assert!(transaction.is_write());
        assert_eq!(transaction.appends().collect::<Vec<_>>(), [(12, 7)]);
    }

    #[test]
    fn a_locking_read_is_a_write() {
        let read = |key| Transaction {
            client: 1,
            session: 1,
            begun: 0,
            done: 1,
            outcome: Outcome::Acked,
            steps: vec![Step::Read(key, vec![])],
            error: None,
        };
        assert!(read(7).is_write() && !read(8).is_write());
    }
}
