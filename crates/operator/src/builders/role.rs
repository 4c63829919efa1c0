//! What a database's agents may do: read their own resource and what its users declare, write their own Lease and
//! EndpointSlice, and tell what became of users and databases.

use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject as Grantee};

use super::Subject;

/// The agents' Role. Every rule names its object: an agent can touch nothing of another database.
pub fn role(subject: &Subject<'_>) -> Role {
    let names = &subject.names;
    // A list or watch restricted by resourceNames is allowed when the request has the field selector
    // `metadata.name=<name>`.
    let read = ["get", "list", "watch"].as_slice();
    let write = ["get", "list", "watch", "update", "patch"].as_slice();
    Role {
        metadata: subject.meta(names.cluster().to_owned()),
        rules: Some(vec![
            rule(api::GROUP, "clustereddatabases", names.cluster().to_owned(), read),
            rule("coordination.k8s.io", "leases", names.lease(), write),
            rule("discovery.k8s.io", "endpointslices", names.rw(), write),
            rule("", "secrets", names.access(), read),
            rule("", "configmaps", names.access(), &["get", "patch"]),
        ]),
    }
}

/// Gives the agents' Role to the agents' ServiceAccount.
pub fn role_binding(subject: &Subject<'_>) -> RoleBinding {
    let name = subject.names.cluster().to_owned();
    RoleBinding {
        metadata: subject.meta(name.clone()),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "Role".to_owned(),
            name: name.clone(),
        },
        subjects: Some(vec![Grantee {
            kind: "ServiceAccount".to_owned(),
            name,
            namespace: Some(subject.namespace.clone()),
            api_group: None,
        }]),
    }
}

fn rule(group: &str, resource: &str, name: String, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: Some(vec![name]),
        verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
        ..PolicyRule::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::fixture::smallest;
    use crate::config::Config;

    #[test]
    fn agents_may_touch_five_named_objects_and_nothing_else() {
        let (db, config) = (smallest(), Config::default());
        let subject = Subject::new(&db, &config).unwrap();
        let rules = role(&subject).rules.unwrap();
        let granted: Vec<_> = rules
            .iter()
            .map(|rule| {
                (
                    rule.resources.as_ref().unwrap()[0].as_str(),
                    rule.resource_names.as_ref().unwrap().join(","),
                )
            })
            .collect();
        assert_eq!(
            granted,
            [
                ("clustereddatabases", "db".to_owned()),
                ("leases", "db".to_owned()),
                ("endpointslices", "db-rw".to_owned()),
                ("secrets", "db-access".to_owned()),
                ("configmaps", "db-access".to_owned())
            ]
        );
        let forbidden = ["create", "delete", "deletecollection", "*"];
        assert!(
            rules
                .iter()
                .flat_map(|rule| &rule.verbs)
                .all(|verb| !forbidden.contains(&verb.as_str()))
        );
        for read_only in [&rules[0], &rules[3]] {
            assert!(
                !read_only.verbs.iter().any(|verb| verb == "update" || verb == "patch"),
                "{read_only:?}"
            );
        }
        let binding = role_binding(&subject);
        assert_eq!(binding.role_ref.name, "db");
        assert_eq!(binding.subjects.unwrap()[0].namespace.as_deref(), Some("ns"));
    }
}
