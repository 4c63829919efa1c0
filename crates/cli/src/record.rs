//! `record`: the operator's own record of its decisions ([`operator::recording`]).

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use api::ClusteredDatabase;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use operator::http::DECISIONS;
use operator::recording::Header;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use crate::cluster::{Cluster, OPERATOR};

/// Time limit for a pod's answer: it has the text in its memory.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// The largest answer, in bytes: twice what an operator keeps of all databases.
const MOST_BYTES: u64 = 16 << 20;
/// The ServiceAccount of the operator's pods, as its manifests have it.
const ACCOUNT: &str = "clustereddatabase-operator";

const SILENT: &str = "it does not answer";

/// The record of the database called `name`. It asks every pod of the operator: the leader has the record.
///
/// # Errors
/// If no pod has the record, or none may be asked.
pub async fn fetch(cluster: &Cluster, name: &str) -> Result<String> {
    let db = cluster.database(name).await?;
    let path = format!("/decisions/{}/{name}", cluster.namespace);
    let mut reasons = Vec::new();
    let operators = cluster.operators().await;
    let (pods, everywhere) = operators.map_err(|error| cluster.explain(error))?;
    for pod in likeliest_first(pods) {
        let (Some(namespace), Some(pod)) = (pod.metadata.namespace, pod.metadata.name) else {
            continue;
        };
        let answer = from_pod(cluster, &namespace, &pod, &path).await;
        match answer.and_then(|text| check(&text, &db).map(|()| text)) {
            Ok(text) => return Ok(text),
            Err(error) => reasons.push(format!("{namespace}/{pod}: {error:#}")),
        }
    }
    if reasons.is_empty() && !everywhere {
        bail!(
            "the operator cannot be found: you may not list the pods of all namespaces, and in namespace {:?} no pod carries the \
             label {OPERATOR}: ask for the right",
            cluster.namespace
        );
    }
    if reasons.is_empty() {
        bail!("no pod carries the label {OPERATOR}: there is no operator to ask");
    }
    bail!(
        "no operator gives its record of {name} ({}): you need the right to create pods/portforward in the operator's \
         namespace, and an operator that keeps records",
        reasons.join("; ")
    )
}

/// Sorts the pods with the operator's ServiceAccount first, because anybody can label a pod.
fn likeliest_first(mut pods: Vec<Pod>) -> Vec<Pod> {
    let account = |pod: &Pod| pod.spec.as_ref()?.service_account_name.clone();
    pods.sort_by_key(|pod| account(pod).as_deref() != Some(ACCOUNT));
    pods
}

/// Checks that an answer is a record of this very database.
///
/// # Errors
/// If it is no record, or one of another database, or has control characters.
fn check(text: &str, db: &ClusteredDatabase) -> Result<()> {
    if text.chars().any(|c| c.is_control() && c != '\n') {
        bail!("its answer is no record: it has control characters");
    }
    let first = text.lines().next().unwrap_or_default();
    let header: Header = serde_json::from_str(first).context("its answer is no record")?;
    let metadata = &db.metadata;
    let same = metadata.uid.as_deref() == Some(&header.uid)
        && metadata.name.as_deref() == Some(&header.name)
        && metadata.namespace.as_deref() == Some(&header.namespace);
    if !same {
        bail!("its record is of another database, or of an earlier one of this name");
    }
    Ok(())
}

async fn from_pod(cluster: &Cluster, namespace: &str, pod: &str, path: &str) -> Result<String> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let port = DECISIONS.port();
    let forwarded = tokio::time::timeout(TIME_LIMIT, api.portforward(pod, &[port])).await;
    let mut forwarded = forwarded.context(SILENT)?.map_err(|error| match error {
        kube::Error::Api(status) => anyhow!("{}", status.message),
        error => anyhow!("{error}"),
    })?;
    let stream = forwarded.take_stream(port).context("its port is not forwarded")?;
    let failure = forwarded.take_error(port);
    let failure = async {
        match failure {
            Some(failure) => failure.await,
            None => None,
        }
    };
    tokio::select! {
        answer = ask(stream, path) => answer,
        // Nothing listens on the port: the operator's version has no records.
        Some(why) = failure => bail!("{}", why.trim()),
    }
}

