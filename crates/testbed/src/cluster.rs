//! Requests of the testbed to the Kubernetes API.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleRef, Subject};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec, StorageClass};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

/// The default StorageClass: plain directories.
pub const STANDARD_CLASS: &str = "standard";
/// The StorageClass of ext4 file systems of a true size.
pub const LOOP_CLASS: &str = "loop";
/// The StorageClass of volumes that can be snapshotted, and the default VolumeSnapshotClass for them.
pub const SNAPSHOTS_CLASS: &str = "snapshots";
/// The CSI driver of these volumes, and the provisioner of their StorageClass.
pub const SNAPSHOTS_DRIVER: &str = "csi.testbed.clustereddatabase.io";
/// What the other classes name as their provisioner.
const PROVISIONER: &str = "testbed.clustereddatabase.io/volumes";

/// Interval of checks for something that takes seconds.
const POLL: Duration = Duration::from_millis(100);

/// How long the API server may take to start: it takes 3 s on an idle machine.
const API_LIMIT: Duration = NODES_LIMIT;

/// How long nodes may take to become Ready: they take 2 s on an idle machine, and minutes on one that others use as well.
const NODES_LIMIT: Duration = Duration::from_secs(240);

/// A client for the kubeconfig at `path`.
///
/// # Errors
/// When the file cannot be used.
pub async fn client(path: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(path).with_context(|| format!("read {}", path.display()))?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("use {}", path.display()))?;
    // The API server is on this machine, so one that does not answer is stopped or cut off. Watches are ended and
    // restarted at this bound as well.
    config.connect_timeout = Some(Duration::from_secs(5));
    Client::try_from(config).context("make a Kubernetes client")
}

/// Whether the API server reports within `limit` that it is ready.
pub async fn is_ready(client: &Client, limit: Duration) -> bool {
    let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else {
        return false;
    };
    tokio::time::timeout(limit, client.request_text(request))
        .await
        .is_ok_and(|answer| answer.is_ok())
}

