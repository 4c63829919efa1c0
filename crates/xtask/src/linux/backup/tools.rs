//! The tools that are compared: how each archives, makes a backup and restores it.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use machine::archive::{ArchiveLine, Charge};
use machine::protocol::Epoch;
use machine::timing::BootTime;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::time::{interval, timeout};

use super::rig::{LONG, Rig, SOON};

/// How often the memory of a tool is read.
const LOOK: Duration = Duration::from_millis(250);
/// Our folder for the WAL of the server, and the one for the WAL that the archive is fed with.
pub(super) const SERVER: &str = "bench/server-c0ffee00";
pub(super) const FEED: &str = "bench/feed-c0ffee00";

/// A tool that archives WAL and makes backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Tool {
    /// This operator's.
    Ours,
    /// pgBackRest.
    #[value(name = "pgbackrest")]
    PgBackRest,
    /// barman-cloud.
    Barman,
}

/// How a backup went.
pub(super) struct Made {
    /// How long it took.
    pub(super) took: Duration,
    /// The most memory of its first process, in MiB.
    pub(super) memory: f64,
}

/// How a restore went.
pub(super) struct Restored {
    /// Until all files were there.
    pub(super) unpacked: Duration,
    /// Until they were also verified and synchronized, if the tool's user gets that.
    pub(super) took: Duration,
}

impl Tool {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Ours, Self::PgBackRest, Self::Barman];

    /// Its name, for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "this operator",
            Self::PgBackRest => "pgBackRest",
            Self::Barman => "barman-cloud",
        }
    }

    /// The bucket that it has for itself.
    pub(super) fn bucket(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::PgBackRest => "pgbackrest",
            Self::Barman => "barman",
        }
    }

    /// Whether it archives more than the file that PostgreSQL hands over.
    pub(super) fn looks_ahead(self) -> bool {
        self != Self::Barman
    }

    /// Its `archive_command`.
    pub(super) fn archive_command(self, rig: &Rig) -> String {
        match self {
            Self::Ours => format!(
                "{} archive {} %f",
                rig.path("agent").display(),
                rig.path("worker").display()
            ),
            Self::PgBackRest => format!("{} archive-push %p", pgbackrest(rig)),
            Self::Barman => format!(
                "barman-cloud-wal-archive --gzip --endpoint-url {} s3://barman main %p",
                endpoint(rig)
            ),
        }
    }

    /// What the tool needs once, before all.
    pub(super) async fn prepare(self, rig: &Rig, processes: usize) -> Result<()> {
        if self != Self::PgBackRest {
            return Ok(());
        }
        let conf = rig.path("pgbackrest.conf");
        fs::write(&conf, configuration(rig, processes)).context("write pgBackRest's configuration")?;
        for name in ["spool", "lock", "pgbackrest-log"] {
            rig.directory(name)?;
        }
        rig.run(shell(rig, &format!("{} stanza-create", pgbackrest(rig)))?, SOON)
            .await
    }

    /// Makes a full backup of the running server.
    pub(super) async fn back_up(self, rig: &Rig, number: u32, processes: usize) -> Result<Made> {
        match self {
            Self::Ours => {
                let mut command = rig.command(rig.path("agent"))?;
                command.arg("base-backup");
                watch(rig, command, Some(base_order(rig, number))).await
            }
            Self::PgBackRest => {
                let script = format!("exec {} backup --type=full", pgbackrest(rig));
                watch(rig, shell(rig, &script)?, None).await
            }
            Self::Barman => {
                let script = format!(
                    "exec barman-cloud-backup --gzip --jobs {processes} --immediate-checkpoint --endpoint-url {} -h {} \
                     -U postgres -d postgres s3://barman main",
                    endpoint(rig),
                    rig.scratch().display()
                );
                watch(rig, shell(rig, &script)?, None).await
            }
        }
    }

    /// Restores the newest backup into `into`, which exists and is empty.
    pub(super) async fn restore(self, rig: &Rig, into: &Path) -> Result<Restored> {
        let id = match self {
            Self::Barman => Some(newest_of_barman(rig).await?),
            Self::Ours | Self::PgBackRest => None,
        };
        let begun = Instant::now();
        match self {
            Self::Ours => {
                let mut command = rig.command(rig.path("restore"))?;
                command.arg(place(rig).to_string()).arg(rig.path("access"));
                command.arg(SERVER).arg(into);
                rig.run(command, LONG).await?;
            }
            Self::PgBackRest => {
                let script = format!("{} --pg1-path={} restore", pgbackrest(rig), into.display());
                rig.run(shell(rig, &script)?, LONG).await?;
            }
            Self::Barman => {
                let script = format!(
                    "barman-cloud-restore --endpoint-url {} s3://barman main {} {}",
                    endpoint(rig),
                    id.unwrap_or_default(),
                    into.display()
                );
                rig.run(shell(rig, &script)?, LONG).await?;
            }
        }
        let unpacked = begun.elapsed();
        if self == Self::Ours {
            // As the agent does it.
            let mut verify = rig.postgres("pg_verifybackup")?;
            verify.args(["--no-parse-wal", "--quiet", "--skip-checksums"]).arg(into);
            rig.run(verify, LONG).await?;
            let mut sync = rig.command("/bin/sync")?;
            sync.arg("--file-system").arg(into);
            rig.run(sync, LONG).await?;
        }
        Ok(Restored {
            unpacked,
            took: begun.elapsed(),
        })
    }
}

