//! How events reach an agent's observer.

use machine::instance::observer::{Event, NoAnswer, SeenLease};
use machine::instance::{LeaseVersion, Reading};
use machine::protocol::{LeaseRecord, Volume};
use machine::timing::BootTime;

use super::agent::Agent;
use super::api::{Loss, LostLease};
use super::event::{Answered, Body, News};
use super::names::CLUSTER;
use super::world::World;

impl World {
    /// An agent takes what it hears.
    pub fn learn(&mut self, node: usize, news: News) {
        let now = self.boot_time(node);
        let full = self.nodes[node].disk.full > 0;
        if let News::Slow { server, asked } = news {
            if self.question_ends(node, asked).is_none() {
                return;
            }
            let answer = Err(NoAnswer::Silent);
            return self.learn(node, News::Seen(Event::Status { server, asked, answer }));
        }
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        match news {
            News::Seen(event) => {
                agent.look_again |= matches!(event, Event::Exited(_));
                agent.looking &= !matches!(event, Event::Scanned(_));
                agent.take(event, now);
            }
            News::Lease(record) => agent.take(Event::Lease(Reading::Is(seen(&record))), now),
            News::LostLease(lost) => agent.take(Event::Lease(lost_lease(&lost)), now),
            // The initial list of a watch may arrive later than its news.
            News::Cluster(spec) if spec.version < agent.spec => {}
            News::Cluster(spec) => {
                agent.spec = spec.version;
                agent.take(Event::Cluster(Box::new(spec.view(node))), now);
            }
            News::Written { call, outcome } => agent.lease_written(call, outcome, now),
            News::Read { call, record } => agent.lease_was_read(call, &record, now),
            News::Late { call } => agent.late(call, now),
            News::Answer { call, from, body, key } => agent.peer_answered(call, from, *body, key, now),
            News::Request {
                from,
                from_run,
                call,
                body,
                key,
            } => {
                let answer = agent.asked((from, from_run, call), *body, key.as_deref(), now);
                if let Some(answer) = answer {
                    self.answer_peer(node, from, from_run, call, answer);
                }
            }
            News::Look => agent.killing = false,
            News::Room => agent.take(Event::Full(full.then_some(Volume::Wal).into_iter().collect()), now),
            News::Slow { .. } => {}
        }
    }
}

impl Agent {
    /// Another member sends a request. `None`: the answer comes once the machine has decided about it.
    fn asked(
        &mut self,
        from: (usize, u32, u64),
        body: Body,
        proven: machine::instance::Proven,
        now: BootTime,
    ) -> Option<Answered> {
        match body {
            Body::Report(request) => {
                let answer = self.observer.report(&self.memo, *request, proven, now);
                Some(Answered::Report(answer))
            }
            Body::Promise(request) => match self.observer.candidate(&request, proven, now) {
                Ok(()) => {
                    self.held.hold(request, from, now);
                    None
                }
                Err(reason) => Some(Answered::Promise(Err(reason))),
            },
            Body::Failsafe(request) => Some(Answered::Failsafe(self.observer.holder(&request, proven, now))),
        }
    }
}

/// A version of the Lease, as an agent reads it.
pub fn seen(record: &LeaseRecord) -> Box<SeenLease> {
    Box::new(SeenLease {
        place: place(&record.uid, record.version.clone()),
        record: Some(record.clone()),
    })
}

fn place(uid: &str, version: String) -> LeaseVersion {
    LeaseVersion {
        uid: uid.to_owned(),
        version,
        owner: Some(CLUSTER.to_owned()),
    }
}

/// The Lease is gone, or its content cannot be understood.
fn lost_lease(lost: &LostLease) -> Reading<Box<SeenLease>> {
    let place = place(&lost.uid, lost.version.to_string());
    let record = match lost.how {
        Loss::Gone => return Reading::Missing,
        Loss::Scribbled => None,
        Loss::Empty => Some(LeaseRecord::empty(&place.uid, &place.version)),
    };
    Reading::Is(Box::new(SeenLease { place, record }))
}
