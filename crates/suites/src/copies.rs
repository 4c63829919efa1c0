//! Copies of the sources, in which mutants are planted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The environment variable that names the mutant which a program of such a copy shows.
pub const SWITCH_VARIABLE: &str = "MUTANT";

/// Adds the files of a folder, or a file.
///
/// # Errors
/// When one cannot be read.
pub fn read(repository: &Path, name: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    let path = repository.join(name);
    let what = || format!("read {}", path.display());
    if !path.is_dir() {
        files.insert(name.to_owned(), fs::read(&path).with_context(what)?);
        return Ok(());
    }
    for entry in fs::read_dir(&path).with_context(what)? {
        read(repository, &name.join(entry.with_context(what)?.file_name()), files)?;
    }
    Ok(())
}

/// Makes `files` the only ones in the crates. One that is the same as before is left alone.
///
/// # Errors
/// When one cannot be written.
pub fn write(sources: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    for (name, content) in files {
        let path = sources.join(name);
        let what = || format!("write {}", path.display());
        if fs::read(&path).is_ok_and(|before| before == *content) {
            continue;
        }
        fs::create_dir_all(path.parent().unwrap_or(sources)).with_context(what)?;
        fs::write(&path, content).with_context(what)?;
    }
    remove_others(sources, Path::new("crates"), files)
}

/// An old test would be built, too.
fn remove_others(sources: &Path, folder: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    let path = sources.join(folder);
    let what = || format!("tidy {}", path.display());
    for entry in fs::read_dir(&path).with_context(what)? {
        let name = folder.join(entry.with_context(what)?.file_name());
        if sources.join(&name).is_dir() {
            remove_others(sources, &name, files)?;
        } else if !files.contains_key(&name) {
            fs::remove_file(sources.join(&name)).with_context(what)?;
        }
    }
    Ok(())
}
