//! The synchronous rule of a holder: what is wanted, and the order in which the rule on record and PostgreSQL's setting
//! change (protocol.md rules 10, 11, 13, 20 and 21). n and k of an election always come from the Lease, never from the spec.

use std::collections::{BTreeMap, BTreeSet};

use api::WantedDurability;
use api::status::DurabilityMode;

use super::context::Context;
use super::lease_rules::{self, Write};
use super::{Action, Draft, Memo, Rule, Verdict, members};
use crate::protocol::{Lsn, MemberId};
use crate::quorum::{InForce, Step, SyncRule, next_step};

/// Longest wait between failed tries, in milliseconds.
const RETRY: u64 = 2_000;
/// For so long a standby must be away before its name leaves the rule, in milliseconds: a stream that is begun anew is back
/// in half of that.
const AWAY: u64 = 1_000;

pub(super) const OPEN: Rule = Rule {
    name: "open",
    family: "durability",
    what: "Lets applications connect once as many synchronous members as required hold all WAL that is in doubt.",
    protocol: &[13],
    decide: open,
};

/// Lets applications connect once enough members hold all that may be in doubt (protocol.md rule 13): a commit that the
/// primary had not acknowledged before it was started is visible from now on.
fn open(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.held()?;
    if !context.accepting() || context.observed.postgres.open || !knows_rule(context) || !is_replicated(context) {
        return None;
    }
    if !context.is_free(&context.tasks().configure, RETRY, draft) {
        return None;
    }
    let because = match context.record()?.rule.required {
        0 => "PostgreSQL can write, and commits wait for nobody".to_owned(),
        required => {
            format!("PostgreSQL can write, and {required} of the synchronous members hold all that is in doubt")
        }
    };
    Verdict::new(Action::Open, because)
}

/// The rule on record is known: a write of the Lease whose fate is unknown may have recorded another than the one that was read.
fn knows_rule(context: &Context) -> bool {
    let lease = &context.tasks().lease;
    lease.running.is_none() && lease.failures == 0
}

/// As many names of the rule as it requires have flushed whatever was in doubt. Who follows a promoted primary says so with its first
/// report, while it is sent the segment of the fork once more; commits wait until it has that.
fn is_replicated(context: &Context) -> bool {
    let Some(rule) = context.record().map(|record| &record.rule) else {
        return false;
    };
    let postgres = &context.observed.postgres;
    let Some(in_doubt) = postgres.in_doubt else {
        return !rule.is_synchronous();
    };
    let names = rule.names.iter();
    let hold = names.filter(|name| {
        postgres
            .receiving
            .get(*name)
            .is_some_and(|flushed| *flushed >= in_doubt)
    });
    hold.count() >= rule.required && rule.covers(&postgres.sync.proven)
}

/// Applications wait for `member`: of the others that the rule names, fewer receive WAL from here than are to flush what is in doubt.
pub(super) fn awaits(context: &Context, member: &MemberId) -> bool {
    let Some(rule) = context.record().map(|record| &record.rule) else {
        return false;
    };
    let postgres = &context.observed.postgres;
    let others = rule.names.iter().filter(|name| *name != member);
    let receive = others.filter(|name| postgres.receiving.contains_key(*name)).count();
    context.accepting() && !postgres.open && rule.names.contains(member) && receive < rule.required
}

pub(super) const CHANGE_RULE: Rule = Rule {
    name: "change-rule",
    family: "durability",
    what: "Changes the synchronous rule by one safe step: in the setting of PostgreSQL, or on record in the Lease.",
    protocol: &[10, 11, 20, 21],
    decide: change,
};

