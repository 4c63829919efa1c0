//! The rig: one S3 server, one PostgreSQL, and the directories that all tools work in.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::Arguments;
use crate::linux::packages;

/// Time limit of a step that takes seconds.
pub(super) const SOON: Duration = Duration::from_secs(120);
/// Time limit of a step that reads or writes the whole database.
pub(super) const LONG: Duration = Duration::from_secs(30 * 60);
/// How often a condition is tried.
const AGAIN: Duration = Duration::from_millis(50);
/// Different segments of real WAL that the archive is fed with, under many names.
const SEGMENTS: usize = 16;
/// Bytes of the log that an error quotes.
const QUOTED: u64 = 2_000;
/// An archive command that archives nothing.
pub(super) const NOWHERE: &str = "/bin/true";

/// Everything that the tools share. The processes end when it is dropped, and then the directories are removed.
pub(super) struct Rig {
    children: Vec<Child>,
    /// The S3 server's standard input and output.
    store: Option<Mutex<(ChildStdin, Lines<BufReader<ChildStdout>>)>>,
    /// The port of the S3 server at 127.0.0.1.
    pub(super) port: u16,
    /// PostgreSQL's system identifier.
    pub(super) system_id: String,
    /// Bytes of one WAL segment.
    pub(super) segment: u64,
    /// Full WAL segments that pgbench has filled.
    pub(super) segments: Vec<PathBuf>,
    /// PostgreSQL's programs.
    pub(super) programs: PathBuf,
    user: User,
    scratch: Scratch,
    objects: Scratch,
}

impl Rig {
    /// Starts the servers and fills the database. `binaries` is the folder of our own programs.
    pub(super) async fn start(arguments: &Arguments, binaries: &Path, buckets: &[&str]) -> Result<Self> {
        let user = User::unprivileged()?;
        let mut rig = Self {
            children: Vec::new(),
            store: None,
            segment: u64::from(arguments.wal_segment_size) << 20,
            port: 0,
            system_id: String::new(),
            segments: Vec::new(),
            programs: packages::postgres_programs().context("find PostgreSQL's programs")?,
            scratch: Scratch::new(Path::new("/tmp"), &user)?,
            objects: Scratch::new(&arguments.objects, &user)?,
            user,
        };
        for (from, name) in [
            ("agent", "agent"),
            ("test-store", "test-store"),
            ("examples/restore", "restore"),
        ] {
            fs::copy(binaries.join(from), rig.path(name)).with_context(|| format!("copy {name}"))?;
        }
        rig.start_store(buckets).await?;
        rig.start_server().await?;
        rig.fill(arguments.megabytes).await?;
        Ok(rig)
    }

    /// The directory that the tools work in; PostgreSQL's socket is there, too.
    pub(super) fn scratch(&self) -> &Path {
        &self.scratch.0
    }

