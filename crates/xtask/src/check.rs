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
const OFFLINE: [&str; 10] = ["-p", "api", "-p", "machine", "-p", "sim", "-p", "operator", "-p", "cli"];

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
        check_dependencies(&mut tally)?;
        install_packages()?;
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

/// Which cases the property tests make: read by proptest.
pub const SEED_VARIABLE: &str = "PROPTEST_RNG_SEED";

fn cargo_test(arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command.args(["test", "--locked", "--no-fail-fast"]).args(arguments);
    // What failed is told in words; the stacks of async code hide them.
    command.env("RUST_BACKTRACE", "0");
    // The same code gets the same answer; `just properties` looks for what these cases miss.
    if std::env::var_os(SEED_VARIABLE).is_none() {
        command.env(SEED_VARIABLE, "1");
    }
    command
}

/// Bans, licences and sources of all dependencies by `deny.toml`, and their advisories if the database of these can be
/// fetched. `cargo deny` is no part of Rust, and takes longer to build than all of this: it is used where it is, and
/// what was not checked is said.
fn check_dependencies(tally: &mut summary::Tally) -> Result<()> {
    let deny = |arguments: &[&str]| {
        let mut command = cargo_command(&["deny", "--all-features"]);
        command.args(arguments);
        command
    };
    let installed = cargo_command(&["deny", "--version"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !installed {
        println!(
            "==> NOT CHECKED: bans, licences, sources and advisories of the dependencies (deny.toml). cargo-deny is not \
             installed: `cargo install --locked cargo-deny`, and run this again"
        );
        return Ok(());
    }
    tally.run(
        "dependencies: bans, licences, sources",
        deny(&["--offline", "check", "bans", "licenses", "sources"]),
    )?;
    let fetched = deny(&["fetch", "db"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !fetched {
        println!(
            "==> NOT CHECKED: advisories about the dependencies. Their database (github.com/rustsec/advisory-db) cannot be fetched"
        );
        return Ok(());
    }
    tally.run("dependencies: advisories", deny(&["check", "advisories"]))
}

/// The agent's tests run real servers of whatever version Debian has, some in network namespaces of their own.
fn install_packages() -> Result<()> {
    let have = std::fs::read_dir("/usr/lib/postgresql").is_ok_and(|versions| {
        versions
            .flatten()
            .any(|version| version.path().join("bin/initdb").exists())
    });
    let have_ip = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"]
        .iter()
        .any(|program| std::path::Path::new(program).exists());
    let wanted = [(have, "postgresql"), (have_ip, "iproute2")];
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|(have, _)| !have)
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !std::path::Path::new("/usr/bin/apt-get").exists() {
        bail!(
            "the tests need the program `ip` and PostgreSQL's server programs in /usr/lib/postgresql/<version>/bin, and there is no apt-get to install them: install iproute2, and PostgreSQL 15 or newer"
        );
    }
    step(
        "updating the package lists",
        Command::new("apt-get").args(["update", "--quiet"]),
    )?;
    let install = ["install", "--yes", "--quiet", "--no-install-recommends"];
    // Debian would start a cluster of its own on port 5432; the tests make theirs.
    let directory = std::path::Path::new("/etc/postgresql-common");
    std::fs::create_dir_all(directory).context("make /etc/postgresql-common")?;
    let settings = directory.join("createcluster.conf");
    if !settings.exists() {
        std::fs::write(&settings, "create_main_cluster = false\nstart_conf = 'manual'\n")
            .context("write createcluster.conf")?;
    }
    step(
        &format!("installing {}", missing.join(", ")),
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(install)
            .args(missing),
    )
}
