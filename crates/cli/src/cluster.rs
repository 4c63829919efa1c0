//! A database from a cluster. This program never reads Secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use api::names::{CONTAINER, LABEL_CLUSTER, Names};
use api::{ClusteredDatabase, ClusteredDatabaseOperation, DatabaseBackup, Guarded};
use chrono::{SubsecRound, Utc};
use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams, DynamicObject, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::ApiResource;
use kube::{Client, Config};
use machine::cluster::OwnedObject;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::snapshot::{self, Snapshot, kinds};

/// The label of the operator's pods in its manifests.
pub const OPERATOR: &str = "app.kubernetes.io/name=clustereddatabase-operator";

/// The cluster and its namespace, by kubectl's flags.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Place {
    /// Namespace of the database; the context's if absent.
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
    /// Context of the kubeconfig; the current one if absent.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// The kubeconfig; `$KUBECONFIG` or `~/.kube/config` if absent.
    #[arg(long, global = true)]
    pub kubeconfig: Option<PathBuf>,
}

/// A cluster.
#[derive(Clone)]
pub struct Cluster {
    /// Its client.
    pub client: Client,
    /// The chosen namespace.
    pub namespace: String,
}

impl Cluster {
    /// The cluster that the user chose.
    ///
    /// # Errors
    /// If there is no kubeconfig, or it does not name a cluster.
    pub async fn connect(place: &Place) -> Result<Self> {
        let file = match &place.kubeconfig {
            Some(path) if !path.exists() => {
                bail!(
                    "there is no file {}: name another kubeconfig with --kubeconfig",
                    path.display()
                )
            }
            Some(path) => {
                Kubeconfig::read_from(path).with_context(|| format!("cannot read the kubeconfig {}", path.display()))?
            }
            None => Kubeconfig::read()
                .context("cannot read the kubeconfig (name one with --kubeconfig, or use --file to work offline)")?,
        };
        choose(&file, place.context.as_deref())?;
        let options = KubeConfigOptions {
            context: place.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(file, &options)
            .await
            .context("cannot use the kubeconfig")?;
        let namespace = place
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("cannot use the kubeconfig")?;
        Ok(Self { client, namespace })
    }

    /// The databases of the namespace.
    pub fn databases(&self) -> Api<ClusteredDatabase> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The backups of the namespace.
    pub fn backups(&self) -> Api<DatabaseBackup> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The operations of the namespace.
    pub fn operations(&self) -> Api<ClusteredDatabaseOperation> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The database called `name`.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub async fn database(&self, name: &str) -> Result<ClusteredDatabase> {
        let found = self.databases().get_opt(name).await;
        if let Some(db) = found.map_err(|error| self.explain(error))? {
            return Ok(db);
        }
        let all = self.databases().list(&ListParams::default()).await;
        let all = all.map_err(|error| self.explain(error))?;
        let names: Vec<_> = all.iter().filter_map(|db| db.metadata.name.as_deref()).collect();
        let there = match names.as_slice() {
            [] => "it has none".to_owned(),
            names => format!("it has {}", names.join(", ")),
        };
        bail!(
            "there is no ClusteredDatabase {name:?} in namespace {:?} ({there}): check the name, or give --namespace",
            self.namespace
        )
    }

    /// An object of the namespace.
    ///
    /// # Errors
    /// If there is none, or the API server refuses.
    pub async fn object(&self, kind: &ApiResource, name: &str) -> Result<Value> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, kind);
        let found = api.get_opt(name).await.map_err(|error| self.explain(error))?;
        let found = found.with_context(|| {
            let (kind, namespace) = (&kind.kind, &self.namespace);
            format!("there is no {kind} {name:?} in namespace {namespace:?}: check the name, or give --namespace")
        })?;
        serde_json::to_value(found).context("cannot read the resource")
    }

    /// The databases of the namespace or of all namespaces. One that cannot be read hides no other.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn fleet(&self, everywhere: bool) -> Result<Vec<Guarded<ClusteredDatabase>>> {
        let api: Api<Guarded<ClusteredDatabase>> = if everywhere {
            Api::all(self.client.clone())
        } else {
            Api::namespaced(self.client.clone(), &self.namespace)
        };
        let found = api.list(&ListParams::default()).await;
        Ok(found.map_err(|error| self.explain(error))?.items)
    }

    /// The pod of the serving primary, by the Lease: the status is written later, and not at all while the operator is away. If the
    /// user may not read the Lease, the status decides.
    ///
    /// # Errors
    /// If no primary serves, or the Lease cannot be read.
    pub async fn primary(&self, db: &ClusteredDatabase) -> Result<String> {
        let name = db.metadata.name.as_deref().unwrap_or_default();
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = match leases.get_opt(name).await {
            Ok(Some(lease)) => {
                let lease = machine::lease_object::read(&lease);
                let holder = lease.with_context(|| format!("cannot read Lease {name}"))?.holder;
                holder
                    .filter(|holder| holder.serving)
                    .map(|holder| holder.incarnation.pod)
            }
            Ok(None) => None,
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                db.status.as_ref().and_then(|status| status.current_primary.clone())
            }
            Err(error) => return Err(self.explain(error)),
        };
        found.ok_or_else(|| anyhow!("{name} has no primary now: see `kubectl cdb why {name}`"))
    }

    /// Runs a command in the container of PostgreSQL in a pod, and returns what it writes to its standard output.
    ///
    /// # Errors
    /// If it cannot be run, or fails: the error has what it wrote.
    pub async fn exec(&self, pod: &str, command: &[String]) -> Result<String> {
        let how = AttachParams::default().container(CONTAINER).stdout(true).stderr(true);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut process = pods
            .exec(pod, command, &how)
            .await
            .map_err(|error| self.explain(error))?;
        let lost = || format!("the connection to {pod} was lost");
        let status = process.take_status().with_context(lost)?;
        let (mut output, mut errors) = (String::new(), String::new());
        let (mut stdout, mut stderr) = (
            process.stdout().with_context(lost)?,
            process.stderr().with_context(lost)?,
        );
        let read = tokio::try_join!(stdout.read_to_string(&mut output), stderr.read_to_string(&mut errors));
        read.with_context(lost)?;
        let status = status.await.with_context(lost)?;
        match status.status.as_deref() {
            Some("Success") => Ok(output),
            _ => bail!(
                "{} {} {}",
                output.trim(),
                errors.trim(),
                status.message.unwrap_or_default()
            ),
        }
    }

    /// The operator's pods in all namespaces, or, without the right to list these (then `false`), in the database's namespace.
    ///
    /// # Errors
    /// If pods may not be listed there either, or the API server cannot be read.
    pub async fn operators(&self) -> Result<(Vec<Pod>, bool), kube::Error> {
        let parameters = ListParams::default().labels(OPERATOR);
        let all: Api<Pod> = Api::all(self.client.clone());
        match all.list(&parameters).await {
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                let here: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
                Ok((here.list(&parameters).await?.items, false))
            }
            found => Ok((found?.items, true)),
        }
    }

    /// Everything about the database called `name`. It leaves out kinds that the user may not read.
    ///
    /// # Errors
    /// If the resource itself or the API server cannot be read.
    pub async fn snapshot(&self, name: &str) -> Result<Snapshot> {
        let db = self.database(name).await?;
        let mut objects = vec![serde_json::to_value(&db).context("cannot read the resource")?];
        let (mut complete, mut unreadable) = (BTreeSet::from(["ClusteredDatabase".to_owned()]), BTreeMap::new());
        let kinds = kinds();
        let reads = kinds.iter().skip(1).map(|kind| self.read(name, kind));
        for (kind, read) in kinds.iter().skip(1).zip(try_join_all(reads).await?) {
            match read {
                Ok(found) => {
                    complete.insert(kind.kind.clone());
                    objects.extend(found);
                }
                Err(why) => drop(unreadable.insert(kind.kind.clone(), why)),
            }
        }
        without_other_nodes(&mut objects);
        Ok(Snapshot {
            objects,
            complete,
            unreadable,
            at: Utc::now().trunc_subsecs(3),
        })
    }

    /// The objects of one kind that concern the database; the inner error says why the user may not read them.
    async fn read(&self, name: &str, kind: &ApiResource) -> Result<Result<Vec<Value>, String>> {
        let named: Vec<_> = OwnedObject::ALL
            .into_iter()
            .filter(|child| child.kind() == kind.kind)
            .map(|child| format!("{name}{}", child.suffix()))
            .collect();
        let read = if named.is_empty() {
            self.list(name, kind).await
        } else {
            let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, kind);
            let found = try_join_all(named.iter().map(|name| api.get_opt(name))).await;
            found.map(|found| found.into_iter().flatten().collect())
        };
        match read {
            Ok(found) => Ok(Ok(found.into_iter().map(|object| value(object, kind)).collect())),
            Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(Err("not allowed".to_owned())),
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                Ok(Err("this cluster does not know the kind".to_owned()))
            }
            Err(error) => Err(self.explain(error)),
        }
    }

    async fn list(&self, name: &str, kind: &ApiResource) -> Result<Vec<DynamicObject>, kube::Error> {
        let client = self.client.clone();
        let (api, parameters): (Api<DynamicObject>, _) = match kind.kind.as_str() {
            "StorageClass" | "Node" => (Api::all_with(client, kind), ListParams::default()),
            "Pod" => (
                Api::namespaced_with(client, &self.namespace, kind),
                ListParams::default().labels(&format!("{LABEL_CLUSTER}={name}")),
            ),
            _ => (
                Api::namespaced_with(client, &self.namespace, kind),
                ListParams::default(),
            ),
        };
        let found = api.list(&parameters).await?;
        let names = Names::new(name);
        Ok(found
            .into_iter()
            .filter(|object| concerns(&names, kind, object))
            .collect())
    }

    /// An error of the API server, as one line that says what to do.
    pub fn explain(&self, error: kube::Error) -> anyhow::Error {
        match error {
            kube::Error::Api(status) if status.is_not_found() => anyhow!(
                "this cluster does not know ClusteredDatabases: install the operator with \
                 `kubectl apply --server-side -f manifests/install.yaml`, or choose another cluster with --context"
            ),
            kube::Error::Api(status) if status.is_forbidden() => anyhow!(
                "not allowed in namespace {:?}: {} (ask for the right, or give --namespace)",
                self.namespace,
                status.message
            ),
            kube::Error::Api(status) if status.code == 401 => {
                anyhow!("the API server does not accept your credentials: log in again, or choose another --context")
            }
            kube::Error::Api(status) => anyhow!("the API server refuses: {}", status.message),
            error => anyhow::Error::new(error).context("cannot reach the API server"),
        }
    }
}

