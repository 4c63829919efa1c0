//! `spec.storage.wal` added to a running database: each member gets its WAL volume with its next pod, in the order of a
//! rolling change.
//!
//! A StatefulSet with a claim template that some pod has no volume for makes no pod behind that one any more. So as long as
//! there are pods without, it has the template for data alone, and the pod template names the claim of the one pod that is
//! being replaced ([`WalVolumes::Of`]). Another pod that is made meanwhile gets that claim, too; its agent touches nothing
//! then, and it is replaced like any pod that is not as it should be. In between no claim is named, so that a pod that is
//! lost comes back as it was. Once all pods have theirs, the StatefulSet is made again with both claim templates.
//!
//! Which pods were given a WAL volume is on record before the template names one (`status.memo.walVolumes`): until then the
//! spec may be taken back. How the claims come to be is in [`super::wal_claims`].

use super::action::{Action, Apply, ApplyHow, StatusChange};
use super::decision::Step;
use super::drift::may_make_stateful_set;
use super::facts::Facts;
use super::observed::{ChildKind, ChildState, Claim, Pod, SetFacts, Volume, WalVolumes};
use super::rollout;
use super::rule::{Proposal, Rule};
use crate::reconcile::Exact;

/// See [`Rule::what`].
pub const SETTLE: Rule = Rule {
    name: "settle-wal-volumes",
    family: "volumes",
    what: "Once the pod whose WAL claim the template names has been made, and need not be made again, the template names none; once every pod serves with its own WAL volume, and none is being made, the StatefulSet is made again with a claim template for them, its pods orphaned meanwhile.",
    propose: settle,
    passable: true,
};

/// The claim of this pod has its volume, and it is this database's.
fn is_there(facts: &Facts<'_>, ordinal: u32) -> bool {
    let usable = |claim: &Claim| claim.bound && !claim.terminating && facts.owns(claim);
    facts.wal_claim(ordinal).is_some_and(usable)
}

/// Its data volume may need its WAL volume.
fn is_given(facts: &Facts<'_>, pod: &str) -> bool {
    facts.status.memo.wal_volumes.iter().any(|given| given == pod)
}

/// Pods that have their WAL volumes, or had them and come back with them, and are not on record. All that come with a new
/// database are recorded together.
pub(super) fn unrecorded(facts: &Facts<'_>) -> Vec<String> {
    let Some(set) = facts.observed.stateful_set.as_ref() else {
        return Vec::new();
    };
    let asked = facts.wanted.spec.storage.wal.is_some();
    let filled = |claim: &Claim| claim.had_volume && facts.owns(claim);
    let all = || (0..facts.expected()).all(|ordinal| facts.wal_claim(ordinal).is_some_and(filled));
    if !asked || !(facts.bootstrapped() || all()) {
        return Vec::new();
    }
    let has = |pod: &Pod, claim: &Claim| pod.wal_claim.as_ref() == Some(&claim.name);
    let in_use = |claim: &&Claim| {
        let named = set.wal == WalVolumes::Templated || facts.pod(claim.ordinal).is_some_and(|pod| has(pod, claim));
        claim.volume == Volume::Wal && filled(claim) && named
    };
    let pods = facts.claims().iter().filter(in_use);
    let pods = pods.map(|claim| format!("{}-{}", facts.wanted.name, claim.ordinal));
    pods.filter(|pod| !is_given(facts, pod)).collect()
}

/// PostgreSQL cannot run in this pod: it has got the WAL claim of another one, or the WAL is on a volume that it has not got.
pub(super) fn cannot_run(facts: &Facts<'_>, pod: &Pod) -> bool {
    let without = || {
        let came_bare = is_given(facts, &pod.name) && facts.report(pod).is_none();
        came_bare && is_there(facts, pod.ordinal)
    };
    !facts.has_wal_volume(pod) && (pod.wal_claim.is_some() || without())
}

