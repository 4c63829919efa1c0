//! Mounts and loop devices below the testbed's directories.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};

use crate::command::Tool;

/// One line of /proc/self/mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is mounted.
    pub point: PathBuf,
    /// Type of the file system.
    pub kind: String,
    /// Options of the file system; for control groups its controllers.
    pub super_options: String,
}

/// All mounts, in the order in which they were made.
///
/// # Errors
/// When /proc cannot be read.
pub fn all() -> Result<Vec<Mount>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    Ok(text.lines().filter_map(parse).collect())
}

/// Thaws the file systems below `dir` that a test froze: a process that writes to a frozen one cannot be killed.
///
/// # Errors
/// When /proc cannot be read.
pub async fn thaw_below(dir: &Path) -> Result<()> {
    let own = |m: &Mount| m.point.starts_with(dir) && matches!(m.kind.as_str(), "ext4" | "xfs");
    for mount in all()?.into_iter().filter(own) {
        // Fails for those that are not frozen, which are nearly all.
        let _ = Tool::new("fsfreeze").arg("-u").arg(&mount.point).run().await;
    }
    Ok(())
}

/// Unmounts all that is mounted at or below `dir`, the latest first.
///
/// # Errors
/// When the kernel refuses.
pub async fn unmount_below(dir: &Path) -> Result<()> {
    let below: Vec<Mount> = all()?.into_iter().filter(|m| m.point.starts_with(dir)).collect();
    for mount in below.iter().rev() {
        let plain = unmount(&mount.point, UnmountFlags::empty());
        // Lazily, in case another process uses it: it ends with its last user.
        if plain.is_err_and(|error| error == rustix::io::Errno::BUSY) {
            unmount(&mount.point, UnmountFlags::DETACH)
                .with_context(|| format!("unmount {}", mount.point.display()))?;
        }
    }
    Ok(())
}

/// Detaches the loop devices whose files lie below `dir`.
///
/// # Errors
/// When /sys cannot be read or a device is refused.
pub async fn detach_loops_below(dir: &Path) -> Result<()> {
    for entry in fs::read_dir("/sys/block").context("list block devices")?.flatten() {
        let Ok(file) = fs::read_to_string(entry.path().join("loop/backing_file")) else {
            continue;
        };
        if Path::new(file.trim()).starts_with(dir) {
            Tool::new("losetup")
                .arg("-d")
                .arg(Path::new("/dev").join(entry.file_name()))
                .run()
                .await?;
        }
    }
    Ok(())
}

fn parse(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let point = unescape(left.split(' ').nth(4)?);
    let mut right = right.split(' ');
    Some(Mount {
        point: point.into(),
        kind: right.next()?.to_owned(),
        super_options: right.nth(1)?.to_owned(),
    })
}

/// Undoes the octal escapes in which the kernel writes blanks.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_optional_fields_and_blanks_is_read() {
        let line = r"36 35 98:0 /mnt1 /mnt\040two rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue";
        let mount = parse(line).unwrap();
        assert_eq!(mount.point, PathBuf::from("/mnt two"));
        assert_eq!(
            (mount.kind.as_str(), mount.super_options.as_str()),
            ("ext3", "rw,errors=continue")
        );
    }

    #[test]
    fn a_line_without_optional_fields_is_read() {
        let line = "25 24 0:20 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids";
        assert_eq!(parse(line).unwrap().super_options, "rw,pids");
    }
}
