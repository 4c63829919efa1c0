//! A store that was found to be usable, and the names of this database's objects in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backup::layout::{ClusterFolder, LineObject, Object, Segment, stored_name};
use backup::segment::{Header, Origin, encode};
use backup::{Access, Compare, Fence, Place, Problem, Recipients, Remover, Store};
use machine::archive::WalFile;
use machine::protocol::Epoch;
use machine::units::Bytes;
use serde::{Deserialize, Serialize};

use super::Target;
use crate::postgres::history::is_stub;
use crate::stamp::{Stamp, stamp};

/// Time limit of one request, and of the probe. PostgreSQL's archiver waits for it, and asks again.
pub(super) const LIMIT: Duration = Duration::from_secs(45);
/// zstd's fastest level that is worth its name: the archive must keep up with PostgreSQL.
const LEVEL: i32 = 1;

/// A store that takes this database's WAL.
pub(crate) struct Attached {
    store: Store,
    folder: ClusterFolder,
    target: Target,
    recipients: Option<Recipients>,
}

/// What stands at the begin of a line of archived WAL. It is written once.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    v: u32,
    cluster_uid: String,
    system_id: String,
    wal_segment_size: u64,
}

/// Opens a store with the Secrets that are mounted at `access`, if there are any. It sends no request.
pub(crate) fn open(place: &Place, access: &Path) -> Result<Store, Problem> {
    Store::open(place, &credentials(access)?)
}

/// A store to delete from, with the Secrets that are mounted at `access`, if there are any. It sends no request.
pub(super) fn remover(target: &Target, access: &Path) -> Result<Remover, Problem> {
    Remover::open(&target.place, &credentials(access)?)
}

fn credentials(access: &Path) -> Result<Access, Problem> {
    match access.is_dir() {
        true => Access::read(access),
        false => Ok(Access::default()),
    }
}

/// Reads the credentials, tries the store, and makes sure that the place is this database's own.
pub(crate) async fn attach(target: &Target, access: &Path, size: Bytes) -> Result<Attached, Problem> {
    let folder: ClusterFolder = target.folder.parse().map_err(unusable)?;
    let recipients = Recipients::parse(&target.recipients)?;
    let store = open(&target.place, access)?;
    let fence = store.probe(&folder.probe_folder(), LIMIT).await?;
    let attached = Attached {
        store: store.with_fence(fence),
        folder,
        target: target.clone(),
        recipients,
    };
    attached.begin_line(size).await?;
    Ok(attached)
}

impl Attached {
    /// The store.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// This database's folder in it.
    pub(crate) fn folder(&self) -> &ClusterFolder {
        &self.folder
    }

    /// Whom WAL and backups are encrypted to.
    pub(crate) fn recipients(&self) -> Option<&Recipients> {
        self.recipients.as_ref()
    }

    /// The same store, to delete from, with the Secrets that are mounted at `access`.
    pub(super) fn remover(&self, access: &Path) -> Result<Remover, Problem> {
        remover(&self.target, access)
    }

    /// The line of the archive.
    pub(crate) fn line(&self) -> u32 {
        self.target.line.0
    }

    /// True if another line has begun after this one, which nobody told this member.
    pub(super) async fn has_ended(&self) -> Result<bool, Problem> {
        Ok(newest_line(&self.store, &self.folder)
            .await?
            .is_some_and(|newest| newest > self.line()))
    }

    /// Writes all histories of `wal` into a line after the first: those of earlier timelines are in the line before.
    pub(super) async fn bring_histories(&self, wal: &Path) -> Result<(), Problem> {
        if self.target.line.is_first() {
            return Ok(());
        }
        let files = fs::read_dir(wal).map_err(|error| unread(wal, &error))?;
        for file in files {
            let name = file.map_err(|error| unread(wal, &error))?.file_name();
            let name = name.to_string_lossy();
            if let Some(history @ WalFile::History(_)) = WalFile::parse(&name, Bytes::mib(1)) {
                self.push(wal, &name, history, Epoch(0)).await?;
            }
        }
        Ok(())
    }

    /// Whether the store refuses to write a name twice.
    pub(super) fn fence(&self) -> Fence {
        self.store.fence()
    }

