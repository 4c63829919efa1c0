//! What a member of the small world sees and decides. Decisions are stored in a table, because many states have the
//! same view.

use std::collections::HashMap;

use machine::archive::Charge;
use machine::instance::archive::charge;
use machine::instance::{Action, Purpose, Stop, Upstream, decide, election, failsafe};
use machine::protocol::{Epoch, FailsafeRequest, PromiseReply, PromiseRequest};

use super::archive::Marks;
use super::fingerprint::Build;
use super::names::{LEASE, lease, number, pod, pod_number, set_rule, small, wal};
use super::rename;
use super::show::{NOW, TICK};
use super::state::{Given, Lease, Member, Postgres, Reply, Rule, Set, TIMELINES, Task, Wal, World, Write};

/// The number of a run only distinguishes it.
const OWN_RUN: u8 = 1;
const HOLDERS_RUN: u8 = 0;
const OTHER_RUN: u8 = 9;

/// The effect of a member's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Work begins.
    Begin(Task),
    /// The Lease should be written; the content's `version` is the expected one.
    Write {
        /// The content.
        content: Lease,
        /// True if it is a release.
        release: bool,
    },
    /// The other members are asked for a promise of this epoch.
    Ask(u8),
    /// The other members are asked not to take the lease of this epoch.
    AskFailsafe(u8),
    /// PostgreSQL is killed.
    Kill,
    /// PostgreSQL is asked to stop with a checkpoint.
    Stop,
}

/// A decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// Its effect; `None`: the machine waits.
    pub effect: Option<Effect>,
    /// The member to which the lease is being handed over, and the epoch in which that began.
    pub handing: Option<(u8, u8)>,
    /// The dead-man acts before the next tick.
    pub dies: bool,
}

/// Everything that a decision depends on. The member itself is 0, the holder 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sight<const N: usize> {
    pub member: Member<N>,
    /// What each heard peer has promised, plus one.
    pub promised: [u8; N],
    /// How far the members that stream from here have flushed.
    pub standbys: [Option<u8>; N],
    pub history: [u8; TIMELINES],
    /// True if its promotions never end.
    pub unfit: bool,
    /// What such a member knows of standbys: how much WAL they have.
    pub positions: [Option<Wal>; N],
    pub durability: u8,
    pub preferred: bool,
    pub strict: bool,
    pub accepted: u8,
    pub wanted: Option<u8>,
    pub fenced: Set,
    /// Rules in writes with unknown outcome, and whether these release the lease.
    pub unsettled: [Option<(Rule, bool)>; 2],
    /// True if it has not been able to write for too long.
    pub impatient: bool,
    /// True if clocks count.
    pub timed: bool,
    /// True if there is an archive.
    pub archives: bool,
}

/// Decides, and remembers the decisions.
pub struct Decider<const N: usize> {
    decided: HashMap<Sight<N>, [Decided; 2], Build>,
    answered: HashMap<(Sight<N>, u8, u8), Option<Reply>, Build>,
    promised: HashMap<(Sight<N>, u8, u8), Option<Given>, Build>,
    charged: HashMap<Sight<N>, Charge, Build>,
    timed: bool,
}

impl<const N: usize> Decider<N> {
    /// `timed`: the clocks of the lease count. Without them, all deadlines of others have passed, and none of a
    /// member's own.
    pub fn new(timed: bool) -> Self {
        Self {
            decided: HashMap::default(),
            answered: HashMap::default(),
            promised: HashMap::default(),
            charged: HashMap::default(),
            timed,
        }
    }

    /// How many different views were decided on.
    pub fn known(&self) -> usize {
        self.decided.len()
    }

    /// What member `me` decides now, without and with a round of requests in flight.
    pub fn decide(&mut self, world: &World<N>, me: usize) -> [Decided; 2] {
        self.decide_as(world, me, false)
    }

    /// What a holder decides that has not been able to write for too long.
    pub fn impatient(&mut self, world: &World<N>, me: usize) -> Decided {
        self.decide_as(world, me, true)[1]
    }

    fn decide_as(&mut self, world: &World<N>, me: usize, impatient: bool) -> [Decided; 2] {
        let (names, back) = view(world, me);
        let mut sight = sight(world, me, &names, self.timed);
        sight.impatient = impatient;
        let decided = self.decided.entry(sight);
        let decided = decided.or_insert_with(|| [false, true].map(|asking| sight.decide(asking)));
        let member = &world.members[me];
        decided.map(|decided| decided.known_to(member, &back))
    }

    /// What member `me` answers to a candidate's request.
    pub fn answer(&mut self, world: &World<N>, me: usize, from: usize, epoch: u8) -> Option<Reply> {
        let (names, _) = view(world, me);
        let sight = sight(world, me, &names, self.timed);
        let answered = self.answered.entry((sight, names[from], epoch));
        *answered.or_insert_with(|| sight.answer(names[from], epoch))
    }

