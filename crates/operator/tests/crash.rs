//! The operator killed after its k-th write, for every k of a creation: it goes on from what is stored, comes to the same
//! end, and makes nothing twice that is made once.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod fake;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fake::{Fake, Path};
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use operator::cache::{Cache, Key};
use operator::caches::Caches;
use operator::config::Config;
use operator::execute::Executor;
use operator::http::serve_decisions;
use operator::metrics::Metrics;
use operator::recording::{self, Entry, Header};
use operator::requests::Requests;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn key() -> Key {
    Key {
        namespace: "ns".to_owned(),
        name: "db".to_owned(),
    }
}

fn server() -> Fake {
    let fake = Fake::default();
    fake.put(
        "clustereddatabases",
        json!({
            "apiVersion": "clustereddatabase.io/v1alpha1", "kind": "ClusteredDatabase",
            "metadata": {"name": "db", "namespace": "ns", "uid": "u-db", "generation": 1},
            "spec": {"storage": {"size": "1Gi"}},
        }),
    );
    fake.put(
        "storageclasses",
        json!({
            "metadata": {"name": "standard", "uid": "u-sc",
                         "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "p",
        }),
    );
    fake
}

fn fill<K: ResourceExt + Clone + DeserializeOwned + Debug>(cache: &Cache<K>, objects: Vec<Value>) {
    cache.observe(Event::Init);
    for object in objects {
        cache.observe(Event::InitApply(serde_json::from_value(object).unwrap()));
    }
    cache.observe(Event::InitDone);
}

/// A new operator process: nothing remembered, the caches as a first list fills them.
fn start(fake: &Fake) -> (Executor, Arc<Caches>) {
    let caches = Arc::new(Caches::default());
    relist(fake, &caches);
    let metrics = Metrics::default();
    let requests = Requests::new(fake.client(), metrics.clone());
    let executor = Executor::new(
        requests,
        Arc::clone(&caches),
        Config::default(),
        metrics,
        "test".to_owned(),
    );
    (executor, caches)
}

fn relist(fake: &Fake, caches: &Caches) {
    fill(&caches.databases, fake.all("clustereddatabases"));
    fill(&caches.service_accounts, fake.all("serviceaccounts"));
    fill(&caches.roles, fake.all("roles"));
    fill(&caches.role_bindings, fake.all("rolebindings"));
    let metadata = fake
        .all("secrets")
        .into_iter()
        .map(|secret| json!({"metadata": secret["metadata"]}));
    fill(&caches.secrets, metadata.collect());
    fill(&caches.services, fake.all("services"));
    fill(&caches.endpoint_slices, fake.all("endpointslices"));
    fill(&caches.leases, fake.all("leases"));
    fill(&caches.budgets, fake.all("poddisruptionbudgets"));
    fill(&caches.stateful_sets, fake.all("statefulsets"));
    fill(&caches.pods, fake.all("pods"));
    fill(&caches.claims, fake.all("persistentvolumeclaims"));
    fill(&caches.storage_classes, fake.all("storageclasses"));
    fill(&caches.nodes, fake.all("nodes"));
}

/// Looks until a look writes nothing and is content to wait; the watches report in between.
async fn settle(executor: &Executor, caches: &Caches, fake: &Fake) {
    for _ in 0..20 {
        relist(fake, caches);
        let before = fake.writes().len();
        let wait = executor.look(&key()).await.unwrap();
        if fake.writes().len() == before && wait >= Duration::from_secs(5) {
            return;
        }
        tokio::time::sleep(wait.min(Duration::from_millis(1_500))).await;
    }
    panic!("does not come to rest: {:?}", fake.writes());
}

/// What must be the same whatever happened on the way: all but versions, UIDs, times and what is random.
fn outcome(fake: &Fake) -> BTreeMap<Path, Value> {
    let comparable = fake
        .objects()
        .into_iter()
        .filter(|((plural, _, _), _)| plural != "events");
    comparable
        .map(|(path, mut object)| {
            object["metadata"]["resourceVersion"].take();
            object["metadata"]["uid"].take();
            match path.0.as_str() {
                "secrets" => {
                    let keys: Vec<_> = object["data"].as_object().unwrap().keys().cloned().collect();
                    object["data"] = json!(keys);
                }
                "clustereddatabases" => {
                    let status = &object["status"];
                    let made: Vec<_> = status["memo"]["made"]
                        .as_object()
                        .into_iter()
                        .flatten()
                        .map(|(name, _)| name)
                        .collect();
                    object["status"] = json!({
                        "phase": status["phase"], "made": made, "leaseMade": status["memo"]["leaseMade"],
                        "intent": status["intent"], "members": status["members"], "for": status["waiting"]["for"], "conditions": conditions(status),
                    });
                }
                _ => {}
            }
            (path, object)
        })
        .collect()
}

fn conditions(status: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    status["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (text(&c["type"]), text(&c["status"])))
        .collect()
}

fn secrets(fake: &Fake) -> BTreeMap<String, (Value, Value)> {
    let all = fake
        .objects()
        .into_iter()
        .filter(|((plural, _, _), _)| plural == "secrets");
    all.map(|((_, _, name), secret)| (name, (secret["metadata"]["uid"].clone(), secret["data"].clone())))
        .collect()
}

#[tokio::test]
async fn a_crash_after_any_write_leads_to_the_same_end() {
    let undisturbed = server();
    let (executor, caches) = start(&undisturbed);
    settle(&executor, &caches, &undisturbed).await;
    let (expected, writes) = (outcome(&undisturbed), undisturbed.writes());
    println!("{} writes: {writes:#?}", writes.len());
    for kind in ["statefulsets", "leases", "endpointslices", "roles"] {
        assert_eq!(undisturbed.all(kind).len(), 1, "{kind}");
    }
    assert_eq!(undisturbed.all("poddisruptionbudgets").len(), 2);
    assert_eq!(
        (undisturbed.all("secrets").len(), undisturbed.all("services").len()),
        (3, 4)
    );
    let status = &undisturbed.all("clustereddatabases")[0]["status"];
    assert_eq!(
        (
            &status["memo"]["leaseMade"],
            status["members"].as_object().unwrap().len()
        ),
        (&json!(true), 3)
    );
    assert!(writes.len() <= 25, "the goal for a whole creation");

    let runs = (1..=writes.len()).map(|k| async move {
        let fake = server();
        fake.crash_at(Some(k));
        let (executor, caches) = start(&fake);
        tokio::select! {
            () = settle(&executor, &caches, &fake) => panic!("did not come to write {k}"),
            () = fake.crashed() => {}
        }
        let before = secrets(&fake);
        fake.crash_at(None);
        let (executor, caches) = start(&fake);
        settle(&executor, &caches, &fake).await;
        let after = secrets(&fake);
        for (name, secret) in before {
            assert!(
                after[&name] == secret,
                "{name} was made again after a crash at write {k}"
            );
        }
        (k, outcome(&fake))
    });
    for (k, outcome) in futures::future::join_all(runs).await {
        assert_eq!(outcome, expected, "after a crash at write {k} ({})", writes[k - 1]);
    }
}

#[tokio::test]
async fn a_database_at_rest_is_left_alone() {
    let fake = server();
    let (executor, caches) = start(&fake);
    settle(&executor, &caches, &fake).await;
    let writes = fake.writes().len();
    // Everything again, as after a broken watch, and by another process.
    relist(&fake, &caches);
    executor.look(&key()).await.unwrap();
    start(&fake).0.look(&key()).await.unwrap();
    assert_eq!(fake.writes().len(), writes, "{:?}", &fake.writes()[writes..]);
}

#[tokio::test]
async fn an_edited_service_is_put_right_and_a_foreign_one_is_left_alone() {
    let fake = server();
    fake.put(
        "services",
        json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]},
               "metadata": {"name": "db-ro", "namespace": "ns", "uid": "u-theirs"}}),
    );
    let theirs = fake.objects()[&("services".to_owned(), "ns".to_owned(), "db-ro".to_owned())].clone();
    let (executor, caches) = start(&fake);
    settle(&executor, &caches, &fake).await;
    let ours = fake
        .all("services")
        .into_iter()
        .find(|service| service["metadata"]["name"] == "db-rw")
        .unwrap();
    assert_eq!(
        fake.objects()[&("services".to_owned(), "ns".to_owned(), "db-ro".to_owned())],
        theirs
    );
    let status = fake.all("clustereddatabases").remove(0)["status"].clone();
    assert_eq!(
        (status["phase"].as_str(), status["failure"]["reason"].as_str()),
        (Some("Failed"), Some("ForeignObject"))
    );

    let mut edited = ours.clone();
    edited["spec"]["selector"] = json!({"app": "evil"});
    fake.put("services", edited);
    relist(&fake, &caches);
    settle(&executor, &caches, &fake).await;
    let service = fake
        .all("services")
        .into_iter()
        .find(|service| service["metadata"]["name"] == "db-rw")
        .unwrap();
    assert!(
        service["spec"]["selector"]
            .as_object()
            .is_none_or(serde_json::Map::is_empty),
        "{service}"
    );
    assert_eq!(service["metadata"]["uid"], ours["metadata"]["uid"]);
}

