//! From what the caches hold to what a decision looks at.

mod children;
mod claims;
mod nodes;
mod pods;
mod resources;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};

use api::names::{CONTAINER, Names, parse_claim};
use api::{ClusteredDatabase, moment};
use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use machine::cluster::{
    Certificates, DrillSeen, Known, MemberCertificate, ObjectVersion, Observed, OpenBackup, OwnedObject, OwnedState,
    SourceSeen, StatefulSetView, Volume, WalVolumes, foreign_route,
};
use machine::protocol::{LeaseRecord, certificate_digest};

pub use children::{Stray, cached, children, is_ours, verdict};
pub use claims::DEFAULT_CLASS;
pub use pods::{is_starting, is_wal, noted_as};
pub use resources::resources;
pub use secrets::{Checked, check};

use crate::builders::Subject;
use crate::cache::{Key, Kind};
use crate::caches::Caches;
use crate::certificates::read;
use crate::memory::Memory;

/// Everything about one database that the caches show. `strays` are objects that had to be read from the API server.
pub fn observe(
    caches: &Caches,
    key: &Key,
    subject: &Subject<'_>,
    memory: &mut Memory,
    strays: &[Stray],
    now: DateTime<Utc>,
) -> Observed {
    let db = subject.db;
    let mut children = children(caches, key, subject, memory, strays);
    let lease = lease(caches, key, &mut children[OwnedObject::Lease]);
    let (routed, addresses) = (known(routed(caches, key)), known(pods::addresses(caches, key)));
    memory.foreign_route = foreign_route(memory.foreign_route.as_ref(), &routed, &addresses, now);
    let set = volume_set(db, &lease);
    let (own, others) = claims::claims(caches, key, &db.spec.storage, set).unzip();
    let others = others.unwrap_or_default();
    let mut unreadable = caches.unreadable(key);
    unreadable.extend(strays.iter().filter_map(|stray| stray.unreadable(key)));
    Observed {
        children,
        stateful_set: stateful_set(caches, key),
        pods: known(pods::pods(caches, key, db, memory, now)),
        claims: known(own),
        other_claims: others,
        unschedulable_nodes: known(nodes::cordoned(caches, key)),
        lease,
        storage_class: known(claims::storage_class(caches, db, Volume::Data)),
        wal_storage_class: known(claims::storage_class(caches, db, Volume::Wal)),
        certificates: certificates(db, memory, clients(caches, key)),
        namespace_terminating: false,
        namespace_unread: false,
        foreign_route: memory.foreign_route.clone(),
        scheduled: known(scheduled(caches, key, db)),
        drill: known(drill(caches, key, subject)),
        recovery_source: known(recovery_source(caches, key, db)),
        snapshots: BTreeMap::new(),
        final_backup: known(final_backup(caches, key, db)),
        unreadable,
        faults: memory
            .pass
            .faults()
            .values()
            .chain(memory.unmade_pods.values())
            .cloned()
            .collect(),
    }
}

/// The set of volumes that the database runs on. Before its status says anything of it, the Lease knows.
fn volume_set(db: &ClusteredDatabase, lease: &Known<Option<LeaseRecord>>) -> u32 {
    let recorded = db.status.as_ref().and_then(|status| status.memo.volumes.as_ref());
    match (recorded, lease) {
        (Some(sets), _) => sets.current,
        (None, Known::Known(Some(lease))) => lease.volume_set,
        (None, Known::Known(None) | Known::Unknown) => 0,
    }
}

/// The DatabaseBackups that exist, of those that schedules are making.
fn scheduled(caches: &Caches, key: &Key, db: &ClusteredDatabase) -> Option<BTreeSet<String>> {
    if !caches.backups.is_listed() {
        return None;
    }
    let runs = db.status.iter().flat_map(|status| status.memo.schedules.values());
    let making = runs.filter_map(|run| run.making.clone());
    let exists = |name: &String| caches.backups.has(&Key::backup(&*key.namespace, &**name));
    Some(making.filter(exists).collect())
}

