//! The files that are generated from this crate are the ones that are checked in.

use std::{env, fs, path::PathBuf};

/// Compares a checked-in file with what the crate makes; with `UPDATE=1` writes it instead.
fn same_as_checked_in(path: &str, made: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if env::var_os("UPDATE").is_some_and(|value| value == "1") {
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("make the directory");
        fs::write(&path, made).expect("write the file");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == made,
        "{} is not what the crate makes: run `UPDATE=1 cargo test -p api` and commit it",
        path.display()
    );
}

#[test]
fn definition() {
    same_as_checked_in("manifests/crd/clustereddatabases.yaml", &api::crd_yaml());
}

#[test]
fn definition_of_operations() {
    same_as_checked_in(
        "manifests/crd/clustereddatabaseoperations.yaml",
        &api::operation::crd_yaml(),
    );
}

#[test]
fn definition_of_backups() {
    same_as_checked_in("manifests/crd/databasebackups.yaml", &api::backup::crd_yaml());
}

#[test]
fn definition_of_users() {
    same_as_checked_in("manifests/crd/databaseusers.yaml", &api::user::crd_yaml());
}

#[test]
fn definition_of_databases() {
    same_as_checked_in("manifests/crd/databases.yaml", &api::database::crd_yaml());
}

#[test]
fn definition_of_poolers() {
    same_as_checked_in("manifests/crd/poolers.yaml", &api::pooler::crd_yaml());
}

#[test]
fn definition_is_small_enough_for_client_side_apply() {
    let bytes = serde_json::to_string(&api::crd()).expect("JSON").len();
    assert!(bytes < 200 * 1024, "the definition has {bytes} bytes");
}

#[test]
fn reference() {
    same_as_checked_in("docs/api.md", &api::reference());
}
