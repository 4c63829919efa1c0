//! The Secrets: authority, agents' certificate, application's credentials. Made once; their content is changed only where it
//! is renewed, or was lost and can be made again.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use machine::rotation::{Authorities, Record, Step};
use serde_json::{Value, json};

use super::Subject;
use crate::certificates::{self, Pair};
use crate::credentials::{Password, application};

/// Key of the authority's certificate, in both certificate Secrets.
pub const CA_CERTIFICATE_KEY: &str = "ca.crt";
/// Key of the authority's private key.
pub const CA_KEY_KEY: &str = "ca.key";
/// Keys of the next authority, and of the former one's certificate, while one replaces the other.
pub const NEXT_CERTIFICATE_KEY: &str = "next.crt";
const NEXT_KEY_KEY: &str = "next.key";
const FORMER_CERTIFICATE_KEY: &str = "former.crt";
/// Key of what is noted of a rotation ([`Record`]), as JSON.
const ROTATION_KEY: &str = "rotation.json";
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

/// The data that this step of a rotation changes in the Secret of the authority; `null` takes a key away. `None` if that has not what the
/// step needs. `next` makes an authority.
///
/// # Errors
/// Those of `next`.
pub fn rotated<E>(
    before: &Secret,
    step: &Step,
    now: DateTime<Utc>,
    next: impl FnOnce() -> Result<Pair, E>,
) -> Result<Option<Value>, E> {
    let encode = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    let kept = |key: &str| {
        before
            .data
            .as_ref()
            .and_then(|data| data.get(key))
            .map(|value| json!(value))
    };
    let record = record_of(before).after(step, now);
    let noted = encode(&serde_json::to_string(&record).unwrap_or_default());
    let change = match step {
        Step::Introduce(_) => {
            let next = next()?;
            Some(json!({NEXT_CERTIFICATE_KEY: encode(&next.certificate), NEXT_KEY_KEY: encode(&next.key)}))
        }
        Step::Follow(_) | Step::GiveTime => Some(json!({})),
        // What would not fit would take the place of the only key that does.
        Step::Issue if !next_of(before).is_some_and(|next| certificates::belong_together(&next)) => None,
        Step::Issue => {
            let keys = [NEXT_CERTIFICATE_KEY, NEXT_KEY_KEY, CA_CERTIFICATE_KEY].map(kept);
            match keys {
                [Some(certificate), Some(key), Some(former)] => Some(json!({
                    CA_CERTIFICATE_KEY: certificate, CA_KEY_KEY: key, FORMER_CERTIFICATE_KEY: former,
                    NEXT_CERTIFICATE_KEY: null, NEXT_KEY_KEY: null,
                })),
                _ => None,
            }
        }
        Step::Retire => Some(json!({FORMER_CERTIFICATE_KEY: null})),
    };
    Ok(change.map(|mut change| {
        change[ROTATION_KEY] = noted;
        change
    }))
}

fn next_of(secret: &Secret) -> Option<Pair> {
    pair(secret, NEXT_CERTIFICATE_KEY, NEXT_KEY_KEY)
}

fn record_of(secret: &Secret) -> Record {
    let written = text(secret, ROTATION_KEY);
    written
        .and_then(|written| serde_json::from_str(&written).ok())
        .unwrap_or_default()
}

/// The authorities in the Secret of the authority; `None` if it holds none.
pub fn authorities_of(secret: &Secret) -> Option<Authorities> {
    let identifier = |key: &str| Some(certificates::read(&text(secret, key)?)?.identifier);
    Some(Authorities {
        issuing: identifier(CA_CERTIFICATE_KEY)?,
        next: identifier(NEXT_CERTIFICATE_KEY),
        former: identifier(FORMER_CERTIFICATE_KEY),
        record: record_of(secret),
    })
}

/// The certificates of all authorities that are trusted, that of the issuing one first.
pub fn trusted_of(secret: &Secret) -> Option<String> {
    let others = [NEXT_CERTIFICATE_KEY, FORMER_CERTIFICATE_KEY].map(|key| text(secret, key).unwrap_or_default());
    Some(text(secret, CA_CERTIFICATE_KEY)? + &others.concat())
}

