//! Exhaustive exploration of a small world: members with the real instance machine, a Lease, a network that loses and
//! delays, agents that crash at any point and act arbitrarily late, and clocks that run apart.
//!
//! What is checked in every state is in [`check`]; what can happen next, in [`step`]. What it leaves out: docs/model.md.

mod archive;
pub mod bounds;
pub mod check;
pub mod converge;
mod distort;
mod faults;
mod fingerprint;
mod forget;
pub mod label;
mod names;
pub mod observe;
mod packed;
mod random;
mod rename;
mod rest;
pub mod search;
mod show;
pub mod state;
pub mod step;
pub mod table;
mod tasks;
pub mod walk;
mod wire;

mod world;
