//! What [`crate::reconcile`] needs of databases: observing them, writing their status, carrying out actions.

mod actions;
mod asking;
mod children;
mod declaring;
mod poolers;
mod reads;
mod status;
mod users;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::names::{ANNOTATION_DELETE_ARCHIVE, FINALIZER};
use api::operation::Request;
use api::quantity::Quantity;
use api::{ClusteredDatabase, ClusteredDatabaseStatus};
use chrono::{DateTime, Utc};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use machine::cluster::{Basis, Cluster, Decision, FaultKind, Observed, Target, Wanted, decide};
use machine::database::Database;
use machine::pooler::Pooler;
use machine::protocol::settings_hash;
use machine::reconcile::{Controller, Next, Pass};
use machine::units::Bytes;
use machine::user::User;

use asking::{Askers, OfBackups, OfOperations};
use children::authority;
use declaring::{AllHandedOn, Declarers};

use crate::builders::Subject;
use crate::cache::{Cache, Kept, Key, Kind};
use crate::caches::Caches;
use crate::config::Config;
use crate::decisions::Decisions;
use crate::desired::{Inputs, Revisions, Wants};
use crate::leader::Lead;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::observe::{self, observe};
use crate::reconcile::{self, Failure, Host, Looked, Looks, Outcome, Prepared, Sight};
use crate::requests::Requests;

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
    looks: Looks<Memory>,
    operations: Askers<OfOperations>,
    backups: Askers<OfBackups>,
    users: Declarers<User>,
    sql_databases: Declarers<Database>,
    poolers: Declarers<Pooler>,
}

/// Signed certificates (PEM) by pod name.
type Certificates = BTreeMap<String, String>;
/// Tells the time.
type Clock = Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>;
/// Decides: [`decide`].
type Decide = Box<dyn Fn(&Wanted<'_>, &Observed, &ClusteredDatabaseStatus, DateTime<Utc>) -> Decision + Send + Sync>;

/// A database, and what is observed of it.
pub struct Seen {
    db: Arc<ClusteredDatabase>,
    key: Key,
    uid: String,
    facts: WantedFacts,
    observed: Observed,
    stored: ClusteredDatabaseStatus,
}

impl Seen {
    fn wanted(&self) -> Wanted<'_> {
        self.facts.wanted(&self.db, &self.key, &self.uid)
    }
}

impl Executor {
    /// An executor that reads from these caches.
    pub fn new(requests: Requests, caches: Arc<Caches>, config: Config, metrics: Metrics, identity: String) -> Self {
        let clock: Clock = Arc::new(Utc::now);
        let decisions = Arc::<Decisions>::default();
        let handed_on = AllHandedOn::default();
        Self {
            operations: Askers::new(&requests, &caches, &metrics, &clock, &decisions),
            backups: Askers::new(&requests, &caches, &metrics, &clock, &decisions),
            users: Declarers::new((&requests, &caches), &config, &metrics, (&clock, &identity), &handed_on),
            sql_databases: Declarers::new((&requests, &caches), &config, &metrics, (&clock, &identity), &handed_on),
            poolers: Declarers::new((&requests, &caches), &config, &metrics, (&clock, &identity), &handed_on),
            requests,
            caches,
            config,
            metrics,
            decisions,
            identity,
            lead: Lead::without_election(),
            clock,
            decide: Box::new(decide),
            looks: Looks::default(),
        }
    }

    /// The same for one of several operators, of which `lead` tells whether it is the one that acts.
    pub fn with_lead(mut self, lead: Lead) -> Self {
        self.users.lead = lead.clone();
        self.sql_databases.lead = lead.clone();
        self.poolers.lead = lead.clone();
        self.lead = lead;
        self
    }

