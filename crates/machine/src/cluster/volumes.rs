//! Volumes: grown before anything else is waited for, since a full one is what keeps a database from being healthy.
//!
//! What Kubernetes refuses to all of them (a class that cannot expand its volumes, a quota) can be taken back from the spec:
//! until a claim has grown, the size that they have is on record (`status.memo.granted`), new ones are made with that, and the
//! definition of the resource lets the spec go back to it.

use api::status::GrantedStorage;
use chrono::{DateTime, TimeDelta, Utc};

use super::action::Action;
use super::decision::Step;
use super::facts::Facts;
use super::failure;
use super::failure::shortened;
use super::members::exact_claim;
use super::observed::{Claim, FaultKind, Pod, StorageClass, Target, Volume};
use super::rule::{Proposal, Rule};

/// See [`Rule::what`].
pub const GROW: Rule = Rule {
    name: "grow-volumes",
    family: "volumes",
    what: "A claim that asks for less than the spec is raised, whatever state the database is in.",
    propose: grow,
    passable: true,
};

/// See [`Rule::what`].
pub const AWAIT_GROWTH: Rule = Rule {
    name: "await-growth",
    family: "volumes",
    what: "A volume that Kubernetes has let ask for more, and that has not grown yet, is waited for in the claim's own words. Where it takes a new pod, the pod counts as one of an older template after two minutes.",
    propose: await_growth,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_EXPANDABLE: Rule = Rule {
    name: "await-expandable",
    family: "volumes",
    what: "A class that cannot expand its volumes keeps them as they are, and that is said.",
    propose: await_expandable,
    passable: false,
};

/// The claims of this database's members that have volumes, each with the size that the spec asks for, in bytes and in its
/// words.
fn in_use<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a Claim, u64, &'a str)> {
    let facts = *facts;
    let members = facts.expected().max(facts.wanted.replicas());
    let claims = facts
        .claims()
        .iter()
        .filter(move |claim| facts.owns(claim) && claim.ordinal < members && claim.bound && !claim.terminating);
    claims.filter_map(move |claim| {
        let (bytes, size) = wanted(&facts, claim.volume)?;
        Some((claim, bytes, size))
    })
}

/// The claims that are to be larger, each with its new size.
fn too_small<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a Claim, &'a str)> {
    in_use(facts).filter_map(|(claim, bytes, size)| (claim.requested < bytes).then_some((claim, size)))
}

/// The claims that Kubernetes has let ask for more, and that have not got it yet.
fn growing<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a Claim, &'a str)> {
    in_use(facts).filter_map(|(claim, bytes, size)| {
        let lacks = claim.capacity.is_some_and(|has| has < bytes);
        (lacks && claim.requested >= bytes).then_some((claim, size))
    })
}

/// The condition of a claim whose volume has grown, and the file system on it only does when it is mounted. A kubelet whose
/// driver can do that to a mounted one sets it as well, for a moment.
const AWAITS_MOUNT: &str = "FileSystemResizePending";
/// A kubelet looks at the volumes of a pod that runs every 90 s at the latest.
const GROWS_MOUNTED: TimeDelta = TimeDelta::minutes(2);

/// When a new pod is what this claim waits for. One that was made since has not helped.
fn new_pod_at(claim: &Claim, pod: &Pod) -> Option<DateTime<Utc>> {
    let growth = claim.growth.as_ref().filter(|growth| growth.stage == AWAITS_MOUNT)?;
    (pod.created <= growth.since).then(|| growth.since + GROWS_MOUNTED)
}

/// The claim of this pod that grows only if the pod is made again.
pub(super) fn awaits_new_pod<'a>(facts: &Facts<'a>, pod: &Pod) -> Option<&'a Claim> {
    let due = |claim: &Claim| new_pod_at(claim, pod).is_some_and(|at| at <= facts.now);
    let mut growing = growing(facts).map(|(claim, _)| claim);
    growing.find(|claim| claim.ordinal == pod.ordinal && due(claim))
}

/// Why this pod is made again, in words that follow its name.
pub(super) fn why_made_again(facts: &Facts<'_>, pod: &Pod) -> String {
    match awaits_new_pod(facts, pod) {
        Some(claim) => format!("has to be made again for claim {} to grow", claim.name),
        None => "is of an older template".to_owned(),
    }
}

