//! What commits wait for: what `spec.durability` asks for, or else what was chosen before. One place for the operator and the
//! agents.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::ClusteredDatabaseSpec;
use crate::status::DurabilityMode;

/// Number of instances from which on commits wait for standbys by default. With two instances the loss of either would stop
/// all writes.
const SYNCHRONOUS_FROM: usize = 3;

/// What a commit waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WantedDurability {
    /// The mode.
    pub mode: DurabilityMode,
    /// How many standbys; 0 with `Async`.
    #[serde(rename = "synchronousStandbys")]
    pub standbys: usize,
}

impl ClusteredDatabaseSpec {
    /// What commits wait for. What `spec.durability` leaves out is as it was `chosen` before (`status.memo.durability`), so
    /// that no change of `replicas` changes the promise. A new database gets the defaults.
    pub fn wanted_durability(&self, chosen: Option<WantedDurability>) -> WantedDurability {
        let replicas = usize::try_from(self.replicas).unwrap_or(0);
        let by_default = if replicas >= SYNCHRONOUS_FROM {
            DurabilityMode::Required
        } else {
            DurabilityMode::Async
        };
        let mode = self
            .durability
            .mode
            .or(chosen.map(|chosen| chosen.mode))
            .unwrap_or(by_default);
        let asked = self.durability.synchronous_standbys;
        let asked = asked.map(|standbys| usize::try_from(standbys).unwrap_or(usize::MAX));
        let before = chosen.map(|chosen| chosen.standbys).filter(|standbys| *standbys > 0);
        let standbys = match mode {
            DurabilityMode::Async => 0,
            DurabilityMode::Preferred | DurabilityMode::Required => asked.or(before).unwrap_or(replicas / 2),
        };
        WantedDurability { mode, standbys }
    }

    /// [`Self::wanted_durability`], if it is known: `None` if the spec leaves the mode out and nothing was chosen before.
    pub fn known_durability(&self, chosen: Option<WantedDurability>) -> Option<WantedDurability> {
        let is_known = chosen.is_some() || self.durability.mode.is_some();
        is_known.then(|| self.wanted_durability(chosen))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::DurabilityMode::{Async, Preferred, Required};
    use super::*;

    fn of(spec: Value, chosen: Option<(DurabilityMode, usize)>) -> (DurabilityMode, usize) {
        let mut whole = json!({"storage": {"data": {"size": "1Gi"}}});
        let fields = spec.as_object().expect("fields").clone();
        whole.as_object_mut().expect("fields").extend(fields);
        let spec: ClusteredDatabaseSpec = serde_json::from_value(whole).expect("a spec");
        let wanted = spec.wanted_durability(chosen.map(|(mode, standbys)| WantedDurability { mode, standbys }));
        (wanted.mode, wanted.standbys)
    }

    #[test]
    fn from_three_instances_on_a_majority_has_every_commit() {
        let wanted = [
            (Async, 0),
            (Async, 0),
            (Required, 1),
            (Required, 2),
            (Required, 2),
            (Required, 3),
        ];
        for (replicas, wanted) in (1..).zip(wanted) {
            assert_eq!(of(json!({"replicas": replicas}), None), wanted);
        }
        let two = json!({"replicas": 2, "durability": {"mode": "Required"}});
        assert_eq!(of(two, None), (Required, 1));
    }

    #[test]
    fn what_was_chosen_does_not_change_with_the_number_of_instances() {
        for chosen in [(Async, 0), (Preferred, 1), (Required, 2)] {
            for replicas in 1..=9 {
                assert_eq!(of(json!({"replicas": replicas}), Some(chosen)), chosen);
            }
        }
    }

    #[test]
    fn the_spec_comes_before_what_was_chosen() {
        let asked = |mode: &str, standbys: Option<u32>, chosen| {
            let durability = json!({"mode": mode, "synchronousStandbys": standbys});
            of(json!({"replicas": 5, "durability": durability}), Some(chosen))
        };
        assert_eq!(asked("Preferred", Some(3), (Required, 1)), (Preferred, 3));
        assert_eq!(asked("Preferred", None, (Required, 1)), (Preferred, 1));
        assert_eq!(asked("Async", None, (Required, 1)), (Async, 0));
        assert_eq!(asked("Required", None, (Async, 0)), (Required, 2));
    }
}
