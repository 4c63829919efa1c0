//! What is measured in each round.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use tokio::process::Child;

use super::report::{Figure, Results, percentile};
use super::rig::{LONG, Rig};
use super::tools::{FEED, Made, SERVER, Tool, Worker, pgbackrest, shell};
use super::{Arguments, Part};

/// Longest time of one call of an `archive_command`.
const CALL: Duration = Duration::from_secs(180);
/// Calls before those that are measured: programs and store are in memory then.
const WARM_UP: u64 = 3;
/// A tool that archives one file at a time is fed with so much less of the backlog. Its rate is the same.
const FEWER: u64 = 5;
/// The first one of PostgreSQL's "files" of 4 GiB that the archive is fed with: the server's own WAL has lower ones.
const FIRST: u64 = 0x1000;
/// How the folders of these files begin, in all three layouts.
const FOLDERS: &str = "0000000100001";

/// All rounds.
pub(super) struct Bench<'a> {
    rig: &'a Rig,
    arguments: &'a Arguments,
    processes: usize,
    next: u64,
    backups: u32,
    /// What was measured so far.
    pub(super) results: Results,
}

impl<'a> Bench<'a> {
    /// Nothing is measured yet. pgBackRest and barman-cloud use so many processes.
    pub(super) fn new(rig: &'a Rig, arguments: &'a Arguments, processes: usize) -> Self {
        Self {
            rig,
            arguments,
            processes,
            next: FIRST * in_file(rig.segment),
            backups: 0,
            results: Results::default(),
        }
    }

    /// One round, with the tools in this order.
    pub(super) async fn round(&mut self, order: &[Tool]) -> Result<()> {
        for part in [Part::Wal, Part::Backup, Part::Load] {
            if !self.arguments.part.is_empty() && !self.arguments.part.contains(&part) {
                continue;
            }
            for &tool in order {
                let (name, what) = (tool.name(), part.what());
                println!("==> {name}: {what}");
                let measured = match part {
                    Part::Wal => self.archive(tool).await,
                    Part::Backup => self.back_up(tool).await,
                    Part::Load => self.load(tool).await,
                };
                measured.with_context(|| format!("{name}: {what}"))?;
            }
        }
        Ok(())
    }

    /// Pushes of single segments, then a backlog.
    async fn archive(&mut self, tool: Tool) -> Result<()> {
        self.rig.quiet().await?;
        let feed = Feed::new(self.rig)?;
        let warm_up = feed.add(&mut self.next, WARM_UP)?;
        let worker = match tool {
            Tool::Ours => Some(Worker::start(self.rig, &feed.wal, FEED).await?),
            Tool::PgBackRest | Tool::Barman => None,
        };
        let command = tool.archive_command(self.rig);
        for name in warm_up {
            self.push(&feed, &command, &name).await?;
        }
        let pushes = self.pushes(&feed, &command).await?;
        let of = |percent| percentile(&pushes, percent).context("measure a push");
        let (p50, p99) = (of(50.0)?, of(99.0)?);
        self.results.add(Figure::PushP50, tool, p50);
        self.results.add(Figure::PushP99, tool, p99);
        let megabytes = |segments: f64| segments * self.rig.segment as f64 / 1e6;
        self.results.add(Figure::PushRate, tool, megabytes(1_000.0 / p50));
        match tool {
            Tool::Ours => self.results.add(Figure::SyncPushP50, tool, p50),
            Tool::PgBackRest => {
                let pushes = self.pushes(&feed, &format!("{command} --no-archive-async")).await?;
                let p50 = percentile(&pushes, 50.0).context("measure a push")?;
                self.results.add(Figure::SyncPushP50, tool, p50);
            }
            Tool::Barman => {}
        }

        let fewer = if tool.looks_ahead() { 1 } else { FEWER };
        let backlog = feed.add(&mut self.next, (self.arguments.backlog / fewer).max(1))?;
        let requests = self.rig.requests().await?;
        let begun = Instant::now();
        for name in &backlog {
            self.push(&feed, &command, name).await?;
        }
        let rate = backlog.len() as f64 / begun.elapsed().as_secs_f64();
        let requests = self.rig.requests().await? - requests;
        self.results.add(Figure::Backlog, tool, rate);
        self.results.add(Figure::BacklogRate, tool, megabytes(rate));
        let gibibytes = (backlog.len() as u64 * self.rig.segment) as f64 / f64::from(1 << 30);
        self.results.add(Figure::Requests, tool, requests / gibibytes);
        if let Some(worker) = worker {
            let memory = worker.memory().context("read the worker's memory")?;
            self.results.add(Figure::WorkerMemory, tool, memory);
            worker.end().await?;
        }
        fs::remove_dir_all(&feed.wal).context("remove what was archived")?;
        remove_folders(&self.rig.bucket(tool.bucket()), FOLDERS)
    }

