//! The scripts.

use serde_json::{Value, json};

use super::{Script, Step, step};

const CORE: &str = "/api/v1/namespaces/{ns}";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Scripts for what every kind has in common, and for some. Each makes objects of names of its own.
pub(super) fn scripts() -> Vec<Script> {
    let script = |name, steps| Script { name, steps };
    vec![
        script("objects are made once, read and deleted", life()),
        script("an update replaces the version that it names", updates()),
        script("a merge patch changes what it names", merges()),
        script("an apply makes, changes and takes back", applies()),
        script("appliers own fields", ownership()),
        script("an apply fills a map and empties it", filled()),
        script("a kind's own defaults and rules", rules()),
        script("ports are known by their numbers", ports()),
        script("status and generation", status()),
        script("a pod changes in few ways", pods()),
        script("finalizers hold", finalizers()),
        script("a deletion means one object in one version", preconditions()),
        script("what a deletion answers", deletions()),
        script("what never changes", immutable()),
        script("what the server adds", defaults()),
        script("lists and selectors", lists()),
        script("watches tell what happened", watches()),
        script("dependents go with their owner", background()),
        script("orphans stay", orphans()),
        script("an owner in the foreground goes last", foreground()),
    ]
}

fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn maps(name: &str) -> String {
    format!("{CORE}/configmaps{}{name}", if name.is_empty() { "" } else { "/" })
}

pub(super) fn probes(rest: &str) -> String {
    format!("/apis/conformance.clustereddatabase.io/v1/namespaces/{{ns}}/probes{rest}")
}

pub(super) fn post(path: impl Into<String>, body: Value) -> Step {
    step("POST", path, 201).body(body)
}

fn put(path: impl Into<String>, code: u16, body: Value) -> Step {
    step("PUT", path, code).body(body)
}

pub(super) fn merge(path: impl Into<String>, code: u16, body: Value) -> Step {
    step("PATCH", path, code).content(MERGE).body(body)
}

pub(super) fn apply(path: impl Into<String>, manager: &str, code: u16, body: Value) -> Step {
    let path = format!("{}?fieldManager={manager}", path.into());
    step("PATCH", path, code).content(APPLY).body(body)
}

fn life() -> Vec<Step> {
    let made = json!({"metadata": {"uid": "<any>", "resourceVersion": "<any>", "creationTimestamp": "<any>",
                                   "generation": "<absent>", "deletionTimestamp": "<absent>"}, "data": {"a": "1"}});
    let generated = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "life-"}});
    let versioned =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "life-2", "resourceVersion": "5"}});
    vec![
        step("GET", maps("life"), 404).like(json!({"kind": "Status", "reason": "NotFound", "code": 404})),
        post(maps(""), map("life", json!({"a": "1"})))
            .like(made)
            .keep("uid", "/metadata/uid"),
        step("POST", maps(""), 409)
            .body(map("life", json!({})))
            .like(json!({"reason": "AlreadyExists"})),
        step("GET", maps("life"), 200).like(json!({"metadata": {"uid": "${uid}"}})),
        step("POST", maps(""), 422)
            .body(map("No Name", json!({})))
            .like(json!({"reason": "Invalid"})),
        // So it is: a client's mistake, and the server calls it its own.
        step("POST", maps(""), 500)
            .body(versioned)
            .like(json!({"reason": "<absent>"})),
        step("POST", maps(""), 400).body(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "life-3"}})),
        post(maps(""), generated).like(json!({"metadata": {"name": "<any>"}})),
        post(format!("{}?dryRun=All", maps("")), map("life-dry", json!({}))),
        step("GET", maps("life-dry"), 404),
        step("DELETE", maps("life"), 200)
            .like(json!({"kind": "Status", "status": "Success", "details": {"uid": "${uid}"}})),
        step("DELETE", maps("life"), 404).like(json!({"reason": "NotFound"})),
        post(maps(""), map("life", json!({}))).like(json!({"metadata": {"uid": "<not ${uid}>"}})),
        step(
            "GET",
            "/apis/conformance.clustereddatabase.io/v1/namespaces/{ns}/nothing",
            404,
        ),
    ]
}

