//! What only DatabaseUsers need: their passwords, and the Secrets with these.

use std::collections::BTreeMap;

use api::names::LABEL_CLUSTER;
use api::user::UserCertificate;
use api::{ClusteredDatabase, DatabaseUser};
use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use machine::access::{Declared, DeclaredRole, Password as DeclaredPassword, Published, Secret as Hidden};
use machine::cluster::{Known, ObjectVersion, password_refusal};
use machine::declaration::{Action, Credentials};
use machine::user::{User, may_have_certificate, secret};
use scram::Verifier;
use serde_json::{Map, Value, json};

use super::authority;
use super::declaring::{Declarers, Declaring, Seen, impossible};
use crate::builders::{MANAGER, Subject, secrets};
use crate::cache::{Cache, Key};
use crate::caches::Caches;
use crate::certificates;
use crate::credentials::{Password, connection};
use crate::reconcile::{Failure, Outcome};

/// A password is read again after this long. No watch shows Secrets that are not ours.
const READ_AGAIN: TimeDelta = TimeDelta::minutes(10);
/// The same while it cannot be used.
const READ_SOON: TimeDelta = TimeDelta::seconds(20);

/// What was read of a password, and what it was compared with.
pub(super) struct ReadCredentials {
    basis: (i64, Option<DateTime<Utc>>, bool),
    at: DateTime<Utc>,
    found: Credentials,
}

impl Declaring for User {
    type Object = DatabaseUser;
    type Own = Option<ReadCredentials>;

    fn cache(caches: &Caches) -> &Cache<DatabaseUser> {
        &caches.users
    }

    async fn credentials(
        host: &Declarers<Self>,
        key: &Key,
        user: &DatabaseUser,
        around: (&Known<Option<Published>>, Option<&ClusteredDatabase>),
        own: &mut Option<ReadCredentials>,
        now: DateTime<Utc>,
    ) -> Credentials {
        host.role_credentials(key, user, around, own, now).await
    }

    async fn write_credentials(
        host: &Declarers<Self>,
        key: &Key,
        own: &mut Option<ReadCredentials>,
        seen: &Seen<Self>,
        action: &Action,
    ) -> Result<Outcome, Failure> {
        *own = None;
        match action {
            Action::MakeCredentials => host.make_credentials(key, seen).await,
            _ => host.correct_credentials(key, seen).await,
        }
    }

    async fn with_verifier(
        host: &Declarers<Self>,
        key: &Key,
        own: &mut Option<ReadCredentials>,
        seen: &Seen<Self>,
        declared: Declared,
    ) -> Result<Option<Declared>, Failure> {
        let Declared::Role(role) = declared else {
            return Ok(Some(declared));
        };
        if role.going.is_some() || !matches!(role.password, DeclaredPassword::Verifier(_)) {
            return Ok(Some(Declared::Role(role)));
        }
        let Some(name) = secret(&seen.object.spec, &key.name) else {
            return Ok(None);
        };
        *own = None;
        let Ok((_, password)) = host.read_password(key, &seen.object, &name).await else {
            return Ok(None);
        };
        let published = seen.observed.published.get().and_then(Option::as_ref);
        let known = published.and_then(verifier);
        let verifier = match known.filter(|known| known.matches(password.as_str())) {
            Some(known) => known,
            None => Verifier::of(password.as_str()).map_err(impossible)?,
        };
        let password = DeclaredPassword::Verifier(Hidden(verifier.as_str().to_owned()));
        Ok(Some(Declared::Role(DeclaredRole { password, ..role })))
    }

    fn again(own: &Option<ReadCredentials>) -> Option<DateTime<Utc>> {
        own.as_ref().map(ReadCredentials::again)
    }
}

