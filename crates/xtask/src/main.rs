//! The project's own tasks: `cargo xtask --help` lists them.

mod availability;
mod background;
mod bench;
mod check;
mod demo;
mod image;
mod mutants;
mod shell;
mod soak;
mod suites;
mod summary;
mod testbed;

use std::process::ExitCode;

use clap::Parser;

/// The project's own tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Show the main job: a database is made, used, changed, hurt, recovered and removed.
    Demo(demo::Arguments),
    /// Install what is missing and run all checks.
    Test(check::Arguments),
    /// Measure creation time, API writes, memory and decisions per second.
    Bench(bench::Arguments),
    /// Measure how long writes stop when something happens, and whether anything acknowledged is lost.
    Availability(Box<availability::Arguments>),
    /// Random faults while clients write and read, and a check of all that they were told.
    Soak(soak::Arguments),
    /// Break rules of the machine, one at a time, and see each found by its check.
    Mutants(mutants::Arguments),
    /// Build the operator's image.
    Image(image::Arguments),
    /// A real Kubernetes on this Linux machine, for the demo and the tests.
    Testbed(testbed::Arguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Task::parse() {
        Task::Demo(arguments) => demo::run(arguments).await,
        Task::Test(arguments) => check::run(arguments).await,
        Task::Bench(arguments) => bench::run(arguments).await,
        Task::Availability(arguments) => availability::run(*arguments).await,
        Task::Soak(arguments) => soak::run(arguments).await,
        Task::Mutants(arguments) => mutants::run(arguments).await,
        Task::Image(arguments) => image::run(arguments).await,
        Task::Testbed(arguments) => testbed::run(arguments).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
