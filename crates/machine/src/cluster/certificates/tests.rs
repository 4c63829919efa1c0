use chrono::TimeDelta;

use super::super::model::Scene;
use super::super::{AgentsCertificate, Fault, FaultKind, ObjectVersion};
use super::*;
use crate::protocol::Epoch;

fn signed(scene: &Scene) -> Vec<String> {
    let Action::WriteStatus(changes) = scene.decide().action else {
        return Vec::new();
    };
    let pods = changes.into_iter().filter_map(|change| match change {
        StatusChange::SignCertificate { pod, .. } => Some(pod),
        _ => None,
    });
    pods.collect()
}

fn two_years(scene: &Scene) -> Validity {
    Validity {
        from: scene.now,
        until: scene.now + TimeDelta::days(730),
    }
}

#[test]
fn the_agents_certificate_is_renewed_with_a_third_of_its_time_left() {
    let mut scene = Scene::ready(3);
    let validity = two_years(&scene);
    scene.observed.certificates.agents = Some(AgentsCertificate {
        secret: ObjectVersion::new("demo-tls", "uid-TlsSecret", "7"),
        validity,
    });
    scene.now = validity.renewal() - TimeDelta::seconds(1);
    assert_eq!(scene.decide().rule, "rest");
    scene.now = validity.renewal();
    assert_eq!((scene.now - validity.from).num_days(), 486);
    let decision = scene.decide();
    assert_eq!(
        (decision.rule, decision.phase),
        ("renew-certificate", api::Phase::Ready)
    );
    let Action::Apply(apply) = decision.action else {
        panic!()
    };
    assert_eq!(
        apply.how,
        ApplyHow::Renew(ObjectVersion::new("demo-tls", "uid-TlsSecret", "7"))
    );
    scene.set_child(OwnedObject::TlsSecret, OwnedState::Current { uid: "new".to_owned() });
    assert_eq!(scene.decide().rule, "rest", "it was made again since it was read");
}

#[test]
fn a_members_certificate_is_signed_again_with_a_third_of_its_time_left() {
    let mut scene = Scene::ready(3);
    let validity = two_years(&scene);
    scene
        .observed
        .certificates
        .members
        .insert("demo-1".to_owned(), validity);
    scene.now = validity.renewal() - TimeDelta::seconds(1);
    assert_eq!(signed(&scene), [""; 0]);
    scene.now = validity.renewal();
    assert_eq!(signed(&scene), ["demo-1"]);
}

#[test]
fn nothing_is_signed_without_the_ca_or_before_the_first_primary_has_served() {
    let new = |change: fn(&mut Scene)| {
        let mut scene = Scene::ready(3);
        scene.report_mut(1).public_key = Some("new".to_owned());
        change(&mut scene);
        let mut changes = Vec::new();
        scene.with_facts(|facts| sign(facts, &mut changes));
        changes.len()
    };
    let without = [
        |scene: &mut Scene| scene.set_child(OwnedObject::CaSecret, OwnedState::Missing),
        |scene: &mut Scene| scene.lease_mut().unwrap().holder.as_mut().unwrap().serving = false,
    ];
    assert_eq!((new(|_| {}), without.map(new)), (1, [0, 0]));
    // A later primary may wait for the very standby that needs this certificate.
    let later = |scene: &mut Scene| {
        let lease = scene.lease_mut().unwrap();
        lease.epoch = Epoch(2);
        lease.holder.as_mut().unwrap().serving = false;
    };
    assert_eq!(new(later), 1);
}

#[test]
fn no_key_is_signed_for_a_claim_that_is_gone() {
    let mut scene = Scene::ready(3);
    scene.report_mut(2).public_key = Some("new".to_owned());
    let Action::WriteStatus(changes) = scene.decide().action else {
        panic!()
    };
    let known = scene.claims_mut()[2].uid.clone();
    assert!(
        matches!(&changes[..], [StatusChange::SignCertificate { claim, .. }] if claim.uid() == known),
        "it is read once more: {changes:?}"
    );
    scene.claims_mut()[2].uid = format!("{known}0");
    assert_eq!(signed(&scene), [""; 0]);
    scene.claims_mut().remove(2);
    assert_eq!(signed(&scene), [""; 0]);
}

#[test]
fn a_key_that_cannot_be_signed_holds_up_nobody() {
    let mut scene = Scene::ready(3);
    for ordinal in 1..3 {
        scene.report_mut(ordinal).public_key = Some("new".to_owned());
    }
    assert_eq!(signed(&scene), ["demo-1", "demo-2"]);
    scene.observed.faults = vec![Fault {
        target: Target::Certificate("demo-1".to_owned()),
        kind: FaultKind::Invalid,
        message: "no key".to_owned(),
        attempts: 20,
        at: scene.now,
    }];
    assert_eq!(signed(&scene), ["demo-2"]);
    scene.store();
    assert_eq!(signed(&scene), [""; 0]);
    scene.pod_mut(1).ready = false;
    let Action::Wait(waiting) = scene.decide().action else {
        panic!()
    };
    assert_eq!(waiting.reason, api::status::WaitReason::CertificateSigning);
    scene.now += TimeDelta::minutes(2);
    assert_eq!(signed(&scene), ["demo-1"], "it is tried again");
}

#[test]
fn the_status_has_the_end_of_each_certificate_and_tells_a_month_before() {
    let mut scene = Scene::ready(1);
    let leaf = two_years(&scene);
    let authority = Validity {
        until: scene.now + TimeDelta::days(3_650),
        ..leaf
    };
    let secret = ObjectVersion::new("demo-tls", "uid-TlsSecret", "7");
    scene.observed.certificates.authority = Some(authority);
    scene.observed.certificates.agents = Some(AgentsCertificate { secret, validity: leaf });
    scene.observed.certificates.members.insert("demo-0".to_owned(), leaf);
    scene.store();
    let known = scene.stored.certificates.clone();
    let told = |name: &str, validity: Validity, renewed: bool| CertificateStatus {
        name: name.to_owned(),
        not_after: validity.until,
        renewal_time: renewed.then(|| validity.renewal()),
    };
    let all = [told("authority", authority, false), told("agents", leaf, true)];
    assert_eq!(known, all);

    // A new operator has not read the Secrets yet.
    (
        scene.observed.certificates.authority,
        scene.observed.certificates.agents,
    ) = (None, None);
    scene.store();
    assert_eq!(scene.stored.certificates, known);

    let warned = |scene: &Scene| scene.with_facts(expiring);
    scene.now = leaf.until - WARNING - TimeDelta::seconds(1);
    assert_eq!(warned(&scene), None);
    scene.now += TimeDelta::seconds(1);
    let words = warned(&scene).unwrap();
    assert!(
        words.contains("agents on ") && words.contains("demo-0 on ") && !words.contains("authority"),
        "{words}"
    );
    scene.store();
    let conditions = &scene.stored.conditions;
    assert!(
        conditions
            .iter()
            .any(|told| told.type_ == "CertificatesExpire" && told.status == "True")
    );
}
