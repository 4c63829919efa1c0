//! One look at a database: observe, decide, write the status if it is due, carry out the action; and again, until
//! there is nothing to do.

mod actions;
mod children;
mod reads;
mod status;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::names::{ANNOTATION_ACCEPT_LOSS, ANNOTATION_RECREATE_LEASE, ANNOTATION_SWITCHOVER, FINALIZER};
use api::quantity::Quantity;
use api::{ClusteredDatabase, ClusteredDatabaseStatus};
use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use futures::FutureExt;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use machine::cluster::{Basis, Cluster, Decision, FaultKind, InternalErrors, Observed, Target, Wanted, decide};
use machine::protocol::settings_hash;
use machine::reconcile::{AFTER_FAILURE, Controller, MAX_STEPS, Next, SHORTEST_WAIT};

use crate::builders::Subject;
use crate::cache::{Cache, Kept, Key};
use crate::caches::Caches;
use crate::config::Config;
use crate::decisions::Decisions;
use crate::desired::{Revisions, Wants};
use crate::leader::Lead;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::observe::{self, observe};
use crate::requests::{Refused, Requests};

/// How long a look is put off at the start, while a kind has not been listed.
const UNTIL_LISTED: Duration = Duration::from_secs(5);
/// Carries out what the machine decides.
pub struct Executor {
    requests: Requests,
    caches: Arc<Caches>,
    config: Config,
    metrics: Metrics,
    decisions: Arc<Decisions>,
    /// Name of this operator, for the events that it writes.
    identity: String,
    lead: Lead,
    clock: Clock,
    decide: Decide,
    known: Mutex<BTreeMap<Key, Arc<tokio::sync::Mutex<Known>>>>,
}

