//! What must hold in each state, and for each write.

use api::Phase;
use api::spec::VolumeFate;
use chrono::{DateTime, TimeDelta};
use machine::cluster::model::{World, Write};
use machine::cluster::{Action, ApplyHow, OwnedObject};

use crate::search::State;
use crate::view::View;

/// What is wrong with a state, however it was reached.
pub fn state(state: &State) -> Option<String> {
    let world = &state.world;
    if world.scene.now > DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::hours(1) {
        return Some("an hour has passed, and it is not idle".to_owned());
    }
    if world.initdbs > 1 {
        return Some("a second database was made".to_owned());
    }
    if world.gone && !world.scene.pods().is_empty() {
        return Some("it is gone, and pods are left".to_owned());
    }
    let (recorded, lease) = (&world.scene.stored.system_identifier, world.scene.observed.lease.get());
    let real = lease.and_then(|lease| lease.as_ref()?.system_id.as_ref());
    // A deletion that takes the volumes takes the Lease, too.
    let goes = world.scene.deleting && lease.is_some_and(Option::is_none);
    if recorded.is_some() && recorded.as_ref() != real && !goes {
        return Some(format!("{recorded:?} is recorded, and the Lease says {real:?}"));
    }
    None
}

/// What is wrong with a write that was done.
pub fn write(before: &State, write: &Write, after: &State) -> Option<String> {
    let scene = &before.world.scene;
    let leaves = scene.deleting || scene.spec.hibernated;
    match write {
        Write::Status(_) => {
            let (was, is) = (&scene.stored, &after.world.scene.stored);
            let lost = was.system_identifier.is_some() && was.system_identifier != is.system_identifier;
            let (before, after) = (&was.intent.bootstrap, &is.intent.bootstrap);
            let granted = was.system_identifier.is_some() && after.is_some() && after != before;
            let unmade = was.memo.lease_made && !is.memo.lease_made;
            (lost || granted || unmade).then(|| "the status forgets what it has promised".to_owned())
        }
        Write::Act(Action::ReplacePod(pod)) if !leaves => replaced(before, pod.name()),
        Write::Act(Action::DeleteClaim(claim)) => {
            let policy = &scene.spec.storage.retention_policy;
            let found = scene
                .observed
                .claims
                .get()?
                .iter()
                .find(|known| known.uid == claim.uid())?;
            let removed = i64::from(found.ordinal) >= i64::from(scene.spec.replicas);
            let allowed = (scene.deleting && policy.when_deleted == VolumeFate::Delete)
                || (removed && policy.when_scaled == VolumeFate::Delete);
            (!allowed).then(|| format!("{} is deleted, but must stay", claim.name()))
        }
        Write::Act(Action::Apply(apply)) if apply.kind == OwnedObject::StatefulSet && !leaves => {
            let set = scene
                .observed
                .stateful_set
                .as_ref()
                .filter(|_| apply.how != ApplyHow::Make)?;
            let wanted = u32::try_from(scene.spec.replicas).unwrap_or(0).min(set.replicas);
            let replicas = apply.replicas?;
            (replicas < wanted)
                .then(|| format!("{replicas} pods are asked for, and {wanted} are wanted and were asked for"))
        }
        Write::Act(_) => None,
    }
}

/// A serving pod is taken down only while all others serve (as long as nothing was lost), and the primary's pod last.
fn replaced(before: &State, name: &str) -> Option<String> {
    let world = &before.world;
    let scene = &world.scene;
    let pod = scene.pods().iter().find(|pod| pod.name == name)?;
    if !pod.ready {
        return None;
    }
    let lease = scene.observed.lease.get()?.as_ref()?;
    let is_primary = lease
        .holder
        .as_ref()
        .is_some_and(|holder| holder.incarnation.pod_uid == pod.uid);
    let set = scene.observed.stateful_set.as_ref()?;
    let others = (0..set.replicas.min(u32::try_from(scene.spec.replicas).unwrap_or(0)))
        .filter(|ordinal| *ordinal != pod.ordinal);
    if is_primary && others.clone().count() > 0 {
        return Some(format!("{name} is the primary, and is deleted without a switchover"));
    }
    let serves = |ordinal: &u32| {
        let found = scene.pods().iter().find(|found| found.ordinal == *ordinal);
        found.is_some_and(|found| found.ready && !found.terminating)
    };
    let away = others.into_iter().find(|ordinal| !serves(ordinal))?;
    (!before.damaged).then(|| format!("{name} is deleted while demo-{away} does not serve"))
}

/// What is wrong with a state that only a fault can leave.
pub fn rest(state: &State) -> Option<String> {
    if is_at_rest(&state.world) {
        return None;
    }
    let decision = View::Whole.of(&state.world).decide();
    Some(format!(
        "it does not become idle: {:?} {:?}, {}, because {}",
        decision.phase, decision.step, decision.rule, decision.because
    ))
}

/// True if it is gone, hibernates, or is ready with as many members of the wanted template as are wanted, and the
/// status says so.
pub fn is_at_rest(world: &World) -> bool {
    if world.gone {
        return true;
    }
    let scene = &View::Whole.of(world);
    let (decision, write) = Write::next(scene);
    if write.is_some() || !matches!(decision.action, Action::Wait(_)) || scene.stored.phase != Some(decision.phase) {
        return false;
    }
    let pods = scene.pods();
    if scene.spec.hibernated {
        return decision.phase == Phase::Hibernated && pods.is_empty();
    }
    let wanted = usize::try_from(scene.spec.replicas).unwrap_or(0);
    let current = pods
        .iter()
        .all(|pod| pod.ready && pod.revision.as_ref() == Some(&scene.revision));
    let primary = scene.stored.current_primary.as_ref();
    let preferred = scene.spec.primary.prefer.as_ref();
    decision.phase == Phase::Ready
        && pods.len() == wanted
        && current
        && primary.is_some()
        && preferred.is_none_or(|preferred| Some(preferred) == primary)
}
