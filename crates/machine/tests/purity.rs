//! `machine` depends on nothing that does I/O, draws random numbers or reads a clock. The test walks the resolved graph
//! of its normal dependencies, with the features that `machine` alone requests.

#![expect(clippy::disallowed_methods, reason = "this test looks at the crate from outside")]

use std::process::Command;

/// Crates that bring I/O, randomness or time zones (which are files).
const BANNED: &[&str] = &[
    "async-std",
    "curl",
    "fastrand",
    "getrandom",
    "h2",
    "hyper",
    "hyper-util",
    "iana-time-zone",
    "kube-client",
    "kube-runtime",
    "mio",
    "native-tls",
    "nix",
    "openssl",
    "openssl-sys",
    "polling",
    "postgres",
    "rand",
    "rand_core",
    "reqwest",
    "rustix",
    "rustls",
    "smol",
    "socket2",
    "tokio",
    "tokio-postgres",
    "tower",
    "tracing-subscriber",
    "ureq",
];

/// The tree of `machine`'s dependencies: a depth and a crate's name in each line.
fn tree() -> Vec<(usize, String)> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args([
            "tree",
            "--package",
            "machine",
            "--edges",
            "normal",
            "--prefix",
            "depth",
            "--format",
            " {p}",
            "--offline",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("run cargo tree");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("read the tree as text");
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.to_owned()))
    };
    text.lines()
        .map(|line| parse(line).unwrap_or_else(|| panic!("a line without depth and name: {line}")))
        .collect()
}

/// The path from `machine` to the first banned crate.
fn offender(tree: &[(usize, String)], banned: &[&str]) -> Option<String> {
    let mut path: Vec<&str> = Vec::new();
    for (depth, name) in tree {
        path.truncate(*depth);
        path.push(name);
        if banned.contains(&name.as_str()) {
            return Some(path.join(" -> "));
        }
    }
    None
}

#[test]
fn nothing_below_does_io() {
    let tree = tree();
    assert!(
        tree.iter().any(|(_, name)| name == "kube-core"),
        "the tree is not the one of machine: {tree:?}"
    );
    assert_eq!(offender(&tree, BANNED), None);
}

#[test]
fn an_offender_is_found_with_its_path() {
    let path = offender(&tree(), &["kube-core"]).expect("find kube-core");
    assert_eq!(path, "machine -> api -> kube -> kube-core");
}
