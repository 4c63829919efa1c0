//! What must hold at every moment. A commit counts as acknowledged when the primary releases it, before any application
//! hears of it.

use std::collections::{BTreeMap, BTreeSet};

use machine::lease_object::LeaseContent;
use machine::protocol::{HolderRecord, LeaseRecord, Timeline};
use machine::quorum::SyncRule;

use super::names::owner;
use super::node::Aside;
use super::operator::Taken;
use super::wal::End;
use super::world::World;

/// How long a member that lacks WAL must not take a lease that was released with its WAL end, in milliseconds. This is
/// less than a member's own time limit, because its clock may run faster.
const RETURN: u64 = 50_000;

/// What the checks have counted.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// Acknowledged commits.
    pub acknowledged: u64,
    /// Epochs in which the user has accepted a loss.
    pub accepted: BTreeSet<u64>,
    /// Timelines that were reserved in such an epoch by an election that loses commits.
    pub given_up: BTreeSet<u32>,
    /// Promotions without a synchronous rule, or accepted by the user, that lost acknowledged commits, as documented.
    pub losses: u64,
    /// Since when the present run holds the Lease.
    pub held_since: u64,
    /// Members that the operator has taken away.
    pub taken: BTreeMap<usize, Taken>,
    /// Writes of the operator.
    pub writes: u64,
    /// What the user has changed, and how often.
    pub edits: BTreeMap<&'static str, u64>,
}

impl World {
    /// A commit is acknowledged by `node`: newer timelines must have it, no other member may acknowledge alone, and the
    /// lease must not have run out for longer than the kill time.
    pub fn check_acknowledged(&mut self, node: usize, end: End) {
        self.checks.acknowledged += 1;
        self.stays(node, end, "is acknowledged");
        let branch = &mut self.wal.0[end.branch];
        branch.acknowledged = branch.acknowledged.max(end.lsn);
        branch.ever = branch.ever.max(end.lsn);
        let now = self.boot_time(node);
        let bound = self.nodes[node].granted.plus(self.plan.timing.kill);
        if now > bound {
            self.violate(format!(
                "orders-{node} acknowledges {} after its granted time and the kill time have passed",
                now.since(bound)
            ));
        }
        let agent = self.nodes[node].agent.as_ref();
        let confirmed = agent.and_then(|agent| agent.observed().lease.confirmed);
        if confirmed.is_some_and(|confirmed| now > confirmed.sent.plus(self.plan.timing.fence)) && now < bound {
            self.coverage.reach("failsafe served");
        }
        if self.acknowledges_alone(node) {
            let other = (0..self.plan.members).find(|other| *other != node && self.acknowledges_alone(*other));
            if let Some(other) = other {
                self.violate(format!(
                    "orders-{node} and orders-{other} both acknowledge, and wait for no standby"
                ));
            }
        }
        if self.holder() != Some(node) {
            self.coverage.reach("acknowledged after another member took the lease");
        }
    }

    /// A standby reports a flushed position beyond what the counting server has.
    pub fn counted_wrongly(&mut self, node: usize, standby: usize, common: End, has: End) {
        self.violate(format!(
            "orders-{standby} streams from orders-{node} and reports {:X} of timeline {}: their common WAL ends at {:X}",
            has.lsn,
            self.wal.timeline(has.branch),
            common.lsn
        ));
    }

    fn acknowledges_alone(&self, node: usize) -> bool {
        let place = &self.nodes[node];
        let server = place.postgres.as_ref().filter(|_| place.postgres_frozen == 0);
        server.is_some_and(|server| {
            server.up && !server.in_recovery && server.open && !server.waits && server.stop.is_none()
        })
    }

    /// What applications may have seen or heard must be in every newer timeline.
    fn stays(&mut self, node: usize, end: End, what: &str) {
        let timeline = self.wal.timeline(end.branch);
        let newer = self.wal.0.iter().filter(|branch| branch.timeline > timeline);
        let without = newer
            .filter_map(|branch| Some((branch.timeline, branch.base?)))
            .find(|(_, base)| !self.wal.keeps(*base, end));
        if let Some((newer, base)) = without {
            self.violate(format!(
                "{:X} of timeline {timeline} {what} on orders-{node}, and timeline {newer} has begun at {:X} of timeline {} without it",
                end.lsn,
                base.lsn,
                self.wal.timeline(base.branch)
            ));
        }
    }

