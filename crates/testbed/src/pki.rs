//! Keys, certificates and kubeconfigs. They live as long as the testbed.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

use crate::paths::Paths;
use crate::plan::{Plan, node_name};

/// Group that the API server lets do everything.
const ADMINISTRATORS: &str = "system:masters";

/// One certificate: its file's name, the user and group that it names, and the
/// names and addresses it serves.
struct Subject {
    file: String,
    user: String,
    group: Option<&'static str>,
    names: Vec<String>,
}

impl Subject {
    fn user(file: &str, user: &str, group: Option<&'static str>) -> Self {
        Self {
            file: file.into(),
            user: user.into(),
            group,
            names: Vec::new(),
        }
    }
}

/// The users of the control plane, each with its own name, so that the audit
/// log tells them apart.
fn users() -> Vec<Subject> {
    vec![
        Subject::user("admin", "testbed:admin", Some(ADMINISTRATORS)),
        Subject::user("provisioner", "testbed:provisioner", Some(ADMINISTRATORS)),
        Subject::user("snapshotter", "testbed:snapshotter", Some(ADMINISTRATORS)),
        Subject::user("coredns", "testbed:coredns", Some(ADMINISTRATORS)),
        Subject::user("kube-controller-manager", "system:kube-controller-manager", None),
        Subject::user("kube-scheduler", "system:kube-scheduler", None),
        Subject::user("kube-proxy", "system:kube-proxy", None),
    ]
}

/// Writes all keys, certificates and kubeconfigs of a testbed.
///
/// # Errors
/// When the disk does not take them.
pub fn write(plan: &Plan, paths: &Paths) -> Result<()> {
    let dir = paths.pki();
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let authority = authority(&dir)?;
    // Signs service account tokens.
    let tokens = KeyPair::generate().context("make a key")?;
    write_secret(&dir.join("sa.key"), &tokens.serialize_pem())?;
    write_secret(&dir.join("sa.pub"), &tokens.public_key_pem())?;
    let mut api = Subject::user("apiserver", "kube-apiserver", None);
    api.names = api_names(plan);
    issue(&authority, &dir, &api)?;
    issue(
        &authority,
        &dir,
        &Subject::user("kubelet-client", "testbed:apiserver", Some(ADMINISTRATORS)),
    )?;
    let mut users = users();
    for n in plan.node_numbers() {
        let name = node_name(n);
        let mut node = Subject::user(&name, &format!("system:node:{name}"), Some("system:nodes"));
        node.names = vec![name, plan.node(n).to_string()];
        users.push(node);
    }
    for user in users {
        issue(&authority, &dir, &user)?;
        let kubeconfig = kubeconfig(plan, &dir, &user.file);
        write_secret(&paths.component_kubeconfig(&user.file), &kubeconfig)?;
        if user.file == "admin" {
            write_secret(&paths.kubeconfig(), &kubeconfig)?;
        }
    }
    Ok(())
}

fn api_names(plan: &Plan) -> Vec<String> {
    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let mut names: Vec<String> = names.map(str::to_owned).to_vec();
    names.extend(["localhost".to_owned(), "127.0.0.1".to_owned()]);
    names.extend([plan.host().to_string(), plan.api_service().to_string()]);
    names
}

fn authority(dir: &Path) -> Result<Issuer<'static, KeyPair>> {
    let key = KeyPair::generate().context("make a key")?;
    let mut params = params("testbed-ca", None, Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params.extended_key_usages.clear();
    let certificate = params.self_signed(&key).context("sign the authority's certificate")?;
    write_secret(&dir.join("ca.crt"), &certificate.pem())?;
    write_secret(&dir.join("ca.key"), &key.serialize_pem())?;
    Ok(Issuer::new(params, key))
}

fn issue(authority: &Issuer<'static, KeyPair>, dir: &Path, subject: &Subject) -> Result<()> {
    let key = KeyPair::generate().context("make a key")?;
    let params = params(&subject.user, subject.group, subject.names.clone())?;
    let signed = params
        .signed_by(&key, authority)
        .with_context(|| format!("sign the certificate of {}", subject.user))?;
    write_secret(&dir.join(format!("{}.crt", subject.file)), &signed.pem())?;
    write_secret(&dir.join(format!("{}.key", subject.file)), &key.serialize_pem())
}

fn params(user: &str, group: Option<&str>, names: Vec<String>) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(names).with_context(|| format!("name the certificate of {user}"))?;
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    // The keys are removed with `down`. Their dates must not cause failures, even on a machine with a wrong clock.
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(2049, 12, 31);
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn kubeconfig(plan: &Plan, pki: &Path, user: &str) -> String {
    let server = plan.api_url();
    let pki = pki.display();
    format!(
        r#"apiVersion: v1
kind: Config
clusters: [{{name: testbed, cluster: {{server: "{server}", certificate-authority: "{pki}/ca.crt"}}}}]
users: [{{name: {user}, user: {{client-certificate: "{pki}/{user}.crt", client-key: "{pki}/{user}.key"}}}}]
contexts: [{{name: testbed, context: {{cluster: testbed, user: {user}}}}}]
current-context: testbed
"#
    )
}

/// Writes a file that only root may read.
fn write_secret(path: &Path, text: &str) -> Result<()> {
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("write {}", path.display()))
}
