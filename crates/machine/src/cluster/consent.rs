//! Whether a Secret may be used as a database's `passwordSecretRef`.

use std::collections::BTreeMap;

use api::names::{LABEL_CLUSTER, LABEL_PASSWORD_FOR};

/// Why the database `cluster` may not use the Secret `secret`, which has these labels, as its `passwordSecretRef`, and what to
/// change; `None` if it may.
///
/// A Secret consents by a label that names the database. Otherwise whoever may create databases could read, through a
/// database of their own, every Secret of the namespace that has a key `password`. A Secret of a database never consents:
/// its content is that database's alone.
pub fn password_refusal(cluster: &str, secret: &str, labels: &BTreeMap<String, String>) -> Option<String> {
    if let Some(owner) = labels.get(LABEL_CLUSTER) {
        return Some(format!(
            "the Secret {secret} (passwordSecretRef) belongs to the database {owner}, and no other database may use it: make a \
             Secret of your own with the key `password`"
        ));
    }
    if labels.get(LABEL_PASSWORD_FOR).is_some_and(|name| name == cluster) {
        return None;
    }
    Some(format!(
        "the Secret {secret} (passwordSecretRef) does not say that this database may use it: kubectl label secret {secret} \
         {LABEL_PASSWORD_FOR}={cluster}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels<const N: usize>(labels: [(&str, &str); N]) -> BTreeMap<String, String> {
        labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn a_secret_that_names_the_database_may_be_used() {
        assert_eq!(
            password_refusal("db", "mine", &labels([(LABEL_PASSWORD_FOR, "db")])),
            None
        );
    }

    #[test]
    fn a_secret_without_the_label_or_for_another_database_is_refused_with_the_command() {
        for labels in [labels([]), labels([(LABEL_PASSWORD_FOR, "other")])] {
            let refusal = password_refusal("db", "mine", &labels).unwrap();
            assert!(
                refusal.ends_with("kubectl label secret mine clustereddatabase.io/password-for=db"),
                "{refusal}"
            );
        }
    }

    #[test]
    fn a_secret_of_another_database_is_refused_even_with_the_label() {
        let stolen = labels([(LABEL_PASSWORD_FOR, "db"), (LABEL_CLUSTER, "other")]);
        let refusal = password_refusal("db", "other-app", &stolen).unwrap();
        assert!(refusal.contains("belongs to the database other"), "{refusal}");
    }
}
