//! The shipped operator (caches, queue, executor) against an API server in memory that behaves as a real one does, on a
//! clock of its own: each run takes milliseconds, and its seed says all of it.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod agents;
mod applies;
mod backups;
mod certificates;
mod changes;
mod conflicts;
mod course;
mod creation;
mod databases;
mod declared;
mod kept;
mod operations;
mod panics;
mod poolers;
mod record;
mod repair;
mod requests;
mod scenario;
mod scenarios;
mod seeds;
mod side_by_side;
mod unreadable;
mod users;
mod versions;
mod world;
