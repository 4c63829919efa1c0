//! Images of static binaries: the operator's, which is the product (operator and agent), and one of the tests' writer.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use suites::shell::{cargo_command, repository, step};
use testbed::Testbed;

/// An image: the folder of its Containerfile in `images`, also its name; and the binaries in it.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    name: &'static str,
    binaries: &'static [&'static str],
}

/// The product.
pub const OPERATOR: Image = Image {
    name: "operator",
    binaries: &["operator", "agent"],
};

/// The agent alone, for measurements outside of a cluster; there is no image of it.
pub const AGENT: Image = Image {
    name: "agent",
    binaries: &["agent"],
};

/// What writes while availability is measured; no part of the product.
pub const WRITER: Image = Image {
    name: "writer",
    binaries: &["availability-writer"],
};

/// What an agent is made of, beside the toolchain.
const SOURCES: [&str; 8] = [
    "crates/agent",
    "crates/api",
    "crates/backup",
    "crates/listen",
    "crates/scram",
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

/// Runs `cargo xtask image`.
///
/// # Errors
/// When the build fails.
pub async fn run(arguments: Arguments) -> Result<()> {
    build_static(&[OPERATOR])?;
    build_image(OPERATOR, &binaries(RELEASE)?, &arguments.name).await?;
    println!("built {}", arguments.name);
    Ok(())
}

/// Builds images from the working tree, loads them into the testbed, and returns their names.
///
/// # Errors
/// When the build or the load fails.
pub async fn into_testbed<const N: usize>(testbed: &Testbed, images: [Image; N]) -> Result<[String; N]> {
    build_static(&images)?;
    built_into_testbed(testbed, images, RELEASE).await
}

/// Makes images of binaries that are built, each tagged with a hash of them, so that a changed one is never confused with an older
/// one of the same name; loads them into the testbed, and returns their names.
///
/// # Errors
/// When a binary is not there, or the load fails.
pub async fn built_into_testbed<const N: usize>(
    testbed: &Testbed,
    images: [Image; N],
    profile: &str,
) -> Result<[String; N]> {
    let binaries = binaries(profile)?;
    let mut names = [const { String::new() }; N];
    for (image, name) in images.into_iter().zip(&mut names) {
        *name = format!("localhost/cdb/{}:{}", image.name, hash_of(image, &binaries)?);
        build_image(image, &binaries, name).await?;
        let loaded = testbed.load_image(name).await;
        loaded.with_context(|| format!("load the image {name}"))?;
    }
    Ok(names)
}

/// The images of operator and writer in the testbed: those that are given, else built by [`into_testbed`].
///
/// # Errors
/// When the build or the load fails.
pub async fn given_or_built(testbed: &Testbed, given: [Option<&String>; 2]) -> Result<[String; 2]> {
    if let [Some(operator), Some(writer)] = given {
        return Ok([operator.clone(), writer.clone()]);
    }
    let built = into_testbed(testbed, [OPERATOR, WRITER]).await?;
    let [operator, writer] = given;
    let [built_operator, built_writer] = built;
    Ok([
        operator.cloned().unwrap_or(built_operator),
        writer.cloned().unwrap_or(built_writer),
    ])
}

/// Binaries that need no libc of the image (`.cargo/config.toml`), so that the agent runs in any PostgreSQL image.
fn build_static(images: &[Image]) -> Result<()> {
    let (what, mut command) = build(images);
    step(&what, &mut command)
}

/// The folder of the binaries that [`build`] makes, in the target directory.
pub const RELEASE: &str = "release";
/// The folder of those that are built with the tests.
pub const DEBUG: &str = "debug";

/// The whole path of such a folder.
///
/// # Errors
/// When cargo cannot say where it is.
pub fn binaries(profile: &str) -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    Ok(target_directory()?.join(target).join(profile))
}

/// What builds the binaries of images, and its name. All in one, so that what they depend on is compiled once.
pub fn build(images: &[Image]) -> (String, Command) {
    let mut command = cargo_command(&["build", "--release", "--locked"]);
    command.args(["-p", "operator", "-p", "agent"]);
    if images.iter().any(|image| image.name == WRITER.name) {
        // Of the tests' crate the writer alone, without what only tests need.
        command.args(["-p", "e2e", "--no-default-features", "--features", "e2e/writer"]);
    }
    for binary in images.iter().flat_map(|image| image.binaries) {
        command.args(["--bin", binary]);
    }
    if let Some(commit) = commit() {
        command.env("CDB_COMMIT", commit);
    }
    ("building the image's static binaries".to_owned(), command)
}

/// The last commit that changed what an agent is made of, so that others build no other image; `None` without a git checkout.
pub fn commit() -> Option<String> {
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

async fn build_image(image: Image, binaries: &Path, name: &str) -> Result<()> {
    let context = target_directory()?.join("images").join(image.name);
    std::fs::create_dir_all(&context).context("make the build context")?;
    for binary in image.binaries {
        std::fs::copy(binaries.join(binary), context.join(binary)).with_context(|| format!("copy {binary}"))?;
    }
    let containerfile = repository()?.join("images").join(image.name).join("Containerfile");
    Testbed::build_image(&containerfile, &context, name)
        .await
        .with_context(|| format!("build the image {name}"))
}

fn hash_of(image: Image, binaries: &Path) -> Result<String> {
    use std::hash::Hasher;
    // Not for security: it only distinguishes builds of one machine.
    let mut hasher = std::hash::DefaultHasher::new();
    for binary in image.binaries {
        let file = binaries.join(binary);
        hasher.write(&std::fs::read(&file).with_context(|| format!("read {}", file.display()))?);
    }
    Ok(format!("{:016x}", hasher.finish()))
}
