//! Candidates' requests for promises, held until they can be answered.

use machine::instance::observer::HeldRequests;
use machine::protocol::{PromiseReply, PromiseRequest};
use machine::timing::BootTime;
use tokio::sync::oneshot;

use crate::observe::World;
use crate::peer::Signed;

/// The way back to a candidate.
type Reply = oneshot::Sender<Result<PromiseReply, String>>;

/// Requests that wait for their answers.
#[derive(Default)]
pub(super) struct Asked {
    held: HeldRequests<Reply>,
}

impl Asked {
    /// Takes a request: the machine is to know of it before it is answered. One of another database changes nothing; one
    /// whose sender has not proved to be a member is refused.
    pub(super) fn take(&mut self, world: &mut World, request: Signed<PromiseRequest>, reply: Reply, now: BootTime) {
        let Signed { message: request, key } = request;
        if let Err(reason) = world.observer.candidate(&request, key.as_deref(), now) {
            world.refusals.tell("request for a promise", &reason, now);
            let _ = reply.send(Err(reason));
            return;
        }
        self.held.hold(request, reply, now);
    }

    /// Answers what can be answered for good, and what has waited long enough; says when the next has.
    pub(super) fn answer(&mut self, world: &World, now: BootTime) -> Option<BootTime> {
        let waits = |reply: &Reply| !reply.is_closed();
        // A candidate that has gone asks again.
        let send = |reply: Reply, answer| drop(reply.send(answer));
        self.held.answer(world.observed(), now, waits, send)
    }
}
