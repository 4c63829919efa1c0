//! The peer API over real TLS.

#[path = "support/certificates.rs"]
mod certificates;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use agent::peer::{Client, MemberKey, PeerError, Request, Resolver, Signed, Signer, Tls, UNKNOWN, serve};
use api::names::Names;
use certificates::{Authority, NAME};
use listen::Port;
use listen::flood::{self, Flood};
use machine::protocol::{
    Epoch, FailsafeReply, FailsafeRequest, MemberId, PoolerReply, PoolerRequest, PromiseReply, PromiseRequest,
    ReportReply, ReportRequest,
};
use rcgen::KeyPair;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cdb-peer-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }
    fn tls(&self, name: &str, write: impl FnOnce(&std::path::Path)) -> Tls {
        let directory = self.0.join(name);
        write(&directory);
        Tls::open(directory, NAME).expect("a usable certificate")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn server(tls: Tls) -> (SocketAddr, mpsc::Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    (address, serve_at(listener, tls, &[]))
}

/// Serves on `listener`, and knows the members' addresses.
fn serve_at(listener: TcpListener, tls: Tls, members: &[IpAddr]) -> mpsc::Receiver<Request> {
    let (requests, received) = mpsc::channel(8);
    let (known, members) = watch::channel(members.iter().copied().collect());
    tokio::spawn(async move {
        let _known = known;
        let names = Names::new("orders");
        serve(listener, tls, signer(), names, members, requests, || {}).await;
    });
    received
}

/// Signs with the key of a member.
fn signer() -> Signer {
    let signer = Signer::default();
    signer.set(Some(MemberKey::from(KeyPair::generate().expect("a key"))));
    signer
}

fn report(pod: &str) -> ReportRequest {
    let ordinal = pod
        .rsplit('-')
        .next()
        .and_then(|ordinal| ordinal.parse().ok())
        .unwrap_or(1);
    let member = MemberId::new(ordinal, "1a2b3c4d", 7);
    let text = serde_json::json!({
        "epoch": 3, "pod": pod,
        "report": {"podUid": "u", "member": member, "address": "10.0.0.2", "state": "Waiting", "settings": "s",
                   "agentVersion": "0"},
    });
    serde_json::from_value(text).expect("a report")
}

/// Answers every request. Reports are answered by their pod's ordinal (8 is refused, 5 ignored); a status is never
/// known.
fn answer(mut requests: mpsc::Receiver<Request>) {
    tokio::spawn(async move {
        let (mut kept, mut ignored) = (Vec::new(), Vec::new());
        while let Some(request) = requests.recv().await {
            match request {
                Request::Report { request, reply, .. } if request.pod == "orders-8" => {
                    let _ = reply.send(Err("an older epoch".to_owned()));
                }
                Request::Report { request, reply, .. } if request.pod == "orders-5" => kept.push(reply),
                Request::Report { request, reply, .. } => {
                    let _ = reply.send(Ok(ReportReply {
                        epoch: Epoch(request.epoch.0 + 1),
                        admitted: true,
                        steps_down: false,
                        oldest: None,
                        awaits: true,
                    }));
                }
                Request::Promise { request, reply, .. } if request.pod == "orders-8" => {
                    let _ = reply.send(Err("another Lease".to_owned()));
                }
                Request::Promise { request, reply, .. } if request.pod == "orders-7" => ignored.push((request, reply)),
                Request::Promise { request, reply, .. } => {
                    let _ = reply.send(Ok(promise(request.epoch)));
                }
                Request::Failsafe { request, reply, .. } if request.pod == "orders-8" => {
                    let _ = reply.send(Err("not streaming".to_owned()));
                }
                Request::Failsafe { request, reply, .. } => {
                    let _ = reply.send(Ok(FailsafeReply {
                        member: MemberId::new(1, "1a2b3c4d", 7),
                        epoch: request.epoch,
                    }));
                }
                Request::Pooler { request, reply } => {
                    let _ = reply.send(Ok(PoolerReply {
                        pause_milliseconds: request.paused.then_some(700),
                        soon: true,
                        serves: false,
                    }));
                }
                Request::Status { reply } => {
                    let _ = reply.send(None);
                }
            }
        }
    });
}

/// An agent that answers, and the certificate that all agents share.
async fn answering(name: &str) -> (Scratch, Authority, Tls, SocketAddr) {
    let scratch = Scratch::new(name);
    let authority = Authority::new();
    let tls = scratch.tls("own", |directory| authority.write(directory, "orders-agent", &[NAME]));
    let (address, requests) = server(tls.clone()).await;
    answer(requests);
    (scratch, authority, tls, address)
}

#[tokio::test]
async fn agents_talk_to_each_other() {
    let (_scratch, _, tls, address) = answering("talk").await;
    let client = Client::new(tls);
    let reply = client.report(address, &report("orders-1")).await.expect("an answer");
    assert_eq!(
        reply.message,
        ReportReply {
            epoch: Epoch(4),
            admitted: true,
            steps_down: false,
            oldest: None,
            awaits: true,
        }
    );
    let error = client.report(address, &report("orders-8")).await.expect_err("refused");
    assert!(
        matches!(&error, PeerError::Refused { reason, .. } if reason == "an older epoch"),
        "{error}"
    );
    let error = client.status(address).await.expect_err("not known yet");
    assert!(matches!(error, PeerError::Unable { .. }), "{error}");
    assert!(!error.is_answer(), "its loop may hang");
    let begun = Instant::now();
    let error = client
        .report(address, &report("orders-5"))
        .await
        .expect_err("no answer");
    assert!(
        matches!(error, PeerError::Silent { .. } | PeerError::Unable { .. }),
        "{error}"
    );
    assert!(begun.elapsed() < Duration::from_secs(20));
    let error = client
        .report(address, &report(&format!("orders-{}", "1".repeat(100_000))))
        .await
        .expect_err("too long");
    assert!(
        matches!(error, PeerError::Refused { .. } | PeerError::Failed { .. }),
        "{error}"
    );
    let closed = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port")
        .local_addr()
        .expect("an address");
    let error = client.status(closed).await.expect_err("nobody listens");
    assert!(matches!(error, PeerError::NotListening { .. }), "{error}");
}

/// The shared TLS key does not prove which member sends a message. So each message carries the key that its sender has
/// signed it with, or none.
#[tokio::test]
async fn each_end_hears_the_key_with_which_the_other_signs() {
    let scratch = Scratch::new("signed");
    let authority = Authority::new();
    let tls = scratch.tls("own", |directory| authority.write(directory, "orders-agent", &[NAME]));
    let (address, mut requests) = server(tls.clone()).await;
    let (heard, mut keys) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(request) = requests.recv().await {
            if let Request::Promise { request, key, reply } = request {
                let _ = heard.send(key);
                let _ = reply.send(Ok(promise(request.epoch)));
            }
        }
    });
    let key = MemberKey::from(KeyPair::generate().expect("a key"));
    let own = Signer::default();
    let client = Client::new(tls).signed_by(own.clone());
    let mut answers: Vec<Signed<PromiseReply>> = Vec::new();
    for signs in [None, Some(key.clone())] {
        own.set(signs.clone());
        let reply = loop {
            match client.promise("orders-1", address, &request("orders-2")).await {
                // The machine may be busy.
                Err(PeerError::Silent { .. }) => {}
                reply => break reply.expect("a promise"),
            }
        };
        answers.push(reply);
        let mut last = keys.recv().await.expect("it was heard");
        while let Ok(later) = keys.try_recv() {
            last = later;
        }
        assert_eq!(last.as_deref(), signs.as_ref().map(MemberKey::public));
    }
    let answered = answers[0].key.as_deref().expect("the answer is signed");
    assert_ne!(answered, key.public());
    assert_eq!(answers[1].key.as_deref(), Some(answered));
}

