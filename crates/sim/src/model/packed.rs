//! States in words of eight bytes, to be hashed: by far the most that a search does. Each `hash` takes its type apart by name,
//! so that a new field is not forgotten.

use std::hash::{Hash, Hasher};

use super::observe::Sight;
use super::state::{Data, Lease, Member, Postgres, Reply, Rule, Task, Unsettled, Wal, World, Write};

/// In the place of what is not there; no number is so large here.
const NONE: u8 = u8::MAX;
const NOWHERE: Wal = Wal {
    timeline: NONE,
    end: NONE,
};

#[inline]
fn word(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes)
}

/// At most eight of them in one word.
#[inline]
fn gathered(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0, |word, byte| word << 8 | u64::from(byte))
}

#[inline]
fn flags<const N: usize>(flags: [bool; N]) -> u8 {
    flags.iter().fold(0, |set, flag| set << 1 | u8::from(*flag))
}

impl Hash for Lease {
    #[inline]
    fn hash<H: Hasher>(&self, to: &mut H) {
        let Lease {
            version,
            missing,
            holder,
            epoch,
            reserved,
            lossy,
            rule: Rule { required, names },
            release,
            successor,
            had,
            written,
            serving,
            history,
        } = *self;
        let (holder, run) = holder.unwrap_or((NONE, NONE));
        let (by, end) = release.map_or((NONE, NOWHERE), |(by, end)| (by, end.unwrap_or(NOWHERE)));
        let state = flags([missing, serving]);
        to.write_u64(word([
            version, state, epoch, reserved, required, names, written, holder,
        ]));
        let (successor, had) = (successor.unwrap_or(NONE), had.unwrap_or(NOWHERE));
        to.write_u64(word([
            run,
            by,
            end.timeline,
            end.end,
            successor,
            history[0],
            history[1],
            had.timeline,
        ]));
        to.write_u64(gathered(history[2..].iter().copied().chain([had.end, lossy])));
    }
}

impl Postgres {
    #[inline]
    pub(super) fn packed(&self) -> [u8; 8] {
        match *self {
            Postgres::Down { clean } => [0, u8::from(clean), 0, 0, 0, 0, 0, 0],
            Postgres::Standby { upstream, receiving } => {
                let (from, epoch) = upstream.unwrap_or((NONE, NONE));
                [1, u8::from(receiving), from, epoch, 0, 0, 0, 0]
            }
            Postgres::Primary {
                open,
                in_doubt,
                proven,
                proven_at,
                pending,
            } => {
                let pending = pending.unwrap_or(Rule {
                    required: NONE,
                    names: NONE,
                });
                let state = 2 + u8::from(open);
                let (required, names) = (proven.required, proven.names);
                [
                    state,
                    in_doubt,
                    required,
                    names,
                    proven_at,
                    pending.required,
                    pending.names,
                    0,
                ]
            }
        }
    }
}

impl Task {
    #[inline]
    pub(super) fn packed(&self) -> [u8; 4] {
        let pair = |pair: Option<(u8, u8)>| pair.unwrap_or((NONE, NONE));
        match *self {
            Task::Promise(epoch) => [1, epoch, 0, 0],
            Task::Promote(timeline, rule) => [2, timeline, rule.required, rule.names],
            Task::StartPrimary(rule) => [3, 0, rule.required, rule.names],
            Task::StartStandby(upstream) => [4, 0, pair(upstream).0, pair(upstream).1],
            Task::Configure(upstream) => [5, 0, pair(upstream).0, pair(upstream).1],
            Task::SetSync(rule) => [6, 0, rule.required, rule.names],
            Task::Open => [7, 0, 0, 0],
            Task::Rewind { from, epoch, keep } => [8, u8::from(keep), from, epoch],
            Task::SetAside(keep) => [9, u8::from(keep), 0, 0],
            Task::Clone(from) => [10, from, 0, 0],
            Task::Stop => [11, 0, 0, 0],
        }
    }
}

impl Data {
    #[inline]
    pub(super) const fn packed(self) -> u8 {
        match self {
            Data::Sound => 0,
            Data::Stubborn => 1,
            Data::HalfRewound => 2,
            Data::Empty => 3,
        }
    }
}

impl Hash for Write {
    #[inline]
    fn hash<H: Hasher>(&self, to: &mut H) {
        let Write {
            content,
            release,
            answer,
            age,
        } = self;
        let answer = answer.map_or(NONE, u8::from);
        to.write_u64(word([u8::from(*release), answer, *age, 0, 0, 0, 0, 0]));
        content.hash(to);
    }
}

fn reply(reply: Reply) -> u64 {
    let Reply {
        promised,
        suspects,
        position,
    } = reply;
    let Wal { timeline, end } = position.unwrap_or(NOWHERE);
    word([1, promised, u8::from(suspects), timeline, end, 0, 0, 0])
}

