use serde_json::json;

use super::*;

fn lease(renewed: &str, holder: &str, positions: &str) -> Lease {
    serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "ns", "annotations": {
            "clustereddatabase.io/positions": positions, "clustereddatabase.io/system-identifier": "1"}},
        "spec": {"holderIdentity": holder, "leaseTransitions": 1, "renewTime": renewed},
    }))
    .unwrap()
}

#[test]
fn renewals_wake_nobody() {
    let old = lease("2027-01-01T00:00:00.000000Z", "a", "{}");
    assert!(!lease_changes(
        &old,
        &lease("2027-01-01T00:00:02.000000Z", "a", "{\"x\":1}")
    ));
    assert!(lease_changes(&old, &lease("2027-01-01T00:00:00.000000Z", "b", "{}")));
    let mut released = old.clone();
    released
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .insert("clustereddatabase.io/release".to_owned(), "{}".to_owned());
    assert!(lease_changes(&old, &released));
}

#[tokio::test]
async fn of_secrets_only_metadata_is_asked_for() {
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        heard
            .lock()
            .unwrap()
            .push(request.headers()["accept"].to_str().unwrap().to_owned());
        async { Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("enough")) }
    });
    let api: Api<Guarded<PartialObjectMeta<Secret>>> = scoped(&Client::new(service, "default"), None);
    let stream = watcher(api, watcher::Config::default()).default_backoff();
    futures::pin_mut!(stream);
    while !matches!(stream.next().await, Some(Err(_))) {}
    let asked = asked.lock().unwrap();
    assert!(
        !asked.is_empty()
            && asked
                .iter()
                .all(|accept| accept.contains("as=PartialObjectMetadataList")),
        "{asked:?}"
    );
}

#[derive(Default)]
struct Reported(std::sync::Mutex<(Vec<Key>, Vec<String>)>);

impl Report for Reported {
    fn touched(&self, key: Key) {
        self.0.lock().unwrap().0.push(key);
    }
    fn failed(&self, _: &'static str, _: &watcher::Error) {}
    fn unreadable(&self, kind: &'static str, object: &Unreadable) {
        let text = format!("{kind} {}: {}", object.metadata.name.clone().unwrap(), object.why);
        self.0.lock().unwrap().1.push(text);
    }
}

#[tokio::test]
async fn a_resource_that_cannot_be_read_is_reported_and_holds_up_no_other() {
    use watcher::Event::{Apply, Init, InitApply, InitDone};
    let (caches, reported) = (Caches::default(), Reported::default());
    let guard = |name: &str, version: &str, replicas: serde_json::Value| -> Guarded<ClusteredDatabase> {
        serde_json::from_value(json!({
            "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version},
            "spec": {"replicas": replicas, "storage": {"data": {"size": "1Gi"}}},
        }))
        .unwrap()
    };
    let see = async |events: Vec<watcher::Event<Guarded<ClusteredDatabase>>>| {
        let events = futures::stream::iter(events.into_iter().map(Ok));
        feed(events, &caches.databases, &reported, |_| true, |_, _| ()).await;
        let (touched, unreadable) = std::mem::take(&mut *reported.0.lock().unwrap());
        (touched.into_iter().map(|key| key.name).collect::<Vec<_>>(), unreadable)
    };
    let known = |name: &str| caches.databases.get(&Key::database("ns", name), name).is_some();
    let bad = || guard("bad", "5", json!("three"));
    let first = vec![
        Init,
        InitApply(bad()),
        InitApply(guard("good", "5", json!(3))),
        InitDone,
    ];
    let (touched, unreadable) = see(first).await;
    assert_eq!(touched, ["bad", "good", ""], "the last one is everybody");
    assert_eq!(unreadable.len(), 1);
    assert!(
        unreadable[0].starts_with("ClusteredDatabase bad: ") && unreadable[0].contains("three"),
        "{unreadable:?}"
    );
    assert_eq!((known("bad"), known("good")), (false, true));
    assert_eq!(
        see(vec![Apply(guard("bad", "6", json!("three")))]).await,
        (vec![], vec![]),
        "no news"
    );
    let (touched, unreadable) = see(vec![Apply(guard("good", "7", json!("three")))]).await;
    assert_eq!((touched, unreadable.len()), (vec!["good".to_owned()], 1));
    assert!(!known("good"), "nothing is done for it by what it was before");
}

fn key() -> Key {
    Key::database("ns", "db")
}

/// An object of the database with annotations of 256 KiB, the most that Kubernetes takes, and more.
fn object<K: Kept>(name: &str, more: &serde_json::Value) -> K {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": "1",
            "labels": {LABEL_CLUSTER: "db"}, "annotations": {"a": long()}},
    });
    object
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    serde_json::from_value(object).unwrap()
}

