//! The loop around the reconcile kernel, the same for every kind. It observes, decides, writes the status if it is due,
//! and carries out the action, until there is nothing to do. The part that differs between kinds is their [`Host`].

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

/// The target of a host's actions.
pub type TargetOf<H> = <<<H as Host>::Machine as Controller>::Action as Effect>::Target;
/// A host's decision.
pub type DecisionOf<H> = <<H as Host>::Machine as Controller>::Decision;
/// A host's status.
pub type StatusOf<H> = <<H as Host>::Machine as Controller>::Status;
/// The part that a host adds to a status.
pub type PreparedOf<H> = <<H as Host>::Machine as Controller>::Prepared;

/// An action that could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind of refusal.
    pub kind: FaultKind,
    /// The API server's message, or the operator's.
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

/// The result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The action is done.
    Done,
    /// The objects are not those that the decision was made for. Nothing was done; decide again.
    Outdated,
    /// The action must wait until an object that is being deleted is gone.
    NotYet,
}

/// The observation of a resource.
pub enum Sight<S> {
    /// The resource is gone.
    Gone,
    /// An object that is needed cannot be read now.
    Later,
    /// The resource and its objects.
    Seen(Box<S>),
}

/// The part of a status that the executor prepares.
pub enum Prepared<P> {
    /// It is prepared.
    Ready(P),
    /// An object has changed: decide again.
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
    /// The memory of one resource between two decisions. Nothing breaks if it is lost.
    type Memory: Default + Send;
    /// The resource, and the observations.
    type Seen: Send + Sync;

    /// The kernel's part of the memory.
    fn pass(memory: &mut Self::Memory) -> &mut Pass<TargetOf<Self>>;
    /// The memories of all resources of this kind.
    fn looks(&self) -> &Looks<Self::Memory>;
    /// The metrics that count what is done.
    fn metrics(&self) -> &Metrics;
    /// The time.
    fn now(&self) -> DateTime<Utc>;

    /// UID and generation of the resource, as far as they can be read.
    fn spec(&self, key: &Key) -> (String, i64);
    /// Reads the resource, observes what a decision needs, and begins the pass.
    fn see(
        &self,
        key: &Key,
        memory: &mut Self::Memory,
        now: DateTime<Utc>,
    ) -> impl Future<Output = Sight<Self::Seen>> + Send;
    /// Decides, and records the decision for later questions.
    fn decide(&self, key: &Key, seen: &Self::Seen, now: DateTime<Utc>) -> DecisionOf<Self>;
    /// Prepares what the status of `decision` needs from outside.
    ///
    /// # Errors
    /// Fails if it cannot be prepared.
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
    /// Writes the status, if the resource still has the version that the decision was made for.
    ///
    /// # Errors
    /// Fails if the API server refuses the status, or does not keep all of it.
    fn write_status(
        &self,
        key: &Key,
        seen: &Self::Seen,
        status: StatusOf<Self>,
        decision: &DecisionOf<Self>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Takes note that the status with the prepared part is written.
    fn prepared_is_written(memory: &mut Self::Memory, prepared: PreparedOf<Self>);
    /// Reads again the objects that the decision relies on.
    ///
    /// # Errors
    /// Fails if the API server does not answer, or the lead was not renewed lately.
    fn confirm(&self, key: &Key, seen: &Self::Seen) -> impl Future<Output = Result<Outcome, Failure>> + Send;
    /// Carries out the decision's action.
    ///
    /// # Errors
    /// Fails if the API server refuses the action or does not answer.
    fn perform(
        &self,
        key: &Key,
        memory: &mut Self::Memory,
        seen: &Self::Seen,
        decision: &DecisionOf<Self>,
    ) -> impl Future<Output = Result<Outcome, Failure>> + Send;
    /// The version, as the watches have reported it, of the object that actions of this target change.
    fn version(&self, key: &Key, target: &TargetOf<Self>) -> Option<String>;
    /// When to reconcile again for facts that no watch reports, if that is before `wake`.
    fn wake(&self, memory: &Self::Memory, seen: &Self::Seen, wake: DateTime<Utc>, now: DateTime<Utc>) -> DateTime<Utc>;
    /// The name of the decision's action.
    fn action_name(decision: &DecisionOf<Self>) -> &'static str;
    /// Logs what is about to be done.
    fn log(key: &Key, decision: &DecisionOf<Self>);
    /// Writes into the status that the operator's own code failed at `place`.
    fn tell_of_internal_error(&self, key: &Key, place: &str, now: DateTime<Utc>) -> impl Future<Output = ()> + Send;
    /// Other resources that a write of this one's status may concern. The watch does not report the operator's own
    /// writes.
    fn readers(&self, key: &Key) -> Vec<Key>;
    /// The resource is gone.
    fn forget(&self, key: &Key);
}

/// The result of reconciling a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// When to reconcile again without an event; `None`: the resource is gone.
    pub again: Option<Duration>,
    /// The other resources to reconcile now.
    pub wakes: BTreeSet<Key>,
}

/// The memories of all resources of one kind.
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
    /// Set while the last passes panicked.
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

/// Reconciles one resource. A panic is a bug that this resource's objects bring out: this resource backs off, and the
/// others go on.
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

/// Handles a panic. Returns how long the resource backs off.
async fn failed_inside<H: Host>(host: &H, key: &Key, spec: (String, i64), known: &mut Known<H::Memory>) -> Duration {
    let (place, now) = (crate::panics::take_place(), host.now().trunc_subsecs(3));
    let errors = InternalErrors::another(known.errors.as_ref(), spec, now);
    let pause = errors.pause();
    tracing::error!(
        database = %key, place, again_in = %pause,
        "reconciling this database panicked: it backs off, the others go on"
    );
    host.metrics().failed_inside();
    // The memory may be half changed. It is dropped, and found out again.
    *known = Known {
        memory: H::Memory::default(),
        errors: Some(errors),
    };
    let told = AssertUnwindSafe(host.tell_of_internal_error(key, &place, now)).catch_unwind();
    if told.await.is_err() {
        tracing::error!(database = %key, "writing the internal error into the status panicked as well");
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
    tracing::error!(database = %key, "still not idle after {MAX_STEPS} steps; goes on in a second");
    Some(Duration::from_secs(1))
}

async fn step<H: Host>(host: &H, key: &Key, memory: &mut H::Memory, wakes: &mut BTreeSet<Key>) -> After {
    // The status shows whole milliseconds.
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

/// Carries out the action, if the objects that it relies on have not changed.
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

/// Handles the failure of an action on `target`, which is known at this version.
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
