//! Candidates' requests for promises: answered at once if the answer is final, else held for a moment, until it is.

use machine::instance::{election, heard};
use machine::protocol::{PromiseReply, PromiseRequest};
use machine::timing::BootTime;
use tokio::sync::oneshot;

use crate::observe::World;
use crate::peer::Signed;

/// For so long a request is held while the promise is being made, in milliseconds: half of the candidate's round, since
/// its connection may have taken a while.
const HOLD: u64 = 200;

/// A request that waits for its answer.
struct Held {
    request: PromiseRequest,
    reply: oneshot::Sender<Result<PromiseReply, String>>,
    until: BootTime,
}

/// Requests that wait for their answers.
#[derive(Default)]
pub(super) struct Asked {
    held: Vec<Held>,
}

impl Asked {
    /// Takes a request: the machine is to know of it before it is answered. One of another database changes nothing; one of
    /// somebody who has not proved to be a member is refused.
    pub(super) fn take(
        &mut self,
        world: &mut World,
        request: Signed<PromiseRequest>,
        reply: oneshot::Sender<Result<PromiseReply, String>>,
        now: BootTime,
    ) {
        let Signed { message: request, key } = request;
        if let Err(reason) = heard::candidate(&mut world.observed, &request, key.as_deref(), now) {
            world.refusals.tell("request for a promise", &reason, now);
            let _ = reply.send(Err(reason));
            return;
        }
        self.held.push(Held {
            request,
            reply,
            until: now.plus(HOLD),
        });
    }

    /// Answers what can be answered for good, and what has waited long enough; says when the next has.
    pub(super) fn answer(&mut self, world: &World, now: BootTime) -> Option<BootTime> {
        for held in std::mem::take(&mut self.held) {
            let answer = election::answer(&world.observed, now, &held.request);
            if now >= held.until || is_final(&answer, &held.request) {
                // A candidate that has gone asks again.
                let _ = held.reply.send(answer);
            } else if !held.reply.is_closed() {
                self.held.push(held);
            }
        }
        self.held.iter().map(|held| held.until).min()
    }
}

/// Waiting would not change the answer: it is no, or a promise with its position.
fn is_final(answer: &Result<PromiseReply, String>, request: &PromiseRequest) -> bool {
    answer
        .as_ref()
        .is_ok_and(|reply| match reply.promised >= request.epoch {
            true => reply.position.is_some(),
            false => !reply.suspects,
        })
        || answer.is_err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tests::peer;
    use machine::instance::{LeaseView, Member, Own, Promise, Reading, VolumeView};
    use machine::lease_object;
    use machine::protocol::{Epoch, MemberId};

    /// The candidate's.
    const KEY: &str = "key-2";

    fn world() -> World {
        let own = Own {
            pod: "orders-1".to_owned(),
            ordinal: 1,
            pod_uid: "pod-1".to_owned(),
            run: "run".to_owned(),
            address: "10.0.0.2".to_owned(),
            agent_version: "0.1.0".to_owned(),
        };
        let lease = serde_json::json!({
            "metadata": {"name": "orders", "uid": "lease", "resourceVersion": "7"},
            "spec": {"leaseTransitions": 4, "leaseDurationSeconds": 10},
        });
        let lease = serde_json::from_value(lease).expect("a Lease");
        let mut world = World::new(own, "c0ffee".to_owned());
        world.observed.lease = LeaseView {
            record: Reading::Is(lease_object::read(&lease).expect("a record")),
            ..LeaseView::default()
        };
        world.observed.peers.insert("orders-2".to_owned(), peer(KEY));
        world.observed.volume = Reading::Is(VolumeView {
            member: Some(Member {
                id: MemberId::new(1, "aaaa", 1),
                claim_uid: "claim".to_owned(),
                public_key: "key".to_owned(),
                certificate: None,
            }),
            promise: Some(Promise::default()),
            ..VolumeView::default()
        });
        world
    }

    fn ask(
        asked: &mut Asked,
        world: &mut World,
        lease: &str,
        key: &str,
    ) -> oneshot::Receiver<Result<PromiseReply, String>> {
        let (reply, answer) = oneshot::channel();
        let request = PromiseRequest {
            epoch: Epoch(5),
            pod: "orders-2".to_owned(),
            lease: lease.to_owned(),
        };
        let request = Signed {
            message: request,
            key: Some(key.to_owned()),
        };
        asked.take(world, request, reply, BootTime(1_000));
        answer
    }

    #[test]
    fn a_promise_in_the_making_is_waited_for() {
        let (mut asked, mut world) = (Asked::default(), world());
        let mut answer = ask(&mut asked, &mut world, "lease", KEY);
        assert_eq!(world.observed.asked_for, Some(Epoch(5)));
        // Nobody holds the lease: this member suspects, and is about to promise.
        assert_eq!(asked.answer(&world, BootTime(1_050)), Some(BootTime(1_200)));
        assert!(answer.try_recv().is_err(), "it is held");
        assert_eq!(asked.answer(&world, BootTime(1_200)), None);
        let reply = answer.try_recv().expect("an answer").expect("no refusal");
        assert_eq!((reply.promised, reply.suspects, reply.position), (Epoch(0), true, None));
    }

    #[test]
    fn who_waits_no_more_is_forgotten() {
        let (mut asked, mut world) = (Asked::default(), world());
        drop(ask(&mut asked, &mut world, "lease", KEY));
        assert_eq!(asked.answer(&world, BootTime(1_050)), None);
    }

    #[test]
    fn a_candidate_that_has_not_proved_to_be_a_member_is_refused_at_once() {
        let (mut asked, mut world) = (Asked::default(), world());
        let mut answer = ask(&mut asked, &mut world, "lease", "another");
        assert!(answer.try_recv().expect("an answer").is_err());
        assert_eq!(world.observed.asked_for, None);
        assert_eq!(asked.answer(&world, BootTime(1_000)), None);
    }

    #[test]
    fn another_databases_candidate_is_refused_and_changes_nothing() {
        let (mut asked, mut world) = (Asked::default(), world());
        let mut answer = ask(&mut asked, &mut world, "another", "any");
        assert_eq!(world.observed.asked_for, None);
        assert_eq!(asked.answer(&world, BootTime(1_000)), None);
        assert!(answer.try_recv().expect("an answer").is_err());
    }
}
