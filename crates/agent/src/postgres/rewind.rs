//! Making diverged data follow the primary again.

use std::path::Path;
use std::time::{Duration, Instant};

use machine::protocol::Epoch;

use super::hba::REWIND_DATABASE;
use super::server::{file, remove_if_there, remove_remains};
use super::{Files, PostgresError, Primary, StartError, Tools, blocking, conninfo, processes_on};
use crate::process::ProcessError;
use crate::volume::{ClusterState, Volume};

/// It takes as long as it takes: a stuck one ends by its connection's own limits, or is cancelled
/// when another member is the primary.
const NO_LIMIT: Duration = Duration::from_secs(366 * 24 * 3_600);
/// What `pg_rewind` (15 to 18) says, with `--progress`, when it has only read so far and begins to write.
const CHANGES_BEGIN: &str = "need to copy ";
/// How often progress is logged.
const PROGRESS: Duration = Duration::from_secs(10);

/// Rewinds the stopped data to `primary`, which holds the lease in `epoch` and has made a checkpoint on its timeline
/// (protocol.md rule 17), with `pg_rewind` and the certificate of the member. Promises `epoch` first.
///
/// Meanwhile the data bears a mark ([`Volume::is_rewinding`]), with which it is never started. The mark stays if anything
/// was changed and the rewind did not succeed: such data is refused here from then on, and can only be set aside. (The WAL
/// that tells what has to be rewound may have been replaced already: a second rewind would miss pages, and not say so.)
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

/// Nothing may run on the data. `pg_rewind` lets an unclean server recover alone, which it refuses to do as a standby.
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
