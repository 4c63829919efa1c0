//! Whose WAL senders count as standbys (protocol.md rule 3).
//!
//! PostgreSQL counts a WAL sender by its `application_name`, which whoever connects chooses, without regard to case. What is proved is
//! its role: a member's is opened by that member's certificate alone. So a WAL sender that bears a member's name and is of another role
//! is an *impostor*: it is ended, and nothing that it acknowledges is believed. What PostgreSQL believed meanwhile is in doubt until the
//! members themselves have flushed it.

use std::collections::{BTreeMap, BTreeSet};

use super::context::Context;
use super::memo::Change;
use super::observed::PostgresView;
use super::{Action, Draft, Rule, Verdict};
use crate::protocol::{Lsn, MemberId};
use crate::timing::BootTime;

/// A WAL sender, as `pg_stat_replication` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalSender {
    /// Its process.
    pub pid: i32,
    /// The role that it is logged in as.
    pub role: String,
    /// Its `application_name`.
    pub name: String,
    /// It streams (`state`).
    pub streaming: bool,
    /// How far the other side says it has flushed; `None` before it says so.
    pub flushed: Option<Lsn>,
}

/// A WAL sender that bears a member's name, and is of another role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Impostor {
    /// Its process.
    pub pid: i32,
    /// Its role.
    pub role: String,
    /// Its name.
    pub name: String,
}

/// Commits may have been acknowledged because an impostor was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    /// Its role; of several some.
    pub roles: BTreeSet<String>,
    /// These commits are before this.
    pub until: Lsn,
    /// When one was seen last.
    pub seen: BootTime,
}

/// For so long after an impostor was seen last it is reported, in milliseconds: people and alarms look each half minute or so.
const REPORTED: u64 = 60_000;
/// So many roles are reported.
const ROLES: usize = 4;

/// A role's name as reports may hold it.
fn printable(role: &str) -> String {
    let is_printable = |letter: &char| *letter == ' ' || letter.is_ascii_graphic();
    role.chars()
        .map(|letter| if is_printable(&letter) { letter } else { '?' })
        .collect()
}

impl WalSender {
    /// The member that it serves.
    pub fn member(&self) -> Option<MemberId> {
        MemberId::parse(&self.name).filter(|_| self.role == self.name)
    }

    fn impostor(&self) -> Option<Impostor> {
        MemberId::parse(&self.name.to_ascii_lowercase())?;
        (self.role != self.name).then(|| Impostor {
            pid: self.pid,
            role: self.role.clone(),
            name: self.name.clone(),
        })
    }
}

/// Those that bear a member's name, and are of another role.
pub fn impostors(senders: &[WalSender]) -> BTreeSet<Impostor> {
    senders.iter().filter_map(WalSender::impostor).collect()
}

/// How far the members that stream have flushed.
pub fn standbys(senders: &[WalSender]) -> BTreeMap<MemberId, Lsn> {
    let streaming = senders.iter().filter(|sender| sender.streaming);
    streaming
        .filter_map(|sender| Some((sender.member()?, sender.flushed?)))
        .collect()
}

/// The members that receive WAL, in whatever state, and how far they have flushed; 0/0 before they say it.
pub fn receiving(senders: &[WalSender]) -> BTreeMap<MemberId, Lsn> {
    let members = senders.iter();
    members
        .filter_map(|sender| Some((sender.member()?, sender.flushed.unwrap_or_default())))
        .collect()
}

impl PostgresView {
    /// Takes the WAL senders that there were when PostgreSQL was asked at `asked`. A primary's WAL (`Some`) ended there then.
    pub fn take_senders(&mut self, senders: &[WalSender], end: Option<Lsn>, asked: BootTime) {
        self.impostors = impostors(senders);
        let Some(end) = end else {
            self.standbys.clear();
            self.receiving.clear();
            self.doubt = None;
            return;
        };
        self.standbys = standbys(senders);
        self.receiving = receiving(senders);
        if self.impostors.is_empty() {
            let flushed = |doubt: &Doubt| self.is_flushed(doubt.until) && asked.since(doubt.seen) >= REPORTED;
            if self.doubt.as_ref().is_some_and(flushed) {
                self.doubt = None;
            }
            return;
        }
        let doubt = self.doubt.get_or_insert_default();
        (doubt.until, doubt.seen) = (end, asked);
        for impostor in &self.impostors {
            if doubt.roles.len() < ROLES {
                doubt.roles.insert(printable(&impostor.role));
            }
        }
    }

    /// As many members as commits wait for have flushed all WAL before `end`.
    fn is_flushed(&self, end: Lsn) -> bool {
        let rule = &self.sync.proven;
        let names = rule.names.iter();
        let flushed = names.filter(|name| self.standbys.get(*name).is_some_and(|flushed| *flushed >= end));
        flushed.count() >= rule.required
    }
}

pub(super) const END_IMPOSTORS: Rule = Rule {
    name: "end-impostors",
    family: "impostors",
    what: "Ends WAL senders that use a member's name and not that member's role.",
    protocol: &[3],
    decide: end,
};

/// Ends the impostors; again if a later look still shows one.
fn end(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.running()?;
    let postgres = &context.observed.postgres;
    let asked = postgres.answer?.asked;
    let impostor = postgres.impostors.first()?;
    if draft.memo.impostors_ended.is_some_and(|at| asked <= at) {
        return None;
    }
    let because = format!(
        "role {:?} replicates under the name of {}, and is not that member",
        impostor.role, impostor.name
    );
    Verdict::noting(
        Action::EndImpostors {
            impostors: postgres.impostors.clone(),
        },
        because,
        [Change::EndsImpostors(context.now)],
    )
}

#[cfg(test)]
mod tests;
