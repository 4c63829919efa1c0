//! The operator's image: static binaries of operator, agent and availability writer in an otherwise empty image.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use testbed::Testbed;

use crate::shell::{cargo_command, repository, step};

/// What is in the image.
const BINARIES: [&str; 3] = ["operator", "agent", "availability-writer"];

/// What an agent is made of, beside the toolchain.
const SOURCES: [&str; 6] = [
    "crates/agent",
    "crates/api",
    "crates/listen",
    "crates/machine",
    "Cargo.toml",
    "Cargo.lock",
];

/// Builds the operator's image into buildah's store.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The image's name.
    #[arg(long, default_value = "localhost/cdb/operator:latest")]
    name: String,
}

/// What was built.
#[derive(Debug)]
pub struct Built {
    /// The image's name in the testbed.
    pub name: String,
    /// The operator's binary, which also runs outside the image.
    pub operator: PathBuf,
}

/// Runs `cargo xtask image`.
///
/// # Errors
/// When the build fails.
pub async fn run(arguments: Arguments) -> Result<()> {
    let binaries = build_static()?;
    build_image(&binaries, &arguments.name).await?;
    println!("built {}", arguments.name);
    Ok(())
}

/// Builds the image from the working tree, tagged with a hash of its binaries, so that a changed one is never
/// confused with an older one of the same name; loads it into the testbed.
///
/// # Errors
/// When the build or the load fails.
pub async fn into_testbed(testbed: &Testbed) -> Result<Built> {
    let binaries = build_static()?;
    let hash = hash_of(&BINARIES.map(|binary| binaries.join(binary)))?;
    let name = format!("localhost/cdb/operator:{hash}");
    build_image(&binaries, &name).await?;
    testbed.load_image(&name).await.context("load the operator's image")?;
    Ok(Built {
        name,
        operator: binaries.join("operator"),
    })
}

/// Static binaries (no libc of the image is needed, so the agent runs in any PostgreSQL image).
fn build_static() -> Result<PathBuf> {
    let (what, mut command) = build();
    step(&what, &mut command)?;
    Ok(target_directory()?.join(target()).join("release"))
}

fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// What builds the image's binaries, and its name. All in one, so that what they depend on is compiled once.
pub fn build() -> (String, Command) {
    let target = target();
    let mut command = cargo_command(&["build", "--release", "--locked", "--target", &target]);
    // Of the tests' crate the writer alone, without what only tests need.
    command.args([
        "-p",
        "operator",
        "-p",
        "agent",
        "-p",
        "e2e",
        "--no-default-features",
        "--features",
        "e2e/writer",
    ]);
    for binary in BINARIES {
        command.args(["--bin", binary]);
    }
    let variable = format!("CARGO_TARGET_{}_RUSTFLAGS", target.to_uppercase().replace('-', "_"));
    command.env(variable, "-C target-feature=+crt-static");
    if let Some(commit) = commit() {
        command.env("CDB_COMMIT", commit);
    }
    ("building the image's static binaries".to_owned(), command)
}

/// The last commit that changed what an agent is made of, so that others build no other image; `None` without a git checkout.
fn commit() -> Option<String> {
    let repository = repository().ok()?;
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(&repository).args(arguments).arg("--").args(SOURCES);
        let output = command.output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["log", "-1", "--abbrev=12", "--format=%h"]).filter(|commit| !commit.is_empty())?;
    let changed = !git(&["status", "--porcelain"])?.is_empty();
    Some(if changed { commit + "-changed" } else { commit })
}

fn target_directory() -> Result<PathBuf> {
    Ok(match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => PathBuf::from(directory),
        None => repository()?.join("target"),
    })
}

async fn build_image(binaries: &Path, name: &str) -> Result<()> {
    let context = target_directory()?.join("image");
    std::fs::create_dir_all(&context).context("make the build context")?;
    for binary in BINARIES {
        std::fs::copy(binaries.join(binary), context.join(binary)).with_context(|| format!("copy {binary}"))?;
    }
    let containerfile = repository()?.join("images/operator/Containerfile");
    Testbed::build_image(&containerfile, &context, name)
        .await
        .context("build the operator's image")
}

fn hash_of(files: &[PathBuf]) -> Result<String> {
    use std::hash::Hasher;
    // Not for security: it only tells builds of one machine apart.
    let mut hasher = std::hash::DefaultHasher::new();
    for file in files {
        hasher.write(&std::fs::read(file).with_context(|| format!("read {}", file.display()))?);
    }
    Ok(format!("{:016x}", hasher.finish()))
}
