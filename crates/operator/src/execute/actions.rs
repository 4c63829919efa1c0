//! Each action, carried out as it stands.

use std::collections::BTreeMap;

use api::backup::{BackupKind, BackupSource, DatabaseBackupSpec};
use api::names::{
    ANNOTATION_RESIZING, ANNOTATION_REVISION, FINALIZER, LABEL_CLUSTER_UID, LABEL_ROLE, LEASE_LOSSY, LEASE_RELEASE,
    LEASE_RULE, LEASE_SYSTEM_ID, LEASE_TIMELINE, LEASE_VOLUMES,
};
use api::operation::ClusterReference;
use api::{ClusteredDatabase, DatabaseBackup};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceRequirements, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::ResourceExt;
use kube::api::PropagationPolicy;
use kube::core::metadata::PartialObjectMetaExt;
use machine::cluster::{Action, FaultKind, LeaseChange, ObjectVersion, OwnedObject, PodMark, Resources};
use machine::lease_object;
use machine::protocol::Release;
use serde_json::{Value, json};

use super::{Executor, Failure, Outcome, Seen};
use crate::builders::stateful_set::{data_claim_from, wal_claim};
use crate::builders::volume_snapshot::{VolumeSnapshot, volume_snapshot};
use crate::builders::{Subject, lease, resources};
use crate::cache::{Cache, Key};
use crate::memory::Memory;
use crate::observe::{self, noted_as};
use crate::requests::{Deleted, Refused, Writable};

impl Executor {
    /// Carries out an action.
    pub(super) async fn carry_out(
        &self,
        key: &Key,
        memory: &mut Memory,
        subject: &Subject<'_>,
        seen: &Seen,
        action: &Action,
    ) -> Result<Outcome, Failure> {
        match action {
            // The status is written before this is reached.
            Action::Wait(_) | Action::WriteStatus(_) => Ok(Outcome::Done),
            Action::AddFinalizer(exact) => self.add_finalizer(key, seen, exact).await,
            Action::RemoveFinalizer(exact) => self.remove_finalizer(key, seen, exact).await,
            Action::Apply(apply) => self.apply(key, memory, subject, seen, apply).await,
            Action::ChangeLease(exact, change) => self.change_lease(key, exact, *change).await,
            action @ Action::RecreateLease { .. } => self.recreate_lease(subject, action).await,
            Action::LabelPod { pod, role } => {
                let change = json!({"metadata": {"labels": {LABEL_ROLE: role}}});
                let pod: Pod = self.requests.merge(&key.namespace, pod, change).await?;
                self.caches.pods.put(pod);
                Ok(Outcome::Done)
            }
            Action::MarkPod { pod, mark } => {
                let change = json!({"metadata": {"annotations": noted(mark)}});
                let pod: Pod = self.requests.merge(&key.namespace, pod, change).await?;
                self.caches.pods.put(pod);
                Ok(Outcome::Done)
            }
            Action::ResizePod(exact) => {
                let change = resources::resize(subject.db.spec.resources.as_ref());
                let pod = self.requests.resize(&key.namespace, exact, change).await?;
                let taken = took(&pod, subject.db.spec.resources.as_ref());
                self.caches.pods.put(pod);
                taken
            }
            Action::ReplacePod(exact) => {
                self.remove::<Pod>(key, &self.caches.pods, exact, PropagationPolicy::Background)
                    .await
            }
            Action::DeleteChild(kind, exact) => self.remove_child(key, *kind, exact).await,
            Action::OrphanStatefulSet(exact) => {
                let sets = &self.caches.stateful_sets;
                self.remove::<StatefulSet>(key, sets, exact, PropagationPolicy::Orphan)
                    .await
            }
            Action::DeleteStatefulSet(exact) => {
                let sets = &self.caches.stateful_sets;
                self.remove::<StatefulSet>(key, sets, exact, PropagationPolicy::Background)
                    .await
            }
            Action::MakeWalClaim { name, node } => {
                let Some(claim) = wal_claim(subject, name, node) else {
                    return Ok(Outcome::Outdated);
                };
                let claim = self.requests.create(&key.namespace, &claim).await?;
                self.caches.claims.put(claim);
                Ok(Outcome::Done)
            }
            Action::ResizeClaim { claim, size } => {
                let change = json!({"spec": {"resources": {"requests": {"storage": size}}}});
                let claim: PersistentVolumeClaim = self.requests.merge(&key.namespace, claim, change).await?;
                self.caches.claims.put(claim);
                Ok(Outcome::Done)
            }
            Action::UpdateClaim(claim) => {
                let wanted = seen.db.spec.storage.volume(claim.name());
                let metadata = wanted.map(|wanted| &wanted.metadata);
                let class = wanted.and_then(|wanted| wanted.volume_attributes_class_name.as_ref());
                let mut change = json!({"metadata": metadata});
                if let Some(class) = class {
                    change["spec"] = json!({"volumeAttributesClassName": class});
                }
                let claim: PersistentVolumeClaim = self.requests.merge(&key.namespace, claim, change).await?;
                self.caches.claims.put(claim);
                Ok(Outcome::Done)
            }
            Action::AdoptClaim(claim) => {
                let change = json!({"metadata": {"labels": {LABEL_CLUSTER_UID: subject.uid}}});
                let claim: PersistentVolumeClaim = self.requests.merge(&key.namespace, claim, change).await?;
                self.caches.claims.put(claim);
                Ok(Outcome::Done)
            }
            Action::MakeDataClaim { name, snapshot } => {
                let claim = data_claim_from(subject, name, snapshot);
                let claim = self.requests.create(&key.namespace, &claim).await?;
                self.caches.claims.put(claim);
                Ok(Outcome::Done)
            }
            Action::MakeSnapshot { name, claim } => {
                let snapshot = volume_snapshot(subject, name, claim);
                match self.requests.create(&key.namespace, &snapshot).await {
                    Err(Refused::NotFound(message)) => Err(Failure {
                        kind: FaultKind::Invalid,
                        message: format!(
                            "this Kubernetes cluster has no VolumeSnapshots, or not in this namespace: {message}"
                        ),
                    }),
                    Err(error) if error.kind() != FaultKind::Conflict => Err(error.into()),
                    // No watch brings it.
                    Ok(_) | Err(_) => Ok(Outcome::Done),
                }
            }
            Action::DeleteSnapshot(exact) => {
                let how = PropagationPolicy::Background;
                self.requests
                    .delete::<VolumeSnapshot>(&key.namespace, exact, how)
                    .await?;
                Ok(Outcome::Done)
            }
            Action::MakeBackup { name, source, kind } => self.make_backup(key, name, *source, *kind).await,
            Action::MakeDrill { name, backup } => self.make_drill(key, subject, name, backup.clone()).await,
            Action::DeleteDrill(exact) => {
                let how = PropagationPolicy::Background;
                self.requests
                    .delete::<ClusteredDatabase>(&key.namespace, exact, how)
                    .await?;
                // As where it was made.
                Ok(Outcome::NotYet)
            }
            Action::DeleteClaim(exact) => {
                let claims = &self.caches.claims;
                self.remove::<PersistentVolumeClaim>(key, claims, exact, PropagationPolicy::Background)
                    .await
            }
        }
    }

