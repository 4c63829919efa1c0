//! The program of `restore_command`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use backup::layout::{ClusterFolder, LineObject, Object, Segment, encrypted};
use backup::{Place, Problem};
use machine::archive::WalFile;
use machine::recovery::Plan;
use serde::{Deserialize, Serialize};

use crate::archive::{identities, open, segment_content};
use crate::volume::write_for_now;

/// Time limit of a request. After a failure the request is made again.
const LIMIT: Duration = Duration::from_secs(45);

/// PostgreSQL takes it for the end of the archive: it ends recovery, or fails if there is a target.
const ABSENT: u8 = 1;
/// PostgreSQL aborts for any status above 125.
const ABORT: u8 = 255;

/// The pause between two attempts.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How often a lasting trouble is written to PostgreSQL's log.
const TELL: Duration = Duration::from_secs(10);
/// At the end of the archive PostgreSQL waits so long before it ends without having reached its target. Meanwhile the agent sees how far
/// replay has come, which is what the user needs to know.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// In the staging directory: the [`Order`].
const ORDER: &str = "fetch-wal.json";
/// In the staging directory: why PostgreSQL was aborted.
const FAULT: &str = "fetch-wal.fault";
/// In the staging directory: PostgreSQL has asked for what lies behind the plan.
const END: &str = "fetch-wal.end";

/// What [`fetch_wal`] needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Order {
    pub(super) place: Place,
    pub(super) access: PathBuf,
    pub(super) folder: String,
    pub(super) line: u32,
    /// The Secret with the private keys, which is mounted at `access`.
    pub(super) identity_secret: Option<String>,
    /// Some of the WAL is encrypted.
    pub(super) has_encrypted: bool,
    pub(super) system_id: String,
    /// There is a target, which should be reached before the end of the archive.
    pub(super) waits_at_end: bool,
    pub(super) plan: Plan,
}

impl Order {
    /// Writes it into the staging directory.
    pub(super) fn write(&self, staging: &Path) -> io::Result<()> {
        write_for_now(&staging.join(ORDER), &serde_json::to_vec(self)?, 0o600)
    }

    /// The value of `restore_command`: PostgreSQL replaces `%f` and `%p`, and gives the line to a shell.
    pub(super) fn command(program: &Path, staging: &Path) -> String {
        let quoted = |path: &Path| {
            let text = path.to_string_lossy().replace('%', "%%").replace('\'', "'\\''");
            format!("'{text}'")
        };
        format!("{} fetch-wal {} %f %p", quoted(program), quoted(&staging.join(ORDER)))
    }
}

/// Why PostgreSQL was aborted by [`fetch_wal`]; `None` if it was not.
pub(super) fn fault(staging: &Path) -> Option<String> {
    fs::read_to_string(staging.join(FAULT)).ok()
}

/// True if PostgreSQL has asked for what lies behind the plan.
pub(super) fn is_at_end(staging: &Path) -> bool {
    staging.join(END).exists()
}

/// Fetches the file `name` of `pg_wal` to `to` if the plan in the file `order` has it. Returns the exit status for PostgreSQL:
/// - 0: the file is there, whole.
/// - 1: the plan does not have it. PostgreSQL takes that for the end of the archive.
/// - 255: the file is damaged or has vanished, or this program is used wrongly. PostgreSQL aborts.
///
/// Any trouble with the store is waited for, as long as it lasts.
pub fn fetch_wal(order: &Path, name: &str, to: &Path) -> ExitCode {
    let staging = order.parent().unwrap_or(Path::new("/"));
    match try_fetching(order, staging, name, to) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(ABSENT),
        Err(error) => {
            let words = format!("{name}: {error:#}");
            eprintln!("fetch-wal: {words}");
            if let Err(error) = write_for_now(&staging.join(FAULT), words.as_bytes(), 0o600) {
                eprintln!("fetch-wal: write {FAULT}: {error}");
            }
            ExitCode::from(ABORT)
        }
    }
}

/// True if the file was fetched, false if the plan does not have it.
fn try_fetching(order: &Path, staging: &Path, name: &str, to: &Path) -> anyhow::Result<bool> {
    let content = fs::read(order).with_context(|| format!("read {}", order.display()))?;
    let order: Order = serde_json::from_slice(&content).context("read the plan")?;
    let Some(file) = WalFile::parse(name, order.plan.segment_size).filter(|file| order.plan.serves(*file)) else {
        if WalFile::parse(name, order.plan.segment_size).is_some_and(|file| order.plan.is_past_end(file)) {
            note_end(&order, staging)?;
        }
        return Ok(false);
    };
    let folder: ClusterFolder = order.folder.parse()?;
    let object = match file {
        WalFile::History(timeline) => LineObject::History(timeline.0),
        WalFile::Segment(_) | WalFile::Partial(_) | WalFile::BackupNote => {
            LineObject::Segment(name.parse::<Segment>()?)
        }
    };
    let is_segment = matches!(object, LineObject::Segment(_));
    let object = folder.name(Object::Line(order.line, object)).to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut stored = None;
    if order.has_encrypted && is_segment {
        stored = runtime.block_on(read(&order, &encrypted(&object)))?;
    }
    if stored.is_none() {
        stored = runtime.block_on(read(&order, &object))?;
    }
    // The plan was made from a list in which it was.
    let stored =
        stored.with_context(|| format!("{object} has vanished from the store since the recovery was planned"))?;
    let content = match file {
        WalFile::History(_) => stored.to_vec(),
        WalFile::Segment(_) | WalFile::Partial(_) | WalFile::BackupNote => {
            let identities = identities(&order.access, order.identity_secret.as_deref())?;
            let size = order.plan.segment_size;
            segment_content(&stored, name, &order.system_id, size, identities.as_ref())?
        }
    };
    write_for_now(to, &content, 0o600).with_context(|| format!("write {}", to.display()))?;
    Ok(true)
}

/// Tells the agent that the archive is at its end, and gives it time to look.
fn note_end(order: &Order, staging: &Path) -> anyhow::Result<()> {
    let is_first = !is_at_end(staging);
    write_for_now(&staging.join(END), b"", 0o600).context("write down that the archive ends")?;
    if order.waits_at_end && is_first {
        std::thread::sleep(LAST_LOOK);
    }
    Ok(())
}

/// Reads an object, however long the store has trouble; `None` if there is none. The Secrets are read for each attempt: they may have been
/// renewed.
async fn read(order: &Order, object: &str) -> anyhow::Result<Option<bytes::Bytes>> {
    let parent = rustix::process::getppid();
    let mut told = None::<Instant>;
    loop {
        let read = async { open(&order.place, &order.access)?.read(object, LIMIT).await };
        let problem = match read.await {
            Ok(content) => return Ok(Some(content)),
            Err(Problem::NotFound(_)) => return Ok(None),
            Err(problem) => problem,
        };
        if rustix::process::getppid() != parent {
            anyhow::bail!("PostgreSQL has ended while the store had trouble: {problem}");
        }
        if told.is_none_or(|told| told.elapsed() >= TELL) {
            told = Some(Instant::now());
            eprintln!("fetch-wal: {object} is tried again until the store answers: {problem}");
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_survives_the_shell_and_postgresql() {
        let command = Order::command(Path::new("/a b/it's"), Path::new("/100%"));
        assert_eq!(command, r"'/a b/it'\''s' fetch-wal '/100%%/fetch-wal.json' %f %p");
    }
}
