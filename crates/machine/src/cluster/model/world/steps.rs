//! The world in single steps, for a search through all their orders: one write of an operator, whose view may be old, and
//! one move of everything else. What the API server and the executor refuse is refused here: a write that names a version
//! that is no more, and a delete if the resource or the Lease is another one than was decided upon.

use std::collections::BTreeSet;

use api::ClusteredDatabaseStatus;
use chrono::DateTime;

use super::super::scene::Scene;
use super::World;
use crate::cluster::rollout::SETTLES;
use crate::cluster::{
    Action, Apply, ApplyHow, Claim, Cluster, Decision, Known, LeaseChange, ObjectVersion, Observed, OwnedObject,
    OwnedState,
};
use crate::protocol::LeaseRecord;
use crate::reconcile::{Controller, Next, Pass};

/// A write of an operator.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// The status.
    Status(Box<ClusteredDatabaseStatus>),
    /// An action.
    Act(Action),
}

/// Why a write changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// What it names is gone, or has changed; or what it would make is there.
    Conflict,
    /// Read once more before a delete, the resource or the Lease was another.
    Outdated,
}

impl Write {
    /// What an operator that sees `seen` decides, and writes next; `None`: it waits.
    pub fn next(seen: &Scene) -> (Decision, Option<Write>) {
        let decision = seen.decide();
        let status = seen.status(&decision);
        let mut pass = Pass::default();
        let next = pass.next::<Cluster>(&seen.observed, &seen.stored, &status, &decision, seen.now);
        let write = match next {
            Next::WriteStatus => Some(Write::Status(Box::new(status))),
            Next::Confirm | Next::Perform => Some(Write::Act(decision.action.clone())),
            // The search does not let time pass: a status that may wait is written when nothing else is to do.
            Next::Sleep(_) if status != seen.stored => Some(Write::Status(Box::new(status))),
            Next::Sleep(_) => None,
        };
        (decision, write)
    }
}

/// The same version of the resource, status included.
fn is_same_resource(one: &Scene, other: &Scene) -> bool {
    one.spec == other.spec
        && one.stored == other.stored
        && (one.generation, one.deleting, one.finalizer) == (other.generation, other.deleting, other.finalizer)
        && one.request == other.request
}

fn is_same_holder(one: &Scene, other: &Scene) -> bool {
    let who = |scene: &Scene| {
        let lease = scene.observed.lease.get().cloned().flatten();
        lease.map(|LeaseRecord { uid, epoch, holder, .. }| (uid, epoch, holder))
    };
    who(one) == who(other)
}

impl World {
    /// The template of the StatefulSet that there is.
    pub fn template(&self) -> &str {
        &self.template
    }

    /// Everything but the operator moves on by a tenth of a second.
    pub fn pass(&mut self) {
        self.look();
        self.tick();
        self.trim();
    }

    /// An operator that has decided upon `seen` writes. Of a `late` write the operator has ended since: nobody reads anything
    /// before it. Without `versions` the API server compares none, and knows objects by their names.
    ///
    /// # Errors
    /// When it is refused.
    pub fn write(&mut self, seen: &Scene, write: &Write, late: bool, versions: bool) -> Result<(), Refusal> {
        let confirmed = is_same_resource(&self.scene, seen) && is_same_holder(&self.scene, seen);
        let confirms = matches!(write, Write::Act(action) if Cluster::confirms(&seen.observed, action));
        if !late && confirms && !confirmed {
            return Err(Refusal::Outdated);
        }
        if !self.takes(seen, write, versions) {
            return Err(Refusal::Conflict);
        }
        match write {
            Write::Status(status) => self.scene.stored = (**status).clone(),
            Write::Act(action) => {
                let set = self.scene.observed.stateful_set.clone();
                // What is written is what follows from the spec that was seen.
                let mut spec = std::mem::replace(&mut self.scene.spec, seen.spec.clone());
                let mut revision = std::mem::replace(&mut self.scene.revision, seen.revision.clone());
                let result = self.execute(&self.by_name(action));
                if let Some(target) = action.target() {
                    self.answered(&target, result);
                }
                std::mem::swap(&mut self.scene.spec, &mut spec);
                std::mem::swap(&mut self.scene.revision, &mut revision);
                if let (Some(before), Some(after)) = (set, &mut self.scene.observed.stateful_set)
                    && matches!(action, Action::Apply(apply) if apply.kind == OwnedObject::StatefulSet)
                {
                    let version: u32 = before.resource_version.parse().unwrap_or(0);
                    after.resource_version = (version + 1).to_string();
                }
            }
        }
        self.look();
        self.trim();
        Ok(())
    }