impl<const N: usize> Hash for Member<N> {
    #[inline]
    fn hash<H: Hasher>(&self, to: &mut H) {
        let Member {
            run,
            postgres,
            wal,
            flushed,
            data,
            primary_data,
            promise,
            promoting,
            asked,
            replies,
            seen,
            changed,
            confirmed,
            sent,
            slow,
            failsafe,
            given,
            handing,
            write,
            write_failed,
            unsettled,
            task,
            silent,
        } = self;
        let state = flags([*primary_data, *slow, *write_failed, *silent]) << 2 | data.packed();
        to.write_u64(word([
            *run,
            wal.timeline,
            wal.end,
            state,
            *promise,
            *promoting,
            *asked,
            *changed,
        ]));
        to.write_u64(word(postgres.packed()));
        let [kind, a, b, c] = task.map_or([0; 4], |task| task.packed());
        let (to_whom, since) = handing.unwrap_or((NONE, NONE));
        to.write_u64(word([kind, a, b, c, to_whom, since, confirmed.unwrap_or(NONE), *sent]));
        for answer in replies {
            to.write_u64(answer.map_or(0, reply));
        }
        seen.hash(to);
        let promised = |promise: &Option<(u8, u8)>| promise.unwrap_or((NONE, NONE));
        to.write_u64(gathered(failsafe.iter().map(|promise| promised(promise).0)));
        to.write_u64(gathered(failsafe.iter().map(|promise| promised(promise).1)));
        let lost = unsettled.unwrap_or(Unsettled {
            version: NONE,
            ..Unsettled::default()
        });
        let left = given.map_or([NONE; 3], |given| [given.epoch, given.run, given.left]);
        let [a, b, c] = left;
        let rule = lost.rule;
        to.write_u64(word([
            a,
            b,
            c,
            lost.version,
            rule.required,
            rule.names,
            u8::from(lost.release),
            flushed.map_or(NONE, |Wal { timeline, end }| timeline << 5 | end),
        ]));
        match write {
            None => to.write_u64(0),
            Some(write) => write.hash(to),
        }
    }
}

impl<const N: usize> Hash for World<N> {
    #[inline]
    fn hash<H: Hasher>(&self, to: &mut H) {
        let World {
            lease,
            members,
            ghost,
            forks,
            loose,
            given_up,
            acknowledged,
            lost,
            durability,
            preferred,
            strict,
            accepted,
            wanted,
            fenced,
            unfit,
            edits,
            faults,
            reboots,
        } = self;
        lease.hash(to);
        for member in members {
            member.hash(to);
        }
        match ghost {
            None => to.write_u64(0),
            Some(ghost) => ghost.hash(to),
        }
        to.write_u64(gathered(forks.iter().map(|(parent, _)| *parent)));
        to.write_u64(gathered(forks.iter().map(|(_, end)| *end)));
        to.write_u64(gathered(acknowledged.iter().copied().chain([*given_up, *accepted])));
        to.write_u64(gathered(lost.iter().copied()));
        let wanted = wanted.unwrap_or(NONE);
        let durability = flags([*preferred, *strict]) << 4 | durability;
        to.write_u64(word([
            *loose, durability, wanted, *fenced, *edits, *faults, *reboots, *unfit,
        ]));
    }
}

impl<const N: usize> Hash for Sight<N> {
    #[inline]
    fn hash<H: Hasher>(&self, to: &mut H) {
        let Sight {
            member,
            promised,
            standbys,
            history,
            unfit,
            positions,
            durability,
            preferred,
            strict,
            accepted,
            wanted,
            fenced,
            unsettled,
            impatient,
            timed,
        } = self;
        member.hash(to);
        to.write_u64(gathered(promised.iter().copied()));
        to.write_u64(gathered(standbys.iter().map(|end| end.unwrap_or(NONE))));
        to.write_u64(gathered(history.iter().copied()));
        let positions = positions.map(|position| position.unwrap_or(NOWHERE));
        to.write_u64(gathered(positions.iter().map(|wal| wal.timeline)));
        to.write_u64(gathered(positions.iter().map(|wal| wal.end)));
        let write = unsettled.map(|write| match write {
            None => [NONE; 3],
            Some((rule, release)) => [rule.required, rule.names, u8::from(release)],
        });
        to.write_u64(gathered(write.into_iter().flatten()));
        let wanted = wanted.unwrap_or(NONE);
        let state = flags([*impatient, *timed, *preferred, *strict, *unfit]);
        to.write_u64(word([*durability, wanted, *fenced, state, *accepted, 0, 0, 0]));
    }
}
