//! A strict reader of tar streams, as PostgreSQL writes them.

use bytes::{Bytes, BytesMut};

use super::{BaseError, Source};

/// Tar's unit.
pub(super) const BLOCK: usize = 512;
/// A long name needs at most 4 KiB.
const LARGEST_EXTENSION: u64 = 1 << 20;

/// The tar of a source, member by member.
pub(super) struct Reader<'a, S> {
    source: &'a mut S,
    /// What was read and not yet asked for.
    rest: Bytes,
    raw_bytes: u64,
}

/// A member of a tar, without its content.
#[derive(Debug)]
pub(super) struct Member {
    /// Its blocks before the content: perhaps a long name, and the header.
    pub(super) blocks: Bytes,
    /// Its path; `None` if an extension says it, which no file has that is of interest here.
    pub(super) path: Option<String>,
    /// Bytes of the content.
    pub(super) bytes: u64,
}

impl Member {
    /// Bytes of the content and what fills its last block.
    pub(super) fn padded_bytes(&self) -> u64 {
        self.bytes.next_multiple_of(BLOCK as u64)
    }
}

impl<'a, S: Source> Reader<'a, S> {
    pub(super) fn new(source: &'a mut S) -> Self {
        Self {
            source,
            rest: Bytes::new(),
            raw_bytes: 0,
        }
    }

    /// Bytes read so far.
    pub(super) fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// The next member; `None` at the end of the tar. The content of the last one must have been read.
    pub(super) async fn next(&mut self) -> Result<Option<Member>, BaseError> {
        let mut blocks = BytesMut::new();
        loop {
            let block = self.exact(BLOCK).await?;
            if is_zero(&block) {
                let end = self.exact(BLOCK).await?;
                return match blocks.is_empty() && is_zero(&end) {
                    true => Ok(None),
                    false => Err(wrong("it ends in the middle")),
                };
            }
            let header = Header::parse(&block)?;
            let is_extended = !blocks.is_empty();
            blocks.extend_from_slice(&block);
            match header.kind {
                b'x' | b'L' | b'K' => blocks.extend_from_slice(&self.extension(&header).await?),
                _ => {
                    return Ok(Some(Member {
                        blocks: blocks.freeze(),
                        path: header.path.filter(|_| !is_extended),
                        bytes: header.bytes,
                    }));
                }
            }
        }
    }

    /// The content of a block that says more of the member after it.
    async fn extension(&mut self, header: &Header) -> Result<Bytes, BaseError> {
        if header.bytes > LARGEST_EXTENSION {
            return Err(wrong("a name is too long"));
        }
        let content = self.exact((header.bytes as usize).next_multiple_of(BLOCK)).await?;
        // The size in the header would not count.
        match header.kind == b'x' && content.windows(6).any(|text| text == b" size=") {
            true => Err(wrong("a size stands in an extension")),
            false => Ok(content),
        }
    }

    /// The next bytes, at least one and at most `most`.
    pub(super) async fn piece(&mut self, most: u64) -> Result<Bytes, BaseError> {
        if self.rest.is_empty() && !self.read().await? {
            return Err(wrong("it is cut off"));
        }
        let bytes = self.rest.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(self.rest.split_to(bytes))
    }

    /// Reads what comes after the tar's end, which is nothing of interest.
    pub(super) async fn drain(mut self) -> Result<(), BaseError> {
        while self.read().await? {}
        Ok(())
    }

    async fn exact(&mut self, bytes: usize) -> Result<Bytes, BaseError> {
        let first = self.piece(bytes as u64).await?;
        if first.len() == bytes {
            return Ok(first);
        }
        let mut all = BytesMut::from(first);
        while all.len() < bytes {
            all.extend_from_slice(&self.piece((bytes - all.len()) as u64).await?);
        }
        Ok(all.freeze())
    }

    /// Reads more; false at the end.
    async fn read(&mut self) -> Result<bool, BaseError> {
        let piece = self.source.tar().await.map_err(BaseError::Read)?;
        self.rest = piece.unwrap_or_default();
        self.raw_bytes += self.rest.len() as u64;
        Ok(!self.rest.is_empty())
    }
}

struct Header {
    /// `None` if it is no UTF-8.
    path: Option<String>,
    bytes: u64,
    kind: u8,
}

impl Header {
    fn parse(block: &[u8]) -> Result<Self, BaseError> {
        if &block[257..262] != b"ustar" {
            return Err(wrong("a header is not ustar"));
        }
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        let own: u64 = block[148..156].iter().map(|byte| u64::from(*byte)).sum();
        if number(&block[148..156]) != Some(sum - own + 8 * u64::from(b' ')) {
            return Err(wrong("a header's sum does not fit"));
        }
        let bytes = number(&block[124..136]).ok_or_else(|| wrong("a size is no number"))?;
        let kind = block[156];
        match kind {
            b'0' | 0 | b'x' | b'L' | b'K' => {}
            // Links and directories.
            b'1' | b'2' | b'5' if bytes == 0 => {}
            kind => return Err(wrong(&format!("a member of kind {:?}", char::from(kind)))),
        }
        let has_prefix = block[345] != 0 && &block[257..263] == b"ustar\0";
        let path = String::from_utf8(until_zero(&block[..100]).to_vec()).ok();
        Ok(Self {
            path: path.filter(|_| !has_prefix),
            bytes,
            kind,
        })
    }
}

/// A number in a header: octal digits, or, for large ones, binary.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] == 0x80 {
        let (high, low) = field[1..].split_at(field.len() - 9);
        let low: [u8; 8] = low.try_into().ok()?;
        return is_zero(high).then_some(u64::from_be_bytes(low));
    }
    let text = std::str::from_utf8(until_zero(field)).ok()?.trim_matches(' ');
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => u64::from_str_radix(text, 8).ok(),
        false => None,
    }
}

fn until_zero(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn wrong(words: &str) -> BaseError {
    BaseError::Tar(words.to_owned())
}

#[cfg(test)]
#[path = "tar_tests.rs"]
mod tests;
