//! The Services: `-pods` gives the pods their names, `-rw` leads to the primary, `-ro` to standbys, `-r` to all.

use std::collections::BTreeMap;

use api::names::{LABEL_ROLE, PEER_PORT, ROLE_REPLICA};
use api::spec::{ServiceTemplate, ServiceType};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Subject, add_metadata};

pub use api::names::POSTGRES_PORT as POSTGRES_PORT_NAME;

/// Name of the peer API's port.
pub const PEER_PORT_NAME: &str = "peer";

/// The headless Service. It publishes pods that are not ready, since these must find each other to become so.
pub fn headless(subject: &Subject<'_>) -> Service {
    let peer = ServicePort {
        name: Some(PEER_PORT_NAME.to_owned()),
        port: PEER_PORT.into(),
        target_port: Some(IntOrString::String(PEER_PORT_NAME.to_owned())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    };
    service(
        subject,
        subject.names.headless(),
        ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(subject.selector()),
            ports: Some(vec![postgres_port(subject), peer]),
            ..ServiceSpec::default()
        },
    )
}

/// The primary's Service. No selector: its EndpointSlice is written by the holder's agent.
pub fn rw(subject: &Subject<'_>) -> Service {
    let template = &subject.db.spec.services.read_write;
    // An empty selector, said aloud: one that somebody adds is taken away again.
    for_clients(subject, subject.names.rw(), BTreeMap::new(), template)
}

/// The standbys' Service.
pub fn ro(subject: &Subject<'_>) -> Service {
    let mut selector = subject.selector();
    selector.insert(LABEL_ROLE.to_owned(), ROLE_REPLICA.to_owned());
    for_clients(
        subject,
        subject.names.ro(),
        selector,
        &subject.db.spec.services.read_only,
    )
}

/// The Service of all members that are ready.
pub fn r(subject: &Subject<'_>) -> Service {
    let template = &subject.db.spec.services.read;
    for_clients(subject, subject.names.r(), subject.selector(), template)
}

fn for_clients(
    subject: &Subject<'_>,
    name: String,
    selector: BTreeMap<String, String>,
    template: &ServiceTemplate,
) -> Service {
    let kind = match template.kind {
        ServiceType::ClusterIP => "ClusterIP",
        ServiceType::NodePort => "NodePort",
        ServiceType::LoadBalancer => "LoadBalancer",
    };
    let ranges = &template.load_balancer_source_ranges;
    let spec = ServiceSpec {
        type_: Some(kind.to_owned()),
        selector: Some(selector),
        ports: Some(vec![postgres_port(subject)]),
        load_balancer_class: template.load_balancer_class.clone(),
        load_balancer_source_ranges: (!ranges.is_empty()).then(|| ranges.clone()),
        ..ServiceSpec::default()
    };
    let mut service = service(subject, name, spec);
    add_metadata(&mut service.metadata, &template.metadata);
    service
}

fn service(subject: &Subject<'_>, name: String, spec: ServiceSpec) -> Service {
    Service {
        metadata: subject.meta(name),
        spec: Some(spec),
        status: None,
    }
}

fn postgres_port(subject: &Subject<'_>) -> ServicePort {
    ServicePort {
        name: Some(POSTGRES_PORT_NAME.to_owned()),
        port: subject.db.spec.postgres.port.into(),
        target_port: Some(IntOrString::String(POSTGRES_PORT_NAME.to_owned())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::fixture::{database, smallest};
    use crate::config::Config;

    #[test]
    fn each_service_selects_what_its_name_says() {
        let (db, config) = (smallest(), Config::default());
        let subject = Subject::new(&db, &config).unwrap();
        let selector = |service: Service| service.spec.unwrap().selector;
        assert!(selector(rw(&subject)).unwrap().is_empty());
        assert_eq!(selector(ro(&subject)).unwrap()[LABEL_ROLE], "replica");
        assert!(!selector(r(&subject)).unwrap().contains_key(LABEL_ROLE));
        let pods = headless(&subject).spec.unwrap();
        assert_eq!(pods.cluster_ip.as_deref(), Some("None"));
        assert_eq!(pods.publish_not_ready_addresses, Some(true));
        assert_eq!(pods.ports.unwrap()[0].port, 5432);
    }

    #[test]
    fn each_service_is_as_its_template_says() {
        let db = database(serde_json::json!({
            "storage": {"data": {"size": "1Gi"}},
            "services": {
                "readWrite": {
                    "type": "LoadBalancer", "loadBalancerClass": "example.com/internal",
                    "loadBalancerSourceRanges": ["10.0.0.0/8"],
                    "metadata": {"labels": {"team": "shop", "clustereddatabase.io/cluster": "x"}, "annotations": {"a": "b"}},
                },
                "readOnly": {"type": "NodePort"},
            },
        }));
        let config = Config::default();
        let subject = Subject::new(&db, &config).unwrap();
        let primary = rw(&subject);
        let labels = primary.metadata.labels.unwrap();
        let own = labels["clustereddatabase.io/cluster"].as_str();
        assert_eq!((labels["team"].as_str(), own), ("shop", "db"));
        assert_eq!(primary.metadata.annotations.unwrap()["a"], "b");
        let spec = primary.spec.unwrap();
        assert_eq!(spec.type_.as_deref(), Some("LoadBalancer"));
        assert_eq!(spec.load_balancer_class.as_deref(), Some("example.com/internal"));
        assert_eq!(spec.load_balancer_source_ranges.unwrap(), ["10.0.0.0/8"]);
        assert_eq!(ro(&subject).spec.unwrap().type_.as_deref(), Some("NodePort"));
        assert_eq!(r(&subject).spec.unwrap().type_.as_deref(), Some("ClusterIP"));
    }
}
