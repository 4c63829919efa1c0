//! The synchronous rule of a holder: what is wanted, and the order in which the rule on record and PostgreSQL's setting
//! change (protocol.md rules 10, 11, 13, 20 and 21). n and k of an election always come from the Lease, never from the spec.

use std::collections::{BTreeMap, BTreeSet};

use api::status::DurabilityMode;

use super::context::Context;
use super::lease_rules::{self, Write};
use super::{Action, Draft, Verdict, members};
use crate::protocol::{Lsn, MemberId};
use crate::quorum::{InForce, Step, SyncRule, next_step};

/// Longest wait between failed tries, in milliseconds.
const RETRY: u64 = 2_000;
/// For so long a standby must be away before its name leaves the rule, in milliseconds: a stream that is begun anew is back
/// in half of that.
const AWAY: u64 = 1_000;

/// Lets applications connect once enough members hold all that may be in doubt (protocol.md rule 13): a commit that the
/// primary had not acknowledged before it was started is visible from now on.
pub(super) fn open(context: &Context, draft: &mut Draft) -> Option<Verdict> {
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

/// Brings the rule to what is wanted, one safe step at a time.
pub(super) fn change(context: &Context, draft: &mut Draft) -> Option<Verdict> {
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
    if durability.mode == DurabilityMode::Async || durability.standbys == 0 {
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
            draft.memo.away.remove(&member);
            names.insert(member);
        } else if recorded.contains(&member) {
            let since = *draft.memo.away.entry(member.clone()).or_insert(now);
            if now < since.plus(AWAY) {
                draft.wake(since.plus(AWAY));
                names.insert(member);
            }
        }
    }
    draft.memo.away.retain(|member, _| recorded.contains(member));
    names
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::*;

    const NOW: BootTime = BootTime(1_200);

    /// A primary whose rule is `ANY 1` of the two others, not open yet; one of them holds all that is in doubt.
    fn closed() -> Observed {
        let mut observed = primary();
        let rule = SyncRule::any(1, [other_holder().incarnation.member, third()]);
        cluster(&mut observed).durability = api::WantedDurability {
            mode: DurabilityMode::Required,
            standbys: 1,
        };
        record(&mut observed).rule = rule.clone();
        let postgres = &mut observed.postgres;
        (postgres.open, postgres.in_doubt, postgres.sync.proven) = (false, Some(Lsn(0x100)), rule);
        postgres.receiving = BTreeMap::from([(third(), Lsn(0x100))]);
        observed
    }

    fn opens(observed: &Observed) -> bool {
        let verdict = open(&Context::new(observed, NOW), &mut Draft::default());
        verdict.is_some_and(|verdict| verdict.action == Action::Open)
    }

    #[test]
    fn applications_wait_until_enough_members_hold_what_is_in_doubt() {
        assert!(opens(&closed()));
        let spoil: [fn(&mut Observed); 6] = [
            |o| o.postgres.receiving.clear(),
            |o| o.postgres.receiving.extend([(third(), Lsn(0xff))]),
            |o| o.postgres.in_doubt = None,
            |o| o.postgres.sync.proven = SyncRule::default(),
            |o| record(o).rule.required = 2,
            |o| record(o).rule.names.retain(|name| *name != third()),
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            let mut observed = closed();
            spoil(&mut observed);
            assert!(!opens(&observed), "{index}");
        }
    }

    #[test]
    fn who_is_waited_for_is_told_so() {
        let first = other_holder().incarnation.member;
        let told = |observed: &Observed| [&first, &third()].map(|member| awaits(&Context::new(observed, NOW), member));
        let mut observed = closed();
        observed.postgres.receiving.clear();
        assert_eq!(told(&observed), [true, true], "either");
        observed.postgres.receiving.insert(third(), Lsn(0));
        assert_eq!(told(&observed), [false, true], "one is to flush it soon");
        record(&mut observed).rule.required = 2;
        assert_eq!(told(&observed), [true, true], "both");
        let nobody: [fn(&mut Observed); 4] = [
            |o| o.postgres.open = true,
            |o| o.postgres.answer = None,
            |o| record(o).rule = SyncRule::default(),
            |o| record(o).rule.names.clear(),
        ];
        for (index, nobody) in nobody.iter().enumerate() {
            let mut observed = observed.clone();
            nobody(&mut observed);
            assert_eq!(told(&observed), [false, false], "{index}");
        }
    }

    #[test]
    fn applications_wait_until_the_rule_is_known() {
        let mut observed = closed();
        observed.tasks.lease.running = Some(Work::WriteLease);
        assert!(!opens(&observed), "a write may change it");
        observed.tasks.lease.running = None;
        observed.tasks.lease.failures = 1;
        assert!(!opens(&observed), "a write may have changed it");
    }

    /// The same, which serves; both others stream from it.
    fn followed() -> Observed {
        let mut observed = closed();
        let first = other_holder().incarnation.member;
        observed.postgres.open = true;
        observed
            .postgres
            .standbys
            .extend([(first, Lsn(0x100)), (third(), Lsn(0x100))]);
        let members = &mut record(&mut observed).members;
        let mut report = members["orders-1"].clone();
        report.member = third();
        members.insert("orders-2".to_owned(), report);
        observed
    }

    fn changed(observed: &Observed) -> Option<Verdict> {
        change(&Context::new(observed, NOW), &mut Draft::default())
    }

    #[test]
    fn commits_wait_for_new_names_before_elections_count_by_them() {
        let mut observed = followed();
        assert!(changed(&observed).is_none(), "all is as it is wanted");
        let both = std::mem::take(&mut record(&mut observed).rule);
        observed.postgres.sync.proven = SyncRule::default();
        let Verdict { action, because } = changed(&observed).unwrap();
        assert_eq!(action, Action::SetSync { rule: both.clone() });
        let first = other_holder().incarnation.member;
        assert_eq!(because, format!("commits are to wait for 1 of {first}, {}", third()));
        let busy: [fn(&mut Observed); 3] = [
            |o| o.tasks.lease.running = Some(Work::WriteLease),
            |o| o.tasks.sync.running = Some(Work::SetSync),
            |o| o.postgres.answer.as_mut().unwrap().in_recovery = true,
        ];
        for (index, busy) in busy.iter().enumerate() {
            let mut observed = observed.clone();
            busy(&mut observed);
            assert!(changed(&observed).is_none(), "{index}");
        }
        observed.postgres.sync.proven = both.clone();
        let verdict = changed(&observed).unwrap();
        let Action::WriteLease { content, .. } = verdict.action else {
            panic!("{:?}", verdict.action)
        };
        assert_eq!(content.rule, both);
        record(&mut observed).rule = both;
        cluster(&mut observed).durability.mode = DurabilityMode::Async;
        let because = changed(&observed).unwrap().because;
        assert_eq!(because, "elections are to count by nobody");
    }

    #[test]
    fn names_are_of_wanted_members_that_stream_or_did_a_moment_ago() {
        let named = |observed: &Observed, away: u64| {
            let mut draft = Draft::default();
            draft.memo.away.insert(third(), BootTime(NOW.0 - away));
            let names = goal(&Context::new(observed, NOW), &mut draft).unwrap().names;
            (names.contains(&third()), draft.wake)
        };
        let mut observed = followed();
        assert!(named(&observed, 0).0);
        observed.postgres.standbys.remove(&third());
        assert_eq!(named(&observed, AWAY - 1), (true, Some(NOW.plus(1))));
        assert!(!named(&observed, AWAY).0, "one is enough");
        let mut unwanted = followed();
        cluster(&mut unwanted).replicas = 2;
        assert!(!named(&unwanted, 0).0);
    }

    #[test]
    fn under_required_nobody_leaves_while_too_few_stream() {
        let wanted = |mode: DurabilityMode| {
            let mut observed = closed();
            cluster(&mut observed).durability.mode = mode;
            observed.postgres.standbys.clear();
            let mut draft = Draft::default();
            let names = record(&mut observed).rule.names.clone();
            draft.memo.away = names.into_iter().map(|name| (name, BootTime(0))).collect();
            goal(&Context::new(&observed, NOW), &mut draft)
        };
        let recorded = record(&mut closed()).rule.clone();
        assert_eq!(wanted(DurabilityMode::Required), Some(recorded));
        assert_eq!(wanted(DurabilityMode::Preferred), Some(SyncRule::default()));
    }
}
