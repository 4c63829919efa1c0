//! Members differ only in their numbers: worlds that differ only in these are one.

use std::hash::Hasher;

use super::fingerprint::Fingerprint;
use super::state::{Lease, Member, Postgres, Rule, Set, Task, World};

/// A new number for each member.
pub(super) type Names<const N: usize> = [u8; N];

#[inline]
pub(super) fn set<const N: usize>(names: &Names<N>, members: Set) -> Set {
    let listed = names.iter().enumerate();
    listed.fold(0, |set, (member, name)| set | (members >> member & 1) << name)
}

#[inline]
pub(super) fn of<const N: usize>(names: &Names<N>, member: u8) -> u8 {
    names[usize::from(member)]
}

#[inline]
pub(super) fn pair<const N: usize>(names: &Names<N>, pair: Option<(u8, u8)>) -> Option<(u8, u8)> {
    pair.map(|(member, other)| (of(names, member), other))
}

fn list<T: Copy, const N: usize>(names: &Names<N>, of: &[Option<T>; N]) -> [Option<T>; N] {
    let mut renamed = [None; N];
    for (member, value) in of.iter().enumerate() {
        renamed[usize::from(names[member])] = *value;
    }
    renamed
}

impl Rule {
    #[inline]
    pub(super) fn renamed<const N: usize>(self, names: &Names<N>) -> Self {
        let Rule {
            required,
            names: members,
        } = self;
        Rule {
            required,
            names: set(names, members),
        }
    }
}

impl Lease {
    #[inline]
    pub(super) fn renamed<const N: usize>(self, names: &Names<N>) -> Self {
        Lease {
            holder: pair(names, self.holder),
            rule: self.rule.renamed(names),
            release: self.release.map(|(by, end)| (of(names, by), end)),
            successor: self.successor.map(|member| of(names, member)),
            ..self
        }
    }
}

impl Task {
    #[inline]
    pub(super) fn renamed<const N: usize>(self, names: &Names<N>) -> Self {
        match self {
            Task::Promote(timeline, rule) => Task::Promote(timeline, rule.renamed(names)),
            Task::StartPrimary(rule) => Task::StartPrimary(rule.renamed(names)),
            Task::StartStandby(upstream) => Task::StartStandby(pair(names, upstream)),
            Task::Configure(upstream) => Task::Configure(pair(names, upstream)),
            Task::SetSync(rule) => Task::SetSync(rule.renamed(names)),
            Task::Rewind { from, epoch, keep } => Task::Rewind {
                from: of(names, from),
                epoch,
                keep,
            },
            Task::Clone(from) => Task::Clone(of(names, from)),
            Task::Promise(_) | Task::Open | Task::SetAside(_) | Task::Stop => self,
        }
    }
}

impl Postgres {
    #[inline]
    fn renamed<const N: usize>(self, names: &Names<N>) -> Self {
        match self {
            Postgres::Down { .. } => self,
            Postgres::Standby { upstream, receiving } => Postgres::Standby {
                upstream: pair(names, upstream),
                receiving,
            },
            Postgres::Primary {
                open,
                in_doubt,
                proven,
                proven_at,
                pending,
            } => Postgres::Primary {
                open,
                in_doubt,
                proven: proven.renamed(names),
                proven_at,
                pending: pending.map(|pending| pending.renamed(names)),
            },
        }
    }
}

impl<const N: usize> Member<N> {
    #[inline]
    pub(super) fn renamed(&self, names: &Names<N>) -> Self {
        let mut member = *self;
        member.postgres = self.postgres.renamed(names);
        member.replies = list(names, &self.replies);
        member.seen = self.seen.renamed(names);
        member.failsafe = list(names, &self.failsafe);
        member.since_loss = set(names, self.since_loss);
        member.doubts = self
            .doubts
            .map(|doubt| doubt.map(|(rule, release)| (rule.renamed(names), release)));
        member.handing = pair(names, self.handing);
        if let Some(write) = &mut member.write {
            write.content = write.content.renamed(names);
        }
        if let Some(unsettled) = &mut member.unsettled {
            unsettled.rule = unsettled.rule.renamed(names);
        }
        member.task = self.task.map(|task| task.renamed(names));
        member
    }
}

impl<const N: usize> World<N> {
    /// How others refer to a member, one bit each.
    #[inline]
    fn relations(&self, member: usize) -> u8 {
        let is = |other: Option<u8>| u8::from(other.map(usize::from) == Some(member));
        let holds = |holder: Option<(u8, u8)>| is(holder.map(|(holder, _)| holder));
        let seen = &self.members[member].seen;
        let sets = (self.unfit >> member & 1) << 3
            | (self.fenced >> member & 1) << 2
            | (self.lease.rule.names >> member & 1) << 1
            | seen.rule.names >> member & 1;
        sets << 3 | holds(self.lease.holder) << 2 | is(self.wanted) << 1 | holds(seen.holder)
    }

    /// The same value for worlds that differ only in the numbers of members, as far as each member's own state
    /// distinguishes them. Two different states with one fingerprint count as one: with ten million states that happens
    /// once in 400,000 searches.
    /// 400,000 searches.
    pub fn fingerprint(&self) -> u64 {
        let mut keys = [(0, 0); N];
        for (member, key) in keys.iter_mut().enumerate() {
            *key = (self.members[member].nameless(self.relations(member)), member as u8);
        }
        keys.sort_unstable();
        let mut names = [0; N];
        for (name, (_, member)) in keys.iter().enumerate() {
            names[usize::from(*member)] = name as u8;
        }
        let mut hasher = Fingerprint::default();
        self.pack(&names, keys.map(|(_, member)| member), &mut hasher);
        hasher.finish()
    }
}