impl Declarers<User> {
    /// The password that the role is to have, compared with the verifier that is published.
    async fn role_credentials(
        &self,
        key: &Key,
        user: &DatabaseUser,
        (published, cluster): (&Known<Option<Published>>, Option<&ClusteredDatabase>),
        memory: &mut Option<ReadCredentials>,
        now: DateTime<Utc>,
    ) -> Credentials {
        let Some(name) = secret(&user.spec, &key.name) else {
            // Nothing is read again.
            *memory = None;
            return Credentials::NotNeeded;
        };
        let published = published.get().and_then(Option::as_ref);
        let (generation, at) = (
            user.metadata.generation.unwrap_or(0),
            published.map(|published| published.at),
        );
        let may_certify = self.may_certify(key, user, published);
        let basis = (generation, at, may_certify);
        let is_current = |known: &ReadCredentials| known.basis == basis && now < known.again();
        if let Some(known) = memory.as_ref().filter(|known| is_current(known)) {
            return known.found.clone();
        }
        let found = match self.read_password(key, user, &name).await {
            Ok((secret, password)) => {
                let stored = published.and_then(verifier);
                let is_published = stored.is_some_and(|stored| stored.matches(password.as_str()));
                let wanted = match cluster.filter(|_| user.spec.has_made_password()) {
                    Some(cluster) => {
                        let found = (Some(&secret), may_certify);
                        self.content(key, user, cluster, &password, found).await.ok()
                    }
                    None => None,
                };
                Credentials::Usable {
                    is_published,
                    is_complete: wanted.is_none_or(|wanted| is_in(&wanted, &secret)),
                    certificate: certificate(&secret).filter(|_| user.spec.client_certificate),
                }
            }
            Err(credentials) => credentials,
        };
        *memory = Some(ReadCredentials {
            basis,
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

    /// Whether the role may be given a certificate.
    fn may_certify(&self, key: &Key, user: &DatabaseUser, published: Option<&Published>) -> bool {
        let of = Key::database(&*key.namespace, &*user.spec.cluster_ref.name);
        let (report, _) = self.report(&of, &user.uid().unwrap_or_default());
        may_have_certificate(&user.spec, published, report.get().and_then(Option::as_ref))
    }

    /// What the Secret with this password holds. `found` is that Secret, and whether a certificate may be issued: otherwise one that is
    /// in it stays.
    async fn content(
        &self,
        key: &Key,
        user: &DatabaseUser,
        cluster: &ClusteredDatabase,
        password: &Password,
        (found, may_certify): (Option<&Secret>, bool),
    ) -> Result<BTreeMap<String, String>, Failure> {
        let subject = Subject::new(cluster, &self.config).map_err(impossible)?;
        let spec = &user.spec;
        let name = secret(spec, &key.name).unwrap_or_default();
        let database = spec.all_grants().into_iter().next().map(|grant| grant.database);
        let database = database.as_ref().unwrap_or(&subject.db.spec.initdb().database);
        let role = spec.role(&key.name);
        let mut data = connection(&subject, role, database, &name, password);
        let (authority, trusted) = authority(&self.requests, &subject).await?;
        data.insert(secrets::CA_CERTIFICATE_KEY.to_owned(), trusted);
        if spec.client_certificate {
            let now = (self.clock)();
            let kept = found.and_then(|found| secrets::pair(found, secrets::CERTIFICATE_KEY, secrets::KEY_KEY));
            let pair = match kept.filter(|kept| !may_certify || certificates::is_current(kept, &authority, now)) {
                Some(pair) => pair,
                None if may_certify => certificates::client(role, &authority, now).map_err(impossible)?,
                None => return Ok(data),
            };
            let verified = &data["uri-verify-full"];
            let uri = format!("{verified}&sslcert=/etc/{name}/tls.crt&sslkey=/etc/{name}/tls.key");
            let more = [
                ("uri", uri.clone()),
                ("uri-verify-full", uri),
                (secrets::CERTIFICATE_KEY, pair.certificate),
                (secrets::KEY_KEY, pair.key),
            ];
            data.extend(more.map(|(key, text)| (key.to_owned(), text)));
        }
        Ok(data)
    }

    /// Corrects what stands beside the password.
    async fn correct_credentials(&self, key: &Key, seen: &Seen<User>) -> Result<Outcome, Failure> {
        let Some((cluster, name)) = seen.cluster.as_deref().zip(secret(&seen.object.spec, &key.name)) else {
            return Ok(Outcome::Outdated);
        };
        let Ok((found, password)) = self.read_password(key, &seen.object, &name).await else {
            return Ok(Outcome::Outdated);
        };
        let published = seen.observed.published.get().and_then(Option::as_ref);
        let may_certify = self.may_certify(key, &seen.object, published);
        let data = self
            .content(key, &seen.object, cluster, &password, (Some(&found), may_certify))
            .await?;
        let (uid, version) = (
            found.uid().unwrap_or_default(),
            found.resource_version().unwrap_or_default(),
        );
        let exact = ObjectVersion::new(name, uid, version);
        let _: Secret = self
            .requests
            .merge(&key.namespace, &exact, json!({"data": change(data)}))
            .await?;
        Ok(Outcome::Done)
    }

    /// Makes the Secret with a fresh password.
    async fn make_credentials(&self, key: &Key, seen: &Seen<User>) -> Result<Outcome, Failure> {
        let Some((cluster, name)) = seen.cluster.as_deref().zip(secret(&seen.object.spec, &key.name)) else {
            return Ok(Outcome::Outdated);
        };
        let password = Password::generate().map_err(impossible)?;
        let data = self
            .content(key, &seen.object, cluster, &password, (None, false))
            .await?;
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
}

/// Keys that only the Secret of a role with a certificate has.
const CERTIFIED: [&str; 2] = [secrets::CERTIFICATE_KEY, secrets::KEY_KEY];

/// Whether the Secret holds this, and no certificate that is not wanted.
fn is_in(wanted: &BTreeMap<String, String>, secret: &Secret) -> bool {
    let has = |key: &str| secrets::text(secret, key);
    let mut others = CERTIFIED.iter().filter(|key| !wanted.contains_key(**key));
    wanted.iter().all(|(key, text)| has(key).as_ref() == Some(text)) && others.all(|key| has(key).is_none())
}

/// The merge patch of the data that brings it there.
fn change(wanted: BTreeMap<String, String>) -> Map<String, Value> {
    let without = CERTIFIED.map(|key| (key.to_owned(), Value::Null));
    let with = wanted
        .into_iter()
        .map(|(key, text)| (key, json!(ByteString(text.into_bytes()))));
    without.into_iter().chain(with).collect()
}

/// What the certificate in this Secret says.
fn certificate(secret: &Secret) -> Option<UserCertificate> {
    certificates::told(&secrets::text(secret, secrets::CERTIFICATE_KEY)?)
}

/// The verifier that is handed on.
fn verifier(published: &Published) -> Option<Verifier> {
    match &published.declared {
        Declared::Role(DeclaredRole {
            password: DeclaredPassword::Verifier(Hidden(text)),
            ..
        }) => Verifier::parse(text),
        Declared::Role(_) | Declared::Database(_) | Declared::Pooler(_) => None,
    }
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
