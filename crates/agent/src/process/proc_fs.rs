//! Reading processes from `/proc`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};

/// One process that is not a zombie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its id.
    pub pid: u32,
    /// Its parent's id.
    pub parent: u32,
    /// Name of its program (`comm`, up to 15 bytes).
    pub name: String,
    /// When it started, in clock ticks since boot. Together with the id this identifies a process for ever.
    pub started: u64,
}

/// Every living process of the PID namespace, ordered by id. Zombies are left out.
///
/// # Errors
/// Fails if `/proc` cannot be read. A process that ends meanwhile is no error.
pub fn processes() -> io::Result<Vec<ProcessInfo>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        match fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => found.extend(parse_stat(&String::from_utf8_lossy(&stat))),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

/// The living descendants of `ancestor`, without `ancestor`.
///
/// # Errors
/// As [`processes`].
pub fn descendants(ancestor: u32) -> io::Result<Vec<ProcessInfo>> {
    Ok(descendants_among(processes()?, ancestor))
}

/// The living processes called `postgres` that belong to this agent. If the agent is PID 1, these are all in the PID
/// namespace, else its descendants.
///
/// # Errors
/// As [`processes`].
pub fn postgres_processes() -> io::Result<Vec<ProcessInfo>> {
    Ok(own_processes()?
        .into_iter()
        .filter(|process| process.name == "postgres")
        .collect())
}

/// All living processes that belong to this agent, without the agent.
///
/// # Errors
/// As [`processes`].
pub(super) fn own_processes() -> io::Result<Vec<ProcessInfo>> {
    match std::process::id() {
        1 => Ok(processes()?.into_iter().filter(|process| process.pid != 1).collect()),
        own => descendants(own),
    }
}

/// The processes of `all` that descend from `ancestor`.
fn descendants_among(all: Vec<ProcessInfo>, ancestor: u32) -> Vec<ProcessInfo> {
    let mut family = BTreeSet::from([ancestor]);
    loop {
        let before = family.len();
        family.extend(
            all.iter()
                .filter(|process| family.contains(&process.parent))
                .map(|p| p.pid)
                .collect::<Vec<_>>(),
        );
        if family.len() == before {
            break;
        }
    }
    all.into_iter()
        .filter(|process| family.contains(&process.pid) && process.pid != ancestor)
        .collect()
}

/// True if the process ended between listing and reading.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Parses `/proc/<pid>/stat`; `None` for a dead process. The program's name may hold any characters, also parentheses
/// and spaces.
fn parse_stat(stat: &str) -> Option<ProcessInfo> {
    let (pid, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let threads: u32 = fields.get(17)?.parse().ok()?;
    let dead = match *fields.first()? {
        "X" | "x" => true,
        // The first thread has ended; other threads of the process may live.
        "Z" => threads <= 1,
        _ => false,
    };
    let process = ProcessInfo {
        pid: pid.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        name: name.to_owned(),
        started: fields.get(19)?.parse().ok()?,
    };
    (!dead).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAIL: &str = "4096 -1 4194560 1 0 0 0 0 0 0 0 20 0 THREADS 0 12345 0 0";

    fn stat(head: &str, threads: &str) -> String {
        format!(
            "{head} 7 7 0 -1 {}",
            TAIL.replace("4096 -1 ", "").replace("THREADS", threads)
        )
    }

    #[test]
    fn names_with_parentheses_are_read() {
        let process = parse_stat(&stat("42 (a) S (b c)) S 7", "3")).expect("a living process");
        assert_eq!(
            (process.pid, process.parent, process.name.as_str()),
            (42, 7, "a) S (b c)")
        );
        assert_eq!(process.started, 12345);
    }

    #[test]
    fn zombies_are_dead_unless_a_thread_lives() {
        assert_eq!(parse_stat(&stat("42 (postgres) Z 7", "1")), None);
        assert!(parse_stat(&stat("42 (postgres) Z 7", "2")).is_some());
    }

    #[test]
    fn own_process_is_seen() {
        let own = std::process::id();
        assert!(
            processes()
                .expect("readable /proc")
                .iter()
                .any(|process| process.pid == own)
        );
    }

    #[test]
    fn grandchildren_are_descendants() {
        let process = |pid, parent| ProcessInfo {
            pid,
            parent,
            name: String::new(),
            started: 0,
        };
        let all = vec![process(2, 9), process(3, 1), process(9, 3), process(10, 1)];
        let family = descendants_among(all, 3);
        assert_eq!(family.iter().map(|process| process.pid).collect::<Vec<_>>(), [2, 9]);
    }
}
