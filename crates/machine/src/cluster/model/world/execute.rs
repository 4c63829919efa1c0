//! What becomes of the operator's actions.

use api::Phase;
use api::names::{Names, parse_claim};
use api::operation::OperationPhase;

use super::super::scene::{NAME, UID, bare_of, child_uid, empty_lease, set, wal_claim};
use super::{Resizes, World, resources_of};
use crate::cluster::{
    Action, Apply, ApplyHow, Claim, DrillSeen, FaultKind, Growth, Known, LeaseChange, ObjectVersion, OpenBackup,
    OwnedObject, OwnedState, Pod, PodMark, SnapshotSeen, Volume, WalVolumes,
};
use crate::protocol::{LeaseRecord, Release};

impl World {
    /// Carries an action out.
    ///
    /// # Errors
    /// When the API server or a webhook refuses it, or when it is [impossible](World::impossible).
    pub(super) fn execute(&mut self, action: &Action) -> Result<(), FaultKind> {
        match action {
            Action::Wait(_) | Action::WriteStatus(_) => {}
            Action::AddFinalizer(_) => self.scene.finalizer = true,
            Action::RemoveFinalizer(_) => {
                self.scene.finalizer = false;
                self.gone = true;
            }
            Action::Apply(apply) if self.refused.contains(&apply.kind) => return Err(FaultKind::Forbidden),
            Action::Apply(apply) => self.apply(apply)?,
            Action::RecreateLease {
                member,
                epoch,
                system_id,
                rule,
                timeline,
                lossy,
            } => {
                let mut lease = empty_lease();
                (lease.epoch, lease.system_id) = (*epoch, Some(system_id.clone()));
                (lease.rule, lease.timeline, lease.lossy) = (rule.clone(), *timeline, Some(*lossy));
                lease.release = Some(Release {
                    member: member.clone(),
                    position: None,
                    successor: None,
                });
                self.make(OwnedObject::Lease)?;
                self.scene.observed.lease = Known::Known(Some(lease));
            }
            Action::ChangeLease(_, LeaseChange::Volumes(to)) => self.change_volumes(*to)?,
            Action::ChangeLease(_, LeaseChange::ForgetFormer) => {
                self.former = None;
                if let Some(lease) = self.scene.lease_mut() {
                    lease.former_set = None;
                }
            }
            Action::LabelPod { pod, role } => self.pod(pod)?.role = Some((*role).to_owned()),
            Action::MarkPod { pod, mark } => {
                let pod = self.pod(pod)?;
                match mark {
                    PodMark::Resizing(resizing) => pod.resizing = Some(resizing.clone()),
                    PodMark::Current { revision } => (pod.revision, pod.resizing) = (Some(revision.clone()), None),
                }
            }
            Action::ResizePod(exact) => return self.resize(exact),
            Action::ReplacePod(exact) => self.pod(exact)?.terminating = true,
            Action::DeleteChild(kind, _) => {
                self.scene.set_child(*kind, OwnedState::Missing);
                if *kind == OwnedObject::Lease {
                    self.scene.observed.lease = Known::Known(None);
                }
            }
            Action::OrphanStatefulSet(_) => self.orphan()?,
            Action::MakeWalClaim { name, node } => self.make_wal_claim(name, Some(node.clone())),
            Action::DeleteStatefulSet(_) => {
                self.remove_set();
                for pod in self.scene.pods_mut() {
                    pod.terminating = true;
                }
            }
            Action::ResizeClaim { claim, .. } => {
                if self
                    .scene
                    .claims_mut()
                    .iter()
                    .any(|found| found.uid == claim.uid() && !found.bound)
                {
                    return self.is_impossible(format!("{} grows, and has no volume", claim.name()));
                }
                let (data, wal) = (self.scene.data_bytes, self.scene.wal_bytes);
                let (waits, since) = (self.grows_unmounted, self.scene.now);
                let claims = self.scene.claims_mut();
                for found in claims.iter_mut().filter(|found| found.uid == claim.uid()) {
                    found.capacity = Some(found.requested).filter(|_| waits);
                    found.growth = waits.then(|| Growth {
                        stage: "FileSystemResizePending".to_owned(),
                        message: "waiting for a pod to be started".to_owned(),
                        since,
                    });
                    found.requested = if found.volume == Volume::Wal { wal } else { data };
                }
            }
            Action::UpdateClaim(claim) => {
                let mut claims = self.scene.claims_mut().iter_mut();
                if let Some(found) = claims.find(|found| found.uid == claim.uid()) {
                    found.differs = false;
                }
            }
            Action::MakeBackup { name, .. } => {
                let made = self.scene.observed.scheduled.get().cloned().unwrap_or_default();
                self.scene.observed.scheduled = Known::Known(made.into_iter().chain([name.clone()]).collect());
                let last = self.scene.stored.memo.final_backup.as_ref();
                if last.is_some_and(|last| last.name == *name) {
                    let phase = Some(OperationPhase::Completed);
                    self.scene.observed.final_backup = Known::Known(Some(OpenBackup { phase, message: None }));
                }
            }
            Action::MakeDrill { name, .. } => {
                self.scene.observed.drill = Known::Known(Some(DrillSeen {
                    exact: ObjectVersion::of_any_version(name.clone(), "uid-of-the-drill"),
                    is_ours: true,
                    terminating: false,
                    phase: Some(Phase::Ready),
                    message: None,
                }));
            }
            Action::MakeSnapshot { name, .. } => {
                let made = SnapshotSeen {
                    exact: ObjectVersion::of_any_version(name.clone(), "uid-of-the-snapshot"),
                    is_ours: true,
                    terminating: false,
                    taken: true,
                    ready: true,
                    message: None,
                };
                let made = Known::Known(Some(made));
                self.scene.observed.snapshots.insert(name.clone(), made);
            }
            Action::DeleteSnapshot(exact) => {
                let name = exact.name().to_owned();
                self.scene.observed.snapshots.insert(name, Known::Known(None));
            }
            Action::MakeDataClaim { name, .. } => {
                return self.is_impossible(format!("{name} is made from a snapshot, which no spec asks for"));
            }
            Action::DeleteDrill(_) => self.scene.observed.drill = Known::Known(None),
            Action::AdoptClaim(claim) => {
                let others = std::mem::take(&mut self.scene.observed.other_claims);
                self.scene.claims_mut().extend(others);
                let mut claims = self.scene.claims_mut().iter_mut();
                if let Some(found) = claims.find(|found| found.uid == claim.uid()) {
                    found.cluster_uid = Some(UID.to_owned());
                }
            }
            Action::DeleteClaim(claim) => {
                let uses = |pod: &Pod| pod.wal_claim.as_deref() == Some(claim.name());
                if self.scene.pods().iter().any(uses) {
                    return self.is_impossible(format!("{} is deleted, and a pod uses it", claim.name()));
                }
                self.scene.claims_mut().retain(|found| found.uid != claim.uid());
                self.scene
                    .observed
                    .other_claims
                    .retain(|found| found.uid != claim.uid());
            }
        }
        Ok(())
    }

