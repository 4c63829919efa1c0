//! Rules about the resource as a whole: its name, its size.

use super::{Rule, text};
use crate::names::{MAX_INSTANCES, MAX_NAME, Names};

/// The field that rules about the whole resource name.
pub(super) const PATH: &str = "metadata.name";

pub(super) fn rules() -> Vec<Rule> {
    vec![
        Rule::holds(
            "",
            format!("size(self.metadata.name) <= {MAX_NAME}"),
            "metadata.name must be at most 40 characters: choose a shorter one, since names of pods and Services are made from it",
            |resource| name(resource).len() <= MAX_NAME,
        ),
        Rule::holds(
            "",
            format!("self.metadata.name.matches('{}')", text::DNS_LABEL),
            "metadata.name must start with a lower-case letter, hold only lower-case letters, digits and dashes, and not end in a dash: choose another one, since names of Services are made from it",
            |resource| text::is_dns_label(name(resource)),
        ),
        Rule::holds(
            "",
            "!has(self.spec.bootstrap) || !has(self.spec.bootstrap.initdb) || !has(self.spec.bootstrap.initdb.passwordSecretRef) || !(['-app', '-ca', '-tls'].exists(suffix, self.spec.bootstrap.initdb.passwordSecretRef.name == self.metadata.name + suffix))",
            "bootstrap.initdb.passwordSecretRef.name must not be the name of a Secret that the operator makes itself: leave it out, or name one of your own",
            |resource| {
                let names = Names::new(name(resource));
                let own = [names.app_secret(), names.ca_secret(), names.tls_secret()];
                let secret = resource.spec.initdb().password_secret_ref.as_ref();
                secret.is_none_or(|secret| !own.contains(&secret.name))
            },
        )
        .about("spec.bootstrap.initdb.passwordSecretRef.name"),
        Rule::holds(
            "spec.replicas",
            format!("self >= 1 && self <= {MAX_INSTANCES}"),
            format!("replicas must be 1 to {MAX_INSTANCES}"),
            |resource| (1..=MAX_INSTANCES.cast_signed()).contains(&resource.spec.replicas),
        ),
    ]
}

fn name(resource: &crate::ClusteredDatabase) -> &str {
    resource.metadata.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_bound() {
        assert!(rules()[0].message.contains(&format!(" {MAX_NAME} ")));
    }
}
