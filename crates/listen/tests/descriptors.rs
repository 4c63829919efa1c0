//! A port survives a time without free file descriptors. This test is a program of its own, since the limit is the
//! process's.

#![cfg(target_os = "linux")]

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use http_body_util::Full;
use hyper::Response;
use listen::{Bounds, Port};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const CLIENTS: usize = 32;
const BOUNDS: Bounds = Bounds {
    all: 2 * CLIENTS,
    each_source: 2 * CLIENTS,
};
const LIFE: Duration = Duration::from_secs(600);
const BOUND: Duration = Duration::from_secs(10);

/// The highest file descriptor of this process.
fn highest() -> u64 {
    let open = fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.max().expect("some")
}

#[tokio::test]
async fn a_port_resumes_when_there_are_file_descriptors_again() {
    let listener = Port::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(TcpStream::connect(address).await.expect("the kernel takes it"));
    }
    let before = getrlimit(Resource::Nofile);
    let none_left = Rlimit {
        current: Some(highest() + 1),
        ..before
    };
    setrlimit(Resource::Nofile, none_left).expect("no descriptors left");
    let fill = || fs::File::open("/dev/null").ok();
    let filled: Vec<fs::File> = std::iter::from_fn(fill).collect();
    tokio::spawn(Port::new(listener, BOUNDS, LIFE).serve_pages(|_| Response::new(Full::default())));
    let last = clients.last_mut().expect("a client");
    let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    last.write_all(request).await.expect("room in the socket");
    let early = timeout(Duration::from_millis(200), last.read(&mut [0; 1])).await;
    assert!(early.is_err(), "it was accepted: {early:?}");
    drop(filled);
    setrlimit(Resource::Nofile, before).expect("as before");
    let mut answer = String::new();
    let answered = timeout(BOUND, last.read_to_string(&mut answer)).await;
    answered.expect("an answer in time").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