    /// The same with another clock, whose time goes on as tokio's does.
    pub fn with_clock(mut self, clock: impl Fn() -> DateTime<Utc> + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self.operations.clock = Arc::clone(&self.clock);
        self.backups.clock = Arc::clone(&self.clock);
        self.users.clock = Arc::clone(&self.clock);
        self.sql_databases.clock = Arc::clone(&self.clock);
        self.poolers.clock = Arc::clone(&self.clock);
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

    /// Looks at one resource.
    pub async fn look(&self, key: &Key) -> Looked {
        match key.kind {
            Kind::Operation => reconcile::look(&self.operations, key).await,
            Kind::Backup => reconcile::look(&self.backups, key).await,
            Kind::User => reconcile::look(&self.users, key).await,
            Kind::SqlDatabase => reconcile::look(&self.sql_databases, key).await,
            Kind::Pooler => reconcile::look(&self.poolers, key).await,
            // Whatever is listed next brings all databases to be looked at again.
            Kind::Database if self.caches.databases.has(key) && !self.caches.are_complete() => Looked {
                again: Some(UNTIL_LISTED),
                ..Looked::default()
            },
            Kind::Database => reconcile::look(self, key).await,
        }
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

    /// What operations ask the database for.
    fn request(&self, key: &Key, db: &ClusteredDatabase) -> Option<Request> {
        let noted = db.status.as_ref().and_then(|status| status.memo.request.as_ref());
        match self.caches.request(key, noted) {
            Some(asked) => asked.map(|candidate| candidate.request),
            None => open_request(db),
        }
    }

    /// The backup that the database is to take.
    fn backup(&self, key: &Key, db: &ClusteredDatabase) -> Option<machine::backup::Request> {
        let asked = asked_backup(db);
        match self.caches.backup(key, asked.as_ref().map(|asked| asked.uid.as_str())) {
            Some(next) => next.map(|candidate| candidate.request),
            None => asked,
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
        self.read_snapshots(subject, &mut observed, now).await;
        if db.metadata.deletion_timestamp.is_some() {
            let terminating = self.is_namespace_terminating(&key.namespace).await;
            observed.namespace_terminating = terminating == Some(true);
            observed.namespace_unread = terminating.is_none();
        }
        Some(observed)
    }
}

impl Host for Executor {
    type Machine = Cluster;
    type Memory = Memory;
    type Seen = Seen;

    fn pass(memory: &mut Memory) -> &mut Pass<Target> {
        &mut memory.pass
    }

    fn looks(&self) -> &Looks<Memory> {
        &self.looks
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn now(&self) -> DateTime<Utc> {
        (self.clock)()
    }

    fn spec(&self, key: &Key) -> (String, i64) {
        type Metadata = PartialObjectMeta<ClusteredDatabase>;
        let db = self.caches.databases.read_as::<Metadata>(key, &key.name).flatten();
        let told = |db: Arc<Metadata>| (db.uid().unwrap_or_default(), db.metadata.generation.unwrap_or(0));
        db.map(told).unwrap_or_default()
    }

    async fn see(&self, key: &Key, memory: &mut Memory, now: DateTime<Utc>) -> Sight<Seen> {
        let Some(Some(db)) = self.caches.databases.get(key, &key.name) else {
            return Sight::Gone;
        };
        let Ok(subject) = Subject::new(&db, &self.config) else {
            return Sight::Gone;
        };
        let generation = db.metadata.generation.unwrap_or(0);
        memory.begin(&subject.uid, generation, |target| self.version(key, target));
        if let Err(error) = self.caches.read_not_kept(key, &self.requests).await {
            tracing::warn!(database = %key, %error, "cannot read what was there before the database");
            return Sight::Later;
        }
        let compared = self.compared_with(key, &subject);
        refresh_wants(&compared, memory);
        let Some(observed) = self.observe(key, &compared, memory, now).await else {
            return Sight::Later;
        };
        Sight::Seen(Box::new(Seen {
            key: key.clone(),
            uid: subject.uid.clone(),
            facts: WantedFacts::new(&db, memory, self.request(key, &db), self.backup(key, &db)),
            observed,
            stored: db.status.clone().unwrap_or_default(),
            db: Arc::clone(&db),
        }))
    }

    fn decide(&self, key: &Key, seen: &Seen, now: DateTime<Utc>) -> Decision {
        let wanted = seen.wanted();
        let decision = (self.decide)(&wanted, &seen.observed, &seen.stored, now);
        self.metrics.decided(decision.rule, decision.action.name());
        self.decisions
            .note(key, &wanted, &seen.observed, &seen.stored, &decision, now);
        decision
    }

    async fn prepare(
        &self,
        key: &Key,
        memory: &mut Memory,
        seen: &Seen,
        decision: &Decision,
        now: DateTime<Utc>,
    ) -> Result<Prepared<Certificates>, Failure> {
        let Ok(subject) = Subject::new(&seen.db, &self.config) else {
            return Ok(Prepared::Again);
        };
        let Some(signed) = self.sign(key, &subject, decision, now).await? else {
            return Ok(Prepared::Again);
        };
        if signed.refused.is_empty() {
            return Ok(Prepared::Ready(signed.certificates));
        }
        // One key that is of no use must not hold up the others: decided again without it.
        for (pod, message) in signed.refused {
            tracing::warn!(database = %key, pod, message, "a member's key cannot be signed");
            let target = Target::Certificate(pod);
            memory.pass.failed(target, None, FaultKind::Invalid, message, now);
        }
        Ok(Prepared::Again)
    }

    fn status(
        seen: &Seen,
        decision: &Decision,
        certificates: &Certificates,
        now: DateTime<Utc>,
    ) -> ClusteredDatabaseStatus {
        Cluster::status(
            &seen.wanted(),
            &seen.observed,
            &seen.stored,
            decision,
            certificates,
            now,
        )
    }

    fn next(
        pass: &mut Pass<Target>,
        seen: &Seen,
        status: &ClusteredDatabaseStatus,
        decision: &Decision,
        now: DateTime<Utc>,
    ) -> Next {
        pass.next::<Cluster>(&seen.observed, &seen.stored, status, decision, now)
    }

    async fn write_status(
        &self,
        key: &Key,
        seen: &Seen,
        status: ClusteredDatabaseStatus,
        decision: &Decision,
    ) -> Result<(), Failure> {
        self.write_status(key, &seen.db, &seen.stored, status, decision).await
    }

    fn prepared_is_written(memory: &mut Memory, certificates: Certificates) {
        for pod in certificates.into_keys() {
            memory.pass.succeeded(&Target::Certificate(pod));
        }
    }

    async fn confirm(&self, key: &Key, seen: &Seen) -> Result<Outcome, Failure> {
        self.confirm(key, &Basis::new(&seen.wanted(), &seen.observed)).await
    }

    async fn perform(
        &self,
        key: &Key,
        memory: &mut Memory,
        seen: &Seen,
        decision: &Decision,
    ) -> Result<Outcome, Failure> {
        let Ok(subject) = Subject::new(&seen.db, &self.config) else {
            return Ok(Outcome::Outdated);
        };
        self.carry_out(key, memory, &subject, seen, &decision.action).await
    }

    fn version(&self, key: &Key, target: &Target) -> Option<String> {
        fn of<K: Kept>(cache: &Cache<K>, key: &Key, name: &str) -> Option<String> {
            cache.get(key, name)??.resource_version()
        }
        match target {
            Target::Resource | Target::Status | Target::Certificate(_) => of(&self.caches.databases, key, &key.name),
            Target::Pod(name) | Target::Resize(name) => of(&self.caches.pods, key, name),
            Target::Claim(name) => of(&self.caches.claims, key, name),
            Target::Backup(name) => of(&self.caches.backups, &Key::backup(&*key.namespace, &**name), name),
            // It is not watched.
            Target::Snapshot(_) => None,
            Target::Drill(name) => of(&self.caches.databases, &Key::database(&*key.namespace, &**name), name),
            Target::Child(kind) => self.child(key, *kind)?.resource_version,
        }
    }

    fn wake(&self, memory: &Memory, seen: &Seen, wake: DateTime<Utc>, now: DateTime<Utc>) -> DateTime<Utc> {
        let mut wake = wake;
        if reads::misses_pods(&seen.observed) || !memory.starting.is_empty() {
            wake = wake.min(now + reads::EVENTS_EVERY);
        }
        if !memory.strays.is_empty() {
            wake = wake.min(now + reads::STRAYS_EVERY);
        }
        wake
    }

    fn action_name(decision: &Decision) -> &'static str {
        decision.action.name()
    }

    fn log(key: &Key, decision: &Decision) {
        tracing::info!(
            database = %key, phase = %decision.phase, rule = decision.rule, action = ?decision.action,
            because = %decision.because, "acting"
        );
    }

    async fn tell_of_internal_error(&self, key: &Key, place: &str, now: DateTime<Utc>) {
        self.tell_of_internal_error(key, place, now).await;
    }

    fn readers(&self, key: &Key) -> Vec<Key> {
        self.caches.readers(key)
    }

    fn forget(&self, key: &Key) {
        self.decisions.forget(key);
    }
}

fn refresh_wants(subject: &Subject<'_>, memory: &mut Memory) {
    let inputs = Inputs::of(subject);
    if memory.wants.as_deref().is_none_or(|known| known.inputs != inputs) {
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
    data_bytes: Bytes,
    wal_bytes: Option<Bytes>,
    request: Option<Request>,
    backup: Option<machine::backup::Request>,
}

/// The request that the status says is under way: where operations cannot be read it goes on.
pub fn open_request(db: &ClusteredDatabase) -> Option<Request> {
    let noted = db.status.as_ref()?.memo.request.as_ref()?;
    noted.outcome.is_none().then(|| noted.request.clone())
}

/// The backup that the status says is asked for: where backups cannot be read it goes on.
pub fn asked_backup(db: &ClusteredDatabase) -> Option<machine::backup::Request> {
    let intent = &db.status.as_ref()?.intent;
    Some(machine::backup::Request {
        uid: intent.backup.clone()?,
        source: intent.backup_source,
        kind: intent.backup_kind,
    })
}

impl WantedFacts {
    /// The facts of `db`, whose wanted objects `memory` has; `request` is what operations ask it for, and `backup` the backup
    /// that it is to take.
    pub fn new(
        db: &ClusteredDatabase,
        memory: &Memory,
        request: Option<Request>,
        backup: Option<machine::backup::Request>,
    ) -> Self {
        let violations = api::rules::validate(db);
        let invalid: Vec<_> = violations.iter().map(ToString::to_string).collect();
        let bytes = |size: &str| Bytes(Quantity::parse(size).map_or(0, Quantity::bytes));
        let wants = memory.wants.as_ref();
        let (image, default_image) = wants
            .map(|wants| (wants.inputs.image.clone(), wants.inputs.default_image.clone()))
            .unwrap_or_default();
        Self {
            invalid: (!invalid.is_empty()).then(|| invalid.join("; ")),
            settings: settings_hash(&db.spec.postgres.settings()),
            revisions: wants.map(|wants| wants.revisions.clone()).unwrap_or_default(),
            image,
            default_image,
            data_bytes: bytes(&db.spec.storage.data.size),
            wal_bytes: db.spec.storage.wal.as_ref().map(|wal| bytes(&wal.size)),
            request,
            backup,
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
            restarted_by: db
                .status
                .as_ref()
                .and_then(|status| status.memo.restarted_by.as_deref()),
            data_bytes: self.data_bytes,
            wal_bytes: self.wal_bytes,
            request: self.request.as_ref(),
            backup: self.backup.as_ref().map(|backup| backup.uid.as_str()),
            backup_source: self.backup.as_ref().map(|backup| backup.source).unwrap_or_default(),
            backup_kind: self.backup.as_ref().map(|backup| backup.kind).unwrap_or_default(),
            deletes_archive: db.annotations().get(ANNOTATION_DELETE_ARCHIVE) == db.metadata.uid.as_ref(),
        }
    }
}
