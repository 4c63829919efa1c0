//! The agent: PID 1 of the postgres container. It observes, lets the instance machine decide, and carries out.
//!
//! No decision about databases is made here: those are in crate `machine`.

pub mod deadman;
pub mod execute;
pub mod http;
pub mod kubernetes;
pub mod logs;
pub mod observe;
pub mod peer;
pub mod postgres;
pub mod process;
pub mod run;
pub mod volume;