fn updates() -> Vec<Step> {
    let at = |version: &str, data: Value| {
        let mut object = map("update", data);
        object["metadata"]["resourceVersion"] = json!(version);
        object
    };
    let mut other = map("update", json!({}));
    other["metadata"]["uid"] = json!("00000000-1111-2222-3333-444444444444");
    vec![
        put(maps("update"), 404, map("update", json!({}))),
        post(maps(""), map("update", json!({"a": "1"}))).keep("first", "/metadata/resourceVersion"),
        put(maps("update"), 200, at("${first}", json!({"a": "2"})))
            .like(json!({"metadata": {"resourceVersion": "<not ${first}>"}, "data": {"a": "2"}}))
            .keep("second", "/metadata/resourceVersion"),
        put(maps("update"), 409, at("${first}", json!({"a": "3"}))).like(json!({"reason": "Conflict"})),
        // The same again makes no version.
        put(maps("update"), 200, at("${second}", json!({"a": "2"})))
            .like(json!({"metadata": {"resourceVersion": "${second}"}})),
        put(maps("update"), 200, map("update", json!({"b": "1"}))).like(json!({"data": {"a": "<absent>", "b": "1"}})),
        put(maps("update"), 409, other).like(json!({"reason": "Conflict"})),
        put(maps("update"), 400, map("another", json!({}))).like(json!({"reason": "BadRequest"})),
    ]
}

fn merges() -> Vec<Step> {
    let at = |field: &str, value: &str| json!({"metadata": {field: value}, "data": {"c": "3"}});
    vec![
        merge(maps("merge"), 404, json!({"data": {}})),
        post(maps(""), map("merge", json!({"a": "1", "b": "2"}))).keep("first", "/metadata/resourceVersion"),
        merge(maps("merge"), 200, json!({"data": {"a": null, "b": "3"}}))
            .like(json!({"data": {"a": "<absent>", "b": "3"}}))
            .keep("second", "/metadata/resourceVersion")
            .keep("uid", "/metadata/uid"),
        merge(maps("merge"), 409, at("resourceVersion", "${first}")).like(json!({"reason": "Conflict"})),
        merge(maps("merge"), 422, at("uid", "00000000-1111-2222-3333-444444444444")).like(json!({"reason": "Invalid"})),
        merge(maps("merge"), 200, at("resourceVersion", "${second}")).keep("third", "/metadata/resourceVersion"),
        merge(maps("merge"), 200, at("uid", "${uid}")).like(json!({"metadata": {"resourceVersion": "${third}"}})),
        merge(
            maps("merge"),
            200,
            json!({"metadata": {"finalizers": ["example.org/a"]}}),
        ),
        merge(maps("merge"), 200, json!({"metadata": {"finalizers": []}}))
            .like(json!({"metadata": {"finalizers": "<absent>"}})),
    ]
}

fn applies() -> Vec<Step> {
    let with = |metadata: Value| {
        let mut object = map("apply", json!({"a": "1"}));
        object["metadata"]
            .as_object_mut()
            .into_iter()
            .for_each(|map| map.extend(metadata.as_object().cloned().unwrap_or_default()));
        object
    };
    let uid = "00000000-1111-2222-3333-444444444444";
    vec![
        apply(maps("apply"), "one", 409, with(json!({"uid": uid}))).like(json!({"reason": "Conflict"})),
        // A version that no object can have: makes, and never changes.
        apply(maps("apply"), "one", 201, with(json!({"resourceVersion": "1"})))
            .keep("first", "/metadata/resourceVersion"),
        apply(maps("apply"), "one", 409, with(json!({"resourceVersion": "1"}))).like(json!({"reason": "Conflict"})),
        apply(maps("apply"), "one", 200, with(json!({}))).like(json!({"metadata": {"resourceVersion": "${first}"}})),
        step("PATCH", maps("apply"), 422).content(APPLY).body(with(json!({}))),
        apply(maps("apply"), "one", 200, map("apply", json!({"b": "2"})))
            .like(json!({"data": {"a": "<absent>", "b": "2"}}))
            .keep("uid", "/metadata/uid"),
        apply(
            maps("apply"),
            "one",
            200,
            with(json!({"uid": "${uid}", "labels": {"x": "y"}})),
        )
        .like(json!({"metadata": {"labels": {"x": "y"}}, "data": {"a": "1", "b": "<absent>"}})),
        apply(maps("apply"), "one", 200, with(json!({}))).like(json!({"metadata": {"labels": {"x": "<absent>"}}})),
    ]
}

