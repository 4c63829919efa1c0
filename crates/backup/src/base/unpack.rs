//! Unpacks a base backup into a directory.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use ring::digest::{Context, SHA256};
use tar::Archive;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use zstd::stream::read::Decoder;

use super::copies::MANIFEST;
use super::files::{Destination, fill};
use super::info::object_of;
use super::manifest::Manifest;
use super::{BackupInfo, BaseError, LIMIT, Part};
use crate::crypt::decrypt_all;
use crate::layout::{BackupFile, ClusterFolder, plain};
use crate::{Identities, Problem, Store};

/// Parts that are unpacked at the same time: one waits for the store while the other writes.
const PARTS: usize = 2;
/// Bytes of the tar that go from the thread that decompresses to the one that writes.
const BLOCKS: usize = 256 << 10;
/// So many of these wait for the thread that writes.
const WAITING: usize = 8;

/// Unpacks a backup into `into`, which exists, and compares each file with the backup's manifest. Files that are there
/// are replaced. `identities` open it if it is encrypted. `progress` is called with the bytes of the store that were read
/// so far.
///
/// Permissions are the backup's; the owner is the user of this process. If `pg_wal` is a link to a directory, it stays,
/// and the directory gets what is in the backup's `pg_wal`. Memory: ten pieces of [`crate::PIECE`] bytes, and the
/// manifest: about 400 bytes for each file of the database.
///
/// # Errors
/// Fails with [`BaseError::Missing`] or [`BaseError::Damaged`] for a part that is not as `backup.json` says, with
/// [`BaseError::Manifest`] if the manifest is damaged or names files that the backup does not have, and with
/// [`BaseError::Unpack`] if a file is not as the manifest says, cannot be written or would be outside of `into`.
pub async fn unpack(
    store: &Store,
    folder: &ClusterFolder,
    line: u32,
    info: &BackupInfo,
    identities: Option<&Arc<Identities>>,
    into: &Path,
    progress: impl Fn(u64),
) -> Result<(), BaseError> {
    // Others are not needed.
    let identities = identities.filter(|_| !info.recipients.is_empty());
    let name = object_of(info, folder, line, BackupFile::Manifest);
    let manifest = read_manifest(store, name, identities.cloned(), into.join(MANIFEST)).await?;
    let manifest = &Arc::new(manifest);
    let (read, progress) = (&AtomicU64::new(0), &progress);
    let unpacked = stream::iter(&info.parts)
        .map(Ok)
        .try_for_each_concurrent(PARTS, |part| async move {
            let progress = |bytes| progress(read.fetch_add(bytes, Ordering::Relaxed) + bytes);
            let name = match plain(&part.name).parse() {
                Ok(file @ BackupFile::Part { .. }) => object_of(info, folder, line, file),
                _ => return Err(Problem::Unusable(format!("{:?} is no name of a part", part.name)).into()),
            };
            let destination = Destination::new(into, Arc::clone(manifest));
            unpack_part(store, name, part, identities.cloned(), destination, progress).await
        });
    unpacked.await?;
    manifest.is_complete().map_err(BaseError::Manifest)
}

async fn unpack_part(
    store: &Store,
    name: String,
    part: &Part,
    identities: Option<Arc<Identities>>,
    destination: io::Result<Destination>,
    progress: impl Fn(u64),
) -> Result<(), BaseError> {
    let (sender, pieces) = mpsc::channel(1);
    let (blocks, tar) = mpsc::channel(WAITING);
    let decompressing = spawn_blocking(move || {
        let pieces = Pieces::new(pieces);
        match identities {
            Some(identities) => decompress(identities.decrypt(pieces)?, &blocks),
            None => decompress(pieces, &blocks),
        }
    });
    let writing = spawn_blocking(move || write(destination?, Pieces::new(tar)));
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
    let (decompressed, written) = (decompressing.await?, writing.await?);
    let sha256 = crate::segment::hex(hash.finish().as_ref());
    if bytes != part.stored_bytes || sha256 != part.sha256 {
        let found = format!(
            "{bytes} bytes with SHA-256 {sha256} instead of {} with {}",
            part.stored_bytes, part.sha256
        );
        return Err(BaseError::Damaged { name, found });
    }
    // If the writing ends early, so does the decompressing.
    let worked = written.and(decompressed);
    worked.map_err(|error| BaseError::Unpack { name, error })
}

fn unread(name: &str, problem: Problem) -> BaseError {
    match problem {
        Problem::NotFound(_) => BaseError::Missing(name.to_owned()),
        problem => problem.into(),
    }
}

/// Decompresses a part to its end, where zstd's checksum is.
fn decompress(stored: impl Read, tar: &mpsc::Sender<Bytes>) -> io::Result<()> {
    let mut decoder = Decoder::new(stored)?;
    loop {
        let mut block = BytesMut::zeroed(BLOCKS);
        let bytes = fill(&mut decoder, &mut block)?;
        if bytes == 0 {
            return Ok(());
        }
        block.truncate(bytes);
        let sent = tar.blocking_send(block.freeze());
        sent.map_err(|_| io::Error::other("nobody takes what is decompressed"))?;
    }
}

/// Writes the files of a tar.
fn write(mut destination: Destination, mut tar: Pieces) -> io::Result<()> {
    for entry in Archive::new(&mut tar).entries()? {
        destination.unpack(entry?)?;
    }
    // What is after the tar's end.
    io::copy(&mut tar, &mut io::sink()).map(drop)
}

/// Reads pieces as they come.
struct Pieces {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Pieces {
    fn new(pieces: mpsc::Receiver<Bytes>) -> Self {
        let piece = Bytes::new();
        Self { pieces, piece }
    }
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

/// Finds out if the identities open a backup, which may be encrypted.
///
/// # Errors
/// Fails with [`Problem::Key`] if they do not, and as [`Store::read`].
pub async fn check_key(
    store: &Store,
    folder: &ClusterFolder,
    line: u32,
    info: &BackupInfo,
    identities: Option<&Identities>,
    limit: Duration,
) -> Result<(), Problem> {
    if info.recipients.is_empty() {
        return Ok(());
    }
    let label = store
        .read(&object_of(info, folder, line, BackupFile::Label), limit)
        .await?;
    let opened = decrypt_all(&label, identities).map(drop);
    opened.map_err(|error| {
        Problem::Key(format!(
            "backup {}, which is encrypted to {}, cannot be opened: {error}",
            info.name,
            info.recipients.join(", ")
        ))
    })
}

/// Reads the manifest, and leaves a copy of it for PostgreSQL's own program.
async fn read_manifest(
    store: &Store,
    name: String,
    identities: Option<Arc<Identities>>,
    to: PathBuf,
) -> Result<Manifest, BaseError> {
    let stored = store
        .read(&name, LIMIT)
        .await
        .map_err(|problem| unread(&name, problem))?;
    let work = move || {
        let stored = decrypt_all(&stored, identities.as_deref())?;
        let content = zstd::stream::decode_all(&stored[..])?;
        let mut options = fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.write(true).create(true).truncate(true).open(to)?;
        io::Write::write_all(&mut file, &content)?;
        Ok::<_, io::Error>(Manifest::parse(&content))
    };
    match spawn_blocking(work).await? {
        Ok(parsed) => parsed.map_err(BaseError::Manifest),
        Err(error) => Err(BaseError::Unpack { name, error }),
    }
}
