//! A Kubernetes API server in memory.
//!
//! [`Store`] is its core: objects in, answers out, no I/O, and the time is a parameter. [`faults`] distorts what clients
//! see, by a seed. [`Server`] puts both behind a service that [`kube::Client`] takes, on tokio's clock, or on a
//! TCP port. [`stubs`] move
//! the rest of a cluster: StatefulSets, the scheduler, kubelets, volumes, the garbage collector. What the core does is
//! held against a real API server by [`conformance`].

mod change;
pub mod conformance;
mod defaults;
mod definition;
mod deletion;
pub mod faults;
mod fields;
mod http;
pub mod kinds;
mod merge;
mod ownership;
mod process;
mod reply;
mod request;
mod rules;
mod schema;
mod selector;
mod server;
mod store;
pub mod stubs;
mod watch;

pub use definition::Definition;
pub use kinds::Kind;
pub use merge::merge_patch;
pub use process::{Answered, Process};
pub use reply::{Refusal, Reply};
pub use request::{Call, Query, Verb};
pub use server::{Clock, Kill, Server};
pub use store::{Key, Store};
pub use watch::{Change, Watching};
