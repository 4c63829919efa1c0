//! The testbed: a real Kubernetes on this one Linux machine, from packages
//! alone, for the demo and the end-to-end tests.
//!
//! [`Testbed::up`] starts it or finds it running; [`Testbed::attach`] only finds it; [`Testbed::down`] removes all of
//! it. Several can run at the same time, distinguished by [`Options::instance`].
//!
//! What is slow to make is in `/var/cache/cdb-testbed`, or where [`CACHE_VARIABLE`] says, and outlives `down`. A
//! running testbed is in `/var/lib/cdb-testbed/INSTANCE` and `/run/cdb-testbed/INSTANCE`.

pub mod cluster;
pub mod plan;
pub mod progress;

mod cgroup;
mod command;
mod containerd;
mod control_plane;
mod down;
mod faults;
mod images;
mod kubebox;
mod mounts;
mod network;
mod node;
mod options;
mod paths;
mod pki;
mod preflight;
mod process;

mod state;
mod status;
mod template;
mod testbed;
mod up;

pub use crate::images::{BASE_IMAGE, POOLER_IMAGE, POSTGRES_IMAGE};
pub use crate::options::{INSTANCE_VARIABLE, Options, Timing};
pub use crate::paths::CACHE_VARIABLE;
pub use crate::status::Status;
pub use crate::testbed::Testbed;
pub use crate::up::Outcome;
pub use rustix::process::Signal;
