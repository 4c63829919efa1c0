//! fake-gcs-server, an emulator of Google Cloud Storage in Go by other authors.
//!
//! `object_store` speaks Google's XML interface, of which the emulator has only reads, lists and deletes. A front
//! ([`front`]) turns the other requests into ones of Google's JSON interface.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use backup::{Access, Gcs, Place};
use tokio::task::JoinHandle;

use super::run;

mod front;

/// The version that is tested.
const VERSION: &str = "1.56.1";
/// Another process can take the port between the choice and the start.
const ATTEMPTS: usize = 5;

/// A running server; it is killed in the end.
pub struct FakeGcs {
    emulator: Emulator,
    address: SocketAddr,
    front: JoinHandle<()>,
}

impl FakeGcs {
    /// Starts it. The first start on a machine builds it from the Go module proxy, below `target/`.
    pub async fn start() -> Self {
        let emulator = tokio::task::spawn_blocking(Emulator::start).await.expect("an emulator");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Self {
            address: listener.local_addr().expect("an address"),
            front: tokio::spawn(front::run(listener, emulator.address)),
            emulator,
        }
    }

    pub fn place(&self, bucket: &str) -> Place {
        Place::Gcs(Gcs {
            bucket: bucket.to_owned(),
            path: "databases".to_owned(),
            endpoint: Some(format!("http://{}", self.address)),
        })
    }

    /// A service account without a key: the emulator does not check tokens.
    pub fn access() -> Access {
        let account = r#"{"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true}"#;
        Access::of([("GOOGLE_SERVICE_ACCOUNT_KEY", account)]).expect("credentials")
    }

    pub fn make_bucket(&self, bucket: &str) {
        let mut stream = TcpStream::connect(self.emulator.address).expect("connected");
        let body = format!(r#"{{"name":"{bucket}"}}"#);
        let request = format!(
            "POST /storage/v1/b HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.emulator.address,
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

impl Drop for FakeGcs {
    fn drop(&mut self) {
        self.front.abort();
    }
}

struct Emulator {
    process: Child,
    address: SocketAddr,
}

impl Emulator {
    fn start() -> Self {
        let program = install();
        let started = (0..ATTEMPTS).find_map(|_| Self::try_start(&program));
        started.expect("fake-gcs-server listens")
    }

    /// `None` if the port was taken. The emulator never says which port it got, so it is given one.
    fn try_start(program: &Path) -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = address.expect("a free port");
        let port = address.port().to_string();
        let mut process = Command::new(program)
            .args(["-backend", "memory", "-scheme", "http", "-public-host", "127.0.0.1"])
            .args(["-host", "127.0.0.1", "-port", &port])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("fake-gcs-server starts");
        let output = process.stderr.take().expect("a pipe");
        let emulator = Self { process, address };
        let mut lines = BufReader::new(output).lines();
        let has_started = lines
            .by_ref()
            .any(|line| line.expect("text").contains("server started at"));
        // It blocks when nobody reads what it says.
        std::thread::spawn(move || lines.for_each(drop));
        has_started.then_some(emulator)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // It may have died already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program. Tests that run at the same time wait for each other.
fn install() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-gcs-server-{VERSION}"));
    fs::create_dir_all(&folder).expect("a directory");
    let lock = File::create(folder.join("lock")).expect("a file");
    lock.lock().expect("a lock");
    let ready = folder.join("ready");
    if !ready.exists() {
        let mut go = Command::new("go");
        go.args(["install", "-ldflags=-s -w"]);
        go.arg(format!("github.com/fsouza/fake-gcs-server@v{VERSION}"));
        go.current_dir(&folder).env("GOBIN", &folder).env("CGO_ENABLED", "0");
        run(&mut go, "Go and its module proxy, to install fake-gcs-server");
        fs::write(ready, "").expect("written");
    }
    folder.join("fake-gcs-server")
}