fn find(fake: &Fake, plural: &str, name: &str) -> Value {
    fake.objects()[&(plural.to_owned(), "ns".to_owned(), name.to_owned())].clone()
}

/// Takes keys out of a Secret, as somebody else would.
fn take_out(fake: &Fake, name: &str, keys: &[&str]) {
    let mut secret = find(fake, "secrets", name);
    for key in keys {
        secret["data"].as_object_mut().unwrap().remove(*key).unwrap();
    }
    fake.put("secrets", secret);
}

#[tokio::test]
async fn an_emptied_secret_gets_its_content_again_and_a_lost_password_is_a_fault() {
    let fake = server();
    let (executor, caches) = start(&fake);
    settle(&executor, &caches, &fake).await;
    let (app, tls) = (find(&fake, "secrets", "db-app"), find(&fake, "secrets", "db-tls"));

    take_out(&fake, "db-tls", &["tls.crt", "tls.key"]);
    take_out(&fake, "db-app", &["uri"]);
    settle(&executor, &caches, &fake).await;
    let renewed = find(&fake, "secrets", "db-tls");
    assert_eq!(renewed["metadata"]["uid"], tls["metadata"]["uid"]);
    assert!(renewed["data"]["tls.key"].is_string() && renewed["data"]["tls.key"] != tls["data"]["tls.key"]);
    assert_eq!(renewed["data"]["ca.crt"], tls["data"]["ca.crt"]);
    assert_eq!(
        find(&fake, "secrets", "db-app")["data"],
        app["data"],
        "the password is kept"
    );

    take_out(&fake, "db-app", &["password"]);
    settle(&executor, &caches, &fake).await;
    let status = find(&fake, "clustereddatabases", "db")["status"].clone();
    assert_eq!(status["failure"]["reason"], "PartLost", "{status}");
    assert!(find(&fake, "secrets", "db-app")["data"]["password"].is_null());

    let mut restored = find(&fake, "secrets", "db-app");
    restored["data"] = app["data"].clone();
    fake.put("secrets", restored);
    settle(&executor, &caches, &fake).await;
    assert!(find(&fake, "clustereddatabases", "db")["status"]["failure"].is_null());
}

