//! What [`crate::reconcile`] needs of DatabaseUsers: their passwords, what is handed on to the agents, and what these have told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use api::names::{FINALIZER, LABEL_CLUSTER, Names};
use api::user::DatabaseUserStatus;
use api::{ClusteredDatabase, DatabaseUser};
use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::core::PartialObjectMeta;
use kube::core::metadata::PartialObjectMetaExt;
use kube::{Resource, ResourceExt};
use machine::access::{Declared, Password as DeclaredPassword, Published, Report, Secret as Hidden};
use machine::cluster::{FaultKind, Known, ObjectVersion, password_refusal};
use machine::operation::idle;
use machine::reconcile::{Controller, Next, Pass};
use machine::user::{Action, Cluster, Credentials, Decision, Observed, Target, User, Wanted, declared, secret};
use scram::Verifier;
use serde_json::{Value, json};

use super::reads::still_leads;
use super::{Clock, authority};
use crate::builders::{MANAGER, Subject, secrets};
use crate::cache::Key;
use crate::caches::Caches;
use crate::config::Config;
use crate::credentials::{Password, connection};
use crate::leader::Lead;
use crate::metrics::Metrics;
use crate::observe;
use crate::reconcile::{Failure, Host, Looks, Outcome, Prepared, Sight};
use crate::requests::{Refused, Requests};

/// A password is read again after this long. No watch shows Secrets that are not ours.
const READ_AGAIN: TimeDelta = TimeDelta::minutes(10);
/// The same while it cannot be used.
const READ_SOON: TimeDelta = TimeDelta::seconds(20);

/// The I/O of DatabaseUsers.
pub(super) struct Users {
    pub requests: Requests,
    pub caches: Arc<Caches>,
    pub config: Config,
    pub metrics: Metrics,
    pub clock: Clock,
    pub lead: Lead,
    pub looks: Looks<Memory>,
    /// What the Secrets `NAME-access` hold, each by its version: all users of a cluster read the same one.
    pub handed_on: Mutex<BTreeMap<Key, HandedOn>>,
}

/// A Secret `NAME-access`.
#[derive(Clone)]
pub(super) struct HandedOn {
    version: String,
    entries: Arc<BTreeMap<String, ByteString>>,
}

/// What is remembered of one between two decisions.
#[derive(Default)]
pub(super) struct Memory {
    pass: Pass<Target>,
    credentials: Option<ReadCredentials>,
}

/// What was read of a password, and what it was compared with.
struct ReadCredentials {
    generation: i64,
    published: Option<DateTime<Utc>>,
    at: DateTime<Utc>,
    found: Credentials,
}

/// A DatabaseUser, and what is observed around it.
pub(super) struct Seen {
    user: Arc<DatabaseUser>,
    uid: String,
    of: Key,
    cluster: Option<Arc<ClusteredDatabase>>,
    observed: Observed,
    stored: DatabaseUserStatus,
}

fn wanted<'a>(user: &'a DatabaseUser, uid: &'a str) -> Wanted<'a> {
    let metadata = &user.metadata;
    Wanted {
        name: metadata.name.as_deref().unwrap_or_default(),
        uid,
        generation: metadata.generation.unwrap_or(0),
        deleting: metadata.deletion_timestamp.is_some(),
        finalizer: user.finalizers().iter().any(|finalizer| finalizer == FINALIZER),
        spec: &user.spec,
    }
}

impl Seen {
    fn wanted(&self) -> Wanted<'_> {
        wanted(&self.user, &self.uid)
    }

    fn exact(&self) -> ObjectVersion {
        let version = self.user.resource_version().unwrap_or_default();
        ObjectVersion::new(self.user.name_any(), &self.uid, version)
    }
}

impl Users {
    fn find(&self, key: &Key) -> Option<Arc<DatabaseUser>> {
        self.caches.users.get(key, &key.name).flatten()
    }

