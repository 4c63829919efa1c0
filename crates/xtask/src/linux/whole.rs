//! What `cargo xtask test` does beyond its `--offline` part: servers on this machine, and a cluster. Only on Linux.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use e2e::{KUBECONFIG_VARIABLE, OPERATOR_BINARY_VARIABLE, OPERATOR_IMAGE_VARIABLE};
use testbed::{Options, POSTGRES_IMAGE, Testbed};

use super::background::Background;
use super::image;
use crate::check::{build, check_format, run_documents, run_suite};
use crate::shell::{cargo_command, repository, step};
use crate::suites::Suite;
use crate::summary;

/// All packages, with the end-to-end tests. One selection for whatever is built and checked: cargo gives a dependency
/// the features that the selected packages ask for, and compiles it again for others.
const ALL: [&str; 3] = ["--workspace", "--features", "e2e/cluster"];

/// Runs all checks, or the end-to-end tests whose names contain `name`.
pub async fn all(name: Option<&str>, tally: &mut summary::Tally) -> Result<()> {
    if name.is_some() {
        let suites = build(&["-p", "e2e", "--features", "cluster"], tally)?;
        return on_a_cluster(&suites, name, tally).await;
    }
    check_format()?;
    check_dependencies(tally)?;
    let suites = build(&ALL, tally)?;
    on_this_machine(&suites, tally).await?;
    on_a_cluster(&suites, None, tally).await
}

/// All tests but the end-to-end tests. Many of them wait, for servers and for times that are over: beside them is
/// checked and built what comes after them.
async fn on_this_machine(suites: &[Suite], tally: &mut summary::Tally) -> Result<()> {
    let mut clippy = cargo_command(&["clippy", "--quiet", "--all-targets", "--locked"]);
    clippy.args(ALL).args(["--", "-D", "warnings"]);
    let (what, mut image) = image::build();
    image.arg("--quiet");
    let mut builds = Background::start([("checking with clippy".to_owned(), clippy), (what, image)]);
    install_packages()?;
    let mut prepare = Command::new(std::env::current_exe().context("find this program")?);
    prepare.args(["testbed", "prepare"]);
    let mut testbed = Background::start([("preparing the testbed".to_owned(), prepare)]);
    println!("==> unit, property and single-machine tests");
    let start = Instant::now();
    // The testbed's own come last: they need what is prepared.
    let (last, first): (Vec<_>, _) = suites
        .iter()
        .filter(|suite| !suite.needs_cluster())
        .partition(|suite| suite.package == "testbed");
    for suite in first.into_iter().chain(last) {
        builds.check().await?;
        testbed.check().await?;
        if suite.package == "testbed" {
            testbed.finish().await?;
        }
        run_suite(suite, tally)?;
    }
    println!(
        "    unit, property and single-machine tests: {:.1} s",
        start.elapsed().as_secs_f64()
    );
    tally.part("unit, property and single-machine tests", start);
    builds.finish().await?;
    testbed.finish().await?;
    run_documents(&ALL, tally)
}

/// The end-to-end tests, or those whose names contain `name`.
async fn on_a_cluster(suites: &[Suite], name: Option<&str>, tally: &mut summary::Tally) -> Result<()> {
    ensure!(
        suites.iter().any(Suite::needs_cluster),
        "there are no end-to-end tests among the programs that were built: see Suite::needs_cluster"
    );
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
    e2e::install::install(&client, &repository()?, &images).await?;
    println!("==> end-to-end tests");
    let start = Instant::now();
    for suite in suites.iter().filter(|suite| suite.needs_cluster()) {
        println!("     Running {}", suite.name());
        let mut tests = suite.command();
        tests.env(KUBECONFIG_VARIABLE, testbed.kubeconfig_path());
        tests.env(OPERATOR_IMAGE_VARIABLE, &built.name);
        tests.env(OPERATOR_BINARY_VARIABLE, &built.operator);
        tests.args(name);
        // One database at a time: the tests measure, and the machine may have two cores.
        tests.args(["--test-threads", "1", "--nocapture"]);
        tally.count(&suite.name(), tests)?;
    }
    println!("    end-to-end tests: {:.1} s", start.elapsed().as_secs_f64());
    tally.part("end-to-end tests", start);
    Ok(())
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