#[tokio::test]
async fn a_binding_to_another_role_is_made_again() {
    let fake = server();
    let (executor, caches) = start(&fake);
    settle(&executor, &caches, &fake).await;
    let before = find(&fake, "rolebindings", "db");
    let mut edited = before.clone();
    edited["roleRef"]["name"] = json!("admin");
    fake.put("rolebindings", edited);
    settle(&executor, &caches, &fake).await;
    let after = find(&fake, "rolebindings", "db");
    assert_eq!(after["roleRef"], before["roleRef"]);
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
}

#[tokio::test]
async fn a_request_that_contradicts_the_spec_is_refused_with_an_event() {
    let fake = server();
    let (executor, caches) = start(&fake);
    settle(&executor, &caches, &fake).await;
    let mut edited = find(&fake, "clustereddatabases", "db");
    edited["metadata"]["annotations"] = json!({"clustereddatabase.io/switchover": "db-2/1"});
    edited["metadata"]["generation"] = json!(2);
    edited["spec"]["primary"] = json!({"prefer": "db-1"});
    fake.put("clustereddatabases", edited);
    settle(&executor, &caches, &fake).await;
    let status = find(&fake, "clustereddatabases", "db")["status"].clone();
    let request = &status["memo"]["request"];
    assert_eq!(
        (&request["value"], &request["outcome"]),
        (&json!("db-2/1"), &json!("GivenUp"))
    );
    // Once, however often it is looked at.
    settle(&executor, &caches, &fake).await;
    let events = fake.all("events");
    let told: Vec<_> = events
        .iter()
        .filter(|event| event["reason"] == "SwitchoverGivenUp")
        .collect();
    assert_eq!(told.len(), 1, "{events:?}");
    let note = told[0]["note"].as_str().unwrap();
    assert!(note.contains("spec.primary.prefer names db-1"), "{note}");
}

