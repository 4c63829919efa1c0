//! What the watches do not show, and is read from the API server when it matters.

use std::collections::BTreeMap;

use api::{ClusteredDatabase, Guarded};
use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, PersistentVolumeClaim, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::ListParams;
use kube::core::{ObjectList, PartialObjectMeta};
use kube::{Api, Resource, ResourceExt};
use machine::cluster::{
    Basis, Fault, FaultKind, Known, ObjectVersion, Observed, OwnedObject, Target, Trouble, snapshots_to_read,
};
use serde_json::{Value, json};

use super::{Executor, Failure, Outcome};
use crate::builders::Subject;
use crate::builders::volume_snapshot::{self, VolumeSnapshot};
use crate::cache::Key;
use crate::desired::name;
use crate::leader::{self, Lead};
use crate::memory::Memory;
use crate::observe::{Stray, check, is_ours, is_starting, time};
use crate::requests::{Refused, Writable};

/// How often the StatefulSet's events are read while it lacks pods, and those of a pod in which nothing has been started yet.
pub const EVENTS_EVERY: TimeDelta = TimeDelta::seconds(10);
/// How often an object is read that stands in our way and that no watch shows.
pub const STRAYS_EVERY: TimeDelta = TimeDelta::seconds(10);
/// For how long an event counts: the StatefulSet controller tries again after at most 1000 s, a kubelet after a few minutes.
const EVENT_COUNTS: TimeDelta = TimeDelta::seconds(1_200);

/// The StatefulSet asks for more pods than there are.
pub fn misses_pods(observed: &Observed) -> bool {
    let wanted = observed.stateful_set.as_ref().map_or(0, |set| set.replicas);
    let present = observed.pods.get().map_or(0, Vec::len);
    u32::try_from(present).unwrap_or(u32::MAX) < wanted
}

/// Whether this operator leads still: the process may have stood still since it decided.
///
/// # Errors
/// When the lead was not renewed lately.
pub(super) fn still_leads(lead: &Lead) -> Result<Outcome, Failure> {
    match lead.covers_request(leader::now()) {
        true => Ok(Outcome::Done),
        false => Err(Failure {
            kind: FaultKind::Transient,
            message: "another operator may lead by now: nothing is taken away before the lead is renewed".to_owned(),
        }),
    }
}

impl Executor {
    /// An object that was made once, and that the watch does not show, may only have lost its label: that it is gone for
    /// good is believed of the API server alone.
    pub(super) fn suspect_strays(&self, key: &Key, db: &ClusteredDatabase, memory: &mut Memory) {
        let Some(memo) = db.status.as_ref().map(|status| &status.memo) else {
            return;
        };
        for kind in [OwnedObject::CaSecret, OwnedObject::AppSecret] {
            let name = name(&key.name, kind);
            if memo.made.contains_key(&name) && matches!(self.caches.secrets.get(key, &name), Some(None)) {
                memory.strays.insert(kind);
            }
        }
        let lease = self.caches.leases.get(key, &name(&key.name, OwnedObject::Lease));
        if memo.lease_made && matches!(lease, Some(None)) {
            memory.strays.insert(OwnedObject::Lease);
        }
    }

    /// Reads every Secret whose version has not been read yet, and remembers whether its content is of use. One that
    /// cannot be read counts as it did before.
    pub(super) async fn check_secrets(&self, key: &Key, db: &ClusteredDatabase, memory: &mut Memory) {
        for kind in [OwnedObject::CaSecret, OwnedObject::TlsSecret, OwnedObject::AppSecret] {
            let name = name(&key.name, kind);
            let Some(Some(seen)) = self.caches.secrets.get(key, &name) else {
                memory.checked.remove(&kind);
                continue;
            };
            let version = (
                seen.uid().unwrap_or_default(),
                seen.resource_version().unwrap_or_default(),
            );
            if !is_ours(seen.meta(), kind, db)
                || memory
                    .checked
                    .get(&kind)
                    .is_some_and(|checked| checked.version == version)
            {
                continue;
            }
            match self.requests.get::<Secret>(&key.namespace, &name).await {
                Ok(Some(secret)) => note_content(memory, kind, &secret, db),
                Ok(None) => {}
                Err(error) => tracing::warn!(database = %key, name, %error, "cannot read a Secret"),
            }
        }
    }

