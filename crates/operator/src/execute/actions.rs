//! Each action, carried out as it stands.

use api::names::{FINALIZER, LABEL_ROLE, LEASE_RELEASE, LEASE_SYSTEM_ID};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::PropagationPolicy;
use machine::cluster::{Action, Exact, FaultKind};
use machine::protocol::{Epoch, MemberId, Release};
use serde_json::json;

use super::{Executor, Failure, Outcome, Situation};
use crate::builders::{Subject, lease};
use crate::cache::{Cache, Key};
use crate::memory::Memory;
use crate::requests::{Deleted, Writable};

impl Executor {
    /// Carries out the decision's action.
    pub(super) async fn carry_out(
        &self,
        key: &Key,
        memory: &mut Memory,
        subject: &Subject<'_>,
        situation: &Situation,
    ) -> Result<Outcome, Failure> {
        match &situation.decision.action {
            // The status is written before this is reached.
            Action::Wait(_) | Action::WriteStatus(_) => Ok(Outcome::Done),
            Action::AddFinalizer(exact) => self.add_finalizer(key, situation, exact).await,
            Action::RemoveFinalizer(exact) => self.remove_finalizer(key, situation, exact).await,
            Action::Apply(apply) => self.apply(key, memory, subject, situation, apply).await,
            Action::RecreateLease {
                member,
                epoch,
                system_id,
            } => match self.confirm(key, situation).await? {
                Outcome::Done => self.recreate_lease(subject, member, *epoch, system_id).await,
                changed => Ok(changed),
            },
            Action::LabelPod { pod, role } => {
                let change = json!({"metadata": {"labels": {LABEL_ROLE: role}}});
                let pod: Pod = self.requests.merge(&key.namespace, pod, change).await?;
                self.caches.pods.put(pod);
                Ok(Outcome::Done)
            }
            Action::ReplacePod(exact) => {
                self.remove::<Pod>(key, situation, &self.caches.pods, exact, PropagationPolicy::Background)
                    .await
            }
            Action::OrphanStatefulSet(exact) => {
                let sets = &self.caches.stateful_sets;
                self.remove::<StatefulSet>(key, situation, sets, exact, PropagationPolicy::Orphan)
                    .await
            }
            Action::DeleteStatefulSet(exact) => {
                let sets = &self.caches.stateful_sets;
                self.remove::<StatefulSet>(key, situation, sets, exact, PropagationPolicy::Background)
                    .await
            }
            Action::ResizeClaim { claim, size } => {
                let change = json!({"spec": {"resources": {"requests": {"storage": size}}}});
                let claim: PersistentVolumeClaim = self.requests.merge(&key.namespace, claim, change).await?;
                self.caches.claims.put(claim);
                Ok(Outcome::Done)
            }
            Action::DeleteClaim(exact) => {
                let claims = &self.caches.claims;
                self.remove::<PersistentVolumeClaim>(key, situation, claims, exact, PropagationPolicy::Background)
                    .await
            }
        }
    }

    async fn add_finalizer(&self, key: &Key, situation: &Situation, exact: &Exact) -> Result<Outcome, Failure> {
        let mut finalizers = situation.db.finalizers().to_vec();
        finalizers.push(FINALIZER.to_owned());
        let change = json!({"metadata": {"finalizers": finalizers}});
        let db = self.requests.merge(&key.namespace, exact, change).await?;
        self.caches.databases.put(db);
        Ok(Outcome::Done)
    }

    async fn remove_finalizer(&self, key: &Key, situation: &Situation, exact: &Exact) -> Result<Outcome, Failure> {
        let mut finalizers = situation.db.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != FINALIZER);
        let last = finalizers.is_empty();
        let change = json!({"metadata": {"finalizers": finalizers}});
        let db: api::ClusteredDatabase = self.requests.merge(&key.namespace, exact, change).await?;
        if last {
            self.caches.databases.forget(key, &key.name, exact.uid());
        } else {
            self.caches.databases.put(db);
        }
        Ok(Outcome::Done)
    }

    async fn recreate_lease(
        &self,
        subject: &Subject<'_>,
        member: &MemberId,
        epoch: Epoch,
        system_id: &str,
    ) -> Result<Outcome, Failure> {
        let release = Release {
            member: member.clone(),
            position: None,
        };
        let release = serde_json::to_string(&release).map_err(|error| Failure {
            kind: FaultKind::Invalid,
            message: format!("write the release: {error}"),
        })?;
        let mut lease = lease::lease(subject);
        lease.metadata.annotations = Some(
            [
                (LEASE_RELEASE.to_owned(), release),
                (LEASE_SYSTEM_ID.to_owned(), system_id.to_owned()),
            ]
            .into(),
        );
        lease.spec.get_or_insert_default().lease_transitions = i32::try_from(epoch.0).ok();
        let lease = self.requests.create(&subject.namespace, &lease).await?;
        self.caches.leases.put(lease);
        Ok(Outcome::Done)
    }

    /// Deletes one object, after reading the resource and the Lease once more.
    async fn remove<K: Writable + ResourceExt>(
        &self,
        key: &Key,
        situation: &Situation,
        cache: &Cache<K>,
        exact: &Exact,
        propagation: PropagationPolicy,
    ) -> Result<Outcome, Failure> {
        let confirmed = self.confirm(key, situation).await?;
        if confirmed != Outcome::Done {
            return Ok(confirmed);
        }
        match self.requests.delete::<K>(&key.namespace, exact, propagation).await? {
            Deleted::Gone => cache.forget(key, exact.name(), exact.uid()),
            Deleted::Going(object) => cache.put(*object),
        }
        Ok(Outcome::Done)
    }
}