fn ownership() -> Vec<Step> {
    let forced = |manager: &str, data: Value| {
        let path = format!("{}?fieldManager={manager}&force=true", maps("owned"));
        step("PATCH", path, 200).content(APPLY).body(map("owned", data))
    };
    let one = json!({"metadata": {"managedFields": [
        {"manager": "one", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}, "f:b": {}}}}]}});
    vec![
        apply(maps("owned"), "one", 201, map("owned", json!({"a": "1", "b": "1"}))).like(one),
        apply(maps("owned"), "two", 409, map("owned", json!({"a": "2"}))).like(json!({"reason": "Conflict"})),
        // A second applier of the same value owns it, too: the value stays when one of them gives it up.
        apply(maps("owned"), "two", 200, map("owned", json!({"a": "1"}))),
        apply(maps("owned"), "one", 200, map("owned", json!({"b": "1"}))).like(json!({"data": {"a": "1", "b": "1"}})),
        apply(maps("owned"), "two", 200, map("owned", json!({"c": "1"})))
            .like(json!({"data": {"a": "<absent>", "b": "1", "c": "1"}})),
        forced("two", json!({"b": "2", "c": "1"})).like(json!({"data": {"b": "2"}})),
        // What was taken from it does not go when it gives it up.
        apply(maps("owned"), "one", 200, map("owned", json!({"d": "1"})))
            .like(json!({"data": {"b": "2", "c": "1", "d": "1"}})),
        // Another's write takes a field away, and an apply without force meets that.
        merge(
            format!("{}?fieldManager=user", maps("owned")),
            200,
            json!({"data": {"c": "9"}}),
        ),
        apply(maps("owned"), "two", 409, map("owned", json!({"b": "2", "c": "1"}))),
        apply(maps("owned"), "two", 200, map("owned", json!({"b": "2"}))).like(json!({"data": {"c": "9"}})),
    ]
}

fn filled() -> Vec<Step> {
    let applied = |code, data| apply(maps("filled"), "one", code, map("filled", data));
    let probe = |spec: Value| {
        let api_version = "conformance.clustereddatabase.io/v1";
        json!({"apiVersion": api_version, "kind": "Probe", "metadata": {"name": "filled"}, "spec": spec})
    };
    let probed = |code, map: Value| apply(probes("/filled"), "one", code, probe(json!({"map": map})));
    let without = probe(json!({"level": 1}));
    vec![
        applied(201, json!({})).like(json!({"data": {"a": "<absent>"}})),
        // The empty map was its own and is named no more: what is in it now is, and stays.
        applied(200, json!({"a": "1"})).like(json!({"data": {"a": "1"}})),
        applied(200, json!({"b": "2"})).like(json!({"data": {"a": "<absent>", "b": "2"}})),
        applied(200, json!({})).like(json!({"data": {"a": "<absent>", "b": "<absent>"}})),
        probed(201, json!({})).like(json!({"spec": {"map": {}}})),
        probed(200, json!({"a": {}})).like(json!({"spec": {"map": {"a": {}}}})),
        probed(200, json!({"a": {"b": 1}})).like(json!({"spec": {"map": {"a": {"b": 1}}}})),
        probed(200, json!({"a": {}})).like(json!({"spec": {"map": {"a": "<absent>"}}})),
        probed(200, json!({"a": {"b": 1}})),
        // Of the map that it has emptied `null` is left, which no schema takes for one; it goes if it is not named.
        probed(422, json!({})).like(json!({"reason": "Invalid"})),
        apply(probes("/filled"), "one", 200, without).like(json!({"spec": {"level": 1, "map": "<absent>"}})),
    ]
}

