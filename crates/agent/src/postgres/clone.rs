//! Copying the primary.

use std::time::{Duration, Instant};

use machine::protocol::MemberId;

use super::{Files, PostgresError, Primary, conninfo};
use crate::tools::Tools;
use crate::volume::{Volume, VolumeError};

/// The source of a copy, and how to reach it.
#[derive(Clone, Debug)]
pub struct CloneSource {
    /// The primary, and the member that copies; the slot of that member must exist.
    pub primary: Primary,
    /// Certificate, key and authority.
    pub files: Files,
    /// System identifier that the copy must have.
    pub system_id: String,
}

/// A copy has no time limit of its own. A stuck one ends by the limits of its connection, or is cancelled when another
/// member becomes the primary.
const NO_LIMIT: Duration = Duration::from_secs(366 * 24 * 3_600);
/// How often progress is logged.
const PROGRESS: Duration = Duration::from_secs(10);

/// Copies the primary with `pg_basebackup` over TLS, through the member's slot, into the staging directory, and renames
/// the copy into place. Dropping the future kills the tool and leaves [`crate::volume::DataState::Unfinished`].
///
/// # Errors
/// Fails with [`VolumeError::Damaged`] if there is a PGDATA already, if the volume belongs to another member, or if the
/// copy is of another database. Fails with [`PostgresError::Process`] if `pg_basebackup` fails.
pub async fn clone(tools: &Tools, volume: &Volume, source: &CloneSource) -> Result<(), PostgresError> {
    let member = source.primary.member.clone();
    volume.blocking(move |volume| begin(volume, &member)).await?;
    let mut command = tools.command("pg_basebackup");
    command.arg("-D").arg(volume.staging_pgdata());
    command
        .arg("-d")
        .arg(conninfo::tool("clone", None, &source.primary, &source.files));
    command.args([
        "--wal-method=stream",
        "--checkpoint=fast",
        "--no-password",
        // The manifest is not used. On the primary it is a temporary file, which `temp_file_limit` may forbid.
        "--no-manifest",
        "--progress",
    ]);
    // The primary takes a receiver that is silent for 10 s for dead; the default of this interval is 10 s.
    command.args(["--status-interval=1", "--slot", source.primary.member.as_str()]);
    if let Some(wal) = volume.wal_directory() {
        command.arg("--waldir").arg(wal);
    }
    let mut logged = Instant::now();
    let log = move |line: &str| {
        if logged.elapsed() >= PROGRESS {
            logged = Instant::now();
            tracing::info!("cloning: {}", line.trim());
        }
    };
    tools.supervisor().run_with(command, NO_LIMIT, log).await?;
    let copied = volume.staged_control_data(tools).await?.system_id;
    if copied != source.system_id {
        let reason = format!(
            "it has system identifier {copied}, but {} was to be copied",
            source.system_id
        );
        return Err(VolumeError::Damaged {
            path: volume.staging_pgdata(),
            reason,
        }
        .into());
    }
    Ok(volume.blocking(Volume::finish_staging).await?)
}

/// Begins the staging directory, if the volume is this member's. If another member's data streamed later under this
/// volume's name, its acknowledgements would count for the wrong member.
fn begin(volume: &Volume, member: &MemberId) -> Result<(), VolumeError> {
    let own = volume.member()?.map(|own| own.id);
    if own.as_ref() != Some(member) {
        return Err(VolumeError::Damaged {
            path: volume.key_file(),
            reason: format!("a clone for {member} was asked for, but this volume is {own:?}"),
        });
    }
    volume.begin_staging("clone")
}
