//! Exhaustive exploration of a small world: three members with the real instance machine, a Lease, a network that loses and
//! delays, agents that crash at any point and act arbitrarily late, and clocks that cannot be relied upon.
//!
//! What is checked in every state is in [`check`]; what can happen next, in [`step`].

pub mod bounds;
pub mod check;
pub mod observe;
pub mod search;
pub mod state;
pub mod step;
mod world;
