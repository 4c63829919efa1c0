//! `test-store DIRECTORY ADDRESS:PORT [BUCKET…]`: an S3 server on a directory, for tests. It prints its URL.

use std::error::Error;
use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;

use test_store::{Options, TestStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(directory), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: test-store DIRECTORY ADDRESS:PORT [BUCKET…]".into());
    };
    let address: SocketAddr = address.parse()?;
    let options = Options {
        directory: PathBuf::from(directory),
        address: address.ip(),
        port: address.port(),
        tls: false,
    };
    let store = TestStore::start(options).await?;
    for bucket in arguments {
        store.make_bucket(&bucket)?;
    }
    println!("{}", store.url());
    pending().await
}
