//! The notes of one run, on a common clock.

use std::collections::BTreeMap;

use crate::availability::record::{Attempt, Outcome, Record, Stream, To};

/// Why notes cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadHistory {
    /// A line is no record.
    #[error("line {line} is no record")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The notes do not relate the writer's clock to the wall clock.
    #[error("it does not begin with a start record")]
    NoStart,
}

/// What happened in a run, in nanoseconds since the epoch, in order of the outcomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// All attempts.
    pub attempts: Vec<Attempt>,
    /// Rows that standbys showed: when, which pod, up to which row.
    pub follows: Vec<(u64, String, u64)>,
    /// What the harness did and saw.
    pub marks: Vec<(u64, String)>,
    /// Which pod had an address, and from when on.
    pub(super) targets: BTreeMap<String, Vec<(u64, String)>>,
}

impl History {
    /// Adds the notes of one writer. An unfinished last line is left out, because the writer was still writing it.
    ///
    /// # Errors
    /// When another line is no record, or the first is no start.
    pub fn add(&mut self, text: &str) -> Result<(), BadHistory> {
        let mut offset = None;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for (number, line) in whole.lines().enumerate() {
            let record = serde_json::from_str(line).map_err(|source| BadHistory::Line {
                line: number + 1,
                source,
            })?;
            if let Record::Start { wall, mono, .. } = record {
                offset = Some(wall.wrapping_sub(mono));
                continue;
            }
            self.push(record, offset.ok_or(BadHistory::NoStart)?);
        }
        self.attempts.sort_by_key(|attempt| attempt.done);
        self.follows.sort();
        for names in self.targets.values_mut() {
            names.sort();
        }
        Ok(())
    }

    /// Notes what the harness did or saw at `wall`.
    pub fn mark(&mut self, wall: u64, what: impl Into<String>) {
        self.marks.push((wall, what.into()));
        self.marks.sort();
    }

    /// The first mark that begins with `what`, at or after `from`.
    #[must_use]
    pub fn marked(&self, what: &str, from: u64) -> Option<u64> {
        let mut marks = self.marks.iter();
        marks
            .find(|(at, mark)| *at >= from && mark.starts_with(what))
            .map(|(at, _)| *at)
    }

    /// Acknowledged attempts of one stream.
    pub fn acks(&self, stream: &Stream) -> impl Iterator<Item = &Attempt> {
        self.attempts
            .iter()
            .filter(move |attempt| attempt.outcome == Outcome::Acked && attempt.stream == *stream)
    }

    /// All streams that were tried.
    #[must_use]
    pub fn streams(&self) -> Vec<Stream> {
        let mut streams: Vec<Stream> = self.attempts.iter().map(|attempt| attempt.stream.clone()).collect();
        streams.sort();
        streams.dedup();
        streams
    }

    /// The pod that answered an attempt: by its address, else by where it was sent, else the address itself.
    #[must_use]
    pub fn server(&self, attempt: &Attempt) -> String {
        let by_address = attempt.server.as_ref().and_then(|address| {
            let names = self.targets.get(address)?;
            let known = names.iter().rev().find(|(since, _)| *since <= attempt.done);
            known.or_else(|| names.first()).map(|(_, pod)| pod.clone())
        });
        match (by_address, &attempt.stream.to, &attempt.server) {
            (Some(pod), _, _) => pod,
            (None, To::Pod(pod), _) => pod.clone(),
            (None, _, Some(address)) => address.clone(),
            (None, _, None) => "?".to_owned(),
        }
    }

    /// The times of the first and the last event.
    #[must_use]
    pub fn span(&self) -> Option<(u64, u64)> {
        let first = self.attempts.iter().map(|attempt| attempt.sent).min()?;
        let last = self.attempts.iter().map(|attempt| attempt.done).max()?;
        Some((first, last))
    }

    fn push(&mut self, record: Record, offset: u64) {
        let on_wall = |mono: u64| mono.wrapping_add(offset);
        match record {
            Record::Start { .. } => {}
            Record::Target { pod, address, at } => self.targets.entry(address).or_default().push((on_wall(at), pod)),
            Record::Attempt(mut attempt) => {
                attempt.sent = on_wall(attempt.sent);
                attempt.done = on_wall(attempt.done);
                self.attempts.push(attempt);
            }
            Record::Follow { pod, at, seq } => self.follows.push((on_wall(at), pod, seq)),
            Record::Mark { what, wall } => self.mark(wall, what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = r#"{"k":"start","run":"r","wall":1000,"mono":100,"node":"n1"}"#;

    #[test]
    fn times_are_put_on_the_wall_clock() {
        let mut history = History::default();
        let text = format!(
            "{START}\n{{\"k\":\"attempt\",\"s\":\"service\",\"n\":1,\"a\":150,\"b\":160,\"o\":\"acked\"}}\n{{\"k\":\"att"
        );
        history.add(&text).unwrap();
        assert_eq!(history.attempts.len(), 1);
        assert_eq!((history.attempts[0].sent, history.attempts[0].done), (1050, 1060));
    }

    #[test]
    fn broken_notes_are_refused() {
        let mut history = History::default();
        let attempt = r#"{"k":"attempt","s":"service","n":1,"a":150,"b":160,"o":"acked"}"#;
        assert!(matches!(history.add(&format!("{attempt}\n")), Err(BadHistory::NoStart)));
        let error = history.add(&format!("{START}\nnonsense\n{attempt}\n"));
        assert!(matches!(error, Err(BadHistory::Line { line: 2, .. })));
    }

    #[test]
    fn an_address_belongs_to_the_pod_that_had_it_then() {
        let mut history = History::default();
        let target = |pod: &str, at: u64| {
            format!("{{\"k\":\"target\",\"pod\":\"{pod}\",\"address\":\"10.0.0.1\",\"at\":{at}}}\n")
        };
        let ack = |n: u64, at: u64| {
            format!(
                "{{\"k\":\"attempt\",\"s\":\"service\",\"n\":{n},\"a\":{at},\"b\":{at},\"o\":\"acked\",\"p\":\"10.0.0.1\"}}\n"
            )
        };
        let text = format!(
            "{START}\n{}{}{}{}",
            target("a", 110),
            ack(1, 120),
            target("b", 130),
            ack(2, 140)
        );
        history.add(&text).unwrap();
        let servers: Vec<String> = history.attempts.iter().map(|attempt| history.server(attempt)).collect();
        assert_eq!(servers, ["a", "b"]);
    }
}
