//! The settings of one node: containerd, kubelet and kube-proxy.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::containerd::Layout;
use crate::control_plane::Flags;
use crate::options::Timing;
use crate::paths::Paths;
use crate::plan::{Plan, node_name};
use crate::process::Daemon;

/// Builds the files and command lines of node `number`.
pub struct Node<'a> {
    /// The multi-call binary.
    pub kubebox: &'a Path,
    /// Addresses.
    pub plan: &'a Plan,
    /// Files.
    pub paths: &'a Paths,
    /// Kubernetes' timing.
    pub timing: &'a Timing,
    /// The node's number, from 1.
    pub number: u8,
}

impl Node<'_> {
    /// The node's name.
    #[must_use]
    pub fn name(&self) -> String {
        node_name(self.number)
    }

    /// Where the node's containerd keeps its things.
    #[must_use]
    pub fn containerd_layout(&self) -> Layout {
        let name = self.name();
        Layout {
            root: self.dir().join("containerd"),
            run: self.paths.run().join(&name),
            socket: self.paths.containerd_socket(&name),
            cni: Some(self.dir().join("cni")),
        }
    }

    /// Writes the files that the node's programs read.
    ///
    /// # Errors
    /// When the disk does not take them.
    pub fn write_files(&self) -> Result<()> {
        let layout = self.containerd_layout();
        for dir in [
            self.dir().join("cni"),
            self.paths.kubelet(&self.name()),
            layout.run.clone(),
        ] {
            fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        }
        write(&self.dir().join("cni/10-bridge.conflist"), &self.cni().to_string())?;
        write(&self.dir().join("containerd.toml"), &layout.config())?;
        write(
            &self.dir().join("resolv.conf"),
            &format!("nameserver {}\n", self.plan.host()),
        )?;
        write(&self.dir().join("kubelet.yaml"), &self.kubelet_config().to_string())
    }

    /// containerd.
    #[must_use]
    pub fn containerd(&self) -> Daemon {
        let config = self.dir().join("containerd.toml");
        self.daemon(
            "containerd",
            vec!["containerd".into(), "-c".into(), config.display().to_string()],
        )
    }

    /// The kubelet; to be started when containerd listens.
    #[must_use]
    pub fn kubelet(&self) -> Daemon {
        let name = self.name();
        let mut flags = Flags::new("kubelet");
        flags.set("config", self.dir().join("kubelet.yaml").display());
        flags.set("kubeconfig", self.paths.component_kubeconfig(&name).display());
        flags.set("hostname-override", &name);
        flags.set("node-ip", self.plan.node(self.number));
        flags.set("root-dir", self.paths.kubelet(&name).display());
        flags.set("cert-dir", self.paths.kubelet(&name).join("pki").display());
        // One zone per node, so that spreading over zones can be tested.
        flags.set("node-labels", format!("topology.kubernetes.io/zone=z{}", self.number));
        flags.set("v", 2);
        self.component("kubelet", flags)
    }

    /// kube-proxy.
    #[must_use]
    pub fn proxy(&self) -> Daemon {
        let mut flags = Flags::new("kube-proxy");
        flags.set("kubeconfig", self.paths.component_kubeconfig("kube-proxy").display());
        flags.set("hostname-override", self.name());
        flags.set("proxy-mode", "nftables");
        flags.set("cluster-cidr", self.plan.all_pods());
        // These are the host's and cannot be set from a node's namespace.
        for name in ["max-per-core", "tcp-timeout-established", "tcp-timeout-close-wait"] {
            flags.set(&format!("conntrack-{name}"), 0);
        }
        self.component("kube-proxy", flags)
    }

    fn dir(&self) -> PathBuf {
        self.paths.node(&self.name())
    }

    fn component(&self, name: &str, flags: Flags) -> Daemon {
        let mut argv = vec![self.kubebox.display().to_string()];
        argv.extend(flags.0);
        self.daemon(name, argv)
    }

    fn daemon(&self, component: &str, argv: Vec<String>) -> Daemon {
        let name = format!("{component}-{}", self.name());
        let log = self.paths.logs().join(format!("{name}.log"));
        Daemon {
            name,
            argv,
            netns: Some(self.paths.netns(&self.name())),
            log,
        }
    }

    fn cni(&self) -> Value {
        json!({
            "cniVersion": "1.0.0",
            "name": self.plan.cni_network(),
            "plugins": [{
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "ipMasq": false,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": self.dir().join("ipam"),
                    "ranges": [[{"subnet": self.plan.pods(self.number)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }],
        })
    }

    /// The kubelet's settings. Those that have no reason beside them are what
    /// makes a kubelet accept this machine: control groups of version 1, swap,
    /// and no right to lower its own out-of-memory score.
    fn kubelet_config(&self) -> Value {
        let pki = |file: String| self.paths.pki().join(file);
        let name = self.name();
        let mut config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": false,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}/{name}", self.plan.cgroup()),
            "cgroupsPerQOS": true,
            "enforceNodeAllocatable": [],
            "failSwapOn": false,
            "oomScoreAdj": 0,
            "clusterDNS": [self.plan.host().to_string()],
            "clusterDomain": "cluster.local",
            "resolvConf": self.dir().join("resolv.conf"),
            "containerRuntimeEndpoint": format!("unix://{}", self.paths.containerd_socket(&name).display()),
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": pki("ca.crt".into())},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": pki(format!("{name}.crt")),
            "tlsPrivateKeyFile": pki(format!("{name}.key")),
            // The disk is the machine's: neither evict pods nor remove images
            // because other programs filled it.
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": false,
            "podLogsDir": self.dir().join("podlogs"),
            "volumePluginDir": self.dir().join("plugins"),
        });
        if let Some(seconds) = self.timing.node_status_update {
            config["nodeStatusUpdateFrequency"] = json!(format!("{seconds}s"));
        }
        if let Some(seconds) = self.timing.node_lease {
            config["nodeLeaseDurationSeconds"] = json!(seconds);
        }
        config
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_the_kubelet_keeps_kubernetes_timing() {
        let (plan, paths, timing) = (Plan::new(0, 3).unwrap(), Paths::new(0), Timing::default());
        let node = Node {
            kubebox: Path::new("/k"),
            plan: &plan,
            paths: &paths,
            timing: &timing,
            number: 2,
        };
        let config = node.kubelet_config();
        assert!(config.get("nodeStatusUpdateFrequency").is_none() && config.get("nodeLeaseDurationSeconds").is_none());
        assert_eq!(config["cgroupRoot"], "/cdb-testbed-0/n2");
        assert_eq!(
            node.cni()["plugins"][0]["ipam"]["ranges"][0][0]["subnet"],
            "198.18.12.0/24"
        );
    }
}
