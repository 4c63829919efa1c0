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
use super::facts::wal::{all_have_theirs, fits, is_given};
use super::facts::{Facts, rollout};
use super::observed::{OwnedState, Pod, StatefulSetView, WalVolumes};
use super::owned::OwnedObject;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use crate::reconcile::ObjectVersion;

/// See [`Rule::what`].
pub const SETTLE: Rule = Rule {
    name: "settle-wal-volumes",
    family: "volumes",
    what: "Once every pod serves with its own WAL volume, the StatefulSet is made again with a claim template for WAL volumes; its pods are orphaned meanwhile.\n\
           - Not while a pod is being made.\n\
           - The template names a WAL claim only until the pod for which it does so exists and need not be made again.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: settle,
    on_backoff: OnBackoff::Yield,
};

fn settle(facts: &Facts<'_>) -> Option<Proposal> {
    facts.wanted.spec.storage.wal.as_ref()?;
    let pods = facts.observed.pods.get()?;
    facts.observed.claims.get()?;
    let set = facts.observed.stateful_set.as_ref()?;
    let Some(OwnedState::Current { .. }) = facts.child(OwnedObject::StatefulSet) else {
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

fn change(facts: &Facts<'_>, set: &StatefulSetView, wal: WalVolumes, because: String) -> Option<Proposal> {
    let exact = ObjectVersion::new(facts.wanted.name, &set.uid, &set.resource_version);
    // Claim templates cannot be changed.
    if [wal, set.wal].contains(&WalVolumes::Templated) {
        return Proposal::act(Step::Volumes, Action::OrphanStatefulSet(exact), because);
    }
    let apply = Apply {
        kind: OwnedObject::StatefulSet,
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
    use super::super::facts::wal::{of_new_set, unrecorded};
    use super::super::model::{Scene, wal_claim};
    use super::super::observed::{Claim, Volume};
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
        scene.set_child(OwnedObject::StatefulSet, OwnedState::Missing);
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
        scene.set_child(OwnedObject::StatefulSet, OwnedState::Missing);
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
        scene.scaled(4);
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
