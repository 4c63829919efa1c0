//! The processes of a container, seen from the host that runs the testbed.

use std::fs;

use anyhow::{Context, Result};
use testbed::Testbed;

use crate::Namespace;

/// The container of a member, by the host's pid of its agent.
#[derive(Debug)]
pub struct Container {
    /// The agent: PID 1 of the container.
    pub agent: i32,
    pid_namespace: std::path::PathBuf,
}

impl Container {
    /// Finds the postgres container of `pod`.
    ///
    /// # Errors
    /// When it does not run on this machine.
    pub async fn of(testbed: &Testbed, namespace: &Namespace, pod: &str) -> Result<Self> {
        Self::named(testbed, namespace, pod, api::names::CONTAINER).await
    }

    /// Finds another container of `pod`, by its name.
    ///
    /// # Errors
    /// When it does not run on this machine.
    pub async fn named(testbed: &Testbed, namespace: &Namespace, pod: &str, container: &str) -> Result<Self> {
        let agent = testbed.container_pid(&namespace.name, pod, container).await?;
        let pid_namespace = fs::read_link(format!("/proc/{agent}/ns/pid")).context("read the agent's PID namespace")?;
        Ok(Self { agent, pid_namespace })
    }

    /// Pids of the living processes called `postgres`.
    #[must_use]
    pub fn postgres(&self) -> Vec<i32> {
        self.servers().iter().map(|server| server.pid).collect()
    }

    /// The postmaster's pid.
    ///
    /// # Errors
    /// When there is none.
    pub fn postmaster(&self) -> Result<i32> {
        postmaster(&self.servers()).context("no postmaster in the container")
    }

    fn servers(&self) -> Vec<Server> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(|pid| self.living_postgres(pid)).collect()
    }

    /// The standby's WAL receiver, by its title.
    #[must_use]
    pub fn wal_receiver(&self) -> Option<i32> {
        let title = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut all = self.postgres().into_iter();
        all.find(|pid| title(*pid).contains(": walreceiver"))
    }

    fn living_postgres(&self, pid: i32) -> Option<Server> {
        let inside = fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|link| link == self.pid_namespace);
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Server::parse(pid, &stat).filter(|_| inside)
    }
}

/// A process of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Server {
    pid: i32,
    parent: i32,
}

impl Server {
    /// The process of `/proc/<pid>/stat`, if it lives and is called `postgres`.
    fn parse(pid: i32, stat: &str) -> Option<Self> {
        let (name, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let lives = name.ends_with("(postgres") && !matches!(*fields.first()?, "Z" | "X");
        let server = Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
        };
        lives.then_some(server)
    }
}

/// The postmaster has children and is no other's child: a process that only reads a configuration has none. Its
/// children may have lower pids, because pids start again after the highest.
fn postmaster(servers: &[Server]) -> Option<i32> {
    let any = |is: &dyn Fn(&Server) -> bool| servers.iter().any(is);
    let mut pids = servers
        .iter()
        .filter(|server| !any(&|other| other.pid == server.parent))
        .map(|server| server.pid);
    pids.find(|pid| any(&|other| other.parent == *pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_postmaster_is_found_after_pids_have_wrapped_around() {
        let server = |pid, parent| Server { pid, parent };
        let servers = [
            server(310, 32_766),
            server(311, 310),
            server(312, 300),
            server(32_766, 300),
            server(32_767, 32_766),
        ];
        assert_eq!(postmaster(&servers), Some(32_766));
        assert_eq!(postmaster(&[]), None);
    }

    #[test]
    fn dead_and_other_processes_are_no_servers() {
        let stat = |name: &str, state: &str| Server::parse(7, &format!("7 ({name}) {state} 5 0 0"));
        assert_eq!(stat("postgres", "S"), Some(Server { pid: 7, parent: 5 }));
        assert_eq!(stat("postgres", "Z"), None);
        assert_eq!(stat("postgres) (agent", "S"), None);
    }
}
