//! The operator: observes a database's objects, lets the cluster machine decide, and carries out one action at a time.
//! No decision about a database is made here.

pub mod builders;
pub mod certificates;
pub mod config;
pub mod credentials;
pub mod drift;
