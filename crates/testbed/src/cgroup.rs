//! Control groups, by which the testbed knows its own processes.
//!
//! Everything that the testbed starts, and all that those processes start,
//! lives below one group (`cdb-testbed-0`). So `down` finds shims, containers
//! and their children without a guess, even when the record of what was
//! started is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::mounts::{self, Mount};
use crate::process;

/// The child group of the testbed's own daemons; nodes have one each beside it.
const DAEMONS: &str = "daemons";

/// How long killed processes may take to go. The kernel needs milliseconds, but
/// the death of a large process on a busy disk was seen to take seconds.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// Controllers that a kubelet wants to find below its root, for version 2.
const V2_CONTROLLERS: [&str; 5] = ["cpuset", "cpu", "io", "memory", "pids"];

/// The control group hierarchies of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchies {
    /// Mount points; with version 2 the one.
    roots: Vec<PathBuf>,
    /// The hierarchy whose membership marks a process as the testbed's.
    marker: PathBuf,
    /// The version 2 tree beside version 1: container runtimes create groups there too.
    beside: Option<PathBuf>,
    /// Where processes are frozen; `None` with version 2, where every group can be frozen.
    freezer: Option<PathBuf>,
}

impl Hierarchies {
    /// Finds the hierarchies.
    ///
    /// # Errors
    /// When there are none that a kubelet can use.
    pub fn detect() -> Result<Self> {
        Self::from_mounts(&mounts::all()?)
    }

    fn from_mounts(mounts: &[Mount]) -> Result<Self> {
        let v1: Vec<&Mount> = mounts.iter().filter(|m| m.kind == "cgroup").collect();
        let with = |controller: &str| {
            v1.iter()
                .find(|m| m.super_options.split(',').any(|o| o == controller))
                .map(|m| m.point.clone())
        };
        let v2 = mounts.iter().find(|m| m.kind == "cgroup2").map(|m| m.point.clone());
        if let (Some(marker), Some(_)) = (with("pids"), with("memory")) {
            let roots = v1.iter().map(|m| m.point.clone()).collect();
            return Ok(Self {
                roots,
                marker,
                beside: v2,
                freezer: with("freezer"),
            });
        }
        if let Some(root) = v2.filter(|_| v1.is_empty()) {
            return Ok(Self {
                roots: vec![root.clone()],
                marker: root,
                beside: None,
                freezer: None,
            });
        }
        bail!(
            "no control groups that a kubelet can use are mounted at /sys/fs/cgroup: \
             mount version 2 there, or version 1 with at least pids and memory"
        )
    }

    fn is_v2(&self) -> bool {
        self.freezer.is_none() && self.roots.len() == 1
    }

    /// Makes the group `name` with a child for the daemons and one per node.
    ///
    /// # Errors
    /// When the kernel does not permit it.
    pub fn create(&self, name: &str, nodes: &[String]) -> Result<()> {
        for root in &self.roots {
            let top = root.join(name);
            make(&top)?;
            if self.is_v2() {
                enable_controllers(root)?;
                enable_controllers(&top)?;
            }
            fill_cpuset(root, &top)?;
            for child in nodes.iter().map(String::as_str).chain([DAEMONS]) {
                make(&top.join(child))?;
                fill_cpuset(&top, &top.join(child))?;
            }
        }
        Ok(())
    }

    /// The file through which a daemon joins the group `name`.
    #[must_use]
    pub fn daemons_file(&self, name: &str) -> PathBuf {
        self.marker.join(name).join(DAEMONS).join("cgroup.procs")
    }

    /// All processes in the group `name` and below.
    #[must_use]
    pub fn processes(&self, name: &str) -> Vec<i32> {
        let mut found = Vec::new();
        for group in tree(&self.marker.join(name)) {
            let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            found.extend(
                text.lines()
                    .filter_map(|line| line.parse::<i32>().ok())
                    .filter(|pid| *pid > 1),
            );
        }
        found
    }

