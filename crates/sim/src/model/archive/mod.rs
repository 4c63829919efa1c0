//! The archive of WAL: what PostgreSQL's archiver of each member strikes off and pushes, by the decisions of
//! `machine::archive` and `machine::instance::archive`.
//!
//! A position counts records, and a segment has as many records as the world says. So the WAL of a name is always the
//! same, unless it is the half of a segment in which a timeline ended: a bit per object tells all about a store.

mod check;
mod files;
mod steps;

pub(super) use check::{is_archived, violation};
pub use files::{Basis, Marks, Objects};
pub(super) use files::{received, settle, wrote};
