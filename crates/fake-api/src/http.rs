//! The server on a TCP port, for programs that run in processes of their own.

use std::io;

use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use tokio::net::TcpListener;

use crate::server::Server;

impl Server {
    /// Answers plain HTTP/1.1 on `listener` until the returned future is dropped.
    ///
    /// # Errors
    /// When no connection can be accepted any more.
    pub async fn serve(self, listener: TcpListener) -> io::Result<()> {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await?;
            let server = self.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let server = server.clone();
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
                    let request = Request::from_parts(parts, Body::from(body.to_vec()));
                    server.answer(request, None).await
                }
            });
            connections.spawn(async move {
                // A client that goes away in the middle of an answer is no fault of the server.
                drop(
                    http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await,
                );
            });
            while connections.try_join_next().is_some() {}
        }
    }
}
