//! End-to-end: the real API server refuses bad resources with our messages, and accepts the examples.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::ClusteredDatabase;
use e2e::install::OPERATOR_ACCOUNT;
use e2e::{Namespace, connect_for_test, connect_for_test_as, manifest};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::ResourceExt;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde::Deserialize;
use serde_json::{Value, json};

/// The table that also tests the rules in Rust and in CEL.
const TABLE: &str = include_str!("../../api/tests/bad_specs.yaml");

#[derive(Deserialize)]
struct Table {
    base: Value,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Case {
    name: String,
    patch: Value,
    old: Option<Value>,
    #[serde(default)]
    messages: BTreeSet<String>,
    server_message: Option<String>,
    server_also: Option<String>,
}

/// Applies a JSON merge patch (RFC 7386).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().map(|object| object.remove(key));
        } else {
            merge(&mut target[key], value);
        }
    }
}

fn merged(base: &Value, patch: &Value) -> Value {
    let mut result = base.clone();
    merge(&mut result, patch);
    result
}

/// The API server's refusal of `resource`, as text; nothing is stored.
async fn refusal(namespace: &Namespace, resource: Value, old: Option<Value>) -> Result<String> {
    let kind = ApiResource::erase::<ClusteredDatabase>(&());
    let api: kube::Api<DynamicObject> = kube::Api::namespaced_with(namespace.client.clone(), &namespace.name, &kind);
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut object: DynamicObject = serde_json::from_value(resource).context("read the resource")?;
    let Some(mut old) = old else {
        return match api.create(&dry, &object).await {
            Ok(_) => Ok("accepted".to_owned()),
            Err(error) => Ok(error.to_string()),
        };
    };
    // Paused, so that the operator leaves it alone.
    old["spec"]["paused"] = json!(true);
    let status = old.get("status").cloned();
    let existing = api
        .create(&PostParams::default(), &serde_json::from_value(old)?)
        .await
        .context("make the old one")?;
    let name = existing.name_any();
    if let Some(status) = status {
        let status = Patch::Merge(json!({ "status": status }));
        api.patch_status(&name, &PatchParams::default(), &status)
            .await
            .context("write its status")?;
    }
    let mut answer;
    loop {
        object.metadata.resource_version = api.get(&name).await?.resource_version();
        answer = api.replace(&name, &dry, &object).await;
        // The operator may write the status in between.
        if !matches!(&answer, Err(kube::Error::Api(status)) if status.code == 409) {
            break;
        }
    }
    api.delete(&name, &DeleteParams::default()).await?;
    namespace.wait_gone(&name, Duration::from_secs(30)).await?;
    Ok(match answer {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    })
}

#[tokio::test]
async fn the_api_server_refuses_bad_resources_with_our_messages() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-admission").await?;
    let table: Table = serde_saphyr::from_str(TABLE).context("read the table")?;
    let mut wrong = Vec::new();
    for case in &table.cases {
        let old = case.old.as_ref().map(|old| merged(&table.base, old));
        let said = refusal(&namespace, merged(&table.base, &case.patch), old)
            .await
            .context(case.name.clone())?;
        let expected = case
            .messages
            .iter()
            .chain(&case.server_message)
            .chain(&case.server_also);
        for message in expected.filter(|message| !said.contains(message.as_str())) {
            wrong.push(format!("{}\n  expected: {message}\n  said: {said}", case.name));
        }
    }
    println!("{} resources refused", table.cases.len());
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    namespace.begin_removal().await
}

#[tokio::test]
async fn the_api_server_accepts_every_example() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-examples-taken").await?;
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(&directory).context("list the examples")? {
        let path = entry?.path();
        let yaml = std::fs::read_to_string(&path)?;
        for object in manifest::parse(&yaml)? {
            let dry = PatchParams::apply("cdb-e2e").dry_run();
            let applied = manifest::apply_one(&namespace.client, &namespace.name, &object, &dry).await;
            applied.with_context(|| path.display().to_string())?;
            seen += 1;
        }
    }
    ensure!(seen >= 4, "only {seen} examples");
    namespace.begin_removal().await
}

