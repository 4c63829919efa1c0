//! What can happen, and the queue of it: by time, and what is of one time in the order in which it was put there.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use machine::instance::observer::{self, ServerId};
use machine::instance::{Purpose, Upstream, Work};
use machine::lease_object::LeaseContent;
use machine::protocol::{
    FailsafeReply, FailsafeRequest, LeaseRecord, MemberId, PromiseReply, PromiseRequest, ReportReply, ReportRequest,
};
use machine::quorum::SyncRule;
use machine::timing::{BootTime, Timing};

use super::api::{LostLease, Spec};
use super::operator::{Kind, Operating, Request};
use super::wal::End;

/// Something that happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// A run of an agent decides again, if it has not meanwhile.
    Wake { node: usize, run: u32, generation: u64 },
    /// An agent hears something.
    News { node: usize, run: u32, news: News },
    /// Work of an agent goes on.
    Step { node: usize, run: u32, task: Task },
    /// PostgreSQL is asked how it is.
    Poll { node: usize, run: u32, generation: u64 },
    /// A deadline of the dead-man.
    DeadMan { node: usize, run: u32, at: BootTime },
    /// Something in a PostgreSQL.
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
    /// A watch that was broken is begun again.
    Relist { node: usize, watch: u32 },
    /// The operator looks.
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
    /// A broken watch of an operator is begun again.
    WatchAgain { operator: usize, run: u32, kind: Kind },
    /// An operator's process is started, and leads.
    StartOperator { operator: usize },
    /// One that does not lead any more ends.
    EndOperator { operator: usize },
    /// A kubelet looks at its pod; `again`: and will in its time.
    Kubelet { node: usize, again: bool },
    /// The StatefulSet's controller makes a pod that is missing.
    Control,
    /// A container is started.
    Boot { node: usize },
    /// An application goes on.
    Client { client: usize },
    /// A fault of the plan begins, or ends.
    Fault { index: usize, ends: bool },
    /// Faults are over.
    Calm,
    /// Is all as it should be?
    Check,
}

/// Something in a PostgreSQL.
#[derive(Clone, Debug)]
pub enum Inner {
    /// Recovery has ended: it answers.
    Up,
    /// Its own clock: streams that are silent, connections to be made.
    Tick,
    /// What was written so far is on the disk.
    Flushed { upto: u64 },
    /// WAL arrives, all up to `upto`.
    Wal { stream: u64, upto: End },
    /// What was received so far is on the disk.
    ReceivedFlushed { stream: u64, upto: End },
    /// A standby tells what it has flushed.
    Reply { stream: u64, flushed: u64 },
    /// Impostors tell that they have flushed all.
    Impostor,
    /// A standby asks for a stream.
    Connect {
        from: usize,
        stream: u64,
        has: End,
        member: MemberId,
    },
    /// A WAL receiver is to be started.
    Receive,
    /// It is granted.
    Connected { stream: u64 },
    /// The other end of a stream has ended.
    Closed { stream: u64 },
    /// A WAL sender reads the setting.
    Reload { stream: u64 },
    /// Whether commits wait at all is as the setting says.
    Waits,
    /// A question that was asked while it stood still.
    Asked { asked: BootTime },
    /// A small write.
    Canary { node_run: u32 },
    /// A checkpoint.
    Checkpoint,
    /// It looks whether it may end.
    Stopping,
}

/// What an agent hears.
#[derive(Clone, Debug)]
pub enum News {
    Lease(Rc<LeaseRecord>),
    LostLease(LostLease),
    Cluster(Rc<Spec>),
    /// The outcome of a write of the Lease; `Err`: conflict (with what is there), or nothing that is known.
    Written {
        call: u64,
        outcome: Result<Rc<LeaseRecord>, Option<Rc<LeaseRecord>>>,
    },
    /// The Lease, as it was when it was read.
    Read {
        call: u64,
        record: Rc<LeaseRecord>,
    },
    /// A call has taken too long.
    Late {
        call: u64,
    },
    /// What the observer takes as it is.
    Seen(observer::Event),
    /// A question to a PostgreSQL that stood still has waited as long as it may.
    Slow {
        server: ServerId,
        asked: BootTime,
    },
    Request {
        from: usize,
        from_run: u32,
        call: u64,
        body: Box<Body>,
        /// With which it is signed.
        key: Option<String>,
    },
    Answer {
        call: u64,
        from: usize,
        body: Box<Answered>,
        /// With which it is signed.
        key: Option<String>,
    },
    Look,
    /// The agent measures what room its volumes have.
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
    /// Nobody listens there.
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
    /// Rounds of asking: who has not answered yet, and whether anybody has. Who answers after the round is over is heard, too.
    Round {
        work: Work,
        sent: BootTime,
        open: BTreeSet<usize>,
        answered: bool,
        over: bool,
    },
}

/// A change of the rule by which commits wait.
#[derive(Clone, Debug)]
pub struct Change {
    pub rule: SyncRule,
    /// A checkpoint makes sure that commits begin to wait.
    pub checkpoint: bool,
    pub stage: u8,
    pub begun: u64,
    /// How many reports each WAL sender had processed when the proof began.
    pub streams: BTreeMap<u64, u64>,
}

/// Work on one member that takes its time.
#[derive(Clone, Debug)]
pub enum Task {
    Promise {
        epoch: u64,
        stage: u8,
        begun: u64,
    },
    Promote {
        timeline: u32,
        rule: SyncRule,
        members: BTreeSet<MemberId>,
        stage: u8,
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
        stage: u8,
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
        }
    }
    /// Which agent's process does it; `None`: somebody else.
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
