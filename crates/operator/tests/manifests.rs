//! The checked-in manifests: the ClusterRole is what `operator::rbac` says, and `install.yaml` is all of the files that the
//! kustomization names. `UPDATE_MANIFESTS=1` writes both anew.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::fs;
use std::path::{Path, PathBuf};

use operator::rbac;
use serde_json::Value;

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests")
}

fn read(name: &str) -> String {
    let path = manifests().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}

fn parse(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap()
}

/// Compares with the file, or writes it when asked to.
fn check(name: &str, wanted: &str) {
    if std::env::var_os("UPDATE_MANIFESTS").is_some() {
        fs::write(manifests().join(name), wanted).unwrap();
    }
    let hint = "UPDATE_MANIFESTS=1 cargo test -p operator --test manifests";
    assert!(read(name) == wanted, "manifests/{name} is out of date: run {hint}");
}

fn install() -> String {
    let kustomization = parse(&read("kustomization.yaml"));
    let files = kustomization["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file.as_str().unwrap());
    let mut yaml =
        String::from("# All of manifests/ in one file: kubectl apply --server-side -f manifests/install.yaml\n");
    for file in files {
        // The file that is made from the table is made here too, so that one run with UPDATE_MANIFESTS brings both up to date.
        let text = match file {
            "base/cluster-role.yaml" => rbac::manifest(),
            "base/user-roles.yaml" => rbac::users_manifest(),
            file => read(file),
        };
        yaml.push_str("---\n");
        yaml.push_str(text.trim_start_matches("---\n").trim_end());
        yaml.push('\n');
    }
    yaml
}

#[test]
fn the_cluster_role_is_the_table() {
    check("base/cluster-role.yaml", &rbac::manifest());
    // And not only as text: what an API server reads out of it.
    let role = parse(&rbac::manifest());
    let rules = role["rules"].as_array().unwrap();
    assert_eq!(rules.len(), rbac::RULES.len());
    for (rule, expected) in rules.iter().zip(rbac::RULES) {
        let list = |key: &str| -> Vec<&str> {
            rule[key]
                .as_array()
                .unwrap()
                .iter()
                .map(|v| v.as_str().unwrap())
                .collect()
        };
        assert_eq!(list("apiGroups"), [expected.group]);
        assert_eq!(list("resources"), [expected.resource]);
        assert_eq!(list("verbs"), expected.verbs);
    }
}

/// The roles of users stand in the same file: whoever edits may not write a status, which is the operator's.
#[test]
fn the_roles_of_users_are_the_table() {
    check("base/user-roles.yaml", &rbac::users_manifest());
    for (role, (to, ..)) in rbac::users_manifest().split("---\n").zip(rbac::USERS) {
        let role = parse(role);
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{to}");
        assert_eq!(role["metadata"]["labels"][&label], "true");
        let resources = role["rules"][0]["resources"].as_array().unwrap();
        assert!(
            !resources.is_empty()
                && resources
                    .iter()
                    .all(|resource| !resource.as_str().unwrap().ends_with("/status"))
        );
    }
}

#[test]
fn the_single_file_is_all_of_the_kustomization() {
    check("install.yaml", &install());
}

/// The namespace in the manifests for an operator that looks after one namespace, its own.
const DATABASES: &str = "databases";

fn namespaced() -> String {
    let base = |name: &str| {
        read(&format!("base/{name}.yaml")).replace(
            "namespace: clustereddatabase-system",
            &format!("namespace: {DATABASES}"),
        )
    };
    let own_namespace = "            - name: POD_NAMESPACE\n";
    let watched = "            # It looks after its own namespace alone.\n            - name: WATCH_NAMESPACE\n              \
                   valueFrom:\n                fieldRef:\n                  fieldPath: metadata.namespace\n";
    let binding = base("cluster-role-binding")
        .replace("kind: ClusterRoleBinding", "kind: RoleBinding")
        .replace("kind: ClusterRole\n", "kind: Role\n")
        .replacen("metadata:\n", &format!("metadata:\n  namespace: {DATABASES}\n"), 1);
    let documents = [
        base("service-account"),
        rbac::namespaced_manifest(DATABASES),
        binding,
        base("deployment").replace(own_namespace, &format!("{watched}{own_namespace}")),
        base("disruption-budget"),
    ];
    let mut yaml = String::from(
        "# An operator for one namespace, without any right beyond it. The definitions of the resources are the cluster's, and\n\
         # its administrator applies them once (and at every upgrade); then:\n\
         #\n\
         #   kubectl apply --server-side -f manifests/crd\n\
         #   kubectl create namespace databases\n\
         #   kubectl apply --server-side -f manifests/namespaced/install.yaml\n\
         #\n\
         # For another namespace: `kustomize edit set namespace`, or replace `namespace: databases`. Do not run it beside an\n\
         # operator that looks after all namespaces. Delete the databases before the namespace: it takes its operator with it, and\n\
         # nobody then removes their finalizers. Made by UPDATE_MANIFESTS=1 cargo test -p operator --test manifests\n",
    );
    for document in documents {
        yaml.push_str("---\n");
        yaml.push_str(document.trim_start_matches("---\n").trim_end());
        yaml.push('\n');
    }
    yaml
}

fn optional() -> String {
    let binding = read("base/cluster-role-binding.yaml")
        .replace(
            "name: clustereddatabase-operator\nsubjects",
            "name: clustereddatabase-operator-optional\nsubjects",
        )
        .replacen(
            "  name: clustereddatabase-operator\n",
            "  name: clustereddatabase-operator-optional\n",
            1,
        )
        .replace(
            "namespace: clustereddatabase-system",
            &format!("namespace: {DATABASES}"),
        );
    format!(
        "# With this, an operator for one namespace also says that a StorageClass is missing, knows whether volumes can grow, and\n\
         # moves primaries away from nodes that are drained.\n\
         {}---\n{binding}",
        rbac::optional_manifest()
    )
}

#[test]
fn an_operator_for_one_namespace_gets_no_right_beyond_it() {
    check("namespaced/install.yaml", &namespaced());
    check("namespaced/optional-cluster-role.yaml", &optional());
    let objects: Vec<Value> = namespaced().split("\n---\n").skip(1).map(parse).collect();
    let kinds: Vec<_> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "ServiceAccount",
            "Role",
            "RoleBinding",
            "Deployment",
            "PodDisruptionBudget"
        ]
    );
    for object in &objects {
        assert_eq!(object["metadata"]["namespace"], DATABASES, "{object}");
    }
    let (role, binding, deployment) = (&objects[1], &objects[2], &objects[3]);
    let granted = role["rules"].as_array().unwrap();
    let needed = rbac::RULES.iter().filter(|rule| rule.scope == rbac::Scope::Namespace);
    assert_eq!(granted.len(), needed.clone().count());
    for (rule, needed) in granted.iter().zip(needed) {
        assert_eq!(rule["resources"][0], needed.resource);
    }
    assert_eq!(
        (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]),
        (&role["kind"], &role["metadata"]["name"])
    );
    assert_eq!(binding["subjects"][0]["namespace"], DATABASES);
    let environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
        .as_array()
        .unwrap();
    let watched = environment
        .iter()
        .find(|variable| variable["name"] == "WATCH_NAMESPACE")
        .unwrap();
    assert_eq!(watched["valueFrom"]["fieldRef"]["fieldPath"], "metadata.namespace");
    let optional: Vec<Value> = optional().split("\n---\n").map(parse).collect();
    assert_eq!(optional[0]["rules"].as_array().unwrap().len(), 2);
    assert_eq!(optional[1]["roleRef"]["name"], optional[0]["metadata"]["name"]);
}

