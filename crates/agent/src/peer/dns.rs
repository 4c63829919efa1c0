//! Finding a pod by its name in the cluster's DNS, when its recorded address does not answer.
//!
//! It sends a few bytes over UDP instead of using the C library's resolver. That one loads modules of the image at run
//! time, which a static binary must not, and blocks a thread for seconds.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::UdpSocket;

/// Looks up pods of one headless Service. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Resolver {
    /// `<service>.<namespace>.svc`.
    suffix: String,
    settings: PathBuf,
    port: u16,
}

/// `A`, an IPv4 address.
const A: u16 = 1;
/// `AAAA`, an IPv6 address.
const AAAA: u16 = 28;
/// Class `IN`.
const INTERNET: u16 = 1;
/// The pause after which a question is sent again: a packet can be lost on the way. A name server near by answers
/// within 2 ms.
const ASK_AGAIN: Duration = Duration::from_millis(60);
/// The cluster's domain if `resolv.conf` does not name it.
const DOMAIN: &str = "cluster.local";

impl Resolver {
    /// A resolver for the pods behind `<service>.<namespace>.svc`; `settings` is `/etc/resolv.conf`.
    pub fn new(service: &str, namespace: &str, settings: impl Into<PathBuf>) -> Self {
        Self {
            suffix: format!("{service}.{namespace}.svc"),
            settings: settings.into(),
            port: 53,
        }
    }

    /// The same resolver, with another port than 53. For tests.
    #[must_use]
    pub fn at_port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    /// The pod's address. It waits as long as the name servers do not answer; the caller must set a time limit.
    ///
    /// # Errors
    /// Fails if the settings cannot be read, or no name server can be asked.
    pub async fn address_of(&self, pod: &str) -> io::Result<IpAddr> {
        let settings = tokio::fs::read_to_string(&self.settings).await?;
        let (servers, domain) = parse_settings(&settings);
        let name = format!("{pod}.{}.{domain}", self.suffix);
        let asked = servers.into_iter().flat_map(|server| {
            let server = SocketAddr::new(server, self.port);
            [A, AAAA].map(|kind| Box::pin(ask(server, name.clone(), kind)))
        });
        let asked: Vec<_> = asked.collect();
        if asked.is_empty() {
            return Err(io::Error::new(ErrorKind::NotFound, "resolv.conf names no server"));
        }
        futures::future::select_ok(asked).await.map(|(address, _)| address)
    }
}

/// The name servers, and the cluster's domain, that `resolv.conf` names.
fn parse_settings(text: &str) -> (Vec<IpAddr>, String) {
    let (mut servers, mut domain) = (Vec::new(), DOMAIN.to_owned());
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => servers.extend(words.next().and_then(|word| word.parse::<IpAddr>().ok())),
            Some("search") => {
                if let Some(found) = words.find_map(|word| word.strip_prefix("svc.")) {
                    found.trim_end_matches('.').clone_into(&mut domain);
                }
            }
            _ => {}
        }
    }
    (servers, domain)
}

async fn ask(server: SocketAddr, name: String, kind: u16) -> io::Result<IpAddr> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // The kernel drops packets of other senders.
    socket.connect(server).await?;
    let mut id = [0_u8; 2];
    SystemRandom::new()
        .fill(&mut id)
        .map_err(|_| io::Error::other("no random numbers"))?;
    let query = query(id, &name, kind).ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "no DNS name"))?;
    let mut buffer = [0_u8; 1500];
    let mut again = tokio::time::interval(ASK_AGAIN);
    loop {
        let length = tokio::select! {
            _ = again.tick() => {
                socket.send(&query).await?;
                continue;
            }
            length = socket.recv(&mut buffer) => length?,
        };
        let answer = &buffer[..length];
        if answer.starts_with(&id) {
            return parse_answer(answer, kind).ok_or_else(|| io::Error::new(ErrorKind::NotFound, "no such name"));
        }
    }
}

/// The question for `name`; `None` if that is no valid name.
fn query(id: [u8; 2], name: &str, kind: u16) -> Option<Vec<u8>> {
    let mut message = id.to_vec();
    // Recursion desired; one question.
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        let length = u8::try_from(label.len())
            .ok()
            .filter(|length| (1..64).contains(length))?;
        message.push(length);
        message.extend(label.bytes());
    }
    message.push(0);
    message.extend(kind.to_be_bytes());
    message.extend(INTERNET.to_be_bytes());
    (message.len() <= 255 + 16).then_some(message)
}