    /// A path in the scratch directory.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.scratch.0.join(name)
    }

    /// PostgreSQL's data directory.
    pub(super) fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// The directory of a bucket's objects.
    pub(super) fn bucket(&self, name: &str) -> PathBuf {
        self.objects.0.join(name)
    }

    /// Makes an empty directory that belongs to the user.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("remove {name}"))?;
        }
        fs::create_dir(&path).with_context(|| format!("make {name}"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).context("set permissions")?;
        self.user.own(&path)?;
        Ok(path)
    }

    /// A command of the user, which ends when its process is dropped. It gets the credentials, and its output goes to the log.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Result<Command> {
        let mut command = Command::new(program.as_ref());
        command
            .env_clear()
            .envs([
                ("PATH", "/usr/local/bin:/usr/bin:/bin"),
                ("LC_ALL", "C.UTF-8"),
                ("AWS_ACCESS_KEY_ID", test_store::KEY),
                ("AWS_SECRET_ACCESS_KEY", test_store::SECRET),
                ("AWS_DEFAULT_REGION", "us-east-1"),
                ("AWS_EC2_METADATA_DISABLED", "true"),
            ])
            .env("AWS_CA_BUNDLE", self.path("access/ca.crt"))
            .env("HOME", &self.scratch.0)
            .current_dir(&self.scratch.0)
            .stdin(Stdio::null())
            .stdout(self.log()?)
            .stderr(self.log()?)
            .kill_on_drop(true);
        if let Some((uid, gid)) = self.user.change_to {
            command.uid(uid).gid(gid);
        }
        Ok(command)
    }

    /// One of PostgreSQL's programs.
    pub(super) fn postgres(&self, program: &str) -> Result<Command> {
        self.command(self.programs.join(program))
    }

    fn log(&self) -> Result<File> {
        let log = File::options().create(true).append(true).open(self.path("log"));
        log.context("open the log")
    }

    /// Waits for the end of a process that [`Rig::command`] has described.
    pub(super) async fn run(&self, mut command: Command, limit: Duration) -> Result<()> {
        let name = command.as_std().get_program().display().to_string();
        let status = timeout(limit, command.status()).await;
        let status = status.with_context(|| format!("{name} took longer than {limit:?}{}", self.quote()))?;
        let status = status.with_context(|| format!("start {name}"))?;
        ensure!(status.success(), "{name}: {status}{}", self.quote());
        Ok(())
    }

    /// The same; returns what it prints.
    pub(super) async fn read(&self, mut command: Command, limit: Duration) -> Result<String> {
        let name = command.as_std().get_program().display().to_string();
        let output = timeout(limit, command.output()).await;
        let output = output.with_context(|| format!("{name} took longer than {limit:?}"))?;
        let output = output.with_context(|| format!("start {name}"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{name}: {}: {}", output.status, errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// The end of the log, for errors.
    pub(super) fn quote(&self) -> String {
        let end = || -> std::io::Result<String> {
            let mut log = File::open(self.path("log"))?;
            let length = log.metadata()?.len();
            log.seek(SeekFrom::Start(length.saturating_sub(QUOTED)))?;
            let mut end = Vec::new();
            log.read_to_end(&mut end)?;
            Ok(String::from_utf8_lossy(&end).into_owned())
        };
        end().map_or_else(|_| String::new(), |end| format!("; the log ends:\n{end}"))
    }

    async fn start_store(&mut self, buckets: &[&str]) -> Result<()> {
        let access = self.directory("access")?;
        for (name, value) in [
            ("AWS_ACCESS_KEY_ID", test_store::KEY),
            ("AWS_SECRET_ACCESS_KEY", test_store::SECRET),
        ] {
            fs::write(access.join(name), value).context("write the credentials")?;
        }
        let mut command = self.command(self.path("test-store"))?;
        command
            .arg("--tls")
            .arg(access.join("ca.crt"))
            .arg(&self.objects.0)
            .arg("127.0.0.1:0")
            .args(buckets)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut store = command.spawn().context("start the S3 server")?;
        let input = store.stdin.take().context("write to the S3 server")?;
        let output = store.stdout.take().context("read the S3 server's output")?;
        self.children.push(store);
        let mut lines = BufReader::new(output).lines();
        let url = timeout(SOON, lines.next_line())
            .await
            .context("await the S3 server")??;
        let port = url.as_deref().and_then(|url| url.rsplit(':').next()?.parse().ok());
        self.port = port.with_context(|| format!("read the S3 server's port in {url:?}{}", self.quote()))?;
        self.store = Some(Mutex::new((input, lines)));
        Ok(())
    }

    /// How many requests the S3 server has had so far.
    pub(super) async fn requests(&self) -> Result<f64> {
        let store = self.store.as_ref().context("find the S3 server")?;
        let (input, lines) = &mut *store.lock().await;
        input.write_all(b"\n").await.context("ask the S3 server")?;
        let line = timeout(SOON, lines.next_line())
            .await
            .context("await the S3 server")??;
        line.context("the S3 server has ended")?
            .parse()
            .context("read a number")
    }

    async fn start_server(&mut self) -> Result<()> {
        let mut initdb = self.postgres("initdb")?;
        initdb.args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
        ]);
        initdb
            .arg("--data-checksums")
            .arg(format!("--wal-segsize={}", self.segment >> 20))
            .arg("-D")
            .arg(self.data());
        self.run(initdb, SOON).await?;
        // No checkpoint by time and no autovacuum, which would fall into one tool's time and not into another's.
        let settings = format!(
            "archive_mode = on\narchive_command = '{NOWHERE}'\nautovacuum = off\ncheckpoint_timeout = 1h\n\
             listen_addresses = ''\nmax_wal_size = 8GB\nshared_buffers = 256MB\nunix_socket_directories = '{}'\n",
            self.scratch.0.display()
        );
        let file = self.data().join("postgresql.auto.conf");
        fs::write(&file, settings).context("write PostgreSQL's settings")?;
        self.user.own(&file)?;
        let mut server = self.postgres("postgres")?;
        server.arg("-D").arg(self.data());
        self.children.push(server.spawn().context("start PostgreSQL")?);
        self.until("PostgreSQL answers", async || Ok(self.sql("SELECT 1").await.is_ok()))
            .await?;
        self.system_id = self.sql("SELECT system_identifier FROM pg_control_system()").await?;
        Ok(())
    }

    /// Fills the database, and keeps some of the WAL that pgbench writes after that.
    async fn fill(&mut self, megabytes: u32) -> Result<()> {
        println!("==> filling a database of about {megabytes} MiB");
        // pgbench needs 15 MiB for each unit of its scale.
        let scale = (megabytes / 15).max(1).to_string();
        let mut init = self.pgbench()?;
        init.args(["--initialize", "--quiet", "--scale", &scale]);
        self.run(init, LONG).await?;
        let segments = self.directory("segments")?;
        self.quiet().await?;
        self.archive_by(&format!("cp %p {}/%f", segments.display())).await?;
        let begun = Instant::now();
        while self.segments.len() <= SEGMENTS {
            ensure!(begun.elapsed() < LONG, "pgbench does not fill {SEGMENTS} segments");
            // After a checkpoint, the first change of a page writes all of it.
            self.sql("CHECKPOINT").await?;
            let mut load = self.pgbench()?;
            load.args(["--no-vacuum", "--client=4", "--jobs=2", "--time=10"]);
            self.run(load, SOON).await?;
            let files = fs::read_dir(&segments)?.collect::<Result<Vec<_>, _>>()?;
            self.segments = files.into_iter().map(|file| file.path()).collect();
            // Names of notes about backups are longer.
            self.segments
                .retain(|path| path.file_name().is_some_and(|name| name.len() == 24));
        }
        self.quiet().await?;
        self.segments.sort();
        // The last one may have been copied only in part.
        self.segments.truncate(SEGMENTS);
        let is_full = |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.len() == self.segment);
        ensure!(self.segments.iter().all(is_full), "a segment is not full");
        Ok(())
    }

    /// pgbench, for this server.
    pub(super) fn pgbench(&self) -> Result<Command> {
        let mut command = self.postgres("pgbench")?;
        command.arg("--host").arg(&self.scratch.0).arg("--username=postgres");
        command.env("PGDATABASE", "postgres");
        Ok(command)
    }

    /// Asks PostgreSQL.
    pub(super) async fn sql(&self, statement: &str) -> Result<String> {
        let mut psql = self.postgres("psql")?;
        psql.args([
            "-XAtq",
            "-v",
            "ON_ERROR_STOP=1",
            "-U",
            "postgres",
            "-d",
            "postgres",
            "-h",
        ]);
        psql.arg(&self.scratch.0).args(["-c", statement]);
        self.read(psql, SOON).await
    }

    /// Gives PostgreSQL another `archive_command`.
    pub(super) async fn archive_by(&self, command: &str) -> Result<()> {
        let command = command.replace('\'', "''");
        self.sql(&format!("ALTER SYSTEM SET archive_command = '{command}'"))
            .await?;
        self.sql("SELECT pg_reload_conf()").await.map(drop)
    }

    /// Archives nothing from now on, and waits until PostgreSQL and the disk have nothing left to do.
    pub(super) async fn quiet(&self) -> Result<()> {
        self.archive_by(NOWHERE).await?;
        self.until("no WAL waits for the archive", async || {
            let marks = fs::read_dir(self.data().join("pg_wal/archive_status"))?;
            let mut names = marks.flatten().map(|mark| mark.file_name());
            Ok(!names.any(|name| name.to_string_lossy().ends_with(".ready")))
        })
        .await?;
        self.sql("CHECKPOINT").await?;
        self.run(self.command("/bin/sync")?, LONG).await
    }

    /// Waits for a condition.
    pub(super) async fn until(&self, what: &str, condition: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        while !condition().await? {
            if begun.elapsed() >= SOON {
                bail!("waited {SOON:?} in vain until {what}{}", self.quote());
            }
            sleep(AGAIN).await;
        }
        Ok(())
    }

    /// Ends the servers.
    pub(super) async fn end(mut self) {
        if let Ok(mut stop) = self.postgres("pg_ctl") {
            stop.args(["stop", "--silent", "--mode=immediate", "-D"])
                .arg(self.data());
            if let Err(error) = self.run(stop, SOON).await {
                eprintln!("stop PostgreSQL: {error:#}");
            }
        }
        for mut child in self.children.drain(..) {
            // It may have ended already.
            let _ = child.kill().await;
        }
    }
}

