//! Rules about `spec.fenced`: who is named there is an instance, and once. So there are nine names at most.

use std::collections::BTreeSet;

use super::Rule;
use crate::names::Names;

const NO_INSTANCE: &str = "fenced must name instances: metadata.name, a dash and a number below replicas";
const TWICE: &str = "fenced must name each instance once: remove the repetition";

pub(super) fn rules() -> Vec<Rule> {
    vec![
        Rule::holds(
            "",
            "!has(self.spec.fenced) || self.spec.fenced.all(pod, [0, 1, 2, 3, 4, 5, 6, 7, 8].exists(number, number < self.spec.replicas && pod == self.metadata.name + ['-0', '-1', '-2', '-3', '-4', '-5', '-6', '-7', '-8'][number]))",
            NO_INSTANCE,
            |resource| {
                let names = Names::new(resource.metadata.name.as_deref().unwrap_or_default());
                let instances = u32::try_from(resource.spec.replicas.min(9)).unwrap_or(0);
                let is_instance = |pod: &String| (0..instances).any(|number| names.pod(number) == *pod);
                resource.spec.fenced.iter().all(is_instance)
            },
        ),
        Rule::holds(
            "spec.fenced",
            "self.all(pod, self.exists_one(other, other == pod))",
            TWICE,
            |resource| {
                let fenced = &resource.spec.fenced;
                fenced.iter().collect::<BTreeSet<_>>().len() == fenced.len()
            },
        ),
    ]
}