/// Waits until the API server is ready.
///
/// # Errors
/// When it is not within 4 min; `check` may say earlier what is wrong.
pub async fn wait_api(client: &Client, check: impl Fn() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + API_LIMIT;
    while !is_ready(client, Duration::from_secs(2)).await {
        check()?;
        ensure!(
            Instant::now() < deadline,
            "the API server is not ready after {} s",
            API_LIMIT.as_secs()
        );
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Waits until `nodes` are Ready.
///
/// # Errors
/// When they are not within 4 min; `check` may say earlier what is wrong.
pub async fn wait_nodes(client: &Client, nodes: &[String], check: impl Fn() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + NODES_LIMIT;
    loop {
        let readiness = node_readiness(client).await.unwrap_or_default();
        let missing: Vec<&str> = nodes
            .iter()
            .filter(|n| readiness.get(*n) != Some(&true))
            .map(String::as_str)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        check()?;
        ensure!(
            Instant::now() < deadline,
            "not Ready after {} s: {}",
            NODES_LIMIT.as_secs(),
            missing.join(", ")
        );
        tokio::time::sleep(POLL).await;
    }
}

/// Waits until a pod can be made in the namespace `default`: the controller
/// manager has then made that namespace's service account, as it will others'.
///
/// # Errors
/// When there is none within 4 min; `check` may say earlier what is wrong.
pub async fn wait_controllers(client: &Client, check: impl Fn() -> Result<()>) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    let deadline = Instant::now() + NODES_LIMIT;
    while !accounts.get_opt("default").await.is_ok_and(|found| found.is_some()) {
        check()?;
        ensure!(
            Instant::now() < deadline,
            "the controller manager does nothing after {} s",
            NODES_LIMIT.as_secs()
        );
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Waits until the name server at `host` answers; it listens once it knows the
/// cluster's services.
///
/// # Errors
/// When it does not within 4 min; `check` may say earlier what is wrong.
pub async fn wait_dns(host: Ipv4Addr, check: impl Fn() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + NODES_LIMIT;
    while tokio::net::TcpStream::connect((host, 53)).await.is_err() {
        check()?;
        ensure!(
            Instant::now() < deadline,
            "the name server does not listen after {} s",
            NODES_LIMIT.as_secs()
        );
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Whether each node is Ready.
///
/// # Errors
/// When the API server does not answer within 5 s.
pub async fn node_readiness(client: &Client) -> Result<BTreeMap<String, bool>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let params = ListParams::default();
    let listed = tokio::time::timeout(Duration::from_secs(5), nodes.list(&params)).await;
    let listed = listed.context("list nodes: no answer in 5 s")?.context("list nodes")?;
    let ready = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    };
    Ok(listed
        .items
        .iter()
        .map(|n| (n.metadata.name.clone().unwrap_or_default(), ready(n)))
        .collect())
}

/// Makes the objects that every testbed has. `crds` are definitions in YAML.
///
/// # Errors
/// When the API server refuses one.
pub async fn create_objects(client: &Client, crds: Vec<String>) -> Result<()> {
    for crd in crds {
        post(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
            .await
            .context("make a CustomResourceDefinition")?;
    }
    let classes: Api<StorageClass> = Api::all(client.clone());
    for class in [
        storage_class(STANDARD_CLASS, PROVISIONER, "directory", true),
        storage_class(LOOP_CLASS, PROVISIONER, "loop", false),
        storage_class(SNAPSHOTS_CLASS, SNAPSHOTS_DRIVER, "directory", false),
    ] {
        create(&classes, &class).await?;
    }
    create(&Api::all(client.clone()), &snapshots_driver()).await?;
    create(&Api::all(client.clone()), &proxy_binding()).await
}

/// Makes the default VolumeSnapshotClass once the API server serves such objects.
///
/// # Errors
/// When it does not within 4 min; `check` may say earlier what is wrong.
pub async fn create_snapshot_class(client: &Client, check: impl Fn() -> Result<()>) -> Result<()> {
    let class = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotClass",
        "metadata": {
            "name": SNAPSHOTS_CLASS,
            "annotations": {"snapshot.storage.kubernetes.io/is-default-class": "true"},
        },
        "driver": SNAPSHOTS_DRIVER,
        "deletionPolicy": "Delete",
    });
    let deadline = Instant::now() + NODES_LIMIT;
    let path = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses";
    while let Err(error) = post(client, path, class.to_string()).await {
        check()?;
        if Instant::now() > deadline {
            return Err(error).context("make the VolumeSnapshotClass");
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Posts a manifest in YAML, or in JSON, which is YAML.
async fn post(client: &Client, path: &str, manifest: String) -> Result<()> {
    let request = http::Request::post(path)
        .header("content-type", "application/yaml")
        .body(manifest.into_bytes())?;
    client.request_text(request).await?;
    Ok(())
}

async fn create<K>(api: &Api<K>, object: &K) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    match api.create(&PostParams::default(), object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(error).with_context(|| format!("make {:?}", object.meta().name)),
    }
}

/// A class whose volumes every node reaches, like a disk on a network: so they
/// are made at once, not when a pod is placed.
fn storage_class(name: &str, provisioner: &str, kind: &str, default: bool) -> StorageClass {
    let default = (
        "storageclass.kubernetes.io/is-default-class".to_owned(),
        default.to_string(),
    );
    StorageClass {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some([default].into()),
            ..ObjectMeta::default()
        },
        provisioner: provisioner.to_owned(),
        parameters: Some([("kind".to_owned(), kind.to_owned())].into()),
        allow_volume_expansion: Some(true),
        reclaim_policy: Some("Delete".to_owned()),
        volume_binding_mode: Some("Immediate".to_owned()),
        ..StorageClass::default()
    }
}

/// Volumes of this driver need no attachment to a node. The kubelet sets their group, as with any disk.
fn snapshots_driver() -> CSIDriver {
    CSIDriver {
        metadata: ObjectMeta {
            name: Some(SNAPSHOTS_DRIVER.to_owned()),
            ..ObjectMeta::default()
        },
        spec: CSIDriverSpec {
            attach_required: Some(false),
            fs_group_policy: Some("File".to_owned()),
            ..CSIDriverSpec::default()
        },
    }
}

/// kube-proxy's user has a role made for it, but no binding between the two.
fn proxy_binding() -> ClusterRoleBinding {
    let group = "rbac.authorization.k8s.io".to_owned();
    ClusterRoleBinding {
        metadata: ObjectMeta {
            name: Some("testbed:kube-proxy".to_owned()),
            ..ObjectMeta::default()
        },
        role_ref: RoleRef {
            api_group: group.clone(),
            kind: "ClusterRole".to_owned(),
            name: "system:node-proxier".to_owned(),
        },
        subjects: Some(vec![Subject {
            api_group: Some(group),
            kind: "User".to_owned(),
            name: "system:kube-proxy".to_owned(),
            namespace: None,
        }]),
    }
}
