//! `cargo xtask mutants`: rules of crate `machine`, broken one at a time, and the check that must find each.
//!
//! The product's code stays clean: a mutant is a small replacement in a copy of the sources. All are planted in one copy,
//! each behind a switch, so that they are built once; a check is then run with one switch thrown.

mod access;
mod archive;
mod checks;
mod cluster_changes;
mod cluster_objects;
mod cluster_removal;
mod election;
mod heard;
#[cfg(test)]
mod instance;
mod lease;
mod observer;
mod page;
mod pooler;
mod quorum;
mod reconcile;
#[cfg(test)]
mod tests;
mod tree;
mod volume;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use suites::shell::{cargo_command, repository, step};

use crate::summary::Tally;
use checks::{Outcome, Runner};

/// Breaks rules of the machine, one at a time, and runs the check that must find each.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Only these; without a name all, and docs/mutants.md is written anew.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Show how three of them are found: by a unit test, by a property test, and by the model.
    #[arg(long, conflicts_with = "names")]
    demonstration: bool,
    /// Write nothing: find all, and show these three.
    #[arg(long, conflicts_with_all = ["names", "demonstration"])]
    check: bool,
    /// Instead of these: every mutant that cargo-mutants makes of crate `machine`. What is found is kept in target/mutants/all.
    #[arg(long, conflicts_with_all = ["names", "demonstration", "check"])]
    all: bool,
    /// Only mutants of this file, below crates/machine/src; may be given more than once.
    #[arg(long = "file", value_name = "FILE", requires = "all")]
    files: Vec<String>,
    /// Only tests that take less than a tenth of a second.
    #[arg(long, requires = "all")]
    quick: bool,
    /// Also those that cannot be planted (in constants, say), each built alone: half a minute each.
    #[arg(long, requires = "all")]
    alone: bool,
}

/// One broken rule of crate `machine`.
#[derive(Debug)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// What goes wrong, in words.
    pub planted: &'static str,
    /// The rule that it breaks: of the protocol, one of the invariants, or a rule of docs/state-machine.md or docs/instance-machine.md.
    pub breaks: &'static str,
    /// The file, below `crates/machine/src`.
    pub file: &'static str,
    /// An expression that stands in that file once.
    pub text: &'static str,
    /// The expression that stands there instead, of the same type.
    pub instead: &'static str,
    /// The check that must fail.
    pub found_by: Check,
}

/// How a check works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// Examples of one rule.
    Unit,
    /// Random cases of one rule, or of all.
    Property,
    /// The whole course of a change, in a simulated cluster.
    Convergence,
    /// Every course of a few events, around one volume.
    Exploration,
    /// Courses of a small world of three members.
    Model,
}

impl Rung {
    const fn as_str(self) -> &'static str {
        match self {
            Rung::Unit => "unit test",
            Rung::Property => "property test",
            Rung::Convergence => "convergence test",
            Rung::Exploration => "exploration",
            Rung::Model => "model",
        }
    }

    /// How long a check may take, with its process: what is found later does not count. On two idle cores each is found in
    /// a tenth of it, so that a machine that does other things as well changes nothing.
    const fn budget(self) -> Duration {
        Duration::from_secs(match self {
            Rung::Unit => 2,
            Rung::Property | Rung::Convergence | Rung::Exploration => 15,
            Rung::Model => 60,
        })
    }
}

/// A test, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// How it works.
    pub rung: Rung,
    /// The crate.
    pub package: &'static str,
    /// The file in `tests/`; `None`: the test stands beside the code.
    pub target: Option<&'static str>,
    /// Its path.
    pub path: &'static str,
}

const fn beside(rung: Rung, path: &'static str) -> Check {
    Check {
        rung,
        package: "machine",
        target: None,
        path,
    }
}

const fn unit(path: &'static str) -> Check {
    beside(Rung::Unit, path)
}

const fn property(path: &'static str) -> Check {
    beside(Rung::Property, path)
}

const fn exploration(path: &'static str) -> Check {
    beside(Rung::Exploration, path)
}

const fn in_tests(rung: Rung, target: &'static str, path: &'static str) -> Check {
    Check {
        rung,
        package: "machine",
        target: Some(target),
        path,
    }
}

const fn situations(path: &'static str) -> Check {
    in_tests(Rung::Property, "properties", path)
}

const fn convergence(path: &'static str) -> Check {
    in_tests(Rung::Convergence, "convergence", path)
}

/// Long courses of the model's small world, with many faults.
const COURSES: &str = "three_members_lose_nothing_in_long_courses";

const fn model(path: &'static str) -> Check {
    Check {
        rung: Rung::Model,
        package: "sim",
        target: Some("model"),
        path,
    }
}

