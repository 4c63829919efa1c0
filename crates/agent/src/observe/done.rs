//! The end of a task: what the observer is told of it, and the handle that the agent keeps.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use machine::instance::observer::{self, Event, News};
use machine::instance::{Purpose, Work};
use machine::timing::{BootTime, Timing};

use super::lease::seen;
use super::{Scan, World};
use crate::kubernetes::Written;
use crate::postgres::{Server, Status};

/// A task has ended.
pub struct Done {
    /// The task.
    pub work: Work,
    /// How it ended.
    pub result: Result<Effect, Failure>,
}

/// What a task has brought about.
pub struct Effect {
    seen: observer::Effect,
    handle: Option<Handle>,
}

/// A handle that a task has brought. The agent keeps it if the observer takes what it stands for.
pub enum Handle {
    /// The server that was started.
    Server(Arc<Server>),
    /// What was read from the volume.
    Scan(Box<Scan>),
    /// The Lease as an object.
    Lease(Box<Lease>),
    /// PostgreSQL's answer, and when it was asked.
    Status(Box<Status>, BootTime),
}

impl From<observer::Effect> for Effect {
    fn from(seen: observer::Effect) -> Self {
        Self { seen, handle: None }
    }
}

impl Effect {
    /// An effect that brings a handle.
    pub fn with(seen: observer::Effect, handle: Handle) -> Self {
        let handle = Some(handle);
        Self { seen, handle }
    }

    /// The volume was changed, and read again.
    pub fn volume(scan: Scan) -> Self {
        Self::with(
            observer::Effect::Volume(Box::new(scan.seen())),
            Handle::Scan(Box::new(scan)),
        )
    }

    /// The Lease was written for `purpose`, and promises the times in `timing`.
    pub fn lease_written(Written { lease, sent }: Written, purpose: Purpose, timing: Timing) -> Self {
        let written = observer::Effect::Lease {
            written: Box::new(seen(&lease)),
            sent,
            purpose,
            timing,
        };
        Self::with(written, Handle::Lease(Box::new(lease)))
    }

    /// The Lease was read.
    pub fn lease_read(lease: Lease) -> Self {
        Self::with(
            observer::Effect::LeaseRead(Box::new(seen(&lease))),
            Handle::Lease(Box::new(lease)),
        )
    }
}

/// A task has failed.
pub struct Failure {
    seen: observer::Failure,
    handle: Option<Handle>,
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::said(format!("{:#}", anyhow::Error::new(error)))
    }
}

impl Failure {
    /// A failure of which only a message is known.
    pub fn said(message: impl Into<String>) -> Self {
        Self {
            seen: observer::Failure::said(message),
            handle: None,
        }
    }

    /// Adds what was learned by the failed task, unless the failure teaches something already.
    pub fn teaching(mut self, news: Option<News>) -> Self {
        self.seen.news = self.seen.news.or(news);
        self
    }

    /// The volume was read after the task had failed.
    pub fn with_scan(self, scan: Scan) -> Self {
        let news = News::Volume(Box::new(scan.seen()));
        let handle = Some(Handle::Scan(Box::new(scan)));
        Self {
            handle,
            ..self.teaching(Some(news))
        }
    }

    /// The Lease was read after a write of it had failed.
    pub fn with_lease(self, lease: Lease) -> Self {
        let news = News::Lease(Box::new(seen(&lease)));
        let handle = Some(Handle::Lease(Box::new(lease)));
        Self {
            handle,
            ..self.teaching(Some(news))
        }
    }

    /// Why the task has failed.
    pub fn message(&self) -> &str {
        &self.seen.message
    }
}

impl World {
    /// Takes the end of a task.
    pub fn done(&mut self, Done { work, result }: Done, now: BootTime) {
        let (result, handle) = match result {
            Ok(Effect { seen, handle }) => (Ok(self.started(seen, handle.as_ref())), handle),
            Err(Failure { seen, handle }) => {
                if let Some(News::Refused(refused)) = &seen.news {
                    tracing::error!(
                        settings = refused.settings,
                        "PostgreSQL refuses settings: {}",
                        refused.error
                    );
                }
                (Err(seen), handle)
            }
        };
        self.observe(Event::Done(Box::new(observer::Done { work, result })), now);
        match handle {
            Some(Handle::Scan(scan)) => self.keep_scan(*scan),
            Some(Handle::Lease(lease)) => self.keep_lease(*lease),
            Some(Handle::Status(status, asked)) => self.keep_status(status, asked),
            Some(Handle::Server(_)) | None => {}
        }
    }

    /// Keeps a server that was started, and notes whether it has ended by now. This is found out only here, not by the
    /// task: the observer may have been told of the end before it knew the server, and nothing would tell it again.
    fn started(&mut self, mut seen: observer::Effect, handle: Option<&Handle>) -> observer::Effect {
        if let (observer::Effect::Started { ended, .. }, Some(Handle::Server(server))) = (&mut seen, handle) {
            *ended = server.exited().is_some();
            (self.server, self.status) = (Some(Arc::clone(server)), None);
        }
        seen
    }
}
