//! Removes a testbed, or what is left of one.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::cgroup::Hierarchies;
use crate::options::Options;
use crate::paths::{self, Paths};
use crate::plan::{MAX_NODES, Plan, node_name};
use crate::progress::step;
use crate::state::{Lock, State};
use crate::testbed::Testbed;
use crate::{containerd, mounts, network, preflight, process};

/// Where the container network library keeps results, with any configuration.
const CNI_RESULTS: &str = "/var/lib/cni/results";
/// Where a kubelet links to containers' logs, with any configuration.
const LOG_LINKS: &str = "/var/log/containers";
/// Where shims keep their sockets, with any configuration.
const SHIM_SOCKETS: &str = "/run/containerd/s";

impl Testbed {
    /// Ends the testbed and removes everything of it: processes, mounts,
    /// namespaces, links, control groups and files. Returns false when there was
    /// nothing. Another checkout's testbed is left alone unless `force` is set.
    ///
    /// # Errors
    /// When another checkout holds it, or something cannot be removed.
    pub async fn down(options: &Options, force: bool) -> Result<bool> {
        preflight::check_machine()?;
        let paths = Paths::new(options.instance);
        let lock = Lock::instance(&paths).await?;
        let state = match State::load(&paths) {
            Err(_) if force => None,
            loaded => loaded?,
        };
        if let Some(state) = state
            .as_ref()
            .filter(|s| s.is_alive() && s.belongs_to_other(&options.checkout) && !force)
        {
            bail!(
                "the testbed is held by the checkout {}: end it there, or here with `--force`",
                state.options.checkout.display()
            );
        }
        let found = state.is_some() || paths.run().exists() || paths.state().exists();
        step("removing the testbed", clean(&paths, options.instance)).await?;
        lock.remove();
        Ok(found)
    }
}

/// Removes everything that belongs to `instance`, by the record, by name and by control group. Missing things are no
/// error, so this can be repeated.
pub async fn clean(paths: &Paths, instance: u8) -> Result<()> {
    let plan = Plan::new(instance, MAX_NODES)?;
    let groups = Hierarchies::detect()?;
    mounts::thaw_below(&paths.volumes()).await?;
    end_recorded(paths)?;
    groups.kill(&plan.cgroup()).await?;
    remove_shim_sockets(&plan, paths);
    for dir in [paths.run(), paths.state()] {
        mounts::unmount_below(&dir).await?;
    }
    mounts::detach_loops_below(&paths.state()).await?;
    network::remove(&plan).await?;
    groups.remove(&plan.cgroup()).await?;
    remove_strays(&plan, paths);
    for dir in [paths.run(), paths.state()] {
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove {}", dir.display()));
            }
            _ => {}
        }
    }
    // Only if this was the last instance.
    let _ = fs::remove_dir(paths::state_root());
    Ok(())
}

/// Kills the recorded processes, in case they left the control group.
fn end_recorded(paths: &Paths) -> Result<()> {
    // A record of another version was refused, or overridden, before.
    let Ok(Some(state)) = State::load(paths) else {
        return Ok(());
    };
    if state.boot_id != process::boot_id() {
        return Ok(());
    }
    state
        .processes
        .iter()
        .try_for_each(|process| process.signal(Signal::KILL))
}

fn remove_shim_sockets(plan: &Plan, paths: &Paths) {
    for n in plan.node_numbers() {
        for socket in containerd::shim_sockets(&paths.run().join(node_name(n))) {
            let _ = fs::remove_file(socket);
        }
    }
    remove_empty(Path::new(SHIM_SOCKETS));
}

/// Removes files that components put outside of their directories.
fn remove_strays(plan: &Plan, paths: &Paths) {
    let network = format!("{}-", plan.cni_network());
    let run = format!("{}/", paths.run().display());
    for entry in fs::read_dir(CNI_RESULTS).into_iter().flatten().flatten() {
        // Files of the loopback do not have the network's name, but that of the pod's namespace.
        let ours = entry.file_name().to_string_lossy().starts_with(&network)
            || fs::read_to_string(entry.path()).is_ok_and(|result| result.contains(&run));
        if ours {
            let _ = fs::remove_file(entry.path());
        }
    }
    remove_empty(Path::new(CNI_RESULTS));
    for entry in fs::read_dir(LOG_LINKS).into_iter().flatten().flatten() {
        if fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(paths.state())) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(LOG_LINKS);
}

/// Removes `dir` and its parent if they are empty.
fn remove_empty(dir: &Path) {
    if let (Ok(()), Some(parent)) = (fs::remove_dir(dir), dir.parent()) {
        let _ = fs::remove_dir(parent);
    }
}
