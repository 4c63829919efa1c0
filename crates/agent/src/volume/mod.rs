//! The data volume: who this member is, and what data it has.
//!
//! `pgdata/` (PGDATA), `agent/` (identity, replication key and certificate, promise, markers), `staging/` (an unfinished
//! initdb or clone), `aside/` (data that gave way to a new copy). The WAL volume, if any, holds `pg_wal/`, to which
//! `pg_wal` in PGDATA is a link.

mod aside;
mod control;
mod files;
mod identity;
mod moved;
mod origin;
mod promise;
mod reservation;
mod tail;
mod wal;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use machine::protocol::{Epoch, Lsn, Volume as Kind};

use crate::postgres::Tools;
use files::{exists, failed, is_empty, remove_tree};

pub use control::{ClusterState, ControlData, EnforcedSettings, WalSizes};
pub(crate) use files::{make_directory, read_if_there, sync_parent, write_atomically, write_for_now, write_whole};
pub use identity::Member;
pub use wal::WalRoom;

/// The volumes of one instance.
#[derive(Clone, Debug)]
pub struct Volume {
    data: PathBuf,
    /// `pg_wal` on the WAL volume, if there is one.
    wal: Option<PathBuf>,
    /// The pod whose WAL volume it is, if that is another one.
    wal_of_another: Option<String>,
    reservation: reservation::Reservation,
    /// Held while the promise and the credential are changed.
    promising: Arc<Mutex<()>>,
}

/// Why the volume could not be read or written. Never to be taken for "absent".
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A file operation failed.
    #[error("{action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The pod was made while the pod template named the WAL volume of another one.
    #[error("the WAL volume is that of {pod}: nothing is done until this pod is made again with its own, or without")]
    AnothersWal {
        /// Whose it is.
        pod: String,
    },
    /// The write-ahead log does not fit on its new volume.
    #[error(
        "pg_wal needs {needed} bytes and the WAL volume has room for {free}: it stays where it is, and PostgreSQL is not started before storage.wal.size is larger, or claim and pod are deleted"
    )]
    NoRoom {
        /// Bytes in `pg_wal`, and a margin.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// There is no room for a copy of WAL that is to be kept.
    #[error(
        "WAL that may be the only copy of commits is to be kept aside before the rewind: that needs {needed} bytes, and the volume has room for {free}: make storage.size larger, or let go of what was set aside before"
    )]
    NoRoomAside {
        /// Bytes of that WAL, and a margin.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Processes of another pod still use the volume.
    #[error("another pod still uses the volume: it is waited for")]
    InUse,
    /// A stored file does not hold what it should.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The replication key could not be made or read.
    #[error("replication key: {0}")]
    Key(String),
    /// A certificate that is not for this member's key and name.
    #[error("the replication certificate is refused: {0}")]
    Certificate(String),
    /// Following a primary would break a promise.
    #[error("epoch {promised} is promised: nothing is received from epoch {epoch}", promised = promised.0, epoch = epoch.0)]
    Promised {
        /// What is promised.
        promised: Epoch,
        /// The primary's.
        epoch: Epoch,
    },
    /// `pg_controldata` failed.
    #[error("read the control file")]
    ControlFile(#[from] crate::process::ProcessError),
}

impl VolumeError {
    /// A volume has no room for what was to be written.
    pub fn is_full(&self) -> bool {
        match self {
            Self::NoRoom { .. } | Self::NoRoomAside { .. } => true,
            Self::File { source, .. } => files::is_full(source),
            _ => false,
        }
    }
}

/// What data the volume holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataState {
    /// None: a new volume.
    Empty,
    /// What an initdb or a clone left that did not finish. Never started; [`Volume::discard_unfinished`] removes it.
    Unfinished {
        /// What was being done.
        what: String,
    },
    /// A complete PGDATA.
    Ready(ControlData),
}

/// `pg_controldata` reads one file of 8 KiB; more than this is a hanging volume.
const CONTROL_DATA_TIMEOUT: Duration = Duration::from_secs(10);

