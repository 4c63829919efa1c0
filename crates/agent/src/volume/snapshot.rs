//! A volume that was made from a VolumeSnapshot: it has the data of another member, and all that its agent knew.

use std::fs;
use std::path::PathBuf;

use super::files::{damaged, exists, failed, make_directory, remove_file, remove_tree, sync_parent};
use super::{Volume, VolumeError, reservation};

impl Volume {
    /// Forgets whose data came with the volume, and puts PGDATA where a recovery finds it. It can be repeated. Only if
    /// [`machine::instance::Action::TakeSnapshot`] says so.
    ///
    /// # Errors
    /// Fails if a file cannot be moved or removed.
    pub fn take_snapshot(&self) -> Result<(), VolumeError> {
        let agent = self.agent_directory();
        // The identity first: nobody may go by the rest in its name.
        remove_file(&self.member_file())?;
        sync_parent(&self.member_file()).map_err(failed("sync", &agent))?;
        for entry in fs::read_dir(&agent).map_err(failed("list", &agent))? {
            let path = entry.map_err(failed("list", &agent))?.path();
            match path.file_name() {
                // This agent holds it.
                Some(name) if name == reservation::FILE => {}
                _ if path.is_dir() => remove_tree(&path)?,
                _ => remove_file(&path)?,
            }
        }
        for left in [self.staging(), self.data_mount().join("aside"), self.snapshot()] {
            remove_tree(&left)?;
        }
        let (snapshot, pgdata) = (self.snapshot(), self.pgdata());
        make_directory(&snapshot).map_err(failed("make", &snapshot))?;
        // With this the data count as none.
        fs::rename(&pgdata, self.snapshot_pgdata()).map_err(failed("move", &pgdata))?;
        sync_parent(&pgdata).map_err(failed("sync", &pgdata))?;
        sync_parent(&self.snapshot_pgdata()).map_err(failed("sync", &snapshot))
    }

    /// Puts the PGDATA of a VolumeSnapshot where a recovery works; what an earlier recovery has left there stays.
    ///
    /// # Errors
    /// Fails with [`VolumeError::Damaged`] if there is none.
    pub fn stage_snapshot(&self) -> Result<(), VolumeError> {
        let (from, to) = (self.snapshot_pgdata(), self.staging_pgdata());
        if exists(&to)? {
            return Ok(());
        }
        if !exists(&from)? {
            let reason = "this volume does not have the files of the VolumeSnapshot: delete the ClusteredDatabase with its volumes and \
                          make it again, so that a new volume is made from it";
            return Err(damaged(&from, reason.to_owned()));
        }
        if !exists(&self.staging())? {
            self.begin_staging("recovery")?;
        }
        fs::rename(&from, &to).map_err(failed("move", &from))?;
        sync_parent(&to).map_err(failed("sync", &to))?;
        remove_tree(&self.snapshot())
    }

    fn snapshot(&self) -> PathBuf {
        self.data_mount().join("snapshot")
    }

    fn snapshot_pgdata(&self) -> PathBuf {
        self.snapshot().join("pgdata")
    }
}

#[cfg(test)]
mod tests {
    use machine::protocol::{Epoch, MemberId};

    use super::*;
    use crate::volume::tests::Scratch;

    #[test]
    fn what_came_with_the_volume_is_forgotten_and_its_data_are_kept() {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        volume.reserve().expect("reserved");
        let id = MemberId::new(0, "1a2b3c4d-0000", 7);
        volume.make_member(&id, "1a2b3c4d-0000").expect("an identity");
        volume.promise_at_least(Epoch(9)).expect("a promise");
        volume.record_made_for("the source").expect("recorded");
        assert!(volume.stage_snapshot().is_err(), "nothing came with it");
        fs::create_dir(volume.pgdata()).expect("made");
        fs::write(volume.pgdata().join("PG_VERSION"), "17").expect("written");
        fs::create_dir_all(volume.data_mount().join("aside/old")).expect("made");

        volume.take_snapshot().expect("taken");
        assert_eq!(volume.member().expect("readable"), None);
        assert_eq!(volume.made_for().expect("readable"), None);
        assert!(!exists(&volume.pgdata()).expect("looked"));
        assert!(!exists(&volume.data_mount().join("aside")).expect("looked"));
        volume.make_member(&id, "of-this-one").expect("a new identity");
        assert_eq!(
            volume.promise().expect("readable").epoch,
            Epoch(0),
            "the promise was another member's"
        );

        volume.stage_snapshot().expect("there");
        volume.stage_snapshot().expect("it goes on");
        let version = fs::read_to_string(volume.staging_pgdata().join("PG_VERSION"));
        assert_eq!(version.expect("readable"), "17");
        assert!(!exists(&volume.snapshot()).expect("looked"));
    }
}
