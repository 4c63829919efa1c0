//! Writes a base backup.

use std::time::Duration;

use super::copies::{Copied, Copies, Kind, WalRange};
use super::info::object;
use super::part::PartWriter;
use super::tar::{Member, Reader};
use super::{BackupInfo, BaseError, LIMIT, Origin, Part, Snapshot, Source, VERSION};
use crate::layout::{BackupFile, BackupName, ClusterFolder, stored_name};
use crate::{Compare, Problem, Recipients, Store};
use bytes::Bytes;
use chrono::{DateTime, Utc};

/// The usual size of a part, before it is compressed: 1 GiB.
pub const PART_SIZE: u64 = 1 << 30;

/// Writes one base backup: cuts the tar of a data directory into parts, compresses them, and stores them.
///
/// One part is written at a time. Its memory is fixed: some 2 MiB of the tar, and seven pieces of
/// [`crate::PIECE`] bytes that are compressed, 64 MiB together. The manifest comes on top, compressed: about 30 bytes
/// for each file of the database.
#[derive(Debug)]
pub struct Writer {
    target: Target,
    part_size: u64,
}

/// Where a backup goes, and who may read it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) store: Store,
    pub(super) folder: ClusterFolder,
    pub(super) line: u32,
    pub(super) name: BackupName,
    pub(super) recipients: Option<Recipients>,
    pub(super) limit: Duration,
}

/// A backup whose files are stored. It does not exist before [`Written::commit`].
#[derive(Debug)]
pub struct Written {
    pub(super) target: Target,
    pub(super) parts: Vec<Part>,
    pub(super) ranges: Vec<WalRange>,
    pub(super) start_time: Option<DateTime<Utc>>,
    pub(super) snapshot: Option<Snapshot>,
}

/// What the caller knows of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// UID of the object that asked for it.
    pub uid: String,
    /// The database system identifier.
    pub system_id: String,
    /// The server's `server_version_num`.
    pub server_version: u32,
    /// Bytes of a WAL segment.
    pub wal_segment_size: u64,
    /// When it began. The time in PostgreSQL's label counts instead if its time zone is UTC.
    pub start_time: DateTime<Utc>,
    /// When the server had sent all of it.
    pub stop_time: DateTime<Utc>,
    /// Whose files these are.
    pub source: Option<Origin>,
    /// PostgreSQL has found pages with wrong checksums in these files.
    pub damaged_pages: bool,
}

impl Writer {
    /// A writer of the backup `name`. `part_size` is the size of the parts before they are compressed, usually
    /// [`PART_SIZE`]. A file that is larger makes a larger part.
    pub fn new(store: Store, folder: ClusterFolder, line: u32, name: BackupName, part_size: u64) -> Self {
        let target = Target {
            store,
            folder,
            line,
            name,
            recipients: None,
            limit: LIMIT,
        };
        Self { target, part_size }
    }

    /// The same writer with another time limit of each request.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        let target = Target { limit, ..self.target };
        Self { target, ..self }
    }

    /// The same writer, which encrypts all but `backup.json`.
    #[must_use]
    pub fn with_recipients(self, recipients: Option<Recipients>) -> Self {
        let target = Target {
            recipients,
            ..self.target
        };
        Self { target, ..self }
    }

    /// Stores what PostgreSQL sends. `progress` is called with the bytes read so far.
    ///
    /// # Errors
    /// Fails if it is no complete tar with a label and a manifest, or cannot be stored. There is no backup then,
    /// but parts of it may be in the store.
    pub async fn write(self, source: &mut impl Source, progress: impl Fn(u64)) -> Result<Written, BaseError> {
        let mut reader = Reader::new(source);
        let mut copies = Copies::new()?;
        let mut parts = Parts::new(&self);
        while let Some(member) = reader.next().await? {
            let kind = Kind::of(member.path.as_deref());
            parts.begin_member(&member).await?;
            let (mut left, mut content) = (member.padded_bytes(), member.bytes);
            while left > 0 {
                let piece = reader.piece(left).await?;
                left -= piece.len() as u64;
                let of_content = content.min(piece.len() as u64);
                content -= of_content;
                copies.take(kind, &piece[..of_content as usize])?;
                parts.write(piece).await?;
                progress(reader.raw_bytes());
            }
        }
        reader.drain().await?;
        while let Some(piece) = source.manifest().await.map_err(BaseError::Read)? {
            copies.take_manifest(&piece)?;
        }
        let copied = copies.finish()?;
        let parts = parts.finish().await?;
        self.target.store_copies(&copied).await?;
        Ok(Written {
            target: self.target,
            parts,
            ranges: copied.ranges,
            start_time: copied.start_time,
            snapshot: None,
        })
    }
}

/// The parts of a backup, of which the last is being written.
struct Parts<'a> {
    writer: &'a Writer,
    current: Option<PartWriter>,
    done: Vec<Part>,
}

