//! `backup.json`: what is known of a backup.

use std::fmt::Display;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::layout::{BackupFile, BackupName, ClusterFolder, LineObject, Object, stored_name};

/// The only version of the format so far.
pub const VERSION: u32 = 1;

/// A complete base backup: the content of its `backup.json`. Fields that are not known are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupInfo {
    /// The version of the format, [`VERSION`].
    pub v: u32,
    /// Its name, which is also its folder's.
    #[serde(with = "text")]
    pub name: BackupName,
    /// UID of the object that asked for it.
    pub uid: String,
    /// The database system identifier. A text: JSON's numbers are too small for it.
    pub system_id: String,
    /// The server's `server_version_num`, as 150014.
    pub server_version: u32,
    /// The timeline on which it ends.
    pub timeline: u32,
    /// Where replay of WAL must begin.
    #[serde(with = "lsn")]
    pub start_lsn: u64,
    /// Where replay of WAL must come to before the data are consistent.
    #[serde(with = "lsn")]
    pub stop_lsn: u64,
    /// When it began.
    pub start_time: DateTime<Utc>,
    /// When the server had sent all of it.
    pub stop_time: DateTime<Utc>,
    /// Bytes of a WAL segment.
    pub wal_segment_size: u64,
    /// Bytes of all parts, not compressed.
    pub raw_bytes: u64,
    /// Bytes of all parts in the store.
    pub stored_bytes: u64,
    /// Whose files these are. Absent in backups of earlier versions, which are copies of the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Origin>,
    /// PostgreSQL has found pages with wrong checksums in these files. What is stored is as they were.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub damaged_pages: bool,
    /// The public keys that all its files but this one are encrypted to; none if they are not encrypted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recipients: Vec<String>,
    /// The VolumeSnapshot that has the files. Then there are no parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
    /// The parts, in the server's order. Each is a complete tar of its own.
    pub parts: Vec<Part>,
}

/// A VolumeSnapshot with the files of a backup, taken while PostgreSQL was in backup mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Name of the Kubernetes object, in the database's namespace.
    pub name: String,
    /// The file `backup_label` that PostgreSQL needs to replay from the right position.
    pub label: String,
}

/// The instance whose files a backup has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// Its name.
    pub member: String,
    /// Its role at that time.
    pub role: Role,
}

/// The role of an instance whose files a backup has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// It accepted writes.
    Primary,
    /// It streamed from the primary.
    Standby,
}

/// One part of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// The name of its file, `pgdata-0001.tar.zst`, and `.age` behind it if it is encrypted.
    pub name: String,
    /// Bytes of the tar.
    pub raw_bytes: u64,
    /// Bytes in the store.
    pub stored_bytes: u64,
    /// SHA-256 of the bytes in the store, in hexadecimal digits.
    pub sha256: String,
}

impl BackupInfo {
    /// The info in a `backup.json`.
    ///
    /// # Errors
    /// Fails if it is damaged or was written by a later version, with the words for it.
    pub fn parse(content: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        let words = |error: serde_json::Error| error.to_string();
        // The version first: another one may have other fields.
        match serde_json::from_slice(content).map_err(words)? {
            Version { v: VERSION } => serde_json::from_slice(content).map_err(words),
            Version { v } => Err(format!("format {v} is not known: a later version wrote it")),
        }
    }
}

/// The name of the object of a backup's file.
pub(super) fn object(folder: &ClusterFolder, line: u32, backup: &BackupName, file: BackupFile) -> String {
    let object = Object::Line(line, LineObject::Backup(backup.clone(), file));
    folder.name(object).to_string()
}

/// The same of a file that is encrypted or not.
pub(super) fn object_of(info: &BackupInfo, folder: &ClusterFolder, line: u32, file: BackupFile) -> String {
    stored_name(object(folder, line, &info.name, file), !info.recipients.is_empty())
}

/// A WAL position as PostgreSQL writes it: `0/2000028`.
pub fn format_lsn(lsn: u64) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn & u64::from(u32::MAX))
}

/// A WAL position that PostgreSQL wrote.
pub fn parse_lsn(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    let number = |text: &str| {
        let is_hex = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(text, 16).ok().filter(|_| is_hex)
    };
    Some(u64::from(number(high)?) << 32 | u64::from(number(low)?))
}

/// A WAL position in JSON.
pub(super) mod lsn {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(in crate::base) fn serialize<S: Serializer>(lsn: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::format_lsn(*lsn))
    }

    pub(in crate::base) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::parse_lsn(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is no WAL position")))
    }
}

/// A name in JSON.
mod text {
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::Display;

    pub(super) fn serialize<T: Display, S: Serializer>(name: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(name)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
