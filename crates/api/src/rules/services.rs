//! Rules about `spec.services`.

use super::{Rule, text};
use crate::ClusteredDatabase;
use crate::spec::{ServiceTemplate, ServiceType};

const MAX_RANGES: usize = 32;

type Template = fn(&ClusteredDatabase) -> &ServiceTemplate;

const TEMPLATES: [(&str, &str, &str, Template); 3] = [
    (
        "spec.services.readWrite",
        "spec.services.readWrite.loadBalancerClass",
        "spec.services.readWrite.loadBalancerSourceRanges",
        |resource| &resource.spec.services.read_write,
    ),
    (
        "spec.services.readOnly",
        "spec.services.readOnly.loadBalancerClass",
        "spec.services.readOnly.loadBalancerSourceRanges",
        |resource| &resource.spec.services.read_only,
    ),
    (
        "spec.services.read",
        "spec.services.read.loadBalancerClass",
        "spec.services.read.loadBalancerSourceRanges",
        |resource| &resource.spec.services.read,
    ),
];

pub(super) fn rules() -> Vec<Rule> {
    let of_template = |(at, class, ranges, template): (&'static str, &'static str, &'static str, Template)| {
        let name = at.trim_start_matches("spec.");
        [
            Rule::holds(
                at,
                "self.type == 'LoadBalancer' || !(has(self.loadBalancerClass) || has(self.loadBalancerSourceRanges))",
                format!(
                    "{name}: loadBalancerClass and loadBalancerSourceRanges need the type LoadBalancer: set it, or remove them"
                ),
                move |resource| {
                    let template = template(resource);
                    let unset =
                        template.load_balancer_class.is_none() && template.load_balancer_source_ranges.is_empty();
                    template.kind == ServiceType::LoadBalancer || unset
                },
            ),
            Rule::holds(
                class,
                format!("size(self) <= {} && self.matches('{}')", text::MAX_KEY, text::KEY),
                format!("{name}.loadBalancerClass must be a name such as example.com/internal: correct it"),
                move |resource| {
                    template(resource)
                        .load_balancer_class
                        .as_deref()
                        .is_none_or(text::is_key)
                },
            ),
            Rule::may_become(
                at,
                "self.type != 'LoadBalancer' || oldSelf.type != 'LoadBalancer' || (has(self.loadBalancerClass) == has(oldSelf.loadBalancerClass) && (!has(self.loadBalancerClass) || self.loadBalancerClass == oldSelf.loadBalancerClass))",
                format!(
                    "{name}.loadBalancerClass cannot be changed while the type is LoadBalancer: set the type to ClusterIP first"
                ),
                move |old, new| {
                    let (old, new) = (template(old), template(new));
                    let balanced = |template: &ServiceTemplate| template.kind == ServiceType::LoadBalancer;
                    !balanced(old) || !balanced(new) || old.load_balancer_class == new.load_balancer_class
                },
            ),
            Rule::holds(
                ranges,
                format!("size(self) <= {MAX_RANGES} && self.all(range, isCIDR(range))"),
                format!(
                    "{name}.loadBalancerSourceRanges must hold at most {MAX_RANGES} ranges such as 10.0.0.0/8: correct them"
                ),
                move |resource| {
                    let ranges = &template(resource).load_balancer_source_ranges;
                    ranges.len() <= MAX_RANGES && ranges.iter().all(|range| text::is_cidr(range))
                },
            ),
        ]
    };
    TEMPLATES.into_iter().flat_map(of_template).collect()
}
