//! What [`crate::reconcile`] needs of the kinds that declare an object of PostgreSQL: what is handed on to the agents, and what these
//! have told. What only one kind needs is in [`Declaring`].

use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::sync::{Arc, Mutex, PoisonError};

use api::ClusteredDatabase;
use api::names::{FINALIZER, Names};
use api::user::UserCertificate;
use chrono::{DateTime, Utc};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::core::metadata::PartialObjectMetaExt;
use kube::core::object::{HasSpec, HasStatus};
use kube::{Resource, ResourceExt};
use machine::access::{Declared, DeclaredDatabase, DeclaredPooler, DeclaredRole, Published, Report};
use machine::cluster::{FaultKind, Known, ObjectVersion};
use machine::database::Database;
use machine::declaration::{
    Action, Cluster, Credentials, Decision, Declares, Instances, Observed, Parts, Target, Wanted,
};
use machine::operation::idle;
use machine::reconcile::{Controller, Next, Pass};
use serde_json::{Value, json};

use super::Clock;
use super::reads::still_leads;
use crate::builders::Subject;
use crate::cache::{Cache, Key};
use crate::caches::Caches;
use crate::config::Config;
use crate::events;
use crate::leader::Lead;
use crate::metrics::Metrics;
use crate::observe;
use crate::reconcile::{Failure, Host, Looks, Outcome, Prepared, Sight};
use crate::requests::{Refused, Requests, Writable};

/// A kind that declares an object of PostgreSQL.
pub(super) trait Declaring: Declares<Spec: Send + Sync, Status: Send + Sync> {
    /// Its objects.
    type Object: Writable + HasSpec<Spec = Self::Spec> + HasStatus<Status = Self::Status>;
    /// What only this kind remembers between two decisions.
    type Own: Default + Send;

    /// Its objects that are known.
    fn cache(caches: &Caches) -> &Cache<Self::Object>;

    /// The password that the object is to have, compared with what is handed on.
    fn credentials(
        _host: &Declarers<Self>,
        _key: &Key,
        _object: &Self::Object,
        _around: (&Known<Option<Published>>, Option<&ClusteredDatabase>),
        _own: &mut Self::Own,
        _now: DateTime<Utc>,
    ) -> impl Future<Output = Credentials> + Send {
        ready(Credentials::NotNeeded)
    }

    /// Makes or corrects the Secret with the password.
    ///
    /// # Errors
    /// Fails if the API server refuses it.
    fn write_credentials(
        _host: &Declarers<Self>,
        _key: &Key,
        _own: &mut Self::Own,
        _seen: &Seen<Self>,
        _action: &Action,
    ) -> impl Future<Output = Result<Outcome, Failure>> + Send {
        ready(Ok(Outcome::Outdated))
    }

    /// What is declared, with the verifier of its password; `None` if the password is not there.
    ///
    /// # Errors
    /// Fails if there can be no verifier.
    fn with_verifier(
        _host: &Declarers<Self>,
        _key: &Key,
        _own: &mut Self::Own,
        _seen: &Seen<Self>,
        declared: Declared,
    ) -> impl Future<Output = Result<Option<Declared>, Failure>> + Send {
        ready(Ok(Some(declared)))
    }

    /// The objects that are made for it in Kubernetes, its pods, and the certificate among these objects.
    fn parts(
        _host: &Declarers<Self>,
        _key: &Key,
        _object: &Self::Object,
        _cluster: Option<&ClusteredDatabase>,
        _own: &mut Self::Own,
        _now: DateTime<Utc>,
    ) -> impl Future<Output = (Parts, Option<Instances>, Option<UserCertificate>)> + Send {
        ready((Parts::None, None, None))
    }

    /// Brings these objects to what they should be.
    ///
    /// # Errors
    /// Fails if the API server refuses it.
    fn make_parts(
        _host: &Declarers<Self>,
        _own: &mut Self::Own,
        _seen: &Seen<Self>,
    ) -> impl Future<Output = Result<Outcome, Failure>> + Send {
        ready(Ok(Outcome::Outdated))
    }

