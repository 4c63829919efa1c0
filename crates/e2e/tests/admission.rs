//! End-to-end: what the real API server says to bad resources, and that it takes the examples.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::ClusteredDatabase;
use e2e::{Namespace, connect_for_test, manifest};
use kube::ResourceExt;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde::Deserialize;
use serde_json::{Value, json};

/// The table that the rules in Rust and in CEL are tested by as well.
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
async fn the_api_server_refuses_bad_resources_in_our_words() -> Result<()> {
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
async fn the_api_server_takes_every_example() -> Result<()> {
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

/// Where it has no default for a map, it makes null of one that is applied empty and was not before, and refuses that.
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
            "paused": true, "storage": {"size": "1Gi"}, "postgres": {"parameters": parameters},
            "serviceAccountAnnotations": map, "podMetadata": {"labels": map, "annotations": map},
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