    /// From now on applications see what was in doubt: it counts as acknowledged.
    pub fn opened(&mut self, node: usize) {
        let Some(server) = self.nodes[node].postgres.as_ref() else {
            return;
        };
        let end = End {
            lsn: server.in_doubt,
            ..server.end
        };
        self.stays(node, end, "becomes visible");
        let branch = &mut self.wal.0[end.branch];
        branch.acknowledged = branch.acknowledged.max(end.lsn);
        branch.ever = branch.ever.max(end.lsn);
        self.coverage.reach("opened");
    }

    /// A timeline begins: it needs a new number, and all acknowledged commits.
    pub fn check_promotion(&mut self, node: usize, base: End, timeline: u32, rule: &SyncRule) {
        self.coverage.promotions += 1;
        if self.wal.0.iter().any(|branch| branch.timeline == timeline) {
            self.violate(format!(
                "timeline {timeline} is begun for the second time, by orders-{node}"
            ));
        }
        for branch in 0..self.wal.0.len() {
            let End { lsn, .. } = End {
                branch,
                lsn: self.wal.0[branch].acknowledged,
            };
            let acknowledged = End { branch, lsn };
            let older = self.wal.timeline(branch) < timeline;
            if lsn == 0 || !older || self.wal.keeps(base, acknowledged) {
                continue;
            }
            let given_up = self.checks.given_up.contains(&timeline);
            if rule.is_synchronous() && !given_up {
                self.violate(format!(
                    "{lsn:X} of timeline {} was acknowledged, and timeline {timeline} begins at {:X} of timeline {} without it",
                    self.wal.timeline(branch),
                    base.lsn,
                    self.wal.timeline(base.branch)
                ));
            }
            let kept = self.wal.common(acknowledged, base);
            self.wal.0[branch].acknowledged = if kept.branch == branch { kept.lsn } else { 0 };
            self.checks.losses += 1;
            self.coverage.reach(match rule.is_synchronous() {
                true => "lost as the user accepted",
                false => "lost as is documented for asynchronous commits",
            });
        }
        if self.holder() != Some(node) {
            self.coverage.reach("promoted late");
        }
        let more = |other: &usize| {
            let data = self.nodes[*other].volume.data.as_ref();
            *other != node
                && data.is_some_and(|data| data.end.branch == base.branch && data.end.lsn > base.lsn && !data.primary)
        };
        if (0..self.plan.members).any(|other| more(&other)) {
            self.coverage.reach("promoted the second best");
        }
    }

    /// Data is removed and replaced by data up to `stays`: its acknowledged commits must be in that, or be quarantined
    /// on its volume.
    pub fn check_thrown_away(&mut self, node: usize, stays: End) {
        let volume = &self.nodes[node].volume;
        let Some(own) = volume.data.as_ref().map(|data| data.end) else {
            return;
        };
        let branches = self.wal.0.iter().enumerate().filter(|(_, written)| written.ever > 0);
        let ends = branches.map(|(branch, written)| {
            (
                branch,
                self.wal.common(
                    own,
                    End {
                        branch,
                        lsn: written.ever,
                    },
                ),
            )
        });
        let lost = ends.filter(|(branch, end)| end.branch == *branch && !self.wal.keeps(stays, *end));
        let (aside, lost): (Vec<_>, Vec<_>) =
            lost.partition(|(_, end)| volume.aside.iter().any(|kept| self.has_aside(*kept, *end, stays)));
        if !aside.is_empty() {
            self.coverage.reach("acknowledged commits kept aside");
        }
        if let Some((branch, end)) = lost.first() {
            self.violate(format!(
                "orders-{node} removes {:X} of timeline {}, which was acknowledged, and keeps no copy of it",
                end.lsn,
                self.wal.timeline(*branch)
            ));
        }
    }

    /// True if `kept`, together with what stays, has all WAL up to `end`.
    fn has_aside(&self, kept: Aside, end: End, stays: End) -> bool {
        self.wal.contains(kept.end, end) && kept.from <= self.wal.common(end, stays).lsn
    }

    /// A primary begins to write at the end of its data: no other member may have more of that timeline, or write it.
    pub fn check_start_for_writing(&mut self, node: usize, end: End) {
        let next = End {
            lsn: end.lsn + 1,
            ..end
        };
        for other in (0..self.plan.members).filter(|other| *other != node) {
            let place = &self.nodes[other];
            let has = place.postgres.as_ref().map(|server| server.end);
            let has = has.or(place.volume.data.as_ref().map(|data| data.end));
            if has.is_some_and(|has| self.wal.contains(has, next)) {
                let timeline = self.wal.timeline(end.branch);
                self.violate(format!(
                    "orders-{node} writes timeline {timeline} from {:X} on, and orders-{other} has more of it",
                    end.lsn
                ));
                return;
            }
        }
    }

