//! The member's promise, and the credential with which it receives WAL. One lock guards both, so that no order of tasks
//! leaves a credential in place that belongs to an older epoch.
//!
//! The files lie beside PGDATA, because `pg_rewind` and `pg_basebackup` overwrite files inside PGDATA.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

use machine::instance::Promise;
use machine::instance::steps::{PROMISE_WRITES, PromiseWrite};
use machine::protocol::{Epoch, Timeline};
use serde::{Deserialize, Serialize};

use super::files::{damaged, exists, failed, read_if_there, read_store, sync_parent, write_atomically, write_whole};
use super::{Volume, VolumeError};

/// `agent/promise.json`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Stored {
    version: u32,
    epoch: Epoch,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    promoting: Option<Timeline>,
}

const STORE_VERSION: u32 = 1;

impl Volume {
    /// The stored promise; the empty promise if none was ever made.
    ///
    /// # Errors
    /// Fails with [`VolumeError::File`] if the store cannot be read, and with [`VolumeError::Damaged`] if it is not
    /// understood: that never means that nothing is promised. Also fails if the store is missing beside data, unless a
    /// version of the agent made the identity that made the store later.
    pub fn promise(&self) -> Result<Promise, VolumeError> {
        let path = self.promise_file();
        let stored = read_store(&path, STORE_VERSION, |stored: &Stored| stored.version)?;
        if stored.is_none() && exists(&self.pgdata())? && self.began_promises()? {
            return Err(damaged(
                &path,
                "it is gone: what this member has promised is not known".to_owned(),
            ));
        }
        Ok(stored.map_or_else(Promise::default, |stored| Promise {
            epoch: stored.epoch,
            promoting: stored.promoting,
        }))
    }

    /// Makes the store, if there is none.
    ///
    /// # Errors
    /// Fails if the store cannot be written.
    pub(super) fn begin_promises(&self) -> Result<(), VolumeError> {
        match exists(&self.promise_file())? {
            true => Ok(()),
            false => self.store(Promise::default()),
        }
    }

    /// Promises durably to receive nothing from an epoch below `epoch`, and removes the credential of the WAL receiver
    /// (protocol.md rule 4, steps 1 and 2). Nothing can connect with it from now on. A WAL receiver that has connected
    /// before must still be ended ([`crate::postgres::stop_receiving`]). A higher promise stays. Returns the stored
    /// promise.
    ///
    /// # Errors
    /// Fails as [`Volume::promise`], or if the store cannot be written or the credential cannot be removed.
    pub fn promise_at_least(&self, epoch: Epoch) -> Result<Promise, VolumeError> {
        let _one = self.one_promise();
        let mut promise = self.promise()?;
        promise.epoch = promise.epoch.max(epoch);
        // Both files are in one directory: the new name of the store is on disk together with the removal of the
        // credential's.
        for write in PROMISE_WRITES {
            match write.step {
                PromiseWrite::Epoch => self.store_by(promise, write_whole)?,
                PromiseWrite::RemoveCredential => self.take_credential_away()?,
            }
        }
        Ok(promise)
    }

    /// Called before anything is received from the primary of `epoch`. Promises that epoch durably, forgets a promotion
    /// that was begun, and restores the credential of the WAL receiver (protocol.md rule 6). Returns the stored
    /// promise.
    ///
    /// # Errors
    /// Fails with [`VolumeError::Promised`] if a higher epoch is promised. Also fails as [`Volume::promise`], or if a
    /// file cannot be written.
    pub fn follow(&self, epoch: Epoch) -> Result<Promise, VolumeError> {
        let _one = self.one_promise();
        let promise = self.adopt(epoch)?;
        let key = fs::read(self.key_file()).map_err(failed("read", &self.key_file()))?;
        let credential = self.credential_file();
        let there = read_if_there(&credential).map_err(failed("read", &credential))?;
        if there.is_none_or(|there| there.as_bytes() != key) {
            write_atomically(&credential, &key, 0o600).map_err(failed("write", &credential))?;
        }
        Ok(promise)
    }

