//! The cluster's certificate, for both ends; read again when its files change.

use std::path::PathBuf;

/// The cluster's certificate and authority; clones share them.
#[derive(Clone, Debug)]
pub struct Tls {}

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

impl Tls {
    /// Reads `tls.crt`, `tls.key` and `ca.crt` in `directory`. Peers must present a certificate of the authority that is
    /// valid for `name`, the name that all agents of a database share (`<cluster>-rw.<namespace>.svc`): a member's
    /// replication certificate is not enough.
    pub fn open(_directory: impl Into<PathBuf>, _name: &str) -> Result<Self, TlsError> {
        todo!()
    }
}