/// So many bytes the agent needs for its own files (identity, promise, marks): each takes a block or two, and is written anew beside
/// the old one.
const FILES: u64 = 64 << 10;

impl Volume {
    /// Volumes mounted at `data` and, if there is a WAL volume, `wal`.
    pub fn new(data: impl Into<PathBuf>, wal: Option<PathBuf>) -> Self {
        Self {
            data: data.into(),
            wal: wal.map(|mount| mount.join("pg_wal")),
            wal_of_another: None,
            reservation: reservation::Reservation::default(),
            promising: Arc::default(),
        }
    }

    /// The same with a WAL volume that is this pod's, and not ours: nothing is done on any volume then.
    pub fn with_wal_of_another(self, pod: Option<String>) -> Self {
        Self {
            wal_of_another: pod,
            ..self
        }
    }

    /// Makes the directories, and throws nothing away. An error tells what is wrong with the mount.
    pub fn prepare(&self) -> Result<(), VolumeError> {
        if let Some(pod) = self.wal_of_another.clone() {
            return Err(VolumeError::AnothersWal { pod });
        }
        let mounts = [Some(self.data.as_path()), self.wal.as_deref().and_then(Path::parent)];
        for mount in mounts.into_iter().flatten() {
            fs::read_dir(mount).map_err(failed("open the volume", mount))?;
            files::try_writing(mount).map_err(failed("write to the volume", mount))?;
        }
        let agent = self.agent_directory();
        make_directory(&agent).map_err(failed("make", &agent))?;
        sync_parent(&agent).map_err(failed("sync", &self.data))
    }

    /// Makes this process, and those that it starts from now on, the only ones to use the volume; an error while those
    /// of another pod live. After [`Volume::prepare`]. What a run before did not finish to keep is removed then.
    pub fn reserve(&self) -> Result<(), VolumeError> {
        if self.reservation.take(&self.agent_directory().join("lock"))?
            && let Err(error) = self.drop_partial_tail()
        {
            tracing::warn!("{error}");
        }
        Ok(())
    }

    /// PGDATA.
    pub fn pgdata(&self) -> PathBuf {
        self.data.join("pgdata")
    }

    /// PGDATA while it is being made.
    pub fn staging_pgdata(&self) -> PathBuf {
        self.staging().join("pgdata")
    }

    /// Where PGDATA, and things that are needed meanwhile, are while it is being made.
    pub fn staging(&self) -> PathBuf {
        self.data.join("staging")
    }

    /// Where the write-ahead log goes if it has a volume of its own.
    pub fn wal_directory(&self) -> Option<&Path> {
        self.wal.as_deref()
    }

    /// What room the write-ahead log has.
    pub fn wal_room(&self) -> Result<WalRoom, VolumeError> {
        let mount = self.wal.as_deref().and_then(Path::parent).unwrap_or(&self.data);
        let size = rustix::fs::statvfs(mount).map_err(|error| failed("measure", mount)(error.into()))?;
        let directory = self.pgdata().join("pg_wal");
        let there = wal::bytes(&directory).map_err(failed("measure", &directory))?;
        Ok(WalRoom {
            capacity: size.f_blocks.saturating_mul(size.f_frsize),
            left: size.f_bavail.saturating_mul(size.f_frsize).saturating_add(there),
        })
    }

    /// The volumes that have no room: for another segment of WAL, or for the agent's own files.
    pub fn full(&self) -> Result<BTreeSet<Kind>, VolumeError> {
        let directory = self.pgdata().join("pg_wal");
        let segment = wal::segment_size(&directory).map_err(failed("list", &directory))?;
        let wal = self.wal.as_deref().and_then(Path::parent);
        let data = (
            Kind::Data,
            self.data.as_path(),
            if wal.is_some() { FILES } else { segment },
        );
        let wal = wal.map(|mount| (Kind::Wal, mount, segment));
        let mut full = BTreeSet::new();
        for (kind, mount, needed) in [Some(data), wal].into_iter().flatten() {
            if files::free(mount)? < needed {
                full.insert(kind);
            }
        }
        Ok(full)
    }

