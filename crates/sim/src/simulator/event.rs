//! Events and their queue: ordered by time, and events of the same time in the order of their insertion.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use machine::instance::observer::{self, ServerId};
use machine::instance::steps::{PromiseStep, PromotionStep, Walk};
use machine::instance::{Purpose, Upstream, Work};
use machine::lease_object::LeaseContent;
use machine::protocol::{
    FailsafeReply, FailsafeRequest, LeaseRecord, MemberId, PromiseReply, PromiseRequest, ReportReply, ReportRequest,
};
use machine::quorum::SyncRule;
use machine::timing::{BootTime, Timing};

use super::api::{LostLease, Spec};
use super::archive::Archiving;
use super::operator::{Kind, Operating, Request};
use super::wal::End;

/// An event.
#[derive(Clone, Debug)]
pub enum Event {
    /// A run of an agent decides again, unless it has done so meanwhile.
    Wake { node: usize, run: u32, generation: u64 },
    /// An agent hears something.
    News { node: usize, run: u32, news: News },
    /// The next step of an agent's task.
    Step { node: usize, run: u32, task: Task },
    /// PostgreSQL is asked for its state.
    Poll { node: usize, run: u32, generation: u64 },
    /// A deadline of the dead-man.
    DeadMan { node: usize, run: u32, at: BootTime },
    /// Something happens in a PostgreSQL.
    Server { node: usize, server: u64, what: Inner },
    /// A write of the Lease arrives at the API server.
    LeaseWrite {
        node: usize,
        run: u32,
        call: u64,
        content: Box<LeaseContent>,
        answer: bool,
    },
    /// A reading of the Lease arrives at the API server.
    LeaseRead { node: usize, run: u32, call: u64 },
    /// A write of the route arrives.
    RouteWrite { node: usize, run: u32, epoch: u64 },
    /// Something happens between the archive's worker of that run and the store.
    Archive { node: usize, run: u32, what: Archiving },
    /// A broken watch is restarted.
    Relist { node: usize, watch: u32 },
    /// The operator reconciles.
    Operator,
    /// A process of an operator does something.
    Operate { operator: usize, run: u32, what: Operating },
    /// A request of an operator arrives.
    Asked {
        operator: usize,
        run: u32,
        call: u64,
        request: Box<Request>,
        answer: bool,
    },
    /// A broken watch of an operator is restarted.
    WatchAgain { operator: usize, run: u32, kind: Kind },
    /// An operator's process is started, and leads.
    StartOperator { operator: usize },
    /// An operator that no longer leads ends.
    EndOperator { operator: usize },
    /// A kubelet checks its pod; `again`: and schedules its next check.
    Kubelet { node: usize, again: bool },
    /// The StatefulSet's controller makes a missing pod.
    Control,
    /// A container is started.
    Boot { node: usize },
    /// The next step of an application.
    Client { client: usize },
    /// A fault of the plan begins, or ends.
    Fault { index: usize, ends: bool },
    /// Faults are over.
    Calm,
    /// Is everything as wanted?
    Check,
}

/// Something that happens in a PostgreSQL.
#[derive(Clone, Debug)]
pub enum Inner {
    /// Recovery has ended: the server answers.
    Up,
    /// Its own timer: silent streams, and connections to be made.
    Tick,
    /// WAL that was written so far is on the disk.
    Flushed { upto: u64 },
    /// WAL arrives, all up to `upto`.
    Wal { stream: u64, upto: End },
    /// WAL that was received so far is on the disk.
    ReceivedFlushed { stream: u64, upto: End },
    /// A standby reports what it has flushed.
    Reply { stream: u64, flushed: u64 },
    /// Impostors report that they have flushed everything.
    Impostor,
    /// A standby asks for a stream.
    Connect {
        from: usize,
        stream: u64,
        has: End,
        member: MemberId,
    },
    /// A WAL receiver should be started.
    Receive,
    /// The stream is granted.
    Connected { stream: u64 },
    /// The other end of a stream has ended.
    Closed { stream: u64 },
    /// A WAL sender reads the setting.
    Reload { stream: u64 },
    /// The checkpointer notices whether commits wait at all.
    Waits,
    /// A question that was asked while it was stalled.
    Asked { asked: BootTime },
    /// The canary's small write.
    Canary { node_run: u32 },
    /// A checkpoint.
    Checkpoint,
    /// PostgreSQL's archiver asks about the next file, unless it was woken since.
    Archive { wake: u64 },
    /// A stopping server checks whether it may end.
    Stopping,
}

/// What an agent hears.
#[derive(Clone, Debug)]
pub enum News {
    Lease(Rc<LeaseRecord>),
    LostLease(LostLease),
    Cluster(Rc<Spec>),
    /// The outcome of a write of the Lease; `Err`: a conflict (with the present object), or an unknown outcome.
    Written {
        call: u64,
        outcome: Result<Rc<LeaseRecord>, Option<Rc<LeaseRecord>>>,
    },
    /// The Lease as it was when it was read.
    Read {
        call: u64,
        record: Rc<LeaseRecord>,
    },
    /// A call has taken too long.
    Late {
        call: u64,
    },
    /// An event that the observer takes unchanged.
    Seen(observer::Event),
    /// A question to a stalled PostgreSQL has reached its time limit.
    Slow {
        server: ServerId,
        asked: BootTime,
    },
    Request {
        from: usize,
        from_run: u32,
        call: u64,
        body: Box<Body>,
        /// The key that it is signed with.
        key: Option<String>,
    },
    Answer {
        call: u64,
        from: usize,
        body: Box<Answered>,
        /// The key that it is signed with.
        key: Option<String>,
    },
    Look,
    /// The agent measures the free space of its volumes.
    Room,
}