    /// Reads the objects with our names that lack our label; `None` if one of them cannot be read.
    pub(super) async fn read_strays(&self, key: &Key, memory: &mut Memory) -> Option<Vec<Stray>> {
        let mut strays = Vec::new();
        for kind in memory.strays.clone() {
            let object = match self.read_child(key, kind).await {
                Ok(object) => object.map(Ok),
                Err(Refused::Unreadable(why)) => Some(Err(why)),
                Err(error) => {
                    tracing::warn!(database = %key, ?kind, %error, "cannot read an object");
                    return None;
                }
            };
            if object.is_none() {
                memory.strays.remove(&kind);
            }
            strays.push(Stray { kind, object });
        }
        Some(strays)
    }

    /// A StatefulSet says only by events why it makes no pod: they become faults of that pod.
    pub(super) async fn read_events(&self, key: &Key, memory: &mut Memory, now: DateTime<Utc>) {
        let present: Vec<_> = self.caches.pods.list(key).unwrap_or_default();
        let exists = |pod: &String| present.iter().any(|other| other.metadata.name.as_ref() == Some(pod));
        memory
            .unmade_pods
            .retain(|pod, fault| !exists(pod) && now - fault.at < EVENT_COUNTS);
        let set = self
            .caches
            .stateful_sets
            .get(key, &name(&key.name, OwnedObject::StatefulSet))
            .flatten();
        let wanted = set.and_then(|set| set.spec.as_ref()?.replicas).unwrap_or(0);
        let recently = memory.events_read.is_some_and(|read| now - read < EVENTS_EVERY);
        if usize::try_from(wanted).unwrap_or(0) <= present.len() || recently {
            return;
        }
        memory.events_read = Some(now);
        let fields = format!(
            "involvedObject.kind=StatefulSet,involvedObject.name={},reason=FailedCreate",
            key.name
        );
        let api: Api<Guarded<Event>> = Api::namespaced(self.requests.client().clone(), &key.namespace);
        match self
            .requests
            .limited(api.list(&ListParams::default().fields(&fields)))
            .await
        {
            Ok(events) => {
                for (pod, (at, message)) in latest(&readable(events), now) {
                    let known = memory.unmade_pods.get(&pod);
                    if !exists(&pod) && known.is_none_or(|known| known.at < at) {
                        let attempts = known.map_or(1, |known| known.attempts.saturating_add(1));
                        let (target, kind) = (Target::Pod(pod.clone()), kind_of(&message));
                        memory.unmade_pods.insert(
                            pod,
                            Fault {
                                target,
                                kind,
                                message,
                                attempts,
                                at,
                            },
                        );
                    }
                }
            }
            Err(error) => tracing::warn!(database = %key, %error, "cannot read the StatefulSet's events"),
        }
    }

    /// A kubelet, and who attaches volumes, say only by events why no container of a pod has been started yet.
    pub(super) async fn read_events_of_pods(&self, key: &Key, memory: &mut Memory, now: DateTime<Utc>) {
        let pods = self.caches.pods.list(key).unwrap_or_default();
        let known = std::mem::take(&mut memory.starting);
        let starting = pods.iter().filter(|pod| is_starting(pod)).filter_map(|pod| pod.uid());
        memory.starting = starting
            .map(|uid| (uid.clone(), known.get(&uid).cloned().flatten()))
            .collect();
        if known.is_empty() {
            // Nearly all are started before this is over.
            memory.starting_read = Some(now);
        }
        let recently = memory.starting_read.is_some_and(|read| now - read < EVENTS_EVERY);
        if memory.starting.is_empty() || recently {
            return;
        }
        memory.starting_read = Some(now);
        let api: Api<Guarded<Event>> = Api::namespaced(self.requests.client().clone(), &key.namespace);
        for (uid, told) in &mut memory.starting {
            let of_pod = ListParams::default().fields(&format!("involvedObject.uid={uid},type=Warning"));
            match self.requests.limited(api.list(&of_pod)).await {
                Ok(events) => *told = warning(&readable(events), now),
                Err(error) => tracing::warn!(database = %key, %error, "cannot read a pod's events"),
            }
        }
    }