    /// What member `me` promises to the holder `from`, which cannot renew its lease of `epoch`.
    pub fn failsafe(&mut self, world: &World<N>, me: usize, from: usize, epoch: u8) -> Option<Given> {
        let (names, _) = view(world, me);
        let sight = sight(world, me, &names, self.timed);
        let promised = self.promised.entry((sight, names[from], epoch));
        let given = *promised.or_insert_with(|| sight.leaves_alone(names[from], epoch));
        let (_, run) = world.members[me].seen.holder?;
        given.map(|given| Given { run, ..given })
    }

    /// What the archiver of member `me` may do.
    pub fn charge(&mut self, world: &World<N>, me: usize) -> Charge {
        let (names, _) = view(world, me);
        let sight = sight(world, me, &names, self.timed);
        *self.charged.entry(sight).or_insert_with(|| sight.charge())
    }
}

/// The numbers by which a member knows the others, and their inverse.
fn view<const N: usize>(world: &World<N>, me: usize) -> ([u8; N], [u8; N]) {
    let holder = world.members[me].seen.holder.map(|(holder, _)| usize::from(holder));
    let others = (0..N).filter(|other| *other != me && Some(*other) != holder);
    let order = [me]
        .into_iter()
        .chain(holder.filter(|holder| *holder != me))
        .chain(others);
    let (mut names, mut back) = ([0; N], [0; N]);
    for (name, member) in order.enumerate() {
        (names[member], back[name]) = (name as u8, member as u8);
    }
    (names, back)
}

fn sight<const N: usize>(world: &World<N>, me: usize, names: &[u8; N], timed: bool) -> Sight<N> {
    let mut promised = [0; N];
    let mut standbys = [None; N];
    let mut positions = [None; N];
    let unfit = world.is_unfit(me);
    let own = &world.members[me];
    let member = plain(own, me);
    let head = member.wal;
    if matches!(own.postgres, Postgres::Primary { .. }) || own.confirmed.is_some() {
        for (other, member) in world.members.iter().enumerate().filter(|(other, _)| *other != me) {
            let name = usize::from(names[other]);
            if !member.silent {
                promised[name] = member.promise + 1;
            }
            let follows = matches!(member.postgres, Postgres::Standby { .. });
            if unfit && follows && !member.silent {
                positions[name] = Some(member.flushed());
            }
            let streams = matches!(member.postgres, Postgres::Standby { upstream: Some((from, _)), receiving: true } if usize::from(from) == me);
            if streams && world.contains(head, member.flushed()) {
                standbys[name] = Some(member.flushed().end);
            }
        }
    }
    Sight {
        member: member.renamed(names),
        promised,
        standbys,
        history: history(world, head.timeline),
        unfit,
        positions,
        durability: world.durability,
        preferred: world.preferred,
        strict: world.strict,
        accepted: world.accepted,
        wanted: world.wanted.map(|wanted| names[usize::from(wanted)]),
        fenced: rename::set(names, world.fenced),
        unsettled: unsettled(own).map(|write| write.map(|(rule, release)| (rule.renamed(names), release))),
        impatient: false,
        timed,
        archives: world.segment > 0,
    }
}

/// Removes what does not matter to a decision, so that it makes no second view.
fn plain<const N: usize>(own: &Member<N>, me: usize) -> Member<N> {
    let mut member = *own;
    if let Postgres::Standby { receiving: true, .. } = member.postgres {
        // PostgreSQL reports how far it has flushed what it receives.
        member.wal = member.flushed();
    }
    member.flushed = None;
    member.marks = Marks::new();
    if member.confirmed.is_some() {
        member.replies = [None; N];
    }
    member.asked = u8::from(member.asked > member.seen.epoch) * (member.seen.epoch + 1);
    member.write = member.write.map(|_| Write {
        content: Lease::default(),
        release: false,
        answer: None,
        age: 0,
    });
    (member.unsettled, member.doubts, member.slow) = (None, [None; 2], false);
    member.seen.version = 0;
    member.given = member.given.map(|given| Given {
        run: if own.seen.holder.is_some_and(|(_, run)| run == given.run) {
            HOLDERS_RUN
        } else {
            OTHER_RUN
        },
        ..given
    });
    member.seen.holder = member.seen.holder.map(|(holder, run)| {
        let ours = usize::from(holder) == me && run == own.run;
        (holder, if ours { OWN_RUN } else { HOLDERS_RUN })
    });
    member.run = OWN_RUN;
    member
}

/// Writes that may be in the Lease and were not seen in it. They matter to a member that relies on promises.
fn unsettled<const N: usize>(own: &Member<N>) -> [Option<(Rule, bool)>; 2] {
    if own.seen.loss.is_some() || own.failsafe.iter().all(Option::is_none) {
        return own.doubts;
    }
    let current = |version: u8| version == own.seen.version;
    let flying = own.write.filter(|write| current(write.content.version));
    let lost = own.unsettled.filter(|lost| current(lost.version));
    [
        flying.map(|write| (write.content.rule, write.release)),
        lost.map(|lost| (lost.rule, lost.release)),
    ]
}

