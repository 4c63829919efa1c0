//! `report`: one archive that helps to understand a database, without secrets.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use chrono::{DateTime, SecondsFormat, Utc};
use flate2::Compression;
use flate2::write::GzEncoder;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use operator::cache::{Key, Kind};
use serde_json::{Value, json};

use crate::cluster::{Cluster, OPERATOR};
use crate::file::RECORDED;
use crate::redact;
use crate::snapshot::{Snapshot, kinds};

/// How many of the last lines of each of the operator's pods the report has.
const LINES: i64 = 5_000;

/// The files of a report, by name.
pub type Files = Vec<(String, String)>;

/// The files made from a snapshot: the objects, and what they are. `logs` are the operator's, by pod.
///
/// # Errors
/// When an object cannot be written as YAML.
pub fn files(mut snapshot: Snapshot, name: &str, logs: &Result<Files, String>) -> Result<Files> {
    redact::snapshot(&mut snapshot);
    let mut files = vec![
        ("README.txt".to_owned(), readme(&snapshot, name, logs)),
        ("objects.yaml".to_owned(), objects(&snapshot)?),
    ];
    let keys = keys(&snapshot);
    for (pod, log) in logs.iter().flatten() {
        let ours = log.lines().filter(|line| is_about(line, &keys));
        let lines = ours.map(redact::text).collect::<Vec<_>>().join("\n");
        files.push((format!("operator/{pod}.log"), lines + "\n"));
    }
    Ok(files)
}

/// The database, its operations, backups, users, SQL databases and poolers, as the operator's log names them.
fn keys(snapshot: &Snapshot) -> Vec<String> {
    let kinds = [
        ("ClusteredDatabase", Kind::Database),
        ("ClusteredDatabaseOperation", Kind::Operation),
        ("DatabaseBackup", Kind::Backup),
        ("DatabaseUser", Kind::User),
        ("Database", Kind::SqlDatabase),
        ("Pooler", Kind::Pooler),
    ];
    let key = |kind, object: &Value| {
        let [namespace, name] =
            ["namespace", "name"].map(|field| object["metadata"][field].as_str().unwrap_or_default());
        let (namespace, name) = (namespace.into(), name.into());
        Key { kind, namespace, name }.to_string()
    };
    let keys = kinds.map(|(name, kind)| snapshot.of(name).map(move |object| key(kind, object)));
    keys.into_iter().flatten().collect()
}

/// Whether a line of the operator's log is about one of these or about none: the operator serves others as well.
fn is_about(line: &str, keys: &[String]) -> bool {
    let fields = ["database", "object"];
    let about_one = fields
        .iter()
        .any(|field| line.contains(&format!("\"{field}\"")) || line.contains(&format!("{field}=")));
    let ends = |rest: &str| rest.is_empty() || rest.starts_with([' ', ',']);
    let is_named = |key: &String| {
        let mut values = fields
            .iter()
            .flat_map(|field| line.split(&format!("{field}={key}")).skip(1).collect::<Vec<_>>());
        line.contains(&format!("\"{key}\"")) || values.any(ends)
    };
    !about_one || keys.iter().any(is_named)
}

/// The objects as documents of one YAML text. A kind that was read completely is a typed list, also an empty one.
fn objects(snapshot: &Snapshot) -> Result<String> {
    let mut text = format!("{RECORDED}{}\n", time(snapshot.at));
    for kind in kinds() {
        if !snapshot.knows(&kind.kind) {
            continue;
        }
        let items: Vec<_> = snapshot.of(&kind.kind).collect();
        let typed = snapshot.complete.contains(&kind.kind);
        let (version, list) = if typed {
            (kind.api_version.clone(), format!("{}List", kind.kind))
        } else {
            ("v1".to_owned(), "List".to_owned())
        };
        let list = json!({"apiVersion": version, "kind": list, "items": items});
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(&list).context("cannot write the objects")?);
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    Ok(text)
}

fn readme(snapshot: &Snapshot, name: &str, logs: &Result<Files, String>) -> String {
    let mut text = format!(
        "A report on the ClusteredDatabase {name}, made by kubectl-cdb {} at {}.\n\n\
         objects.yaml       its Kubernetes objects; Secrets were not read\n\
         operator/*.log     of the last {LINES} lines of each of the operator's pods those about this database, or about none\n\n\
         Values whose names speak of passwords, tokens or keys are redacted, and so are the statements of postInitApplicationSQL.\n\
         Of annotations only the operator's and Kubernetes' own are kept. Read it before you give it away: a secret in a place of its\n\
         own, such as a label, is not recognized.\n\
         The logs of the instances are left out: they can hold statements with data.\n\n\
         To inspect it offline: kubectl cdb status {name} --file <this archive> (also: why, history, plan).\n",
        env!("CARGO_PKG_VERSION"),
        time(snapshot.at),
    );
    for (kind, why) in &snapshot.unreadable {
        text.push_str(&format!("\nNot read: {kind}: {why}"));
    }
    if let Err(why) = logs {
        text.push_str(&format!("\nNot read: the operator's logs: {why}"));
    }
    text.push('\n');
    text
}

fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// The logs of the operator's pods, or why they cannot be read.
pub async fn logs(cluster: &Cluster) -> Result<Files, String> {
    let why = |error: kube::Error| match error {
        kube::Error::Api(status) => status.message,
        error => error.to_string(),
    };
    let (pods, everywhere) = cluster.operators().await.map_err(why)?;
    if pods.is_empty() {
        let nowhere = format!("no pod carries the label {OPERATOR}");
        let here = format!("you may not list the pods of all namespaces, and in this one {nowhere}");
        return Err(if everywhere { nowhere } else { here });
    }
    let mut logs = Vec::new();
    for pod in pods {
        let (Some(namespace), Some(name)) = (pod.metadata.namespace, pod.metadata.name) else {
            continue;
        };
        let parameters = LogParams {
            tail_lines: Some(LINES),
            timestamps: true,
            ..LogParams::default()
        };
        let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
        logs.push((name.clone(), api.logs(&name, &parameters).await.map_err(why)?));
    }
    Ok(logs)
}

/// Writes the files into a new archive (`.tar.gz`); only its owner may read it.
///
/// # Errors
/// If the file exists already, or it cannot be written.
pub fn write(path: &Path, name: &str, files: &Files, at: DateTime<Utc>) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let cannot = || format!("cannot write {}", path.display());
    let mut archive = tar::Builder::new(GzEncoder::new(file.with_context(cannot)?, Compression::default()));
    for (file, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(u64::try_from(at.timestamp()).unwrap_or(0));
        let path = format!("{name}/{file}");
        archive
            .append_data(&mut header, path, content.as_bytes())
            .with_context(cannot)?;
    }
    let mut file = archive.into_inner().and_then(GzEncoder::finish).with_context(cannot)?;
    file.flush().with_context(cannot)
}
