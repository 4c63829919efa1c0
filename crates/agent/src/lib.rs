//! The agent: PID 1 of the postgres container. It observes, lets the instance machine decide, and carries out.
//!
//! No decision about databases is made here: those are in crate `machine`.

// Every public function says when it fails. The lint sees only what other crates can use; `pub(crate)` is up to us.
#![warn(clippy::missing_errors_doc)]

pub mod archive;
pub mod base;
pub mod deadman;
pub mod event;
pub mod execute;
pub mod http;
pub mod kubernetes;
pub mod logs;
pub mod observe;
pub mod peer;
pub mod pooler;
pub mod postgres;
pub mod process;
pub mod run;
mod stamp;
pub mod tools;
pub mod volume;
