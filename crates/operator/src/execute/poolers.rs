//! What only `Pooler` needs of the [`Host`](crate::reconcile::Host) of declarations: the objects that are made for one.

use api::names::ANNOTATION_APPLIED;
use api::user::UserCertificate;
use api::{ClusteredDatabase, Pooler as Resource};
use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use machine::cluster::ObjectVersion;
use machine::declaration::{Cluster, Instances, Parts};
use machine::operation::idle;
use machine::pooler::{Pooler, replicas};
use serde_json::Value;

use super::children::authority;
use super::declaring::{Declarers, Declaring, Seen, impossible};
use crate::builders::Subject;
use crate::builders::pooler::{self, PoolerSubject};
use crate::cache::{Cache, Key};
use crate::caches::Caches;
use crate::drift::{differences, hash};
use crate::reconcile::{Failure, Outcome};
use crate::requests::Writable;

/// The objects are compared again after this long, though nothing has changed: their certificates are renewed.
const COMPARED_AGAIN: TimeDelta = TimeDelta::minutes(10);
/// The same while they cannot be read, or one is somebody else's.
const COMPARED_SOON: TimeDelta = TimeDelta::seconds(30);

/// What a comparison has found.
pub(super) struct Compared {
    basis: String,
    at: DateTime<Utc>,
    found: Parts,
    certificate: Option<UserCertificate>,
}

impl Compared {
    fn again(&self) -> DateTime<Utc> {
        self.at
            + match self.found {
                Parts::Current => COMPARED_AGAIN,
                Parts::None | Parts::Unknown | Parts::Differ | Parts::Foreign(_) => COMPARED_SOON,
            }
    }
}

impl Declaring for Pooler {
    type Object = Resource;
    type Own = Option<Compared>;

    fn cache(caches: &Caches) -> &Cache<Resource> {
        &caches.poolers
    }

    async fn parts(
        host: &Declarers<Self>,
        key: &Key,
        pooler: &Resource,
        cluster: Option<&ClusteredDatabase>,
        own: &mut Option<Compared>,
        now: DateTime<Utc>,
    ) -> (Parts, Option<Instances>, Option<UserCertificate>) {
        let Some(cluster) = cluster else {
            return (Parts::Unknown, None, None);
        };
        let of = Key::database(&*key.namespace, cluster.name_any());
        let deployment = host.caches.deployments.get(&of, &key.name).flatten();
        let instances = deployment.as_deref().and_then(instances);
        let Ok(subject) = subject(host, pooler, cluster) else {
            return (Parts::Unknown, instances, None);
        };
        let there = deployment.and_then(|found| Some((found.uid()?, found.metadata.generation)));
        let basis = format!("{} {there:?}", pooler::basis(&subject));
        let known = own.as_ref().filter(|known| known.basis == basis && now < known.again());
        if let Some(known) = known {
            return (known.found.clone(), instances, known.certificate.clone());
        }
        let (found, certificate) = match host.each_part(&subject, false).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(object = %key, message = error.message, "cannot compare the objects of a pooler");
                (Parts::Unknown, None)
            }
        };
        *own = Some(Compared {
            basis,
            at: now,
            found: found.clone(),
            certificate: certificate.clone(),
        });
        (found, instances, certificate)
    }

    async fn make_parts(
        host: &Declarers<Self>,
        own: &mut Option<Compared>,
        seen: &Seen<Self>,
    ) -> Result<Outcome, Failure> {
        *own = None;
        let Some(cluster) = seen.cluster.as_deref() else {
            return Ok(Outcome::Outdated);
        };
        let subject = subject(host, &seen.object, cluster)?;
        host.each_part(&subject, true).await?;
        Ok(Outcome::Done)
    }

    fn again(own: &Option<Compared>) -> Option<DateTime<Utc>> {
        own.as_ref().map(Compared::again)
    }
}

fn subject<'a>(
    host: &'a Declarers<Pooler>,
    pooler: &'a Resource,
    cluster: &'a ClusteredDatabase,
) -> Result<PoolerSubject<'a>, Failure> {
    let seen = Cluster {
        idle: idle(&cluster.spec),
        ..Cluster::default()
    };
    Ok(PoolerSubject {
        pooler,
        replicas: replicas(&pooler.spec, Some(&seen)),
        cluster: Subject::new(cluster, &host.config).map_err(impossible)?,
    })
}

