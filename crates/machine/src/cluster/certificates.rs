//! Certificates: a member's is signed for the key that its agent made, each is renewed in time, and the authority is replaced by
//! another one as [`crate::rotation`] says.

use api::operation::Action as Asked;
use api::status::{CertificateStatus, RotationStatus};
use chrono::{DateTime, TimeDelta, Utc};

use super::action::{Action, Apply, ApplyHow, StatusChange};
use super::decision::Step;
use super::facts::request::open_request;
use super::facts::{Facts, exact_claim, list, made_on};
use super::observed::{AuthorityCertificate, MemberCertificate, OwnedState, Pod, Target, Validity};
use super::owned::OwnedObject;
use super::resting;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use crate::protocol::FAULT_SILENT;
use crate::reconcile::ObjectVersion;
use crate::rotation::{self, Member, Next, Step as Rotation, View, Wish};

/// See [`Rule::what`].
pub const RENEW: Rule = Rule {
    name: "renew-certificate",
    family: "certificates",
    what: "The agents' certificate is made anew when two thirds of its time are over, or another authority issues or is trusted.\n\
           - The application's Secret gets the authorities that are trusted.\n\
           - A member's certificate is then signed again by the rule `record`.",
    protocol: &[1, 3],
    kind: RuleKind::Act,
    decide: renew,
    on_backoff: OnBackoff::Yield,
};

/// See [`Rule::what`].
pub const ROTATE: Rule = Rule {
    name: "rotate-authority",
    family: "certificates",
    what: "Another authority replaces the present one when two thirds of its time are over, or an operation asks for it.\n\
           - First every member says that it trusts the next one, and applications get time to read it.\n\
           - Then it issues; the former goes when nobody presents what that has issued.",
    protocol: &[1, 3],
    kind: RuleKind::Act,
    decide: rotate,
    on_backoff: OnBackoff::Yield,
};

impl Validity {
    /// When it is renewed: with a third of its time left, as cert-manager does, so that months of trouble do no harm.
    pub fn renewal(self) -> DateTime<Utc> {
        self.from + (self.until - self.from) * 2 / 3
    }
}

fn renew(facts: &Facts<'_>) -> Option<Proposal> {
    if facts.wanted.deleting || !facts.exists(OwnedObject::CaSecret) {
        return None;
    }
    let (kind, secret, because) = outdated(facts)?;
    // One that has changed since it was read is read again first.
    if !is_as_read(facts, kind, secret) {
        return None;
    }
    change(kind, ApplyHow::Renew(secret.clone()), because)
}

fn is_as_read(facts: &Facts<'_>, kind: OwnedObject, secret: &ObjectVersion) -> bool {
    matches!(facts.child(kind), Some(OwnedState::Current { uid }) if uid == secret.uid())
}

fn change(kind: OwnedObject, how: ApplyHow, because: String) -> Option<Proposal> {
    let apply = Apply {
        kind,
        how,
        replicas: None,
        wal: None,
    };
    Proposal::act(Step::Repair, Action::Apply(apply), because)
}

/// A Secret that does not hold what it should, by its time and by the authorities.
fn outdated<'a>(facts: &Facts<'a>) -> Option<(OwnedObject, &'a ObjectVersion, String)> {
    let observed = &facts.observed.certificates;
    let trusted = observed
        .authority
        .as_ref()
        .map(|authority| authority.authorities.trusted());
    let issuing = observed
        .authority
        .as_ref()
        .map(|authority| &authority.authorities.issuing);
    let others = |secret: &ObjectVersion| format!("Secret {} is to have the authorities of now", secret.name());
    if let Some(agents) = &observed.agents {
        let secret = &agents.secret;
        if facts.now >= agents.validity.renewal() {
            let until = agents.validity.until.date_naive();
            let because = format!("the certificate in Secret {} ends on {until}", secret.name());
            return Some((OwnedObject::TlsSecret, secret, because));
        }
        let fits = issuing.is_none_or(|issuing| agents.issuer == *issuing)
            && trusted.as_ref().is_none_or(|trusted| agents.trusted == *trusted);
        if !fits {
            return Some((OwnedObject::TlsSecret, secret, others(secret)));
        }
    }
    let application = observed.application.as_ref()?;
    let secret = &application.secret;
    let fits = trusted.is_none_or(|trusted| application.trusted == trusted);
    (!fits).then(|| (OwnedObject::AppSecret, secret, others(secret)))
}