    /// When something is read again that no watch shows.
    fn again(_own: &Self::Own) -> Option<DateTime<Utc>> {
        None
    }
}

impl Declaring for Database {
    type Object = api::Database;
    type Own = ();

    fn cache(caches: &Caches) -> &Cache<api::Database> {
        &caches.sql_databases
    }
}

/// The I/O of such a kind.
pub(super) struct Declarers<D: Declaring> {
    pub requests: Requests,
    pub caches: Arc<Caches>,
    pub config: Config,
    pub metrics: Metrics,
    pub clock: Clock,
    identity: String,
    pub lead: Lead,
    looks: Looks<Memory<D::Own>>,
    handed_on: AllHandedOn,
}

/// What the Secrets `NAME-access` hold, each by its version: all that declare something in a cluster read the same one.
pub(super) type AllHandedOn = Arc<Mutex<BTreeMap<Key, HandedOn>>>;

/// A Secret `NAME-access`.
#[derive(Clone)]
pub(super) struct HandedOn {
    version: String,
    entries: Arc<BTreeMap<String, ByteString>>,
}

/// What is remembered of one between two decisions.
#[derive(Default)]
pub(super) struct Memory<O> {
    pass: Pass<Target>,
    own: O,
}

/// A resource, and what is observed around it.
pub(super) struct Seen<D: Declaring> {
    pub object: Arc<D::Object>,
    pub uid: String,
    pub of: Key,
    pub cluster: Option<Arc<ClusteredDatabase>>,
    pub observed: Observed,
    stored: D::Status,
}

fn wanted<'a, D: Declaring>(object: &'a D::Object, uid: &'a str) -> Wanted<'a, D::Spec> {
    let metadata = object.meta();
    Wanted {
        name: metadata.name.as_deref().unwrap_or_default(),
        uid,
        generation: metadata.generation.unwrap_or(0),
        deleting: metadata.deletion_timestamp.is_some(),
        finalizer: object.finalizers().iter().any(|finalizer| finalizer == FINALIZER),
        spec: object.spec(),
    }
}

/// The cluster that the object is in.
fn cluster_of<D: Declaring>(object: &D::Object, key: &Key) -> Key {
    Key::database(&*key.namespace, D::cluster(object.spec()))
}

impl<D: Declaring> Seen<D> {
    fn wanted(&self) -> Wanted<'_, D::Spec> {
        wanted::<D>(&self.object, &self.uid)
    }

    fn exact(&self) -> ObjectVersion {
        let version = self.object.resource_version().unwrap_or_default();
        ObjectVersion::new(self.object.name_any(), &self.uid, version)
    }
}

impl<D: Declaring> Declarers<D> {
    pub fn new(
        (requests, caches): (&Requests, &Arc<Caches>),
        config: &Config,
        metrics: &Metrics,
        (clock, identity): (&Clock, &str),
        handed_on: &AllHandedOn,
    ) -> Self {
        Self {
            requests: requests.clone(),
            caches: Arc::clone(caches),
            config: config.clone(),
            metrics: metrics.clone(),
            clock: Arc::clone(clock),
            identity: identity.to_owned(),
            lead: Lead::without_election(),
            looks: Looks::default(),
            handed_on: Arc::clone(handed_on),
        }
    }

    fn find(&self, key: &Key) -> Option<Arc<D::Object>> {
        D::cache(&self.caches).get(key, &key.name).flatten()
    }

    /// The others of this kind in the cluster that declare the same object.
    fn rivals(&self, key: &Key, object: &D::Object, of: &Key) -> Vec<Key> {
        let wanted = D::object(object.spec(), &key.name);
        let mut others = self.caches.declared_in(of);
        let is_same = |other: &Key| {
            let found = self.find(other);
            found.is_some_and(|found| D::object(found.spec(), &other.name) == wanted)
        };
        others.retain(|other| other.kind == key.kind && other != key && is_same(other));
        others
    }

