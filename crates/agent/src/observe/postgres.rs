//! PostgreSQL's processes and answers.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use machine::instance::{Answer, Exit, Mode, Process, SyncSetting};
use machine::timing::BootTime;
use tokio::sync::watch;

use super::World;
use crate::deadman::boot_time;
use crate::postgres::{Sender, Sql, SqlError, Status};
use crate::process::postgres_processes;

/// So many questions in a row must go unanswered before PostgreSQL counts as not answering: a slow one is not a dead one.
const SILENT: u32 = 3;

/// Whether, and how often, PostgreSQL is to be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Poll {
    /// Process id of the server; `None`: there is none.
    pub server: Option<u32>,
    /// Its port.
    pub port: u16,
    /// Its major version.
    pub major: u16,
    /// How long after an answer it is asked again.
    pub pause: Duration,
    /// It is a primary's, and can write.
    pub writes: bool,
    /// What it said before is void: its settings changed then, or a promise ended what it receives. It is asked at once.
    pub void_before: BootTime,
}

/// Asks PostgreSQL how it is, for ever, and tells `tell` its answers with the process id that they are of and the time of the
/// question.
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
    /// Takes an answer of the server with process id `pid`; `true` if the settings that it runs with have just proved good.
    /// One that was asked for before the settings changed says nothing about them, and is dropped.
    pub fn answered(&mut self, pid: u32, asked: BootTime, answer: Result<Box<Status>, SqlError>) -> bool {
        if self.server.as_ref().is_none_or(|running| running.server.pid() != pid) || asked < self.configured_at {
            return false;
        }
        match answer {
            Ok(status) => {
                self.silent = 0;
                self.take_answer(status, asked);
                let postgres = &self.observed.postgres;
                postgres
                    .configured
                    .as_ref()
                    .is_some_and(|configured| configured.settings != postgres.good_settings)
            }
            Err(SqlError::Silent(milliseconds)) => {
                self.silent += 1;
                if self.silent == SILENT {
                    tracing::warn!(milliseconds, "PostgreSQL does not answer");
                    let postgres = &mut self.observed.postgres;
                    (postgres.answer, postgres.refusal) = (None, None);
                }
                false
            }
            Err(error) => {
                let postgres = &mut self.observed.postgres;
                if postgres.answer.take().is_some() {
                    tracing::warn!("{error}");
                }
                postgres.refusal = match error {
                    SqlError::Refused(words) => Some(words),
                    SqlError::NotListening | SqlError::NotNow(_) | SqlError::Silent(_) | SqlError::Broken(_) => None,
                };
                false
            }
        }
    }

    /// Takes what PostgreSQL said of itself when it was asked at `asked`.
    pub(super) fn take_answer(&mut self, status: Box<Status>, asked: BootTime) {
        let answer = self.answer(&status, asked);
        self.heard = answer.heard;
        let strange = strange_senders(&status.senders);
        if strange != self.strange {
            if !strange.is_empty() {
                tracing::warn!(senders = ?strange, "WAL senders that are no member's, or are one's twice");
            }
            self.strange = strange;
        }
        let writes = self.observed.postgres.process == Process::Running { mode: Mode::Primary } && !answer.in_recovery;
        let postgres = &mut self.observed.postgres;
        postgres.streamed |= answer.streaming;
        (postgres.answer, postgres.refusal) = (Some(answer), None);
        postgres.receiver = status.receiver.as_ref().map(|receiver| receiver.status.clone());
        postgres.slots = status.members_with_slots();
        let end = writes.then(|| status.inserted.unwrap_or(status.position.lsn));
        postgres.take_senders(&status.wal_senders(), end, asked);
        if writes {
            postgres.history.clone_from(&status.history);
            postgres.oldest = status.oldest;
            // Whose slot has lost its WAL is admitted anew, with a new one.
            for slot in &status.slots {
                if let Some(member) = slot.lost_by() {
                    self.observed.admitted.remove(&member);
                }
            }
            if postgres.in_doubt.is_none() {
                // It has just left recovery: what came before is flushed.
                let end = end.unwrap_or_default();
                postgres.in_doubt = Some(end);
                postgres.sync.proven_at = postgres.sync.proven_at.min(end);
                postgres.wrote = postgres.wrote.max(Some(asked));
            }
        } else {
            postgres.oldest = None;
        }
        self.status = Some(status);
    }

    /// A write of the canary, begun at `begun`, was flushed.
    pub fn wrote(&mut self, pid: u32, begun: BootTime) {
        if self.server.as_ref().is_some_and(|running| running.server.pid() == pid) {
            let postgres = &mut self.observed.postgres;
            postgres.wrote = postgres.wrote.max(Some(begun));
        }
    }

    /// A session, begun at `begun`, was taken, or refused with words.
    pub fn greeted(&mut self, pid: u32, begun: BootTime) {
        if self.server.as_ref().is_some_and(|running| running.server.pid() == pid) {
            let postgres = &mut self.observed.postgres;
            postgres.greeted = postgres.greeted.max(Some(begun));
        }
    }

    fn answer(&self, status: &Status, asked: BootTime) -> Answer {
        let age = status
            .heard_age()
            .map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        let heard = age.map(|age| BootTime(asked.0.saturating_sub(age)));
        Answer {
            asked,
            in_recovery: status.in_recovery,
            position: Some(status.position),
            begins: status.begins,
            replayed: status.replayed,
            streaming: status
                .receiver
                .as_ref()
                .is_some_and(|receiver| receiver.status == "streaming"),
            waits_for_wal: status.waits_for_wal,
            other_upstream: status.in_recovery && status.following != self.following,
            heard: heard.max(self.heard),
            received_all: status.received_all,
            knows_end: status.knows_end,
            pending_restart: !status.pending_restart.is_empty(),
            lowers_limits: status.lowers_limits,
        }
    }

    /// Takes the end of a child called [`crate::postgres::Server::NAME`].
    pub fn server_exited(&mut self, pid: u32, now: BootTime) {
        let Some(running) = self.server.take_if(|running| running.server.pid() == pid) else {
            return;
        };
        let exit = Exit {
            at: now,
            ran: now.since(running.since),
            asked: running.asked,
        };
        tracing::info!(
            pid,
            ran_milliseconds = exit.ran,
            asked = exit.asked,
            "PostgreSQL has ended"
        );
        self.stopped(Some(exit));
    }

    pub(super) fn stopped(&mut self, exit: Option<Exit>) {
        let postgres = &mut self.observed.postgres;
        postgres.process = Process::Stopped { exit };
        (postgres.answer, postgres.refusal) = (None, None);
        postgres.streamed = false;
        postgres.open = false;
        postgres.in_doubt = None;
        postgres.sync = SyncSetting::default();
        postgres.standbys.clear();
        postgres.receiving.clear();
        (postgres.impostors, postgres.doubt) = (BTreeSet::new(), None);
        postgres.slots.clear();
        (postgres.wrote, postgres.greeted) = (None, None);
        postgres.history.clear();
        self.heard = None;
        self.status = None;
        self.silent = 0;
    }

    /// Counts PostgreSQL processes that have outlived their postmaster. A server that runs or is being started has
    /// processes of its own; those of an initdb or a clone work in the staging directory, not in `pgdata`. Looks at `/proc`
    /// only: the volume may hang.
    pub fn look_for_strays(&mut self, pgdata: &Path) {
        let explained = self.observed.tasks.start.running.is_some() || self.server.is_some();
        let count = if explained {
            0
        } else {
            working_in(pgdata).map_or(1, |processes| processes.len())
        };
        self.observed.postgres.strays = u32::try_from(count).unwrap_or(u32::MAX);
    }
}

/// PostgreSQL processes with `directory` (a path without links) as their working directory, as all servers have PGDATA.
fn working_in(directory: &Path) -> std::io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for process in postgres_processes()? {
        match std::fs::read_link(format!("/proc/{}/cwd", process.pid)) {
            Ok(place) if place == directory => found.push(process.pid),
            Ok(_) => {}
            // Gone meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Streams that no member should have, or that a member has twice (protocol.md rule 3).
fn strange_senders(senders: &[Sender]) -> Vec<String> {
    let streaming = senders.iter().filter(|sender| sender.state == "streaming");
    let (mut known, mut strange) = (BTreeSet::new(), BTreeSet::new());
    for sender in streaming {
        let is_member = machine::protocol::MemberId::parse(&sender.user).is_some();
        // The tools of a member put their own name before it.
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
    fn streams_that_are_no_members_own_are_warned_of() {
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