/// Without a default for a map, the API server turns a newly applied empty map into null, and refuses that.
#[tokio::test]
async fn what_was_applied_may_be_applied_empty() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-emptied").await?;
    let kind = ApiResource::erase::<ClusteredDatabase>(&());
    let api: kube::Api<DynamicObject> = kube::Api::namespaced_with(namespace.client.clone(), &namespace.name, &kind);
    for (parameters, map) in [
        (json!({"work_mem": "8MB"}), json!({"example.org/team": "a"})),
        (json!({}), json!({})),
    ] {
        let spec = json!({
            "paused": true, "storage": {"data": {"size": "1Gi"}}, "postgres": {"parameters": parameters},
            "serviceAccount": {"metadata": {"labels": map, "annotations": map}}, "pods": {"metadata": {"labels": map, "annotations": map}},
            "scheduling": {"nodeSelector": map},
        });
        let applied = json!({
            "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "emptied"}, "spec": spec,
        });
        let made = api
            .patch("emptied", &PatchParams::apply("cdb-e2e"), &Patch::Apply(&applied))
            .await
            .with_context(|| applied["spec"].to_string())?;
        let stored = &made.data["spec"]["postgres"]["parameters"];
        ensure!(*stored == parameters, "{stored} is stored");
    }
    namespace.begin_removal().await
}

/// Makes, as an administrator, the objects of a database, the rights of its agents, and a tenant with the right to write
/// everything except the status of databases.
const OBJECTS_OF_A_DATABASE: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: db}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: db}
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [db], verbs: [get, update, patch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], resourceNames: [db-rw], verbs: [get, update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: db}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: db}
subjects: [{kind: ServiceAccount, name: db, namespace: e2e-policies}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: tenant}
rules:
- {apiGroups: ['', coordination.k8s.io, discovery.k8s.io], resources: ['*'], verbs: ['*']}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: tenant}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: tenant}
subjects: [{kind: User, name: tenant, apiGroup: rbac.authorization.k8s.io}]
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: db, labels: {clustereddatabase.io/cluster: db}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-rw, labels: {clustereddatabase.io/cluster: db, kubernetes.io/service-name: db-rw}}
addressType: IPv4
endpoints: []
ports: [{name: postgres, port: 5432, protocol: TCP}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
---
apiVersion: v1
kind: Secret
metadata: {name: db-app, labels: {clustereddatabase.io/cluster: db}}
";

/// The author, the write, and the text of the refusal; `None`: it is accepted.
fn writes() -> Vec<(&'static str, &'static str, &'static str, Value, Option<&'static str>)> {
    const LABELS: &str = "only the operator changes the labels";
    let agents = "system:serviceaccount:e2e-policies:db";
    let endpoint = |pod: &str| {
        let target = json!({"kind": "Pod", "name": pod, "namespace": "e2e-policies"});
        json!({"endpoints": [{"addresses": ["10.9.9.9"], "targetRef": target}]})
    };
    let label = |key: &str, value: Value| json!({"metadata": {"labels": {key: value}}});
    let renewed = |time: &str| json!({"spec": {"renewTime": time}});
    vec![
        (agents, "Lease", "db", renewed("2026-11-25T00:00:00.000000Z"), None),
        (
            agents,
            "Lease",
            "db",
            renewed("9999-12-31T23:59:59.000000Z"),
            Some("between the years 2020 and 2200"),
        ),
        (
            agents,
            "Lease",
            "db",
            label("clustereddatabase.io/cluster", Value::Null),
            Some(LABELS),
        ),
        (agents, "EndpointSlice", "db-rw", endpoint("db-2"), None),
        (
            agents,
            "EndpointSlice",
            "db-rw",
            endpoint("payments-0"),
            Some("a pod of its own database"),
        ),
        (
            agents,
            "EndpointSlice",
            "db-rw",
            label("kubernetes.io/service-name", json!("payments")),
            Some(LABELS),
        ),
        (
            agents,
            "EndpointSlice",
            "db-rw",
            json!({"ports": [{"name": "http", "port": 80}]}),
            Some("the ports of -rw"),
        ),
        (
            "tenant",
            "Lease",
            "db",
            json!({"spec": {"holderIdentity": "me"}}),
            Some("the database's own agents"),
        ),
        (
            "tenant",
            "EndpointSlice",
            "db-rw",
            endpoint("db-2"),
            Some("the database's own agents"),
        ),
        (
            "tenant",
            "Secret",
            "db-app",
            json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "1"}]}}),
            Some("the owner of what belongs"),
        ),
        (
            "tenant",
            "Secret",
            "db-app",
            json!({"metadata": {"annotations": {"clustereddatabase.io/x": "y"}}}),
            Some("annotations of clustereddatabase.io"),
        ),
        (
            "tenant",
            "Secret",
            "db-app",
            json!({"metadata": {"annotations": {"team": "a"}, "labels": {"team": "a"}}}),
            None,
        ),
        (
            OPERATOR_ACCOUNT,
            "Secret",
            "db-app",
            label("clustereddatabase.io/cluster", json!("db2")),
            None,
        ),
    ]
}

