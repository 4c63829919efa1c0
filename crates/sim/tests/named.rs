//! docs/scenarios.md names only tests that exist, and each fault that it names in brackets is in the end-to-end test
//! beside it.

use std::fs;
use std::path::{Path, PathBuf};

/// Short names of the page, and the files that they mean.
const SHORT: [(&str, &[&str]); 8] = [
    ("convergence", &["crates/machine/tests/convergence"]),
    ("election", &["crates/agent/tests/election.rs"]),
    ("failover", &["crates/agent/tests/failover.rs"]),
    ("faults", &["crates/agent/tests/faults.rs"]),
    ("model", &["crates/sim/tests/model.rs"]),
    (
        "script",
        &[
            "crates/operator/tests/simulated/scenarios",
            "crates/sim/tests/scenarios.rs",
        ],
    ),
    ("cluster/", &["crates/machine/src/cluster/"]),
    ("instance/", &["crates/machine/src/instance/"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The code in a file and in its sibling with the tests, or in all files of a folder; empty if neither exists.
fn code(path: &Path) -> String {
    let Ok(entries) = fs::read_dir(path) else {
        let files = [path.to_owned(), path.with_extension("").join("tests.rs")];
        return files.map(|file| fs::read_to_string(file).unwrap_or_default()).concat();
    };
    entries.flatten().map(|entry| code(&entry.path())).collect()
}

/// The code that a name of the page means, such as `e2e/failover` or `cluster/volumes`.
fn code_of(name: &str) -> String {
    if let Some(suite) = name.strip_prefix("e2e/") {
        return code(&root().join(format!("crates/e2e/tests/{suite}.rs")));
    }
    let short = SHORT.iter().find(|(short, _)| {
        let folder = short.ends_with('/') && name.starts_with(short);
        folder || name == *short
    });
    let Some((short, places)) = short else {
        return code(&root().join(name));
    };
    let rest = name.strip_prefix(short).unwrap_or_default();
    let file = |place: &&str| match rest {
        "" => root().join(place),
        rest => root().join(format!("{place}{rest}.rs")),
    };
    places.iter().map(|place| code(&file(place))).collect()
}

/// The texts between backticks, each with the text up to the next one.
fn quoted(text: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = text.split('`').collect();
    parts
        .chunks_exact(2)
        .map(|pair| pair[1])
        .zip(parts.iter().skip(2).step_by(2).copied())
        .collect()
}

#[test]
fn each_test_that_the_table_names_exists() {
    let page = fs::read_to_string(root().join("docs/scenarios.md")).expect("the page");
    let (mut named, mut missing) = (0, Vec::new());
    for row in page.lines().filter(|line| line.starts_with('|')) {
        let mut suite: Option<String> = None;
        for (name, after) in quoted(row) {
            if let Some((place, test)) = name.rsplit_once("::") {
                named += 1;
                // The end of a name that begins like the previous one.
                let wanted = match test.strip_prefix('…') {
                    Some(end) => format!("{end}()"),
                    None => format!("fn {test}("),
                };
                if !code_of(place).contains(&wanted) {
                    missing.push(name);
                }
            } else if let Some(code) = suite.as_deref() {
                // A fault, in brackets after the suite that injects it.
                named += 1;
                if !code.contains(&format!("\"{name}\"")) {
                    missing.push(name);
                }
            }
            let opens = name.starts_with("e2e/") && after.trim_start().starts_with('(');
            suite = match (opens, after.contains(')')) {
                (_, true) => None,
                (true, false) => Some(code_of(name.split("::").next().unwrap_or_default())),
                (false, false) => suite,
            };
        }
    }
    assert!(named > 150, "only {named} names were found");
    assert_eq!(missing, Vec::<&str>::new(), "these do not exist");
}