    /// File with the member's private key.
    pub fn key_file(&self) -> PathBuf {
        self.agent_directory().join("replication.key")
    }

    /// File with the member's certificate.
    pub fn certificate_file(&self) -> PathBuf {
        self.agent_directory().join("replication.crt")
    }

    /// Records, before the first byte is written, what is about to be made in the staging directory, and makes that
    /// directory. Fails if there is a PGDATA, or what an unfinished run left.
    pub fn begin_staging(&self, what: &str) -> Result<(), VolumeError> {
        for path in [self.pgdata(), self.staging(), self.marker()] {
            if exists(&path)? {
                return Err(VolumeError::Damaged {
                    path,
                    reason: format!("it exists already; {what} needs a new volume"),
                });
            }
        }
        let marker = self.marker();
        write_atomically(&marker, what.as_bytes(), 0o600).map_err(failed("write", &marker))?;
        let staging = self.staging();
        make_directory(&staging).map_err(failed("make", &staging))
    }

    /// Renames the staged PGDATA into place. All of it must be on disk.
    pub fn finish_staging(&self) -> Result<(), VolumeError> {
        let (marker, staged, pgdata) = (self.marker(), self.staging_pgdata(), self.pgdata());
        // Until the rename, the staging directory itself says that nothing is finished.
        fs::remove_file(&marker).map_err(failed("remove", &marker))?;
        sync_parent(&marker).map_err(failed("sync", &marker))?;
        sync_parent(&staged).map_err(failed("sync", &staged))?;
        fs::rename(&staged, &pgdata).map_err(failed("put into place", &pgdata))?;
        sync_parent(&pgdata).map_err(failed("sync", &pgdata))?;
        remove_tree(&self.staging())
    }

    /// Removes what an unfinished initdb or clone left, its part of the WAL volume included. A PGDATA in place is never
    /// touched: with a mark of something unfinished beside it, this is an error for people to look at.
    /// A setting aside that was begun is completed instead.
    pub async fn discard_unfinished(&self) -> Result<(), VolumeError> {
        self.blocking(Volume::discard_now).await
    }

    /// Runs `work` where it may block.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let volume = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&volume)).await;
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    /// What data there is.
    pub async fn data_state(&self, tools: &Tools) -> Result<DataState, VolumeError> {
        match self.blocking(Volume::state_but_for_data).await? {
            Some(state) => Ok(state),
            None => Ok(DataState::Ready(self.control_data(tools).await?)),
        }
    }

    /// What there is; `None` is a PGDATA in place.
    fn state_but_for_data(&self) -> Result<Option<DataState>, VolumeError> {
        let marker = self.marker();
        if let Some(what) = read_if_there(&marker).map_err(failed("read", &marker))? {
            return Ok(Some(DataState::Unfinished { what }));
        }
        if self.is_setting_aside()? {
            let what = "setting aside".to_owned();
            return Ok(Some(DataState::Unfinished { what }));
        }
        if exists(&self.pgdata())? {
            return Ok(None);
        }
        self.state_without_data().map(Some)
    }

    /// What there is without a PGDATA or a marker. WAL alone is not ours to throw away: its data may come back.
    fn state_without_data(&self) -> Result<DataState, VolumeError> {
        if exists(&self.staging())? {
            return Ok(DataState::Unfinished {
                what: "initdb or clone".to_owned(),
            });
        }
        match self.wal.as_deref() {
            Some(wal) if !is_empty(wal)? => Err(VolumeError::Damaged {
                path: wal.to_owned(),
                reason: "it holds WAL without data: put the data back, or empty it".to_owned(),
            }),
            _ => Ok(DataState::Empty),
        }
    }

    /// What the control file of PGDATA says.
    pub async fn control_data(&self, tools: &Tools) -> Result<ControlData, VolumeError> {
        let pgdata = self.pgdata();
        let mut control = control_data(tools, &pgdata).await?;
        control.from_backup = self.blocking(move |_| exists(&pgdata.join("backup_label"))).await?;
        Ok(control)
    }

