//! What is kept of a backup beside its parts: the manifest, and the label in the tar that says how the backup begins.

use std::io::Write;

use bytes::Bytes;
use chrono::{DateTime, NaiveDateTime, Utc};
use serde::Deserialize;
use zstd::stream::write::Encoder;

use super::BaseError;
use super::info::lsn;

/// The manifest's file in a data directory.
pub(super) const MANIFEST: &str = "backup_manifest";
const LABEL: &str = "backup_label";
const TABLESPACE_MAP: &str = "tablespace_map";
/// zstd's usual level: the manifest is small.
const LEVEL: i32 = 3;
/// The WAL ranges stand at the manifest's end.
const TAIL: usize = 64 << 10;
/// A label has some 200 bytes, a map 100 for each tablespace.
const LARGEST: usize = 1 << 20;

/// WAL that a backup needs: on `timeline`, from `start_lsn` to just before `stop_lsn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct WalRange {
    /// The timeline.
    #[serde(rename = "Timeline")]
    pub timeline: u32,
    /// Its first byte.
    #[serde(rename = "Start-LSN", with = "lsn")]
    pub start_lsn: u64,
    /// The byte after its last.
    #[serde(rename = "End-LSN", with = "lsn")]
    pub stop_lsn: u64,
}

/// Which member of the tar is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Anything else.
    Data,
    Label,
    TablespaceMap,
}

impl Kind {
    pub(super) fn of(path: Option<&str>) -> Self {
        match path.map(|path| path.trim_start_matches("./")) {
            Some(LABEL) => Self::Label,
            Some(TABLESPACE_MAP) => Self::TablespaceMap,
            _ => Self::Data,
        }
    }
}

/// The copies. The manifest is held compressed: about 30 bytes for each file of the database.
pub(super) struct Copies {
    manifest: Encoder<'static, Vec<u8>>,
    manifest_end: Vec<u8>,
    label: Vec<u8>,
    tablespace_map: Vec<u8>,
}

/// The copies of a complete stream.
#[derive(Debug)]
pub(super) struct Copied {
    /// Compressed with zstd.
    pub(super) manifest: Bytes,
    pub(super) label: Bytes,
    /// May be empty.
    pub(super) tablespace_map: Bytes,
    /// Sorted; there is at least one.
    pub(super) ranges: Vec<WalRange>,
    /// From the label, if its time zone is UTC.
    pub(super) start_time: Option<DateTime<Utc>>,
}

impl Copies {
    pub(super) fn new() -> Result<Self, BaseError> {
        let mut manifest = Encoder::new(Vec::new(), LEVEL).map_err(BaseError::Compress)?;
        manifest.include_checksum(true).map_err(BaseError::Compress)?;
        Ok(Self {
            manifest,
            manifest_end: Vec::new(),
            label: Vec::new(),
            tablespace_map: Vec::new(),
        })
    }

    /// Takes the next bytes of a member's content.
    pub(super) fn take(&mut self, kind: Kind, content: &[u8]) -> Result<(), BaseError> {
        let small = match kind {
            Kind::Data => return Ok(()),
            Kind::Label => &mut self.label,
            Kind::TablespaceMap => &mut self.tablespace_map,
        };
        small.extend_from_slice(content);
        match small.len() <= LARGEST {
            true => Ok(()),
            false => Err(BaseError::Tar("its label is too large".to_owned())),
        }
    }

    /// Takes the next bytes of the manifest.
    pub(super) fn take_manifest(&mut self, content: &[u8]) -> Result<(), BaseError> {
        self.manifest.write_all(content).map_err(BaseError::Compress)?;
        self.manifest_end.extend_from_slice(content);
        let surplus = self.manifest_end.len().saturating_sub(TAIL);
        self.manifest_end.drain(..surplus);
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Copied, BaseError> {
        if self.label.is_empty() {
            return Err(BaseError::Tar(format!("there is no {LABEL} in it")));
        }
        Ok(Copied {
            ranges: parse_ranges(&self.manifest_end)?,
            start_time: parse_start_time(&self.label),
            manifest: self.manifest.finish().map_err(BaseError::Compress)?.into(),
            label: self.label.into(),
            tablespace_map: self.tablespace_map.into(),
        })
    }
}

/// The WAL ranges at the end of a manifest, in the order of their positions. PostgreSQL writes the latest first.
fn parse_ranges(end: &[u8]) -> Result<Vec<WalRange>, BaseError> {
    let wrong = |words: &str| BaseError::Manifest(words.to_owned());
    let text = String::from_utf8_lossy(end);
    let (_, rest) = text
        .rsplit_once("\"WAL-Ranges\"")
        .ok_or_else(|| wrong("it says nothing of WAL"))?;
    let rest = rest.trim_start().trim_start_matches(':');
    let mut ranges = match serde_json::Deserializer::from_str(rest)
        .into_iter::<Vec<WalRange>>()
        .next()
    {
        Some(Ok(ranges)) if !ranges.is_empty() => ranges,
        Some(Err(error)) => return Err(wrong(&error.to_string())),
        _ => return Err(wrong("it has no range of WAL")),
    };
    ranges.sort_by_key(|range| range.start_lsn);
    Ok(ranges)
}

/// The time in a label, as `START TIME: 2026-11-26 18:30:00 UTC`.
pub(super) fn parse_start_time(label: &[u8]) -> Option<DateTime<Utc>> {
    let text = std::str::from_utf8(label).ok()?;
    let time = text.lines().find_map(|line| line.strip_prefix("START TIME: "))?;
    let (time, zone) = time.rsplit_once(' ')?;
    let time = NaiveDateTime::parse_from_str(time, "%Y-%m-%d %H:%M:%S").ok()?;
    matches!(zone, "UTC" | "GMT" | "Etc/UTC").then(|| time.and_utc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ranges_from_the_end_of_a_manifest() {
        let manifest = r#"on": 1,
"Files": [{ "Path": "\"WAL-Ranges\"", "Size": 4 }],
"WAL-Ranges": [
{ "Timeline": 3, "Start-LSN": "1/2000000", "End-LSN": "1/2000100" },
{ "Timeline": 2, "Start-LSN": "0/2000028", "End-LSN": "1/2000000" }
],
"Manifest-Checksum": "00"}
"#;
        let ranges = parse_ranges(manifest.as_bytes()).expect("ranges");
        let range = |timeline, start_lsn, stop_lsn| WalRange {
            timeline,
            start_lsn,
            stop_lsn,
        };
        let (second, third) = (
            range(2, 0x200_0028, 0x1_0200_0000),
            range(3, 0x1_0200_0000, 0x1_0200_0100),
        );
        assert_eq!(ranges, [second, third]);
        for wrong in ["", "{}", r#""WAL-Ranges": []"#, r#""WAL-Ranges": [{"Timeline": 1}]"#] {
            assert!(parse_ranges(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_the_time_of_a_label_only_if_the_zone_is_known() {
        let label =
            |zone| format!("CHECKPOINT LOCATION: 0/2000060\nSTART TIME: 2026-11-26 18:30:05 {zone}\nLABEL: a\n");
        let time = parse_start_time(label("UTC").as_bytes()).expect("a time");
        assert_eq!(time.to_rfc3339(), "2026-11-26T18:30:05+00:00");
        assert_eq!(parse_start_time(label("CET").as_bytes()), None);
    }
}
