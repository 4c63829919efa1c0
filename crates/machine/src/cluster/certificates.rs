//! Certificates: a member's is signed for the key that its agent made, and each is renewed in time.

use api::status::CertificateStatus;
use chrono::{DateTime, TimeDelta, Utc};

use super::action::{Action, Apply, ApplyHow, StatusChange};
use super::decision::Step;
use super::facts::{Facts, exact_claim, list, made_on};
use super::observed::{OwnedState, Target, Validity};
use super::owned::OwnedObject;
use super::resting;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};

/// See [`Rule::what`].
pub const RENEW: Rule = Rule {
    name: "renew-certificate",
    family: "certificates",
    what: "The agents' certificate is made anew when two thirds of its time are over. (A member's is then signed again by the rule `record`.)",
    protocol: &[1, 3],
    kind: RuleKind::Act,
    decide: renew,
    on_backoff: OnBackoff::Yield,
};

impl Validity {
    /// When it is renewed: with a third of its time left, as cert-manager does, so that months of trouble do no harm.
    pub fn renewal(self) -> DateTime<Utc> {
        self.from + (self.until - self.from) * 2 / 3
    }
}

fn renew(facts: &Facts<'_>) -> Option<Proposal> {
    let agents = facts.observed.certificates.agents.as_ref()?;
    if facts.now < agents.validity.renewal() || facts.wanted.deleting || !facts.exists(OwnedObject::CaSecret) {
        return None;
    }
    // One that has changed since it was read is read again first.
    let Some(OwnedState::Current { uid }) = facts.child(OwnedObject::TlsSecret) else {
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
        kind: OwnedObject::TlsSecret,
        how: ApplyHow::Renew(agents.secret.clone()),
        replicas: None,
        wal: None,
    };
    Proposal::act(Step::Repair, Action::Apply(apply), because)
}

/// Keys that the holder has copied into the Lease, of members that are published as they are; and certificates that end
/// soon. A new primary may serve only once there is a standby, and a new standby needs a certificate to copy from it: so
/// keys are signed whether or not the holder serves. Only the first primary comes first, so that one write has all keys.
/// A key that could not be signed holds up nobody else's.
pub(super) fn sign(facts: &Facts<'_>, changes: &mut Vec<StatusChange>) {
    if !facts.exists(OwnedObject::CaSecret) || !facts.has_served() {
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
        if let Some(claim) = claim.filter(|_| !signed && !resting::rests(facts, &Target::Certificate(pod.name.clone())))
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

const AUTHORITY: &str = "authority";
const AGENTS: &str = "agents";
/// So long before its end a certificate is told that should have been renewed months ago, or that nobody renews.
const WARNING: TimeDelta = TimeDelta::days(30);

/// What is known of the certificates in Secrets. Of one that was not read yet the status has what was known before.
pub(super) fn describe(facts: &Facts<'_>) -> Vec<CertificateStatus> {
    let observed = &facts.observed.certificates;
    let agents = observed.agents.as_ref().map(|agents| agents.validity);
    let all = [(AUTHORITY, observed.authority, false), (AGENTS, agents, true)];
    let told = |(name, validity, renewed): (&str, Option<Validity>, bool)| match validity {
        Some(validity) => Some(CertificateStatus {
            name: name.to_owned(),
            not_after: validity.until,
            renewal_time: renewed.then(|| validity.renewal()),
        }),
        None => facts
            .status
            .certificates
            .iter()
            .find(|known| known.name == name)
            .cloned(),
    };
    all.into_iter().filter_map(told).collect()
}

/// Which certificates end soon, or have ended; those of the instances among them.
pub(super) fn expiring(facts: &Facts<'_>) -> Option<String> {
    let shared = describe(facts).into_iter().map(|known| (known.name, known.not_after));
    let members = &facts.observed.certificates.members;
    let members = members.iter().map(|(name, validity)| (name.clone(), validity.until));
    let words: Vec<String> = shared
        .chain(members)
        .filter(|(_, end)| facts.now >= *end - WARNING)
        .map(|(name, end)| format!("{name} on {}", end.date_naive()))
        .collect();
    let all = list(words.iter().map(String::as_str));
    (!words.is_empty()).then(|| {
        format!("certificates end: {all}. Those of agents and instances are renewed by the operator: see its events")
    })
}

#[cfg(test)]
mod tests;
