//! What must hold before anything is started; every error says what to do.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{self, Tool};
use crate::paths::{self, CACHE_VARIABLE};
use crate::plan::{API_PORT, DNS_READY_PORT, Plan};
use crate::progress::{say, step};

/// Debian packages that the testbed runs, and for each a program of it.
const PACKAGES: [(&str, &str); 14] = [
    ("buildah", "buildah"),
    ("conntrack", "conntrack"),
    ("containerd", "containerd"),
    ("debootstrap", "debootstrap"),
    ("e2fsprogs", "mkfs.ext4"),
    ("ipset", "ipset"),
    ("iproute2", "ip"),
    ("iptables", "iptables"),
    ("mount", "losetup"),
    ("nftables", "nft"),
    ("runc", "runc"),
    ("socat", "socat"),
    ("util-linux", "nsenter"),
    ("xfsprogs", "mkfs.xfs"),
];

/// The CNI plug-ins are no programs on the search path.
const CNI_PACKAGE: &str = "containernetworking-plugins";

/// Where Debian's package puts the CNI plug-ins.
pub const CNI_DIR: &str = "/usr/lib/cni";

/// Free space for making everything from nothing: Go's build cache 3 GB, image layers and their archive 2 GB, the
/// unpacked template 2 GB.
const COLD_SPACE: u64 = 8 << 30;
/// Free space for a running testbed when everything is made already.
const WARM_SPACE: u64 = 2 << 30;

/// Fails unless this is Linux and the user is root.
///
/// # Errors
/// Says what to do instead.
pub fn check_machine() -> Result<()> {
    ensure!(
        cfg!(target_os = "linux"),
        "the testbed needs Linux: it runs nodes in network namespaces; use a Linux virtual machine"
    );
    ensure!(
        rustix::process::geteuid().is_root(),
        "the testbed needs root for namespaces, mounts and control groups: run it with sudo"
    );
    Ok(())
}

/// Fails if the disk has too little room.
///
/// # Errors
/// Says how much is needed and where.
pub fn check_space(cold: bool) -> Result<()> {
    let needed = if cold { COLD_SPACE } else { WARM_SPACE };
    for dir in [paths::cache_root(), paths::state_root().to_owned()] {
        let existing = dir.ancestors().find(|d| d.is_dir()).unwrap_or(Path::new("/"));
        let stat =
            rustix::fs::statvfs(existing).with_context(|| format!("ask for the free space of {}", dir.display()))?;
        let free = stat.f_bavail * stat.f_frsize;
        ensure!(
            free >= needed,
            "{} has {} MB free and the testbed needs {} MB there: free some, or mount another file system there \
             (the cache may be elsewhere: {CACHE_VARIABLE}=DIRECTORY)",
            dir.display(),
            free >> 20,
            needed >> 20
        );
    }
    Ok(())
}

/// Installs the Debian packages that are missing.
///
/// # Errors
/// When there is no apt, or it fails.
pub async fn install_packages() -> Result<()> {
    let mut missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(_, program)| !command::exists(program))
        .map(|(package, _)| *package)
        .collect();
    if !Path::new(CNI_DIR).join("bridge").is_file() {
        missing.push(CNI_PACKAGE);
    }
    if missing.is_empty() {
        return Ok(());
    }
    ensure!(
        command::exists("apt-get"),
        "these programs are missing and there is no apt-get to install them: {}; \
         install them with this system's package manager (CNI plug-ins in {CNI_DIR}) and try again",
        missing.join(", ")
    );
    say(&format!("installing Debian packages: {}", missing.join(" ")));
    let limit = Duration::from_secs(600);
    let update = Tool::new("apt-get").words("-q update").limit(limit);
    if let Err(error) = step("apt-get update", update.run()).await {
        // A package source that does not answer must not stop the others.
        say(&format!("apt-get update: {error:#}; going on with what is known"));
    }
    let mut install = Tool::new("apt-get")
        .words("-q -y --no-install-recommends -o DPkg::Lock::Timeout=300 install")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .limit(limit);
    for package in missing {
        install = install.arg(package);
    }
    step("apt-get install", install.run())
        .await
        .context("install the Debian packages that the testbed runs")?;
    Ok(())
}

/// Fails when a port on the loopback that the testbed needs is taken.
///
/// # Errors
/// Names the port.
pub fn check_loopback_ports(plan: &Plan) -> Result<()> {
    for port in [plan.etcd_port(), plan.etcd_port() + 1] {
        listen(Ipv4Addr::LOCALHOST, port, "etcd")?;
    }
    Ok(())
}

/// Fails when a port on the bridge that the testbed needs is taken. Only
/// something that listens on all addresses can have it.
///
/// # Errors
/// Names the port.
pub fn check_bridge_ports(plan: &Plan) -> Result<()> {
    let uses = [
        (API_PORT, "the API server"),
        (53, "DNS"),
        (DNS_READY_PORT, "the readiness of DNS"),
    ];
    for (port, purpose) in uses {
        listen(plan.host(), port, purpose)?;
    }
    if let Err(error) = UdpSocket::bind(SocketAddr::from((plan.host(), 53))) {
        bail!(
            "UDP port 53 of {} is taken, the testbed's DNS needs it ({error}): {ADVICE}",
            plan.host()
        );
    }
    Ok(())
}

const ADVICE: &str = "find who listens with `ss -lnp` and stop it, or make it listen on its own addresses only";

fn listen(address: Ipv4Addr, port: u16, purpose: &str) -> Result<()> {
    match TcpListener::bind(SocketAddr::from((address, port))) {
        Ok(_) => Ok(()),
        Err(error) => bail!("port {port} of {address} is taken, {purpose} needs it ({error}): {ADVICE}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_named() {
        let plan = Plan::new(7, 1).unwrap();
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, plan.etcd_port())).unwrap();
        let error = check_loopback_ports(&plan).unwrap_err().to_string();
        assert!(
            error.contains("port 12449") && error.contains("etcd") && error.contains("ss -lnp"),
            "{error}"
        );
        drop(held);
    }
}
