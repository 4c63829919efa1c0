//! What DatabaseUsers and Databases declare, and telling what became of it.

use std::collections::BTreeMap;
use std::time::Duration;

use api::declared::PlannedStatement;
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
    let before = |uid: &String| serde_json::from_str::<Report>(found.get(uid)?).ok();
    let mut told = BTreeMap::new();
    for (uid, report) in reports {
        let report = match before(uid) {
            Some(before) if keeps && before.of == report.of => before,
            before => report.clone().after(before.as_ref()),
        };
        told.insert(uid.clone(), report);
    }
    shorten(&mut told);
    let differs = |(uid, report): (String, Report)| {
        let text = serde_json::to_string(&report).unwrap_or_default();
        (found.get(&uid) != Some(&text)).then_some((uid, Value::String(text)))
    };
    let gone = found.keys().filter(|uid| !reports.contains_key(*uid));
    let gone = gone.map(|uid| (uid.clone(), Value::Null));
    told.into_iter().filter_map(differs).chain(gone).collect()
}

/// Bytes of statements that are told of all together: a ConfigMap holds 1 MiB.
const MOST: usize = 256 << 10;

/// Leaves statements out if there are too many for one ConfigMap.
fn shorten(reports: &mut BTreeMap<String, Report>) {
    fn drop_all(statements: &mut Vec<PlannedStatement>) -> u32 {
        u32::try_from(std::mem::take(statements).len()).unwrap_or(u32::MAX)
    }
    let statements = |report: &Report| {
        let drift = report.drift.iter().flat_map(|drift| &drift.statements);
        drift.chain(&report.plan).map(|step| step.sql.len()).sum::<usize>()
    };
    if reports.values().map(statements).sum::<usize>() <= MOST {
        return;
    }
    for report in reports.values_mut() {
        report.more = report.more.saturating_add(drop_all(&mut report.plan));
        if let Some(drift) = &mut report.drift {
            let more = drop_all(&mut drift.statements);
            drift.more = Some(drift.more.unwrap_or_default().saturating_add(more));
        }
    }
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

    use api::declared::Drift;
    use machine::access::Declared;

    use super::*;

    fn report(more: u32) -> Report {
        Report {
            more,
            ..Report::default()
        }
    }

    #[test]
    fn what_was_mended_is_kept_and_too_many_statements_are_only_counted() {
        let statement = PlannedStatement {
            sql: "x".repeat(MOST / 4),
            ..PlannedStatement::default()
        };
        let drift = |count: usize| Drift {
            at: chrono::DateTime::UNIX_EPOCH,
            statements: vec![statement.clone(); count],
            more: None,
        };
        let mut found = BTreeMap::new();
        let mut tell = |drift: Option<Drift>, plan: usize| {
            let plan = vec![statement.clone(); plan];
            let report = Report {
                drift,
                plan,
                ..Report::default()
            };
            let changes = changes(&found, &BTreeMap::from([("a".to_owned(), report)]), false);
            for (uid, text) in changes {
                found.insert(uid, text.as_str().unwrap_or_default().to_owned());
            }
            serde_json::from_str::<Report>(&found["a"]).expect("a report")
        };
        assert_eq!(tell(Some(drift(1)), 0).drift, None, "it is new");
        assert_eq!(tell(Some(drift(2)), 0).drift, Some(drift(2)));
        assert_eq!(tell(None, 0).drift, Some(drift(2)));
        let shortened = tell(Some(drift(3)), 2);
        assert_eq!((shortened.plan.len(), shortened.more), (0, 2));
        let drift = shortened.drift.expect("a drift");
        assert_eq!((drift.statements.len(), drift.more), (0, Some(3)));
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
        found.insert("b".to_owned(), "of a newer agent".to_owned());
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