/// Tells the time.
type Clock = Box<dyn Fn() -> DateTime<Utc> + Send + Sync>;
/// Decides: [`decide`].
type Decide = Box<dyn Fn(&Wanted<'_>, &Observed, &ClusteredDatabaseStatus, DateTime<Utc>) -> Decision + Send + Sync>;

/// What is kept of one database between two looks.
#[derive(Debug, Default)]
struct Known {
    memory: Memory,
    /// The last looks panicked.
    errors: Option<InternalErrors>,
}

/// An action that could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    kind: FaultKind,
    message: String,
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
enum Outcome {
    /// It is done.
    Done,
    /// What was decided upon is not what there is (any more): nothing was done, decide again.
    Outdated,
    /// It can only be done when something that is going is gone.
    NotYet,
}

/// What to do after a step.
enum After {
    Again,
    At(DateTime<Utc>),
    Gone,
}

/// What one step knows.
struct Situation {
    db: Arc<ClusteredDatabase>,
    observed: Observed,
    decision: Decision,
    now: DateTime<Utc>,
}

impl Executor {
    /// An executor that reads from these caches.
    pub fn new(requests: Requests, caches: Arc<Caches>, config: Config, metrics: Metrics, identity: String) -> Self {
        Self {
            requests,
            caches,
            config,
            metrics,
            decisions: Arc::default(),
            identity,
            lead: Lead::without_election(),
            clock: Box::new(Utc::now),
            decide: Box::new(decide),
            known: Mutex::default(),
        }
    }

    /// The same for one of several operators, of which `lead` tells whether it is the one that acts.
    pub fn with_lead(mut self, lead: Lead) -> Self {
        self.lead = lead;
        self
    }

    /// The same with another clock, whose time goes on as tokio's does.
    pub fn with_clock(mut self, clock: impl Fn() -> DateTime<Utc> + Send + Sync + 'static) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// The same with other decisions.
    pub fn with_decide(
        mut self,
        decide: impl Fn(&Wanted<'_>, &Observed, &ClusteredDatabaseStatus, DateTime<Utc>) -> Decision + Send + Sync + 'static,
    ) -> Self {
        self.decide = Box::new(decide);
        self
    }

    /// The last decisions.
    pub fn decisions(&self) -> Arc<Decisions> {
        Arc::clone(&self.decisions)
    }

    /// Looks at one database; returns when to look again without an event, or `None` if it is gone. A panic on the way is a
    /// bug that this database's objects bring out: it rests, and the others go on.
    pub async fn look(&self, key: &Key) -> Option<Duration> {
        let began = tokio::time::Instant::now();
        if self.caches.databases.has(key) && !self.caches.are_complete() {
            // Whatever is listed next brings all databases to be looked at again.
            return Some(UNTIL_LISTED);
        }
        let known = self.known(key);
        let mut known = known.lock().await;
        let (spec, now) = (self.spec(key), (self.clock)());
        if let Some(again) = known.errors.as_ref().and_then(|errors| errors.rests_until(&spec, now)) {
            return Some(self.until(again));
        }
        let steps = self.steps(key, &mut known.memory);
        let wait = match AssertUnwindSafe(steps).catch_unwind().await {
            Ok(wait) => {
                known.errors = None;
                wait
            }
            Err(_) => Some(
                self.failed_inside(key, spec, &mut known, crate::panics::take_place())
                    .await,
            ),
        };
        if wait.is_none() {
            self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
            self.decisions.forget(key);
        }
        self.metrics.reconciled(began.elapsed());
        wait
    }

    /// A look panicked at `place`; returns how long the database rests.
    async fn failed_inside(&self, key: &Key, spec: (String, i64), known: &mut Known, place: String) -> Duration {
        let now = (self.clock)().trunc_subsecs(3);
        let errors = InternalErrors::another(known.errors.as_ref(), spec, now);
        let pause = errors.pause();
        tracing::error!(
            database = %key, place, again_in = %pause,
            "the look at this database panicked: it rests, the others go on"
        );
        self.metrics.failed_inside();
        // It may have been left half changed. All of it is found out again.
        *known = Known {
            memory: Memory::default(),
            errors: Some(errors),
        };
        let told = AssertUnwindSafe(self.tell_of_internal_error(key, &place, now)).catch_unwind();
        if told.await.is_err() {
            tracing::error!(database = %key, "saying so panicked as well");
        }
        self.until(now + pause)
    }

    /// UID and generation of the resource.
    fn spec(&self, key: &Key) -> (String, i64) {
        type Metadata = PartialObjectMeta<ClusteredDatabase>;
        let db = self.caches.databases.read_as::<Metadata>(key, &key.name).flatten();
        let told = |db: Arc<Metadata>| (db.uid().unwrap_or_default(), db.metadata.generation.unwrap_or(0));
        db.map(told).unwrap_or_default()
    }

    fn until(&self, at: DateTime<Utc>) -> Duration {
        (at - (self.clock)()).to_std().unwrap_or_default().max(SHORTEST_WAIT)
    }

    async fn steps(&self, key: &Key, memory: &mut Memory) -> Option<Duration> {
        for _ in 0..MAX_STEPS {
            match self.step(key, memory).await {
                After::Again => {}
                After::At(at) => return Some(self.until(at)),
                After::Gone => return None,
            }
        }
        tracing::error!(database = %key, "still not at rest after {MAX_STEPS} steps; goes on in a second");
        Some(Duration::from_secs(1))
    }

    async fn step(&self, key: &Key, memory: &mut Memory) -> After {
        // Whole milliseconds, as people read them in the status.
        let now = (self.clock)().trunc_subsecs(3);
        let Some(Some(db)) = self.caches.databases.get(key, &key.name) else {
            return After::Gone;
        };
        let Ok(subject) = Subject::new(&db, &self.config) else {
            return After::Gone;
        };
        let generation = db.metadata.generation.unwrap_or(0);
        memory.begin(&subject.uid, generation, |target| self.version(key, target));
        if let Err(error) = self.caches.read_not_kept(key, &self.requests).await {
            tracing::warn!(database = %key, %error, "cannot read what was there before the database");
            return After::At(now + AFTER_FAILURE);
        }
        let compared = self.compared_with(key, &subject);
        refresh_wants(&compared, memory);
        let Some(observed) = self.observe(key, &compared, memory, now).await else {
            return After::At(now + AFTER_FAILURE);
        };
        let facts = WantedFacts::new(&db, memory);
        let wanted = facts.wanted(&db, key, &subject.uid);
        let stored = db.status.clone().unwrap_or_default();
        let decision = (self.decide)(&wanted, &observed, &stored, now);
        self.metrics.decided(decision.rule, decision.action.name());
        self.decisions.note(key, &wanted, &observed, &stored, &decision, now);
        let situation = Situation {
            db: Arc::clone(&db),
            observed,
            decision,
            now,
        };

        let signed = match self.sign(key, &subject, &situation.decision, now).await {
            Ok(Some(signed)) => signed,
            Ok(None) => return After::Again,
            Err(failure) => return self.failed(key, memory, (Target::Status, None), &situation, failure),
        };
        if !signed.refused.is_empty() {
            // One key that is of no use must not hold up the others: decided again without it.
            for (pod, message) in signed.refused {
                tracing::warn!(database = %key, pod, message, "a member's key cannot be signed");
                let target = Target::Certificate(pod);
                memory.pass.failed(target, None, FaultKind::Invalid, message, now);
            }
            return After::Again;
        }
        let Situation { observed, decision, .. } = &situation;
        let next = Cluster::status(&wanted, observed, &stored, decision, &signed.certificates, now);
        match memory.pass.next::<Cluster>(observed, &stored, &next, decision, now) {
            Next::Sleep(until) => After::At(until.min(self.wake(memory, &situation))),
            Next::WriteStatus => match self.write_status(key, &db, &stored, next, decision).await {
                Ok(()) => {
                    memory.pass.status_written(&Target::Status);
                    for pod in signed.certificates.into_keys() {
                        memory.pass.succeeded(&Target::Certificate(pod));
                    }
                    After::Again
                }
                Err(failure) => {
                    let version = db.resource_version();
                    self.failed(key, memory, (Target::Status, version), &situation, failure)
                }
            },
            Next::Confirm => {
                let basis = Basis::new(&wanted, observed);
                self.act(key, memory, &subject, &situation, Some(basis)).await
            }
            Next::Perform => self.act(key, memory, &subject, &situation, None).await,
        }
    }

    /// Carries the action out, if what it relies on (`basis`) is still there.
    async fn act(
        &self,
        key: &Key,
        memory: &mut Memory,
        subject: &Subject<'_>,
        situation: &Situation,
        basis: Option<Basis>,
    ) -> After {
        let Situation { decision, now, .. } = situation;
        let Some(target) = decision.action.target() else {
            return After::At(decision.wake);
        };
        tracing::info!(
            database = %key, phase = %decision.phase, rule = decision.rule, action = ?decision.action,
            because = %decision.because, "acting"
        );
        let version = self.version(key, &target);
        let confirmed = match basis {
            Some(basis) => self.confirm(key, &basis).await,
            None => Ok(Outcome::Done),
        };
        let outcome = match confirmed {
            Ok(Outcome::Done) => self.carry_out(key, memory, subject, situation).await,
            changed => changed,
        };
        match outcome {
            Ok(Outcome::Done) => {
                memory.pass.succeeded(&target);
                After::Again
            }
            Ok(Outcome::Outdated) => After::Again,
            Ok(Outcome::NotYet) => After::At(*now + TimeDelta::seconds(1)),
            Err(failure) => self.failed(key, memory, (target, version), situation, failure),
        }
    }

    /// What was done to `target`, known at this version, has failed.
    fn failed(
        &self,
        key: &Key,
        memory: &mut Memory,
        (target, version): (Target, Option<String>),
        situation: &Situation,
        failure: Failure,
    ) -> After {
        let action = situation.decision.action.name();
        let Failure { kind, message } = failure;
        if kind == FaultKind::Conflict {
            tracing::debug!(database = %key, action, ?target, message, "has changed meanwhile");
        } else {
            tracing::warn!(database = %key, action, ?target, ?kind, message, "failed");
        }
        self.metrics.failed(action, kind);
        After::At(memory.pass.failed(target, version, kind, message, (self.clock)()))
    }

    /// The version that the watches have shown of what actions of this target change.
    fn version(&self, key: &Key, target: &Target) -> Option<String> {
        fn of<K: Kept>(cache: &Cache<K>, key: &Key, name: &str) -> Option<String> {
            cache.get(key, name)??.resource_version()
        }
        match target {
            Target::Resource | Target::Status | Target::Certificate(_) => of(&self.caches.databases, key, &key.name),
            Target::Pod(name) | Target::Resize(name) => of(&self.caches.pods, key, name),
            Target::Claim(name) => of(&self.caches.claims, key, name),
            Target::Child(kind) => self.child(key, *kind)?.resource_version,
        }
    }

    /// When to look again for what no watch shows.
    fn wake(&self, memory: &Memory, situation: &Situation) -> DateTime<Utc> {
        let mut wake = situation.decision.wake;
        if reads::misses_pods(&situation.observed) || !memory.starting.is_empty() {
            wake = wake.min(situation.now + reads::EVENTS_EVERY);
        }
        if !memory.strays.is_empty() {
            wake = wake.min(situation.now + reads::STRAYS_EVERY);
        }
        wake
    }

    /// The subject as the live objects are compared with it.
    fn compared_with<'a>(&self, key: &Key, subject: &Subject<'a>) -> Subject<'a> {
        // Who gets a WAL volume is decided: what is there is compared with the rest.
        let wal = observe::wal_volumes(&self.caches, key).unwrap_or_default();
        let status = subject.db.status.as_ref();
        let recorded = status.is_some_and(|status| status.memo.image.is_some());
        Subject {
            running: (!recorded).then(|| observe::running_image(&self.caches, key)).flatten(),
            ..subject.with_wal(wal)
        }
    }

    async fn observe(
        &self,
        key: &Key,
        subject: &Subject<'_>,
        memory: &mut Memory,
        now: DateTime<Utc>,
    ) -> Option<Observed> {
        let db = subject.db;
        self.suspect_strays(key, db, memory);
        let strays = self.read_strays(key, memory).await?;
        self.read_events(key, memory, now).await;
        self.read_events_of_pods(key, memory, now).await;
        self.check_secrets(key, db, memory).await;
        let mut observed = observe(&self.caches, key, subject, memory, &strays, now);
        if db.metadata.deletion_timestamp.is_some() {
            observed.namespace_terminating = self.is_namespace_terminating(&key.namespace).await;
        }
        Some(observed)
    }

    fn known(&self, key: &Key) -> Arc<tokio::sync::Mutex<Known>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(known.entry(key.clone()).or_default())
    }
}