/// A call to another member's agent.
#[derive(Clone, Debug)]
pub enum Body {
    Report(Box<ReportRequest>),
    Promise(PromiseRequest),
    Failsafe(FailsafeRequest),
}

/// The answer.
#[derive(Clone, Debug)]
pub enum Answered {
    Report(Result<ReportReply, String>),
    Promise(Result<PromiseReply, String>),
    Failsafe(Result<FailsafeReply, String>),
    /// No process listens there.
    Refused,
}

/// What an agent waits for.
#[derive(Clone, Debug)]
pub enum Call {
    Lease {
        sent: BootTime,
        purpose: Purpose,
        timing: Timing,
    },
    Read,
    Report {
        sent: BootTime,
        holder_run: Option<String>,
        holders_key: Option<String>,
        request: Box<ReportRequest>,
    },
    /// Rounds of requests: which members have not answered yet, and whether any has. A member that answers after the
    /// round is still heard.
    Round {
        work: Work,
        sent: BootTime,
        open: BTreeSet<usize>,
        answered: bool,
        over: bool,
    },
}

/// A change of the synchronous setting.
#[derive(Clone, Debug)]
pub struct Change {
    pub rule: SyncRule,
    /// True if a checkpoint makes sure that commits begin to wait.
    pub checkpoint: bool,
    pub stage: u8,
    pub begun: u64,
    /// How many reports each WAL sender had processed when the proof began.
    pub streams: BTreeMap<u64, u64>,
}

/// A task of a member that takes time.
#[derive(Clone, Debug)]
pub enum Task {
    Promise {
        epoch: u64,
        walk: Walk<PromiseStep>,
        begun: u64,
    },
    Promote {
        timeline: u32,
        rule: SyncRule,
        members: BTreeSet<MemberId>,
        walk: Walk<PromotionStep>,
        begun: u64,
    },
    StartPrimary {
        rule: SyncRule,
        settings: String,
    },
    StartStandby {
        was_primary: bool,
        upstream: Option<Upstream>,
        settings: String,
    },
    Configure {
        upstream: Option<Upstream>,
        settings: String,
    },
    SetSync(Change),
    Open,
    Checkpoint,
    Admit {
        member: MemberId,
    },
    DropSlots {
        keep: BTreeSet<MemberId>,
    },
    Route {
        epoch: u64,
    },
    Rewind {
        upstream: Upstream,
        stage: u8,
    },
    Clone {
        from: usize,
        /// Where the copy begins, once it has.
        begun: Option<u64>,
    },
    SetAside {
        keep: bool,
    },
    CreateMember {
        claim_uid: String,
    },
    StoreCertificate,
    Scan {
        read: BootTime,
    },
    Kill,
}

/// The queue.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
}

impl Queue {
    pub fn push(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }
    /// The next event, if it is before that time.
    pub fn pop_before(&mut self, until: u64) -> Option<(u64, Event)> {
        let next = self.events.first_entry()?;
        (next.key().0 < until).then(|| (next.key().0, next.remove()))
    }
    pub fn pop(&mut self) -> Option<(u64, u64, Event)> {
        let ((at, sequence), event) = self.events.pop_first()?;
        Some((at, sequence, event))
    }
}

impl Event {
    /// A number for each kind, for the fingerprint of a run.
    pub fn kind(&self) -> u64 {
        match self {
            Event::Wake { .. } => 1,
            Event::News { .. } => 2,
            Event::Step { .. } => 3,
            Event::Poll { .. } => 4,
            Event::DeadMan { .. } => 5,
            Event::Server { .. } => 6,
            Event::LeaseWrite { .. } => 7,
            Event::RouteWrite { .. } => 8,
            Event::Relist { .. } => 9,
            Event::Operator => 10,
            Event::Boot { .. } => 11,
            Event::Client { .. } => 12,
            Event::Fault { .. } => 13,
            Event::Calm => 14,
            Event::Check => 15,
            Event::Operate { .. } => 16,
            Event::Asked { .. } => 17,
            Event::WatchAgain { .. } => 18,
            Event::StartOperator { .. } => 19,
            Event::Kubelet { .. } => 20,
            Event::Control => 21,
            Event::EndOperator { .. } => 22,
            Event::LeaseRead { .. } => 23,
            Event::Archive { .. } => 24,
        }
    }
    /// The agent's process that the event belongs to; `None`: it belongs to none.
    pub fn agent(&self) -> Option<(usize, u32)> {
        match self {
            Event::Wake { node, run, .. }
            | Event::News { node, run, .. }
            | Event::Step { node, run, .. }
            | Event::Poll { node, run, .. } => Some((*node, *run)),
            _ => None,
        }
    }
}
