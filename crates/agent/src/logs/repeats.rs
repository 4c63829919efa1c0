//! Leaving out repeated messages: a standby without a stream logs the same ten times a second and more.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::record::Record;

/// The kinds of backends that retry by themselves: those that replay, receive and send WAL.
const TIRELESS: [&str; 3] = ["startup", "walreceiver", "walsender"];
/// The same message of a backend is logged once in this time.
const PAUSE: Duration = Duration::from_secs(10);
/// The most different messages that are remembered.
const MOST: usize = 32;

/// Leaves out messages that were just logged.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    said: BTreeMap<(String, String), Said>,
}

#[derive(Debug)]
struct Said {
    at: Instant,
    left_out: u32,
}

impl Repeats {
    /// Returns how often the same message was left out since the last time, if the record is to be logged; `None` if it
    /// is to be left out.
    pub(super) fn tell(&mut self, record: &Record, now: Instant) -> Option<u32> {
        let Some(backend) = record.backend.as_ref().filter(|kind| TIRELESS.contains(&kind.as_str())) else {
            return Some(0);
        };
        let words = (backend.clone(), record.message.clone());
        if let Some(said) = self.said.get_mut(&words) {
            if now.duration_since(said.at) < PAUSE {
                said.left_out += 1;
                return None;
            }
            let left_out = said.left_out;
            *said = Said { at: now, left_out: 0 };
            return Some(left_out);
        }
        self.said.retain(|_, said| now.duration_since(said.at) < PAUSE);
        if self.said.len() < MOST {
            self.said.insert(words, Said { at: now, left_out: 0 });
        }
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Assembler, line_prefix};
    use super::*;

    fn record(backend: &str, message: &str) -> Record {
        let mut assembler = Assembler::default();
        assembler.push(line_prefix(7, backend, "", "", "00000") + "LOG:  " + message);
        assembler.flush().expect("a record")
    }

    #[test]
    fn what_a_standby_repeats_is_logged_now_and_then() {
        let mut repeats = Repeats::default();
        let begun = Instant::now();
        let mut tell = |backend: &str, message: &str, millis: u64| {
            repeats.tell(&record(backend, message), begun + Duration::from_millis(millis))
        };
        assert_eq!(tell("startup", "waiting for WAL", 0), Some(0));
        assert_eq!(tell("startup", "waiting for WAL", 50), None);
        assert_eq!(tell("walreceiver", "could not connect", 60), Some(0), "other words");
        assert_eq!(tell("walreceiver", "waiting for WAL", 70), Some(0), "another backend");
        assert_eq!(tell("startup", "waiting for WAL", 9_999), None);
        assert_eq!(tell("startup", "waiting for WAL", 10_000), Some(2));
        assert_eq!(tell("startup", "waiting for WAL", 10_050), None);
    }

    #[test]
    fn what_sessions_say_is_never_left_out() {
        let mut repeats = Repeats::default();
        let now = Instant::now();
        for _ in 0..3 {
            assert_eq!(
                repeats.tell(&record("client backend", "division by zero"), now),
                Some(0)
            );
        }
    }

    #[test]
    fn it_remembers_few_messages() {
        let mut repeats = Repeats::default();
        let now = Instant::now();
        for number in 0..1_000 {
            assert_eq!(repeats.tell(&record("startup", &format!("{number}")), now), Some(0));
        }
        assert_eq!(repeats.said.len(), MOST);
        let later = now + PAUSE;
        assert_eq!(repeats.tell(&record("startup", "another"), later), Some(0));
        assert_eq!(repeats.said.len(), 1, "what is old is forgotten");
    }
}
