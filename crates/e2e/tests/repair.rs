//! End-to-end: objects of a database that are deleted or edited by hand.

mod common;

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::namespace::summary;
use e2e::wait::{Seen, until};
use e2e::{Namespace, SqlClient, connect_for_test};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::POSTGRES_IMAGE;

/// Bound of every step; far above what it takes, since the machine may be busy.
const BOUND: Duration = Duration::from_secs(180);
/// Bound of the repair of one object.
const REPAIR: Duration = Duration::from_secs(30);

trait Object:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize
{
}

impl<K> Object for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize
{
}

/// A database of two, with a client that has written a table.
async fn ready(name: &str) -> Result<(Namespace, SqlClient)> {
    let namespace = Namespace::fresh(connect_for_test().await?, name).await?;
    namespace
        .create("db", json!({"replicas": 2, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int); INSERT INTO t SELECT generate_series(1, 100)")
        .await?;
    Ok((namespace, sql))
}

fn comparable<K: Object>(object: &K) -> Result<Value> {
    Ok(common::comparable(&K::kind(&()), serde_json::to_value(object)?))
}

/// Deletes an object, and waits until there is one of that name again, with the same content.
async fn deleted<K: Object>(namespace: &Namespace, name: &str) -> Result<()> {
    let api = namespace.api::<K>();
    let before = api.get(name).await?;
    api.delete(name, &DeleteParams::default()).await?;
    let what = format!("{} {name} to be made again", K::kind(&()));
    let ((), took) = until(&what, REPAIR, || async {
        let now = api.get(name).await?;
        Ok(if now.uid() == before.uid() {
            Seen::NotYet("the old one".to_owned())
        } else if comparable(&now)? != comparable(&before)? {
            Seen::NotYet(format!("{}", comparable(&now)?))
        } else {
            Seen::Yes(())
        })
    })
    .await?;
    println!("{what}: {:.1} s", took.as_secs_f64());
    Ok(())
}

/// Edits an object, and waits until the edit is undone in the same object.
async fn edited<K: Object>(namespace: &Namespace, name: &str, edit: Value) -> Result<()> {
    let api = namespace.api::<K>();
    let before = api.get(name).await?;
    let after = api.patch(name, &PatchParams::default(), &Patch::Merge(edit)).await?;
    ensure!(
        comparable(&after)? != comparable(&before)?,
        "the edit of {name} changes nothing"
    );
    let what = format!("{} {name} to be corrected", K::kind(&()));
    let ((), took) = until(&what, REPAIR, || async {
        let now = api.get(name).await?;
        ensure!(now.uid() == before.uid(), "it was made again");
        Ok(if comparable(&now)? == comparable(&before)? {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{}", comparable(&now)?))
        })
    })
    .await?;
    println!("{what}: {:.1} s", took.as_secs_f64());
    Ok(())
}

async fn still_serves(namespace: &Namespace, sql: &SqlClient) -> Result<()> {
    namespace.wait_ready("db", BOUND).await?;
    until("the rows through -rw", BOUND, || async {
        let rows = sql.sql("SELECT count(*) FROM t").await?;
        Ok(if rows == "100" {
            Seen::Yes(())
        } else {
            Seen::NotYet(rows)
        })
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn objects_that_are_deleted_are_made_again_and_no_pod_restarts() -> Result<()> {
    let (namespace, sql) = ready("e2e-repair-deleted").await?;
    let pods = namespace.pod_uids("db").await?;
    deleted::<Secret>(&namespace, "db-tls").await?;
    deleted::<EndpointSlice>(&namespace, "db-rw").await?;
    deleted::<PodDisruptionBudget>(&namespace, "db").await?;
    deleted::<RoleBinding>(&namespace, "db").await?;
    deleted::<Role>(&namespace, "db").await?;
    orphaned(&namespace).await?;
    still_serves(&namespace, &sql).await?;
    ensure!(namespace.pod_uids("db").await? == pods, "a pod was replaced");
    namespace.begin_removal().await
}

/// Deletes the StatefulSet and leaves its pods, and waits until it is made again.
async fn orphaned(namespace: &Namespace) -> Result<()> {
    let sets = namespace.api::<StatefulSet>();
    let before = sets.get("db").await?.uid();
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    sets.delete("db", &parameters).await?;
    until("the StatefulSet to be made again", REPAIR, || async {
        let now = sets.get_opt("db").await?.and_then(|set| set.uid());
        Ok(match now {
            Some(_) if now != before => Seen::Yes(()),
            now => Seen::NotYet(format!("{now:?}")),
        })
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn edited_objects_are_corrected() -> Result<()> {
    let (namespace, sql) = ready("e2e-repair-edited").await?;
    let pods = namespace.pod_uids("db").await?;
    let label = json!({"metadata": {"labels": {"app.kubernetes.io/name": "other"}}});
    let hidden = json!({"metadata": {"labels": {"clustereddatabase.io/cluster": null}}});
    edited::<Role>(&namespace, "db", json!({"rules": []})).await?;
    edited::<RoleBinding>(&namespace, "db", json!({"subjects": []})).await?;
    edited::<ServiceAccount>(&namespace, "db", label.clone()).await?;
    edited::<PodDisruptionBudget>(
        &namespace,
        "db",
        json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
    )
    .await?;
    edited::<EndpointSlice>(&namespace, "db-rw", label.clone()).await?;
    edited::<EndpointSlice>(&namespace, "db-rw", hidden.clone()).await?;
    edited::<Secret>(&namespace, "db-app", label).await?;
    edited::<Secret>(&namespace, "db-ca", hidden).await?;
    rebound(&namespace).await?;
    emptied(&namespace).await?;
    still_serves(&namespace, &sql).await?;
    ensure!(namespace.pod_uids("db").await? == pods, "a pod was replaced");
    namespace.begin_removal().await
}

/// A binding to another role: its role cannot be edited, so the binding is made again.
async fn rebound(namespace: &Namespace) -> Result<()> {
    let bindings = namespace.api::<RoleBinding>();
    let ours = bindings.get("db").await?;
    let mut other = ours.clone();
    (other.metadata.uid, other.metadata.resource_version) = (None, None);
    other.metadata.managed_fields = None;
    other.role_ref.name = "other".to_owned();
    // The operator may be faster in making its own again.
    until("the other binding to be made", REPAIR, || async {
        bindings.delete("db", &DeleteParams::default()).await?;
        bindings.create(&PostParams::default(), &other).await?;
        Ok(Seen::Yes(()))
    })
    .await?;
    until("the binding to name our role", REPAIR, || async {
        let now = bindings.get("db").await?.role_ref;
        Ok(if now == ours.role_ref {
            Seen::Yes(())
        } else {
            Seen::NotYet(now.name)
        })
    })
    .await?;
    Ok(())
}

/// Secrets whose content is removed.
async fn emptied(namespace: &Namespace) -> Result<()> {
    let secrets = namespace.api::<Secret>();
    let empty = |keys: &[&str]| {
        let keys: serde_json::Map<_, _> = keys.iter().map(|key| ((*key).to_owned(), json!(""))).collect();
        Patch::Merge(json!({"data": keys}))
    };
    let parameters = PatchParams::default();
    let app = secrets.get("db-app").await?;
    secrets
        .patch("db-tls", &parameters, &empty(&["tls.crt", "tls.key"]))
        .await?;
    secrets.patch("db-app", &parameters, &empty(&["uri", "host"])).await?;
    until("the content to be back", REPAIR, || async {
        let tls = secrets.get("db-tls").await?.data.unwrap_or_default();
        let whole = tls.values().all(|value| !value.0.is_empty());
        let same = secrets.get("db-app").await?.data == app.data;
        Ok(if whole && same {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("certificate {whole}, credentials {same}"))
        })
    })
    .await?;

    secrets.patch("db-app", &parameters, &empty(&["password"])).await?;
    let (failed, _) = namespace.wait_phase("db", api::Phase::Failed, REPAIR).await?;
    ensure!(summary(&failed).contains("db-app"), "{}", summary(&failed));
    let data = serde_json::to_value(&app.data)?;
    secrets
        .patch("db-app", &parameters, &Patch::Merge(json!({"data": data})))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    Ok(())
}

/// Deletes the agents' ServiceAccount, and waits until the primary has not renewed its lease for longer than it lasts.
async fn forget_agents(namespace: &Namespace) -> Result<()> {
    namespace
        .api::<ServiceAccount>()
        .delete("db", &DeleteParams::default())
        .await?;
    let leases = namespace.api::<Lease>();
    until("the Lease not to be renewed", BOUND, || async {
        let spec = leases.get("db").await?.spec.context("a spec")?;
        let renewed = spec.renew_time.context("a renew time")?.0;
        let age = Timestamp::now().duration_since(renewed).as_secs();
        Ok(if age > 15 {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("renewed {age} s ago"))
        })
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_deleted_service_account_costs_its_pods_and_no_row() -> Result<()> {
    let (namespace, sql) = ready("e2e-repair-account").await?;
    let before = namespace.pod_uids("db").await?;
    // Without an operator that makes it again, the API server rejects the agents: the primary can write nothing, and serves by
    // the standby's promise.
    let operators = e2e::install::scale(&namespace.client, 0).await?;
    let forgotten = forget_agents(&namespace).await;
    e2e::install::scale(&namespace.client, operators).await?;
    forgotten?;
    let ((), took) = until("all pods to be replaced", BOUND, || async {
        let now = namespace.pod_uids("db").await?;
        let replaced = before
            .iter()
            .all(|(pod, uid)| now.get(pod).is_some_and(|other| other != uid));
        Ok(if replaced {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{now:?}"))
        })
    })
    .await?;
    println!("pods with the new identity after {:.1} s", took.as_secs_f64());
    still_serves(&namespace, &sql).await?;
    let status = namespace.get("db").await?.status.context("a status")?;
    ensure!(status.ready == "2/2", "ready is {}", status.ready);
    namespace.begin_removal().await
}
