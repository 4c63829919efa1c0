//! What a member of the small world observes, as the machine takes it; and what it decides, kept in a table: few
//! observations are behind many states.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use api::status::DurabilityMode;
use machine::instance::{
    Action, Answer, ClusterView, Configured, Confirmed, Contact, Data, Database, LeaseView, Member as Identity, Memo,
    Mode, Observed, Own, Peer, PostgresView, Process, Promise, Promised, Purpose, Reading, Reply as ReportAnswer,
    Route, Stop, SyncSetting, Task as Work_, Tasks, Upstream, VolumeView, Work, decide, election, report,
};
use machine::protocol::{
    Epoch, Fork, HolderRecord, Incarnation, LeaseRecord, Lsn, MemberId, MemberReport, MemberState, Position,
    PromiseReply, PromiseRequest, Release, Timeline,
};
use machine::quorum::SyncRule;
use machine::timing::{BootTime, Timing};

use super::state::{Lease, MEMBERS, Member, Postgres, Reply, Rule, Set, TIMELINES, Task, Wal, World, Write};

const SYSTEM_ID: &str = "7411111111111111111";
const SETTINGS: &str = "cbf29ce484222325";
const CLAIM: &str = "aaaa0000-1111";
const LEASE: &str = "lease";
/// All deadlines have passed, all patience is over: whatever may happen later may happen now.
const NOW: BootTime = BootTime(10_000_000);

/// Runs are told apart, and nothing else.
const OWN_RUN: u8 = 1;
const OTHER_RUN: u8 = 0;

/// What is to happen because a member has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Work begins.
    Begin(Task),
    /// The Lease is to be written; the content's `version` is the one expected.
    Write {
        /// The content.
        content: Lease,
        /// It is a release.
        release: bool,
    },
    /// The others are asked for a promise of this epoch.
    Ask(u8),
    /// PostgreSQL is killed.
    Kill,
    /// PostgreSQL is asked to stop with a checkpoint.
    Stop,
}

/// All that a decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sight {
    me: u8,
    member: Member,
    /// What each peer that is heard has promised, and one.
    promised: [u8; MEMBERS],
    /// How far those that stream from here have flushed.
    standbys: [Option<u8>; MEMBERS],
    history: [u8; TIMELINES],
    durability: u8,
    impatient: bool,
    asking: bool,
}

/// Decides, and remembers what was decided.
pub struct Decider {
    decided: HashMap<Sight, Option<Effect>>,
    /// How many standbys a commit is to wait for.
    durability: u8,
}

impl Decider {
    /// For a cluster whose commits wait for `durability` standbys.
    pub fn new(durability: u8) -> Self {
        Self {
            decided: HashMap::new(),
            durability,
        }
    }

    /// Observations that were decided upon.
    pub fn known(&self) -> usize {
        self.decided.len()
    }

    /// What member `me` may do now: with and without a round of asking in flight.
    pub fn effects(&mut self, world: &World, me: usize) -> Vec<Effect> {
        let mut effects: Vec<_> = [false, true]
            .into_iter()
            .filter_map(|asking| self.effect(world, me, false, asking))
            .collect();
        effects.dedup();
        effects
    }

    /// What a holder does that has not been able to write for too long.
    pub fn impatient(&mut self, world: &World, me: usize) -> Option<Effect> {
        self.effect(world, me, true, true)
    }

    fn effect(&mut self, world: &World, me: usize, impatient: bool, asking: bool) -> Option<Effect> {
        let sight = sight(world, me, self.durability, impatient, asking);
        let decided = *self.decided.entry(sight).or_insert_with(|| sight.decide());
        let member = &world.members[me];
        decided.map(|effect| match effect {
            Effect::Write { mut content, release } => {
                content.version = member.seen.version;
                content.holder = content.holder.map(|(holder, _)| (holder, member.run));
                Effect::Write { content, release }
            }
            other => other,
        })
    }

    /// What member `me` answers to a candidate's request.
    pub fn answer(&self, world: &World, me: usize, from: usize, epoch: u8) -> Option<Reply> {
        let observed = sight(world, me, self.durability, false, true).observed();
        let request = PromiseRequest {
            epoch: Epoch(epoch.into()),
            pod: pod(from),
            lease: LEASE.to_owned(),
        };
        let PromiseReply {
            promised,
            suspects,
            position,
            member: _,
        } = election::answer(&observed, NOW, &request).ok()?;
        Some(Reply {
            promised: small(promised.0),
            suspects,
            position: position.map(wal),
        })
    }
}

