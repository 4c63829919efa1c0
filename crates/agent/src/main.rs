//! The agent's binary: `install PATH` in the init container, `run` as PID 1 of the postgres container, `alive` in its probes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agent::deadman::{DeadMan, become_dead_man_if_asked};
use agent::run::{Config, run};
use anyhow::Context;
use api::names::ALIVE_SOCKET;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    version,
    about = "The agent of a ClusteredDatabase: PID 1 of its postgres containers"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Copies this program to PATH, to be run from there in a container with PostgreSQL.
    Install {
        /// Where to.
        path: PathBuf,
    },
    /// Runs PostgreSQL as a member of its ClusteredDatabase.
    Run,
    /// Asks the agent of this container for a sign of life: for its start-up and liveness probes.
    Alive,
}

fn main() -> ExitCode {
    become_dead_man_if_asked();
    let result = match Arguments::parse().command {
        Command::Install { path } => install(&path),
        Command::Run => start(),
        Command::Alive => listen::alive::ask(Path::new(ALIVE_SOCKET)).map_err(anyhow::Error::msg),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Copies the running program, whole or not at all.
fn install(path: &Path) -> anyhow::Result<()> {
    let staged = path.with_extension("new");
    fs::copy("/proc/self/exe", &staged).with_context(|| format!("copy this program to {}", staged.display()))?;
    fs::set_permissions(&staged, fs::Permissions::from_mode(0o755))?;
    fs::rename(&staged, path).with_context(|| format!("put it in place as {}", path.display()))
}

fn start() -> anyhow::Result<()> {
    // First of all: it must not depend on anything that comes after it.
    let dead_man = DeadMan::start()?;
    agent::logs::init();
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        anyhow::bail!("install the cryptography provider");
    }
    let config = Config::from_environment()?;
    // Two: one that is kept busy does not keep the others waiting.
    let workers = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("worker")
        .enable_all()
        .build()?;
    // The event loop and the writes to Kubernetes have this thread, its timers and its connections for themselves: a
    // worker that hangs in the kernel holds up no renewal of the lease.
    let vital = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = vital.block_on(run(config, dead_man, workers.handle().clone()));
    if let Err(error) = &result {
        tracing::error!("{error:#}");
    }
    agent::logs::flush();
    // As PID 1: the kernel ends whatever is left. Not waiting for tasks that hang.
    std::process::exit(i32::from(result.is_err()));
}
