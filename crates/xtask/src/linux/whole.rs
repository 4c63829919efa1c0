//! What `cargo xtask test` does beyond its `--offline` part: servers on this machine, and a cluster. Only on Linux.

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use e2e::{KUBECONFIG_VARIABLE, OPERATOR_BINARY_VARIABLE, OPERATOR_IMAGE_VARIABLE, WRITER_IMAGE_VARIABLE};
use suites::Suite;
use suites::shell::{cargo_command, repository};
use testbed::{Options, POOLER_IMAGE, POSTGRES_IMAGE, Testbed};

use super::background::{Background, nice};
use super::{beside, image, packages};
use crate::check::{build, check_format, command, run_documents};
use crate::lanes::{self, Job, Lane};
use crate::{budgets, summary, times};

/// All packages, with the end-to-end tests. One selection for whatever is built and checked: cargo gives a dependency
/// the features that the selected packages ask for, and compiles it again for others.
const ALL: [&str; 3] = ["--workspace", "--features", "e2e/cluster"];

/// Runs all checks, or the end-to-end tests whose names contain `name`.
pub async fn all(name: Option<&str>, tally: &mut summary::Tally) -> Result<()> {
    if name.is_some() {
        let suites = build(&ALL, tally)?;
        return on_a_cluster(&suites, name, tally).await;
    }
    check_format()?;
    check_dependencies(tally).await?;
    let suites = build(&ALL, tally)?;
    on_this_machine(&suites, tally).await?;
    on_a_cluster(&suites, None, tally).await
}

/// Programs of tests that wait for servers and for times that are over: they run beside those that compute. All of the agent's, but
/// for these, which keep a core busy.
fn waits(suite: &Suite) -> bool {
    suite.package == "agent" && suite.tests.as_deref() != Some("conformance")
}

/// Suites that wait are run so many at once, with so many tests each.
const WAITING: usize = 2;
const WAITING_TESTS: &str = "3";
/// The priority of suites that compute beside them: what waits has little to do, and its times are to be those of servers.
const COMPUTING: u8 = 10;

/// All tests but the end-to-end tests: a lane of those that compute beside a lane of those that wait, the longest first. What is left of
/// the machine checks and builds what comes after them.
async fn on_this_machine(suites: &[Suite], tally: &mut summary::Tally) -> Result<()> {
    let mut clippy = cargo_command(&["clippy", "--quiet", "--all-targets", "--locked"]);
    clippy.args(ALL).args(["--", "-D", "warnings"]);
    let mut clippy = Background::start([("checking with clippy".to_owned(), clippy)]);
    install_packages()?;
    let mut prepare = Command::new(std::env::current_exe().context("find this program")?);
    prepare.args(["testbed", "prepare"]);
    let mut testbed = Background::start([("preparing the testbed".to_owned(), prepare)]);
    println!("==> unit, property and single-machine tests");
    let start = Instant::now();
    let mut local: Vec<_> = suites.iter().filter(|suite| !suite.needs_cluster()).collect();
    local.sort_by_key(|suite| Reverse(budgets::of(&suite.name())));
    // The testbed's own come last: they need what is prepared.
    let (of_testbed, others): (Vec<_>, Vec<_>) = local.into_iter().partition(|suite| suite.package == "testbed");
    let (waiting, computing): (Vec<_>, Vec<_>) = others.into_iter().partition(|suite| waits(suite));
    let lanes = [
        Lane::of(WAITING, waiting, |suite| {
            let mut tests = command(suite);
            tests.args(["--test-threads", WAITING_TESTS]);
            tests
        }),
        Lane::of(1, computing, |suite| nice(COMPUTING, &command(suite))),
    ];
    lanes::run(lanes, async |suite, outcome| {
        tally.add_suite(suite, outcome);
        clippy.check().await?;
        testbed.check().await
    })
    .await?;
    testbed.finish().await?;
    lanes::run([Lane::of(1, of_testbed, command)], async |suite, outcome| {
        tally.add_suite(suite, outcome);
        clippy.check().await
    })
    .await?;
    println!(
        "    unit, property and single-machine tests: {:.1} s",
        start.elapsed().as_secs_f64()
    );
    tally.part("unit, property and single-machine tests", start);
    let start = Instant::now();
    clippy.finish().await?;
    tally.part("waiting for Clippy", start);
    run_documents(&ALL, tally).await
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
    // The binaries that the tests were built with: a release would be the third compilation of all dependencies.
    let images = [image::OPERATOR, image::WRITER];
    let [operator, writer] = image::built_into_testbed(&testbed, images, image::DEBUG).await?;
    let client = e2e::connect(Some(testbed.kubeconfig_path()), None).await?;
    let images = e2e::Images {
        operator: operator.clone(),
        postgres: POSTGRES_IMAGE.to_owned(),
        pooler: POOLER_IMAGE.to_owned(),
    };
    println!("==> installing the operator");
    e2e::install::install(&client, &repository()?, &images).await?;
    println!("==> end-to-end tests");
    let start = Instant::now();
    let binary = image::binaries(image::DEBUG)?.join("operator");
    let environment = [
        (KUBECONFIG_VARIABLE, testbed.kubeconfig_path().as_os_str()),
        (OPERATOR_IMAGE_VARIABLE, operator.as_ref()),
        (WRITER_IMAGE_VARIABLE, writer.as_ref()),
        (OPERATOR_BINARY_VARIABLE, binary.as_os_str()),
    ];
    let (beside, alone): (Vec<_>, Vec<_>) = jobs(suites, name, environment)?
        .into_iter()
        .partition(|(_, beside)| *beside);
    for (jobs, width) in [(beside, BESIDE), (alone, 1)] {
        let jobs = jobs.into_iter().map(|(job, _)| job).collect();
        lanes::run([Lane { jobs, width }], async |suite, outcome| {
            tally.add_suite(suite, outcome);
            Ok(())
        })
        .await?;
    }
    if let Err(error) = e2e::namespace::wait_removals(&client).await {
        tally.figure("removal of the tests' namespaces", Err(error));
    }
    println!("    end-to-end tests: {:.1} s", start.elapsed().as_secs_f64());
    tally.part("end-to-end tests", start);
    Ok(())
}