/// The answer to `GET path`: its code and its body.
async fn get(address: std::net::SocketAddr, path: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn what_is_recorded_replays_to_the_same_decisions_and_holds_no_secret() {
    let fake = server();
    let mut db = find(&fake, "clustereddatabases", "db");
    db["spec"]["bootstrap"] = json!({"initdb": {"postInitSql": ["CREATE ROLE x PASSWORD 'hunter2'"]}});
    db["spec"]["postgres"] = json!({"parameters": {"x.token": "hunter3"}});
    db["spec"]["podMetadata"] = json!({"annotations": {"vault/token": "hunter4"}});
    fake.put("clustereddatabases", db);
    let (executor, caches) = start(&fake);
    settle(&executor, &caches, &fake).await;
    let mut drifted = find(&fake, "statefulsets", "db");
    drifted["spec"]["template"]["metadata"]["annotations"]["vault/token"] = json!("hunter5");
    fake.put("statefulsets", drifted);
    settle(&executor, &caches, &fake).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve_decisions(listener, executor.decisions()));

    let (code, text) = get(address, "/decisions/ns/db").await;
    assert_eq!(code, 200, "{text}");
    let mut lines = text.lines();
    let header: Header = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(
        (
            header.namespace.as_str(),
            header.name.as_str(),
            header.uid.as_str(),
            header.dropped
        ),
        ("ns", "db", "u-db", 0)
    );
    let entries: Vec<Entry> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(entries.len() >= 15, "{} decisions for a creation", entries.len());
    for entry in &entries {
        assert_eq!(recording::value(&entry.replay()), entry.decision, "at {}", entry.at);
    }

    let mut checked = 0;
    for secret in fake.all("secrets") {
        for (name, value) in secret["data"].as_object().unwrap() {
            let encoded = value.as_str().unwrap();
            let decoded = String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap();
            // Certificates, names and addresses are no secrets.
            if ["password", "uri", "jdbc-uri", "pgpass", "tls.key", "ca.key"].contains(&name.as_str()) {
                checked += 1;
                assert!(!text.contains(encoded) && !text.contains(decoded.trim()), "{name}");
            }
        }
    }
    assert!(checked >= 4, "only {checked} secrets were looked for");
    assert!(!text.contains("hunter"), "statements, settings and annotations");
    assert!(
        text.contains("annotations.vault/token is another value"),
        "the annotation was put back"
    );
    assert!(!text.contains("PRIVATE KEY"));

    let (code, text) = get(address, "/decisions/ns/other").await;
    assert_eq!(
        (code, text.as_str()),
        (404, "this operator has decided nothing about ns/other since it started")
    );
}
