//! Recovering a base backup to a point in time.
//!
//! What is to be recovered is decided by [`machine::recovery::plan`] before anything is written. PostgreSQL gets the files of the plan and
//! no others: its `restore_command` is [`fetch_wal`]. It pauses at the target, and is promoted only after [`machine::recovery::reached`]
//! has confirmed where it stopped.

mod checks;
mod fetch;
mod replay;
mod snapshot;
mod tidy;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::spec::RecoveryChecks;
use backup::Place;
use backup::base::{BackupInfo, BaseError, unpack};
use chrono::{DateTime, Utc};
use machine::protocol::{Position, Timeline};
use machine::recovery::Target;

use super::private::sync;
use super::server::{file, remove_if_there};
use super::{PostgresError, Verifier, blocking, history};
use crate::archive::{Planned, Source, SourceError};
use crate::tools::Tools;
use crate::volume::{ClusterState, Volume, VolumeError, make_directory, write_for_now};

use fetch::Order;
pub use fetch::fetch_wal;

/// Unpacking, verification and replay have no time limit: they take as long as there is data.
const NO_LIMIT: Duration = Duration::from_secs(366 * 24 * 3_600);
/// The least time between two calls of a progress function.
const PROGRESS: Duration = Duration::from_secs(1);

/// What is to be recovered.
#[derive(Clone, Debug)]
pub struct RecoveryRequest {
    /// The store.
    pub place: Place,
    /// Where the Secrets of the store are mounted, if there are any.
    pub access: PathBuf,
    /// The Secret with the private keys, which is mounted there, too; `None` if the spec names none.
    pub identity_secret: Option<String>,
    /// The source's folder in the store ([`ClusterFolder`]).
    pub folder: String,
    /// The name of a backup; `None` for the newest one before the target.
    pub backup: Option<String>,
    /// Where recovery stops.
    pub target: Target,
    /// It stops just before the target, not just after it.
    pub exclusive: bool,
    /// All files are read once more after they were unpacked.
    pub verify_files: bool,
    /// What is checked beside.
    pub checks: Option<RecoveryChecks>,
    /// Name of the application's database.
    pub database: String,
    /// The recovered data continues on a timeline after this one, and after that which it is recovered along.
    pub after: Timeline,
    /// The agent's program, for `restore_command`.
    pub program: PathBuf,
    /// Role that owns the application's database. It is made if the backup has none of this name.
    pub owner: String,
    /// The owner's new password, already hashed.
    pub verifier: Verifier,
}

/// What was recovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The backup.
    pub backup: String,
    /// The new timeline, on which the data continues.
    pub timeline: Timeline,
    /// Where replay stopped, on the source's timeline.
    pub position: Position,
    /// Time of the last commit that was replayed; `None` if none was.
    pub last_commit_time: Option<DateTime<Utc>>,
}

/// How far a recovery is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The step: `unpack`, `verify`, `replay`, `check` or `sync`.
    pub what: &'static str,
    /// Bytes that are done.
    pub bytes: u64,
    /// All bytes of the step; 0 if not known.
    pub total: u64,
}

/// Why a recovery failed.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The store has not all that is needed. Nothing was written.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The backup is of another major version of PostgreSQL. Nothing was written.
    #[error("backup {backup} was taken by PostgreSQL {found}, and the image has {wanted}: set majorVersion to {found}")]
    Version {
        /// The backup.
        backup: String,
        /// Its major version.
        found: u32,
        /// The major version of the programs.
        wanted: u16,
    },
    /// The base backup cannot be unpacked.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// WAL of the plan is damaged, or has vanished from the store.
    #[error("WAL is damaged: {0}")]
    Wal(String),
    /// Recovery did not stop at the target.
    #[error("{0}")]
    NotReached(String),
    /// A check of what was recovered has failed.
    #[error("{0}")]
    Unsound(String),
    /// PostgreSQL, a tool or the volume failed.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
}

