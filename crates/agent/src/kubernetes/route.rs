//! Pointing `-rw` at this pod: one write, refused to whoever is older.

use std::time::Duration;

use api::Guarded;
use api::names::ROUTE_EPOCH;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use kube::api::PostParams;
use machine::instance::Route;
use machine::protocol::Epoch;

use super::Clients;

/// The longest time that a request may take.
const REQUEST: Duration = Duration::from_secs(2);

/// Why `-rw` was not pointed at this pod.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// A newer holder has written it.
    #[error("-rw was pointed elsewhere in epoch {0}")]
    Newer(u64),
    /// No answer in time.
    #[error("the API server did not answer within {0:?}")]
    Silent(Duration),
    /// The API server refused, or could not be reached.
    #[error("write the EndpointSlice: {0}")]
    Failed(#[from] Box<kube::Error>),
    /// It is there and cannot be read.
    #[error("the EndpointSlice cannot be read: {0}")]
    Unreadable(String),
}

impl Clients {
    /// Makes `pod` the only endpoint of `-rw`. The epoch in the EndpointSlice and its version keep an older holder, or a
    /// request of it that was delayed, from taking it back. An epoch that no holder can have written is overwritten.
    pub async fn write_route(
        &self,
        pod: &str,
        pod_uid: &str,
        address: &str,
        epoch: Epoch,
    ) -> Result<EndpointSlice, RouteError> {
        let api = self.routes();
        let name = self.names().rw();
        let mut slice = bounded(api.get(&name)).await?;
        if let Some(route) = read_route(&slice)
            && route.epoch > epoch
            && route.epoch.is_in_reach_of(epoch)
        {
            return Err(RouteError::Newer(route.epoch.0));
        }
        let annotations = slice.metadata.annotations.get_or_insert_default();
        annotations.insert(ROUTE_EPOCH.to_owned(), epoch.0.to_string());
        slice.endpoints = vec![Endpoint {
            addresses: vec![address.to_owned()],
            conditions: Some(EndpointConditions {
                ready: Some(true),
                serving: Some(true),
                terminating: Some(false),
            }),
            target_ref: Some(ObjectReference {
                kind: Some("Pod".to_owned()),
                name: Some(pod.to_owned()),
                namespace: slice.metadata.namespace.clone(),
                uid: Some(pod_uid.to_owned()),
                ..ObjectReference::default()
            }),
            ..Endpoint::default()
        }];
        let slice = Guarded::from(slice);
        bounded(api.replace(&name, &PostParams::default(), &slice)).await
    }
}

/// Where an EndpointSlice points, and since which epoch; `None` if nowhere.
pub fn read_route(slice: &EndpointSlice) -> Option<Route> {
    let epoch = slice.metadata.annotations.as_ref()?.get(ROUTE_EPOCH)?.parse().ok()?;
    let address = slice.endpoints.first()?.addresses.first()?.clone();
    Some(Route {
        address,
        epoch: Epoch::new(epoch).ok()?,
    })
}

async fn bounded<K>(request: impl Future<Output = kube::Result<Guarded<K>>>) -> Result<K, RouteError> {
    match tokio::time::timeout(REQUEST, request).await {
        Ok(answer) => {
            let answer = answer.map_err(|error| RouteError::Failed(Box::new(error)))?;
            answer.0.map_err(|unreadable| RouteError::Unreadable(unreadable.why))
        }
        Err(_) => Err(RouteError::Silent(REQUEST)),
    }
}