    async fn begin_line(&self, size: Bytes) -> Result<(), Problem> {
        let own = Line {
            v: 1,
            cluster_uid: self.target.cluster_uid.clone(),
            system_id: self.target.system_id.clone(),
            wal_segment_size: size.0,
        };
        let name = self.name(LineObject::Line);
        let content = serde_json::to_vec(&own).map_err(unusable)?;
        let same = |stored: &[u8]| serde_json::from_slice::<Line>(stored).is_ok_and(|stored| stored == own);
        match self
            .store
            .create(&name, content.into(), Compare::Header(&same), LIMIT)
            .await
        {
            Err(Problem::Conflict(_)) => Err(Problem::Conflict(format!(
                "{name} was written by a database with another system identifier or another size of segments; let spec.backup.store name a path that is not in use"
            ))),
            created => created.map(|_| ()),
        }
    }

    /// Writes a file of `pg_wal` into the archive. It may be there already with the same content.
    pub(super) async fn push(&self, wal: &Path, name: &str, file: WalFile, epoch: Epoch) -> Result<(), Problem> {
        let path = wal.join(name);
        match file {
            WalFile::History(timeline) => {
                let content = fs::read(&path).map_err(|error| unread(&path, &error))?;
                if is_stub(&content) {
                    return Ok(());
                }
                let object = self.name(LineObject::History(timeline.0));
                let created = self.store.create(&object, content.into(), Compare::Bytes, LIMIT).await;
                created.map(|_| ())
            }
            WalFile::Segment(_) => {
                let segment: Segment = name.parse().map_err(unusable)?;
                let (header, content) = self.object(path, &segment, epoch).await?;
                let object = self.stored_name(LineObject::Segment(segment.clone()));
                match self.create(&object, &header, content.clone()).await {
                    Err(Problem::Conflict(_)) => Err(self.conflict(&object, segment, &header, content).await),
                    created => created,
                }
            }
            WalFile::Partial(_) => {
                let segment: Segment = name.trim_end_matches(".partial").parse().map_err(unusable)?;
                let (header, content) = self.object(path, &segment, epoch).await?;
                match self
                    .create(&self.stored_name(LineObject::Partial(segment)), &header, content)
                    .await
                {
                    // For inspection only: the first one is enough.
                    Err(Problem::Conflict(_)) => Ok(()),
                    created => created,
                }
            }
            WalFile::BackupNote => Ok(()),
        }
    }

    async fn create(&self, object: &str, header: &Header, content: bytes::Bytes) -> Result<(), Problem> {
        let same = |stored: &[u8]| header.is_same_as_stored(stored);
        let created = self.store.create(object, content, Compare::Header(&same), LIMIT).await;
        created.map(|_| ())
    }

    /// Keeps this server's content of a segment whose name is taken, beside the archive, and says so.
    async fn conflict(&self, object: &str, segment: Segment, header: &Header, content: bytes::Bytes) -> Problem {
        let kept = self.stored_name(LineObject::Conflict {
            segment,
            sha12: header.raw_sha256.chars().take(12).collect(),
            pod_uid: self.target.pod_uid.clone(),
        });
        match self.create(&kept, header, content).await {
            Ok(()) => Problem::Conflict(format!("{object}; what this server has is kept as {kept}")),
            Err(problem) => problem,
        }
    }

    /// The object of a segment, compressed and perhaps encrypted, and its header.
    async fn object(&self, path: PathBuf, segment: &Segment, epoch: Epoch) -> Result<(Header, bytes::Bytes), Problem> {
        let origin = Origin {
            system_id: self.target.system_id.clone(),
            timeline: segment.timeline(),
            segment: segment.to_string(),
            epoch: epoch.0,
            pod_uid: self.target.pod_uid.clone(),
        };
        let recipients = self.recipients.clone();
        let work = move || {
            let raw = fs::read(&path).map_err(|error| unread(&path, &error))?;
            let header = Header::new(origin, &raw);
            let content = encode(&header, &raw, LEVEL, recipients.as_ref()).map_err(unusable)?;
            Ok((header, content.into()))
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Problem::Unavailable(error.to_string()))?
    }

    /// The name of an object that is encrypted if there are recipients.
    fn stored_name(&self, object: LineObject) -> String {
        stored_name(self.name(object), self.recipients.is_some())
    }

    fn name(&self, object: LineObject) -> String {
        self.folder.name(Object::Line(self.line(), object)).to_string()
    }
}

/// The newest line in the folder of a database; `None` if there is none. Earlier ones may be gone.
pub(super) async fn newest_line(store: &Store, folder: &ClusterFolder) -> Result<Option<u32>, Problem> {
    let found = store.list_folder(&folder.lines_folder(), LIMIT).await?;
    let numbers = found
        .folders
        .iter()
        .filter_map(|name| name.rsplit('/').next()?.parse().ok());
    Ok(numbers.max())
}