/// A command line, run as PostgreSQL runs its `archive_command`.
pub(super) fn shell(rig: &Rig, script: &str) -> Result<tokio::process::Command> {
    let mut command = rig.command("/bin/sh")?;
    command.args(["-c", script]);
    Ok(command)
}

/// pgBackRest with its configuration.
pub(super) fn pgbackrest(rig: &Rig) -> String {
    format!(
        "pgbackrest --config={} --stanza=main",
        rig.path("pgbackrest.conf").display()
    )
}

/// It demands TLS, and a host with a name.
fn configuration(rig: &Rig, processes: usize) -> String {
    let path = |name: &str| rig.path(name).display().to_string();
    format!(
        "[global]\nrepo1-type=s3\nrepo1-path=/repo\nrepo1-s3-bucket=pgbackrest\nrepo1-s3-endpoint=localhost\n\
         repo1-s3-region=us-east-1\nrepo1-s3-key={}\nrepo1-s3-key-secret={}\nrepo1-s3-uri-style=path\n\
         repo1-storage-host=localhost\nrepo1-storage-port={}\nrepo1-storage-verify-tls=n\nrepo1-bundle=y\n\
         repo1-retention-full=99\ncompress-type=zst\ncompress-level=1\nprocess-max={processes}\nstart-fast=y\n\
         archive-async=y\nexpire-auto=n\nspool-path={}\nlock-path={}\nlog-path={}\nlog-level-file=off\n\
         log-level-console=warn\n\n[main]\npg1-path={}\npg1-socket-path={}\npg1-user=postgres\n",
        test_store::KEY,
        test_store::SECRET,
        rig.port,
        path("spool"),
        path("lock"),
        path("pgbackrest-log"),
        path("data"),
        rig.scratch().display(),
    )
}

fn endpoint(rig: &Rig) -> String {
    format!("https://127.0.0.1:{}", rig.port)
}

/// The identifier of the newest backup.
async fn newest_of_barman(rig: &Rig) -> Result<String> {
    let script = format!(
        "barman-cloud-backup-list --format json --endpoint-url {} s3://barman main",
        endpoint(rig)
    );
    let listed = rig.read(shell(rig, &script)?, SOON).await?;
    let listed: Value = serde_json::from_str(&listed).context("read barman-cloud's list")?;
    let backups = listed["backups_list"].as_array().into_iter().flatten();
    let newest = backups.filter_map(|backup| backup["backup_id"].as_str()).max();
    newest.map(str::to_owned).context("find barman-cloud's backup")
}

