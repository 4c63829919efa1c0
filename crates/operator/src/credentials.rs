//! The application user's password, and the connection strings with it.

use std::collections::BTreeMap;

use ring::rand::{SecureRandom, SystemRandom};

use crate::builders::Subject;

const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
/// 32 of 62 characters: 190 bits.
const PASSWORD_LENGTH: usize = 32;

/// A secret text: it can be used, but not logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

/// The operating system gives no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system gives no random numbers")]
pub struct NoRandomness;

impl Password {
    /// A fresh one, from the operating system's random numbers.
    ///
    /// # Errors
    /// Fails if the operating system gives no random numbers.
    pub fn generate() -> Result<Self, NoRandomness> {
        let random = SystemRandom::new();
        let mut text = String::with_capacity(PASSWORD_LENGTH);
        while text.len() < PASSWORD_LENGTH {
            let mut bytes = [0_u8; PASSWORD_LENGTH];
            random.fill(&mut bytes).map_err(|_| NoRandomness)?;
            // 248 is the largest multiple of 62 in a byte: what is above would make some characters likelier.
            let fair = bytes.iter().filter(|&&byte| byte < 248);
            text.extend(
                fair.map(|&byte| char::from(ALPHABET[usize::from(byte % 62)]))
                    .take(PASSWORD_LENGTH - text.len()),
            );
        }
        Ok(Self(text))
    }

    /// One that a user chose.
    pub fn chosen(text: String) -> Self {
        Self(text)
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(…)")
    }
}

/// The content of the application's Secret.
pub fn application(subject: &Subject<'_>, password: &Password) -> BTreeMap<String, String> {
    let initdb = subject.db.spec.initdb();
    let secret = subject.names.app_secret();
    connection(subject, initdb.owner(), &initdb.database, &secret, password)
}

/// All that an application needs to connect as `user` to `database`, but for the authority. `secret` is the name of the Secret that it
/// stands in.
pub fn connection(
    subject: &Subject<'_>,
    user: &str,
    database: &str,
    secret: &str,
    password: &Password,
) -> BTreeMap<String, String> {
    let port = subject.db.spec.postgres.port;
    let host = format!("{}.{}.svc", subject.names.rw(), subject.namespace);
    let (encoded, within, text) = (encode(user), encode(database), encode(&password.0));
    let uri = format!("postgresql://{encoded}:{text}@{host}:{port}/{within}");
    let jdbc = format!("jdbc:postgresql://{host}:{port}/{within}?user={encoded}&password={text}");
    // Where the documentation says that an application mounts the Secret.
    let verified = format!("sslmode=verify-full&sslrootcert=/etc/{secret}/ca.crt");
    BTreeMap::from(
        [
            ("uri-verify-full", format!("{uri}?{verified}")),
            ("jdbc-uri-verify-full", format!("{jdbc}&{verified}")),
            ("uri", uri),
            ("jdbc-uri", jdbc),
            ("type", "postgresql".to_owned()),
            ("provider", "clustereddatabase".to_owned()),
            ("host", host),
            ("port", port.to_string()),
            ("database", database.to_owned()),
            ("dbname", database.to_owned()),
            ("user", user.to_owned()),
            ("username", user.to_owned()),
            ("password", password.0.clone()),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    )
}

/// Percent-encodes everything that has a meaning in a URI.
fn encode(text: &str) -> String {
    text.bytes()
        .fold(String::with_capacity(text.len()), |mut encoded, byte| {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                encoded.push(char::from(byte));
            } else {
                encoded.push_str(&format!("%{byte:02X}"));
            }
            encoded
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::fixture::{database, smallest};
    use crate::builders::secrets::app;
    use crate::config::Config;

    #[test]
    fn passwords_are_long_random_and_never_shown() {
        let (first, second) = (Password::generate().unwrap(), Password::generate().unwrap());
        assert_eq!(first.0.len(), 32);
        assert!(first.0.bytes().all(|byte| ALPHABET.contains(&byte)));
        assert_ne!(first, second);
        assert!(!format!("{first:?}").contains(&first.0));
    }

    #[test]
    fn uris_hold_any_password() {
        let db = database(serde_json::json!({
            "storage": {"data": {"size": "1Gi"}}, "bootstrap": {"initdb": {"owner": "o'w ner", "database": "däta"}},
        }));
        let config = Config::default();
        let secret = application(
            &Subject::new(&db, &config).unwrap(),
            &Password::chosen("p@ss:w/rd&?#% \n'".to_owned()),
        );
        assert_eq!(
            secret["uri"],
            "postgresql://o%27w%20ner:p%40ss%3Aw%2Frd%26%3F%23%25%20%0A%27@db-rw.ns.svc:5432/d%C3%A4ta"
        );
        assert_eq!(
            secret["jdbc-uri"],
            "jdbc:postgresql://db-rw.ns.svc:5432/d%C3%A4ta?user=o%27w%20ner&password=p%40ss%3Aw%2Frd%26%3F%23%25%20%0A%27"
        );
        assert_eq!(secret["password"], "p@ss:w/rd&?#% \n'");
    }

    #[test]
    fn all_keys_are_there() {
        let (db, config) = (smallest(), Config::default());
        let subject = Subject::new(&db, &config).unwrap();
        let secret = app(&subject, &Password::chosen("x".to_owned()), "PEM");
        assert_eq!(secret.type_.as_deref(), Some("servicebinding.io/postgresql"));
        let data = secret.data.unwrap();
        let keys: Vec<_> = data.keys().map(String::as_str).collect();
        assert_eq!(keys, crate::builders::secrets::APPLICATION_KEYS);
        for (key, text) in [
            ("ca.crt", "PEM"),
            ("type", "postgresql"),
            ("database", "app"),
            ("uri", "postgresql://app:x@db-rw.ns.svc:5432/app"),
            (
                "uri-verify-full",
                "postgresql://app:x@db-rw.ns.svc:5432/app?sslmode=verify-full&sslrootcert=/etc/db-app/ca.crt",
            ),
        ] {
            assert_eq!(data[key].0, text.as_bytes());
        }
    }
}