/// The spec of a pod that Pod Security `restricted` accepts.
fn restricted_pod() -> Value {
    let security = json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    json!({"containers": [{"name": "x", "image": "x", "securityContext": security}]})
}

/// Kubernetes' own roles `view` and `edit`, which a controller fills with those of `manifests/base/user-roles.yaml`.
#[tokio::test]
async fn who_may_view_or_edit_a_namespace_may_do_so_with_its_databases() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-roles").await?;
    for role in ["view", "edit"] {
        let binding: RoleBinding = serde_json::from_value(json!({
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": role}],
        }))?;
        let bindings = namespace.api::<RoleBinding>();
        bindings.create(&PostParams::default(), &binding).await?;
    }
    let may = |user: &'static str, verb: &'static str, resource: &'static str, subresource: &'static str| {
        let review = json!({"metadata": {}, "spec": {"user": user, "resourceAttributes": {
            "namespace": namespace.name, "verb": verb, "group": api::GROUP, "resource": resource, "subresource": subresource,
        }}});
        let reviews: kube::Api<SubjectAccessReview> = kube::Api::all(namespace.client.clone());
        async move {
            let review = serde_json::from_value(review)?;
            let answer = reviews.create(&PostParams::default(), &review).await?;
            anyhow::Ok(answer.status.is_some_and(|status| status.allowed))
        }
    };
    let (databases, operations) = ("clustereddatabases", "clustereddatabaseoperations");
    e2e::wait::until("the roles to be filled and bound", Duration::from_secs(30), || async {
        Ok(if may("edit", "list", databases, "").await? {
            e2e::wait::Seen::Yes(())
        } else {
            e2e::wait::Seen::NotYet("edit may not list databases".to_owned())
        })
    })
    .await?;
    for (user, verb, resource, subresource, expected) in [
        ("view", "get", databases, "", true),
        ("view", "watch", operations, "", true),
        ("view", "patch", databases, "", false),
        ("view", "create", operations, "", false),
        ("edit", "create", databases, "", true),
        ("edit", "delete", databases, "", true),
        ("edit", "patch", databases, "scale", true),
        ("edit", "create", operations, "", true),
        ("edit", "update", databases, "status", false),
        ("edit", "update", operations, "status", false),
        ("stranger", "get", databases, "", false),
    ] {
        let found = may(user, verb, resource, subresource).await?;
        ensure!(found == expected, "{user} {verb} {resource}/{subresource}: {found}");
    }
    namespace.begin_removal().await
}

