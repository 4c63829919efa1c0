//! The documentation's page on the cluster machine matches its tables.

#![expect(clippy::disallowed_methods, reason = "this test looks at the crate from outside")]

use std::{env, fs, path::Path};

#[test]
fn page() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/state-machine.md");
    let page = machine::cluster::state_machine_page();
    if env::var_os("UPDATE").is_some_and(|value| value == "1") {
        fs::write(&path, &page).expect("write the page");
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == page,
        "docs/state-machine.md is not what the tables say: run `UPDATE=1 cargo test -p machine --test page` and commit it"
    );
}
