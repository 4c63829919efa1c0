//! Quorum arithmetic of the synchronous rule (protocol.md, rules 9 to 11 and 20 to 21): when an election is safe, and
//! in which order the rule on record and the setting in PostgreSQL may change.

use std::collections::{BTreeMap, BTreeSet};

use api::names::MAX_INSTANCES;
use serde::{Deserialize, Deserializer, Serialize};

use crate::protocol::{Lsn, MemberId};

/// `ANY required (names)`: a commit is acknowledged once `required` of `names` have flushed it. With `required` 0 a
/// commit is acknowledged by the primary alone.
///
/// There is no other kind: under `FIRST` who acknowledges depends on who is connected. A rule on record with anything more in it
/// is one that this program does not know, and is not read.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SyncRule {
    /// How many of the names must have flushed.
    #[serde(deserialize_with = "required")]
    pub required: usize,
    /// The members that count; the primary is not among them. They stand in PostgreSQL's setting as they are, and `*` would be
    /// anybody (protocol.md rule 3): what is read here has the shape of an identity.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub names: BTreeSet<MemberId>,
}

/// A commit waits for no more members than there can be.
fn required<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let required = usize::deserialize(deserializer)?;
    let most = usize::try_from(MAX_INSTANCES).unwrap_or(usize::MAX);
    match required > most {
        true => Err(serde::de::Error::custom(format!(
            "a commit cannot wait for {required} members: there are {most} at most"
        ))),
        false => Ok(required),
    }
}

impl SyncRule {
    /// `ANY required (names)`.
    pub fn any(required: usize, names: impl IntoIterator<Item = MemberId>) -> Self {
        Self {
            required,
            names: names.into_iter().collect(),
        }
    }

    /// A commit waits for somebody.
    pub fn is_synchronous(&self) -> bool {
        self.required > 0
    }

    /// How many promises of names an election needs: more than n − k, so that they meet every set of `required` names
    /// (protocol.md rule 9). 0 without a synchronous rule.
    pub fn promises_needed(&self) -> usize {
        if self.required == 0 {
            return 0;
        }
        (self.names.len() + 1).saturating_sub(self.required).max(1)
    }

    /// `promised` holds enough names for an election.
    pub fn can_elect<'a>(&self, promised: impl IntoIterator<Item = &'a MemberId>) -> bool {
        let promised: BTreeSet<_> = promised.into_iter().filter(|name| self.names.contains(*name)).collect();
        self.is_synchronous() && promised.len() >= self.promises_needed()
    }

    /// While this rule is on record, `setting` may be in force (protocol.md rule 10): whoever acknowledges by the setting
    /// has asked at least `required` of the names on record.
    pub fn covers(&self, setting: &SyncRule) -> bool {
        if self.required == 0 {
            return true;
        }
        let elsewhere = setting.names.difference(&self.names).count();
        setting.required >= self.required + elsewhere
    }

    /// An election by `next` finds whatever was acknowledged under `self`, by counting alone (protocol.md rule 10).
    pub fn intersects(&self, next: &SyncRule) -> bool {
        if next.required == 0 {
            return true;
        }
        let added = next.names.difference(&self.names).count();
        self.required > 0 && next.promises_needed() >= self.promises_needed() + added
    }
}

/// What is in force, for [`next_step`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce<'a> {
    /// The rule in the Lease.
    pub recorded: &'a SyncRule,
    /// The setting that every WAL sender is proven to use.
    pub proven: &'a SyncRule,
    /// A setting that some may use already: it was being set, and that is not proven.
    pub pending: Option<&'a SyncRule>,
    /// How far each member has flushed.
    pub flushed: &'a BTreeMap<MemberId, Lsn>,
    /// End of the primary's WAL when `proven` was proven: whatever was acknowledged by an older setting is before it.
    pub proven_at: Lsn,
}

/// One step of a change of the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Put this setting in force, and prove it.
    Set(SyncRule),
    /// Record this rule in the Lease.
    Record(SyncRule),
    /// `required` members of this rule have yet to flush what was written.
    AwaitFlush(SyncRule),
}

/// The next safe step from what is in force towards `goal`; `None` when it is reached. Every step leaves the rule on
/// record covering every setting that may be in use, and every election by the rule on record meeting every acknowledged
/// commit.
pub fn next_step(now: &InForce, goal: &SyncRule) -> Option<Step> {
    if now.recorded == goal && now.proven == goal && now.pending.is_none() {
        return None;
    }
    if let Some(step) = toward(now, goal) {
        return Some(step);
    }
    // Not in one step: first the names grow, then they shrink, then the number changes.
    let names: BTreeSet<_> = now.recorded.names.union(&goal.names).cloned().collect();
    let mut hops = [goal.required, now.recorded.required].into_iter();
    let hop = hops.find_map(|required| {
        let names = names.clone();
        toward(now, &SyncRule { required, names })
    });
    // A primary began with an older setting than is on record, and that one names a member that is gone.
    hop.or_else(|| toward(now, now.recorded))
}

fn covers_all(now: &InForce, rule: &SyncRule) -> bool {
    rule.covers(now.proven) && now.pending.is_none_or(|pending| rule.covers(pending))
}

fn toward(now: &InForce, hop: &SyncRule) -> Option<Step> {
    let set = now.pending.is_none() && now.proven == hop;
    if now.recorded != hop && covers_all(now, hop) {
        let step = if is_safe_record(now, hop) {
            Step::Record
        } else {
            Step::AwaitFlush
        };
        return Some(step(hop.clone()));
    }
    (!set && now.recorded.covers(hop)).then(|| Step::Set(hop.clone()))
}

/// Rule 10's second half: elections by `next` meet what was acknowledged before, by counting or because `required` of
/// its names hold everything.
fn is_safe_record(now: &InForce, next: &SyncRule) -> bool {
    now.recorded.intersects(next) || holders(now, next) >= next.required
}

fn holders(now: &InForce, rule: &SyncRule) -> usize {
    let holds = |name: &&MemberId| now.flushed.get(*name).is_some_and(|flushed| *flushed >= now.proven_at);
    rule.names.iter().filter(holds).count()
}

#[cfg(test)]
mod tests;