#[tokio::test]
async fn a_holder_is_promised_its_lease_or_refused() {
    let (_scratch, _, tls, address) = answering("failsafe").await;
    let client = Client::new(tls);
    let request = |pod: &str| FailsafeRequest {
        epoch: Epoch(5),
        pod: pod.to_owned(),
        lease: "lease".to_owned(),
    };
    let reply = client.failsafe("orders-1", address, &request("orders-0")).await;
    assert_eq!(reply.expect("a promise").message.epoch, Epoch(5));
    for pod in ["orders-8", "others-0"] {
        let error = client
            .failsafe("orders-1", address, &request(pod))
            .await
            .expect_err(pod);
        assert!(matches!(error, PeerError::Refused { .. }), "{error}");
    }
}

/// A client with a certificate for this name alone, as poolers and users have.
fn client_of(scratch: &Scratch, authority: &Authority, name: &str) -> Client {
    let directory = scratch.0.join(name);
    authority.write(&directory, name, &[]);
    for (from, to) in [("tls.crt", "client.crt"), ("tls.key", "client.key")] {
        fs::rename(directory.join(from), directory.join(to)).expect("renamed");
    }
    Client::new(Tls::of_pooler(directory, NAME).expect("a usable certificate"))
}

/// A pooler may ask whether it is to pause, and nothing else; nobody else may ask that.
#[tokio::test]
async fn a_pooler_has_one_question_and_nobody_else_has_it() {
    let (scratch, authority, tls, address) = answering("pooler").await;
    let pooler = client_of(&scratch, &authority, "cdb_pooler");
    for paused in [false, true] {
        let request = PoolerRequest {
            pod: "pool-1".to_owned(),
            paused,
        };
        let reply = pooler.pooler(address, &request).await.expect("an answer");
        assert_eq!((reply.pause_milliseconds, reply.soon), (paused.then_some(700), true));
        let refused = |error: PeerError| assert!(matches!(error, PeerError::Refused { .. }), "{error}");
        refused(pooler.report(address, &report("orders-1")).await.expect_err("no agent"));
        refused(pooler.status(address).await.expect_err("no agent"));
        refused(
            Client::new(tls.clone())
                .pooler(address, &request)
                .await
                .expect_err("no pooler"),
        );
        let other = client_of(&scratch, &authority, "cdb_pooler2");
        let error = other.pooler(address, &request).await.expect_err("neither");
        assert!(matches!(error, PeerError::Failed { .. }), "{error}");
    }
}