/// The ClusteredDatabase of the name that a drill has.
fn drill(caches: &Caches, key: &Key, subject: &Subject<'_>) -> Option<Option<DrillSeen>> {
    let run = subject.db.status.as_ref().and_then(|status| status.memo.drill.as_ref());
    let Some(name) = run.and_then(|run| run.name.as_deref()) else {
        return Some(None);
    };
    let Some(found) = caches.databases.own(&Key::database(&*key.namespace, name))? else {
        return Some(None);
    };
    let status = found.status.clone().unwrap_or_default();
    let waits = status.waiting.map(|waiting| waiting.what);
    Some(Some(DrillSeen {
        exact: ObjectVersion::of_any_version(name, found.uid().unwrap_or_default()),
        is_ours: found.owner_references().iter().any(|owner| owner.uid == subject.uid),
        terminating: found.metadata.deletion_timestamp.is_some(),
        phase: status.phase,
        message: status.failure.map(|failure| failure.message).or(waits),
    }))
}

/// The ClusteredDatabase that this one is recovered from.
fn recovery_source(caches: &Caches, key: &Key, db: &ClusteredDatabase) -> Option<Option<SourceSeen>> {
    let Some(name) = db.spec.recovered_from() else {
        return Some(None);
    };
    let found = caches.databases.own(&Key::database(&*key.namespace, name))?;
    Some(found.map(|found| SourceSeen {
        uid: found.uid().unwrap_or_default(),
        backup: found.spec.backup.clone(),
    }))
}

/// The last backup before the deletion.
fn final_backup(caches: &Caches, key: &Key, db: &ClusteredDatabase) -> Option<Option<OpenBackup>> {
    let Some(memo) = db.status.as_ref().and_then(|status| status.memo.final_backup.as_ref()) else {
        return Some(None);
    };
    let Some(found) = caches.backups.own(&Key::backup(&*key.namespace, &*memo.name))? else {
        return Some(None);
    };
    let status = found.status.clone().unwrap_or_default();
    Some(Some(OpenBackup {
        phase: status.operation.phase,
        message: status.operation.message,
    }))
}

fn certificate(pem: &str) -> Option<MemberCertificate> {
    let read = read(pem)?;
    Some(MemberCertificate {
        validity: read.validity,
        issuer: read.issuer,
        digest: certificate_digest(pem.as_bytes(), b""),
    })
}

/// Who has issued the certificates of users and poolers of this database, as far as their status says it; `None` if some of them cannot
/// be read. One that is being deleted has its certificate no longer.
fn clients(caches: &Caches, key: &Key) -> Option<BTreeMap<String, String>> {
    if !caches.users.is_listed() || !caches.poolers.is_listed() {
        return None;
    }
    let mut clients = BTreeMap::new();
    for key in caches.declared_in(key) {
        let (metadata, certificate) = match key.kind {
            Kind::User => {
                let Some(user) = caches.users.own(&key)? else { continue };
                let certificate = user.status.as_ref().and_then(|status| status.certificate.clone());
                (
                    user.metadata.clone(),
                    certificate.filter(|_| user.spec.client_certificate),
                )
            }
            Kind::Pooler => {
                let Some(pooler) = caches.poolers.own(&key)? else {
                    continue;
                };
                let certificate = pooler.status.as_ref().and_then(|status| status.certificate.clone());
                (pooler.metadata.clone(), certificate)
            }
            Kind::Database | Kind::Operation | Kind::Backup | Kind::SqlDatabase => continue,
        };
        let kind = if key.kind == Kind::User {
            "DatabaseUser"
        } else {
            "Pooler"
        };
        let issuer = certificate.filter(|_| metadata.deletion_timestamp.is_none());
        clients.extend(issuer.map(|issuer| (format!("{kind} {}", key.name), issuer.issuer)));
    }
    Some(clients)
}

fn certificates(db: &ClusteredDatabase, memory: &Memory, clients: Option<BTreeMap<String, String>>) -> Certificates {
    let members = db.status.iter().flat_map(|status| &status.members);
    let checked = |kind: OwnedObject| memory.checked.get(&kind);
    Certificates {
        authority: checked(OwnedObject::CaSecret).and_then(|checked| checked.authority.clone()),
        agents: checked(OwnedObject::TlsSecret).and_then(|checked| checked.agents.clone()),
        application: checked(OwnedObject::AppSecret).and_then(|checked| checked.application.clone()),
        members: members
            .filter_map(|(pod, member)| Some((pod.clone(), certificate(member.certificate.as_deref()?)?)))
            .collect(),
        clients_unread: clients.is_none(),
        clients: clients.unwrap_or_default(),
    }
}

/// A Kubernetes time as ours: the only place where the two meet. The epoch if it is out of range, which no server gives.
pub fn time(time: &Time) -> DateTime<Utc> {
    let time = DateTime::from_timestamp_millis(time.0.as_millisecond());
    time.and_then(moment::bounded).unwrap_or_default()
}

