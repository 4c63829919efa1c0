//! What the writer notes, one JSON object a line. Times are CLOCK_MONOTONIC of the writer's node, in nanoseconds.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Table of the rows that go through the Service.
pub const ROWS_TABLE: &str = "availability_rows";
/// Table of the rows that go to pods directly: separate, to distinguish a second writer from the first.
pub const PROBES_TABLE: &str = "availability_probes";

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "k", rename_all = "lowercase")]
pub enum Record {
    /// The first line of a writer, which relates its clock to the others'.
    Start {
        /// The run that the rows belong to.
        run: String,
        /// Nanoseconds since the epoch.
        wall: u64,
        /// The same moment on the writer's monotonic clock.
        mono: u64,
        /// Node of the writer.
        node: String,
    },
    /// From now on `pod` is probed at `address`.
    Target {
        /// The pod's name.
        pod: String,
        /// Its address.
        address: String,
        /// Since when.
        at: u64,
    },
    /// One attempt to write a row, or several in succession that failed alike.
    Attempt(Attempt),
    /// A standby showed the rows of the Service's writer up to this one.
    Follow {
        /// The standby.
        pod: String,
        /// When it answered.
        at: u64,
        /// The highest row.
        seq: u64,
    },
    /// Something that the harness did or saw. Its time is nanoseconds since the epoch.
    Mark {
        /// What it was.
        what: String,
        /// When.
        wall: u64,
    },
}

/// One attempt to write a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The stream, that is, where the attempt was sent.
    #[serde(rename = "s")]
    pub stream: Stream,
    /// Number of the row, counted by stream from 1; of the first one, if there were several.
    #[serde(rename = "n")]
    pub seq: u64,
    /// How many attempts in succession this stands for. More than one only for errors.
    #[serde(rename = "c", default = "one", skip_serializing_if = "is_one")]
    pub count: u64,
    /// When it began.
    #[serde(rename = "a")]
    pub sent: u64,
    /// When its outcome was known.
    #[serde(rename = "b")]
    pub done: u64,
    /// How it ended.
    #[serde(rename = "o")]
    pub outcome: Outcome,
    /// Address of the server that answered.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Timeline that the server wrote on.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<u32>,
    /// What went wrong.
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

fn one() -> u64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_one(count: &u64) -> bool {
    *count == 1
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Outcome {
    /// The server said that it is committed, by the rule for commits in force.
    #[serde(rename = "acked")]
    Acked,
    /// It is certain that the row was not written.
    #[serde(rename = "error")]
    Error,
    /// The row may be there or not: the connection ended, or no server answered in time.
    #[serde(rename = "unknown")]
    Unknown,
}

/// Where attempts are sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Stream {
    /// From a second writer, on the node of the first primary: it sees what clients see that are cut off with it.
    pub inside: bool,
    /// The target.
    pub to: To,
}

/// The target of attempts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum To {
    /// To the Service, with a new connection after every failure.
    Service,
    /// To the Service, on one connection from before the fault, never opened again.
    Held,
    /// To the address of this pod.
    Pod(String),
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.inside {
            f.write_str("inside/")?;
        }
        match &self.to {
            To::Service => f.write_str("service"),
            To::Held => f.write_str("held"),
            To::Pod(pod) => write!(f, "pod/{pod}"),
        }
    }
}

/// The text that names no stream.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no stream: service, held, or pod/NAME, perhaps after inside/")]
pub struct NoStream(String);

impl FromStr for Stream {
    type Err = NoStream;

    fn from_str(text: &str) -> Result<Self, NoStream> {
        let (inside, rest) = match text.strip_prefix("inside/") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let to = match rest {
            "service" => To::Service,
            "held" => To::Held,
            other => match other.strip_prefix("pod/") {
                Some(pod) if !pod.is_empty() => To::Pod(pod.to_owned()),
                _ => return Err(NoStream(text.to_owned())),
            },
        };
        Ok(Self { inside, to })
    }
}

impl TryFrom<String> for Stream {
    type Error = NoStream;

    fn try_from(text: String) -> Result<Self, NoStream> {
        text.parse()
    }
}

impl From<Stream> for String {
    fn from(stream: Stream) -> Self {
        stream.to_string()
    }
}

/// Rows that are in a table: every one from `from` to `to`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// Their writer.
    pub stream: Stream,
    /// The first.
    pub from: u64,
    /// The last.
    pub to: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_have_names() {
        for name in ["service", "held", "pod/db-0", "inside/held", "inside/pod/db-2"] {
            assert_eq!(name.parse::<Stream>().unwrap().to_string(), name);
        }
        for name in ["", "pod/", "inside/", "other"] {
            assert!(name.parse::<Stream>().is_err(), "{name}");
        }
    }

    #[test]
    fn lines_keep_their_form() {
        let line = r#"{"k":"attempt","s":"pod/db-0","n":7,"a":1,"b":2,"o":"acked","p":"10.0.0.1","t":3}"#;
        let record: Record = serde_json::from_str(line).unwrap();
        let Record::Attempt(attempt) = &record else {
            panic!("{record:?}")
        };
        assert_eq!((attempt.count, attempt.timeline), (1, Some(3)));
        assert_eq!(serde_json::to_string(&record).unwrap(), line);
    }
}
