//! Certificates: a member's is signed for the key that its agent made, and each is renewed in time.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::action::{Action, Apply, ApplyHow, Exact, StatusChange};
use super::decision::Step;
use super::facts::Facts;
use super::failure;
use super::members::{exact_claim, made_on};
use super::observed::{ChildKind, ChildState, Target, Validity};
use super::rule::{Proposal, Rule};

/// See [`Rule::what`].
pub const RENEW: Rule = Rule {
    name: "renew-certificate",
    family: "certificates",
    what: "The agents' certificate is made anew when two thirds of its time are over. (A member's is then signed again by the rule `record`.)",
    propose: renew,
    passable: true,
};

impl Validity {
    /// When it is renewed: with a third of its time left, as cert-manager does, so that months of trouble do no harm.
    pub fn renewal(self) -> DateTime<Utc> {
        self.from + (self.until - self.from) * 2 / 3
    }
}

fn renew(facts: &Facts<'_>) -> Option<Proposal> {
    let agents = facts.observed.certificates.agents.as_ref()?;
    if facts.now < agents.validity.renewal() || facts.wanted.deleting || !is_usable(facts, ChildKind::CaSecret) {
        return None;
    }
    // One that has changed since it was read is read again first.
    let Some(ChildState::Current { uid }) = facts.child(ChildKind::TlsSecret) else {
        return None;
    };
    if agents.secret.uid() != uid {
        return None;
    }
    let because = format!(
        "the certificate in Secret {} ends on {}",
        agents.secret.name(),
        agents.validity.until.date_naive()
    );
    let apply = Apply {
        kind: ChildKind::TlsSecret,
        how: ApplyHow::Renew(agents.secret.clone()),
        replicas: None,
        wal: None,
    };
    Proposal::act(Step::Repair, Action::Apply(apply), because)
}

fn is_usable(facts: &Facts<'_>, kind: ChildKind) -> bool {
    matches!(
        facts.child(kind),
        Some(ChildState::Current { .. } | ChildState::Drifted { .. })
    )
}

/// Keys that the primary has copied into the Lease, of members that are published as they are; and certificates that end
/// soon. A key that could not be signed holds up nobody else's.
pub(super) fn sign(facts: &Facts<'_>, changes: &mut Vec<StatusChange>) {
    if !is_usable(facts, ChildKind::CaSecret) || !facts.holder().is_some_and(|holder| holder.serving) {
        return;
    }
    for pod in facts.pods().iter().filter(|pod| !pod.terminating) {
        let (Some(report), Some(member)) = (facts.report(pod), facts.member(pod)) else {
            continue;
        };
        let Some(key) = &report.public_key else { continue };
        let validity = facts.observed.certificates.members.get(&pod.name);
        let signed = member.certificate.is_some()
            && member.certified_key.as_ref() == Some(key)
            && member.member_id.as_deref() == Some(report.member.as_str())
            && validity.is_none_or(|validity| facts.now < validity.renewal());
        // Nobody gets a certificate in another member's name, or for a claim that is gone.
        let claim = facts.data_claim(pod.ordinal).filter(|claim| {
            member.claim_uid.as_ref() == Some(&claim.uid) && made_on(&report.member, pod.ordinal, &claim.uid)
        });
        if let Some(claim) = claim.filter(|_| !signed && !failure::rests(facts, &Target::Certificate(pod.name.clone())))
        {
            changes.push(StatusChange::SignCertificate {
                pod: pod.name.clone(),
                claim: exact_claim(claim),
                member: report.member.clone(),
                public_key: key.clone(),
            });
        }
    }
}

/// The certificate of the agents as it stands in its Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentsCertificate {
    /// The Secret, at the version that was read.
    pub secret: Exact,
    /// When it is valid.
    pub validity: Validity,
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::super::testing::Scene;
    use super::super::{Fault, FaultKind};
    use super::*;

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
            secret: Exact::new("demo-tls", "uid-TlsSecret", "7"),
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
        assert_eq!(apply.how, ApplyHow::Renew(Exact::new("demo-tls", "uid-TlsSecret", "7")));
        scene.set_child(ChildKind::TlsSecret, ChildState::Current { uid: "new".to_owned() });
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
    fn nothing_is_signed_without_the_ca_or_for_a_holder_that_does_not_serve() {
        let new = |change: fn(&mut Scene)| {
            let mut scene = Scene::ready(3);
            scene.report_mut(1).public_key = Some("new".to_owned());
            change(&mut scene);
            let mut changes = Vec::new();
            scene.with_facts(|facts| sign(facts, &mut changes));
            changes.len()
        };
        let without = [
            |scene: &mut Scene| scene.set_child(ChildKind::CaSecret, ChildState::Missing),
            |scene: &mut Scene| scene.lease_mut().unwrap().holder.as_mut().unwrap().serving = false,
        ];
        assert_eq!((new(|_| {}), without.map(new)), (1, [0, 0]));
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
        assert!(waiting.what.contains("no key"), "{}", waiting.what);
        scene.now += TimeDelta::minutes(2);
        assert_eq!(signed(&scene), ["demo-1"], "it is tried again");
    }
}
