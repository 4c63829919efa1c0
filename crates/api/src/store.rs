//! The stores of WAL and backups.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::SecretRef;

/// A store: one of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreSpec {
    /// A store with the interface of Amazon S3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Store>,
    /// Azure Blob Storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure: Option<AzureStore>,
    /// Google Cloud Storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcs: Option<GcsStore>,
    /// A volume that all instances mount, usually a share over the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeStore>,
}

impl StoreSpec {
    /// The Secret with the credentials, and those of its keys that mean something to this store.
    pub fn credentials(&self) -> Option<(&SecretRef, &'static [&'static str])> {
        let s3 = self.s3.as_ref().map(|s3| (&s3.credentials_secret_ref, &S3_KEYS[..]));
        let azure = self.azure.as_ref();
        let azure = azure.map(|azure| (&azure.credentials_secret_ref, &AZURE_KEYS[..]));
        let gcs = self.gcs.as_ref();
        let gcs = gcs.map(|gcs| (&gcs.credentials_secret_ref, &GCS_KEYS[..]));
        let (secret, keys) = s3.or(azure).or(gcs)?;
        Some((secret.as_ref()?, keys))
    }

    /// The authority of the store's certificate, if the user names one.
    pub fn authority(&self) -> Option<&AuthoritySecretRef> {
        let s3 = self.s3.as_ref().and_then(|s3| s3.ca_secret_ref.as_ref());
        let azure = || self.azure.as_ref()?.ca_secret_ref.as_ref();
        s3.or_else(azure).or_else(|| self.gcs.as_ref()?.ca_secret_ref.as_ref())
    }
}

const S3_KEYS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];
const AZURE_KEYS: [&str; 3] = ["AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"];
const GCS_KEYS: [&str; 1] = ["GOOGLE_SERVICE_ACCOUNT_KEY"];

/// A place in a store with the interface of Amazon S3. Under it, each database has a folder `<namespace>/<name>-<UID's first eight
/// digits>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct S3Store {
    /// Bucket and path in one: `s3://bucket/path`. Instead of `bucket` and `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3_path: Option<String>,
    /// Name of the bucket. The operator does not make it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// Folder in the bucket; its top if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The region; `us-east-1` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Address of the store, such as `https://minio.storage.svc:9000`; Amazon's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// How a bucket is named in requests; `Path` if absent and there is an `endpoint`, else `VirtualHost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addressing: Option<S3Addressing>,
    /// How the store is asked to encrypt what it stores; as the bucket's default says if absent. It concerns writes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_side_encryption: Option<S3Encryption>,
    /// The Secret with `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, if needed, `AWS_SESSION_TOKEN`, in the same namespace. If
    /// absent, the pods' own identity is used (`serviceAccount.metadata`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretRef>,
    /// The authority of the store's certificate (PEM), in the same namespace; the public ones if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<AuthoritySecretRef>,
}

impl S3Store {
    /// Bucket and path, however they are written.
    pub fn location(&self) -> (&str, &str) {
        match self.s3_path.as_deref().and_then(|whole| whole.strip_prefix("s3://")) {
            Some(location) => location.split_once('/').unwrap_or((location, "")),
            None => (
                self.bucket.as_deref().unwrap_or_default(),
                self.path.as_deref().unwrap_or_default(),
            ),
        }
    }

    /// How a bucket is named in requests.
    pub fn addressing(&self) -> S3Addressing {
        let usual = match self.endpoint {
            Some(_) => S3Addressing::Path,
            None => S3Addressing::VirtualHost,
        };
        self.addressing.unwrap_or(usual)
    }
}

/// A place in Azure Blob Storage. Under it, each database has a folder `<namespace>/<name>-<UID's first eight digits>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AzureStore {
    /// The storage account; if absent, the Secret says it (`AZURE_STORAGE_ACCOUNT`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Name of the container. The operator does not make it.
    pub container: String,
    /// Folder in the container; its top if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Address of the account, such as `https://shop.blob.core.windows.net`; Microsoft's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The Secret with `AZURE_STORAGE_KEY` or `AZURE_STORAGE_SAS_TOKEN`, in the same namespace. If absent, the pods' own identity is used
    /// (`serviceAccount.metadata`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretRef>,
    /// The authority of the store's certificate (PEM), in the same namespace; the public ones if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<AuthoritySecretRef>,
}

/// A place in Google Cloud Storage. Under it, each database has a folder `<namespace>/<name>-<UID's first eight digits>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GcsStore {
    /// Name of the bucket. The operator does not make it.
    pub bucket: String,
    /// Folder in the bucket; its top if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Address of the store, such as `https://storage.me-central2.rep.googleapis.com`; Google's usual one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The Secret with `GOOGLE_SERVICE_ACCOUNT_KEY`, the key of a service account in JSON, in the same namespace. If absent, the pods' own
    /// identity is used (`serviceAccount.metadata`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretRef>,
    /// The authority of the store's certificate (PEM), in the same namespace; the public ones if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<AuthoritySecretRef>,
}

/// A volume that all instances mount, usually a share over the network. In it, each database has a folder
/// `<namespace>/<name>-<UID's first eight digits>`. An instance starts only where the volume can be mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStore {
    /// The PersistentVolumeClaim, in the same namespace, with access mode `ReadWriteMany` unless all instances are on one node. The
    /// operator does not make it.
    pub claim_name: String,
}

/// How a store with the interface of Amazon S3 encrypts what it stores, with a key that it knows. It decrypts for everybody
/// who may read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct S3Encryption {
    /// Whose key the store uses.
    pub algorithm: S3EncryptionAlgorithm,
    /// Identifier, ARN or alias of the key, only with `aws:kms`; if absent, the account's default key (`aws/s3`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kms_key_id: Option<String>,
}

/// Whose key a store encrypts with. The names are those of S3's header `x-amz-server-side-encryption`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum S3EncryptionAlgorithm {
    /// A key of the store's own (SSE-S3).
    #[serde(rename = "AES256")]
    Aes256,
    /// A key of the key management service (SSE-KMS).
    #[serde(rename = "aws:kms")]
    AwsKms,
}

/// How a bucket is named in requests to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum S3Addressing {
    /// In the path: `https://store/bucket/object`.
    Path,
    /// In the host's name: `https://bucket.store/object`.
    VirtualHost,
}

/// A key of a Secret in the same namespace, with the certificate of an authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthoritySecretRef {
    /// Name of the Secret.
    pub name: String,
    /// Its key; `ca.crt` if absent.
    #[serde(default = "default_authority_key")]
    pub key: String,
}

fn default_authority_key() -> String {
    "ca.crt".to_owned()
}
