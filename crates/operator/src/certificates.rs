//! The cluster's certificate authority and what it signs: ECDSA P-256 throughout. What it signs is renewed when two thirds
//! of its time are over ([`machine::cluster::Validity::renewal`]); so is the authority, as [`machine::rotation`] says.

use std::collections::BTreeSet;

use api::user::UserCertificate;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Datelike, Days, NaiveDate, Utc};
use machine::cluster::Validity;
use machine::protocol::MemberId;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SubjectPublicKeyInfo, date_time_ymd,
};
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::parse_x509_certificate;
use x509_parser::pem::{Pem, parse_x509_pem};

use crate::builders::Subject;

/// How many days an authority is valid: ten years.
const AUTHORITY_DAYS: u64 = 3_652;
/// How many days what it signs for agents and members is valid. Two years leave eight months between the renewal and the end.
const LEAF_DAYS: u64 = 730;
/// How many days an application's certificate is valid: nobody can revoke it.
const CLIENT_DAYS: u64 = 90;
/// A certificate begins this long ago, for machines whose clocks are behind.
const BACKDATE: Days = Days::new(1);

/// A certificate and its private key, in PEM.
#[derive(Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key. Never logged.
    pub key: String,
}

/// Why no certificate could be made. Never holds a key.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The stored authority cannot be used.
    #[error("the stored certificate authority cannot be read")]
    Authority(#[source] rcgen::Error),
    /// A member's public key is not a key for ECDSA P-256.
    #[error("the public key of {member} is no ECDSA P-256 key: {why}")]
    PublicKey {
        /// The member.
        member: MemberId,
        /// What is wrong with it.
        why: String,
    },
    /// Something else in making one.
    #[error("a certificate cannot be made")]
    Make(#[from] rcgen::Error),
}

/// A new certificate authority for the database.
///
/// # Errors
/// Fails with [`CertificateError::Make`] if no key or certificate can be made.
pub fn authority(subject: &Subject<'_>, now: DateTime<Utc>) -> Result<Pair, CertificateError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    // OpenSSL finds an issuer by its name: no two authorities of a database have the same.
    let common_name = format!("{} authority {}", subject.names.cluster(), now.timestamp());
    let mut params = params(&common_name, AUTHORITY_DAYS, now);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?;
    Ok(Pair {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// The certificate that all agents of the database share: PostgreSQL's server certificate, and both ends of the peer API.
///
/// # Errors
/// Fails with [`CertificateError::Make`] if no key or certificate can be made. Also fails if `authority` cannot be
/// read.
pub fn agents(subject: &Subject<'_>, authority: &Pair, now: DateTime<Utc>) -> Result<Pair, CertificateError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let common_name = format!("{}-agent", subject.names.cluster());
    let mut params = params(&common_name, LEAF_DAYS, now);
    params.subject_alt_names = CertificateParams::new(host_names(subject))?.subject_alt_names;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &issuer(authority)?)?;
    Ok(Pair {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// A certificate with which an application logs in as this role, and its key.
///
/// # Errors
/// As [`agents`].
pub fn client(role: &str, authority: &Pair, now: DateTime<Utc>) -> Result<Pair, CertificateError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = params(role, CLIENT_DAYS, now);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &issuer(authority)?)?;
    Ok(Pair {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// A certificate of a server with these names, and its key. It is an application's in all but its use: renewed as often.
///
/// # Errors
/// As [`agents`].
pub fn server(
    common_name: &str,
    names: Vec<String>,
    authority: &Pair,
    now: DateTime<Utc>,
) -> Result<Pair, CertificateError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = params(common_name, CLIENT_DAYS, now);
    params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.signed_by(&key, &issuer(authority)?)?;
    Ok(Pair {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// Whether this authority has issued the certificate, it need not be renewed, and the key is its own.
pub fn is_current(pair: &Pair, authority: &Pair, now: DateTime<Utc>) -> bool {
    let (Some(own), Some(issuer)) = (read(&pair.certificate), read(&authority.certificate)) else {
        return false;
    };
    own.issuer == issuer.identifier && now < own.validity.renewal() && belong_together(pair)
}

/// Signs a member's public key (SubjectPublicKeyInfo, DER, base64) as its replication certificate; PEM.
///
/// # Errors
/// Fails with [`CertificateError::PublicKey`] if the key is not understood or is of another algorithm. Also fails if
/// `authority` cannot be read.
pub fn member(
    member: &MemberId,
    public_key: &str,
    authority: &Pair,
    now: DateTime<Utc>,
) -> Result<String, CertificateError> {
    let refuse = |why: String| CertificateError::PublicKey {
        member: member.clone(),
        why,
    };
    let der = STANDARD.decode(public_key).map_err(|error| refuse(error.to_string()))?;
    let key = SubjectPublicKeyInfo::from_der(&der).map_err(|error| refuse(error.to_string()))?;
    if key.algorithm() != &PKCS_ECDSA_P256_SHA256 {
        return Err(refuse("it is for another algorithm".to_owned()));
    }
    let mut params = params(member.as_str(), LEAF_DAYS, now);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params.signed_by(&key, &issuer(authority)?)?.pem())
}

/// What a certificate says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// When it is valid.
    pub validity: Validity,
    /// Key identifier, in hexadecimal.
    pub identifier: String,
    /// Key identifier of the authority that has issued it; empty if it does not say.
    pub issuer: String,
}

/// What the first certificate (PEM) says; `None` if it is none.
pub fn read(certificate: &str) -> Option<Read> {
    let (_, pem) = parse_x509_pem(certificate.as_bytes()).ok()?;
    let (_, certificate) = parse_x509_certificate(&pem.contents).ok()?;
    let time = |seconds: i64| DateTime::from_timestamp(seconds, 0);
    let validity = certificate.validity();
    let issuer = certificate
        .iter_extensions()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(issuer) => Some(hex(issuer.key_identifier.as_ref()?.0)),
            _ => None,
        });
    Some(Read {
        validity: Validity {
            from: time(validity.not_before.timestamp())?,
            until: time(validity.not_after.timestamp())?,
        },
        identifier: identifier(&certificate),
        issuer: issuer.unwrap_or_default(),
    })
}

/// What a status tells of the first certificate (PEM); `None` if it is none.
pub fn told(certificate: &str) -> Option<UserCertificate> {
    let read = read(certificate)?;
    Some(UserCertificate {
        not_after: read.validity.until,
        issuer: read.issuer,
    })
}

/// The key identifiers of all certificates in this PEM.
pub fn identifiers(certificates: &str) -> BTreeSet<String> {
    let all = Pem::iter_from_buffer(certificates.as_bytes()).filter_map(Result::ok);
    all.filter_map(|pem| {
        let (_, certificate) = parse_x509_certificate(&pem.contents).ok()?;
        Some(identifier(&certificate))
    })
    .collect()
}

/// The key identifier; for a certificate that has none, that which `rcgen` names as the issuer of what it signs with it.
fn identifier(certificate: &X509Certificate<'_>) -> String {
    let own = certificate
        .iter_extensions()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(own) => Some(hex(own.0)),
            _ => None,
        });
    own.unwrap_or_else(|| hex(&Sha256::digest(certificate.public_key().raw)[..20]))
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Whether the certificate speaks for this key.
pub fn belong_together(pair: &Pair) -> bool {
    let Ok(key) = KeyPair::from_pem(&pair.key) else {
        return false;
    };
    let Ok((_, pem)) = parse_x509_pem(pair.certificate.as_bytes()) else {
        return false;
    };
    parse_x509_certificate(&pem.contents)
        .is_ok_and(|(_, certificate)| certificate.public_key().raw == key.subject_public_key_info())
}

/// Every name under which a member can be reached, and the common name, by which agents know each other.
pub fn host_names(subject: &Subject<'_>) -> Vec<String> {
    let names = &subject.names;
    let services = [format!("*.{}", names.headless()), names.rw(), names.ro(), names.r()];
    let (namespace, domain) = (&subject.namespace, &subject.config.cluster_domain);
    let mut hosts = vec![format!("{}-agent", names.cluster()), "localhost".to_owned()];
    for service in services {
        hosts.push(service.clone());
        hosts.push(format!("{service}.{namespace}"));
        hosts.push(format!("{service}.{namespace}.svc"));
        hosts.push(format!("{service}.{namespace}.svc.{domain}"));
    }
    hosts
}

fn issuer(authority: &Pair) -> Result<Issuer<'static, KeyPair>, CertificateError> {
    let key = KeyPair::from_pem(&authority.key).map_err(CertificateError::Authority)?;
    Issuer::from_ca_cert_pem(&authority.certificate, key).map_err(CertificateError::Authority)
}

fn params(common_name: &str, days: u64, now: DateTime<Utc>) -> CertificateParams {
    let from = now.checked_sub_days(BACKDATE).unwrap_or(now).date_naive();
    let day = |date: NaiveDate| {
        let small = |number: u32| u8::try_from(number).unwrap_or(1);
        date_time_ymd(date.year(), small(date.month()), small(date.day()))
    };
    let mut params = CertificateParams::default();
    params.not_before = day(from);
    params.not_after = day(from.checked_add_days(Days::new(days + 1)).unwrap_or(from));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params
}

#[cfg(test)]
mod tests;
