//! The objects that the agent reads and writes in Kubernetes: its own ClusteredDatabase, Lease and EndpointSlice, and the
//! Secret and the ConfigMap of its DatabaseUsers and Databases.

mod access;
mod client;
mod lease;
mod route;
mod watch;

pub use access::{ReportError, read_declarations};
pub use client::Clients;
pub use lease::{LeaseReadError, LeaseWriteError, Written};
pub use route::{RouteError, read_route};
pub use watch::watch;
