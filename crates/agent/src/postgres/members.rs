//! The members' replication roles and slots, on the primary.

use std::collections::BTreeSet;

use machine::protocol::MemberId;

use super::{Sql, SqlError, Verifier};

/// A member that may clone and stream: its role and slot exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standby {
    /// The member.
    pub member: MemberId,
    /// The slot keeps WAL for it.
    pub reserved: bool,
}

impl Sql {
    /// Makes a member's replication role and its slot, which keeps WAL from now on. Harmless if they exist; a slot whose WAL is lost
    /// is made anew if unused.
    pub async fn ensure_member(&mut self, _member: &MemberId) -> Result<Standby, SqlError> {
        todo!()
    }
    /// Drops slots and roles of members other than `wanted`; those in use stay. Returns what was dropped.
    pub async fn drop_members_except(&mut self, _wanted: &BTreeSet<MemberId>) -> Result<Vec<MemberId>, SqlError> {
        todo!()
    }
    /// Sets the password of `role` unless its stored verifier is already one of `password`; `true` if it was changed.
    pub async fn ensure_password(&mut self, _role: &str, _password: &str) -> Result<bool, SqlError> {
        todo!()
    }
    /// As [`Sql::ensure_password`], with a verifier.
    pub async fn set_verifier(&mut self, _role: &str, _verifier: &Verifier) -> Result<(), SqlError> {
        todo!()
    }
}