fn rules() -> Vec<Step> {
    let body = |spec: Value| json!({"apiVersion": "conformance.clustereddatabase.io/v1", "kind": "Probe", "metadata": {"name": "ruled"}, "spec": spec});
    let make = |code, spec| step("POST", probes(""), code).body(body(spec));
    let change = |code, spec| merge(probes("/ruled"), code, json!({"spec": spec}));
    let refused = || json!({"kind": "Status", "reason": "Invalid", "code": 422});
    vec![
        make(422, json!({"size": "2Gi"})).like(refused()),
        make(422, json!({"level": 3})).like(refused()),
        make(201, json!({"size": "0.5Gi", "fixed": "a"}))
            .like(json!({"spec": {"level": 1, "size": "0.5Gi", "fixed": "a"}})),
        change(422, json!({"size": "1025Mi"})).like(refused()),
        change(422, json!({"fixed": "b"})).like(refused()),
        change(200, json!({"level": 3, "size": "1024Mi"})).like(json!({"spec": {"level": 3}})),
        change(422, json!({"size": null})).like(refused()),
        // A removed field gets its default again, with which no size is needed.
        change(200, json!({"level": null, "size": null}))
            .like(json!({"spec": {"level": 1, "size": "<absent>", "fixed": "a"}})),
        apply(probes("/ruled"), "one", 422, body(json!({"size": "3Gi"}))).like(refused()),
        merge(
            probes("/ruled/status"),
            200,
            json!({"status": {"seen": true}, "spec": {"level": 9}}),
        )
        .like(json!({"spec": {"level": 1}, "status": {"seen": true}})),
        step("GET", probes("/ruled"), 200).like(json!({"spec": {"level": 1, "fixed": "a"}})),
        step("DELETE", probes("/ruled"), 200),
    ]
}

fn service(ports: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ports"}, "spec": {"selector": {"a": "b"}, "ports": ports}})
}

fn ports() -> Vec<Step> {
    let path = format!("{CORE}/services/ports");
    let forced = |code, ports| {
        let path = format!("{path}?fieldManager=one&force=true");
        step("PATCH", path, code).content(APPLY).body(service(ports))
    };
    let port = |number: u16| json!({"name": "p", "port": number, "protocol": "TCP"});
    vec![
        forced(201, json!([port(80)])).like(json!({"spec": {
            "type": "ClusterIP", "sessionAffinity": "None", "clusterIP": "<any>", "internalTrafficPolicy": "Cluster",
            "ports": [{"port": 80, "targetPort": 80, "protocol": "TCP"}]}})),
        forced(200, json!([port(81)])).like(json!({"spec": {"ports": [{"port": 81}]}})),
        merge(
            format!("{path}?fieldManager=user"),
            200,
            json!({"spec": {"ports": [port(90)]}}),
        )
        .like(json!({"spec": {"ports": [{"port": 90}]}})),
        // The edited one stays beside it, and two of one name are refused.
        forced(422, json!([port(81)])).like(json!({"reason": "Invalid"})),
        merge(
            format!("{path}?fieldManager=one"),
            200,
            json!({"spec": {"ports": [port(81)], "selector": {"a": null, "c": "d"}}}),
        )
        .like(json!({"spec": {"ports": [{"port": 81}], "selector": {"a": "<absent>", "c": "d"}}})),
    ]
}

fn status() -> Vec<Step> {
    let probe = |version: Value, spec: Value, status: Value| {
        let mut probe =
            json!({"apiVersion": "conformance.clustereddatabase.io/v1", "kind": "Probe", "metadata": {"name": "p"}});
        for (object, field, value) in [
            ("/metadata", "resourceVersion", version),
            ("", "spec", spec),
            ("", "status", status),
        ] {
            if let (false, Some(object)) = (value.is_null(), probe.pointer_mut(object)) {
                object[field] = value;
            }
        }
        probe
    };
    let rv = || json!("${rv}");
    vec![
        post(probes(""), probe(Value::Null, json!({"a": 1}), json!({"b": 1})))
            .like(json!({"metadata": {"generation": 1}, "status": "<absent>"}))
            .keep("rv", "/metadata/resourceVersion"),
        put(probes("/p"), 422, probe(Value::Null, json!({"a": 2}), Value::Null)).like(json!({"reason": "Invalid"})),
        put(probes("/p/status"), 200, probe(rv(), json!({"a": 7}), json!({"b": 2})))
            .like(json!({"metadata": {"generation": 1}, "spec": {"a": 1}, "status": {"b": 2}}))
            .keep("next", "/metadata/resourceVersion"),
        put(probes("/p/status"), 409, probe(rv(), json!({}), json!({"b": 3}))).like(json!({"reason": "Conflict"})),
        put(
            probes("/p"),
            200,
            probe(json!("${next}"), json!({"a": 2}), json!({"b": 9})),
        )
        .like(json!({"metadata": {"generation": 2}, "spec": {"a": 2}, "status": {"b": 2}})),
        merge(probes("/p"), 200, json!({"metadata": {"labels": {"x": "y"}}}))
            .like(json!({"metadata": {"generation": 2}})),
        merge(probes("/p"), 200, json!({"spec": {"list": [1, 2]}})).like(json!({"metadata": {"generation": 3}})),
        merge(probes("/p/status"), 200, json!({"status": {"c": 1}}))
            .like(json!({"metadata": {"generation": 3}, "status": {"b": 2, "c": 1}})),
        apply(
            probes("/p/status"),
            "agent",
            200,
            probe(Value::Null, json!({"a": 9}), json!({"d": 1})),
        )
        .like(json!({"metadata": {"generation": 3}, "spec": {"a": 2}, "status": {"b": 2, "d": 1}})),
        apply(
            probes("/p"),
            "agent",
            200,
            probe(Value::Null, json!({"count": 1}), json!({"d": 2})),
        )
        .like(json!({"metadata": {"generation": 4}, "spec": {"a": 2, "count": 1}, "status": {"d": 1}})),
        apply(
            probes("/p/status"),
            "agent",
            200,
            probe(Value::Null, Value::Null, json!({"f": 1})),
        )
        .like(json!({"spec": {"count": 1}, "status": {"b": 2, "d": "<absent>", "f": 1}})),
        step("DELETE", probes("/p"), 200).like(json!({"kind": "Status", "status": "Success"})),
    ]
}