/// The size that the spec asks for, in bytes and in its words.
fn wanted<'a>(facts: &Facts<'a>, volume: Volume) -> Option<(u64, &'a str)> {
    let storage = &facts.wanted.spec.storage;
    match volume {
        Volume::Data => Some((facts.wanted.data_bytes, storage.size.as_str())),
        Volume::Wal => Some((facts.wanted.wal_bytes?, storage.wal.as_ref()?.size.as_str())),
    }
}

/// What the spec may go back to (`status.memo.granted`). As long as the claims cannot be read, what was.
pub(super) fn granted(facts: &Facts<'_>) -> GrantedStorage {
    let stored = &facts.status.memo.granted;
    if facts.observed.claims.get().is_none() {
        return stored.clone();
    }
    GrantedStorage {
        data: largest(facts, Volume::Data, stored.data.is_some()),
        wal: largest(facts, Volume::Wal, stored.wal.is_some()),
    }
}

/// The size of the largest such volume, if one is refused more and none has got what the spec asks for. What was refused counts
/// as refused until it is granted, or not asked for any more: not only until it is tried again.
fn largest(facts: &Facts<'_>, volume: Volume, was_refused: bool) -> Option<String> {
    let (bytes, _) = wanted(facts, volume)?;
    let mut small = too_small(facts).filter(|(claim, _)| claim.volume == volume);
    if !small.any(|(claim, _)| was_refused || is_refused(facts, claim)) {
        return None;
    }
    let ours = |claim: &&Claim| claim.volume == volume && claim.bound && facts.owns(claim);
    let largest = facts.claims().iter().filter(ours).map(|claim| claim.requested).max()?;
    (largest < bytes).then(|| in_words(largest))
}

fn is_refused(facts: &Facts<'_>, claim: &Claim) -> bool {
    let target = Target::Claim(claim.name.clone());
    let mut faults = facts.observed.faults.iter().filter(|fault| fault.target == target);
    let refused = |kind| match kind {
        FaultKind::Quota | FaultKind::Forbidden | FaultKind::Invalid => true,
        FaultKind::Conflict | FaultKind::Transient => false,
    };
    is_fixed(facts, claim.volume) || faults.any(|fault| refused(fault.kind))
}

/// The class of these volumes cannot expand them.
pub(super) fn is_fixed(facts: &Facts<'_>, volume: Volume) -> bool {
    facts.storage_class(volume) == Some(&StorageClass::Present { expandable: false })
}

/// This many bytes as a quantity, in the largest unit in which they are a whole number.
fn in_words(mut bytes: u64) -> String {
    let mut units = ["Ki", "Mi", "Gi", "Ti", "Pi"].into_iter();
    let mut unit = "";
    while bytes > 0
        && bytes.is_multiple_of(1024)
        && let Some(next) = units.next()
    {
        unit = next;
        bytes /= 1024;
    }
    format!("{bytes}{unit}")
}

/// How the user can end the wait for volumes of this kind to grow, as the end of a sentence.
pub(super) fn way_back(facts: &Facts<'_>) -> String {
    let granted = granted(facts);
    let fields = [("storage.size", granted.data), ("storage.wal.size", granted.wal)];
    let back = |(field, size): (&str, Option<String>)| Some(format!(", or the user by spec.{field} {}", size?));
    fields.into_iter().filter_map(back).collect()
}

/// Every claim asks for what the spec asks for, and has it.
pub(super) fn large_enough(facts: &Facts<'_>) -> bool {
    too_small(facts).next().is_none() && growing(facts).next().is_none()
}

fn grow(facts: &Facts<'_>) -> Option<Proposal> {
    let small = || too_small(facts).filter(|(claim, _)| !is_fixed(facts, claim.volume));
    let rests = |claim: &Claim| failure::rests(facts, &Target::Claim(claim.name.clone()));
    let next = small().find(|(claim, _)| !rests(claim));
    let (claim, size) = next.or_else(|| small().next())?;
    let because = format!(
        "claim {} asks for {} bytes, and the spec for {size}",
        claim.name, claim.requested
    );
    let action = Action::ResizeClaim {
        claim: exact_claim(claim),
        size: size.to_owned(),
    };
    Proposal::act(Step::Volumes, action, because)
}