    /// As [`crate::lease_object::volumes_changed`].
    fn change_volumes(&mut self, to: u32) -> Result<(), FaultKind> {
        if !self.scene.pods().is_empty() {
            return self.is_impossible("volumes are changed while there are pods".to_owned());
        }
        let Some(lease) = self.scene.lease_mut() else {
            return Err(FaultKind::Conflict);
        };
        let left = lease.clone();
        if left.holder.is_some() {
            return self.is_impossible("the Lease is given away while it is held".to_owned());
        }
        let kept = self.former.take().filter(|former| former.volume_set == to);
        let new = LeaseRecord {
            epoch: left.epoch,
            timeline: left.timeline,
            lossy: left.lossy,
            volume_set: to,
            former_set: Some(left.volume_set),
            ..kept.unwrap_or_else(empty_lease)
        };
        self.former = Some(left);
        self.scene.observed.lease = Known::Known(Some(new));
        Ok(())
    }

    fn resize(&mut self, exact: &ObjectVersion) -> Result<(), FaultKind> {
        let uid = self.pod(exact)?.uid.clone();
        let taken = match self.resizes {
            Resizes::Refused => return Err(FaultKind::Invalid),
            Resizes::Rewritten => "rewritten",
            Resizes::Done | Resizes::Infeasible | Resizes::Deferred => resources_of(&self.scene.revision),
        };
        if let Some((asked, _)) = self.resources.get_mut(&uid) {
            taken.clone_into(asked);
        }
        match self.resizes {
            Resizes::Rewritten => Err(FaultKind::Invalid),
            Resizes::Done | Resizes::Refused | Resizes::Infeasible | Resizes::Deferred => Ok(()),
        }
    }

    /// The pod that an action names; with another UID the API server would refuse.
    fn pod(&mut self, exact: &ObjectVersion) -> Result<&mut Pod, FaultKind> {
        match self.scene.pods().iter().position(|pod| pod.uid == exact.uid()) {
            Some(index) => Ok(&mut self.scene.pods_mut()[index]),
            None => self.is_impossible(format!("there is no pod {} with UID {}", exact.name(), exact.uid())),
        }
    }

