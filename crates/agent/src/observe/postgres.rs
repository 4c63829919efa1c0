//! PostgreSQL's processes and answers.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use machine::instance::observer::{Event, NoAnswer, Note};
use machine::timing::BootTime;
use tokio::sync::watch;

use super::{World, id};
use crate::deadman::boot_time;
use crate::postgres::{Sender, Sql, SqlError, Status};
use crate::process::postgres_processes;

/// Whether, and how often, PostgreSQL is to be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Poll {
    /// Process id of the server; `None`: there is none.
    pub server: Option<u32>,
    /// Its port.
    pub port: u16,
    /// Its major version.
    pub major: u16,
    /// The pause between an answer and the next question.
    pub pause: Duration,
    /// It is a primary and accepts writes.
    pub writes: bool,
    /// Answers to earlier questions do not count, because the settings changed at this time or a promise ended what it
    /// receives. When this changes, it is asked at once.
    pub void_before: BootTime,
}

/// Asks PostgreSQL for its status for ever. Calls `tell` with the server's process id, the time of the question, and
/// the answer.
pub async fn poll(
    socket: std::path::PathBuf,
    mut wanted: watch::Receiver<Poll>,
    tell: impl Fn(u32, BootTime, Result<Box<Status>, SqlError>),
) {
    let mut connection: Option<((u16, u16), Sql)> = None;
    loop {
        let Poll {
            server,
            port,
            major,
            pause,
            ..
        } = wanted.borrow_and_update().clone();
        let Some(pid) = server else {
            connection = None;
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        };
        let of = (port, major);
        let fresh = connection.take().filter(|(known, _)| *known == of);
        let (_, sql) = connection.insert(fresh.unwrap_or_else(|| (of, Sql::new(socket.clone(), port, major))));
        let asked = boot_time();
        tell(pid, asked, sql.status().await.map(Box::new));
        if let Ok(Err(_)) = tokio::time::timeout(pause, wanted.changed()).await {
            return;
        }
    }
}

impl World {
    /// Takes an answer of the server with process id `pid`. Returns `true` if its settings have just proved good.
    pub fn answered(
        &mut self,
        pid: u32,
        asked: BootTime,
        answer: Result<Box<Status>, SqlError>,
        now: BootTime,
    ) -> bool {
        let seen = match &answer {
            Ok(status) => Ok(Box::new(status.seen())),
            Err(SqlError::Silent(_)) => Err(NoAnswer::Silent),
            Err(SqlError::Refused(words)) => Err(NoAnswer::Refused(words.clone())),
            Err(SqlError::NotListening | SqlError::NotNow(_) | SqlError::Broken(_)) => Err(NoAnswer::Unable),
        };
        let event = Event::Status {
            server: id(pid),
            asked,
            answer: seen,
        };
        let note = self.observer.observe(event, now);
        let proved = note == Some(Note::SettingsProved);
        match (&note, answer) {
            (_, Ok(status)) => self.keep_status(status, asked),
            (Some(Note::Unanswered | Note::Silent), Err(error)) => tracing::warn!("{error}"),
            (_, Err(_)) => {}
        }
        self.take_note(note, now);
        proved
    }

    /// Keeps an answer, if the observer has taken it.
    pub(super) fn keep_status(&mut self, status: Box<Status>, asked: BootTime) {
        let postgres = &self.observed().postgres;
        if self.observer.server().is_none() || postgres.answer.is_none_or(|answer| answer.asked != asked) {
            return;
        }
        let strange = strange_senders(&status.senders);
        if strange != self.strange {
            if !strange.is_empty() {
                tracing::warn!(senders = ?strange, "WAL senders belong to no member, or a member has two");
            }
            self.strange = strange;
        }
        self.status = Some(status);
    }

    /// Counts PostgreSQL processes that have outlived their postmaster. The processes of an initdb or a clone work in
    /// the staging directory, not in `pgdata`. It reads only `/proc`: the volume may hang.
    pub fn look_for_strays(&mut self, pgdata: &Path, now: BootTime) {
        let count = if self.observer.may_have_strays() {
            working_in(pgdata).map_or(1, |processes| processes.len())
        } else {
            0
        };
        self.observe(Event::Strays(u32::try_from(count).unwrap_or(u32::MAX)), now);
    }
}

/// PostgreSQL processes with `directory` (a path without links) as their working directory, as all servers have PGDATA.
fn working_in(directory: &Path) -> std::io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for process in postgres_processes()? {
        match std::fs::read_link(format!("/proc/{}/cwd", process.pid)) {
            Ok(place) if place == directory => found.push(process.pid),
            Ok(_) => {}
            // It has ended meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Streams that belong to no member, or that a member has twice (protocol.md rule 3).
fn strange_senders(senders: &[Sender]) -> Vec<String> {
    let streaming = senders.iter().filter(|sender| sender.state == "streaming");
    let (mut known, mut strange) = (BTreeSet::new(), BTreeSet::new());
    for sender in streaming {
        let is_member = machine::protocol::MemberId::parse(&sender.user).is_some();
        // The tools of a member put their own name before the member's.
        let is_own = sender.application.ends_with(&sender.user);
        if !is_member || !is_own || !known.insert(&sender.application) {
            strange.insert(format!("{} as {}", sender.user, sender.application));
        }
    }
    strange.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_belong_to_no_member_are_found() {
        let strange = |streams: &[(&str, &str, &str)]| {
            let sender = |&(user, application, state): &(&str, &str, &str)| Sender {
                user: user.to_owned(),
                application: application.to_owned(),
                pid: 1,
                state: state.to_owned(),
                sent: None,
                flushed: None,
                replayed: None,
                reported: None,
            };
            strange_senders(&streams.iter().map(sender).collect::<Vec<_>>())
        };
        let (one, other) = ("cdb_1_aaaaaaaa_00000001", "cdb_2_bbbbbbbb_00000001");
        assert!(strange(&[(one, one, "streaming"), (other, other, "streaming")]).is_empty());
        let tool = format!("clone_{other}");
        assert!(strange(&[(one, one, "streaming"), (other, &tool, "streaming")]).is_empty());
        let wrong = [
            [("backup", one, "streaming"), (one, one, "catchup")],
            [(other, one, "streaming"), (one, one, "catchup")],
            [(one, "walreceiver", "streaming"), (other, other, "streaming")],
            [(one, one, "streaming"), (one, one, "streaming")],
        ];
        for streams in wrong {
            assert_eq!(strange(&streams).len(), 1, "{streams:?}");
        }
        assert!(
            strange(&[("backup", one, "backup")]).is_empty(),
            "it acknowledges nothing"
        );
    }
}