fn await_growth(facts: &Facts<'_>) -> Option<Proposal> {
    let (claim, size) = growing(facts).next()?;
    let what = format!("claim {} to grow to {size}", claim.name);
    let said = claim.growth.as_ref().map_or(String::new(), |growth| {
        format!(", which says {}: {}", growth.stage, shortened(&growth.message))
    });
    let wait = Proposal::wait(
        facts,
        Step::Volumes,
        what,
        format!("the driver of its StorageClass{said}"),
    )?;
    let due = facts.pod(claim.ordinal).and_then(|pod| new_pod_at(claim, pod));
    Some(wait.looking_again_by(due.filter(|due| *due > facts.now)))
}

fn await_expandable(facts: &Facts<'_>) -> Option<Proposal> {
    let (claim, size) = too_small(facts).find(|(claim, _)| is_fixed(facts, claim.volume))?;
    let what = format!("a StorageClass that lets claim {} grow to {size}", claim.name);
    let who = format!("the cluster's administrator{}", way_back(facts));
    Proposal::wait(facts, Step::Volumes, what, who)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Scene;
    use super::super::{ChildKind, ChildState, Fault, Growth, Known};
    use super::*;

    #[test]
    fn volumes_grow_whatever_else_is_wrong() {
        let mut scene = Scene::ready(3);
        scene.data_bytes *= 2;
        scene.pod_mut(0).ready = false;
        scene.set_child(
            ChildKind::StatefulSet,
            ChildState::Drifted {
                uid: "u".to_owned(),
                resource_version: "1".to_owned(),
                what: "spec.volumeClaimTemplates".to_owned(),
                immutable: true,
            },
        );
        for ordinal in 0..3 {
            let Action::ResizeClaim { claim, .. } = scene.decide().action else {
                panic!("{:?}", scene.decide())
            };
            assert_eq!(claim.name(), format!("data-demo-{ordinal}"));
            scene.claims_mut()[ordinal].requested *= 2;
        }
        assert_eq!(scene.decide().action.name(), "OrphanStatefulSet", "then the templates");
    }

    #[test]
    fn a_class_that_cannot_expand_is_named_and_nothing_else_is_held_up() {
        let mut scene = Scene::ready(3);
        scene.data_bytes *= 2;
        scene.observed.storage_class = Known::Known(StorageClass::Present { expandable: false });
        scene.store();
        assert_eq!(
            (scene.decide().rule, scene.decide().phase),
            ("await-expandable", api::Phase::Updating)
        );
        scene.set_child(ChildKind::RwService, ChildState::Missing);
        assert_eq!(scene.decide().rule, "children");
    }

    /// Three instances with WAL volumes, all of which are to be larger.
    fn with_wal() -> Scene {
        let mut scene = Scene::with_wal(3);
        (scene.data_bytes, scene.wal_bytes) = (scene.data_bytes * 2, scene.wal_bytes * 4);
        scene
    }

    #[test]
    fn wal_volumes_grow_as_data_volumes_do() {
        let mut scene = with_wal();
        for number in 0..6 {
            let Action::ResizeClaim { claim, .. } = scene.decide().action else {
                panic!("{number}: {:?}", scene.decide())
            };
            let (data, wal) = (scene.data_bytes, scene.wal_bytes);
            let mut claims = scene.claims_mut().iter_mut();
            let found = claims.find(|found| found.name == claim.name()).unwrap();
            found.requested = if found.volume == Volume::Wal { wal } else { data };
        }
        scene.store();
        assert_eq!(scene.decide().rule, "rest");
    }

    #[test]
    fn a_wal_class_that_cannot_expand_keeps_no_data_volume_from_growing() {
        for (fixed, grows) in [(Volume::Wal, "data-demo-"), (Volume::Data, "wal-demo-")] {
            let mut scene = with_wal();
            let class = Known::Known(StorageClass::Present { expandable: false });
            match fixed {
                Volume::Wal => scene.observed.wal_storage_class = class,
                Volume::Data => scene.observed.storage_class = class,
            }
            scene.store();
            for ordinal in 0..3 {
                let Action::ResizeClaim { claim, .. } = scene.decide().action else {
                    panic!("{:?}", scene.decide())
                };
                assert_eq!(claim.name(), format!("{grows}{ordinal}"));
                let mut claims = scene.claims_mut().iter_mut();
                claims.find(|found| found.name == claim.name()).unwrap().requested *= 4;
            }
            assert_eq!(scene.decide().rule, "await-expandable");
        }
    }

    fn refused(claim: &str, kind: FaultKind) -> Fault {
        Fault {
            target: Target::Claim(claim.to_owned()),
            kind,
            message: "only dynamically provisioned pvc can be resized".to_owned(),
            attempts: 1,
            at: Scene::ready(1).now,
        }
    }

    fn data(size: &str) -> GrantedStorage {
        GrantedStorage {
            data: Some(size.to_owned()),
            wal: None,
        }
    }

    #[test]
    fn what_is_refused_to_all_claims_may_be_taken_back_and_that_is_said() {
        for kind in [FaultKind::Quota, FaultKind::Forbidden, FaultKind::Invalid] {
            let mut scene = Scene::ready(3);
            scene.data_bytes *= 1024;
            scene.store();
            assert!(scene.stored.memo.granted.is_empty(), "nothing is refused yet");
            scene.observed.faults = vec![refused("data-demo-0", kind)];
            scene.store();
            assert_eq!(scene.stored.memo.granted, data("1Gi"));
            let who = |scene: &Scene| match scene.decide().action {
                Action::Wait(waiting) => waiting.who_can_end_it.into_owned(),
                other => panic!("{other:?}"),
            };
            for ordinal in [1, 2] {
                scene
                    .observed
                    .faults
                    .push(refused(&format!("data-demo-{ordinal}"), kind));
            }
            let way = ", or the user by spec.storage.size 1Gi";
            assert!(who(&scene).ends_with(way), "{}", who(&scene));
            scene.observed.faults.clear();
            scene.store();
            assert_eq!(scene.stored.memo.granted, data("1Gi"), "until it is granted");
            let mut back = scene.clone();
            back.data_bytes /= 1024;
            back.store();
            assert!(back.stored.memo.granted.is_empty());
            assert_eq!(back.decide().rule, "rest");
            let grown = scene.data_bytes;
            scene.claims_mut()[1].requested = grown;
            scene.store();
            assert!(
                scene.stored.memo.granted.is_empty(),
                "there is no way back for that one"
            );
        }
    }

    #[test]
    fn a_claim_that_is_refused_keeps_no_other_from_growing_and_is_told_in_the_servers_words() {
        let mut scene = Scene::ready(3);
        scene.data_bytes *= 2;
        scene.observed.faults = vec![refused("data-demo-0", FaultKind::Forbidden)];
        scene.store();
        for ordinal in [1, 2] {
            let Action::ResizeClaim { claim, .. } = scene.decide().action else {
                panic!("{:?}", scene.decide())
            };
            assert_eq!(claim.name(), format!("data-demo-{ordinal}"));
            let bytes = scene.data_bytes;
            scene.claims_mut()[ordinal].requested = bytes;
            scene.store();
        }
        let decision = scene.decide();
        let told = "changing claim data-demo-0 to succeed: only dynamically provisioned pvc can be resized";
        assert_eq!(
            (decision.rule, decision.because.to_string().as_str()),
            ("grow-volumes", told)
        );
    }

    #[test]
    fn what_may_still_be_granted_is_not_taken_back() {
        let mut scene = Scene::ready(3);
        scene.data_bytes *= 2;
        scene.observed.faults = vec![
            refused("data-demo-0", FaultKind::Transient),
            refused("data-demo-1", FaultKind::Conflict),
            refused("data-demo-7", FaultKind::Forbidden),
        ];
        scene.store();
        assert!(scene.stored.memo.granted.is_empty());
        scene.observed.faults = vec![refused("data-demo-0", FaultKind::Quota)];
        scene.store();
        scene.observed.claims = Known::Unknown;
        scene.store();
        assert_eq!(scene.stored.memo.granted, data("1Gi"), "unknown is not granted");
    }

    #[test]
    fn a_class_that_cannot_expand_lets_the_spec_go_back_for_its_volumes_alone() {
        let mut scene = with_wal();
        scene.observed.wal_storage_class = Known::Known(StorageClass::Present { expandable: false });
        scene.store();
        let wal = Some("1Gi".to_owned());
        assert_eq!(scene.stored.memo.granted, GrantedStorage { data: None, wal });
    }

    #[test]
    fn sizes_are_told_in_the_largest_unit() {
        let told = [1 << 30, 10 << 40, 1 << 50, 10_000_000_000, 1000, 0].map(in_words);
        assert_eq!(told, ["1Gi", "10Ti", "1Pi", "9765625Ki", "1000", "0"]);
    }

    /// Three instances whose claims ask for twice of what they have.
    fn accepted(stage: &str) -> Scene {
        let mut scene = Scene::ready(3);
        let (had, since) = (scene.data_bytes, scene.now);
        scene.data_bytes *= 2;
        for claim in scene.claims_mut() {
            (claim.requested, claim.capacity) = (had * 2, Some(had));
            claim.growth = Some(Growth {
                stage: stage.to_owned(),
                message: "why".to_owned(),
                since,
            });
        }
        scene
    }

    #[test]
    fn growth_that_was_accepted_and_is_not_done_is_not_ready_and_told_in_the_claims_words() {
        let mut scene = accepted("ControllerResizeError");
        let decision = scene.decide();
        assert_eq!((decision.rule, decision.phase), ("await-growth", api::Phase::Updating));
        let Action::Wait(waiting) = decision.action else {
            panic!("{:?}", scene.decide())
        };
        assert_eq!(waiting.what, "claim data-demo-0 to grow to 1Gi", "by the spec's words");
        let who = "the driver of its StorageClass, which says ControllerResizeError: why";
        assert_eq!(waiting.who_can_end_it, who);
        scene.now += TimeDelta::hours(1);
        assert_eq!(scene.replaced(), None, "a new pod would not help");
        for ordinal in 0..3 {
            assert_eq!(scene.decide().rule, "await-growth");
            let bytes = scene.data_bytes;
            scene.claims_mut()[ordinal].capacity = Some(bytes);
        }
        assert_eq!((scene.decide().rule, scene.decide().phase), ("rest", api::Phase::Ready));
        scene.claims_mut()[0].capacity = None;
        assert_eq!(scene.decide().rule, "rest", "what is not told is not missing");
    }

    #[test]
    fn a_file_system_that_grows_only_when_it_is_mounted_gets_a_new_pod_once() {
        let mut scene = accepted(AWAITS_MOUNT);
        let due = scene.now + GROWS_MOUNTED;
        assert_eq!(
            (scene.replaced(), scene.decide().wake),
            (None, due),
            "a mounted one may grow"
        );
        scene.now = due;
        for ordinal in [2, 1] {
            assert_eq!(scene.replaced(), Some(format!("demo-{ordinal}")));
            let because = "has to be made again for claim data-demo-";
            assert!(scene.decide().because.to_string().contains(because));
            let (now, bytes) = (scene.now, scene.data_bytes);
            scene.pod_mut(ordinal).created = now;
            assert_ne!(scene.replaced(), Some(format!("demo-{ordinal}")), "it has not helped");
            scene.claims_mut()[ordinal as usize].capacity = Some(bytes);
        }
        assert_eq!(scene.decide().rule, "switch-over");
        scene.elect(2);
        assert_eq!(
            scene.replaced(),
            Some("demo-0".to_owned()),
            "the primary of before last"
        );
    }

    #[test]
    fn nothing_shrinks() {
        let mut scene = Scene::ready(3);
        scene.data_bytes /= 2;
        assert_eq!(scene.decide().rule, "rest");
    }

    #[test]
    fn only_claims_with_volumes_of_members_are_grown() {
        let small = |change: fn(&mut Claim)| {
            let mut scene = Scene::ready(3);
            scene.data_bytes *= 2;
            change(&mut scene.claims_mut()[2]);
            scene.with_facts(|facts| too_small(facts).count())
        };
        assert_eq!(small(|_| {}), 3);
        let left_alone: [fn(&mut Claim); 5] = [
            |claim| claim.cluster_uid = None,
            |claim| claim.ordinal = 3,
            |claim| claim.ordinal = 7,
            |claim| claim.bound = false,
            |claim| claim.terminating = true,
        ];
        assert_eq!(left_alone.map(small), [2; 5]);
    }

    #[test]
    fn growth_is_looked_at_again_when_it_takes_a_new_pod_and_not_before_or_all_the_time() {
        let mut scene = Scene::ready(1);
        scene.data_bytes *= 2;
        let (bytes, since) = (scene.data_bytes, scene.now);
        let claim = &mut scene.claims_mut()[0];
        (claim.requested, claim.capacity) = (bytes, Some(bytes / 2));
        claim.growth = Some(Growth {
            stage: AWAITS_MOUNT.to_owned(),
            message: String::new(),
            since,
        });
        let due = since + GROWS_MOUNTED;
        let wake = |now: DateTime<Utc>| {
            let scene = Scene { now, ..scene.clone() };
            scene.with_facts(await_growth).unwrap().wake
        };
        assert_eq!((wake(since), wake(due)), (Some(due), None));
    }
}