/// [`backup::Place`](../../../backup/src/place.rs) of our bucket.
fn place(rig: &Rig) -> Value {
    json!({"s3": {"bucket": "ours", "path": "", "endpoint": endpoint(rig)}})
}

/// What the agent tells its workers of the store.
fn target(rig: &Rig, folder: &str) -> Value {
    json!({
        "place": place(rig),
        "folder": folder,
        "line": ArchiveLine::default(),
        "clusterUid": "c0ffee00-0000-0000-0000-000000000000",
        "systemId": rig.system_id,
        "podUid": "bench-0",
    })
}

fn base_order(rig: &Rig, number: u32) -> Value {
    json!({
        "target": target(rig, SERVER),
        "access": rig.path("access"),
        "copy": {
            "uid": format!("{number:08x}-0000-0000-0000-000000000000"),
            "attempt": 1,
            "origin": {"member": "bench-0", "role": "Primary"},
        },
        "socketDirectory": rig.scratch(),
        "port": 5432,
    })
}

/// Runs a tool to its end, and reads its memory meanwhile. It gets `order` as a line on its standard input.
async fn watch(rig: &Rig, mut command: tokio::process::Command, order: Option<Value>) -> Result<Made> {
    if order.is_some() {
        command.stdin(Stdio::piped());
    }
    let begun = Instant::now();
    let mut child = command.spawn().context("start the tool")?;
    let pid = child.id().context("find the tool's process")?;
    // Our process ends when its input does.
    let mut input = child.stdin.take();
    if let (Some(input), Some(order)) = (&mut input, order) {
        input.write_all(format!("{order}\n").as_bytes()).await?;
    }
    let mut memory = 0.0_f64;
    let mut ticks = interval(LOOK);
    let ended = async {
        loop {
            tokio::select! {
                status = child.wait() => return status,
                _ = ticks.tick() => memory = memory.max(peak_memory(pid).unwrap_or(0.0)),
            }
        }
    };
    let status = timeout(LONG, ended).await.context("await the tool's end")??;
    let took = begun.elapsed();
    if !status.success() {
        bail!("the backup failed: {status}{}", rig.quote());
    }
    Ok(Made { took, memory })
}

/// Our archive's worker. It ends when this is dropped.
pub(super) struct Worker {
    child: Child,
    _input: ChildStdin,
}

impl Worker {
    /// Starts it for the directory `wal`, and waits until it has tried the store.
    pub(super) async fn start(rig: &Rig, wal: &Path, folder: &str) -> Result<Self> {
        let mut command = rig.command(rig.path("agent"))?;
        command.arg("archive-worker").arg(rig.path("worker")).arg(wal);
        command.arg(rig.path("access"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("start the archive's worker")?;
        let mut input = child.stdin.take().context("write to the archive's worker")?;
        let output = child.stdout.take().context("read from the archive's worker")?;
        let charge = Charge::Push {
            epoch: Epoch(1),
            until: BootTime(u64::MAX),
        };
        let order = json!({"charge": charge, "target": target(rig, folder)});
        input.write_all(format!("{order}\n").as_bytes()).await?;
        let mut lines = BufReader::new(output).lines();
        let tried = async {
            while let Some(line) = lines.next_line().await? {
                let record: Value = serde_json::from_str(&line)?;
                match record["fault"].as_str() {
                    Some(fault) => bail!("the archive's worker: {fault}"),
                    None if record["fence"].is_string() => return Ok(()),
                    None => {}
                }
            }
            bail!("the archive's worker has ended{}", rig.quote())
        };
        timeout(SOON, tried).await.context("await the archive's worker")??;
        // It goes on to say how far the archive is.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { child, _input: input })
    }

    /// The most memory that it has had, in MiB.
    pub(super) fn memory(&self) -> Option<f64> {
        peak_memory(self.child.id()?)
    }

    /// Ends it.
    pub(super) async fn end(mut self) -> Result<()> {
        self.child.kill().await.context("end the archive's worker")
    }
}

/// The most resident memory that a process has had, in MiB; `None` if it has ended.
fn peak_memory(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib / 1024.0)
}
