//! The Secrets: authority, agents' certificate, application's credentials. Made once; their content is changed only where it
//! is renewed, or was lost and can be made again.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Subject;
use crate::certificates::Pair;
use crate::credentials::{Password, application};

/// Key of the authority's certificate, in both certificate Secrets.
pub const CA_CERTIFICATE_KEY: &str = "ca.crt";
/// Key of the authority's private key.
pub const CA_KEY_KEY: &str = "ca.key";
/// Key of the agents' certificate.
pub const CERTIFICATE_KEY: &str = "tls.crt";
/// Key of the agents' private key.
pub const KEY_KEY: &str = "tls.key";
/// Keys of the application's Secret, all of them. Those of the Service Binding specification
/// (<https://servicebinding.io/spec/core/1.1.0/>, "Well-known Secret Entries") are `type`, `provider`, `host`, `port`, `uri`,
/// `username`, `password`, and `database`.
pub const APPLICATION_KEYS: [&str; 14] = [
    CA_CERTIFICATE_KEY,
    "database",
    "dbname",
    "host",
    "jdbc-uri",
    "jdbc-uri-verify-full",
    PASSWORD_KEY,
    "port",
    "provider",
    "type",
    "uri",
    "uri-verify-full",
    "user",
    "username",
];
/// Type of a Secret with all that an application needs to connect: that of a bound Service.
pub const BINDING: &str = "servicebinding.io/postgresql";
/// Key of the application user's password, in the Secret made here and in one that the user brings.
pub const PASSWORD_KEY: &str = "password";

/// Secret with the authority; only the operator reads it, no pod mounts it.
pub fn ca(subject: &Subject<'_>, authority: &Pair) -> Secret {
    let data = [
        (CA_CERTIFICATE_KEY, &authority.certificate),
        (CA_KEY_KEY, &authority.key),
    ];
    secret(
        subject.kept_meta(subject.names.ca_secret()),
        "Opaque",
        data.map(|(key, text)| (key.to_owned(), text.clone())).into(),
    )
}

/// Secret with the agents' certificate.
pub fn tls(subject: &Subject<'_>, agents: &Pair, authority_certificate: &str) -> Secret {
    let data = [
        (CERTIFICATE_KEY, agents.certificate.as_str()),
        (KEY_KEY, agents.key.as_str()),
        (CA_CERTIFICATE_KEY, authority_certificate),
    ];
    let data = data.map(|(key, text)| (key.to_owned(), text.to_owned())).into();
    secret(subject.meta(subject.names.tls_secret()), "kubernetes.io/tls", data)
}

/// Secret with all that an application needs to connect.
pub fn app(subject: &Subject<'_>, password: &Password, authority_certificate: &str) -> Secret {
    let mut data = application(subject, password);
    data.insert(CA_CERTIFICATE_KEY.to_owned(), authority_certificate.to_owned());
    secret(subject.kept_meta(subject.names.app_secret()), BINDING, data)
}

/// The authority in a Secret made by [`ca`]; `None` if a key is missing or not text.
pub fn authority_of(secret: &Secret) -> Option<Pair> {
    Some(Pair {
        certificate: text(secret, CA_CERTIFICATE_KEY)?,
        key: text(secret, CA_KEY_KEY)?,
    })
}

/// The password in a Secret; `None` if it is missing, empty or not text.
pub fn password_of(secret: &Secret, key: &str) -> Option<Password> {
    text(secret, key).filter(|text| !text.is_empty()).map(Password::chosen)
}

/// The text under a key of a Secret; `None` if there is none or it is not text.
pub fn text(secret: &Secret, key: &str) -> Option<String> {
    String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok()
}

/// A Secret of this type with this text.
pub fn secret(metadata: ObjectMeta, kind: &str, data: BTreeMap<String, String>) -> Secret {
    Secret {
        metadata,
        type_: Some(kind.to_owned()),
        data: Some(
            data.into_iter()
                .map(|(key, text)| (key, ByteString(text.into_bytes())))
                .collect(),
        ),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::fixture::smallest;
    use crate::certificates;
    use crate::config::Config;

    #[test]
    fn the_authority_is_read_back_as_it_was_written() {
        let (db, config) = (smallest(), Config::default());
        let subject = Subject::new(&db, &config).unwrap();
        let now = "2027-01-01T00:00:00Z".parse().unwrap();
        let authority = certificates::authority(&subject, now).unwrap();
        let stored = ca(&subject, &authority);
        let read = authority_of(&stored).unwrap();
        assert!(read.key == authority.key && read.certificate == authority.certificate);
        let agents = certificates::agents(&subject, &read, now).unwrap();
        let tls = tls(&subject, &agents, &read.certificate);
        let keys: Vec<_> = tls.data.unwrap().into_keys().collect();
        assert_eq!(
            keys,
            ["ca.crt", "tls.crt", "tls.key"],
            "the authority's key stays with the operator"
        );
        assert_eq!(tls.type_.as_deref(), Some("kubernetes.io/tls"));
    }

    #[test]
    fn a_password_that_is_missing_or_empty_is_none() {
        let with = |data: &[(&str, &[u8])]| Secret {
            data: Some(
                data.iter()
                    .map(|(key, value)| ((*key).to_owned(), ByteString(value.to_vec())))
                    .collect(),
            ),
            ..Secret::default()
        };
        assert_eq!(password_of(&Secret::default(), PASSWORD_KEY), None);
        assert_eq!(password_of(&with(&[("password", b"")]), PASSWORD_KEY), None);
        assert_eq!(password_of(&with(&[("password", b"\xff")]), PASSWORD_KEY), None);
        assert!(password_of(&with(&[("password", b"x")]), PASSWORD_KEY).is_some());
    }
}
