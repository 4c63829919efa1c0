//! Lists in parts that fit in memory.
//!
//! A watch begins with a list of all objects, in pages of a fixed number of objects. An object may have a megabyte, and
//! kube holds each page several times while it reads it. So the watches' client asks for fewer objects where a page has
//! too many bytes, and reads one page at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, Uri};
use kube::Client;
use kube::client::Body;
use tokio::sync::Semaphore;

/// The most bytes of a page. A single object with more is read all the same.
const MOST: usize = 2 << 20;
/// The factor by which the next page is made smaller after one with too many bytes, and larger after one with few.
const FACTOR: u32 = 4;

/// The state that all requests of one client share.
struct Lists {
    client: Client,
    /// One page is read at a time.
    turn: Semaphore,
    /// The number of objects that a page of these lists may have, where that is fewer than was asked for.
    limits: Mutex<BTreeMap<String, u32>>,
}

/// A client whose lists in pages take little memory.
pub fn in_small_pages(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let lists = Arc::new(Lists {
        client,
        turn: Semaphore::new(1),
        limits: Mutex::default(),
    });
    let service = tower::service_fn(move |request: Request<Body>| {
        let lists = Arc::clone(&lists);
        async move {
            match limit(&request) {
                Some(limit) => lists.page(request.into_parts().0, limit).await,
                None => lists.client.send(request).await,
            }
        }
    });
    Client::new(service, namespace)
}

/// The number of objects that a request asks for, if it is a list in pages.
fn limit(request: &Request<Body>) -> Option<u32> {
    let mut parameters = request.uri().query()?.split('&');
    let limit = parameters.find_map(|parameter| parameter.strip_prefix("limit="))?;
    limit.parse().ok().filter(|_| request.method() == Method::GET)
}

/// The same request with another number of objects.
fn with_limit(uri: &Uri, limit: u32) -> String {
    let query = uri.query().unwrap_or_default().split('&');
    let parameters = query.map(|parameter| match parameter.starts_with("limit=") {
        true => format!("limit={limit}"),
        false => parameter.to_owned(),
    });
    format!("{}?{}", uri.path(), parameters.collect::<Vec<_>>().join("&"))
}

impl Lists {
    async fn page(&self, parts: Parts, asked: u32) -> kube::Result<Response<Body>> {
        // The semaphore is never closed.
        let _turn = self.turn.acquire().await;
        let path = parts.uri.path().to_owned();
        let mut limit = self.limit_of(&path).unwrap_or(asked).min(asked);
        loop {
            let mut request = Request::builder()
                .method(Method::GET)
                .uri(with_limit(&parts.uri, limit));
            if let Some(headers) = request.headers_mut() {
                headers.clone_from(&parts.headers);
            }
            let request = request.body(Body::empty()).map_err(kube::Error::HttpError)?;
            let (head, body) = self.client.send(request).await?.into_parts();
            let most = if limit == 1 { usize::MAX } else { MOST };
            match Limited::new(body, most).collect().await {
                Ok(body) => {
                    let bytes = body.to_bytes();
                    let roomy = bytes.len() < MOST / FACTOR as usize;
                    self.remember(path, if roomy { limit.saturating_mul(FACTOR) } else { limit }, asked);
                    return Ok(Response::from_parts(head, Body::from(bytes.to_vec())));
                }
                Err(error) if error.is::<LengthLimitError>() => limit = (limit / FACTOR).max(1),
                Err(error) => return Err(kube::Error::Service(error)),
            }
        }
    }

    fn limit_of(&self, path: &str) -> Option<u32> {
        self.limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(path)
            .copied()
    }

    fn remember(&self, path: String, limit: u32, asked: u32) {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if limit < asked {
            limits.insert(path, limit);
        } else {
            limits.remove(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server with objects of this many bytes each, and the limits that it was asked for.
    fn server(objects: usize, bytes: usize) -> (Client, Arc<Mutex<Vec<u32>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let heard = Arc::clone(&heard);
            async move {
                let limit = limit(&request).unwrap();
                heard.lock().unwrap().push(limit);
                let body = "x".repeat(bytes * objects.min(limit as usize));
                Ok::<_, std::io::Error>(Response::new(Body::from(body.into_bytes())))
            }
        });
        (Client::new(service, "default"), asked)
    }

    /// The bytes of the answer to a page of 100, for two requests in a row, and the limits that the server was asked
    /// for.
    async fn two_pages(objects: usize, bytes: usize) -> ([usize; 2], Vec<u32>) {
        let (client, asked) = server(objects, bytes);
        let client = in_small_pages(client);
        let mut came = [0; 2];
        for bytes in &mut came {
            let request = Request::get("/api/v1/secrets?labelSelector=a%2Cb&limit=100&continue=x");
            let text = client.request_text(request.body(Vec::new()).unwrap()).await.unwrap();
            *bytes = text.len();
        }
        let asked = asked.lock().unwrap().clone();
        (came, asked)
    }

    #[tokio::test]
    async fn pages_of_large_objects_are_small_and_stay_so() {
        let bytes = 256 << 10;
        assert_eq!(two_pages(1_000, bytes).await, ([6 * bytes; 2], vec![100, 25, 6, 6]));
    }

    #[tokio::test]
    async fn an_object_that_is_larger_than_a_page_is_read_alone() {
        let bytes = 3 << 20;
        assert_eq!(two_pages(1_000, bytes).await, ([bytes; 2], vec![100, 25, 6, 1, 1]));
    }

    #[tokio::test]
    async fn small_objects_come_as_many_as_were_asked_for() {
        assert_eq!(two_pages(1_000, 1_000).await, ([100_000; 2], vec![100, 100]));
    }

    #[test]
    fn only_the_limit_of_a_request_is_changed() {
        let uri: Uri = "/api/v1/pods?labelSelector=a%2Fb&limit=500&continue=c".parse().unwrap();
        assert_eq!(
            with_limit(&uri, 7),
            "/api/v1/pods?labelSelector=a%2Fb&limit=7&continue=c"
        );
        let request = |text: &str| Request::get(text).body(Body::empty()).unwrap();
        assert_eq!(limit(&request("/api/v1/pods?limit=500")), Some(500));
        assert_eq!(limit(&request("/api/v1/pods?watch=true")), None);
        assert_eq!(limit(&request("/api/v1/pods")), None);
    }
}
