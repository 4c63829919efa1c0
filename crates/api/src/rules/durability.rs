//! Rules about `spec.durability` and `spec.primary`: what is promised must be possible with these instances.

use super::Rule;
use crate::ClusteredDatabase;
use crate::durability::SYNCHRONOUS_FROM;
use crate::names::{MAX_INSTANCES, Names};
use crate::spec::DurabilitySpec;
use crate::status::DurabilityMode;

const NONE: &str =
    "durability.standbys must be at least 1: for commits that wait for no standby, leave it out and set mode Async";
const TOO_MANY: &str = "durability.standbys must be less than replicas: lower it, or raise replicas";
const ALONE: &str = "durability.mode must be Async with one instance, which has no standby to wait for: leave it out, or raise replicas";
const MEANINGLESS: &str = "durability.standbys needs mode Required or Preferred, and Async is the default below three instances: set the mode, or leave standbys out";
const NO_INSTANCE: &str =
    "primary.prefer must name an instance (metadata.name, a dash and a number below replicas) or be Any";

pub(super) fn rules() -> Vec<Rule> {
    vec![
        Rule::holds("spec.durability.standbys", "self >= 1", NONE, |resource| {
            durability(resource).standbys != Some(0)
        }),
        Rule::holds(
            "spec",
            "!has(self.durability.standbys) || self.durability.standbys < self.replicas",
            TOO_MANY,
            |resource| {
                durability(resource)
                    .standbys
                    .is_none_or(|standbys| i64::from(standbys) < i64::from(resource.spec.replicas))
            },
        ),
        Rule::holds(
            "spec",
            "!has(self.durability.mode) || self.durability.mode == 'Async' || self.replicas != 1",
            ALONE,
            |resource| !waits(durability(resource).mode) || resource.spec.replicas != 1,
        ),
        Rule::holds(
            "spec",
            format!(
                "!has(self.durability.standbys) || (has(self.durability.mode) ? self.durability.mode != 'Async' : self.replicas >= {SYNCHRONOUS_FROM})"
            ),
            MEANINGLESS,
            |resource| {
                let DurabilitySpec { mode, standbys } = durability(resource);
                let by_default = usize::try_from(resource.spec.replicas).unwrap_or(0) >= SYNCHRONOUS_FROM;
                standbys.is_none() || if mode.is_some() { waits(*mode) } else { by_default }
            },
        ),
        Rule::holds(
            "",
            "!has(self.spec.primary.prefer) || self.spec.primary.prefer == 'Any' || [0, 1, 2, 3, 4, 5, 6, 7, 8].exists(number, number < self.spec.replicas && self.spec.primary.prefer == self.metadata.name + ['-0', '-1', '-2', '-3', '-4', '-5', '-6', '-7', '-8'][number])",
            NO_INSTANCE,
            |resource| {
                let names = Names::new(resource.metadata.name.as_deref().unwrap_or_default());
                let instances = u32::try_from(resource.spec.replicas).unwrap_or(0).min(MAX_INSTANCES);
                let prefer = resource.spec.primary.preferred();
                prefer.is_none_or(|prefer| (0..instances).any(|number| names.pod(number) == prefer))
            },
        )
        .about("spec.primary.prefer"),
    ]
}

fn durability(resource: &ClusteredDatabase) -> &DurabilitySpec {
    &resource.spec.durability
}

fn waits(mode: Option<DurabilityMode>) -> bool {
    mode.is_some_and(|mode| mode != DurabilityMode::Async)
}
