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
    /// Where it is needed.
    pub scope: Scope,
}

/// Where a right is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In every namespace that is looked after: an operator for one namespace gets it by a Role.
    Namespace,
    /// On the whole cluster. An operator for one namespace can do without, and then says less.
    Cluster,
}

/// Everything that the operator may do. Nobody may grant what he does not hold himself (Kubernetes refuses a Role that
/// does): what the agents' Role grants is therefore in here too, whether the operator uses it or not.
pub const RULES: &[Rule] = &[
    Rule {
        group: api::GROUP,
        resource: "clustereddatabases",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "watch them, read one again before something irreversible, set and remove the finalizer; agents read their own; \
              make and remove those of drills",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "clustereddatabases/status",
        verbs: &["update"],
        why: "write phase, intent and memory",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "clustereddatabaseoperations",
        verbs: &["get", "list", "watch"],
        why: "know what is asked for",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "clustereddatabaseoperations/status",
        verbs: &["update"],
        why: "write what came of them",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "databasebackups",
        verbs: &["get", "list", "watch", "create"],
        why: "know which backups are to be taken, and make those of schedules",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "databasebackups/status",
        verbs: &["update"],
        why: "write how far they are",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "databaseusers",
        verbs: &["get", "list", "watch", "patch"],
        why: "know which users are declared, set and remove the finalizer",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "databaseusers/status",
        verbs: &["update"],
        why: "write how far they are",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "databaseusers/finalizers",
        verbs: &["update"],
        why: "own the Secret with a user's password with blockOwnerDeletion where that is enforced",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "databases",
        verbs: &["get", "list", "watch", "patch"],
        why: "know which databases are declared, read one again before it is dropped, set and remove the finalizer",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "databases/status",
        verbs: &["update"],
        why: "write how far they are",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "poolers",
        verbs: &["get", "list", "watch", "patch"],
        why: "know which poolers there are to be, set and remove the finalizer; their pods read their own",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "poolers/status",
        verbs: &["update"],
        why: "write how far they are",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "poolers/finalizers",
        verbs: &["update"],
        why: "own a pooler's objects with blockOwnerDeletion where that is enforced",
        scope: Scope::Namespace,
    },
    Rule {
        group: api::GROUP,
        resource: "clustereddatabases/finalizers",
        verbs: &["update"],
        why: "own objects with blockOwnerDeletion where that is enforced (OwnerReferencesPermissionEnforcement)",
        scope: Scope::Namespace,
    },
    Rule {
        group: "",
        resource: "serviceaccounts",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "the agents' identity",
        scope: Scope::Namespace,
    },
    Rule {
        group: "",
        resource: "secrets",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "make authority, certificate and credentials once; read the authority to sign, and a user's passwordSecretRef; \
              watch metadata of labelled ones only; patch their labels and owners; delete those of a database that is \
              deleted with its volumes",
        scope: Scope::Namespace,
    },
    Rule {
        group: "",
        resource: "configmaps",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "make the one in which a primary tells what became of users and databases, and read it; agents write their own",
        scope: Scope::Namespace,
    },
    Rule {
        group: "",
        resource: "services",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "-pods, -rw, -ro, -r",
        scope: Scope::Namespace,
    },
    Rule {
        group: "",
        resource: "pods",
        verbs: &["list", "watch", "patch", "delete"],
        why: "see the members, label their role, replace them one at a time",
        scope: Scope::Namespace,
    },
    Rule {
        group: "",
        resource: "pods/resize",
        verbs: &["patch"],
        why: "change cpu and memory of a running pod in place; without it, or before Kubernetes 1.33, pods are replaced",
        scope: Scope::Namespace,
    },
    Rule {
        group: "",
        resource: "persistentvolumeclaims",
        verbs: &["list", "watch", "create", "patch", "delete"],
        why: "see the members' volumes, make those for WAL that are added later and those from VolumeSnapshots, grow them, delete them where storage.retentionPolicy says so",
        scope: Scope::Namespace,
    },
    Rule {
        group: "",
        resource: "namespaces",
        verbs: &["get"],
        why: "not hold up the deletion of a namespace",
        scope: Scope::Namespace,
    },
    Rule {
        group: "",
        resource: "events",
        verbs: &["list"],
        why: "a StatefulSet says only by events why it makes no pod (quota, admission), and a kubelet why it starts none (volumes)",
        scope: Scope::Namespace,
    },
    Rule {
        group: "apps",
        resource: "statefulsets",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "the members' pods; deleted, with its pods orphaned, where its claim templates must change, and at the end",
        scope: Scope::Namespace,
    },
    Rule {
        group: "apps",
        resource: "deployments",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "the pods of poolers",
        scope: Scope::Namespace,
    },
    Rule {
        group: "policy",
        resource: "poddisruptionbudgets",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "no eviction of a primary that can be moved, and one of a replica at a time",
        scope: Scope::Namespace,
    },
    Rule {
        group: "networking.k8s.io",
        resource: "networkpolicies",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "who may connect to the pods, where spec.networkPolicy asks for it; deleted when it asks no more",
        scope: Scope::Namespace,
    },
    Rule {
        group: "coordination.k8s.io",
        resource: "leases",
        verbs: &["get", "list", "watch", "create", "update", "patch", "delete"],
        why: "make each database's Lease once and read it, and delete it with the volumes; the operators' own election; agents \
              write their own",
        scope: Scope::Namespace,
    },
    Rule {
        group: "discovery.k8s.io",
        resource: "endpointslices",
        verbs: &["get", "list", "watch", "create", "update", "patch"],
        why: "make the slice of -rw once, empty; agents write their own",
        scope: Scope::Namespace,
    },
    Rule {
        group: "rbac.authorization.k8s.io",
        resource: "roles",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "what a database's agents may do",
        scope: Scope::Namespace,
    },
    Rule {
        group: "rbac.authorization.k8s.io",
        resource: "rolebindings",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "give it to their ServiceAccount; deleted where it names another role, which cannot be changed",
        scope: Scope::Namespace,
    },
    Rule {
        group: "snapshot.storage.k8s.io",
        resource: "volumesnapshots",
        verbs: &["get", "create", "delete"],
        why: "make those of backups of kind Snapshot and see how far they are; delete those that no backup needs",
        scope: Scope::Namespace,
    },
    Rule {
        group: "storage.k8s.io",
        resource: "storageclasses",
        verbs: &["list", "watch"],
        why: "say that a class is missing, and whether volumes can grow",
        scope: Scope::Cluster,
    },
    Rule {
        group: "",
        resource: "nodes",
        verbs: &["list", "watch"],
        why: "move a primary away from a node that is being drained; name, spec.unschedulable and taints are kept",
        scope: Scope::Cluster,
    },
    Rule {
        group: "events.k8s.io",
        resource: "events",
        verbs: &["create"],
        why: "one event for each change of phase",
        scope: Scope::Namespace,
    },
];

