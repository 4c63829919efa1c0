//! The cluster's certificate, for client and server. It is read again when its files change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::stamp::{Stamp, stamp};

/// The cluster's certificate and authority; clones share them.
#[derive(Clone, Debug)]
pub struct Tls {
    shared: Arc<Shared>,
}

/// Why the certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The files do not fit together.
    #[error("the cluster's certificate in {path} cannot be used: {reason}")]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    name: ServerName<'static>,
    loaded: Mutex<Loaded>,
}

#[derive(Clone, Debug)]
struct Loaded {
    stamp: Stamps,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// Identifies the versions of the three files that were read: inode, and seconds and nanoseconds of the last change.
type Stamps = [Stamp; FILES.len()];

const FILES: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

impl Tls {
    /// Reads `tls.crt`, `tls.key` and `ca.crt` in `directory`. A peer must present a certificate of the authority that
    /// is valid for `name`, the name that all agents of a database share (`<cluster>-rw.<namespace>.svc`). A member's
    /// replication certificate is not enough.
    ///
    /// # Errors
    /// Fails with [`TlsError::Read`] if a file cannot be read, and with [`TlsError::Unusable`] if the files or the name
    /// cannot be used.
    pub fn open(directory: impl Into<PathBuf>, name: &str) -> Result<Self, TlsError> {
        let directory = directory.into();
        let name = ServerName::try_from(name.to_owned())
            .map_err(|error| unusable(&directory)(format!("{name:?} is no name: {error}")))?;
        let loaded = Mutex::new(load(&directory)?);
        Ok(Self {
            shared: Arc::new(Shared {
                directory,
                name,
                loaded,
            }),
        })
    }

    /// The configuration for accepting connections.
    pub(super) fn server(&self) -> Arc<ServerConfig> {
        self.current().server
    }

    /// The configuration for making connections.
    pub(super) fn client(&self) -> Arc<ClientConfig> {
        self.current().client
    }

    /// The name that all agents share.
    pub(super) fn name(&self) -> ServerName<'static> {
        self.shared.name.clone()
    }

    /// True if a client's certificate, which the authority has issued, is the agents' shared one.
    pub(super) fn is_agent(&self, certificates: Option<&[CertificateDer<'_>]>) -> bool {
        let Some(certificate) = certificates.and_then(<[_]>::first) else {
            return false;
        };
        ParsedCertificate::try_from(certificate)
            .is_ok_and(|certificate| verify_server_name(&certificate, &self.shared.name).is_ok())
    }

    fn current(&self) -> Loaded {
        let mut loaded = self.shared.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamps(&self.shared.directory);
        if stamp != loaded.stamp {
            match load(&self.shared.directory) {
                Ok(new) => {
                    tracing::info!("the cluster's certificate has changed");
                    *loaded = new;
                }
                Err(error) => {
                    tracing::warn!("the cluster's new certificate cannot be used, the old one stays in use: {error}");
                    // What cannot be read now may be readable later without a change of the stamp.
                    if matches!(error, TlsError::Unusable { .. }) {
                        loaded.stamp = stamp;
                    }
                }
            }
        }
        loaded.clone()
    }
}

fn load(directory: &Path) -> Result<Loaded, TlsError> {
    // The versions are noted before the reading: a change meanwhile is then read the next time.
    let stamp = stamps(directory);
    let [certificates, key, authorities] = FILES.map(|name| {
        let path = directory.join(name);
        fs::read(&path).map_err(|source| TlsError::Read { path, source })
    });
    let refused = unusable(directory);
    let parse = |pem: &[u8]| -> Result<Vec<CertificateDer<'static>>, TlsError> {
        CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .map_err(|error| refused(error.to_string()))
    };
    let certificates = parse(&certificates?)?;
    let key = PrivateKeyDer::from_pem_slice(&key?).map_err(|error| refused(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for authority in parse(&authorities?)? {
        roots.add(authority).map_err(|error| refused(error.to_string()))?;
    }
    let (server, client) = configs(certificates, key, roots).map_err(|error| refused(error.to_string()))?;
    Ok(Loaded {
        stamp,
        server: Arc::new(server),
        client: Arc::new(client),
    })
}

fn configs(
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: RootCertStore,
) -> Result<(ServerConfig, ClientConfig), Box<dyn std::error::Error>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(roots);
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build()?;
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(clients)
        .with_single_cert(certificates.clone(), key.clone_key())?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates, key)?;
    Ok((server, client))
}

fn stamps(directory: &Path) -> Stamps {
    FILES.map(|name| stamp(&directory.join(name)))
}

fn unusable(directory: &Path) -> impl Fn(String) -> TlsError {
    let path = directory.to_owned();
    move |reason| TlsError::Unusable {
        path: path.clone(),
        reason,
    }
}