fn rotate(facts: &Facts<'_>) -> Option<Proposal> {
    let authority = facts.observed.certificates.authority.as_ref()?;
    if facts.wanted.deleting || !is_as_read(facts, OwnedObject::CaSecret, &authority.secret) {
        return None;
    }
    let Next::Step(step) = next(facts, authority, &late(facts, authority)) else {
        return None;
    };
    let secret = &authority.secret;
    let because = match &step {
        Rotation::Introduce(Wish { asked: None, .. }) => {
            format!(
                "the authority in Secret {} ends on {}",
                secret.name(),
                authority.validity.until.date_naive()
            )
        }
        Rotation::Introduce(_) | Rotation::Follow(_) => "another authority is asked for".to_owned(),
        Rotation::GiveTime => "every instance has what the Secrets hold".to_owned(),
        Rotation::Issue => "the next authority issues: it is trusted".to_owned(),
        Rotation::Retire => "nobody presents what the former authority has issued".to_owned(),
    };
    change(OwnedObject::CaSecret, ApplyHow::Rotate(secret.clone(), step), because)
}

fn next(facts: &Facts<'_>, authority: &AuthorityCertificate, late: &[String]) -> Next {
    let asked = open_request(facts).and_then(|request| {
        let Asked::RotateAuthority(rotate) = &request.action else {
            return None;
        };
        Some(Wish {
            compromised: rotate.compromised,
            asked: Some(request.uid.clone()),
        })
    });
    let is_due = facts.now >= authority.validity.renewal();
    let view = View {
        now: facts.now,
        wish: asked.or(is_due.then(Wish::default)),
        expired: facts.now >= authority.validity.until,
        late,
        client_trust: TimeDelta::hours(facts.wanted.spec.client_trust_hours().into()),
        has_clients: !facts.observed.certificates.clients.is_empty(),
    };
    rotation::next(&authority.authorities, &view)
}

/// Who does not have what the authorities ask for: Secrets, and instances whose pod is there. One that is being stopped counts as long
/// as it is heard.
fn late(facts: &Facts<'_>, authority: &AuthorityCertificate) -> Vec<String> {
    if let Some((_, secret, _)) = outdated(facts) {
        return vec![format!("Secret {}", secret.name())];
    }
    let observed = &facts.observed.certificates;
    let (Some(agents), Some(_)) = (&observed.agents, &observed.application) else {
        return vec!["the Secrets, which were not read yet".to_owned()];
    };
    if facts.observed.pods.get().is_none() {
        return vec!["the instances, which were not read yet".to_owned()];
    }
    let is_heard = |pod: &&Pod| {
        let fault = facts.report(pod).map(|report| report.fault.as_deref());
        fault.is_some_and(|fault| fault != Some(FAULT_SILENT))
    };
    let counts = facts.pods().iter().filter(|pod| !pod.terminating || is_heard(pod));
    let members = counts.map(|pod| {
        let report = facts.report(pod);
        let signed = observed.members.get(&pod.name);
        Member {
            name: &pod.name,
            loaded: report.and_then(|report| report.certificates.as_deref()),
            signed: signed.map(|signed| (&*signed.issuer, &*signed.digest)),
            stored: report.and_then(|report| report.replication_certificate.as_deref()),
        }
    });
    let mut late = rotation::late(&authority.authorities, &agents.digest, members);
    // Whoever has the key that issued may not be trusted for as long as it pleases the writer of a DatabaseUser.
    if authority.authorities.record.compromised {
        return late;
    }
    if observed.clients_unread {
        late.push("the DatabaseUsers and Poolers, which were not read yet".to_owned());
    }
    let issuing = &authority.authorities.issuing;
    let clients = observed.clients.iter().filter(|(_, issuer)| *issuer != issuing);
    late.extend(clients.map(|(client, _)| client.clone()));
    late
}

