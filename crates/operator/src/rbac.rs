//! What the operator may do in a cluster, rule by rule, each with its reason. The manifest is made from this.

use std::fmt::Write;

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The API group; empty for the core one.
    pub group: &'static str,
    /// The resource, with its subresource.
    pub resource: &'static str,
    /// What may be done to it.
    pub verbs: &'static [&'static str],
    /// What for.
    pub why: &'static str,
}

/// Everything that the operator may do. Nobody may grant what he does not hold himself (Kubernetes refuses a Role that
/// does): what the agents' Role grants is therefore in here too, whether the operator uses it or not.
pub const RULES: &[Rule] = &[
    Rule {
        group: api::GROUP,
        resource: "clustereddatabases",
        verbs: &["get", "list", "watch", "patch"],
        why: "watch them, read one again before something irreversible, set and remove the finalizer; agents read their own",
    },
    Rule {
        group: api::GROUP,
        resource: "clustereddatabases/status",
        verbs: &["update"],
        why: "write phase, intent and memory",
    },
    Rule {
        group: api::GROUP,
        resource: "clustereddatabases/finalizers",
        verbs: &["update"],
        why: "own objects with blockOwnerDeletion where that is enforced (OwnerReferencesPermissionEnforcement)",
    },
    Rule {
        group: "",
        resource: "serviceaccounts",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "the agents' identity",
    },
    Rule {
        group: "",
        resource: "secrets",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "make authority, certificate and credentials once; read the authority to sign, and a user's passwordSecret; \
              watch metadata of labelled ones only; patch their labels and owners",
    },
    Rule {
        group: "",
        resource: "services",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "-pods, -rw, -ro, -r",
    },
    Rule {
        group: "",
        resource: "pods",
        verbs: &["list", "watch", "patch", "delete"],
        why: "see the members, label their role, replace them one at a time",
    },
    Rule {
        group: "",
        resource: "persistentvolumeclaims",
        verbs: &["list", "watch", "patch", "delete"],
        why: "see the members' volumes, grow them, delete them where volumePolicy says so",
    },
    Rule {
        group: "",
        resource: "namespaces",
        verbs: &["get"],
        why: "not hold up the deletion of a namespace",
    },
    Rule {
        group: "",
        resource: "events",
        verbs: &["list"],
        why: "a StatefulSet says only by events why it makes no pod (quota, admission)",
    },
    Rule {
        group: "apps",
        resource: "statefulsets",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "the members' pods; deleted, with its pods orphaned, where its claim templates must change, and at the end",
    },
    Rule {
        group: "policy",
        resource: "poddisruptionbudgets",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "one voluntary disruption at a time",
    },
    Rule {
        group: "coordination.k8s.io",
        resource: "leases",
        verbs: &["get", "list", "watch", "create", "update", "patch"],
        why: "make each database's Lease once and read it; the operators' own election; agents write their own",
    },
    Rule {
        group: "discovery.k8s.io",
        resource: "endpointslices",
        verbs: &["get", "list", "watch", "create", "update", "patch"],
        why: "make the slice of -rw once, empty; agents write their own",
    },
    Rule {
        group: "rbac.authorization.k8s.io",
        resource: "roles",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "what a database's agents may do",
    },
    Rule {
        group: "rbac.authorization.k8s.io",
        resource: "rolebindings",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "give it to their ServiceAccount",
    },
    Rule {
        group: "storage.k8s.io",
        resource: "storageclasses",
        verbs: &["list", "watch"],
        why: "say that a class is missing, and whether volumes can grow",
    },
    Rule {
        group: "events.k8s.io",
        resource: "events",
        verbs: &["create"],
        why: "one event for each change of phase",
    },
];

/// The manifest of the ClusterRole, with the reasons as comments.
pub fn manifest() -> String {
    let mut yaml = String::from(
        "# Made from crates/operator/src/rbac.rs: UPDATE_MANIFESTS=1 cargo test -p operator --test manifests\n\
         apiVersion: rbac.authorization.k8s.io/v1\n\
         kind: ClusterRole\n\
         metadata:\n  name: clustereddatabase-operator\n  labels:\n    \
         app.kubernetes.io/name: clustereddatabase-operator\n\
         rules:\n",
    );
    for Rule {
        group,
        resource,
        verbs,
        why,
    } in RULES
    {
        // Writing to a String cannot fail.
        let _ = write!(
            yaml,
            "  # {why}\n  - apiGroups: [\"{group}\"]\n    resources: [\"{resource}\"]\n    verbs: [{}]\n",
            verbs.join(", ")
        );
    }
    yaml
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::fixture::smallest;
    use crate::builders::{Subject, role};
    use crate::config::Config;

    fn holds(group: &str, resource: &str, verb: &str) -> bool {
        RULES
            .iter()
            .any(|rule| rule.group == group && rule.resource == resource && rule.verbs.contains(&verb))
    }

    #[test]
    fn every_rule_has_a_reason_and_none_is_wider_than_it_says() {
        for rule in RULES {
            assert!(rule.why.len() > 10, "{rule:?}");
            assert!(!rule.verbs.is_empty());
            let wide = ["*", "bind", "escalate", "impersonate", "deletecollection"];
            assert!(rule.verbs.iter().all(|verb| !wide.contains(verb)), "{rule:?}");
            assert!(
                !rule.resource.contains('*') && !rule.resource.contains("exec"),
                "{rule:?}"
            );
            let again = RULES
                .iter()
                .filter(|other| other.group == rule.group && other.resource == rule.resource);
            assert_eq!(again.count(), 1, "one rule a resource");
        }
    }

    #[test]
    fn the_operator_holds_what_it_grants_to_agents() {
        let (db, config) = (smallest(), Config::default());
        for rule in role::role(&Subject::new(&db, &config).unwrap()).rules.unwrap() {
            let (groups, resources) = (rule.api_groups.unwrap(), rule.resources.unwrap());
            for verb in &rule.verbs {
                assert!(holds(&groups[0], &resources[0], verb), "{verb} {resources:?}");
            }
        }
    }
}