    /// Milliseconds of single pushes.
    async fn pushes(&mut self, feed: &Feed<'_>, command: &str) -> Result<Vec<f64>> {
        let mut millis = Vec::new();
        for _ in 0..self.arguments.segments {
            for name in feed.add(&mut self.next, 1)? {
                millis.push(self.push(feed, command, &name).await?.as_secs_f64() * 1_000.0);
            }
        }
        Ok(millis)
    }

    /// Runs an `archive_command` for one file, as PostgreSQL's archiver does.
    async fn push(&self, feed: &Feed<'_>, command: &str, name: &str) -> Result<Duration> {
        let path = feed.wal.join(name).display().to_string();
        let script = command.replace("%p", &path).replace("%f", name);
        let shell = shell(self.rig, &script)?;
        let begun = Instant::now();
        self.rig.run(shell, CALL).await?;
        let took = begun.elapsed();
        feed.mark_archived(name)?;
        Ok(took)
    }

    /// A backup of the idle server, and its restore.
    async fn back_up(&mut self, tool: Tool) -> Result<()> {
        let worker = self.serve(tool).await?;
        let bytes: f64 = self
            .rig
            .sql("SELECT sum(pg_database_size(oid)) FROM pg_database")
            .await?
            .parse()?;
        let megabytes = bytes / 1e6;
        let cached = format!("find {} -type f -exec cat {{}} + >/dev/null", self.rig.data().display());
        self.rig.run(shell(self.rig, &cached)?, LONG).await?;
        let bucket = self.rig.bucket(tool.bucket());
        let before = size_of(&bucket)?;
        let made = self.make(tool).await?;
        self.results
            .add(Figure::Backup, tool, megabytes / made.took.as_secs_f64());
        if tool == Tool::Ours {
            self.results.add(Figure::BackupMemory, tool, made.memory);
        }
        self.results
            .add(Figure::Stored, tool, (size_of(&bucket)? - before) / 1e6);
        self.rig.quiet().await?;
        if let Some(worker) = worker {
            worker.end().await?;
        }

        // A virtual machine may get memory from its host only when it is used. The tool that is first would pay for it.
        let warm = self.rig.path("warm").display().to_string();
        let warm = format!("head --bytes={:.0} /dev/zero >{warm} && rm {warm}", bytes * 1.2);
        self.rig.run(shell(self.rig, &warm)?, LONG).await?;
        let into = self.rig.directory("restored")?;
        let restored = tool.restore(self.rig, &into).await?;
        ensure!(into.join("global/pg_control").is_file(), "nothing was restored");
        let rate = |took: Duration| megabytes / took.as_secs_f64();
        self.results.add(Figure::Restore, tool, rate(restored.took));
        // The others do not tell when they verify and synchronize.
        self.results.add(Figure::Unpack, tool, rate(restored.unpacked));
        fs::remove_dir_all(&into).context("remove what was restored")
    }