/// All mutants.
pub fn all() -> impl Iterator<Item = &'static Mutant> {
    [
        lease::MUTANTS,
        heard::MUTANTS,
        observer::MUTANTS,
        election::MUTANTS,
        quorum::MUTANTS,
        volume::MUTANTS,
        archive::MUTANTS,
        access::MUTANTS,
        pooler::MUTANTS,
        cluster_objects::MUTANTS,
        cluster_changes::MUTANTS,
        cluster_removal::MUTANTS,
        reconcile::MUTANTS,
    ]
    .into_iter()
    .flatten()
}

/// One for each of three rungs.
const DEMONSTRATION: [&str; 3] = ["wipe-the-only-copy", "trust-the-phase", "record-unflushed"];

/// One that was found.
struct Killed {
    mutant: &'static Mutant,
    took: Duration,
}

/// Plants the mutants, and runs the checks.
///
/// # Errors
/// When a check fails without a mutant, or one does not find its mutant in time.
pub async fn run(arguments: Arguments) -> Result<()> {
    if arguments.all {
        return every(&arguments);
    }
    if arguments.check {
        let mut tally = Tally::default();
        check(&mut tally).await?;
        return tally.close();
    }
    let chosen: Vec<&Mutant> = if arguments.demonstration {
        demonstration()?
    } else if arguments.names.is_empty() {
        all().collect()
    } else {
        arguments.names.iter().map(|name| named(name)).collect::<Result<_>>()?
    };
    let runner = build()?;
    let killed = kill(&runner, &chosen, arguments.demonstration).await?;
    if !arguments.demonstration && arguments.names.is_empty() {
        let path = repository()?.join(page::PATH);
        std::fs::write(&path, page::write(&killed)).with_context(|| format!("write {}", path.display()))?;
        println!("{} is written", page::PATH);
    }
    Ok(())
}

/// Starts crate `mutants`, which is compiled only for this.
fn every(arguments: &Arguments) -> Result<()> {
    let mut cargo = cargo_command(&["run", "--quiet", "--locked", "-p", "mutants", "--"]);
    cargo.args(arguments.files.iter().flat_map(|file| ["--file", file]));
    cargo.args(arguments.quick.then_some("--quick"));
    cargo.args(arguments.alone.then_some("--alone"));
    step("trying every mutant of crate machine", &mut cargo)
}

/// Sees all of them found, each by its check and in time, and shows three of them.
///
/// # Errors
/// When the checks cannot be built. A mutant that lives is noted in the tally.
pub async fn check(tally: &mut Tally) -> Result<()> {
    let start = Instant::now();
    let runner = build()?;
    tally.part("building the mutants' checks", start);
    let start = Instant::now();
    let killed = kill(&runner, &all().collect::<Vec<_>>(), false).await;
    tally.figure("mutants", killed.map(|killed| page::in_words(&killed)));
    tally.part("mutants", start);
    let start = Instant::now();
    let shown = kill(&runner, &demonstration()?, true).await;
    tally.figure(
        "demonstration",
        shown.map(|shown| format!("demonstration: {}", page::in_words(&shown))),
    );
    tally.part("demonstration", start);
    Ok(())
}

fn build() -> Result<Runner> {
    let tree = tree::plant(&repository()?, &all().collect::<Vec<_>>())?;
    Runner::build(&tree)
}

/// Runs the checks of these mutants, first without any.
async fn kill(runner: &Runner, chosen: &[&'static Mutant], show: bool) -> Result<Vec<Killed>> {
    runner.confirm(chosen).await?;
    let mut killed = Vec::new();
    let mut wrong = Vec::new();
    for mutant in chosen {
        let (outcome, took) = runner.run(mutant).await?;
        if show {
            demonstrate(mutant, &outcome, took);
        } else {
            println!("{:>7.2} s  {}: {}", took.as_secs_f64(), mutant.name, outcome.in_words());
        }
        match outcome {
            Outcome::Found(_) => killed.push(Killed { mutant, took }),
            Outcome::Passed | Outcome::Late(_) | Outcome::Broken(_) => wrong.push(mutant.name),
        }
    }
    println!("\n{} mutants, {} killed", chosen.len(), killed.len());
    if !wrong.is_empty() {
        bail!("not killed: {}", wrong.join(", "));
    }
    Ok(killed)
}

fn demonstration() -> Result<Vec<&'static Mutant>> {
    DEMONSTRATION.iter().map(|name| named(name)).collect()
}

fn named(name: &str) -> Result<&'static Mutant> {
    all()
        .find(|mutant| mutant.name == name)
        .with_context(|| format!("there is no mutant {name}: {} lists them", page::PATH))
}

fn demonstrate(mutant: &Mutant, outcome: &Outcome, took: Duration) {
    let Mutant {
        name,
        planted,
        breaks,
        file,
        text,
        instead,
        found_by,
    } = mutant;
    println!("\n{name} ({breaks}): {planted}");
    println!("  planted:  crates/machine/src/{file}");
    println!("            - {text}");
    println!("            + {instead}");
    println!("  check:    {}, {}", found_by.rung.as_str(), found_by.path);
    println!("  result:   {} after {:.2} s", outcome.in_words(), took.as_secs_f64());
}
