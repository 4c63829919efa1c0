//! `record`: the operator's own record of its decisions ([`operator::recording`]).

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use operator::http::DECISIONS;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use crate::cluster::Cluster;
use crate::report::OPERATOR;

/// The record of the database called `name`. Every operator's pod is asked: the one that leads has it.
///
/// # Errors
/// When none has it, or may be asked.
pub async fn fetch(cluster: &Cluster, name: &str) -> Result<String> {
    cluster.database(name).await?;
    let path = format!("/decisions/{}/{name}", cluster.namespace);
    let mut reasons = Vec::new();
    for pod in operators(cluster).await? {
        let (Some(namespace), Some(pod)) = (pod.metadata.namespace, pod.metadata.name) else {
            continue;
        };
        match from_pod(cluster, &namespace, &pod, &path).await {
            Ok(text) => return Ok(text),
            Err(error) => reasons.push(format!("{namespace}/{pod}: {error:#}")),
        }
    }
    if reasons.is_empty() {
        bail!("no pod carries the label {OPERATOR}: there is no operator to ask");
    }
    bail!(
        "no operator gives its record of {name} ({}): it takes the right to create pods/portforward in the operator's \
         namespace, and an operator that keeps one",
        reasons.join("; ")
    )
}

/// The operator's pods: wherever they are, or, without the right to look there, in the database's namespace.
async fn operators(cluster: &Cluster) -> Result<Vec<Pod>> {
    let parameters = ListParams::default().labels(OPERATOR);
    let all: Api<Pod> = Api::all(cluster.client.clone());
    let found = match all.list(&parameters).await {
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            let here: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
            here.list(&parameters).await
        }
        found => found,
    };
    Ok(found.map_err(|error| cluster.explain(error))?.items)
}

async fn from_pod(cluster: &Cluster, namespace: &str, pod: &str, path: &str) -> Result<String> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let port = DECISIONS.port();
    let forwarded = api.portforward(pod, &[port]).await;
    let mut forwarded = forwarded.map_err(|error| match error {
        kube::Error::Api(status) => anyhow!("{}", status.message),
        error => anyhow!("{error}"),
    })?;
    let stream = forwarded.take_stream(port).context("its port is not forwarded")?;
    ask(stream, path).await
}

/// `GET path` over a connection of its own.
///
/// # Errors
/// When there is no answer, or another one than 200; then in the server's own words.
pub async fn ask(stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> Result<String> {
    let mut stream = BufReader::new(stream);
    let request = format!("GET {path} HTTP/1.1\r\nhost: operator\r\nconnection: close\r\n\r\n");
    let sent = stream.write_all(request.as_bytes()).await;
    sent.context("cannot ask")?;
    stream.flush().await.context("cannot ask")?;
    let (mut status, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        let read = stream.read_line(&mut line).await.context("cannot read the answer")?;
        if read == 0 {
            bail!("nothing answers on port {}", DECISIONS.port());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if status.is_none() {
            status = line.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok());
        } else if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().context("cannot read the answer")?;
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.context("the answer is cut off")?;
    let text = String::from_utf8(body).context("the answer is no text")?;
    match status {
        Some(200) => Ok(text),
        _ => bail!("{text}"),
    }
}

/// Writes the record into a new file; only its owner may read it.
///
/// # Errors
/// When there is such a file already, or it cannot be written.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let cannot = || format!("cannot write {}", path.display());
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(cannot)
}
