use chrono::TimeDelta;

use super::super::model::Scene;
use api::operation::RotateAuthority;
use api::status::RotationState;

use super::super::{AgentsCertificate, ApplicationTrust, Fault, FaultKind};
use super::*;
use crate::protocol::Epoch;
use crate::rotation::{Authorities, Record};

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

fn ids(trusted: &[&str]) -> std::collections::BTreeSet<String> {
    trusted.iter().map(|id| (*id).to_owned()).collect()
}

fn secret(kind: OwnedObject) -> ObjectVersion {
    ObjectVersion::new(format!("demo{}", kind.suffix()), format!("uid-{kind:?}"), "7")
}

fn agents(validity: Validity, issuer: &str, trusted: &[&str]) -> AgentsCertificate {
    AgentsCertificate {
        secret: secret(OwnedObject::TlsSecret),
        validity,
        issuer: issuer.to_owned(),
        trusted: ids(trusted),
        digest: format!("{issuer} among {trusted:?}"),
    }
}

fn application(trusted: &[&str]) -> ApplicationTrust {
    ApplicationTrust {
        secret: secret(OwnedObject::AppSecret),
        trusted: ids(trusted),
    }
}

fn of_member(validity: Validity, issuer: &str) -> MemberCertificate {
    MemberCertificate {
        validity,
        issuer: issuer.to_owned(),
        digest: format!("by {issuer}"),
    }
}

/// Everybody has loaded what the Secrets hold, and has stored what the status holds.
fn load(scene: &mut Scene) {
    let digest = scene
        .observed
        .certificates
        .agents
        .as_ref()
        .map(|agents| agents.digest.clone());
    let members = scene.observed.certificates.members.clone();
    let lease = scene.lease_mut().unwrap();
    for (name, report) in &mut lease.members {
        report.certificates = digest.clone();
        report.replication_certificate = members.get(name).map(|member| member.digest.clone());
    }
}

/// A database of three with an authority that has ten years.
fn with_authority() -> Scene {
    let mut scene = Scene::ready(3);
    let (leaf, validity) = (two_years(&scene), ten_years(&scene));
    let certificates = &mut scene.observed.certificates;
    certificates.authority = Some(AuthorityCertificate {
        secret: secret(OwnedObject::CaSecret),
        validity,
        authorities: Authorities {
            issuing: "1".to_owned(),
            next: None,
            former: None,
            record: Record::default(),
        },
    });
    certificates.agents = Some(agents(leaf, "1", &["1"]));
    certificates.application = Some(application(&["1"]));
    for ordinal in 0..3 {
        certificates
            .members
            .insert(format!("demo-{ordinal}"), of_member(leaf, "1"));
    }
    load(&mut scene);
    scene
}

fn ten_years(scene: &Scene) -> Validity {
    Validity {
        from: scene.now,
        until: scene.now + TimeDelta::days(3_650),
    }
}

fn authorities(scene: &mut Scene) -> &mut Authorities {
    &mut scene.observed.certificates.authority.as_mut().unwrap().authorities
}

/// What is done next: the rule, and how it changes which Secret.
fn done(scene: &Scene) -> (&'static str, OwnedObject, ApplyHow) {
    let decision = scene.decide();
    let Action::Apply(apply) = decision.action else {
        panic!("{decision:?}")
    };
    (decision.rule, apply.kind, apply.how)
}

