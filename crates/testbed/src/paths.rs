//! Paths of the testbed.

use std::path::{Path, PathBuf};

/// Parent of what is slow to make and may be used again: it survives `down`, and all checkouts of this machine share
/// it.
const CACHE: &str = "/var/cache/cdb-testbed";
/// Environment variable that names another directory for the cache.
pub const CACHE_VARIABLE: &str = "CDB_TESTBED_CACHE";
/// Parent of large data that belongs to a running testbed.
const STATE: &str = "/var/lib/cdb-testbed";
/// Parent of locks, sockets and network namespaces. Paths of sockets must stay below 108 bytes, hence the short names.
const RUN: &str = "/run/cdb-testbed";

/// The files of one instance.
#[derive(Clone, Debug)]
pub struct Paths {
    instance: u8,
}

impl Paths {
    /// The files of `instance`.
    #[must_use]
    pub fn new(instance: u8) -> Self {
        Self { instance }
    }

    /// The instance number.
    #[must_use]
    pub fn instance(&self) -> u8 {
        self.instance
    }

    /// Large data that is removed by `down`.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        Path::new(STATE).join(self.instance.to_string())
    }

    /// Sockets, namespaces and mounts that are removed by `down`.
    #[must_use]
    pub fn run(&self) -> PathBuf {
        Path::new(RUN).join(self.instance.to_string())
    }

    /// Held while a command changes the instance.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        Path::new(RUN).join(format!("{}.lock", self.instance))
    }

    /// The record of the instance's holder and of started processes.
    #[must_use]
    pub fn record(&self) -> PathBuf {
        self.state().join("state.json")
    }

    /// Administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.state().join("kubeconfig")
    }

    /// Kubeconfig of the component called `name`.
    #[must_use]
    pub fn component_kubeconfig(&self, name: &str) -> PathBuf {
        self.pki().join(format!("{name}.kubeconfig"))
    }

    /// Keys and certificates.
    #[must_use]
    pub fn pki(&self) -> PathBuf {
        self.state().join("pki")
    }

    /// Logs of all components.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.state().join("log")
    }

    /// The API server's audit log.
    #[must_use]
    pub fn audit_log(&self) -> PathBuf {
        self.logs().join("audit.log")
    }

    /// Data of the volumes.
    #[must_use]
    pub fn volumes(&self) -> PathBuf {
        self.state().join("volumes")
    }

    /// Files of the node called `node`.
    #[must_use]
    pub fn node(&self, node: &str) -> PathBuf {
        self.state().join(node)
    }

    /// Root directory of the node's kubelet.
    #[must_use]
    pub fn kubelet(&self, node: &str) -> PathBuf {
        self.node(node).join("kubelet")
    }

    /// Socket of the node's containerd.
    #[must_use]
    pub fn containerd_socket(&self, node: &str) -> PathBuf {
        self.run().join(format!("{node}.sock"))
    }

    /// The node's network namespace.
    #[must_use]
    pub fn netns(&self, node: &str) -> PathBuf {
        self.run().join(format!("{node}.net"))
    }
}

/// The parent of all instances' state directories.
#[must_use]
pub fn state_root() -> &'static Path {
    Path::new(STATE)
}

/// What survives `down`.
#[must_use]
pub fn cache_root() -> PathBuf {
    std::env::var_os(CACHE_VARIABLE)
        .filter(|dir| !dir.is_empty())
        .map_or_else(|| PathBuf::from(CACHE), PathBuf::from)
}
