//! Faults: each takes effect before it returns, and each can be undone.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::cgroup::Hierarchies;
use crate::command::Tool;
use crate::plan::{API_PORT, cgroup_name};
use crate::state::{Lock, State};
use crate::testbed::Testbed;
use crate::{containerd, network, process};

/// The packet filter table that keeps a node from the API server.
const API_TABLE: &str = "testbed_cut_api";

/// The API server's process.
const API_SERVER: &str = "kube-apiserver";

impl Testbed {
    /// Cuts `node` off from everything, silently: its packets are dropped.
    ///
    /// # Errors
    /// When there is no such node.
    pub async fn cut(&self, node: &str) -> Result<()> {
        network::set_cable(&self.plan, &self.paths, self.plan.node_number(node)?, false).await
    }

    /// Undoes [`Testbed::cut`].
    ///
    /// # Errors
    /// When there is no such node.
    pub async fn heal(&self, node: &str) -> Result<()> {
        network::set_cable(&self.plan, &self.paths, self.plan.node_number(node)?, true).await
    }

    /// Cuts `node` and all pods on it off from the API server: packets in both directions are dropped, on open
    /// connections too. All other traffic passes.
    ///
    /// # Errors
    /// When there is no such node.
    pub async fn cut_api(&self, node: &str) -> Result<()> {
        self.plan.node_number(node)?;
        let rules = api_rules(&self.plan.host().to_string());
        Tool::inside(&self.paths.netns(node), "nft")
            .words("-f -")
            .input(rules)
            .run()
            .await?;
        Ok(())
    }

    /// Undoes [`Testbed::cut_api`].
    ///
    /// # Errors
    /// When there is no such node.
    pub async fn heal_api(&self, node: &str) -> Result<()> {
        self.plan.node_number(node)?;
        // Declared first, so that it can be deleted even if it does not exist.
        let rules = format!("table inet {API_TABLE} {{}}\ndelete table inet {API_TABLE}\n");
        Tool::inside(&self.paths.netns(node), "nft")
            .words("-f -")
            .input(rules)
            .run()
            .await?;
        Ok(())
    }

    /// The process number on this machine of a running container's first
    /// process, whichever node it runs on. Works without the API server.
    ///
    /// # Errors
    /// When no node runs it.
    pub async fn container_pid(&self, namespace: &str, pod: &str, container: &str) -> Result<i32> {
        self.find_pid(namespace, pod, container).await
    }

    /// Sends `signal` to a process; one that has ended is no error.
    ///
    /// # Errors
    /// When `pid` is no process number.
    pub fn signal(&self, pid: i32, signal: Signal) -> Result<()> {
        process::send(pid, signal)
    }

    /// Freezes all containers of a pod, as when a virtual machine is paused.
    ///
    /// # Errors
    /// When no node runs it.
    pub async fn freeze(&self, namespace: &str, pod: &str) -> Result<()> {
        self.set_frozen(namespace, pod, true).await
    }

    /// Undoes [`Testbed::freeze`].
    ///
    /// # Errors
    /// When no node runs it.
    pub async fn thaw(&self, namespace: &str, pod: &str) -> Result<()> {
        self.set_frozen(namespace, pod, false).await
    }

    /// Stops the API server (SIGSTOP): connections stay open, and it does not answer.
    ///
    /// # Errors
    /// When it is not running.
    pub fn stop_api(&self) -> Result<()> {
        self.signal_process(API_SERVER, Signal::STOP)
    }

    /// Undoes [`Testbed::stop_api`].
    ///
    /// # Errors
    /// When it is not running.
    pub fn cont_api(&self) -> Result<()> {
        self.signal_process(API_SERVER, Signal::CONT)
    }

