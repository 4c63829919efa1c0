//! A flood of connections that do not want to be served: for the tests of listening ports.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Distance between two connections of one attacker, and between two requests of a busy one. Of a hundred, each has a little more
/// than the one before: they do not come at the same moment again.
const PAUSE: Duration = Duration::from_millis(500);
const MORE: Duration = Duration::from_millis(5);
/// Where strangers connect from. On Linux it is another address than that of the probes, as it is in a cluster.
pub const STRANGER: IpAddr = IpAddr::V4(match cfg!(target_os = "linux") {
    true => Ipv4Addr::new(127, 0, 0, 2),
    false => Ipv4Addr::LOCALHOST,
});
/// How long the first connections of all attackers are waited for: a port that does not accept never takes all of them.
const BEGINS: Duration = Duration::from_secs(2);
/// A port under a flood answers within this time.
const IN_TIME: Duration = Duration::from_secs(1);

/// How long a test's flood lasts: a second, or `CDB_FLOOD_SECONDS`.
pub fn duration() -> Duration {
    let seconds = std::env::var("CDB_FLOOD_SECONDS").ok();
    Duration::from_secs(seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(1))
}

/// Connections to one port from one address; each is made anew when it was dropped. They end with it.
pub struct Flood {
    target: SocketAddr,
    source: IpAddr,
    attackers: JoinSet<()>,
    connected: watch::Sender<usize>,
}

impl Flood {
    /// None yet.
    pub fn new(target: SocketAddr, source: IpAddr) -> Self {
        Self {
            target,
            source,
            attackers: JoinSet::new(),
            connected: watch::Sender::new(0),
        }
    }

    /// 64 connections that say nothing, 64 that send `request` again and again, and 500 that send no more than its first
    /// five bytes; returns when all have been connected once, or after two seconds.
    pub async fn rages(target: SocketAddr, request: &'static [u8]) -> Self {
        let mut flood = Self::new(target, STRANGER);
        flood.hold(64, b"").await;
        flood.repeat(64, request).await;
        flood.hold(500, &request[..5]).await;
        flood
    }

    /// Adds `count` connections that send `beginning` and then nothing.
    pub async fn hold(&mut self, count: usize, beginning: &'static [u8]) {
        self.add(count, move |mut stream: TcpStream| async move {
            stream.write_all(beginning).await?;
            while stream.read(&mut [0; 1024]).await? > 0 {}
            Ok(())
        })
        .await;
    }

    /// Adds `count` connections that send `request` again and again.
    pub async fn repeat(&mut self, count: usize, request: &'static [u8]) {
        self.add(count, move |mut stream: TcpStream| async move {
            loop {
                stream.write_all(request).await?;
                if stream.read(&mut [0; 64 * 1024]).await? == 0 {
                    return Ok(());
                }
                sleep(PAUSE).await;
            }
        })
        .await;
    }

    async fn add<F, A>(&mut self, count: usize, attack: F)
    where
        F: Fn(TcpStream) -> A + Clone + Send + 'static,
        A: Future<Output = io::Result<()>> + Send,
    {
        let wanted = *self.connected.borrow() + count;
        for number in 0..count {
            let pause = PAUSE + MORE * u32::try_from(number % 100).unwrap_or_default();
            let (target, source, attack, connected) =
                (self.target, self.source, attack.clone(), self.connected.clone());
            self.attackers.spawn(async move {
                let mut first = true;
                loop {
                    if let Ok(stream) = connect(target, source).await {
                        if std::mem::take(&mut first) {
                            connected.send_modify(|connected| *connected += 1);
                        }
                        let _ = attack(stream).await;
                    }
                    sleep(pause).await;
                }
            });
        }
        let mut connected = self.connected.subscribe();
        let _ = timeout(BEGINS, connected.wait_for(|connected| *connected >= wanted)).await;
    }
}

async fn connect(target: SocketAddr, source: IpAddr) -> io::Result<TcpStream> {
    let socket = match target {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.bind((source, 0).into())?;
    socket.connect(target).await
}

/// Makes `count` connections that say nothing, and returns how many of them are left when no more than `enough` are, or after
/// two seconds.
///
/// # Errors
/// When the port does not take them.
pub async fn left_of(target: SocketAddr, count: usize, enough: usize) -> io::Result<usize> {
    let mut open = JoinSet::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(target).await?;
        open.spawn(async move { stream.read(&mut [0; 1]).await });
    }
    let fewer = async {
        while open.len() > enough {
            open.join_next().await;
        }
    };
    let _ = timeout(BEGINS, fewer).await;
    Ok(open.len())
}

/// Asks for `path` as a probe does, on a connection of its own, and returns the status of the answer.
///
/// # Errors
/// When there is no answer within a second.
pub async fn probe(target: SocketAddr, path: &str) -> io::Result<u16> {
    let asked = async {
        let mut stream = TcpStream::connect(target).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let head = String::from_utf8_lossy(&answer);
        let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
        status.ok_or_else(|| io::Error::other(format!("no status in {head:?}")))
    };
    timeout(IN_TIME, asked).await?
}

/// Asks for `path` until `lasts` is over, and returns how often that was.
///
/// # Errors
/// With the first probe that was not answered with 200 within a second.
pub async fn probe_for(lasts: Duration, target: SocketAddr, path: &str) -> Result<u32, String> {
    let begun = Instant::now();
    let mut answered = 0;
    while begun.elapsed() < lasts {
        match probe(target, path).await {
            Ok(200) => answered += 1,
            other => return Err(format!("probe {} was answered with {other:?}", answered + 1)),
        }
        sleep(PAUSE / 10).await;
    }
    Ok(answered)
}