/// This pod lacks a WAL volume that is not there yet, and nothing else: a new one would be the same.
pub(super) fn is_not_yet_due(facts: &Facts<'_>, pod: &Pod) -> bool {
    lacks_claim(facts, pod) && lacks_nothing_else(facts, pod)
}

/// This pod is as wanted, but for a WAL volume that it may lack.
pub(super) fn lacks_nothing_else(facts: &Facts<'_>, pod: &Pod) -> bool {
    let bare = pod.wal_claim.is_none() && pod.revision.as_deref() == Some(facts.wanted.bare_revision);
    bare && pod.resizing.is_none()
}

/// This pod has no WAL volume, and none is there that a new one could use.
pub(super) fn lacks_claim(facts: &Facts<'_>, pod: &Pod) -> bool {
    pod.wal_claim.is_none() && !facts.has_wal_volume(pod) && !fits(facts, pod)
}

/// The WAL claim of this pod has its volume, and a new pod can use it.
fn fits(facts: &Facts<'_>, pod: &Pod) -> bool {
    is_there(facts, pod.ordinal) && misfit(facts, pod).is_none()
}

/// Why a new pod could not use the volume that the WAL claim of this one has, and that it was not given yet.
pub(super) fn misfit(facts: &Facts<'_>, pod: &Pod) -> Option<String> {
    let claim = facts.wal_claim(pod.ordinal).filter(|claim| claim.bound)?;
    if is_given(facts, &pod.name) {
        return None;
    }
    if let Some(other) = other_class(facts, claim) {
        return Some(other);
    }
    // This pod's data was reached from both nodes: so are all volumes of that class.
    let as_data = facts
        .data_claim(pod.ordinal)
        .is_some_and(|data| data.class == claim.class);
    let (made_for, node) = (claim.selected_node.as_ref()?, pod.node.as_ref()?);
    let elsewhere = pod.ready && made_for != node && !as_data;
    elsewhere.then(|| {
        format!(
            "has a volume that was made for {made_for}, while {} is on {node}",
            pod.name
        )
    })
}

/// The claim is not of the class that the spec names.
pub(super) fn other_class(facts: &Facts<'_>, claim: &Claim) -> Option<String> {
    let wanted = facts.wanted.spec.storage.wal.as_ref()?.storage_class_name.as_ref()?;
    let class = claim.class.as_ref().filter(|class| *class != wanted)?;
    Some(format!("is of StorageClass {class}, and not of {wanted}"))
}

/// Nothing waits for the volume of this WAL claim: its pod serves without, or there is none.
pub(super) fn is_spare(facts: &Facts<'_>, claim: &Claim) -> bool {
    let set = facts.observed.stateful_set.as_ref();
    let named = set.is_none_or(|set| [WalVolumes::Templated, WalVolumes::Of(claim.ordinal)].contains(&set.wal));
    let uses = |pod: &Pod| pod.wal_claim.as_ref() == Some(&claim.name);
    claim.volume == Volume::Wal && facts.observed.pods.get().is_some() && !named && !facts.pods().iter().any(uses)
}

/// What a StatefulSet that is made now, with this many replicas, has to be like.
pub(super) fn of_new_set(facts: &Facts<'_>, replicas: u32) -> WalVolumes {
    if all_have_theirs(facts, replicas) {
        WalVolumes::Templated
    } else {
        WalVolumes::Withheld
    }
}

/// Every pod has its own WAL volume, and no member that is to come back without a pod now lacks one: its claim, made from
/// the template, might never get a volume. While all pods are to be away, that is every member with data.
fn all_have_theirs(facts: &Facts<'_>, replicas: u32) -> bool {
    let returns = |claim: &&Claim| claim.volume == Volume::Data && (claim.ordinal < replicas || replicas == 0);
    let has_its_own = |claim: &Claim| facts.pod(claim.ordinal).is_some() || is_there(facts, claim.ordinal);
    facts.pods().iter().all(|pod| facts.has_wal_volume(pod))
        && (!facts.bootstrapped() || facts.claims().iter().filter(returns).all(has_its_own))
}