fn promise(epoch: Epoch) -> PromiseReply {
    PromiseReply {
        member: MemberId::new(1, "1a2b3c4d", 7),
        promised: epoch,
        suspects: true,
        position: None,
    }
}

fn request(pod: &str) -> PromiseRequest {
    PromiseRequest {
        epoch: Epoch(5),
        pod: pod.to_owned(),
        lease: "lease".to_owned(),
    }
}

/// Asserts that a promise is given. A late answer is asked for again: the machine may be busy.
async fn promised(client: &Client, address: SocketAddr) {
    let mut last = None;
    for _ in 0..50 {
        match client.promise("orders-1", address, &request("orders-2")).await {
            Err(error @ PeerError::Silent { .. }) => last = Some(error),
            reply => {
                assert_eq!(reply.expect("a promise").message, promise(Epoch(5)));
                return;
            }
        }
    }
    panic!("no promise: {last:?}");
}

#[tokio::test]
async fn promises_come_soon_or_not_at_all() {
    let (_scratch, _, tls, address) = answering("promise").await;
    let client = Client::new(tls);
    let ask = async |pod: &str| client.promise("orders-1", address, &request(pod)).await;
    promised(&client, address).await;
    let error = ask("orders-8").await.expect_err("refused");
    assert!(
        error.is_answer() && matches!(error, PeerError::Refused { .. }),
        "{error}"
    );
    let error = ask("others-2").await.expect_err("no pod of the database");
    assert!(matches!(error, PeerError::Refused { .. }), "{error}");
    let begun = Instant::now();
    let error = ask("orders-7").await.expect_err("no answer");
    // Its server gives up before the client does.
    assert!(matches!(error, PeerError::Unable { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// A name server that knows one pod, and where it is asked from.
fn name_server(address: [u8; 4]) -> (Resolver, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&asked);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = socket.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let mut buffer = [0_u8; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            counter.fetch_add(1, Ordering::SeqCst);
            let mut answer = buffer[..length].to_vec();
            let is_a = answer[length - 3] == 1;
            answer[2..4].copy_from_slice(&[0x81, if is_a { 0x80 } else { 0x83 }]);
            if is_a {
                answer[7] = 1;
                answer.extend([0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
                answer.extend(address);
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    let settings = std::env::temp_dir().join(format!("cdb-peer-resolv-{}-{port}", std::process::id()));
    fs::write(&settings, "nameserver 127.0.0.1\n").expect("written");
    let resolver = Resolver::new("orders-pods", "default", settings).at_port(port);
    (resolver, asked)
}

#[tokio::test]
async fn a_pod_that_has_moved_is_found_by_its_name() {
    let (_scratch, _, tls, address) = answering("moved").await;
    let (resolver, asked) = name_server([127, 0, 0, 1]);
    let client = Client::new(tls).with_resolver(resolver);
    // On a busy machine its address may not answer soon enough.
    let mut asks = 0;
    for _ in 0..50 {
        asks = asked.load(Ordering::SeqCst);
        promised(&client, address).await;
        if asked.load(Ordering::SeqCst) == asks {
            break;
        }
    }
    assert_eq!(
        asked.load(Ordering::SeqCst),
        asks,
        "its address answers: nobody is asked for its name"
    );
    // Nothing listens at the recorded address: the name is tried at once.
    let moved = SocketAddr::from(([127, 0, 0, 2], address.port()));
    promised(&client, moved).await;
    assert!(asked.load(Ordering::SeqCst) > asks);
    // No address is recorded: the agent does not call its own machine, which listens at that port.
    let unknown = SocketAddr::new(UNKNOWN, address.port());
    promised(&client, unknown).await;
    let nobody = client.promise("", unknown, &request("orders-2")).await;
    assert!(matches!(nobody, Err(PeerError::NotListening { .. })), "{nobody:?}");
    let unnamed = client.promise("", moved, &request("orders-2")).await;
    let error = unnamed.expect_err("nobody");
    assert!(
        matches!(error, PeerError::NotListening { .. }),
        "the first reason: {error}"
    );
    // Something accepts there and sends nothing: after a moment, the name is tried as well.
    let silent = TcpListener::bind(SocketAddr::from(([127, 0, 0, 3], address.port())))
        .await
        .expect("a port");
    let hung = silent.local_addr().expect("an address");
    let unknown = client.clone().with_resolver(name_server([127, 0, 0, 9]).0);
    let error = unknown
        .promise("orders-1", hung, &request("orders-2"))
        .await
        .expect_err("nobody");
    assert!(matches!(error, PeerError::Silent { .. }), "{error}");
    promised(&client, hung).await;
}

/// The first bytes of a TLS handshake, which announce more bytes.
const HANDSHAKE: &[u8] = &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];

/// An election asks each member repeatedly. Of three requests in a row, one must be answered within the 400 ms that it
/// waits.
async fn promises_are_given_during_a_flood(name: &str, members: &[IpAddr]) {
    let scratch = Scratch::new(name);
    let (authority, stranger) = (Authority::new(), Authority::new());
    let tls = scratch.tls("own", |directory| authority.write(directory, "orders-agent", &[NAME]));
    let others = scratch.tls("stranger", |directory| {
        stranger.write(directory, "orders-agent", &[NAME])
    });
    let listener = Port::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let address = listener.local_addr().expect("an address");
    answer(serve_at(listener, tls.clone(), members));
    let _flood = Flood::rages(address, HANDSHAKE).await;
    // And an attacker that completes handshakes, from the members' address.
    let knocking = tokio::spawn(async move {
        let client = Client::new(others);
        loop {
            let _ = client.status(address).await;
        }
    });
    let client = Client::new(tls);
    let begun = Instant::now();
    while begun.elapsed() < flood::duration() {
        let mut refusals = Vec::new();
        while let Err(error) = client.promise("orders-1", address, &request("orders-2")).await {
            refusals.push(error.to_string());
            assert!(refusals.len() < 3, "no promise: {refusals:?}");
        }
    }
    knocking.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_known_member_is_answered_during_a_flood() {
    promises_are_given_during_a_flood("flood", &[Ipv4Addr::LOCALHOST.into()]).await;
}

/// The member's pod has a new address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_no_lease_names_yet_is_answered_during_a_flood() {
    promises_are_given_during_a_flood("flood-unknown", &[]).await;
}

#[tokio::test]
async fn others_are_shut_out() {
    let scratch = Scratch::new("others");
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (address, mut requests) =
        server(scratch.tls("own", |directory| authority.write(directory, "orders-agent", &[NAME]))).await;
    let member = MemberId::new(1, "1a2b3c4d", 7);
    let others = [
        scratch.tls("member", |directory| authority.write(directory, member.as_str(), &[])),
        scratch.tls("stranger", |directory| {
            stranger.write(directory, "orders-agent", &[NAME])
        }),
    ];
    for tls in others {
        let error = Client::new(tls).status(address).await.expect_err("shut out");
        assert!(matches!(error, PeerError::Failed { .. }), "{error}");
    }
    assert!(requests.try_recv().is_err(), "the event loop heard nothing of it");
}

#[tokio::test]
async fn a_new_certificate_is_taken_up() {
    let scratch = Scratch::new("new");
    let (old, new) = (Authority::new(), Authority::new());
    let tls = scratch.tls("own", |directory| old.write(directory, "orders-agent", &[NAME]));
    let (address, requests) = server(tls).await;
    answer(requests);
    let client = Client::new(scratch.tls("new", |directory| new.write(directory, "orders-agent", &[NAME])));
    client
        .report(address, &report("orders-1"))
        .await
        .expect_err("another authority");
    new.write(&scratch.0.join("own"), "orders-agent", &[NAME]);
    client
        .report(address, &report("orders-1"))
        .await
        .expect("the new authority");
    fs::write(scratch.0.join("own/tls.crt"), "broken").expect("written");
    client
        .report(address, &report("orders-1"))
        .await
        .expect("what cannot be used is not taken up");
}
