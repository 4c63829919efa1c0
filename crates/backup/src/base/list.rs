//! Which backups there are.

use std::collections::BTreeSet;
use std::time::Duration;

use super::BackupInfo;
use super::info::object;
use crate::layout::{BackupFile, BackupName, ClusterFolder, LineObject, Name, Object};
use crate::{Problem, Store};

/// All complete backups of a line, oldest first: those with a `backup.json` and without a `deleted.json`. `limit` is the
/// time limit of each request.
///
/// # Errors
/// Fails if the list is not complete, and with [`Problem::Unusable`] that names a `backup.json` that cannot be read.
pub async fn backups(
    store: &Store,
    folder: &ClusterFolder,
    line: u32,
    limit: Duration,
) -> Result<Vec<BackupInfo>, Problem> {
    let (mut committed, mut deleted) = (BTreeSet::new(), BTreeSet::new());
    for listed in store.list(&folder.backups_folder(line), limit).await? {
        match parse(&listed.name) {
            Some((backup, BackupFile::Commit)) => committed.insert(backup),
            Some((backup, BackupFile::Deleted)) => deleted.insert(backup),
            _ => continue,
        };
    }
    let mut backups = Vec::new();
    for backup in committed.difference(&deleted) {
        let name = object(folder, line, backup, BackupFile::Commit);
        let content = store.read(&name, limit).await?;
        let info = BackupInfo::parse(&content).and_then(|info| match info.name == *backup {
            true => Ok(info),
            false => Err(format!("it is of {}", info.name)),
        });
        backups.push(info.map_err(|words| Problem::Unusable(format!("{name} cannot be read: {words}")))?);
    }
    Ok(backups)
}

fn parse(name: &str) -> Option<(BackupName, BackupFile)> {
    match name.parse::<Name>().ok()?.object {
        Object::Line(_, LineObject::Backup(backup, file)) => Some((backup, file)),
        _ => None,
    }
}
