//! How many members may be taken away at once by a drain.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Subject;

/// At most one member at a time. Members that are not healthy may always be evicted: they serve nobody, and a budget
/// that protects them makes a node impossible to drain. A database of one instance can be drained too: it is then
/// away until its pod runs elsewhere.
pub fn budget(subject: &Subject<'_>) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: subject.meta(subject.names.cluster().to_owned()),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(subject.selector()),
                match_expressions: None,
            }),
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::fixture::smallest;
    use crate::config::Config;

    #[test]
    fn one_at_a_time() {
        let (db, config) = (smallest(), Config::default());
        let spec = budget(&Subject::new(&db, &config).unwrap()).spec.unwrap();
        assert_eq!(spec.max_unavailable, Some(IntOrString::Int(1)));
        assert_eq!(
            spec.selector.unwrap().match_labels.unwrap()["clustereddatabase.io/cluster"],
            "db"
        );
    }
}
