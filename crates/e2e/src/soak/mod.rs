//! Random faults, one after another and some two at once, while clients append numbers to lists and read them.
//!
//! Why lists: whoever reads one sees the order of all that was appended before, so that a reordered, lost or half-made
//! transaction shows in what clients were told, not only in what is there at the end (the idea is that of Jepsen's Elle).
//!
//! [`record`] is what the clients note; [`check`] judges it; [`cycles`] finds transactions that depend on each other in a circle;
//! [`schedule`] draws the faults from a seed. None of these does anything but compute. `run` makes a soak of all that.

pub mod check;
pub mod cycles;
pub mod random;
pub mod record;
#[cfg(feature = "harness")]
pub mod run;
pub mod schedule;
