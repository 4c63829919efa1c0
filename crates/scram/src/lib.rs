//! SCRAM-SHA-256 verifiers. Operator and agent hand on only these, so that a password never reaches PostgreSQL, its log or
//! its statistics.

use std::borrow::Cow;
use std::num::NonZeroU32;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SecureRandom;
use ring::{digest, hmac, pbkdf2};

/// A SCRAM-SHA-256 verifier, as PostgreSQL stores it. Not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    text: String,
}

/// A password that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifierError {
    /// Empty.
    #[error("the password is empty")]
    Empty,
    /// Holds a NUL character.
    #[error("the password holds a NUL character")]
    Nul,
    /// No randomness.
    #[error("the kernel gives no random numbers")]
    Random,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier(…)")
    }
}

const METHOD: &str = "SCRAM-SHA-256";
/// PostgreSQL's default number of iterations (`SCRAM_SHA_256_DEFAULT_ITERATIONS`).
const ITERATIONS: NonZeroU32 = NonZeroU32::MIN.saturating_add(4_095);
/// The most iterations that are computed. It is more than anybody sets (`scram_iterations`), and still takes only a
/// moment; a verifier that a role has stored for itself may ask for hours.
const MOST_ITERATIONS: NonZeroU32 = NonZeroU32::MIN.saturating_add(99_999);
/// The length of PostgreSQL's salts, in bytes.
const SALT: usize = 16;
/// Bytes of a SHA-256 hash.
const HASH: usize = digest::SHA256_OUTPUT_LEN;

impl Verifier {
    /// A verifier with a fresh salt. A `password` that already is a SCRAM-SHA-256 verifier is taken as it is;
    /// PostgreSQL does the same.
    ///
    /// # Errors
    /// Fails if the password is empty or holds a NUL character, or if the kernel gives no random numbers.
    pub fn of(password: &str) -> Result<Self, VerifierError> {
        if password.is_empty() {
            return Err(VerifierError::Empty);
        }
        if password.contains('\0') {
            return Err(VerifierError::Nul);
        }
        if let Some(ready) = Self::parse(password) {
            return Ok(ready);
        }
        let mut salt = [0; SALT];
        ring::rand::SystemRandom::new()
            .fill(&mut salt)
            .map_err(|_| VerifierError::Random)?;
        Ok(Parts::derive(password, &salt, ITERATIONS).verifier())
    }

    /// Parses a stored verifier.
    pub fn parse(text: &str) -> Option<Self> {
        Parts::parse(text).map(|_| Self { text: text.to_owned() })
    }

    /// True if this is a verifier of `password` (or the same text), as PostgreSQL or [`Verifier::of`] makes them. It
    /// takes some milliseconds. A role may store any verifier for itself; one that would take long to check matches
    /// nothing.
    pub fn matches(&self, password: &str) -> bool {
        if self.text == password {
            return true;
        }
        let Some(own) = Parts::parse(&self.text).filter(Parts::is_usual) else {
            return false;
        };
        let theirs = Parts::derive(password, &own.salt, own.iterations);
        own.stored == theirs.stored && own.server == theirs.server
    }

    /// The verifier as PostgreSQL stores it.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>` (RFC 5803).
struct Parts {
    iterations: NonZeroU32,
    salt: Vec<u8>,
    stored: Vec<u8>,
    server: Vec<u8>,
}

impl Parts {
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('$');
        let (method, salted, keys, end) = (fields.next()?, fields.next()?, fields.next()?, fields.next());
        let (iterations, salt) = salted.split_once(':')?;
        let (stored, server) = keys.split_once(':')?;
        let parts = Self {
            iterations: iterations.parse().ok()?,
            salt: STANDARD.decode(salt).ok()?,
            stored: STANDARD.decode(stored).ok()?,
            server: STANDARD.decode(server).ok()?,
        };
        let whole = method == METHOD && end.is_none() && parts.stored.len() == HASH && parts.server.len() == HASH;
        whole.then_some(parts)
    }

    fn is_usual(&self) -> bool {
        self.iterations <= MOST_ITERATIONS && self.salt.len() == SALT
    }

