//! Attempts at one backup. Of several, at most one becomes visible, also if a process goes on with one that nobody hears any more.
//!
//! Each attempt has a folder of its own. It says in `begun.json` which one it is before it looks for others. It marks those with lower
//! numbers (`deleted.json`) and gives way to one with a higher number. After it has written its `backup.json` it looks for the mark of
//! another. So of two, at least one sees the other, and the later one wins.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::info::object;
use super::{BackupInfo, catalogue};
use crate::layout::{BackupFile, BackupName, ClusterFolder};
use crate::{Compare, Problem, Store};

/// Which attempt it is: the content of its `begun.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// UID of the object that asks for the backup.
    pub uid: String,
    /// Its number. A later one has a higher number, unless the same one is begun again.
    pub number: u32,
}

/// What an attempt finds when it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It may go on. These are the complete backups.
    First(Vec<BackupInfo>),
    /// An earlier one has become a backup.
    Made(Box<BackupInfo>),
    /// The attempt with this higher number has begun.
    Late(u32),
}

/// Begins an attempt in the folder of the backup `name`. From now on no earlier attempt becomes visible. `limit` is the time limit of
/// each request.
///
/// # Errors
/// Fails if the store fails, or has something else under one of the names.
pub async fn begin(
    store: &Store,
    folder: &ClusterFolder,
    line: u32,
    name: &BackupName,
    attempt: &Attempt,
    limit: Duration,
) -> Result<Begun, Problem> {
    let begun = |name| object(folder, line, name, BackupFile::Begun);
    let unusable = |error: serde_json::Error| Problem::Unusable(error.to_string());
    let content = serde_json::to_vec(attempt).map_err(unusable)?;
    store
        .create(&begun(name), content.into(), Compare::Bytes, limit)
        .await?;
    let mut known = catalogue(store, folder, line, limit).await?;
    if let Some(made) = known.complete.iter().position(|backup| backup.uid == attempt.uid) {
        return Ok(Begun::Made(Box::new(known.complete.swap_remove(made))));
    }
    for other in known.unfinished.iter().filter(|other| *other != name) {
        let content = match store.read(&begun(other), limit).await {
            // Of an earlier version, or being removed.
            Err(Problem::NotFound(_)) => continue,
            content => content?,
        };
        let of: Attempt = serde_json::from_slice(&content).map_err(unusable)?;
        if of.uid != attempt.uid {
            continue;
        }
        if of.number > attempt.number {
            return Ok(Begun::Late(of.number));
        }
        discard(store, folder, line, other, limit).await?;
    }
    Ok(Begun::First(known.complete))
}

/// Marks a backup: from now on nobody takes it for complete, whatever is added to it. It deletes nothing.
///
/// # Errors
/// Fails if the mark may not be there.
pub(super) async fn discard(
    store: &Store,
    folder: &ClusterFolder,
    line: u32,
    backup: &BackupName,
    limit: Duration,
) -> Result<(), Problem> {
    let mark = object(folder, line, backup, BackupFile::Deleted);
    let created = store.create(&mark, Bytes::from_static(b"{}"), Compare::Header(&|_| true), limit);
    created.await.map(|_| ())
}

/// Whether a backup has that mark: a later attempt has begun, or it is being removed.
///
/// # Errors
/// Fails if the list is not complete.
pub async fn is_discarded(
    store: &Store,
    folder: &ClusterFolder,
    line: u32,
    backup: &BackupName,
    limit: Duration,
) -> Result<bool, Problem> {
    let mark = object(folder, line, backup, BackupFile::Deleted);
    let own = format!("{}/{backup}", folder.backups_folder(line));
    let listed = store.list(&own, limit).await?;
    Ok(listed.iter().any(|listed| listed.name == mark))
}