impl From<VolumeError> for RecoveryError {
    fn from(error: VolumeError) -> Self {
        Self::Postgres(error.into())
    }
}

impl From<crate::process::ProcessError> for RecoveryError {
    fn from(error: crate::process::ProcessError) -> Self {
        Self::Postgres(error.into())
    }
}

/// Recovers a backup in the staging directory, and renames it into place as the data of a primary that was stopped cleanly. What needs no
/// server is done first: a refusal leaves nothing behind. A later failure leaves [`crate::volume::DataState::Unfinished`], which must be
/// discarded first. Dropping the future ends the server.
///
/// # Errors
/// Fails if the target cannot be reached, or something on the way failed: [`RecoveryError`].
pub async fn recover(
    tools: &Tools,
    volume: &Volume,
    system_user: &str,
    request: &RecoveryRequest,
    progress: &(impl Fn(Progress) + Sync),
) -> Result<Recovered, RecoveryError> {
    let source = Source::open(
        &request.place,
        &request.access,
        request.identity_secret.as_deref(),
        &request.folder,
    )?;
    let planned = source.plan(request.backup.as_deref(), &request.target).await?;
    let (info, plan) = (&planned.backup, &planned.plan);
    let found = info.server_version / 10_000;
    if found != u32::from(tools.major()) {
        return Err(RecoveryError::Version {
            backup: plan.backup.name.clone(),
            found,
            wanted: tools.major(),
        });
    }
    source.check_key(&planned).await?;
    tracing::info!(
        "backup {} is recovered to {} along timeline {}: WAL is there up to {}",
        plan.backup.name,
        request.target,
        plan.timeline.0,
        plan.end.lsn
    );
    let file_systems = volume.blocking(Volume::file_systems).await?;
    match &info.snapshot {
        None => {
            volume.blocking(|volume| volume.begin_staging("recovery")).await?;
            unpack_backup(&source, volume, &planned, progress).await?;
            verify(tools, volume, info, request, progress).await?;
        }
        Some(snapshot) => snapshot::stage(tools, volume, snapshot, plan).await?,
    }
    check_identity(tools, volume, info).await?;
    let order = Order {
        place: request.place.clone(),
        access: request.access.clone(),
        folder: request.folder.clone(),
        line: planned.line,
        identity_secret: request.identity_secret.clone(),
        has_encrypted: planned.has_encrypted,
        system_id: info.system_id.clone(),
        waits_at_end: request.target != Target::Latest,
        plan: plan.clone(),
    };
    prepare(volume, &order, request.after).await?;
    let stopped = replay::replay(tools, volume, system_user, request, &order.plan, progress).await?;
    let control = volume.staged_control_data(tools).await?;
    if control.state != ClusterState::ShutDown {
        let words = format!("the recovered data was not stopped cleanly: {:?}", control.state);
        return Err(PostgresError::Unproven(words).into());
    }
    let timeline = control.timeline;
    let tidy = move |pgdata: &Path| tidy::tidy(pgdata, timeline);
    let left = blocking_file(volume, "put the recovered data in order", tidy).await?;
    progress(Progress {
        what: "sync",
        bytes: 0,
        total: 0,
    });
    sync(tools, volume, file_systems, NO_LIMIT).await?;
    volume.blocking(Volume::finish_staging).await?;
    Ok(Recovered {
        backup: order.plan.backup.name.clone(),
        timeline,
        position: Position {
            timeline: left.timeline,
            lsn: left.end,
        },
        last_commit_time: stopped.last_commit_time,
    })
}

