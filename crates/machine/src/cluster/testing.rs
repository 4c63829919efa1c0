//! A database in memory, for the tests and benchmarks of this crate and of those that use it.
