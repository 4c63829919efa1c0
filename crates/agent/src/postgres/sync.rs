//! The synchronous rule of a running primary, and its opening to applications.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use machine::protocol::Lsn;
use machine::quorum::SyncRule;
use tokio_postgres::types::Type;

use super::reload::take_up;
use super::server::file;
use super::{Config, PostgresError, Server, Sql, SqlError, sql_failed};
use crate::volume::Volume;

/// Longest time for all WAL senders to prove that they use the rule: one whose standby is silent ends before
/// (`wal_sender_timeout`).
const PROOF_TIMEOUT: Duration = Duration::from_secs(8);
/// After this time a WAL sender whose standby does not report, and whose standby the rule does not name, is ended.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the WAL senders are looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(15);
/// How often the standbys are made to report.
const PROVOKE_AGAIN: Duration = Duration::from_millis(150);
/// Longest time for a checkpoint.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(120);
/// Two reports since: the first may have been under way, and processed, before its WAL sender read the rule.
const REPORTS: u32 = 2;

/// Sets the rule of `config` (a primary's, rendered with the rule), ends whoever replicates under a member's name and is none, and
/// proves that every WAL sender uses the rule (protocol.md rules 3 and 11): a fresh session sees it, and each WAL sender is newer
/// than that or has processed two reports since. Unless it is known that commits wait already (`waits`), a checkpoint makes sure that they begin to, if they are to. Returns
/// the end of the WAL then: what was acknowledged by an older rule is before it. After an error some may use the rule and some
/// not.
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

/// Lets applications connect: takes up `config` (a primary's, rendered open), and proves it by a fresh session.
pub async fn open(volume: &Volume, server: &Server, sql: &mut Sql, config: &Config) -> Result<(), PostgresError> {
    take_up(volume, server, sql, config).await
}

/// End of the primary's WAL.
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

/// A WAL sender: process and when it began.
type Sender = (i32, String);

/// What one look tells of a WAL sender.
struct Look {
    sender: Sender,
    name: String,
    /// Time of its standby's last report.
    report: Option<String>,
}

/// A WAL sender that is yet to prove itself.
struct Waiting {
    name: String,
    report: Option<String>,
    /// Reports seen since.
    reports: u32,
}

/// Ends the WAL senders that PostgreSQL counts as a member's and that are of another role, and waits until they are gone.
async fn end_impostors(server: &Server, sql: &mut Sql) -> Result<(), PostgresError> {
    let begun = Instant::now();
    loop {
        let status = sql.status().await.map_err(sql_failed("look at the WAL senders"))?;
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
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn prove(sql: &mut Sql, rule: &SyncRule) -> Result<(), PostgresError> {
    // Those that are not among them began later, or read the rule before they process their first report.
    let mut waiting: BTreeMap<Sender, Waiting> = look(sql)
        .await?
        .into_iter()
        .map(|Look { sender, name, report }| {
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
        if begun.elapsed() > PATIENCE && !ended {
            ended = true;
            end_strangers(sql, rule, &waiting).await?;
        }
        if provoked.is_none_or(|at| at.elapsed() > PROVOKE_AGAIN) {
            let written = sql.provoke_reports().await;
            written.map_err(sql_failed("make the standbys report"))?;
            provoked = Some(Instant::now());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        if count_reports(&mut waiting, &look(sql).await?) {
            provoked = None;
        }
    }
    Ok(())
}

/// Counts new reports, and drops those that have proved themselves or are gone; `true` if there was a new report.
fn count_reports(waiting: &mut BTreeMap<Sender, Waiting>, looks: &[Look]) -> bool {
    let mut news = false;
    waiting.retain(|sender, known| {
        let Some(look) = looks.iter().find(|look| look.sender == *sender) else {
            return false;
        };
        if look.report != known.report {
            known.report.clone_from(&look.report);
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

/// The WAL senders that process reports.
async fn look(sql: &mut Sql) -> Result<Vec<Look>, PostgresError> {
    const QUERY: &str = "SELECT pid, backend_start::text, application_name, reply_time::text FROM pg_stat_replication
        WHERE state IN ('catchup', 'streaming', 'stopping')";
    let rows = sql.run(async |client| client.query_typed(QUERY, &[]).await).await;
    let rows = rows.map_err(sql_failed("look at the WAL senders"))?;
    let read = || {
        rows.iter()
            .map(|row| {
                Ok(Look {
                    sender: (row.try_get(0)?, row.try_get(1)?),
                    name: row.try_get(2)?,
                    report: row.try_get(3)?,
                })
            })
            .collect::<Result<Vec<_>, tokio_postgres::Error>>()
    };
    read().map_err(|error| sql_failed("look at the WAL senders")(SqlError::Broken(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(pid: i32, report: &str) -> Look {
        Look {
            sender: (pid, "start".to_owned()),
            name: "cdb_1".to_owned(),
            report: Some(report.to_owned()),
        }
    }

    fn waiting(pids: &[i32]) -> BTreeMap<Sender, Waiting> {
        let known = |pid: &i32| {
            let Look { sender, name, report } = look(*pid, "a");
            let reports = 0;
            (sender, Waiting { name, report, reports })
        };
        pids.iter().map(known).collect()
    }

    #[test]
    fn two_reports_are_a_proof_and_one_is_none() {
        let mut left = waiting(&[1]);
        assert!(!count_reports(&mut left, &[look(1, "a")]));
        assert!(count_reports(&mut left, &[look(1, "b")]));
        assert!(!count_reports(&mut left, &[look(1, "b")]), "the same report");
        assert_eq!(left.len(), 1);
        count_reports(&mut left, &[look(1, "c")]);
        assert!(left.is_empty());
    }

    #[test]
    fn those_that_are_gone_need_no_proof_and_new_ones_none_either() {
        let mut left = waiting(&[1, 2]);
        count_reports(&mut left, &[look(2, "a"), look(3, "a")]);
        assert_eq!(left.keys().map(|sender| sender.0).collect::<Vec<_>>(), [2]);
    }
}
