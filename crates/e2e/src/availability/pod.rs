//! A writer's pod, and the commands for it.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Namespace;
use crate::availability::record::Rows;
use crate::availability::status::Status;
use crate::availability::subject::Subject;
use crate::client::exec;
use crate::soak::record::{Lists, Status as ListsStatus};
use crate::wait::{Seen, until};

/// Time limit for the start of the pod, including the pull of its image.
const START: Duration = Duration::from_secs(120);
/// Time limit for complete notes after the end: every attempt is over after a second.
const END: Duration = Duration::from_secs(30);
const CONTAINER: &str = "writer";
const PROGRAM: &str = "/availability-writer";

/// A writer's pod.
pub struct WriterPod {
    namespace: Namespace,
    name: String,
}

/// The task of a writer.
#[derive(Clone, Debug)]
pub struct Order {
    /// Image with the program.
    pub image: String,
    /// Names its rows.
    pub run: String,
    /// Where it runs.
    pub node: String,
    /// What it does.
    pub duty: Duty,
}

/// What a writer does.
#[derive(Clone, Debug)]
pub enum Duty {
    /// It writes rows.
    Rows,
    /// It writes rows, as the second writer, on the primary's node.
    RowsInside,
    /// It appends to lists and reads them.
    Lists {
        /// Number of its first client.
        first: u32,
        /// How many clients it has.
        clients: u32,
        /// When the soak began, in seconds since the epoch.
        began: u64,
        /// The seed of random choices.
        seed: u64,
    },
}

impl Duty {
    fn name(&self) -> String {
        match self {
            Self::Rows => "writer".to_owned(),
            Self::RowsInside => "inside".to_owned(),
            Self::Lists { first, .. } => format!("lists-{first}"),
        }
    }

    fn command(&self) -> Vec<&'static str> {
        match self {
            Self::Rows | Self::RowsInside => vec![PROGRAM],
            Self::Lists { .. } => vec![PROGRAM, "lists"],
        }
    }

    fn environment(&self) -> Value {
        match self {
            Self::Rows => json!({"name": "INSIDE", "value": "false"}),
            Self::RowsInside => json!({"name": "INSIDE", "value": "true"}),
            Self::Lists {
                first,
                clients,
                began,
                seed,
            } => {
                json!({"name": "LISTS", "value": format!("{first} {clients} {began} {seed}")})
            }
        }
    }
}

impl WriterPod {
    /// Starts a writer.
    ///
    /// # Errors
    /// When its pod does not start within two minutes.
    pub async fn start(subject: &Subject, order: &Order) -> Result<Self> {
        let name = format!("availability-{}-{}", order.duty.name(), order.run);
        let pod = manifest(subject, order, &name).await?;
        let pods = subject.namespace.api::<Pod>();
        pods.create(&PostParams::default(), &pod)
            .await
            .context("make the writer's pod")?;
        let this = Self {
            namespace: subject.namespace.clone(),
            name,
        };
        until("the writer to write", START, || async {
            this.run(&["status"]).await.map(Seen::Yes)
        })
        .await?;
        Ok(this)
    }

    /// Sets which pods to write to directly.
    ///
    /// # Errors
    /// When the pod cannot be reached.
    pub async fn set_targets(&self, targets: &[(String, IpAddr)]) -> Result<()> {
        let words: Vec<String> = targets
            .iter()
            .map(|(pod, address)| format!("{pod}={address}"))
            .collect();
        let mut command = vec!["targets"];
        command.extend(words.iter().map(String::as_str));
        self.run(&command).await?;
        Ok(())
    }

    /// The present state of the writing.
    ///
    /// # Errors
    /// When the pod cannot be reached.
    pub async fn status(&self) -> Result<Status> {
        self.told().await
    }

    /// The present state of the writing of lists.
    ///
    /// # Errors
    /// When the pod cannot be reached.
    pub async fn lists_status(&self) -> Result<ListsStatus> {
        self.told().await
    }

