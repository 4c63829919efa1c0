//! Members differ in nothing but their numbers: worlds that differ only in these are one.

use std::hash::{Hash, Hasher};

use super::fingerprint::Fingerprint;
use super::state::{Lease, Member, Postgres, Rule, Set, Task, World};

/// A new number for each member.
pub(super) type Names<'a> = &'a [u8];

pub(super) fn set(names: Names, members: Set) -> Set {
    let listed = names
        .iter()
        .enumerate()
        .filter(|(member, _)| members >> member & 1 == 1);
    listed.fold(0, |set, (_, name)| set | 1 << name)
}

fn of(names: Names, member: u8) -> u8 {
    names[usize::from(member)]
}

fn pair(names: Names, pair: Option<(u8, u8)>) -> Option<(u8, u8)> {
    pair.map(|(member, other)| (of(names, member), other))
}

fn list<T: Copy, const N: usize>(names: Names, of: &[Option<T>; N]) -> [Option<T>; N] {
    let mut renamed = [None; N];
    for (member, value) in of.iter().enumerate() {
        renamed[usize::from(names[member])] = *value;
    }
    renamed
}

impl Rule {
    pub(super) fn renamed(self, names: Names) -> Self {
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
    pub(super) fn renamed(self, names: Names) -> Self {
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
    pub(super) fn renamed(self, names: Names) -> Self {
        match self {
            Task::Promote(timeline, rule) => Task::Promote(timeline, rule.renamed(names)),
            Task::StartPrimary(rule) => Task::StartPrimary(rule.renamed(names)),
            Task::StartStandby(upstream) => Task::StartStandby(pair(names, upstream)),
            Task::Configure(upstream) => Task::Configure(pair(names, upstream)),
            Task::SetSync(rule) => Task::SetSync(rule.renamed(names)),
            Task::Rewind(from, epoch) => Task::Rewind(of(names, from), epoch),
            Task::Clone(from) => Task::Clone(of(names, from)),
            Task::Promise(_) | Task::Open | Task::SetAside(_) | Task::Stop => self,
        }
    }
}

impl Postgres {
    fn renamed(self, names: Names) -> Self {
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
    pub(super) fn renamed(&self, names: Names) -> Self {
        let mut member = *self;
        member.postgres = self.postgres.renamed(names);
        member.replies = list(names, &self.replies);
        member.seen = self.seen.renamed(names);
        member.failsafe = list(names, &self.failsafe);
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

    /// What can be said of it without the number of any member.
    fn nameless(&self, hasher: &mut Fingerprint) {
        std::mem::discriminant(&self.postgres).hash(hasher);
        (self.wal, self.promise, self.promoting, self.asked, self.silent).hash(hasher);
        (self.seen.version, self.confirmed, self.changed, self.sent).hash(hasher);
        (self.run, self.write.is_some(), self.write_failed, self.data).hash(hasher);
        self.task.map(|task| std::mem::discriminant(&task)).hash(hasher);
    }
}

impl<const N: usize> World<N> {
    fn renamed(&self, names: Names) -> Self {
        let mut world = *self;
        world.lease = self.lease.renamed(names);
        for (member, name) in self.members.iter().zip(names) {
            world.members[usize::from(*name)] = member.renamed(names);
        }
        world.ghost = self.ghost.map(|ghost| ghost.renamed(names));
        world.wanted = self.wanted.map(|wanted| of(names, wanted));
        world.fenced = set(names, self.fenced);
        world
    }

    /// The same for worlds that differ in the numbers of members only, as far as these are told apart by what can be said of
    /// each alone. Two different states with one fingerprint are taken for one: with ten million states that happens once in
    /// 400,000 searches.
    pub fn fingerprint(&self) -> u64 {
        let mut keys: [(u64, u8); N] = std::array::from_fn(|member| {
            let mut hasher = Fingerprint::default();
            let bit = 1 << member;
            let holds = self.holder() == Some(member);
            let wanted = self.wanted.map(usize::from) == Some(member);
            (holds, wanted, self.fenced & bit != 0, self.lease.rule.names & bit != 0).hash(&mut hasher);
            self.members[member].nameless(&mut hasher);
            (hasher.finish(), member as u8)
        });
        keys.sort_unstable();
        let mut names = [0; N];
        for (name, (_, member)) in keys.iter().enumerate() {
            names[usize::from(*member)] = name as u8;
        }
        let mut hasher = Fingerprint::default();
        self.renamed(&names).hash(&mut hasher);
        hasher.finish()
    }
}
