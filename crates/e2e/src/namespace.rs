//! A namespace for one test, and the databases in it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::backup::{BackupKind, BackupSource, DatabaseBackupSpec, StoredBackup};
use api::declared::{DeclaredPhase, DeclaredStatus};
use api::operation::{Action, ClusterReference, ClusteredDatabaseOperationSpec, OperationPhase};
use api::{ClusteredDatabase, ClusteredDatabaseOperation, Database, DatabaseBackup, DatabaseUser, Phase};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace as KubeNamespace, PersistentVolumeClaim, Pod, Secret};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::wait::{Seen, until};

/// Longest time that the removal of a namespace with databases may take.
const REMOVAL: Duration = Duration::from_secs(300);

/// A namespace, restricted by Pod Security, and a client.
#[derive(Clone)]
pub struct Namespace {
    /// The client.
    pub client: Client,
    /// The namespace's name.
    pub name: String,
}

impl Namespace {
    /// Makes the namespace; one that is left from an earlier run is removed first.
    ///
    /// # Errors
    /// When the API server refuses, or an old namespace does not go away.
    pub async fn fresh(client: Client, name: &str) -> Result<Self> {
        let this = Self {
            client,
            name: name.to_owned(),
        };
        this.remove().await?;
        let labels = BTreeMap::from([("pod-security.kubernetes.io/enforce".to_owned(), "restricted".to_owned())]);
        let namespace = KubeNamespace {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            ..KubeNamespace::default()
        };
        let api: Api<KubeNamespace> = Api::all(this.client.clone());
        api.create(&PostParams::default(), &namespace)
            .await
            .context("make the namespace")?;
        Ok(this)
    }

    /// Removes the namespace and all in it.
    ///
    /// # Errors
    /// When it is still there after five minutes.
    pub async fn remove(&self) -> Result<()> {
        self.begin_removal().await?;
        let api: Api<KubeNamespace> = Api::all(self.client.clone());
        until(&format!("removal of namespace {}", self.name), REMOVAL, || async {
            Ok(match api.get_opt(&self.name).await? {
                None => Seen::Yes(()),
                Some(left) => Seen::NotYet(format!("{:?}", left.status.and_then(|status| status.conditions))),
            })
        })
        .await?;
        Ok(())
    }

