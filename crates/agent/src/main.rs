//! The agent's binary: `install PATH` in the init container, `run` as PID 1 of the postgres container, `alive` in its
//! probes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agent::archive::Paths;
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
    /// Copies this program to PATH. A container with PostgreSQL runs it from there.
    Install {
        /// The path of the copy.
        path: PathBuf,
        /// In a pooler's pod: the file that the container is to have as `/etc/hosts`, which is made.
        #[arg(long)]
        hosts: Option<PathBuf>,
    },
    /// Keeps PgBouncer running, in the pod of a Pooler.
    Pooler,
    /// Runs PostgreSQL as a member of its ClusteredDatabase.
    Run,
    /// Asks the agent of this container for a sign of life: for its start-up and liveness probes.
    Alive,
    /// Has a file of WAL archived: for PostgreSQL's `archive_command`.
    Archive {
        /// The Unix socket of the archive's worker.
        socket: PathBuf,
        /// The file's name in `pg_wal`.
        name: String,
    },
    /// Archives WAL, by orders on standard input; the agent starts it.
    ArchiveWorker {
        /// The Unix socket on which it answers.
        socket: PathBuf,
        /// `pg_wal`.
        wal: PathBuf,
        /// Where the Secrets of the store are mounted.
        access: PathBuf,
    },
    /// Fetches a file of WAL from the archive: for PostgreSQL's `restore_command` while a backup is recovered.
    FetchWal {
        /// The file with the plan.
        plan: PathBuf,
        /// The file's name in `pg_wal`.
        name: String,
        /// Where it is to be put.
        to: PathBuf,
    },
    /// Makes a base backup, by an order on standard input; the agent starts it.
    BaseBackup,
}

fn main() -> ExitCode {
    become_dead_man_if_asked();
    let result = match Arguments::parse().command {
        Command::Install { path, hosts } => {
            install(&path).and_then(|()| hosts.as_deref().map_or(Ok(()), agent::pooler::make_hosts))
        }
        Command::Pooler => agent::pooler::work(),
        Command::Run => start(),
        Command::Archive { socket, name } => return ExitCode::from(agent::archive::ask(&socket, &name)),
        Command::FetchWal { plan, name, to } => return agent::postgres::fetch_wal(&plan, &name, &to),
        Command::ArchiveWorker { socket, wal, access } => agent::archive::work(Paths { socket, wal, access }),
        Command::BaseBackup => agent::base::work(),
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

/// Copies the running program, wholly or not at all.
fn install(path: &Path) -> anyhow::Result<()> {
    let staged = path.with_extension("new");
    fs::copy("/proc/self/exe", &staged).with_context(|| format!("copy this program to {}", staged.display()))?;
    fs::set_permissions(&staged, fs::Permissions::from_mode(0o755))?;
    fs::rename(&staged, path).with_context(|| format!("put it in place as {}", path.display()))
}

fn start() -> anyhow::Result<()> {
    // The dead-man is started first: it must not depend on anything that comes later.
    let dead_man = DeadMan::start()?;
    agent::logs::init();
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        anyhow::bail!("install the cryptography provider");
    }
    let config = Config::from_environment()?;
    // Two threads: if one is kept busy, the other still serves all tasks.
    let workers = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("worker")
        .enable_all()
        .build()?;
    // The event loop and the writes to Kubernetes have this thread for themselves, with its timers and connections: a
    // worker that hangs in the kernel delays no renewal of the lease.
    let vital = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = vital.block_on(run(config, dead_man, workers.handle().clone()));
    if let Err(error) = &result {
        tracing::error!("{error:#}");
    }
    agent::logs::flush();
    // When PID 1 exits, the kernel kills every process that is left. Tasks that hang are not awaited.
    std::process::exit(i32::from(result.is_err()));
}