/// No node is fit for it.
fn pods() -> Vec<Step> {
    let path = |rest: &str| format!("{CORE}/pods{rest}");
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
    pod["spec"] = set("p")["spec"]["template"]["spec"].clone();
    pod["spec"]["nodeSelector"] = json!({"conformance": "no-such-node"});
    let strategic = |resources: Value| {
        let body = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
        step("PATCH", path("/p/resize?fieldManager=one"), 200)
            .content("application/strategic-merge-patch+json")
            .body(body)
    };
    let resized = json!({"metadata": {"generation": 3}, "spec": {"containers": [
        {"name": "c", "image": "example.org/c:2", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}]}});
    vec![
        post(path(""), pod).like(json!({"metadata": {"generation": 1}, "status": {"phase": "Pending"},
            "spec": {"containers": [{"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}]}})),
        merge(path("/p"), 200, json!({"metadata": {"labels": {"a": "b"}}})).like(json!({"metadata": {"generation": 1}})),
        merge(path("/p"), 422, json!({"spec": {"nodeSelector": {"conformance": "other"}}})).like(json!({"reason": "Invalid"})),
        merge(path("/p"), 422, json!({"spec": {"terminationGracePeriodSeconds": 5}})).like(json!({"reason": "Invalid"})),
        step("PATCH", path("/p"), 200)
            .content("application/strategic-merge-patch+json")
            .body(json!({"spec": {"containers": [{"name": "c", "image": "example.org/c:2"}]}}))
            .like(json!({"metadata": {"generation": 2}, "spec": {"containers": [{"name": "c", "image": "example.org/c:2"}]}})),
        strategic(json!({"limits": {"cpu": "2"}})).like(resized),
        step("DELETE", path("/p"), 200).like(json!({"kind": "Pod"})),
        step("GET", path("/p"), 404),
    ]
}

fn finalizers() -> Vec<Step> {
    let mut held = map("held", json!({}));
    held["metadata"]["finalizers"] = json!(["example.org/a"]);
    vec![
        post(maps(""), held),
        step("DELETE", maps("held"), 200)
            .like(json!({"kind": "ConfigMap", "metadata": {"deletionTimestamp": "<any>", "deletionGracePeriodSeconds": 0}}))
            .keep("going", "/metadata/resourceVersion"),
        step("GET", maps("held"), 200).like(json!({"metadata": {"deletionTimestamp": "<any>"}})),
        step("POST", maps(""), 409).body(map("held", json!({}))),
        step("DELETE", maps("held"), 200).like(json!({"metadata": {"resourceVersion": "${going}"}})),
        merge(maps("held"), 422, json!({"metadata": {"finalizers": ["example.org/a", "example.org/b"]}})),
        merge(maps("held"), 200, json!({"data": {"still": "changes"}})),
        merge(maps("held"), 200, json!({"metadata": {"finalizers": null}})),
        step("GET", maps("held"), 404),
        // The deletion mark counts as a change of what counts.
        post(probes(""), json!({"apiVersion": "conformance.clustereddatabase.io/v1", "kind": "Probe",
            "metadata": {"name": "held", "finalizers": ["example.org/a"]}})),
        step("DELETE", probes("/held"), 200).like(json!({"kind": "Probe", "metadata": {"generation": 2}})),
        merge(probes("/held"), 200, json!({"metadata": {"finalizers": []}})),
        step("GET", probes("/held"), 404),
    ]
}

fn preconditions() -> Vec<Step> {
    let delete = |code, preconditions: Value| {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions});
        step("DELETE", maps("exact"), code).body(options)
    };
    vec![
        post(maps(""), map("exact", json!({})))
            .keep("uid", "/metadata/uid")
            .keep("rv", "/metadata/resourceVersion"),
        delete(409, json!({"uid": "00000000-1111-2222-3333-444444444444"})).like(json!({"reason": "Conflict"})),
        merge(maps("exact"), 200, json!({"data": {"a": "1"}})).keep("next", "/metadata/resourceVersion"),
        delete(409, json!({"uid": "${uid}", "resourceVersion": "${rv}"})).like(json!({"reason": "Conflict"})),
        delete(200, json!({"uid": "${uid}", "resourceVersion": "${next}"})),
    ]
}

fn deletions() -> Vec<Step> {
    let claim = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": {"requests": {"storage": "1Mi"}}});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "x"});
    let kinds = [
        ("/api/v1", "secrets", "Secret", json!({"type": "Opaque"}), "Status"),
        (
            "/api/v1",
            "serviceaccounts",
            "ServiceAccount",
            json!({}),
            "ServiceAccount",
        ),
        (
            "/api/v1",
            "services",
            "Service",
            json!({"spec": {"ports": [{"port": 80}]}}),
            "Service",
        ),
        (
            "/api/v1",
            "persistentvolumeclaims",
            "PersistentVolumeClaim",
            json!({"spec": claim}),
            "PersistentVolumeClaim",
        ),
        (
            "/apis/coordination.k8s.io/v1",
            "leases",
            "Lease",
            json!({"spec": {}}),
            "Status",
        ),
        (
            "/apis/discovery.k8s.io/v1",
            "endpointslices",
            "EndpointSlice",
            json!({"addressType": "IPv4", "endpoints": []}),
            "Status",
        ),
        (
            "/apis/policy/v1",
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"conformance": "none"}}}}),
            "Status",
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1",
            "roles",
            "Role",
            json!({"rules": []}),
            "Status",
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1",
            "rolebindings",
            "RoleBinding",
            json!({"roleRef": role, "subjects": []}),
            "Status",
        ),
    ];
    let mut steps = Vec::new();
    for (base, plural, kind, content, answer) in kinds {
        let group = base.trim_start_matches("/api/").trim_start_matches("/apis/");
        let mut object = json!({"apiVersion": group, "kind": kind, "metadata": {"name": "delete-me"}});
        object
            .as_object_mut()
            .into_iter()
            .for_each(|map| map.extend(content.as_object().cloned().unwrap_or_default()));
        let path = format!("{base}/namespaces/{{ns}}/{plural}");
        steps.push(post(&path, object));
        steps.push(step("DELETE", format!("{path}/delete-me"), 200).like(json!({"kind": answer})));
        steps.push(step("GET", format!("{path}/delete-me"), 404).eventually());
    }
    steps
}

