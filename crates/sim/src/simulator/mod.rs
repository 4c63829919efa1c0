//! A simulator: whole databases in virtual time, with the real instance machine in each member, under faults that a
//! seed chooses.
//!
//! A run depends only on its seed: the same seed gives the same run, bit for bit. See docs/simulator.md.

mod act;
mod agent;
mod api;
mod archive;
mod calls;
mod clients;
pub mod conformance;
mod coverage;
mod distort;
mod event;
mod execute;
mod faults;
mod impostors;
mod learn;
mod liveness;
mod names;
mod net;
mod node;
mod operator;
mod oracle;
mod pairs;
mod peers;
mod plan;
mod postgres;
mod promotion;
mod random;
mod rejoin;
mod run;
mod setting;
mod status;
mod stop;
mod stream;
mod tasks;
mod trace;
mod wal;
mod world;

pub use archive::Archive;
pub use coverage::{Coverage, GOALS, OPERATED_GOALS, OPERATOR_RULES, RULES};
pub use distort::Bug;
pub use pairs::{Decided, list};
pub use plan::{Fault, Injection, Plan, Target};
pub use run::{Outcome, run, shrink};
pub use trace::Line;