/// Whether the kubeconfig names one cluster.
fn choose(file: &Kubeconfig, context: Option<&str>) -> Result<()> {
    let names: Vec<_> = file.contexts.iter().map(|context| context.name.as_str()).collect();
    let there = names.join(", ");
    match context.or(file.current_context.as_deref().filter(|name| !name.is_empty())) {
        Some(context) if names.contains(&context) => Ok(()),
        Some(context) => bail!("the kubeconfig has no context {context:?}: choose one of {there} with --context"),
        None if names.is_empty() => bail!("the kubeconfig has no context: name another file with --kubeconfig"),
        None => bail!("the kubeconfig has no current context: choose one of {there} with --context"),
    }
}

/// Whether an object of a list concerns the database: a claim by its name, an event by what it is about, one of our own kinds by
/// its clusterRef.
fn concerns(names: &Names, kind: &ApiResource, object: &DynamicObject) -> bool {
    let ours = |name: &str| snapshot_name(names, name);
    match kind.kind.as_str() {
        "PersistentVolumeClaim" => object.metadata.name.as_deref().is_some_and(|name| claim(names, name)),
        "Event" => object.data["involvedObject"]["name"].as_str().is_some_and(ours),
        _ if kind.group == api::GROUP => object.data["spec"]["clusterRef"]["name"] == names.cluster(),
        _ => true,
    }
}