/// Brings the rule to what is wanted, one safe step at a time.
fn change(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.held()?;
    if !context.accepting() {
        return None;
    }
    let record = context.record()?;
    let goal = goal(context, draft)?;
    let postgres = &context.observed.postgres;
    let now = InForce {
        recorded: &record.rule,
        proven: &postgres.sync.proven,
        pending: postgres.sync.pending.as_ref(),
        flushed: &postgres.standbys,
        proven_at: postgres.sync.proven_at,
    };
    match next_step(&now, &goal)? {
        Step::AwaitFlush(_) => None,
        Step::Set(rule) => {
            if !knows_rule(context) || !context.is_free(&context.tasks().sync, RETRY, draft) {
                return None;
            }
            let because = format!("commits are to wait for {}", words(&rule));
            Verdict::new(Action::SetSync { rule }, because)
        }
        Step::Record(rule) => {
            if context.tasks().sync.running.is_some() || !lease_rules::is_free(context, draft) {
                return None;
            }
            let because = format!("elections are to count by {}", words(&rule));
            let write = Write {
                holder: lease_rules::holder(context, record),
                rule,
                ..Write::renewal(record)
            };
            Verdict::new(write.action(context, draft), because)
        }
    }
}

/// A rule, in words.
fn words(rule: &SyncRule) -> String {
    if !rule.is_synchronous() {
        return "nobody".to_owned();
    }
    let names: Vec<_> = rule.names.iter().map(MemberId::as_str).collect();
    format!("{} of {}", rule.required, names.join(", "))
}

/// The rule that is wanted now; `None` while it is not known what is.
fn goal(context: &Context, draft: &mut Draft) -> Option<SyncRule> {
    let durability = context.cluster()?.durability;
    let recorded = &context.record()?.rule;
    if waits_for_nobody(&durability) {
        return Some(SyncRule::default());
    }
    let mut names = following(context, draft);
    if durability.mode == DurabilityMode::Required && names.len() < durability.standbys {
        // Fewer than are required: nobody leaves, and commits wait until one is back.
        names.extend(recorded.names.iter().cloned());
    }
    let required = durability.standbys.min(names.len());
    Some(SyncRule { required, names })
}

/// The wanted members that stream, and those of the rule that did until a moment ago.
fn following(context: &Context, draft: &mut Draft) -> BTreeSet<MemberId> {
    let now = context.now;
    let reports = members::reports(context, draft);
    let wanted = |pod: &str| members::is_wanted(context, pod);
    let known: BTreeSet<_> = reports
        .iter()
        .filter(|(pod, _)| **pod != context.observed.own.pod && wanted(pod))
        .map(|(_, report)| report.member.clone())
        .collect();
    let streaming: &BTreeMap<MemberId, Lsn> = &context.observed.postgres.standbys;
    let recorded = context
        .record()
        .map(|record| record.rule.names.clone())
        .unwrap_or_default();
    let mut names = BTreeSet::new();
    for member in known {
        if streaming.contains_key(&member) {
            names.insert(member);
        } else if recorded.contains(&member) {
            let since = draft.memo.away.get(&member).copied().unwrap_or(now);
            if now < since.plus(AWAY) {
                draft.wake(since.plus(AWAY));
                names.insert(member);
            }
        }
    }
    names
}

/// Since when members of the rule have been away, while this holder decides on the rule.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let (Some(record), Some(cluster)) = (context.record(), context.cluster()) else {
        return;
    };
    if context.held().is_none() || !context.accepting() || waits_for_nobody(&cluster.durability) {
        return;
    }
    let streaming = &context.observed.postgres.standbys;
    let is_away = |member: &MemberId| !streaming.contains_key(member);
    for member in record.rule.names.iter().filter(|member| is_away(member)) {
        if !memo.away.contains_key(member) && members::is_known(context, memo, member) {
            memo.away.insert(member.clone(), context.now);
        }
    }
    memo.away
        .retain(|member, _| is_away(member) && record.rule.names.contains(member));
}

/// By the spec, commits are to wait for no standby.
fn waits_for_nobody(durability: &WantedDurability) -> bool {
    durability.mode == DurabilityMode::Async || durability.standbys == 0
}

#[cfg(test)]
mod tests;