    /// Kills all processes in the group `name` and below, frozen ones too.
    ///
    /// # Errors
    /// When some do not go within 20 s.
    pub async fn kill(&self, name: &str) -> Result<()> {
        let deadline = Instant::now() + KILL_LIMIT;
        loop {
            let left = self.processes(name);
            if left.is_empty() {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "processes {left:?} of the testbed do not end; look at /proc/PID/stack for what they wait on"
            );
            self.thaw_all(name);
            for pid in left {
                process::send_if(pid, Signal::KILL, || is_member(pid, name))?;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// Removes the group `name` and all below in every hierarchy.
    ///
    /// # Errors
    /// When a group stays busy.
    pub async fn remove(&self, name: &str) -> Result<()> {
        for root in self.roots.iter().chain(&self.beside) {
            for group in tree(&root.join(name)).into_iter().rev() {
                remove_group(&group).await?;
            }
        }
        Ok(())
    }

    /// Freezes or thaws the group `wanted` below the group `name`.
    ///
    /// # Errors
    /// When there is no such group, or its state does not change within 10 s.
    pub async fn set_frozen(&self, name: &str, wanted: &str, frozen: bool) -> Result<()> {
        let root = self.freezer.as_ref().unwrap_or(&self.marker);
        let groups = tree(&root.join(name));
        let group = groups.into_iter().find(|group| group.ends_with(wanted));
        let group = group.with_context(|| format!("there is no control group {wanted} below {name}"))?;
        write_frozen(&group, frozen).with_context(|| format!("freeze or thaw {}", group.display()))?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while is_frozen(&group) != frozen {
            ensure!(
                Instant::now() < deadline,
                "{} does not reach its new state",
                group.display()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    fn thaw_all(&self, name: &str) {
        let root = self.freezer.as_ref().unwrap_or(&self.marker);
        for group in tree(&root.join(name)) {
            if is_frozen(&group) {
                // A group that ends meanwhile needs no thawing.
                let _ = write_frozen(&group, false);
            }
        }
    }
}

/// True if process `pid` is in the group `name` or below.
fn is_member(pid: i32, name: &str) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .any(|path| path.split('/').any(|part| part == name))
}

fn write_frozen(group: &Path, frozen: bool) -> std::io::Result<()> {
    let v1 = group.join("freezer.state");
    if v1.exists() {
        return fs::write(v1, if frozen { "FROZEN" } else { "THAWED" });
    }
    fs::write(group.join("cgroup.freeze"), if frozen { "1" } else { "0" })
}

fn is_frozen(group: &Path) -> bool {
    if let Ok(state) = fs::read_to_string(group.join("freezer.state")) {
        return state.trim() == "FROZEN";
    }
    fs::read_to_string(group.join("cgroup.events")).is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
}

fn make(group: &Path) -> Result<()> {
    fs::create_dir_all(group).with_context(|| format!("make the control group {}", group.display()))
}

/// A version 1 cpuset takes no process before its CPUs are named.
fn fill_cpuset(parent: &Path, child: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let to = child.join(file);
        if !to.exists() || !parent.join(file).exists() || parent.join("cgroup.controllers").exists() {
            continue;
        }
        let value =
            fs::read_to_string(parent.join(file)).with_context(|| format!("read {file} of {}", parent.display()))?;
        fs::write(&to, value.trim()).with_context(|| format!("write {}", to.display()))?;
    }
    Ok(())
}

fn enable_controllers(group: &Path) -> Result<()> {
    let available = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    for controller in V2_CONTROLLERS
        .into_iter()
        .filter(|c| available.split_whitespace().any(|a| a == *c))
    {
        fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"))
            .with_context(|| format!("enable the {controller} controller in {}", group.display()))?;
    }
    Ok(())
}

/// A group and all below it, parents first.
fn tree(top: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if top.is_dir() {
        found.push(top.to_owned());
    }
    let mut next = 0;
    while let Some(group) = found.get(next).cloned() {
        next += 1;
        let Ok(entries) = fs::read_dir(&group) else { continue };
        found.extend(
            entries
                .flatten()
                .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
                .map(|e| e.path()),
        );
    }
    found
}

async fn remove_group(group: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match fs::remove_dir(group) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            // The kernel releases a group a little after its last process.
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("remove the control group {}", group.display()));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(kind: &str, point: &str, super_options: &str) -> Mount {
        Mount {
            point: point.into(),
            kind: kind.into(),
            super_options: super_options.into(),
        }
    }

    #[test]
    fn version_one_is_found_in_the_hybrid_layout_too() {
        let mounts = [
            mount("cgroup", "/sys/fs/cgroup/memory", "rw,memory"),
            mount("cgroup", "/sys/fs/cgroup/freezer", "rw,freezer"),
            mount("cgroup", "/sys/fs/cgroup/pids", "rw,pids"),
            mount("cgroup2", "/sys/fs/cgroup/unified", "rw"),
        ];
        let found = Hierarchies::from_mounts(&mounts).unwrap();
        assert_eq!(found.marker, PathBuf::from("/sys/fs/cgroup/pids"));
        assert_eq!(found.freezer, Some("/sys/fs/cgroup/freezer".into()));
        assert!(!found.is_v2() && found.roots.len() == 3);
        assert_eq!(found.beside, Some("/sys/fs/cgroup/unified".into()));
    }

    #[test]
    fn version_two_is_found() {
        let found = Hierarchies::from_mounts(&[mount("cgroup2", "/sys/fs/cgroup", "rw,nsdelegate")]).unwrap();
        assert!(found.is_v2());
        assert_eq!(
            found.daemons_file("x"),
            PathBuf::from("/sys/fs/cgroup/x/daemons/cgroup.procs")
        );
    }

    #[test]
    fn without_control_groups_the_error_says_what_to_do() {
        let error = Hierarchies::from_mounts(&[mount("tmpfs", "/sys/fs/cgroup", "rw")]).unwrap_err();
        assert!(error.to_string().contains("mount version 2"));
    }
}