fn sight(world: &World, me: usize, durability: u8, impatient: bool, asking: bool) -> Sight {
    let mut promised = [0; MEMBERS];
    let mut standbys = [None; MEMBERS];
    let head = world.members[me].wal;
    if matches!(world.members[me].postgres, Postgres::Primary { .. }) || world.members[me].confirmed.is_some() {
        for (other, member) in world.members.iter().enumerate().filter(|(other, _)| *other != me) {
            if !member.silent {
                promised[other] = member.promise + 1;
            }
            let streams = matches!(member.postgres, Postgres::Standby { upstream: Some((from, _)), receiving: true } if usize::from(from) == me);
            if streams && world.contains(head, member.wal) {
                standbys[other] = Some(member.wal.end);
            }
        }
    }
    let mut member = world.members[me];
    // What does not matter to a decision makes no second observation.
    if member.confirmed.is_some() {
        member.replies = [None; MEMBERS];
    }
    member.asked = u8::from(member.asked > member.seen.epoch) * (member.seen.epoch + 1);
    member.write = member.write.map(|_| Write {
        content: Lease::default(),
        release: false,
        answer: None,
    });
    member.seen.version = 0;
    let run = member.run;
    let same_run = |holder: u8, of: u8| {
        if usize::from(holder) == me && of == run {
            OWN_RUN
        } else {
            OTHER_RUN
        }
    };
    member.seen.holder = member.seen.holder.map(|(holder, of)| (holder, same_run(holder, of)));
    member.run = OWN_RUN;
    Sight {
        me: small(me as u64),
        member,
        promised,
        standbys,
        history: history(world, head.timeline),
        durability,
        impatient,
        asking,
    }
}