    /// Sends `signal` to one of the testbed's own processes, such as
    /// `kubelet-n1`, `containerd-n1`, `kube-proxy-n1`, `kube-scheduler` or `etcd`.
    ///
    /// # Errors
    /// When there is none of that name, or it is not running.
    pub fn signal_process(&self, name: &str, signal: Signal) -> Result<()> {
        let state = self.state()?;
        let process = state.process(name)?;
        ensure!(process.is_alive(), "{name} is not running");
        process.signal(signal)
    }

    /// Starts one of the testbed's own processes again after it was killed.
    ///
    /// # Errors
    /// When it still runs, or does not start.
    pub async fn restart_process(&self, name: &str) -> Result<()> {
        let _lock = Lock::instance(&self.paths).await?;
        let mut state = self.state()?;
        let old = state.process(name)?.clone();
        ensure!(!old.is_alive(), "{name} is still running");
        let procs = Hierarchies::detect()?.daemons_file(&self.plan.cgroup());
        let new = old.daemon.start(&procs).await?;
        state.processes.retain(|p| p.daemon.name != name);
        state.processes.push(new);
        state.save(&self.paths)
    }

    /// Hangs the disk of a volume of class `loop`: writes to it wait.
    ///
    /// # Errors
    /// When the volume is not mounted.
    pub async fn hang_volume(&self, volume: &str) -> Result<()> {
        self.freeze_volume(volume, "-f").await
    }

    /// Undoes [`Testbed::hang_volume`].
    ///
    /// # Errors
    /// When the volume does not hang.
    pub async fn unhang_volume(&self, volume: &str) -> Result<()> {
        self.freeze_volume(volume, "-u").await
    }

    async fn freeze_volume(&self, volume: &str, flag: &str) -> Result<()> {
        let dir = self.volume_dir(volume);
        let mounted = crate::mounts::all()?.iter().any(|m| m.point == dir);
        ensure!(
            mounted,
            "{volume} has no file system of its own: only volumes of class `loop` have"
        );
        // Freezing first writes out cached data.
        Tool::new("fsfreeze")
            .arg(flag)
            .arg(&dir)
            .limit(Duration::from_secs(60))
            .run()
            .await?;
        Ok(())
    }

    /// Uses the pod's control group: for a frozen pod whose end was requested containerd knows no process.
    async fn set_frozen(&self, namespace: &str, pod: &str, frozen: bool) -> Result<()> {
        let groups = Hierarchies::detect()?;
        let name = cgroup_name(self.paths.instance());
        for node in self.node_names() {
            let socket = self.paths.containerd_socket(&node);
            if let Some(uid) = containerd::pod_uid(&socket, namespace, pod).await? {
                return groups.set_frozen(&name, &format!("pod{uid}"), frozen).await;
            }
        }
        bail!("no node runs pod {namespace}/{pod}")
    }

    /// The process of a running container. On a busy machine its shim may not answer at once: waits for it up to 10 s.
    async fn find_pid(&self, namespace: &str, pod: &str, container: &str) -> Result<i32> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            for node in self.node_names() {
                let socket = self.paths.containerd_socket(&node);
                let pids = containerd::container_pids(&socket, namespace, pod, container).await?;
                if let Some(pid) = pids.first() {
                    return Ok(*pid);
                }
            }
            ensure!(
                Instant::now() < deadline,
                "no node runs {container} of pod {namespace}/{pod}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn state(&self) -> Result<State> {
        State::load(&self.paths)?.context("the testbed is gone")
    }
}

/// Priority 10 comes after kube-proxy's address translation in every hook, so
/// that requests to the service address are seen with the true one.
fn api_rules(host: &str) -> String {
    let to = format!("ip daddr {host} tcp dport {API_PORT} drop");
    let from = format!("ip saddr {host} tcp sport {API_PORT} drop");
    format!(
        "table inet {API_TABLE} {{
  chain output {{ type filter hook output priority 10; {to}; }}
  chain input {{ type filter hook input priority 10; {from}; }}
  chain forward {{ type filter hook forward priority 10; {to}; {from}; }}
}}
"
    )
}
