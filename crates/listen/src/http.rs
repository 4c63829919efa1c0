//! Plain HTTP with one short answer on each connection.

use std::convert::Infallible;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use crate::Port;

/// The longest head of a request, in bytes; a probe's has 200.
const LONGEST: usize = 16 * 1024;

impl Port {
    /// Answers one request of each connection, by its path, and closes the connection; for ever.
    pub async fn serve_pages(self, answer: impl Fn(&str) -> Response<Full<Bytes>> + Send + Sync + 'static) {
        let answer = Arc::new(answer);
        self.serve(move |stream| {
            let answer = Arc::clone(&answer);
            async move {
                let service = service_fn(|request: Request<Incoming>| {
                    let response = answer(request.uri().path());
                    async move { Ok::<_, Infallible>(response) }
                });
                let served = http1::Builder::new()
                    .keep_alive(false)
                    .max_buf_size(LONGEST)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
                if let Err(error) = served {
                    tracing::debug!("a connection ended: {error}");
                }
            }
        })
        .await;
    }
}
