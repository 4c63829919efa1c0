//! Writing whole file systems to disk.

use std::fs::File;
use std::io;

use rustix::fs::{fstatfs, syncfs};

use super::{Volume, VolumeError, failed};

/// File systems whose `syncfs` returns when all data and names are on the disk: ext2 to ext4, XFS and Btrfs (`statfs(2)`). That of a FUSE
/// file system may return before.
const WHOLE: [u64; 3] = [0xEF53, 0x5846_5342, 0x9123_683E];
/// Since Linux 5.8 `syncfs` fails if an earlier write to the disk has failed (`syncfs(2)`).
const TELLS_FAILURES: (u32, u32) = (5, 8);

/// The file systems of the volumes. It is opened before the first file is written, so that no failure between is missed.
#[derive(Debug)]
pub(crate) struct FileSystems {
    /// A directory in each of them.
    directories: Vec<File>,
}

impl Volume {
    /// Opens the file systems.
    ///
    /// # Errors
    /// Fails if a mount cannot be opened.
    pub(crate) fn file_systems(&self) -> Result<FileSystems, VolumeError> {
        let open = |mount| File::open(mount).map_err(failed("open the volume", mount));
        let directories = self.mounts().map(open).collect::<Result<_, _>>()?;
        Ok(FileSystems { directories })
    }
}

impl FileSystems {
    /// Waits until everything on them is on disk: one flush of each disk, where `fsync` needs one for each file. Returns false, after it
    /// has done nothing, if that is no promise of this kernel or of one of the file systems.
    ///
    /// # Errors
    /// Fails if something could not be written to disk since they were opened.
    pub(crate) fn sync(&self) -> io::Result<bool> {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
        if version(&release).is_none_or(|version| version < TELLS_FAILURES) {
            return Ok(false);
        }
        for directory in &self.directories {
            // The type has another width on some processors.
            #[allow(clippy::unnecessary_cast)]
            let kind = fstatfs(directory)?.f_type as u64;
            if !WHOLE.contains(&(kind & u64::from(u32::MAX))) {
                return Ok(false);
            }
        }
        for directory in &self.directories {
            syncfs(directory)?;
        }
        Ok(true)
    }
}

/// The first two numbers of a kernel's release, such as `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compared_by_numbers() {
        for (release, is_enough) in [
            ("6.1.0-18-amd64", true),
            ("5.10.0", true),
            ("5.8-rc1", true),
            ("5.7.19", false),
            ("4.18.0-553.el8.x86_64", false),
            ("linux", false),
        ] {
            let found = version(release).is_some_and(|version| version >= TELLS_FAILURES);
            assert_eq!(found, is_enough, "{release}");
        }
    }

    #[test]
    fn only_known_file_systems_are_synchronized_as_a_whole() {
        let of = |mount: &str| {
            let directories = vec![File::open(mount).expect("a directory")];
            FileSystems { directories }.sync().expect("a file system")
        };
        assert!(!of("/proc"));
        assert!(!of("/dev/shm"), "tmpfs has no disk");
    }
}
