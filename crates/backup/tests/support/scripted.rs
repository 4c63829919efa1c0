//! A server whose answers a test says beforehand.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A server that answers each request with the next of the answers, and the last one for ever.
pub struct Server {
    address: SocketAddr,
    /// Head, in small letters, and body of each request.
    requests: Arc<Mutex<Vec<(String, String)>>>,
}

impl Server {
    pub fn start(answers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        // It ends with the process.
        std::thread::spawn(move || {
            for (at, stream) in listener.incoming().enumerate() {
                let answer = answers.get(at).or(answers.last()).expect("an answer");
                let mut stream = stream.expect("a connection");
                let request = read(&stream);
                // The client may look as soon as it has the answer.
                seen.lock().expect("no panic").push(request);
                stream.write_all(answer.as_bytes()).expect("sent");
            }
        });
        Self { address, requests }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// First line and headers of each request, in small letters.
    pub fn requests(&self) -> Vec<String> {
        let requests = self.requests.lock().expect("no panic");
        requests.iter().map(|(head, _)| head.clone()).collect()
    }

    /// The body of each request.
    pub fn bodies(&self) -> Vec<String> {
        let requests = self.requests.lock().expect("no panic");
        requests.iter().map(|(_, body)| body.clone()).collect()
    }
}

/// Head, in small letters, and body of a request.
fn read(stream: &TcpStream) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(
            reader.read_line(&mut head).expect("a line"),
            0,
            "the request ends early"
        );
    }
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = length.map_or(0, |length| length.parse().expect("a number"));
    let mut body = Vec::new();
    reader.take(length).read_to_end(&mut body).expect("a body");
    (head, String::from_utf8_lossy(&body).into_owned())
}

pub fn answer(status: u16, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} -\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

/// The answer to a read of an object.
pub fn stored(content: &str) -> String {
    let headers = "ETag: \"1\"\r\nx-goog-generation: 1\r\nLast-Modified: Sat, 28 Nov 2026 12:00:00 GMT\r\n";
    answer(200, headers, content)
}