fn settle(facts: &Facts<'_>) -> Option<Proposal> {
    facts.wanted.spec.storage.wal.as_ref()?;
    let pods = facts.observed.pods.get()?;
    facts.observed.claims.get()?;
    let set = facts.observed.stateful_set.as_ref()?;
    let Some(ChildState::Current { .. }) = facts.child(ChildKind::StatefulSet) else {
        return None;
    };
    let is_made = |ordinal| match facts.pod(ordinal) {
        Some(pod) => facts.has_wal_volume(pod) && !pod.terminating,
        None => ordinal >= set.replicas,
    };
    // One that is being made while the StatefulSet goes might be taken for its own, and go with it.
    // One that does not serve may not have room on its volume: without templates it can come back as it was.
    let serves = |ordinal| facts.pod(ordinal).is_some_and(|pod| pod.ready) && is_made(ordinal);
    let complete = (0..set.replicas).all(serves) && all_have_theirs(facts, set.replicas);
    let (wal, because) = match set.wal {
        WalVolumes::Templated if pods.iter().any(|pod| !facts.has_wal_volume(pod)) => {
            (WalVolumes::Withheld, "a pod has no WAL volume".to_owned())
        }
        WalVolumes::Templated => return None,
        _ if complete && may_make_stateful_set(facts) => {
            (WalVolumes::Templated, "every pod has its WAL volume".to_owned())
        }
        // One that is to be made once more is made from this very template.
        WalVolumes::Of(ordinal) if is_made(ordinal) && !rollout::outdated(facts).any(|pod| pod.ordinal == ordinal) => (
            WalVolumes::Withheld,
            format!("pod {}-{ordinal} has been made", facts.wanted.name),
        ),
        WalVolumes::Of(_) | WalVolumes::Withheld => return None,
    };
    change(facts, set, wal, because)
}

fn change(facts: &Facts<'_>, set: &SetFacts, wal: WalVolumes, because: String) -> Option<Proposal> {
    let exact = Exact::new(facts.wanted.name, &set.uid, &set.resource_version);
    // Claim templates cannot be changed.
    if [wal, set.wal].contains(&WalVolumes::Templated) {
        return Proposal::act(Step::Volumes, Action::OrphanStatefulSet(exact), because);
    }
    let apply = Apply {
        kind: ChildKind::StatefulSet,
        how: ApplyHow::Change(exact),
        replicas: Some(set.replicas),
        wal: Some(wal),
    };
    Proposal::act(Step::Volumes, Action::Apply(apply), because)
}

