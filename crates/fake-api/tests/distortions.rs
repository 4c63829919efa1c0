//! What goes wrong goes wrong as it was meant to.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::time::Duration;

use chrono::{DateTime, Utc};
use fake_api::faults::{Faults, Rates};
use fake_api::{Call, Clock, Kill, Server, Store, Verb};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, timeout};

fn server(rates: Rates) -> Server {
    Server::new(
        Store::default(),
        Faults::new(1, rates),
        Clock::starting(DateTime::UNIX_EPOCH),
    )
}

fn maps(client: Client) -> Api<ConfigMap> {
    Api::namespaced(client, "ns")
}

fn make(store: &mut Store, name: &str, now: DateTime<Utc>) {
    let call = Call::new(
        Verb::Create,
        "configmaps",
        "ns",
        "",
        json!({"metadata": {"name": name}}),
    );
    assert_eq!(store.call(&call, now).code, 201);
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_as_far_behind_as_its_server() {
    for lag in [0, 7_000] {
        let rates = Rates {
            lag: [lag, lag],
            ..Rates::NONE
        };
        let server = server(rates);
        let watch = maps(server.client()).watch(&WatchParams::default(), "0").await.unwrap();
        futures::pin_mut!(watch);
        let began = Instant::now();
        server.within(|store, now| make(store, "a", now));
        let event = watch.next().await.unwrap().unwrap();
        assert!(matches!(event, WatchEvent::Added(map) if map.metadata.name.as_deref() == Some("a")));
        let took = began.elapsed();
        assert!(
            took >= Duration::from_millis(lag) && took < Duration::from_millis(lag + 100),
            "{took:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_breaks_or_is_silent_for_a_while() {
    let broken = server(Rates {
        broken: 1_000,
        ..Rates::NONE
    });
    let watch = maps(broken.client()).watch(&WatchParams::default(), "0").await.unwrap();
    futures::pin_mut!(watch);
    let ended = timeout(Duration::from_secs(31), watch.next()).await.unwrap();
    assert!(ended.is_none_or(|event| event.is_err()), "the connection broke");

    let frozen = server(Rates {
        frozen: 1_000,
        ..Rates::NONE
    });
    let watch = maps(frozen.client()).watch(&WatchParams::default(), "0").await.unwrap();
    futures::pin_mut!(watch);
    // By then its silence, which lasts 0.1 to 20 s and begins within 5 s, has begun or is over.
    for name in ["a", "b", "c"] {
        frozen.within(|store, now| make(store, name, now));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    for _ in 0..3 {
        let event = timeout(Duration::from_secs(25), watch.next()).await.unwrap();
        assert!(matches!(event, Some(Ok(WatchEvent::Added(_)))), "nothing is lost");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_forgotten_is_expired() {
    let server = server(Rates::NONE);
    server.within(|store, now| {
        make(store, "a", now);
        make(store, "b", now);
        store.compact();
    });
    let watch = maps(server.client()).watch(&WatchParams::default(), "1").await.unwrap();
    futures::pin_mut!(watch);
    let event = watch.next().await.unwrap().unwrap();
    assert!(
        matches!(event, WatchEvent::Error(status) if status.code == 410),
        "too old"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_fails_before_or_after_it_is_carried_out() {
    let server = server(Rates {
        request: 1_000,
        ..Rates::NONE
    });
    let api = maps(server.client());
    let (mut stored, mut refused, mut unanswered) = (0, 0, 0);
    for index in 0..100 {
        let name = format!("m{index}");
        let made = timeout(Duration::from_secs(60), api.create(&PostParams::default(), &map(&name))).await;
        match made {
            Ok(answer) => {
                refused += 1;
                let error = answer.unwrap_err();
                assert!(
                    matches!(&error, kube::Error::Api(status) if [429, 500, 504].contains(&status.code)),
                    "{error}"
                );
            }
            Err(_) => unanswered += 1,
        }
        stored += usize::from(server.within(|store, _| store.get("configmaps", "ns", &name)).is_some());
    }
    assert!(
        stored > 20 && stored < 80 && refused > 40 && unanswered > 10,
        "{stored} {refused} {unanswered}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_is_killed_at_its_request() {
    for carried_out in [false, true] {
        let server = server(Rates::NONE);
        server.kill(Some(Kill { at: 2, carried_out }));
        let api = maps(server.client());
        api.create(&PostParams::default(), &map("a")).await.unwrap();
        let (parameters, second) = (PostParams::default(), map("b"));
        tokio::select! {
            answer = api.create(&parameters, &second) => panic!("answered: {answer:?}"),
            () = server.killed() => {}
        }
        let again = timeout(Duration::from_secs(60), api.create(&PostParams::default(), &map("c"))).await;
        assert!(again.is_err(), "the dead ask nothing");
        let names = server.within(|store, _| store.list("configmaps").len());
        assert_eq!(names, if carried_out { 2 } else { 1 });
    }
}