/// Who runs the processes: PostgreSQL refuses root.
struct User {
    /// UID and GID to change to, for root.
    change_to: Option<(u32, u32)>,
}

impl User {
    /// The present user, or for root the user of Debian's PostgreSQL packages.
    fn unprivileged() -> Result<Self> {
        use std::os::unix::fs::MetadataExt;
        if fs::metadata("/proc/self").context("read /proc/self")?.uid() != 0 {
            return Ok(Self { change_to: None });
        }
        let passwd = fs::read_to_string("/etc/passwd").context("read /etc/passwd")?;
        let line = passwd.lines().find_map(|line| line.strip_prefix("postgres:"));
        let mut fields = line
            .context("find the user postgres in /etc/passwd")?
            .split(':')
            .skip(1);
        let mut number = || fields.next().and_then(|field| field.parse().ok());
        let ids = number().zip(number());
        Ok(Self {
            change_to: Some(ids.context("read the ids of the user postgres")?),
        })
    }

    fn own(&self, path: &Path) -> Result<()> {
        match self.change_to {
            Some((uid, gid)) => chown(path, Some(uid), Some(gid)).with_context(|| format!("chown {}", path.display())),
            None => Ok(()),
        }
    }
}

/// A directory that is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &Path, user: &User) -> Result<Self> {
        // Short: the path of a Unix socket has 107 bytes.
        let scratch = Self(parent.join(format!("cdb-bench-{}", std::process::id())));
        fs::create_dir(&scratch.0).with_context(|| format!("make {}", scratch.0.display()))?;
        user.own(&scratch.0)?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("remove {}: {error}", self.0.display());
        }
    }
}