fn long() -> String {
    "x".repeat(256 << 10)
}

fn see<K: Kept>(cache: &Cache<K>, name: &str, more: &serde_json::Value) {
    cache.observe(watcher::Event::Init);
    cache.observe(watcher::Event::InitApply(object(name, more)));
    cache.observe(watcher::Event::InitDone);
}

#[test]
fn what_nothing_reads_is_not_kept() {
    fn bytes<K: Kept>(cache: &Cache<K>, key: &Key, name: &str, more: &serde_json::Value) -> (&'static str, usize) {
        see(cache, name, more);
        assert!(matches!(cache.get(key, name), Some(Some(_))), "{}", cache.kind);
        (cache.kind, cache.bytes(key))
    }
    let (caches, key) = (Caches::default(), key());
    let db = json!({"apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
        "spec": {"storage": {"data": {"size": "1Gi"}}, "bootstrap": {"initdb": {"postInitApplicationSQL": [long()]}}}});
    let reference = json!({"roleRef": {"apiGroup": "", "kind": "Role", "name": "db"}});
    let condition = json!([{"type": "X", "status": "True", "reason": "X", "message": long(),
        "lastTransitionTime": "2027-01-01T00:00:00Z"}]);
    let template = json!({"metadata": {}, "spec": {"containers": []}});
    let set = json!({"spec": {"serviceName": "s", "selector": {}, "template": template},
        "status": {"replicas": 1, "conditions": condition}});
    let container = json!({"name": "other", "image": long(), "env": [{"name": "A", "value": long()}]});
    let image = json!([{"names": [long()]}]);
    let kept = [
        // The spec may ask for annotations of a ServiceAccount, a Service and a claim; and each violation of the SQL counts.
        bytes(&caches.databases, &key, "db", &db),
        bytes(&caches.roles, &key, "db", &json!({})),
        bytes(&caches.role_bindings, &key, "db", &reference),
        bytes(&caches.secrets, &key, "db-app", &json!({})),
        bytes(
            &caches.endpoint_slices,
            &key,
            "db-rw",
            &json!({"addressType": "IPv4", "endpoints": [{"addresses": [long()]}]}),
        ),
        bytes(&caches.leases, &key, "db", &json!({})),
        bytes(
            &caches.budgets,
            &key,
            "db",
            &json!({"status": {"conditions": condition, "currentHealthy": 0,
            "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}}),
        ),
        bytes(&caches.stateful_sets, &key, "db", &set),
        bytes(
            &caches.pods,
            &key,
            "db-1",
            &json!({"spec": {"containers": [container]}}),
        ),
        bytes(
            &caches.storage_classes,
            &Key::all(),
            "c",
            &json!({"provisioner": "p", "parameters": {"a": long()}}),
        ),
        bytes(&caches.nodes, &Key::all(), "n", &json!({"status": {"images": image}})),
    ];
    for (kind, bytes) in kept {
        assert!(bytes < 1_000, "{bytes} of a {kind}");
    }
}

#[test]
fn what_is_too_large_cannot_be_read_and_what_has_another_name_is_not_there() {
    let caches = Caches::default();
    see(&caches.service_accounts, "db", &json!({}));
    assert_eq!(
        (
            caches.service_accounts.get(&key(), "db"),
            caches.service_accounts.bytes(&key())
        ),
        (None, 0)
    );
    let found = caches.unreadable(&key());
    assert_eq!(found[0].object, "ServiceAccount db");
    assert!(found[0].why.ends_with("at most 65536 are taken"), "{}", found[0].why);
    see(&caches.roles, "db-of-a-stranger", &json!({}));
    see(&caches.pods, "db-x", &json!({}));
    assert!(!caches.roles.has(&key()) && !caches.pods.has(&key()));
}

/// An API server with this Role, and nothing else.
fn server_with_a_role() -> Requests {
    let role: Role = object(
        "db",
        &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}),
    );
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        assert!(
            path.ends_with("/namespaces/ns/roles") && query.contains("metadata.name%3Ddb"),
            "{path}?{query}"
        );
        let list = json!({"apiVersion": "v1", "kind": "RoleList", "metadata": {}, "items": [role]});
        let answer = http::Response::new(kube::client::Body::from(list.to_string().into_bytes()));
        async { Ok::<_, std::convert::Infallible>(answer) }
    });
    Requests::new(Client::new(service, "default"), crate::metrics::Metrics::default())
}

