//! Connections of `object_store` to a [`Place`].

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use crate::account::{GoogleAccount, google_account};
use crate::place::{Addressing, Azure, Gcs, Place, S3, ServerSideEncryption};
use crate::transport::{IDLE, Transport};
use crate::{Access, Problem};

/// What Kubernetes puts into the environment of a pod that has an identity of its own at AWS.
const AWS_IDENTITY: [&str; 7] = [
    "AWS_ENDPOINT_URL_STS",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
];
/// The same at Azure.
const AZURE_IDENTITY: [&str; 4] = [
    "AZURE_CLIENT_ID",
    "AZURE_TENANT_ID",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_AUTHORITY_HOST",
];

/// A connection.
pub(crate) struct Connection {
    /// Reads and writes of whole objects.
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// Writes of objects in pieces, each of which can be repeated. Absent for a volume.
    pub(crate) uploads: Option<Arc<dyn MultipartStore>>,
}

impl Connection {
    fn to<T: ObjectStore + MultipartStore>(store: T) -> Self {
        let store = Arc::new(store);
        Self {
            objects: store.clone(),
            uploads: Some(store),
        }
    }
}

/// Connects, without a request.
///
/// # Errors
/// Fails with [`Problem::Unusable`], and with [`Problem::NoBucket`] if a directory does not exist.
pub(crate) fn connect(place: &Place, access: &Access) -> Result<Connection, Problem> {
    check_endpoint(place)?;
    let transport = || Transport::new(access.authority(), IDLE);
    let connected = match place {
        Place::S3(place) => s3(place, access, transport()?),
        Place::Gcs(place) => gcs(place, &google_account(access)?, transport()?),
        Place::Azure(place) => azure(place, access, transport()?),
        Place::Volume(place) => return volume(&place.directory),
    };
    connected.map_err(|error| Problem::Unusable(error.to_string()))
}

fn volume(directory: &Path) -> Result<Connection, Problem> {
    if !directory.is_dir() {
        return Err(Problem::NoBucket(format!("{} is no directory", directory.display())));
    }
    let files = LocalFileSystem::new_with_prefix(directory)?;
    Ok(Connection {
        objects: Arc::new(files.with_fsync(true)),
        uploads: None,
    })
}

fn s3(place: &S3, access: &Access, transport: Transport) -> object_store::Result<Connection> {
    let (bucket, endpoint) = (&place.bucket, place.endpoint.as_deref());
    let usual = endpoint.map_or(Addressing::VirtualHost, |_| Addressing::Path);
    let in_host = place.addressing.unwrap_or(usual) == Addressing::VirtualHost;
    let region = place.region.clone().or_else(|| environment("AWS_REGION"));
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_region(region.unwrap_or_else(|| "us-east-1".to_owned()))
        .with_virtual_hosted_style_request(in_host)
        // Buckets with Object Lock refuse objects without a checksum.
        .with_checksum_algorithm(Checksum::SHA256)
        .with_disable_bulk_delete(true)
        .with_client_options(allow_http(endpoint))
        .with_retry(no_retries())
        .with_http_connector(transport);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(match endpoint.split_once("://") {
            Some((scheme, host)) if in_host => format!("{scheme}://{bucket}.{host}"),
            _ => endpoint.to_owned(),
        });
    }
    if let Some(encryption) = &place.server_side_encryption {
        builder = encrypted(builder, encryption)?;
    }
    let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];
    let from_access = keys.map(|key| (key, access.value(&[key]).map(str::to_owned)));
    let is_keyed = from_access.iter().any(|(_, value)| value.is_some());
    let from_identity = AWS_IDENTITY.map(|key| (key, environment(key).filter(|_| !is_keyed)));
    for (key, value) in from_access.into_iter().chain(from_identity) {
        if let Some(value) = value {
            builder = builder.with_config(AmazonS3ConfigKey::from_str(&key.to_lowercase())?, value);
        }
    }
    Ok(Connection::to(builder.build()?))
}

/// Asks the store to encrypt each new object.
fn encrypted(builder: AmazonS3Builder, encryption: &ServerSideEncryption) -> object_store::Result<AmazonS3Builder> {
    let (algorithm, key) = match encryption {
        ServerSideEncryption::Aes256 => ("AES256", None),
        ServerSideEncryption::AwsKms { key_id } => ("aws:kms", key_id.as_deref()),
    };
    let settings = [
        ("aws_server_side_encryption", Some(algorithm)),
        ("aws_sse_kms_key_id", key),
    ];
    settings
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .try_fold(builder, |builder, (name, value)| {
            Ok(builder.with_config(AmazonS3ConfigKey::from_str(name)?, value))
        })
}

fn gcs(place: &Gcs, account: &GoogleAccount, transport: Transport) -> object_store::Result<Connection> {
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&place.bucket)
        .with_client_options(allow_http(place.endpoint.as_deref()))
        .with_retry(no_retries())
        .with_http_connector(transport);
    if let Some(endpoint) = &place.endpoint {
        builder = builder.with_base_url(endpoint.trim_end_matches('/'));
    }
    builder = match account {
        GoogleAccount::Key(key) => builder.with_service_account_key(key),
        GoogleAccount::File(file) => builder.with_application_credentials(file),
        GoogleAccount::Pod => builder,
    };
    Ok(Connection::to(builder.build()?))
}

fn azure(place: &Azure, access: &Access, transport: Transport) -> object_store::Result<Connection> {
    let mut builder = MicrosoftAzureBuilder::new()
        .with_container_name(&place.container)
        .with_client_options(allow_http(place.endpoint.as_deref()))
        .with_retry(no_retries())
        .with_http_connector(transport);
    let named = access.value(&["AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"]);
    if let Some(account) = place.account.as_deref().or(named) {
        builder = builder.with_account(account);
    }
    if let Some(endpoint) = &place.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    let key = access.value(&["AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"]);
    let token = access.value(&["AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"]);
    builder = match (key, token) {
        (Some(key), _) => builder.with_access_key(key),
        (None, Some(token)) => builder.with_config(AzureConfigKey::SasKey, token),
        (None, None) => AZURE_IDENTITY
            .into_iter()
            .filter_map(|key| Some((AzureConfigKey::from_str(&key.to_lowercase()).ok()?, environment(key)?)))
            // Azure's webhook ends the authority's address with a slash, and `object_store` adds one.
            .fold(builder, |builder, (key, value)| {
                builder.with_config(key, value.trim_end_matches('/'))
            }),
    };
    Ok(Connection::to(builder.build()?))
}

/// A variable of the environment, if it is not empty.
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// `object_store` would accept anything, and fail with each request.
fn check_endpoint(place: &Place) -> Result<(), Problem> {
    match place.endpoint() {
        Some(endpoint) if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") => {
            Err(Problem::Unusable(format!(
                "the endpoint {endpoint:?} does not begin with https:// or http://"
            )))
        }
        _ => Ok(()),
    }
}

/// Without TLS only if the user writes `http://`.
fn allow_http(endpoint: Option<&str>) -> ClientOptions {
    ClientOptions::new().with_allow_http(endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")))
}

/// [`crate::Store`] tries again itself: only it can find out if a lost answer was a success.
fn no_retries() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}