/// Secret with the agents' certificate, and the authorities that they trust.
pub fn tls(subject: &Subject<'_>, agents: &Pair, trusted: &str) -> Secret {
    let data = [
        (CERTIFICATE_KEY, agents.certificate.as_str()),
        (KEY_KEY, agents.key.as_str()),
        (CA_CERTIFICATE_KEY, trusted),
    ];
    let data = data.map(|(key, text)| (key.to_owned(), text.to_owned())).into();
    secret(subject.meta(subject.names.tls_secret()), "kubernetes.io/tls", data)
}

/// Secret with all that an application needs to connect.
pub fn app(subject: &Subject<'_>, password: &Password, trusted: &str) -> Secret {
    let mut data = application(subject, password);
    data.insert(CA_CERTIFICATE_KEY.to_owned(), trusted.to_owned());
    secret(subject.kept_meta(subject.names.app_secret()), BINDING, data)
}

/// The authority in a Secret made by [`ca`]; `None` if a key is missing or not text.
pub fn authority_of(secret: &Secret) -> Option<Pair> {
    pair(secret, CA_CERTIFICATE_KEY, CA_KEY_KEY)
}

/// The certificate and its private key under these keys of a Secret; `None` if one is missing or not text.
pub fn pair(secret: &Secret, certificate: &str, key: &str) -> Option<Pair> {
    Some(Pair {
        certificate: text(secret, certificate)?,
        key: text(secret, key)?,
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
    use api::status::RotationState;
    use machine::rotation::Wish;

    use super::*;
    use crate::builders::fixture::smallest;
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
    fn each_step_of_a_rotation_changes_the_secret() {
        let (db, config) = (smallest(), Config::default());
        let subject = Subject::new(&db, &config).unwrap();
        let now = "2027-01-01T00:00:00Z".parse().unwrap();
        let make = || certificates::authority(&subject, now);
        let mut secret = serde_json::to_value(ca(&subject, &make().unwrap())).unwrap();
        let read = |secret: &Value| -> Secret { serde_json::from_value(secret.clone()).unwrap() };
        let first = authorities_of(&read(&secret)).unwrap();
        assert_eq!((first.state(), &first.record), (None, &Record::default()));
        let wish = Wish {
            compromised: true,
            asked: Some("u".to_owned()),
        };
        let early = rotated(&read(&secret), &Step::Issue, now, make).unwrap();
        assert_eq!(early, None, "there is no next one");
        for step in [Step::Introduce(wish), Step::GiveTime, Step::Issue, Step::Retire] {
            let change = rotated(&read(&secret), &step, now, make).unwrap().unwrap();
            json_merge(&mut secret["data"], &change);
            let (now_read, trusted) = (
                authorities_of(&read(&secret)).unwrap(),
                trusted_of(&read(&secret)).unwrap(),
            );
            assert_eq!(certificates::identifiers(&trusted), now_read.trusted(), "{step:?}");
            let issues = authority_of(&read(&secret)).unwrap();
            assert!(certificates::belong_together(&issues), "{step:?}");
            let expected = match step {
                Step::Introduce(_) => (Some(RotationState::Distribute), true, 2),
                Step::Follow(_) | Step::GiveTime => (Some(RotationState::Overlap), true, 2),
                Step::Issue => (Some(RotationState::Issue), true, 2),
                Step::Retire => (None, false, 1),
            };
            let found = (now_read.state(), now_read.record.compromised, now_read.trusted().len());
            assert_eq!(found, expected, "{step:?}");
            assert_eq!(now_read.record.asked.as_deref(), Some("u"));
        }
        let last = authorities_of(&read(&secret)).unwrap();
        assert_ne!(last.issuing, first.issuing);
    }

    fn json_merge(data: &mut Value, change: &Value) {
        for (key, value) in change.as_object().unwrap() {
            match value {
                Value::Null => drop(data.as_object_mut().unwrap().remove(key)),
                value => data[key] = value.clone(),
            }
        }
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
