//! The loop of an agent: it hears an event, the machine decides, and actions are executed one by one until the machine
//! waits.

use std::rc::Rc;

use machine::instance::observer::{Event as Seen, NoAnswer, ServerId};
use machine::instance::{Action, decide, fence};
use machine::timing::BootTime;
use machine::units::Millis;

use super::agent::{Agent, action_name};
use super::distort;
use super::event::{Answered, Event, Inner, News};
use super::world::World;

/// The longest sleep, as in the agent.
const LONGEST_SLEEP: Millis = Millis(500);
/// The longest wait for PostgreSQL's answer to a question, in milliseconds, as in the agent.
const QUESTION: u64 = 2_000;
/// Interval between new sessions that test whether PostgreSQL accepts any.
const GREETING: Millis = Millis::seconds(5);
/// More actions than this without a pause are a defect.
const MOST_ACTIONS: usize = 32;

impl World {
    /// A container starts, with a new run of the agent that knows nothing.
    pub fn boot(&mut self, node: usize) {
        let place = &mut self.nodes[node];
        if !place.on || place.agent.is_some() || !place.sandbox.runs() {
            return;
        }
        let pod_uid = place.sandbox.uid.clone().unwrap_or_default();
        place.runs += 1;
        (place.armed, place.granted, place.agent_frozen) = (None, BootTime(0), 0);
        place.agent_waits.clear();
        let run = place.runs;
        place.agent = Some(Agent::new(node, pod_uid, run));
        (place.watch_broken, place.watch_tries) = (false, None);
        self.note(Some(node), || format!("the agent starts, run {run}"));
        let (spec, lease) = (Rc::new(self.api.spec.clone()), self.api.lease_news());
        self.tell_if_api(node, News::Cluster(spec));
        self.tell_if_api(node, lease);
        self.tell(1, node, News::Room);
        self.wake_now(node);
    }

    fn tell_if_api(&mut self, node: usize, news: News) {
        if self.api.down == 0 && self.net.hears_api(node) && self.net.reaches_api(node) {
            let delay = 20 + self.random.api.below(60);
            self.tell(delay, node, news);
        } else if !std::mem::replace(&mut self.nodes[node].watch_broken, true) {
            self.relist_later(node);
        }
    }

    fn wake_now(&mut self, node: usize) {
        if let Some(agent) = &self.nodes[node].agent {
            let (run, generation) = (agent.run, agent.wake);
            self.after(0, Event::Wake { node, run, generation });
        }
    }

    /// The time of the next decision has come.
    pub fn wake(&mut self, node: usize, generation: u64) {
        if self.nodes[node]
            .agent
            .as_ref()
            .is_some_and(|agent| agent.wake == generation)
        {
            self.act(node);
        }
    }

    /// The agent hears an event, and decides.
    pub fn news(&mut self, node: usize, news: News) {
        self.learn(node, news);
        if self.nodes[node].agent.is_some() {
            self.act(node);
        }
    }

    /// Decides and acts until the machine waits.
    fn act(&mut self, node: usize) {
        let (mut wake, fault) = (None, self.last_fault());
        self.look_at_clock(node);
        for _ in 0..MOST_ACTIONS {
            self.look(node);
            let now = self.boot_time(node);
            let Some(agent) = self.nodes[node].agent.as_mut() else {
                return;
            };
            let shown = distort::shown(self.plan.bug, agent.observed(), now);
            let decision = decide(&shown, &agent.memo, now);
            let decision = distort::decided(self.plan.bug, decision);
            agent.deadline = fence::held_until(&shown, now);
            let granted = fence::held_until(agent.observed(), now);
            self.trace.mark_text(decision.rule);
            self.coverage.decision(decision.rule, &decision.action, fault);
            let agent = self.nodes[node].agent.as_mut();
            let Some(agent) = agent else { return };
            agent.memo = decision.memo;
            wake = decision.wake;
            if self.trace.explains() && agent.said != decision.because {
                agent.said = decision.because.clone().into_owned();
                let what = format!(
                    "{}: {} — {}",
                    decision.rule,
                    action_name(&decision.action),
                    decision.because
                );
                self.note(Some(node), || what);
            }
            if let Some(granted) = granted {
                self.nodes[node].granted = self.nodes[node].granted.max(granted);
            }
            self.arm(node, decision.dead_man);
            let waits = decision.action == Action::Wait;
            if decision.action == Action::Exit {
                return self.end_container(node);
            }
            self.execute(node, decision.action);
            if waits {
                break;
            }
        }
        let held = self.answer_held(node);
        self.publish(node);
        self.order_archive(node);
        let now = self.boot_time(node);
        let clock = self.nodes[node].clock;
        let at = [wake, held].into_iter().flatten().min();
        let at = at.map_or(now.plus(LONGEST_SLEEP), |at| at.min(now.plus(LONGEST_SLEEP)));
        let when = clock.when(at).max(self.now + 1);
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        agent.wake += 1;
        let (run, generation) = (agent.run, agent.wake);
        self.queue.push(when, Event::Wake { node, run, generation });
    }