/// Name of every object of the installation.
const NAME: &str = "clustereddatabase-operator";

/// The manifest of the ClusterRole, with the reasons as comments.
pub fn manifest() -> String {
    role("ClusterRole", NAME, None, RULES.iter())
}

/// The manifest of the Role for an operator that looks after `namespace` alone.
pub fn namespaced_manifest(namespace: &str) -> String {
    let rules = RULES.iter().filter(|rule| rule.scope == Scope::Namespace);
    role("Role", NAME, Some(namespace), rules)
}

/// The manifest of a ClusterRole with what such an operator can do without.
pub fn optional_manifest() -> String {
    let rules = RULES.iter().filter(|rule| rule.scope == Scope::Cluster);
    role("ClusterRole", &format!("{NAME}-optional"), None, rules)
}

/// What users of databases may do, by the role of Kubernetes to which it is added: who has `edit` or `admin` in a namespace has
/// that of `view` there, too.
pub const USERS: [(&str, &[&str], &[&str]); 2] = [
    (
        "view",
        &[
            "clustereddatabases",
            "clustereddatabaseoperations",
            "databasebackups",
            "databaseusers",
            "databases",
            "poolers",
        ],
        &["get", "list", "watch"],
    ),
    (
        "edit",
        &[
            "clustereddatabases",
            "clustereddatabases/scale",
            "clustereddatabaseoperations",
            "databasebackups",
            "databaseusers",
            "databases",
            "poolers",
            "poolers/scale",
        ],
        &["create", "update", "patch", "delete", "deletecollection"],
    ),
];

