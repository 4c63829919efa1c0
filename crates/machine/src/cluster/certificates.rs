//! Certificates: a member's is signed for the key that its agent made, and each is renewed in time.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::action::{Action, Apply, ApplyHow, StatusChange};
use super::decision::Step;
use super::facts::Facts;
use super::failure;
use super::members::{exact_claim, made_on};
use super::observed::{ChildKind, ChildState, Target, Validity};
use super::rule::{Proposal, Rule};
use crate::reconcile::Exact;

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
mod tests;
