//! The deletion of all that a database has in a store.

use std::path::Path;

use backup::base::remove_all;
use backup::{Problem, Remover};

use super::Target;
use super::attached::{LIMIT, is_of, remover};

/// Deletes the database's folder, until nothing is found in it. A folder that another database has begun is left alone.
pub(super) async fn delete_folder(target: &Target, access: &Path) -> Result<(), Problem> {
    let remover = remover(target, access)?;
    is_of(&remover, target).await?;
    loop {
        match delete_once(&remover, &target.folder).await? {
            0 => return Ok(()),
            deleted => eprintln!("{deleted} objects in {} are deleted with the database", target.folder),
        }
    }
}

/// Folder by folder: a list of a large archive takes longer than a request may. Returns how many objects there were.
async fn delete_once(remover: &Remover, folder: &str) -> Result<usize, Problem> {
    let (mut left, mut deleted) = (vec![folder.to_owned()], 0);
    while let Some(next) = left.pop() {
        let found = remover.store().list_folder(&next, LIMIT).await?;
        // What says whose folder it is goes last: it lies above the rest, and the last one on the stack is taken first.
        deleted += found.objects.len();
        let names = found.objects.into_iter().map(|object| object.name);
        let (marks, names): (Vec<_>, Vec<_>) = names.partition(|name| name.ends_with("/line.json"));
        remove_all(remover, names, LIMIT).await?;
        if found.folders.is_empty() {
            remove_all(remover, marks, LIMIT).await?;
        } else {
            left.extend(found.folders);
        }
    }
    Ok(deleted)
}