#[tokio::test]
async fn nothing_is_kept_of_a_database_that_does_not_exist() {
    use watcher::Event::{Apply, Init, InitApply, InitDone};
    let (caches, reported) = (Caches::default(), Reported::default());
    let events = [Init, InitApply(object::<Role>("db", &json!({})).into()), InitDone];
    let events = futures::stream::iter(events.into_iter().map(Ok));
    feed(
        events,
        &caches.roles,
        &reported,
        |key| caches.databases.has(key),
        |_, _| (),
    )
    .await;
    assert_eq!(reported.0.lock().unwrap().0, [Key::all()], "nobody is to look at it");
    assert_eq!((caches.roles.bytes(&key()), caches.roles.get(&key(), "db")), (0, None));

    let db = json!({"apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
        "spec": {"storage": {"data": {"size": "1Gi"}}}});
    caches.databases.observe(Apply(object("db", &db)));
    caches.read_not_kept(&key(), &server_with_a_role()).await.unwrap();
    assert!(
        matches!(caches.roles.get(&key(), "db"), Some(Some(_))),
        "now it is looked at"
    );
    // The same version comes by the watch.
    assert!(caches.roles.observe(Apply(object("db", &json!({})))).is_empty());

    caches.forget_contents(&key());
    assert_eq!((caches.roles.bytes(&key()), caches.roles.get(&key(), "db")), (0, None));
    // Seen again with a database, it is kept again, even at the same version.
    assert_eq!(caches.roles.observe(Apply(object("db", &json!({})))), [key()]);
    assert!(caches.roles.bytes(&key()) > 0);
}

fn node(version: &str, more: serde_json::Value) -> Node {
    let mut node = json!({"metadata": {"name": "n1", "uid": "n", "resourceVersion": version}});
    node.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(node).unwrap()
}

#[test]
fn a_node_that_is_emptied_is_known_by_its_mark_or_its_taints() {
    let cordoned = |spec: serde_json::Value| is_cordoned(&node("1", json!({"spec": spec})));
    let tainted = |key: &str, effect: &str| cordoned(json!({"taints": [{"key": key, "effect": effect}]}));
    assert!(!cordoned(json!({})) && !cordoned(json!({"unschedulable": false})) && !is_cordoned(&node("1", json!({}))));
    assert!(cordoned(json!({"unschedulable": true})));
    for key in DRAIN_TAINTS {
        assert!(tainted(key, "NoSchedule") && tainted(key, "NoExecute"), "{key}");
        assert!(!tainted(key, "PreferNoSchedule"), "{key}");
    }
    assert!(
        !tainted("node.kubernetes.io/unreachable", "NoExecute"),
        "that is a fault, and nobody's plan"
    );
}

#[test]
fn of_nodes_only_a_drain_wakes_anybody() {
    let caches = Caches::default();
    let see = |version: &str, more| caches.nodes.observe(watcher::Event::Apply(node(version, more))).len();
    let status = |time: &str| json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": time}]}});
    assert_eq!(see("1", status("2027-01-01T00:00:00Z")), 1);
    assert_eq!(see("2", status("2027-01-01T00:05:00Z")), 0);
    assert_eq!(
        see(
            "3",
            json!({"metadata": {"name": "n1", "uid": "n", "resourceVersion": "3", "labels": {"a": "b"}}})
        ),
        0
    );
    let taint = json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]);
    assert_eq!(see("4", json!({"spec": {"unschedulable": true}})), 1);
    assert_eq!(
        see("5", json!({"spec": {"unschedulable": true, "taints": taint}})),
        0,
        "the same said twice"
    );
    assert_eq!(see("6", json!({"spec": {}})), 1);
}

#[test]
fn claims_are_known_by_their_names() {
    let claim = |name: &str| -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns"}})).unwrap()
    };
    let of = |name: &str| claimed(&claim(name).metadata, "PersistentVolumeClaim").map(|key| key.name);
    assert_eq!(of("data-my-db-12").as_deref(), Some("my-db"));
    assert_eq!(of("wal-db-0").as_deref(), Some("db"));
    for other in ["data-db", "data-db-x", "cache-db-0", "data", "data--"] {
        assert_eq!(of(other), None, "{other}");
    }
}
