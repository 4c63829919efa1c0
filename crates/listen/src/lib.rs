//! Listening ports that no stranger can stop up, and a sign of life that no network reaches. Operator and agent share it.
//!
//! A port accepts every connection at once, serves a bounded number of them for a bounded time, and drops the oldest for
//! the newest ([`Connections`]). So a client that asks something short is answered, whatever else is connected.

mod admission;
pub mod alive;
#[cfg(any(test, feature = "flood"))]
pub mod flood;
mod http;
mod port;

pub use admission::{Bounds, Connections};
pub use port::Port;
