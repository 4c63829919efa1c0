//! Names of the objects in a store.
//!
//! ```text
//! <namespace>/<cluster>-<uid8>/
//!   cluster.json
//!   probe/…
//!   lines/<n>/
//!     line.json
//!     wal/<16 digits>/<segment>.zst
//!     wal/<timeline>.history
//!     wal/partial/<segment>.partial.zst
//!     wal/conflicts/<segment>.<sha12>.<pod uid>.zst
//!     backups/<time>-<kind>-<4 digits>/…
//!     checks/<backup>/<time>.json
//! ```
//!
//! The name of an encrypted object ends in `.age` ([`encrypted`]).

use std::fmt;
use std::str::FromStr;

/// The folder of one cluster, `<namespace>/<cluster>-<uid8>`. A cluster that is made again has another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterFolder(String);

/// The name of a WAL segment's file: 24 hexadecimal digits, the first eight of which are the timeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Segment(String);

/// The name of a backup, `20261124T230501Z-F-7f3a`: when it began, its kind (`F` for full, `S` for a snapshot), and four digits by chance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackupName(String);

/// A time in a name, `20261124T230501Z`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(String);

/// The name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The cluster.
    pub cluster: ClusterFolder,
    /// Which of its objects.
    pub object: Object,
    /// It is encrypted.
    pub is_encrypted: bool,
}

/// What the name of an encrypted object ends in.
const ENCRYPTED: &str = ".age";

/// The name of the encrypted form of the object of this name.
pub fn encrypted(name: &str) -> String {
    format!("{name}{ENCRYPTED}")
}

/// The name in the store of an object that has this name without encryption.
pub fn stored_name(name: String, is_encrypted: bool) -> String {
    match is_encrypted {
        true => encrypted(&name),
        false => name,
    }
}

/// An object of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// `cluster.json`: the UID and the version of the format.
    Cluster,
    /// An object that [`crate::Store::probe`] left.
    Probe(String),
    /// An object of an archive line.
    Line(u32, LineObject),
}

/// An object of an archive line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LineObject {
    /// `line.json`: the system identifier, and where the line begins.
    Line,
    /// A complete WAL segment.
    Segment(Segment),
    /// The history file of a timeline.
    History(u32),
    /// The last, incomplete segment of a timeline.
    Partial(Segment),
    /// A segment whose name was taken by other content.
    Conflict {
        /// The segment.
        segment: Segment,
        /// The first twelve digits of its SHA-256.
        sha12: String,
        /// The pod that has it.
        pod_uid: String,
    },
    /// A file of a backup.
    Backup(BackupName, BackupFile),
    /// The result of a verification or drill of a backup.
    Check(BackupName, Time),
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BackupFile {
    /// `pgdata-0001.tar.zst`, or `ts16400-0001.tar.zst` of a tablespace: a tar file of its own.
    Part {
        /// The tablespace's OID; absent for the data directory.
        tablespace: Option<u32>,
        /// Counted from 1.
        number: u32,
    },
    /// `manifest.json.zst`: PostgreSQL's own manifest.
    Manifest,
    /// `backup_label`.
    Label,
    /// `tablespace_map`.
    TablespaceMap,
    /// `parts.json.zst`: what is in which part.
    Parts,
    /// `begun.json`, written first.
    Begun,
    /// `backup.json`, written last: without it there is no backup.
    Commit,
    /// `deleted.json`, written before the first delete.
    Deleted,
}

/// A text that is no name of this layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name in a store of backups")]
pub struct NameError(String);

impl ClusterFolder {
    /// The folder of the cluster with this UID.
    ///
    /// # Errors
    /// Fails if a name is no Kubernetes name, or the UID is none.
    pub fn new(namespace: &str, cluster: &str, uid: &str) -> Result<Self, NameError> {
        let uid8 = uid.get(..8).ok_or_else(|| NameError(uid.to_owned()))?;
        format!("{namespace}/{cluster}-{uid8}").parse()
    }

    /// The database's name and the first eight digits of its UID: `shop-1a2b3c4d`.
    pub fn base_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Where probes may leave objects.
    pub fn probe_folder(&self) -> String {
        format!("{self}/probe")
    }

    /// The folder of all archive lines.
    pub fn lines_folder(&self) -> String {
        format!("{self}/lines")
    }

    /// The folder of an archive line's WAL.
    pub fn wal_folder(&self, line: u32) -> String {
        format!("{self}/lines/{line}/wal")
    }

    /// The folder of an archive line's backups.
    pub fn backups_folder(&self, line: u32) -> String {
        format!("{self}/lines/{line}/backups")
    }

