//! A listening port that serves a bounded number of connections for a bounded time.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{AbortHandle, Id, JoinSet};

use crate::{Bounds, Connections};

/// The number of connections that the kernel keeps until they are accepted: as many as it allows by default
/// (`net.core.somaxconn`). It drops further ones, and their clients try again after a second.
const BACKLOG: u32 = 4096;
/// The pause after a failure to accept, such as a lack of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A listening port, and the number of connections that it serves at a time.
pub struct Port {
    listener: TcpListener,
    /// Time limit of a connection.
    limit: Duration,
    strangers: Connections<AbortHandle>,
    members: Connections<AbortHandle>,
    is_member: Box<dyn Fn(IpAddr) -> bool + Send + Sync>,
    count_dropped: Box<dyn Fn() + Send + Sync>,
}

impl Port {
    /// Listens at `address`, with room for many connections at once.
    ///
    /// # Errors
    /// Fails if the address is in use, or does not belong to this machine.
    pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    }

    /// A port that serves `bounds` connections, each for `limit` at most.
    pub fn new(listener: TcpListener, bounds: Bounds, limit: Duration) -> Self {
        Self {
            listener,
            limit,
            strangers: Connections::new(bounds),
            members: Connections::new(bounds),
            is_member: Box::new(|_| false),
            count_dropped: Box::new(|| {}),
        }
    }

    /// The same port, on which connections from members' addresses have places of their own. No other connection can
    /// take these.
    #[must_use]
    pub fn with_members(self, bounds: Bounds, is_member: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Self {
        Self {
            members: Connections::new(bounds),
            is_member: Box::new(is_member),
            ..self
        }
    }

    /// The same port, which calls `count` for each connection that is dropped for a newer one.
    #[must_use]
    pub fn counting_dropped(self, count: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            count_dropped: Box::new(count),
            ..self
        }
    }

    /// Serves each connection with `serve`, for ever.
    pub async fn serve<F, S>(mut self, serve: F)
    where
        F: Fn(TcpStream) -> S,
        S: Future<Output = ()> + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, from)) => {
                        while let Some(ended) = tasks.try_join_next_with_id() {
                            self.forget(id(ended));
                        }
                        let served = tokio::time::timeout(self.limit, serve(stream));
                        let task = tasks.spawn(async move { drop(served.await) });
                        self.admit(task, from.ip().to_canonical());
                    }
                    // The client has closed the connection meanwhile.
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        tracing::warn!("accept a connection: {error}");
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                },
                Some(ended) = tasks.join_next_with_id() => self.forget(id(ended)),
            }
        }
    }

    fn admit(&mut self, task: AbortHandle, source: IpAddr) {
        let connections = match (self.is_member)(source) {
            true => &mut self.members,
            false => &mut self.strangers,
        };
        if let Some(oldest) = connections.admit(task, source) {
            oldest.abort();
            (self.count_dropped)();
        }
    }

    fn forget(&mut self, ended: Id) {
        self.strangers.forget(|task| task.id() == ended);
        self.members.forget(|task| task.id() == ended);
    }
}

fn id(ended: Result<(Id, ()), tokio::task::JoinError>) -> Id {
    match ended {
        Ok((id, ())) => id,
        Err(error) => error.id(),
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
    )
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::Full;
    use hyper::Response;
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::flood::{self, Flood};

    const BOUNDS: Bounds = Bounds { all: 8, each_source: 4 };
    const LONG: Duration = Duration::from_secs(600);

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = Port::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Reads until the connection has ended, however it ended.
    async fn ends(stream: &mut TcpStream) {
        while stream.read(&mut [0; 16]).await.unwrap_or(0) > 0 {}
    }

    #[tokio::test]
    async fn the_newest_is_answered_and_the_oldest_is_dropped_and_counted() {
        let (listener, address) = listener();
        let dropped = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&dropped);
        let port = Port::new(listener, BOUNDS, LONG).counting_dropped(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        tokio::spawn(port.serve_pages(|_| Response::new(Full::default())));
        let mut silent = Vec::new();
        for _ in 0..BOUNDS.each_source {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        assert_eq!(flood::probe(address, "/").await.unwrap(), 200);
        ends(&mut silent[0]).await;
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        // The probe's place is free again.
        assert_eq!(flood::probe(address, "/").await.unwrap(), 200);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_connection_ends_after_its_time_limit_and_has_one_answer() {
        let (listener, address) = listener();
        let port = Port::new(listener, BOUNDS, Duration::from_millis(50));
        tokio::spawn(port.serve_pages(|_| Response::new(Full::default())));
        ends(&mut TcpStream::connect(address).await.unwrap()).await;
        let mut kept = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut kept, request).await.unwrap();
        let mut answer = String::new();
        kept.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("connection: close"), "{answer}");
    }

    /// Only Linux has another address of this machine than 127.0.0.1 without set-up.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn strangers_do_not_take_the_places_of_members() {
        let (listener, address) = listener();
        let (seen, mut ended) = tokio::sync::mpsc::unbounded_channel();
        let port = Port::new(listener, BOUNDS, LONG).with_members(BOUNDS, |source| source == Ipv4Addr::LOCALHOST);
        tokio::spawn(port.serve(move |mut stream| {
            let seen = seen.clone();
            async move {
                let from = stream.peer_addr().unwrap().ip();
                ends(&mut stream).await;
                let _ = seen.send(from);
            }
        }));
        let member = TcpStream::connect(address).await.unwrap();
        let mut flood = Flood::new(address, flood::STRANGER);
        flood.hold(4 * BOUNDS.all, b"x").await;
        assert!(ended.try_recv().is_err(), "its connection has ended");
        drop(member);
        assert_eq!(ended.recv().await, Some(Ipv4Addr::LOCALHOST.into()));
    }
}
