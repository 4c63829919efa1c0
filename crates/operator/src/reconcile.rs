//! The loop around the reconcile kernel, the same for every kind: observe, decide, write the status if it is due, carry out the
//! action; and again, until there is nothing to do. What belongs to one kind is its [`Host`].

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use futures::FutureExt;
use machine::cluster::InternalErrors;
use machine::reconcile::{AFTER_FAILURE, Controller, Decided, Effect, FaultKind, MAX_STEPS, Next, Pass, SHORTEST_WAIT};

use crate::cache::Key;
use crate::metrics::Metrics;
use crate::requests::Refused;

/// What a host's actions are done to.
pub type TargetOf<H> = <<<H as Host>::Machine as Controller>::Action as Effect>::Target;
/// A host's decision.
pub type DecisionOf<H> = <<H as Host>::Machine as Controller>::Decision;
/// A host's status.
pub type StatusOf<H> = <<H as Host>::Machine as Controller>::Status;
/// What a host adds to a status.
pub type PreparedOf<H> = <<H as Host>::Machine as Controller>::Prepared;

/// An action that could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind of refusal.
    pub kind: FaultKind,
    /// The API server's words, or ours.
    pub message: String,
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self {
            kind: refused.kind(),
            message: refused.to_string(),
        }
    }
}

/// What came of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// What was decided upon is not what there is (any more): nothing was done, decide again.
    Outdated,
    /// It can only be done when something that is going is gone.
    NotYet,
}

/// What is seen of a resource.
pub enum Sight<S> {
    /// It is gone.
    Gone,
    /// Something cannot be read now.
    Later,
    /// This.
    Seen(Box<S>),
}

/// What the executor adds to a status, as far as it could.
pub enum Prepared<P> {
    /// This.
    Ready(P),
    /// Something has changed: decide again.
    Again,
}

/// The I/O of one kind of resource.
pub trait Host: Send + Sync + Sized {
    /// Its machine.
    type Machine: Controller<
            Action: Effect<Target: Send + Sync + std::fmt::Debug>,
            Decision: Send + Sync,
            Status: Send + Sync,
            Prepared: Send,
        >;
    /// What is kept of one resource between two decisions; all of it can be lost.
    type Memory: Default + Send;
    /// The resource and what is observed.
    type Seen: Send + Sync;

    /// The kernel's part of the memory.
    fn pass(memory: &mut Self::Memory) -> &mut Pass<TargetOf<Self>>;
    /// What is kept of all resources of this kind.
    fn looks(&self) -> &Looks<Self::Memory>;
    /// Counts what is done.
    fn metrics(&self) -> &Metrics;
    /// The time.
    fn now(&self) -> DateTime<Utc>;

