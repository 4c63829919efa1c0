//! An S3 server on a directory, for tests. A create-only write is atomic, and faults come by script.
//!
//! The objects are files: `<directory>/<bucket>/<name>`. Faults are set by [`TestStore::inject`], or in another process
//! by `POST /_faults` with a [`Fault`] in JSON; `DELETE /_faults` removes all.

mod fault;
mod serve;
mod tls;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use fault::{Effect, Fault};
pub use serve::Seen;
use serve::Server;

/// The access key that the server knows.
pub const KEY: &str = "test-key";
/// Its secret, unless [`Options::secret`] is another.
pub const SECRET: &str = "test-secret";

/// A running server. It ends when this is dropped.
#[derive(Debug)]
pub struct TestStore {
    url: String,
    authority: Option<String>,
    server: Arc<Server>,
    task: JoinHandle<()>,
}

/// How to run a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// An existing directory; each bucket is a directory in it.
    pub directory: PathBuf,
    /// The address.
    pub address: IpAddr,
    /// The port; 0 for any free one.
    pub port: u16,
    /// With TLS, and a certificate for the address, 127.0.0.1 and `localhost`. Each server has an authority of its own.
    pub tls: bool,
    /// The secret of [`KEY`].
    pub secret: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            directory: PathBuf::new(),
            address: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            tls: false,
            secret: SECRET.to_owned(),
        }
    }
}

impl TestStore {
    /// Starts a server in this Tokio runtime.
    ///
    /// # Errors
    /// Fails if the directory cannot be used, or the port is taken.
    pub async fn start(options: Options) -> io::Result<Self> {
        let files =
            s3s_fs::FileSystem::new(&options.directory).map_err(|error| io::Error::other(format!("{error:?}")))?;
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(KEY, options.secret));
        let server = Arc::new(Server::new(service.build(), options.directory));
        let (acceptor, authority) = match options.tls {
            true => {
                let (acceptor, authority) = tls::acceptor(options.address).map_err(io::Error::other)?;
                (Some(acceptor), Some(authority))
            }
            false => (None, None),
        };
        let listener = TcpListener::bind(SocketAddr::from((options.address, options.port))).await?;
        let scheme = if options.tls { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr()?);
        let task = tokio::spawn(serve::run(server.clone(), listener, acceptor));
        Ok(Self {
            url,
            authority,
            server,
            task,
        })
    }

    /// The URL of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// PEM of the authority of the server's certificate, if it has one.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// The directory with the buckets.
    pub fn directory(&self) -> &Path {
        self.server.directory()
    }

    /// Makes a bucket. It may exist.
    ///
    /// # Errors
    /// Fails if its directory cannot be made.
    pub fn make_bucket(&self, bucket: &str) -> io::Result<()> {
        std::fs::create_dir_all(self.directory().join(bucket))
    }

    /// Adds a fault. Faults are tried in the order in which they were added, and the first that fits is used.
    pub fn inject(&self, fault: Fault) {
        self.server.faults().push(fault);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.server.faults().clear();
    }

    /// How many requests with this method, for a path that contains `part`, have arrived so far.
    pub fn count_requests(&self, method: &str, part: &str) -> usize {
        self.server.count_requests(method, part)
    }

    /// All requests that have arrived so far, in their order.
    pub fn requests(&self) -> Vec<Seen> {
        self.server.requests()
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        self.task.abort();
    }
}
