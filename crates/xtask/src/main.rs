//! The project's own tasks: `cargo xtask --help` lists them.

mod testbed;

use std::process::ExitCode;

use clap::Parser;

/// The project's own tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// A real Kubernetes on this Linux machine, for the demo and the tests.
    Testbed(testbed::Arguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Task::parse() {
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
