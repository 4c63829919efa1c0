//! What a testbed could leave on a machine, to compare before and after.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// Directories in which components leave files.
const WATCHED: [&str; 9] = [
    "/run",
    "/run/containerd",
    "/run/netns",
    "/var/lib",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log",
    "/var/log/containers",
    "/opt",
];

/// The machine's state, one line per thing, without the things of other testbeds, which come and go meanwhile.
pub struct Snapshot {
    lines: BTreeSet<String>,
}

impl Snapshot {
    /// Looks at the machine.
    pub fn take(instance: u8) -> Result<Self> {
        let mut lines = BTreeSet::new();
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        lines.extend(
            mounts
                .lines()
                .map(|l| format!("mount {}", l.split(' ').nth(4).unwrap_or(l))),
        );
        for (what, program, args) in [
            ("link", "ip", &["-o", "link"][..]),
            ("route", "ip", &["route", "show", "table", "all"]),
            ("rule", "ip", &["rule"]),
            ("packet filter", "nft", &["list", "tables"]),
            ("loop device", "losetup", &["-n", "-O", "NAME,BACK-FILE"]),
        ] {
            let output = Command::new(program)
                .args(args)
                .output()
                .with_context(|| format!("run {program}"))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            lines.extend(text.lines().map(|line| format!("{what} {}", strip_numbers(line))));
        }
        for dir in WATCHED {
            lines.extend(
                fs::read_dir(dir)
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|e| described(&e.path())),
            );
        }
        collect_groups(Path::new("/sys/fs/cgroup"), &mut lines);
        lines.extend(
            Self::processes_of(instance)?
                .into_iter()
                .map(|pid| format!("process {pid} {}", command_line(pid))),
        );
        lines.extend(
            network_namespaces()
                .into_iter()
                .map(|ns| format!("network namespace {ns}")),
        );
        lines.retain(|line| !is_of_other(line, instance));
        Ok(Self { lines })
    }

    /// The lines that are in `later` and not in this.
    pub fn what_is_new(&self, later: &Self) -> Vec<String> {
        later.lines.difference(&self.lines).cloned().collect()
    }

    /// Processes that are related to the instance: by control group, or by names in their command line or environment.
    pub fn processes_of(instance: u8) -> Result<Vec<i32>> {
        let group = format!("cdb-testbed-{instance}/");
        let paths = [format!("/cdb-testbed/{instance}/"), format!("cdbtb{instance}")];
        let myself = i32::try_from(std::process::id())?;
        let mut found = Vec::new();
        for pid in all_processes().into_iter().filter(|pid| *pid != myself) {
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            let line = command_line(pid);
            // A zombie has no command line: it has ended and waits for init.
            if line.is_empty() {
                continue;
            }
            if groups.contains(&group) || paths.iter().any(|path| line.contains(path)) {
                found.push(pid);
            }
        }
        Ok(found)
    }
}

/// A file; a link with its target, which shows the owner.
fn described(path: &Path) -> String {
    match fs::read_link(path) {
        Ok(target) => format!("file {} -> {}", path.display(), target.display()),
        Err(_) => format!("file {}", path.display()),
    }
}

fn all_processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

fn command_line(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cmdline"))
        .unwrap_or_default()
        .replace('\0', " ")
}

/// The namespaces that processes outside of any testbed are in.
fn network_namespaces() -> BTreeSet<String> {
    let ours = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|g| !g.contains("cdb-testbed-"));
    let processes = all_processes().into_iter().filter(ours);
    processes
        .filter_map(|pid| fs::read_link(format!("/proc/{pid}/ns/net")).ok())
        .map(|ns| ns.display().to_string())
        .collect()
}

fn collect_groups(dir: &Path, lines: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            lines.insert(format!("control group {}", entry.path().display()));
            collect_groups(&entry.path(), lines);
        }
    }
}

/// `ip` numbers links, and the numbers grow with every link that ever was.
fn strip_numbers(line: &str) -> &str {
    line.split_once(": ")
        .filter(|(number, _)| number.parse::<u32>().is_ok())
        .map_or(line, |(_, rest)| rest)
}

/// True if a line is about another instance than `instance`.
fn is_of_other(line: &str, instance: u8) -> bool {
    (0..=testbed::plan::MAX_INSTANCE)
        .filter(|other| *other != instance)
        .any(|other| {
            let marks = [
                format!("cdb-testbed/{other}"),
                format!("cdb-testbed-{other}"),
                format!("cdbtb{other}"),
            ];
            marks.iter().any(|mark| line.contains(mark))
        })
}