    /// An older one of this kind and cluster that declares the same object.
    fn older(&self, key: &Key, object: &D::Object, of: &Key) -> Known<Option<String>> {
        if !D::cache(&self.caches).is_listed() {
            return Known::Unknown;
        }
        let age = |object: &D::Object| {
            let created = object.creation_timestamp().as_ref().map(observe::time);
            (created.unwrap_or_default(), object.name_any())
        };
        let rivals = self.rivals(key, object, of);
        let rivals = rivals.iter().filter_map(|key| self.find(key));
        let older = rivals.filter(|other| age(other) < age(object));
        Known::Known(older.map(|other| other.name_any()).min())
    }

    /// What the Secret `NAME-access` has of this resource.
    async fn published(&self, of: &Key, wanted: &Wanted<'_, D::Spec>) -> Known<Option<Published>> {
        let name = Names::new(&*of.name).access();
        let Some(found) = self.caches.secrets.get(of, &name) else {
            // Nothing is kept of what belongs to no database.
            return match self.caches.databases.own(of) {
                Some(None) => {
                    self.handed_on.lock().unwrap_or_else(PoisonError::into_inner).remove(of);
                    Known::Known(None)
                }
                Some(Some(_)) | None => Known::Unknown,
            };
        };
        let Some(version) = found.and_then(|found| found.metadata.resource_version.clone()) else {
            return Known::Known(None);
        };
        match self.handed_on(of, &name, &version).await {
            Ok(entries) => Known::Known(entries.get(wanted.uid).map(|text| entry::<D>(text, wanted))),
            Err(error) => {
                tracing::warn!(database = %of, name, %error, "cannot read what is handed on to the agents");
                Known::Unknown
            }
        }
    }

    /// What the Secret of this name holds, which is known in this version.
    async fn handed_on(
        &self,
        of: &Key,
        name: &str,
        version: &str,
    ) -> Result<Arc<BTreeMap<String, ByteString>>, Refused> {
        let lock = || self.handed_on.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(of).filter(|known| known.version == version) {
            return Ok(Arc::clone(&known.entries));
        }
        let secret: Option<Secret> = self.requests.get(&of.namespace, name).await?;
        let secret = secret.unwrap_or_default();
        let entries = Arc::new(secret.data.unwrap_or_default());
        if let Some(version) = secret.metadata.resource_version {
            let entries = Arc::clone(&entries);
            lock().insert(of.clone(), HandedOn { version, entries });
        }
        Ok(entries)
    }

    /// An object in which is handed on or told, and which belongs to somebody else.
    fn foreign(&self, of: &Key, cluster: Option<&ClusteredDatabase>) -> Option<String> {
        let uid = cluster?.metadata.uid.as_ref();
        let name = Names::new(&*of.name).access();
        let is_foreign = |metadata: &ObjectMeta| {
            let mut owners = metadata.owner_references.iter().flatten();
            !owners.any(|owner| Some(&owner.uid) == uid)
        };
        let secret = self.caches.secrets.get(of, &name).flatten();
        let map = self.caches.config_maps.get(of, &name).flatten();
        let secret = secret.filter(|found| is_foreign(&found.metadata)).map(|_| "Secret");
        let kind = secret.or_else(|| map.filter(|found| is_foreign(&found.metadata)).map(|_| "ConfigMap"));
        kind.map(|kind| format!("{kind} {name}"))
    }

    /// What the primary has told of the resource with this UID; and whether there is a place for it.
    pub(super) fn report(&self, of: &Key, uid: &str) -> (Known<Option<Report>>, bool) {
        match self.caches.config_maps.get(of, &Names::new(&*of.name).access()) {
            None => (Known::Unknown, true),
            Some(None) => (Known::Known(None), false),
            Some(Some(found)) => {
                let text = found.data.as_ref().and_then(|data| data.get(uid));
                (
                    Known::Known(text.and_then(|text| serde_json::from_str(text).ok())),
                    true,
                )
            }
        }
    }

