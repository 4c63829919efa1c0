//! The end of a task.

use super::{Contacted, Done, Effect, Failure, News, Note, Observer};
use crate::instance::{Contact, Work};
use crate::timing::BootTime;

impl Observer {
    pub(super) fn done(&mut self, Done { work, result }: Done, now: BootTime) -> Option<Note> {
        let task = self.observed.tasks.of_mut(work);
        task.running = None;
        task.ended = now;
        if matches!(work, Work::Rewind | Work::Clone | Work::SetAside) {
            // The slots are gone, even if the task failed: no slot is copied from another member.
            self.observed.admitted.clear();
        }
        match result {
            Ok(effect) => {
                // Removing the leftovers of a failed task is no success of that task.
                if work != Work::DiscardStaging {
                    task.failures = 0;
                    task.error = None;
                }
                self.effect(effect, now)
            }
            Err(failure) => self.failed(work, failure, now),
        }
    }

    fn failed(&mut self, work: Work, Failure { message, news }: Failure, now: BootTime) -> Option<Note> {
        let task = self.observed.tasks.of_mut(work);
        if matches!(news, Some(News::Refused(_))) {
            // The next try is a different one, with the previous settings.
            task.failures = 0;
        } else {
            task.failures = task.failures.saturating_add(1);
        }
        let note = (task.error.as_ref() != Some(&message)).then(|| Note::Failed {
            work,
            message: message.clone(),
        });
        task.error = Some(message);
        self.learn(news, now);
        if work == Work::Promote
            && let Some(configured) = &mut self.observed.postgres.configured
        {
            // Its files may be a primary's by now, closed to applications: they must be written again.
            configured.settings.clear();
            configured.upstream = None;
        }
        note
    }

    fn effect(&mut self, effect: Effect, now: BootTime) -> Option<Note> {
        match effect {
            Effect::Volume(scan) => self.scanned(*scan),
            Effect::Discarded(left) => self.observed.kept = left,
            Effect::Started {
                server,
                ended,
                mode,
                configured,
                following,
                rule,
                promise,
            } => {
                self.learn(promise.map(News::Promise), now);
                return self.started((server, ended), mode, (configured, following), rule, now);
            }
            Effect::Promised(promise) => self.promised(promise, now),
            Effect::Asked | Effect::Checkpointed => {}
            Effect::Promoted {
                rule,
                configured,
                in_doubt,
                promise,
                status,
                asked,
            } => {
                self.promised(promise, now);
                self.promoted(rule, configured, in_doubt, *status, asked);
            }
            Effect::Synced { rule, at } => self.synced(rule, at),
            Effect::Opened => self.observed.postgres.open = self.server.is_some(),
            Effect::Configured {
                configured,
                following,
                status,
                asked,
                promise,
            } => {
                self.follows(following);
                self.learn(promise.map(News::Promise), now);
                if self.server.is_some() {
                    self.configured(configured, *status, asked);
                }
            }
            Effect::Lease {
                written,
                sent,
                purpose,
                timing,
            } => self.lease_written(*written, sent, purpose, timing, now),
            Effect::LeaseRead(lease) => self.lease_version(*lease, now),
            Effect::Routed(route) => self.observed.route = route,
            Effect::Admitted(member) => {
                self.observed.admitted.insert(member);
            }
            Effect::Kept(keep) => {
                self.observed.admitted.retain(|member| keep.contains(member));
                self.observed.postgres.slots.retain(|member| keep.contains(member));
            }
            Effect::Reported { reply, run } => {
                self.contacted(Contacted::Heard, run.as_ref(), now);
                self.observed.reply = Some(*reply);
            }
        }
        None
    }

    fn learn(&mut self, news: Option<News>, now: BootTime) {
        match news {
            None => {}
            Some(News::Lease(lease)) => self.lease_version(*lease, now),
            Some(News::Refused(refused)) => self.observed.postgres.refused = Some(refused),
            Some(News::Volume(scan)) => self.scanned(*scan),
            Some(News::Promise(promise)) => self.promised(promise, now),
            Some(News::Contact { contacted, run }) => self.contacted(contacted, run.as_ref(), now),
        }
    }

    /// Notes how a call to the agent of the holder's `run` ended. A call to another run does not count.
    fn contacted(&mut self, contacted: Contacted, run: Option<&String>, now: BootTime) {
        let record = self.observed.lease.record.is();
        let holder = record.and_then(|record| record.holder.as_ref());
        if holder.map(|holder| &holder.incarnation.run) != run {
            return;
        }
        let contact = &mut self.observed.contact;
        match contacted {
            Contacted::Heard => {
                *contact = Contact {
                    heard: Some(now),
                    refused: None,
                }
            }
            Contacted::Refused => contact.refused = contact.refused.or(Some(now)),
            Contacted::Silent => contact.refused = None,
        }
    }
}