    /// An agent that was stalled notices it when it continues.
    fn look_at_clock(&mut self, node: usize) {
        let now = self.boot_time(node);
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        let before = agent.decided.replace(now);
        if before.is_some_and(|before| agent.observer.goes_on(before, now)) {
            self.coverage.reach("was stalled");
        }
    }

    fn arm(&mut self, node: usize, deadline: Option<BootTime>) {
        let place = &mut self.nodes[node];
        if place.armed == deadline {
            return;
        }
        place.armed = deadline;
        if let (Some(at), Some(agent)) = (deadline, &place.agent) {
            let when = place.clock.when(at).max(self.now);
            let run = agent.run;
            self.queue.push(when, Event::DeadMan { node, run, at });
        }
    }

    /// The dead-man's deadline: if it was not moved, all processes are killed, whether or not the agent lives.
    pub fn dead_man(&mut self, node: usize, run: u32, at: BootTime) {
        let place = &self.nodes[node];
        let same = place.agent.as_ref().is_some_and(|agent| agent.run == run);
        if same && place.armed == Some(at) && place.postgres.is_some() {
            self.coverage.reach("dead-man killed");
            self.note(Some(node), || "the dead-man kills everything".to_owned());
            self.end_server(node, super::postgres::Ends::Killed);
        }
    }

    /// Observes what needs no event: processes that outlived their postmaster, and the volume after a change.
    fn look(&mut self, node: usize) {
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        let busy = agent.observed().tasks.volume.running.is_some() || agent.killing;
        let wanted = agent.look_again || agent.observed().volume.is().is_none();
        if wanted && !busy && !agent.looking {
            (agent.looking, agent.look_again) = (true, false);
            let run = agent.run;
            let delay = self.random.work.between(5, 20);
            let task = super::event::Task::Scan {
                read: self.boot_time(node),
            };
            self.after(delay, Event::Step { node, run, task });
        }
    }

    /// Answers requests for promises when the answer is final, or after a moment.
    fn answer_held(&mut self, node: usize) -> Option<BootTime> {
        let now = self.boot_time(node);
        let agent = self.nodes[node].agent.as_mut()?;
        let mut answers = Vec::new();
        let send = |to, answer| answers.push((to, answer));
        let until = agent.held.answer(agent.observer.observed(), now, |_| true, send);
        for ((from, run, call), answer) in answers {
            self.answer_peer(node, from, run, call, Answered::Promise(answer));
        }
        until
    }

    /// Updates how often PostgreSQL is asked, and whether the canary writes.
    fn publish(&mut self, node: usize) {
        let now = self.boot_time(node);
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        let wanted = agent.observer.polling(now);
        let before = agent.polled.replace(wanted);
        if before == Some(wanted) {
            return;
        }
        agent.poll += 1;
        let (run, generation) = (agent.run, agent.poll);
        if wanted.server.is_some() {
            self.after(1, Event::Poll { node, run, generation });
        }
        if wanted.writes && !before.is_some_and(|before| before.writes) {
            self.server_after(1, node, Inner::Canary { node_run: run });
        }
    }

    /// Asks PostgreSQL for its state.
    pub fn poll(&mut self, node: usize, generation: u64) {
        let asked = self.boot_time(node);
        let status = self.status(node).map(Box::new);
        let frozen = self.nodes[node].postgres_frozen > 0;
        let Some(agent) = self.nodes[node].agent.as_mut().filter(|agent| agent.poll == generation) else {
            return;
        };
        let (Some(server), Some(polling)) = (agent.observer.server(), agent.polled) else {
            return;
        };
        let run = agent.run;
        if frozen {
            agent.question = Some((asked, generation));
            self.tell(QUESTION, node, News::Slow { server, asked });
            return self.server_after(0, node, Inner::Asked { asked });
        }
        let greeted = agent.observed().postgres.greeted;
        if greeted.is_none_or(|greeted| asked.since(greeted) >= GREETING) {
            self.tell(2, node, News::Seen(Seen::Greeted { server, begun: asked }));
        }
        let answer = status.ok_or(NoAnswer::Unable);
        self.tell(2, node, News::Seen(Seen::Status { server, asked, answer }));
        self.after(polling.pause.0, Event::Poll { node, run, generation });
    }

    /// A stalled PostgreSQL continues, and answers a question if the agent still waits for it.
    pub fn answer_question(&mut self, node: usize, asked: BootTime) {
        let answer = self.status(node).map(Box::new).ok_or(NoAnswer::Unable);
        if let Some(server) = self.question_ends(node, asked) {
            self.tell(2, node, News::Seen(Seen::Status { server, asked, answer }));
        }
    }

    /// The question of that time ends, and the next one is scheduled. `None`: the agent no longer waits for it.
    pub fn question_ends(&mut self, node: usize, asked: BootTime) -> Option<ServerId> {
        let agent = self.nodes[node].agent.as_mut()?;
        let (_, generation) = agent.question.take_if(|(waits, _)| *waits == asked)?;
        let (run, polling) = (agent.run, agent.polled?);
        self.after(polling.pause.0, Event::Poll { node, run, generation });
        polling.server
    }
}
