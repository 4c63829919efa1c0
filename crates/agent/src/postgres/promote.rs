//! Promoting a standby to a reserved timeline (protocol.md rules 13, 14).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use machine::protocol::{Fork, Lsn, MemberId, Timeline};
use tokio_postgres::types::Type;

use super::reload::{have_read, write};
use super::server::file;
use super::{
    Config, PostgresError, Server, Sql, SqlError, StartError, Status, StopMode, blocking, history, sql_failed,
};
use crate::volume::Volume;

/// A standby that has become the primary, closed to applications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promoted {
    /// Its timeline: the reserved one.
    pub timeline: Timeline,
    /// Where that begins: what may be in doubt is before it.
    pub at: Lsn,
    /// Ancestors of its timeline, oldest first.
    pub history: Vec<Fork>,
}

/// So long the replay is awaited before a promotion; then it is tried again.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(10);
/// From the request to the end of recovery: all WAL has been replayed before, and the new timeline's first record is written,
/// with some six flushes: on a disk that takes two seconds for each it ends, too.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(20);
/// How often it is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Sessions that do not end within this time are left: they can do no harm, since commits wait for the rule.
const SESSIONS_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time for the checkpoint after it, for which nobody waits.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(3_600);

/// Promotes the running standby to `timeline`. `config` is that of a primary with `rule`, closed to applications. In this
/// order: lets all WAL be replayed, at the price of sessions that hold it up; leaves recovery (see [`leave_recovery`]), and beside
/// that makes the slots of `members`, and drops all others'. A checkpoint follows in the background.
///
/// An error before the promotion is asked for leaves a standby with a primary's configuration, which has to be configured anew.
/// After that an error, or dropping this future, stops the server at once.
pub async fn promote(
    volume: &Volume,
    server: &Server,
    sql: &mut Sql,
    config: &Config,
    timeline: Timeline,
    members: &BTreeSet<MemberId>,
    allowed: impl Fn() -> bool,
) -> Result<Promoted, PostgresError> {
    let before = status(sql).await?;
    if !before.in_recovery || before.position.timeline >= timeline {
        return Err(PostgresError::Unproven(format!(
            "no promotion to timeline {}: the server {} on timeline {}",
            timeline.0,
            if before.in_recovery { "recovers" } else { "writes" },
            before.position.timeline.0
        )));
    }
    if !before.replayed_all {
        await_replay(sql, members).await?;
    }
    let mut beside = sql.another();
    // Some flushes each: as long as all that has to come before the promotion.
    let slots = keep_slots(&mut beside, members);
    let promotion = leave_recovery(volume, server, sql, config, timeline, members, allowed);
    let (slots, promoted) = tokio::join!(slots, promotion);
    let (promoted, mut stop) = promoted?;
    slots?;
    stop.0 = None;
    checkpoint_later(sql);
    Ok(promoted)
}

/// Notes the promotion on the volume (meanwhile writes `config`, and lays stubs so that PostgreSQL picks `timeline`); has `config`
/// read, and proves it; ends the sessions of applications; asks `allowed` for the last time; promotes; reads the timeline back. The
/// server stops if what comes with the answer is dropped.
async fn leave_recovery<'a>(
    volume: &Volume,
    server: &'a Server,
    sql: &mut Sql,
    config: &Config,
    timeline: Timeline,
    members: &BTreeSet<MemberId>,
    allowed: impl Fn() -> bool,
) -> Result<(Promoted, StopUnlessProven<'a>), PostgresError> {
    // Nobody reads the configuration before the note is on disk.
    let noting = volume.blocking(move |volume| volume.record_promoting(timeline));
    let wal = volume.pgdata().join("pg_wal");
    let reserving = blocking(move || history::reserve(&wal, timeline));
    let (noted, before, reserved) = tokio::join!(noting, write(volume, sql, config), reserving);
    noted?;
    reserved.map_err(file("reserve the timeline"))?;
    have_read(server, sql, config, &before?).await?;
    end_sessions(sql, members).await?;
    if !allowed() {
        return Err(StartError::CalledOff.into());
    }
    let stop = StopUnlessProven(Some(server));
    ask(sql).await?;
    let after = await_end_of_recovery(sql).await?;
    if after.position.timeline != timeline {
        return Err(PostgresError::Unproven(format!(
            "PostgreSQL was promoted to timeline {} instead of {}, and is stopped",
            after.position.timeline.0, timeline.0
        )));
    }
    let at = after.history.last().map_or(after.position.lsn, |fork| fork.end);
    let promoted = Promoted {
        timeline,
        at,
        history: after.history,
    };
    Ok((promoted, stop))
}

/// Stops a server that may write on a timeline that nobody has checked.
struct StopUnlessProven<'a>(Option<&'a Server>);

impl Drop for StopUnlessProven<'_> {
    fn drop(&mut self) {
        if let Some(server) = self.0
            && let Err(error) = server.stop(StopMode::Immediate)
        {
            tracing::error!("stop a server whose promotion is not proven: {error}");
        }
    }
}

