//! The cluster's certificate, for both ends; read again when its files change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

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
        /// Why not.
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
    stamp: Stamp,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// Tells whether a file is still the one that was read: inode, seconds and nanoseconds of its last change, of each.
type Stamp = [Option<(u64, i64, i64)>; 3];

const FILES: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

impl Tls {
    /// Reads `tls.crt`, `tls.key` and `ca.crt` in `directory`. Peers must present a certificate of the authority that is
    /// valid for `name`, the name that all agents of a database share (`<cluster>-rw.<namespace>.svc`): a member's
    /// replication certificate is not enough.
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

    /// What to accept connections with.
    pub(super) fn server(&self) -> Arc<ServerConfig> {
        self.current().server
    }

    /// What to connect with.
    pub(super) fn client(&self) -> Arc<ClientConfig> {
        self.current().client
    }

    /// The name that all agents share.
    pub(super) fn name(&self) -> ServerName<'static> {
        self.shared.name.clone()
    }

    /// Whether a client's certificate (already known to be of the authority) is the agents' own.
    pub(super) fn is_agent(&self, certificates: Option<&[CertificateDer<'_>]>) -> bool {
        let Some(certificate) = certificates.and_then(<[_]>::first) else {
            return false;
        };
        ParsedCertificate::try_from(certificate)
            .is_ok_and(|certificate| verify_server_name(&certificate, &self.shared.name).is_ok())
    }

    fn current(&self) -> Loaded {
        let mut loaded = self.shared.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamp(&self.shared.directory);
        if stamp != loaded.stamp {
            match load(&self.shared.directory) {
                Ok(new) => {
                    tracing::info!("the cluster's certificate has changed");
                    *loaded = new;
                }
                Err(error) => {
                    tracing::warn!("keep the certificate of before: {error}");
                    loaded.stamp = stamp;
                }
            }
        }
        loaded.clone()
    }
}

fn load(directory: &Path) -> Result<Loaded, TlsError> {
    // Before reading: what changes meanwhile is read again the next time.
    let stamp = stamp(directory);
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

fn stamp(directory: &Path) -> Stamp {
    FILES.map(|name| {
        let file = fs::metadata(directory.join(name)).ok()?;
        Some((file.ino(), file.mtime(), file.mtime_nsec()))
    })
}

fn unusable(directory: &Path) -> impl Fn(String) -> TlsError {
    let path = directory.to_owned();
    move |reason| TlsError::Unusable {
        path: path.clone(),
        reason,
    }
}
