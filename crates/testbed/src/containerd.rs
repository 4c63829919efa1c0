//! containerd: its settings, and requests to it through `ctr`.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::command::Tool;
use crate::images::PAUSE_IMAGE;
use crate::preflight::CNI_DIR;

/// containerd's namespace for what Kubernetes runs.
const NAMESPACE: &str = "k8s.io";

/// How long containerd may take to listen; it takes a quarter of a second.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long the import of one image may take; 800 MB take about 10 s.
const IMPORT_LIMIT: Duration = Duration::from_secs(300);

/// The directories of one containerd.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Images and snapshots.
    pub root: PathBuf,
    /// Running containers.
    pub run: PathBuf,
    /// Its socket.
    pub socket: PathBuf,
    /// CNI's settings; `None` when it runs no pods.
    pub cni: Option<PathBuf>,
}

impl Layout {
    /// The settings file.
    #[must_use]
    pub fn config(&self) -> String {
        let (root, run, socket) = (self.root.display(), self.run.display(), self.socket.display());
        let mut unused = vec!["aufs", "btrfs", "devmapper", "native", "zfs"]
            .into_iter()
            .map(|name| format!("\"io.containerd.snapshotter.v1.{name}\""))
            .collect::<Vec<_>>();
        if self.cni.is_none() {
            unused.push("\"io.containerd.grpc.v1.cri\"".into());
        }
        let unused = unused.join(", ");
        let head = format!(
            r#"version = 2
root = "{root}"
state = "{run}"
disabled_plugins = [{unused}]
[grpc]
address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{root}/opt"
"#
        );
        self.cni
            .as_ref()
            .map_or(head.clone(), |cni| head + &cri_config(&self.run, cni))
    }

    /// Waits until containerd listens.
    ///
    /// # Errors
    /// When it does not within 30 s.
    pub async fn wait(&self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while !fs::metadata(&self.socket).is_ok_and(|m| m.file_type().is_socket()) {
            ensure!(
                Instant::now() < deadline,
                "containerd does not listen at {}",
                self.socket.display()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Imports an image archive.
    ///
    /// # Errors
    /// When containerd refuses it.
    pub async fn import(&self, archive: &Path) -> Result<()> {
        let tool = ctr(&self.socket)
            .words("images import")
            .arg(archive)
            .limit(IMPORT_LIMIT);
        tool.run()
            .await
            .with_context(|| format!("import {}", archive.display()))?;
        Ok(())
    }
}

/// Settings of the part that a kubelet talks to. `restrict_oom_score_adj`:
/// without CAP_SYS_RESOURCE the kernel refuses the negative scores that a
/// kubelet asks for, and runc dies of it.
fn cri_config(run: &Path, cni: &Path) -> String {
    let (run, cni) = (run.display(), cni.display());
    format!(
        r#"[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_DIR}"
conf_dir = "{cni}"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
Root = "{run}/runc"
SystemdCgroup = false
"#
    )
}

fn ctr(socket: &Path) -> Tool {
    Tool::new("ctr").arg("-a").arg(socket).words("-n").arg(NAMESPACE)
}

/// Gives an image another name.
///
/// # Errors
/// When there is no such image.
pub async fn tag(socket: &Path, image: &str, name: &str) -> Result<()> {
    ctr(socket)
        .words("images tag --force")
        .arg(image)
        .arg(name)
        .run()
        .await?;
    Ok(())
}

/// Process numbers of the running containers with these labels.
///
/// # Errors
/// When containerd does not answer.
pub async fn container_pids(socket: &Path, namespace: &str, pod: &str, container: &str) -> Result<Vec<i32>> {
    let ids = ids(socket, namespace, pod, ("io.kubernetes.container.name", container)).await?;
    let tasks = ctr(socket).words("tasks ls").run().await?;
    Ok(ids.lines().filter_map(|id| running_pid(&tasks, id.trim())).collect())
}

/// The pod's uid, if this node has it.
///
/// # Errors
/// When containerd does not answer.
pub async fn pod_uid(socket: &Path, namespace: &str, pod: &str) -> Result<Option<String>> {
    let mut newest: Option<(String, String)> = None;
    // A pod of the same name that is gone may have left its sandbox.
    for id in ids(socket, namespace, pod, ("io.cri-containerd.kind", "sandbox"))
        .await?
        .lines()
    {
        let text = ctr(socket).words("containers info").arg(id.trim()).run().await?;
        let info: serde_json::Value = serde_json::from_str(&text).context("read what containerd knows of the pod")?;
        let made = info["CreatedAt"].as_str().unwrap_or_default().to_owned();
        if let Some(uid) = info["Labels"]["io.kubernetes.pod.uid"].as_str() {
            newest = newest.max(Some((made, uid.to_owned())));
        }
    }
    Ok(newest.map(|(_, uid)| uid))
}

async fn ids(socket: &Path, namespace: &str, pod: &str, kind: (&str, &str)) -> Result<String> {
    let labels = [
        ("io.kubernetes.pod.namespace", namespace),
        ("io.kubernetes.pod.name", pod),
        kind,
    ];
    let filter = labels.map(|(name, value)| format!("labels.\"{name}\"=={value}"));
    ctr(socket).words("containers ls -q").arg(filter.join(",")).run().await
}

/// Finds a running container's process number in the table of `ctr tasks ls`. One whose shim does not answer in time
/// is listed there as UNKNOWN with process 0.
fn running_pid(table: &str, id: &str) -> Option<i32> {
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (name, pid, status) = (words.next()?, words.next()?, words.next()?);
        (name == id && !matches!(status, "STOPPED" | "UNKNOWN")).then(|| pid.parse().ok())?
    })
}

/// Paths of the shims' sockets. They are outside of any directory that could be chosen, and each running container's
/// bundle names its own.
#[must_use]
pub fn shim_sockets(run: &Path) -> Vec<PathBuf> {
    let tasks = run.join("io.containerd.runtime.v2.task").join(NAMESPACE);
    let Ok(bundles) = fs::read_dir(tasks) else {
        return Vec::new();
    };
    let addresses = bundles
        .flatten()
        .filter_map(|bundle| fs::read_to_string(bundle.path().join("address")).ok());
    addresses
        .filter_map(|text| text.trim().strip_prefix("unix://").map(PathBuf::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_container_is_found_in_the_table() {
        let table = "TASK    PID      STATUS    \nabc     4242     RUNNING\nabcd    7        STOPPED\nabcde    0        UNKNOWN\n";
        assert_eq!(running_pid(table, "abc"), Some(4242));
        assert_eq!(running_pid(table, "abcd"), None);
        assert_eq!(running_pid(table, "abcde"), None);
        assert_eq!(running_pid(table, "ab"), None);
    }
}
