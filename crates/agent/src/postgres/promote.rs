//! Promoting a standby to a reserved timeline (protocol.md rules 13, 14).

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use machine::instance::steps::{OutOfOrder, PROMOTION, PromotionStep, Walk};
use machine::protocol::{Fork, Lsn, MemberId, Timeline};
use tokio::sync::Mutex;
use tokio_postgres::types::Type;

use super::reload::{Loaded, have_read, write};
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

/// Promotes the running standby to `timeline`, by the steps of [`PROMOTION`]. `config` is that of a primary with the
/// synchronous rule, closed to applications. A checkpoint follows in the background.
///
/// # Errors
/// Fails with the first step that fails. What runs beside that step ends first, and no other step begins. An error
/// before the promotion is asked for leaves a standby with a primary's configuration, which has to be configured anew.
/// After that an error, or dropping this future, stops the server at once.
///
/// # Errors
/// Fails if the server is no standby, or a step before the promotion fails or takes too long. Fails with
/// [`PostgresError::Unproven`] if PostgreSQL does not end its recovery on `timeline`.
pub async fn promote(
    volume: &Volume,
    server: &Server,
    sql: &mut Sql,
    config: &Config,
    timeline: Timeline,
    members: &BTreeSet<MemberId>,
    allowed: impl Fn() -> bool,
) -> Result<Promoted, PostgresError> {
    let mut promotion = Promotion {
        volume,
        server,
        beside: Mutex::new(sql.another()),
        sql: Mutex::new(sql),
        config,
        timeline,
        members,
        allowed,
        found: OnceLock::new(),
        loaded: OnceLock::new(),
        after: OnceLock::new(),
        stop: StopUnlessProven {
            server,
            is_armed: AtomicBool::new(false),
        },
    };
    promotion.walk().await?;
    let after = promotion.after.take().ok_or_else(too_early)?;
    *promotion.stop.is_armed.get_mut() = false;
    drop(promotion);
    checkpoint_later(sql);
    Ok(Promoted {
        timeline,
        at: after.history.last().map_or(after.position.lsn, |fork| fork.end),
        history: after.history,
    })
}

/// A promotion that is under way.
struct Promotion<'a, F> {
    volume: &'a Volume,
    server: &'a Server,
    sql: Mutex<&'a mut Sql>,
    /// For the step that runs beside the others.
    beside: Mutex<Sql>,
    config: &'a Config,
    timeline: Timeline,
    members: &'a BTreeSet<MemberId>,
    allowed: F,
    /// The server, before anything was done.
    found: OnceLock<Status>,
    /// The settings that the server used before it was told to read the files.
    loaded: OnceLock<Loaded>,
    /// The server, after it has left recovery.
    after: OnceLock<Status>,
    stop: StopUnlessProven<'a>,
}

impl<F: Fn() -> bool> Promotion<'_, F> {
    /// Carries out the steps, each as soon as those before it have ended.
    async fn walk(&self) -> Result<(), PostgresError> {
        let mut walk = Walk::new(PROMOTION);
        let mut running = FuturesUnordered::new();
        let mut failed = None;
        loop {
            while failed.is_none()
                && let Some(step) = walk.begin_next()
            {
                running.push(async move { (step, self.carry_out(step).await) });
            }
            let Some((step, result)) = running.next().await else {
                return failed.map_or(Ok(()), Err);
            };
            let ended = result.and_then(|()| walk.end(step).map_err(|error| unproven(&error)));
            failed = failed.or(ended.err());
        }
    }

    async fn carry_out(&self, step: PromotionStep) -> Result<(), PostgresError> {
        let timeline = self.timeline;
        match step {
            PromotionStep::CheckStandby => self.check_standby().await,
            PromotionStep::AwaitReplay if self.found.get().ok_or_else(too_early)?.replayed_all => Ok(()),
            PromotionStep::AwaitReplay => await_replay(*self.sql.lock().await, self.members).await,
            PromotionStep::KeepSlots => keep_slots(&mut *self.beside.lock().await, self.members).await,
            PromotionStep::Note => {
                let noting = self.volume.blocking(move |volume| volume.record_promoting(timeline));
                noting.await.map(|_| ()).map_err(PostgresError::from)
            }
            PromotionStep::WriteConfiguration => {
                let loaded = write(self.volume, *self.sql.lock().await, self.config).await?;
                self.loaded.set(loaded).map_err(|_| too_early())
            }
            PromotionStep::ReserveTimeline => {
                let wal = self.volume.pgdata().join("pg_wal");
                let reserved = blocking(move || history::reserve(&wal, timeline)).await;
                reserved.map_err(file("reserve the timeline"))
            }
            PromotionStep::ProveConfiguration => {
                let loaded = self.loaded.get().ok_or_else(too_early)?;
                have_read(self.server, *self.sql.lock().await, self.config, loaded).await
            }
            PromotionStep::EndSessions => end_sessions(*self.sql.lock().await, self.members).await,
            PromotionStep::CheckLease => match (self.allowed)() {
                true => Ok(()),
                false => Err(StartError::CalledOff.into()),
            },
            PromotionStep::Promote => {
                let mut sql = self.sql.lock().await;
                self.stop.is_armed.store(true, Ordering::SeqCst);
                ask(*sql).await?;
                let after = await_end_of_recovery(*sql).await?;
                self.after.set(after).map_err(|_| too_early())
            }
            PromotionStep::CheckTimeline => self.check_timeline(),
        }
    }

    async fn check_standby(&self) -> Result<(), PostgresError> {
        let found = status(*self.sql.lock().await).await?;
        if !found.in_recovery || found.position.timeline >= self.timeline {
            return Err(PostgresError::Unproven(format!(
                "no promotion to timeline {}: the server {} on timeline {}",
                self.timeline.0,
                if found.in_recovery { "recovers" } else { "writes" },
                found.position.timeline.0
            )));
        }
        self.found.set(found).map_err(|_| too_early())
    }

    fn check_timeline(&self) -> Result<(), PostgresError> {
        let promoted = self.after.get().ok_or_else(too_early)?.position.timeline;
        if promoted != self.timeline {
            return Err(PostgresError::Unproven(format!(
                "PostgreSQL was promoted to timeline {} instead of {}, and is stopped",
                promoted.0, self.timeline.0
            )));
        }
        Ok(())
    }
}

fn too_early() -> PostgresError {
    PostgresError::Unproven("a step of the promotion began before its time".to_owned())
}

fn unproven(error: &OutOfOrder<PromotionStep>) -> PostgresError {
    PostgresError::Unproven(error.to_string())
}

/// Stops a server that may write on a timeline that nobody has checked.
struct StopUnlessProven<'a> {
    server: &'a Server,
    /// The promotion may have been asked for.
    is_armed: AtomicBool,
}

impl Drop for StopUnlessProven<'_> {
    fn drop(&mut self) {
        if self.is_armed.load(Ordering::SeqCst)
            && let Err(error) = self.server.stop(StopMode::Immediate)
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