    /// Requests the removal of the namespace with its content, if it exists. It ends while the next test runs;
    /// [`wait_removals`] verifies that.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn begin_removal(&self) -> Result<()> {
        let api: Api<KubeNamespace> = Api::all(self.client.clone());
        match api.delete(&self.name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error).context("delete the namespace"),
        }
    }

    /// The API of a namespaced kind in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Makes a database with this spec.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn create(&self, name: &str, spec: Value) -> Result<ClusteredDatabase> {
        let resource = json!({
            "apiVersion": api::names::API_VERSION,
            "kind": "ClusteredDatabase",
            "metadata": {"name": name},
            "spec": spec,
        });
        let resource: ClusteredDatabase = serde_json::from_value(resource).context("read the spec")?;
        let api: Api<ClusteredDatabase> = self.api();
        api.create(&PostParams::default(), &resource)
            .await
            .with_context(|| format!("create database {name}"))
    }

    /// Changes a database by a merge patch of its spec.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn change(&self, name: &str, spec: Value) -> Result<ClusteredDatabase> {
        let api: Api<ClusteredDatabase> = self.api();
        let patch = Patch::Merge(json!({"spec": spec}));
        api.patch(name, &PatchParams::default(), &patch)
            .await
            .with_context(|| format!("change database {name}"))
    }

    /// Makes an operation on a database.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn ask(&self, database: &str, operation: &str, action: Action) -> Result<()> {
        let spec = ClusteredDatabaseOperationSpec {
            cluster_ref: ClusterReference {
                name: database.to_owned(),
            },
            actions: action.into(),
            cancel: false,
        };
        let resource = ClusteredDatabaseOperation::new(operation, spec);
        let api = self.api::<ClusteredDatabaseOperation>();
        let made = api.create(&PostParams::default(), &resource).await;
        made.with_context(|| format!("create operation {operation}"))?;
        Ok(())
    }

    /// Waits until an operation is in `phase`; returns its message.
    ///
    /// # Errors
    /// After `limit`, and when it has ended in another phase.
    pub async fn wait_operation(&self, name: &str, phase: OperationPhase, limit: Duration) -> Result<String> {
        let (message, _) = until(&format!("operation {name} to be {phase:?}"), limit, || async {
            let operation = self.api::<ClusteredDatabaseOperation>().get(name).await?;
            let status = operation.status.unwrap_or_default();
            if status.phase == Some(phase) {
                return Ok(Seen::Yes(status.message.unwrap_or_default()));
            }
            ensure!(
                !status.phase.is_some_and(OperationPhase::is_final),
                "it has ended: {status:?}"
            );
            Ok(Seen::NotYet(format!("{status:?}")))
        })
        .await?;
        Ok(message)
    }

    /// Asks for a full backup of a database, of a standby if there is one.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn back_up(&self, database: &str, backup: &str) -> Result<()> {
        self.back_up_as(database, backup, BackupKind::Full).await
    }

    /// Asks for a backup of this kind.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn back_up_as(&self, database: &str, backup: &str, kind: BackupKind) -> Result<()> {
        let spec = DatabaseBackupSpec {
            cluster_ref: ClusterReference {
                name: database.to_owned(),
            },
            kind,
            source: BackupSource::PreferStandby,
        };
        let resource = DatabaseBackup::new(backup, spec);
        let made = self.api().create(&PostParams::default(), &resource).await;
        made.with_context(|| format!("create backup {backup}"))?;
        Ok(())
    }

    /// Waits until a backup is `Completed`; returns what is in the store, and the time that took.
    ///
    /// # Errors
    /// After `limit`, and when it has failed.
    pub async fn wait_backup(&self, name: &str, limit: Duration) -> Result<(StoredBackup, Duration)> {
        until(&format!("backup {name} to be completed"), limit, || async {
            let status = self.api::<DatabaseBackup>().get(name).await?.status.unwrap_or_default();
            if let (Some(OperationPhase::Completed), Some(backup)) = (status.operation.phase, &status.backup) {
                return Ok(Seen::Yes(backup.clone()));
            }
            ensure!(
                !status.operation.phase.is_some_and(OperationPhase::is_final),
                "it has ended: {status:?}"
            );
            Ok(Seen::NotYet(format!("{status:?}")))
        })
        .await
    }

    /// Makes a user of a database.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn declare_user(&self, database: &str, name: &str, spec: Value) -> Result<DatabaseUser> {
        let mut spec = spec;
        spec["clusterRef"] = json!({ "name": database });
        let resource = DatabaseUser::new(name, serde_json::from_value(spec).context("read the spec")?);
        let made = self.api().create(&PostParams::default(), &resource).await;
        made.with_context(|| format!("create user {name}"))
    }

    /// Changes a user by a merge patch of its spec.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn change_user(&self, name: &str, spec: Value) -> Result<DatabaseUser> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let changed = self.api().patch(name, &PatchParams::default(), &patch).await;
        changed.with_context(|| format!("change user {name}"))
    }

    /// Waits until a user is in `phase` at its newest generation; returns it and the time that took.
    ///
    /// # Errors
    /// After `limit`, with what the status says.
    pub async fn wait_user(
        &self,
        name: &str,
        phase: DeclaredPhase,
        limit: Duration,
    ) -> Result<(DatabaseUser, Duration)> {
        self.wait_declared(name, phase, limit, |user: &DatabaseUser| {
            Some(&user.status.as_ref()?.declared)
        })
        .await
    }

    /// Waits until an SQL database is in `phase` at its newest generation; returns it and the time that took.
    ///
    /// # Errors
    /// After `limit`, with what the status says.
    pub async fn wait_database(
        &self,
        name: &str,
        phase: DeclaredPhase,
        limit: Duration,
    ) -> Result<(Database, Duration)> {
        self.wait_declared(name, phase, limit, |database: &Database| {
            Some(&database.status.as_ref()?.declared)
        })
        .await
    }

    /// Waits until an object that declares something is in `phase` at its newest generation; returns it and the time that took.
    ///
    /// # Errors
    /// After `limit`, with what the status says.
    pub async fn wait_declared<K>(
        &self,
        name: &str,
        phase: DeclaredPhase,
        limit: Duration,
        status: fn(&K) -> Option<&DeclaredStatus>,
    ) -> Result<(K, Duration)>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        until(&format!("{} {name} to be {phase:?}", K::kind(&())), limit, || async {
            let object: K = self.api().get(name).await?;
            let status = status(&object);
            let is_current = status.is_some_and(|status| {
                status.observed_generation == object.meta().generation && status.phase == Some(phase)
            });
            Ok(match is_current {
                true => Seen::Yes(object.clone()),
                false => Seen::NotYet(format!("{status:?}")),
            })
        })
        .await
    }

    /// Waits until a user is gone; returns the time that took.
    ///
    /// # Errors
    /// After `limit`, with what the status says.
    pub async fn wait_user_gone(&self, name: &str, limit: Duration) -> Result<Duration> {
        let ((), took) = until(&format!("user {name} to be gone"), limit, || async {
            let user = self.api::<DatabaseUser>().get_opt(name).await?;
            Ok(match user {
                None => Seen::Yes(()),
                Some(user) => Seen::NotYet(format!("{:?}", user.status)),
            })
        })
        .await?;
        Ok(took)
    }

    /// The text under a key of a Secret.
    ///
    /// # Errors
    /// When it cannot be read, or there is none.
    pub async fn secret_text(&self, name: &str, key: &str) -> Result<String> {
        let secret = self
            .api::<Secret>()
            .get(name)
            .await
            .with_context(|| format!("read Secret {name}"))?;
        let text = secret.data.and_then(|mut data| data.remove(key));
        let text = text.with_context(|| format!("Secret {name} has no key {key}"))?;
        String::from_utf8(text.0).context("a text")
    }

    /// The database as it is now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn get(&self, name: &str) -> Result<ClusteredDatabase> {
        let api: Api<ClusteredDatabase> = self.api();
        api.get(name).await.with_context(|| format!("read database {name}"))
    }

    /// Waits until the database is `Ready` at its newest generation; returns it and the time that took.
    ///
    /// # Errors
    /// After `limit`, with what the status says and the pods' state.
    pub async fn wait_ready(&self, name: &str, limit: Duration) -> Result<(ClusteredDatabase, Duration)> {
        self.wait_phase(name, Phase::Ready, limit).await
    }

    /// Waits until the database is in `phase` at its newest generation.
    ///
    /// # Errors
    /// After `limit`, with what the status says and the pods' state.
    pub async fn wait_phase(&self, name: &str, phase: Phase, limit: Duration) -> Result<(ClusteredDatabase, Duration)> {
        let waited = until(&format!("{name} to be {phase}"), limit, || async {
            let database = self.get(name).await?;
            let status = database.status.clone().unwrap_or_default();
            let current = status.observed_generation == database.metadata.generation;
            Ok(if status.phase == Some(phase) && current {
                Seen::Yes(database)
            } else {
                Seen::NotYet(summary(&database))
            })
        })
        .await;
        match waited {
            Ok(done) => Ok(done),
            Err(error) => bail!("{error:#}\n{}", self.describe().await),
        }
    }

    /// Waits until the database is gone.
    ///
    /// # Errors
    /// After `limit`, with what the status says.
    pub async fn wait_gone(&self, name: &str, limit: Duration) -> Result<Duration> {
        let api: Api<ClusteredDatabase> = self.api();
        let ((), time) = until(&format!("{name} to be gone"), limit, || async {
            Ok(match api.get_opt(name).await? {
                None => Seen::Yes(()),
                Some(database) => Seen::NotYet(summary(&database)),
            })
        })
        .await?;
        Ok(time)
    }

    /// True if the lease of a database is held by the pod that has this name now. A pod that was deleted with force may
    /// continue to serve for a moment.
    ///
    /// # Errors
    /// When pod or Lease cannot be read.
    pub async fn is_held_by(&self, database: &str, pod: &str) -> Result<bool> {
        let uid = self.api::<Pod>().get(pod).await?.uid().context("a pod has a UID")?;
        let holder = self.holder(database).await?;
        Ok(holder.is_some_and(|holder| holder.contains(&uid)))
    }

    /// The holder of a database's lease (`pod/podUID/run/member`), if there is one.
    ///
    /// # Errors
    /// When the Lease cannot be read.
    pub async fn holder(&self, database: &str) -> Result<Option<String>> {
        let lease = self.api::<Lease>().get(database).await.context("read the Lease")?;
        Ok(lease.spec.and_then(|spec| spec.holder_identity))
    }

    /// The holder of a database's lease, and how often the lease was taken until now.
    ///
    /// # Errors
    /// If the Lease cannot be read, or has no holder.
    pub async fn reign(&self, database: &str) -> Result<(String, i32)> {
        let lease = self.api::<Lease>().get(database).await.context("read the Lease")?;
        let spec = lease.spec.unwrap_or_default();
        let record = lease.metadata.annotations.unwrap_or_default();
        let holder = spec.holder_identity;
        let holder = holder.with_context(|| format!("the lease has no holder: {record:?}"))?;
        Ok((holder, spec.lease_transitions.unwrap_or(0)))
    }

    /// Waits until the lease of a database is held by the pod that has this name now.
    ///
    /// # Errors
    /// After `limit`.
    pub async fn wait_held_by_new_pod(&self, database: &str, pod: &str, limit: Duration) -> Result<()> {
        until(&format!("the new pod {pod} to hold the lease"), limit, || async {
            let held = self.is_held_by(database, pod).await?;
            Ok(if held {
                Seen::Yes(())
            } else {
                Seen::NotYet("another holder".to_owned())
            })
        })
        .await?;
        Ok(())
    }

    /// Names and UIDs of the pods of a database.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn pod_uids(&self, database: &str) -> Result<BTreeMap<String, String>> {
        let pods = self
            .api::<Pod>()
            .list(&members(database))
            .await
            .context("list the pods")?;
        Ok(pods
            .into_iter()
            .map(|pod| (pod.name_any(), pod.uid().unwrap_or_default()))
            .collect())
    }

    /// Names and UIDs of the claims of a database.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn claim_uids(&self, database: &str) -> Result<BTreeMap<String, String>> {
        let claims = self
            .api::<PersistentVolumeClaim>()
            .list(&members(database))
            .await
            .context("list the claims")?;
        Ok(claims
            .into_iter()
            .map(|claim| (claim.name_any(), claim.uid().unwrap_or_default()))
            .collect())
    }

    /// What a person would check first if something hangs: pods, and the newest events.
    pub async fn describe(&self) -> String {
        let mut text = String::new();
        if let Ok(pods) = self.api::<Pod>().list(&ListParams::default()).await {
            for pod in pods {
                let status = pod.status.clone().unwrap_or_default();
                let states: Vec<String> = status
                    .container_statuses
                    .unwrap_or_default()
                    .into_iter()
                    .map(|container| {
                        format!(
                            "{} ready={} restarts={}",
                            container.name, container.ready, container.restart_count
                        )
                    })
                    .collect();
                let phase = status.phase.unwrap_or_default();
                text.push_str(&format!("pod {} {phase} [{}]\n", pod.name_any(), states.join(", ")));
            }
        }
        if let Ok(events) = self.api::<Event>().list(&ListParams::default()).await {
            for event in events
                .into_iter()
                .filter(|event| event.type_.as_deref() == Some("Warning"))
            {
                let object = event.involved_object.name.unwrap_or_default();
                text.push_str(&format!("event {object}: {}\n", event.message.unwrap_or_default()));
            }
        }
        text
    }
}

