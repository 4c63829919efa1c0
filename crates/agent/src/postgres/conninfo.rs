//! How a standby reaches its primary.

use super::config::{Files, Primary};
use super::quote;

/// The connection string with which a member streams from and copies `primary`. The server is known by the cluster's
/// authority, not by a name: pods are reached by address, and only agents hold certificates of that authority.
pub(super) fn replication(primary: &Primary, files: &Files) -> String {
    let authority = files.tls.join("ca.crt");
    let parameters = [
        ("hostaddr", primary.address.to_string()),
        ("port", primary.port.to_string()),
        ("user", primary.member.to_string()),
        ("application_name", primary.member.to_string()),
        ("sslmode", "verify-ca".to_owned()),
        ("sslrootcert", authority.to_string_lossy().into_owned()),
        ("sslcert", files.certificate.to_string_lossy().into_owned()),
        ("sslkey", files.key.to_string_lossy().into_owned()),
        ("ssl_min_protocol_version", "TLSv1.3".to_owned()),
        ("gssencmode", "disable".to_owned()),
        ("passfile", "/dev/null".to_owned()),
        ("connect_timeout", "3".to_owned()),
        ("keepalives_idle", "5".to_owned()),
        ("keepalives_interval", "2".to_owned()),
        ("keepalives_count", "3".to_owned()),
        ("tcp_user_timeout", "10000".to_owned()),
    ];
    let parameters: Vec<String> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={}", quote::conninfo(value)))
        .collect();
    parameters.join(" ")
}