    async fn told<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.run(&["status"]).await?).context("read the writer's status")
    }

    /// How far the writer's wall clock is ahead of ours, in nanoseconds; zero when the difference is less than what can
    /// be measured.
    ///
    /// # Errors
    /// When the pod cannot be reached.
    pub async fn clock_offset(&self) -> Result<i64> {
        let before = wall_clock();
        let theirs: u64 = self
            .run(&["clock"])
            .await?
            .trim()
            .parse()
            .context("read the writer's clock")?;
        let after = wall_clock();
        if (before..=after).contains(&theirs) {
            return Ok(0);
        }
        let ours = i128::from(before + (after - before) / 2);
        i64::try_from(i128::from(theirs) - ours).context("the clocks are centuries apart")
    }

    /// Ends the writing and returns the notes.
    ///
    /// # Errors
    /// When the pod cannot be reached, or does not end.
    pub async fn finish(&self) -> Result<String> {
        self.run(&["stop"]).await?;
        until("the writer to end", END, || async {
            let status: Value = self.told().await?;
            Ok(if status["done"] == json!(true) {
                Seen::Yes(())
            } else {
                Seen::NotYet("it writes".to_owned())
            })
        })
        .await?;
        let mut notes = String::new();
        loop {
            // Its output comes without the last line break.
            let part = self.run(&["dump", &notes.len().to_string()]).await?;
            if part.is_empty() {
                return Ok(notes);
            }
            notes.push_str(&part);
            notes.push('\n');
        }
    }

    /// What the lists of this run hold: as the Service's server has them, or the one at `address`.
    ///
    /// # Errors
    /// When that server does not answer.
    pub async fn lists(&self, address: Option<IpAddr>) -> Result<Lists> {
        let address = address.map(|address| address.to_string());
        let words: Vec<&str> = std::iter::once("final").chain(address.as_deref()).collect();
        let text = self.run(&words).await?;
        let lists = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        lists.context("read the lists")
    }

    /// What the tables hold of this run.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn rows(&self) -> Result<Vec<Rows>> {
        let text = self.run(&["rows"]).await?;
        let rows = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        rows.context("read the tables' rows")
    }

    /// Removes the pod.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn remove(&self) -> Result<()> {
        let pods = self.namespace.api::<Pod>();
        pods.delete(&self.name, &DeleteParams::default().grace_period(0))
            .await
            .context("remove the writer's pod")?;
        Ok(())
    }

    async fn run(&self, words: &[&str]) -> Result<String> {
        let mut command = vec![PROGRAM];
        command.extend(words);
        exec(&self.namespace, &self.name, CONTAINER, &command).await
    }
}

/// Nanoseconds since the epoch.
#[must_use]
pub fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

async fn manifest(subject: &Subject, order: &Order, name: &str) -> Result<Pod> {
    let (address, port) = subject.address().await?;
    let keys = subject.keys().await?;
    let secret = |key: &str| json!({"secretKeyRef": {"name": subject.secret, "key": key}});
    let database = match (&subject.database, &keys.database) {
        (Some(name), _) => json!({"name": "DATABASE_NAME", "value": name}),
        (None, Some(key)) => json!({"name": "DATABASE_NAME", "valueFrom": secret(key)}),
        (None, None) => Value::Null,
    };
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "availability-writer"}},
        "spec": {
            "nodeName": order.node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"}
            },
            "containers": [{
                "name": CONTAINER,
                "image": order.image,
                "imagePullPolicy": "IfNotPresent",
                "command": order.duty.command(),
                "env": [
                    {"name": "SERVICE_ADDRESS", "value": address.to_string()},
                    {"name": "SERVICE_PORT", "value": port.to_string()},
                    {"name": "DATABASE_USER", "valueFrom": secret(&keys.user)},
                    {"name": "DATABASE_PASSWORD", "valueFrom": secret(&keys.password)},
                    database,
                    {"name": "RUN", "value": order.run},
                    order.duty.environment(),
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
                ],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}
                }
            }],
            "volumes": [{"name": "data", "emptyDir": {}}]
        }
    });
    serde_json::from_value(pod).context("write the writer's pod")
}