    /// Hands on what is declared, with a verifier of its password.
    async fn publish(
        &self,
        key: &Key,
        memory: &mut Memory<D::Own>,
        seen: &Seen<D>,
        declared: &Declared,
    ) -> Result<Outcome, Failure> {
        let declared = D::with_verifier(self, key, &mut memory.own, seen, declared.clone()).await?;
        let Some(declared) = declared else {
            return Ok(Outcome::Outdated);
        };
        let published = Published {
            at: (self.clock)(),
            declared,
        };
        let text = serde_json::to_vec(&published).map_err(impossible)?;
        self.change_published(seen, Some(text)).await
    }

    /// Writes the resource's entry of the Secret `NAME-access`, or takes it out.
    async fn change_published(&self, seen: &Seen<D>, entry: Option<Vec<u8>>) -> Result<Outcome, Failure> {
        let name = Names::new(&*seen.of.name).access();
        let Some(known) = self.caches.secrets.get(&seen.of, &name) else {
            return Ok(Outcome::Outdated);
        };
        let data: BTreeMap<&str, Option<ByteString>> = [(seen.uid.as_str(), entry.map(ByteString))].into();
        let content = json!({ "data": data });
        let namespace = &seen.of.namespace;
        let secret: Secret = match known {
            // A write that comes late, perhaps of an operator that does not lead any more, must change nothing.
            Some(known) => {
                let version = known.resource_version().unwrap_or_default();
                let exact = ObjectVersion::new(name, known.uid().unwrap_or_default(), version);
                self.requests.merge(namespace, &exact, content).await?
            }
            None => {
                let Some(body) = self.owned(seen, "Secret", &name, content)? else {
                    return Ok(Outcome::Outdated);
                };
                self.requests.apply_new(namespace, &name, body).await?
            }
        };
        let partial: PartialObjectMeta<Secret> = secret.metadata.into_response_partial();
        self.caches.secrets.put(partial);
        Ok(Outcome::Done)
    }

    /// Makes the ConfigMap in which primaries tell.
    async fn make_reports(&self, seen: &Seen<D>) -> Result<Outcome, Failure> {
        let name = Names::new(&*seen.of.name).access();
        let Some(body) = self.owned(seen, "ConfigMap", &name, json!({}))? else {
            return Ok(Outcome::Outdated);
        };
        let made: ConfigMap = self.requests.apply_new(&seen.of.namespace, &name, body).await?;
        self.caches.config_maps.put(made);
        Ok(Outcome::Done)
    }

    /// An object of this kind that belongs to the cluster, with this content.
    fn owned(&self, seen: &Seen<D>, kind: &str, name: &str, mut content: Value) -> Result<Option<Value>, Failure> {
        let Some(cluster) = &seen.cluster else {
            return Ok(None);
        };
        let subject = Subject::new(cluster, &self.config).map_err(impossible)?;
        content["apiVersion"] = "v1".into();
        content["kind"] = kind.into();
        content["metadata"] = serde_json::to_value(subject.meta(name.to_owned())).map_err(impossible)?;
        Ok(Some(content))
    }

