//! Whether the content of a Secret is still of use. The watch shows only metadata; the content is read once for each
//! version of the object, looked at here, and not kept.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use machine::cluster::{
    AgentsCertificate, ApplicationTrust, AuthorityCertificate, ObjectVersion, OwnedObject, OwnedState,
};
use machine::protocol::certificate_digest;

use crate::builders::secrets::{
    APPLICATION_KEYS, CA_CERTIFICATE_KEY, CERTIFICATE_KEY, KEY_KEY, PASSWORD_KEY, authorities_of, authority_of,
    password_of, text,
};
use crate::certificates;

/// What one version of a Secret holds. Nothing of the content itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// UID and version of the object.
    pub version: (String, String),
    /// What is wrong with it, and whether it can be made again.
    pub fault: Option<(String, bool)>,
    /// The agents' certificate.
    pub agents: Option<AgentsCertificate>,
    /// The authority's.
    pub authority: Option<AuthorityCertificate>,
    /// What the application trusts.
    pub application: Option<ApplicationTrust>,
}

impl Checked {
    /// `state` with what the content says.
    pub fn overlay(&self, state: OwnedState) -> OwnedState {
        match (state, &self.fault) {
            (OwnedState::Current { uid }, Some((what, recoverable))) if uid == self.version.0 => OwnedState::Damaged {
                uid,
                resource_version: self.version.1.clone(),
                what: what.clone(),
                recoverable: *recoverable,
            },
            (state, _) => state,
        }
    }
}

/// Looks at the content. `chosen`: the user has a Secret with the application's password.
pub fn check(kind: OwnedObject, secret: &Secret, chosen: bool) -> Checked {
    let version = (
        secret.uid().unwrap_or_default(),
        secret.resource_version().unwrap_or_default(),
    );
    let exact = ObjectVersion::new(secret.name_any(), &version.0, &version.1);
    let mut checked = Checked {
        version,
        fault: None,
        agents: None,
        authority: None,
        application: None,
    };
    match kind {
        OwnedObject::CaSecret => {
            checked.fault = authority_fault(secret).map(|what| (what, false));
            checked.authority = authority(secret, exact).filter(|_| checked.fault.is_none());
        }
        OwnedObject::TlsSecret => match agents_certificate(secret, exact) {
            Ok(agents) => checked.agents = Some(agents),
            Err(what) => checked.fault = Some((what.to_owned(), true)),
        },
        OwnedObject::AppSecret => {
            let fault = application_fault(secret);
            checked.fault = fault.map(|what| (what, chosen || password_of(secret, PASSWORD_KEY).is_some()));
            checked.application = text(secret, CA_CERTIFICATE_KEY).map(|trusted| ApplicationTrust {
                secret: exact,
                trusted: certificates::identifiers(&trusted),
            });
        }
        other => checked.fault = Some((format!("is a {}, not a Secret", other.kind()), false)),
    }
    checked
}

fn authority(secret: &Secret, exact: ObjectVersion) -> Option<AuthorityCertificate> {
    Some(AuthorityCertificate {
        secret: exact,
        validity: certificates::read(&text(secret, CA_CERTIFICATE_KEY)?)?.validity,
        authorities: authorities_of(secret)?,
    })
}

fn authority_fault(secret: &Secret) -> Option<String> {
    let Some(authority) = authority_of(secret) else {
        return Some("does not hold the authority's certificate and key".to_owned());
    };
    (!certificates::belong_together(&authority)).then(|| "holds a certificate and a key that do not fit".to_owned())
}

fn agents_certificate(secret: &Secret, exact: ObjectVersion) -> Result<AgentsCertificate, &'static str> {
    let (Some(certificate), Some(key)) = (text(secret, CERTIFICATE_KEY), text(secret, KEY_KEY)) else {
        return Err("does not hold the agents' certificate and key");
    };
    let pair = certificates::Pair { certificate, key };
    if !certificates::belong_together(&pair) {
        return Err("holds a certificate and a key that do not fit");
    }
    let authorities = text(secret, CA_CERTIFICATE_KEY).unwrap_or_default();
    let trusted = certificates::identifiers(&authorities);
    if trusted.is_empty() {
        return Err("does not hold the authority's certificate");
    }
    let read = certificates::read(&pair.certificate).ok_or("holds no certificate")?;
    Ok(AgentsCertificate {
        secret: exact,
        validity: read.validity,
        issuer: read.issuer,
        trusted,
        digest: certificate_digest(pair.certificate.as_bytes(), authorities.as_bytes()),
    })
}

fn application_fault(secret: &Secret) -> Option<String> {
    let empty = |key: &&&str| text(secret, key).is_none_or(|text| text.is_empty());
    let missing: Vec<_> = APPLICATION_KEYS.iter().filter(empty).copied().collect();
    (!missing.is_empty()).then(|| format!("holds nothing under {}", missing.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::fixture::smallest;
    use crate::builders::{Subject, secrets};
    use crate::config::Config;
    use crate::credentials::Password;

    fn without(mut secret: Secret, key: &str) -> Secret {
        secret.data.as_mut().unwrap().remove(key);
        secret
    }

    #[test]
    fn whole_secrets_have_no_fault_and_every_missing_key_is_one() {
        let (db, config) = (smallest(), Config::default());
        let subject = Subject::new(&db, &config).unwrap();
        let now = "2027-01-01T00:00:00Z".parse().unwrap();
        let authority = certificates::authority(&subject, now).unwrap();
        let agents = certificates::agents(&subject, &authority, now).unwrap();
        let app = secrets::app(&subject, &Password::chosen("x".to_owned()), "PEM");
        let tls = secrets::tls(&subject, &agents, &authority.certificate);
        let ca = secrets::ca(&subject, &authority);
        for (kind, secret) in [
            (OwnedObject::CaSecret, &ca),
            (OwnedObject::TlsSecret, &tls),
            (OwnedObject::AppSecret, &app),
        ] {
            let whole = check(kind, secret, false);
            assert_eq!(
                (&whole.fault, whole.agents.is_some(), whole.authority.is_some()),
                (&None, kind == OwnedObject::TlsSecret, kind == OwnedObject::CaSecret)
            );
            for key in secret.data.as_ref().unwrap().keys() {
                let fault = check(kind, &without(secret.clone(), key), false).fault;
                let recoverable = match kind {
                    OwnedObject::CaSecret => false,
                    OwnedObject::TlsSecret => true,
                    _ => key != "password",
                };
                assert_eq!(fault.unwrap().1, recoverable, "{kind:?} {key}");
            }
        }
        assert!(
            check(OwnedObject::AppSecret, &without(app, "password"), true)
                .fault
                .unwrap()
                .1
        );
        let other = certificates::agents(&subject, &authority, now).unwrap();
        let mixed = certificates::Pair {
            certificate: other.certificate,
            key: agents.key,
        };
        let mixed = secrets::tls(&subject, &mixed, &authority.certificate);
        assert!(check(OwnedObject::TlsSecret, &mixed, false).fault.is_some());
    }

    #[test]
    fn only_the_version_that_was_read_is_judged() {
        let checked = Checked {
            version: ("u".to_owned(), "7".to_owned()),
            fault: Some(("is empty".to_owned(), true)),
            agents: None,
            authority: None,
            application: None,
        };
        let current = |uid: &str| OwnedState::Current { uid: uid.to_owned() };
        assert!(matches!(checked.overlay(current("u")), OwnedState::Damaged { .. }));
        assert_eq!(checked.overlay(current("v")), current("v"));
        assert_eq!(checked.overlay(OwnedState::Missing), OwnedState::Missing);
    }
}
