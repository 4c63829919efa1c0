//! An authority, and the certificates that it signs, as the operator makes them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};

/// The name that all agents of the tests' database share.
pub const NAME: &str = "orders-rw.default.svc";

/// A certificate authority.
pub struct Authority {
    /// Signs a certificate.
    pub issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = params("authority", &[]);
        params.extended_key_usages.clear();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let pem = params.self_signed(&key).expect("an authority").pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Writes `ca.crt`, `tls.crt` and `tls.key` for `name` and `hosts`.
    pub fn write(&self, directory: &Path, name: &str, hosts: &[&str]) {
        self.write_signed(directory, params(name, hosts));
    }

    /// As [`Authority::write`], with a certificate that has expired.
    #[allow(dead_code)]
    pub fn write_ended(&self, directory: &Path, name: &str, hosts: &[&str]) {
        let mut params = params(name, hosts);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.write_signed(directory, params);
    }

    fn write_signed(&self, directory: &Path, params: CertificateParams) {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        fs::create_dir_all(directory).expect("a directory");
        for (name, content) in [
            ("ca.crt", &self.pem),
            ("tls.crt", &certificate),
            ("tls.key", &key.serialize_pem()),
        ] {
            // As the kubelet does: another file under the same name.
            let staged = directory.join(format!(".{name}"));
            fs::write(&staged, content).expect("written");
            fs::set_permissions(&staged, fs::Permissions::from_mode(0o600)).expect("a mode");
            fs::rename(&staged, directory.join(name)).expect("in place");
        }
    }
}

/// The parameters of an agent's or a member's certificate.
pub fn params(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).expect("parameters");
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}