fn claim(names: &Names, name: &str) -> bool {
    api::names::parse_claim(name).is_some_and(|(_, _, pod)| names.ordinal(pod).is_some())
}

fn snapshot_name(names: &Names, name: &str) -> bool {
    let child = |kind: &OwnedObject| name == format!("{}{}", names.cluster(), kind.suffix());
    names.ordinal(name).is_some() || claim(names, name) || OwnedObject::ALL.iter().any(child)
}

/// Keeps only the nodes of the database's pods.
fn without_other_nodes(objects: &mut Vec<Value>) {
    let pods = objects.iter().filter(|object| object["kind"] == "Pod");
    let nodes: BTreeSet<_> = pods
        .filter_map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned))
        .collect();
    objects.retain(|object| object["kind"] != "Node" || nodes.contains(snapshot::name(object)));
}

/// The object as JSON, with its kind.
pub fn value(object: DynamicObject, kind: &ApiResource) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    (value["apiVersion"], value["kind"]) = (json!(kind.api_version), json!(kind.kind));
    debug_assert!(!snapshot::name(&value).is_empty());
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(current: Option<&str>, contexts: &[&str]) -> Kubeconfig {
        let contexts: Vec<_> = contexts
            .iter()
            .map(|name| json!({"name": name, "context": {"cluster": "c", "user": "u"}}))
            .collect();
        serde_json::from_value(json!({"current-context": current, "contexts": contexts})).unwrap()
    }

    #[test]
    fn one_of_several_contexts_must_be_named() {
        let said = |current, contexts: &[&str], asked| {
            choose(&kubeconfig(current, contexts), asked).map_err(|e| e.to_string())
        };
        assert_eq!(said(Some("a"), &["a", "b"], None), Ok(()));
        assert_eq!(said(None, &["a", "b"], Some("b")), Ok(()));
        assert_eq!(
            said(None, &["a", "b"], None),
            Err("the kubeconfig has no current context: choose one of a, b with --context".to_owned())
        );
        assert_eq!(
            said(Some("a"), &["a", "b"], Some("c")),
            Err("the kubeconfig has no context \"c\": choose one of a, b with --context".to_owned())
        );
        assert!(said(None, &[], None).is_err());
    }

    #[test]
    fn events_and_claims_of_other_databases_are_passed_over() {
        let names = Names::new("demo");
        for ours in ["demo", "demo-0", "demo-rw", "data-demo-1", "wal-demo-0"] {
            assert!(snapshot_name(&names, ours), "{ours}");
        }
        for other in ["demo-x", "demo2", "data-demo-x-0", "other-0", "demo-x-0"] {
            assert!(!snapshot_name(&names, other), "{other}");
        }
        assert!(claim(&names, "data-demo-0") && !claim(&names, "data-other-0"));
    }
}
