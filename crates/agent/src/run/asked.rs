//! Candidates' requests for promises. They are held until they can be answered.

use machine::instance::observer::HeldRequests;
use machine::protocol::{PromiseReply, PromiseRequest};
use machine::timing::BootTime;
use tokio::sync::oneshot;

use crate::observe::World;
use crate::peer::Signed;

/// The channel for the answer to a candidate.
type Reply = oneshot::Sender<Result<PromiseReply, String>>;

/// The requests that wait for their answers.
#[derive(Default)]
pub(super) struct Asked {
    held: HeldRequests<Reply>,
}

impl Asked {
    /// Takes a request, which is answered after the machine has seen it. A request of another database changes nothing.
    /// A request is refused if its sender has not proved to be a member.
    pub(super) fn take(&mut self, world: &mut World, request: Signed<PromiseRequest>, reply: Reply, now: BootTime) {
        let Signed { message: request, key } = request;
        if let Err(reason) = world.observer.candidate(&request, key.as_deref(), now) {
            world.refusals.tell("request for a promise", &reason, now);
            let _ = reply.send(Err(reason));
            return;
        }
        self.held.hold(request, reply, now);
    }

    /// Sends the answers that are final, and those that have waited long enough. Returns when the next answer is due.
    pub(super) fn answer(&mut self, world: &World, now: BootTime) -> Option<BootTime> {
        let waits = |reply: &Reply| !reply.is_closed();
        // A candidate that does not wait any more will ask again.
        let send = |reply: Reply, answer| drop(reply.send(answer));
        self.held.answer(world.observed(), now, waits, send)
    }
}
