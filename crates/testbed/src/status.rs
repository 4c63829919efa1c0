//! Reports the state of testbeds.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;

use crate::cluster;
use crate::paths::{self, Paths};
use crate::plan::Plan;
use crate::state::State;

/// The state of one testbed.
#[derive(Clone, Debug)]
pub struct Status {
    /// The instance number.
    pub instance: u8,
    /// The checkout that holds it.
    pub checkout: PathBuf,
    /// How long it has existed.
    pub age: Duration,
    /// False while `up` runs, and after it was killed.
    pub complete: bool,
    /// Started processes that have ended.
    pub dead: Vec<String>,
    /// Whether each node is Ready; `None` when the API server does not answer.
    pub nodes: Option<BTreeMap<String, bool>>,
    plan: Plan,
    paths: Paths,
}

impl Status {
    /// The state of one testbed; `None` if there is none.
    ///
    /// # Errors
    /// When its record cannot be read.
    pub async fn read(instance: u8) -> Result<Option<Self>> {
        let paths = Paths::new(instance);
        let Some(state) = State::load(&paths)? else {
            return Ok(None);
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nodes = match cluster::client(&paths.kubeconfig()).await {
            Ok(client) if state.is_alive() => cluster::node_readiness(&client).await.ok(),
            _ => None,
        };
        Ok(Some(Self {
            instance,
            checkout: state.options.checkout.clone(),
            age: now.saturating_sub(Duration::from_secs(state.since)),
            complete: state.complete,
            dead: state.dead().into_iter().map(str::to_owned).collect(),
            nodes,
            plan: Plan::new(instance, state.options.nodes)?,
            paths,
        }))
    }

    /// True if everything runs and every node is Ready.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.complete && self.dead.is_empty() && self.nodes.as_ref().is_some_and(|nodes| nodes.values().all(|r| *r))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = self.age.as_secs() / 60;
        writeln!(
            f,
            "testbed {}: held by {} for {minutes} min",
            self.instance,
            self.checkout.display()
        )?;
        if !self.complete {
            writeln!(f, "  `up` is under way, or was ended before it finished")?;
        }
        if !self.dead.is_empty() {
            writeln!(f, "  ended: {}", self.dead.join(", "))?;
        }
        match &self.nodes {
            None => writeln!(f, "  API server: no answer")?,
            Some(nodes) => {
                for (name, ready) in nodes {
                    let address = self.plan.node_number(name).map(|n| self.plan.node(n).to_string());
                    let ready = if *ready { "Ready" } else { "not Ready" };
                    writeln!(f, "  node {name}: {ready} ({})", address.unwrap_or_default())?;
                }
            }
        }
        writeln!(f, "  API server: {}", self.plan.api_url())?;
        writeln!(f, "  kubeconfig: {}", self.paths.kubeconfig().display())?;
        writeln!(f, "  logs:       {}", self.paths.logs().display())?;
        writeln!(f, "  audit log:  {}", self.paths.audit_log().display())?;
        writeln!(f, "  volumes:    {}", self.paths.volumes().display())?;
        write!(f, "  cache:      {} (survives down)", paths::cache_root().display())
    }
}