    /// Makes a DatabaseBackup, which outlives the database.
    async fn make_backup(
        &self,
        key: &Key,
        name: &str,
        source: BackupSource,
        kind: BackupKind,
    ) -> Result<Outcome, Failure> {
        let spec = DatabaseBackupSpec {
            cluster_ref: ClusterReference { name: key.name.clone() },
            kind,
            source,
        };
        let Some(made) = self.make_once(key, &DatabaseBackup::new(name, spec)).await? else {
            return Ok(Outcome::NotYet);
        };
        self.caches.backups.put(made);
        self.caches.note_asking(&Key::backup(&*key.namespace, name));
        Ok(Outcome::Done)
    }

    /// Makes the ClusteredDatabase of a drill, which goes with this one.
    async fn make_drill(
        &self,
        key: &Key,
        subject: &Subject<'_>,
        name: &str,
        backup: Option<String>,
    ) -> Result<Outcome, Failure> {
        let Some(spec) = machine::drill::spec(&key.name, &subject.uid, &subject.db.spec, backup) else {
            return Ok(Outcome::Outdated);
        };
        let mut drill = ClusteredDatabase::new(name, spec);
        drill.metadata = subject.meta(name.to_owned());
        drill.metadata.labels = None;
        self.make_once(key, &drill).await?;
        // It stays out of the cache until the watch brings it: what the cache has is no news, and the drill would not be reconciled.
        Ok(Outcome::NotYet)
    }

    /// Makes an object; `None` if one of its name was made before, which the watch will show.
    async fn make_once<K: Writable>(&self, key: &Key, object: &K) -> Result<Option<K>, Failure> {
        match self.requests.create(&key.namespace, object).await {
            Err(error) if error.kind() == FaultKind::Conflict => Ok(None),
            made => Ok(Some(made?)),
        }
    }

