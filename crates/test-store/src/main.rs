//! `test-store [--tls FILE] DIRECTORY ADDRESS:PORT [BUCKET…]`: an S3 server on a directory, for tests. It prints its URL, and after each
//! line of standard input the number of requests so far.
//!
//! With `--tls` it serves HTTPS, and writes the certificate of its authority to FILE.

use std::error::Error;
use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;

use test_store::{Options, TestStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let authority = match arguments.next_if(|argument| argument == "--tls") {
        Some(_) => Some(arguments.next().ok_or(USAGE)?),
        None => None,
    };
    let (Some(directory), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err(USAGE.into());
    };
    let address: SocketAddr = address.parse()?;
    let options = Options {
        directory: PathBuf::from(directory),
        address: address.ip(),
        port: address.port(),
        tls: authority.is_some(),
        ..Options::default()
    };
    let store = TestStore::start(options).await?;
    for bucket in arguments {
        store.make_bucket(&bucket)?;
    }
    if let (Some(file), Some(certificate)) = (authority, store.authority()) {
        std::fs::write(file, certificate)?;
    }
    println!("{}", store.url());
    // It serves in other threads meanwhile.
    for line in std::io::stdin().lines() {
        line?;
        println!("{}", store.requests().len());
    }
    pending().await
}

const USAGE: &str = "usage: test-store [--tls FILE] DIRECTORY ADDRESS:PORT [BUCKET…]";
