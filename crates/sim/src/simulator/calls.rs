//! The ends of an agent's calls to the API server and to other agents.

use std::rc::Rc;

use machine::instance::observer::{Contacted, Effect, Event, Failure, News};
use machine::instance::{Reply, Work, heard};
use machine::protocol::LeaseRecord;
use machine::timing::BootTime;

use super::agent::Agent;
use super::event::{Answered, Call};
use super::learn::seen;
use super::names::pod;

impl Agent {
    /// A write of the Lease has ended.
    pub fn lease_written(
        &mut self,
        call: u64,
        outcome: Result<Rc<LeaseRecord>, Option<Rc<LeaseRecord>>>,
        now: BootTime,
    ) {
        let Some(Call::Lease { sent, purpose, timing }) = self.calls.remove(&call) else {
            return;
        };
        let result = match outcome {
            Ok(record) => Ok(Effect::Lease {
                written: seen(&record),
                sent,
                purpose,
                timing,
            }),
            Err(news) => Err(Failure {
                message: "the write has failed".to_owned(),
                news: news.map(|record| News::Lease(seen(&record))),
            }),
        };
        self.ended(Work::WriteLease, result, now);
    }

    /// The Lease was read.
    pub fn lease_was_read(&mut self, call: u64, record: &LeaseRecord, now: BootTime) {
        if self.calls.remove(&call).is_some() {
            self.ended(Work::ReadLease, Ok(Effect::LeaseRead(seen(record))), now);
        }
    }

    /// A call was not answered in time.
    pub fn late(&mut self, call: u64, now: BootTime) {
        if let Some(Call::Round {
            work, answered, over, ..
        }) = self.calls.get_mut(&call)
            && !*over
        {
            *over = true;
            let (work, result) = (*work, result(*answered));
            self.ended(work, result, now);
            return;
        }
        match self.calls.remove(&call) {
            None | Some(Call::Round { .. }) => {}
            Some(Call::Lease { .. }) => self.ended(Work::WriteLease, Err(Failure::said("no answer")), now),
            Some(Call::Read) => self.ended(Work::ReadLease, Err(Failure::said("no answer")), now),
            Some(Call::Report { holder_run, .. }) => {
                let result = Err(unheard("no answer", Contacted::Silent, holder_run));
                self.ended(Work::Report, result, now);
            }
        }
    }

    /// Another member has answered.
    pub fn peer_answered(&mut self, call: u64, from: usize, body: Answered, key: Option<String>, now: BootTime) {
        let refused = matches!(body, Answered::Refused);
        match (self.calls.get_mut(&call), body) {
            (Some(Call::Report { .. }), body) => {
                let Some(Call::Report {
                    sent,
                    holder_run,
                    holders_key,
                    request,
                }) = self.calls.remove(&call)
                else {
                    return;
                };
                match body {
                    Answered::Report(Ok(reply))
                        if heard::check_answer(holders_key.as_deref(), key.as_deref()).is_ok() =>
                    {
                        let reply = Box::new(Reply {
                            epoch: reply.epoch,
                            admitted: reply.admitted,
                            steps_down: reply.steps_down,
                            oldest: reply.oldest,
                            awaits: reply.awaits,
                            report: request.report,
                            sent,
                        });
                        let run = holder_run;
                        self.ended(Work::Report, Ok(Effect::Reported { reply, run }), now);
                    }
                    _ => {
                        let contacted = if refused { Contacted::Refused } else { Contacted::Silent };
                        self.ended(Work::Report, Err(unheard("refused", contacted, holder_run)), now);
                    }
                }
            }
            (
                Some(Call::Round {
                    work,
                    sent,
                    open,
                    answered,
                    over,
                }),
                body,
            ) => {
                open.remove(&from);
                *answered |= !refused;
                let (work, sent, all, result) = (*work, *sent, open.is_empty(), result(*answered));
                let ends = all && !*over;
                match body {
                    Answered::Promise(Ok(reply)) => {
                        let pod = pod(from);
                        self.take(Event::Promise { pod, reply, key }, now);
                    }
                    Answered::Failsafe(Ok(reply)) => {
                        let pod = pod(from);
                        self.take(Event::Failsafe { pod, reply, key, sent }, now);
                    }
                    _ => {}
                }
                if all {
                    self.calls.remove(&call);
                }
                if ends {
                    self.ended(work, result, now);
                }
            }
            (Some(Call::Lease { .. } | Call::Read) | None, _) => {}
        }
    }
}

/// The result of a round: whether any member answered.
fn result(answered: bool) -> Result<Effect, Failure> {
    if answered {
        Ok(Effect::Asked)
    } else {
        Err(Failure::said("no member answers"))
    }
}

/// A report that was not answered by the holder as the holder.
fn unheard(message: &str, contacted: Contacted, run: Option<String>) -> Failure {
    Failure {
        message: message.to_owned(),
        news: Some(News::Contact { contacted, run }),
    }
}