    async fn add_finalizer(&self, key: &Key, seen: &Seen, exact: &ObjectVersion) -> Result<Outcome, Failure> {
        let mut finalizers = seen.db.finalizers().to_vec();
        finalizers.push(FINALIZER.to_owned());
        let change = json!({"metadata": {"finalizers": finalizers}});
        let db = self.requests.merge(&key.namespace, exact, change).await?;
        self.caches.databases.put(db);
        Ok(Outcome::Done)
    }

    async fn remove_finalizer(&self, key: &Key, seen: &Seen, exact: &ObjectVersion) -> Result<Outcome, Failure> {
        let mut finalizers = seen.db.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != FINALIZER);
        let last = finalizers.is_empty();
        let change = json!({"metadata": {"finalizers": finalizers}});
        let db: ClusteredDatabase = self.requests.merge(&key.namespace, exact, change).await?;
        if last {
            self.caches.databases.forget(key, &key.name, exact.uid());
        } else {
            self.caches.databases.put(db);
        }
        Ok(Outcome::Done)
    }

    async fn change_lease(&self, key: &Key, exact: &ObjectVersion, change: LeaseChange) -> Result<Outcome, Failure> {
        let Some(lease) = self.caches.leases.get(key, exact.name()).flatten() else {
            return Ok(Outcome::Outdated);
        };
        let annotations = match change {
            LeaseChange::Volumes(set) => lease_object::volumes_changed(&lease, set),
            LeaseChange::ForgetFormer => lease_object::former_forgotten(&lease),
        };
        let annotations = annotations.map_err(|error| Failure {
            kind: FaultKind::Invalid,
            message: format!("understand the Lease: {error}"),
        })?;
        let change = json!({"metadata": {"annotations": annotations}});
        let lease: Lease = self.requests.merge(&key.namespace, exact, change).await?;
        self.caches.leases.put(lease);
        Ok(Outcome::Done)
    }

    async fn recreate_lease(&self, subject: &Subject<'_>, action: &Action) -> Result<Outcome, Failure> {
        let lease = recreated_lease(subject, action).map_err(|error| Failure {
            kind: FaultKind::Invalid,
            message: format!("write the Lease: {error}"),
        })?;
        let Some(lease) = lease else {
            return Ok(Outcome::Done);
        };
        let lease = self.requests.create(&subject.namespace, &lease).await?;
        self.caches.leases.put(lease);
        Ok(Outcome::Done)
    }

    /// Deletes one object.
    async fn remove_child(&self, key: &Key, kind: OwnedObject, exact: &ObjectVersion) -> Result<Outcome, Failure> {
        let (caches, how) = (&self.caches, PropagationPolicy::Background);
        match kind {
            OwnedObject::RoleBinding => self.remove::<RoleBinding>(key, &caches.role_bindings, exact, how).await,
            OwnedObject::NetworkPolicy => {
                self.remove::<NetworkPolicy>(key, &caches.network_policies, exact, how)
                    .await
            }
            OwnedObject::Lease => self.remove::<Lease>(key, &caches.leases, exact, how).await,
            OwnedObject::CaSecret | OwnedObject::AppSecret => {
                match self.requests.delete::<Secret>(&key.namespace, exact, how).await? {
                    Deleted::Gone => caches.secrets.forget(key, exact.name(), exact.uid()),
                    Deleted::Going(secret) => caches.secrets.put(secret.metadata.into_response_partial::<Secret>()),
                }
                Ok(Outcome::Done)
            }
            other => Err(Failure {
                kind: FaultKind::Invalid,
                message: format!("a {} is not deleted by itself", other.kind()),
            }),
        }
    }

    async fn remove<K: Writable>(
        &self,
        key: &Key,
        cache: &Cache<K>,
        exact: &ObjectVersion,
        propagation: PropagationPolicy,
    ) -> Result<Outcome, Failure> {
        match self.requests.delete::<K>(&key.namespace, exact, propagation).await? {
            Deleted::Gone => cache.forget(key, exact.name(), exact.uid()),
            Deleted::Going(object) => cache.put(*object),
        }
        Ok(Outcome::Done)
    }
}

/// What came of a request that asked for these resources, by the pod that was answered. One that still asks for others
/// would be asked for ever: somebody rewrites such requests.
fn took(pod: &Pod, wanted: Option<&ResourceRequirements>) -> Result<Outcome, Failure> {
    match observe::resources(pod, wanted) {
        Resources::Other | Resources::MoreMemory => Err(Failure {
            kind: FaultKind::Invalid,
            message:
                "the API server took the request, and the pod asks for other cpu or memory all the same: an admission \
                      webhook or policy may rewrite it"
                    .to_owned(),
        }),
        Resources::Asked { .. } | Resources::Given | Resources::Refused { .. } => Ok(Outcome::Done),
    }
}

