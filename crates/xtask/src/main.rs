//! The project's own tasks: `cargo xtask --help` lists them.

mod budgets;
mod check;
#[cfg(target_os = "linux")]
mod lanes;
#[cfg(target_os = "linux")]
mod linux;
mod memory;
mod mutants;
#[cfg(test)]
mod pages;
mod summary;
mod times;

use std::process::ExitCode;

use clap::Parser;

/// The project's own tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Install what is missing and run all checks.
    Test(check::Arguments),
    /// Break rules of the machine, one at a time, and see each found by its check.
    Mutants(mutants::Arguments),
    /// Measure the operator's memory with many databases, and with strangers' objects.
    Memory,
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    Linux(linux::Task),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Task::parse() {
        Task::Test(arguments) => check::run(arguments).await,
        Task::Mutants(arguments) => mutants::run(arguments).await,
        Task::Memory => memory::run(),
        #[cfg(target_os = "linux")]
        Task::Linux(task) => linux::run(task).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
