//! The object of a WAL segment: a zstd skippable frame with a JSON header, then a zstd frame with a checksum.
//!
//! `zstd -d` skips the header, so that a segment can be restored by hand. All that may be encrypted with age; then the header stands also,
//! readable, in the header of age, so that any primary can compare what is stored without a key.

use std::fmt::Write as _;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use crate::crypt::{decrypt_all, read_note};
use crate::{HEADER, Identities, Recipients};

/// Where a segment comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// The database system identifier. A text: JSON's numbers are too small for it.
    pub system_id: String,
    /// The timeline.
    pub timeline: u32,
    /// The file's name, 24 hexadecimal digits.
    pub segment: String,
    /// The epoch of the primary that archives it.
    pub epoch: u64,
    /// The UID of the pod that archives it.
    pub pod_uid: String,
}

/// What the object says of itself. Fields that are not known are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// The version of the format, [`VERSION`].
    pub v: u32,
    /// Where the segment comes from.
    #[serde(flatten)]
    pub origin: Origin,
    /// SHA-256 of the segment, in hexadecimal digits.
    pub raw_sha256: String,
    /// Bytes of the segment.
    pub raw_len: u64,
}

/// The only version of the format so far.
pub const VERSION: u32 = 1;
/// The first of sixteen magic numbers of skippable frames (RFC 8878, 3.1.2), least significant byte first.
const SKIPPABLE: [u8; 4] = 0x184D_2A50_u32.to_le_bytes();
/// The magic number and the length.
const BEFORE_JSON: usize = 8;
/// PostgreSQL's largest segment. A larger length in a header is damage, and no memory is allocated for it.
const LARGEST: u64 = 1 << 30;

/// Why bytes are no object of a segment.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The header is missing or cut off.
    #[error("this is no WAL segment of this store: {0}")]
    Header(String),
    /// Written by a later version.
    #[error("format {0} is not known: a later version wrote it")]
    Version(u32),
    /// zstd cannot compress or decompress it.
    #[error("zstd")]
    Zstd(#[from] std::io::Error),
    /// It cannot be encrypted or decrypted.
    #[error("encrypt or decrypt")]
    Encryption(#[source] std::io::Error),
    /// The content is not what the header says.
    #[error("the content is damaged: {0}")]
    Content(String),
}

impl Header {
    /// The header of the object for this segment.
    pub fn new(origin: Origin, raw: &[u8]) -> Self {
        Self {
            v: VERSION,
            origin,
            raw_sha256: hex_sha256(raw),
            raw_len: raw.len() as u64,
        }
    }

    /// True if both are of the same bytes of the same segment, whoever archived them.
    pub fn is_same_content(&self, other: &Self) -> bool {
        let content = |header: &Self| {
            let origin = &header.origin;
            (
                origin.system_id.clone(),
                origin.timeline,
                origin.segment.clone(),
                header.raw_len,
            )
        };
        content(self) == content(other) && self.raw_sha256 == other.raw_sha256
    }

    /// True if the stored object, of which these are the first bytes, has the same content. For
    /// [`crate::Compare::Header`].
    pub fn is_same_as_stored(&self, stored: &[u8]) -> bool {
        read_header(stored).is_ok_and(|stored| self.is_same_content(&stored))
    }
}

/// The object for `raw`, whose header is `header`, encrypted if there are recipients. `level` is zstd's: 1 is fast, 19 is small.
///
/// # Errors
/// Fails if the header is too large for [`HEADER`] bytes, or zstd or the encryption fails.
pub fn encode(
    header: &Header,
    raw: &[u8],
    level: i32,
    recipients: Option<&Recipients>,
) -> Result<Vec<u8>, SegmentError> {
    let object = compress(header, raw, level)?;
    let Some(recipients) = recipients else {
        return Ok(object);
    };
    let json = serde_json::to_vec(header).map_err(|error| SegmentError::Header(error.to_string()))?;
    let encrypted = recipients.encrypt_all(Some(&json), &object);
    let encrypted = encrypted.map_err(SegmentError::Encryption)?;
    match read_note(&encrypted[..HEADER.min(encrypted.len())]) {
        Some(_) => Ok(encrypted),
        None => Err(SegmentError::Header(
            "with so many recipients it is too long".to_owned(),
        )),
    }
}

fn compress(header: &Header, raw: &[u8], level: i32) -> Result<Vec<u8>, SegmentError> {
    let json = serde_json::to_vec(header).map_err(|error| SegmentError::Header(error.to_string()))?;
    let length = u32::try_from(json.len())
        .ok()
        .filter(|_| json.len() + BEFORE_JSON <= HEADER);
    let length = length.ok_or_else(|| SegmentError::Header(format!("its header has {} bytes", json.len())))?;
    let mut zstd = Compressor::new(level)?;
    zstd.set_parameter(CParameter::ChecksumFlag(true))?;
    let mut object = Vec::with_capacity(BEFORE_JSON + json.len() + zstd::zstd_safe::compress_bound(raw.len()));
    object.extend(SKIPPABLE);
    object.extend(length.to_le_bytes());
    object.extend(json);
    let begin = object.len();
    // zstd writes behind the header, without a copy.
    let mut target = std::io::Cursor::new(object);
    target.set_position(begin as u64);
    zstd.compress_to_buffer(raw, &mut target)?;
    Ok(target.into_inner())
}

/// The header of an object of which at least the first [`HEADER`] bytes are given.
///
/// # Errors
/// Fails if there is no header, or one of a later version.
pub fn read_header(object: &[u8]) -> Result<Header, SegmentError> {
    match read_note(object) {
        Some(json) => parse_header(&json),
        None => parse(object).map(|(header, _)| header),
    }
}

/// The segment in an object, after its length and hash were checked. `identities` open it if it is encrypted.
///
/// # Errors
/// Fails if the object is no segment, is of a later version, is damaged, or cannot be opened.
pub fn decode(object: &[u8], identities: Option<&Identities>) -> Result<(Header, Vec<u8>), SegmentError> {
    let object = decrypt_all(object, identities).map_err(SegmentError::Encryption)?;
    let (header, compressed) = parse(&object)?;
    let capacity = usize::try_from(header.raw_len)
        .ok()
        .filter(|_| header.raw_len <= LARGEST);
    let capacity = capacity.ok_or_else(|| SegmentError::Content(format!("it has {} bytes", header.raw_len)))?;
    let raw = Decompressor::new()?.decompress(compressed, capacity)?;
    if raw.len() != capacity {
        return Err(SegmentError::Content(format!(
            "{} bytes instead of {capacity}",
            raw.len()
        )));
    }
    match hex_sha256(&raw) {
        found if found == header.raw_sha256 => Ok((header, raw)),
        found => Err(SegmentError::Content(format!(
            "SHA-256 {found} instead of {}",
            header.raw_sha256
        ))),
    }
}

fn parse(object: &[u8]) -> Result<(Header, &[u8]), SegmentError> {
    let cut_off = || SegmentError::Header("its header is cut off".to_owned());
    let rest = object
        .strip_prefix(&SKIPPABLE)
        .ok_or_else(|| SegmentError::Header("it begins otherwise".to_owned()))?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut_off)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (json, compressed) = rest.split_at_checked(length).ok_or_else(cut_off)?;
    Ok((parse_header(json)?, compressed))
}

