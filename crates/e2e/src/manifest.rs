//! Applies YAML as `kubectl apply --server-side` does.

use anyhow::{Context, Result};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Client, ResourceExt};

/// The objects of a file with one or more YAML documents.
///
/// # Errors
/// When a document is no Kubernetes object.
pub fn parse(yaml: &str) -> Result<Vec<DynamicObject>> {
    yaml.split("\n---")
        .map(|document| document.trim_start_matches('-').trim())
        .filter(|document| {
            document
                .lines()
                .any(|line| !line.trim().is_empty() && !line.starts_with('#'))
        })
        .map(|document| {
            let value: serde_json::Value = serde_saphyr::from_str(document).context("parse YAML")?;
            serde_json::from_value(value).context("read a Kubernetes object")
        })
        .collect()
}

/// Applies the objects in their order; namespaced ones without a namespace go to `namespace`.
///
/// # Errors
/// When the API server refuses one; the error is the server's own.
pub async fn apply(client: &Client, namespace: &str, objects: &[DynamicObject]) -> Result<()> {
    for object in objects {
        apply_one(client, namespace, object, &PatchParams::apply("cdb-e2e").force()).await?;
    }
    Ok(())
}

/// Applies one object with these parameters.
///
/// # Errors
/// When the API server refuses it; the error is the server's own.
pub async fn apply_one(
    client: &Client,
    namespace: &str,
    object: &DynamicObject,
    parameters: &PatchParams,
) -> Result<DynamicObject> {
    let api = api_of(client, namespace, object).await?;
    let name = object.name_any();
    Ok(api.patch(&name, parameters, &Patch::Apply(object)).await?)
}

async fn api_of(client: &Client, namespace: &str, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let types = object.types.clone().context("an object without apiVersion and kind")?;
    let kind = GroupVersionKind::try_from(types).context("read apiVersion and kind")?;
    let (resource, scope): (ApiResource, Scope) = match pinned_kind(client, &kind).await {
        Ok((resource, capabilities)) => (resource, capabilities.scope),
        Err(error) => return Err(error).with_context(|| format!("find kind {}", kind.kind)),
    };
    Ok(match scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = object.namespace().unwrap_or_else(|| namespace.to_owned());
            Api::namespaced_with(client.clone(), &namespace, &resource)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_split_and_comments_skipped() {
        let objects = parse("# a comment\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: b}\n").unwrap();
        let names: Vec<_> = objects.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