    /// The VolumeSnapshots that the next decision looks at. They are not watched: few clusters have them, and few databases make any.
    pub(super) async fn read_snapshots(&self, subject: &Subject<'_>, observed: &mut Observed, now: DateTime<Utc>) {
        let status = subject.db.status.clone().unwrap_or_default();
        let lease = observed.lease.get().and_then(Option::as_ref);
        for name in snapshots_to_read(&subject.db.spec, &status, lease) {
            let found = self.requests.get::<VolumeSnapshot>(&subject.namespace, &name).await;
            let seen = match found {
                Ok(found) => Known::Known(found.map(|found| volume_snapshot::seen(&found, &subject.uid))),
                Err(error) => {
                    observed.faults.push(Fault {
                        target: Target::Snapshot(name.clone()),
                        kind: error.kind(),
                        message: format!("read it: {error}"),
                        attempts: 1,
                        at: now,
                    });
                    Known::Unknown
                }
            };
            observed.snapshots.insert(name, seen);
        }
    }

    /// `None` if that cannot be read.
    pub(super) async fn is_namespace_terminating(&self, namespace: &str) -> Option<bool> {
        let api: Api<Guarded<PartialObjectMeta<Namespace>>> = Api::all(self.requests.client().clone());
        match self.requests.limited(api.get(namespace)).await {
            Ok(namespace) => Some(namespace.meta().deletion_timestamp.is_some()),
            Err(error) => {
                tracing::warn!(namespace, %error, "cannot read the namespace");
                None
            }
        }
    }

    /// Reads the resource and its Lease from the API server before something that cannot be taken back; if one of them
    /// is not what was decided upon, nothing is done. To be called right before the request is sent: last it makes sure that no
    /// other operator can lead before the request arrives.
    ///
    /// # Errors
    /// When the API server does not answer, or the lead was not renewed lately.
    pub(super) async fn confirm(&self, key: &Key, basis: &Basis) -> Result<Outcome, Failure> {
        let live: Option<ClusteredDatabase> = self.requests.get(&key.namespace, &key.name).await?;
        let is_same = |live: &ClusteredDatabase| {
            let (uid, version) = (live.uid().unwrap_or_default(), live.resource_version());
            basis.is_resource(&uid, &version.unwrap_or_default())
        };
        match live {
            Some(live) if is_same(&live) => {}
            Some(live) => {
                self.caches.databases.put(live);
                return Ok(Outcome::Outdated);
            }
            None => {
                // Without it in the cache, the next step ends the look; its successor, if any, has another UID.
                self.caches.databases.forget(key, &key.name, basis.uid());
                return Ok(Outcome::Outdated);
            }
        }
        let name = name(&key.name, OwnedObject::Lease);
        let lease: Option<Lease> = self.requests.get(&key.namespace, &name).await?;
        let read = lease.as_ref().and_then(|lease| machine::lease_object::read(lease).ok());
        if basis.is_lease(read.as_ref()) {
            return still_leads(&self.lead);
        }
        match lease {
            Some(lease) => {
                self.caches.leases.put(lease);
                Ok(Outcome::Outdated)
            }
            None => Ok(Outcome::NotYet),
        }
    }

    /// Reads a claim from the API server, since its watch may be behind that of the pods; if it is another one by now, or
    /// gone, that is taken note of.
    pub(super) async fn is_there(&self, key: &Key, claim: &ObjectVersion) -> Result<bool, Refused> {
        let api: Api<Guarded<PersistentVolumeClaim>> = Api::namespaced(self.requests.client().clone(), &key.namespace);
        // What the operator's role allows: no operator is to fail for a role of the version before.
        let named = ListParams::default().fields(&format!("metadata.name={}", claim.name()));
        let live = self.requests.limited(api.list(&named)).await?.items.pop();
        match live {
            Some(live) if live.meta().uid.as_deref() == Some(claim.uid()) => return Ok(true),
            Some(Guarded(Ok(live))) => self.caches.claims.put(live),
            // The watch will tell.
            Some(Guarded(Err(_))) => {}
            None => self.caches.claims.forget(key, claim.name(), claim.uid()),
        }
        Ok(false)
    }

