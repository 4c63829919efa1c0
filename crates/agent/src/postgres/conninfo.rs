//! Connection strings with which a member reaches the primary.

use std::path::Path;

use super::quote;
use super::settings::{Files, Primary};

/// Session limits in `postgresql.conf` must not end a member's stream: between two commands its WAL sender is an idle
/// session.
const OPTIONS: &str = "-c idle_session_timeout=0 -c statement_timeout=0";
/// A path that does not exist: libpq would complain about a file of another kind.
const NO_PASSWORDS: &str = "/nonexistent/pgpass";

/// The connection string with which a member streams from `primary`, under its own name, with which it may acknowledge
/// commits. It uses the copy of the key that a promise removes. The server is checked by the cluster's authority, not
/// by its name: pods are reached by address, and only agents hold certificates of that authority.
pub(super) fn streaming(primary: &Primary, files: &Files) -> String {
    let name = primary.member.as_str();
    join(&[("application_name", name)], primary, files, &files.credential)
}

/// The connection string of a tool that works for the member. Its name, `tool` before the member's, may not acknowledge
/// commits: `pg_basebackup` reports WAL that it has only written as flushed.
pub(super) fn tool(tool: &str, database: Option<&str>, primary: &Primary, files: &Files) -> String {
    let name = format!("{tool}-{}", primary.member);
    let mut first = vec![("application_name", name.as_str())];
    first.extend(database.map(|database| ("dbname", database)));
    join(&first, primary, files, &files.key)
}

fn join(first: &[(&str, &str)], primary: &Primary, files: &Files, key: &Path) -> String {
    let authority = files.tls.join("ca.crt");
    let rest = [
        ("hostaddr", primary.address.to_string()),
        ("port", primary.port.to_string()),
        ("user", primary.member.to_string()),
        ("sslmode", "verify-ca".to_owned()),
        ("sslrootcert", authority.to_string_lossy().into_owned()),
        ("sslcert", files.certificate.to_string_lossy().into_owned()),
        ("sslkey", key.to_string_lossy().into_owned()),
        ("ssl_min_protocol_version", "TLSv1.3".to_owned()),
        ("gssencmode", "disable".to_owned()),
        ("passfile", NO_PASSWORDS.to_owned()),
        ("options", OPTIONS.to_owned()),
        ("connect_timeout", "3".to_owned()),
        ("keepalives_idle", "5".to_owned()),
        ("keepalives_interval", "2".to_owned()),
        ("keepalives_count", "3".to_owned()),
        ("tcp_user_timeout", "10000".to_owned()),
    ];
    let first = first.iter().map(|(name, value)| (*name, (*value).to_owned()));
    let parameters: Vec<String> = first
        .chain(rest)
        .map(|(name, value)| format!("{name}={}", quote::conninfo(&value)))
        .collect();
    parameters.join(" ")
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use machine::protocol::MemberId;

    use super::*;

    #[test]
    fn only_the_stream_bears_a_name_that_may_acknowledge() {
        let member = MemberId::new(1, "1a2b3c4d", 7);
        let primary = Primary {
            address: IpAddr::from([10, 0, 0, 2]),
            port: 5432,
            member: member.clone(),
        };
        let files = Files {
            socket: "/run".into(),
            tls: "/tls".into(),
            certificate: "/agent/replication.crt".into(),
            key: "/agent/replication.key".into(),
            credential: "/agent/replication.key.active".into(),
            system_user: "postgres".into(),
        };
        let own = format!("application_name='{member}'");
        let stream = streaming(&primary, &files);
        assert!(
            stream.contains(&own) && stream.contains("sslkey='/agent/replication.key.active'"),
            "{stream}"
        );
        let clone = tool("clone", None, &primary, &files);
        assert!(
            !clone.contains(&own) && clone.contains("sslkey='/agent/replication.key'"),
            "{clone}"
        );
        assert_eq!(MemberId::parse(&format!("clone-{member}")), None);
        assert!(clone.contains(&format!("user='{member}'")));
    }
}
