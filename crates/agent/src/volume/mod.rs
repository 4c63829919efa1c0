//! The data volume: the member's identity, and its data.
//!
//! - `pgdata/` is PGDATA.
//! - `agent/` holds the identity, the replication key and certificate, the promise, and marks.
//! - `staging/` holds an unfinished initdb or clone.
//! - `aside/` holds data that was replaced by a new copy.
//! - `snapshot/` holds the PGDATA that came with a volume from a VolumeSnapshot, until the recovery takes it.
//! - The WAL volume, if there is one, holds `pg_wal/`; `pg_wal` in PGDATA is then a link to it.

mod aside;
mod control;
mod file_systems;
mod files;
mod history;
mod identity;
pub(crate) mod marks;
mod moved;
mod origin;
mod promise;
mod reservation;
mod snapshot;
mod tail;
mod wal;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use machine::protocol::{Epoch, Lsn, Volume as Kind};

use crate::tools::Tools;

use files::{exists, failed, is_empty, remove_file, remove_tree};

pub use control::{ClusterState, ControlData, EnforcedSettings, WalSizes};
pub(crate) use file_systems::FileSystems;
pub(crate) use files::{make_directory, read_if_there, sync_parent, write_atomically, write_for_now, write_whole};
pub(crate) use history::forks;
pub use identity::Member;
pub use wal::WalRoom;
pub(crate) use wal::segment_size;

/// The volumes of one instance.
#[derive(Clone, Debug)]
pub struct Volume {
    data: PathBuf,
    /// `pg_wal` on the WAL volume, if there is one.
    wal: Option<PathBuf>,
    /// The pod that the WAL volume belongs to, if it is not this one.
    wal_of_another: Option<String>,
    reservation: reservation::Reservation,
    /// Held while the promise and the credential are changed.
    promising: Arc<Mutex<()>>,
}

