//! `cargo xtask bench backup`: our WAL archive, backups and restores beside pgBackRest's and barman-cloud's.
//!
//! All run on one machine, against one S3 server in a process of its own and one PostgreSQL, in rounds that begin with another tool
//! each.

mod measure;
mod report;
mod rig;
mod tools;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use suites::shell::step;

use super::{image, packages};
use measure::{Bench, end_background};
pub use report::Spread;
use rig::{Rig, SOON};
use tools::{Tool, shell};

/// Measures WAL archive, base backup and restore beside pgBackRest and barman-cloud.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Rounds; each begins with another tool.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Size of the database in MiB.
    #[arg(long, default_value_t = 2048)]
    megabytes: u32,
    /// Size of a WAL segment in MiB: a power of two of at most 16. The operator's databases have 4.
    #[arg(long, default_value_t = 16, value_parser = segment_size)]
    wal_segment_size: u8,
    /// Segments that are archived one at a time in each round.
    #[arg(long, default_value_t = 60)]
    segments: u64,
    /// Segments of the backlog.
    #[arg(long, default_value_t = 500)]
    backlog: u64,
    /// Seconds of the load without an archive, and of that without a backup.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// What is measured, instead of all.
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// The tools that are compared, instead of all.
    #[arg(long, value_enum)]
    tool: Vec<Tool>,
    /// Where the S3 server has its objects: some 6 GiB, best in memory, so that no disk is measured.
    #[arg(long, default_value = "/dev/shm")]
    objects: PathBuf,
}

/// A part of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Pushes of WAL.
    Wal,
    /// A backup of the idle server, and its restore.
    Backup,
    /// Clients write: without an archive, with one, and while a backup runs.
    Load,
}

impl Part {
    /// What it is, for people.
    fn what(self) -> &'static str {
        match self {
            Self::Wal => "WAL",
            Self::Backup => "backup and restore",
            Self::Load => "load, with and without a backup",
        }
    }
}

/// Reads a size of segments in MiB.
fn segment_size(text: &str) -> Result<u8, String> {
    let size = text
        .parse()
        .ok()
        .filter(|size: &u8| size.is_power_of_two() && *size <= 16);
    size.ok_or_else(|| "not 1, 2, 4, 8 or 16".to_owned())
}

/// Runs the measurements and prints them.
///
/// # Errors
/// When a tool is missing or fails.
pub async fn run(arguments: Arguments) -> Result<()> {
    packages::install(
        &[
            (packages::postgres_programs().is_some(), "postgresql"),
            (packages::has_program("pgbackrest"), "pgbackrest"),
            (packages::has_program("barman-cloud-backup"), "barman-cli-cloud"),
        ],
        "the comparison needs PostgreSQL's server programs, `pgbackrest` and `barman-cloud-backup`",
    )?;
    let (_, mut build) = image::build(&[image::AGENT]);
    // Figures are of the release build, whatever the environment asks for.
    build.env_remove("CARGO_PROFILE_RELEASE_OPT_LEVEL");
    build.args([
        "-p",
        "test-store",
        "--bin",
        "test-store",
        "-p",
        "backup",
        "--example",
        "restore",
    ]);
    step("building the agent as in its image, and the S3 server", &mut build)?;

    let processes = std::thread::available_parallelism()?.get();
    let buckets = Tool::ALL.map(Tool::bucket);
    let interrupted = async {
        tokio::signal::ctrl_c().await?;
        bail!("interrupted")
    };
    tokio::select! {
        done = compare(&arguments, &buckets, processes) => done,
        stopped = interrupted => stopped,
    }
}

async fn compare(arguments: &Arguments, buckets: &[&str], processes: usize) -> Result<()> {
    let rig = Rig::start(arguments, &image::binaries(image::RELEASE)?, buckets).await?;
    let measured = all_rounds(&rig, arguments, processes).await;
    end_background(&rig).await;
    rig.end().await;
    println!("\n{}", measured?);
    Ok(())
}

async fn all_rounds(rig: &Rig, arguments: &Arguments, processes: usize) -> Result<String> {
    let about = about(rig, arguments, processes).await?;
    println!("{about}");
    let mut order = match arguments.tool.is_empty() {
        true => Tool::ALL.to_vec(),
        false => arguments.tool.clone(),
    };
    for tool in &order {
        tool.prepare(rig, processes).await?;
    }
    let mut bench = Bench::new(rig, arguments, processes);
    for round in 0..arguments.rounds {
        println!("==> round {} of {}", round + 1, arguments.rounds);
        bench.round(&order).await?;
        order.rotate_left(1);
        println!("{}", bench.results.table());
    }
    let (costs, goals) = (bench.results.costs().join("\n"), bench.results.goals().join("\n"));
    Ok(format!("{about}\n{}\n{costs}\n{goals}", bench.results.table()))
}

/// The machine and the builds that are compared.
async fn about(rig: &Rig, arguments: &Arguments, processes: usize) -> Result<String> {
    let first_line = |file: &str, start: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(start).map(str::to_owned));
        line.map_or("unknown".to_owned(), |line| {
            line.trim_matches([':', ' ', '\t']).to_owned()
        })
    };
    let versions = "dpkg-query --show --showformat='${Package} ${Version}, ' pgbackrest barman-cli-cloud python3-boto3";
    let versions = rig.read(shell(rig, versions)?, SOON).await;
    let versions =
        versions.unwrap_or_else(|_| "pgbackrest and barman-cli-cloud, not from Debian's packages,".to_owned());
    let postgres = rig.sql("SHOW server_version").await?;
    let size = rig
        .sql("SELECT pg_size_pretty(sum(pg_database_size(oid))) FROM pg_database")
        .await?;
    let kernel = Command::new("uname").arg("-r").output().context("ask for the kernel")?;
    Ok(format!(
        "Machine: {processes} processors ({}), {} of memory, Linux {}.\n\
         Builds: this operator at {}; {versions} PostgreSQL {postgres}.\n\
         Data: {size} of pgbench's tables, which compress far better than usual data. Segments of {} MiB, written by pgbench.\n\
         Settings: zstd level 1 here and in pgBackRest (process-max={processes}, bundles, archive-async), gzip in barman-cloud \
         (--jobs {processes}). All speak TLS to one S3 server on this machine; all data are in the page cache. {} rounds; a cell \
         is the median, with minimum and maximum.\n",
        first_line("/proc/cpuinfo", "model name"),
        first_line("/proc/meminfo", "MemTotal"),
        String::from_utf8_lossy(&kernel.stdout).trim(),
        image::commit().unwrap_or_else(|| "an unknown commit".to_owned()),
        arguments.wal_segment_size,
        arguments.rounds,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_a_power_of_two_of_at_most_16_mib() {
        let sizes = ["1", "2", "4", "8", "16"].map(segment_size);
        assert_eq!(sizes, [1, 2, 4, 8, 16].map(Ok));
        for wrong in ["0", "3", "32", "", "4MB"] {
            assert!(segment_size(wrong).is_err(), "{wrong}");
        }
    }
}
