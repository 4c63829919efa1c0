//! Files of a backup's tar, written into a directory.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use tar::{Entry, EntryType};

use super::manifest::Manifest;

/// The directory that the caller may have replaced by a link.
const WAL: &str = "pg_wal";
/// Bytes of a write.
const WRITE: usize = 256 << 10;

/// Where files are unpacked to, each compared with the backup's manifest.
pub(super) struct Destination {
    root: PathBuf,
    /// Where the link `pg_wal` leads to, if it is one.
    wal: Option<PathBuf>,
    manifest: Arc<Manifest>,
    /// Directories that were seen, none of them a link.
    directories: HashSet<PathBuf>,
    buffer: Vec<u8>,
}

impl Destination {
    pub(super) fn new(root: &Path, manifest: Arc<Manifest>) -> io::Result<Self> {
        let wal = root.join(WAL);
        let wal = match wal.is_symlink() {
            true => Some(wal.canonicalize()?),
            false => None,
        };
        Ok(Self {
            root: root.to_owned(),
            wal,
            manifest,
            directories: HashSet::new(),
            buffer: vec![0; WRITE],
        })
    }

    /// Writes a file, makes a directory or a link. Permissions are those of the tar.
    ///
    /// # Errors
    /// Names the path if it would be outside, or the file is not what the manifest says.
    pub(super) fn unpack(&mut self, mut entry: Entry<'_, impl Read>) -> io::Result<()> {
        let path = entry.path()?.into_owned();
        let is_inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !path.components().all(is_inside) {
            return Err(wrong(&path, "is nothing that a backup may hold"));
        }
        let path: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
        let mode = entry.header().mode()? & 0o777;
        match entry.header().entry_type() {
            EntryType::Directory => {
                let (base, rest) = self.split(&path);
                self.make_directory(&base, &rest)?;
                match rest.as_os_str().is_empty() {
                    // The caller's own directory.
                    true => Ok(()),
                    false => fs::set_permissions(base.join(rest), Permissions::from_mode(mode)),
                }
            }
            EntryType::Regular | EntryType::Continuous => self.write(&path, mode, &mut entry),
            EntryType::Symlink => {
                let to = entry.link_name()?.unwrap_or_default().into_owned();
                let path = self.place(&path)?;
                replace(&path, || symlink(&to, &path))
            }
            _ => Err(wrong(&path, "is nothing that a backup may hold")),
        }
    }

    fn write(&mut self, path: &Path, mode: u32, content: &mut impl Read) -> io::Result<()> {
        let to = self.place(path)?;
        let expected = self.manifest.take(path).map_err(|words| wrong(path, &words))?;
        let mut file = replace(&to, || {
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&to)
        })?;
        file.set_permissions(Permissions::from_mode(mode))?;
        let mut check = expected.check();
        loop {
            let bytes = fill(content, &mut self.buffer)?;
            if bytes == 0 {
                break;
            }
            check.update(&self.buffer[..bytes]);
            file.write_all(&self.buffer[..bytes])?;
        }
        check.finish().map_err(|words| wrong(path, &words))
    }

    /// Where the path is to be, in a directory that is there.
    fn place(&mut self, path: &Path) -> io::Result<PathBuf> {
        let (base, rest) = self.split(path);
        self.make_directory(&base, rest.parent().unwrap_or(Path::new("")))?;
        Ok(base.join(rest))
    }

    /// The directory of the caller that the path is in, and the path there.
    fn split(&self, path: &Path) -> (PathBuf, PathBuf) {
        match (&self.wal, path.strip_prefix(WAL)) {
            (Some(wal), Ok(rest)) => (wal.clone(), rest.to_owned()),
            _ => (self.root.clone(), path.to_owned()),
        }
    }

    /// Makes a directory and those above it. None of them may be a link: it could lead outside.
    fn make_directory(&mut self, base: &Path, rest: &Path) -> io::Result<()> {
        let mut path = base.to_owned();
        for part in rest {
            path.push(part);
            if self.directories.contains(&path) {
                continue;
            }
            match DirBuilder::new().mode(0o700).create(&path) {
                // Another part may have made it.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => made?,
            }
            if !fs::symlink_metadata(&path)?.is_dir() {
                return Err(wrong(&path, "is no directory"));
            }
            self.directories.insert(path.clone());
        }
        Ok(())
    }
}

/// Makes something at a path that may be taken.
fn replace<T>(path: &Path, make: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match make() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            make()
        }
        made => made,
    }
}

/// Reads until the buffer is full, or nothing is left. Returns the number of bytes.
pub(super) fn fill(content: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match content.read(&mut buffer[filled..])? {
            0 => break,
            bytes => filled += bytes,
        }
    }
    Ok(filled)
}

fn wrong(path: &Path, words: &str) -> io::Error {
    io::Error::other(format!("{} {words}", path.display()))
}
