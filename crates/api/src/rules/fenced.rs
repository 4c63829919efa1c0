//! The rule about `spec.fenced`: each name is one of an instance, and occurs once. So there are nine names at most.

use std::collections::BTreeSet;

use super::Rule;
use crate::names::{MAX_INSTANCES, Names};

const NO_INSTANCE: &str = "fenced must name instances, each once: metadata.name, a dash and a number below replicas";

pub(super) fn rules() -> Vec<Rule> {
    // An API server bounds the cost of a rule beforehand: so the instances are counted, not the texts compared one by one.
    vec![
        Rule::holds(
            "",
            "!has(self.spec.fenced) || self.spec.fenced.size() == [0, 1, 2, 3, 4, 5, 6, 7, 8].filter(number, number < self.spec.replicas && (self.metadata.name + ['-0', '-1', '-2', '-3', '-4', '-5', '-6', '-7', '-8'][number]) in self.spec.fenced).size()",
            NO_INSTANCE,
            |resource| {
                let names = Names::new(resource.metadata.name.as_deref().unwrap_or_default());
                let instances = u32::try_from(resource.spec.replicas).unwrap_or(0).min(MAX_INSTANCES);
                let instances: BTreeSet<String> = (0..instances).map(|number| names.pod(number)).collect();
                let fenced: BTreeSet<String> = resource.spec.fenced.iter().cloned().collect();
                fenced.len() == resource.spec.fenced.len() && fenced.is_subset(&instances)
            },
        )
        .about("spec.fenced"),
    ]
}
