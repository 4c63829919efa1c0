//! Time limits, against servers that stall in one place.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const SHORT: Duration = Duration::from_millis(400);

/// Sends a request with a body of this size to a server that treats its one connection so; returns the answer's size.
async fn call<F>(length: usize, serve: impl FnOnce(TcpStream) -> F) -> Result<usize, String>
where
    F: Future<Output = TcpStream> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/a", listener.local_addr().expect("an address"));
    let transport = Transport::new(None, SHORT).expect("a transport");
    let body = HttpRequestBody::from(Bytes::from(vec![0; length]));
    let request = http::Request::put(url).body(body).expect("a request");
    let answer = tokio::spawn(async move {
        let answer = transport.call(request).await.map_err(|error| error.to_string())?;
        let bytes = answer.into_body().bytes().await.map_err(|error| error.to_string())?;
        Ok(bytes.len())
    });
    let (stream, _) = listener.accept().await.expect("a connection");
    let served = tokio::spawn(serve(stream));
    let answer = tokio::time::timeout(SHORT * 25, answer).await;
    served.abort();
    answer.expect("an end in time").expect("no panic")
}

/// Reads so much of the request.
async fn read(stream: &mut TcpStream, length: u64) {
    let copied = tokio::io::copy(&mut stream.take(length), &mut tokio::io::sink()).await;
    assert_eq!(copied.expect("bytes"), length);
}

async fn hold(mut stream: TcpStream) -> TcpStream {
    // Ends when the client closes the connection.
    let _ = stream.read_to_end(&mut Vec::new()).await;
    stream
}

fn is_stalled(answer: &Result<usize, String>) -> bool {
    answer
        .as_ref()
        .is_err_and(|words| words.contains("no byte moved within 400ms"))
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_left() {
    let answer = call(10, hold).await;
    assert!(is_stalled(&answer), "{answer:?}");
}

#[tokio::test]
async fn a_server_that_does_not_read_is_left() {
    let answer = call(64 << 20, async |stream| {
        std::future::pending::<()>().await;
        stream
    });
    let answer = answer.await;
    assert!(is_stalled(&answer), "{answer:?}");
}

#[tokio::test]
async fn an_answer_that_stops_in_the_middle_is_left() {
    let answer = call(0, async |mut stream| {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345";
        stream.write_all(answer).await.expect("sent");
        hold(stream).await
    });
    let answer = answer.await;
    assert!(is_stalled(&answer), "{answer:?}");
}

/// Each way takes longer than the limit, but bytes move.
#[tokio::test]
async fn a_slow_transfer_is_not_cut_off() {
    let answer = call(64 << 20, async |mut stream| {
        for _ in 0..12 {
            read(&mut stream, 4 << 20).await;
            tokio::time::sleep(SHORT / 8).await;
        }
        // The rest is in the kernel's buffers, or will soon be.
        read(&mut stream, 16 << 20).await;
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n";
        stream.write_all(head).await.expect("sent");
        for _ in 0..12 {
            tokio::time::sleep(SHORT / 8).await;
            stream.write_all(b"x").await.expect("sent");
        }
        stream
    });
    assert_eq!(answer.await, Ok(12));
}

#[test]
fn the_words_of_an_answer_are_found() {
    let answer = |body: &str| Answer::new("h".to_owned(), StatusCode::FORBIDDEN, &http::HeaderMap::new(), body);
    let xml = "<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code><Message>Access\n Denied</Message></Error>";
    assert_eq!(answer(xml).to_string(), "h answers 403 AccessDenied: Access Denied");
    assert_eq!(answer(xml).code(), "AccessDenied");
    let google = xml.replace("</Error>", "<Details>a@b lacks\n storage.objects.get</Details></Error>");
    assert_eq!(
        answer(&google).to_string(),
        "h answers 403 AccessDenied: Access Denied a@b lacks storage.objects.get"
    );
    assert_eq!(
        answer("{\"error\": \"no\"}").to_string(),
        "h answers 403: {\"error\": \"no\"}"
    );
    assert_eq!(answer("").to_string(), "h answers 403");
    assert_eq!(answer(&"x".repeat(1_000)).to_string().len(), 315);
}

#[test]
fn a_metadata_server_is_explained() {
    assert_eq!(describe("storage.googleapis.com"), "storage.googleapis.com");
    for host in ["169.254.169.254", "metadata.google.internal"] {
        assert!(describe(host).starts_with(host) && describe(host).contains("own identity"));
    }
}
