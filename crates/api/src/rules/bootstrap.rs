//! Rules about `spec.bootstrap`.

use super::{Rule, cel_list, text};
use crate::ClusteredDatabase;
use crate::spec::{InitdbSpec, NEWEST, PasswordSecretRef};

/// Names that mean something else to PostgreSQL, as a database or as a role: the owner's name is by default the database's.
const RESERVED: [&str; 5] = ["none", "postgres", "public", "template0", "template1"];
const PREFIXES: [&str; 2] = ["pg_", "cdb_"];
pub(super) const MAX_STATEMENTS: usize = 64;
/// With [`MAX_STATEMENTS`] that is 1 MiB: it fits into one object of the API server's store, with room for the rest.
const MAX_STATEMENT: usize = 16_384;

/// In CEL: a database was made, or may be by now.
const BEGUN: &str = "has(oldSelf.status) && (has(oldSelf.status.systemIdentifier) || (has(oldSelf.status.intent) && has(oldSelf.status.intent.bootstrap)) || (has(oldSelf.status.memo) && has(oldSelf.status.memo.adopted)))";

/// See [`BEGUN`].
fn has_begun(old: &ClusteredDatabase) -> bool {
    old.status.as_ref().is_some_and(|status| {
        status.system_identifier.is_some() || status.intent.bootstrap.is_some() || status.memo.adopted.is_some()
    })
}

pub(super) fn rules() -> Vec<Rule> {
    let prefixes = cel_list(&PREFIXES);
    let names = cel_list(&RESERVED);
    let reserved = format!(
        "!(self.lowerAscii() in {names}) && !({prefixes}.exists(prefix, self.lowerAscii().startsWith(prefix)))"
    );
    vec![
        Rule::may_become(
            "",
            format!(
                "(has(self.spec.bootstrap) == has(oldSelf.spec.bootstrap) && (!has(self.spec.bootstrap) || self.spec.bootstrap == oldSelf.spec.bootstrap)) || !({BEGUN})"
            ),
            "bootstrap cannot be changed, since it was already carried out: put it back as it was",
            |old, new| old.spec.bootstrap == new.spec.bootstrap || !has_begun(old),
        )
        .about("spec.bootstrap"),
        Rule::holds(
            "spec.bootstrap.initdb.database",
            format!("self.matches('^{}$')", text::IDENTIFIER),
            "database must be 1 to 63 letters, digits, underscores and dashes, and start with a letter or an underscore: choose another name",
            |resource| text::is_identifier(&initdb(resource).database),
        ),
        Rule::holds(
            "spec.bootstrap.initdb.database",
            reserved.clone(),
            "database must not be none, postgres, public, template0 or template1, nor begin with pg_ or cdb_: choose another name",
            |resource| !is_reserved(&initdb(resource).database),
        ),
        Rule::holds(
            "spec.bootstrap.initdb.owner",
            format!("self.matches('^{}$')", text::IDENTIFIER),
            "owner must be 1 to 63 letters, digits, underscores and dashes, and start with a letter or an underscore: choose another name",
            |resource| initdb(resource).owner.as_deref().is_none_or(text::is_identifier),
        ),
        Rule::holds(
            "spec.bootstrap.initdb.owner",
            reserved,
            "owner must not be none, postgres, public, template0 or template1, nor begin with pg_ or cdb_: choose another name",
            |resource| initdb(resource).owner.as_deref().is_none_or(|owner| !is_reserved(owner)),
        ),
        Rule::holds(
            "spec.bootstrap.initdb.passwordSecretRef.name",
            text::dns_subdomain(),
            "passwordSecretRef.name must be the name of a Secret in the same namespace (lower-case letters, digits, dashes and dots)",
            |resource| secret(resource).is_none_or(|secret| text::is_dns_subdomain(&secret.name)),
        ),
        Rule::holds(
            "spec.bootstrap.initdb.passwordSecretRef.key",
            format!("self.matches('{}')", text::SECRET_KEY),
            "passwordSecretRef.key must be a key of a Secret: 1 to 253 letters, digits, dashes, underscores and dots",
            |resource| secret(resource).is_none_or(|secret| text::is_secret_key(&secret.key)),
        ),
        Rule::holds(
            "spec.bootstrap.volumes.adopt",
            "self.matches('^(Newest|[0-9a-f-]{36})$')",
            "volumes.adopt must be Newest, or the UID of the deleted ClusteredDatabase: correct it",
            |resource| adopts(resource).is_none_or(is_adoptable),
        ),
        Rule::holds(
            "spec.bootstrap.initdb.locale",
            "self.matches('^[A-Za-z0-9_.@-]{1,64}$')",
            "locale must be the name of a locale in the image, such as C.UTF-8 or en_US.UTF-8",
            |resource| is_locale(&initdb(resource).locale),
        ),
        Rule::holds(
            "spec.bootstrap.initdb.walSegmentSize",
            "self in [1, 2, 4, 8, 16]",
            "walSegmentSize must be 1, 2, 4, 8 or 16 MiB: correct it",
            |resource| matches!(initdb(resource).wal_segment_size(), 1 | 2 | 4 | 8 | 16),
        ),
        Rule::holds(
            "spec.bootstrap.initdb.postInitApplicationSQL",
            format!("size(self) <= {MAX_STATEMENTS}"),
            "postInitApplicationSQL must hold at most 64 statements: join some, or run them later",
            |resource| initdb(resource).post_init_application_sql.len() <= MAX_STATEMENTS,
        ),
        Rule::holds(
            "spec.bootstrap.initdb.postInitApplicationSQL",
            are_statements(),
            "postInitApplicationSQL must hold statements of 1 to 16384 characters without NUL: split or correct them",
            |resource| initdb(resource).post_init_application_sql.iter().all(|statement| is_statement(statement)),
        ),
    ]
}