    /// RFC 5802, as PostgreSQL does it: a password that SASLprep refuses is used as it is.
    fn derive(password: &str, salt: &[u8], iterations: NonZeroU32) -> Self {
        let prepared = stringprep::saslprep(password).unwrap_or(Cow::Borrowed(password));
        let mut salted = [0; HASH];
        pbkdf2::derive(
            pbkdf2::PBKDF2_HMAC_SHA256,
            iterations,
            salt,
            prepared.as_bytes(),
            &mut salted,
        );
        let key = hmac::Key::new(hmac::HMAC_SHA256, &salted);
        let stored = digest::digest(&digest::SHA256, hmac::sign(&key, b"Client Key").as_ref());
        let server = hmac::sign(&key, b"Server Key");
        Self {
            iterations,
            salt: salt.to_vec(),
            stored: stored.as_ref().to_vec(),
            server: server.as_ref().to_vec(),
        }
    }

    fn verifier(&self) -> Verifier {
        let [salt, stored, server] = [&self.salt, &self.stored, &self.server].map(|bytes| STANDARD.encode(bytes));
        Verifier {
            text: format!("{METHOD}${}:{salt}${stored}:{server}", self.iterations),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7677: user `user`, password `pencil`.
    const SALT_OF_RFC: &str = "W22ZaJ0SNY7soEsUEjb6gQ==";

    #[test]
    fn the_example_of_the_rfc_is_met() {
        let salt = STANDARD.decode(SALT_OF_RFC).expect("base64");
        let parts = Parts::derive("pencil", &salt, ITERATIONS);
        assert_eq!(
            STANDARD.encode(&parts.stored),
            "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
        );
        assert_eq!(
            STANDARD.encode(&parts.server),
            "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
        );
    }

    #[test]
    fn a_verifier_matches_its_password_alone() {
        let verifier = Verifier::of("geheim'\\$").expect("a verifier");
        assert!(verifier.matches("geheim'\\$"));
        assert!(!verifier.matches("geheim"));
        let again = Verifier::parse(verifier.as_str()).expect("readable");
        assert!(again.matches("geheim'\\$"));
        assert_ne!(
            verifier,
            Verifier::of("geheim'\\$").expect("a verifier"),
            "the salt is fresh"
        );
        assert_eq!(
            Verifier::of(verifier.as_str()),
            Ok(verifier),
            "a verifier is taken as it is"
        );
    }

    #[test]
    fn what_only_looks_hashed_is_a_password() {
        let text = "md5d41d8cd98f00b204e9800998ecf8427e";
        let verifier = Verifier::of(text).expect("a verifier");
        assert!(verifier.as_str().starts_with(METHOD) && verifier.matches(text));
        assert_eq!(Verifier::of(""), Err(VerifierError::Empty));
        assert_eq!(Verifier::of("a\0b"), Err(VerifierError::Nul));
    }

    #[test]
    fn a_verifier_that_costs_too_much_to_check_matches_nothing() {
        let verifier = Verifier::of("geheim").expect("a verifier");
        let keys = verifier.as_str().rsplit('$').next().expect("keys");
        let with = |iterations: u32, salt: &[u8]| {
            let text = format!("{METHOD}${iterations}:{}${keys}", STANDARD.encode(salt));
            Verifier::parse(&text).expect("PostgreSQL takes it")
        };
        let begun = std::time::Instant::now();
        // Some ten minutes' work.
        assert!(!with(2_000_000_000, &[0; SALT]).matches("geheim"));
        assert!(!with(u32::MAX, &[0; SALT]).matches("geheim"));
        assert!(!with(MOST_ITERATIONS.get() + 1, &[0; SALT]).matches("geheim"));
        assert!(
            begun.elapsed() < std::time::Duration::from_millis(50),
            "{:?}",
            begun.elapsed()
        );
        let absurd = with(2_000_000_000, &[0; SALT]);
        assert!(absurd.matches(absurd.as_str()), "a Secret may hold that very text");
        // Of our own making, or PostgreSQL's.
        let of = |salt: &[u8]| Parts::derive("geheim", salt, ITERATIONS).verifier().matches("geheim");
        assert!(of(&[7; SALT]) && !of(&[7; 4]) && !of(&[7; SALT + 1]));
    }

    #[test]
    fn nothing_is_shown() {
        let verifier = Verifier::of("pencil").expect("a verifier");
        assert_eq!(format!("{verifier:?}"), "Verifier(…)");
    }
}
