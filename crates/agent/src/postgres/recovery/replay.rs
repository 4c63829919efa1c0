//! Replaying the WAL of a plan, and opening the database where the target is.

use std::cmp::max;
use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use machine::protocol::Lsn;
use machine::recovery::{Plan, Replayed, Target, reached};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::checks;
use super::fetch::{self, Order};
use super::{NO_LIMIT, PROGRESS, Progress, RecoveryError, RecoveryRequest};
use crate::postgres::members::{SILENTLY, silently};
use crate::postgres::private::{Launch, PrivateServer};
use crate::postgres::quote::{identifier, literal};
use crate::postgres::{MEMBERS_ROLE, PostgresError, Sql, SqlError, StartError, sql_failed};
use crate::tools::Tools;
use crate::volume::{EnforcedSettings, Volume};

/// How often the server is asked how far it is.
const LOOK: Duration = Duration::from_millis(100);
/// How often the position is logged.
const LOG: Duration = Duration::from_secs(10);

/// Where recovery is. The values of the last replay stay after its end.
const QUERY: &str = "SELECT pg_is_in_recovery(),
    CASE WHEN pg_is_in_recovery() THEN pg_get_wal_replay_pause_state() = 'paused' ELSE false END,
    pg_last_wal_replay_lsn()::text,
    (extract(epoch FROM pg_last_xact_replay_timestamp()) * 1000000)::bigint";

/// PostgreSQL's defaults of the settings that hot standby compares with the primary's.
const LEAST: EnforcedSettings = EnforcedSettings {
    max_connections: 100,
    max_worker_processes: 8,
    max_wal_senders: 10,
    max_prepared_transactions: 0,
    max_locks_per_transaction: 64,
};

/// Replays the WAL up to the target, opens the database there, and stops it cleanly. Returns where replay has stopped.
pub(super) async fn replay(
    tools: &Tools,
    volume: &Volume,
    system_user: &str,
    request: &RecoveryRequest,
    plan: &Plan,
    progress: &(impl Fn(Progress) + Sync),
) -> Result<Replayed, RecoveryError> {
    let mut settings = at_least(LEAST, volume.staged_control_data(tools).await?.enforced);
    loop {
        let launch = launch(volume, request, plan, settings);
        let server = PrivateServer::start(tools, volume, system_user, launch).await?;
        let mut replay = Replay {
            sql: server.sql(tools.major()),
            server,
            volume,
            request,
            plan,
        };
        let stopped = replay.until_stopped(progress).await?;
        // PostgreSQL pauses, too, where the primary has raised one of these settings. The control file then says the new values.
        let needed = at_least(settings, volume.staged_control_data(tools).await?.enforced);
        if stopped.paused && needed != settings {
            settings = needed;
            replay.server.stop(true, NO_LIMIT).await?;
            continue;
        }
        reached(&request.target, request.exclusive, stopped, plan).map_err(RecoveryError::NotReached)?;
        replay.open(stopped.paused).await?;
        progress(Progress {
            what: "check",
            bytes: 0,
            total: 0,
        });
        checks::check(tools, &replay.server, &replay.sql, request).await?;
        replay.adopt().await?;
        replay.server.stop(true, NO_LIMIT).await?;
        return Ok(stopped);
    }
}

/// For each setting the higher value.
fn at_least(one: EnforcedSettings, other: EnforcedSettings) -> EnforcedSettings {
    EnforcedSettings {
        max_connections: max(one.max_connections, other.max_connections),
        max_worker_processes: max(one.max_worker_processes, other.max_worker_processes),
        max_wal_senders: max(one.max_wal_senders, other.max_wal_senders),
        max_prepared_transactions: max(one.max_prepared_transactions, other.max_prepared_transactions),
        max_locks_per_transaction: max(one.max_locks_per_transaction, other.max_locks_per_transaction),
    }
}

