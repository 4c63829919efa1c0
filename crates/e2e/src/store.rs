//! A store with the interface of S3 on this machine, which the cluster's nodes can reach.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use api::names::CONTAINER;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use test_store::{Options, TestStore};

use crate::Namespace;
use crate::client::exec;

/// The bucket that databases use.
pub const BUCKET: &str = "wal";

/// A public key that backups can be encrypted to.
pub const RECIPIENT: &str = "age1tajya78yex7e54lmyq5z89vw4n29epr96nj3f7z3upjpahujeaescwdf4s";
/// Its private key.
const IDENTITY: &str = "AGE-SECRET-KEY-1T299XPA2EYKG75LP4LU6YCRSXFQJHXCF75RDF60Z004VYJZCE4LQY8K4SD";
/// The Secret of [`Store::let_in`].
pub const SECRET: &str = "store";

/// A store, and the directory of its objects, which goes with it.
pub struct Store {
    store: TestStore,
    directory: PathBuf,
}

impl Store {
    /// Starts a store for the cluster of this kubeconfig. It has no bucket.
    ///
    /// # Errors
    /// When the kubeconfig names no server, or the store cannot be started.
    pub async fn start(kubeconfig: &Path) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("cdb-store-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let options = Options {
            directory: directory.clone(),
            address: own_address(kubeconfig)?,
            ..Options::default()
        };
        let store = TestStore::start(options).await?;
        Ok(Self { store, directory })
    }

    /// The store itself.
    pub fn test_store(&self) -> &TestStore {
        &self.store
    }

    /// The directory of its objects.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What a spec says of it: `backup.store`. Databases find the credentials in a Secret that [`Store::let_in`] makes.
    pub fn spec(&self) -> Value {
        let path = format!("s3://{BUCKET}/databases");
        json!({"s3": {"s3Path": path, "endpoint": self.store.url(), "credentialsSecretRef": {"name": SECRET}}})
    }

    /// Makes the Secret with the store's credentials and the private key.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn let_in(&self, namespace: &Namespace) -> Result<()> {
        let credentials = Secret {
            metadata: serde_json::from_value(json!({"name": SECRET}))?,
            string_data: Some(BTreeMap::from([
                ("AWS_ACCESS_KEY_ID".to_owned(), test_store::KEY.to_owned()),
                ("AWS_SECRET_ACCESS_KEY".to_owned(), test_store::SECRET.to_owned()),
                (api::names::IDENTITY_KEY.to_owned(), IDENTITY.to_owned()),
            ])),
            ..Secret::default()
        };
        namespace.api().create(&PostParams::default(), &credentials).await?;
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            eprintln!("remove {}: {error}", self.directory.display());
        }
    }
}

/// This machine's address, as the cluster's nodes see it.
fn own_address(kubeconfig: &Path) -> Result<IpAddr> {
    let config = Kubeconfig::read_from(kubeconfig)?;
    let cluster = config.clusters.first().and_then(|named| named.cluster.as_ref());
    let server = cluster.and_then(|cluster| cluster.server.clone());
    let server: http::Uri = server.context("an API server")?.parse()?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // Nothing is sent: the kernel only chooses the way.
    socket.connect((server.host().context("a host")?, server.port_u16().unwrap_or(443)))?;
    Ok(socket.local_addr()?.ip())
}

/// Closes the segment of WAL that the database's primary writes, so that it is archived: for superusers only.
///
/// # Errors
/// When there is no primary, or it refuses.
pub async fn close_segment(namespace: &Namespace, database: &str) -> Result<()> {
    let holder = namespace.holder(database).await?.context("a holder")?;
    let primary = holder.split('/').next().unwrap_or_default();
    let command = ["psql", "-d", "postgres", "-c", "SELECT pg_switch_wal()"];
    exec(namespace, primary, CONTAINER, &command).await?;
    Ok(())
}
