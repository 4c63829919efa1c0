//! What becomes of the operator's actions.

use super::super::scene::{bare_of, child_uid, empty_lease, set, wal_claim};
use super::{Resizes, World, resources_of};
use crate::cluster::{
    Action, Apply, ApplyHow, ChildKind, ChildState, Claim, Exact, FaultKind, Growth, Known, Pod, PodMark, Volume,
    WalVolumes,
};
use crate::protocol::Release;

impl World {
    /// Carries an action out.
    ///
    /// # Errors
    /// When the API server or a webhook refuses it.
    pub(super) fn execute(&mut self, action: &Action) -> Result<(), FaultKind> {
        match action {
            Action::Wait(_) | Action::WriteStatus(_) => {}
            Action::AddFinalizer(_) => self.scene.finalizer = true,
            Action::RemoveFinalizer(_) => {
                self.scene.finalizer = false;
                self.gone = true;
            }
            Action::Apply(apply) if self.refused.contains(&apply.kind) => return Err(FaultKind::Forbidden),
            Action::Apply(apply) => self.apply(apply),
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
                self.make(ChildKind::Lease);
                self.scene.observed.lease = Known::Known(Some(lease));
            }
            Action::LabelPod { pod, role } => self.pod(pod).role = Some((*role).to_owned()),
            Action::MarkPod { pod, mark } => {
                let pod = self.pod(pod);
                match mark {
                    PodMark::Resizing(resizing) => pod.resizing = Some(resizing.clone()),
                    PodMark::Current { revision } => (pod.revision, pod.resizing) = (Some(revision.clone()), None),
                }
            }
            Action::ResizePod(exact) => return self.resize(exact),
            Action::ReplacePod(exact) => self.pod(exact).terminating = true,
            Action::DeleteRoleBinding(_) => self.scene.set_child(ChildKind::RoleBinding, ChildState::Missing),
            Action::DeleteNetworkPolicy(_) => self.scene.set_child(ChildKind::NetworkPolicy, ChildState::Missing),
            Action::OrphanStatefulSet(_) => self.orphan(),
            Action::MakeWalClaim { name, node } => self.make_wal_claim(name, Some(node.clone())),
            Action::DeleteStatefulSet(_) => {
                self.remove_set();
                for pod in self.scene.pods_mut() {
                    pod.terminating = true;
                }
            }
            Action::ResizeClaim { claim, .. } => {
                let (data, wal) = (self.scene.data_bytes, self.scene.wal_bytes);
                let (waits, since) = (self.grows_unmounted, self.scene.now);
                let claims = self.scene.claims_mut();
                for found in claims.iter_mut().filter(|found| found.uid == claim.uid()) {
                    assert!(found.bound, "only a volume grows");
                    found.capacity = Some(found.requested).filter(|_| waits);
                    found.growth = waits.then(|| Growth {
                        stage: "FileSystemResizePending".to_owned(),
                        message: "waiting for a pod to be started".to_owned(),
                        since,
                    });
                    found.requested = if found.volume == Volume::Wal { wal } else { data };
                }
            }
            Action::DeleteClaim(claim) => {
                let uses = |pod: &Pod| pod.wal_claim.as_deref() == Some(claim.name());
                assert!(!self.scene.pods().iter().any(uses), "a pod uses {}", claim.name());
                self.scene.claims_mut().retain(|found| found.uid != claim.uid());
            }
        }
        Ok(())
    }

    fn resize(&mut self, exact: &Exact) -> Result<(), FaultKind> {
        let uid = self.pod(exact).uid.clone();
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
    fn pod(&mut self, exact: &Exact) -> &mut Pod {
        let found = self.scene.pods_mut().iter_mut().find(|pod| pod.uid == exact.uid());
        found.unwrap_or_else(|| panic!("there is no pod {} with UID {}", exact.name(), exact.uid()))
    }

    pub(super) fn make_wal_claim(&mut self, name: &str, node: Option<String>) {
        let claims = self.scene.claims_mut();
        if claims.iter().any(|claim| claim.name == name) {
            return;
        }
        let ordinal = name
            .rsplit('-')
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
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
            ..wal_claim(ordinal, self.scene.wal_bytes)
        };
        self.scene.claims_mut().push(made);
    }

    /// A pod that the StatefulSet's controller is making at this time would go with it.
    fn orphan(&mut self) {
        let replicas = self.scene.observed.stateful_set.as_ref().map_or(0, |set| set.replicas);
        let current = matches!(
            self.scene.observed.children[ChildKind::StatefulSet],
            Known::Known(ChildState::Current { .. })
        );
        let complete = (0..replicas).all(|ordinal| self.scene.pods().iter().any(|pod| pod.ordinal == ordinal));
        assert!(!current || complete, "a pod is being made");
        self.remove_set();
    }

    fn remove_set(&mut self) {
        self.scene.set_child(ChildKind::StatefulSet, ChildState::Missing);
        self.scene.observed.stateful_set = None;
    }

    fn make(&mut self, kind: ChildKind) {
        let missing = self.scene.observed.children[kind] == Known::Known(ChildState::Missing);
        assert!(missing, "{kind:?} is made twice");
        self.scene.set_child(kind, ChildState::Current { uid: child_uid(kind) });
    }

    fn apply(&mut self, apply: &Apply) {
        match apply.how {
            ApplyHow::Make => self.make(apply.kind),
            ApplyHow::Change(_) | ApplyHow::Renew(_) => {
                self.scene.set_child(
                    apply.kind,
                    ChildState::Current {
                        uid: child_uid(apply.kind),
                    },
                );
            }
        }
        if apply.kind == ChildKind::Lease {
            self.scene.observed.lease = Known::Known(Some(empty_lease()));
        }
        if apply.kind == ChildKind::StatefulSet {
            let before = self.scene.observed.stateful_set.as_ref().map(|set| set.wal);
            let mut new = set(apply.replicas.unwrap_or(0));
            let asked = self.scene.spec.storage.wal.is_some();
            new.wal = apply.wal.or(before).filter(|_| asked).unwrap_or_default();
            let kept = before.is_none_or(|before| {
                [before, new.wal]
                    .iter()
                    .all(|wal| *wal != WalVolumes::Templated || before == new.wal)
            });
            assert!(kept, "claim templates cannot be changed");
            let bare = new.wal == WalVolumes::Withheld;
            self.template = if bare {
                bare_of(&self.scene.revision)
            } else {
                self.scene.revision.clone()
            };
            self.scene.observed.stateful_set = Some(new);
        }
    }
}
