//! States as words of eight bytes, to be hashed with other numbers for members. A search spends most of its time here.
//! Each function destructures its type by field, so that a new field is not forgotten.

use std::hash::{Hash, Hasher};

use super::archive::Marks;
use super::fingerprint::Fingerprint;
use super::observe::Sight;
use super::rename::{Names, of, pair, set};
use super::state::{Data, Lease, Member, Postgres, Reply, Rule, TIMELINES, Task, Unsettled, Wal, World, Write};

/// Stands for an absent value; no number is that large here.
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
fn gathered<const N: usize>(bytes: [u8; N]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Numbers of 16 bits in two words.
#[inline]
fn sixteens(numbers: [u16; TIMELINES]) -> [u64; 2] {
    let joined = |numbers: &[u16]| numbers.iter().fold(0, |word, number| word << 16 | u64::from(*number));
    [joined(&numbers[..4]), joined(&numbers[4..])]
}

/// A value per member, under the member's new number.
#[inline]
fn listed<T: Copy, const N: usize>(names: &Names<N>, of: &[T; N], told: impl Fn(T) -> u8) -> u64 {
    let told = of
        .iter()
        .zip(names)
        .map(|(value, name)| u64::from(told(*value)) << (8 * name));
    told.fold(0, |word, byte| word | byte)
}

/// Adds two words at a time.
#[inline]
fn pairs<H: Hasher, const N: usize>(to: &mut H, words: [u64; N]) {
    for pair in words.chunks(2) {
        let other = pair.get(1).copied().unwrap_or_default();
        to.write_u128(u128::from(pair[0]) | u128::from(other) << 64);
    }
}

#[inline]
fn flags<const N: usize>(flags: [bool; N]) -> u8 {
    flags.iter().fold(0, |set, flag| set << 1 | u8::from(*flag))
}

impl Rule {
    #[inline]
    fn packed<const N: usize>(self, names: &Names<N>) -> [u8; 2] {
        let Rule {
            required,
            names: members,
        } = self;
        [required, set(names, members)]
    }
}

impl Lease {
    #[inline]
    fn packed<const N: usize>(&self, names: &Names<N>) -> [u64; 3] {
        let Lease {
            version,
            loss,
            holder,
            epoch,
            reserved,
            lossy,
            rule,
            release,
            successor,
            had,
            written,
            serving,
            history,
            archived,
        } = *self;
        let (holder, run) = pair(names, holder).unwrap_or((NONE, NONE));
        let (by, end) = release.map_or((NONE, NOWHERE), |(by, end)| (of(names, by), end.unwrap_or(NOWHERE)));
        let successor = successor.map_or(NONE, |successor| of(names, successor));
        let [required, members] = rule.packed(names);
        let had = had.unwrap_or(NOWHERE);
        let archived = archived.unwrap_or_default();
        let state = archived.timeline << 1 | flags([serving]);
        let lost = loss.map_or(0, |loss| 1 + loss as u8);
        let [first, second, third, fourth, fifth, sixth]: [u8; TIMELINES] = history;
        [
            word([version, state, epoch, reserved, required, members, written, holder]),
            word([run, by, end.timeline, end.end, successor, first, second, had.timeline]),
            word([third, fourth, fifth, sixth, had.end, lossy, lost, archived.end]),
        ]
    }
}

impl Postgres {
    #[inline]
    pub(super) fn packed<const N: usize>(&self, names: &Names<N>) -> [u8; 8] {
        match *self {
            Postgres::Down { clean } => [0, u8::from(clean), 0, 0, 0, 0, 0, 0],
            Postgres::Standby { upstream, receiving } => {
                let (from, epoch) = pair(names, upstream).unwrap_or((NONE, NONE));
                [1, u8::from(receiving), from, epoch, 0, 0, 0, 0]
            }
            Postgres::Primary {
                open,
                in_doubt,
                proven,
                proven_at,
                pending,
            } => {
                let state = 2 + u8::from(open);
                let [required, members] = proven.packed(names);
                let [next_required, next] = pending.map_or([NONE; 2], |pending| pending.packed(names));
                [state, in_doubt, required, members, proven_at, next_required, next, 0]
            }
        }
    }
}

impl Task {
    #[inline]
    pub(super) fn packed<const N: usize>(&self, names: &Names<N>) -> [u8; 4] {
        let ruled = |kind: u8, timeline: u8, rule: Rule| {
            let [required, members] = rule.packed(names);
            [kind, timeline, required, members]
        };
        let follows = |kind: u8, upstream: Option<(u8, u8)>| {
            let (from, epoch) = pair(names, upstream).unwrap_or((NONE, NONE));
            [kind, 0, from, epoch]
        };
        match *self {
            Task::Promise(epoch) => [1, epoch, 0, 0],
            Task::Promote(timeline, rule) => ruled(2, timeline, rule),
            Task::StartPrimary(rule) => ruled(3, 0, rule),
            Task::StartStandby(upstream) => follows(4, upstream),
            Task::Configure(upstream) => follows(5, upstream),
            Task::SetSync(rule) => ruled(6, 0, rule),
            Task::Open => [7, 0, 0, 0],
            Task::Rewind { from, epoch, keep } => [8, u8::from(keep), of(names, from), epoch],
            Task::SetAside(keep) => [9, u8::from(keep), 0, 0],
            Task::Clone(from) => [10, of(names, from), 0, 0],
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

impl Write {
    #[inline]
    fn packed<const N: usize>(&self, names: &Names<N>) -> [u64; 4] {
        let Write {
            content,
            release,
            answer,
            age,
        } = self;
        let answer = answer.map_or(NONE, u8::from);
        let [one, two, three] = content.packed(names);
        [word([1, u8::from(*release), answer, *age, 0, 0, 0, 0]), one, two, three]
    }
}

#[inline]
fn reply(reply: Reply) -> u64 {
    let Reply {
        promised,
        suspects,
        position,
    } = reply;
    let Wal { timeline, end } = position.unwrap_or(NOWHERE);
    word([1, promised, u8::from(suspects), timeline, end, 0, 0, 0])
}

impl<const N: usize> Member<N> {
    #[inline]
    fn pack(&self, names: &Names<N>, to: &mut impl Hasher) {
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
            since_loss,
            doubts,
            given,
            handing,
            write,
            write_failed,
            unsettled,
            task,
            silent,
            marks,
            // It follows from the marks.
            told,
        } = self;
        let Marks {
            ready,
            done,
            histories,
            halves,
            full,
        } = *marks;
        let ([ready, ready_too], [done, done_too]) = (ready.to_le_bytes(), done.to_le_bytes());
        let told = told.unwrap_or_default();
        let state = flags([*primary_data, *slow, *write_failed, *silent]) << 2 | data.packed();
        let [kind, what, other, more] = task.map_or([0; 4], |task| task.packed(names));
        let (to_whom, since) = pair(names, *handing).unwrap_or((NONE, NONE));
        let lost = unsettled.unwrap_or(Unsettled {
            version: NONE,
            ..Unsettled::default()
        });
        let [required, members] = lost.rule.packed(names);
        let [epoch, given_to, left] = given.map_or([NONE; 3], |given| [given.epoch, given.run, given.left]);
        let [seen, seen_more, seen_rest] = seen.packed(names);
        let flushed = flushed.map_or(NONE, |Wal { timeline, end }| timeline << 5 | end);
        let [doubt, doubt_too] = doubts.map(|doubt| {
            let [required, members] = doubt.map_or([NONE; 2], |(rule, _)| rule.packed(names));
            [required, members, u8::from(doubt.is_some_and(|(_, release)| release))]
        });
        let confirmed = confirmed.unwrap_or(NONE);
        pairs(
            to,
            [
                word([
                    *run,
                    wal.timeline,
                    wal.end,
                    state,
                    *promise,
                    *promoting,
                    *asked,
                    *changed,
                ]),
                word(postgres.packed(names)),
                word([kind, what, other, more, to_whom, since, confirmed, *sent]),
                word([
                    epoch,
                    given_to,
                    left,
                    lost.version,
                    required,
                    members,
                    u8::from(lost.release),
                    flushed,
                ]),
                seen,
                seen_more,
                seen_rest,
                listed(names, failsafe, |promise| promise.map_or(NONE, |(epoch, _)| epoch)),
                listed(names, failsafe, |promise| promise.map_or(NONE, |(_, age)| age)),
                word([
                    doubt[0],
                    doubt[1],
                    doubt[2],
                    doubt_too[0],
                    doubt_too[1],
                    doubt_too[2],
                    set(names, *since_loss),
                    told.timeline << 1 | u8::from(full),
                ]),
                word([ready, ready_too, done, done_too, histories, halves, told.end, 0]),
            ],
        );
        let mut answers = [0; N];
        for (answer, name) in replies.iter().zip(names) {
            answers[usize::from(*name)] = answer.map_or(0, reply);
        }
        pairs(to, answers);
        pairs(to, write.map_or([0; 4], |write| write.packed(names)));
    }

    /// The parts that contain no number of a member.
    #[inline]
    pub(super) fn nameless(&self, relations: u8) -> u64 {
        let same = unchanged::<N>();
        let [postgres, state, _, _, proven_at, ..] = self.postgres.packed(&same);
        let [task, epoch, ..] = self.task.map_or([0; 4], |task| task.packed(&same));
        let [wal, end] = [self.wal.timeline, self.wal.end];
        let bits =
            flags([self.silent, self.write_failed, self.write.is_some(), self.primary_data]) << 2 | self.data.packed();
        let (version, confirmed) = (self.seen.version, self.confirmed.unwrap_or(u8::MAX));
        let answered = self.replies.iter().flatten().count() as u8;
        let mut hasher = Fingerprint::default();
        pairs(
            &mut hasher,
            [
                word([
                    postgres,
                    state,
                    proven_at,
                    wal,
                    end,
                    self.promise,
                    self.promoting,
                    self.asked,
                ]),
                word([version, confirmed, self.changed, self.sent, self.run, bits, task, epoch]),
                word([answered, relations, 0, 0, 0, 0, 0, 0]),
            ],
        );
        hasher.finish()
    }
}

/// Each member keeps its number.
#[inline]
fn unchanged<const N: usize>() -> Names<N> {
    std::array::from_fn(|member| member as u8)
}

impl<const N: usize> World<N> {
    /// `order`: the members in the order of their new numbers.
    #[inline]
    pub(super) fn pack(&self, names: &Names<N>, order: [u8; N], to: &mut impl Hasher) {
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
            segment,
            store,
            pushed,
            excused,
        } = self;
        let [excused, excused_too] = excused.to_le_bytes();
        for member in order {
            members[usize::from(member)].pack(names, to);
        }
        let wanted = wanted.map_or(NONE, |wanted| of(names, wanted));
        let durability = flags([*preferred, *strict]) << 4 | durability;
        let (fenced, unfit) = (set(names, *fenced), set(names, *unfit));
        let [one, two, three] = lease.packed(names);
        pairs(
            to,
            [
                one,
                two,
                three,
                gathered(forks.map(|(parent, _)| parent)),
                gathered(forks.map(|(_, end)| end)),
                gathered(*acknowledged),
                gathered(*lost),
                word([*loose, durability, wanted, fenced, *edits, *faults, *reboots, unfit]),
                word([
                    *given_up,
                    *accepted,
                    *segment,
                    store.histories,
                    pushed.histories,
                    excused,
                    excused_too,
                    0,
                ]),
            ],
        );
        if *segment > 0 {
            let [one, two] = [store, pushed].map(|objects| sixteens(objects.segments));
            pairs(to, [one[0], one[1], two[0], two[1]]);
        }
        pairs(to, ghost.map_or([0; 3], |ghost| ghost.packed(names)));
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
            archives,
        } = self;
        member.pack(&unchanged(), to);
        let positions = positions.map(|position| position.unwrap_or(NOWHERE));
        let [[first, second, third], [other_first, other_second, other_third]] = unsettled.map(|write| match write {
            None => [NONE; 3],
            Some((rule, release)) => [rule.required, rule.names, u8::from(release)],
        });
        let wanted = wanted.unwrap_or(NONE);
        let state = flags([*archives, *impatient, *timed, *preferred, *strict, *unfit]);
        pairs(
            to,
            [
                gathered(*promised),
                gathered(standbys.map(|end| end.unwrap_or(NONE))),
                gathered(*history),
                gathered(positions.map(|wal| wal.timeline)),
                gathered(positions.map(|wal| wal.end)),
                gathered([first, second, third, other_first, other_second, other_third]),
                word([*durability, wanted, *fenced, state, *accepted, 0, 0, 0]),
            ],
        );
    }
}
