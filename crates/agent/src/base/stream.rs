//! A base backup as PostgreSQL's replication protocol sends it (`BASE_BACKUP`, PostgreSQL 15 and later).
//!
//! `pg_basebackup` is not used here. It waits in the server until WAL is archived, a second at least, and its process
//! costs a quarter of the processor time of a backup.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use backup::base::Source;
use bytes::{Buf, Bytes, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{ErrorFields, Message};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// A local server that takes longer to answer hangs.
const CONNECT: Duration = Duration::from_secs(10);
/// The manifest is a temporary file, which the user's `temp_file_limit` may forbid.
/// Warnings name the files with damaged pages.
const OPTIONS: &str = "-c temp_file_limit=-1 -c statement_timeout=0 -c client_min_messages=warning";
/// Bytes of a buffer. A message of data has some 32 KiB.
const BUFFER: usize = 256 << 10;
/// Buffers that are used in turn: those that wait for the compressor, and one that is filled.
const BUFFERS: usize = 7;
/// A message has its kind and its length first.
const HEADER: usize = 5;
/// The last warnings of the server that are kept.
const WARNINGS: usize = 5;
/// PostgreSQL's code for damaged data.
const DATA_CORRUPTED: &str = "XX001";

/// A copy that has begun. PostgreSQL ends it when this is dropped.
#[derive(Debug)]
pub struct Stream {
    socket: UnixStream,
    buffer: BytesMut,
    /// Memory for what comes next, which is free again once its bytes are compressed.
    others: VecDeque<BytesMut>,
    state: State,
    warnings: VecDeque<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Tar,
    Manifest,
    Ended,
}

/// PostgreSQL has ended the copy.
#[derive(Debug, thiserror::Error)]
#[error("PostgreSQL says: {message}")]
pub struct Refused {
    code: String,
    message: String,
}

impl Refused {
    fn new(fields: ErrorFields<'_>) -> Self {
        let [code, message] = texts(fields, [b'C', b'M']);
        Self { code, message }
    }

    /// Whether the server has found pages with wrong checksums. It has sent everything by then.
    pub(super) fn is_of_damage(&self) -> bool {
        self.code == DATA_CORRUPTED
    }
}

/// The fields of a message of the server that have these types.
fn texts<const N: usize>(mut fields: ErrorFields<'_>, types: [u8; N]) -> [String; N] {
    let mut found = [const { String::new() }; N];
    while let Ok(Some(field)) = fields.next() {
        if let Some(at) = types.iter().position(|of| *of == field.type_()) {
            found[at] = String::from_utf8_lossy(field.value_bytes()).into_owned();
        }
    }
    found
}

impl Stream {
    /// Begins a copy of the server whose socket is in `directory`, as the system user that it runs as. It waits for a
    /// checkpoint, but not until the WAL that belongs to the copy is archived. With `verifies` the server looks at the
    /// checksums of all pages.
    ///
    /// # Errors
    /// Fails if the server refuses it, or hangs at first.
    pub async fn begin(directory: &Path, port: u16, verifies: bool) -> anyhow::Result<Self> {
        let socket = directory.join(format!(".s.PGSQL.{port}"));
        let socket = timeout(CONNECT, UnixStream::connect(socket)).await;
        let mut stream = Self {
            socket: socket.context("PostgreSQL hangs")?.context("connect to PostgreSQL")?,
            buffer: BytesMut::with_capacity(BUFFER),
            others: (1..BUFFERS).map(|_| BytesMut::new()).collect(),
            state: State::Tar,
            warnings: VecDeque::new(),
        };
        timeout(CONNECT, stream.start_up())
            .await
            .context("PostgreSQL hangs")??;
        let command = format!(
            "BASE_BACKUP (LABEL 'base backup', CHECKPOINT 'fast', WAIT false, MANIFEST 'yes', TABLESPACE_MAP, \
             VERIFY_CHECKSUMS {verifies})"
        );
        stream.send(|buffer| frontend::query(&command, buffer)).await?;
        loop {
            match stream.message().await? {
                Message::CopyOutResponse(_) => return Ok(stream),
                // Where the WAL begins, and the tablespaces.
                Message::RowDescription(_) | Message::DataRow(_) | Message::CommandComplete(_) => {}
                _ => bail!("PostgreSQL answers with no copy"),
            }
        }
    }

    async fn start_up(&mut self) -> anyhow::Result<()> {
        let parameters = [
            ("user", "postgres"),
            ("replication", "true"),
            ("application_name", "cdb_base_backup"),
            ("options", OPTIONS),
        ];
        self.send(|buffer| frontend::startup_message(parameters, buffer))
            .await?;
        loop {
            match self.message().await? {
                Message::ReadyForQuery(_) => return Ok(()),
                Message::AuthenticationOk | Message::ParameterStatus(_) | Message::BackendKeyData(_) => {}
                _ => bail!("PostgreSQL asks its own system user for a password"),
            }
        }
    }

    /// The server's last warnings, the newest first.
    pub(super) fn warnings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().map(String::as_str)
    }

    async fn send(&mut self, write: impl FnOnce(&mut BytesMut) -> io::Result<()>) -> io::Result<()> {
        let mut buffer = BytesMut::new();
        write(&mut buffer)?;
        self.socket.write_all(&buffer).await
    }

    /// The next message that is no warning. An error is returned as [`Refused`].
    async fn message(&mut self) -> io::Result<Message> {
        loop {
            let whole = match self.buffer.get(1..HEADER) {
                Some(mut length) => length.get_u32() as usize + 1,
                None => HEADER,
            };
            if self.buffer.len() < whole {
                self.read(whole).await?;
                continue;
            }
            match Message::parse(&mut self.buffer)? {
                Some(Message::ErrorResponse(error)) => return Err(io::Error::other(Refused::new(error.fields()))),
                Some(Message::NoticeResponse(notice)) => self.note(notice.fields()),
                Some(message) => return Ok(message),
                None => return Err(wrong()),
            }
        }
    }

    fn note(&mut self, fields: ErrorFields<'_>) {
        let [severity, message] = texts(fields, [b'V', b'M']);
        eprintln!("PostgreSQL says: {severity}: {message}");
        if severity == "WARNING" {
            self.warnings.truncate(WARNINGS - 1);
            self.warnings.push_front(message);
        }
    }

    /// Reads more of a message that has so many bytes.
    async fn read(&mut self, whole: usize) -> io::Result<()> {
        if whole > BUFFER {
            return Err(wrong());
        }
        if self.buffer.capacity() < whole {
            let mut next = self.others.pop_front().unwrap_or_default();
            next.clear();
            // It is the same memory as before if nobody has its bytes any more.
            next.reserve(BUFFER);
            next.extend_from_slice(&self.buffer);
            self.others.push_back(std::mem::replace(&mut self.buffer, next));
        }
        match self.socket.read_buf(&mut self.buffer).await? {
            0 => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "PostgreSQL has ended the connection",
            )),
            _ => Ok(()),
        }
    }

    /// The next data of what is sent now, and `None` at its end.
    async fn data(&mut self) -> io::Result<Option<Bytes>> {
        let now = self.state;
        while self.state == now && now != State::Ended {
            match self.message().await? {
                Message::CopyData(data) => match take(data.into_bytes())? {
                    Taken::Data(data) if data.is_empty() => {}
                    Taken::Data(data) => return Ok(Some(data)),
                    Taken::Manifest => self.state = State::Manifest,
                    Taken::Other => {}
                },
                Message::ReadyForQuery(_) => self.state = State::Ended,
                // Where the WAL ends: the manifest says it, too.
                Message::CopyDone
                | Message::ParameterStatus(_)
                | Message::RowDescription(_)
                | Message::DataRow(_)
                | Message::CommandComplete(_) => {}
                _ => return Err(wrong()),
            }
        }
        Ok(None)
    }
}

