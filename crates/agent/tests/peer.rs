//! The peer API over real TLS.

#[path = "support/certificates.rs"]
mod certificates;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use agent::peer::{Client, PeerError, Request, Tls, serve};
use certificates::{Authority, NAME};
use machine::protocol::{Epoch, MemberId, ReportReply, ReportRequest};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

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
    let (requests, received) = mpsc::channel(8);
    tokio::spawn(serve(listener, tls, requests));
    (address, received)
}

fn report(pod: &str) -> ReportRequest {
    let member = MemberId::new(1, "1a2b3c4d", 7);
    let text = serde_json::json!({
        "epoch": 3, "pod": pod,
        "report": {"podUid": "u", "member": member, "address": "10.0.0.2", "state": "Waiting", "settings": "s",
                   "agentVersion": "0"},
    });
    serde_json::from_value(text).expect("a report")
}

/// Answers every request: reports by their pod's name, status by nothing.
fn answer(mut requests: mpsc::Receiver<Request>) {
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Some(request) = requests.recv().await {
            match request {
                Request::Report { request, reply } if request.pod == "refused" => {
                    let _ = reply.send(Err("an older epoch".to_owned()));
                }
                Request::Report { request, reply } if request.pod == "ignored" => kept.push(reply),
                Request::Report { request, reply } => {
                    let _ = reply.send(Ok(ReportReply {
                        epoch: Epoch(request.epoch.0 + 1),
                        admitted: true,
                    }));
                }
                Request::Status { reply } => {
                    let _ = reply.send(None);
                }
            }
        }
    });
}

#[tokio::test]
async fn agents_talk_to_each_other() {
    let scratch = Scratch::new("talk");
    let authority = Authority::new();
    let tls = scratch.tls("own", |directory| authority.write(directory, "orders-agent", &[NAME]));
    let (address, requests) = server(tls.clone()).await;
    answer(requests);
    let client = Client::new(tls);
    let reply = client.report(address, &report("orders-1")).await.expect("an answer");
    assert_eq!(
        reply,
        ReportReply {
            epoch: Epoch(4),
            admitted: true
        }
    );
    let error = client.report(address, &report("refused")).await.expect_err("refused");
    assert!(
        matches!(&error, PeerError::Refused { reason, .. } if reason == "an older epoch"),
        "{error}"
    );
    let error = client.status(address).await.expect_err("not known yet");
    assert!(matches!(error, PeerError::Refused { .. }), "{error}");
    let begun = Instant::now();
    let error = client.report(address, &report("ignored")).await.expect_err("no answer");
    assert!(
        matches!(error, PeerError::Silent { .. } | PeerError::Refused { .. }),
        "{error}"
    );
    assert!(begun.elapsed() < Duration::from_secs(3));
    let error = client
        .report(address, &report(&"x".repeat(100_000)))
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
