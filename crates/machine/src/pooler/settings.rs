//! PgBouncer's configuration, as it follows from the spec and from where the server is.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use api::pooler::{PoolMode, PoolerSpec};

use crate::access::{LOOKUP, LOOKUP_DATABASE, POOLER_ROLE};

/// A server that PgBouncer connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The name that its certificate has to have.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Its address, if the name is one that only the pod's own `/etc/hosts` knows.
    pub address: Option<IpAddr>,
}

impl Server {
    /// The primary at this address. Its name holds the address, so that no answer of a name server is ever outdated; the members'
    /// certificate is one for every name below `headless`, the cluster's Service without an address.
    pub fn at(address: IpAddr, port: u16, headless: &str, namespace: &str) -> Self {
        let label = address.to_string().replace(['.', ':'], "-");
        Self {
            host: format!("{label}.{headless}.{namespace}.svc"),
            port,
            address: Some(address),
        }
    }

    /// Whatever a Service of this name leads to.
    pub fn of_service(service: &str, port: u16, namespace: &str) -> Self {
        Self {
            host: format!("{service}.{namespace}.svc"),
            port,
            address: None,
        }
    }

    /// Its line in `/etc/hosts`.
    pub fn line(&self) -> Option<String> {
        self.address.map(|address| format!("{address} {}\n", self.host))
    }
}

/// Where things are in the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Folder of the sockets and of what is written here.
    pub run: String,
    /// Folder of the certificates.
    pub certificates: String,
    /// Port for clients.
    pub port: u16,
}

/// What is set unless the spec says otherwise. PgBouncer's own defaults are made for a server that never moves: it would wait 15 s for a
/// connection to a dead one, and as long until it tries again.
const DEFAULTS: [(&str, &str); 11] = [
    ("client_login_timeout", "30"),
    ("ignore_startup_parameters", "extra_float_digits"),
    ("log_connections", "0"),
    ("log_disconnections", "0"),
    ("query_wait_timeout", "60"),
    ("server_connect_timeout", "2"),
    // A statement whose server died silently is given up after some seconds, not minutes.
    ("tcp_keepcnt", "3"),
    ("tcp_keepidle", "3"),
    ("tcp_keepintvl", "1"),
    ("tcp_user_timeout", "5000"),
    ("stats_period", "600"),
];

/// The configuration of the process with this number, from 1, of so many.
pub fn configuration(spec: &PoolerSpec, server: &Server, places: &Places, process: u32, processes: u32) -> String {
    let limits = &spec.limits;
    let all = spec.all_processes().max(1);
    let share = |number: i32| {
        (number / i32::try_from(processes).unwrap_or(1).max(1))
            .max(1)
            .to_string()
    };
    let of_all = |number: i32| (number / all).max(1).to_string();
    let (run, certificates) = (&places.run, &places.certificates);
    let mode = match spec.pool_mode {
        PoolMode::Transaction => "transaction",
        PoolMode::Session => "session",
    };
    let query = format!("SELECT role, verifier FROM {LOOKUP}($1)");
    let fixed = [
        ("listen_addr", "*".to_owned()),
        ("listen_port", places.port.to_string()),
        ("so_reuseport", "1".to_owned()),
        ("unix_socket_dir", format!("{run}/{process}")),
        ("unix_socket_mode", "0700".to_owned()),
        ("peer_id", process.to_string()),
        ("auth_type", "scram-sha-256".to_owned()),
        ("auth_user", POOLER_ROLE.to_owned()),
        ("auth_dbname", LOOKUP_DATABASE.to_owned()),
        ("auth_query", query),
        ("pool_mode", mode.to_owned()),
        ("max_client_conn", share(limits.max_client_connections)),
        ("default_pool_size", share(limits.pool_size)),
        ("max_db_connections", of_all(limits.max_server_connections)),
        // Who waits is served by the next server at once; PgBouncer refuses new clients for this long after a failed connection.
        ("server_login_retry", "1".to_owned()),
        ("server_fast_close", "1".to_owned()),
        ("server_reset_query", "DISCARD ALL".to_owned()),
        ("dns_max_ttl", "1".to_owned()),
        ("dns_nxdomain_ttl", "1".to_owned()),
        ("client_tls_sslmode", "require".to_owned()),
        // No client's certificate is asked for, but PgBouncer does not start without an authority.
        ("client_tls_ca_file", format!("{certificates}/ca.crt")),
        ("client_tls_cert_file", format!("{certificates}/tls.crt")),
        ("client_tls_key_file", format!("{certificates}/tls.key")),
        ("server_tls_sslmode", "verify-full".to_owned()),
        ("server_tls_ca_file", format!("{certificates}/ca.crt")),
        ("server_tls_cert_file", format!("{certificates}/client.crt")),
        ("server_tls_key_file", format!("{certificates}/client.key")),
    ];
    let mut settings: BTreeMap<&str, String> = DEFAULTS.map(|(name, value)| (name, value.to_owned())).into();
    settings.extend(
        spec.parameters
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone())),
    );
    settings.extend(fixed);
    let mut text = format!(
        "[databases]\n* = host={} port={}\n\n[pgbouncer]\n",
        server.host, server.port
    );
    // Writing to a String cannot fail.
    for (name, value) in settings {
        let _ = writeln!(text, "{name} = {value}");
    }
    text.push_str("\n[peers]\n");
    for peer in 1..=processes {
        let _ = writeln!(text, "{peer} = host={run}/{peer} port={}", places.port);
    }
    text
}
