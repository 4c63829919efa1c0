//! Clients for a cluster.

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Names a kubeconfig for the end-to-end tests; `cargo xtask test` sets it.
pub const KUBECONFIG_VARIABLE: &str = "CDB_E2E_KUBECONFIG";
/// Names the operator's binary, for tests that run it outside the cluster.
pub const OPERATOR_BINARY_VARIABLE: &str = "CDB_E2E_OPERATOR_BINARY";
/// Names the operator image that the cluster under test has.
pub const OPERATOR_IMAGE_VARIABLE: &str = "CDB_E2E_OPERATOR_IMAGE";
/// Names the image of the writer, which the cluster under test has.
pub const WRITER_IMAGE_VARIABLE: &str = "CDB_E2E_WRITER_IMAGE";

/// Set by `cargo xtask test --long`: repeated tests are repeated more often.
pub const LONG_VARIABLE: &str = "CDB_LONG";

/// Whether [`LONG_VARIABLE`] is set.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os(LONG_VARIABLE).is_some()
}

/// A client for the cluster of a kubeconfig file (the usual places if `None`) and context (the current one if `None`).
///
/// # Errors
/// When there is no such file or context, or it cannot be used.
pub async fn connect(kubeconfig: Option<&std::path::Path>, context: Option<&str>) -> Result<Client> {
    client(configuration(kubeconfig, context).await?)
}

fn client(config: Config) -> Result<Client> {
    Client::try_from(config).context("make a Kubernetes client")
}

async fn configuration(kubeconfig: Option<&std::path::Path>, context: Option<&str>) -> Result<Config> {
    // Both are idempotent: the provider may have been installed by another test of the same process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let file = match kubeconfig {
        Some(path) => Kubeconfig::read_from(path).with_context(|| format!("read {}", path.display()))?,
        None => Kubeconfig::read().context("read the kubeconfig")?,
    };
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    Config::from_custom_kubeconfig(file, &options)
        .await
        .context("use the kubeconfig")
}

/// The cluster under test, as `cargo xtask test` names it.
///
/// # Errors
/// When the variable is not set: run the tests by `cargo xtask test`.
pub async fn connect_for_test() -> Result<Client> {
    client(configuration_for_test().await?)
}

/// The cluster under test, as this user: an administrator impersonates them.
///
/// # Errors
/// When the variable is not set: run the tests by `cargo xtask test`.
pub async fn connect_for_test_as(user: &str) -> Result<Client> {
    let mut config = configuration_for_test().await?;
    config.auth_info.impersonate = Some(user.to_owned());
    client(config)
}

async fn configuration_for_test() -> Result<Config> {
    let path = std::env::var(KUBECONFIG_VARIABLE)
        .with_context(|| format!("{KUBECONFIG_VARIABLE} is not set: run the end-to-end tests by `cargo xtask test`"))?;
    configuration(Some(std::path::Path::new(&path)), None).await
}