    /// Commits without an archive, with one, and with a backup.
    async fn load(&mut self, tool: Tool) -> Result<()> {
        self.rig.quiet().await?;
        let plain = [Figure::PlainP50, Figure::PlainP99, Figure::PlainTps];
        self.load_without_backup(tool, plain).await?;
        let worker = self.serve(tool).await?;
        let archived = [Figure::IdleP50, Figure::IdleP99, Figure::IdleTps];
        self.load_without_backup(tool, archived).await?;

        self.rig.sql("CHECKPOINT").await?;
        let mut load = Load::start(self.rig, None).await?;
        let begun = now();
        let made = self.make(tool).await;
        let ended = now();
        load.child.kill().await.context("end pgbench")?;
        made?;
        let during = load
            .transactions()?
            .into_iter()
            .filter(|(at, _)| (begun..ended).contains(at));
        let busy: Vec<f64> = during.map(|(_, millis)| millis).collect();
        self.results.add(
            Figure::BusyP99,
            tool,
            percentile(&busy, 99.0).context("no transaction")?,
        );
        self.results.add(Figure::Tps, tool, busy.len() as f64 / (ended - begun));
        self.rig.quiet().await?;
        match worker {
            Some(worker) => worker.end().await,
            None => Ok(()),
        }
    }

    /// Median and 99th percentile of commits, and how many there are in a second.
    async fn load_without_backup(&mut self, tool: Tool, [p50, p99, tps]: [Figure; 3]) -> Result<()> {
        let mut load = Load::start(self.rig, Some(self.arguments.seconds)).await?;
        let ended = tokio::time::timeout(LONG, load.child.wait()).await;
        ensure!(
            ended.context("await pgbench")??.success(),
            "pgbench failed{}",
            self.rig.quote()
        );
        let commits: Vec<f64> = load.transactions()?.into_iter().map(|(_, millis)| millis).collect();
        for (figure, percent) in [(p50, 50.0), (p99, 99.0)] {
            let millis = percentile(&commits, percent).context("no transaction")?;
            self.results.add(figure, tool, millis);
        }
        let rate = commits.len() as f64 / self.arguments.seconds as f64;
        self.results.add(tps, tool, rate);
        Ok(())
    }

    /// Has the server archive its WAL by `tool`, from a quiet state.
    async fn serve(&self, tool: Tool) -> Result<Option<Worker>> {
        self.rig.quiet().await?;
        let worker = match tool {
            Tool::Ours => Some(Worker::start(self.rig, &self.rig.data().join("pg_wal"), SERVER).await?),
            Tool::PgBackRest | Tool::Barman => None,
        };
        self.rig.archive_by(&tool.archive_command(self.rig)).await?;
        Ok(worker)
    }

    async fn make(&mut self, tool: Tool) -> Result<Made> {
        self.backups += 1;
        tool.back_up(self.rig, self.backups, self.processes).await
    }
}

/// Ends what pgBackRest may have left in the background.
pub(super) async fn end_background(rig: &Rig) {
    let stop = shell(rig, &format!("{} stop --force", pgbackrest(rig)));
    if let Ok(stop) = stop
        && let Err(error) = rig.run(stop, CALL).await
    {
        eprintln!("end pgBackRest: {error:#}");
    }
}

/// A second `pg_wal` with PostgreSQL's marks, of real segments under new names. pgBackRest wants it in the data directory.
struct Feed<'a> {
    rig: &'a Rig,
    wal: PathBuf,
}

impl<'a> Feed<'a> {
    fn new(rig: &'a Rig) -> Result<Self> {
        let wal = rig.directory("data/feed")?;
        rig.directory("data/feed/archive_status")?;
        Ok(Self { rig, wal })
    }

    /// Adds so many segments, which are to be archived. Returns their names.
    fn add(&self, next: &mut u64, count: u64) -> Result<Vec<String>> {
        let sources = self
            .rig
            .segments
            .iter()
            .cycle()
            .skip(*next as usize % self.rig.segments.len());
        let name = |number| name(number, self.rig.segment);
        let names: Vec<String> = (*next..*next + count).map(name).collect();
        *next += count;
        for (name, source) in names.iter().zip(sources) {
            fs::hard_link(source, self.wal.join(name)).with_context(|| format!("add {name}"))?;
            fs::write(self.mark(name, "ready"), "").with_context(|| format!("mark {name}"))?;
        }
        Ok(names)
    }

