//! Options of a testbed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::paths::Paths;
use crate::plan::MAX_INSTANCE;
use crate::state::State;

/// Environment variable that selects the instance if nothing else does: a number, or `auto` for one that no other
/// checkout holds.
pub const INSTANCE_VARIABLE: &str = "CDB_TESTBED_INSTANCE";

/// Options of a testbed; [`Options::from_env`] is the usual choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Which of the testbeds on this machine: 0 to [`crate::plan::MAX_INSTANCE`].
    pub instance: u8,
    /// Number of nodes.
    pub nodes: u8,
    /// Kubernetes' timing.
    pub timing: Timing,
    /// The checkout that holds the testbed.
    pub checkout: PathBuf,
}

/// Kubernetes' timing in seconds; `None` keeps Kubernetes' default, so that measurements on the testbed are comparable
/// with a cluster as shipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// Silence after which a node counts as unreachable (Kubernetes: 50).
    pub node_monitor_grace: Option<u32>,
    /// How often the controller manager checks nodes (Kubernetes: 5).
    pub node_monitor_period: Option<u32>,
    /// How often a kubelet computes its status (Kubernetes: 10).
    pub node_status_update: Option<u32>,
    /// How long a node's lease is valid (Kubernetes: 40).
    pub node_lease: Option<u32>,
    /// How long pods stay on an unreachable node (Kubernetes: 300).
    pub unreachable_toleration: Option<u32>,
}

impl Options {
    /// Three nodes with Kubernetes' own timing, held by this checkout, as the
    /// instance that the environment names, else 0.
    ///
    /// # Errors
    /// When the environment names something else than a number or `auto`.
    pub fn from_env() -> Result<Self> {
        Self::named(&std::env::var(INSTANCE_VARIABLE).unwrap_or_else(|_| "0".to_owned()))
    }

    /// The same as the instance called `name`: a number, or `auto` for the one
    /// that this checkout holds, else the first free one.
    ///
    /// # Errors
    /// When `name` is neither, or all instances are held.
    pub fn named(name: &str) -> Result<Self> {
        let checkout = checkout();
        let instance = match name {
            "auto" => own_or_free(&checkout)?,
            number => number
                .parse()
                .with_context(|| format!("{number:?} is no testbed instance: a number, or auto"))?,
        };
        Ok(Self {
            instance,
            nodes: 3,
            timing: Timing::default(),
            checkout,
        })
    }

    /// The same with another instance.
    #[must_use]
    pub fn with_instance(self, instance: u8) -> Self {
        Self { instance, ..self }
    }

    /// The same with other timing.
    #[must_use]
    pub fn with_timing(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// The same with another number of nodes.
    #[must_use]
    pub fn with_nodes(self, nodes: u8) -> Self {
        Self { nodes, ..self }
    }
}

fn own_or_free(checkout: &Path) -> Result<u8> {
    let mut free = None;
    for instance in 0..=MAX_INSTANCE {
        // A record that cannot be read belongs to another version: it is not free.
        let Ok(state) = State::load(&Paths::new(instance)) else {
            continue;
        };
        match state.filter(State::is_alive) {
            Some(state) if state.options.checkout == checkout => return Ok(instance),
            Some(_) => {}
            None => free = free.or(Some(instance)),
        }
    }
    free.context("other checkouts hold all testbed instances; end one there with `cargo xtask testbed down`")
}

/// The checkout that this program was built from.
fn checkout() -> PathBuf {
    let crate_dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).map_or(crate_dir.clone(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_a_number_or_auto() {
        assert_eq!(Options::named("3").unwrap().instance, 3);
        assert!(Options::named("auto").unwrap().instance <= MAX_INSTANCE);
        let error = Options::named("first").unwrap_err();
        assert_eq!(
            error.to_string(),
            r#""first" is no testbed instance: a number, or auto"#
        );
    }
}
