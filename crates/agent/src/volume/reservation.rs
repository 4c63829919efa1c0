//! Only one pod at a time uses a volume. A pod that was deleted with force may go on for a while beside its successor,
//! on the same node and volume. The lease prevents a second primary; only this lock prevents a second standby.

use std::fs::{File, OpenOptions};
use std::io::Error;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, FdFlags, fcntl_setfd};

use super::VolumeError;
use super::files::failed;

/// Name of the file that is locked.
pub(super) const FILE: &str = "lock";

/// The lock on the volume, once this agent has taken it. It is never given back: it ends with the last process of this
/// container.
#[derive(Clone, Debug, Default)]
pub(super) struct Reservation(Arc<OnceLock<File>>);

impl Reservation {
    /// Takes the lock. Returns `false` if this agent had it before.
    ///
    /// # Errors
    /// Fails with [`VolumeError::InUse`] if another process has the lock, and with [`VolumeError::File`] if the file
    /// cannot be opened or locked.
    pub(super) fn take(&self, path: &Path) -> Result<bool, VolumeError> {
        if self.0.get().is_some() {
            return Ok(false);
        }
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let file = opened.map_err(failed("open", path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(VolumeError::InUse),
            Err(error) => return Err(failed("lock", path)(Error::from(error))),
        }
        // PostgreSQL inherits the lock: the volume is in use as long as any process of it lives, with or without an
        // agent.
        fcntl_setfd(&file, FdFlags::empty()).map_err(|error| failed("keep", path)(Error::from(error)))?;
        let _ = self.0.set(file);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_user_is_refused_until_the_first_and_its_children_are_gone() {
        let path = std::env::temp_dir().join(format!("cdb-reservation-{}", std::process::id()));
        let first = Reservation::default();
        first.take(&path).unwrap();
        first.take(&path).unwrap();
        let second = Reservation::default();
        assert!(matches!(second.take(&path), Err(VolumeError::InUse)));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        drop(first);
        assert!(
            matches!(second.take(&path), Err(VolumeError::InUse)),
            "a child holds it on"
        );
        child.kill().unwrap();
        // The reaper of another test may have waited for it: then it is gone, too.
        let ended = child.wait().map(drop);
        assert!(
            ended.is_ok()
                || ended.is_err_and(|error| error.raw_os_error() == Some(rustix::io::Errno::CHILD.raw_os_error())),
        );
        // A child that another test has begun meanwhile holds it on until it has become another program.
        let mut tries = 600;
        while second.take(&path).is_err() {
            tries -= 1;
            assert!(tries > 0, "it is held on");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        std::fs::remove_file(&path).unwrap();
    }
}
