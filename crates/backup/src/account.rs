//! The account with which Google Cloud Storage is used.
//!
//! The JSON is checked here because the errors of `object_store` can show parts of the private key.

use std::fs;

use ring::signature::RsaKeyPair;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Map, Value};

use crate::{Access, Problem};

/// Where the credentials for Google come from.
pub(crate) enum GoogleAccount {
    /// The JSON of a service account.
    Key(String),
    /// The path of a file with the JSON of a service account, or of a user of gcloud.
    File(String),
    /// The pod's own identity, from Google's metadata server.
    Pod,
}

/// Names of the credentials that hold the JSON of a service account.
const KEYS: [&str; 2] = ["GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"];
/// The environment variable that names a file with the credentials.
const FILE: &str = "GOOGLE_APPLICATION_CREDENTIALS";
/// What `object_store` reads of a service account.
const FIELDS: [&str; 3] = ["private_key", "private_key_id", "client_email"];

/// The account of the Secret, else of the environment, else of the pod.
///
/// # Errors
/// Fails with [`Problem::Unusable`] if the JSON is not one of a service account. The words show no value of it.
pub(crate) fn google_account(access: &Access) -> Result<GoogleAccount, Problem> {
    let found = KEYS.iter().find_map(|name| Some((name, access.value(&[name])?)));
    if let Some((name, key)) = found {
        return match check(key, "service_account") {
            Ok(()) => Ok(GoogleAccount::Key(key.to_owned())),
            Err(reason) => Err(Problem::Unusable(format!("{name} {reason}"))),
        };
    }
    let Some(file) = std::env::var(FILE).ok().filter(|file| !file.is_empty()) else {
        return Ok(GoogleAccount::Pod);
    };
    let unusable = |reason: &str| Problem::Unusable(format!("{FILE}: {file} {reason}"));
    let text = fs::read_to_string(&file).map_err(|error| unusable(&format!("cannot be read: {error}")))?;
    check(&text, "authorized_user").map_err(|reason| unusable(&reason))?;
    Ok(GoogleAccount::File(file))
}

/// Accepts a service account, and another type of account that `object_store` reads from this source.
fn check(text: &str, other: &str) -> Result<(), String> {
    let account: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        format!("is not the JSON of a service account (line {line}, column {column})")
    })?;
    let is_other = match account.get("type").map(Value::as_str) {
        None | Some(Some("service_account")) => false,
        Some(Some(of)) if of == other => true,
        Some(Some("external_account")) => {
            return Err(
                "is for identity federation (`external_account`): only a service account's key works".to_owned(),
            );
        }
        Some(_) => return Err("is not of the `type` `service_account`".to_owned()),
    };
    if is_other {
        return Ok(());
    }
    let is_absent = |field: &&&str| !account.get(**field).is_some_and(Value::is_string);
    let absent: Vec<String> = FIELDS
        .iter()
        .filter(is_absent)
        .map(|field| format!("`{field}`"))
        .collect();
    if !absent.is_empty() {
        return Err(format!("lacks {}", absent.join(", ")));
    }
    // Only emulators are used without a key.
    let without_key = account
        .get("disable_oauth")
        .is_some_and(|value| *value == Value::Bool(true));
    match account.get("private_key").and_then(Value::as_str) {
        Some(key) if !without_key && !is_rsa(key) => {
            Err("has a `private_key` that is no RSA key in PEM; are its line breaks lost?".to_owned())
        }
        _ => Ok(()),
    }
}

/// The same check as `object_store`'s.
fn is_rsa(pem: &str) -> bool {
    match PrivateKeyDer::from_pem_slice(pem.as_bytes()) {
        Ok(PrivateKeyDer::Pkcs8(key)) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).is_ok(),
        Ok(PrivateKeyDer::Pkcs1(key)) => RsaKeyPair::from_der(key.secret_pkcs1_der()).is_ok(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(key: &str) -> String {
        match google_account(&Access::of([(KEYS[0], key)]).expect("credentials")) {
            Err(Problem::Unusable(words)) => words,
            _ => panic!("{key} is accepted"),
        }
    }

    #[test]
    fn a_refusal_says_what_is_wrong_and_shows_no_value() {
        let lines = "-----BEGIN PRIVATE KEY-----\\nhidden\\n-----END PRIVATE KEY-----\\n";
        let broken = [
            lines.to_owned(),
            lines.replace("\\n", " "),
            lines.replace("-----\\n", ""),
            lines.replace("BEGIN PRIVATE", "BEGIN EC PRIVATE"),
            "hidden".to_owned(),
            String::new(),
        ];
        let whole = |key: &str| {
            format!(
                r#"{{"type": "service_account", "private_key": "{key}", "private_key_id": "hidden", "client_email": "hidden"}}"#
            )
        };
        let with_broken_key = broken
            .iter()
            .map(|key| (whole(key), "`private_key` that is no RSA key"));
        let others = [
            ("/hidden/key.json", "line 1, column 1"),
            ("aGlkZGVu", "line 1, column 1"),
            ("\"hidden\"", "is not the JSON of a service account"),
            ("[\"hidden\"]", "is not the JSON of a service account"),
            (r#"{"private_key": "hidden""#, "line 1, column 24"),
            (r#"{"private_key": "hidden"}"#, "lacks `private_key_id`, `client_email`"),
            (
                r#"{"private_key": ["hidden"]}"#,
                "lacks `private_key`, `private_key_id`",
            ),
            (
                r#"{"type": "external_account", "audience": "hidden"}"#,
                "identity federation",
            ),
            (
                r#"{"type": "authorized_user", "client_secret": "hidden"}"#,
                "`service_account`",
            ),
            (r#"{"type": {"hidden": "hidden"}}"#, "`service_account`"),
        ];
        let others = others.map(|(key, words)| (key.to_owned(), words));
        for (key, expected) in with_broken_key.chain(others) {
            let words = refusal(&key);
            assert!(words.starts_with("GOOGLE_SERVICE_ACCOUNT_KEY "), "{words}");
            assert!(words.contains(expected), "{key}: {words}");
            assert!(
                !words.contains("hidden") && !words.contains("104, 105"),
                "{key}: {words}"
            );
        }
    }

    #[test]
    fn an_emulator_needs_no_key() {
        let key = r#"{"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true}"#;
        for name in KEYS {
            let account = google_account(&Access::of([(name, key)]).expect("credentials"));
            assert!(matches!(account, Ok(GoogleAccount::Key(_))), "{name}");
        }
    }
}
