//! Which members may be taken away by a drain: the primary and the replicas each have a budget.

use api::names::{LABEL_ROLE, ROLE_PRIMARY, ROLE_REPLICA};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use machine::cluster::budgets;

use super::Subject;

/// The budget of the primary.
pub fn primary(subject: &Subject<'_>) -> PodDisruptionBudget {
    let stays = budgets::primary_stays(instances(subject));
    budget(subject, subject.names.primary_budget(), ROLE_PRIMARY, stays)
}

/// The budget of the replicas.
pub fn replicas(subject: &Subject<'_>) -> PodDisruptionBudget {
    let stays = budgets::replicas_stay(instances(subject));
    budget(subject, subject.names.cluster().to_owned(), ROLE_REPLICA, stays)
}

fn instances(subject: &Subject<'_>) -> u32 {
    u32::try_from(subject.db.spec.replicas).unwrap_or(0)
}

/// Of the members with this role so many stay. Members that are not healthy may always be evicted: they serve nobody, and a
/// budget that protects them makes a node impossible to drain.
fn budget(subject: &Subject<'_>, name: String, role: &str, stays: u32) -> PodDisruptionBudget {
    let mut selector = subject.selector();
    selector.insert(LABEL_ROLE.to_owned(), role.to_owned());
    PodDisruptionBudget {
        metadata: subject.meta(name),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(i32::try_from(stays).unwrap_or(i32::MAX))),
            selector: Some(LabelSelector {
                match_labels: Some(selector),
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
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::builders::fixture::database;
    use crate::config::Config;

    /// How many of the labelled pods may be evicted while all are healthy, as the disruption controller counts.
    fn evictable(budget: PodDisruptionBudget, pods: i32) -> i32 {
        let Some(IntOrString::Int(stays)) = budget.spec.unwrap().min_available else {
            panic!("of a part of a StatefulSet's pods only minAvailable counts right");
        };
        (pods - stays).max(0)
    }

    #[test]
    fn one_replica_at_a_time_and_a_primary_only_if_it_is_alone() {
        for (instances, of_primary, of_replicas) in [(1, 1, 0), (2, 0, 1), (3, 0, 1), (5, 0, 1), (9, 0, 1)] {
            let db = database(json!({"replicas": instances, "storage": {"data": {"size": "1Gi"}}}));
            let config = Config::default();
            let subject = Subject::new(&db, &config).unwrap();
            let found = (
                evictable(primary(&subject), 1),
                evictable(replicas(&subject), instances - 1),
            );
            assert_eq!(found, (of_primary, of_replicas), "{instances} instances");
        }
    }

    #[test]
    fn no_pod_is_selected_by_both() {
        let db = database(json!({"storage": {"data": {"size": "1Gi"}}}));
        let config = Config::default();
        let subject = Subject::new(&db, &config).unwrap();
        let selects = |budget: PodDisruptionBudget, role: Option<&str>| {
            let mut pod = BTreeMap::from([("clustereddatabase.io/cluster", "db")]);
            pod.extend(role.map(|role| ("clustereddatabase.io/role", role)));
            let wanted = budget.spec.unwrap().selector.unwrap().match_labels.unwrap();
            wanted
                .iter()
                .all(|(key, value)| pod.get(key.as_str()) == Some(&value.as_str()))
        };
        for (role, by_primary, by_replicas) in [
            (Some("primary"), true, false),
            (Some("replica"), false, true),
            (None, false, false),
        ] {
            let found = (selects(primary(&subject), role), selects(replicas(&subject), role));
            assert_eq!(found, (by_primary, by_replicas), "{role:?}");
        }
    }
}
