//! Unpacks a base backup into a directory.

use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes};
use futures::{StreamExt, TryStreamExt, stream};
use ring::digest::{Context, SHA256};
use tar::{Archive, Entry};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use zstd::stream::read::Decoder;

use super::copies::MANIFEST;
use super::info::object;
use super::{BackupInfo, BaseError, LIMIT, Part};
use crate::layout::{BackupFile, ClusterFolder};
use crate::{Problem, Store};

/// Parts that are unpacked at the same time: one waits for the store while the other writes.
const PARTS: usize = 2;
/// The directory that the caller may have replaced by a link.
const WAL: &str = "pg_wal";

/// Unpacks a backup into `into`, which exists. Files that are there are replaced. `progress` is called with the bytes
/// of the store that were read so far.
///
/// Permissions are the backup's; the owner is the user of this process. If `pg_wal` is a link to a directory, it stays,
/// and the directory gets what is in the backup's `pg_wal`. Memory: ten pieces of [`crate::PIECE`] bytes, and the
/// compressed manifest.
///
/// # Errors
/// Fails with [`BaseError::Missing`] or [`BaseError::Damaged`] for a part that is not as `backup.json` says, and with
/// [`BaseError::Unpack`] if a file cannot be written or would be outside of `into`.
pub async fn unpack(
    store: &Store,
    folder: &ClusterFolder,
    line: u32,
    info: &BackupInfo,
    into: &Path,
    progress: impl Fn(u64),
) -> Result<(), BaseError> {
    let (read, progress) = (&AtomicU64::new(0), &progress);
    let unpacked = stream::iter(&info.parts)
        .map(Ok)
        .try_for_each_concurrent(PARTS, |part| async move {
            let progress = |bytes| progress(read.fetch_add(bytes, Ordering::Relaxed) + bytes);
            let file = match part.name.parse() {
                Ok(file @ BackupFile::Part { .. }) => file,
                _ => return Err(Problem::Unusable(format!("{:?} is no name of a part", part.name)).into()),
            };
            let name = object(folder, line, &info.name, file);
            unpack_part(store, name, part, into, progress).await
        });
    unpacked.await?;
    let name = object(folder, line, &info.name, BackupFile::Manifest);
    write_manifest(store, name, into.join(MANIFEST)).await
}

async fn unpack_part(
    store: &Store,
    name: String,
    part: &Part,
    into: &Path,
    progress: impl Fn(u64),
) -> Result<(), BaseError> {
    let (sender, pieces) = mpsc::channel(1);
    let into = into.to_owned();
    let working = spawn_blocking(move || work(&into, pieces));
    let mut stored = std::pin::pin!(store.read_stream(&name, part.stored_bytes, LIMIT));
    let (mut hash, mut bytes) = (Context::new(&SHA256), 0);
    let mut is_taken = true;
    while let Some(piece) = stored.next().await {
        let piece = piece.map_err(|problem| unread(&name, problem))?;
        hash.update(&piece);
        bytes += piece.len() as u64;
        progress(piece.len() as u64);
        // After a failure, the rest is read only to find out if the part is damaged.
        is_taken = is_taken && sender.send(piece).await.is_ok();
    }
    drop(sender);
    let worked = working.await?;
    let sha256 = crate::segment::hex(hash.finish());
    if bytes != part.stored_bytes || sha256 != part.sha256 {
        let found = format!(
            "{bytes} bytes with SHA-256 {sha256} instead of {} with {}",
            part.stored_bytes, part.sha256
        );
        return Err(BaseError::Damaged { name, found });
    }
    worked.map_err(|error| BaseError::Unpack { name, error })
}

fn unread(name: &str, problem: Problem) -> BaseError {
    match problem {
        Problem::NotFound(_) => BaseError::Missing(name.to_owned()),
        problem => problem.into(),
    }
}

fn work(into: &Path, pieces: mpsc::Receiver<Bytes>) -> io::Result<()> {
    let mut decoder = Decoder::new(Pieces {
        pieces,
        piece: Bytes::new(),
    })?;
    let destination = Destination::new(into)?;
    let mut archive = Archive::new(&mut decoder);
    archive.set_preserve_mtime(false);
    for entry in archive.entries()? {
        destination.unpack(entry?)?;
    }
    // What is after the tar's end, so that the checksum is checked.
    io::copy(&mut decoder, &mut io::sink()).map(drop)
}

/// Where files are unpacked to.
struct Destination {
    root: PathBuf,
    /// Where the link `pg_wal` leads to, if it is one.
    wal: Option<PathBuf>,
}

impl Destination {
    fn new(root: &Path) -> io::Result<Self> {
        let wal = root.join(WAL);
        let wal = match wal.is_symlink() {
            true => Some(wal.canonicalize()?),
            false => None,
        };
        let root = root.to_owned();
        Ok(Self { root, wal })
    }

    fn unpack(&self, mut entry: Entry<impl Read>) -> io::Result<()> {
        let path = entry.path()?.into_owned();
        let is_inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        let kind = entry.header().entry_type();
        if !path.components().all(is_inside) || !(kind.is_file() || kind.is_dir() || kind.is_symlink()) {
            return Err(refused(&path));
        }
        let path: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
        match (&self.wal, path.strip_prefix(WAL)) {
            (Some(wal), Ok(rest)) if rest.as_os_str().is_empty() => fs::create_dir_all(wal),
            (Some(wal), Ok(rest)) => unpack_into(&mut entry, wal, rest),
            _ => {
                // Two parts may need the same directory at the same time.
                fs::create_dir_all(self.root.join(path.parent().unwrap_or(Path::new(""))))?;
                match entry.unpack_in(&self.root)? {
                    true => Ok(()),
                    false => Err(refused(&path)),
                }
            }
        }
    }
}

/// Unpacks a directory or a file of `pg_wal`.
fn unpack_into(entry: &mut Entry<impl Read>, wal: &Path, rest: &Path) -> io::Result<()> {
    let path = wal.join(rest);
    fs::create_dir_all(path.parent().unwrap_or(wal))?;
    entry.unpack(path).map(drop)
}

fn refused(path: &Path) -> io::Error {
    io::Error::other(format!("{} is nothing that a backup may hold", path.display()))
}

/// Reads pieces as they come.
struct Pieces {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let bytes = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..bytes]);
        Ok(bytes)
    }
}

async fn write_manifest(store: &Store, name: String, to: PathBuf) -> Result<(), BaseError> {
    let stored = store
        .read(&name, LIMIT)
        .await
        .map_err(|problem| unread(&name, problem))?;
    let write = move || {
        let mut options = fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.write(true).create(true).truncate(true).open(to)?;
        zstd::stream::copy_decode(&stored[..], file)
    };
    let written = spawn_blocking(write).await?;
    written.map_err(|error| BaseError::Unpack { name, error })
}
