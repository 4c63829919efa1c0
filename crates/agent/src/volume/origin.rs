//! Small records beside PGDATA: for which database the data was made, and the settings that PostgreSQL last ran well
//! with.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::files::{exists, failed, read_if_there, remove_file, sync_parent, write_atomically};
use super::{Volume, VolumeError};

impl Volume {
    /// UID of the `ClusteredDatabase` for which `initdb` was begun on this volume; `None` only if it never was.
    ///
    /// # Errors
    /// Fails if the file exists and cannot be read.
    pub fn made_for(&self) -> Result<Option<String>, VolumeError> {
        let path = self.made_for_file();
        read_if_there(&path).map_err(failed("read", &path))
    }

    /// Records for which `ClusteredDatabase` the data is made. Called before `initdb` begins.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn record_made_for(&self, cluster_uid: &str) -> Result<(), VolumeError> {
        let path = self.made_for_file();
        write_atomically(&path, cluster_uid.as_bytes(), 0o600).map_err(failed("write", &path))
    }

    /// The user's settings that PostgreSQL last ran well with; `None` if nothing is recorded.
    ///
    /// # Errors
    /// Fails with [`VolumeError::File`] if the file cannot be read, and with [`VolumeError::Damaged`] if it is not
    /// understood.
    pub fn good_settings(&self) -> Result<Option<BTreeMap<String, String>>, VolumeError> {
        let path = self.good_settings_file();
        let Some(text) = read_if_there(&path).map_err(failed("read", &path))? else {
            return Ok(None);
        };
        let damaged = |error: serde_json::Error| VolumeError::Damaged {
            path,
            reason: error.to_string(),
        };
        serde_json::from_str(&text).map(Some).map_err(damaged)
    }

    /// Records the user's settings that PostgreSQL runs well with.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn record_good_settings(&self, settings: &BTreeMap<String, String>) -> Result<(), VolumeError> {
        let path = self.good_settings_file();
        let text = serde_json::to_vec(settings).unwrap_or_default();
        write_atomically(&path, &text, 0o600).map_err(failed("write", &path))
    }

    /// Forgets the identity of a volume without data, so that a new one can be made.
    ///
    /// # Errors
    /// Fails with [`VolumeError::Damaged`] if there is data, and with [`VolumeError::File`] if a file cannot be
    /// removed.
    pub fn forget_member(&self) -> Result<(), VolumeError> {
        let pgdata = self.pgdata();
        if exists(&pgdata)? {
            return Err(VolumeError::Damaged {
                path: pgdata,
                reason: "it holds the data of this member".to_owned(),
            });
        }
        for path in [self.member_file(), self.certificate_file()] {
            remove_file(&path)?;
            sync_parent(&path).map_err(failed("sync", &path))?;
        }
        Ok(())
    }

    fn made_for_file(&self) -> PathBuf {
        self.agent_directory().join("made-for")
    }

    fn good_settings_file(&self) -> PathBuf {
        self.agent_directory().join("good-settings.json")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::volume::tests::Scratch;

    #[test]
    fn records_are_read_as_they_were_written() {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        assert_eq!(volume.made_for().expect("readable"), None);
        volume.record_made_for("c0ffee").expect("written");
        assert_eq!(volume.made_for().expect("readable").as_deref(), Some("c0ffee"));
        assert_eq!(volume.good_settings().expect("readable"), None);
        let settings = BTreeMap::from([("work_mem".to_owned(), "8MB".to_owned())]);
        volume.record_good_settings(&settings).expect("written");
        assert_eq!(volume.good_settings().expect("readable"), Some(settings));
    }

    #[test]
    fn an_identity_is_forgotten_only_without_data() {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        let id = machine::protocol::MemberId::new(0, "aaaa", 1);
        volume.make_member(&id, "aaaa").expect("made");
        fs::create_dir(volume.pgdata()).expect("made");
        assert!(volume.forget_member().is_err());
        fs::remove_dir(volume.pgdata()).expect("removed");
        volume.forget_member().expect("forgotten");
        assert_eq!(volume.member().expect("readable"), None);
    }
}
