//! What becomes of an agent's calls: to the API server and to other agents.

use std::rc::Rc;

use machine::instance::{Confirmed, Contact, Proven, Purpose, Reply, Work, heard};
use machine::protocol::LeaseRecord;
use machine::timing::BootTime;

use super::agent::Agent;
use super::event::{Answered, Call};
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
        match outcome {
            Ok(record) => {
                self.ended(Work::WriteLease, Ok(()), now);
                let epoch = record.epoch;
                self.observed.lease.confirmed = match purpose {
                    Purpose::Take | Purpose::Renew => Some(Confirmed { epoch, sent, timing }),
                    Purpose::Release => None,
                };
                self.observed.failsafe.clear();
                self.observed.lease.unsettled = None;
                if !self.observed.lease.recall(&record) {
                    self.lease_version(&record, now);
                }
            }
            Err(news) => {
                self.ended(Work::WriteLease, Err("the write has failed".to_owned()), now);
                if let Some(record) = news {
                    self.lease_version(&record, now);
                }
            }
        }
    }

    /// What was called has not answered in time.
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
            Some(Call::Lease { .. }) => self.ended(Work::WriteLease, Err("no answer".to_owned()), now),
            Some(Call::Read) => self.ended(Work::ReadLease, Err("no answer".to_owned()), now),
            Some(Call::Report { holder_run, .. }) => {
                self.contacted(None, holder_run, now);
                self.ended(Work::Report, Err("no answer".to_owned()), now);
            }
        }
    }

    /// Another member has answered.
    pub fn peer_answered(&mut self, call: u64, from: usize, body: Answered, proven: Proven, now: BootTime) {
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
                    Answered::Report(Ok(reply)) if heard::check_answer(holders_key.as_deref(), proven).is_ok() => {
                        self.contacted(Some(true), holder_run, now);
                        self.observed.reply = Some(Reply {
                            epoch: reply.epoch,
                            admitted: reply.admitted,
                            gives_way: reply.gives_way,
                            oldest: reply.oldest,
                            awaits: reply.awaits,
                            report: request.report,
                            sent,
                        });
                        self.ended(Work::Report, Ok(()), now);
                    }
                    _ => {
                        self.contacted(refused.then_some(false), holder_run, now);
                        self.ended(Work::Report, Err("refused".to_owned()), now);
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
                        let _ = heard::answer(&mut self.observed, pod(from), reply, proven, now);
                    }
                    Answered::Failsafe(Ok(reply)) => {
                        let _ = heard::leaves_lease(&mut self.observed, pod(from), reply, proven, sent);
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

    /// How a call to the holder's agent ended: it answered (`true`), refused the connection (`false`), or was silent.
    fn contacted(&mut self, how: Option<bool>, run: Option<String>, now: BootTime) {
        let holder = self.record().and_then(|record| record.holder.as_ref());
        if holder.map(|holder| &holder.incarnation.run) != run.as_ref() {
            return;
        }
        let contact = &mut self.observed.contact;
        match how {
            Some(true) => {
                *contact = Contact {
                    heard: Some(now),
                    refused: None,
                }
            }
            Some(false) => contact.refused = contact.refused.or(Some(now)),
            None => contact.refused = None,
        }
    }
}

/// How a round has ended in which somebody answered, or nobody.
fn result(answered: bool) -> Result<(), String> {
    if answered {
        Ok(())
    } else {
        Err("nobody answers".to_owned())
    }
}
