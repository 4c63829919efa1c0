//! What became of a task.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use machine::instance::{
    Configured, Contact, Mode, Process, Promise, Purpose, Refused, Reply, Route, SyncSetting, Work, heard,
};
use machine::protocol::{FailsafeReply, Lsn, MemberId, PromiseReply};
use machine::quorum::SyncRule;
use machine::timing::{BootTime, Timing};

use super::{Running, Scan, World};
use crate::kubernetes::Written;
use crate::peer::Signed;
use crate::postgres::{Following, Server, Status};

/// A task has ended.
pub struct Done {
    /// Which.
    pub work: Work,
    /// How.
    pub result: Result<Effect, Failure>,
}

/// What a task has brought about.
pub enum Effect {
    /// The volume was changed, and read again.
    Volume(Box<Scan>),
    /// Something that was set aside is gone; this is left.
    Discarded(BTreeSet<String>),
    /// PostgreSQL was started.
    Started {
        /// The server.
        server: Arc<Server>,
        /// As what.
        mode: Mode,
        /// With which configuration.
        configured: Configured,
        /// How it finds whom it follows.
        following: Following,
        /// `synchronous_standby_names` of a primary.
        rule: SyncRule,
        /// What was promised before a primary is followed.
        promise: Option<Promise>,
    },
    /// Nothing is received any more from an epoch below the promised one.
    Promised(Promise),
    /// The others were asked; their answers have come by themselves.
    Asked,
    /// The standby was promoted, closed to applications.
    Promoted {
        /// With which `synchronous_standby_names`.
        rule: SyncRule,
        /// With which settings.
        configured: Configured,
        /// End of its WAL after that: what may be in doubt is before it.
        in_doubt: Lsn,
        /// What is promised, the note of the promotion dropped.
        promise: Promise,
        /// What PostgreSQL said of itself after that.
        status: Box<Status>,
        /// When it was asked.
        asked: BootTime,
    },
    /// Every WAL sender uses a rule.
    Synced {
        /// The rule.
        rule: SyncRule,
        /// End of the WAL when that was proven.
        at: Lsn,
    },
    /// Applications may connect.
    Opened,
    /// A checkpoint was made.
    Checkpointed,
    /// PostgreSQL was configured anew.
    Configured {
        /// What is in the files now.
        configured: Configured,
        /// How it finds whom it follows.
        following: Following,
        /// What PostgreSQL said of itself after that.
        status: Box<Status>,
        /// When it was asked.
        asked: BootTime,
        /// What was promised before a primary is followed.
        promise: Option<Promise>,
    },
    /// The Lease was written.
    Lease {
        /// The Lease.
        written: Box<Written>,
        /// What for.
        purpose: Purpose,
        /// The times promised in it.
        timing: Timing,
    },
    /// The Lease was read.
    LeaseRead(Box<Lease>),
    /// `-rw` points here.
    Routed(Option<Route>),
    /// A member's role and slot exist.
    Admitted(MemberId),
    /// Slots of others than these are dropped.
    Kept(BTreeSet<MemberId>),
    /// The primary has answered.
    Reported {
        /// The answer.
        reply: Box<Reply>,
        /// The holder's run that was called.
        run: Option<String>,
    },
}

/// How a call to the holder's agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contacted {
    /// It answered as the holder.
    Heard,
    /// Its address refused the connection.
    Refused,
    /// Neither.
    Silent,
}

/// A task has failed.
pub struct Failure {
    /// Why, in words.
    pub message: String,
    /// What was learned by it.
    pub news: Option<News>,
}

/// What a failed task can teach.
pub enum News {
    /// The Lease as it is now.
    Lease(Box<Lease>),
    /// Settings that PostgreSQL refuses.
    Refused(Refused),
    /// What is on the volume now.
    Scan(Box<Scan>),
    /// What is promised now.
    Promise(Promise),
    /// How the call to the holder's agent ended.
    Contact {
        /// How.
        contacted: Contacted,
        /// The holder's run that was called.
        run: Option<String>,
    },
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            message: format!("{:#}", anyhow::Error::new(error)),
            news: None,
        }
    }
}

impl Failure {
    /// A failure of which only words are known.
    pub fn said(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            news: None,
        }
    }
}

impl World {
    /// A task begins.
    pub fn begun(&mut self, work: Work) {
        self.observed.tasks.of_mut(work).running = Some(work);
    }

    /// Another member has answered to a request for a promise.
    pub fn promise_answered(&mut self, pod: String, reply: Signed<PromiseReply>, now: BootTime) {
        let Signed { message, key } = reply;
        if let Err(reason) = heard::answer(&mut self.observed, pod, message, key.as_deref(), now) {
            self.refusals.tell("promise", &reason, now);
        }
    }

    /// Another member has promised not to take the lease, asked at `sent`.
    pub fn failsafe_answered(&mut self, pod: String, reply: Signed<FailsafeReply>, sent: BootTime) {
        let Signed { message, key } = reply;
        if let Err(reason) = heard::leaves_lease(&mut self.observed, pod, message, key.as_deref(), sent) {
            self.refusals.tell("promise to leave the lease", &reason, sent);
        }
    }

