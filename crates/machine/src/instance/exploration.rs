//! All sequences of events, up to a bound: an old pod and a new pod on the same volume, a lossy API server, stalls,
//! crashes and the dead-man. In none of them do two PostgreSQL write at the same time.

use std::collections::{BTreeSet, VecDeque};

use super::fixtures::*;
use super::observer::{Done, Effect, Event, Observer, SeenLease};
use super::*;
use crate::protocol::{Epoch, HolderRecord, Incarnation, LeaseRecord};
use crate::timing::Timing;
use crate::units::Millis;

/// One step of time, in milliseconds.
const TICK: u64 = 500;
/// Short times, so that a whole succession fits into a few ticks. They obey the timing rule.
const TIMING: Timing = Timing {
    lease: Millis::seconds(3),
    renew: Millis(500),
    fence: Millis(1_500),
    kill: Millis::seconds(1),
};
/// Faults in one sequence: a stall, a cut, a crash, a lost request, a tick for which a request or the watch lags.
const FAULTS: u8 = 2;
/// Explored ticks: enough for the expiry, the take-over, and what the old holder does then.
const HORIZON: u64 = 8;

/// The Lease, reduced to the parts that matter for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lease {
    version: u64,
    /// Pod and run of the holder.
    holder: (u8, u8),
    epoch: u64,
}

/// A compare-and-swap in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    base: u64,
    content: Lease,
    sent: u64,
    /// Whether the API server has accepted it.
    answer: Option<bool>,
}

/// One agent with its PostgreSQL. `pod` 0 is the old one, 1 the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Agent {
    exists: bool,
    pod: u8,
    run: u8,
    writes: bool,
    /// Set while PostgreSQL was asked to stop, but its backends hang.
    stopping: Option<(Stop, u64)>,
    seen: Lease,
    changed: u64,
    confirmed: Option<(u64, u64)>,
    request: Option<Request>,
    dead_man: Option<u64>,
    stalled: bool,
    /// Nothing passes to or from the API server.
    cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    now: u64,
    lease: Lease,
    agents: [Agent; 2],
    faults: u8,
}

/// How long a successor waits. Less than the holder was promised is a mutant that must be found.
#[derive(Clone, Copy)]
struct Rules {
    lease: Millis,
    dead_man: bool,
}

fn start() -> State {
    let lease = Lease {
        version: 1,
        holder: (0, 1),
        epoch: 1,
    };
    let agent = Agent {
        exists: true,
        pod: 0,
        run: 1,
        writes: true,
        stopping: None,
        seen: lease,
        changed: 0,
        confirmed: Some((1, 0)),
        request: None,
        // The dead-man was armed before PostgreSQL was started.
        dead_man: Some((TIMING.fence + fence::dead_man_delay(TIMING.kill)).0),
        stalled: false,
        cut: false,
    };
    let new = Agent {
        exists: false,
        pod: 1,
        writes: false,
        confirmed: None,
        dead_man: None,
        ..agent
    };
    State {
        now: 0,
        lease,
        agents: [agent, new],
        faults: 0,
    }
}

/// What the agent observes.
fn observed(agent: &Agent, rules: Rules, now: BootTime) -> Observed {
    let mut observed = restarted();
    observed.own.pod_uid = format!("pod-{}", agent.pod);
    observed.own.run = format!("run-{}", agent.run);
    cluster(&mut observed).timing = Timing {
        lease: rules.lease,
        ..TIMING
    };
    cluster(&mut observed).epoch = None;
    observed.route = Some(Route {
        address: observed.own.address.clone(),
        epoch: Epoch(agent.seen.epoch),
    });
    if agent.writes {
        let serving = primary();
        observed.postgres = PostgresView {
            process: Process::Running { mode: Mode::Primary },
            ..serving.postgres
        };
    }
    observed.lease.changed = BootTime(agent.changed * TICK);
    observed.lease.confirmed = confirmed(agent);
    observed.tasks.lease.running = agent.request.map(|_| Work::WriteLease);
    // Slots do not matter here: that task counts as running.
    observed.tasks.admit.running = Some(Work::DropSlots);
    let record = record(&mut observed);
    record.version = agent.seen.version.to_string();
    record.epoch = Epoch(agent.seen.epoch);
    record.duration = rules.lease;
    let (pod, run) = agent.seen.holder;
    let holder = record.holder.as_mut().expect("a holder");
    holder.incarnation.pod_uid = format!("pod-{pod}");
    holder.incarnation.run = format!("run-{run}");
    holder.serving = agent.writes;
    let reported = report::status(&observed, &Memo::default(), now)
        .expect("a member")
        .report;
    fixtures::record(&mut observed).members = [("orders-0".to_owned(), reported)].into();
    observed
}

/// The Lease record with this content.
fn record_of(lease: Lease, rules: Rules) -> LeaseRecord {
    let (pod, run) = lease.holder;
    let version = lease.version.to_string();
    LeaseRecord {
        renewal: Some(version.clone()),
        epoch: Epoch(lease.epoch),
        duration: rules.lease,
        holder: Some(HolderRecord {
            incarnation: Incarnation {
                pod: "orders-0".to_owned(),
                pod_uid: format!("pod-{pod}"),
                run: format!("run-{run}"),
                member: MemberId::new(0, CLAIM, 0),
            },
            address: "10.0.0.1".to_owned(),
            timeline: None,
            serving: true,
        }),
        ..LeaseRecord::empty("lease", &version)
    }
}