    /// UID and generation of the resource, as far as they can be read.
    fn spec(&self, key: &Key) -> (String, i64);
    /// Reads the resource and observes what a decision about it needs; begins the pass.
    fn see(
        &self,
        key: &Key,
        memory: &mut Self::Memory,
        now: DateTime<Utc>,
    ) -> impl Future<Output = Sight<Self::Seen>> + Send;
    /// Decides, and notes the decision for whoever asks later.
    fn decide(&self, key: &Key, seen: &Self::Seen, now: DateTime<Utc>) -> DecisionOf<Self>;
    /// What the status of `decision` needs from outside.
    ///
    /// # Errors
    /// When it cannot be had.
    fn prepare(
        &self,
        key: &Key,
        memory: &mut Self::Memory,
        seen: &Self::Seen,
        decision: &DecisionOf<Self>,
        now: DateTime<Utc>,
    ) -> impl Future<Output = Result<Prepared<PreparedOf<Self>>, Failure>> + Send;
    /// The status that belongs to `decision`.
    fn status(
        seen: &Self::Seen,
        decision: &DecisionOf<Self>,
        prepared: &PreparedOf<Self>,
        now: DateTime<Utc>,
    ) -> StatusOf<Self>;
    /// What to do about `decision`.
    fn next(
        pass: &mut Pass<TargetOf<Self>>,
        seen: &Self::Seen,
        status: &StatusOf<Self>,
        decision: &DecisionOf<Self>,
        now: DateTime<Utc>,
    ) -> Next;
    /// Writes the status over exactly the version that was decided upon.
    ///
    /// # Errors
    /// When the API server refuses it, or does not keep all of it.
    fn write_status(
        &self,
        key: &Key,
        seen: &Self::Seen,
        status: StatusOf<Self>,
        decision: &DecisionOf<Self>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
    /// The status with what was prepared for it is written.
    fn prepared_is_written(memory: &mut Self::Memory, prepared: PreparedOf<Self>);
    /// Reads once more what `decision` relies on.
    ///
    /// # Errors
    /// When the API server does not answer, or the lead was not renewed lately.
    fn confirm(&self, key: &Key, seen: &Self::Seen) -> impl Future<Output = Result<Outcome, Failure>> + Send;
    /// Carries the decision's action out.
    ///
    /// # Errors
    /// When it fails.
    fn perform(
        &self,
        key: &Key,
        memory: &mut Self::Memory,
        seen: &Self::Seen,
        decision: &DecisionOf<Self>,
    ) -> impl Future<Output = Result<Outcome, Failure>> + Send;
    /// The version that the watches have shown of what actions of this target change.
    fn version(&self, key: &Key, target: &TargetOf<Self>) -> Option<String>;
    /// When to look again for what no watch shows, if that is before `wake`.
    fn wake(&self, memory: &Self::Memory, seen: &Self::Seen, wake: DateTime<Utc>, now: DateTime<Utc>) -> DateTime<Utc>;
    /// The name of the decision's action.
    fn action_name(decision: &DecisionOf<Self>) -> &'static str;
    /// Logs what is about to be done.
    fn log(key: &Key, decision: &DecisionOf<Self>);
    /// Says in the status that the operator's own code failed at `place`.
    fn tell_of_internal_error(&self, key: &Key, place: &str, now: DateTime<Utc>) -> impl Future<Output = ()> + Send;
    /// Other resources that a write of this one's status may concern. The watch does not tell of our own writes.
    fn readers(&self, key: &Key) -> Vec<Key>;
    /// The resource is gone.
    fn forget(&self, key: &Key);
}

/// What came of a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// When to look again without an event; `None`: the resource is gone.
    pub again: Option<Duration>,
    /// What is to be looked at now.
    pub wakes: BTreeSet<Key>,
}

/// What is kept of all resources of one kind between two looks.
#[derive(Debug)]
pub struct Looks<M>(Mutex<BTreeMap<Key, Arc<tokio::sync::Mutex<Known<M>>>>>);

impl<M> Default for Looks<M> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

#[derive(Debug)]
struct Known<M> {
    memory: M,
    /// The last looks panicked.
    errors: Option<InternalErrors>,
}

impl<M: Default> Looks<M> {
    fn of(&self, key: &Key) -> Arc<tokio::sync::Mutex<Known<M>>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_key = known.entry(key.clone()).or_insert_with(|| {
            Arc::new(tokio::sync::Mutex::new(Known {
                memory: M::default(),
                errors: None,
            }))
        });
        Arc::clone(of_key)
    }

    fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// What to do after a step.
enum After {
    Again,
    At(DateTime<Utc>),
    Gone,
}

/// Looks at one resource. A panic on the way is a bug that this resource's objects bring out: it rests, and the others go on.
pub async fn look<H: Host>(host: &H, key: &Key) -> Looked {
    let began = tokio::time::Instant::now();
    let known = host.looks().of(key);
    let mut known = known.lock().await;
    let (spec, now) = (host.spec(key), host.now());
    if let Some(again) = known.errors.as_ref().and_then(|errors| errors.rests_until(&spec, now)) {
        return Looked {
            again: Some(until(host, again)),
            wakes: BTreeSet::new(),
        };
    }
    let mut wakes = BTreeSet::new();
    let steps = steps(host, key, &mut known.memory, &mut wakes);
    let again = match AssertUnwindSafe(steps).catch_unwind().await {
        Ok(again) => {
            known.errors = None;
            again
        }
        Err(_) => Some(failed_inside(host, key, spec, &mut known).await),
    };
    if again.is_none() {
        host.looks().forget(key);
        host.forget(key);
    }
    host.metrics().reconciled(began.elapsed());
    Looked { again, wakes }
}

/// A look panicked; returns how long the resource rests.
async fn failed_inside<H: Host>(host: &H, key: &Key, spec: (String, i64), known: &mut Known<H::Memory>) -> Duration {
    let (place, now) = (crate::panics::take_place(), host.now().trunc_subsecs(3));
    let errors = InternalErrors::another(known.errors.as_ref(), spec, now);
    let pause = errors.pause();
    tracing::error!(
        database = %key, place, again_in = %pause,
        "the look at this database panicked: it rests, the others go on"
    );
    host.metrics().failed_inside();
    // It may have been left half changed. All of it is found out again.
    *known = Known {
        memory: H::Memory::default(),
        errors: Some(errors),
    };
    let told = AssertUnwindSafe(host.tell_of_internal_error(key, &place, now)).catch_unwind();
    if told.await.is_err() {
        tracing::error!(database = %key, "saying so panicked as well");
    }
    until(host, now + pause)
}