fn refresh_wants(subject: &Subject<'_>, memory: &mut Memory) {
    let generation = subject.db.metadata.generation.unwrap_or(0);
    let is_same = |known: &Wants| {
        (known.generation, known.wal) == (generation, subject.wal)
            && (&known.granted, &known.image) == (&subject.granted(), &subject.image())
    };
    if !memory.wants.as_deref().is_some_and(is_same) {
        memory.wants = Some(Arc::new(Wants::new(subject)));
        memory.compared.clear();
    }
}

/// What follows from the spec and is lent to [`Wanted`].
#[derive(Clone, Debug)]
pub struct WantedFacts {
    invalid: Option<String>,
    settings: String,
    revisions: Revisions,
    image: String,
    default_image: String,
    data_bytes: u64,
    wal_bytes: Option<u64>,
}

impl WantedFacts {
    /// The facts of `db`, whose wanted objects `memory` has.
    pub fn new(db: &ClusteredDatabase, memory: &Memory) -> Self {
        let violations = api::rules::validate(db);
        let invalid: Vec<_> = violations.iter().map(ToString::to_string).collect();
        let bytes = |size: &str| Quantity::parse(size).map_or(0, Quantity::bytes);
        let wants = memory.wants.as_ref();
        let (image, default_image) = wants
            .map(|wants| (wants.image.clone(), wants.default_image.clone()))
            .unwrap_or_default();
        Self {
            invalid: (!invalid.is_empty()).then(|| invalid.join("; ")),
            settings: settings_hash(&db.spec.postgres.parameters),
            revisions: wants.map(|wants| wants.revisions.clone()).unwrap_or_default(),
            image,
            default_image,
            data_bytes: bytes(&db.spec.storage.size),
            wal_bytes: db.spec.storage.wal.as_ref().map(|wal| bytes(&wal.size)),
        }
    }

    /// What is wanted of `db`: the resource that these facts were made from.
    pub fn wanted<'a>(&'a self, db: &'a ClusteredDatabase, key: &'a Key, uid: &'a str) -> Wanted<'a> {
        Wanted {
            name: &key.name,
            uid,
            resource_version: db.metadata.resource_version.as_deref().unwrap_or_default(),
            generation: db.metadata.generation.unwrap_or(0),
            deleting: db.metadata.deletion_timestamp.is_some(),
            finalizer: db.finalizers().iter().any(|finalizer| finalizer == FINALIZER),
            spec: &db.spec,
            invalid: self.invalid.as_deref(),
            settings: &self.settings,
            revision: &self.revisions.revision,
            base_revision: &self.revisions.base,
            bare_revision: &self.revisions.bare,
            image: &self.image,
            default_image: &self.default_image,
            data_bytes: self.data_bytes,
            wal_bytes: self.wal_bytes,
            recreate_lease: db.annotations().get(ANNOTATION_RECREATE_LEASE).map(String::as_str),
            accept_loss: db.annotations().get(ANNOTATION_ACCEPT_LOSS).map(String::as_str),
            switchover: db.annotations().get(ANNOTATION_SWITCHOVER).map(String::as_str),
        }
    }
}