    /// Where the WAL ends that lies here without a gap from `redo` on; `redo` if there is none.
    pub async fn end_of_wal(&self, redo: Lsn, sizes: WalSizes) -> Result<Lsn, VolumeError> {
        let directory = self.pgdata().join("pg_wal");
        self.blocking(move |_| wal::end(&directory, redo, sizes).map_err(failed("read the WAL in", &directory)))
            .await
    }

    /// What the control file of the staged PGDATA says.
    pub(crate) async fn staged_control_data(&self, tools: &Tools) -> Result<ControlData, VolumeError> {
        control_data(tools, &self.staging_pgdata()).await
    }

    fn discard_now(&self) -> Result<(), VolumeError> {
        if self.is_setting_aside()? {
            return self.complete_setting_aside();
        }
        let (pgdata, marker) = (self.pgdata(), self.marker());
        let marked = exists(&marker)?;
        let placed = exists(&pgdata)?;
        if placed && marked {
            let reason =
                "something that was done to it did not finish; it may hold the only copy of the data".to_owned();
            return Err(VolumeError::Damaged { path: pgdata, reason });
        }
        let begun = marked || exists(&self.staging())?;
        if begun
            && !placed
            && let Some(wal) = &self.wal
        {
            remove_tree(wal)?;
        }
        remove_tree(&self.staging())?;
        match fs::remove_file(&marker) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("remove", &marker)(error)),
            _ => {}
        }
        sync_parent(&marker).map_err(failed("sync", &marker))?;
        sync_parent(&pgdata).map_err(failed("sync", &self.data))
    }

    fn data_mount(&self) -> &Path {
        &self.data
    }

    fn wal_mount(&self) -> Option<&Path> {
        self.wal.as_deref().and_then(Path::parent)
    }

    fn agent_directory(&self) -> PathBuf {
        self.data.join("agent")
    }

    fn member_file(&self) -> PathBuf {
        self.agent_directory().join("member.json")
    }

    fn marker(&self) -> PathBuf {
        self.agent_directory().join("unfinished")
    }
}