fn parse_header(json: &[u8]) -> Result<Header, SegmentError> {
    let wrong = |error: serde_json::Error| SegmentError::Header(error.to_string());
    // The version first: another one may have other fields.
    let Version { v } = serde_json::from_slice(json).map_err(wrong)?;
    match v {
        VERSION => serde_json::from_slice(json).map_err(wrong),
        v => Err(SegmentError::Version(v)),
    }
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

fn hex_sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// Hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    fn origin() -> Origin {
        Origin {
            system_id: "7444444444444444444".to_owned(),
            timeline: 2,
            segment: "00000002000000450000003A".to_owned(),
            epoch: 7,
            pod_uid: "0b1e".to_owned(),
        }
    }

    /// Something between text and noise, like WAL.
    fn raw(length: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(7);
        (0..length)
            .map(|at| if at % 4 == 0 { random.u8(..) } else { (at / 64) as u8 })
            .collect()
    }

    fn encoded(raw: &[u8]) -> (Header, Vec<u8>) {
        let header = Header::new(origin(), raw);
        let object = encode(&header, raw, 1, None).expect("encoded");
        (header, object)
    }

    #[test]
    fn a_segment_is_written_and_read() {
        for length in [0, 1, 1 << 20] {
            let raw = raw(length);
            let (header, object) = encoded(&raw);
            assert_eq!(
                read_header(&object[..object.len().min(HEADER)]).expect("a header"),
                header
            );
            assert_eq!(decode(&object, None).expect("a segment"), (header, raw));
        }
    }

    /// Objects in stores must be readable for ever: this one was written by the first version.
    #[test]
    fn the_format_is_the_first_versions() {
        let (_, object) = encoded(b"wal");
        let json = concat!(
            r#"{"v":1,"systemId":"7444444444444444444","timeline":2,"segment":"00000002000000450000003A","#,
            r#""epoch":7,"podUid":"0b1e","#,
            r#""rawSha256":"27a75a1c9d8f31b0bc4ca4889e25fe6413f00d78d8578a36e4cce1c38c452e45","rawLen":3}"#
        );
        let mut expected = vec![0x50, 0x2A, 0x4D, 0x18, json.len() as u8, 0, 0, 0];
        expected.extend(json.as_bytes());
        // Magic number; one segment with content size and checksum; one raw block; the checksum.
        expected.extend([0x28, 0xB5, 0x2F, 0xFD, 0x24, 3, 25, 0, 0]);
        expected.extend(b"wal");
        assert_eq!(
            String::from_utf8_lossy(&object[..expected.len()]),
            String::from_utf8_lossy(&expected)
        );
        assert_eq!(object.len(), expected.len() + 4);
    }

    #[test]
    fn damage_is_noticed() {
        let raw = raw(100_000);
        let (header, object) = encoded(&raw);
        assert!(
            matches!(read_header(&object[1..]), Err(SegmentError::Header(_))),
            "no magic number"
        );
        assert!(
            matches!(read_header(&object[..100]), Err(SegmentError::Header(_))),
            "cut off"
        );
        assert!(decode(&object[..object.len() - 1], None).is_err(), "cut off");
        for at in [200, 300, object.len() / 2, object.len() - 1] {
            let mut object = object.clone();
            object[at] ^= 1;
            assert!(decode(&object, None).is_err(), "byte {at}");
        }
        let wrong = |header: Header| decode(&encode(&header, &raw, 1, None).expect("encoded"), None);
        let short = Header {
            raw_len: 99_999,
            ..header.clone()
        };
        assert!(wrong(short).is_err(), "more than the header says");
        let long = Header {
            raw_len: 100_001,
            ..header.clone()
        };
        assert!(matches!(wrong(long), Err(SegmentError::Content(_))));
        let huge = Header {
            raw_len: u64::MAX,
            ..header.clone()
        };
        assert!(matches!(wrong(huge), Err(SegmentError::Content(_))));
        let other = Header {
            raw_sha256: "00".repeat(32),
            ..header.clone()
        };
        assert!(matches!(wrong(other), Err(SegmentError::Content(_))));
        let later = Header { v: 2, ..header };
        assert!(matches!(wrong(later), Err(SegmentError::Version(2))));
    }

    #[test]
    fn a_header_fits_into_what_is_read_back() {
        let long = Origin {
            pod_uid: "x".repeat(HEADER),
            ..origin()
        };
        assert!(encode(&Header::new(long, b""), b"", 1, None).is_err());
    }

    #[test]
    fn only_the_same_bytes_of_the_same_segment_are_the_same() {
        let (header, object) = encoded(b"wal");
        assert!(header.is_same_as_stored(&object));
        let by_another = Origin {
            epoch: 8,
            pod_uid: "another".to_owned(),
            ..origin()
        };
        assert!(Header::new(by_another, b"wal").is_same_as_stored(&object));
        assert!(!Header::new(origin(), b"WAL").is_same_as_stored(&object));
        let of_another = Origin {
            system_id: "1".to_owned(),
            ..origin()
        };
        assert!(!Header::new(of_another, b"wal").is_same_as_stored(&object));
        let next = Origin {
            segment: "00000002000000450000003B".to_owned(),
            ..origin()
        };
        assert!(!Header::new(next, b"wal").is_same_as_stored(&object));
        assert!(!header.is_same_as_stored(b"something else"));
    }

    #[test]
    fn an_encrypted_segment_is_compared_without_a_key_and_read_with_one() {
        let keys = ["age1tajya78yex7e54lmyq5z89vw4n29epr96nj3f7z3upjpahujeaescwdf4s".to_owned()];
        let recipients = Recipients::parse(&keys).expect("a public key");
        let identities = Identities::parse(
            "AGE-SECRET-KEY-1T299XPA2EYKG75LP4LU6YCRSXFQJHXCF75RDF60Z004VYJZCE4LQY8K4SD",
            "key",
        );
        let identities = identities.expect("a private key");
        let raw = raw(1 << 20);
        let header = Header::new(origin(), &raw);
        let object = || encode(&header, &raw, 1, recipients.as_ref()).expect("encoded");
        let (one, another) = (object(), object());
        assert_ne!(one, another, "the key of each object is another one");
        assert!(header.is_same_as_stored(&one[..HEADER]) && header.is_same_as_stored(&another[..HEADER]));
        let other = Header::new(origin(), &raw[1..]);
        assert!(!other.is_same_as_stored(&one[..HEADER]));
        assert_eq!(
            decode(&one, Some(&identities)).expect("a segment"),
            (header.clone(), raw.clone())
        );
        assert!(matches!(decode(&one, None), Err(SegmentError::Encryption(_))));
        assert!(!one.windows(16).any(|bytes| bytes == &raw[..16]));
    }

    #[test]
    fn the_zstd_program_reads_it() {
        let raw = raw(1 << 20);
        let (_, object) = encoded(&raw);
        let started = Command::new("zstd")
            .arg("-dc")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut program) = started else {
            // Not on this machine. The crate's decoder is the same code.
            assert_eq!(zstd::stream::decode_all(&object[..]).expect("decoded"), raw);
            return;
        };
        let mut input = program.stdin.take().expect("a pipe");
        let writer = std::thread::spawn(move || input.write_all(&object).expect("written"));
        let output = program.wait_with_output().expect("an end");
        writer.join().expect("written");
        assert!(output.status.success() && output.stdout == raw);
    }
}