/// Where the ancestors of a timeline ended.
pub fn history(world: &World, timeline: u8) -> [u8; TIMELINES] {
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

impl Sight {
    fn decide(self) -> Option<Effect> {
        let observed = self.observed();
        let memo = Memo {
            holding_since: Some(BootTime(0)),
            unable_since: self.impatient.then_some(BootTime(0)),
            kept: Some((0..MEMBERS).map(id).collect()),
            suspected: Some((Epoch(self.member.seen.epoch.into()), BootTime(0))),
            away: (0..MEMBERS).map(|other| (id(other), BootTime(0))).collect(),
            ..Memo::default()
        };
        effect(decide(&observed, &memo, NOW).action, &self.member.seen)
    }

    fn observed(&self) -> Observed {
        let me = usize::from(self.me);
        let member = &self.member;
        let heard = if member.silent { BootTime(0) } else { NOW };
        let record = record(&member.seen);
        let holder = member.seen.holder.map(|(holder, _)| usize::from(holder));
        let mut observed = Observed {
            own: own(me, member.run),
            cluster: Reading::Is(cluster(self.durability)),
            lease: LeaseView {
                record: Reading::Is(record),
                changed: NOW,
                holder_since: BootTime(0),
                confirmed: member.confirmed.map(|epoch| Confirmed {
                    epoch: Epoch(epoch.into()),
                    // Renewals as such are not modelled; after a write of unknown fate the next one is due.
                    sent: BootTime(NOW.0 - u64::from(member.write_failed) * Timing::DEFAULT.renew),
                    timing: Timing::DEFAULT,
                }),
                unsettled: None,
            },
            volume: Reading::Is(self.volume()),
            postgres: self.postgres(heard),
            peers: self.peers(),
            admitted: (0..MEMBERS).map(id).collect(),
            route: Some(Route {
                address: address(me),
                epoch: Epoch(member.seen.epoch.into()),
            }),
            reply: None,
            contact: Contact {
                heard: Some(heard),
                refused: None,
            },
            asked_for: Some(Epoch(member.asked.into())),
            failsafe: BTreeMap::new(),
            failsafe_given: None,
            promises: (0..MEMBERS)
                .filter_map(|other| Some((pod(other), promised(other, member.replies[other]?))))
                .collect(),
            tasks: self.tasks(),
            terminating: false,
        };
        // The member has nothing new to tell, and is admitted by the holder as soon as that can write.
        if let Some(own) = report::status(&observed, &Memo::default(), NOW) {
            if holder.is_some() && member.seen.written > 0 && !member.silent {
                observed.reply = Some(ReportAnswer {
                    epoch: Epoch(member.seen.epoch.into()),
                    admitted: true,
                    gives_way: false,
                    oldest: None,
                    report: own.report.clone(),
                    sent: NOW,
                });
            }
            if let Reading::Is(record) = &mut observed.lease.record {
                record.members.insert(pod(me), own.report);
            }
        }
        observed
    }

    fn volume(&self) -> VolumeView {
        let member = &self.member;
        VolumeView {
            member: Some(Identity {
                id: id(usize::from(self.me)),
                claim_uid: CLAIM.to_owned(),
                public_key: "key".to_owned(),
                certificate: Some("pem".to_owned()),
            }),
            made_for: None,
            data: Data::Present(Database {
                system_id: SYSTEM_ID.to_owned(),
                timeline: Timeline(member.wal.timeline.into()),
                checkpoint: Lsn(member.wal.end.into()),
                redo: Lsn(member.wal.end.into()),
                written: Lsn(member.wal.end.into()),
                clean: matches!(member.postgres, Postgres::Down { clean: true }),
                primary: member.primary_data,
            }),
            promise: Some(Promise {
                epoch: Epoch(member.promise.into()),
                promoting: (member.promoting > 0).then(|| Timeline(member.promoting.into())),
            }),
            rewinding: false,
            read: NOW,
        }
    }

    fn postgres(&self, heard: BootTime) -> PostgresView {
        let member = &self.member;
        let position = Position {
            timeline: Timeline(member.wal.timeline.into()),
            lsn: Lsn(member.wal.end.into()),
        };
        let answer = |in_recovery: bool, receiving: bool| Answer {
            in_recovery,
            position: Some(position),
            replayed: None,
            streaming: receiving,
            pending_restart: false,
            lowers_limits: false,
            heard: Some(heard),
            received_all: in_recovery && !receiving,
            knows_end: true,
        };
        let mut view = PostgresView {
            process: Process::Stopped { exit: None },
            strays: 0,
            configured: Some(Configured {
                settings: SETTINGS.to_owned(),
                upstream: None,
            }),
            refused: None,
            good_settings: SETTINGS.to_owned(),
            answer: None,
            streamed: true,
            version: None,
            open: false,
            in_doubt: None,
            sync: SyncSetting::default(),
            standbys: BTreeMap::new(),
            receiving: BTreeSet::new(),
            wrote: None,
            history: forks(&self.history),
            oldest: None,
        };
        match member.postgres {
            Postgres::Down { .. } => {}
            Postgres::Standby {
                upstream: from,
                receiving,
            } => {
                view.process = Process::Running { mode: Mode::Standby };
                view.answer = Some(answer(true, receiving));
                view.configured = Some(Configured {
                    settings: SETTINGS.to_owned(),
                    upstream: from.map(upstream),
                });
            }
            Postgres::Primary {
                open,
                in_doubt,
                proven,
                proven_at,
                pending,
            } => {
                view.process = Process::Running { mode: Mode::Primary };
                view.answer = Some(answer(false, false));
                view.open = open;
                view.in_doubt = Some(Lsn(in_doubt.into()));
                view.sync = SyncSetting {
                    proven: sync_rule(proven),
                    proven_at: Lsn(proven_at.into()),
                    pending: pending.map(sync_rule),
                };
                let standbys = self.standbys.iter().enumerate();
                view.standbys = standbys
                    .filter_map(|(other, end)| Some((id(other), Lsn((*end)?.into()))))
                    .collect();
            }
        }
        view
    }

    fn peers(&self) -> BTreeMap<String, Peer> {
        let heard = self.promised.iter().enumerate().filter(|(_, promised)| **promised > 0);
        heard
            .map(|(other, promised)| {
                let peer = Peer {
                    report: told(other),
                    position: None,
                    replayed: None,
                    heard: NOW,
                    promised: Epoch(u64::from(*promised) - 1),
                };
                (pod(other), peer)
            })
            .collect()
    }

    fn tasks(&self) -> Tasks {
        let busy = |work: Work| Work_ {
            running: Some(work),
            ..Work_::default()
        };
        let mut tasks = Tasks {
            route: busy(Work::Route),
            admit: busy(Work::Admit),
            report: busy(Work::Report),
            ..Tasks::default()
        };
        if self.asking {
            tasks.ask = busy(Work::Ask);
        }
        if self.member.write.is_some() {
            tasks.lease = busy(Work::WriteLease);
        } else if self.member.write_failed {
            tasks.lease.failures = 1;
        }
        match self.member.task {
            None => {}
            Some(Task::Promise(_)) => tasks.promise = busy(Work::Promise),
            Some(Task::Promote(..)) => tasks.start = busy(Work::Promote),
            Some(Task::StartPrimary(_)) => tasks.start = busy(Work::StartPrimary),
            Some(Task::StartStandby(_)) => tasks.start = busy(Work::StartStandby),
            Some(Task::Configure(_)) => tasks.configure = busy(Work::Configure),
            Some(Task::Open) => tasks.configure = busy(Work::Open),
            Some(Task::SetSync(_)) => tasks.sync = busy(Work::SetSync),
            Some(Task::Rewind(..)) => tasks.volume = busy(Work::Rewind),
            Some(Task::Stop) => {}
        }
        tasks
    }
}

fn effect(action: Action, seen: &Lease) -> Option<Effect> {
    let from =
        |upstream: Option<Upstream>| upstream.map(|upstream| (number(&upstream.address), small(upstream.epoch.0)));
    Some(match action {
        Action::WriteLease { content, purpose, .. } => {
            let mut content = lease(&content, seen);
            content.version = seen.version;
            Effect::Write {
                content,
                release: purpose == Purpose::Release,
            }
        }
        Action::Promise { epoch } => Effect::Begin(Task::Promise(small(epoch.0))),
        Action::Ask { request, .. } => Effect::Ask(small(request.epoch.0)),
        Action::Promote { timeline, rule, .. } => {
            Effect::Begin(Task::Promote(small(timeline.0.into()), set_rule(&rule)))
        }
        Action::StartPrimary { rule, .. } => Effect::Begin(Task::StartPrimary(set_rule(&rule))),
        Action::StartStandby { upstream, .. } => Effect::Begin(Task::StartStandby(from(upstream))),
        Action::Configure { upstream, .. } => Effect::Begin(Task::Configure(from(upstream))),
        Action::SetSync { rule } => Effect::Begin(Task::SetSync(set_rule(&rule))),
        Action::Open => Effect::Begin(Task::Open),
        Action::Rewind { upstream, .. } => {
            Effect::Begin(Task::Rewind(number(&upstream.address), small(upstream.epoch.0)))
        }
        Action::Stop(Stop::Fast) => Effect::Stop,
        Action::Stop(Stop::Immediate | Stop::Kill) => Effect::Kill,
        Action::Wait => return None,
        other => unreachable!("this world has no use for {other:?}"),
    })
}

fn lease(content: &machine::lease_object::LeaseContent, seen: &Lease) -> Lease {
    let holder = content.holder.as_ref().map(|holder| {
        let run = holder.incarnation.run.trim_start_matches("run-").parse().unwrap_or(0);
        (member_number(&holder.incarnation.member), run)
    });
    let mut history = [0; TIMELINES];
    for fork in &content.history {
        history[usize::try_from(fork.timeline.0).unwrap_or(0)] = small(fork.end.0);
    }
    let described = content.holder.as_ref();
    Lease {
        version: seen.version,
        holder,
        epoch: small(content.epoch.0),
        reserved: content.timeline.map_or(0, |timeline| small(timeline.0.into())),
        rule: set_rule(&content.rule),
        release: content
            .release
            .as_ref()
            .map(|release| (member_number(&release.member), release.position.map(wal))),
        written: described
            .and_then(|holder| holder.timeline)
            .map_or(0, |timeline| small(timeline.0.into())),
        serving: described.is_some_and(|holder| holder.serving),
        history,
    }
}

fn record(lease: &Lease) -> LeaseRecord {
    let holder = lease.holder.map(|(member, run)| HolderRecord {
        incarnation: Incarnation {
            pod: pod(member.into()),
            pod_uid: format!("uid-{member}"),
            run: format!("run-{run}"),
            member: id(member.into()),
        },
        address: address(member.into()),
        timeline: (lease.written > 0).then(|| Timeline(lease.written.into())),
        serving: lease.serving,
    });
    let members = (0..MEMBERS).map(|other| (pod(other), told(other))).collect();
    LeaseRecord {
        version: lease.version.to_string(),
        uid: LEASE.to_owned(),
        holder,
        renewal: None,
        duration: Timing::DEFAULT.lease,
        epoch: Epoch(lease.epoch.into()),
        system_id: Some(SYSTEM_ID.to_owned()),
        release: lease.release.map(|(member, end)| Release {
            member: id(member.into()),
            position: end.map(position),
            successor: None,
        }),
        rule: sync_rule(lease.rule),
        timeline: (lease.reserved > 0).then(|| Timeline(lease.reserved.into())),
        history: forks(&lease.history),
        members,
        positions: BTreeMap::new(),
    }
}

fn cluster(durability: u8) -> ClusterView {
    ClusterView {
        uid: "c0ffee".to_owned(),
        replicas: MEMBERS as u32,
        timing: Timing::DEFAULT,
        settings: SETTINGS.to_owned(),
        system_id: Some(SYSTEM_ID.to_owned()),
        epoch: None,
        claim_uid: Some(CLAIM.to_owned()),
        certificate: None,
        grant: None,
        restart: None,
        stop: false,
        durability: api::WantedDurability {
            mode: if durability > 0 {
                DurabilityMode::Required
            } else {
                DurabilityMode::Async
            },
            standbys: durability.into(),
        },
        strict_reads: false,
        primary: None,
        accepted_loss: None,
        fenced: BTreeSet::new(),
    }
}

fn own(me: usize, run: u8) -> Own {
    Own {
        pod: pod(me),
        ordinal: me as u32,
        pod_uid: format!("uid-{me}"),
        run: format!("run-{run}"),
        address: address(me),
        agent_version: String::new(),
    }
}

/// What every member is known to say of itself; nothing new.
fn told(member: usize) -> MemberReport {
    MemberReport {
        pod_uid: format!("uid-{member}"),
        member: id(member),
        address: address(member),
        state: MemberState::Streaming,
        settings: SETTINGS.to_owned(),
        pending_restart: false,
        lowers_limits: false,
        settings_error: None,
        public_key: None,
        server_version: None,
        agent_version: String::new(),
        fault: None,
    }
}

fn promised(other: usize, reply: Reply) -> Promised {
    Promised {
        reply: PromiseReply {
            member: id(other),
            promised: Epoch(reply.promised.into()),
            suspects: reply.suspects,
            position: reply.position.map(position),
        },
        at: NOW,
    }
}

fn pod(member: usize) -> String {
    format!("orders-{member}")
}
fn address(member: usize) -> String {
    format!("10.0.0.{member}")
}
fn number(address: &str) -> u8 {
    address.trim_start_matches("10.0.0.").parse().unwrap_or(u8::MAX)
}
fn id(member: usize) -> MemberId {
    MemberId::new(member as u32, CLAIM, 7)
}
fn member_number(member: &MemberId) -> u8 {
    (0..MEMBERS)
        .position(|other| id(other) == *member)
        .map_or(u8::MAX, |other| other as u8)
}
fn upstream((member, epoch): (u8, u8)) -> Upstream {
    Upstream {
        address: address(member.into()),
        epoch: Epoch(epoch.into()),
    }
}
fn position(wal: Wal) -> Position {
    Position {
        timeline: Timeline(wal.timeline.into()),
        lsn: Lsn(wal.end.into()),
    }
}
fn wal(position: Position) -> Wal {
    Wal {
        timeline: small(position.timeline.0.into()),
        end: small(position.lsn.0),
    }
}
fn forks(ends: &[u8; TIMELINES]) -> Vec<Fork> {
    let known = ends.iter().enumerate().filter(|(_, end)| **end > 0);
    known
        .map(|(timeline, end)| Fork {
            timeline: Timeline(timeline as u32),
            end: Lsn((*end).into()),
        })
        .collect()
}
fn sync_rule(rule: Rule) -> SyncRule {
    SyncRule::any(
        rule.required.into(),
        (0..MEMBERS).filter(|member| rule.names & 1 << member != 0).map(id),
    )
}
fn set_rule(rule: &SyncRule) -> Rule {
    let names: BTreeSet<_> = rule.names.iter().map(member_number).collect();
    Rule {
        required: small(rule.required as u64),
        names: names.iter().fold(0, |set: Set, member| set | 1 << member),
    }
}
fn small(number: u64) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}
