//! A writer's pod, and what it is told and asked.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::Namespace;
use crate::availability::record::Rows;
use crate::availability::status::Status;
use crate::availability::subject::Subject;
use crate::client::exec;
use crate::wait::{Seen, until};

/// Time for the pod to start, its image's pull included.
const START: Duration = Duration::from_secs(120);
/// Time for the notes to be whole after the end: every attempt is over after a second.
const END: Duration = Duration::from_secs(30);
const CONTAINER: &str = "writer";
const PROGRAM: &str = "/availability-writer";

/// A writer's pod.
pub struct WriterPod {
    namespace: Namespace,
    name: String,
}

/// What a writer is to do.
#[derive(Clone, Debug)]
pub struct Order {
    /// Image with the program.
    pub image: String,
    /// Names its rows.
    pub run: String,
    /// Where it runs.
    pub node: String,
    /// It is the second writer, on the primary's node.
    pub inside: bool,
}

impl WriterPod {
    /// Starts a writer.
    ///
    /// # Errors
    /// When its pod does not start within two minutes.
    pub async fn start(subject: &Subject, order: &Order) -> Result<Self> {
        let kind = if order.inside { "inside" } else { "writer" };
        let name = format!("availability-{kind}-{}", order.run);
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
            this.status().await.map(Seen::Yes)
        })
        .await?;
        Ok(this)
    }

    /// Says which pods to write to directly.
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

    /// How it goes.
    ///
    /// # Errors
    /// When the pod cannot be reached.
    pub async fn status(&self) -> Result<Status> {
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
            let status = self.status().await?;
            Ok(if status.done {
                Seen::Yes(())
            } else {
                Seen::NotYet("it writes".to_owned())
            })
        })
        .await?;
        let mut notes = self.run(&["dump", "0"]).await?;
        notes.push('\n');
        Ok(notes)
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
                "command": [PROGRAM],
                "env": [
                    {"name": "SERVICE_ADDRESS", "value": address.to_string()},
                    {"name": "SERVICE_PORT", "value": port.to_string()},
                    {"name": "DATABASE_USER", "valueFrom": secret(&keys.user)},
                    {"name": "DATABASE_PASSWORD", "valueFrom": secret(&keys.password)},
                    database,
                    {"name": "RUN", "value": order.run},
                    {"name": "INSIDE", "value": order.inside.to_string()},
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
