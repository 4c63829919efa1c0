//! Changing the synchronous rule of a running primary, and opening it to applications.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use machine::protocol::Lsn;
use machine::quorum::SyncRule;
use tokio_postgres::types::Type;

use super::reload::take_up;
use super::server::file;
use super::{Config, PostgresError, Server, Sql, SqlError, sql_failed};
use crate::volume::Volume;

/// Time limit of the proof that all WAL senders use the rule. A sender whose standby is silent ends earlier
/// (`wal_sender_timeout`).
const PROOF_TIMEOUT: Duration = Duration::from_secs(8);
/// After this time a WAL sender is ended if its standby does not report and is not named in the rule.
const REPORT_LIMIT: Duration = Duration::from_secs(1);
/// The pause between two readings of the WAL senders.
const READ_AGAIN: Duration = Duration::from_millis(15);
/// The pause between two writes that make the standbys report.
const PROVOKE_AGAIN: Duration = Duration::from_millis(150);
/// Longest time for a checkpoint.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(120);
/// The reports of its standby that a WAL sender must process to prove itself. The first may have been under way, and
/// processed, before the sender read the rule.
const REPORTS: u32 = 2;

/// Sets the synchronous rule of `config` (a primary's, rendered with the rule), and proves that every WAL sender uses
/// it (protocol.md rules 3 and 11). Returns the end of the WAL at that time: commits that were acknowledged under an
/// older rule lie before it.
///
/// 1. PostgreSQL reads the configuration, which a new session proves.
/// 2. If commits are to wait and it is not known that they do already (`waits`), a checkpoint makes sure that they
///    begin to.
/// 3. WAL senders under a member's name that are of another role are ended.
/// 4. Each WAL sender is either newer than the new session, or has processed two reports since.
///
/// # Errors
/// Fails with [`PostgresError::Unproven`] if the proof does not come in time, and with other variants if PostgreSQL
/// does not answer or a file cannot be written. Some WAL senders may then use the rule and others not.
pub async fn set_sync(
    volume: &Volume,
    server: &Server,
    sql: &mut Sql,
    config: &Config,
    rule: &SyncRule,
    waits: bool,
) -> Result<Lsn, PostgresError> {
    take_up(volume, server, sql, config).await?;
    if rule.is_synchronous() && !waits {
        let made = sql.checkpoint(CHECKPOINT_TIMEOUT).await;
        made.map_err(sql_failed("make a checkpoint"))?;
    }
    end_impostors(server, sql).await?;
    prove(sql, rule).await?;
    end_of_wal(sql).await
}

/// Lets applications connect: has PostgreSQL read `config` (a primary's, rendered open), and proves it by a new
/// session.
///
/// # Errors
/// As [`set_sync`], but no WAL sender needs to prove anything.
pub async fn open(volume: &Volume, server: &Server, sql: &mut Sql, config: &Config) -> Result<(), PostgresError> {
    take_up(volume, server, sql, config).await
}

/// End of the primary's WAL.
///
/// # Errors
/// Fails if PostgreSQL does not answer, or the answer is not understood.
pub(super) async fn end_of_wal(sql: &mut Sql) -> Result<Lsn, PostgresError> {
    const QUERY: &str = "SELECT pg_current_wal_insert_lsn()::text";
    let row = sql.run(async |client| client.query_typed_one(QUERY, &[]).await).await;
    let row = row.map_err(sql_failed("ask for the end of the WAL"))?;
    let text: &str = row
        .try_get(0)
        .map_err(|error| sql_failed("read the end of the WAL")(SqlError::Broken(error.to_string())))?;
    text.parse()
        .map_err(|error| PostgresError::Unproven(format!("the end of the WAL: {error}")))
}

/// A WAL sender: its process id, and when it began.
type Sender = (i32, String);

/// A WAL sender, as read at one time.
struct SeenSender {
    sender: Sender,
    name: String,
    /// Time of its standby's last report.
    report: Option<String>,
}

/// A WAL sender that has not proved itself yet.
struct Waiting {
    name: String,
    report: Option<String>,
    /// Reports since the proof began.
    reports: u32,
}

/// Ends the WAL senders that bear a member's name and are of another role, and waits until they are gone.
async fn end_impostors(server: &Server, sql: &mut Sql) -> Result<(), PostgresError> {
    let begun = Instant::now();
    loop {
        let status = sql.status().await.map_err(sql_failed("read the WAL senders"))?;
        let impostors = machine::instance::impostors(&status.wal_senders());
        if impostors.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > PROOF_TIMEOUT {
            let words = "roles that are no members replicate under members' names, again and again";
            return Err(PostgresError::Unproven(words.to_owned()));
        }
        let ended = server.end_senders_if(|pid, _| impostors.iter().any(|impostor| impostor.pid == pid));
        ended.map_err(file("end WAL senders"))?;
        tokio::time::sleep(READ_AGAIN).await;
    }
}

