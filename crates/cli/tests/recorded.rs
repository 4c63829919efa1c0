//! Asks the operator for its record as `record` does, over a connection of the test's own.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cli::cluster::Cluster;
use cli::record;
use kube::{Client, Config};
use machine::cluster::Wanted;
use machine::cluster::model::Scene;
use operator::cache::Key;
use operator::decisions::Decisions;
use operator::http::serve_decisions;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn ask(address: SocketAddr, path: &str) -> Result<String, String> {
    let stream = TcpStream::connect(address).await.unwrap();
    record::ask(stream, path).await.map_err(|error| format!("{error:#}"))
}

/// An operator with one decision about the database shop/demo; returns its address and its record.
async fn operator() -> (SocketAddr, String) {
    operator_of(&Scene::ready(3).with_wanted(|wanted| wanted.uid.to_owned())).await
}

/// The same for the database of this UID.
async fn operator_of(uid: &str) -> (SocketAddr, String) {
    let (decisions, scene) = (Decisions::default(), Scene::ready(3));
    let key = Key::database("shop", "demo");
    let decision = scene.decide();
    scene.with_wanted(|wanted| {
        let wanted = Wanted { uid, ..*wanted };
        decisions.note(&key, &wanted, &scene.observed, &scene.stored, &decision, scene.now);
    });
    let kept = decisions.text(&key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve_decisions(
        listener,
        Arc::new(decisions),
        operator::metrics::Metrics::default(),
    ));
    (address, kept)
}

#[tokio::test]
async fn a_record_is_fetched_and_a_refusal_has_the_operators_words() {
    let (address, kept) = operator().await;
    let text = ask(address, "/decisions/shop/demo").await.unwrap();
    assert_eq!(text, kept);
    let page = cli::replay::page(&cli::replay::parse(&text).unwrap());
    assert_eq!((page.decisions.len(), page.differing), (1, 0));
    assert_eq!(
        ask(address, "/decisions/shop/other").await.unwrap_err(),
        "this operator has decided nothing about shop/other since it started"
    );
}

#[tokio::test]
async fn a_closed_connection_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let error = ask(address, "/decisions/shop/demo").await.unwrap_err();
    assert!(error.contains("port 8082") || error.contains("cannot"), "{error}");
}

/// An API server with one database and one pod of an operator, whose port 8082 is at `operator`. Without `operator` the user may
/// not list the pods of all namespaces.
async fn api_server(operator: Option<SocketAddr>) -> Cluster {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, operator));
        }
    });
    let config = Config::new(format!("http://{address}").parse().unwrap());
    Cluster {
        client: Client::try_from(config).unwrap(),
        namespace: "shop".to_owned(),
    }
}

async fn answer(mut stream: TcpStream, operator: Option<SocketAddr>) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(char::from(stream.read_u8().await.unwrap()));
    }
    let path = head.split(' ').nth(1).unwrap();
    let forwards = path.contains("/namespaces/system/pods/operator-0/portforward?") && path.ends_with("ports=8082");
    if let (true, Some(operator)) = (forwards, operator) {
        return forward(stream, &head, operator).await;
    }
    let (code, body) = match operator {
        None if path.starts_with("/api/v1/pods?") => (
            403,
            json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}),
        ),
        None if path.starts_with("/api/v1/namespaces/shop/pods?") => (
            200,
            json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": []}),
        ),
        _ => (200, object(path)),
    };
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.unwrap();
}

fn object(path: &str) -> Value {
    if path.contains("/clustereddatabases/demo") {
        return json!({
            "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
            "metadata": {"name": "demo", "namespace": "shop", "uid": Scene::ready(3).with_wanted(|wanted| wanted.uid.to_owned())},
            "spec": {"storage": {"data": {"size": "1Gi"}}},
        });
    }
    assert!(path.starts_with("/api/v1/pods?"), "{path}");
    let pod = json!({"metadata": {"name": "operator-0", "namespace": "system"}});
    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod]})
}

/// A port-forward as the API server does it: a WebSocket whose messages begin with the number of a channel, 0 for data and
/// 1 for errors; the first on each is the port.
async fn forward(mut stream: TcpStream, head: &str, operator: SocketAddr) {
    let key = head.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .starts_with("sec-websocket-key:")
            .then(|| &line[18..])
    });
    let key = format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key.unwrap().trim());
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes());
    let accept = STANDARD.encode(digest);
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
         sec-websocket-accept: {accept}\r\nsec-websocket-protocol: v4.channel.k8s.io\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    for channel in [0, 1] {
        tell(&mut stream, channel, &8082_u16.to_le_bytes()).await;
    }
    let Ok(mut pod) = TcpStream::connect(operator).await else {
        tell(&mut stream, 1, b"connection refused").await;
        return std::future::pending().await;
    };
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.extend(hear(&mut stream).await);
    }
    pod.write_all(&request).await.unwrap();
    let mut answer = Vec::new();
    pod.read_to_end(&mut answer).await.unwrap();
    for part in answer.chunks(1_000) {
        tell(&mut stream, 0, part).await;
    }
    // The connection stays open: the answer has its length.
    std::future::pending().await
}

/// Sends a binary message on this channel.
async fn tell(stream: &mut TcpStream, channel: u8, bytes: &[u8]) {
    let length = u16::try_from(bytes.len() + 1).unwrap().to_be_bytes();
    let short = [0x82, length[1]];
    let long = [0x82, 126, length[0], length[1]];
    let head: &[u8] = if bytes.len() < 125 { &short } else { &long };
    stream.write_all(&[head, &[channel], bytes].concat()).await.unwrap();
}

/// The data of the client's next message, which is masked and short or of 16 bits' length.
async fn hear(stream: &mut TcpStream) -> Vec<u8> {
    let kind = stream.read_u8().await.unwrap();
    let length = match stream.read_u8().await.unwrap() & 0x7f {
        126 => usize::from(stream.read_u16().await.unwrap()),
        short => usize::from(short),
    };
    let mut mask = [0; 4];
    stream.read_exact(&mut mask).await.unwrap();
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.unwrap();
    for (byte, mask) in bytes.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    assert_eq!((kind, bytes[0]), (0x82, 0), "a binary message on the channel for data");
    bytes.split_off(1)
}

#[tokio::test]
async fn a_record_comes_through_a_port_forward() {
    let (address, kept) = operator().await;
    let cluster = api_server(Some(address)).await;
    assert_eq!(record::fetch(&cluster, "demo").await.unwrap(), kept);
}

#[tokio::test]
async fn an_operator_without_records_is_reported() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let cluster = api_server(Some(gone)).await;
    let error = record::fetch(&cluster, "demo").await.unwrap_err().to_string();
    assert!(
        error.starts_with("no operator gives its record of demo (system/operator-0: connection refused)"),
        "{error}"
    );
}

#[tokio::test]
async fn a_record_of_another_database_is_not_taken() {
    let (forger, _) = operator_of("11111111-0000-0000-0000-000000000000").await;
    let cluster = api_server(Some(forger)).await;
    let error = record::fetch(&cluster, "demo").await.unwrap_err().to_string();
    assert!(
        error.contains("operator-0: its record is of another database"),
        "{error}"
    );
}

#[tokio::test]
async fn a_user_without_the_right_to_list_all_pods_reads_why() {
    let cluster = api_server(None).await;
    let error = record::fetch(&cluster, "demo").await.unwrap_err().to_string();
    assert!(
        error.starts_with("the operator cannot be found: you may not list the pods of all namespaces"),
        "{error}"
    );
}
