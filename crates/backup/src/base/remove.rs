//! Removal of backups.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};

use super::attempt::discard;
use super::info::object;
use crate::layout::{BackupFile, BackupName, ClusterFolder};
use crate::{Problem, Remover};

/// Deletes that are under way at the same time.
const AT_ONCE: usize = 8;

/// Removes a backup. From its first step on nobody takes it for complete ([`super::catalogue`]), however far this comes; it can be
/// called again. A `deleted.json` stays of a backup that was not complete, lest whoever still makes it completes it, and of one whose files are
/// in a VolumeSnapshot, which goes by that.
///
/// # Errors
/// Fails if something of it may still be there.
pub async fn remove(
    remover: &Remover,
    folder: &ClusterFolder,
    line: u32,
    backup: &BackupName,
    limit: Duration,
) -> Result<(), Problem> {
    let [mark, commit] = [BackupFile::Deleted, BackupFile::Commit].map(|file| object(folder, line, backup, file));
    let store = remover.store();
    discard(store, folder, line, backup, limit).await?;
    let own = format!("{}/{backup}", folder.backups_folder(line));
    let files: Vec<String> = store
        .list(&own, limit)
        .await?
        .into_iter()
        .map(|listed| listed.name)
        .collect();
    let was_complete = files.contains(&commit);
    let others = files.into_iter().filter(|name| *name != mark && *name != commit);
    remove_all(remover, others.collect(), limit).await?;
    if was_complete {
        remover.delete(&commit, limit).await?;
        if !backup.is_snapshot() {
            remover.delete(&mark, limit).await?;
        }
    }
    Ok(())
}

/// Deletes objects, several at once.
///
/// # Errors
/// Fails if one of them may still be there.
pub async fn remove_all(remover: &Remover, names: Vec<String>, limit: Duration) -> Result<(), Problem> {
    let deletes = futures::stream::iter(names).map(|name| async move { remover.delete(&name, limit).await });
    deletes.buffer_unordered(AT_ONCE).try_collect::<()>().await
}
