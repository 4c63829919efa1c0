//! Where `-rw` points. Made once and empty; its endpoints belong to the holder's agent.

use api::names::SLICE_MANAGER;
use k8s_openapi::api::discovery::v1::{EndpointPort, EndpointSlice};

use super::Subject;
use super::services::POSTGRES_PORT_NAME;

/// The empty EndpointSlice of the primary's Service.
pub fn endpoint_slice(subject: &Subject<'_>) -> EndpointSlice {
    let mut metadata = subject.meta(subject.names.rw());
    metadata.labels.get_or_insert_default().extend([
        ("kubernetes.io/service-name".to_owned(), subject.names.rw()),
        // Tells Kubernetes' own controllers to leave it alone.
        (
            "endpointslice.kubernetes.io/managed-by".to_owned(),
            SLICE_MANAGER.to_owned(),
        ),
    ]);
    EndpointSlice {
        metadata,
        address_type: "IPv4".to_owned(),
        endpoints: Vec::new(),
        ports: Some(vec![EndpointPort {
            name: Some(POSTGRES_PORT_NAME.to_owned()),
            port: Some(subject.db.spec.postgres.port.into()),
            protocol: Some("TCP".to_owned()),
            app_protocol: None,
        }]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::fixture::smallest;
    use crate::config::Config;

    #[test]
    fn belongs_to_the_rw_service_and_is_empty() {
        let (db, config) = (smallest(), Config::default());
        let slice = endpoint_slice(&Subject::new(&db, &config).unwrap());
        assert_eq!(slice.metadata.name.as_deref(), Some("db-rw"));
        assert_eq!(slice.metadata.labels.unwrap()["kubernetes.io/service-name"], "db-rw");
        assert!(slice.endpoints.is_empty());
        assert_eq!(slice.ports.unwrap()[0].name.as_deref(), Some("postgres"));
    }
}
