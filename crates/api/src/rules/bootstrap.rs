//! Rules about `spec.bootstrap`.

use super::{Rule, cel_list, text};
use crate::{ClusteredDatabase, spec::InitdbSpec};

/// Letters that no client, shell, URI or configuration file needs quoted or mistakes for others. Wider sets can come
/// later; narrower ones could not.
const IDENTIFIER: &str = "^[A-Za-z_][A-Za-z0-9_-]{0,62}$";
const DATABASES: [&str; 4] = ["postgres", "public", "template0", "template1"];
const ROLES: [&str; 3] = ["none", "postgres", "public"];
const PREFIXES: [&str; 2] = ["pg_", "cdb_"];
const MAX_STATEMENTS: usize = 64;
/// With [`MAX_STATEMENTS`], 1 MiB: what the API server's store takes in one object, with room for the rest.
const MAX_STATEMENT: usize = 16_384;

pub(super) fn rules() -> Vec<Rule> {
    let prefixes = cel_list(&PREFIXES);
    let reserved = |names: &[&str]| {
        let names = cel_list(names);
        format!("!(self.lowerAscii() in {names}) && !({prefixes}.exists(prefix, self.lowerAscii().startsWith(prefix)))")
    };
    vec![
        Rule::may_become(
            "spec.bootstrap",
            "self == oldSelf",
            "bootstrap cannot be changed, since it was already carried out: put it back as it was",
            |old, new| old.spec.bootstrap == new.spec.bootstrap,
        ),
        Rule::holds(
            "spec.bootstrap.initdb.database",
            format!("self.matches('{IDENTIFIER}')"),
            "database must be 1 to 63 letters, digits, underscores and dashes, and start with a letter or an underscore: choose another name",
            |resource| is_identifier(&initdb(resource).database),
        ),
        Rule::holds(
            "spec.bootstrap.initdb.database",
            reserved(&DATABASES),
            "database must not be postgres, public, template0 or template1, nor begin with pg_ or cdb_: choose another name",
            |resource| !is_reserved(&initdb(resource).database, &DATABASES),
        ),
        Rule::holds(
            "spec.bootstrap.initdb.owner",
            format!("self.matches('{IDENTIFIER}')"),
            "owner must be 1 to 63 letters, digits, underscores and dashes, and start with a letter or an underscore: choose another name",
            |resource| is_identifier(&initdb(resource).owner),
        ),
        Rule::holds(
            "spec.bootstrap.initdb.owner",
            reserved(&ROLES),
            "owner must not be none, postgres or public, nor begin with pg_ or cdb_: choose another name",
            |resource| !is_reserved(&initdb(resource).owner, &ROLES),
        ),
        Rule::holds(
            "spec.bootstrap.initdb.passwordSecret",
            format!(
                "size(self) <= {} && self.matches('{}')",
                text::MAX_DNS_SUBDOMAIN,
                text::DNS_SUBDOMAIN
            ),
            "passwordSecret must be the name of a Secret in the same namespace (lower-case letters, digits, dashes and dots)",
            |resource| {
                initdb(resource)
                    .password_secret
                    .as_deref()
                    .is_none_or(text::is_dns_subdomain)
            },
        ),
        Rule::holds(
            "spec.bootstrap.initdb.locale",
            "self.matches('^[A-Za-z0-9_.@-]{1,64}$')",
            "locale must be the name of a locale in the image, such as C.UTF-8 or en_US.UTF-8",
            |resource| is_locale(&initdb(resource).locale),
        ),
        Rule::holds(
            "spec.bootstrap.initdb.postInitSql",
            format!("size(self) <= {MAX_STATEMENTS}"),
            "postInitSql must hold at most 64 statements: join some, or run them later",
            |resource| initdb(resource).post_init_sql.len() <= MAX_STATEMENTS,
        ),
        Rule::holds(
            "spec.bootstrap.initdb.postInitSql",
            format!(
                "self.all(statement, size(statement) >= 1 && size(statement) <= {MAX_STATEMENT} && !statement.contains('\\u0000'))"
            ),
            "postInitSql must hold statements of 1 to 16384 characters without NUL: split or correct them",
            |resource| {
                initdb(resource)
                    .post_init_sql
                    .iter()
                    .all(|statement| is_statement(statement))
            },
        ),
    ]
}

/// The shortest list of statements that [`validate`](super::validate) judges as it judges this one: for who validates a
/// resource again and again, and runs no statement.
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

fn is_statement(statement: &str) -> bool {
    (1..=MAX_STATEMENT).contains(&text::size(statement)) && !statement.contains('\0')
}

fn initdb(resource: &ClusteredDatabase) -> &InitdbSpec {
    &resource.spec.bootstrap.initdb
}

fn is_identifier(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    name.len() <= 63 && name.bytes().all(inner) && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

fn is_reserved(name: &str, names: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    names.contains(&name.as_str()) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn is_locale(locale: &str) -> bool {
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
                    "apiVersion": "clustereddatabase.io/v1alpha1", "kind": "ClusteredDatabase",
                    "metadata": {"name": "db"},
                    "spec": {"storage": {"size": "1Gi"}, "bootstrap": {"initdb": {"postInitSql": statements}}},
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
