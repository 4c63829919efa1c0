//! A certificate for the server, from an authority of its own.

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio_rustls::TlsAcceptor;

/// What accepts connections at this address, and PEM of the authority.
pub(crate) fn acceptor(address: IpAddr) -> Result<(TlsAcceptor, String), Box<dyn Error + Send + Sync>> {
    let mut params = CertificateParams::new(Vec::new())?;
    // OpenSSL takes a certificate whose issuer has its own name for one that signed itself.
    params
        .distinguished_name
        .push(DnType::CommonName, "the authority of test-store");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let authority = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let names = vec![address.to_string(), "127.0.0.1".to_owned(), "localhost".to_owned()];
    let certificate = CertificateParams::new(names)?.signed_by(&key, &issuer)?;
    let key = PrivateKeyDer::try_from(key.serialize_der())?;
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    Ok((TlsAcceptor::from(Arc::new(config)), authority))
}