fn until<H: Host>(host: &H, at: DateTime<Utc>) -> Duration {
    (at - host.now()).to_std().unwrap_or_default().max(SHORTEST_WAIT)
}

async fn steps<H: Host>(host: &H, key: &Key, memory: &mut H::Memory, wakes: &mut BTreeSet<Key>) -> Option<Duration> {
    for _ in 0..MAX_STEPS {
        match step(host, key, memory, wakes).await {
            After::Again => {}
            After::At(at) => return Some(until(host, at)),
            After::Gone => return None,
        }
    }
    tracing::error!(database = %key, "still not at rest after {MAX_STEPS} steps; goes on in a second");
    Some(Duration::from_secs(1))
}

async fn step<H: Host>(host: &H, key: &Key, memory: &mut H::Memory, wakes: &mut BTreeSet<Key>) -> After {
    // Whole milliseconds, as people read them in the status.
    let now = host.now().trunc_subsecs(3);
    let seen = match host.see(key, memory, now).await {
        Sight::Gone => return After::Gone,
        Sight::Later => return After::At(now + AFTER_FAILURE),
        Sight::Seen(seen) => seen,
    };
    let decision = host.decide(key, &seen, now);
    let target = <H::Machine as Controller>::Action::status();
    let known = host.version(key, &target);
    let prepared = match host.prepare(key, memory, &seen, &decision, now).await {
        Ok(Prepared::Ready(prepared)) => prepared,
        Ok(Prepared::Again) => return After::Again,
        Err(failure) => return failed(host, key, memory, (target, None), &decision, failure),
    };
    let status = H::status(&seen, &decision, &prepared, now);
    match H::next(H::pass(memory), &seen, &status, &decision, now) {
        Next::Sleep(at) => After::At(host.wake(memory, &seen, at, now)),
        Next::WriteStatus => match host.write_status(key, &seen, status, &decision).await {
            Ok(()) => {
                H::pass(memory).status_written(&target);
                H::prepared_is_written(memory, prepared);
                wakes.extend(host.readers(key));
                After::Again
            }
            Err(failure) => failed(host, key, memory, (target, known), &decision, failure),
        },
        next @ (Next::Confirm | Next::Perform) => act(host, key, memory, &seen, &decision, next, now).await,
    }
}

/// Carries the action out, if what it relies on is still there.
async fn act<H: Host>(
    host: &H,
    key: &Key,
    memory: &mut H::Memory,
    seen: &H::Seen,
    decision: &DecisionOf<H>,
    next: Next,
    now: DateTime<Utc>,
) -> After {
    let Some(target) = decision.action().target() else {
        return After::At(decision.wake());
    };
    H::log(key, decision);
    let known = host.version(key, &target);
    let confirmed = match next {
        Next::Confirm => host.confirm(key, seen).await,
        Next::WriteStatus | Next::Perform | Next::Sleep(_) => Ok(Outcome::Done),
    };
    let outcome = match confirmed {
        Ok(Outcome::Done) => host.perform(key, memory, seen, decision).await,
        changed => changed,
    };
    match outcome {
        Ok(Outcome::Done) => {
            H::pass(memory).succeeded(&target);
            After::Again
        }
        Ok(Outcome::Outdated) => After::Again,
        Ok(Outcome::NotYet) => After::At(now + TimeDelta::seconds(1)),
        Err(failure) => failed(host, key, memory, (target, known), decision, failure),
    }
}

/// What was done to `target`, known at this version, has failed.
fn failed<H: Host>(
    host: &H,
    key: &Key,
    memory: &mut H::Memory,
    (target, known): (TargetOf<H>, Option<String>),
    decision: &DecisionOf<H>,
    failure: Failure,
) -> After {
    let action = H::action_name(decision);
    let Failure { kind, message } = failure;
    if kind == FaultKind::Conflict {
        tracing::debug!(database = %key, action, ?target, message, "has changed meanwhile");
    } else {
        tracing::warn!(database = %key, action, ?target, ?kind, message, "failed");
    }
    host.metrics().failed(action, kind);
    After::At(H::pass(memory).failed(target, known, kind, message, host.now()))
}
