//! WAL that a rewind destroys. It is kept aside, because it may be the only copy of acknowledged commits.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use machine::protocol::{Fork, Lsn, parting};

use super::files::{exists, failed, free, make_directory, read_if_there, remove_tree, sync_parent, with_margin};
use super::history::forks;
use super::{ControlData, Volume, VolumeError, wal};
use crate::tools::Tools;

impl Volume {
    /// Copies WAL of PGDATA to `aside/wal-<timeline>-<position>/`, before a rewind to a timeline with the ancestors
    /// `history` destroys it: the segments from the position on where the timelines part, the history files in
    /// `pg_wal`, and `global/pg_control`. The copy is on disk then; [`Volume::kept`] lists only whole copies. Does
    /// nothing if there is such a copy already. PostgreSQL must be stopped.
    ///
    /// # Errors
    /// Fails with [`VolumeError::NoRoomAside`] if the copy does not fit, and with other variants if the control file or
    /// the WAL cannot be read or copied.
    pub async fn keep_tail(&self, tools: &Tools, history: Vec<Fork>) -> Result<(), VolumeError> {
        let control = self.control_data(tools).await?;
        self.blocking(move |volume| volume.copy_tail(&control, &history)).await
    }

    fn copy_tail(&self, control: &ControlData, history: &[Fork]) -> Result<(), VolumeError> {
        self.drop_partial_tail()?;
        let (timeline, wal) = (control.newest_timeline(), self.pgdata().join("pg_wal"));
        let own = wal.join(format!("{:08X}.history", timeline.0));
        let ancestors = read_if_there(&own).map_err(failed("read", &own))?;
        // Without known ancestors all WAL is kept.
        let ancestors = ancestors.and_then(|text| forks(&text).ok()).unwrap_or_default();
        let from = parting(&ancestors, timeline, history);
        let name = format!("wal-{}-{}", timeline.0, from.to_string().replace('/', "_"));
        let place = self.aside(self.data_mount()).join(name);
        if exists(&place)? {
            return Ok(());
        }
        let files = self.files_of_tail(&wal, control, from)?;
        let needed = with_margin(files.values().sum());
        let free = free(self.data_mount())?;
        if needed > free {
            return Err(VolumeError::NoRoomAside { needed, free });
        }
        tracing::info!(bytes = needed, "the WAL from {from} on is kept in {}", place.display());
        let copied = self.copy_files(&files, &wal, &place);
        if copied.is_err() {
            self.drop_partial_tail()?;
        }
        copied
    }

    /// Where a copy is until it is whole. [`Volume::kept`] does not list this name.
    fn partial_tail(&self) -> PathBuf {
        self.aside(self.data_mount()).join(".wal")
    }

    /// Removes a copy that broke off. No rewind had begun then, so the original WAL is still in place.
    pub(super) fn drop_partial_tail(&self) -> Result<(), VolumeError> {
        remove_tree(&self.partial_tail())
    }

    fn copy_files(&self, files: &BTreeMap<PathBuf, u64>, wal: &Path, place: &Path) -> Result<(), VolumeError> {
        let staged = self.partial_tail();
        for directory in ["pg_wal", "global"] {
            let directory = staged.join(directory);
            make_directory(&directory).map_err(failed("make", &directory))?;
        }
        for path in files.keys() {
            let within = if path.starts_with(wal) { "pg_wal" } else { "global" };
            let target = staged.join(within).join(path.file_name().unwrap_or_default());
            fs::copy(path, &target).map_err(failed("copy", path))?;
            let written = File::open(&target).and_then(|file| file.sync_all());
            written.map_err(failed("sync", &target))?;
            sync_parent(&target).map_err(failed("sync", &target))?;
        }
        for path in [&staged.join("pg_wal"), &staged] {
            sync_parent(path).map_err(failed("sync", path))?;
        }
        fs::rename(&staged, place).map_err(failed("put into place", place))?;
        for path in [place, place.parent().unwrap_or(place)] {
            sync_parent(path).map_err(failed("sync", path))?;
        }
        Ok(())
    }

    /// The files to copy, with their sizes in bytes. Segments behind the end of the WAL are empty and left out.
    fn files_of_tail(
        &self,
        wal: &Path,
        control: &ControlData,
        from: Lsn,
    ) -> Result<BTreeMap<PathBuf, u64>, VolumeError> {
        let read = || {
            let segment = u64::from(control.wal_sizes.segment.max(1));
            let end = wal::end(wal, control.redo.max(from), control.wal_sizes)?;
            let segments = wal::segments(wal, segment)?;
            let tail = segments.range(from.0 / segment..=end.0 / segment);
            let mut paths: Vec<_> = tail.flat_map(|(_, files)| files.clone()).collect();
            for entry in fs::read_dir(wal)? {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "history") {
                    paths.push(path);
                }
            }
            paths.push(self.pgdata().join("global/pg_control"));
            let sized = paths.into_iter().map(|path| {
                let bytes = fs::metadata(&path)?.len();
                Ok((path, bytes))
            });
            sized.collect::<io::Result<_>>()
        };
        read().map_err(failed("read the WAL in", wal))
    }
}
