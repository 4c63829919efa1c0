//! Where a store is.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where a store is. In JSON an object with one key: `{"s3": {"bucket": "backups", "path": "prod"}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// Amazon S3, or a store with the same protocol.
    S3(S3),
    /// Google Cloud Storage.
    Gcs(Gcs),
    /// Azure Blob Storage.
    Azure(Azure),
    /// A directory, usually a volume that is shared over the network.
    Volume(Volume),
}

/// A bucket of Amazon S3, or of a store with the same protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct S3 {
    /// The bucket's name.
    pub bucket: String,
    /// Every object's name begins with this path; may be empty.
    #[serde(default)]
    pub path: String,
    /// The region. If it is absent, `AWS_REGION` of the environment, else `us-east-1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// The URL of the store, without the bucket. Absent for Amazon's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Absent: [`Addressing::Path`] if there is an endpoint, else [`Addressing::VirtualHost`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addressing: Option<Addressing>,
    /// How the store is asked to encrypt each object. Absent: as the bucket's default says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_side_encryption: Option<ServerSideEncryption>,
}

/// A bucket of Google Cloud Storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gcs {
    /// The bucket's name.
    pub bucket: String,
    /// Every object's name begins with this path; may be empty.
    #[serde(default)]
    pub path: String,
    /// The URL of the store, without the bucket. Absent for Google's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// A container of Azure Blob Storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Azure {
    /// The storage account. If it is absent, the credentials must name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The container's name.
    pub container: String,
    /// Every object's name begins with this path; may be empty.
    #[serde(default)]
    pub path: String,
    /// The URL of the account. Absent for Microsoft's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// A directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Volume {
    /// Must exist, so that a missing mount is noticed.
    pub directory: PathBuf,
}

/// Where a request to S3 names the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Addressing {
    /// In the path: `https://host/bucket/name`.
    Path,
    /// In the host: `https://bucket.host/name`.
    VirtualHost,
}

/// With which key a store encrypts. It decrypts for everybody who may read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum ServerSideEncryption {
    /// One of the store's own (SSE-S3).
    Aes256,
    /// One of the key management service (SSE-KMS).
    AwsKms {
        /// Identifier, ARN or alias. Absent: the account's default key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key_id: Option<String>,
    },
}

impl Place {
    /// What every object's name begins with; may be empty.
    pub(crate) fn path(&self) -> &str {
        match self {
            Self::S3(S3 { path, .. }) | Self::Gcs(Gcs { path, .. }) | Self::Azure(Azure { path, .. }) => path,
            Self::Volume(_) => "",
        }
    }

    /// The URL that replaces the provider's own.
    pub(crate) fn endpoint(&self) -> Option<&str> {
        match self {
            Self::S3(S3 { endpoint, .. }) | Self::Gcs(Gcs { endpoint, .. }) | Self::Azure(Azure { endpoint, .. }) => {
                endpoint.as_deref()
            }
            Self::Volume(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_and_written() {
        for text in [
            r#"{"s3":{"bucket":"b","path":"p"}}"#,
            r#"{"s3":{"bucket":"b","path":"","region":"eu","endpoint":"http://h:1","addressing":"VirtualHost"}}"#,
            r#"{"s3":{"bucket":"b","path":"","serverSideEncryption":"aes256"}}"#,
            r#"{"s3":{"bucket":"b","path":"","serverSideEncryption":{"awsKms":{}}}}"#,
            r#"{"s3":{"bucket":"b","path":"","serverSideEncryption":{"awsKms":{"keyId":"k"}}}}"#,
            r#"{"gcs":{"bucket":"b","path":"p/q"}}"#,
            r#"{"gcs":{"bucket":"b","path":"p","endpoint":"http://h:1"}}"#,
            r#"{"azure":{"account":"a","container":"c","path":"p","endpoint":"http://h:1/a"}}"#,
            r#"{"volume":{"directory":"/backups"}}"#,
        ] {
            let place: Place = serde_json::from_str(text).expect(text);
            assert_eq!(serde_json::to_string(&place).expect("JSON"), text);
        }
    }

    #[test]
    fn two_places_or_an_unknown_key_are_refused() {
        for text in [
            r#"{"s3":{"bucket":"b"},"gcs":{"bucket":"b"}}"#,
            r#"{"s3":{"bucket":"b","pfad":"p"}}"#,
            r#"{"s3":{"path":"p"}}"#,
            r#"{"s3":{"bucket":"b","addressing":"path"}}"#,
            r#"{"s3":{"bucket":"b","serverSideEncryption":{"awsKms":{"key":"k"}}}}"#,
            r#"{"gcs":{"bucket":"b","region":"eu"}}"#,
            r#"{"ftp":{}}"#,
        ] {
            serde_json::from_str::<Place>(text).expect_err(text);
        }
    }
}