/// That a list holds what could be statements, in CEL.
pub(super) fn are_statements() -> String {
    format!(
        "self.all(statement, size(statement) >= 1 && size(statement) <= {MAX_STATEMENT} && !statement.contains('\\u0000'))"
    )
}

/// The shortest list of statements with the same result of [`validate`](super::validate) as this one. It serves callers that
/// validate a resource again and again, and run no statement.
#[must_use]
pub fn shortest_alike(statements: &[String]) -> Vec<String> {
    let statement = match statements.iter().all(|statement| is_statement(statement)) {
        true => ";",
        false => "",
    };
    let number = match statements.len() {
        many if many > MAX_STATEMENTS => MAX_STATEMENTS + 1,
        _ => usize::from(statement.is_empty()),
    };
    vec![statement.to_owned(); number]
}

pub(super) fn is_statement(statement: &str) -> bool {
    (1..=MAX_STATEMENT).contains(&text::size(statement)) && !statement.contains('\0')
}

fn adopts(resource: &ClusteredDatabase) -> Option<&str> {
    let volumes = resource.spec.bootstrap.as_ref()?.volumes.as_ref()?;
    Some(&volumes.adopt)
}

fn is_adoptable(name: &str) -> bool {
    let is_of_uid = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b'-');
    name == NEWEST || name.len() == 36 && name.bytes().all(is_of_uid)
}

fn initdb(resource: &ClusteredDatabase) -> &InitdbSpec {
    resource.spec.initdb()
}

fn secret(resource: &ClusteredDatabase) -> Option<&PasswordSecretRef> {
    initdb(resource).password_secret_ref.as_ref()
}

fn is_reserved(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    RESERVED.contains(&name.as_str()) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

pub(crate) fn is_locale(locale: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'@' | b'-');
    (1..=64).contains(&locale.len()) && locale.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::validate;
    use super::*;

    #[test]
    fn the_shortest_list_is_judged_as_the_whole_one() {
        let long = |number: usize| vec!["x".repeat(MAX_STATEMENT); number];
        for (statements, left) in [
            (vec![], 0),
            (long(1), 0),
            (long(MAX_STATEMENTS), 0),
            (long(MAX_STATEMENTS + 9), MAX_STATEMENTS + 1),
            (vec![String::new()], 1),
            (vec!["x".repeat(MAX_STATEMENT + 1), "y".to_owned()], 1),
            (vec!["\0".to_owned()], 1),
            (vec![String::new(); MAX_STATEMENTS + 2], MAX_STATEMENTS + 1),
        ] {
            let judged = |statements: &[String]| {
                let db: ClusteredDatabase = serde_json::from_value(json!({
                    "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
                    "metadata": {"name": "db"},
                    "spec": {"storage": {"data": {"size": "1Gi"}}, "bootstrap": {"initdb": {"postInitApplicationSQL": statements}}},
                }))
                .unwrap();
                validate(&db)
            };
            let shortest = shortest_alike(&statements);
            assert_eq!(judged(&shortest), judged(&statements));
            assert_eq!(shortest.len(), left);
            assert!(shortest.concat().len() <= MAX_STATEMENTS + 1);
        }
    }
}