    /// Does `work` while the credential is removed, and prevents its return meanwhile. Does nothing if the credential
    /// is there again: another primary is followed then.
    ///
    /// # Errors
    /// Fails if `work` fails, or it cannot be found out whether the credential is there.
    pub fn while_promised(&self, work: impl FnOnce() -> io::Result<()>) -> Result<(), VolumeError> {
        let _one = self.one_promise();
        match exists(&self.credential_file())? {
            true => Ok(()),
            false => work().map_err(failed("empty primary_conninfo in", &self.pgdata())),
        }
    }

    /// Called before the data is rewound to the primary of `epoch`. Promises as [`Volume::follow`] does, but removes
    /// the credential.
    ///
    /// # Errors
    /// Fails with [`VolumeError::Promised`] if a higher epoch is promised, and as [`Volume::promise_at_least`].
    pub fn promise_before_rewind(&self, epoch: Epoch) -> Result<Promise, VolumeError> {
        let _one = self.one_promise();
        let promise = self.adopt(epoch)?;
        self.take_credential_away()?;
        Ok(promise)
    }

    /// Notes durably that a promotion to `timeline` is begun (protocol.md rule 14). Called before the promotion.
    ///
    /// # Errors
    /// Fails as [`Volume::promise`], or if the store cannot be written.
    pub fn record_promoting(&self, timeline: Timeline) -> Result<Promise, VolumeError> {
        let _one = self.one_promise();
        let promise = Promise {
            promoting: Some(timeline),
            ..self.promise()?
        };
        self.store(promise)?;
        Ok(promise)
    }

    /// Removes the note of a promotion. Called when the promotion has ended on its intended timeline.
    ///
    /// # Errors
    /// Fails as [`Volume::promise`], or if the store cannot be written.
    pub fn drop_promoting(&self) -> Result<Promise, VolumeError> {
        let _one = self.one_promise();
        let promise = Promise {
            promoting: None,
            ..self.promise()?
        };
        self.store(promise)?;
        Ok(promise)
    }

    /// The key file that `primary_conninfo` names: a copy of the member's key that exists only while the member may
    /// receive.
    pub fn credential_file(&self) -> PathBuf {
        self.agent_directory().join("replication.key.active")
    }

    fn adopt(&self, epoch: Epoch) -> Result<Promise, VolumeError> {
        let before = self.promise()?;
        if epoch < before.epoch {
            return Err(VolumeError::Promised {
                promised: before.epoch,
                epoch,
            });
        }
        let promise = Promise { epoch, promoting: None };
        if promise != before {
            self.store(promise)?;
        }
        Ok(promise)
    }

    fn store(&self, promise: Promise) -> Result<(), VolumeError> {
        self.store_by(promise, write_atomically)
    }

    fn store_by(&self, promise: Promise, write: fn(&Path, &[u8], u32) -> io::Result<()>) -> Result<(), VolumeError> {
        let path = self.promise_file();
        let stored = Stored {
            version: STORE_VERSION,
            epoch: promise.epoch,
            promoting: promise.promoting,
        };
        let content = serde_json::to_vec(&stored).map_err(|error| failed("write", &path)(error.into()))?;
        write(&path, &content, 0o600).map_err(failed("write", &path))
    }

    /// Puts the names in the agent's directory on disk, even if it fails.
    fn take_credential_away(&self) -> Result<(), VolumeError> {
        let credential = self.credential_file();
        let removed = fs::remove_file(&credential);
        sync_parent(&credential).map_err(failed("sync", &credential))?;
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", &credential)(error)),
            _ => Ok(()),
        }
    }

    fn one_promise(&self) -> MutexGuard<'_, ()> {
        self.promising.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn promise_file(&self) -> PathBuf {
        self.agent_directory().join("promise.json")
    }
}

#[cfg(test)]
mod tests;