/// Where the ancestors of a timeline ended.
pub fn history<const N: usize>(world: &World<N>, timeline: u8) -> [u8; TIMELINES] {
    let mut ends = [0; TIMELINES];
    let mut at = timeline;
    loop {
        let (parent, end) = world.forks[usize::from(at) % TIMELINES];
        if parent == 0 {
            return ends;
        }
        ends[usize::from(parent)] = end;
        at = parent;
    }
}

impl<const N: usize> Sight<N> {
    fn decide(self, asking: bool) -> Decided {
        let decision = decide(&self.observed(asking), &self.memo(), NOW);
        let handing = decision.memo.handing_over.as_ref();
        Decided {
            effect: effect(decision.action, &self.member.seen),
            handing: handing.map(|to| (pod_number(to), self.member.confirmed.unwrap_or(0))),
            dies: decision.dead_man.is_some_and(|at| at <= NOW.plus(TICK)),
        }
    }

    fn charge(&self) -> Charge {
        charge(&self.observed(true), &self.memo_of_archiver(), NOW)
    }

    fn leaves_alone(&self, from: u8, epoch: u8) -> Option<Given> {
        let request = FailsafeRequest {
            epoch: Epoch(epoch.into()),
            pod: pod(from.into()),
            lease: LEASE.to_owned(),
        };
        let (_, given) = failsafe::answer(&self.observed(true), NOW, &request).ok()?;
        Some(Given {
            epoch: small(given.epoch.0),
            run: HOLDERS_RUN,
            left: small(given.until.since(NOW).0 / TICK.0),
        })
    }

    fn answer(&self, from: u8, epoch: u8) -> Option<Reply> {
        let request = PromiseRequest {
            epoch: Epoch(epoch.into()),
            pod: pod(from.into()),
            lease: LEASE.to_owned(),
        };
        let PromiseReply {
            promised,
            suspects,
            position,
            member: _,
        } = election::answer(&self.observed(true), NOW, &request).ok()?;
        Some(Reply {
            promised: small(promised.0),
            suspects,
            position: position.map(wal),
        })
    }
}

impl Decided {
    /// The same with the numbers that all use, not those of `member`'s view.
    fn known_to<const N: usize>(mut self, member: &Member<N>, back: &[u8; N]) -> Self {
        self.handing = self.handing.map(|(to, epoch)| (back[usize::from(to)], epoch));
        self.effect = self.effect.map(|effect| match effect {
            Effect::Write { content, release } => {
                let mut content = content.renamed(back);
                content.version = member.seen.version;
                content.holder = content.holder.map(|(holder, _)| (holder, member.run));
                Effect::Write { content, release }
            }
            Effect::Begin(task) => Effect::Begin(task.renamed(back)),
            other => other,
        });
        self
    }
}

fn effect(action: Action, seen: &Lease) -> Option<Effect> {
    let from =
        |upstream: Option<Upstream>| upstream.map(|upstream| (number(&upstream.address), small(upstream.epoch.0)));
    Some(match action {
        Action::WriteLease { content, purpose, .. } => Effect::Write {
            content: lease(&content, seen),
            release: purpose == Purpose::Release,
        },
        Action::Promise { epoch } => Effect::Begin(Task::Promise(small(epoch.0))),
        Action::Ask { request, .. } => Effect::Ask(small(request.epoch.0)),
        Action::AskFailsafe { request, .. } => Effect::AskFailsafe(small(request.epoch.0)),
        Action::Promote { timeline, rule, .. } => {
            Effect::Begin(Task::Promote(small(timeline.0.into()), set_rule(&rule)))
        }
        Action::StartPrimary { rule, .. } => Effect::Begin(Task::StartPrimary(set_rule(&rule))),
        Action::StartStandby { upstream, .. } => Effect::Begin(Task::StartStandby(from(upstream))),
        Action::Configure { upstream, .. } => Effect::Begin(Task::Configure(from(upstream))),
        Action::SetSync { rule } => Effect::Begin(Task::SetSync(set_rule(&rule))),
        Action::Open => Effect::Begin(Task::Open),
        Action::Rewind { upstream, keep, .. } => Effect::Begin(Task::Rewind {
            from: number(&upstream.address),
            epoch: small(upstream.epoch.0),
            keep: keep.is_some(),
        }),
        Action::SetAside { keep } => Effect::Begin(Task::SetAside(keep)),
        Action::Clone { upstream, .. } => Effect::Begin(Task::Clone(number(&upstream))),
        Action::Stop(Stop::Fast) => Effect::Stop,
        Action::Stop(Stop::Immediate | Stop::Kill) => Effect::Kill,
        Action::Wait => return None,
        other => unreachable!("this world has no {other:?}"),
    })
}
