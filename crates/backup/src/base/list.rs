//! Which backups there are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::BackupInfo;
use super::info::object;
use crate::layout::{BackupFile, BackupName, ClusterFolder, LineObject, Name, Object};
use crate::{Problem, Store};

/// The backups of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    /// The complete ones, oldest first: those with a `backup.json` and without a `deleted.json`.
    pub complete: Vec<BackupInfo>,
    /// Those of which there are only some files: they are being made, were never completed, or were not removed to the end.
    pub unfinished: BTreeSet<BackupName>,
    /// Those with a `deleted.json`: none of them is complete, or can become so.
    pub discarded: BTreeSet<BackupName>,
}

/// All complete backups of a line, oldest first. `limit` is the time limit of each request.
///
/// # Errors
/// As [`catalogue`].
pub async fn backups(
    store: &Store,
    folder: &ClusterFolder,
    line: u32,
    limit: Duration,
) -> Result<Vec<BackupInfo>, Problem> {
    Ok(catalogue(store, folder, line, limit).await?.complete)
}

/// All backups of a line. `limit` is the time limit of each request.
///
/// # Errors
/// Fails if the list is not complete, and with [`Problem::Unusable`] that names a `backup.json` that cannot be read.
pub async fn catalogue(
    store: &Store,
    folder: &ClusterFolder,
    line: u32,
    limit: Duration,
) -> Result<Catalogue, Problem> {
    let mut files = BTreeMap::<BackupName, Vec<BackupFile>>::new();
    for listed in store.list(&folder.backups_folder(line), limit).await? {
        if let Some((backup, file)) = parse(&listed.name) {
            files.entry(backup).or_default().push(file);
        }
    }
    let mut catalogue = Catalogue::default();
    for (backup, files) in files {
        let (is_committed, is_deleted) = (
            files.contains(&BackupFile::Commit),
            files.contains(&BackupFile::Deleted),
        );
        if is_deleted {
            catalogue.discarded.insert(backup.clone());
        }
        if is_committed && !is_deleted {
            catalogue.complete.push(
                info(
                    store,
                    &object(folder, line, &backup, BackupFile::Commit),
                    &backup,
                    limit,
                )
                .await?,
            );
        } else if files != [BackupFile::Deleted] {
            catalogue.unfinished.insert(backup);
        }
    }
    Ok(catalogue)
}

async fn info(store: &Store, name: &str, backup: &BackupName, limit: Duration) -> Result<BackupInfo, Problem> {
    let content = store.read(name, limit).await?;
    let info = BackupInfo::parse(&content).and_then(|info| match info.name == *backup {
        true => Ok(info),
        false => Err(format!("it is of {}", info.name)),
    });
    info.map_err(|words| Problem::Unusable(format!("{name} cannot be read: {words}")))
}

fn parse(name: &str) -> Option<(BackupName, BackupFile)> {
    match name.parse::<Name>().ok()?.object {
        Object::Line(_, LineObject::Backup(backup, file)) => Some((backup, file)),
        _ => None,
    }
}