/// The first address of `kind` in an answer without error.
fn parse_answer(message: &[u8], kind: u16) -> Option<IpAddr> {
    let number = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
    let flags = number(2)?;
    let (is_answer, error) = (flags & 0x8000 != 0, flags & 0x000F);
    if !is_answer || error != 0 {
        return None;
    }
    let (questions, answers) = (number(4)?, number(6)?);
    let mut at = 12;
    for _ in 0..questions {
        at = after_name(message, at)? + 4;
    }
    for _ in 0..answers {
        at = after_name(message, at)?;
        let (found, length) = (number(at)?, usize::from(number(at + 8)?));
        let data = message.get(at + 10..at + 10 + length)?;
        match (found == kind, kind) {
            (true, A) => return Some(<[u8; 4]>::try_from(data).ok()?.into()),
            (true, _) => return Some(<[u8; 16]>::try_from(data).ok()?.into()),
            (false, _) => at += 10 + length,
        }
    }
    None
}

/// The end of the name that begins at `at`.
fn after_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            // A pointer to the rest of the name ends it here.
            0xC0.. => return Some(at + 2),
            length => at += usize::from(length) + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelets_settings_are_understood() {
        let text =
            "search default.svc.example.org svc.example.org example.org\nnameserver 10.96.0.10\noptions ndots:5\n";
        let (servers, domain) = parse_settings(text);
        assert_eq!(servers, [IpAddr::from([10, 96, 0, 10])]);
        assert_eq!(domain, "example.org");
        assert_eq!(parse_settings("nameserver fe80::1\n").1, DOMAIN);
    }

    /// Answers one question, if it is for `name` and an IPv4 address.
    async fn serve(socket: UdpSocket, name: &str) {
        let mut buffer = [0_u8; 512];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.expect("a question");
            let question = &buffer[..length];
            let wanted = query([question[0], question[1]], name, A).expect("a name");
            let mut answer = question.to_vec();
            if question == wanted {
                answer[2..4].copy_from_slice(&[0x81, 0x80]);
                answer[6..8].copy_from_slice(&[0, 1]);
                answer.extend([0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 0, 0, 7]);
            } else {
                answer[2..4].copy_from_slice(&[0x81, 0x83]);
            }
            // Somebody else's answer first.
            let mut other = answer.clone();
            other[0] ^= 0xFF;
            for message in [&other, &answer] {
                socket.send_to(message, from).await.expect("sent");
            }
        }
    }

    #[tokio::test]
    async fn a_pod_is_found_by_its_name() {
        let server = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let port = server.local_addr().expect("an address").port();
        tokio::spawn(serve(server, "orders-1.orders-pods.default.svc.cluster.local"));
        let settings = std::env::temp_dir().join(format!("cdb-resolv-{}", std::process::id()));
        std::fs::write(&settings, "nameserver 127.0.0.1\n").expect("written");
        let resolver = Resolver::new("orders-pods", "default", &settings).at_port(port);
        let found = resolver.address_of("orders-1").await.expect("an address");
        assert_eq!(found, IpAddr::from([10, 0, 0, 7]));
        assert!(resolver.address_of("orders-2").await.is_err());
        assert!(resolver.address_of("").await.is_err(), "no name");
        std::fs::remove_file(settings).expect("removed");
    }

    #[tokio::test]
    async fn a_question_that_is_lost_is_asked_again() {
        let server = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let at = server.local_addr().expect("an address");
        let name = "orders-1.orders-pods.default.svc.cluster.local";
        tokio::spawn(async move {
            server
                .recv_from(&mut [0; 512])
                .await
                .expect("a question, which is lost");
            serve(server, name).await;
        });
        let found = ask(at, name.to_owned(), A).await.expect("an address");
        assert_eq!(found, IpAddr::from([10, 0, 0, 7]));
    }

    #[test]
    fn a_broken_answer_is_no_address() {
        assert_eq!(parse_answer(&[0, 0, 0x81, 0x80, 0, 1, 0, 9], A), None);
        assert_eq!(parse_answer(&[0, 0, 0x81, 0x80, 0, 0, 0, 1, 0, 0, 0, 0, 0xC0], A), None);
    }
}
