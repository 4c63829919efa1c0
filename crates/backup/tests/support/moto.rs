//! moto, an S3 server in Python by other authors.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::run;

/// The version that is tested.
const VERSION: &str = "5.2.5";

/// A running server; it is killed in the end.
pub struct Moto {
    process: Child,
    address: String,
}

impl Moto {
    /// Starts it. The first start on a machine installs it from PyPI, below `target/`.
    pub fn start() -> Self {
        let python = install();
        let mut process = Command::new(python)
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", "0"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("moto starts");
        let output = process.stderr.take().expect("a pipe");
        let mut lines = BufReader::new(output).lines();
        let address = lines.by_ref().find_map(|line| {
            let line = line.expect("text");
            line.split_once("Running on http://")
                .map(|(_, address)| address.trim().to_owned())
        });
        // It blocks when nobody reads what it says.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            process,
            address: address.expect("moto says where it listens"),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes a bucket. moto asks for no credentials.
    pub fn make_bucket(&self, bucket: &str) {
        let mut stream = TcpStream::connect(&self.address).expect("connected");
        let request = format!(
            "PUT /{bucket} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // It may have died already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The Python that has moto. Tests that run at the same time wait for each other.
fn install() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("moto-{VERSION}"));
    fs::create_dir_all(&folder).expect("a directory");
    let lock = File::create(folder.join("lock")).expect("a file");
    lock.lock().expect("a lock");
    let (python, ready) = (folder.join("bin/python"), folder.join("ready"));
    if !ready.exists() {
        run(
            Command::new("python3").args(["-m", "venv"]).arg(&folder),
            "python3 with the module venv",
        );
        let moto = format!("moto[s3]=={VERSION}");
        let arguments = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
            &moto,
            "flask",
            "flask-cors",
        ];
        run(Command::new(&python).args(arguments), "PyPI, to install moto");
        fs::write(ready, "").expect("written");
    }
    python
}