    /// If commits wait for no standby, a member that lacks WAL of a holder that stopped on purpose gives that one time
    /// to return.
    fn check_take(&mut self, before: &LeaseRecord, after: &LeaseRecord) {
        let (Some(holder), Some(release)) = (&after.holder, &before.release) else {
            return;
        };
        let node = owner(&holder.incarnation.member);
        let place = self
            .nodes
            .get(node)
            .filter(|_| holder.incarnation.member != release.member);
        let (Some(place), Some(left)) = (place, release.position) else {
            return;
        };
        let server = place.postgres.as_ref().map(|server| server.end);
        let own = server.or(place.volume.data.as_ref().map(|data| data.end));
        let branch = self.wal.branch(left.timeline.0);
        let has_all = branch.zip(own).is_some_and(|(branch, own)| {
            // A promotion that never served: no application has seen that timeline.
            let written = &self.wal.0[branch];
            let unseen = written.base.filter(|_| written.ever == 0);
            let lsn = left.lsn.0;
            self.wal.contains(own, End { branch, lsn }) || unseen.is_some_and(|base| self.wal.contains(own, base))
        });
        if has_all || before.holder.is_some() {
            return;
        }
        self.coverage.reach("took a released lease without all of its WAL");
        let waited = self.now - self.checks.held_since;
        if !before.rule.is_synchronous() && waited < RETURN {
            self.violate(format!(
                "orders-{node} takes the lease {waited} ms after it was released at {:X} of timeline {}, which it lacks",
                left.lsn.0, left.timeline.0
            ));
        }
    }

    /// An election that declares a possible loss may lose commits if the user has accepted that in its epoch. Until a
    /// commit is acknowledged by it, the same holds for the elected member that begins its promotion again, and for a
    /// member to which it leaves the lease.
    fn count_given_up(&mut self, before: &LeaseRecord, after: &LeaseRecord) {
        let member = |record: &LeaseRecord| record.holder.as_ref().map(|holder| holder.incarnation.member.clone());
        let (checks, same) = (&mut self.checks, member(before) == member(after));
        let unused = |timeline: u32| {
            let branch = self.wal.branch(timeline);
            branch.is_none_or(|branch| self.wal.0[branch].acknowledged == 0)
        };
        let given_up = |old: Timeline| checks.given_up.contains(&old.0) && unused(old.0);
        let again = (same || before.holder.is_none()) && before.timeline.is_some_and(given_up);
        let elected = !same && after.lossy == after.timeline && checks.accepted.contains(&before.epoch.0);
        if let Some(timeline) = after.timeline.filter(|new| Some(*new) > before.timeline)
            && (again || elected)
        {
            checks.given_up.insert(timeline.0);
        }
    }

    /// Only its last holder may write a lost Lease again, in no earlier epoch.
    pub fn check_healed(&mut self, before: &LeaseRecord, content: &LeaseContent) {
        let run = |holder: &Option<HolderRecord>| holder.as_ref().map(|holder| holder.incarnation.identity());
        if content.holder.is_none() || run(&before.holder) != run(&content.holder) || content.epoch < before.epoch {
            self.violate(format!(
                "the lost Lease was held by {:?} in epoch {}, and is written by {:?} in epoch {}",
                run(&before.holder),
                before.epoch.0,
                run(&content.holder),
                content.epoch.0
            ));
        }
        self.coverage.reach("a lost Lease healed");
    }

    /// Epochs and reserved timelines only grow, and another holder needs another epoch.
    pub fn check_lease(&mut self, before: &LeaseRecord, after: &LeaseRecord) {
        if after.epoch < before.epoch || after.timeline < before.timeline {
            self.violate(format!(
                "the Lease goes back from epoch {}, timeline {:?}, to epoch {}, timeline {:?}",
                before.epoch.0, before.timeline, after.epoch.0, after.timeline
            ));
        }
        let run = |record: &LeaseRecord| record.holder.as_ref().map(|holder| holder.incarnation.identity());
        if run(after) != run(before) {
            self.check_take(before, after);
            self.checks.held_since = self.now;
        }
        self.count_given_up(before, after);
        if run(after).is_some() && run(before) != run(after) && after.epoch == before.epoch {
            self.violate(format!("epoch {} has two holders", after.epoch.0));
        }
    }
}