/// So many end-to-end tests run at once of those that may: they wait more than they compute.
const BESIDE: usize = 2;

/// Each end-to-end test whose name contains `name`, in a process of its own, and whether it may run beside others.
fn jobs<const N: usize>(
    suites: &[Suite],
    name: Option<&str>,
    environment: [(&str, &OsStr); N],
) -> Result<Vec<(Job, bool)>> {
    let mut jobs = Vec::new();
    for suite in suites.iter().filter(|suite| suite.needs_cluster()) {
        let file = suite.tests.as_deref().unwrap_or_default();
        for test in suite.names()? {
            let is_asked_for = name.map_or_else(
                || e2e::is_long() || !beside::is_long(file, &test),
                |name| test.contains(name),
            );
            if !is_asked_for {
                continue;
            }
            let mut command = suite.command();
            command.envs(environment);
            command.args(["--exact", &test, "--test-threads", "1", "--nocapture"]);
            times::ask_for(&mut command);
            let job = Job {
                suite: suite.name(),
                name: format!("{file} {test}"),
                command,
            };
            jobs.push((job, beside::may(file, &test)));
        }
    }
    Ok(jobs)
}

/// Bans, licences and sources of all dependencies by `deny.toml`, and their advisories if the database of these can be
/// fetched. `cargo deny` is no part of Rust, and takes longer to build than all of this: it is used where it is, and
/// it names what was not checked.
async fn check_dependencies(tally: &mut summary::Tally) -> Result<()> {
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
    tally
        .run(
            "dependencies: bans, licences, sources",
            deny(&["--offline", "check", "bans", "licenses", "sources"]),
        )
        .await?;
    let fetched = deny(&["fetch", "db"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !fetched {
        println!(
            "==> NOT CHECKED: advisories about the dependencies. Their database (github.com/rustsec/advisory-db) cannot be fetched"
        );
        return Ok(());
    }
    tally
        .run("dependencies: advisories", deny(&["check", "advisories"]))
        .await
}

/// The agent's tests run real servers of whatever version Debian has, some in network namespaces of their own.
fn install_packages() -> Result<()> {
    let wanted = [
        (packages::postgres_programs().is_some(), "postgresql"),
        (packages::has_program("ip"), "iproute2"),
        (packages::has_program("zstd"), "zstd"),
        (packages::has_program("age"), "age"),
        (packages::has_program("npm"), "npm"),
    ];
    packages::install(
        &wanted,
        "the tests need the programs `ip`, `zstd`, `age` and `npm`, and the server programs of PostgreSQL 15 or newer in /usr/lib/postgresql/<version>/bin",
    )
}
