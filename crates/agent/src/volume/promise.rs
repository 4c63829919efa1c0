//! What this member has promised, and the credential with which it receives: both obey one lock, so that no order of tasks
//! leaves a credential in place that an older epoch put there.
//!
//! Beside PGDATA, because `pg_rewind` and `pg_basebackup` overwrite what is inside.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

use machine::instance::Promise;
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
    /// What was promised; no promise if none was ever made. A store that cannot be read or understood is an error, never
    /// "nothing promised"; so is one that is gone beside data, unless the identity is of a version that made it later.
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
    pub(super) fn begin_promises(&self) -> Result<(), VolumeError> {
        match exists(&self.promise_file())? {
            true => Ok(()),
            false => self.store(Promise::default()),
        }
    }

    /// Promises durably to receive nothing from an epoch below `epoch`, and takes away the credential of the WAL receiver
    /// (protocol.md rule 4, i and ii): nothing connects with it from now on. What has connected before must still be ended
    /// ([`crate::postgres::stop_receiving`]). A higher promise stays. Returns what is promised now.
    pub fn promise_at_least(&self, epoch: Epoch) -> Result<Promise, VolumeError> {
        let _one = self.one_promise();
        let mut promise = self.promise()?;
        promise.epoch = promise.epoch.max(epoch);
        // Its name is on disk with that of the credential gone: both are in one directory.
        self.store_by(promise, write_whole)?;
        self.take_credential_away()?;
        Ok(promise)
    }

    /// Before anything is received from the primary of `epoch`: promises that epoch durably, forgets a promotion that was
    /// begun, and puts the credential of the WAL receiver back (protocol.md rule 6). Refused with
    /// [`VolumeError::Promised`] if a higher epoch is promised. Returns what is promised now.
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

    /// Does `work` while the credential is away, and cannot come back; nothing if it is back, since something new is followed then.
    pub fn while_promised(&self, work: impl FnOnce() -> io::Result<()>) -> Result<(), VolumeError> {
        let _one = self.one_promise();
        match exists(&self.credential_file())? {
            true => Ok(()),
            false => work().map_err(failed("empty primary_conninfo in", &self.pgdata())),
        }
    }

    /// Before the data is rewound to the primary of `epoch`: promises as [`Volume::follow`] does, but leaves the
    /// credential away.
    pub fn promise_before_rewind(&self, epoch: Epoch) -> Result<Promise, VolumeError> {
        let _one = self.one_promise();
        let promise = self.adopt(epoch)?;
        self.take_credential_away()?;
        Ok(promise)
    }

    /// Notes durably, before it begins, that a promotion to `timeline` is begun (protocol.md rule 14).
    pub fn record_promoting(&self, timeline: Timeline) -> Result<Promise, VolumeError> {
        let _one = self.one_promise();
        let promise = Promise {
            promoting: Some(timeline),
            ..self.promise()?
        };
        self.store(promise)?;
        Ok(promise)
    }

    /// Drops the note of a promotion: it has ended well, on the timeline that it was for.
    pub fn drop_promoting(&self) -> Result<Promise, VolumeError> {
        let _one = self.one_promise();
        let promise = Promise {
            promoting: None,
            ..self.promise()?
        };
        self.store(promise)?;
        Ok(promise)
    }

    /// The key file that `primary_conninfo` names: a copy of the member's key that is there only while the member may
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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::volume::tests::Scratch;

    fn volume(scratch: &Scratch) -> Volume {
        let volume = scratch.volume();
        let id = machine::protocol::MemberId::new(0, "aaaa", 1);
        volume.make_member(&id, "aaaa").expect("an identity");
        volume
    }

    #[test]
    fn a_promise_takes_the_credential_away_and_following_brings_it_back() {
        let scratch = Scratch::new();
        let volume = volume(&scratch);
        assert_eq!(volume.promise().expect("readable"), Promise::default());
        volume.follow(Epoch(3)).expect("nothing is promised");
        let key = fs::read(volume.key_file()).expect("the key");
        assert_eq!(fs::read(volume.credential_file()).expect("a credential"), key);
        assert_eq!(volume.promise_at_least(Epoch(5)).expect("promised").epoch, Epoch(5));
        assert!(!volume.credential_file().exists(), "it is away");
        assert!(volume.key_file().exists(), "the key itself stays");
        assert_eq!(volume.promise_at_least(Epoch(4)).expect("promised").epoch, Epoch(5));
        let refused = volume.follow(Epoch(4)).expect_err("an older primary");
        assert!(matches!(refused, VolumeError::Promised { .. }), "{refused}");
        assert!(!volume.credential_file().exists(), "a refusal brings nothing back");
        volume.follow(Epoch(5)).expect("the promised one");
        assert!(volume.credential_file().exists());
        let work = || Err(io::Error::other("it is done"));
        volume.while_promised(work).expect("what is followed is left alone");
        volume.promise_before_rewind(Epoch(6)).expect("a newer one");
        assert!(!volume.credential_file().exists());
        volume.while_promised(work).expect_err("nothing is followed");
        assert_eq!(volume.promise().expect("readable").epoch, Epoch(6));
    }

    #[test]
    fn a_promotion_is_remembered_until_somebody_else_is_followed() {
        let scratch = Scratch::new();
        let volume = volume(&scratch);
        volume.promise_at_least(Epoch(2)).expect("promised");
        let noted = volume.record_promoting(Timeline(7)).expect("noted");
        assert_eq!((noted.epoch, noted.promoting), (Epoch(2), Some(Timeline(7))));
        let later = volume.promise_at_least(Epoch(3)).expect("promised");
        assert_eq!(later.promoting, Some(Timeline(7)));
        assert_eq!(volume.follow(Epoch(3)).expect("followed").promoting, None);
        assert_eq!(volume.promise().expect("readable").promoting, None);
        volume.record_promoting(Timeline(8)).expect("noted");
        let dropped = volume.drop_promoting().expect("dropped");
        assert_eq!((dropped.epoch, dropped.promoting), (Epoch(3), None));
        assert_eq!(volume.promise().expect("readable"), dropped);
    }

    proptest! {
        #[test]
        fn a_number_out_of_range_is_damage_and_never_nothing_promised(
            epoch in number(),
            promoting in prop::option::of(number()),
        ) {
            let scratch = Scratch::new();
            let volume = volume(&scratch);
            let timeline = promoting.as_ref().map_or_else(|| "null".to_owned(), String::clone);
            let content = format!(r#"{{"version": 1, "epoch": {epoch}, "promoting": {timeline}}}"#);
            fs::write(volume.promise_file(), &content).expect("written");
            let fits = |text: &str| text.parse().is_ok_and(|value: u64| value <= Epoch::MAX.0);
            match volume.promise() {
                Ok(promise) => {
                    prop_assert_eq!(promise.epoch.0.to_string(), epoch);
                    prop_assert_eq!(promise.promoting.map(|timeline| timeline.0.to_string()), promoting);
                }
                Err(refused) => {
                    let refused = format!("{refused:#}");
                    let wrong = if fits(&epoch) { "promoting" } else { "epoch" };
                    prop_assert!(refused.contains(wrong), "{}: {}", content, refused);
                    prop_assert!(!fits(&epoch) || promoting.is_some_and(|timeline| !fits(&timeline)));
                    prop_assert!(volume.promise_at_least(Epoch(9)).is_err() && volume.follow(Epoch(9)).is_err());
                    prop_assert_eq!(fs::read_to_string(volume.promise_file()).expect("there"), content, "it stays");
                }
            }
        }
    }

    /// A number as it may stand in a file.
    fn number() -> impl Strategy<Value = String> {
        let ends = [
            "0",
            "1",
            "-1",
            "2147483647",
            "2147483648",
            "4294967295",
            "18446744073709551615",
            "18446744073709551616",
        ];
        prop_oneof![
            prop::sample::select(ends.map(str::to_owned).to_vec()),
            any::<i64>().prop_map(|number| number.to_string()),
        ]
    }

    #[test]
    fn an_unreadable_store_is_not_an_absent_one() {
        let scratch = Scratch::new();
        let volume = volume(&scratch);
        volume.follow(Epoch(1)).expect("followed");
        for content in ["", "{", r#"{"version": 1}"#, r#"{"version": 2, "epoch": 1}"#] {
            fs::write(volume.promise_file(), content).expect("written");
            assert!(volume.promise().is_err(), "{content:?}");
            assert!(volume.follow(Epoch(9)).is_err(), "{content:?}: nothing is received");
            assert!(volume.promise_at_least(Epoch(9)).is_err(), "{content:?}");
        }
        fs::remove_file(volume.promise_file()).expect("removed");
        assert_eq!(volume.promise().expect("there is no data"), Promise::default());
        fs::create_dir(volume.pgdata()).expect("made");
        assert!(
            volume.promise().is_err() && volume.follow(Epoch(9)).is_err(),
            "it is gone"
        );
        let identity = fs::read_to_string(volume.member_file()).expect("an identity");
        let earlier = identity.replace(r#","promises":true"#, "");
        assert_ne!(earlier, identity);
        fs::write(volume.member_file(), earlier).expect("written");
        assert_eq!(volume.promise().expect("none was made"), Promise::default());
        fs::create_dir(volume.promise_file()).expect("made");
        assert!(volume.promise().is_err(), "what is no file is not absent");
    }
}
