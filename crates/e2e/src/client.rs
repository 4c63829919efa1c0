//! A pod that speaks SQL through a database's Services, as an application would.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{AttachParams, AttachedProcess, PostParams};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, sleep};

use crate::Namespace;
use crate::wait::{Seen, until};

/// Time for the client pod to start.
const START: Duration = Duration::from_secs(180);
/// How long an unreachable server is tried, and the interval between two tries.
const REACH: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(500);
/// Bounds of one connection, in seconds.
const CONNECT: u8 = 10;
const CONNECT_NOW: u8 = 2;
/// Bound of one command in the pod.
const COMMAND: Duration = Duration::from_secs(30);

/// A pod with `psql` and the application's credentials.
pub struct SqlClient {
    namespace: Namespace,
    pod: String,
}

impl SqlClient {
    /// Starts the pod for `database`; it has the application Secret's `uri` in its environment.
    ///
    /// # Errors
    /// When the pod does not start within three minutes.
    pub async fn start(namespace: &Namespace, database: &str, image: &str) -> Result<Self> {
        let name = format!("{database}-client");
        let secret = format!("{database}-app");
        let pod: Pod = serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 999, "seccompProfile": {"type": "RuntimeDefault"}
                },
                "containers": [{
                    "name": "client",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "infinity"],
                    "env": [
                        {"name": "DATABASE_URI", "valueFrom": {"secretKeyRef": {"name": secret, "key": "uri"}}}
                    ],
                    "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}
                }]
            }
        }))
        .context("write the client pod")?;
        namespace
            .api::<Pod>()
            .create(&PostParams::default(), &pod)
            .await
            .context("make the client pod")?;
        let api = namespace.api::<Pod>();
        until("the client pod to run", START, || async {
            let pod = api.get(&name).await?;
            let status = pod.status.unwrap_or_default();
            let ready = status
                .container_statuses
                .unwrap_or_default()
                .iter()
                .any(|container| container.ready);
            Ok(if ready {
                Seen::Yes(())
            } else {
                Seen::NotYet(status.phase.unwrap_or_default())
            })
        })
        .await?;
        Ok(Self {
            namespace: namespace.clone(),
            pod: pod.name_any(),
        })
    }

    /// Runs one SQL text through the read-write Service and returns psql's unadorned output. A server that cannot be
    /// reached is tried again for a minute: nothing was sent to it.
    ///
    /// # Errors
    /// When psql fails; the error is what it printed.
    pub async fn sql(&self, sql: &str) -> Result<String> {
        let start = Instant::now();
        loop {
            match self.psql("$DATABASE_URI", CONNECT, sql).await {
                Err(error) if is_unreachable(&error) && start.elapsed() < REACH => sleep(AGAIN).await,
                done => return done,
            }
        }
    }

    /// Like [`Self::sql`], but tries once, and gives up a connection after two seconds: to see whether the database can
    /// be written to now.
    ///
    /// # Errors
    /// When psql fails; the error is what it printed.
    pub async fn try_sql(&self, sql: &str) -> Result<String> {
        self.psql("$DATABASE_URI", CONNECT_NOW, sql).await
    }

    /// Like [`Self::sql`], with another host: the name or address of a Service or pod.
    ///
    /// # Errors
    /// When psql fails; the error is what it printed.
    pub async fn sql_at(&self, host: &str, sql: &str) -> Result<String> {
        // libpq: a later host parameter overrides the URI's.
        let uri = format!("$(echo \"$DATABASE_URI\" | sed -E 's#@[^:/]+#@{host}#')");
        self.psql(&uri, CONNECT, sql).await
    }

    /// Like [`Self::try_sql`], with another URI.
    ///
    /// # Errors
    /// When psql fails; the error is what it printed.
    pub async fn sql_as(&self, uri: &str, sql: &str) -> Result<String> {
        self.psql(uri, CONNECT_NOW, sql).await
    }

    async fn psql(&self, uri: &str, connect: u8, sql: &str) -> Result<String> {
        let script = format!(
            "export PGCONNECT_TIMEOUT={connect}; exec psql \"{uri}\" --no-psqlrc --quiet --tuples-only --no-align --set ON_ERROR_STOP=1 --command \"$1\""
        );
        self.run(&["sh", "-c", &script, "sh", sql]).await
    }

    /// Runs a command in the client pod and returns its standard output.
    ///
    /// # Errors
    /// When it fails or takes over half a minute; the error is what it printed.
    pub async fn run(&self, command: &[&str]) -> Result<String> {
        exec(&self.namespace, &self.pod, "client", command).await
    }
}

/// psql prints this before it has sent anything; "connection to server was lost" comes later.
fn is_unreachable(error: &anyhow::Error) -> bool {
    let text = error.to_string();
    ["at ", "on socket "]
        .iter()
        .any(|what| text.contains(&format!("psql: error: connection to server {what}")))
}

/// Runs a command in a container and returns its standard output without the last line break.
///
/// # Errors
/// When it fails or takes over half a minute; the error is what it printed.
pub async fn exec(namespace: &Namespace, pod: &str, container: &str, command: &[&str]) -> Result<String> {
    let parameters = AttachParams::default().container(container).stdout(true).stderr(true);
    let run = async {
        let process = namespace
            .api::<Pod>()
            .exec(pod, command.iter().copied(), &parameters)
            .await;
        collect(process.with_context(|| format!("exec in {pod}"))?).await
    };
    match tokio::time::timeout(COMMAND, run).await {
        Ok(done) => done,
        Err(_) => bail!("exec in {pod} took over {} s", COMMAND.as_secs()),
    }
}

async fn collect(mut process: AttachedProcess) -> Result<String> {
    let status = process.take_status().context("exec without a status")?;
    let (mut output, mut errors) = (String::new(), String::new());
    let mut stdout = process.stdout().context("exec without standard output")?;
    let mut stderr = process.stderr().context("exec without standard error")?;
    let (read, also) = tokio::join!(stdout.read_to_string(&mut output), stderr.read_to_string(&mut errors));
    read.and(also).context("read the command's output")?;
    let status = status.await.context("exec ended without a status")?;
    if status.status.as_deref() != Some("Success") {
        bail!(
            "{}{}",
            errors.trim(),
            status
                .message
                .map(|message| format!(" ({message})"))
                .unwrap_or_default()
        );
    }
    Ok(output.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unsent_commands_are_sent_again() {
        let refused =
            "psql: error: connection to server at \"db-rw\" (198.18.1.2), port 5432 failed: Connection refused";
        assert!(is_unreachable(&anyhow::anyhow!(
            "{refused} (command terminated with exit code 2)"
        )));
        for sent in [
            "psql: error: connection to server was lost",
            "ERROR:  connection to server at lunch",
        ] {
            assert!(!is_unreachable(&anyhow::anyhow!("{sent}")), "{sent}");
        }
    }
}
