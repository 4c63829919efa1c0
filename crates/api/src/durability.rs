//! What `spec.durability` asks for, with its defaults: one place for the operator and the agents.

use crate::spec::ClusteredDatabaseSpec;
use crate::status::DurabilityMode;

/// From so many instances on, commits wait for standbys unless the spec says otherwise: with two, the loss of either
/// would stop all writes.
pub const SYNCHRONOUS_FROM: usize = 3;

/// What a commit is to wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedDurability {
    /// The mode.
    pub mode: DurabilityMode,
    /// How many standbys; 0 with `Async`.
    pub standbys: usize,
}

impl ClusteredDatabaseSpec {
    /// `spec.durability` with its defaults. A commit cannot wait for more standbys than there are to be.
    pub fn wanted_durability(&self) -> WantedDurability {
        let replicas = usize::try_from(self.replicas).unwrap_or(0);
        let mode = self.durability.mode.unwrap_or(if replicas >= SYNCHRONOUS_FROM {
            DurabilityMode::Required
        } else {
            DurabilityMode::Async
        });
        let half = replicas / 2;
        let asked = self
            .durability
            .standbys
            .map_or(half, |standbys| usize::try_from(standbys).unwrap_or(usize::MAX));
        let standbys = match mode {
            DurabilityMode::Async => 0,
            DurabilityMode::Preferred | DurabilityMode::Required => asked.min(replicas.saturating_sub(1)),
        };
        WantedDurability { mode, standbys }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(spec: Value) -> (DurabilityMode, usize) {
        let mut whole = json!({"storage": {"size": "1Gi"}});
        let fields = spec.as_object().expect("fields").clone();
        whole.as_object_mut().expect("fields").extend(fields);
        let spec: ClusteredDatabaseSpec = serde_json::from_value(whole).expect("a spec");
        let wanted = spec.wanted_durability();
        (wanted.mode, wanted.standbys)
    }

    #[test]
    fn from_three_instances_on_a_majority_has_every_commit() {
        use DurabilityMode::{Async, Required};
        let wanted = [
            (Async, 0),
            (Async, 0),
            (Required, 1),
            (Required, 2),
            (Required, 2),
            (Required, 3),
        ];
        for (replicas, wanted) in (1..).zip(wanted) {
            assert_eq!(of(json!({"replicas": replicas})), wanted);
        }
    }

    #[test]
    fn what_is_asked_for_is_bounded_by_the_instances() {
        let asked =
            |mode: &str, standbys: u32| of(json!({"replicas": 3, "durability": {"mode": mode, "standbys": standbys}}));
        assert_eq!(asked("Preferred", 7), (DurabilityMode::Preferred, 2));
        assert_eq!(asked("Async", 1), (DurabilityMode::Async, 0));
        assert_eq!(
            of(json!({"replicas": 2, "durability": {"mode": "Required"}})),
            (DurabilityMode::Required, 1)
        );
    }
}