/// The manifest of the ClusterRoles that are added to the ones of Kubernetes.
pub fn users_manifest() -> String {
    let role = |(to, resources, verbs): (&str, &[&str], &[&str])| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\n\
             kind: ClusterRole\n\
             metadata:\n  name: clustereddatabase-{to}\n  labels:\n    \
             app.kubernetes.io/name: clustereddatabase-operator\n    \
             rbac.authorization.k8s.io/aggregate-to-{to}: \"true\"\n\
             rules:\n  - apiGroups: [\"{}\"]\n    resources: [{}]\n    verbs: [{}]\n",
            api::GROUP,
            resources.join(", "),
            verbs.join(", ")
        )
    };
    let head = "# Who may look at everything in a namespace (`view`) or change it (`edit`, `admin`) may do so with databases and\n\
                # all that belongs to them, too. Made from crates/operator/src/rbac.rs\n";
    head.to_owned() + &USERS.map(role).join("---\n")
}

fn role(kind: &str, name: &str, namespace: Option<&str>, rules: impl Iterator<Item = &'static Rule>) -> String {
    let namespace = namespace.map_or(String::new(), |namespace| format!("  namespace: {namespace}\n"));
    let mut yaml = format!(
        "# Made from crates/operator/src/rbac.rs: UPDATE_MANIFESTS=1 cargo test -p operator --test manifests\n\
         apiVersion: rbac.authorization.k8s.io/v1\n\
         kind: {kind}\n\
         metadata:\n  name: {name}\n{namespace}  labels:\n    \
         app.kubernetes.io/name: clustereddatabase-operator\n\
         rules:\n"
    );
    for Rule {
        group,
        resource,
        verbs,
        why,
        scope: _,
    } in rules
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

    /// Kubernetes ignores a rule of a Role about a resource that is in no namespace, except for the namespace itself.
    #[test]
    fn nothing_that_is_needed_in_one_namespace_is_a_resource_of_the_cluster() {
        let of_the_cluster: Vec<_> = RULES
            .iter()
            .filter(|rule| rule.scope == Scope::Cluster)
            .map(|rule| rule.resource)
            .collect();
        assert_eq!(of_the_cluster, ["storageclasses", "nodes"]);
        let known = [
            "nodes",
            "persistentvolumes",
            "clusterroles",
            "customresourcedefinitions",
            "storageclasses",
        ];
        let needed = RULES.iter().filter(|rule| rule.scope == Scope::Namespace);
        assert!(needed.clone().all(|rule| !known.contains(&rule.resource)));
        assert!(
            needed
                .filter(|rule| rule.resource == "namespaces")
                .all(|rule| rule.verbs == ["get"]),
            "a Role grants nothing but `get` of its own namespace"
        );
    }

    /// What the operator watches it may list and watch; of a kind with a machine it may write the status.
    #[test]
    fn everything_that_is_watched_may_be_watched() {
        let plural = |kind: &str| {
            let name = kind.to_lowercase();
            match (name.strip_suffix('y'), name.ends_with('s')) {
                (Some(stem), _) => format!("{stem}ies"),
                (None, true) => name + "es",
                (None, false) => name + "s",
            }
        };
        let may = |resource: &str, verb: &str| {
            let mut rules = RULES.iter().filter(|rule| rule.resource == resource);
            rules.any(|rule| rule.verbs.contains(&verb))
        };
        for kind in crate::caches::Caches::default().health().iter().map(|cache| cache.kind) {
            for verb in ["list", "watch"] {
                assert!(may(&plural(kind), verb), "the operator may not {verb} {kind}");
            }
            if kind.starts_with("ClusteredDatabase") {
                let status = format!("{}/status", plural(kind));
                assert!(["update", "patch"].iter().any(|verb| may(&status, verb)), "{status}");
            }
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