/// `GET path` over a connection of its own.
///
/// # Errors
/// If there is no answer within 10 s, or it has more than 16 MiB. If its code is not 200, the error has the server's own text.
pub async fn ask(stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> Result<String> {
    tokio::time::timeout(TIME_LIMIT, exchange(stream, path))
        .await
        .context(SILENT)?
}

async fn exchange(stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> Result<String> {
    let (reading, mut writing) = tokio::io::split(stream);
    let mut stream = BufReader::new(reading.take(MOST_BYTES));
    let request = format!("GET {path} HTTP/1.1\r\nhost: operator\r\nconnection: close\r\n\r\n");
    let sent = writing.write_all(request.as_bytes()).await;
    sent.context("cannot ask")?;
    writing.flush().await.context("cannot ask")?;
    let (mut status, mut length) = (None, 0_u64);
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
    if length > MOST_BYTES {
        bail!("the answer has {length} bytes, more than any record");
    }
    let mut body = Vec::new();
    let read = stream.take(length).read_to_end(&mut body).await;
    if read.context("cannot read the answer")? as u64 != length {
        bail!("the answer is cut off");
    }
    let text = String::from_utf8(body).context("the answer is no text")?;
    match status {
        Some(200) => Ok(text),
        _ => bail!("{text}"),
    }
}

/// Writes the record into a new file; only its owner may read it.
///
/// # Errors
/// If the file exists already, or it cannot be written.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let cannot = || format!("cannot write {}", path.display());
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(cannot)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::duplex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_or_endless_answer_is_an_error() {
        let (ours, _silent) = duplex(1_000);
        assert_eq!(ask(ours, "/").await.unwrap_err().to_string(), SILENT);

        let (ours, mut theirs) = duplex(1_000);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", u64::MAX);
        theirs.write_all(head.as_bytes()).await.unwrap();
        let error = ask(ours, "/").await.unwrap_err().to_string();
        assert!(error.ends_with("bytes, more than any record"), "{error}");

        let (ours, mut theirs) = duplex(1_000);
        let (mut read, sink) = (vec![0; 1_000], vec![b'x'; 1 << 16]);
        let endless = async move {
            let _ = theirs.read(&mut read).await;
            while theirs.write_all(&sink).await.is_ok() {}
        };
        let (answer, ()) = tokio::join!(ask(ours, "/"), endless);
        assert!(answer.is_err());
    }

    #[test]
    fn pods_that_run_as_the_operator_does_are_asked_first() {
        let pod = |name: &str, account: &str| -> Pod {
            serde_json::from_value(
                json!({"metadata": {"name": name}, "spec": {"serviceAccountName": account, "containers": []}}),
            )
            .unwrap()
        };
        let pods = vec![
            pod("a", "default"),
            pod("b", ACCOUNT),
            pod("c", "default"),
            pod("d", ACCOUNT),
        ];
        let names: Vec<_> = likeliest_first(pods)
            .into_iter()
            .filter_map(|pod| pod.metadata.name)
            .collect();
        assert_eq!(names, ["b", "d", "a", "c"]);
    }

    #[test]
    fn only_a_record_of_this_very_database_is_taken() {
        let db: ClusteredDatabase = serde_json::from_value(json!({
            "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
            "metadata": {"name": "demo", "namespace": "shop", "uid": "u"}, "spec": {"storage": {"data": {"size": "1Gi"}}},
        }))
        .unwrap();
        let header = |namespace: &str, name: &str, uid: &str| {
            json!({"format": "f", "version": 1, "operator": "1", "namespace": namespace, "name": name, "uid": uid, "dropped": 0}).to_string()
        };
        let said = |text: &str| check(text, &db).map_err(|error| error.to_string());
        assert_eq!(said(&(header("shop", "demo", "u") + "\n{}\n")), Ok(()));
        for other in [
            header("shop", "demo", "v"),
            header("shop", "other", "u"),
            header("else", "demo", "u"),
        ] {
            assert!(said(&other).unwrap_err().contains("another database"), "{other}");
        }
        assert_eq!(said("").unwrap_err(), "its answer is no record");
        let obeyed = header("shop", "demo", "u") + "\n\u{1b}]0;x\u{7}";
        assert!(said(&obeyed).unwrap_err().ends_with("control characters"));
    }
}
