//! How long a database cannot be written to when something happens to it, and whether anything acknowledged is lost.
//!
//! A writer in the cluster (`availability-writer`) notes the outcome of every attempt as a [`record`] and sums up its
//! [`status`]; [`history`] puts the notes of a run together; [`report`] measures them; [`svg`] draws them; [`table`] sums
//! many runs up. None of these does anything but compute.
//!
//! The rest acts: `scenario` says what can happen to a `subject`, `inject` does it, `load` keeps the CPUs busy, `pod` is a writer's pod, `watch`
//! notes what the API server tells, `logs` what the agents have logged ([`agents`] reads it), and `run` makes a run of all that; `case` says what a run may cost, for the end-to-end tests.

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
