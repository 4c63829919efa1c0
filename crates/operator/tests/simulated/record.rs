//! What the operator keeps of its decisions.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fake_api::Verb;
use fake_api::faults::Faults;
use operator::config::Config;
use operator::http::serve_decisions;
use operator::recording::{self, Header, Line};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::operations::{OPERATIONS, phase};
use super::world::{LONG, Operator, World, run, switchover};

/// The answer to `GET path`: its code and its body.
async fn get(address: std::net::SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A creation, a repair and an operation, with things in the spec that nobody else should read.
async fn eventful(world: &World) {
    world.create(&json!({
        "bootstrap": {"initdb": {"postInitApplicationSQL": ["CREATE ROLE x PASSWORD 'hunter2'"]}},
        "postgres": {"parameters": {"x.token": "hunter3"}},
        "pods": {"metadata": {"annotations": {"vault/token": "hunter4"}}},
    }));
    world.ready().await;
    let edit = json!({"spec": {"template": {"metadata": {"annotations": {"vault/token": "hunter5"}}}}});
    world.user(200, Verb::Merge, "statefulsets", "db", edit);
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.ready().await;
    world.user(201, Verb::Create, OPERATIONS, "", switchover("move", "db-2"));
    world.until("moved", |world| phase(world, "move") == "Completed").await;
    // Many looks later it is still one that has ended.
    world.rests(LONG).await;
}

/// The rules by which what was asked for went on.
fn of_operations(lines: &[Line]) -> Vec<String> {
    let decided = lines.iter().filter_map(|line| match line {
        Line::Operation { operation } => operation.decision["rule"].as_str().map(str::to_owned),
        Line::Backup { .. } | Line::Database(_) => None,
    });
    decided.collect()
}

#[test]
fn what_is_recorded_replays_to_the_same_decisions_and_holds_no_secret() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_millis(400));
        let operator = Operator::start(&world.server, Config::default());
        eventful(&world).await;
        tokio::time::resume();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_decisions(
            listener,
            std::sync::Arc::clone(&operator.decisions),
            operator::metrics::Metrics::default(),
        ));

        let (code, text) = get(address, "/decisions/ns/db").await;
        assert_eq!(code, 200, "{text}");
        let mut lines = text.lines();
        let header: Header = serde_json::from_str(lines.next().unwrap()).unwrap();
        assert_eq!(
            (header.namespace.as_str(), header.name.as_str(), header.dropped),
            ("ns", "db", 0)
        );
        let lines: Vec<Line> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() >= 15, "{} decisions for a creation", lines.len());
        for line in &lines {
            let (again, recorded) = match line {
                Line::Database(entry) => (recording::value(&entry.replay()), &entry.decision),
                Line::Operation { operation } => (recording::value(&operation.replay()), &operation.decision),
                Line::Backup { backup } => (recording::value(&backup.replay()), &backup.decision),
            };
            assert_eq!(again, *recorded, "{line:?}");
        }
        assert_eq!(of_operations(&lines), ["accept", "run", "run", "run", "outcome"]);
        assert_no_secret(&world, &text);
        assert!(
            text.contains("annotations.vault/token is another value"),
            "the annotation was put back"
        );

        let (code, text) = get(address, "/decisions/ns/other").await;
        let none = "this operator has decided nothing about ns/other since it started";
        assert_eq!((code, text.as_str()), (404, none));
    });
}

fn assert_no_secret(world: &World, text: &str) {
    let mut checked = 0;
    for secret in world.list("secrets") {
        for (name, value) in secret["data"].as_object().unwrap() {
            let encoded = value.as_str().unwrap();
            let decoded = String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap();
            // Certificates, names and addresses are no secrets.
            if ["password", "tls.key", "ca.key"].contains(&name.as_str()) || name.contains("uri") {
                checked += 1;
                assert!(!text.contains(encoded) && !text.contains(decoded.trim()), "{name}");
            }
        }
    }
    assert!(checked >= 4, "only {checked} secrets were looked for");
    assert!(!text.contains("hunter"), "statements, settings and annotations");
    assert!(!text.contains("PRIVATE KEY"));
}
