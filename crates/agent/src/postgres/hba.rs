//! The rules for connections: `pg_hba.conf` and `pg_ident.conf`. PostgreSQL applies the first rule that matches.

use machine::access::CERTIFICATES_ROLE;

use super::{MEMBERS_ROLE, quote};

const HEADER: &str = "# Written by the agent; changes made here are lost.\n";

/// Database that `pg_rewind` connects to; the functions that it calls are granted to the members there.
pub(super) const REWIND_DATABASE: &str = "postgres";

/// `pg_hba.conf`.
///
/// - The superuser connects only through the socket, and only as the system user that the server runs as; so does `pg_basebackup`.
/// - A member connects with a certificate whose common name is its own role, to replicate and to rewind.
/// - A role that is to log in with a certificate does so, with its own name as the common name, and in no other way.
/// - Everybody else connects as the user's own lines say, or with a password over TLS; nobody does if there are none, since the
///   server is closed.
pub(super) fn pg_hba(users: Option<Vec<&str>>) -> String {
    let members = format!("+{MEMBERS_ROLE}");
    let rules = [
        ["local", "all", "postgres", "", "peer map=cdb"],
        ["local", "replication", "postgres", "", "peer map=cdb"],
        ["local", "all", "all", "", "reject"],
        ["local", "replication", "all", "", "reject"],
        ["hostssl", "replication", &members, "all", "cert"],
        ["hostssl", REWIND_DATABASE, &members, "all", "cert"],
        ["host", "replication", "all", "all", "reject"],
        ["host", "all", "postgres", "all", "reject"],
        ["host", "all", &members, "all", "reject"],
    ];
    let columns = |[kind, database, user, address, method]: [&str; 5]| {
        let line = format!("{kind:<8} {database:<12} {user:<14} {address:<4} {method}");
        line.trim_end().to_owned() + "\n"
    };
    let mut text = HEADER.to_owned();
    text.extend(rules.map(columns));
    if let Some(users) = users {
        let certified = format!("+{CERTIFICATES_ROLE}");
        text.push_str(&columns(["hostssl", "all", &certified, "all", "cert"]));
        text.push_str(&columns(["host", "all", &certified, "all", "reject"]));
        text.extend(users.into_iter().flat_map(|line| [line, "\n"]));
        text.push_str(&columns(["hostssl", "all", "all", "all", "scram-sha-256"]));
    }
    text + &columns(["host", "all", "all", "all", "reject"])
}

/// `pg_hba.conf` of a server that only the agent may reach.
pub(super) fn private_hba() -> String {
    format!("{HEADER}local all postgres peer map=cdb\n")
}

/// `pg_ident.conf`: the system user that runs agent and server is `postgres` to PostgreSQL, whatever its name.
pub(super) fn pg_ident(system_user: &str) -> String {
    format!("{HEADER}cdb {} postgres\n", quote::hba(system_user))
}