    /// Notes that a rule wanted what no cluster allows, and refuses it.
    fn is_impossible<T>(&mut self, what: String) -> Result<T, FaultKind> {
        self.impossible.get_or_insert(what);
        Err(FaultKind::Invalid)
    }

    pub(super) fn make_wal_claim(&mut self, name: &str, node: Option<String>) {
        let claims = self.scene.claims_mut();
        if claims.iter().any(|claim| claim.name == name) {
            return;
        }
        let (set, pod) = parse_claim(name).map_or((0, ""), |(_, set, pod)| (set, pod));
        let ordinal = Names::new(NAME).ordinal(pod).unwrap_or_default();
        self.serial += 1;
        let class = self
            .scene
            .spec
            .storage
            .wal
            .as_ref()
            .and_then(|wal| wal.storage_class_name.clone());
        let made = Claim {
            uid: format!("uid-{name}-{}", self.serial),
            bound: false,
            had_volume: false,
            created: self.scene.now,
            selected_node: node,
            class: class.or_else(|| Some("standard".to_owned())),
            set,
            name: name.to_owned(),
            ..wal_claim(ordinal, self.scene.wal_bytes)
        };
        self.scene.claims_mut().push(made);
    }

    /// A pod that the StatefulSet's controller is making at this time would go with it.
    fn orphan(&mut self) -> Result<(), FaultKind> {
        let replicas = self.scene.observed.stateful_set.as_ref().map_or(0, |set| set.replicas);
        let current = matches!(
            self.scene.observed.children[OwnedObject::StatefulSet],
            Known::Known(OwnedState::Current { .. })
        );
        let complete = (0..replicas).all(|ordinal| self.scene.pods().iter().any(|pod| pod.ordinal == ordinal));
        if current && !complete {
            return self.is_impossible("the StatefulSet is orphaned while a pod is being made".to_owned());
        }
        self.remove_set();
        Ok(())
    }

    fn remove_set(&mut self) {
        self.scene.set_child(OwnedObject::StatefulSet, OwnedState::Missing);
        self.scene.observed.stateful_set = None;
    }

    fn make(&mut self, kind: OwnedObject) -> Result<(), FaultKind> {
        if self.scene.observed.children[kind] != Known::Known(OwnedState::Missing) {
            return self.is_impossible(format!("{kind:?} is made twice"));
        }
        self.scene.set_child(kind, OwnedState::Current { uid: child_uid(kind) });
        Ok(())
    }

    fn apply(&mut self, apply: &Apply) -> Result<(), FaultKind> {
        match apply.how {
            ApplyHow::Make => self.make(apply.kind)?,
            ApplyHow::Change(_) | ApplyHow::Renew(_) | ApplyHow::Rotate(..) => {
                self.scene.set_child(
                    apply.kind,
                    OwnedState::Current {
                        uid: child_uid(apply.kind),
                    },
                );
            }
        }
        if apply.kind == OwnedObject::Lease {
            self.scene.observed.lease = Known::Known(Some(empty_lease()));
        }
        if apply.kind == OwnedObject::StatefulSet {
            let before = self.scene.observed.stateful_set.as_ref().map(|set| set.wal);
            let mut new = set(apply.replicas.unwrap_or(0));
            let asked = self.scene.spec.storage.wal.is_some();
            new.wal = apply.wal.or(before).filter(|_| asked).unwrap_or_default();
            let kept = before.is_none_or(|before| {
                [before, new.wal]
                    .iter()
                    .all(|wal| *wal != WalVolumes::Templated || before == new.wal)
            });
            if !kept {
                return self.is_impossible("claim templates are changed".to_owned());
            }
            let wanted = self.scene.stored.memo.volume_set();
            if before.is_some() && wanted != self.volume_set {
                return self.is_impossible("claim templates are changed to another set".to_owned());
            }
            self.volume_set = wanted;
            let bare = new.wal == WalVolumes::Withheld;
            self.template = if bare {
                bare_of(&self.scene.revision)
            } else {
                self.scene.revision.clone()
            };
            self.scene.observed.stateful_set = Some(new);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_that_no_cluster_allows_stops_the_world_and_is_told() {
        let mut world = World::new(1);
        let unknown = Action::ReplacePod(ObjectVersion::new("db-7", "of-nobody", "1"));
        assert_eq!(world.execute(&unknown), Err(FaultKind::Invalid));
        let told = world.impossible.clone().expect("it is told");
        assert!(told.contains("no pod db-7"), "{told}");
        assert!(!world.settle(), "the world does not go on");
    }
}
