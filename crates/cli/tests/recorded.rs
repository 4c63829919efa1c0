//! The operator is asked for its record as `record` asks it, over a connection of the test's own.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use cli::record;
use machine::cluster::testing::Scene;
use operator::cache::Key;
use operator::decisions::Decisions;
use operator::http::serve_decisions;
use tokio::net::{TcpListener, TcpStream};

async fn ask(address: std::net::SocketAddr, path: &str) -> Result<String, String> {
    let stream = TcpStream::connect(address).await.unwrap();
    record::ask(stream, path).await.map_err(|error| format!("{error:#}"))
}

#[tokio::test]
async fn a_record_is_fetched_and_a_refusal_is_told_in_the_operators_words() {
    let (decisions, scene) = (Decisions::default(), Scene::ready(3));
    let key = Key {
        namespace: "shop".to_owned(),
        name: "demo".to_owned(),
    };
    let decision = scene.decide();
    scene.with_wanted(|wanted| decisions.note(&key, wanted, &scene.observed, &scene.stored, &decision, scene.now));
    let kept = decisions.text(&key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve_decisions(listener, Arc::new(decisions)));

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
async fn an_operator_that_hangs_up_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let error = ask(address, "/decisions/shop/demo").await.unwrap_err();
    assert!(error.contains("port 8082") || error.contains("cannot"), "{error}");
}
