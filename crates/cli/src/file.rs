//! A database from files: what `report` writes, or what `kubectl get … -o yaml` gave.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::snapshot::Snapshot;

/// First words of a file's first line; the time at which its objects were read follows.
pub const RECORDED: &str = "# recorded ";

/// Reads a YAML file, a directory of them, or the archive that `report` writes.
///
/// # Errors
/// If there is nothing to read, or it is no YAML with Kubernetes objects.
pub fn read(path: &Path) -> Result<Snapshot> {
    let texts = texts(path)?;
    let mut snapshot = Snapshot {
        objects: Vec::new(),
        complete: BTreeSet::new(),
        unreadable: BTreeMap::new(),
        at: modified(path),
    };
    for (name, text) in &texts {
        parse(text, &mut snapshot).with_context(|| format!("cannot use {}", name.display()))?;
    }
    if let Some(at) = texts.iter().find_map(|(_, text)| recorded(text)) {
        snapshot.at = at;
    }
    if snapshot.objects.is_empty() {
        bail!("{} holds no Kubernetes objects", path.display());
    }
    Ok(snapshot)
}

/// Adds the objects of a text with one or more YAML documents, without Secrets.
///
/// # Errors
/// If it is no YAML, or a document is no Kubernetes object.
pub fn parse(text: &str, snapshot: &mut Snapshot) -> Result<()> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)
        .map_err(|error| anyhow!("it is no YAML: {}", first_line(&error.to_string())))?;
    for document in documents.into_iter().filter(|document| !document.is_null()) {
        let Some(kind) = document["kind"].as_str() else {
            bail!("a document has no kind: only Kubernetes objects can be read");
        };
        let (Some(item), Some(items)) = (kind.strip_suffix("List"), document["items"].as_array()) else {
            add(document, snapshot);
            continue;
        };
        // A typed list has all objects of its kind; a `List` has the objects of one query.
        if !item.is_empty() {
            snapshot.complete.insert(item.to_owned());
        }
        for object in items {
            let mut object = object.clone();
            if !item.is_empty() {
                (object["apiVersion"], object["kind"]) = (document["apiVersion"].clone(), json!(item));
            }
            add(object, snapshot);
        }
    }
    Ok(())
}

/// The parser's message without its quote of the text, which has several lines.
fn first_line(error: &str) -> &str {
    let line = error.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line)
}

fn add(object: Value, snapshot: &mut Snapshot) {
    if object["kind"] != "Secret" {
        snapshot.objects.push(object);
    }
}

/// The texts to read, each with the name of its file.
fn texts(path: &Path) -> Result<Vec<(PathBuf, String)>> {
    let cannot = || format!("cannot read {}", path.display());
    let name = path.to_string_lossy();
    if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
        return archived(path).with_context(cannot);
    }
    if !path.is_dir() {
        return Ok(vec![(
            path.to_owned(),
            std::fs::read_to_string(path).with_context(cannot)?,
        )]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).with_context(cannot)? {
        let file = entry.with_context(cannot)?.path();
        if is_yaml(&file) {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        bail!("{} holds no file that ends in .yaml or .yml", path.display());
    }
    files
        .into_iter()
        .map(|file| {
            let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            Ok((file, text))
        })
        .collect()
}

fn archived(path: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(std::fs::File::open(path)?));
    let mut texts = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.into_owned();
        if is_yaml(&name) {
            let mut text = String::new();
            entry.read_to_string(&mut text)?;
            texts.push((name, text));
        }
    }
    Ok(texts)
}

fn is_yaml(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "yaml" || extension == "yml")
}

fn recorded(text: &str) -> Option<DateTime<Utc>> {
    text.lines().next()?.strip_prefix(RECORDED)?.trim().parse().ok()
}

/// When the file was written, which is about when its objects were read.
fn modified(path: &Path) -> DateTime<Utc> {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.map_or_else(|_| Utc::now(), DateTime::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Snapshot> {
        let mut snapshot = Snapshot {
            objects: Vec::new(),
            complete: BTreeSet::new(),
            unreadable: BTreeMap::new(),
            at: DateTime::UNIX_EPOCH,
        };
        parse(text, &mut snapshot)?;
        Ok(snapshot)
    }

    #[test]
    fn documents_and_lists_become_objects_and_secrets_do_not() {
        let read = of("# recorded 2027-01-01T00:00:00Z\n---\nkind: Pod\nmetadata: {name: a}\n---\n\
             apiVersion: v1\nkind: List\nitems:\n- {kind: Secret, metadata: {name: s}}\n- {kind: Pod, metadata: {name: b}}\n---\n\
             apiVersion: v1\nkind: ServiceList\nitems: [{metadata: {name: c}}]\n---\nkind: LeaseList\nitems: []\n")
        .unwrap();
        let found: Vec<_> = read
            .objects
            .iter()
            .map(|object| format!("{} {}", object["kind"].as_str().unwrap(), crate::snapshot::name(object)))
            .collect();
        assert_eq!(found, ["Pod a", "Pod b", "Service c"]);
        assert!(read.knows("Pod") && read.knows("Lease") && !read.knows("StatefulSet"));
        assert!(read.complete.contains("Service") && !read.complete.contains("Pod"));
        assert_eq!(
            recorded("# recorded 2027-01-01T00:00:00Z\nkind: x"),
            "2027-01-01T00:00:00Z".parse().ok()
        );
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["a: [", "a: 1", "- 1"] {
            let error = format!("{:#}", of(text).unwrap_err());
            assert!(!error.contains('\n') || error.contains("YAML"), "{error}");
        }
    }
}
