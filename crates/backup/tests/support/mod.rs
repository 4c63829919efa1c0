//! Places for tests.

#![allow(dead_code, reason = "each test uses some of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use backup::{Access, Place, S3, Store};
use bytes::Bytes;
use test_store::{KEY, Options, SECRET, TestStore};

pub mod azurite;
pub mod gcs;
pub mod moto;
pub mod scripted;

/// Runs a program that installs something.
pub fn run(command: &mut Command, needed: &str) {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("this test needs {needed}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "this test needs {needed}: {text}");
}

/// Far more than any call needs that succeeds.
pub const LIMIT: Duration = Duration::from_secs(10);
/// The same for a whole test. A retry where none should be makes tests slow before they fail.
pub const TEST_LIMIT: Duration = Duration::from_secs(30);
pub const BUCKET: &str = "backups";

/// A directory that is removed in the end.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("backup-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A test may have removed it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server with one bucket.
pub struct Server {
    pub store: TestStore,
    pub directory: Directory,
}

impl Server {
    pub async fn start(tls: bool) -> Self {
        let directory = Directory::new();
        let options = Options {
            directory: directory.path().to_owned(),
            tls,
            ..Options::default()
        };
        let store = TestStore::start(options).await.expect("a server");
        store.make_bucket(BUCKET).expect("a bucket");
        Self { store, directory }
    }

    /// Its bucket.
    pub fn open(&self) -> Store {
        Store::open(&s3(self.store.url()), &access()).expect("a store")
    }

    /// The file of an object.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(BUCKET).join("some/path").join(name)
    }
}

/// A path in the bucket of a server.
pub fn s3(url: &str) -> Place {
    Place::S3(S3 {
        bucket: BUCKET.to_owned(),
        path: "some/path".to_owned(),
        endpoint: Some(url.to_owned()),
        ..S3::default()
    })
}

pub fn access() -> Access {
    Access::of([("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)]).expect("credentials")
}

pub fn access_with_authority(authority: &str) -> Access {
    let keys = [
        ("AWS_ACCESS_KEY_ID", KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("ca.crt", authority),
    ];
    Access::of(keys).expect("credentials")
}

/// Two pieces of one object. The first one is as small as stores take pieces before the last.
pub fn two_pieces() -> [Bytes; 2] {
    [Bytes::from(vec![7; 5 << 20]), bytes("end")]
}

pub fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}