/// The template is changed so that it fits this pod, which is to be made from it: with its WAL volume if that is there.
pub(super) fn template_first(facts: &Facts<'_>, pod: &Pod) -> Option<Proposal> {
    facts.wanted.spec.storage.wal.as_ref()?;
    let set = facts.observed.stateful_set.as_ref()?;
    if facts.observed.claims.get().is_none() {
        return Proposal::unread(facts, Step::Volumes, "the claims");
    }
    let wal = if fits(facts, pod) {
        WalVolumes::Of(pod.ordinal)
    } else {
        WalVolumes::Withheld
    };
    if wal != WalVolumes::Withheld && !is_given(facts, &pod.name) {
        let change = StatusChange::GiveWalVolumes(vec![pod.name.clone()]);
        let because = format!("{} is to have its WAL volume", pod.name);
        return Proposal::act(Step::Volumes, Action::WriteStatus(vec![change]), because);
    }
    if [wal, WalVolumes::Templated].contains(&set.wal) {
        return None;
    }
    change(facts, set, wal, format!("{} is to be made again", pod.name))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::testing::{Scene, wal_claim};
    use super::*;

    pub fn added() -> Scene {
        let mut scene = Scene::ready(3);
        scene.add_wal_volume();
        scene
    }

    /// The WAL claim of this pod, with its volume if it is made here.
    pub fn claim(scene: &mut Scene, ordinal: u32) -> &mut Claim {
        let made = wal_claim(ordinal, scene.wal_bytes);
        let name = made.name.clone();
        if scene.claims_mut().iter().all(|claim| claim.name != name) {
            scene.claims_mut().push(made);
        }
        scene.claims_mut().iter_mut().find(|claim| claim.name == name).unwrap()
    }

    /// Such a claim without a volume, made at this time.
    pub fn unbound(scene: &mut Scene, ordinal: u32) -> &mut Claim {
        let now = scene.now;
        let claim = claim(scene, ordinal);
        (claim.bound, claim.had_volume, claim.created) = (false, false, now);
        claim
    }

    pub fn template(scene: &Scene) -> Option<WalVolumes> {
        match scene.decide().action {
            Action::Apply(apply) => apply.wal,
            _ => None,
        }
    }

    /// It is put on record that this pod gets its WAL volume.
    pub fn give(scene: &mut Scene, ordinal: u32) {
        let given = StatusChange::GiveWalVolumes(vec![format!("demo-{ordinal}")]);
        assert_eq!(scene.store().action, Action::WriteStatus(vec![given]));
    }

    fn set(scene: &mut Scene, wal: WalVolumes) {
        scene.observed.stateful_set.as_mut().unwrap().wal = wal;
    }

    /// The pod is made again, from the template as it is.
    pub fn make(scene: &mut Scene, ordinal: u32, claim: Option<u32>) {
        let revision = scene.revision.clone();
        let pod = scene.pod_mut(ordinal);
        pod.revision = Some(if claim.is_some() { revision } else { "r1".to_owned() });
        pod.base_revision.clone_from(&pod.revision);
        pod.wal_claim = claim.map(|of| format!("wal-demo-{of}"));
        if claim == Some(ordinal) {
            scene.stored.memo.wal_volumes.push(format!("demo-{ordinal}"));
        }
    }

    #[test]
    fn the_volume_is_there_before_the_pod_is_replaced_from_a_template_that_names_it() {
        let mut scene = added();
        let decision = scene.decide();
        let Action::MakeWalClaim { name, node } = &decision.action else {
            panic!("{decision:#?}")
        };
        assert_eq!((name.as_str(), node.as_str()), ("wal-demo-2", "node-2"));
        unbound(&mut scene, 2);
        assert_eq!((scene.decide().rule, scene.replaced()), ("await-wal-volume", None));
        claim(&mut scene, 2).bound = true;
        give(&mut scene, 2);
        assert_eq!(template(&scene), Some(WalVolumes::Of(2)));
        set(&mut scene, WalVolumes::Of(2));
        assert_eq!(scene.replaced(), Some("demo-2".to_owned()));
        scene.pod_mut(2).terminating = true;
        assert_eq!((template(&scene), scene.replaced()), (None, None));
        scene.pod_mut(2).terminating = false;
        make(&mut scene, 2, Some(2));
        assert_eq!(
            template(&scene),
            Some(WalVolumes::Withheld),
            "the next one that is lost comes back as it was"
        );
    }

    #[test]
    fn a_pod_that_has_its_volume_and_is_of_an_older_template_is_made_again_with_it() {
        let mut scene = added();
        claim(&mut scene, 2);
        make(&mut scene, 2, Some(2));
        scene.pod_mut(2).revision = Some("r1".to_owned());
        scene.pod_mut(2).ready = false;
        assert_eq!(template(&scene), Some(WalVolumes::Of(2)));
        set(&mut scene, WalVolumes::Of(2));
        assert_eq!((template(&scene), scene.replaced()), (None, Some("demo-2".to_owned())));
    }

    #[test]
    fn a_pod_with_anothers_volume_is_made_again_as_it_was_or_with_its_own() {
        let mut scene = added();
        claim(&mut scene, 2);
        set(&mut scene, WalVolumes::Of(2));
        scene.pod_mut(2).terminating = true;
        make(&mut scene, 1, Some(2));
        scene.pod_mut(1).ready = false;
        assert_eq!(template(&scene), Some(WalVolumes::Withheld));
        set(&mut scene, WalVolumes::Withheld);
        assert_eq!(scene.replaced(), Some("demo-1".to_owned()));
        claim(&mut scene, 1);
        give(&mut scene, 1);
        assert_eq!(template(&scene), Some(WalVolumes::Of(1)));
    }

    #[test]
    fn a_member_that_comes_back_without_its_volume_is_made_again_with_it() {
        let mut scene = added();
        claim(&mut scene, 2);
        scene.pod_mut(2).ready = false;
        give(&mut scene, 2);
        assert_eq!(template(&scene), Some(WalVolumes::Of(2)));
        set(&mut scene, WalVolumes::Of(2));
        scene.lease_mut().unwrap().holder = None;
        scene.store();
        assert_eq!(scene.replaced(), None, "it has run without, and may be elected");
        scene.pod_mut(2).uid = "new".to_owned();
        scene.stored.members.get_mut("demo-2").unwrap().pod_uid = Some("new".to_owned());
        assert_eq!(scene.replaced(), Some("demo-2".to_owned()), "it cannot run without");
        scene.claims_mut().retain(|claim| claim.volume == Volume::Data);
        assert_eq!(scene.replaced(), None, "without a volume it would be made as it is");
    }

    #[test]
    fn members_with_wal_volumes_are_on_record() {
        let mut scene = Scene::with_wal(3);
        assert_eq!(scene.stored.memo.wal_volumes, ["demo-0", "demo-1", "demo-2"]);
        assert_eq!(scene.decide().rule, "rest");
        scene.stored.memo.wal_volumes.clear();
        scene.pods_mut().clear();
        unbound(&mut scene, 1);
        scene.edit(|spec| spec.hibernated = true);
        scene.store();
        let recorded = &scene.stored.memo.wal_volumes;
        assert_eq!(*recorded, ["demo-0", "demo-2"], "nothing can be on the other one");
    }

    #[test]
    fn claim_templates_come_when_every_pod_has_its_volume() {
        let mut scene = added();
        for ordinal in 0..3 {
            claim(&mut scene, ordinal);
            make(&mut scene, ordinal, Some(ordinal));
            let orphans = matches!(scene.decide().action, Action::OrphanStatefulSet(_));
            assert_eq!(orphans, ordinal == 2);
        }
        scene.set_child(ChildKind::StatefulSet, ChildState::Missing);
        scene.observed.stateful_set = None;
        assert_eq!(template(&scene), Some(WalVolumes::Templated));
        make(&mut scene, 1, None);
        assert_eq!(
            template(&scene),
            Some(WalVolumes::Withheld),
            "or no pod behind it is made any more"
        );
    }

    fn all_moved(replicas: u32) -> Scene {
        let mut scene = Scene::ready(replicas);
        scene.add_wal_volume();
        for ordinal in 0..replicas {
            claim(&mut scene, ordinal);
            make(&mut scene, ordinal, Some(ordinal));
        }
        scene
    }

    #[test]
    fn the_stateful_set_stays_while_a_pod_is_being_made() {
        for replicas in [1, 3] {
            let mut scene = all_moved(replicas);
            set(&mut scene, WalVolumes::Of(0));
            let orphans = |scene: &Scene| matches!(scene.decide().action, Action::OrphanStatefulSet(_));
            assert!(orphans(&scene));
            let mut gone = scene.clone();
            gone.pods_mut().retain(|pod| pod.ordinal != 0);
            assert!(!orphans(&gone), "{:#?}", gone.decide());
            let mut stuck = scene.clone();
            stuck.pod_mut(0).ready = false;
            assert!(!orphans(&stuck), "{:#?}", stuck.decide());
            scene.pod_mut(0).terminating = true;
            assert!(!orphans(&scene), "{:#?}", scene.decide());
        }
    }

    #[test]
    fn who_comes_back_without_a_pod_now_must_have_its_volume() {
        let mut scene = all_moved(3);
        scene.edit(|spec| spec.hibernated = true);
        scene.pods_mut().clear();
        scene.observed.stateful_set.as_mut().unwrap().replicas = 0;
        let orphans = |scene: &Scene| matches!(scene.decide().action, Action::OrphanStatefulSet(_));
        assert!(orphans(&scene));
        claim(&mut scene, 1).bound = false;
        assert!(!orphans(&scene));
        scene.set_child(ChildKind::StatefulSet, ChildState::Missing);
        scene.observed.stateful_set = None;
        assert_eq!(template(&scene), Some(WalVolumes::Withheld));
        claim(&mut scene, 1).bound = true;
        assert_eq!(template(&scene), Some(WalVolumes::Templated));
    }

    #[test]
    fn claim_templates_that_are_there_stay_while_no_pod_without_a_volume_is() {
        let mut scene = all_moved(3);
        set(&mut scene, WalVolumes::Templated);
        scene.claims_mut().retain(|claim| claim.volume == Volume::Data);
        scene.pods_mut().retain(|pod| pod.ordinal != 1);
        assert!(!matches!(scene.decide().action, Action::OrphanStatefulSet(_)));
    }

    #[test]
    fn a_stateful_set_that_could_not_be_made_again_stays() {
        let mut scene = all_moved(3);
        scene.edit(|spec| spec.replicas = 4);
        claim(&mut scene, 3).cluster_uid = Some("another".to_owned());
        let decision = scene.decide();
        assert!(
            !matches!(decision.action, Action::OrphanStatefulSet(_)),
            "{decision:#?}"
        );
    }

    #[test]
    fn a_fenced_member_with_anothers_volume_is_made_again() {
        let mut scene = added();
        claim(&mut scene, 2);
        set(&mut scene, WalVolumes::Withheld);
        make(&mut scene, 1, Some(2));
        scene.pod_mut(1).ready = false;
        scene.edit(|spec| spec.fenced = vec!["demo-1".to_owned()]);
        assert_eq!(scene.replaced(), Some("demo-1".to_owned()));
    }

    #[test]
    fn a_claim_that_no_pod_comes_back_to_withholds_no_templates() {
        let mut scene = all_moved(3);
        scene.pods_mut().truncate(2);
        scene.claims_mut().retain(|claim| claim.name != "wal-demo-2");
        let of = |replicas: u32| scene.with_facts(|facts| of_new_set(facts, replicas));
        assert_eq!(
            [of(2), of(3), of(0)],
            [WalVolumes::Templated, WalVolumes::Withheld, WalVolumes::Withheld]
        );
    }

    #[test]
    fn claim_templates_go_when_a_pod_without_a_volume_is_there() {
        let mut scene = all_moved(3);
        set(&mut scene, WalVolumes::Templated);
        assert!(scene.with_facts(settle).is_none());
        make(&mut scene, 1, None);
        let action = scene.with_facts(settle).unwrap().action;
        assert!(matches!(action, Action::OrphanStatefulSet(_)), "{action:?}");
    }

    #[test]
    fn nothing_is_on_record_of_volumes_that_the_spec_does_not_ask_for() {
        let mut scene = Scene::with_wal(3);
        scene.stored.memo.wal_volumes.clear();
        assert_eq!(scene.with_facts(unrecorded).len(), 3);
        scene.take_wal_volume_back();
        assert!(scene.with_facts(unrecorded).is_empty());
    }
}