    async fn read_child(&self, key: &Key, kind: OwnedObject) -> Result<Option<Value>, Refused> {
        match kind {
            OwnedObject::ServiceAccount => self.read::<ServiceAccount>(key, kind).await,
            OwnedObject::Role => self.read::<Role>(key, kind).await,
            OwnedObject::RoleBinding => self.read::<RoleBinding>(key, kind).await,
            OwnedObject::CaSecret | OwnedObject::TlsSecret | OwnedObject::AppSecret => {
                self.read::<Secret>(key, kind).await
            }
            OwnedObject::HeadlessService | OwnedObject::RwService | OwnedObject::RoService | OwnedObject::RService => {
                self.read::<Service>(key, kind).await
            }
            OwnedObject::EndpointSlice => self.read::<EndpointSlice>(key, kind).await,
            OwnedObject::Lease => self.read::<Lease>(key, kind).await,
            OwnedObject::PodDisruptionBudget | OwnedObject::PrimaryBudget => {
                self.read::<PodDisruptionBudget>(key, kind).await
            }
            OwnedObject::NetworkPolicy => self.read::<NetworkPolicy>(key, kind).await,
            OwnedObject::StatefulSet => self.read::<StatefulSet>(key, kind).await,
        }
    }

    async fn read<K: Writable>(&self, key: &Key, kind: OwnedObject) -> Result<Option<Value>, Refused> {
        let object: Option<K> = self.requests.get(&key.namespace, &name(&key.name, kind)).await?;
        Ok(object.map(|object| match kind.owned().is_metadata_only {
            true => json!({"metadata": Resource::meta(&object)}),
            false => serde_json::to_value(&object).unwrap_or_default(),
        }))
    }
}

/// Remembers what this version of a Secret holds.
pub(super) fn note_content(memory: &mut Memory, kind: OwnedObject, secret: &Secret, db: &ClusteredDatabase) {
    let chosen = db.spec.initdb().password_secret_ref.is_some();
    memory.checked.insert(kind, check(kind, secret, chosen));
}

/// Events that can be read: one that cannot tells nothing, and hides no other.
fn readable(events: ObjectList<Guarded<Event>>) -> Vec<Event> {
    events.items.into_iter().filter_map(|event| event.0.ok()).collect()
}

/// The newest failure of each pod that is recent enough.
fn latest(events: &[Event], now: DateTime<Utc>) -> BTreeMap<String, (DateTime<Utc>, String)> {
    let mut latest: BTreeMap<String, (DateTime<Utc>, String)> = BTreeMap::new();
    for event in events {
        let Some(message) = event.message.clone() else { continue };
        let Some(at) = happened(event) else { continue };
        // "create Pod db-1 in StatefulSet db failed error: …", "create Claim data-db-1 for Pod db-1 in StatefulSet …"
        let mut words = message.split_whitespace().skip_while(|word| *word != "Pod").skip(1);
        let Some(pod) = words.next().map(str::to_owned) else {
            continue;
        };
        if now - at < EVENT_COUNTS && latest.get(&pod).is_none_or(|(other, _)| *other < at) {
            latest.insert(pod, (at, message));
        }
    }
    latest
}

/// When it happened last.
fn happened(event: &Event) -> Option<DateTime<Utc>> {
    let micro = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref())
        .or(event.event_time.as_ref());
    match (&event.last_timestamp, micro) {
        (Some(last), _) => Some(time(last)),
        (None, Some(micro)) => DateTime::from_timestamp_millis(micro.0.as_millisecond()),
        (None, None) => None,
    }
}

/// The newest warning about a pod that has a node. What the scheduler said is over.
fn warning(events: &[Event], now: DateTime<Utc>) -> Option<Trouble> {
    let told = events
        .iter()
        .filter(|event| event.reason.as_deref() != Some("FailedScheduling"));
    let dated = told.filter_map(|event| Some((happened(event)?, event)));
    let newest = dated
        .filter(|(at, _)| now - *at < EVENT_COUNTS)
        .max_by_key(|(at, _)| *at);
    let (_, event) = newest?;
    let (reason, message) = (event.reason.clone()?, event.message.clone().unwrap_or_default());
    Some(Trouble {
        message: format!("{reason}: {message}"),
        reason,
    })
}

fn kind_of(message: &str) -> FaultKind {
    if message.contains("exceeded quota") {
        FaultKind::Quota
    } else if message.contains("forbidden") {
        FaultKind::Forbidden
    } else if message.contains("is invalid") {
        FaultKind::Invalid
    } else {
        FaultKind::Transient
    }
}

#[cfg(test)]
mod tests;
