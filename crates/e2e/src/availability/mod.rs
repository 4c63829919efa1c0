//! How long a database cannot be written to after a fault, and whether acknowledged rows are lost.
//!
//! A writer in the cluster (`availability-writer`) notes the outcome of every attempt as a [`record`] and summarizes
//! its [`status`]. [`history`] combines the notes of a run, [`report`] measures them, [`svg`] draws them, and [`table`]
//! summarizes many runs. These modules only compute.
//!
//! The other modules act. `scenario` lists what can happen to a `subject`, `inject` does it, and `load` keeps the CPUs
//! busy. `pod` is a writer's pod, `watch` notes what the API server reports, and `logs` what the agents have logged
//! ([`agents`] reads it). `run` combines them in a run, and `case` says what a run may cost, for the end-to-end tests.

pub mod agents;
#[cfg(feature = "harness")]
pub mod case;
pub mod history;
#[cfg(feature = "harness")]
pub mod inject;
#[cfg(feature = "harness")]
pub mod load;
#[cfg(feature = "harness")]
mod logs;
#[cfg(feature = "harness")]
pub mod pod;
pub mod record;
pub mod report;
#[cfg(feature = "harness")]
pub mod run;
pub mod scenario;
pub mod status;
#[cfg(feature = "harness")]
pub mod subject;
pub mod svg;
pub mod table;
#[cfg(feature = "harness")]
mod watch;
