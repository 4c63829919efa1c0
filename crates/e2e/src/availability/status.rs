//! The present state of the writing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::availability::record::{Outcome, Record};
use crate::availability::report::SERVICE;

/// A longer time between two rows means that writes failed, not that they were slow.
const AWAY: u64 = 1_000_000_000;

/// The state of the writing. Times are nanoseconds since the epoch, on the writer's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// When this was written.
    pub now: u64,
    /// Since when rows through the Service are acknowledged without a pause of a second.
    pub steady_since: Option<u64>,
    /// The last acknowledged row through the Service.
    pub last_ack: Option<u64>,
    /// Its number.
    pub last_seq: u64,
    /// Address of the server that acknowledged it.
    pub server: Option<String>,
    /// The last acknowledged row of every stream.
    pub acks: BTreeMap<String, u64>,
    /// Up to which row each standby was, and when that was seen.
    pub follows: BTreeMap<String, (u64, u64)>,
    /// The last error of every stream that had one since its last acknowledged row.
    pub errors: BTreeMap<String, String>,
    /// True if the writing has ended, and the notes are complete.
    pub done: bool,
}

impl Status {
    /// Adds a note; `offset` converts its clock to the wall clock.
    pub fn see(&mut self, record: &Record, offset: u64) {
        match record {
            Record::Attempt(attempt) => {
                let (stream, done) = (attempt.stream.to_string(), attempt.done.wrapping_add(offset));
                if attempt.outcome != Outcome::Acked {
                    self.errors.insert(stream, attempt.error.clone().unwrap_or_default());
                    return;
                }
                self.errors.remove(&stream);
                self.acks.insert(stream, done);
                if attempt.stream == SERVICE {
                    let steady = self.last_ack.is_some_and(|last| done.saturating_sub(last) < AWAY);
                    if !steady {
                        self.steady_since = Some(done);
                    }
                    self.last_ack = Some(done);
                    self.last_seq = attempt.seq;
                    self.server.clone_from(&attempt.server);
                }
            }
            Record::Follow { pod, at, seq } => {
                self.follows.insert(pod.clone(), (*seq, at.wrapping_add(offset)));
            }
            Record::Start { .. } | Record::Target { .. } | Record::Mark { .. } => {}
        }
    }

    /// How long rows have been acknowledged without a pause; zero if they are not at present.
    #[must_use]
    pub fn steady(&self) -> u64 {
        match (self.steady_since, self.last_ack) {
            (Some(since), Some(last)) if self.now.saturating_sub(last) < AWAY => last.saturating_sub(since),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::availability::record::Attempt;

    fn attempt(at: u64, outcome: Outcome) -> Record {
        Record::Attempt(Attempt {
            stream: SERVICE,
            seq: at,
            count: 1,
            sent: at,
            done: at,
            outcome,
            server: None,
            timeline: None,
            error: Some("x".to_owned()),
        })
    }

    #[test]
    fn steadiness_restarts_after_a_pause() {
        let mut status = Status::default();
        for at in [0, 500, 1_000, 3_000, 3_500] {
            status.see(&attempt(at * 1_000_000, Outcome::Acked), 7);
        }
        status.now = 3_600 * 1_000_000;
        assert_eq!(status.steady(), 500 * 1_000_000);
        status.see(&attempt(3_700 * 1_000_000, Outcome::Error), 7);
        assert_eq!(status.errors["service"], "x");
        status.now = 5_000 * 1_000_000;
        assert_eq!(status.steady(), 0);
    }
}
