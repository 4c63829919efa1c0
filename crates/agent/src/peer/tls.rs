//! The cluster's certificate, for client and server. It is read again when its files change.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use machine::access::POOLER_ROLE;
use machine::protocol::certificate_digest;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

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
    files: Files,
    name: ServerName<'static>,
    loaded: Mutex<Loaded>,
}

#[derive(Clone, Debug)]
struct Loaded {
    stamp: Stamps,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    certificate: CertificateDer<'static>,
    ends: i64,
    digest: String,
}

/// Identifies the versions of the three files that were read: inode, and seconds and nanoseconds of the last change.
type Stamps = [Stamp; 3];

/// The names of three files: certificate, its key, and the authorities that are trusted.
type Files = [&'static str; 3];

/// With it a client asks PostgreSQL for TLS
/// (<https://www.postgresql.org/docs/current/protocol-message-formats.html>, "SSLRequest").
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// Those of a member.
const MEMBERS: Files = ["tls.crt", "tls.key", "ca.crt"];
/// Those with which a pooler logs in.
const POOLERS: Files = ["client.crt", "client.key", "ca.crt"];

impl Tls {
    /// Reads `tls.crt`, `tls.key` and `ca.crt` in `directory`. A peer must present a certificate of the authority that
    /// is valid for `name`, the name that all agents of a database share (`<cluster>-rw.<namespace>.svc`). A member's
    /// replication certificate is not enough.
    ///
    /// # Errors
    /// Fails with [`TlsError::Read`] if a file cannot be read, and with [`TlsError::Unusable`] if the files or the name
    /// cannot be used.
    pub fn open(directory: impl Into<PathBuf>, name: &str) -> Result<Self, TlsError> {
        Self::with(directory.into(), MEMBERS, name)
    }

    /// As [`Self::open`], with the certificate with which a pooler logs in.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of_pooler(directory: impl Into<PathBuf>, name: &str) -> Result<Self, TlsError> {
        Self::with(directory.into(), POOLERS, name)
    }

    fn with(directory: PathBuf, files: Files, name: &str) -> Result<Self, TlsError> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|error| unusable(&directory)(format!("{name:?} is no name: {error}")))?;
        let loaded = Mutex::new(load(&directory, files)?);
        Ok(Self {
            shared: Arc::new(Shared {
                directory,
                files,
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

    /// True if a client's certificate, which the authority has issued, is a pooler's.
    pub(super) fn is_pooler(certificates: Option<&[CertificateDer<'_>]>) -> bool {
        let certificate = certificates.and_then(<[_]>::first);
        let read = certificate.and_then(|certificate| x509_parser::parse_x509_certificate(certificate).ok());
        read.is_some_and(|(_, read)| {
            let mut names = read.subject().iter_common_name().map(|name| name.as_str());
            names.next() == Some(Ok(POOLER_ROLE)) && names.next().is_none()
        })
    }

    /// Digest of the files that are loaded ([`certificate_digest`]).
    ///
    /// # Errors
    /// Fails while the files cannot be read.
    pub fn digest(&self) -> io::Result<String> {
        self.newest().map(|loaded| loaded.digest)
    }

    /// When the certificate ends that is loaded, in seconds since 1970.
    pub fn ends(&self) -> i64 {
        self.current().ends
    }

    fn newest(&self) -> io::Result<Loaded> {
        let loaded = self.current();
        match loaded.stamp == stamps(&self.shared.directory, self.shared.files) {
            true => Ok(loaded),
            false => Err(io::Error::other("the files of the certificate are being replaced")),
        }
    }

    /// Asks the PostgreSQL of this port, on this host, for its certificate: the digest of the loaded files if it is theirs, `None` if it
    /// is another one. Each version of the files has a certificate of its own, and PostgreSQL reads the authorities after it.
    ///
    /// # Errors
    /// Fails if there is no server that speaks TLS, or while the files cannot be read.
    pub async fn presented(&self, port: u16) -> io::Result<Option<String>> {
        let loaded = self.newest()?;
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(&SSL_REQUEST).await?;
        if stream.read_u8().await? != b'S' {
            return Err(io::Error::other("it does not speak TLS"));
        }
        let connector = TlsConnector::from(Arc::clone(&loaded.client));
        // One that has ended, or is of an authority that is not trusted any more, is another one.
        let Ok(stream) = connector.connect(self.name(), stream).await else {
            return Ok(None);
        };
        let presented = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        Ok((presented == Some(&loaded.certificate)).then_some(loaded.digest))
    }

    fn current(&self) -> Loaded {
        let mut loaded = self.shared.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamps(&self.shared.directory, self.shared.files);
        if stamp != loaded.stamp {
            match load(&self.shared.directory, self.shared.files) {
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

fn load(directory: &Path, files: Files) -> Result<Loaded, TlsError> {
    // The versions are noted before the reading: a change meanwhile is then read the next time.
    let stamp = stamps(directory, files);
    let [certificates, key, authorities] = files.map(|name| {
        let path = directory.join(name);
        fs::read(&path).map_err(|source| TlsError::Read { path, source })
    });
    let refused = unusable(directory);
    let parse = |pem: &[u8]| -> Result<Vec<CertificateDer<'static>>, TlsError> {
        CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .map_err(|error| refused(error.to_string()))
    };
    let (pem, authorities) = (certificates?, authorities?);
    let digest = certificate_digest(&pem, &authorities);
    let certificates = parse(&pem)?;
    let certificate = certificates.first().cloned();
    let certificate = certificate.ok_or_else(|| refused(format!("{} holds no certificate", files[0])))?;
    let (_, read) = x509_parser::parse_x509_certificate(&certificate).map_err(|error| refused(error.to_string()))?;
    let ends = read.validity().not_after.timestamp();
    let key = PrivateKeyDer::from_pem_slice(&key?).map_err(|error| refused(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for authority in parse(&authorities)? {
        roots.add(authority).map_err(|error| refused(error.to_string()))?;
    }
    let (server, client) = configs(certificates, key, roots).map_err(|error| refused(error.to_string()))?;
    Ok(Loaded {
        stamp,
        server: Arc::new(server),
        client: Arc::new(client),
        certificate,
        ends,
        digest,
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

fn stamps(directory: &Path, files: Files) -> Stamps {
    files.map(|name| stamp(&directory.join(name)))
}

fn unusable(directory: &Path) -> impl Fn(String) -> TlsError {
    let path = directory.to_owned();
    move |reason| TlsError::Unusable {
        path: path.clone(),
        reason,
    }
}
