//! A flood of hostile connections, for the tests of listening ports.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The pause between two connections of one attacker, and between two requests of a busy one. Each of a hundred
/// attackers has a slightly longer pause than the one before, so that they do not connect at the same moment again.
const PAUSE: Duration = Duration::from_millis(500);
const MORE: Duration = Duration::from_millis(5);
/// The address that strangers connect from. On Linux it differs from that of the probes, as in a cluster.
pub const STRANGER: IpAddr = IpAddr::V4(match cfg!(target_os = "linux") {
    true => Ipv4Addr::new(127, 0, 0, 2),
    false => Ipv4Addr::LOCALHOST,
});
/// Time limit for the first connections of all attackers: a port that does not accept never takes all of them.
const BEGINS: Duration = Duration::from_secs(2);
/// The time within which a port under a flood must answer.
const IN_TIME: Duration = Duration::from_secs(1);

/// The length of a test's flood: a second, or `CDB_FLOOD_SECONDS`.
pub fn duration() -> Duration {
    let seconds = std::env::var("CDB_FLOOD_SECONDS").ok();
    Duration::from_secs(seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(1))
}

/// Connections to one port from one address. A connection that was dropped is made again. All end when this is dropped.
pub struct Flood {
    target: SocketAddr,
    source: IpAddr,
    attackers: JoinSet<()>,
    connected: watch::Sender<usize>,
}

impl Flood {
    /// No connections yet.
    pub fn new(target: SocketAddr, source: IpAddr) -> Self {
        Self {
            target,
            source,
            attackers: JoinSet::new(),
            connected: watch::Sender::new(0),
        }
    }

    /// Begins 64 connections that send nothing, 64 that send `request` repeatedly, and 500 that send only its first
    /// five bytes. Returns when all have been connected once, or after two seconds.
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

    /// Adds `count` connections that send `request` repeatedly.
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

/// Makes `count` connections that send nothing. Returns how many of them are left, when that is at most `enough`, or
/// after two seconds.
///
/// # Errors
/// Fails if the port does not take the connections.
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
/// Fails if there is no answer within a second.
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

/// Asks for `path` until `lasts` is over, and returns the number of requests.
///
/// # Errors
/// Fails with the first probe that was not answered with 200 within a second.
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
