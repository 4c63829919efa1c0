//! Writes to the API server and their authors, from its audit log.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// One write that the API server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The user.
    pub user: String,
    /// `create`, `update`, `patch`, `delete` …
    pub verb: String,
    /// Resource, with the subresource after a slash.
    pub resource: String,
    /// Namespace; empty for cluster-wide objects.
    pub namespace: String,
    /// Name; empty for creations with a generated name.
    pub name: String,
    /// HTTP status of the answer.
    pub code: i64,
}

/// A position in the audit log.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    offset: u64,
}

impl Audit {
    /// Starts at the log's present end.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn from_now(path: &Path) -> Result<Self> {
        let offset = path
            .metadata()
            .with_context(|| format!("look at {}", path.display()))?
            .len();
        Ok(Self {
            path: path.to_owned(),
            offset,
        })
    }

    /// The writes since the start, in order. An unfinished last line is left out.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn writes(&self) -> Result<Vec<Write>> {
        let mut file = File::open(&self.path).context("open the audit log")?;
        file.seek(SeekFrom::Start(self.offset))
            .context("seek in the audit log")?;
        let mut text = String::new();
        file.read_to_string(&mut text).context("read the audit log")?;
        Ok(text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .filter_map(|event| write_of(&event))
            .collect())
    }
}

fn write_of(event: &Value) -> Option<Write> {
    let text = |pointer: &str| {
        event
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let verb = text("/verb");
    if !["create", "update", "patch", "delete", "deletecollection"].contains(&verb.as_str())
        || text("/stage") != "ResponseComplete"
    {
        return None;
    }
    let subresource = text("/objectRef/subresource");
    let resource = text("/objectRef/resource");
    Some(Write {
        user: text("/user/username"),
        verb,
        resource: if subresource.is_empty() {
            resource
        } else {
            format!("{resource}/{subresource}")
        },
        namespace: text("/objectRef/namespace"),
        name: text("/objectRef/name"),
        code: event
            .pointer("/responseStatus/code")
            .and_then(Value::as_i64)
            .unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_answered_writes_count() {
        let event = json!({"verb": "patch", "stage": "ResponseComplete", "user": {"username": "u"},
            "objectRef": {"resource": "pods", "subresource": "status", "namespace": "n", "name": "p"}, "responseStatus": {"code": 200}});
        let write = write_of(&event).unwrap();
        assert_eq!((write.resource.as_str(), write.code), ("pods/status", 200));
        assert_eq!(write_of(&json!({"verb": "get", "stage": "ResponseComplete"})), None);
        assert_eq!(write_of(&json!({"verb": "patch", "stage": "RequestReceived"})), None);
    }
}
