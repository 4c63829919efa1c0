//! WAL that a standby needs, from the archive. PostgreSQL does not run meanwhile, and finds it in `pg_wal` when it starts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use backup::Place;
use backup::layout::{LineObject, Object};
use futures::{StreamExt, TryStreamExt, stream};
use machine::archive::{ArchiveLine, Fetch, Segment};
use machine::units::Bytes;

use super::source::{Source, segment_content};
use super::worker::room;
use crate::volume::{segment_size, write_atomically};

/// PostgreSQL replays what was fetched by then, and more is fetched after that: an election may need this member.
const LONG_ENOUGH: Duration = Duration::from_secs(30);
/// The same in bytes: the volume must have room for what is not replayed yet.
const MUCH_ENOUGH: Bytes = Bytes::gib(1);
/// Time limit of one request.
const LIMIT: Duration = Duration::from_secs(10);
/// So many segments are fetched beside each other, and so many bytes of them.
const AT_ONCE: u64 = 4;
const IN_MEMORY: u64 = 64 << 20;
/// So much of the volume stays free.
const SPARE: u64 = 256 << 20;

/// Where this database's WAL is archived.
pub(crate) struct Archive {
    pub(crate) place: Place,
    pub(crate) folder: String,
    pub(crate) line: ArchiveLine,
    pub(crate) access: PathBuf,
    pub(crate) system_id: String,
}

/// Writes the segments into `wal`, from the first one on without a gap, as many as [`LONG_ENOUGH`] and [`MUCH_ENOUGH`] allow.
///
/// # Errors
/// Fails if not even the first one can be had.
pub(crate) async fn fetch(archive: &Archive, wal: &Path, fetch: &Fetch) -> anyhow::Result<()> {
    let size = Bytes(segment_size(wal).context("find the size of a segment")?);
    let source = &Source::open(&archive.place, &archive.access, None, &archive.folder)?;
    let most = usize::try_from(MUCH_ENOUGH.0 / size.0.max(1))
        .unwrap_or(usize::MAX)
        .max(1);
    let at_once = usize::try_from((IN_MEMORY / size.0.max(1)).clamp(1, AT_ONCE)).unwrap_or(1);
    let begun = tokio::time::Instant::now();
    let one = |segment: Segment| async move { read(source, archive, segment, size).await };
    let mut read = stream::iter(fetch.segments(size).take(most)).map(one).buffered(at_once);
    let mut written = 0_usize;
    while begun.elapsed() < LONG_ENOUGH {
        let next = match has_room(wal, size) {
            Ok(()) => read.try_next().await,
            Err(error) => Err(error),
        };
        match next {
            Ok(Some((name, content))) => {
                let path = wal.join(&name);
                let write = tokio::task::spawn_blocking(move || write_atomically(&path, &content, 0o600));
                write.await?.with_context(|| format!("write {name}"))?;
                written += 1;
            }
            Ok(None) => break,
            Err(error) if written == 0 => return Err(error),
            Err(error) => {
                tracing::warn!("no more WAL is fetched from the archive: {error:#}");
                break;
            }
        }
    }
    tracing::info!("{written} segments of WAL were fetched from the archive");
    Ok(())
}

/// Fails if the volume would be too full.
fn has_room(wal: &Path, size: Bytes) -> anyhow::Result<()> {
    let left = room(wal, Bytes::ZERO).context("measure the volume")?.left;
    anyhow::ensure!(left.0 >= SPARE.saturating_add(size.0), "only {left} are free");
    Ok(())
}

/// A segment's name and content.
async fn read(source: &Source, archive: &Archive, segment: Segment, size: Bytes) -> anyhow::Result<(String, Vec<u8>)> {
    let name = segment.name(size);
    let object = source
        .folder
        .name(Object::Line(archive.line.0, LineObject::Segment(name.parse()?)));
    let stored = source.store.read(&object.to_string(), LIMIT).await?;
    let system_id = archive.system_id.clone();
    let decode = move || {
        let content = segment_content(&stored, &name, &system_id, size, None).with_context(|| name.clone())?;
        Ok((name, content))
    };
    tokio::task::spawn_blocking(decode).await?
}