impl<'a> Parts<'a> {
    fn new(writer: &'a Writer) -> Self {
        Self {
            writer,
            current: None,
            done: Vec::new(),
        }
    }

    /// Begins a new part if the member is too large for the current one.
    async fn begin_member(&mut self, member: &Member) -> Result<(), BaseError> {
        let bytes = member.blocks.len() as u64 + member.padded_bytes();
        let is_full = |part: &PartWriter| part.raw_bytes() > 0 && part.raw_bytes() + bytes > self.writer.part_size;
        if self.current.as_ref().is_some_and(is_full) {
            self.end_part().await?;
        }
        self.write(member.blocks.clone()).await
    }

    async fn write(&mut self, blocks: Bytes) -> Result<(), BaseError> {
        let (writer, number) = (self.writer, self.done.len() as u32 + 1);
        let current = self.current.get_or_insert_with(|| begin_part(writer, number));
        match current.write(blocks).await {
            true => Ok(()),
            false => self.end_part().await,
        }
    }

    async fn end_part(&mut self) -> Result<(), BaseError> {
        if let Some(part) = self.current.take() {
            self.done.push(part.finish().await?);
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<Vec<Part>, BaseError> {
        self.end_part().await?;
        Ok(self.done)
    }
}

fn begin_part(writer: &Writer, number: u32) -> PartWriter {
    let file = BackupFile::Part {
        tablespace: None,
        number,
    };
    let target = &writer.target;
    let name = target.stored_name(file.to_string());
    let object = target.stored_name(target.object(file));
    let upload = target.store.upload(&object, target.limit);
    PartWriter::begin(upload, name, target.recipients.clone())
}

impl Target {
    fn object(&self, file: BackupFile) -> String {
        object(&self.folder, self.line, &self.name, file)
    }

    /// The name in the store of what has this name without encryption.
    fn stored_name(&self, name: String) -> String {
        stored_name(name, self.recipients.is_some())
    }

    async fn store_copies(&self, copied: &Copied) -> Result<(), Problem> {
        self.store_copy(BackupFile::Label, &copied.label).await?;
        if !copied.tablespace_map.is_empty() {
            self.store_copy(BackupFile::TablespaceMap, &copied.tablespace_map)
                .await?;
        }
        self.store_copy(BackupFile::Manifest, &copied.manifest).await
    }

    async fn store_copy(&self, file: BackupFile, content: &Bytes) -> Result<(), Problem> {
        let content = match &self.recipients {
            Some(recipients) => {
                let encrypted = recipients.encrypt_all(None, content);
                encrypted.map_err(|error| Problem::Key(error.to_string()))?.into()
            }
            None => content.clone(),
        };
        self.create(self.stored_name(self.object(file)), content).await
    }

    async fn create(&self, name: String, content: Bytes) -> Result<(), Problem> {
        let created = self.store.create(&name, content, Compare::Bytes, self.limit);
        created.await.map(|_| ())
    }
}

impl Written {
    /// The WAL that the backup needs, in the order of its positions.
    pub fn wal_ranges(&self) -> &[WalRange] {
        &self.ranges
    }

    /// Where replay of WAL must come to before the data are consistent.
    pub fn stop_lsn(&self) -> u64 {
        self.ranges.last().map_or(0, |range| range.stop_lsn)
    }

    /// What its `backup.json` will say.
    pub fn info(&self, about: About) -> BackupInfo {
        let sum = |bytes: fn(&Part) -> u64| self.parts.iter().map(bytes).sum();
        BackupInfo {
            v: VERSION,
            name: self.target.name.clone(),
            uid: about.uid,
            system_id: about.system_id,
            server_version: about.server_version,
            timeline: self.ranges.last().map_or(0, |range| range.timeline),
            start_lsn: self.ranges.first().map_or(0, |range| range.start_lsn),
            stop_lsn: self.stop_lsn(),
            start_time: self.start_time.unwrap_or(about.start_time),
            stop_time: about.stop_time,
            wal_segment_size: about.wal_segment_size,
            recipients: self.target.recipients.as_ref().map_or_else(Vec::new, Recipients::texts),
            raw_bytes: sum(|part| part.raw_bytes),
            stored_bytes: sum(|part| part.stored_bytes),
            source: about.source,
            damaged_pages: about.damaged_pages,
            snapshot: self.snapshot.clone(),
            parts: self.parts.clone(),
        }
    }

    /// Writes `backup.json`: from now on the backup exists. It can be repeated with the same content.
    ///
    /// # Errors
    /// Fails with [`Problem::Conflict`] if another backup has the name. After another problem the backup may exist.
    pub async fn commit(&self, about: About) -> Result<BackupInfo, Problem> {
        let info = self.info(about);
        let content = serde_json::to_vec_pretty(&info).map_err(|error| Problem::Unusable(error.to_string()))?;
        let name = self.target.object(BackupFile::Commit);
        self.target.create(name, content.into()).await?;
        Ok(info)
    }
}
