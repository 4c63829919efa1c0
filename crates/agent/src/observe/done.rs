//! What became of a task.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use machine::instance::Work;
use machine::instance::observer::{self, Event};
use machine::instance::{Configured, Mode, Promise, Purpose, Refused};
use machine::protocol::Lsn;
use machine::quorum::SyncRule;
use machine::timing::{BootTime, Timing};

use super::lease::seen;
use super::{Scan, World, id};
use crate::kubernetes::Written;
use crate::postgres::{Following, Server, Status};

/// A task has ended.
pub struct Done {
    /// Which.
    pub work: Work,
    /// How.
    pub result: Result<Effect, Failure>,
}

/// What a task has brought about, with the handles that the agent keeps of it.
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
        /// How it finds its primary.
        following: Following,
        /// `synchronous_standby_names` of a primary.
        rule: SyncRule,
        /// What was promised before a primary is followed.
        promise: Option<Promise>,
    },
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
    /// PostgreSQL was configured anew.
    Configured {
        /// What is in the files now.
        configured: Configured,
        /// How it finds its primary.
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
    /// The agent keeps nothing of it.
    Seen(observer::Effect),
}

impl From<observer::Effect> for Effect {
    fn from(effect: observer::Effect) -> Self {
        Effect::Seen(effect)
    }
}

/// A task has failed.
pub struct Failure {
    /// Why, in words.
    pub message: String,
    /// What was learned by it.
    pub news: Option<News>,
}

/// What a failed task can teach, with the handles that the agent keeps of it.
pub enum News {
    /// The Lease as it is now.
    Lease(Box<Lease>),
    /// Settings that PostgreSQL refuses.
    Refused(Refused),
    /// What is on the volume now.
    Scan(Box<Scan>),
    /// The agent keeps nothing of it.
    Seen(observer::News),
}

impl From<Promise> for News {
    fn from(promise: Promise) -> Self {
        News::Seen(observer::News::Promise(promise))
    }
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

/// What the agent keeps of what a task has brought about, if the observer has taken it.
enum Handle {
    Scan(Box<Scan>),
    Lease(Box<Lease>),
    Status(Box<Status>, BootTime),
}

impl World {
    /// A task has ended.
    pub fn done(&mut self, Done { work, result }: Done, now: BootTime) {
        let (result, handle) = match result {
            Ok(effect) => {
                let (effect, handle) = self.effect(effect);
                (Ok(effect), handle)
            }
            Err(Failure { message, news }) => {
                let (news, handle) = news.map(told).unzip();
                (Err(observer::Failure { message, news }), handle.flatten())
            }
        };
        self.observe(Event::Done(Box::new(observer::Done { work, result })), now);
        match handle {
            Some(Handle::Scan(scan)) => self.keep_scan(*scan),
            Some(Handle::Lease(lease)) => self.keep_lease(*lease),
            Some(Handle::Status(status, asked)) => self.keep_status(status, asked),
            None => {}
        }
    }

    /// Takes what a task has brought about apart.
    fn effect(&mut self, effect: Effect) -> (observer::Effect, Option<Handle>) {
        match effect {
            Effect::Volume(scan) => (
                observer::Effect::Volume(Box::new(scan.seen())),
                Some(Handle::Scan(scan)),
            ),
            Effect::Started {
                server,
                mode,
                configured,
                following,
                rule,
                promise,
            } => {
                let started = observer::Effect::Started {
                    server: id(server.pid()),
                    ended: server.exited().is_some(),
                    mode,
                    configured,
                    following,
                    rule,
                    promise,
                };
                (self.server, self.status) = (Some(server), None);
                (started, None)
            }
            Effect::Promoted {
                rule,
                configured,
                in_doubt,
                promise,
                status,
                asked,
            } => {
                let promoted = observer::Effect::Promoted {
                    rule,
                    configured,
                    in_doubt,
                    promise,
                    status: Box::new(status.seen()),
                    asked,
                };
                (promoted, Some(Handle::Status(status, asked)))
            }
            Effect::Configured {
                configured,
                following,
                status,
                asked,
                promise,
            } => {
                let configured = observer::Effect::Configured {
                    configured,
                    following,
                    status: Box::new(status.seen()),
                    asked,
                    promise,
                };
                (configured, Some(Handle::Status(status, asked)))
            }
            Effect::Lease {
                written,
                purpose,
                timing,
            } => {
                let Written { lease, sent } = *written;
                let written = observer::Effect::Lease {
                    written: Box::new(seen(&lease)),
                    sent,
                    purpose,
                    timing,
                };
                (written, Some(Handle::Lease(Box::new(lease))))
            }
            Effect::LeaseRead(lease) => (
                observer::Effect::LeaseRead(Box::new(seen(&lease))),
                Some(Handle::Lease(lease)),
            ),
            Effect::Seen(effect) => (effect, None),
        }
    }
}

/// Takes what a failed task teaches apart.
fn told(news: News) -> (observer::News, Option<Handle>) {
    match news {
        News::Lease(lease) => (
            observer::News::Lease(Box::new(seen(&lease))),
            Some(Handle::Lease(lease)),
        ),
        News::Refused(refused) => {
            tracing::error!(settings = refused.settings, "settings are refused: {}", refused.error);
            (observer::News::Refused(refused), None)
        }
        News::Scan(scan) => (observer::News::Volume(Box::new(scan.seen())), Some(Handle::Scan(scan))),
        News::Seen(news) => (news, None),
    }
}
