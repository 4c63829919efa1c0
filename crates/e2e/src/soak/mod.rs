//! Random faults, one after another and some at the same time, while clients append numbers to lists and read them.
//!
//! A reader of a list sees the order of all earlier appends. So a reordered, lost or partial transaction shows in the
//! answers to clients, not only in the final lists (an idea of Jepsen's Elle).
//!
//! [`record`] is what the clients note, [`check`] judges it, [`cycles`] finds transactions that depend on each other in
//! a circle, and [`schedule`] draws the faults from a seed. These modules only compute. `run` makes a soak of them.

pub mod check;
pub mod cycles;
pub mod random;
pub mod record;
#[cfg(feature = "harness")]
pub mod run;
pub mod schedule;
