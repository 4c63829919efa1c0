//! One part on its way into the store.

use std::io::{self, Write};

use bytes::{Bytes, BytesMut};
use ring::digest::{Context, SHA256};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};
use zstd::stream::write::Encoder;

use super::{BaseError, Part};
use crate::{PIECE, Recipients, Upload};

/// zstd's fastest level that is worth its name.
const LEVEL: i32 = 1;
/// Bytes of the tar that are handed to the compressor at once.
const BATCH: usize = 256 << 10;
/// Batches that wait for the compressor.
const WAITING: usize = 4;
/// What ends a tar.
const END: [u8; 1024] = [0; 1024];

/// A part that is being written. If it is dropped before [`PartWriter::finish`], no object appears.
pub(super) struct PartWriter {
    /// Blocks of the tar; none at all say that the part is complete.
    batches: mpsc::Sender<Vec<Bytes>>,
    batch: Vec<Bytes>,
    batch_bytes: usize,
    stored: JoinHandle<Result<Part, BaseError>>,
    raw_bytes: u64,
}

impl PartWriter {
    /// Begins it. Its compressor, which also encrypts, has a thread, its upload a task.
    pub(super) fn begin(upload: Upload, name: String, recipients: Option<Recipients>) -> Self {
        let (batches, blocks) = mpsc::channel(WAITING);
        Self {
            batches,
            batch: Vec::new(),
            batch_bytes: 0,
            stored: tokio::spawn(store(upload, name, blocks, recipients)),
            raw_bytes: 0,
        }
    }

    /// Bytes written so far.
    pub(super) fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Takes blocks of the tar. If it returns false, the part has failed: [`PartWriter::finish`] says why.
    pub(super) async fn write(&mut self, blocks: Bytes) -> bool {
        self.raw_bytes += blocks.len() as u64;
        self.batch_bytes += blocks.len();
        self.batch.push(blocks);
        if self.batch_bytes < BATCH {
            return true;
        }
        self.batch_bytes = 0;
        !self.stored.is_finished() && self.batches.send(std::mem::take(&mut self.batch)).await.is_ok()
    }

    /// Ends the tar and waits until it is stored.
    pub(super) async fn finish(self) -> Result<Part, BaseError> {
        // If nobody takes them, the result says why.
        if !self.batch.is_empty() {
            let _ = self.batches.send(self.batch).await;
        }
        let _ = self.batches.send(Vec::new()).await;
        self.stored.await?
    }
}

async fn store(
    mut upload: Upload,
    name: String,
    blocks: mpsc::Receiver<Vec<Bytes>>,
    recipients: Option<Recipients>,
) -> Result<Part, BaseError> {
    let (sender, mut pieces) = mpsc::channel(1);
    let compressing = spawn_blocking(move || pack(blocks, sender, recipients.as_ref()));
    while let Some(piece) = pieces.recv().await {
        if let Err(problem) = upload.write(piece).await {
            upload.abort().await;
            return Err(problem.into());
        }
    }
    match compressing
        .await
        .map(|compressed| compressed.map_err(BaseError::Compress))
    {
        Ok(Ok(part)) => {
            upload.finish().await?;
            Ok(Part { name, ..part })
        }
        Ok(Err(error)) => {
            upload.abort().await;
            Err(error)
        }
        Err(error) => {
            upload.abort().await;
            Err(error.into())
        }
    }
}

/// Compresses and encrypts blocks until they end. Returns the part without its name.
fn pack(
    blocks: mpsc::Receiver<Vec<Bytes>>,
    pieces: mpsc::Sender<Bytes>,
    recipients: Option<&Recipients>,
) -> io::Result<Part> {
    let pieces = Pieces::new(pieces);
    let (raw_bytes, pieces) = match recipients {
        None => compress(blocks, pieces)?,
        Some(recipients) => {
            let (raw_bytes, encrypted) = compress(blocks, recipients.encrypt(None, pieces)?)?;
            (raw_bytes, encrypted.finish()?)
        }
    };
    let (stored_bytes, sha256) = pieces.finish()?;
    Ok(Part {
        name: String::new(),
        raw_bytes,
        stored_bytes,
        sha256,
    })
}

/// Returns the bytes of the tar, and where they went.
fn compress<W: Write>(mut blocks: mpsc::Receiver<Vec<Bytes>>, output: W) -> io::Result<(u64, W)> {
    let mut encoder = Encoder::new(output, LEVEL)?;
    encoder.include_checksum(true)?;
    let mut raw_bytes = END.len() as u64;
    loop {
        match blocks.blocking_recv() {
            Some(batch) if batch.is_empty() => break,
            Some(batch) => {
                for blocks in batch {
                    encoder.write_all(&blocks)?;
                    raw_bytes += blocks.len() as u64;
                }
            }
            None => return Err(io::Error::other("the part is given up")),
        }
    }
    encoder.write_all(&END)?;
    Ok((raw_bytes, encoder.finish()?))
}

/// Cuts what is to be stored into pieces of [`PIECE`] bytes.
struct Pieces {
    sender: mpsc::Sender<Bytes>,
    piece: BytesMut,
    hash: Context,
    bytes: u64,
}

impl Pieces {
    fn new(sender: mpsc::Sender<Bytes>) -> Self {
        Self {
            sender,
            piece: BytesMut::new(),
            hash: Context::new(&SHA256),
            bytes: 0,
        }
    }

    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.piece).freeze();
        self.hash.update(&piece);
        self.bytes += piece.len() as u64;
        let sent = self.sender.blocking_send(piece);
        sent.map_err(|_| io::Error::other("the upload has failed"))
    }

    fn finish(mut self) -> io::Result<(u64, String)> {
        if !self.piece.is_empty() {
            self.send()?;
        }
        Ok((self.bytes, crate::segment::hex(self.hash.finish().as_ref())))
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.capacity() == 0 {
            self.piece.reserve(PIECE);
        }
        let taken = bytes.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        if self.piece.len() == PIECE {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
