//! The world and its loop: it takes the next event at its time, and nothing else happens.

use std::collections::{BTreeMap, BTreeSet};

use machine::timing::BootTime;

use super::api::Api;
use super::archive::{Archived, Store, WalFiles, Worker};
use super::clients::Client;
use super::coverage::Coverage;
use super::event::{Event, Inner, News, Queue};
use super::names::{claim, member, number, pod_uid};
use super::net::Net;
use super::node::{Clock, Data, Disk, Node, Volume};
use super::operator::{Operator, Sandbox};
use super::oracle::Checks;
use super::plan::{Fault, Plan};
use super::random::{Random, Streams};
use super::trace::Trace;
use super::wal::{End, FIRST, Wal};

/// A run in progress.
pub struct World {
    /// Milliseconds since it began.
    pub now: u64,
    pub plan: Plan,
    pub queue: Queue,
    pub random: Streams,
    pub api: Api,
    pub net: Net,
    pub wal: Wal,
    /// The store of archived WAL, and what must be in it.
    pub store: Store,
    pub archived: Archived,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    /// The operators' processes. If there are none, the API server does for agents what an operator would do.
    pub operators: Vec<Operator>,
    /// The one that leads.
    pub leader: usize,
    pub coverage: Coverage,
    pub checks: Checks,
    pub trace: Trace,
    /// Counts servers, streams and calls.
    pub counter: u64,
    /// The first violation.
    pub wrong: Option<String>,
    /// The node that each fault has struck.
    pub struck: BTreeMap<usize, usize>,
    /// Faults that have begun, in that order, and until when each counts as under way.
    pub under_way: Vec<(Fault, u64)>,
    /// How many commits were acknowledged when faults were over.
    pub before_calm: u64,
    /// True if the user has accepted a loss since, because no member could be elected otherwise.
    pub accepts_in_the_end: bool,
    /// A valid reason why it does not serve in the end.
    pub excused: Option<String>,
    /// How many timelines the present holder has reserved in a row.
    pub spins: u32,
    /// The member whose name an impostor uses.
    pub impersonates: Option<usize>,
    /// Since when faults are over.
    pub calm_since: Option<u64>,
    /// True if the run is over.
    pub over: bool,
}

/// More events than this in one run are a defect.
const MOST_EVENTS: u64 = 3_000_000;

impl World {
    /// A database that served until a moment ago. All containers start, on volumes with data; the Lease names an
    /// earlier run of the first member.
    pub fn new(plan: Plan, explained: bool) -> Self {
        let mut random = Random::of(plan.seed, "world");
        let nodes = (0..plan.members).map(|node| first(&plan, node, &mut random)).collect();
        let mut world = Self {
            now: 0,
            queue: Queue::default(),
            random: Streams::of(plan.seed),
            api: Api::new(&plan),
            net: Net::new(plan.members),
            wal: Wal::new(),
            store: Store::default(),
            archived: Archived::default(),
            nodes,
            clients: (0..plan.members).map(|_| Client::default()).collect(),
            operators: (0..if plan.whole { 2 } else { 0 })
                .map(|_| Operator::default())
                .collect(),
            leader: 0,
            coverage: Coverage::default(),
            checks: Checks::default(),
            trace: Trace::new(explained),
            counter: 0,
            wrong: None,
            struck: BTreeMap::new(),
            under_way: Vec::new(),
            before_calm: 0,
            accepts_in_the_end: false,
            excused: None,
            spins: 0,
            impersonates: None,
            calm_since: None,
            over: false,
            plan,
        };
        for node in 0..world.plan.members {
            world.queue.push(10 + 7 * node as u64, Event::Boot { node });
            world.queue.push(1_000, Event::Client { client: node });
        }
        let faults: Vec<_> = world.plan.chosen().map(|(index, fault)| (index, *fault)).collect();
        for (index, fault) in faults {
            world.queue.push(fault.at, Event::Fault { index, ends: false });
        }
        match world.plan.whole {
            false => world.queue.push(500, Event::Operator),
            true => world.begin_whole(),
        }
        world.queue.push(world.plan.length, Event::Calm);
        world
    }

    /// The number of the member that holds the lease.
    pub fn holder(&self) -> Option<usize> {
        let holder = self.api.lease.holder.as_ref()?;
        Some(number(&holder.incarnation.pod))
    }

    /// Runs until it is over, or something is wrong.
    pub fn run(&mut self) {
        let mut events = 0;
        while !self.over && self.wrong.is_none() {
            let Some((at, sequence, event)) = self.queue.pop() else {
                break;
            };
            events += 1;
            if events > MOST_EVENTS {
                self.violate(format!(
                    "more than {MOST_EVENTS} events: something does not become idle"
                ));
            }
            self.now = at;
            let node = event.agent().map_or(99, |(node, _)| node);
            self.trace.mark(at ^ sequence << 32 ^ event.kind() << 24 ^ node as u64);
            self.happen(event);
        }
        self.coverage.events = events;
    }

    /// Runs everything that happens within this many milliseconds.
    pub fn pass(&mut self, milliseconds: u64) {
        let until = self.now + milliseconds;
        while let Some((at, event)) = self.queue.pop_before(until) {
            self.now = at;
            self.happen(event);
        }
        self.now = until;
    }

