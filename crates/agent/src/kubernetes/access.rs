//! What DatabaseUsers and Databases declare, and telling what became of it.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use machine::access::{Published, Report};
use serde_json::{Value, json};

use super::Clients;

/// Time limit of a request.
const REQUEST: Duration = Duration::from_secs(10);

/// Why nothing was told.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The operator makes it.
    #[error("there is no ConfigMap {0}")]
    Missing(String),
    /// The API server did not answer in time.
    #[error("the API server did not answer within {0:?}")]
    Silent(Duration),
    /// The API server refused, or could not be reached.
    #[error("write the ConfigMap: {0}")]
    Failed(#[from] Box<kube::Error>),
    /// The ConfigMap is not understood.
    #[error("the ConfigMap cannot be read: {0}")]
    Unreadable(String),
}

impl Clients {
    /// Makes the ConfigMap say this and nothing else. Nothing is written if it does already. With `keeps`, what was told of
    /// the same entries before stays.
    ///
    /// # Errors
    /// Fails if there is no ConfigMap, or the API server refuses or does not answer.
    pub async fn report_access(&self, reports: &BTreeMap<String, Report>, keeps: bool) -> Result<(), ReportError> {
        let name = self.names().access();
        let api = self.reports();
        let found = bounded(api.get_opt(&name)).await?;
        let found = found.ok_or_else(|| ReportError::Missing(name.clone()))?;
        let found = found.0.map_err(|unreadable| ReportError::Unreadable(unreadable.why))?;
        let changes = changes(&found.data.unwrap_or_default(), reports, keeps);
        if changes.is_empty() {
            return Ok(());
        }
        let exact = found.metadata.resource_version;
        let patch = Patch::Merge(json!({"metadata": {"resourceVersion": exact}, "data": changes}));
        bounded(api.patch(&name, &PatchParams::default(), &patch)).await?;
        Ok(())
    }
}

/// The entries that differ: `null` for one that is to go.
fn changes(
    found: &BTreeMap<String, String>,
    reports: &BTreeMap<String, Report>,
    keeps: bool,
) -> BTreeMap<String, Value> {
    let is_kept = |uid: &String, report: &Report| {
        let before = found
            .get(uid)
            .and_then(|text| serde_json::from_str::<Report>(text).ok());
        keeps && before.is_some_and(|before| before.of == report.of)
    };
    let wanted = |report: &Report| serde_json::to_string(report).unwrap_or_default();
    let differs = |(uid, report): (&String, &Report)| {
        let text = wanted(report);
        (found.get(uid) != Some(&text) && !is_kept(uid, report)).then(|| (uid.clone(), Value::String(text)))
    };
    let gone = found.keys().filter(|uid| !reports.contains_key(*uid));
    let gone = gone.map(|uid| (uid.clone(), Value::Null));
    reports.iter().filter_map(differs).chain(gone).collect()
}

/// What is declared in a Secret of the cluster with this UID, by UID of the resource. An entry that is not understood is left out.
pub fn read_declarations(secret: &Secret, cluster_uid: &str) -> BTreeMap<String, Published> {
    let owners = secret.owner_references();
    if !owners.iter().any(|owner| owner.uid == cluster_uid) {
        tracing::warn!("the Secret with what is declared belongs to somebody else: nothing of it is done");
        return BTreeMap::new();
    }
    let entries = secret.data.iter().flatten();
    let read = entries.filter_map(|(uid, text)| match serde_json::from_slice(&text.0) {
        Ok(published) => Some((uid.clone(), published)),
        Err(error) => {
            // The text of an error quotes nothing of the entry but the place.
            let (line, column) = (error.line(), error.column());
            tracing::error!(
                uid,
                line,
                column,
                "what is declared is not understood: is the operator newer than this agent?"
            );
            None
        }
    });
    read.collect()
}

async fn bounded<K>(request: impl Future<Output = kube::Result<K>>) -> Result<K, ReportError> {
    match tokio::time::timeout(REQUEST, request).await {
        Ok(answer) => answer.map_err(|error| ReportError::Failed(Box::new(error))),
        Err(_) => Err(ReportError::Silent(REQUEST)),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

    use machine::access::Declared;

    use super::*;

    fn report(more: u32) -> Report {
        Report {
            more,
            ..Report::default()
        }
    }

    #[test]
    fn only_what_differs_is_written() {
        let reports = BTreeMap::from([("a".to_owned(), report(0)), ("b".to_owned(), report(1))]);
        let first = changes(&BTreeMap::new(), &reports, false);
        assert_eq!(first.len(), 2);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut found: BTreeMap<String, String> = first.iter().map(|(uid, value)| (uid.clone(), text(value))).collect();
        assert!(changes(&found, &reports, false).is_empty());
        let failed = BTreeMap::from([("a".to_owned(), report(7)), ("b".to_owned(), report(1))]);
        assert!(
            changes(&found, &failed, true).is_empty(),
            "what was told of the same entry stays"
        );
        assert_eq!(changes(&found, &failed, false).len(), 1);
        found.insert("gone".to_owned(), String::new());
        found.insert("b".to_owned(), text(&first["a"]));
        let again = changes(&found, &reports, false);
        assert_eq!(
            again,
            [("b".to_owned(), first["b"].clone()), ("gone".to_owned(), Value::Null)].into()
        );
    }

    #[test]
    fn an_entry_that_is_not_understood_hides_no_other() {
        let good = json!({
            "at": "2027-01-01T00:00:00Z",
            "declared": {
                "uid": "u", "name": "app", "attributes": {"login": true}, "password": "none", "grants": [],
            },
        });
        let owner = OwnerReference {
            uid: "c0ffee".to_owned(),
            ..OwnerReference::default()
        };
        let secret = Secret {
            metadata: ObjectMeta {
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some(
                [("u", good.to_string()), ("v", "{}".to_owned())]
                    .map(|(uid, text)| (uid.to_owned(), ByteString(text.into_bytes())))
                    .into(),
            ),
            ..Secret::default()
        };
        assert!(read_declarations(&secret, "another cluster's").is_empty());
        let read = read_declarations(&secret, "c0ffee");
        assert_eq!(Vec::from_iter(read.keys()), ["u"]);
        let Declared::Role(role) = &read["u"].declared else {
            panic!("a role")
        };
        assert_eq!(role.name, "app");
    }
}
