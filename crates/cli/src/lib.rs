//! `kubectl cdb`: what a database does, why, and what a change would do.
//!
//! The operator's own code finds what the operator would see and decide ([`look`]); this crate decides nothing. Every page
//! shows a [`snapshot`] of the objects, from a cluster or from files.

pub mod ahead;
pub mod arguments;
pub mod backup;
pub mod change;
pub mod cluster;
pub mod drill;
pub mod file;
pub mod fleet;
pub mod history;
pub mod kubectl;
pub mod look;
pub mod parameters;
pub mod plan;
pub mod record;
pub mod redact;
pub mod replay;
pub mod report;
pub mod run;
pub mod snapshot;
pub mod status;
pub mod text;
pub mod upgrade;
pub mod verdict;
pub mod watch;
pub mod what_if;
pub mod why;
pub mod words;
