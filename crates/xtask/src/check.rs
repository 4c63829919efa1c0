//! `cargo xtask test`: all set-up, then all checks.

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use e2e::{KUBECONFIG_VARIABLE, OPERATOR_BINARY_VARIABLE, OPERATOR_IMAGE_VARIABLE};
use testbed::{Options, POSTGRES_IMAGE, Testbed};

use crate::shell::{cargo, cargo_command, step};
use crate::{image, summary};

/// Which checks to run; all without an option.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Only what needs neither root nor a cluster nor a PostgreSQL server.
    #[arg(long)]
    offline: bool,
    /// Only end-to-end tests whose name contains this.
    #[arg(long, value_name = "NAME")]
    e2e: Option<String>,
}

/// Crates whose tests are pure: any operating system, no server.
const OFFLINE: [&str; 4] = ["-p", "api", "-p", "machine"];

/// Runs the checks.
///
/// # Errors
/// When one fails; the others have run all the same where they do not build on it.
pub async fn run(arguments: Arguments) -> Result<()> {
    let mut tally = summary::Tally::default();
    if arguments.e2e.is_none() {
        step("checking the format", &mut cargo_command(&["fmt", "--all", "--check"]))?;
        if arguments.offline {
            tally.run("unit and property tests", cargo_test(&OFFLINE))?;
            return tally.close();
        }
        install_postgresql()?;
        let lints = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--features",
            "e2e/cluster",
            "--",
            "-D",
            "warnings",
        ];
        step("checking with clippy", &mut cargo_command(&lints))?;
        tally.run(
            "unit, property and single-machine tests",
            cargo_test(&["--workspace", "--exclude", "e2e"]),
        )?;
    }
    let (testbed, _) = Testbed::up(Options::from_env()?)
        .await
        .context("bring up the testbed")?;
    let built = image::into_testbed(&testbed).await?;
    let client = e2e::connect(Some(testbed.kubeconfig_path()), None).await?;
    let images = e2e::Images {
        operator: built.name.clone(),
        postgres: POSTGRES_IMAGE.to_owned(),
    };
    println!("==> installing the operator");
    e2e::install::install(&client, &crate::shell::repository()?, &images).await?;
    let mut tests = cargo_test(&["-p", "e2e", "--features", "cluster"]);
    tests.env(KUBECONFIG_VARIABLE, testbed.kubeconfig_path());
    tests.env(OPERATOR_IMAGE_VARIABLE, &built.name);
    tests.env(OPERATOR_BINARY_VARIABLE, &built.operator);
    tests.arg("--");
    tests.args(arguments.e2e);
    // One database at a time: the tests measure, and the machine may have two cores.
    tests.args(["--test-threads", "1", "--nocapture"]);
    tally.run("end-to-end tests", tests)?;
    tally.close()
}

fn cargo_test(arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command.args(["test", "--locked", "--no-fail-fast"]).args(arguments);
    command
}

/// The agent's tests run a real server of whatever version Debian has.
fn install_postgresql() -> Result<()> {
    let have = std::fs::read_dir("/usr/lib/postgresql").is_ok_and(|versions| {
        versions
            .flatten()
            .any(|version| version.path().join("bin/initdb").exists())
    });
    if have {
        return Ok(());
    }
    if !std::path::Path::new("/usr/bin/apt-get").exists() {
        bail!(
            "the tests need PostgreSQL's server programs in /usr/lib/postgresql/<version>/bin, and there is no apt-get to install them: install PostgreSQL 15 or newer"
        );
    }
    step(
        "updating the package lists",
        Command::new("apt-get").args(["update", "--quiet"]),
    )?;
    let install = ["install", "--yes", "--quiet", "--no-install-recommends", "postgresql"];
    // Debian would start a cluster of its own on port 5432; the tests make theirs.
    let directory = std::path::Path::new("/etc/postgresql-common");
    std::fs::create_dir_all(directory).context("make /etc/postgresql-common")?;
    let settings = directory.join("createcluster.conf");
    if !settings.exists() {
        std::fs::write(&settings, "create_main_cluster = false\nstart_conf = 'manual'\n")
            .context("write createcluster.conf")?;
    }
    step(
        "installing PostgreSQL",
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(install),
    )
}
