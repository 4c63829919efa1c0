//! What the tests of this family share.

use super::super::facts::Facts;
use super::super::model::Scene;
use crate::cluster::{OwnedObject, OwnedState};

pub fn drifted(kind: OwnedObject, immutable: bool) -> OwnedState {
    OwnedState::Drifted {
        uid: format!("uid-{kind:?}"),
        resource_version: "9".to_owned(),
        what: "spec".to_owned(),
        immutable,
    }
}

/// All objects are made but the StatefulSet.
pub fn make_all_but_the_stateful_set(scene: &mut Scene) {
    let others = OwnedObject::ALL
        .into_iter()
        .filter(|kind| *kind != OwnedObject::StatefulSet);
    for kind in others {
        let uid = format!("uid-{kind:?}");
        scene.set_child(kind, OwnedState::Current { uid });
    }
}

pub fn scene_name(kind: OwnedObject) -> String {
    format!("demo{}", kind.suffix())
}

pub fn with<R>(scene: &Scene, of: impl FnOnce(&Facts<'_>) -> R) -> R {
    scene.with_wanted(|wanted| of(&Facts::new(wanted, &scene.observed, &scene.stored, scene.now)))
}
