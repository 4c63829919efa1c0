//! The manifest for krew obeys krew's rules and installs this program.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::path::Path;

use clap::CommandFactory;
use cli::arguments::Arguments;
use serde_json::Value;

#[test]
fn a_released_manifest_installs_this_program() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("krew.yaml");
    let mut text = std::fs::read_to_string(path).unwrap();
    for platform in ["LINUX_AMD64", "LINUX_ARM64", "DARWIN_ARM64"] {
        text = text.replace(&format!("SHA256_{platform}"), &"0a".repeat(32));
    }
    text = text
        .replace("RELEASES", "https://example.org/releases")
        .replace("VERSION", "0.1.0");
    let manifest: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(manifest["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!(manifest["kind"], "Plugin");
    let name = manifest["metadata"]["name"].as_str().unwrap();
    let command = Arguments::command();
    assert_eq!(command.get_bin_name(), Some(format!("kubectl {name}").as_str()));
    let spec = &manifest["spec"];
    assert_eq!(spec["version"], "v0.1.0");
    // krew's table cuts longer ones off.
    let short = spec["shortDescription"].as_str().unwrap();
    assert!(!short.is_empty() && short.len() <= 50, "{short}");
    let platforms = spec["platforms"].as_array().unwrap();
    let mut archives = BTreeSet::new();
    for platform in platforms {
        assert_eq!(
            platform["bin"],
            env!("CARGO_BIN_EXE_kubectl-cdb").rsplit('/').next().unwrap()
        );
        let sum = platform["sha256"].as_str().unwrap();
        assert!(
            sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{sum}"
        );
        let labels = &platform["selector"]["matchLabels"];
        let (os, arch) = (labels["os"].as_str().unwrap(), labels["arch"].as_str().unwrap());
        let uri = platform["uri"].as_str().unwrap();
        assert!(
            uri.ends_with(&format!("/v0.1.0/kubectl-cdb-{os}-{arch}.tar.gz")),
            "{uri}"
        );
        archives.insert(uri);
    }
    assert_eq!(archives.len(), 3);
}