    /// The name of an object of this cluster.
    pub fn name(&self, object: Object) -> Name {
        Name {
            cluster: self.clone(),
            object,
            is_encrypted: false,
        }
    }
}

impl FromStr for ClusterFolder {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let is_label = |text: &str| {
            let is_end = |end: Option<char>| end.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
            let is_inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
            is_end(text.chars().next()) && is_end(text.chars().last()) && text.chars().all(is_inside)
        };
        let parts = text.split_once('/').and_then(|(namespace, rest)| {
            let (cluster, uid8) = rest.rsplit_once('-')?;
            (is_label(namespace) && is_label(cluster) && is_hex(uid8, 8, false)).then_some(())
        });
        parts
            .map(|()| Self(text.to_owned()))
            .ok_or_else(|| NameError(text.to_owned()))
    }
}

impl Segment {
    /// The segment with this number, counted from the first byte of WAL. `None` if the size is no segment's or the number
    /// is too large.
    pub fn of(timeline: u32, number: u64, size: u64) -> Option<Self> {
        let per_log = 0x1_0000_0000_u64.checked_div(size)?;
        let log = u32::try_from(number.checked_div(per_log)?).ok()?;
        Some(Self(format!("{timeline:08X}{log:08X}{:08X}", number % per_log)))
    }

    /// The timeline.
    pub fn timeline(&self) -> u32 {
        // Eight hexadecimal digits, checked when it was made.
        u32::from_str_radix(&self.0[..8], 16).unwrap_or_default()
    }

    /// The name of its folder: the first sixteen digits, so 256 segments of the usual size have the same.
    pub fn folder(&self) -> &str {
        &self.0[..16]
    }
}

impl FromStr for Segment {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        checked(text, is_hex(text, 24, true)).map(Self)
    }
}

impl BackupName {
    /// True if it holds only what has changed since another backup.
    pub fn is_differential(&self) -> bool {
        self.0.contains("-D-")
    }

    /// True if its files are in a VolumeSnapshot.
    pub fn is_snapshot(&self) -> bool {
        self.0.contains("-S-")
    }

    /// When it began.
    pub fn time(&self) -> Time {
        Time(self.0[..16].to_owned())
    }
}

impl FromStr for BackupName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let parts: Vec<&str> = text.split('-').collect();
        let is_name = matches!(parts[..], [time, "F" | "D" | "S", digits] if is_time(time) && is_hex(digits, 4, false));
        checked(text, is_name).map(Self)
    }
}

impl FromStr for Time {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        checked(text, is_time(text)).map(Self)
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let parsed = || {
            let (plain, is_encrypted) = match text.strip_suffix(ENCRYPTED) {
                Some(plain) => (plain, true),
                None => (text, false),
            };
            let second = plain.match_indices('/').nth(1)?.0;
            let object = Object::parse(&plain[second + 1..])?;
            (!is_encrypted || object.may_be_encrypted()).then_some(Self {
                cluster: plain[..second].parse().ok()?,
                object,
                is_encrypted,
            })
        };
        parsed().ok_or_else(|| NameError(text.to_owned()))
    }
}

/// A name without what the name of an encrypted object ends in.
pub fn plain(name: &str) -> &str {
    name.strip_suffix(ENCRYPTED).unwrap_or(name)
}

impl Object {
    /// False for what must be readable without a key: what says of itself what it is, and histories.
    fn may_be_encrypted(&self) -> bool {
        match self {
            Self::Cluster | Self::Probe(_) => false,
            Self::Line(_, object) => match object {
                LineObject::Segment(_) | LineObject::Partial(_) | LineObject::Conflict { .. } => true,
                LineObject::Backup(_, file) => {
                    !matches!(file, BackupFile::Begun | BackupFile::Commit | BackupFile::Deleted)
                }
                LineObject::Line | LineObject::History(_) | LineObject::Check(..) => false,
            },
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.split_once('/') {
            None => (text == "cluster.json").then_some(Self::Cluster),
            Some(("probe", id)) => is_plain(id).then(|| Self::Probe(id.to_owned())),
            Some(("lines", rest)) => {
                let (line, rest) = rest.split_once('/')?;
                Some(Self::Line(parse_number(line)?, LineObject::parse(rest)?))
            }
            Some(_) => None,
        }
    }
}

impl LineObject {
    fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            ["line.json"] => Some(Self::Line),
            ["wal", file] => {
                let timeline = file.strip_suffix(".history").filter(|text| is_hex(text, 8, true))?;
                u32::from_str_radix(timeline, 16).ok().map(Self::History)
            }
            ["wal", "partial", file] => file.strip_suffix(".partial.zst")?.parse().ok().map(Self::Partial),
            ["wal", "conflicts", file] => {
                let mut words = file.strip_suffix(".zst")?.splitn(3, '.');
                let (segment, sha12, pod_uid) = (words.next()?, words.next()?, words.next()?);
                (is_hex(sha12, 12, false) && is_plain(pod_uid)).then_some(())?;
                Some(Self::Conflict {
                    segment: segment.parse().ok()?,
                    sha12: sha12.to_owned(),
                    pod_uid: pod_uid.to_owned(),
                })
            }
            ["wal", folder, file] => {
                let segment: Segment = file.strip_suffix(".zst")?.parse().ok()?;
                (segment.folder() == folder).then_some(Self::Segment(segment))
            }
            ["backups", backup, file] => Some(Self::Backup(backup.parse().ok()?, BackupFile::parse(file)?)),
            ["checks", backup, file] => {
                let time = file.strip_suffix(".json")?;
                Some(Self::Check(backup.parse().ok()?, time.parse().ok()?))
            }
            _ => None,
        }
    }
}

