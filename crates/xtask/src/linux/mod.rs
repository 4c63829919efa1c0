//! Tasks that need a cluster of their own, or build for one: these are made of what only Linux has.

mod availability;
mod background;
mod backup;
mod bench;
mod beside;
mod demo;
mod image;
mod packages;
mod pooler;
mod soak;
mod testbed;
pub mod whole;

use anyhow::Result;
use clap::Subcommand;

/// The tasks.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Show the main job: a database is made, used, changed, hurt, recovered and removed.
    Demo(demo::Arguments),
    /// Measure creation time, API writes, memory and decisions per second; `bench backup` measures backups.
    Bench(bench::Arguments),
    /// Measure how long writes stop when something happens, and whether anything acknowledged is lost.
    Availability(Box<availability::Arguments>),
    /// Random faults while clients write and read, and a check of all answers to them.
    Soak(soak::Arguments),
    /// Build the operator's image.
    Image(image::Arguments),
    /// A real Kubernetes on this Linux machine, for the demo and the tests.
    Testbed(testbed::Arguments),
}

/// Runs one.
///
/// # Errors
/// When it fails.
pub async fn run(task: Task) -> Result<()> {
    match task {
        Task::Demo(arguments) => demo::run(arguments).await,
        Task::Bench(arguments) => bench::run(arguments).await,
        Task::Availability(arguments) => availability::run(*arguments).await,
        Task::Soak(arguments) => soak::run(arguments).await,
        Task::Image(arguments) => image::run(arguments).await,
        Task::Testbed(arguments) => testbed::run(arguments).await,
    }
}
