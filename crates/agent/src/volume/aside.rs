//! Data that a new copy replaces, and data that is being rewound.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::files::{exists, failed, make_directory, read_if_there, remove_tree, sync_parent, write_atomically};
use super::{Volume, VolumeError};
use crate::tools::Tools;

/// `agent/setting-aside.json`: the name under which the data is set aside. Written before the first rename.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Going {
    name: String,
    keep: bool,
}

impl Volume {
    /// Moves PGDATA and its WAL to `aside/<timeline>-<position>-<number>` on their volumes, or removes them if `keep`
    /// is false. Afterwards there is no data ([`super::DataState::Empty`]). PostgreSQL must be stopped. If this breaks
    /// off, the data is [`super::DataState::Unfinished`], and [`Volume::discard_unfinished`] completes the move. The
    /// marks of a rewind and of a former primary are removed, too.
    ///
    /// # Errors
    /// Fails if the mark cannot be written, or a directory cannot be renamed or removed. An unreadable control file is
    /// no error: the data is then set aside as `unreadable-<seconds>`.
    pub async fn set_aside(&self, tools: &Tools, keep: bool) -> Result<(), VolumeError> {
        let label = match self.control_data(tools).await {
            Ok(control) => format!(
                "{}-{}",
                control.newest_timeline().0,
                control.end().to_string().replace('/', "_")
            ),
            // Unreadable data can be kept all the same. The time makes its name unique, even if earlier data of that
            // name was discarded.
            Err(_) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                format!("unreadable-{}", now.map_or(0, |since| since.as_secs()))
            }
        };
        self.blocking(move |volume| {
            let name = volume.free_name(&label)?;
            let mark = volume.going_file();
            let going =
                serde_json::to_vec(&Going { name, keep }).map_err(|error| failed("write", &mark)(error.into()))?;
            write_atomically(&mark, &going, 0o600).map_err(failed("write", &mark))?;
            volume.complete_setting_aside()
        })
        .await
    }

    /// The data that was set aside and kept, by name.
    ///
    /// # Errors
    /// Fails if the directory cannot be listed, or the note of a setting aside is damaged.
    pub fn kept(&self) -> Result<BTreeSet<String>, VolumeError> {
        let place = self.aside(self.data_mount());
        let going = self.going()?.map(|going| going.name);
        let entries = match fs::read_dir(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
            entries => entries.map_err(failed("list", &place))?,
        };
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
        let names: BTreeSet<String> = names.collect::<Result<_, _>>().map_err(failed("list", &place))?;
        Ok(names
            .into_iter()
            .filter(|name| is_plain(name) && Some(name) != going.as_ref())
            .collect())
    }

    /// Removes the kept data of this name; returns the names that are left. Does nothing if nothing is kept under the
    /// name.
    ///
    /// # Errors
    /// As [`Volume::kept`]; also fails if a directory cannot be removed.
    pub fn discard_kept(&self, name: &str) -> Result<BTreeSet<String>, VolumeError> {
        if self.kept()?.contains(name) {
            // The WAL first: as long as the data is there, its name is listed, and the removal can be tried again.
            let mounts = [self.wal_mount(), Some(self.data_mount())];
            for mount in mounts.into_iter().flatten() {
                remove_tree(&self.aside(mount).join(name))?;
            }
        }
        self.kept()
    }

    /// True if a `pg_rewind` of PGDATA was begun and did not finish. Such data must not be started.
    ///
    /// # Errors
    /// Fails if it cannot be found out.
    pub fn is_rewinding(&self) -> Result<bool, VolumeError> {
        exists(&self.rewinding_file())
    }

    /// True if PGDATA is not whole: a rewind or a setting aside was begun.
    ///
    /// # Errors
    /// Fails if it cannot be found out.
    pub(crate) fn is_torn(&self) -> Result<bool, VolumeError> {
        Ok(self.is_rewinding()? || self.is_setting_aside()?)
    }

    /// Marks PGDATA durably as being rewound. Called before `pg_rewind` touches it.
    ///
    /// # Errors
    /// Fails if the mark cannot be written.
    pub fn begin_rewind(&self) -> Result<(), VolumeError> {
        let mark = self.rewinding_file();
        write_atomically(&mark, b"", 0o600).map_err(failed("write", &mark))
    }

    /// Removes the mark of a rewind. All of PGDATA must be on disk before.
    ///
    /// # Errors
    /// Fails if the mark cannot be removed.
    pub fn finish_rewind(&self) -> Result<(), VolumeError> {
        remove_durably(&self.rewinding_file())
    }

    /// True if the data was a primary's before it was started as a standby.
    ///
    /// # Errors
    /// Fails if it cannot be found out.
    pub fn was_primary(&self) -> Result<bool, VolumeError> {
        exists(&self.was_primary_file())
    }

    /// Notes durably that the data was a primary's, or removes that note.
    ///
    /// # Errors
    /// Fails if the note cannot be written or removed.
    pub fn note_was_primary(&self, was_primary: bool) -> Result<(), VolumeError> {
        let mark = self.was_primary_file();
        match was_primary {
            true if exists(&mark)? => Ok(()),
            true => write_atomically(&mark, b"", 0o600).map_err(failed("write", &mark)),
            false => remove_durably(&mark),
        }
    }

    /// True if a setting aside was begun.
    pub(super) fn is_setting_aside(&self) -> Result<bool, VolumeError> {
        exists(&self.going_file())
    }

    /// Completes a setting aside that was begun; does nothing if there is none.
    pub(super) fn complete_setting_aside(&self) -> Result<(), VolumeError> {
        let mark = self.going_file();
        let Some(going) = self.going()? else {
            return Ok(());
        };
        let place = self.aside(self.data_mount()).join(&going.name);
        move_into(&self.pgdata(), &place)?;
        if let (Some(wal), Some(mount)) = (&self.wal, self.wal_mount()) {
            let wal_place = self.aside(mount).join(&going.name);
            move_into(wal, &wal_place)?;
            if going.keep {
                point_to(&place.join("pg_wal"), &wal_place)?;
            } else {
                remove_tree(&wal_place)?;
            }
        }
        if !going.keep {
            remove_tree(&place)?;
        }
        remove_durably(&self.rewinding_file())?;
        remove_durably(&self.was_primary_file())?;
        remove_durably(&mark)
    }

    /// Where PGDATA is moved to, if a setting aside was begun.
    pub(super) fn giving_way(&self) -> Result<Option<PathBuf>, VolumeError> {
        let place = |going: Going| self.aside(self.data_mount()).join(going.name);
        Ok(self.going()?.map(place))
    }

    fn going(&self) -> Result<Option<Going>, VolumeError> {
        let mark = self.going_file();
        let Some(text) = read_if_there(&mark).map_err(failed("read", &mark))? else {
            return Ok(None);
        };
        let damaged = |reason: String| VolumeError::Damaged {
            path: mark.clone(),
            reason,
        };
        let going: Going = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if !is_plain(&going.name) {
            return Err(damaged(format!("{:?} is no name that an agent makes", going.name)));
        }
        Ok(Some(going))
    }

    pub(super) fn aside(&self, mount: &Path) -> PathBuf {
        mount.join("aside")
    }

    /// The first of `label-1`, `label-2` … that is free on both volumes.
    fn free_name(&self, label: &str) -> Result<String, VolumeError> {
        let mounts = [Some(self.data_mount()), self.wal_mount()];
        let mut number = 1_u32;
        loop {
            let name = format!("{label}-{number}");
            let mut taken = false;
            for mount in mounts.into_iter().flatten() {
                taken |= exists(&self.aside(mount).join(&name))?;
            }
            if !taken {
                return Ok(name);
            }
            number += 1;
        }
    }

    fn going_file(&self) -> PathBuf {
        self.agent_directory().join("setting-aside.json")
    }

    fn rewinding_file(&self) -> PathBuf {
        self.agent_directory().join("rewinding")
    }

    fn was_primary_file(&self) -> PathBuf {
        self.agent_directory().join("was-primary")
    }
}

