//! Rules about PostgreSQL itself; `parameters` has those about its parameters.

use super::{Rule, text};
use crate::names::{PEER_PORT, PROBE_PORT};

/// The most libraries, lines of `pg_hba.conf` or pull secrets.
const MAX_COUNT: usize = 32;
/// A library in PostgreSQL's own directory.
const LIBRARY: &str = "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$";
const HBA_TYPES: [&str; 3] = ["host", "hostnossl", "hostssl"];
/// Methods that need neither a service outside nor a file, and do not take a client's word.
const HBA_METHODS: [&str; 4] = ["cert", "md5", "reject", "scram-sha-256"];
const HBA_KEYWORDS: [&str; 3] = ["all", "samehost", "samenet"];

pub(super) fn rules() -> Vec<Rule> {
    // None of them needs quotes.
    let names = format!("{0}(,{0})*", text::IDENTIFIER);
    let line = format!(
        "^({}) {names} [+]?{names} ({}|[0-9a-fA-F.:]+/[0-9]{{1,3}}) ({})$",
        HBA_TYPES.join("|"),
        HBA_KEYWORDS.join("|"),
        HBA_METHODS.join("|")
    );
    let keywords = super::cel_list(&HBA_KEYWORDS);
    vec![
        Rule::holds(
            "spec.postgres.sharedPreloadLibraries",
            format!("size(self) <= {MAX_COUNT} && self.all(library, library.matches('{LIBRARY}'))"),
            "sharedPreloadLibraries must hold at most 32 names of libraries without a path, such as pg_stat_statements: correct them",
            |resource| {
                let libraries = &resource.spec.postgres.shared_preload_libraries;
                libraries.len() <= MAX_COUNT && libraries.iter().all(|library| is_library(library))
            },
        ),
        Rule::holds(
            "spec.postgres.hba",
            format!(
                "size(self) <= {MAX_COUNT} && self.all(line, line.matches('{line}') && (line.split(' ')[3] in {keywords} || isCIDR(line.split(' ')[3])))"
            ),
            "hba must hold at most 32 lines of five words with one space between: host, hostssl or hostnossl; databases; users; all, samenet, samehost or a CIDR such as 10.0.0.0/8; scram-sha-256, md5, cert or reject",
            |resource| {
                let lines = &resource.spec.postgres.hba;
                lines.len() <= MAX_COUNT && lines.iter().all(|line| is_hba_line(line))
            },
        ),
        Rule::holds(
            "spec.postgres.imagePullSecrets",
            format!("size(self) <= {MAX_COUNT}"),
            "imagePullSecrets must hold at most 32 Secrets: remove some",
            |resource| resource.spec.postgres.image_pull_secrets.len() <= MAX_COUNT,
        ),
        Rule::holds(
            "spec.postgres.imagePullSecrets.*.name",
            text::dns_subdomain(),
            "imagePullSecrets must hold names of Secrets in the same namespace (lower-case letters, digits, dashes and dots)",
            |resource| {
                let secrets = &resource.spec.postgres.image_pull_secrets;
                secrets.iter().all(|secret| text::is_dns_subdomain(&secret.name))
            },
        ),
        Rule::holds(
            "spec.postgres.image",
            "size(self) <= 512 && self.matches('^[^ \\\\t\\\\r\\\\n]+$')",
            "image must be an image reference of 1 to 512 characters without spaces; leave it out for the operator's default",
            |resource| resource.spec.postgres.image.as_deref().is_none_or(is_image),
        ),
        Rule::holds(
            "spec.postgres.majorVersion",
            "self >= 15 && self <= 18",
            "majorVersion must be 15, 16, 17 or 18",
            |resource| (15..=18).contains(&resource.spec.postgres.major_version),
        ),
        Rule::may_become(
            "spec.postgres.majorVersion",
            "self == oldSelf",
            "majorVersion cannot be changed: make a new database of the other version and move the data into it",
            |old, new| old.spec.postgres.major_version == new.spec.postgres.major_version,
        ),
        Rule::holds(
            "spec.postgres.port",
            format!("self >= 1024 && self <= 65535 && self != {PROBE_PORT} && self != {PEER_PORT}"),
            "port must be 1024 to 65535, but not 8080 or 8433, on which the agent listens",
            |resource| {
                let port = resource.spec.postgres.port;
                port >= 1024 && port != PROBE_PORT && port != PEER_PORT
            },
        ),
        Rule::may_become(
            "spec.postgres.port",
            "self == oldSelf",
            "port cannot be changed: put the old one back, or make a new database with the other port",
            |old, new| old.spec.postgres.port == new.spec.postgres.port,
        ),
    ]
}

/// See [`LIBRARY`].
fn is_library(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    (1..=63).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with(['.', '-'])
}

/// Whether PostgreSQL takes this line, and it is one that users may add. The agent checks it again before it writes it.
pub fn is_hba_line(line: &str) -> bool {
    let [kind, databases, users, address, method] = line.split(' ').collect::<Vec<_>>()[..] else {
        return false;
    };
    HBA_TYPES.contains(&kind)
        && databases.split(',').all(text::is_identifier)
        && users
            .strip_prefix('+')
            .unwrap_or(users)
            .split(',')
            .all(text::is_identifier)
        && (HBA_KEYWORDS.contains(&address) || text::is_cidr(address))
        && HBA_METHODS.contains(&method)
}

fn is_image(image: &str) -> bool {
    (1..=512).contains(&text::size(image)) && !image.contains([' ', '\t', '\r', '\n'])
}
