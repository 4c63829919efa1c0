//! The program's requests to an API server.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::sync::{Arc, Mutex};

use cli::change::{self, Wish};
use cli::cluster::Cluster;
use cli::look::Look;
use cli::snapshot::{Snapshot, name};
use cli::{report, status, text, why};
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use support::{Answer, of_file, ready, recorded, refusal, serve, spec};

/// A cluster whose API server gives these answers, by method and path; it records the requests.
fn cluster(answer: impl Fn(&Method, &str) -> Answer + Send + Sync + 'static) -> (Cluster, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (heard, answer) = (Arc::clone(&asked), Arc::new(answer));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (heard, answer) = (Arc::clone(&heard), Arc::clone(&answer));
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let (code, value) = answer(&parts.method, parts.uri.path());
            let told = format!(
                "{} {} {}",
                parts.method,
                parts.uri.path(),
                String::from_utf8(body.to_vec()).unwrap()
            );
            heard.lock().unwrap().push(told.trim_end().to_owned());
            let response = Response::builder()
                .status(code)
                .header("content-type", "application/json");
            // Logs are no JSON.
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            Ok::<_, std::io::Error>(response.body(Body::from(text.into_bytes())).unwrap())
        }
    });
    let cluster = Cluster {
        client: Client::new(service, "shop"),
        namespace: "shop".to_owned(),
    };
    (cluster, asked)
}

fn pages(snapshot: &Snapshot) -> String {
    let mut look = Look::new(snapshot, Some("shop"), "demo").unwrap();
    let style = text::Style::default();
    status::text(&status::page(&look), style) + &why::text(&why::page(&mut look), style)
}

#[tokio::test]
async fn a_cluster_shows_what_a_file_shows_and_no_secret_is_asked_for() {
    let whole = of_file(&recorded(&ready(&spec(3))));
    let mut there = whole.clone();
    there.objects.push(
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {
        "name": "data-other-0", "namespace": "shop", "uid": "o", "resourceVersion": "1"}}),
    );
    let (cluster, asked) = cluster(move |_, path| serve(&there, path));
    let mut read = cluster.snapshot("demo").await.unwrap();
    read.at = whole.at;
    assert_eq!(pages(&read), pages(&whole));
    assert!(read.objects.iter().all(|object| name(object) != "data-other-0"));
    assert_eq!(read.complete, whole.complete);
    let asked = asked.lock().unwrap();
    assert!(
        asked
            .iter()
            .all(|request| request.starts_with("GET ") && !request.contains("secrets")),
        "{asked:?}"
    );
}

#[tokio::test]
async fn kinds_that_may_not_be_read_are_left_out_and_named() {
    let whole = of_file(&recorded(&ready(&spec(3))));
    let (cluster, _) = cluster(
        move |_, path| match path.contains("/roles") || path.contains("/nodes") {
            true => refusal(403, "roles is forbidden"),
            false => serve(&whole, path),
        },
    );
    let read = cluster.snapshot("demo").await.unwrap();
    let kinds: Vec<_> = read.unreadable.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["Node", "Role"]);
    let text = pages(&read);
    assert!(
        text.contains("Not read: Role demo") && text.contains("assumed to be as the operator made them: Role demo."),
        "{text}"
    );
    assert!(text.contains("Rule        rest"), "{text}");
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let said = async |answer: fn(&Method, &str) -> Answer| {
        let (cluster, _) = cluster(answer);
        cluster.snapshot("demo").await.unwrap_err().to_string()
    };
    let text = said(|_, _| refusal(404, "the server could not find the requested resource")).await;
    assert!(text.contains("install the operator with"), "{text}");
    let text = said(|_, _| refusal(403, "clustereddatabases is forbidden")).await;
    assert!(text.starts_with("not allowed in namespace \"shop\""), "{text}");
    let other = |_: &Method, path: &str| match path.ends_with("/demo") {
        true => refusal(404, "not found"),
        false => serve(
            &of_file(&recorded(&ready(&spec(1))).replace("name: demo\n", "name: other\n")),
            path,
        ),
    };
    let text = said(other).await;
    assert!(
        text.starts_with("there is no ClusteredDatabase \"demo\" in namespace \"shop\" (it has other)"),
        "{text}"
    );
}

#[tokio::test]
async fn a_change_is_one_patch_of_the_version_that_was_read() {
    let whole = of_file(&recorded(&ready(&spec(3))));
    let (cluster, asked) = cluster(move |_, path| serve(&whole, path));
    let told = change::carry_out(&cluster, "demo", Wish::Pause(true)).await.unwrap();
    assert!(told.starts_with("demo is paused"), "{told}");
    change::carry_out(&cluster, "demo", Wish::Pause(false)).await.unwrap();
    let asked = asked.lock().unwrap();
    let patches: Vec<_> = asked.iter().filter(|request| request.starts_with("PATCH")).collect();
    let [patch] = patches.as_slice() else {
        panic!("{asked:?}");
    };
    let body: Value = serde_json::from_str(patch.splitn(3, ' ').nth(2).unwrap()).unwrap();
    assert_eq!(body["spec"], json!({"paused": true}));
    assert_eq!(body["metadata"]["resourceVersion"], "1");
}

/// The readme and logs of a report. `everywhere`: the user may list the pods of all namespaces; the operator runs in `namespace`.
async fn reported(everywhere: bool, namespace: &'static str) -> String {
    let whole = of_file(&recorded(&ready(&spec(3))));
    let operators = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [
        {"metadata": {"name": "operator-1", "namespace": namespace}}]});
    let nobody = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": []});
    let (cluster, _) = cluster(move |_, path| match path {
        "/api/v1/pods" if everywhere => (200, operators.clone()),
        "/api/v1/pods" => refusal(403, "pods is forbidden at the cluster scope"),
        "/api/v1/namespaces/shop/pods" if namespace == "shop" => (200, operators.clone()),
        "/api/v1/namespaces/shop/pods" => (200, nobody.clone()),
        path if path == format!("/api/v1/namespaces/{namespace}/pods/operator-1/log") => (
            200,
            json!(
                "{\"message\":\"acts\",\"database\":\"shop/demo\"}\n{\"message\":\"acts\",\"database\":\"shop/other\"}\nstarted\n"
            ),
        ),
        _ => refusal(404, "not found"),
    });
    let logs = report::logs(&cluster).await;
    let files = report::files(whole, "demo", &logs).unwrap();
    let shown = files.iter().filter(|(name, _)| name != "objects.yaml");
    shown
        .map(|(name, text)| {
            let line = text.lines().filter(|line| !line.starts_with("A report on"));
            format!("== {name}\n{}\n", line.collect::<Vec<_>>().join("\n"))
        })
        .collect()
}

#[tokio::test]
async fn a_report_finds_the_operator_of_the_whole_cluster_and_of_one_namespace() {
    support::golden("report", &reported(true, "clustereddatabase-system").await);
    support::golden("report", &reported(false, "shop").await);
    let nowhere = reported(false, "clustereddatabase-system").await;
    let why = "Not read: the operator's logs: you may not list the pods of all namespaces, and in this one no pod carries the label \
               app.kubernetes.io/name=clustereddatabase-operator";
    assert!(
        nowhere.contains(why) && !nowhere.contains("operator-1.log"),
        "{nowhere}"
    );
}