/// Unpacks the backup into the staged PGDATA.
async fn unpack_backup(
    from: &Source,
    volume: &Volume,
    planned: &Planned,
    progress: &(impl Fn(Progress) + Sync),
) -> Result<(), RecoveryError> {
    let wal = volume.wal_directory().map(ToOwned::to_owned);
    blocking_file(volume, "make the directory of the data", move |pgdata| {
        make_directory(pgdata)?;
        match wal {
            Some(wal) => link_wal(pgdata, &wal),
            None => Ok(()),
        }
    })
    .await?;
    let last = Mutex::new(None::<Instant>);
    let tell = |bytes| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= PROGRESS) {
            *last = Some(Instant::now());
            progress(Progress {
                what: "unpack",
                bytes,
                total: planned.backup.stored_bytes,
            });
        }
    };
    let pgdata = volume.staging_pgdata();
    let identities = from.identities.as_ref();
    Ok(unpack(
        &from.store,
        &from.folder,
        planned.line,
        &planned.backup,
        identities,
        &pgdata,
        tell,
    )
    .await?)
}

/// Has `pg_wal` be this directory on the WAL volume.
fn link_wal(pgdata: &Path, wal: &Path) -> std::io::Result<()> {
    make_directory(wal)?;
    symlink(wal, pgdata.join("pg_wal"))
}

/// Has PostgreSQL's own tool look if all files of the backup's manifest are there, with their sizes. Their checksums were compared while they were unpacked; the tool reads them again only if the request says so.
async fn verify(
    tools: &Tools,
    volume: &Volume,
    info: &BackupInfo,
    request: &RecoveryRequest,
    progress: &(impl Fn(Progress) + Sync),
) -> Result<(), RecoveryError> {
    const TOOL: &str = "pg_verifybackup";
    if tools.path(TOOL).is_file() {
        progress(Progress {
            what: "verify",
            bytes: 0,
            total: info.raw_bytes,
        });
        let mut command = tools.command(TOOL);
        // The WAL is not there yet: it comes from the archive, with its own hashes.
        command.args(["--no-parse-wal", "--quiet"]);
        if !request.verify_files {
            command.arg("--skip-checksums");
        }
        command.arg(volume.staging_pgdata());
        tools.supervisor().run(command, NO_LIMIT).await?;
    } else {
        tracing::warn!(
            "there is no {TOOL} in this image: the files were compared with the manifest only while they were unpacked"
        );
    }
    Ok(())
}

/// Compares the identity of the database.
async fn check_identity(tools: &Tools, volume: &Volume, info: &BackupInfo) -> Result<(), RecoveryError> {
    let found = volume.staged_control_data(tools).await?.system_id;
    if found != info.system_id {
        let reason = format!(
            "its system identifier is {found}, and the backup is of {}",
            info.system_id
        );
        let path = volume.staging_pgdata();
        return Err(VolumeError::Damaged { path, reason }.into());
    }
    Ok(())
}

/// Writes what PostgreSQL and [`fetch_wal`] need. The settings that came with the backup stay: those that matter here are given at the
/// start, and the later normal start writes its own files.
async fn prepare(volume: &Volume, order: &Order, after: Timeline) -> Result<(), RecoveryError> {
    let (staging, order) = (volume.staging(), order.clone());
    blocking_file(volume, "prepare recovery", move |pgdata| {
        order.write(&staging)?;
        // The backup may be of a standby.
        remove_if_there(&pgdata.join("standby.signal"))?;
        write_for_now(&pgdata.join("recovery.signal"), b"", 0o600)?;
        let timeline = order.plan.timeline;
        history::keep_from(&pgdata.join("pg_wal"), timeline, after)?;
        if timeline == Timeline(1) || order.plan.histories.contains(&timeline) {
            return Ok(());
        }
        // PostgreSQL refuses to follow a timeline without a history file. Recovery stays on this one, so its ancestors do not matter.
        let history = pgdata.join(format!("pg_wal/{:08X}.history", timeline.0));
        write_for_now(&history, b"# Where this timeline began is not known here.\n", 0o600)
    })
    .await
}

/// Runs `work` on the staged PGDATA, on a thread that may block.
async fn blocking_file<T: Send + 'static>(
    volume: &Volume,
    action: &str,
    work: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
) -> Result<T, RecoveryError> {
    let pgdata = volume.staging_pgdata();
    Ok(blocking(move || work(&pgdata)).await.map_err(file(action))?)
}
