//! Calls between agents.

use super::event::{Answered, Body, Event, News};
use super::world::World;

impl World {
    /// A call to another member's agent. If the pod exists on a living node but no process listens, the call is refused
    /// at once. The address of a pod that is gone is silent.
    pub fn ask_peer(&mut self, node: usize, to: usize, call: u64, body: Body) {
        let Some(from_run) = self.nodes[node].agent.as_ref().map(|agent| agent.run) else {
            return;
        };
        if to >= self.plan.members {
            return;
        }
        let Some(delay) = self.travel(node, to) else { return };
        if self.nodes[to].agent.is_none() {
            if !self.nodes[to].sandbox.is_there() {
                return;
            }
            return self.answer_peer(to, node, from_run, call, Answered::Refused);
        }
        let (body, key) = (Box::new(body), self.key(node));
        self.tell(
            delay,
            to,
            News::Request {
                from: node,
                from_run,
                call,
                body,
                key,
            },
        );
    }

    /// The key with which the agent signs its messages.
    fn key(&self, node: usize) -> Option<String> {
        let volume = self.nodes[node].agent.as_ref()?.observed().volume.is()?;
        Some(volume.member.as_ref()?.public_key.clone())
    }

    /// Sends the answer to the run that asked.
    pub fn answer_peer(&mut self, node: usize, to: usize, run: u32, call: u64, body: Answered) {
        let Some(delay) = self.travel(node, to) else { return };
        let news = News::Answer {
            call,
            from: node,
            body: Box::new(body),
            key: self.key(node),
        };
        self.after(delay, Event::News { node: to, run, news });
    }
}