fn known<T>(value: Option<T>) -> Known<T> {
    value.map_or(Known::Unknown, Known::Known)
}

/// The addresses to which `-rw` leads.
fn routed(caches: &Caches, key: &Key) -> Option<BTreeSet<String>> {
    let slice = caches
        .endpoint_slices
        .get(key, &crate::desired::name(&key.name, OwnedObject::EndpointSlice))?;
    let endpoints = slice.iter().flat_map(|slice| &slice.endpoints);
    Some(endpoints.flat_map(|endpoint| endpoint.addresses.clone()).collect())
}

fn stateful_set(caches: &Caches, key: &Key) -> Option<StatefulSetView> {
    let set = caches
        .stateful_sets
        .get(key, &crate::desired::name(&key.name, OwnedObject::StatefulSet))??;
    if set.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let replicas = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
    Some(StatefulSetView {
        wal: wal_volumes(caches, key)?,
        uid: set.metadata.uid.clone()?,
        resource_version: set.metadata.resource_version.clone()?,
        replicas: u32::try_from(replicas).unwrap_or(0),
    })
}

/// Which pods the StatefulSet that is there gives a WAL volume.
pub fn wal_volumes(caches: &Caches, key: &Key) -> Option<WalVolumes> {
    let set = caches
        .stateful_sets
        .get(key, &crate::desired::name(&key.name, OwnedObject::StatefulSet))??;
    let spec = set.spec.as_ref()?;
    let mut templates = spec.volume_claim_templates.iter().flatten();
    if templates.any(|claim| claim.metadata.name.as_deref().is_some_and(pods::is_wal)) {
        return Some(WalVolumes::Templated);
    }
    let named = spec.template.spec.as_ref().and_then(pods::wal_claim);
    let pod = named.as_deref().and_then(parse_claim).map(|(_, _, pod)| pod);
    let ordinal = pod.and_then(|pod| Names::new(&key.name).ordinal(pod));
    Some(ordinal.map_or(WalVolumes::Withheld, WalVolumes::Of))
}

/// The image with PostgreSQL of the StatefulSet's template; `None` without one.
pub fn running_image(caches: &Caches, key: &Key) -> Option<String> {
    let name = crate::desired::name(&key.name, OwnedObject::StatefulSet);
    let set = caches.stateful_sets.get(key, &name)??;
    let containers = &set.spec.as_ref()?.template.spec.as_ref()?.containers;
    let postgres = containers.iter().find(|container| container.name == CONTAINER)?;
    postgres.image.clone()
}

/// The Lease's content. One that cannot be understood is like one that cannot be read, and `state` says what is wrong with it.
fn lease(caches: &Caches, key: &Key, state: &mut Known<OwnedState>) -> Known<Option<LeaseRecord>> {
    let name = crate::desired::name(&key.name, OwnedObject::Lease);
    match caches.leases.get(key, &name) {
        None => Known::Unknown,
        Some(None) => Known::Known(None),
        Some(Some(lease)) => match machine::lease_object::read(&lease) {
            Ok(record) => Known::Known(Some(record)),
            Err(error) => {
                if let Known::Known(OwnedState::Current { uid } | OwnedState::Drifted { uid, .. }) = state {
                    let source =
                        std::error::Error::source(&error).map_or(String::new(), |source| format!(": {source}"));
                    *state = Known::Known(OwnedState::Damaged {
                        uid: std::mem::take(uid),
                        resource_version: lease.metadata.resource_version.clone().unwrap_or_default(),
                        what: format!("cannot be understood: {error}{source}"),
                        recoverable: false,
                    });
                }
                Known::Unknown
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_image_that_runs_is_the_templates() {
        let caches = Caches::default();
        let key = Key::database("ns", "db");
        caches.stateful_sets.observe(Event::Init);
        caches.stateful_sets.observe(Event::InitDone);
        assert_eq!(running_image(&caches, &key), None, "there is no StatefulSet");
        let containers = json!([{"name": "other", "image": "a:1"}, {"name": CONTAINER, "image": "b:2"}]);
        let name = crate::desired::name(&key.name, OwnedObject::StatefulSet);
        let set = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": "1",
                "labels": {api::names::LABEL_CLUSTER: "db"}},
            "spec": {"serviceName": "s", "selector": {}, "template": {"spec": {"containers": containers}}},
        }));
        caches.stateful_sets.observe(Event::Apply(set.unwrap()));
        assert_eq!(running_image(&caches, &key).as_deref(), Some("b:2"));
    }
}