/// The annotations that say `mark`; one that is `null` goes.
fn noted(mark: &PodMark) -> Value {
    match mark {
        PodMark::Resizing(resizing) => json!({ANNOTATION_RESIZING: noted_as(resizing)}),
        PodMark::Current { revision } => json!({ANNOTATION_REVISION: revision, ANNOTATION_RESIZING: null}),
    }
}

/// The Lease that [`Action::RecreateLease`] asks for.
fn recreated_lease(subject: &Subject<'_>, action: &Action) -> Result<Option<Lease>, serde_json::Error> {
    let Action::RecreateLease {
        member,
        epoch,
        system_id,
        rule,
        timeline,
        lossy,
    } = action
    else {
        return Ok(None);
    };
    let release = Release {
        member: member.clone(),
        position: None,
        successor: None,
    };
    let mut annotations = BTreeMap::from([
        (LEASE_RELEASE.to_owned(), serde_json::to_string(&release)?),
        (LEASE_SYSTEM_ID.to_owned(), system_id.clone()),
        (LEASE_LOSSY.to_owned(), serde_json::to_string(lossy)?),
    ]);
    if rule.is_synchronous() {
        annotations.insert(LEASE_RULE.to_owned(), serde_json::to_string(rule)?);
    }
    if let Some(timeline) = timeline {
        annotations.insert(LEASE_TIMELINE.to_owned(), serde_json::to_string(timeline)?);
    }
    let mut lease = lease::lease(subject);
    annotations
        .extend(lease_object::volumes_of(subject.volume_set()).map(|volumes| (LEASE_VOLUMES.to_owned(), volumes)));
    lease.metadata.annotations = Some(annotations);
    lease.spec.get_or_insert_default().lease_transitions = Some(epoch.transitions());
    Ok(Some(lease))
}

#[cfg(test)]
mod tests {
    use machine::protocol::{Epoch, MemberId, Timeline};
    use machine::quorum::SyncRule;

    use super::*;
    use crate::builders::fixture::smallest;
    use crate::config::Config;

    #[test]
    fn a_pod_that_does_not_ask_for_what_it_was_given_is_a_failure() {
        let asks_for = |cpu: &str| {
            let resources = json!({"requests": {"cpu": cpu}});
            let spec = json!({"containers": [{"name": "postgres", "resources": resources}]});
            serde_json::from_value::<Pod>(json!({"metadata": {"name": "db-0"}, "spec": spec})).unwrap()
        };
        let wanted: ResourceRequirements = serde_json::from_value(json!({"requests": {"cpu": "2"}})).unwrap();
        assert_eq!(took(&asks_for("2000m"), Some(&wanted)), Ok(Outcome::Done));
        let rewritten = took(&asks_for("1"), Some(&wanted)).unwrap_err();
        assert_eq!(rewritten.kind, FaultKind::Invalid, "the pod is replaced then");
        assert!(rewritten.message.contains("rewrite"), "{}", rewritten.message);
    }

    #[test]
    fn a_lease_that_is_made_again_says_what_the_action_says() {
        let (db, config) = (smallest(), Config::default());
        let subject = Subject::new(&db, &config).unwrap();
        let id = |ordinal| MemberId::new(ordinal, "aaaaaaaa", 7);
        let rule = SyncRule::any(1, [id(0), id(2)]);
        let action = Action::RecreateLease {
            member: id(1),
            epoch: Epoch(5),
            system_id: "7400".to_owned(),
            rule: rule.clone(),
            timeline: Some(Timeline(3)),
            lossy: Timeline(4),
        };
        let mut lease = recreated_lease(&subject, &action).unwrap().unwrap();
        // What the API server adds.
        (lease.metadata.uid, lease.metadata.resource_version) = (Some("u".to_owned()), Some("1".to_owned()));
        let read = machine::lease_object::read(&lease).unwrap();
        assert_eq!((read.holder, read.epoch, read.rule), (None, Epoch(5), rule));
        assert_eq!(
            (read.timeline, read.system_id.as_deref()),
            (Some(Timeline(3)), Some("7400"))
        );
        assert_eq!(read.lossy, Some(Timeline(4)));
        assert_eq!(read.release.map(|release| release.member), Some(id(1)));
    }
}
