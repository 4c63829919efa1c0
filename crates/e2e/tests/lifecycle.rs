//! End-to-end: the life of a database.