    /// An older DatabaseUser of this cluster that declares the same role.
    fn older(&self, user: &DatabaseUser, of: &Key) -> Known<Option<String>> {
        if !self.caches.users.is_listed() {
            return Known::Unknown;
        }
        let age = |user: &DatabaseUser| {
            let created = user.creation_timestamp().as_ref().map(observe::time);
            (created.unwrap_or_default(), user.name_any())
        };
        let role = |user: &DatabaseUser| user.spec.role(&user.name_any()).to_owned();
        let others = self.caches.users_of(of);
        let others = others.iter().filter_map(|key| self.find(key));
        let older = others.filter(|other| role(other) == role(user) && age(other) < age(user));
        Known::Known(older.map(|other| other.name_any()).min())
    }

    /// What the Secret `NAME-access` has of this user.
    async fn published(&self, of: &Key, wanted: &Wanted<'_>) -> Known<Option<Published>> {
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
            Ok(entries) => Known::Known(entries.get(wanted.uid).map(|text| entry(text, wanted))),
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

    /// An object of the cluster's users that belongs to somebody else.
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

    /// What the primary has told of the user with this UID; and whether there is a place for it.
    fn report(&self, of: &Key, uid: &str) -> (Known<Option<Report>>, bool) {
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

    /// The password that the role is to have, compared with the verifier that is published.
    async fn credentials(
        &self,
        key: &Key,
        user: &DatabaseUser,
        (published, cluster): (&Known<Option<Published>>, Option<&ClusteredDatabase>),
        memory: &mut Memory,
        now: DateTime<Utc>,
    ) -> Credentials {
        let Some(name) = secret(&user.spec, &key.name) else {
            // Nothing is read again.
            memory.credentials = None;
            return Credentials::NotNeeded;
        };
        let published = published.get().and_then(Option::as_ref);
        let (generation, at) = (
            user.metadata.generation.unwrap_or(0),
            published.map(|published| published.at),
        );
        let is_current =
            |known: &ReadCredentials| (known.generation, known.published) == (generation, at) && now < known.again();
        if let Some(known) = memory.credentials.as_ref().filter(|known| is_current(known)) {
            return known.found.clone();
        }
        let found = match self.read_password(key, user, &name).await {
            Ok((secret, password)) => {
                let stored = published.and_then(verifier);
                let is_published = stored.is_some_and(|stored| stored.matches(password.as_str()));
                let wanted = match cluster.filter(|_| user.spec.has_made_password()) {
                    Some(cluster) => self.content(key, user, cluster, &password).await.ok(),
                    None => None,
                };
                let is_there = |(key, text): (&String, &String)| secrets::text(&secret, key).as_ref() == Some(text);
                Credentials::Usable {
                    is_published,
                    is_complete: wanted.is_none_or(|wanted| wanted.iter().all(is_there)),
                }
            }
            Err(credentials) => credentials,
        };
        memory.credentials = Some(ReadCredentials {
            generation,
            published: at,
            at: now,
            found: found.clone(),
        });
        found
    }

    /// The password in the Secret of this name, or what keeps it from being used.
    async fn read_password(
        &self,
        key: &Key,
        user: &DatabaseUser,
        name: &str,
    ) -> Result<(Secret, Password), Credentials> {
        let found: Option<Secret> = self.requests.get(&key.namespace, name).await.map_err(|error| {
            tracing::warn!(object = %key, name, %error, "cannot read the password");
            Credentials::Unknown
        })?;
        let found = found.ok_or(Credentials::Missing)?;
        let referred = user
            .spec
            .password
            .as_ref()
            .and_then(|password| password.secret_ref.as_ref());
        let refusal = match referred {
            Some(_) => {
                let labels = found.metadata.labels.clone().unwrap_or_default();
                password_refusal(&user.spec.cluster_ref.name, name, &labels)
            }
            None => {
                let is_ours = |owner: &OwnerReference| Some(&owner.uid) == user.metadata.uid.as_ref();
                let is_ours = found.owner_references().iter().any(is_ours);
                (!is_ours).then(|| {
                    format!(
                        "there is a Secret {name} that was not made for this user: remove it, or name it in spec.password.secretRef"
                    )
                })
            }
        };
        if let Some(why) = refusal {
            return Err(Credentials::Unusable(why));
        }
        let key = referred.map_or(secrets::PASSWORD_KEY, |reference| &reference.key);
        let password = secrets::password_of(&found, key)
            .ok_or_else(|| Credentials::Unusable(format!("Secret {name} has no text under the key {key}")))?;
        if password.as_str().contains('\0') {
            return Err(Credentials::Unusable(format!(
                "the password in Secret {name} holds a NUL character, which PostgreSQL takes from nobody"
            )));
        }
        Ok((found, password))
    }

    /// What the Secret with this password holds.
    async fn content(
        &self,
        key: &Key,
        user: &DatabaseUser,
        cluster: &ClusteredDatabase,
        password: &Password,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let subject = Subject::new(cluster, &self.config).map_err(impossible)?;
        let spec = &user.spec;
        let name = secret(spec, &key.name).unwrap_or_default();
        let database = spec.all_grants().into_iter().next().map(|grant| grant.database);
        let database = database.as_ref().unwrap_or(&subject.db.spec.initdb().database);
        let mut data = connection(&subject, spec.role(&key.name), database, &name, password);
        let authority = authority(&self.requests, &subject).await?;
        data.insert(secrets::CA_CERTIFICATE_KEY.to_owned(), authority.certificate);
        Ok(data)
    }

    /// Corrects what stands beside the password.
    async fn correct_credentials(&self, key: &Key, seen: &Seen) -> Result<Outcome, Failure> {
        let Some((cluster, name)) = seen.cluster.as_deref().zip(secret(&seen.user.spec, &key.name)) else {
            return Ok(Outcome::Outdated);
        };
        let Ok((found, password)) = self.read_password(key, &seen.user, &name).await else {
            return Ok(Outcome::Outdated);
        };
        let data = self.content(key, &seen.user, cluster, &password).await?;
        let data: BTreeMap<String, ByteString> = data
            .into_iter()
            .map(|(key, text)| (key, ByteString(text.into_bytes())))
            .collect();
        let (uid, version) = (
            found.uid().unwrap_or_default(),
            found.resource_version().unwrap_or_default(),
        );
        let exact = ObjectVersion::new(name, uid, version);
        let _: Secret = self
            .requests
            .merge(&key.namespace, &exact, json!({ "data": data }))
            .await?;
        Ok(Outcome::Done)
    }

    /// Makes the Secret with a fresh password.
    async fn make_credentials(&self, key: &Key, seen: &Seen) -> Result<Outcome, Failure> {
        let Some((cluster, name)) = seen.cluster.as_deref().zip(secret(&seen.user.spec, &key.name)) else {
            return Ok(Outcome::Outdated);
        };
        let password = Password::generate().map_err(impossible)?;
        let data = self.content(key, &seen.user, cluster, &password).await?;
        let metadata = ObjectMeta {
            name: Some(name),
            namespace: Some(key.namespace.clone()),
            labels: Some(BTreeMap::from([
                (LABEL_CLUSTER.to_owned(), seen.of.name.clone()),
                ("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned()),
            ])),
            owner_references: Some(vec![OwnerReference {
                api_version: DatabaseUser::api_version(&()).into_owned(),
                kind: DatabaseUser::kind(&()).into_owned(),
                name: key.name.clone(),
                uid: seen.uid.clone(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        };
        let made = secrets::secret(metadata, secrets::BINDING, data);
        self.requests.create(&key.namespace, &made).await?;
        Ok(Outcome::Done)
    }

    /// Hands on what is declared, with a verifier of its password.
    async fn publish(
        &self,
        key: &Key,
        memory: &mut Memory,
        seen: &Seen,
        declared: &Declared,
    ) -> Result<Outcome, Failure> {
        let mut declared = declared.clone();
        if matches!(declared.password, DeclaredPassword::Verifier(_)) && !declared.drop {
            let Some(name) = secret(&seen.user.spec, &key.name) else {
                return Ok(Outcome::Outdated);
            };
            memory.credentials = None;
            let Ok((_, password)) = self.read_password(key, &seen.user, &name).await else {
                return Ok(Outcome::Outdated);
            };
            let published = seen.observed.published.get().and_then(Option::as_ref);
            let known = published.and_then(verifier);
            let verifier = match known.filter(|known| known.matches(password.as_str())) {
                Some(known) => known,
                None => Verifier::of(password.as_str()).map_err(impossible)?,
            };
            declared.password = DeclaredPassword::Verifier(Hidden(verifier.as_str().to_owned()));
        }
        let published = Published {
            at: (self.clock)(),
            declared,
        };
        let text = serde_json::to_vec(&published).map_err(impossible)?;
        self.change_published(seen, Some(text)).await
    }

    /// Writes the user's entry of the Secret `NAME-access`, or takes it out.
    async fn change_published(&self, seen: &Seen, entry: Option<Vec<u8>>) -> Result<Outcome, Failure> {
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
    async fn make_reports(&self, seen: &Seen) -> Result<Outcome, Failure> {
        let name = Names::new(&*seen.of.name).access();
        let Some(body) = self.owned(seen, "ConfigMap", &name, json!({}))? else {
            return Ok(Outcome::Outdated);
        };
        let made: ConfigMap = self.requests.apply_new(&seen.of.namespace, &name, body).await?;
        self.caches.config_maps.put(made);
        Ok(Outcome::Done)
    }

    /// An object of this kind that belongs to the cluster, with this content.
    fn owned(&self, seen: &Seen, kind: &str, name: &str, mut content: Value) -> Result<Option<Value>, Failure> {
        let Some(cluster) = &seen.cluster else {
            return Ok(None);
        };
        let subject = Subject::new(cluster, &self.config).map_err(impossible)?;
        content["apiVersion"] = "v1".into();
        content["kind"] = kind.into();
        content["metadata"] = serde_json::to_value(subject.meta(name.to_owned())).map_err(impossible)?;
        Ok(Some(content))
    }

    async fn change_finalizer(&self, key: &Key, seen: &Seen, add: bool) -> Result<Outcome, Failure> {
        let mut finalizers = seen.user.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != FINALIZER);
        if add {
            finalizers.push(FINALIZER.to_owned());
        }
        let is_last = seen.user.metadata.deletion_timestamp.is_some() && finalizers.is_empty();
        let change = json!({"metadata": {"finalizers": finalizers}});
        let user: DatabaseUser = self.requests.merge(&key.namespace, &seen.exact(), change).await?;
        match is_last {
            true => self.caches.users.forget(key, &key.name, &seen.uid),
            false => self.caches.users.put(user),
        }
        self.caches.note_asking(key);
        Ok(Outcome::Done)
    }

    async fn write(&self, key: &Key, user: &DatabaseUser, status: DatabaseUserStatus) -> Result<(), Failure> {
        let mut changed = user.clone();
        changed.status = Some(status);
        let written = self.requests.replace_status(&key.namespace, &key.name, &changed);
        self.caches.users.put(written.await?);
        self.caches.note_asking(key);
        Ok(())
    }
}

/// The verifier that is handed on.
fn verifier(published: &Published) -> Option<Verifier> {
    match &published.declared.password {
        DeclaredPassword::Verifier(Hidden(text)) => Verifier::parse(text),
        DeclaredPassword::None | DeclaredPassword::External => None,
    }
}

/// The entry of a user in the Secret. One that is not understood counts as another one than is wanted.
fn entry(text: &ByteString, wanted: &Wanted<'_>) -> Published {
    serde_json::from_slice(&text.0).unwrap_or_else(|_| Published {
        at: DateTime::UNIX_EPOCH,
        declared: Declared {
            uid: String::new(),
            ..declared(wanted)
        },
    })
}

impl ReadCredentials {
    /// When they are read again.
    fn again(&self) -> DateTime<Utc> {
        self.at
            + match self.found {
                Credentials::Usable { .. } => READ_AGAIN,
                Credentials::NotNeeded | Credentials::Unknown | Credentials::Missing | Credentials::Unusable(_) => {
                    READ_SOON
                }
            }
    }
}

fn impossible(error: impl std::fmt::Display) -> Failure {
    Failure {
        kind: FaultKind::Transient,
        message: error.to_string(),
    }
}

impl Host for Users {
    type Machine = User;
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
        let told = |found: Arc<DatabaseUser>| (found.uid().unwrap_or_default(), found.metadata.generation.unwrap_or(0));
        self.find(key).map(told).unwrap_or_default()
    }

    async fn see(&self, key: &Key, memory: &mut Memory, now: DateTime<Utc>) -> Sight<Seen> {
        let Some(user) = self.find(key) else {
            return Sight::Gone;
        };
        let (uid, generation) = self.spec(key);
        memory.pass.begin(&uid, generation, |target| self.version(key, target));
        let of = Key::database(&*key.namespace, &*user.spec.cluster_ref.name);
        let cluster = self.caches.databases.own(&of);
        let foreign = self.foreign(&of, cluster.as_ref().and_then(Option::as_deref));
        let published = match foreign {
            Some(_) => Known::Known(None),
            None => self.published(&of, &wanted(&user, &uid)).await,
        };
        let around = (&published, cluster.as_ref().and_then(Option::as_deref));
        let credentials = self.credentials(key, &user, around, memory, now).await;
        let (report, has_reports) = self.report(&of, &uid);
        let faults = memory.pass.faults().iter();
        let told = |found: &ClusteredDatabase| Cluster {
            deleting: found.metadata.deletion_timestamp.is_some(),
            idle: idle(&found.spec),
            owner: found.spec.initdb().owner().to_owned(),
        };
        let observed = Observed {
            cluster: cluster
                .as_ref()
                .map_or(Known::Unknown, |found| Known::Known(found.as_deref().map(told))),
            older: self.older(&user, &of),
            credentials,
            published,
            report,
            has_reports,
            foreign,
            faults: faults.map(|(target, fault)| (*target, fault.message.clone())).collect(),
        };
        Sight::Seen(Box::new(Seen {
            stored: user.status.clone().unwrap_or_default(),
            cluster: cluster.flatten(),
            user,
            uid,
            of,
            observed,
        }))
    }

    fn decide(&self, _key: &Key, seen: &Seen, now: DateTime<Utc>) -> Decision {
        let decision = User::decide(&seen.wanted(), &seen.observed, &seen.stored, now);
        self.metrics.decided(decision.rule, decision.action.name());
        decision
    }

    async fn prepare(
        &self,
        _key: &Key,
        _memory: &mut Memory,
        _seen: &Seen,
        _decision: &Decision,
        _now: DateTime<Utc>,
    ) -> Result<Prepared<()>, Failure> {
        Ok(Prepared::Ready(()))
    }

    fn status(seen: &Seen, decision: &Decision, (): &(), now: DateTime<Utc>) -> DatabaseUserStatus {
        User::status(&seen.wanted(), &seen.observed, &seen.stored, decision, &(), now)
    }

    fn next(
        pass: &mut Pass<Target>,
        seen: &Seen,
        status: &DatabaseUserStatus,
        decision: &Decision,
        now: DateTime<Utc>,
    ) -> Next {
        pass.next::<User>(&seen.observed, &seen.stored, status, decision, now)
    }

    async fn write_status(
        &self,
        key: &Key,
        seen: &Seen,
        status: DatabaseUserStatus,
        decision: &Decision,
    ) -> Result<(), Failure> {
        if status.phase != seen.stored.phase {
            let (from, to, because) = (seen.stored.phase, status.phase, &decision.message);
            tracing::info!(object = %key, database = %seen.of, ?from, ?to, rule = decision.rule, because, "phase");
        }
        self.write(key, &seen.user, status).await
    }

    fn prepared_is_written(_memory: &mut Memory, (): ()) {}

    /// Nothing of the user may be left in the Secret `NAME-access`, whatever the watch has shown: nobody would take it out.
    async fn confirm(&self, _key: &Key, seen: &Seen) -> Result<Outcome, Failure> {
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
        if let Some(live) = live.filter(|live| !going && is_left(live)) {
            let partial: PartialObjectMeta<Secret> = live.metadata.into_response_partial();
            self.caches.secrets.put(partial);
            return Ok(Outcome::Outdated);
        }
        still_leads(&self.lead)
    }

    async fn perform(
        &self,
        key: &Key,
        memory: &mut Memory,
        seen: &Seen,
        decision: &Decision,
    ) -> Result<Outcome, Failure> {
        match &decision.action {
            Action::Wait => Ok(Outcome::Done),
            Action::AddFinalizer => self.change_finalizer(key, seen, true).await,
            Action::RemoveFinalizer => self.change_finalizer(key, seen, false).await,
            Action::MakeCredentials => {
                memory.credentials = None;
                self.make_credentials(key, seen).await
            }
            Action::CorrectCredentials => {
                memory.credentials = None;
                self.correct_credentials(key, seen).await
            }
            Action::MakeReports => self.make_reports(seen).await,
            Action::Publish(declared) => self.publish(key, memory, seen, declared).await,
            Action::Withdraw => self.change_published(seen, None).await,
        }
    }

    fn version(&self, key: &Key, target: &Target) -> Option<String> {
        let user = self.find(key)?;
        let of = Key::database(&*key.namespace, &*user.spec.cluster_ref.name);
        let access = Names::new(&*of.name).access();
        match target {
            Target::Status | Target::Resource => user.resource_version(),
            Target::Access => self
                .caches
                .secrets
                .get(&of, &access)??
                .metadata
                .resource_version
                .clone(),
            Target::Reports => self.caches.config_maps.get(&of, &access)??.resource_version(),
            Target::Credentials => None,
        }
    }

    fn wake(&self, memory: &Memory, _seen: &Seen, wake: DateTime<Utc>, now: DateTime<Utc>) -> DateTime<Utc> {
        let again = memory.credentials.as_ref().map(ReadCredentials::again);
        again.map_or(wake, |again| wake.min(again.max(now)))
    }

    fn action_name(decision: &Decision) -> &'static str {
        decision.action.name()
    }

    fn log(key: &Key, decision: &Decision) {
        tracing::info!(object = %key, rule = decision.rule, action = decision.action.name(), "acting");
    }

    async fn tell_of_internal_error(&self, key: &Key, place: &str, _now: DateTime<Utc>) {
        let Some(user) = self.find(key) else { return };
        let mut status = user.status.clone().unwrap_or_default();
        let message = format!("a bug in the operator stops its work for this object (panic at {place})");
        if status.message.replace(message.clone()) == Some(message) {
            return;
        }
        if let Err(error) = self.write(key, &user, status).await {
            tracing::warn!(object = %key, message = error.message, "cannot say so in the status");
        }
    }

    fn readers(&self, key: &Key) -> Vec<Key> {
        // The younger of two that declare one role waits for the older.
        let Some(user) = self.find(key) else {
            return Vec::new();
        };
        let of = Key::database(&*key.namespace, &*user.spec.cluster_ref.name);
        let role = user.spec.role(&key.name);
        let mut others = self.caches.users_of(&of);
        others.retain(|other| {
            other != key
                && self
                    .find(other)
                    .is_some_and(|found| found.spec.role(&other.name) == role)
        });
        others
    }

    fn forget(&self, key: &Key) {
        self.caches.note_asking(key);
    }
}