/// The settings of a server that recovers, and the environment of `restore_command`.
fn launch(volume: &Volume, request: &RecoveryRequest, plan: &Plan, enforced: EnforcedSettings) -> Launch {
    let fixed = [
        ("archive_mode", "off"),
        ("hot_standby", "on"),
        ("log_timezone", "UTC"),
        ("primary_conninfo", ""),
        ("primary_slot_name", ""),
        ("recovery_target_action", "pause"),
        // PostgreSQL would ask for what lies behind the archive before it has replayed what it has.
        ("recovery_prefetch", "off"),
        ("ssl", "off"),
        ("synchronous_standby_names", ""),
    ];
    let mut settings: Vec<(&'static str, String)> = fixed.map(|(name, value)| (name, value.to_owned())).to_vec();
    let command = Order::command(&request.program, &volume.staging());
    let inclusive = if request.exclusive { "off" } else { "on" };
    settings.extend([
        ("max_connections", enforced.max_connections.to_string()),
        ("max_worker_processes", enforced.max_worker_processes.to_string()),
        ("max_wal_senders", enforced.max_wal_senders.to_string()),
        (
            "max_prepared_transactions",
            enforced.max_prepared_transactions.to_string(),
        ),
        (
            "max_locks_per_transaction",
            enforced.max_locks_per_transaction.to_string(),
        ),
        ("recovery_target_timeline", plan.timeline.0.to_string()),
        ("recovery_target_inclusive", inclusive.to_owned()),
        ("restore_command", command),
    ]);
    settings.extend(target(&request.target));
    // The workload's own identity, if there are no Secrets.
    let is_cloud = |name: &OsString| {
        let name = name.to_string_lossy();
        ["AWS_", "AZURE_", "GOOGLE_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    Launch {
        settings,
        environment: std::env::vars_os().filter(|(name, _)| is_cloud(name)).collect(),
    }
}

/// The setting of a target.
fn target(target: &Target) -> Option<(&'static str, String)> {
    match target {
        Target::Latest => None,
        Target::Immediate => Some(("recovery_target", "immediate".to_owned())),
        Target::Time(time) => Some((
            "recovery_target_time",
            time.format("%Y-%m-%d %H:%M:%S%.6f+00").to_string(),
        )),
        Target::Lsn(lsn) => Some(("recovery_target_lsn", lsn.to_string())),
        Target::Xid(xid) => Some(("recovery_target_xid", xid.to_string())),
        Target::Name(name) => Some(("recovery_target_name", name.clone())),
    }
}

/// A server that recovers.
struct Replay<'a> {
    server: PrivateServer,
    sql: Sql,
    volume: &'a Volume,
    request: &'a RecoveryRequest,
    plan: &'a Plan,
}

impl Replay<'_> {
    /// Waits until recovery is paused or has ended, however long that takes.
    async fn until_stopped(&mut self, progress: &(impl Fn(Progress) + Sync)) -> Result<Replayed, RecoveryError> {
        let (mut told, mut logged) = (None::<Instant>, Instant::now());
        let mut last = None;
        loop {
            let looked = look(&mut self.sql).await;
            match &looked {
                Ok((recovers, replayed)) if replayed.paused || !recovers => return Ok(*replayed),
                Ok((_, replayed)) => last = Some(*replayed),
                // Not consistent yet, or busy.
                Err(_) => {}
            }
            if logged.elapsed() >= LOG {
                logged = Instant::now();
                match (&looked, last) {
                    (Ok(_), Some(last)) => {
                        tracing::info!("replay is at {}, the archive ends at {}", last.lsn, self.plan.end.lsn)
                    }
                    (Err(error), _) => tracing::info!("the server that recovers cannot be asked yet: {error}"),
                    (Ok(_), None) => {}
                }
            }
            if let Some(last) = last
                && told.is_none_or(|told| told.elapsed() >= PROGRESS)
            {
                told = Some(Instant::now());
                let start = self.plan.backup.start;
                progress(Progress {
                    what: "replay",
                    bytes: last.lsn.since(start).0,
                    total: self.plan.end.lsn.since(start).0,
                });
            }
            if let Ok(status) = tokio::time::timeout(LOOK, self.server.ended()).await {
                return Err(self.explain(status, last));
            }
        }
    }

    /// Why the server has ended by itself.
    fn explain(&self, status: ExitStatus, last: Option<Replayed>) -> RecoveryError {
        let staging = self.volume.staging();
        if let Some(fault) = fetch::fault(&staging) {
            return RecoveryError::Wal(fault);
        }
        let stopped = last
            .filter(|_| fetch::is_at_end(&staging))
            .map(|last| Replayed { paused: false, ..last });
        let judged = stopped.map(|stopped| reached(&self.request.target, self.request.exclusive, stopped, self.plan));
        match judged {
            Some(Err(words)) => RecoveryError::NotReached(words),
            Some(Ok(())) | None => PostgresError::Start(StartError::Ended(status)).into(),
        }
    }

    /// Ends recovery, and waits until the database accepts writes.
    async fn open(&mut self, paused: bool) -> Result<(), RecoveryError> {
        if paused {
            let resume = async |client: &Client| client.batch_execute("SELECT pg_wal_replay_resume()").await;
            self.sql
                .run(resume)
                .await
                .map_err(sql_failed("end recovery at the target"))?;
        }
        loop {
            if let Ok((false, _)) = look(&mut self.sql).await {
                return Ok(());
            }
            if let Ok(status) = tokio::time::timeout(LOOK, self.server.ended()).await {
                return Err(PostgresError::Start(StartError::Ended(status)).into());
            }
        }
    }

    /// Makes the database the new cluster's: its owner's password, the role of its members, and no slots of the source's members.
    async fn adopt(&mut self) -> Result<(), RecoveryError> {
        const EXISTS: &str = "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)";
        const SLOTS: &str = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots";
        let (owner, verifier) = (identifier(&self.request.owner), literal(self.request.verifier.as_str()));
        let name = self.request.owner.as_str();
        let adopt = async |client: &Client| {
            let exists = async |role: &str| {
                let row = client.query_typed_one(EXISTS, &[(&role, Type::TEXT)]).await?;
                row.try_get::<_, bool>(0)
            };
            let change = if exists(name).await? { "ALTER" } else { "CREATE" };
            let statement = format!("{SILENTLY}; {change} ROLE {owner} LOGIN PASSWORD {verifier}; COMMIT");
            silently(client, &statement).await?;
            if !exists(MEMBERS_ROLE).await? {
                let make = format!("CREATE ROLE {} NOLOGIN", identifier(MEMBERS_ROLE));
                client.batch_execute(&make).await?;
            }
            client.batch_execute(SLOTS).await
        };
        Ok(self
            .sql
            .run(adopt)
            .await
            .map_err(sql_failed("set the owner's password"))?)
    }
}

/// Asks the server whether it recovers, and how far it is.
async fn look(sql: &mut Sql) -> Result<(bool, Replayed), SqlError> {
    let row = sql.run(async |client| client.query_typed_one(QUERY, &[]).await).await?;
    let broken = |error: tokio_postgres::Error| SqlError::Broken(error.to_string());
    let lsn: Option<String> = row.try_get(2).map_err(broken)?;
    let micros: Option<i64> = row.try_get(3).map_err(broken)?;
    let lsn = lsn.as_deref().unwrap_or("0/0").parse::<Lsn>();
    let replayed = Replayed {
        lsn: lsn.map_err(|error| SqlError::Broken(error.to_string()))?,
        last_commit_time: micros.and_then(DateTime::<Utc>::from_timestamp_micros),
        paused: row.try_get(1).map_err(broken)?,
    };
    Ok((row.try_get(0).map_err(broken)?, replayed))
}