/// Waits until no namespace is being removed any more.
///
/// # Errors
/// When one is still there after five minutes, with what the API server says of it.
pub async fn wait_removals(client: &Client) -> Result<Duration> {
    let api: Api<KubeNamespace> = Api::all(client.clone());
    let ((), time) = until("namespaces to be removed", REMOVAL, || async {
        let all = api.list(&ListParams::default()).await?;
        let going = all
            .into_iter()
            .filter(|namespace| namespace.metadata.deletion_timestamp.is_some());
        let left: Vec<String> = going
            .map(|namespace| {
                let conditions = namespace.status.clone().and_then(|status| status.conditions);
                format!("{}: {conditions:?}", namespace.name_any())
            })
            .collect();
        Ok(if left.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(left.join("; "))
        })
    })
    .await?;
    Ok(time)
}

/// Selects what belongs to a database.
#[must_use]
pub fn members(database: &str) -> ListParams {
    ListParams::default().labels(&format!("{}={database}", api::names::LABEL_CLUSTER))
}

/// One line about a database: what `kubectl get` shows, and what it waits for.
#[must_use]
pub fn summary(database: &ClusteredDatabase) -> String {
    let status = database.status.clone().unwrap_or_default();
    let mut text = format!(
        "phase {} step {} ready {} primary {}",
        status.phase.map_or("-", Phase::as_str),
        status.step.as_deref().unwrap_or("-"),
        status.ready,
        status.current_primary.as_deref().unwrap_or("-"),
    );
    if let Some(waiting) = status.waiting {
        text.push_str(&format!(", waiting for {}", waiting.what));
    }
    if let Some(failure) = status.failure {
        text.push_str(&format!(", {:?}: {}", failure.reason, failure.message));
    }
    text
}
