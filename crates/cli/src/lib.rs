//! `kubectl cdb`: what a database is doing, why, and what a change would do.
//!
//! What the operator would see and decide is found by the operator's own code ([`look`]); nothing is decided here. Every
//! page is made from a [`snapshot`] of the objects, which comes from a cluster or from files.

pub mod ahead;
pub mod arguments;
pub mod change;
pub mod cluster;
pub mod file;
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
pub mod watch;
pub mod what_if;
pub mod why;
pub mod words;