fn confirmed(agent: &Agent) -> Option<Confirmed> {
    let (epoch, sent) = agent.confirmed?;
    Some(Confirmed {
        epoch: Epoch(epoch),
        sent: BootTime(sent * TICK),
        timing: TIMING,
    })
}

/// The reduced content of `record`.
fn read(record: &LeaseRecord) -> Lease {
    let number = |text: &str| text.rsplit('-').next().and_then(|number| number.parse().ok());
    let holder = &record.holder.as_ref().expect("a holder").incarnation;
    Lease {
        version: record.version.parse().expect("a number"),
        holder: (
            number(&holder.pod_uid).expect("a number"),
            number(&holder.run).expect("a number"),
        ),
        epoch: record.epoch.0,
    }
}

/// `lease` as an agent reads it.
fn seen(lease: Lease, rules: Rules) -> Box<SeenLease> {
    let record = record_of(lease, rules);
    let place = LeaseVersion {
        uid: record.uid.clone(),
        version: record.version.clone(),
        owner: Some(CLUSTER_UID.to_owned()),
    };
    let record = Some(record);
    Box::new(SeenLease { place, record })
}

/// What the agent knows, reduced to the Lease.
fn known(agent: &Agent, rules: Rules) -> Observed {
    let own = Own {
        pod: "orders-0".to_owned(),
        ordinal: 0,
        pod_uid: format!("pod-{}", agent.pod),
        run: format!("run-{}", agent.run),
        address: "10.0.0.1".to_owned(),
        agent_version: String::new(),
    };
    let mut observed = Observed::nothing(own);
    observed.lease.record = Reading::Is(record_of(agent.seen, rules));
    observed.lease.changed = BootTime(agent.changed * TICK);
    observed.lease.confirmed = confirmed(agent);
    observed
}

/// Feeds the agent an event about the Lease, through the shipped observer.
fn observe(agent: &mut Agent, rules: Rules, now: u64, event: Event) {
    let now = BootTime(now * TICK);
    let mut observer = Observer::knowing(known(agent, rules), CLUSTER_UID);
    observer.observe(event, now);
    let lease = &observer.observed().lease;
    agent.seen = read(lease.record.is().expect("a Lease"));
    agent.changed = lease.changed.0 / TICK;
    let confirmed = lease.confirmed.as_ref();
    agent.confirmed = confirmed.map(|confirmed| (confirmed.epoch.0, confirmed.sent.0 / TICK));
}

/// Lets an agent decide and act until it waits.
fn act(state: &mut State, index: usize, rules: Rules) {
    let now = state.now;
    let agent = &mut state.agents[index];
    if !agent.exists || agent.stalled {
        return;
    }
    for _ in 0..8 {
        let stopping = agent.stopping.map(|(stop, since)| Stopping {
            stop,
            since: BootTime(since * TICK),
        });
        let memo = Memo { stopping, ..settled() };
        let now_is = BootTime(now * TICK);
        let decision = decide(&observed(agent, rules, now_is), &memo, now_is);
        agent.dead_man = decision.dead_man.map(|at| at.0);
        match decision.action {
            Action::WriteLease { content, purpose, .. } => {
                assert_ne!(purpose, Purpose::Release, "no agent is asked to end");
                let content = Lease {
                    version: 0,
                    holder: (agent.pod, agent.run),
                    epoch: content.epoch.0,
                };
                agent.request = Some(Request {
                    base: agent.seen.version,
                    content,
                    sent: now,
                    answer: None,
                });
            }
            Action::StartPrimary { .. } => agent.writes = true,
            Action::Stop(Stop::Kill) => stopped(agent),
            Action::Stop(stop) => agent.stopping = Some((stop, now)),
            _ => return,
        }
    }
    panic!("an agent does not become idle: {state:?}");
}

fn stopped(agent: &mut Agent) {
    agent.writes = false;
    agent.stopping = None;
    agent.dead_man = None;
}

