//! Which WAL senders count as standbys (protocol.md rule 3).
//!
//! PostgreSQL counts a WAL sender by its `application_name`, without regard to case. Any client can choose that name.
//! Only the role is proved: a member's role accepts only that member's certificate. So a WAL sender that uses a
//! member's name with another role is an *impostor*: it is ended, and its acknowledgements do not count. What
//! PostgreSQL acknowledged because of it is in doubt until the members themselves have flushed it.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::Context;
use super::memo::Change;
use super::observed::{Doubt, Impostor, PostgresView};
use super::{Action, Draft, OnBackoff, Rule, RuleKind, Verdict};
use crate::protocol::{Lsn, MemberId};
use crate::timing::BootTime;
use crate::units::Millis;

/// A WAL sender, as `pg_stat_replication` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalSender {
    /// Process id of the WAL sender.
    pub pid: i32,
    /// The role of its session.
    pub role: String,
    /// Its `application_name`.
    pub name: String,
    /// True if its `state` is `streaming`.
    pub streaming: bool,
    /// How far the other side reports to have flushed; `None` before its first report.
    pub flushed: Option<Lsn>,
}

/// How long an impostor is reported after it was last seen. People and alarms check about every half minute.
const REPORTED: Millis = Millis::minutes(1);
/// At most this many roles are reported.
const ROLES: usize = 4;

/// A role's name, limited to what a report may contain.
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

/// The WAL senders that use a member's name with another role.
pub fn impostors(senders: &[WalSender]) -> BTreeSet<Impostor> {
    senders.iter().filter_map(WalSender::impostor).collect()
}

/// How far the streaming members have flushed.
pub fn standbys(senders: &[WalSender]) -> BTreeMap<MemberId, Lsn> {
    let streaming = senders.iter().filter(|sender| sender.streaming);
    streaming
        .filter_map(|sender| Some((sender.member()?, sender.flushed?)))
        .collect()
}

/// The members that receive WAL, in whatever state, and how far they have flushed; 0/0 before their first report.
pub fn receiving(senders: &[WalSender]) -> BTreeMap<MemberId, Lsn> {
    let members = senders.iter();
    members
        .filter_map(|sender| Some((sender.member()?, sender.flushed.unwrap_or_default())))
        .collect()
}

impl PostgresView {
    /// Takes the WAL senders that existed when PostgreSQL was asked at `asked`. `end` is where a primary's WAL ended
    /// then.
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

    /// True if as many members as commits wait for have flushed all WAL before `end`.
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
    kind: RuleKind::Act,
    decide: end,
    on_backoff: OnBackoff::Yield,
};

/// Ends the impostors; again if a later answer still shows one.
fn end(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.running()?;
    let postgres = &context.observed.postgres;
    let asked = postgres.answer?.asked;
    let impostor = postgres.impostors.first()?;
    if draft.memo.impostors_ended.is_some_and(|at| asked <= at) {
        return None;
    }
    let because = format!(
        "role {:?} replicates under the name of {}, but is not that member",
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
