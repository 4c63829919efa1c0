//! A client's process: a test can stop it at any of its requests, as by SIGSTOP, and resume it. A test can also freeze what
//! lists and watches show it.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use tokio::sync::watch;

use crate::kinds::Kind;
use crate::store::Store;

/// A process; clones share it.
#[derive(Clone)]
pub struct Process(Arc<Inner>);

struct Inner {
    name: String,
    stopped: watch::Sender<bool>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stop: Option<Stop>,
    /// What lists show of these kinds; watches of them tell nothing.
    frozen: BTreeMap<&'static Kind, Arc<Store>>,
    answered: Vec<Answered>,
}

/// At which of its requests a process stops.
struct Stop {
    when: Box<dyn FnMut(&str) -> bool + Send>,
    carried_out: bool,
}

/// A request of a process that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// When.
    pub at: DateTime<Utc>,
    /// The answer's HTTP status code.
    pub code: u16,
    /// What was asked: `Apply services ns/db-rw`.
    pub what: String,
    /// The process stopped before it was sent, and resumed later.
    pub late: bool,
}

impl Process {
    /// A process that runs.
    pub fn new(name: &str) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            stopped: watch::Sender::new(false),
            state: Mutex::default(),
        }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Runs `work` as this process: it gets no further while the process is stopped.
    pub async fn run<R>(&self, work: impl Future<Output = R>) -> R {
        let mut work = pin!(work);
        loop {
            self.goes_on().await;
            tokio::select! {
                biased;
                () = self.stopped() => {}
                done = &mut work => return done,
            }
        }
    }

    /// Stops it before it sends the first request that `when` chooses by its summary.
    pub fn stop_before(&self, when: impl FnMut(&str) -> bool + Send + 'static) {
        self.stop_at(when, false);
    }

    /// Stops it when the first request that `when` chooses was carried out, and before it hears the answer.
    pub fn stop_after(&self, when: impl FnMut(&str) -> bool + Send + 'static) {
        self.stop_at(when, true);
    }

    fn stop_at(&self, when: impl FnMut(&str) -> bool + Send + 'static, carried_out: bool) {
        self.lock().stop = Some(Stop {
            when: Box::new(when),
            carried_out,
        });
    }

    /// Resumes it.
    pub fn go_on(&self) {
        self.0.stopped.send_replace(false);
    }

    /// Returns when it is stopped.
    pub async fn stopped(&self) {
        // The sender lives as long as this process does.
        let _ = self.0.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    /// Returns when it is not stopped.
    pub(crate) async fn goes_on(&self) {
        let _ = self.0.stopped.subscribe().wait_for(|stopped| !*stopped).await;
    }

    /// Its requests that were answered.
    pub fn answered(&self) -> Vec<Answered> {
        self.lock().answered.clone()
    }

    pub(crate) fn note(&self, answered: Answered) {
        self.lock().answered.push(answered);
    }

    /// Stops if this request is the one; whether it is to be carried out first.
    pub(crate) fn meets(&self, summary: &str) -> Option<bool> {
        let mut state = self.lock();
        let stop = state.stop.as_mut()?;
        if !(stop.when)(summary) {
            return None;
        }
        let carried_out = stop.carried_out;
        state.stop = None;
        if !carried_out {
            self.0.stopped.send_replace(true);
        }
        Some(carried_out)
    }

    pub(crate) fn stop(&self) {
        self.0.stopped.send_replace(true);
    }

    pub(crate) fn freeze(&self, plurals: &[&str], view: &Arc<Store>) {
        let kinds = plurals.iter().map(|plural| (Kind::of(plural), Arc::clone(view)));
        self.lock().frozen.extend(kinds);
    }

    pub(crate) fn thaw(&self) {
        self.lock().frozen.clear();
    }

    /// What lists of this kind show, if that is frozen.
    pub(crate) fn frozen(&self, kind: &'static Kind) -> Option<Arc<Store>> {
        self.lock().frozen.get(kind).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
