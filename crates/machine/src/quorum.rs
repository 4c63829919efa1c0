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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(n: u32) -> MemberId {
        MemberId::new(n, "aaaa", n)
    }
    fn rule(required: usize, names: &[u32]) -> SyncRule {
        SyncRule::any(required, names.iter().copied().map(id))
    }
    fn subsets(names: &BTreeSet<MemberId>) -> Vec<BTreeSet<MemberId>> {
        names.iter().fold(vec![BTreeSet::new()], |sets, name| {
            let with = sets.iter().cloned().map(|mut set| {
                set.insert(name.clone());
                set
            });
            with.chain(sets.clone()).collect()
        })
    }

    /// Member 3 has lost its volume, and came back as 5.
    #[test]
    fn an_older_setting_that_names_a_lost_member_gives_way_to_the_rule_on_record() {
        let (recorded, proven, goal) = (rule(1, &[2]), rule(1, &[1, 2, 3, 4]), rule(1, &[1, 2, 4, 5]));
        let flushed = BTreeMap::new();
        let now = InForce {
            recorded: &recorded,
            proven: &proven,
            pending: None,
            flushed: &flushed,
            proven_at: Lsn(0),
        };
        assert_eq!(next_step(&now, &goal), Some(Step::Set(recorded.clone())));
        let then = InForce {
            proven: &recorded,
            ..now
        };
        assert_eq!(next_step(&then, &goal), Some(Step::Record(goal.clone())));
    }

    #[test]
    fn an_election_needs_more_than_n_minus_k() {
        assert_eq!(rule(1, &[1, 2]).promises_needed(), 2);
        assert_eq!(rule(2, &[1, 2, 3, 4]).promises_needed(), 3);
        assert_eq!(rule(1, &[1]).promises_needed(), 1);
        assert!(!rule(0, &[]).can_elect(&[id(1)]));
        assert!(
            !rule(1, &[1, 2]).can_elect(&[id(1), id(3)]),
            "others' promises do not count"
        );
        assert!(!rule(1, &[1, 2]).can_elect(&[id(1), id(1)]), "nobody counts twice");
        assert!(rule(1, &[1, 2]).can_elect(&[id(1), id(2)]));
    }

    #[test]
    fn shrinking_sets_first_and_records_once_the_rest_has_everything() {
        let (recorded, goal) = (rule(1, &[1, 2]), rule(1, &[1]));
        let mut flushed = BTreeMap::from([(id(1), Lsn(5))]);
        let step = |proven: &SyncRule, flushed: &BTreeMap<MemberId, Lsn>| {
            let now = InForce {
                recorded: &recorded,
                proven,
                pending: None,
                flushed,
                proven_at: Lsn(7),
            };
            next_step(&now, &goal)
        };
        assert_eq!(step(&recorded, &flushed), Some(Step::Set(goal.clone())));
        assert_eq!(step(&goal, &flushed), Some(Step::AwaitFlush(goal.clone())));
        flushed.insert(id(1), Lsn(7));
        assert_eq!(step(&goal, &flushed), Some(Step::Record(goal.clone())));
    }

    /// `recorded` is in force everywhere, and nobody has flushed anything yet.
    fn settled(recorded: &SyncRule) -> InForce<'_> {
        static NOTHING: BTreeMap<MemberId, Lsn> = BTreeMap::new();
        InForce {
            recorded,
            proven: recorded,
            pending: None,
            flushed: &NOTHING,
            proven_at: Lsn(7),
        }
    }

    #[test]
    fn growing_records_first() {
        let (recorded, goal) = (rule(1, &[1]), rule(1, &[1, 2]));
        let now = settled(&recorded);
        assert_eq!(next_step(&now, &goal), Some(Step::Record(goal.clone())));
        let now = InForce { recorded: &goal, ..now };
        assert_eq!(next_step(&now, &goal), Some(Step::Set(goal.clone())));
    }

    #[test]
    fn nothing_is_recorded_that_a_setting_under_way_does_not_keep() {
        let (recorded, goal) = (rule(1, &[1, 2]), rule(2, &[1, 2]));
        let now = InForce {
            proven: &goal,
            ..settled(&recorded)
        };
        assert_eq!(next_step(&now, &goal), Some(Step::AwaitFlush(goal.clone())));
        let now = InForce {
            pending: Some(&recorded),
            ..now
        };
        assert_eq!(
            next_step(&now, &goal),
            Some(Step::Set(goal.clone())),
            "some may use the old one"
        );
    }

    #[test]
    fn three_to_four_members_raise_the_number_before_the_name_counts() {
        let (recorded, goal) = (rule(1, &[1, 2]), rule(2, &[1, 2, 3]));
        let now = settled(&recorded);
        assert_eq!(next_step(&now, &goal), Some(Step::Set(goal.clone())));
    }

    #[test]
    fn going_asynchronous_is_recorded_before_it_is_set() {
        let (recorded, goal) = (rule(1, &[1, 2]), SyncRule::default());
        let now = settled(&recorded);
        assert_eq!(next_step(&now, &goal), Some(Step::Record(goal.clone())));
    }

    prop_compose! {
        fn some_rule()(names in proptest::collection::btree_set(1_u32..5, 0..=4), required in 0_usize..=4) -> SyncRule {
            let required = required.min(names.len());
            let names: Vec<_> = if required == 0 { Vec::new() } else { names.into_iter().collect() };
            rule(required, &names)
        }
    }

    fn all_rules() -> Vec<SyncRule> {
        let names: BTreeSet<_> = (1..5).map(id).collect();
        let synchronous = subsets(&names).into_iter().flat_map(|names| {
            (1..=names.len()).map(move |required| SyncRule {
                required,
                names: names.clone(),
            })
        });
        synchronous.chain([SyncRule::default()]).collect()
    }

    #[test]
    fn whatever_a_covered_setting_acknowledges_meets_every_election() {
        let mut covered = 0;
        for recorded in all_rules().iter().filter(|rule| rule.is_synchronous()) {
            let elections: Vec<_> = subsets(&recorded.names)
                .into_iter()
                .filter(|set| recorded.can_elect(set))
                .collect();
            for setting in all_rules().iter().filter(|setting| recorded.covers(setting)) {
                covered += 1;
                for acknowledged in subsets(&setting.names)
                    .into_iter()
                    .filter(|set| set.len() >= setting.required)
                {
                    assert!(
                        elections.iter().all(|promised| !acknowledged.is_disjoint(promised)),
                        "{recorded:?} {setting:?}"
                    );
                }
            }
        }
        assert!(covered > 32, "few pairs were compared: {covered}");
    }

    /// While nobody was asked, everything may be on the primary alone.
    #[test]
    fn no_election_meets_what_one_member_acknowledged_alone() {
        assert!(!rule(0, &[]).intersects(&rule(1, &[1])));
        assert!(rule(1, &[1]).intersects(&rule(0, &[])));
    }

    proptest! {
        /// From any rule to any goal, members flushing in any order: the rule on record always covers what may be in
        /// force, whatever was acknowledged at any time is held by somebody of every electing set, and the goal is reached.
        #[test]
        fn every_change_is_safe_and_ends(
            start in some_rule(),
            goal in some_rule(),
            held in proptest::collection::vec(any::<bool>(), 5),
            proof_fails in proptest::collection::vec(any::<bool>(), 3),
        ) {
            let (mut recorded, mut proven, mut pending) = (start.clone(), start.clone(), None::<SyncRule>);
            // Who holds what was acknowledged before anything changed: some set that the first rule allows.
            let mut holders: BTreeSet<MemberId> =
                (1..5).filter(|n| held[*n as usize]).map(id).filter(|name| start.names.contains(name)).collect();
            let missing = start.names.iter().filter(|name| !holders.contains(*name)).cloned().collect::<Vec<_>>();
            let short = start.required.saturating_sub(holders.len());
            holders.extend(missing.into_iter().take(short));
            let mut failures = proof_fails.into_iter();
            for _ in 0..20 {
                let flushed = holders.iter().map(|name| (name.clone(), Lsn(1))).collect();
                let now = InForce { recorded: &recorded, proven: &proven, pending: pending.as_ref(), flushed: &flushed, proven_at: Lsn(1) };
                match next_step(&now, &goal) {
                    None => break,
                    Some(Step::Set(rule)) => {
                        if failures.next().unwrap_or(false) {
                            pending = Some(rule);
                        } else {
                            (proven, pending) = (rule, None);
                        }
                    }
                    Some(Step::Record(rule)) => recorded = rule,
                    Some(Step::AwaitFlush(rule)) => holders.extend(rule.names),
                }
                prop_assert!(recorded.covers(&proven));
                prop_assert!(pending.iter().all(|pending| recorded.covers(pending)));
                if recorded.is_synchronous() && start.is_synchronous() {
                    for promised in subsets(&recorded.names).into_iter().filter(|set| recorded.can_elect(set)) {
                        prop_assert!(!holders.is_disjoint(&promised), "{recorded:?} forgets {holders:?}");
                    }
                }
            }
            prop_assert_eq!((&recorded, &proven, &pending), (&goal, &goal, &None));
        }
    }
}