/// True if the agent may have made this name.
fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !name.is_empty() && name.bytes().all(plain)
}

/// Moves a directory, if it still exists.
fn move_into(from: &Path, to: &Path) -> Result<(), VolumeError> {
    if !exists(from)? {
        return Ok(());
    }
    let parent = to.parent().unwrap_or(Path::new("/"));
    make_directory(parent).map_err(failed("make", parent))?;
    sync_parent(parent).map_err(failed("sync", parent))?;
    fs::rename(from, to).map_err(failed("set aside", from))?;
    sync_parent(from).map_err(failed("sync", from))?;
    sync_parent(to).map_err(failed("sync", to))
}

/// If `link` is a link, replaces it by one to `target`.
fn point_to(link: &Path, target: &Path) -> Result<(), VolumeError> {
    if !fs::symlink_metadata(link).is_ok_and(|found| found.is_symlink()) {
        return Ok(());
    }
    fs::remove_file(link).map_err(failed("replace", link))?;
    symlink(target, link).map_err(failed("replace", link))?;
    sync_parent(link).map_err(failed("sync", link))
}

fn remove_durably(path: &Path) -> Result<(), VolumeError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("remove", path)(error)),
        Ok(()) => sync_parent(path).map_err(failed("sync", path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::tests::Scratch;

    fn data(volume: &Volume) -> PathBuf {
        let wal = volume.wal_directory().expect("a WAL volume").to_owned();
        fs::create_dir_all(volume.pgdata()).expect("made");
        fs::create_dir_all(&wal).expect("made");
        fs::write(wal.join("000000020000000000000003"), "wal").expect("written");
        symlink(&wal, volume.pgdata().join("pg_wal")).expect("a link");
        wal
    }

    fn begin(volume: &Volume, keep: bool) {
        let going = Going {
            name: volume.free_name("2-0_3000060").expect("a name"),
            keep,
        };
        fs::write(volume.going_file(), serde_json::to_vec(&going).expect("JSON")).expect("written");
    }

    #[tokio::test]
    async fn what_is_set_aside_is_whole_wherever_it_was_broken_off() {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        for round in 1..=2 {
            let wal = data(&volume);
            volume.begin_rewind().expect("marked");
            volume.note_was_primary(true).expect("noted");
            begin(&volume, true);
            if round == 2 {
                // Broken off between the renames.
                let place = scratch.0.join("data/aside/2-0_3000060-2");
                move_into(&volume.pgdata(), &place).expect("renamed");
            }
            volume.discard_unfinished().await.expect("completed");
            assert!(!volume.pgdata().exists() && !wal.exists());
            assert!(!volume.is_rewinding().expect("readable") && !volume.is_setting_aside().expect("readable"));
            assert!(!volume.was_primary().expect("readable"), "a copy is none");
            let kept = scratch.0.join(format!(
                "data/aside/2-0_3000060-{round}/pg_wal/000000020000000000000003"
            ));
            assert_eq!(fs::read_to_string(kept).expect("kept, with its WAL"), "wal");
        }
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let both = names(&["2-0_3000060-1", "2-0_3000060-2"]);
        assert_eq!(volume.kept().expect("readable"), both);
        for name in ["2-0_3000060-3", "..", "../aside/2-0_3000060-1", ""] {
            assert_eq!(volume.discard_kept(name).expect("nothing to do"), both, "{name}");
        }
        let left = volume.discard_kept("2-0_3000060-1").expect("removed");
        assert_eq!(left, names(&["2-0_3000060-2"]));
        for mount in ["data", "wal"] {
            assert!(!scratch.0.join(mount).join("aside/2-0_3000060-1").exists(), "{mount}");
            assert!(scratch.0.join(mount).join("aside/2-0_3000060-2").exists(), "{mount}");
        }
    }

    #[tokio::test]
    async fn data_that_is_not_to_be_kept_is_removed() {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        let wal = data(&volume);
        begin(&volume, false);
        assert_eq!(volume.kept().expect("readable"), BTreeSet::new());
        volume.discard_unfinished().await.expect("completed");
        assert!(!volume.pgdata().exists() && !wal.exists());
        assert!(!scratch.0.join("data/aside/2-0_3000060-1").exists());
        assert!(!scratch.0.join("wal/aside/2-0_3000060-1").exists());
    }

    #[tokio::test]
    async fn a_damaged_note_touches_nothing() {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        data(&volume);
        for note in ["{", r#"{"name": "../x", "keep": false}"#] {
            fs::write(volume.going_file(), note).expect("written");
            assert!(volume.discard_unfinished().await.is_err(), "{note}");
            assert!(volume.pgdata().exists());
        }
    }
}