impl Source for Stream {
    async fn tar(&mut self) -> io::Result<Option<Bytes>> {
        self.data().await
    }

    async fn manifest(&mut self) -> io::Result<Option<Bytes>> {
        self.data().await
    }
}

/// What a message of the copy says.
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Data(Bytes),
    /// From here on it is the manifest.
    Manifest,
    Other,
}

fn take(mut message: Bytes) -> io::Result<Taken> {
    match message.try_get_u8() {
        Ok(b'd') => Ok(Taken::Data(message)),
        Ok(b'm') => Ok(Taken::Manifest),
        // How far it is.
        Ok(b'p') => Ok(Taken::Other),
        // A new tar: its name, and the place of its tablespace. The data directory has no such place.
        Ok(b'n') => match message.split(|byte| *byte == 0).nth(1) {
            Some(b"") => Ok(Taken::Other),
            Some(place) => Err(io::Error::other(format!(
                "there is a tablespace in {}: backups cannot hold tablespaces yet",
                String::from_utf8_lossy(place)
            ))),
            None => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}

fn wrong() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "PostgreSQL sends what is no base backup of versions 15 to 19",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_copy_are_told_apart() {
        let data = |bytes: &'static [u8]| take(Bytes::from_static(bytes));
        assert_eq!(data(b"dabc").ok(), Some(Taken::Data("abc".into())));
        assert_eq!(data(b"m").ok(), Some(Taken::Manifest));
        assert_eq!(data(b"p\0\0\0\0\0\0\0\x01").ok(), Some(Taken::Other));
        assert_eq!(data(b"nbase.tar\0\0").ok(), Some(Taken::Other));
        let refused = data(b"n16400.tar\0/srv/fast\0").expect_err("refused");
        assert!(refused.to_string().contains("a tablespace in /srv/fast"), "{refused}");
        for wrong in [&b""[..], b"n", b"nbase.tar", b"x"] {
            assert!(data(wrong).is_err(), "{wrong:?}");
        }
    }
}
