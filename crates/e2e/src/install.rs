//! Installs the operator as a user would: `manifests/install.yaml`, with the images that the cluster has.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use testbed::{POSTGRES_IMAGE, Testbed};
use tokio::process::Command;

use crate::wait::{Seen, until};
use crate::{Namespace, OPERATOR_BINARY_VARIABLE, OPERATOR_IMAGE_VARIABLE, manifest};

/// Where the manifests put the operator.
pub const NAMESPACE: &str = "clustereddatabase-system";
/// The operator's Deployment.
pub const DEPLOYMENT: &str = "clustereddatabase-operator";

/// The user as which the operator's pods act.
pub const OPERATOR_ACCOUNT: &str = "system:serviceaccount:clustereddatabase-system:clustereddatabase-operator";

/// The images that an installation uses.
#[derive(Clone, Debug)]
pub struct Images {
    /// Operator and agent.
    pub operator: String,
    /// PostgreSQL 17.
    pub postgres: String,
    /// PgBouncer.
    pub pooler: String,
}

impl Images {
    /// The variables of the operator's container that name them.
    fn environment(&self) -> [Value; 3] {
        [
            json!({"name": "POSTGRES_IMAGE_17", "value": self.postgres}),
            json!({"name": "POOLER_IMAGE", "value": self.pooler}),
            json!({"name": "OPERATOR_IMAGE", "value": self.operator}),
        ]
    }
}

/// Applies the checked-in manifests with these images, and waits until the operator serves.
///
/// # Errors
/// When the API server refuses an object, or the operator is not available within two minutes.
pub async fn install(client: &Client, repository: &Path, images: &Images) -> Result<()> {
    let path = repository.join("manifests/install.yaml");
    let yaml = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut objects = manifest::parse(&yaml)?;
    for object in &mut objects {
        set_images(object, images);
    }
    let (definitions, others): (Vec<_>, Vec<_>) = objects.into_iter().partition(is_definition);
    manifest::apply(client, NAMESPACE, &definitions).await?;
    for definition in &definitions {
        wait_established(client, &definition.name_any()).await?;
    }
    manifest::apply(client, NAMESPACE, &others).await?;
    wait_available(client).await
}

fn is_definition(object: &DynamicObject) -> bool {
    object
        .types
        .as_ref()
        .is_some_and(|types| types.kind == "CustomResourceDefinition")
}

/// Sets the image of the operator's container, and in its environment the default images.
fn set_images(object: &mut DynamicObject, images: &Images) {
    if object.types.as_ref().is_none_or(|types| types.kind != "Deployment") {
        return;
    }
    let Some(containers) = object
        .data
        .pointer_mut("/spec/template/spec/containers")
        .and_then(Value::as_array_mut)
    else {
        return;
    };
    for container in containers {
        container["image"] = json!(images.operator);
        let Some(environment) = container.get_mut("env").and_then(Value::as_array_mut) else {
            continue;
        };
        let ours = images.environment();
        environment.retain(|entry| ours.iter().all(|own| own["name"] != entry["name"]));
        environment.extend(ours);
    }
}

/// Scales the operator's Deployment, waits until that is done, and returns how many replicas it had.
///
/// # Errors
/// When it is not done within two minutes.
pub async fn scale(client: &Client, replicas: i32) -> Result<i32> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let before = api.get_scale(DEPLOYMENT).await.context("read the operator's scale")?;
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    api.patch_scale(DEPLOYMENT, &PatchParams::default(), &patch)
        .await
        .context("scale the operator")?;
    if replicas > 0 {
        wait_available(client).await?;
    } else {
        wait_no_pods(client).await?;
    }
    Ok(before.spec.and_then(|spec| spec.replicas).unwrap_or(1))
}

/// Gives the operator's Deployment other images, as an upgrade does, and waits until all its pods run that.
///
/// # Errors
/// When it is not done within two minutes.
pub async fn upgrade(client: &Client, images: &Images) -> Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    // Lists of containers and variables are merged by their names.
    let container = json!({"name": "operator", "image": images.operator, "env": images.environment()});
    let patch = Patch::Strategic(json!({"spec": {"template": {"spec": {"containers": [container]}}}}));
    api.patch(DEPLOYMENT, &PatchParams::default(), &patch)
        .await
        .context("upgrade the operator")?;
    wait_available(client).await
}

async fn wait_no_pods(client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    until("the operator's pods to be gone", Duration::from_secs(120), || async {
        let left = pods.list(&ListParams::default()).await?.items.len();
        Ok(if left == 0 {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{left} pods"))
        })
    })
    .await?;
    Ok(())
}

async fn wait_established(client: &Client, name: &str) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    until(
        "the resource definition to be established",
        Duration::from_secs(30),
        || async {
            let status = api.get(name).await?.status.unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            let established = conditions
                .iter()
                .any(|c| c.type_ == "Established" && c.status == "True");
            Ok(if established {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{conditions:?}"))
            })
        },
    )
    .await?;
    Ok(())
}

async fn wait_available(client: &Client) -> Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    until("the operator to be available", Duration::from_secs(120), || async {
        let deployment = api.get(DEPLOYMENT).await?;
        let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let generation = deployment.metadata.generation;
        let status = deployment.status.unwrap_or_default();
        let updated = status.updated_replicas.unwrap_or(0) == wanted && status.replicas == Some(wanted);
        let done = status.observed_generation == generation && updated && status.available_replicas == Some(wanted);
        Ok(if done {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!(
                "{} of {wanted} available",
                status.available_replicas.unwrap_or(0)
            ))
        })
    })
    .await?;
    Ok(())
}

/// Runs the operator's binary on this machine for one namespace, with the order to end itself (as if killed) right after `writes` writes. Returns
/// whether it did so within `limit`; if it had nothing to write, it is ended.
///
/// # Errors
/// When the binary is missing or cannot be started.
pub async fn run_operator_until_it_has_written(
    testbed: &Testbed,
    namespace: &Namespace,
    writes: u32,
    limit: Duration,
) -> Result<bool> {
    let binary = std::env::var(OPERATOR_BINARY_VARIABLE).with_context(|| {
        format!("{OPERATOR_BINARY_VARIABLE} is not set: run the end-to-end tests by `cargo xtask test`")
    })?;
    let image = std::env::var(OPERATOR_IMAGE_VARIABLE).with_context(|| format!("read {OPERATOR_IMAGE_VARIABLE}"))?;
    let mut operator = Command::new(binary)
        .arg("--no-leader-election")
        .env("KUBECONFIG", testbed.kubeconfig_path())
        .env("OPERATOR_IMAGE", image)
        .env("POSTGRES_IMAGE_17", POSTGRES_IMAGE)
        .env("WATCH_NAMESPACE", &namespace.name)
        .env("CDB_CRASH_AFTER_WRITES", writes.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("start the operator")?;
    match tokio::time::timeout(limit, operator.wait()).await {
        Ok(status) => {
            let status = status.context("await the operator")?;
            anyhow::ensure!(status.signal().is_some(), "the operator ended by itself: {status}");
            Ok(true)
        }
        Err(_) => {
            operator.kill().await.context("end the operator")?;
            Ok(false)
        }
    }
}