#[test]
fn the_deployment_is_restricted_and_fits_the_program() {
    let deployment = parse(&read("base/deployment.yaml"));
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let container = &pod["containers"][0];
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
    let variables: Vec<_> = container["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variable| variable["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        variables,
        [
            "POD_NAME",
            "POD_NAMESPACE",
            "OPERATOR_IMAGE",
            "POSTGRES_IMAGE_17",
            "POOLER_IMAGE",
            "ALIVE_SOCKET",
            "MALLOC_ARENA_MAX",
            "MALLOC_MMAP_THRESHOLD_"
        ]
    );
    // What ends the container asks within it, by a socket in a volume that it can write.
    assert_eq!(container.get("startupProbe"), None);
    let liveness = &container["livenessProbe"];
    assert_eq!(liveness["exec"]["command"], serde_json::json!(["/operator", "alive"]));
    assert_eq!(liveness.get("httpGet"), None);
    let socket = container["env"][5]["value"].as_str().unwrap();
    let mount = &container["volumeMounts"][0];
    assert!(socket.starts_with(mount["mountPath"].as_str().unwrap()), "{socket}");
    assert_eq!(mount["name"], pod["volumes"][0]["name"]);
    let agent = &container["env"].as_array().unwrap()[2]["value"];
    assert_eq!(agent, &container["image"], "the agent is in the operator's image");
    assert_eq!(container["imagePullPolicy"], "IfNotPresent");
}

#[test]
fn the_network_policy_names_the_ports_of_a_databases_pods() {
    let policy = parse(&read("policies/network.yaml"));
    let rules = policy["spec"]["ingress"].as_array().unwrap();
    let named = rules.iter().flat_map(|rule| rule["ports"].as_array().unwrap());
    let named: std::collections::BTreeSet<&str> = named.map(|port| port["port"].as_str().unwrap()).collect();
    let config = operator::config::Config::default();
    let db = serde_json::from_value(serde_json::json!({
        "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
        "metadata": {"name": "shop", "namespace": "ns", "uid": "u"}, "spec": {"storage": {"data": {"size": "1Gi"}}},
    }))
    .unwrap();
    let subject = operator::builders::Subject::new(&db, &config).unwrap();
    let template = operator::builders::pod_template::pod_template(&subject);
    let ports = template.spec.unwrap().containers.remove(0).ports.unwrap();
    let there: std::collections::BTreeSet<String> = ports.into_iter().filter_map(|port| port.name).collect();
    assert_eq!(named, there.iter().map(String::as_str).collect());
}
