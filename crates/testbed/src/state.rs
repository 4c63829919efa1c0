//! The holder of the testbed and its started processes: the record and the lock.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::cgroup::Hierarchies;
use crate::options::Options;
use crate::paths::{self, Paths};
use crate::plan::cgroup_name;
use crate::process::{self, Process};
use crate::progress::say;

/// How long a command waits for another one: a cold `up` builds for minutes.
const LOCK_LIMIT: Duration = Duration::from_secs(30 * 60);

/// The record of one testbed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The requested options; `options.checkout` holds the testbed.
    pub options: Options,
    /// The boot of the machine in which it was started.
    pub boot_id: String,
    /// When it was started, in seconds since 1970.
    pub since: u64,
    /// False while `up` runs, and after it was killed.
    pub complete: bool,
    /// Files of the cache that it uses.
    pub uses: Vec<PathBuf>,
    /// The processes, in the order in which they were started.
    pub processes: Vec<Process>,
}

impl State {
    /// A new record, with nothing started.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Self {
            options,
            boot_id: process::boot_id(),
            since,
            complete: false,
            uses: Vec::new(),
            processes: Vec::new(),
        }
    }

    /// Reads the record, if there is one.
    ///
    /// # Errors
    /// When there is one that cannot be read.
    pub fn load(paths: &Paths) -> Result<Option<Self>> {
        let path = paths.record();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        if let Ok(state) = serde_json::from_str(&text) {
            return Ok(Some(state));
        }
        // Written by another version of the testbed, which may be running.
        let runs =
            Hierarchies::detect().is_ok_and(|groups| !groups.processes(&cgroup_name(paths.instance())).is_empty());
        ensure!(
            !runs,
            "another version of the testbed runs here and its record {} cannot be read: \
             end it from the checkout that started it, or with `cargo xtask testbed down --force`",
            path.display()
        );
        Ok(None)
    }

    /// Writes the record atomically.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn save(&self, paths: &Paths) -> Result<()> {
        let path = paths.record();
        let unfinished = path.with_extension("new");
        let text = serde_json::to_string_pretty(self).context("write the testbed's record")?;
        fs::write(&unfinished, text).with_context(|| format!("write {}", unfinished.display()))?;
        fs::rename(&unfinished, &path).with_context(|| format!("write {}", path.display()))
    }

    /// The processes that have ended.
    #[must_use]
    pub fn dead(&self) -> Vec<&str> {
        let same_boot = self.boot_id == process::boot_id();
        let dead = self.processes.iter().filter(|p| !same_boot || !p.is_alive());
        dead.map(|p| p.daemon.name.as_str()).collect()
    }

    /// True if any of its processes runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.dead().len() < self.processes.len()
    }

    /// True if the testbed belongs to another checkout that still exists.
    #[must_use]
    pub fn belongs_to_other(&self, checkout: &Path) -> bool {
        self.options.checkout != checkout && self.options.checkout.exists()
    }

    /// The process called `name`.
    ///
    /// # Errors
    /// When there is none.
    pub fn process(&self, name: &str) -> Result<&Process> {
        let found = self.processes.iter().find(|p| p.daemon.name == name);
        found.with_context(|| {
            let names: Vec<&str> = self.processes.iter().map(|p| p.daemon.name.as_str()).collect();
            format!("the testbed has no process {name:?}, only {}", names.join(", "))
        })
    }
}

/// Held while a command changes a testbed; freed when dropped, and by the
/// kernel when this program dies.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Waits for the lock of one testbed instance.
    ///
    /// # Errors
    /// When it cannot be had.
    pub async fn instance(paths: &Paths) -> Result<Self> {
        Self::acquire(paths.lock()).await
    }

    /// Waits for the lock of the cache, which all instances share.
    ///
    /// # Errors
    /// When it cannot be had.
    pub async fn cache() -> Result<Self> {
        Self::acquire(paths::cache_root().join("lock")).await
    }

    async fn acquire(path: PathBuf) -> Result<Self> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        }
        let deadline = Instant::now() + LOCK_LIMIT;
        let mut told = false;
        loop {
            if let Some(file) = try_lock(&path)? {
                return Ok(Self { path, _file: file });
            }
            if !told {
                let holder = fs::read_to_string(&path).unwrap_or_default();
                say(&format!(
                    "waiting for another testbed command (process {}) …",
                    holder.trim()
                ));
                told = true;
            }
            if Instant::now() > deadline {
                bail!(
                    "another testbed command holds {} for more than 30 minutes; end it and try again",
                    path.display()
                );
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Frees the lock and removes its file.
    pub fn remove(self) {
        // Others that have the file open see that it is no longer the one in the directory, and start again.
        let _ = fs::remove_file(&self.path);
        if let Some(dir) = self.path.parent() {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// The locked file, or `None` if another process has it.
fn try_lock(path: &Path) -> Result<Option<File>> {
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    let mut file = open.with_context(|| format!("open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("lock {}", path.display())),
    }
    let ours = file.metadata().map(|m| m.ino()).ok();
    if ours.is_none() || fs::metadata(path).map(|m| m.ino()).ok() != ours {
        return Ok(None);
    }
    // For the message of a waiting program; only the lock itself matters.
    let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Daemon;

    fn state(boot_id: &str) -> State {
        let pid = i32::try_from(std::process::id()).unwrap();
        let daemon = Daemon {
            name: "etcd".into(),
            argv: vec![],
            netns: None,
            log: PathBuf::new(),
        };
        let mut state = State::new(Options::from_env().unwrap());
        state.boot_id = boot_id.to_owned();
        state.processes = vec![Process {
            daemon,
            pid,
            started: process::start_time(pid).unwrap(),
        }];
        state
    }

    #[test]
    fn a_record_of_this_boot_knows_its_living_processes() {
        let state = state(&process::boot_id());
        assert!(state.is_alive() && state.dead().is_empty());
        assert!(state.process("etcd").is_ok() && state.process("x").is_err());
    }

    #[test]
    fn nothing_outlives_a_reboot() {
        let state = state("another boot");
        assert!(!state.is_alive());
        assert_eq!(state.dead(), ["etcd"]);
    }

    #[test]
    fn a_checkout_that_was_deleted_holds_nothing() {
        let mut state = state("");
        let mine = state.options.checkout.clone();
        assert!(!state.belongs_to_other(&mine));
        assert!(state.belongs_to_other(Path::new("/elsewhere")));
        state.options.checkout = "/nonexistent/checkout".into();
        assert!(!state.belongs_to_other(&mine));
    }

    #[test]
    fn a_locked_file_is_not_locked_twice() {
        let path = std::env::temp_dir().join(format!("cdb-testbed-lock-{}", std::process::id()));
        let held = try_lock(&path).unwrap();
        assert!(held.is_some());
        assert!(try_lock(&path).unwrap().is_none());
        fs::remove_file(&path).unwrap();
        assert!(
            try_lock(&path).unwrap().is_some(),
            "a removed file's lock is worth nothing"
        );
        fs::remove_file(&path).unwrap();
    }
}