/// Why the volume could not be read or written. An error never means that something is absent.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A file operation failed.
    #[error("{action} {path}")]
    File {
        /// What the agent tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The pod was made while the pod template named another pod's WAL volume.
    #[error("the WAL volume is that of {pod}: nothing is done until this pod is made again with its own, or without")]
    AnothersWal {
        /// The pod that the volume belongs to.
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
    /// There is no room for the copy of WAL that must be kept before a rewind.
    #[error(
        "WAL that may be the only copy of commits is to be kept aside before the rewind: that needs {needed} bytes, and the volume has room for {free}: make storage.data.size larger, or remove data that was set aside before"
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
    /// A stored file holds something unexpected.
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
    /// The certificate is not for this member's key and name.
    #[error("the replication certificate is refused: {0}")]
    Certificate(String),
    /// Following the primary would break a promise: its epoch is below the promised one.
    #[error("epoch {promised} is promised: nothing is received from epoch {epoch}", promised = promised.0, epoch = epoch.0)]
    Promised {
        /// The promised epoch.
        promised: Epoch,
        /// The primary's epoch.
        epoch: Epoch,
    },
    /// `pg_controldata` failed.
    #[error("read the control file")]
    ControlFile(#[from] crate::process::ProcessError),
}

impl VolumeError {
    /// True if the cause is that a volume has no room.
    pub fn is_full(&self) -> bool {
        match self {
            Self::NoRoom { .. } | Self::NoRoomAside { .. } => true,
            Self::File { source, .. } => files::is_full(source),
            _ => false,
        }
    }
}

/// The data that the volume holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataState {
    /// No data: a new volume.
    Empty,
    /// Left by an initdb or a clone that did not finish. Never started; [`Volume::discard_unfinished`] removes it.
    Unfinished {
        /// What was being done when it broke off.
        what: String,
    },
    /// A complete PGDATA.
    Ready(ControlData),
}

/// The time limit of `pg_controldata`. It reads one file of 8 KiB; if it takes longer, the volume hangs.
const CONTROL_DATA_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that the agent needs for its own files (identity, promise, marks). Each file takes a block or two, and is
/// written next to the old version before it replaces it.
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

    /// The same, with the WAL volume of another `pod`. Then [`Volume::prepare`] fails, and nothing is done on any
    /// volume.
    pub fn with_wal_of_another(self, pod: Option<String>) -> Self {
        Self {
            wal_of_another: pod,
            ..self
        }
    }

    /// Where the volumes are mounted.
    fn mounts(&self) -> impl Iterator<Item = &Path> {
        let wal = self.wal.as_deref().and_then(Path::parent);
        [Some(self.data.as_path()), wal].into_iter().flatten()
    }

    /// Makes the directories. Nothing is removed.
    ///
    /// # Errors
    /// Fails with [`VolumeError::AnothersWal`] if the WAL volume belongs to another pod. Fails with
    /// [`VolumeError::File`] if a mount cannot be read or written; the error names it.
    pub fn prepare(&self) -> Result<(), VolumeError> {
        if let Some(pod) = self.wal_of_another.clone() {
            return Err(VolumeError::AnothersWal { pod });
        }
        for mount in self.mounts() {
            fs::read_dir(mount).map_err(failed("open the volume", mount))?;
            files::try_writing(mount).map_err(failed("write to the volume", mount))?;
        }
        let agent = self.agent_directory();
        make_directory(&agent).map_err(failed("make", &agent))?;
        sync_parent(&agent).map_err(failed("sync", &self.data))
    }

    /// Reserves the volume for this process and those that it starts from now on. Call [`Volume::prepare`] first. Also
    /// removes a copy of WAL that an earlier run of the agent did not finish.
    ///
    /// # Errors
    /// Fails with [`VolumeError::InUse`] while processes of another pod live, and with [`VolumeError::File`] if the
    /// lock file cannot be opened or locked.
    pub fn reserve(&self) -> Result<(), VolumeError> {
        if self.reservation.take(&self.agent_directory().join(reservation::FILE))?
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

    /// The directory in which PGDATA is made, together with files that are needed only meanwhile.
    pub fn staging(&self) -> PathBuf {
        self.data.join("staging")
    }

    /// The directory of the write-ahead log, if it has a volume of its own.
    pub fn wal_directory(&self) -> Option<&Path> {
        self.wal.as_deref()
    }

    /// The room that the write-ahead log has.
    ///
    /// # Errors
    /// Fails if the file system or `pg_wal` cannot be measured.
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

    /// Has PostgreSQL ask anew about all WAL that counts as archived here; see [`marks::ask_again`].
    ///
    /// # Errors
    /// Fails if the marks cannot be changed.
    pub fn archive_again(&self) -> Result<(), VolumeError> {
        let wal = self.pgdata().join("pg_wal");
        marks::ask_again(&wal).map_err(failed("mark the WAL in", &wal))
    }

    /// The volumes that have no room for another segment of WAL, or for the agent's own files.
    ///
    /// # Errors
    /// Fails if a file system cannot be measured, or `pg_wal` cannot be listed.
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

    /// Begins to make PGDATA in the staging directory. Before the directory is made, a mark is written that says what
    /// is being done (`what`): after a crash, the data then counts as unfinished.
    ///
    /// # Errors
    /// Fails with [`VolumeError::Damaged`] if there is a PGDATA, or something that an unfinished run left. Fails with
    /// [`VolumeError::File`] if the mark or the directory cannot be made.
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

    /// Renames the staged PGDATA into place. All of it must be on disk before.
    ///
    /// # Errors
    /// Fails if a file cannot be removed, renamed or synchronized; the data then still counts as unfinished.
    pub fn finish_staging(&self) -> Result<(), VolumeError> {
        let (marker, staged, pgdata) = (self.marker(), self.staging_pgdata(), self.pgdata());
        // Until the rename, the staging directory itself shows that nothing is finished.
        fs::remove_file(&marker).map_err(failed("remove", &marker))?;
        sync_parent(&marker).map_err(failed("sync", &marker))?;
        sync_parent(&staged).map_err(failed("sync", &staged))?;
        fs::rename(&staged, &pgdata).map_err(failed("put into place", &pgdata))?;
        sync_parent(&pgdata).map_err(failed("sync", &pgdata))?;
        remove_tree(&self.staging())
    }

    /// Removes what an unfinished initdb or clone left, including its WAL on the WAL volume. If a setting aside was
    /// begun, it is completed instead. A PGDATA in place is never removed.
    ///
    /// # Errors
    /// Fails with [`VolumeError::Damaged`] if a PGDATA is in place beside a mark of unfinished work: a person must look
    /// at it. Fails with [`VolumeError::File`] if something cannot be removed.
    pub async fn discard_unfinished(&self) -> Result<(), VolumeError> {
        self.blocking(Volume::discard_now).await
    }

    /// Runs `work` on a thread that may block.
    ///
    /// # Errors
    /// Fails if `work` fails.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let volume = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&volume)).await;
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    /// Reads what data there is.
    ///
    /// # Errors
    /// Fails if the volume cannot be read. Fails with [`VolumeError::Damaged`] if there is WAL without data, or if the
    /// control file is damaged.
    pub async fn data_state(&self, tools: &Tools) -> Result<DataState, VolumeError> {
        match self.blocking(Volume::state_but_for_data).await? {
            Some(state) => Ok(state),
            None => Ok(DataState::Ready(self.control_data(tools).await?)),
        }
    }

    /// The state without a look at the data; `None` if a PGDATA is in place.
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

    /// The state if there is neither a PGDATA nor a mark. WAL without data is an error, and stays: its data may come
    /// back.
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

    /// Reads the control file of PGDATA.
    ///
    /// # Errors
    /// Fails with [`VolumeError::ControlFile`] if `pg_controldata` fails or takes too long, and with
    /// [`VolumeError::Damaged`] if its checksum or its output is wrong.
    pub async fn control_data(&self, tools: &Tools) -> Result<ControlData, VolumeError> {
        let pgdata = self.pgdata();
        let mut control = control_data(tools, &pgdata).await?;
        control.from_backup = self.blocking(move |_| exists(&pgdata.join("backup_label"))).await?;
        Ok(control)
    }

    /// The end of the WAL that lies in `pg_wal` without a gap from `redo` on; `redo` if there is no such WAL.
    ///
    /// # Errors
    /// Fails if the WAL cannot be read.
    pub async fn end_of_wal(&self, redo: Lsn, sizes: WalSizes) -> Result<Lsn, VolumeError> {
        let directory = self.pgdata().join("pg_wal");
        self.blocking(move |_| wal::end(&directory, redo, sizes).map_err(failed("read the WAL in", &directory)))
            .await
    }

    /// Reads the control file of the staged PGDATA.
    ///
    /// # Errors
    /// As [`Volume::control_data`].
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
        remove_file(&marker)?;
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

    /// A directory that is removed with the test.
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
    fn a_volume_without_room_for_another_segment_is_full() {
        let scratch = Scratch::new();
        let segment = |wal: &Path, bytes: u64| {
            fs::create_dir_all(wal).expect("made");
            let file = fs::File::create(wal.join("000000010000000000000001")).expect("made");
            file.set_len(bytes).expect("sparse");
        };
        // More than any file system of a test machine has. The file is sparse: nothing of it is written.
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
    fn a_partial_copy_of_wal_is_removed_when_the_volume_is_reserved() {
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
    fn the_room_of_the_log_is_free_space_and_its_own_files() {
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
