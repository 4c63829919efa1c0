//! Rewinding diverged data, so that it can follow the primary again.

use std::path::Path;
use std::time::{Duration, Instant};

use machine::protocol::Epoch;

use super::hba::REWIND_DATABASE;
use super::server::{file, remove_if_there, remove_remains};
use super::{Files, PostgresError, Primary, StartError, blocking, conninfo, processes_on};
use crate::process::ProcessError;
use crate::tools::Tools;
use crate::volume::{ClusterState, Volume};

/// A rewind has no time limit of its own. A stuck one ends by the limits of its connection, or is cancelled when
/// another member becomes the primary.
const NO_LIMIT: Duration = Duration::from_secs(366 * 24 * 3_600);
/// The text that `pg_rewind --progress` (15 to 18) prints when it has only read so far and begins to write.
const CHANGES_BEGIN: &str = "need to copy ";
/// How often progress is logged.
const PROGRESS: Duration = Duration::from_secs(10);

/// Rewinds the stopped data to `primary` with `pg_rewind` and the certificate of the member. The primary must hold the
/// lease in `epoch` and have made a checkpoint on its timeline (protocol.md rule 17). Promises `epoch` first.
///
/// Meanwhile the data bears a mark ([`Volume::is_rewinding`]); marked data is never started. The mark stays if anything
/// was changed and the rewind did not succeed. Such data can only be set aside: the WAL that tells what must be rewound
/// may have been replaced already, so a second rewind would miss pages without saying so.
///
/// # Errors
/// Fails with [`StartError::Torn`] if an earlier rewind did not succeed, with [`StartError::AlreadyRuns`] if a server
/// runs on the data, and with [`PostgresError::Volume`] if a higher epoch is promised. Fails with
/// [`PostgresError::Process`] if `pg_rewind` fails.
pub async fn rewind(
    tools: &Tools,
    volume: &Volume,
    files: &Files,
    primary: &Primary,
    epoch: Epoch,
) -> Result<(), PostgresError> {
    let pgdata = volume.pgdata();
    if volume.blocking(Volume::is_rewinding).await? {
        return Err(StartError::Torn.into());
    }
    let clean =
        [ClusterState::ShutDown, ClusterState::ShutDownInRecovery].contains(&volume.control_data(tools).await?.state);
    volume
        .blocking(move |volume| volume.promise_before_rewind(epoch))
        .await?;
    let (place, sockets) = (pgdata.clone(), files.socket.clone());
    blocking(move || prepare(&place, &sockets)).await?;
    volume.blocking(Volume::begin_rewind).await?;
    let mut command = tools.command("pg_rewind");
    command.arg("--target-pgdata").arg(&pgdata).arg("--progress");
    if clean {
        command.arg("--no-ensure-shutdown");
    }
    let source = conninfo::tool("rewind", Some(REWIND_DATABASE), primary, files);
    command.arg(format!("--source-server={source}"));
    let (mut logged, mut changing) = (Instant::now(), false);
    let log = |line: &str| {
        changing |= line.contains(CHANGES_BEGIN);
        if logged.elapsed() >= PROGRESS {
            logged = Instant::now();
            tracing::info!("rewinding: {}", line.trim());
        }
    };
    let done = tools.supervisor().run_with(command, NO_LIMIT, log).await;
    let unchanged = matches!(done, Err(ProcessError::Failed { .. })) && !changing;
    if done.is_ok() || unchanged {
        volume.blocking(Volume::finish_rewind).await?;
    }
    Ok(done.map(|_| ())?)
}

/// Checks that no server runs on the data, and removes what would make it a standby: `pg_rewind` lets an unclean server
/// recover alone, and refuses to do so for a standby.
fn prepare(pgdata: &Path, sockets: &Path) -> Result<(), PostgresError> {
    if let Some(&pid) = processes_on(pgdata).map_err(file("list processes"))?.first() {
        return Err(StartError::AlreadyRuns { pid }.into());
    }
    remove_remains(pgdata, sockets).map_err(file("remove what a dead server left"))?;
    for signal in ["standby.signal", "recovery.signal"] {
        remove_if_there(&pgdata.join(signal)).map_err(file("remove what would make it a standby"))?;
    }
    Ok(())
}
