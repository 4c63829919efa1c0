//! What became of a task.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use machine::instance::{Configured, Mode, Process, Purpose, Refused, Reply, Route, Task, Tasks, Work};
use machine::protocol::MemberId;
use machine::timing::{BootTime, Timing};

use super::{Running, Scan, World};
use crate::kubernetes::Written;
use crate::postgres::{Server, Status};

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
    /// PostgreSQL was started.
    Started {
        /// The server.
        server: Arc<Server>,
        /// As what.
        mode: Mode,
        /// With which configuration.
        configured: Configured,
    },
    /// PostgreSQL was configured anew.
    Configured {
        /// What is in the files now.
        configured: Configured,
        /// What PostgreSQL said of itself after that.
        status: Box<Status>,
        /// When it was asked.
        asked: BootTime,
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
    /// `-rw` points here.
    Routed(Option<Route>),
    /// A member's role and slot exist.
    Admitted(MemberId),
    /// Slots of others than these are dropped.
    Kept(BTreeSet<MemberId>),
    /// The primary has answered.
    Reported(Box<Reply>),
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
        class(&mut self.observed.tasks, work).running = Some(work);
    }

    /// A task has ended.
    pub fn done(&mut self, done: Done, now: BootTime) {
        let Done { work, result } = done;
        let task = class(&mut self.observed.tasks, work);
        task.running = None;
        task.ended = now;
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
            }
        }
    }

    fn effect(&mut self, effect: Effect, now: BootTime) {
        match effect {
            Effect::Volume(scan) => self.scanned(Ok(*scan)),
            Effect::Started {
                server,
                mode,
                configured,
            } => self.started(server, mode, configured, now),
            Effect::Configured {
                configured,
                status,
                asked,
            } => {
                if self.server.is_some() {
                    self.observed.postgres.configured = Some(configured);
                    self.observed.postgres.answer = Some(self.answer(&status));
                    self.configured_at = asked;
                }
            }
            Effect::Lease {
                written,
                purpose,
                timing,
            } => self.lease_written(*written, purpose, timing, now),
            Effect::Routed(route) => self.observed.route = route,
            Effect::Admitted(member) => {
                self.observed.admitted.insert(member);
            }
            Effect::Kept(keep) => self.observed.admitted.retain(|member| keep.contains(member)),
            Effect::Reported(reply) => self.observed.reply = Some(*reply),
        }
    }

    fn started(&mut self, server: Arc<Server>, mode: Mode, configured: Configured, now: BootTime) {
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
        }
    }
}

fn class(tasks: &mut Tasks, work: Work) -> &mut Task {
    match work {
        Work::CreateMember | Work::StoreCertificate | Work::DiscardStaging | Work::Initdb | Work::Clone => {
            &mut tasks.volume
        }
        Work::StartPrimary | Work::StartStandby => &mut tasks.start,
        Work::Configure => &mut tasks.configure,
        Work::WriteLease => &mut tasks.lease,
        Work::Route => &mut tasks.route,
        Work::Admit | Work::DropSlots => &mut tasks.admit,
        Work::Report => &mut tasks.report,
    }
}