    async fn change_finalizer(&self, key: &Key, seen: &Seen<D>, add: bool) -> Result<Outcome, Failure> {
        let mut finalizers = seen.object.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != FINALIZER);
        if add {
            finalizers.push(FINALIZER.to_owned());
        }
        let is_last = seen.object.meta().deletion_timestamp.is_some() && finalizers.is_empty();
        let change = json!({"metadata": {"finalizers": finalizers}});
        let object: D::Object = self.requests.merge(&key.namespace, &seen.exact(), change).await?;
        match is_last {
            true => D::cache(&self.caches).forget(key, &key.name, &seen.uid),
            false => D::cache(&self.caches).put(object),
        }
        self.caches.note_asking(key);
        Ok(Outcome::Done)
    }

    async fn write(&self, key: &Key, object: &D::Object, status: D::Status) -> Result<(), Failure> {
        let mut changed = object.clone();
        *changed.status_mut() = Some(status);
        let written = self.requests.replace_status(&key.namespace, &key.name, &changed);
        D::cache(&self.caches).put(written.await?);
        self.caches.note_asking(key);
        Ok(())
    }

    /// `Done` if the resource is as it was seen: its user may have taken back the order to drop something.
    async fn confirm_resource(&self, key: &Key, seen: &Seen<D>) -> Result<Outcome, Failure> {
        let live: Option<D::Object> = self.requests.get(&key.namespace, &key.name).await?;
        let Some(live) = live.filter(|live| live.uid().as_ref() == Some(&seen.uid)) else {
            // The watch is about to say so.
            return Ok(Outcome::NotYet);
        };
        if live.resource_version() == seen.object.resource_version() {
            return Ok(Outcome::Done);
        }
        D::cache(&self.caches).put(live);
        self.caches.note_asking(key);
        Ok(Outcome::Outdated)
    }

    /// Nothing of the resource is left in the Secret `NAME-access`, whatever the watch has shown: nobody would take it out.
    async fn is_withdrawn(&self, seen: &Seen<D>) -> Result<bool, Failure> {
        let cluster = seen
            .cluster
            .as_deref()
            .and_then(|cluster| cluster.metadata.uid.as_ref());
        let name = Names::new(&*seen.of.name).access();
        let live: Option<Secret> = self.requests.get(&seen.of.namespace, &name).await?;
        let is_left = |live: &Secret| {
            let is_ours = live.owner_references().iter().any(|owner| Some(&owner.uid) == cluster);
            is_ours && live.data.iter().flatten().any(|(uid, _)| *uid == seen.uid)
        };
        let going = seen
            .cluster
            .as_ref()
            .is_none_or(|cluster| cluster.metadata.deletion_timestamp.is_some());
        let Some(live) = live.filter(|live| !going && is_left(live)) else {
            return Ok(true);
        };
        let partial: PartialObjectMeta<Secret> = live.metadata.into_response_partial();
        self.caches.secrets.put(partial);
        Ok(false)
    }
}

/// The entry of a resource in the Secret. One that is not understood counts as another one than is wanted.
fn entry<D: Declaring>(text: &ByteString, wanted: &Wanted<'_, D::Spec>) -> Published {
    serde_json::from_slice(&text.0).unwrap_or_else(|_| Published {
        at: DateTime::UNIX_EPOCH,
        declared: of_nobody(D::declared(wanted)),
    })
}

fn of_nobody(declared: Declared) -> Declared {
    let uid = String::new();
    match declared {
        Declared::Role(role) => Declared::Role(DeclaredRole { uid, ..role }),
        Declared::Database(database) => Declared::Database(DeclaredDatabase { uid, ..database }),
        Declared::Pooler(pooler) => Declared::Pooler(DeclaredPooler { uid, ..pooler }),
    }
}

pub(super) fn impossible(error: impl std::fmt::Display) -> Failure {
    Failure {
        kind: FaultKind::Transient,
        message: error.to_string(),
    }
}

impl<D: Declaring> Host for Declarers<D> {
    type Machine = D;
    type Memory = Memory<D::Own>;
    type Seen = Seen<D>;

    fn pass(memory: &mut Memory<D::Own>) -> &mut Pass<Target> {
        &mut memory.pass
    }