/// The admission policies of `manifests/`: RBAC rights name objects, not their labels and fields.
#[tokio::test]
async fn labels_leases_and_routes_are_written_by_their_owners_only() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-policies").await?;
    manifest::apply(
        &namespace.client,
        &namespace.name,
        &manifest::parse(OBJECTS_OF_A_DATABASE)?,
    )
    .await?;
    let mut wrong = Vec::new();
    for (user, kind, name, patch, refusal) in writes() {
        let group = match kind {
            "Lease" => "coordination.k8s.io",
            "EndpointSlice" => "discovery.k8s.io",
            _ => "",
        };
        let resource = ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, "v1", kind));
        let client = connect_for_test_as(user).await?;
        let api: kube::Api<DynamicObject> = kube::Api::namespaced_with(client, &namespace.name, &resource);
        let said = match api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => "taken".to_owned(),
            Err(error) => error.to_string(),
        };
        if !said.contains(refusal.unwrap_or("taken")) {
            wrong.push(format!(
                "{user}: {kind} {patch}\n  expected: {refusal:?}\n  said: {said}"
            ));
        }
    }
    // -r would lead to a labelled pod, and the operator would read a labelled Lease.
    let tenant = connect_for_test_as("tenant").await?;
    for (group, kind) in [("", "Pod"), ("coordination.k8s.io", "Lease")] {
        let resource = ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, "v1", kind));
        let api: kube::Api<DynamicObject> = kube::Api::namespaced_with(tenant.clone(), &namespace.name, &resource);
        let object = json!({
            "apiVersion": resource.api_version, "kind": kind,
            "metadata": {"name": "theirs", "labels": {"clustereddatabase.io/cluster": "db"}},
            "spec": if kind == "Pod" { restricted_pod() } else { json!({}) },
        });
        let said = match api
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await
        {
            Ok(_) => "taken".to_owned(),
            Err(error) => error.to_string(),
        };
        if !said.contains("mark what the operator makes") {
            wrong.push(format!("a tenant makes a labelled {kind}: {said}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    namespace.remove().await
}

/// `manifests/policies/database-writers.yaml`: each list in it refuses what it does not name.
#[tokio::test]
async fn an_administrator_can_narrow_what_writers_may_ask_for() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-writers").await?;
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/policies/database-writers.yaml");
    let policy = manifest::parse(&std::fs::read_to_string(path).context("read the policy")?)?;
    manifest::apply(&namespace.client, &namespace.name, &policy).await?;
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(namespace.client.clone());
    let label = json!({"metadata": {"labels": {"clustereddatabase.io/writers": "restricted"}}});
    namespaces
        .patch(&namespace.name, &PatchParams::default(), &Patch::Merge(&label))
        .await?;
    let resource = |spec: Value| {
        let mut spec = spec;
        spec["storage"] = json!({"data": {"size": "1Gi"}});
        json!({"apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase", "metadata": {"name": "db"}, "spec": spec})
    };
    let asks = [
        (
            json!({"postgres": {"image": "stranger/postgres:17"}}),
            "spec.postgres.image must match one of",
        ),
        (
            json!({"scheduling": {"priorityClassName": "system-node-critical"}}),
            "priorityClassName must be one of databases",
        ),
        (
            json!({"scheduling": {"tolerations": [{"operator": "Exists"}]}}),
            "tolerations must name one of these keys",
        ),
        (
            json!({"pods": {"metadata": {"labels": {"app": "payments"}}}}),
            "spec.pods.metadata.labels may have keys",
        ),
        (
            json!({"pods": {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "x"}}}}),
            "pods.metadata.annotations may have keys",
        ),
        (
            json!({"serviceAccount": {"metadata": {"annotations": {"eks.amazonaws.com/role-arn": "x"}}}}),
            "they can take a cloud identity",
        ),
        (
            json!({"services": {"readOnly": {"type": "LoadBalancer"}}}),
            "spec.services may have these types only: ClusterIP",
        ),
        (
            json!({"services": {"readWrite": {"metadata": {"annotations": {"lb.example.com/public": "true"}}}}}),
            "they can open the database to the world",
        ),
    ];
    // The API server needs a moment to load a new policy.
    e2e::wait::until("the policy to be in force", Duration::from_secs(30), || async {
        let said = refusal(&namespace, resource(asks[0].0.clone()), None).await?;
        Ok(if said.contains(asks[0].1) {
            e2e::wait::Seen::Yes(())
        } else {
            e2e::wait::Seen::NotYet(said)
        })
    })
    .await?;
    let mut wrong = Vec::new();
    for (spec, expected) in asks {
        let said = refusal(&namespace, resource(spec), None).await?;
        if !said.contains(expected) {
            wrong.push(format!("expected: {expected}\n  said: {said}"));
        }
    }
    let modest = json!({
        "postgres": {"image": "clustereddatabase/postgres:17.2"}, "pods": {"metadata": {"labels": {"team": "a"}}},
        "scheduling": {"priorityClassName": "databases", "tolerations": [{"key": "databases", "operator": "Exists"}]},
    });
    let said = refusal(&namespace, resource(modest), None).await?;
    ensure!(said == "accepted", "{said}");
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    for object in &policy {
        let kind = ApiResource::from_gvk(&kube::core::GroupVersionKind::try_from(
            object.types.clone().context("a kind")?,
        )?);
        let api: kube::Api<DynamicObject> = kube::Api::all_with(namespace.client.clone(), &kind);
        api.delete(&object.name_any(), &DeleteParams::default()).await?;
    }
    namespace.remove().await
}