impl FromStr for BackupFile {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text).ok_or_else(|| NameError(text.to_owned()))
    }
}

impl BackupFile {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "manifest.json.zst" => Some(Self::Manifest),
            "backup_label" => Some(Self::Label),
            "tablespace_map" => Some(Self::TablespaceMap),
            "parts.json.zst" => Some(Self::Parts),
            "begun.json" => Some(Self::Begun),
            "backup.json" => Some(Self::Commit),
            "deleted.json" => Some(Self::Deleted),
            part => {
                let (space, digits) = part.strip_suffix(".tar.zst")?.split_once('-')?;
                let tablespace = match space {
                    "pgdata" => None,
                    space => Some(parse_number(space.strip_prefix("ts")?)?),
                };
                let number = digits.parse().ok().filter(|number| *number > 0)?;
                (digits == format!("{number:04}")).then_some(Self::Part { tablespace, number })
            }
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.is_encrypted { ENCRYPTED } else { "" };
        write!(f, "{}/{}{end}", self.cluster, self.object)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("cluster.json"),
            Self::Probe(id) => write!(f, "probe/{id}"),
            Self::Line(line, object) => write!(f, "lines/{line}/{object}"),
        }
    }
}

impl fmt::Display for LineObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line => f.write_str("line.json"),
            Self::Segment(segment) => write!(f, "wal/{}/{segment}.zst", segment.folder()),
            Self::History(timeline) => write!(f, "wal/{timeline:08X}.history"),
            Self::Partial(segment) => write!(f, "wal/partial/{segment}.partial.zst"),
            Self::Conflict {
                segment,
                sha12,
                pod_uid,
            } => write!(f, "wal/conflicts/{segment}.{sha12}.{pod_uid}.zst"),
            Self::Backup(backup, file) => write!(f, "backups/{backup}/{file}"),
            Self::Check(backup, time) => write!(f, "checks/{backup}/{time}.json"),
        }
    }
}

impl fmt::Display for BackupFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part {
                tablespace: None,
                number,
            } => write!(f, "pgdata-{number:04}.tar.zst"),
            Self::Part {
                tablespace: Some(oid),
                number,
            } => write!(f, "ts{oid}-{number:04}.tar.zst"),
            Self::Manifest => f.write_str("manifest.json.zst"),
            Self::Label => f.write_str("backup_label"),
            Self::TablespaceMap => f.write_str("tablespace_map"),
            Self::Parts => f.write_str("parts.json.zst"),
            Self::Begun => f.write_str("begun.json"),
            Self::Commit => f.write_str("backup.json"),
            Self::Deleted => f.write_str("deleted.json"),
        }
    }
}

macro_rules! display_text {
    ($($type:ty),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
display_text!(ClusterFolder, Segment, BackupName, Time);

fn checked(text: &str, is_right: bool) -> Result<String, NameError> {
    match is_right {
        true => Ok(text.to_owned()),
        false => Err(NameError(text.to_owned())),
    }
}

/// True for exactly so many hexadecimal digits, all upper or all lower case.
fn is_hex(text: &str, length: usize, upper: bool) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (if upper { b'A'..=b'F' } else { b'a'..=b'f' }).contains(&byte);
    text.len() == length && text.bytes().all(is_digit)
}

/// True for `20261124T230501Z`. Days and hours are not checked.
fn is_time(text: &str) -> bool {
    let pattern = b"00000000T000000Z";
    let fits = |(byte, wanted): (u8, &u8)| (*wanted == b'0' && byte.is_ascii_digit()) || byte == *wanted;
    text.len() == pattern.len() && text.bytes().zip(pattern).all(fits)
}

/// True for a word that can be part of a name.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// A number as it is written: without a sign or leading zeros.
fn parse_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

#[cfg(test)]
mod tests;