fn step(scene: &Scene) -> Rotation {
    match done(scene) {
        ("rotate-authority", OwnedObject::CaSecret, ApplyHow::Rotate(exact, step)) => {
            assert_eq!(exact, secret(OwnedObject::CaSecret));
            step
        }
        other => panic!("{other:?}"),
    }
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
    scene.observed.certificates.agents = Some(agents(validity, "1", &["1"]));
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
        .insert("demo-1".to_owned(), of_member(validity, "1"));
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
    let mut scene = with_authority();
    let (leaf, authority) = (two_years(&scene), ten_years(&scene));
    scene.store();
    let known = scene.stored.certificates.clone();
    let told = |name: &str, validity: Validity| CertificateStatus {
        name: name.to_owned(),
        not_after: validity.until,
        renewal_time: Some(validity.renewal()),
        rotation: None,
    };
    assert_eq!(known, [told("authority", authority), told("agents", leaf)]);

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

#[test]
fn secrets_follow_the_authorities_and_then_the_members_do() {
    let mut scene = with_authority();
    assert_eq!(scene.decide().rule, "rest");
    authorities(&mut scene).next = Some("2".to_owned());
    let renew = |kind: OwnedObject| ("renew-certificate", kind, ApplyHow::Renew(secret(kind)));
    assert_eq!(done(&scene), renew(OwnedObject::TlsSecret));
    let leaf = two_years(&scene);
    scene.observed.certificates.agents = Some(agents(leaf, "1", &["1", "2"]));
    assert_eq!(done(&scene), renew(OwnedObject::AppSecret));
    scene.observed.certificates.application = Some(application(&["1", "2"]));
    assert_eq!(signed(&scene), [""; 0]);
    let authorities = authorities(&mut scene);
    (authorities.issuing, authorities.former, authorities.next) = ("2".to_owned(), Some("1".to_owned()), None);
    assert_eq!(
        signed(&scene),
        ["demo-0", "demo-1", "demo-2"],
        "those who still present it are in the status"
    );
    scene
        .observed
        .certificates
        .members
        .insert("demo-0".to_owned(), of_member(leaf, "2"));
    assert_eq!(signed(&scene), ["demo-1", "demo-2"]);
    scene.set_child(OwnedObject::CaSecret, OwnedState::Missing);
    assert_eq!(signed(&scene), [""; 0]);
}

#[test]
fn an_authority_is_replaced_in_time_and_when_an_operation_asks() {
    let mut scene = with_authority();
    let validity = ten_years(&scene);
    scene.now = validity.renewal();
    for member in scene.observed.certificates.members.values_mut() {
        member.validity = validity;
    }
    scene.observed.certificates.agents.as_mut().unwrap().validity = validity;
    scene.now -= TimeDelta::seconds(1);
    assert_eq!(scene.decide().rule, "rest");
    scene.now += TimeDelta::seconds(1);
    // The leaves of this scene end with it.
    scene.now = validity.renewal();
    let later = Validity {
        from: scene.now,
        until: scene.now + TimeDelta::days(730),
    };
    scene.observed.certificates.agents.as_mut().unwrap().validity = later;
    for member in scene.observed.certificates.members.values_mut() {
        member.validity = later;
    }
    assert_eq!(step(&scene), Rotation::Introduce(Wish::default()));
    scene.deleting = true;
    assert_ne!(scene.decide().rule, "rotate-authority");

    let mut asked = with_authority();
    asked.ask(Asked::RotateAuthority(RotateAuthority { compromised: true }));
    asked.store();
    let Rotation::Introduce(wish) = step(&asked) else {
        panic!()
    };
    assert!(wish.compromised);
    let uid = wish.asked.clone().unwrap();
    assert_eq!(asked.with_facts(|facts| is_followed(facts, &uid)), None);
    authorities(&mut asked).record.asked = Some(uid.clone());
    assert!(asked.with_facts(|facts| is_followed(facts, &uid)).is_some());
    asked.set_child(OwnedObject::CaSecret, OwnedState::Current { uid: "new".to_owned() });
    authorities(&mut asked).record.asked = None;
    assert_ne!(
        asked.decide().rule,
        "rotate-authority",
        "it was made again since it was read"
    );
}

#[test]
fn each_step_waits_for_secrets_and_for_every_instance_that_has_a_pod() {
    let mut scene = with_authority();
    let leaf = two_years(&scene);
    authorities(&mut scene).next = Some("2".to_owned());
    scene.observed.certificates.agents = Some(agents(leaf, "1", &["1", "2"]));
    scene.observed.certificates.application = Some(application(&["1", "2"]));
    let waits = |scene: &Scene| {
        let told = scene.with_facts(describe_rotation).unwrap();
        (told.state, told.message.unwrap_or_default())
    };
    assert_eq!(
        waits(&scene),
        (RotationState::Distribute, "waits for demo-0, demo-1, demo-2".to_owned())
    );
    load(&mut scene);
    scene.report_mut(2).certificates = None;
    let older = "; agents that do not say what they have loaded may be older: kubectl cdb restart demo";
    assert_eq!(waits(&scene).1, format!("waits for demo-2{older}"));
    assert_eq!(scene.decide().rule, "rest", "nothing else is held up");
    scene.pod_mut(2).terminating = true;
    let waits_still = waits(&scene).1;
    assert!(
        waits_still.starts_with("waits for demo-2"),
        "as long as it is heard: {waits_still}"
    );
    scene.report_mut(2).fault = Some(FAULT_SILENT.to_owned());
    assert_eq!(step(&scene), Rotation::GiveTime);
    (scene.pod_mut(2).terminating, scene.report_mut(2).fault) = (false, None);
    load(&mut scene);
    assert_eq!(step(&scene), Rotation::GiveTime);
    authorities(&mut scene).record.since = Some(scene.now);
    let (state, message) = waits(&scene);
    assert!(
        state == RotationState::Overlap && message.starts_with("applications have until "),
        "{message}"
    );
    scene.edit(|spec| {
        spec.certificates = Some(api::spec::CertificatesSpec {
            client_trust_hours: Some(0),
        })
    });
    assert_eq!(step(&scene), Rotation::Issue);
    let now = authorities(&mut scene);
    (now.issuing, now.former, now.next) = ("2".to_owned(), Some("1".to_owned()), None);
    now.record.since = None;
    assert_eq!(
        waits(&scene),
        (RotationState::Issue, "waits for Secret demo-tls".to_owned())
    );
    scene.observed.certificates.agents = Some(agents(leaf, "2", &["1", "2"]));
    for ordinal in 0..3 {
        scene
            .observed
            .certificates
            .members
            .insert(format!("demo-{ordinal}"), of_member(leaf, "2"));
    }
    load(&mut scene);
    scene.report_mut(1).replication_certificate = Some("by 1".to_owned());
    assert_eq!(waits(&scene).1, "waits for demo-1");
    load(&mut scene);
    assert_eq!(step(&scene), Rotation::Retire);
    let clients = &mut scene.observed.certificates.clients;
    clients.insert("DatabaseUser orders-rw".to_owned(), "1".to_owned());
    assert_eq!(waits(&scene).1, "waits for DatabaseUser orders-rw");
    authorities(&mut scene).record.compromised = true;
    assert_eq!(step(&scene), Rotation::Retire, "a key in wrong hands waits for no user");
    authorities(&mut scene).record.compromised = false;
    let clients = &mut scene.observed.certificates.clients;
    clients.insert("DatabaseUser orders-rw".to_owned(), "2".to_owned());
    scene.observed.certificates.clients_unread = true;
    assert_eq!(
        waits(&scene).1,
        "waits for the DatabaseUsers and Poolers, which were not read yet"
    );
    scene.observed.certificates.clients_unread = false;
    let pods = std::mem::replace(&mut scene.observed.pods, crate::cluster::Known::Unknown);
    assert_eq!(waits(&scene).1, "waits for the instances, which were not read yet");
    scene.observed.pods = pods;
    assert_eq!(step(&scene), Rotation::GiveTime, "the application reads it");
    authorities(&mut scene).record.since = Some(scene.now);
    assert_eq!(waits(&scene).0, RotationState::Retire);
    assert_eq!(step(&scene), Rotation::Retire);
    scene.observed.certificates.application = None;
    assert_eq!(waits(&scene).1, "waits for the Secrets, which were not read yet");
}
