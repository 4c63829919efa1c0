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
        if let Some(written) = epoch_of(&slice).filter(|_| !slice.endpoints.is_empty())
            && written > epoch
            && written.is_in_reach_of(epoch)
        {
            return Err(RouteError::Newer(written.0));
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

/// Where an EndpointSlice points, and since which epoch. `None` if it points nowhere, or not as [`Clients::write_route`] does, so
/// that the holder writes it again: with a second endpoint or address, another pod would get a share of the connections.
pub fn read_route(slice: &EndpointSlice) -> Option<Route> {
    let [endpoint] = slice.endpoints.as_slice() else {
        return None;
    };
    let [address] = endpoint.addresses.as_slice() else {
        return None;
    };
    // Kubernetes takes an endpoint without this condition for ready.
    if endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(false) {
        return None;
    }
    Some(Route {
        address: address.clone(),
        epoch: epoch_of(slice)?,
    })
}

/// The epoch of the holder that wrote an EndpointSlice.
fn epoch_of(slice: &EndpointSlice) -> Option<Epoch> {
    let annotations = slice.metadata.annotations.as_ref()?;
    Epoch::new(annotations.get(ROUTE_EPOCH)?.parse().ok()?).ok()
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(endpoints: Value) -> Option<Route> {
        let slice = json!({
            "metadata": {"name": "db-rw", "annotations": {ROUTE_EPOCH: "3"}}, "addressType": "IPv4", "endpoints": endpoints,
        });
        read_route(&serde_json::from_value(slice).unwrap())
    }

    #[test]
    fn a_route_that_leads_to_others_too_is_none_so_that_the_holder_writes_it_again() {
        let own = || json!({"addresses": ["10.0.0.1"], "conditions": {"ready": true}});
        let expected = Route {
            address: "10.0.0.1".to_owned(),
            epoch: Epoch(3),
        };
        assert_eq!(read(json!([own()])), Some(expected));
        for changed in [
            json!([own(), {"addresses": ["10.9.9.9"], "conditions": {"ready": true}}]),
            json!([{"addresses": ["10.0.0.1", "10.9.9.9"], "conditions": {"ready": true}}]),
            json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": false}}]),
            json!([{"addresses": []}]),
            json!([]),
        ] {
            assert_eq!(read(changed.clone()), None, "{changed}");
        }
    }
}
