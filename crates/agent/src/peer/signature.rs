//! Signatures of messages: they prove which member sends a message, since all agents share one TLS key. A signature
//! covers the connection's exported keying material (RFC 9266), so it cannot be replayed on another connection.
//! `machine::instance::heard` decides which key counts for which member.

use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use machine::instance::Proven;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::ConnectionCommon;
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo};

/// The sender's public key (SubjectPublicKeyInfo, DER), a space, and its signature (ECDSA with P-256 and SHA-256, DER);
/// both in base64.
pub(super) const HEADER: HeaderName = HeaderName::from_static("cdb-signature");
/// The label of the exported keying material. Everything that is signed begins with it.
const CONTEXT: &[u8] = b"EXPORTER-clustereddatabase-peer-v1";

/// A member's key pair.
#[derive(Clone, Debug)]
pub struct MemberKey {
    pair: Arc<KeyPair>,
    public: String,
}

impl From<KeyPair> for MemberKey {
    fn from(pair: KeyPair) -> Self {
        let public = STANDARD.encode(pair.subject_public_key_info());
        Self {
            pair: Arc::new(pair),
            public,
        }
    }
}

impl MemberKey {
    /// The public key (SubjectPublicKeyInfo, DER, base64).
    pub fn public(&self) -> &str {
        &self.public
    }
}

/// The key with which this agent signs, once it is known. It is held in memory, so that a hanging volume prevents no
/// signature. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Signer {
    key: Arc<Mutex<Option<MemberKey>>>,
}

impl Signer {
    /// Sets the key for signatures; `None`: messages are not signed any more.
    pub fn set(&self, key: Option<MemberKey>) {
        *self.key.lock().unwrap_or_else(PoisonError::into_inner) = key;
    }

    /// The header for a message, if this agent has a key.
    pub(super) fn sign(&self, message: &[u8]) -> Option<HeaderValue> {
        let key = self.key.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let signature = key.pair.sign(message);
        let signature = signature.inspect_err(|error| tracing::error!("sign a message to a peer: {error}"));
        let value = format!("{} {}", key.public, STANDARD.encode(signature.ok()?));
        HeaderValue::try_from(value).ok()
    }
}

/// A peer's message, and the public key whose private half the peer has proved to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed<T> {
    /// The message.
    pub message: T,
    /// The key; `None` if the message is not signed.
    pub key: Option<String>,
}

impl<T> Signed<T> {
    /// The key, in the machine's terms.
    pub fn proven(&self) -> Proven<'_> {
        self.key.as_deref()
    }
}

/// Identifies a connection; only its two ends know the value.
pub(super) struct Channel([u8; 32]);

impl Channel {
    pub(super) fn of<Side>(connection: &ConnectionCommon<Side>) -> Result<Self, rustls::Error> {
        connection.export_keying_material([0; 32], CONTEXT, None).map(Self)
    }

    /// The bytes of a request that are signed.
    pub(super) fn request(&self, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
        self.message(&format!("request {method} {path}\n"), body)
    }

    /// The bytes of the answer to a request for `path` that are signed.
    pub(super) fn reply(&self, path: &str, body: &[u8]) -> Vec<u8> {
        self.message(&format!("reply {path}\n"), body)
    }

    fn message(&self, head: &str, body: &[u8]) -> Vec<u8> {
        [CONTEXT, &self.0, head.as_bytes(), body].concat()
    }
}

/// The key with which `message` is signed; `None` if it is not signed.
///
/// # Errors
/// Fails if there is a signature and it is not one of this message.
pub(super) fn verify(headers: &HeaderMap, message: &[u8]) -> Result<Option<String>, &'static str> {
    let Some(value) = headers.get(HEADER) else {
        return Ok(None);
    };
    let fits = || {
        let (key, signature) = value.to_str().ok()?.split_once(' ')?;
        let (spki, signature) = (STANDARD.decode(key).ok()?, STANDARD.decode(signature).ok()?);
        let (_, spki) = SubjectPublicKeyInfo::from_der(&spki).ok()?;
        let point = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &spki.subject_public_key.data);
        point.verify(message, &signature).ok()?;
        Some(key.to_owned())
    };
    fits().map(Some).ok_or("its signature does not fit the message")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(value: HeaderValue) -> HeaderMap {
        HeaderMap::from_iter([(HEADER, value)])
    }

    fn signer() -> (Signer, String) {
        let key = MemberKey::from(KeyPair::generate().expect("a key"));
        let (signer, public) = (Signer::default(), key.public().to_owned());
        signer.set(Some(key));
        (signer, public)
    }

    #[test]
    fn a_signature_holds_for_its_message_and_connection_alone() {
        let (signer, public) = signer();
        let (one, other) = (Channel([1; 32]), Channel([2; 32]));
        let message = one.request("POST", "/v1/promise", b"body");
        let signed = headers(signer.sign(&message).expect("a key"));
        assert_eq!(verify(&signed, &message), Ok(Some(public)));
        let others = [
            other.request("POST", "/v1/promise", b"body"),
            one.request("POST", "/v1/failsafe", b"body"),
            one.request("GET", "/v1/promise", b"body"),
            one.request("POST", "/v1/promise", b"body2"),
            one.reply("/v1/promise", b"body"),
        ];
        for other in others {
            verify(&signed, &other).expect_err("another message");
        }
        assert_eq!(verify(&HeaderMap::new(), &message), Ok(None));
    }

    #[test]
    fn what_is_no_signature_is_an_error() {
        let (signer, public) = signer();
        let (_, others) = self::signer();
        let text = signer.sign(b"message").expect("a key");
        let signature = text
            .to_str()
            .expect("text")
            .split_once(' ')
            .expect("two words")
            .1
            .to_owned();
        let bad = [
            String::new(),
            public.clone(),
            format!("{public} "),
            format!("{public} AAAA"),
            format!("{others} {signature}"),
            format!("AAAA {signature}"),
            format!("{public} {signature} more"),
        ];
        for bad in bad {
            let value = HeaderValue::try_from(bad).expect("a header");
            verify(&headers(value), b"message").expect_err("no signature");
        }
        signer.set(None);
        assert_eq!(signer.sign(b"message"), None);
    }
}