async fn prove(sql: &mut Sql, rule: &SyncRule) -> Result<(), PostgresError> {
    // WAL senders that are not in this list began later, or read the rule before they process their first report.
    let mut waiting: BTreeMap<Sender, Waiting> = read_senders(sql)
        .await?
        .into_iter()
        .map(|SeenSender { sender, name, report }| {
            let reports = 0;
            (sender, Waiting { name, report, reports })
        })
        .collect();
    let begun = Instant::now();
    let mut provoked: Option<Instant> = None;
    let mut ended = false;
    while !waiting.is_empty() {
        if begun.elapsed() > PROOF_TIMEOUT {
            let names: Vec<&str> = waiting.values().map(|sender| sender.name.as_str()).collect();
            return Err(PostgresError::Unproven(format!(
                "no proof within {} s that the WAL senders of these use the rule: {}",
                PROOF_TIMEOUT.as_secs(),
                names.join(", ")
            )));
        }
        if begun.elapsed() > REPORT_LIMIT && !ended {
            ended = true;
            end_strangers(sql, rule, &waiting).await?;
        }
        if provoked.is_none_or(|at| at.elapsed() > PROVOKE_AGAIN) {
            let written = sql.provoke_reports().await;
            written.map_err(sql_failed("make the standbys report"))?;
            provoked = Some(Instant::now());
        }
        tokio::time::sleep(READ_AGAIN).await;
        if count_reports(&mut waiting, &read_senders(sql).await?) {
            provoked = None;
        }
    }
    Ok(())
}

/// Counts new reports, and drops the WAL senders that have proved themselves or are gone. Returns `true` if there was a
/// new report.
fn count_reports(waiting: &mut BTreeMap<Sender, Waiting>, seen: &[SeenSender]) -> bool {
    let mut news = false;
    waiting.retain(|sender, known| {
        let Some(found) = seen.iter().find(|found| found.sender == *sender) else {
            return false;
        };
        if found.report != known.report {
            known.report.clone_from(&found.report);
            known.reports += 1;
            news = true;
        }
        known.reports < REPORTS
    });
    news
}

async fn end_strangers(
    sql: &mut Sql,
    rule: &SyncRule,
    waiting: &BTreeMap<Sender, Waiting>,
) -> Result<(), PostgresError> {
    const END: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication
        WHERE pid = $1 AND backend_start::text = $2";
    for ((pid, start), sender) in waiting {
        if rule.names.iter().any(|name| name.as_str() == sender.name) {
            continue;
        }
        tracing::warn!(
            pid,
            name = sender.name,
            "ending a WAL sender whose standby does not report"
        );
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(pid, Type::INT4), (start, Type::TEXT)];
        let ended = sql.run(async |client| client.query_typed(END, &parameters).await).await;
        ended.map_err(sql_failed("end a WAL sender"))?;
    }
    Ok(())
}

/// Reads the WAL senders that process reports.
async fn read_senders(sql: &mut Sql) -> Result<Vec<SeenSender>, PostgresError> {
    const QUERY: &str = "SELECT pid, backend_start::text, application_name, reply_time::text FROM pg_stat_replication
        WHERE state IN ('catchup', 'streaming', 'stopping')";
    let rows = sql.run(async |client| client.query_typed(QUERY, &[]).await).await;
    let rows = rows.map_err(sql_failed("read the WAL senders"))?;
    let read = || {
        rows.iter()
            .map(|row| {
                Ok(SeenSender {
                    sender: (row.try_get(0)?, row.try_get(1)?),
                    name: row.try_get(2)?,
                    report: row.try_get(3)?,
                })
            })
            .collect::<Result<Vec<_>, tokio_postgres::Error>>()
    };
    read().map_err(|error| sql_failed("read the WAL senders")(SqlError::Broken(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_senders(pid: i32, report: &str) -> SeenSender {
        SeenSender {
            sender: (pid, "start".to_owned()),
            name: "cdb_1".to_owned(),
            report: Some(report.to_owned()),
        }
    }

    fn waiting(pids: &[i32]) -> BTreeMap<Sender, Waiting> {
        let known = |pid: &i32| {
            let SeenSender { sender, name, report } = read_senders(*pid, "a");
            let reports = 0;
            (sender, Waiting { name, report, reports })
        };
        pids.iter().map(known).collect()
    }

    #[test]
    fn a_proof_takes_two_reports() {
        let mut left = waiting(&[1]);
        assert!(!count_reports(&mut left, &[read_senders(1, "a")]));
        assert!(count_reports(&mut left, &[read_senders(1, "b")]));
        assert!(!count_reports(&mut left, &[read_senders(1, "b")]), "the same report");
        assert_eq!(left.len(), 1);
        count_reports(&mut left, &[read_senders(1, "c")]);
        assert!(left.is_empty());
    }

    #[test]
    fn neither_ended_nor_new_senders_need_a_proof() {
        let mut left = waiting(&[1, 2]);
        count_reports(&mut left, &[read_senders(2, "a"), read_senders(3, "a")]);
        assert_eq!(left.keys().map(|sender| sender.0).collect::<Vec<_>>(), [2]);
    }
}
