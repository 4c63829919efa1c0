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

    /// Pids of the living processes called `postgres`; the postmaster has the lowest.
    #[must_use]
    pub fn postgres(&self) -> Vec<i32> {
        let Ok(entries) = fs::read_dir("/proc") else {
            return Vec::new();
        };
        let mut pids: Vec<i32> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| self.is_living_postgres(*pid))
            .collect();
        pids.sort_unstable();
        pids
    }

    /// The standby's WAL receiver, by its title.
    #[must_use]
    pub fn wal_receiver(&self) -> Option<i32> {
        let title = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut all = self.postgres().into_iter();
        all.find(|pid| title(*pid).contains(": walreceiver"))
    }

    fn is_living_postgres(&self, pid: i32) -> bool {
        let inside = fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|link| link == self.pid_namespace);
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        inside && stat.contains("(postgres)") && !matches!(state, None | Some('Z' | 'X'))
    }
}
