//! PostgreSQL's processes and answers.

use std::time::Duration;

use machine::instance::{Answer, Exit, Process};
use machine::timing::BootTime;
use tokio::sync::watch;

use super::World;
use crate::deadman::boot_time;
use crate::postgres::{Sql, SqlError, Status, processes_on};
use crate::volume::EnforcedSettings;

/// Distance between questions while PostgreSQL serves in its role.
const STEADY: Duration = Duration::from_secs(1);
/// Distance while something is expected to change: half of it is the average delay that this adds to a start.
const EXPECTING: Duration = Duration::from_millis(100);
/// So many questions in a row must go unanswered before PostgreSQL counts as not answering: a slow one is not a dead one.
const SILENT: u32 = 3;

/// Whether, and how often, PostgreSQL is to be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Poll {
    /// Process id of the server; `None`: there is none.
    pub server: Option<u32>,
    /// Its port.
    pub port: u16,
    /// It serves in its role.
    pub steady: bool,
}

/// Asks PostgreSQL how it is, for ever, and tells `tell` its answers with the process id that they are of and the time of the
/// question.
pub async fn poll(
    socket: std::path::PathBuf,
    mut wanted: watch::Receiver<Poll>,
    tell: impl Fn(u32, BootTime, Result<Box<Status>, SqlError>),
) {
    let mut connection: Option<(u16, Sql)> = None;
    loop {
        let Poll { server, port, steady } = wanted.borrow_and_update().clone();
        let Some(pid) = server else {
            connection = None;
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        };
        let fresh = connection.take().filter(|(of, _)| *of == port);
        let (_, sql) = connection.insert(fresh.unwrap_or_else(|| (port, Sql::new(socket.clone(), port))));
        let asked = boot_time();
        tell(pid, asked, sql.status().await.map(Box::new));
        let pause = if steady { STEADY } else { EXPECTING };
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
                let answer = self.answer(&status);
                self.status = Some(status);
                let postgres = &mut self.observed.postgres;
                postgres.streamed |= answer.streaming;
                postgres.answer = Some(answer);
                postgres
                    .configured
                    .as_ref()
                    .is_some_and(|configured| configured.settings != postgres.good_settings)
            }
            Err(SqlError::Silent(milliseconds)) => {
                self.silent += 1;
                if self.silent == SILENT {
                    tracing::warn!(milliseconds, "PostgreSQL does not answer");
                    self.observed.postgres.answer = None;
                }
                false
            }
            Err(error) => {
                if self.observed.postgres.answer.take().is_some() {
                    tracing::warn!("{error}");
                }
                false
            }
        }
    }

    pub(super) fn answer(&self, status: &Status) -> Answer {
        Answer {
            in_recovery: status.in_recovery,
            position: Some(status.position),
            streaming: status
                .receiver
                .as_ref()
                .is_some_and(|receiver| receiver.status == "streaming"),
            pending_restart: !status.pending_restart.is_empty(),
            lowers_limits: self.lowers_limits(&status.pending_restart),
        }
    }

    /// Some pending setting lowers a limit that the control file demands of standbys.
    fn lowers_limits(&self, pending: &[String]) -> bool {
        let Some(spec) = &self.spec else { return false };
        let EnforcedSettings {
            max_connections,
            max_worker_processes,
            max_wal_senders,
            max_prepared_transactions,
            max_locks_per_transaction,
        } = self.limits;
        // In force now, and PostgreSQL's default for when the user no longer sets it.
        let limits = [
            ("max_connections", max_connections, 100),
            ("max_worker_processes", max_worker_processes, 8),
            ("max_wal_senders", max_wal_senders, 10),
            ("max_prepared_transactions", max_prepared_transactions, 0),
            ("max_locks_per_transaction", max_locks_per_transaction, 64),
        ];
        limits
            .into_iter()
            .filter(|(name, _, _)| pending.iter().any(|pending| pending == name))
            .any(|(name, now, default)| {
                let wanted = spec
                    .postgres
                    .parameters
                    .get(name)
                    .map_or(Ok(default), |value| value.trim().parse::<u32>());
                wanted.is_ok_and(|wanted| wanted < now)
            })
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
        postgres.answer = None;
        postgres.streamed = false;
        self.status = None;
        self.silent = 0;
    }

    /// Counts PostgreSQL processes that have outlived their postmaster. A server that runs or is being started has
    /// processes of its own; those of an initdb or a clone work in the staging directory, not in `pgdata`.
    pub fn look_for_strays(&mut self, pgdata: &std::path::Path) {
        let explained = self.observed.tasks.start.running.is_some() || self.server.is_some();
        let count = if explained {
            0
        } else {
            processes_on(pgdata).map_or(1, |processes| processes.len())
        };
        self.observed.postgres.strays = u32::try_from(count).unwrap_or(u32::MAX);
    }
}
