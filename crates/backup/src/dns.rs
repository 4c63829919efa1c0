//! Names of stores to addresses, without the C library: a static binary must not load its modules.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use hickory_resolver::TokioResolver;
use hyper_util::client::legacy::connect::dns::Name;
use tower_service::Service;

/// Asks the name servers of `/etc/resolv.conf`, after `/etc/hosts`. Clones are cheap.
#[derive(Clone)]
pub(crate) struct Dns(Result<Arc<TokioResolver>, String>);

/// A packet can be lost on the way, and 5 s, the usual time, is a long pause for an archive.
const ASK_AGAIN: Duration = Duration::from_secs(2);

impl Dns {
    /// Reads the settings. If they are unusable, only names fail; addresses still work.
    pub(crate) fn new() -> Self {
        let resolver = TokioResolver::builder_tokio().and_then(|mut builder| {
            builder.options_mut().timeout = ASK_AGAIN;
            builder.options_mut().attempts = 3;
            builder.build()
        });
        Self(resolver.map(Arc::new).map_err(|error| error.to_string()))
    }
}

impl Service<Name> for Dns {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, Result<Self::Response, io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolver = self.0.clone();
        async move {
            let resolver = resolver.map_err(io::Error::other)?;
            let found = resolver.lookup_ip(name.as_str()).await.map_err(io::Error::other)?;
            // The port is set by the caller.
            let addresses: Vec<_> = found.iter().map(|address| SocketAddr::new(address, 0)).collect();
            Ok(addresses.into_iter())
        }
        .boxed()
    }
}
