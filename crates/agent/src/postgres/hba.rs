//! Who may connect: `pg_hba.conf` and `pg_ident.conf`. First match decides.

use super::{MEMBERS_ROLE, quote};

const HEADER: &str = "# Written by the agent; changes made here are lost.\n";

/// Database that `pg_rewind` connects to; the functions that it calls are granted to the members there.
pub(super) const REWIND_DATABASE: &str = "postgres";

/// `pg_hba.conf`.
///
/// The superuser comes through the socket alone, and only as the user that the server runs as. A member comes with a
/// certificate whose common name is its own role, to replicate and to rewind. Everybody else comes with a password over
/// TLS, if the server is `open`.
pub(super) fn pg_hba(open: bool) -> String {
    let members = format!("+{MEMBERS_ROLE}");
    let mut rules = vec![
        ["local", "all", "postgres", "", "peer map=cdb"],
        ["local", "all", "all", "", "reject"],
        ["local", "replication", "all", "", "reject"],
        ["hostssl", "replication", &members, "all", "cert"],
        ["hostssl", REWIND_DATABASE, &members, "all", "cert"],
        ["host", "replication", "all", "all", "reject"],
        ["host", "all", "postgres", "all", "reject"],
        ["host", "all", &members, "all", "reject"],
    ];
    if open {
        rules.push(["hostssl", "all", "all", "all", "scram-sha-256"]);
    }
    rules.push(["host", "all", "all", "all", "reject"]);
    let mut text = HEADER.to_owned();
    for [kind, database, user, address, method] in rules {
        text.push_str(format!("{kind:<8} {database:<12} {user:<14} {address:<4} {method}").trim_end());
        text.push('\n');
    }
    text
}

/// `pg_hba.conf` of a server that nobody but the agent may reach.
pub(super) fn private_hba() -> String {
    format!("{HEADER}local all postgres peer map=cdb\n")
}

/// `pg_ident.conf`: the system user that runs agent and server is `postgres` to PostgreSQL, whatever its name.
pub(super) fn pg_ident(system_user: &str) -> String {
    format!("{HEADER}cdb {} postgres\n", quote::hba(system_user))
}