    /// Processes an event.
    pub fn happen(&mut self, event: Event) {
        if let Some((node, run)) = event.agent() {
            if self.nodes[node].agent.as_ref().is_none_or(|agent| agent.run != run) {
                return;
            }
            if self.nodes[node].agent_frozen > 0 {
                return self.nodes[node].agent_waits.push(event);
            }
        }
        match event {
            Event::Wake { node, generation, .. } => self.wake(node, generation),
            Event::News { node, news, .. } => self.news(node, news),
            Event::Step { node, task, .. } => self.step(node, task),
            Event::Poll { node, generation, .. } => self.poll(node, generation),
            Event::DeadMan { node, .. } if self.nodes[node].pod_frozen => self.nodes[node].pod_waits.push(event),
            Event::DeadMan { node, run, at } => self.dead_man(node, run, at),
            Event::Server { node, server, what } => self.server_event(node, server, what),
            Event::LeaseWrite {
                node,
                run,
                call,
                content,
                answer,
            } => self.lease_arrives(node, run, call, &content, answer),
            Event::LeaseRead { node, run, call } => self.lease_is_read(node, run, call),
            Event::RouteWrite { node, run, epoch } => self.route_arrives(node, run, epoch),
            Event::Archive { node, run, what } => self.archiving(node, run, what),
            Event::Relist { node, watch } => self.relist(node, watch),
            Event::Operator => self.operate(),
            Event::Operate { operator, run, what } => self.operate_step(operator, run, what),
            Event::Asked {
                operator,
                run,
                call,
                request,
                answer,
            } => self.asked_for(operator, run, call, *request, answer),
            Event::WatchAgain { operator, run, kind } => self.watch_again(operator, run, kind),
            Event::StartOperator { operator } => self.take_over(operator),
            Event::EndOperator { operator } => self.end_operator(operator),
            Event::Kubelet { node, again } => self.kubelet(node, again),
            Event::Control => self.control(),
            Event::Boot { node } => self.boot(node),
            Event::Client { client } => self.client(client),
            Event::Fault { index, ends } => self.fault(index, ends),
            Event::Calm => self.calm(),
            Event::Check => self.check_liveness(),
        }
    }

    fn server_event(&mut self, node: usize, server: u64, what: Inner) {
        let there = self.nodes[node]
            .postgres
            .as_ref()
            .is_some_and(|running| running.id == server);
        if !there {
            return;
        }
        if self.nodes[node].postgres_frozen > 0 {
            self.nodes[node]
                .postgres_waits
                .push(Event::Server { node, server, what });
            return;
        }
        self.inner(node, what);
    }

    /// Ends the run with the first violation.
    pub fn violate(&mut self, what: String) {
        self.note(None, || format!("VIOLATION: {what}"));
        self.wrong.get_or_insert(what);
    }

    /// A line of the table that explains a run.
    pub fn note(&mut self, node: Option<usize>, what: impl FnOnce() -> String) {
        self.trace.line(self.now, node, what);
    }

    pub fn after(&mut self, delay: u64, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    /// Sends an agent something, if it runs.
    pub fn tell(&mut self, delay: u64, node: usize, news: News) {
        if let Some(agent) = &self.nodes[node].agent {
            let event = Event::News {
                node,
                run: agent.run,
                news,
            };
            self.after(delay, event);
        }
    }

    pub fn number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    pub fn boot_time(&self, node: usize) -> BootTime {
        self.nodes[node].now(self.now)
    }
}

fn first(plan: &Plan, node: usize, random: &mut Random) -> Node {
    let slots: BTreeSet<_> = (0..plan.replicas).map(|other| member(other, 0)).collect();
    let data = Data {
        end: End { branch: 0, lsn: FIRST },
        redo: FIRST,
        consistent: None,
        primary: node == 0,
        clean: node == 0,
        slots: if node == 0 { slots } else { BTreeSet::new() },
        files: WalFiles::default(),
    };
    let there = node < plan.replicas;
    Node {
        clock: Clock {
            base: random.between(1_000_000, 9_000_000),
            fast: plan.rates[node],
        },
        volume: Volume {
            number: 0,
            member: there.then(|| member(node, 0)),
            claim: claim(node, 0),
            certificate: there,
            data: Some(data).filter(|_| there),
            promise: u64::from(there),
            promoting: None,
            credential: false,
            rewinding: false,
            was_primary: false,
            aside: Vec::new(),
        },
        disk: Disk::default(),
        late_promise: None,
        postgres: None,
        agent: None,
        archive: Worker::default(),
        sandbox: if there {
            Sandbox::of(pod_uid(node))
        } else {
            Sandbox::default()
        },
        runs: 0,
        on: true,
        agent_frozen: 0,
        agent_waits: Vec::new(),
        postgres_frozen: 0,
        postgres_waits: Vec::new(),
        pod_frozen: false,
        pod_waits: Vec::new(),
        armed: None,
        granted: BootTime(0),
        watch_broken: false,
        watch: 0,
        watch_tries: None,
        watch_lag: 0,
        watch_dead: 0,
        watch_last: 0,
        routes: BTreeMap::new(),
    }
}
