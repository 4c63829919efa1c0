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
        let text = if file == "base/cluster-role.yaml" {
            rbac::manifest()
        } else {
            read(file)
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

#[test]
fn the_single_file_is_all_of_the_kustomization() {
    check("install.yaml", &install());
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
        ["POD_NAME", "POD_NAMESPACE", "OPERATOR_IMAGE", "POSTGRES_IMAGE_17"]
    );
    let agent = &container["env"].as_array().unwrap()[2]["value"];
    assert_eq!(agent, &container["image"], "the agent is in the operator's image");
    assert_eq!(container["imagePullPolicy"], "IfNotPresent");
}
