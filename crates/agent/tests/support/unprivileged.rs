//! PostgreSQL refuses to run as root, and an agent must kill only its own processes. So each test that needs a server
//! runs in a process of its own, as an unprivileged user.

use std::fs;
use std::future::Future;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

/// Tells the inner process its scratch directory.
const INNER: &str = "CDB_TEST_SCRATCH";

/// Runs the body of the test called `name` in a process of its own, with a scratch directory of its own.
pub fn unprivileged<F: Future<Output = ()>>(name: &str, body: impl FnOnce(Place) -> F) {
    if let Some(scratch) = std::env::var_os(INNER) {
        if std::env::var_os(agent::logs::VARIABLE).is_some() {
            agent::logs::init();
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let place = Place {
            scratch: scratch.into(),
            binaries: binaries(),
            user: user().0,
        };
        let _family = Family;
        return runtime.block_on(body(place));
    }
    let (major, _) = binaries();
    assert!(
        (15..=18).contains(&major),
        "PostgreSQL {major} is none that the agent knows"
    );
    let scratch = Scratch::new(name);
    let (_, uid, gid) = user();
    // A place where every user may read it.
    let program = scratch.0.join("test");
    place(&std::env::current_exe().expect("a program"), &program);
    let mut command = Command::new(program);
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INNER, &scratch.0)
        .current_dir("/");
    if rustix::process::geteuid().is_root() {
        chown(&scratch.0, Some(uid), Some(gid)).expect("a directory of the user's");
        command.uid(uid).gid(gid);
    }
    let status = command.status().expect("the test runs");
    assert!(status.success(), "{name} failed: see above");
}

/// Puts a program into the place, as a link if possible. A copy that is still open for writing in a child that another
/// test has just started cannot be run ("text file busy").
pub fn place(program: &Path, to: &Path) {
    if fs::hard_link(program, to).is_err() {
        fs::copy(program, to).expect("copied");
    }
}

/// The place in which a test works.
pub struct Place {
    /// An empty directory.
    pub scratch: PathBuf,
    /// Major version and directory of PostgreSQL's programs.
    pub binaries: (u16, PathBuf),
    /// The user that it runs as.
    pub user: String,
}

/// PostgreSQL's programs: the newest of Debian's packages.
pub fn binaries() -> (u16, PathBuf) {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let majors = installed.filter_map(|entry| entry.file_name().to_str()?.parse::<u16>().ok());
    let found = majors
        .map(|major| (major, PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"))))
        .filter(|(_, directory)| directory.join("initdb").is_file() && directory.join("postgres").is_file())
        .max();
    found.expect("no PostgreSQL server is installed here: run `cargo xtask test`, which installs one")
}

/// The user that runs the servers: the present user, or for root the user of Debian's PostgreSQL packages, or `nobody`.
pub fn user() -> (String, u32, u32) {
    let own = rustix::process::geteuid();
    let passwd = fs::read_to_string("/etc/passwd").expect("readable");
    let users: Vec<(String, u32, u32)> = passwd
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            Some((
                fields.first()?.to_string(),
                fields.get(2)?.parse().ok()?,
                fields.get(3)?.parse().ok()?,
            ))
        })
        .collect();
    let named = |name: &str| users.iter().find(|user| user.0 == name);
    let user = match own.is_root() {
        true => named("postgres").or_else(|| named("nobody")),
        false => users.iter().find(|user| user.1 == own.as_raw()),
    };
    user.expect("a user in /etc/passwd").clone()
}

/// Ends the processes that a failed test leaves running.
struct Family;

impl Drop for Family {
    fn drop(&mut self) {
        for process in agent::process::descendants(std::process::id()).unwrap_or_default() {
            if let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// A directory that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        // Short: the path of a Unix socket has 107 bytes.
        let short: String = name.chars().take(12).collect();
        let path = PathBuf::from(format!("/tmp/cdb-{short}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a scratch directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