/// Makes the slots of `members`, and drops those of others, whose streams it ends.
async fn keep_slots(sql: &mut Sql, members: &BTreeSet<MemberId>) -> Result<(), PostgresError> {
    let begun = Instant::now();
    while sql.drop_slots_except(members).await.map_err(sql_failed("drop slots"))? > 0 {
        if begun.elapsed() > SESSIONS_TIMEOUT {
            let words = "slots of members that do not follow yet are still in use";
            return Err(PostgresError::Unproven(words.to_owned()));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    let made = sql.ensure_slots(members).await;
    made.map_err(sql_failed("make the slots of the standbys"))
}

async fn status(sql: &mut Sql) -> Result<Status, PostgresError> {
    sql.status().await.map_err(sql_failed("ask PostgreSQL how it is"))
}

/// Ends the sessions that are there, but the agent's and the streams of `members`: no session that is older than the new
/// configuration runs statements then. Who comes later is refused by it, and is not waited for. A standby that streams already goes on
/// through the same connection, and is counted for commits once it has asked for the new timeline there.
async fn end_sessions(sql: &mut Sql, members: &BTreeSet<MemberId>) -> Result<(), PostgresError> {
    const END: &str =
        "SELECT coalesce(array_agg(pid || ' ' || backend_start) FILTER (WHERE pg_terminate_backend(pid)), '{}')
        FROM pg_stat_activity
        WHERE backend_type IN ('client backend', 'walsender') AND pid <> pg_backend_pid()
          AND NOT (usename = 'postgres' AND application_name = 'cdb_agent')
          AND NOT (backend_type = 'walsender' AND datid IS NULL AND usename = ANY ($1))";
    const LEFT: &str = "SELECT count(*) FROM pg_stat_activity WHERE pid || ' ' || backend_start = ANY ($1)";
    let failed = || sql_failed("end the sessions of applications");
    let unread = |error: tokio_postgres::Error| failed()(SqlError::Broken(error.to_string()));
    let members: Vec<&str> = members.iter().map(MemberId::as_str).collect();
    let row = sql.run(async |client| client.query_typed_one(END, &[(&members, Type::TEXT_ARRAY)]).await);
    let ending: Vec<String> = row.await.map_err(failed())?.try_get(0).map_err(unread)?;
    let begun = Instant::now();
    loop {
        let row = sql.run(async |client| client.query_typed_one(LEFT, &[(&ending, Type::TEXT_ARRAY)]).await);
        let left: i64 = row.await.map_err(failed())?.try_get(0).map_err(unread)?;
        if left == 0 {
            return Ok(());
        }
        if begun.elapsed() > SESSIONS_TIMEOUT {
            tracing::warn!(left, "some sessions outlive the promotion");
            return Ok(());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Waits until all WAL is replayed, and ends the sessions that may hold it up; a replay that somebody has paused goes on.
async fn await_replay(sql: &mut Sql, members: &BTreeSet<MemberId>) -> Result<(), PostgresError> {
    const RESUME: &str = "SELECT CASE WHEN pg_is_wal_replay_paused() THEN pg_wal_replay_resume() END";
    let resumed = sql.run(async |client| client.query_typed_one(RESUME, &[]).await).await;
    resumed.map_err(sql_failed("resume the replay"))?;
    let begun = Instant::now();
    loop {
        // Again and again: who reads, and connects anew, holds it up anew.
        end_sessions(sql, members).await?;
        let now = status(sql).await?;
        if now.replayed_all {
            return Ok(());
        }
        if begun.elapsed() > REPLAY_TIMEOUT {
            return Err(PostgresError::Unproven(format!(
                "no promotion yet: WAL is replayed up to {} of {}",
                now.replayed.unwrap_or_default(),
                now.position.lsn
            )));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn ask(sql: &mut Sql) -> Result<(), PostgresError> {
    const PROMOTE: &str = "SELECT pg_promote(false)";
    let asked = sql.run(async |client| client.query_typed_one(PROMOTE, &[]).await).await;
    asked.map(|_| ()).map_err(sql_failed("promote"))
}

async fn await_end_of_recovery(sql: &mut Sql) -> Result<Status, PostgresError> {
    let begun = Instant::now();
    loop {
        match ended_recovery(sql).await {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            // It may change its mode between two parts of the question, and a slow disk keeps it from answering at once.
            Err(SqlError::Refused(words)) => tracing::debug!("asked during the promotion: {words}"),
            Err(SqlError::Silent(time)) => tracing::debug!("no answer during the promotion for {time} ms"),
            Err(error) => return Err(sql_failed("await the end of recovery")(error)),
        }
        if begun.elapsed() > PROMOTION_TIMEOUT {
            return Err(PostgresError::Unproven(format!(
                "PostgreSQL still recovers {} s after its promotion, and is stopped",
                PROMOTION_TIMEOUT.as_secs()
            )));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// How the server is, once it has ended its recovery. Until then that alone is asked: all that it knows takes as long as several looks.
async fn ended_recovery(sql: &mut Sql) -> Result<Option<Status>, SqlError> {
    match sql.recovers().await? {
        true => Ok(None),
        false => sql.status().await.map(Some),
    }
}

/// A rewind to this server needs its control file to name the new timeline.
fn checkpoint_later(sql: &Sql) {
    let sql = sql.another();
    tokio::spawn(async move {
        if let Err(error) = sql.checkpoint(CHECKPOINT_TIMEOUT).await {
            tracing::warn!("make a checkpoint after the promotion: {error}");
        }
    });
}
