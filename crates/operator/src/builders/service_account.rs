//! The ServiceAccount that a database's agents run as.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::{Subject, add_metadata};

/// The agents' ServiceAccount, with the labels and annotations that the user asks for. Its token is mounted only where a pod
/// says so.
pub fn service_account(subject: &Subject<'_>) -> ServiceAccount {
    let mut metadata = subject.meta(subject.names.cluster().to_owned());
    add_metadata(&mut metadata, &subject.db.spec.service_account.metadata);
    ServiceAccount {
        metadata,
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

#[cfg(test)]
mod tests {
    use api::names::LABEL_CLUSTER;

    use super::*;
    use crate::builders::fixture::database;
    use crate::config::Config;

    #[test]
    fn carries_the_users_labels_and_annotations() {
        let db = database(serde_json::json!({
            "storage": {"data": {"size": "1Gi"}}, "serviceAccount": {"metadata": {
                "labels": {"team": "shop", LABEL_CLUSTER: "other"}, "annotations": {"eks.amazonaws.com/role-arn": "arn:x"}}},
        }));
        let config = Config::default();
        let account = service_account(&Subject::new(&db, &config).unwrap());
        assert_eq!(
            account.metadata.annotations.unwrap()["eks.amazonaws.com/role-arn"],
            "arn:x"
        );
        let labels = account.metadata.labels.unwrap();
        assert_eq!(
            (labels["team"].as_str(), labels[LABEL_CLUSTER].as_str()),
            ("shop", "db")
        );
        assert_eq!(account.automount_service_account_token, Some(false));
    }
}
