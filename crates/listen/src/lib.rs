//! Listening ports that no stranger can block, and a sign of life that no network reaches. Operator and agent share
//! this crate.
//!
//! A port accepts every connection at once, serves a bounded number of them for a bounded time, and drops the oldest
//! for the newest ([`Connections`]). So a client with a short request is answered, whatever else is connected.

mod admission;
pub mod alive;
#[cfg(any(test, feature = "flood"))]
pub mod flood;
mod http;
mod port;

pub use admission::{Bounds, Connections};
pub use port::Port;
