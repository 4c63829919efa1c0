//! The program, as tests in other languages or processes use it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A program that is killed in the end.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It may have died already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ask(address: &str, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\nConnection: close");
    stream
        .write_all(format!("{head}\r\n\r\n{body}").as_bytes())
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn it_says_where_it_is_and_how_much_it_was_asked_and_takes_faults() {
    let directory = std::env::temp_dir().join(format!("test-store-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let started = Command::new(env!("CARGO_BIN_EXE_test-store"))
        .arg(&directory)
        .args(["127.0.0.1:0", "backups"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut program = Program(started.expect("it starts"));
    let mut line = String::new();
    let mut output = BufReader::new(program.0.stdout.take().expect("a pipe"));
    output.read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("http://").expect("a URL");
    assert!(directory.join("backups").is_dir());

    let get = || ask(address, "GET", "/backups/a", "");
    assert!(get().contains("<Code>AccessDenied</Code>"), "{}", get());
    let fault =
        r#"{"method": "GET", "path": "/a", "times": 1, "effect": {"refuse": {"status": 503, "code": "SlowDown"}}}"#;
    for _ in 0..2 {
        assert!(ask(address, "POST", "/_faults", fault).starts_with("HTTP/1.1 204"));
    }
    assert!(get().contains("<Code>SlowDown</Code>"), "the first fault");
    assert!(ask(address, "DELETE", "/_faults", "").starts_with("HTTP/1.1 204"));
    assert!(get().contains("<Code>AccessDenied</Code>"), "the second is gone");
    assert!(ask(address, "POST", "/_faults", "{}").starts_with("HTTP/1.1 400"));

    let mut count = String::new();
    let mut input = program.0.stdin.take().expect("a pipe");
    input.write_all(b"\n").expect("asked");
    output.read_line(&mut count).expect("a line");
    assert_eq!(count, "3\n", "requests to the store");
    drop(input);
    assert!(get().contains("<Code>AccessDenied</Code>"), "it goes on without input");
    std::fs::remove_dir_all(&directory).expect("removed");
}

#[test]
fn with_tls_it_leaves_the_certificate_of_its_authority() {
    let directory = std::env::temp_dir().join(format!("test-store-tls-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let authority = directory.join("ca.crt");
    let started = Command::new(env!("CARGO_BIN_EXE_test-store"))
        .arg("--tls")
        .args([&authority, &directory])
        .arg("127.0.0.1:0")
        .stdout(Stdio::piped())
        .spawn();
    let mut program = Program(started.expect("it starts"));
    let mut line = String::new();
    let output = program.0.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("a line");
    assert!(line.starts_with("https://127.0.0.1:"), "{line}");
    let certificate = std::fs::read_to_string(&authority).expect("a file");
    assert!(certificate.starts_with("-----BEGIN CERTIFICATE-----"), "{certificate}");
    std::fs::remove_dir_all(&directory).expect("removed");
}