fn instances(deployment: &Deployment) -> Option<Instances> {
    let status = deployment.status.clone().unwrap_or_default();
    let is_seen = status.observed_generation >= deployment.metadata.generation;
    is_seen.then(|| Instances {
        all: status.replicas.unwrap_or(0),
        ready: status.ready_replicas.unwrap_or(0),
        updated: status.updated_replicas.unwrap_or(0),
    })
}

/// With the hash of it as annotation: what is wanted no longer is no difference otherwise.
fn stamped(mut content: Value) -> Value {
    let hash = hash(&content);
    content["metadata"]["annotations"][ANNOTATION_APPLIED] = hash.into();
    content
}

impl Declarers<Pooler> {
    /// Compares each object with what it should be, and corrects it if `write`. One that is somebody else's is touched by nobody.
    async fn each_part(
        &self,
        subject: &PoolerSubject<'_>,
        write: bool,
    ) -> Result<(Parts, Option<UserCertificate>), Failure> {
        let namespace = &subject.cluster.namespace;
        let (inner, name) = (subject.inner(), subject.pooler.name_any());
        let secret: Option<Secret> = self.requests.get(namespace, &inner).await?;
        let (issues, trusted) = authority(&self.requests, &subject.cluster).await?;
        let certificate = secret.as_ref().and_then(pooler::certificate);
        let now = (self.clock)();
        let content = pooler::secret(subject, secret.as_ref(), (&issues, &trusted), now).map_err(impossible)?;
        let mut all = vec![
            self.part::<ServiceAccount>(subject, &inner, |_| pooler::service_account(subject), write)
                .await?,
            self.part::<Role>(subject, &inner, |_| pooler::role(subject), write)
                .await?,
            self.part::<RoleBinding>(subject, &inner, |_| pooler::role_binding(subject), write)
                .await?,
            self.part::<Secret>(subject, &inner, |_| content, write).await?,
            self.part::<Service>(subject, &name, |_| pooler::service(subject), write)
                .await?,
            self.part::<PodDisruptionBudget>(subject, &name, |_| pooler::budget(subject), write)
                .await?,
        ];
        // A new version of the operator replaces no pod: the image that brings the agent stays until something else changes.
        let agent = &subject.cluster.config.agent_image;
        let pods = |live: Option<&Value>| {
            let present = live
                .and_then(pooler::agent_image)
                .map(|image| pooler::deployment(subject, image));
            let is_same =
                |present: &Value| live.is_some_and(|live| differences(&stamped(present.clone()), live).is_empty());
            present
                .filter(is_same)
                .unwrap_or_else(|| pooler::deployment(subject, agent))
        };
        all.push(self.part::<Deployment>(subject, &name, pods, write).await?);
        let foreign = all.iter().find(|part| matches!(part, Parts::Foreign(_))).cloned();
        let differ = all.contains(&Parts::Differ);
        // Until it is known whose they are, nothing is said of a Secret.
        let certificate = certificate.filter(|_| foreign.is_none());
        let found = foreign.unwrap_or(if differ { Parts::Differ } else { Parts::Current });
        Ok((found, certificate))
    }

    async fn part<K: Writable>(
        &self,
        subject: &PoolerSubject<'_>,
        name: &str,
        content: impl FnOnce(Option<&Value>) -> Value,
        write: bool,
    ) -> Result<Parts, Failure> {
        let namespace = &subject.cluster.namespace;
        let live: Option<K> = self.requests.get(namespace, name).await?;
        let owner = subject.pooler.uid();
        let is_ours = |live: &K| live.owner_references().iter().any(|of| Some(&of.uid) == owner.as_ref());
        if live.as_ref().is_some_and(|live| !is_ours(live)) {
            return Ok(Parts::Foreign(format!("{} {name}", K::kind(&()))));
        }
        let value = live
            .as_ref()
            .map(serde_json::to_value)
            .transpose()
            .map_err(impossible)?;
        let content = stamped(content(value.as_ref()));
        if value
            .as_ref()
            .is_some_and(|live| differences(&content, live).is_empty())
        {
            return Ok(Parts::Current);
        }
        if write {
            let _: K = match live {
                Some(live) => {
                    let version = live.resource_version().unwrap_or_default();
                    let exact = ObjectVersion::new(name, live.uid().unwrap_or_default(), version);
                    self.requests.apply_to(namespace, &exact, content).await?
                }
                None => self.requests.apply_new(namespace, name, content).await?,
            };
        }
        Ok(Parts::Differ)
    }
}
