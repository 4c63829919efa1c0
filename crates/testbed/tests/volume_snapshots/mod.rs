//! Snapshots of a volume by the API of real clusters.

use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use testbed::{POSTGRES_IMAGE, Testbed};

use crate::until;

/// What the first pod writes, and what a restored volume must have.
const OLD: &str = "old";

/// Takes a snapshot of a volume that a pod keeps changing. Claims from the snapshot are there before it, and wait for it.
pub async fn take_and_restore(testbed: &Testbed, client: &kube::Client) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let snapshots = snapshots(client);

    create(&claims, claim("source", "64Mi", None)).await?;
    // There is always a directory `new…`, and it is gone when the snapshot has copied the files before it.
    let script = format!(
        "mkdir -m 700 /data/d && cd /data/d && touch $(seq 2000) && printf {OLD} > f && ln -s f link && touch /data/written
        i=0; mkdir /data/new0; while :; do mkdir /data/new$((i + 1)); rm -r /data/new$i; i=$((i + 1)); done"
    );
    create(&pods, pod("source", &script, json!({"runAsUser": 999, "fsGroup": 999}))).await?;
    let source = volume_dir(testbed, &claims, "source").await?;
    until("the file to be written", async || Ok(source.join("written").exists())).await?;

    create(&claims, claim("small", "63Mi", Some("s"))).await?;
    create(&claims, claim("restored", "64Mi", Some("s"))).await?;
    create(&snapshots, snapshot("s", "source")).await?;
    until("the snapshot to become ready", async || {
        let status = snapshots.get("s").await?.data["status"].clone();
        if status["readyToUse"] != true {
            return Ok(false);
        }
        ensure!(status["restoreSize"] == "64Mi", "{status}");
        ensure!(status["creationTime"].is_string(), "{status}");
        Ok(true)
    })
    .await?;
    // Early, because the snapshot controller does not delete a snapshot that a claim still waits for, nor try again.
    refuse_small(client, &claims).await?;
    fs::write(source.join("d/f"), "new")?;

    // Without a group that Kubernetes sets, the pod can read and write only if owners and modes are restored.
    let script = format!("[ \"$(cat /data/d/link)\" = {OLD} ] && touch /data/d/new /data/new");
    create(
        &pods,
        pod("restored", &script, json!({"runAsUser": 999, "runAsGroup": 999})),
    )
    .await?;
    until("the pod of the restored volume to succeed", async || {
        let phase = pods.get("restored").await?.status.and_then(|s| s.phase);
        ensure!(
            phase.as_deref() != Some("Failed"),
            "the restored volume is not as expected"
        );
        Ok(phase.as_deref() == Some("Succeeded"))
    })
    .await?;

    let kept = testbed.state_dir().join("volumes/snapshots");
    ensure!(
        fs::read_dir(&kept)?.count() == 1,
        "not one snapshot in {}",
        kept.display()
    );
    snapshots.delete("s", &DeleteParams::default()).await?;
    until("the snapshot's files to go", async || {
        Ok(fs::read_dir(&kept)?.count() == 0)
    })
    .await?;
    remove(&pods, &claims, &source).await
}

/// A claim that is smaller than its snapshot waits, and an event says why.
async fn refuse_small(client: &kube::Client, claims: &Api<PersistentVolumeClaim>) -> Result<()> {
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::default_namespaced(client.clone());
    until("the event of the small claim", async || {
        let listed = events.list(&kube::api::ListParams::default()).await?;
        Ok(listed.items.iter().any(|event| {
            let message = event.message.as_deref().unwrap_or_default();
            event.involved_object.name.as_deref() == Some("small") && message.contains("less than the size 64Mi")
        }))
    })
    .await?;
    let volume = claims.get("small").await?.spec.and_then(|s| s.volume_name);
    ensure!(volume.is_none(), "a claim smaller than its snapshot has a volume");
    claims.delete("small", &DeleteParams::default()).await?;
    Ok(())
}

/// Removes pods and claims; the volume is unmounted from its pod and removed.
async fn remove(pods: &Api<Pod>, claims: &Api<PersistentVolumeClaim>, source: &std::path::Path) -> Result<()> {
    for name in ["source", "restored"] {
        pods.delete(name, &DeleteParams::default()).await?;
        claims.delete(name, &DeleteParams::default()).await?;
    }
    until("the volume's data to go", async || Ok(!source.exists())).await
}

async fn create<K>(api: &Api<K>, object: Value) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let object = serde_json::from_value(object)?;
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

fn snapshots(client: &kube::Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
    Api::default_namespaced_with(client.clone(), &ApiResource::from_gvk(&kind))
}

fn snapshot(name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {"source": {"persistentVolumeClaimName": claim}},
    })
}

fn claim(name: &str, size: &str, snapshot: Option<&str>) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": testbed::cluster::SNAPSHOTS_CLASS,
            "resources": {"requests": {"storage": size}},
            "dataSource": snapshot.map(|name| json!({
                "apiGroup": "snapshot.storage.k8s.io",
                "kind": "VolumeSnapshot",
                "name": name,
            })),
        },
    })
}

/// A pod with the claim of the same name.
fn pod(name: &str, script: &str, security: Value) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": security,
            "containers": [{
                "name": "c",
                "image": POSTGRES_IMAGE,
                "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
        },
    })
}

async fn volume_dir(testbed: &Testbed, claims: &Api<PersistentVolumeClaim>, claim: &str) -> Result<std::path::PathBuf> {
    until("the claim to have a volume", async || {
        Ok(claims.get(claim).await?.spec.is_some_and(|s| s.volume_name.is_some()))
    })
    .await?;
    let volume = claims.get(claim).await?.spec.and_then(|s| s.volume_name);
    Ok(testbed.volume_dir(&volume.context("find the claim's volume")?))
}