/// A StatefulSet without pods.
fn set(name: &str) -> Value {
    let labels = json!({"conformance": name});
    let security = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    let own = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let containers = json!([{
        "name": "c", "image": "example.org/c:1", "securityContext": own, "env": [{"name": "A", "value": "1"}],
        "ports": [{"name": "p", "containerPort": 80}], "resources": {"limits": {"cpu": "1"}},
    }]);
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {
            "serviceName": name, "replicas": 0, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"securityContext": security, "containers": containers}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        },
    })
}

fn sets(name: &str) -> String {
    format!(
        "/apis/apps/v1/namespaces/{{ns}}/statefulsets{}{name}",
        if name.is_empty() { "" } else { "/" }
    )
}

fn immutable() -> Vec<Step> {
    let role = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings";
    let claims = format!("{CORE}/persistentvolumeclaims");
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "fixed"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": {"requests": {"storage": "1Mi"}}}});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices";
    let leases = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases";
    let invalid = || json!({"reason": "Invalid"});
    let mut unlabelled = set("unlabelled");
    unlabelled["spec"]["template"]["metadata"]["labels"] = json!({"another": "label"});
    vec![
        step("POST", sets(""), 422).body(unlabelled).like(invalid()),
        post(sets(""), set("fixed")),
        merge(sets("fixed"), 422, json!({"spec": {"serviceName": "other"}})).like(invalid()),
        merge(sets("fixed"), 422, json!({"spec": {"podManagementPolicy": "Parallel"}})).like(invalid()),
        merge(
            sets("fixed"),
            200,
            json!({"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}}),
        ),
        merge(
            sets("fixed"),
            200,
            json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 5}}}}),
        ),
        step("DELETE", sets("fixed"), 200).like(json!({"kind": "Status"})),
        post(
            bindings,
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "fixed"},
            "roleRef": role("a"), "subjects": []}),
        ),
        merge(format!("{bindings}/fixed"), 422, json!({"roleRef": role("b")})).like(invalid()),
        post(&claims, claim),
        merge(
            format!("{claims}/fixed"),
            422,
            json!({"spec": {"storageClassName": "other"}}),
        )
        .like(invalid()),
        merge(
            format!("{claims}/fixed"),
            200,
            json!({"metadata": {"labels": {"a": "b"}}}),
        ),
        post(
            slices,
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "fixed"},
            "addressType": "IPv4", "endpoints": []}),
        ),
        merge(format!("{slices}/fixed"), 422, json!({"addressType": "IPv6"})).like(invalid()),
        post(
            format!("{CORE}/secrets"),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fixed"}}),
        ),
        merge(
            format!("{CORE}/secrets/fixed"),
            422,
            json!({"type": "example.org/other"}),
        )
        .like(invalid()),
        post(
            leases,
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "fixed"}, "spec": {}}),
        ),
        merge(
            format!("{leases}/fixed"),
            422,
            json!({"spec": {"leaseDurationSeconds": 0}}),
        )
        .like(invalid()),
        merge(
            format!("{leases}/fixed"),
            422,
            json!({"spec": {"leaseTransitions": -1}}),
        )
        .like(invalid()),
        merge(
            format!("{leases}/fixed"),
            200,
            json!({"spec": {"leaseDurationSeconds": 10, "holderIdentity": "x"}}),
        ),
    ]
}

