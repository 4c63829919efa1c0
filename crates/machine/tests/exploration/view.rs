//! What an operator sees: the world as it is, or with an outdated part, or with a part that was not listed yet.

use machine::cluster::model::{Refusal, Scene, World, Write};
use machine::cluster::{Action, Known, Observed, OwnedObject, OwnedState};

/// What one watch shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The ClusteredDatabase.
    Resource,
    /// All its objects except these.
    Children,
    Pods,
    Claims,
    Lease,
    /// Everything.
    All,
}

pub const PARTS: [Part; 6] = [
    Part::Resource,
    Part::Children,
    Part::Pods,
    Part::Claims,
    Part::Lease,
    Part::All,
];

/// What an operator sees of the world.
#[derive(Clone, Debug)]
pub enum View {
    /// The world as it is.
    Whole,
    /// This part is outdated, except for what the operator itself has written since.
    Old(Part, Box<Old>),
    /// This part is not listed yet: the operator has just started.
    Unlisted(Part),
}

/// The earlier state of the world.
#[derive(Clone, Debug)]
pub struct Old {
    scene: Scene,
    template: String,
}

impl View {
    pub fn old(part: Part, world: &World) -> Self {
        let scene = world.scene.clone();
        let template = world.template().to_owned();
        View::Old(part, Box::new(Old { scene, template }))
    }

    /// The input of a decision.
    pub fn of(&self, world: &World) -> Scene {
        let mut seen = world.scene.clone();
        let mut template = world.template();
        match self {
            View::Whole => {}
            View::Old(part, old) => {
                let now = seen.now;
                match part {
                    Part::Resource => copy_resource(&mut seen, &old.scene),
                    Part::Children => {
                        seen.observed.children = old.scene.observed.children.clone();
                        seen.observed.stateful_set = old.scene.observed.stateful_set.clone();
                        template = &old.template;
                    }
                    Part::Pods => seen.observed.pods = old.scene.observed.pods.clone(),
                    Part::Claims => seen.observed.claims = old.scene.observed.claims.clone(),
                    Part::Lease => seen.observed.lease = old.scene.observed.lease.clone(),
                    Part::All => {
                        seen = old.scene.clone();
                        template = &old.template;
                    }
                }
                seen.now = now;
            }
            View::Unlisted(part) => {
                let nothing = Observed::default();
                let observed = &mut seen.observed;
                match part {
                    Part::Resource => unreachable!("without it nothing is decided"),
                    Part::Children => {
                        (observed.children, observed.stateful_set) = (nothing.children, nothing.stateful_set);
                    }
                    Part::Pods => observed.pods = Known::Unknown,
                    Part::Claims => observed.claims = Known::Unknown,
                    Part::Lease => observed.lease = Known::Unknown,
                    Part::All => *observed = nothing,
                }
            }
        }
        compare_template(&mut seen, template);
        seen
    }

    /// The operator has written, and sees the answer of the API server.
    pub fn wrote(&mut self, write: &Write, world: &World) {
        let View::Old(part, old) = self else { return };
        let (there, known) = (&world.scene.observed, &mut old.scene.observed);
        let includes = |other: Part| *part == other || *part == Part::All;
        match write {
            Write::Status(_) | Write::Act(Action::AddFinalizer(_) | Action::RemoveFinalizer(_)) => {
                copy_resource(&mut old.scene, &world.scene);
            }
            Write::Act(Action::Apply(apply)) => {
                if includes(Part::Children) {
                    known.children[apply.kind] = there.children[apply.kind].clone();
                    known.stateful_set = there.stateful_set.clone();
                    old.template = world.template().to_owned();
                }
                if includes(Part::Lease) && apply.kind == OwnedObject::Lease {
                    known.lease = there.lease.clone();
                }
            }
            Write::Act(
                Action::LabelPod { pod, .. }
                | Action::MarkPod { pod, .. }
                | Action::ResizePod(pod)
                | Action::ReplacePod(pod),
            ) => {
                let now = world.scene.pods().iter().find(|found| found.uid == pod.uid());
                for known in old.scene.pods_mut().iter_mut().filter(|known| known.uid == pod.uid()) {
                    if let Some(now) = now {
                        known.clone_from(now);
                    }
                }
            }
            Write::Act(Action::DeleteClaim(claim)) => {
                old.scene.claims_mut().retain(|known| known.uid != claim.uid());
            }
            Write::Act(Action::OrphanStatefulSet(_) | Action::DeleteStatefulSet(_)) => {
                known.children[OwnedObject::StatefulSet] = Known::Known(OwnedState::Missing);
                known.stateful_set = None;
            }
            Write::Act(_) => {}
        }
    }

    /// What the operator has read again, and found changed, it knows from now on.
    pub fn refused(&mut self, refusal: Refusal, world: &World) {
        let View::Old(part, old) = self else { return };
        if refusal == Refusal::Outdated {
            copy_resource(&mut old.scene, &world.scene);
            old.scene.observed.lease = world.scene.observed.lease.clone();
            if matches!(part, Part::Resource | Part::Lease) {
                *self = View::Whole;
            }
        }
    }
}

fn copy_resource(to: &mut Scene, from: &Scene) {
    to.spec = from.spec.clone();
    to.stored = from.stored.clone();
    to.revision.clone_from(&from.revision);
    (to.generation, to.deleting, to.finalizer) = (from.generation, from.deleting, from.finalizer);
    to.request.clone_from(&from.request);
}

/// Whether the StatefulSet has drifted depends on two objects, whose views may differ in age.
fn compare_template(seen: &mut Scene, template: &str) {
    let child = &mut seen.observed.children[OwnedObject::StatefulSet];
    if let Known::Known(OwnedState::Current { uid } | OwnedState::Drifted { uid, .. }) = child {
        let uid = uid.clone();
        *child = Known::Known(match template == seen.revision {
            true => OwnedState::Current { uid },
            false => OwnedState::Drifted {
                uid,
                resource_version: "1".to_owned(),
                what: "spec.template".to_owned(),
                immutable: false,
            },
        });
    }
}