/// What is said of an operation that asks for another authority, once there is one. How that goes on, the status says.
pub(super) fn is_followed(facts: &Facts<'_>, uid: &str) -> Option<String> {
    let authority = facts.observed.certificates.authority.as_ref()?;
    let followed = authority.authorities.record.asked.as_deref() == Some(uid);
    followed.then(|| "another authority is being introduced: see status.certificates".to_owned())
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
        let certificate = facts.observed.certificates.members.get(&pod.name);
        let signed = member.certificate.is_some()
            && member.certified_key.as_ref() == Some(key)
            && member.member_id.as_deref() == Some(report.member.as_str())
            && certificate.is_none_or(|certificate| is_current(facts, certificate));
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

fn is_current(facts: &Facts<'_>, certificate: &MemberCertificate) -> bool {
    let authority = facts.observed.certificates.authority.as_ref();
    facts.now < certificate.validity.renewal()
        && authority.is_none_or(|authority| authority.authorities.issuing == certificate.issuer)
}

const AUTHORITY: &str = "authority";
const AGENTS: &str = "agents";
/// So long before its end a certificate is told that should have been renewed months ago, or that nobody renews.
const WARNING: TimeDelta = TimeDelta::days(30);

/// What is known of the certificates in Secrets. Of one that was not read yet the status has what was known before.
pub(super) fn describe(facts: &Facts<'_>) -> Vec<CertificateStatus> {
    let observed = &facts.observed.certificates;
    let agents = observed.agents.as_ref().map(|agents| agents.validity);
    let authority = observed.authority.as_ref().map(|authority| authority.validity);
    let told = |(name, validity): (&str, Option<Validity>)| match validity {
        Some(validity) => Some(CertificateStatus {
            name: name.to_owned(),
            not_after: validity.until,
            renewal_time: Some(validity.renewal()),
            rotation: describe_rotation(facts).filter(|_| name == AUTHORITY),
        }),
        None => facts
            .status
            .certificates
            .iter()
            .find(|known| known.name == name)
            .cloned(),
    };
    [(AUTHORITY, authority), (AGENTS, agents)]
        .into_iter()
        .filter_map(told)
        .collect()
}

/// Agents of before this version do not say what they have loaded.
fn of_older_agents(facts: &Facts<'_>) -> String {
    let says_nothing = |pod| facts.report(pod).is_some_and(|report| report.certificates.is_none());
    match facts.pods().iter().any(says_nothing) {
        true => format!(
            "; agents that do not say what they have loaded may be older: kubectl cdb restart {}",
            facts.wanted.name
        ),
        false => String::new(),
    }
}

fn describe_rotation(facts: &Facts<'_>) -> Option<RotationStatus> {
    let authority = facts.observed.certificates.authority.as_ref()?;
    let state = authority.authorities.state()?;
    let late = late(facts, authority);
    let message = match next(facts, authority, &late) {
        Next::Late => Some(format!(
            "waits for {}{}",
            list(late.iter().map(String::as_str)),
            of_older_agents(facts)
        )),
        Next::Until(end) => Some(format!(
            "applications have until {} to read it",
            end.format("%Y-%m-%dT%H:%M:%SZ")
        )),
        Next::Rest | Next::Step(_) => None,
    };
    Some(RotationStatus { state, message })
}

/// Which certificates end soon, or have ended; those of the instances among them.
pub(super) fn expiring(facts: &Facts<'_>) -> Option<String> {
    let shared = describe(facts).into_iter().map(|known| (known.name, known.not_after));
    let members = &facts.observed.certificates.members;
    let members = members
        .iter()
        .map(|(name, certificate)| (name.clone(), certificate.validity.until));
    let words: Vec<String> = shared
        .chain(members)
        .filter(|(_, end)| facts.now >= *end - WARNING)
        .map(|(name, end)| format!("{name} on {}", end.date_naive()))
        .collect();
    let all = list(words.iter().map(String::as_str));
    (!words.is_empty()).then(|| {
        format!(
            "certificates end: {all}. The operator should have renewed them: see its events, and status.certificates"
        )
    })
}

#[cfg(test)]
mod tests;