    fn looks(&self) -> &Looks<Memory<D::Own>> {
        &self.looks
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn now(&self) -> DateTime<Utc> {
        (self.clock)()
    }

    fn spec(&self, key: &Key) -> (String, i64) {
        let told = |found: Arc<D::Object>| (found.uid().unwrap_or_default(), found.meta().generation.unwrap_or(0));
        self.find(key).map(told).unwrap_or_default()
    }

    async fn see(&self, key: &Key, memory: &mut Memory<D::Own>, now: DateTime<Utc>) -> Sight<Seen<D>> {
        let Some(object) = self.find(key) else {
            return Sight::Gone;
        };
        let (uid, generation) = self.spec(key);
        memory.pass.begin(&uid, generation, |target| self.version(key, target));
        let of = cluster_of::<D>(&object, key);
        let cluster = self.caches.databases.own(&of);
        let foreign = self.foreign(&of, cluster.as_ref().and_then(Option::as_deref));
        let published = match foreign {
            Some(_) => Known::Known(None),
            None => self.published(&of, &wanted::<D>(&object, &uid)).await,
        };
        let around = (&published, cluster.as_ref().and_then(Option::as_deref));
        let credentials = D::credentials(self, key, &object, around, &mut memory.own, now).await;
        let database = cluster.as_ref().and_then(Option::as_deref);
        let (parts, instances, certificate) = D::parts(self, key, &object, database, &mut memory.own, now).await;
        let (report, has_reports) = self.report(&of, &uid);
        let faults = memory.pass.faults().iter();
        let told = |found: &ClusteredDatabase| Cluster {
            deleting: found.metadata.deletion_timestamp.is_some(),
            idle: idle(&found.spec),
            owner: found.spec.initdb().owner().to_owned(),
            connections: found.spec.postgres.connections(),
        };
        let observed = Observed {
            cluster: cluster
                .as_ref()
                .map_or(Known::Unknown, |found| Known::Known(found.as_deref().map(told))),
            older: self.older(key, &object, &of),
            credentials,
            published,
            report,
            has_reports,
            foreign,
            parts,
            instances,
            certificate,
            faults: faults.map(|(target, fault)| (*target, fault.message.clone())).collect(),
        };
        Sight::Seen(Box::new(Seen {
            stored: object.status().cloned().unwrap_or_default(),
            cluster: cluster.flatten(),
            object,
            uid,
            of,
            observed,
        }))
    }

    fn decide(&self, _key: &Key, seen: &Seen<D>, now: DateTime<Utc>) -> Decision {
        let decision = D::decide(&seen.wanted(), &seen.observed, &seen.stored, now);
        self.metrics.decided(decision.rule, decision.action.name());
        decision
    }

    async fn prepare(
        &self,
        _key: &Key,
        _memory: &mut Memory<D::Own>,
        _seen: &Seen<D>,
        _decision: &Decision,
        _now: DateTime<Utc>,
    ) -> Result<Prepared<()>, Failure> {
        Ok(Prepared::Ready(()))
    }

    fn status(seen: &Seen<D>, decision: &Decision, (): &(), now: DateTime<Utc>) -> D::Status {
        D::status(&seen.wanted(), &seen.observed, &seen.stored, decision, &(), now)
    }

    fn next(
        pass: &mut Pass<Target>,
        seen: &Seen<D>,
        status: &D::Status,
        decision: &Decision,
        now: DateTime<Utc>,
    ) -> Next {
        pass.next::<D>(&seen.observed, &seen.stored, status, decision, now)
    }

    async fn write_status(
        &self,
        key: &Key,
        seen: &Seen<D>,
        status: D::Status,
        decision: &Decision,
    ) -> Result<(), Failure> {
        let (before, after) = (D::common(&seen.stored), D::common(&status));
        if after.phase != before.phase {
            let (from, to, because) = (before.phase, after.phase, &decision.message);
            tracing::info!(object = %key, database = %seen.of, ?from, ?to, rule = decision.rule, because, "phase");
        }
        let drift = after.drift.clone().filter(|drift| before.drift.as_ref() != Some(drift));
        self.write(key, &seen.object, status).await?;
        if let Some(drift) = drift {
            let event = events::drift(D::KIND, seen.object.meta(), &drift, &self.identity);
            // Not telling people is no reason to stop.
            if let Err(error) = self.requests.create(&key.namespace, &event).await {
                tracing::warn!(object = %key, %error, "cannot write an event");
            }
        }
        Ok(())
    }

    fn prepared_is_written(_memory: &mut Memory<D::Own>, (): ()) {}

    async fn confirm(&self, key: &Key, seen: &Seen<D>) -> Result<Outcome, Failure> {
        let resource = self.confirm_resource(key, seen).await?;
        if resource != Outcome::Done {
            return Ok(resource);
        }
        let is_handed_on = matches!(seen.observed.published, Known::Known(Some(_)));
        if !is_handed_on && !self.is_withdrawn(seen).await? {
            return Ok(Outcome::Outdated);
        }
        still_leads(&self.lead)
    }

    async fn perform(
        &self,
        key: &Key,
        memory: &mut Memory<D::Own>,
        seen: &Seen<D>,
        decision: &Decision,
    ) -> Result<Outcome, Failure> {
        match &decision.action {
            Action::Wait => Ok(Outcome::Done),
            Action::AddFinalizer => self.change_finalizer(key, seen, true).await,
            Action::RemoveFinalizer => self.change_finalizer(key, seen, false).await,
            action @ (Action::MakeCredentials | Action::CorrectCredentials) => {
                D::write_credentials(self, key, &mut memory.own, seen, action).await
            }
            Action::MakeReports => self.make_reports(seen).await,
            Action::Publish(declared) => self.publish(key, memory, seen, declared).await,
            Action::Withdraw => self.change_published(seen, None).await,
            Action::MakeParts => D::make_parts(self, &mut memory.own, seen).await,
        }
    }

    fn version(&self, key: &Key, target: &Target) -> Option<String> {
        let object = self.find(key)?;
        let of = cluster_of::<D>(&object, key);
        let access = Names::new(&*of.name).access();
        match target {
            Target::Status | Target::Resource => object.resource_version(),
            Target::Access => self
                .caches
                .secrets
                .get(&of, &access)??
                .metadata
                .resource_version
                .clone(),
            Target::Reports => self.caches.config_maps.get(&of, &access)??.resource_version(),
            Target::Credentials | Target::Parts => None,
        }
    }

    fn wake(&self, memory: &Memory<D::Own>, _seen: &Seen<D>, wake: DateTime<Utc>, now: DateTime<Utc>) -> DateTime<Utc> {
        D::again(&memory.own).map_or(wake, |again| wake.min(again.max(now)))
    }

    fn action_name(decision: &Decision) -> &'static str {
        decision.action.name()
    }

    fn log(key: &Key, decision: &Decision) {
        tracing::info!(object = %key, rule = decision.rule, action = decision.action.name(), "acting");
    }

    async fn tell_of_internal_error(&self, key: &Key, place: &str, _now: DateTime<Utc>) {
        let Some(object) = self.find(key) else { return };
        let mut status = object.status().cloned().unwrap_or_default();
        let message = format!("a bug in the operator stops its work for this object (panic at {place})");
        if D::common_mut(&mut status).message.replace(message.clone()) == Some(message) {
            return;
        }
        if let Err(error) = self.write(key, &object, status).await {
            tracing::warn!(object = %key, message = error.message, "cannot say so in the status");
        }
    }

    fn readers(&self, key: &Key) -> Vec<Key> {
        // The younger of two that declare one object waits for the older.
        let Some(object) = self.find(key) else {
            return Vec::new();
        };
        let of = cluster_of::<D>(&object, key);
        self.rivals(key, &object, &of)
    }

    fn forget(&self, key: &Key) {
        self.caches.note_asking(key);
    }
}