/// Makes sure that no other database has begun a line in this one's folder.
pub(super) async fn is_of(remover: &Remover, target: &Target) -> Result<(), Problem> {
    let folder: ClusterFolder = target.folder.parse().map_err(unusable)?;
    let lines = remover
        .store()
        .list_folder(&folder.lines_folder(), LIMIT)
        .await?
        .folders;
    for line in lines {
        let name = format!("{line}/line.json");
        let content = match remover.store().read(&name, LIMIT).await {
            Err(Problem::NotFound(_)) => continue,
            content => content?,
        };
        let begun: Line = serde_json::from_slice(&content).map_err(unusable)?;
        if (&begun.cluster_uid, &begun.system_id) != (&target.cluster_uid, &target.system_id) {
            return Err(Problem::Conflict(format!(
                "{name} was written by another database, so that nothing here is deleted; set spec.backup.onDelete.data to Retain"
            )));
        }
    }
    Ok(())
}

fn unusable(error: impl std::fmt::Display) -> Problem {
    Problem::Unusable(error.to_string())
}

fn unread(path: &Path, error: &std::io::Error) -> Problem {
    Problem::Unavailable(format!("read {}: {error}", path.display()))
}

/// Changes when the kubelet has written other credentials.
pub(super) fn version(access: &Path) -> Stamp {
    stamp(&access.join("..data")).or_else(|| stamp(access))
}

#[cfg(test)]
mod tests {
    use backup::{S3, Volume};
    use machine::archive::ArchiveLine;
    use test_store::{KEY, Options, SECRET, TestStore};

    use super::*;

    const SIZE: Bytes = Bytes::mib(16);
    const REFUSAL: &str = "default/shop-1a2b3c4d/lines/1/line.json was written by a database with another system identifier or another size of segments; let spec.backup.store name a path that is not in use";

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("cdb-line-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("a directory");
        path
    }

    fn target(place: &Place, system_id: &str) -> Target {
        Target {
            place: place.clone(),
            folder: "default/shop-1a2b3c4d".to_owned(),
            line: ArchiveLine(1),
            cluster_uid: "1a2b3c4d-0000-0000-0000-000000000000".to_owned(),
            system_id: system_id.to_owned(),
            pod_uid: "pod".to_owned(),
            recipients: Vec::new(),
        }
    }

    /// Two databases begin the first line in one folder. `read` reads an object of the store.
    async fn refuses_a_second_database(place: &Place, access: &Path, read: impl Fn(&str) -> Vec<u8>) {
        let attached = attach(&target(place, "7"), access, SIZE).await.expect("the first");
        assert_eq!(attached.line(), 1);
        let line = || read("default/shop-1a2b3c4d/lines/1/line.json");
        let begun = line();
        for (system_id, size) in [("8", SIZE), ("7", Bytes::mib(32))] {
            let refused = attach(&target(place, system_id), access, size).await.err();
            assert_eq!(
                refused,
                Some(Problem::Conflict(REFUSAL.to_owned())),
                "{system_id} {size:?}"
            );
            assert_eq!(line(), begun, "it stays the first one's");
        }
        let again = attach(&target(place, "7"), access, SIZE).await;
        assert!(again.is_ok(), "the first one comes back: {:?}", again.err());
    }

    #[tokio::test]
    async fn a_second_database_does_not_begin_a_line_in_the_folder_of_another_on_a_volume() {
        let directory = directory("volume");
        let place = Place::Volume(Volume {
            directory: directory.clone(),
        });
        let read = |name: &str| fs::read(directory.join(name)).expect("an object");
        refuses_a_second_database(&place, &directory.join("no-secrets"), read).await;
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[tokio::test]
    async fn a_second_database_does_not_begin_a_line_in_the_folder_of_another_in_a_bucket() {
        let directory = directory("bucket");
        let (buckets, access) = (directory.join("buckets"), directory.join("access"));
        for folder in [&buckets, &access] {
            fs::create_dir(folder).expect("a directory");
        }
        for (name, value) in [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)] {
            fs::write(access.join(name), value).expect("written");
        }
        let store = TestStore::start(Options {
            directory: buckets.clone(),
            ..Options::default()
        });
        let store = store.await.expect("a server");
        store.make_bucket("wal").expect("a bucket");
        let place = Place::S3(S3 {
            bucket: "wal".to_owned(),
            endpoint: Some(store.url().to_owned()),
            ..S3::default()
        });
        let read = |name: &str| fs::read(buckets.join("wal").join(name)).expect("an object");
        refuses_a_second_database(&place, &access, read).await;
        fs::remove_dir_all(&directory).expect("removed");
    }
}