/// All that can happen next.
fn successors(state: &State, rules: Rules) -> Vec<State> {
    let mut next = Vec::new();
    let mut push = |mut state: State, index: Option<usize>| {
        if let Some(index) = index {
            act(&mut state, index, rules);
        }
        next.push(state);
    };
    let lagging = state.agents.iter().filter(|agent| lags(agent, state.lease)).count();
    let after = state.faults + u8::try_from(lagging).expect("two agents");
    if state.now < HORIZON && after <= FAULTS {
        push(
            tick(
                State {
                    faults: after,
                    ..*state
                },
                rules,
            ),
            None,
        );
    }
    for index in 0..2 {
        let agent = state.agents[index];
        let change = |change: fn(&mut Agent)| {
            let mut changed = *state;
            change(&mut changed.agents[index]);
            changed
        };
        let fault = |state: State| State {
            faults: state.faults + 1,
            ..state
        };
        if !agent.exists {
            // The operator's StatefulSet replaces the pod; the old one may still run, unreachable.
            let mut born = *state;
            born.agents[index] = Agent {
                exists: true,
                seen: state.lease,
                changed: state.now,
                ..agent
            };
            push(born, Some(index));
            continue;
        }
        if agent.seen != state.lease && !agent.cut {
            let mut told = *state;
            let version = Event::Lease(Reading::Is(seen(state.lease, rules)));
            observe(&mut told.agents[index], rules, state.now, version);
            push(told, Some(index));
        }
        if agent.stopping.is_some() {
            push(change(stopped), Some(index));
        }
        if !agent.cut {
            answers(state, index, rules)
                .into_iter()
                .for_each(|answered| push(answered, Some(index)));
        }
        if agent.stalled {
            push(change(|agent| agent.stalled = false), Some(index));
        }
        if agent.cut {
            push(change(|agent| agent.cut = false), Some(index));
        }
        if state.faults == FAULTS {
            continue;
        }
        if !agent.stalled {
            push(fault(change(|agent| agent.stalled = true)), None);
        }
        if !agent.cut {
            push(fault(change(|agent| agent.cut = true)), None);
        }
        if agent.request.is_some() {
            push(fault(change(|agent| agent.request = None)), Some(index));
        }
        push(fault(crash(state, index)), Some(index));
    }
    next
}

/// True if something should have reached the agent within the tick.
fn lags(agent: &Agent, lease: Lease) -> bool {
    agent.exists && !agent.cut && !agent.stalled && (agent.request.is_some() || agent.seen != lease)
}

/// A new container: all processes of the one before are dead. Its requests may still arrive.
fn crash(state: &State, index: usize) -> State {
    let mut crashed = *state;
    let agent = &mut crashed.agents[index];
    stopped(agent);
    *agent = Agent {
        run: agent.run + 1,
        confirmed: None,
        request: None,
        stalled: false,
        cut: false,
        ..*agent
    };
    agent.seen = state.lease;
    agent.changed = state.now;
    crashed
}

/// A request reaches the API server, which accepts or refuses it; or the answer reaches the agent.
fn answers(state: &State, index: usize, rules: Rules) -> Option<State> {
    let request = state.agents[index].request?;
    let mut after = *state;
    match request.answer {
        None => {
            let fits = request.base == state.lease.version;
            if fits {
                after.lease = Lease {
                    version: state.lease.version + 1,
                    ..request.content
                };
            }
            after.agents[index].request = Some(Request {
                answer: Some(fits),
                ..request
            });
        }
        Some(fits) => {
            let agent = &mut after.agents[index];
            agent.request = None;
            if fits {
                let written = Lease {
                    version: request.base + 1,
                    ..request.content
                };
                let effect = Effect::Lease {
                    written: seen(written, rules),
                    sent: BootTime(request.sent * TICK),
                    purpose: Purpose::Renew,
                    timing: TIMING,
                };
                let done = Done {
                    work: Work::WriteLease,
                    result: Ok(effect),
                };
                observe(agent, rules, state.now, Event::Done(Box::new(done)));
            }
        }
    }
    Some(after)
}

/// Time passes: dead-men act, and agents that are not stalled decide.
fn tick(mut state: State, rules: Rules) -> State {
    state.now += 1;
    for index in 0..2 {
        if rules.dead_man
            && state.agents[index]
                .dead_man
                .is_some_and(|deadline| deadline <= state.now * TICK)
        {
            stopped(&mut state.agents[index]);
        }
        act(&mut state, index, rules);
    }
    state
}

/// Explores all sequences. Returns the states, or the first one in which two PostgreSQL write.
fn explore(rules: Rules) -> Result<BTreeSet<State>, Box<State>> {
    let mut seen = BTreeSet::from([start()]);
    let mut queue = VecDeque::from([start()]);
    while let Some(state) = queue.pop_front() {
        if state.agents.iter().filter(|agent| agent.writes).count() > 1 {
            return Err(Box::new(state));
        }
        for next in successors(&state, rules) {
            if seen.insert(next) {
                queue.push_back(next);
            }
        }
    }
    Ok(seen)
}

#[test]
fn two_pods_on_one_volume_never_write_at_the_same_time() {
    match explore(Rules {
        lease: TIMING.lease,
        dead_man: true,
    }) {
        Ok(states) => {
            assert!(
                states.iter().any(|state| state.agents[1].writes),
                "no succession was explored"
            );
            assert!(
                states
                    .iter()
                    .any(|state| state.agents[0].run == 2 && state.agents[0].writes),
                "no restart was explored"
            );
        }
        Err(state) => panic!("both write: {state:?}"),
    }
}

#[test]
fn a_successor_that_does_not_wait_long_enough_is_caught() {
    assert!(
        explore(Rules {
            lease: Millis::seconds(1),
            dead_man: true
        })
        .is_err()
    );
}

#[test]
fn a_stalled_agent_without_a_dead_man_is_caught() {
    assert!(
        explore(Rules {
            lease: TIMING.lease,
            dead_man: false
        })
        .is_err()
    );
}