    fn mark_archived(&self, name: &str) -> Result<()> {
        let marked = fs::rename(self.mark(name, "ready"), self.mark(name, "done"));
        marked.with_context(|| format!("mark {name}"))
    }

    fn mark(&self, name: &str, mark: &str) -> PathBuf {
        self.wal.join(format!("archive_status/{name}.{mark}"))
    }
}

/// The name of a segment of this size.
fn name(number: u64, segment: u64) -> String {
    let (file, number) = (number / in_file(segment), number % in_file(segment));
    format!("00000001{file:08X}{number:08X}")
}

/// How many segments of this size make one of PostgreSQL's "files".
fn in_file(segment: u64) -> u64 {
    (4 << 30) / segment
}

/// pgbench, which notes each transaction.
struct Load {
    child: Child,
    folder: PathBuf,
}

impl Load {
    /// Starts it, for so many seconds or until it is ended, and waits until it has committed something.
    async fn start(rig: &Rig, seconds: Option<u64>) -> Result<Self> {
        let folder = rig.directory("transactions")?;
        let mut command = rig.pgbench()?;
        let seconds = seconds.unwrap_or(LONG.as_secs());
        command.args(["--no-vacuum", "--client=4", "--jobs=2", "--protocol=prepared", "--log"]);
        command.arg(format!("--time={seconds}"));
        command.arg(format!("--log-prefix={}", folder.join("log").display()));
        let child = command.spawn().context("start pgbench")?;
        let load = Self { child, folder };
        rig.until("pgbench commits", async || Ok(!load.transactions()?.is_empty()))
            .await?;
        Ok(load)
    }

    /// What it has noted so far.
    fn transactions(&self) -> Result<Vec<(f64, f64)>> {
        let mut found = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            found.extend(transactions(&fs::read_to_string(file?.path())?));
        }
        Ok(found)
    }
}

/// When each transaction ended, in seconds since 1970, and its milliseconds, by pgbench's log. The last line may be cut off.
fn transactions(log: &str) -> impl Iterator<Item = (f64, f64)> {
    let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
    complete.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(2).map(|field| field.parse::<f64>().ok());
        let (micros, _script) = (fields.next()??, fields.next()??);
        let (seconds, fraction) = (fields.next()??, fields.next()??);
        Some((seconds + fraction / 1e6, micros / 1_000.0))
    })
}

fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |now| now.as_secs_f64())
}

/// Removes the folders below `directory` whose names begin so.
fn remove_folders(directory: &Path, start: &str) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        if entry.file_name().to_string_lossy().starts_with(start) {
            fs::remove_dir_all(entry.path())?;
        } else {
            remove_folders(&entry.path(), start)?;
        }
    }
    Ok(())
}

/// Bytes of all files below a directory.
fn size_of(directory: &Path) -> Result<f64> {
    let mut bytes = 0.0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => size_of(&entry.path())?,
            false => entry.metadata()?.len() as f64,
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_have_names_as_postgresql_gives_them() {
        for (mib, last) in [
            (16, "0000000100001001000000FF"),
            (4, "0000000100001001000003FF"),
            (1, "000000010000100100000FFF"),
        ] {
            let segment = mib << 20;
            let first = FIRST * in_file(segment);
            assert_eq!(name(first, segment), "000000010000100000000000");
            assert_eq!(name(first + 2 * in_file(segment) - 1, segment), last);
            assert!(name(first + 100_000, segment).starts_with(FOLDERS));
        }
    }

    #[test]
    fn transactions_are_read_as_far_as_they_are_complete() {
        let log = "0 199 2241 0 1175850568 995598\n1 1 failed 0 1175850568 1\n0 200 2465 0 1175850569 608\n0 2 99";
        let found: Vec<_> = transactions(log).collect();
        assert_eq!(found, [(1_175_850_568.995_598, 2.241), (1_175_850_569.000_608, 2.465)]);
    }
}
