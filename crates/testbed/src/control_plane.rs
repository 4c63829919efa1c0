//! The settings of etcd, the control plane, DNS, the volume provisioner and the snapshotter.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::options::Timing;
use crate::paths::Paths;
use crate::plan::{DNS_READY_PORT, Plan};
use crate::process::Daemon;

/// Every request, reads included, is logged once, when it is answered: the number of lines is the number of requests.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
";

/// Builds the command lines of the programs that run on the host.
pub struct ControlPlane<'a> {
    /// The multi-call binary.
    pub kubebox: &'a Path,
    /// Addresses.
    pub plan: &'a Plan,
    /// Files.
    pub paths: &'a Paths,
    /// Kubernetes' timing.
    pub timing: &'a Timing,
}

impl ControlPlane<'_> {
    /// Writes the files that the programs read.
    ///
    /// # Errors
    /// When the disk does not take them.
    pub fn write_files(&self) -> Result<()> {
        let write = |path: std::path::PathBuf, text: &str| {
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))
        };
        write(self.audit_policy(), AUDIT_POLICY)?;
        write(self.corefile(), &self.corefile_text())
    }

    /// etcd.
    #[must_use]
    pub fn etcd(&self) -> Daemon {
        let client = format!("http://127.0.0.1:{}", self.plan.etcd_port());
        let peer = format!("http://127.0.0.1:{}", self.plan.etcd_port() + 1);
        let mut flags = Flags::new("etcd");
        flags.set("data-dir", self.paths.state().join("etcd").display());
        flags.set("listen-client-urls", &client);
        flags.set("advertise-client-urls", &client);
        flags.set("listen-peer-urls", &peer);
        flags.set("initial-advertise-peer-urls", &peer);
        flags.set("initial-cluster", format!("default={peer}"));
        // A crash of the machine could only cost data that is removed with the testbed anyway, and the disk is shared
        // with compilers.
        flags.set("unsafe-no-fsync", true);
        flags.set("log-level", "warn");
        self.daemon(flags)
    }

    /// The API server.
    #[must_use]
    pub fn api_server(&self) -> Daemon {
        let pki = |name: &str| self.paths.pki().join(name).display().to_string();
        let host = self.plan.host();
        let mut flags = Flags::new("kube-apiserver");
        flags.set("etcd-servers", format!("http://127.0.0.1:{}", self.plan.etcd_port()));
        // Not all addresses, so that testbeds do not collide.
        flags.set("bind-address", host);
        flags.set("advertise-address", host);
        flags.set("service-cluster-ip-range", self.plan.services());
        flags.set("client-ca-file", pki("ca.crt"));
        flags.set("tls-cert-file", pki("apiserver.crt"));
        flags.set("tls-private-key-file", pki("apiserver.key"));
        flags.set("cert-dir", self.paths.state().join("apiserver").display());
        flags.set("service-account-issuer", "https://kubernetes.default.svc.cluster.local");
        flags.set("service-account-key-file", pki("sa.pub"));
        flags.set("service-account-signing-key-file", pki("sa.key"));
        flags.set("kubelet-client-certificate", pki("kubelet-client.crt"));
        flags.set("kubelet-client-key", pki("kubelet-client.key"));
        flags.set("kubelet-preferred-address-types", "InternalIP");
        flags.set("authorization-mode", "Node,RBAC");
        flags.set("enable-admission-plugins", "NodeRestriction");
        flags.set("allow-privileged", true);
        // Webhooks are reached at pod addresses: the host is on no service network.
        flags.set("enable-aggregator-routing", true);
        flags.set("audit-policy-file", self.audit_policy().display());
        flags.set("audit-log-path", self.paths.audit_log().display());
        // Large enough that it is never rotated: counts must be whole.
        flags.set("audit-log-maxsize", 4096);
        if let Some(seconds) = self.timing.unreachable_toleration {
            flags.set("default-not-ready-toleration-seconds", seconds);
            flags.set("default-unreachable-toleration-seconds", seconds);
        }
        flags.set("v", 1);
        self.daemon(flags)
    }

    /// The controller manager.
    #[must_use]
    pub fn controller_manager(&self) -> Daemon {
        let pki = |name: &str| self.paths.pki().join(name).display().to_string();
        let mut flags = self.client_flags("kube-controller-manager");
        flags.set("bind-address", self.plan.host());
        flags.set("service-account-private-key-file", pki("sa.key"));
        flags.set("root-ca-file", pki("ca.crt"));
        flags.set("cluster-signing-cert-file", pki("ca.crt"));
        flags.set("cluster-signing-key-file", pki("ca.key"));
        flags.set("cert-dir", self.paths.state().join("controller-manager").display());
        flags.set("flex-volume-plugin-dir", self.paths.state().join("plugins").display());
        flags.set("use-service-account-credentials", true);
        // It makes some forty service accounts when it starts; at Kubernetes'
        // default of 20 requests a second that alone takes 5 s. Afterwards each
        // controller has a client and a limit of its own, seldom reached.
        flags.set("kube-api-qps", 200);
        flags.set("kube-api-burst", 400);
        // There is only one; an election would cost time and writes.
        flags.set("leader-elect", false);
        if let Some(seconds) = self.timing.node_monitor_grace {
            flags.set("node-monitor-grace-period", format!("{seconds}s"));
        }
        if let Some(seconds) = self.timing.node_monitor_period {
            flags.set("node-monitor-period", format!("{seconds}s"));
        }
        self.daemon(flags)
    }

    /// The scheduler.
    #[must_use]
    pub fn scheduler(&self) -> Daemon {
        let mut flags = self.client_flags("kube-scheduler");
        flags.set("bind-address", self.plan.host());
        flags.set("cert-dir", self.paths.state().join("scheduler").display());
        // Seen once: the scheduler checked a pod in the very millisecond in which its claim was bound, and then not again
        // for three minutes. Kubernetes' default is five.
        flags.set("pod-max-in-unschedulable-pods-duration", "15s");
        flags.set("leader-elect", false);
        self.daemon(flags)
    }

    /// CoreDNS; it runs beside the control plane, at an address of the host.
    #[must_use]
    pub fn dns(&self) -> Daemon {
        let conf = self.corefile().display().to_string();
        self.daemon_of("coredns", vec!["coredns".into(), "-conf".into(), conf])
    }

    /// The volume provisioner.
    #[must_use]
    pub fn provisioner(&self) -> Daemon {
        let mut flags = Flags::new("provisioner");
        flags.set("kubeconfig", self.paths.component_kubeconfig("provisioner").display());
        flags.set("dir", self.paths.volumes().display());
        flags.set("nodes", self.plan.node_names().join(","));
        self.daemon(flags)
    }

    /// The CSI driver of all nodes, and the controllers of snapshots.
    #[must_use]
    pub fn snapshotter(&self) -> Daemon {
        let kubelet = |node: String| format!("{node}={}", self.paths.kubelet(&node).display());
        let kubelets: Vec<String> = self.plan.node_names().into_iter().map(kubelet).collect();
        let mut flags = Flags::new("snapshotter");
        flags.set("kubeconfig", self.paths.component_kubeconfig("snapshotter").display());
        flags.set("dir", self.paths.volumes().display());
        flags.set("kubelets", kubelets.join(","));
        self.daemon(flags)
    }

    fn client_flags(&self, name: &str) -> Flags {
        let kubeconfig = self.paths.component_kubeconfig(name);
        let mut flags = Flags::new(name);
        for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
            flags.set(flag, kubeconfig.display());
        }
        flags
    }

    fn daemon(&self, flags: Flags) -> Daemon {
        let name = flags.0[0].clone();
        self.daemon_of(&name, flags.0)
    }

    fn daemon_of(&self, name: &str, arguments: Vec<String>) -> Daemon {
        let mut argv = vec![self.kubebox.display().to_string()];
        argv.extend(arguments);
        Daemon {
            name: name.to_owned(),
            argv,
            netns: None,
            log: self.paths.logs().join(format!("{name}.log")),
        }
    }

    fn audit_policy(&self) -> std::path::PathBuf {
        self.paths.state().join("audit-policy.yaml")
    }

    fn corefile(&self) -> std::path::PathBuf {
        self.paths.state().join("Corefile")
    }

    fn corefile_text(&self) -> String {
        let host = self.plan.host();
        let kubeconfig = self.paths.component_kubeconfig("coredns");
        // A name server of a testbed for failover may cache for two seconds only.
        format!(
            ".:53 {{
  bind {host}
  errors
  ready {host}:{DNS_READY_PORT}
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {} testbed
    pods insecure
    ttl 2
  }}
  cache 2
}}
",
            kubeconfig.display()
        )
    }
}

/// A component's name and its flags.
pub struct Flags(pub Vec<String>);

impl Flags {
    /// A component without flags.
    #[must_use]
    pub fn new(component: &str) -> Self {
        Self(vec![component.to_owned()])
    }

    /// Adds `--name=value`.
    pub fn set(&mut self, name: &str, value: impl std::fmt::Display) {
        self.0.push(format!("--{name}={value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(timing: &Timing) -> Vec<String> {
        let (plan, paths) = (Plan::new(1, 3).unwrap(), Paths::new(1));
        let plane = ControlPlane {
            kubebox: Path::new("/kubebox"),
            plan: &plan,
            paths: &paths,
            timing,
        };
        plane.controller_manager().argv
    }

    #[test]
    fn by_default_no_flag_changes_kubernetes_timing() {
        assert!(argv(&Timing::default()).iter().all(|flag| !flag.contains("monitor")));
    }

    #[test]
    fn timing_becomes_flags() {
        let timing = Timing {
            node_monitor_grace: Some(8),
            ..Timing::default()
        };
        assert!(argv(&timing).contains(&"--node-monitor-grace-period=8s".to_owned()));
    }
}
