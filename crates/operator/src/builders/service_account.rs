//! The ServiceAccount that a database's agents run as.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::Subject;

/// The agents' ServiceAccount, with the annotations that the user asks for. Its token is mounted only where a pod
/// says so.
pub fn service_account(subject: &Subject<'_>) -> ServiceAccount {
    let mut metadata = subject.meta(subject.names.cluster().to_owned());
    let annotations = &subject.db.spec.service_account_annotations;
    metadata.annotations = (!annotations.is_empty()).then(|| annotations.clone());
    ServiceAccount {
        metadata,
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::fixture::database;
    use crate::config::Config;

    #[test]
    fn carries_the_users_annotations() {
        let db = database(serde_json::json!({
            "storage": {"size": "1Gi"}, "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:x"},
        }));
        let config = Config::default();
        let account = service_account(&Subject::new(&db, &config).unwrap());
        assert_eq!(
            account.metadata.annotations.unwrap()["eks.amazonaws.com/role-arn"],
            "arn:x"
        );
        assert_eq!(account.automount_service_account_token, Some(false));
    }
}
