//! Azurite, Microsoft's emulator of Azure Blob Storage.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use backup::{Access, Azure, Place};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use super::run;

/// The version that is tested.
const VERSION: &str = "3.35.0";
/// The account and the key that every Azurite has, and that its documentation publishes.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A running server; it is killed in the end.
pub struct Azurite {
    process: Child,
    address: String,
}

impl Azurite {
    /// Starts it. The first start on a machine installs it from npm, below `target/`.
    pub fn start() -> Self {
        let mut process = Command::new("node")
            .arg(install())
            .args(["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence"])
            .args(["--skipApiVersionCheck", "--disableTelemetry", "--silent"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("Azurite starts");
        let output = process.stdout.take().expect("a pipe");
        let mut lines = BufReader::new(output).lines();
        let address = lines.by_ref().find_map(|line| {
            let line = line.expect("text");
            line.split_once("listens on http://")
                .map(|(_, address)| address.trim().to_owned())
        });
        // It blocks when nobody reads what it says.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            process,
            address: address.expect("Azurite says where it listens"),
        }
    }

    pub fn place(&self, container: &str) -> Place {
        Place::Azure(Azure {
            container: container.to_owned(),
            path: "databases".to_owned(),
            endpoint: Some(format!("http://{}/{ACCOUNT}", self.address)),
            ..Azure::default()
        })
    }

    pub fn access() -> Access {
        Access::of([("AZURE_STORAGE_ACCOUNT", ACCOUNT), ("AZURE_STORAGE_KEY", KEY)]).expect("credentials")
    }

    /// Makes a container, with a request that is signed as Azure asks for it ("Shared Key").
    pub fn make_container(&self, container: &str) {
        let date = chrono::Utc::now().format("%a, %d %b %Y %H:%M:%S GMT");
        let headers = format!("x-ms-date:{date}\nx-ms-version:2021-08-06\n");
        let signed = format!("PUT\n\n\n\n\n\n\n\n\n\n\n\n{headers}/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container");
        let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(KEY).expect("base64"));
        let signature = STANDARD.encode(hmac::sign(&key, signed.as_bytes()));
        let mut stream = TcpStream::connect(&self.address).expect("connected");
        let request = format!(
            "PUT /{ACCOUNT}/{container}?restype=container HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\
             Authorization: SharedKey {ACCOUNT}:{signature}\r\n{}\r\n",
            self.address,
            headers.replace('\n', "\r\n")
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        // It may have died already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program. Tests that run at the same time wait for each other.
fn install() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("azurite-{VERSION}"));
    fs::create_dir_all(&folder).expect("a directory");
    let lock = File::create(folder.join("lock")).expect("a file");
    lock.lock().expect("a lock");
    let ready = folder.join("ready");
    if !ready.exists() {
        let mut npm = Command::new("npm");
        npm.args([
            "install",
            "--silent",
            "--no-fund",
            "--no-audit",
            "--ignore-scripts",
            "--prefix",
        ]);
        npm.arg(&folder).arg(format!("azurite@{VERSION}"));
        run(&mut npm, "npm of Node.js, to install Azurite");
        fs::write(ready, "").expect("written");
    }
    folder.join("node_modules/azurite/dist/src/blob/main.js")
}