fn defaults() -> Vec<Step> {
    let container = json!({
        "imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        "ports": [{"containerPort": 80, "protocol": "TCP"}],
        "resources": {"limits": {"cpu": "1"}},
    });
    let pod = json!({
        "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30, "containers": [container],
    });
    let spec = json!({
        "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "template": {"spec": pod}, "volumeClaimTemplates": [{"spec": {"volumeMode": "Filesystem"}, "status": {"phase": "Pending"}}],
    });
    let claims = format!("{CORE}/persistentvolumeclaims");
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "added"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": {"requests": {"storage": "1Mi"}}}});
    vec![
        post(sets(""), set("added")).like(json!({"metadata": {"generation": 1}, "spec": spec})),
        merge(sets("added"), 200, json!({"metadata": {"labels": {"a": "b"}}}))
            .like(json!({"metadata": {"generation": 1}})),
        step("DELETE", sets("added"), 200),
        post(&claims, claim).like(
            json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection"]}, "status": {"phase": "Pending"}}),
        ),
        post(
            format!("{CORE}/secrets"),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "added"}}),
        )
        .like(json!({"type": "Opaque"})),
    ]
}

fn labelled(name: &str, value: &str) -> Value {
    let mut object = map(name, json!({}));
    object["metadata"]["labels"] = json!({"listed": value});
    object
}