    /// A task has ended.
    pub fn done(&mut self, done: Done, now: BootTime) {
        let Done { work, result } = done;
        let task = self.observed.tasks.of_mut(work);
        task.running = None;
        task.ended = now;
        if matches!(work, Work::Rewind | Work::Clone | Work::SetAside) {
            // Its slots are gone, even if the work was broken off: none is copied from another member.
            self.observed.admitted.clear();
        }
        match result {
            Ok(effect) => {
                // What a failed task left was cleared away: that is no success of it.
                if work != Work::DiscardStaging {
                    task.failures = 0;
                    task.error = None;
                }
                self.effect(effect, now);
            }
            Err(Failure { message, news }) => {
                let refused = matches!(news, Some(News::Refused(_)));
                if refused {
                    // The next try is another one: with the settings of before.
                    task.failures = 0;
                } else {
                    task.failures = task.failures.saturating_add(1);
                }
                if task.error.as_ref() != Some(&message) {
                    tracing::warn!(work = ?work, "{message}");
                }
                task.error = Some(message);
                self.learn(news, now);
                if work == Work::Promote
                    && let Some(configured) = &mut self.observed.postgres.configured
                {
                    // Its files may be a primary's by now, closed to applications: they are to be written anew.
                    configured.settings.clear();
                    configured.upstream = None;
                }
            }
        }
    }

    fn effect(&mut self, effect: Effect, now: BootTime) {
        match effect {
            Effect::Volume(scan) => self.scanned(Ok(*scan)),
            Effect::Discarded(left) => self.observed.kept = left,
            Effect::Started {
                server,
                mode,
                configured,
                following,
                rule,
                promise,
            } => {
                self.following = following;
                self.learn(promise.map(News::Promise), now);
                self.started(server, mode, configured, now);
                self.observed.forget_overtaken_upstream();
                self.closed_with(rule);
            }
            Effect::Promised(promise) => self.promised(promise, now),
            Effect::Asked => {}
            Effect::Promoted {
                rule,
                configured,
                in_doubt,
                promise,
                status,
                asked,
            } => {
                self.promised(promise, now);
                if self.server.is_some() {
                    self.observed.postgres.process = Process::Running { mode: Mode::Primary };
                    self.closed_with(rule);
                    self.observed.postgres.in_doubt = Some(in_doubt);
                    self.observed.postgres.sync.proven_at = in_doubt;
                    self.observed.postgres.wrote = Some(asked);
                    self.configured(configured, status, asked);
                }
            }
            Effect::Synced { rule, at } => {
                if self.server.is_some() {
                    self.observed.postgres.sync = SyncSetting {
                        proven: rule,
                        proven_at: at,
                        pending: None,
                    };
                }
            }
            Effect::Checkpointed => {}
            Effect::Opened => self.observed.postgres.open = self.server.is_some(),
            Effect::Configured {
                configured,
                following,
                status,
                asked,
                promise,
            } => {
                self.following = following;
                self.learn(promise.map(News::Promise), now);
                if self.server.is_some() {
                    self.configured(configured, status, asked);
                }
            }
            Effect::Lease {
                written,
                purpose,
                timing,
            } => self.lease_written(*written, purpose, timing, now),
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
    }

    fn configured(&mut self, configured: Configured, status: Box<Status>, asked: BootTime) {
        self.raised(&configured);
        self.observed.postgres.configured = Some(configured);
        self.observed.forget_overtaken_upstream();
        self.take_answer(status, asked);
        self.configured_at = asked;
    }

    /// A primary begins closed to applications, with `rule` in force from its first WAL sender on.
    fn closed_with(&mut self, rule: SyncRule) {
        self.observed.postgres.open = false;
        self.observed.postgres.sync = SyncSetting {
            proven: rule,
            // Measured when it has left recovery; nobody has flushed so far.
            proven_at: Lsn(u64::MAX),
            pending: None,
        };
    }

    /// Notes how a call to the agent of the holder's `run` ended; what was heard of another run says nothing.
    fn contacted(&mut self, contacted: Contacted, run: Option<&String>, now: BootTime) {
        let holder = self
            .observed
            .lease
            .record
            .is()
            .and_then(|record| record.holder.as_ref());
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

    /// Limits were raised to what the control file demanded just now.
    fn raised(&mut self, configured: &Configured) {
        let enforced = &mut self.observed.postgres.enforced;
        *enforced = configured.raised.unwrap_or(*enforced);
    }

    fn started(&mut self, server: Arc<Server>, mode: Mode, configured: Configured, now: BootTime) {
        self.raised(&configured);
        let pid = server.pid();
        let ended = server.exited().is_some();
        self.server = Some(Running {
            server,
            since: now,
            asked: false,
        });
        self.stopped(None);
        self.observed.postgres.process = Process::Running { mode };
        self.observed.postgres.configured = Some(configured);
        if ended {
            // Its end was reported before its start.
            self.server_exited(pid, now);
        }
    }

    fn learn(&mut self, news: Option<News>, now: BootTime) {
        match news {
            None => {}
            Some(News::Lease(lease)) => self.lease_version(*lease, now),
            Some(News::Refused(refused)) => {
                tracing::error!(settings = refused.settings, "settings are refused: {}", refused.error);
                self.observed.postgres.refused = Some(refused);
            }
            Some(News::Scan(scan)) => self.scanned(Ok(*scan)),
            Some(News::Promise(promise)) => self.promised(promise, now),
            Some(News::Contact { contacted, run }) => self.contacted(contacted, run.as_ref(), now),
        }
    }
}

#[cfg(test)]
mod tests;
