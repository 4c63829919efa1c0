//! The synchronous rule of a holder: which one is wanted, and in which order the rule in the Lease and PostgreSQL's
//! setting change (protocol.md rules 10, 11, 13, 20 and 21). An election always takes n and k from the Lease, never
//! from the spec.

use std::collections::{BTreeMap, BTreeSet};

use api::WantedDurability;
use api::status::DurabilityMode;

use super::facts::{Context, is_wanted};
use super::lease_rules::{self, Write};
use super::{Action, Draft, Memo, OnBackoff, Rule, RuleKind, Verdict, members};
use crate::protocol::{Lsn, MemberId};
use crate::quorum::{InForce, Step, SyncRule, next_step};
use crate::units::Millis;

/// Longest back-off between failed tries.
const RETRY: Millis = Millis::seconds(2);
/// How long a standby must be away before its name leaves the synchronous rule. A stream that is restarted is back in
/// half of that.
const AWAY: Millis = Millis::seconds(1);

pub(super) const OPEN: Rule = Rule {
    name: "open",
    family: "durability",
    what: "Lets applications connect once as many synchronous members as required hold all WAL that is in doubt.",
    protocol: &[13],
    kind: RuleKind::Act,
    decide: open,
    on_backoff: OnBackoff::Yield,
};

/// Opens the primary once enough members hold all WAL that may be in doubt (protocol.md rule 13). From now on
/// applications see commits that were not acknowledged before the start.
fn open(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.held()?;
    if !context.accepting() || context.observed.postgres.open || !knows_rule(context) || !is_replicated(context) {
        return None;
    }
    if !context.is_free(&context.tasks().configure, RETRY, draft) {
        return None;
    }
    let because = match context.record()?.rule.required {
        0 => "PostgreSQL can write, and commits wait for no standby".to_owned(),
        required => {
            format!("PostgreSQL can write, and {required} of the synchronous members hold all that is in doubt")
        }
    };
    Verdict::new(Action::Open, because)
}

/// True if the rule in the Lease is known. A write whose outcome is unknown may have recorded another rule than the one
/// that was read.
fn knows_rule(context: &Context) -> bool {
    let lease = &context.tasks().lease;
    lease.running.is_none() && lease.failures == 0
}

/// True if as many names of the rule as it requires have flushed what was in doubt. A standby that follows a promoted
/// primary reports that at once, while the segment of the fork is still being sent again. New commits wait until it has
/// that segment.
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

/// True if applications wait for `member`: too few other names of the rule receive WAL from here to flush what is in
/// doubt.
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
    kind: RuleKind::Act,
    decide: change,
    on_backoff: OnBackoff::Yield,
};

/// Moves the rule to the wanted one, by one safe step at a time.
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
            let because = format!("commits should wait for {}", words(&rule));
            Verdict::new(Action::SetSync { rule }, because)
        }
        Step::Record(rule) => {
            if context.tasks().sync.running.is_some() || !lease_rules::is_free(context, draft) {
                return None;
            }
            let because = format!("elections should count by {}", words(&rule));
            let write = Write {
                holder: lease_rules::holder(context, record),
                rule,
                ..Write::renewal(record)
            };
            Verdict::new(write.action(context, draft), because)
        }
    }
}

/// Describes a synchronous rule.
fn words(rule: &SyncRule) -> String {
    if !rule.is_synchronous() {
        return "no standby".to_owned();
    }
    let names: Vec<_> = rule.names.iter().map(MemberId::as_str).collect();
    format!("{} of {}", rule.required, names.join(", "))
}

/// The synchronous rule that is wanted now; `None` while that is not known.
fn goal(context: &Context, draft: &mut Draft) -> Option<SyncRule> {
    let durability = context.cluster()?.durability?;
    let recorded = &context.record()?.rule;
    if waits_for_nobody(&durability) {
        return Some(SyncRule::default());
    }
    let mut names = following(context, draft);
    if durability.mode == DurabilityMode::Required && names.len() < durability.standbys {
        // Fewer than required: no name leaves the rule, and commits wait until a standby is back.
        names.extend(recorded.names.iter().cloned());
    }
    let required = durability.standbys.min(names.len());
    Some(SyncRule { required, names })
}

/// The wanted members that stream, and those of the rule that streamed until a moment ago.
fn following(context: &Context, draft: &mut Draft) -> BTreeSet<MemberId> {
    let now = context.now;
    let reports = members::reports(context, draft);
    let wanted = |pod: &str| is_wanted(context, pod);
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

/// Remembers since when members of the rule have been away, while this holder decides on the rule.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let durability = context.cluster().and_then(|cluster| cluster.durability);
    let (Some(record), Some(durability)) = (context.record(), durability) else {
        return;
    };
    if context.held().is_none() || !context.accepting() || waits_for_nobody(&durability) {
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

/// True if commits wait for no standby, by the spec.
fn waits_for_nobody(durability: &WantedDurability) -> bool {
    durability.mode == DurabilityMode::Async || durability.standbys == 0
}

#[cfg(test)]
mod tests;
