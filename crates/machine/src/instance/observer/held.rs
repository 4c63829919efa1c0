//! Candidates' requests for promises: answered at once if the answer is final, and otherwise held for a moment until it
//! is.

use super::super::{Observed, election};
use crate::protocol::{PromiseReply, PromiseRequest};
use crate::timing::BootTime;
use crate::units::Millis;

/// How long a request is held while the promise is being made: half of the candidate's round, because its connection
/// may have taken a while.
const HOLD: Millis = Millis(200);

/// Requests that wait for their answers, each with the channel to its candidate.
#[derive(Clone, Debug)]
pub struct HeldRequests<R> {
    held: Vec<Held<R>>,
}

#[derive(Clone, Debug)]
struct Held<R> {
    request: PromiseRequest,
    reply: R,
    until: BootTime,
}

impl<R> Default for HeldRequests<R> {
    fn default() -> Self {
        Self { held: Vec::new() }
    }
}

impl<R> HeldRequests<R> {
    /// Holds a request that [`super::Observer::candidate`] has accepted.
    pub fn hold(&mut self, request: PromiseRequest, reply: R, now: BootTime) {
        let until = now.plus(HOLD);
        self.held.push(Held { request, reply, until });
    }

    /// Sends the answers that are final or have waited long enough. Forgets candidates that no longer wait. Returns
    /// when the next answer is due.
    pub fn answer(
        &mut self,
        observed: &Observed,
        now: BootTime,
        waits: impl Fn(&R) -> bool,
        mut send: impl FnMut(R, Result<PromiseReply, String>),
    ) -> Option<BootTime> {
        for held in std::mem::take(&mut self.held) {
            let answer = election::answer(observed, now, &held.request);
            if now >= held.until || is_final(&answer, &held.request) {
                send(held.reply, answer);
            } else if waits(&held.reply) {
                self.held.push(held);
            }
        }
        self.held.iter().map(|held| held.until).min()
    }
}

/// True if waiting would not change the answer: it is a refusal, or a promise with its position.
fn is_final(answer: &Result<PromiseReply, String>, request: &PromiseRequest) -> bool {
    answer
        .as_ref()
        .map_or(true, |reply| match reply.promised >= request.epoch {
            true => reply.position.is_some(),
            false => !reply.suspects,
        })
}