/// Asks `pg_controldata`.
async fn control_data(tools: &Tools, pgdata: &Path) -> Result<ControlData, VolumeError> {
    let control = pgdata.join("global/pg_control");
    let mut command = tools.command("pg_controldata");
    command.arg("-D").arg(pgdata);
    let output = tools.supervisor().run(command, CONTROL_DATA_TIMEOUT).await?;
    let damaged = |reason| VolumeError::Damaged { path: control, reason };
    if output.stderr.contains("CRC checksum does not match") {
        return Err(damaged("its checksum is wrong".to_owned()));
    }
    ControlData::parse(&output.stdout).map_err(damaged)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A directory that goes away with the test.
    pub(crate) struct Scratch(pub(crate) PathBuf);

    impl Scratch {
        pub(crate) fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!(
                "cdb-agent-{}-{}",
                std::process::id(),
                NEXT.fetch_add(1, Ordering::Relaxed)
            );
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(path.join("data")).expect("a scratch directory");
            fs::create_dir_all(path.join("wal")).expect("a scratch directory");
            Self(path)
        }

        pub(crate) fn volume(&self) -> Volume {
            let volume = Volume::new(self.0.join("data"), Some(self.0.join("wal")));
            volume.prepare().expect("a usable volume");
            volume
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_volume_is_full_that_has_no_room_for_another_segment() {
        let scratch = Scratch::new();
        let segment = |wal: &Path, bytes: u64| {
            fs::create_dir_all(wal).expect("made");
            let file = fs::File::create(wal.join("000000010000000000000001")).expect("made");
            file.set_len(bytes).expect("sparse");
        };
        // More than any file system here has, and nothing of it is written.
        const TOO_LARGE: u64 = 8 << 40;
        let volume = scratch.volume();
        let wal = volume.pgdata().join("pg_wal");
        segment(&wal, 1 << 16);
        assert_eq!(volume.full().expect("measured"), BTreeSet::new());
        segment(&wal, TOO_LARGE);
        assert_eq!(
            volume.full().expect("measured"),
            [Kind::Wal].into(),
            "the data has room"
        );
        let alone = Volume::new(scratch.0.join("data"), None);
        assert_eq!(
            alone.full().expect("measured"),
            [Kind::Data].into(),
            "WAL is there, too"
        );
    }

    fn fill(volume: &Volume) {
        volume.begin_staging("clone").expect("a new volume");
        fs::create_dir(volume.staging_pgdata()).expect("made");
        let wal = volume.wal_directory().expect("a WAL volume");
        fs::create_dir(wal).expect("made");
        fs::write(wal.join("000000010000000000000001"), "").expect("written");
    }

    #[tokio::test]
    async fn unfinished_work_is_discarded_with_its_wal() {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        fill(&volume);
        assert!(
            volume.begin_staging("clone").is_err(),
            "what is there must be discarded first"
        );
        volume.discard_unfinished().await.expect("discarded");
        assert!(!volume.staging().exists() && !volume.wal_directory().expect("a WAL volume").exists());
        assert!(!volume.marker().exists());
        volume.begin_staging("clone").expect("a new volume again");
    }

    #[test]
    fn a_copy_that_was_broken_off_goes_before_another_can_be_made() {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        let (partial, whole) = (
            scratch.0.join("data/aside/.wal"),
            scratch.0.join("data/aside/wal-1-0_1"),
        );
        let make = || [&partial, &whole].map(|place| fs::create_dir_all(place.join("pg_wal")).expect("made"));
        make();
        volume.reserve().expect("nobody else is there");
        assert!(!partial.exists() && whole.exists());
        make();
        volume.reserve().expect("it is reserved");
        assert!(partial.exists(), "it may be this run's");
    }

    #[test]
    fn the_log_has_what_is_free_and_what_it_takes_already() {
        let scratch = Scratch::new();
        let volume = Volume::new(scratch.0.join("data"), None);
        let before = volume.wal_room().expect("a size");
        let wal = volume.pgdata().join("pg_wal");
        fs::create_dir_all(wal.join("archive_status")).expect("made");
        for name in ["000000010000000000000001", "000000010000000000000002"] {
            fs::write(wal.join(name), vec![1; 1 << 20]).expect("written");
        }
        assert_eq!(wal::bytes(&wal).expect("a size"), 2 << 20);
        let room = volume.wal_room().expect("a size");
        assert!(room.capacity == before.capacity && room.left >= 2 << 20 && room.left <= room.capacity);
    }

    #[tokio::test]
    async fn finished_data_is_never_discarded() {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        fill(&volume);
        volume.finish_staging().expect("finished");
        volume.discard_unfinished().await.expect("nothing to discard");
        assert!(volume.pgdata().exists());
        assert!(
            volume
                .wal_directory()
                .expect("a WAL volume")
                .join("000000010000000000000001")
                .exists()
        );
        fs::write(volume.marker(), "rewind").expect("written");
        assert!(volume.discard_unfinished().await.is_err());
        assert!(volume.pgdata().exists());
    }

    #[tokio::test]
    async fn wal_without_data_is_an_error_and_is_kept() {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        assert_eq!(volume.state_without_data().expect("a new volume"), DataState::Empty);
        let wal = volume.wal_directory().expect("a WAL volume");
        fs::create_dir(wal).expect("made");
        assert_eq!(volume.state_without_data().expect("no WAL"), DataState::Empty);
        fs::write(wal.join("000000010000000000000001"), "").expect("written");
        let error = volume.state_without_data().expect_err("WAL without data");
        assert!(error.to_string().contains("WAL without data"), "{error}");
        volume.discard_unfinished().await.expect("nothing to discard");
        assert!(wal.join("000000010000000000000001").exists());
        make_directory(&volume.staging()).expect("made");
        let state = volume.state_without_data().expect("an unfinished clone");
        assert!(matches!(state, DataState::Unfinished { .. }), "{state:?}");
    }

    #[test]
    fn a_missing_mount_is_an_error() {
        assert!(Volume::new("/no/such/mount", None).prepare().is_err());
    }
}