fn lists() -> Vec<Step> {
    let names = |names: &[&str]| -> Value { names.iter().map(|name| json!({"metadata": {"name": name}})).collect() };
    vec![
        post(maps(""), labelled("list-a", "1")),
        post(maps(""), labelled("list-b", "2")),
        post(maps(""), labelled("list-c", "1")),
        step("GET", format!("{}?labelSelector=listed", maps("")), 200)
            .like(json!({"kind": "ConfigMapList", "metadata": {"resourceVersion": "<any>"}, "items": names(&["list-a", "list-b", "list-c"])})),
        step("GET", format!("{}?labelSelector=listed%3D1", maps("")), 200).like(json!({"items": names(&["list-a", "list-c"])})),
        step("GET", format!("{}?labelSelector=listed%20notin%20(1),listed", maps("")), 200).like(json!({"items": names(&["list-b"])})),
        step("GET", format!("{}?fieldSelector=metadata.name%3Dlist-b", maps("")), 200).like(json!({"items": names(&["list-b"])})),
        step("GET", format!("{}?labelSelector=listed&limit=2", maps("")), 200)
            .like(json!({"items": names(&["list-a", "list-b"]), "metadata": {"continue": "<any>"}}))
            .keep("more", "/metadata/continue"),
        step("GET", format!("{}?labelSelector=listed&limit=2&continue=${{more}}", maps("")), 200)
            .like(json!({"items": names(&["list-c"])})),
        step("GET", format!("{}?labelSelector=listed", maps("")), 200)
            .accept(METADATA_LIST)
            .like(json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                         "items": [{"kind": "PartialObjectMetadata", "data": "<absent>"}, {}, {}]})),
    ]
}

fn watches() -> Vec<Step> {
    let watch = |selector: &str| {
        let path = format!(
            "{}?watch=true&resourceVersion=${{from}}&timeoutSeconds=2&{selector}",
            maps("")
        );
        step("GET", path, 200)
    };
    let event =
        |kind: &str, name: &str| json!({"type": kind, "object": {"kind": "ConfigMap", "metadata": {"name": name}}});
    vec![
        step("GET", maps(""), 200).keep("from", "/metadata/resourceVersion"),
        post(maps(""), labelled("watch", "1")),
        merge(maps("watch"), 200, json!({"data": {"a": "1"}})),
        // No change, no event.
        merge(maps("watch"), 200, json!({"data": {"a": "1"}})),
        merge(maps("watch"), 200, json!({"metadata": {"labels": {"listed": "2"}}})),
        step("DELETE", maps("watch"), 200),
        watch("fieldSelector=metadata.name%3Dwatch").like(json!([
            event("ADDED", "watch"),
            event("MODIFIED", "watch"),
            event("MODIFIED", "watch"),
            event("DELETED", "watch")
        ])),
        // What is not selected any more is gone for this watch.
        watch("labelSelector=listed%3D1").like(json!([
            event("ADDED", "watch"),
            event("MODIFIED", "watch"),
            event("DELETED", "watch")
        ])),
        watch("labelSelector=listed%3D2").like(json!([event("ADDED", "watch"), event("DELETED", "watch")])),
    ]
}

/// An owner and a dependent of it.
fn family(owner: &str, child: &str) -> Vec<Step> {
    let mut dependent = map(child, json!({}));
    dependent["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": "${owner}", "blockOwnerDeletion": true}]);
    vec![
        post(maps(""), map(owner, json!({}))).keep("owner", "/metadata/uid"),
        post(maps(""), dependent).keep("child", "/metadata/uid"),
    ]
}

fn delete(name: &str, policy: &str) -> Step {
    step("DELETE", maps(name), 200)
        .body(json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy}))
}

fn background() -> Vec<Step> {
    let mut steps = family("owner-b", "child-b");
    steps.extend([
        delete("owner-b", "Background").like(json!({"kind": "Status"})),
        step("GET", maps("owner-b"), 404),
        step("GET", maps("child-b"), 404).eventually(),
    ]);
    steps
}

fn orphans() -> Vec<Step> {
    let mut steps = family("owner-o", "child-o");
    steps.extend([
        delete("owner-o", "Orphan")
            .like(json!({"kind": "ConfigMap", "metadata": {"finalizers": ["orphan"], "deletionTimestamp": "<any>"}})),
        step("GET", maps("owner-o"), 404).eventually(),
        step("GET", maps("child-o"), 200).like(json!({"metadata": {"uid": "${child}", "ownerReferences": "<absent>"}})),
    ]);
    steps
}

fn foreground() -> Vec<Step> {
    let mut steps = family("owner-f", "child-f");
    steps.extend([
        delete("owner-f", "Foreground")
            .like(json!({"kind": "ConfigMap", "metadata": {"finalizers": ["foregroundDeletion"]}})),
        step("GET", maps("child-f"), 404).eventually(),
        step("GET", maps("owner-f"), 404).eventually(),
    ]);
    steps
}
