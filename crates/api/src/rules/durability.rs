//! Rules about `spec.durability` and `spec.primary`: the promise must be possible with these instances.

use super::Rule;
use crate::ClusteredDatabase;
use crate::names::{MAX_INSTANCES, Names};
use crate::spec::DurabilitySpec;
use crate::status::DurabilityMode;

const NONE: &str = "durability.synchronousStandbys must be at least 1: for commits that wait for no standby, leave it out and set mode Async";
const TOO_MANY: &str = "durability.synchronousStandbys must be less than replicas: lower it, or raise replicas";
const ALONE: &str = "durability.mode must be Async with one instance, which has no standby to wait for: leave it out, or raise replicas";
const MEANINGLESS: &str =
    "durability.synchronousStandbys needs mode Required or Preferred: set the mode, or leave synchronousStandbys out";
const BELOW_THE_PROMISE: &str = "replicas must be more than status.memo.durability.synchronousStandbys, for which commits wait whatever replicas is: keep more instances; or lower the promise as well, by a durability.mode of Async, or a mode with fewer synchronousStandbys";
const NO_INSTANCE: &str = "primary.prefer must name an instance (metadata.name, a dash and a number below replicas)";

pub(super) fn rules() -> Vec<Rule> {
    vec![
        Rule::holds("spec.durability.synchronousStandbys", "self >= 1", NONE, |resource| {
            durability(resource).synchronous_standbys != Some(0)
        }),
        Rule::holds(
            "spec",
            "!has(self.durability.synchronousStandbys) || self.durability.synchronousStandbys < self.replicas",
            TOO_MANY,
            |resource| {
                durability(resource)
                    .synchronous_standbys
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
            "spec.durability",
            "!has(self.synchronousStandbys) || (has(self.mode) && self.mode != 'Async')",
            MEANINGLESS,
            |resource| durability(resource).synchronous_standbys.is_none() || waits(durability(resource).mode),
        ),
        Rule::holds(
            "",
            "!has(self.status) || !has(self.status.memo) || !has(self.status.memo.durability) || has(self.spec.durability.synchronousStandbys) || (has(self.spec.durability.mode) && self.spec.durability.mode == 'Async') || self.status.memo.durability.synchronousStandbys < self.spec.replicas",
            BELOW_THE_PROMISE,
            |resource| {
                let chosen = resource.status.as_ref().and_then(|status| status.memo.durability);
                let DurabilitySpec {
                    mode,
                    synchronous_standbys: asked,
                } = durability(resource);
                let replicas = usize::try_from(resource.spec.replicas).unwrap_or(0);
                asked.is_some() || *mode == Some(DurabilityMode::Async) || chosen.is_none_or(|chosen| chosen.standbys < replicas)
            },
        )
        .about("spec.replicas"),
        Rule::holds(
            "",
            "!has(self.spec.primary.prefer) || [0, 1, 2, 3, 4, 5, 6, 7, 8].exists(number, number < self.spec.replicas && self.spec.primary.prefer == self.metadata.name + ['-0', '-1', '-2', '-3', '-4', '-5', '-6', '-7', '-8'][number])",
            NO_INSTANCE,
            |resource| {
                let names = Names::new(resource.metadata.name.as_deref().unwrap_or_default());
                let instances = u32::try_from(resource.spec.replicas).unwrap_or(0).min(MAX_INSTANCES);
                let prefer = resource.spec.primary.prefer.as_deref();
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