    /// Whether the API server finds what the write names, at the version that was seen.
    fn takes(&self, seen: &Scene, write: &Write, versions: bool) -> bool {
        let action = match write {
            Write::Status(_) => return !versions || is_same_resource(&self.scene, seen),
            Write::Act(action) => action,
        };
        let (there, known) = (&self.scene.observed, &seen.observed);
        let same_set = || there.stateful_set.is_some() && there.stateful_set == known.stateful_set;
        let same_pod = |exact: &ObjectVersion| {
            let of = |scene: &Scene| scene.pods().iter().find(|pod| pod.uid == exact.uid()).cloned();
            let named = || self.scene.pods().iter().any(|pod| pod.name == exact.name());
            (!versions && named()) || (of(&self.scene).is_some() && of(&self.scene) == of(seen))
        };
        let same_claim = |exact: &ObjectVersion| {
            let claims = |known: &Known<Vec<_>>| known.get().cloned().unwrap_or_default();
            let of = |claims: Vec<Claim>| claims.into_iter().find(|claim| claim.uid == exact.uid());
            let all = |seen: &Observed| [claims(&seen.claims), seen.other_claims.clone()].concat();
            let found = of(all(there));
            found.is_some() && found == of(all(known))
        };
        let is_missing = |kind: OwnedObject| there.children[kind] == Known::Known(OwnedState::Missing);
        match action {
            Action::Wait(_) | Action::WriteStatus(_) => true,
            Action::AddFinalizer(_) | Action::RemoveFinalizer(_) => is_same_resource(&self.scene, seen),
            Action::Apply(Apply { kind, how, .. }) => match how {
                ApplyHow::Make => is_missing(*kind),
                ApplyHow::Change(_) | ApplyHow::Renew(_) | ApplyHow::Rotate(..)
                    if *kind == OwnedObject::StatefulSet =>
                {
                    same_set()
                }
                ApplyHow::Change(_) | ApplyHow::Renew(_) | ApplyHow::Rotate(..) => !is_missing(*kind),
            },
            Action::RecreateLease { .. } => is_missing(OwnedObject::Lease),
            Action::ChangeLease(_, LeaseChange::Volumes(_)) => there.lease == known.lease,
            Action::ChangeLease(_, LeaseChange::ForgetFormer) => !is_missing(OwnedObject::Lease),
            Action::LabelPod { pod, .. } | Action::MarkPod { pod, .. } => same_pod(pod),
            Action::ResizePod(pod) | Action::ReplacePod(pod) => same_pod(pod),
            Action::DeleteChild(kind, _) => !is_missing(*kind),
            Action::OrphanStatefulSet(_) | Action::DeleteStatefulSet(_) => same_set(),
            Action::MakeWalClaim { .. }
            | Action::MakeDataClaim { .. }
            | Action::MakeSnapshot { .. }
            | Action::DeleteSnapshot(_)
            | Action::MakeBackup { .. }
            | Action::MakeDrill { .. }
            | Action::DeleteDrill(_) => true,
            Action::ResizeClaim { claim, .. }
            | Action::UpdateClaim(claim)
            | Action::AdoptClaim(claim)
            | Action::DeleteClaim(claim) => same_claim(claim),
        }
    }

    /// The action on the pod of that name, whichever that is: with the version that was seen it is the one that was seen.
    fn by_name(&self, action: &Action) -> Action {
        let there = |exact: &ObjectVersion| {
            let found = self.scene.pods().iter().find(|pod| pod.name == exact.name());
            found.map_or_else(
                || exact.clone(),
                |pod| ObjectVersion::new(&pod.name, &pod.uid, &pod.resource_version),
            )
        };
        match action.clone() {
            Action::LabelPod { pod, role } => Action::LabelPod { pod: there(&pod), role },
            Action::MarkPod { pod, mark } => Action::MarkPod { pod: there(&pod), mark },
            Action::ResizePod(pod) => Action::ResizePod(there(&pod)),
            Action::ReplacePod(pod) => Action::ReplacePod(there(&pod)),
            action => action,
        }
    }

    /// What has no effect any more goes, so that states that differ in it alone are one.
    pub fn trim(&mut self) {
        self.ticks = 0;
        self.writes.clear();
        let first = self.primaries.len().saturating_sub(1);
        self.primaries.drain(..first);
        self.scene.stored.history.clear();
        let settled = self.scene.now - SETTLES;
        for pod in self.scene.pods_mut() {
            pod.ready_since = pod
                .ready_since
                .map(|since| if since <= settled { DateTime::UNIX_EPOCH } else { since });
        }
        let pods: BTreeSet<String> = self.scene.pods().iter().map(|pod| pod.uid.clone()).collect();
        self.in_force.retain(|uid, _| pods.contains(uid));
        self.resources.retain(|uid, _| pods.contains(uid));
        self.dead.retain(|uid, _| pods.contains(uid));
    }
}
