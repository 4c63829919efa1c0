//! Pointing `-rw` at this pod, with one write that an older holder cannot make.

use std::time::Duration;

use api::Guarded;
use api::names::{POSTGRES_PORT, ROUTE_EPOCH};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::api::PostParams;
use machine::instance::{Route, is_route_forged};
use machine::lease_object;
use machine::protocol::{Epoch, Incarnation};

use super::{Clients, LeaseReadError};

/// Time limit of a request.
const REQUEST: Duration = Duration::from_secs(2);

/// Why `-rw` was not pointed at this pod.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// A newer holder has written it.
    #[error("-rw was pointed elsewhere in epoch {0}")]
    Newer(u64),
    /// The EndpointSlice names a higher epoch, and the Lease that would tell the holder could not be read.
    #[error(transparent)]
    Lease(#[from] LeaseReadError),
    /// `-rw` points at this pod, with ports that are not PostgreSQL's.
    #[error("-rw has other ports than PostgreSQL's, and the API server refuses to change them: {0}")]
    Ports(Box<kube::Error>),
    /// The API server did not answer in time.
    #[error("the API server did not answer within {0:?}")]
    Silent(Duration),
    /// The API server refused, or could not be reached.
    #[error("write the EndpointSlice: {0}")]
    Failed(#[from] Box<kube::Error>),
    /// The EndpointSlice exists and is not understood.
    #[error("the EndpointSlice cannot be read: {0}")]
    Unreadable(String),
}

impl Clients {
    /// Makes `holder` at `address` and `port` the only endpoint of `-rw`. The epoch in the EndpointSlice, and its
    /// version, prevent an older holder, or a delayed request of one, from taking it back. A higher epoch is
    /// overwritten only if a Lease that is read afterwards shows that no holder wrote it.
    ///
    /// # Errors
    /// Fails with [`RouteError::Newer`] if a newer holder has written it, with [`RouteError::Ports`] if only its ports
    /// are still wrong, and with other variants if the API server refuses or does not answer.
    pub async fn write_route(
        &self,
        holder: &Incarnation,
        address: &str,
        port: u16,
        epoch: Epoch,
    ) -> Result<EndpointSlice, RouteError> {
        let mut slice = bounded(self.routes().get(&self.names().rw())).await?;
        if let Some(written) = epoch_of(&slice).filter(|_| !slice.endpoints.is_empty())
            && written > epoch
            && !self.is_forged(holder, epoch).await?
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
                name: Some(holder.pod.clone()),
                namespace: slice.metadata.namespace.clone(),
                uid: Some(holder.pod_uid.clone()),
                ..ObjectReference::default()
            }),
            ..Endpoint::default()
        }];
        let found = slice.ports.replace(ports(port));
        match self.replace_route(&slice).await {
            // The admission policies do not let agents change ports. The address matters more, so it is written with
            // the ports that are there.
            Err(RouteError::Failed(error)) if found != slice.ports && is_refused(&error) => {
                slice.ports = found;
                self.replace_route(&slice).await?;
                Err(RouteError::Ports(error))
            }
            written => written,
        }
    }

    async fn replace_route(&self, slice: &EndpointSlice) -> Result<EndpointSlice, RouteError> {
        let slice = Guarded::from(slice.clone());
        bounded(
            self.routes()
                .replace(&self.names().rw(), &PostParams::default(), &slice),
        )
        .await
    }

    async fn is_forged(&self, holder: &Incarnation, epoch: Epoch) -> Result<bool, LeaseReadError> {
        let lease = lease_object::read(&self.read_lease().await?);
        let lease = lease.map_err(|error| LeaseReadError::Unreadable(format!("{:#}", anyhow::Error::new(error))))?;
        Ok(is_route_forged(&lease, holder, epoch))
    }
}

/// The ports of `-rw`, as the operator sets them.
fn ports(port: u16) -> Vec<EndpointPort> {
    vec![EndpointPort {
        name: Some(POSTGRES_PORT.to_owned()),
        port: Some(port.into()),
        protocol: Some("TCP".to_owned()),
        app_protocol: None,
    }]
}

fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 403 | 422))
}

/// The address and the epoch of an EndpointSlice. `None` if it points nowhere, or not as [`Clients::write_route`]
/// writes it; the holder then writes it again. With a second endpoint or address, another pod would get a share of the
/// connections. With other ports than PostgreSQL's `port`, nobody would reach it.
pub fn read_route(slice: &EndpointSlice, port: u16) -> Option<Route> {
    if slice.ports.as_ref() != Some(&ports(port)) {
        return None;
    }
    let [endpoint] = slice.endpoints.as_slice() else {
        return None;
    };
    let [address] = endpoint.addresses.as_slice() else {
        return None;
    };
    // Kubernetes treats an endpoint without this condition as ready.
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
mod tests;
