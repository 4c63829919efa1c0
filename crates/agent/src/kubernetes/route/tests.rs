use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use api::names::{LEASE_HOLDER, Names};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use machine::protocol::{HolderRecord, MemberId};
use serde_json::{Value, json};

use super::*;

const ADDRESS: &str = "10.0.0.1";

fn postgres(port: u16) -> Value {
    json!([{"name": "postgres", "port": port, "protocol": "TCP"}])
}

fn slice(epoch: u64, endpoints: Value, ports: Value) -> Value {
    json!({
        "metadata": {"name": "db-rw", "resourceVersion": "5", "annotations": {ROUTE_EPOCH: epoch.to_string()}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
    })
}

fn endpoint(address: &str) -> Value {
    json!({"addresses": [address], "conditions": {"ready": true}})
}

fn read(endpoints: Value, ports: Value) -> Option<Route> {
    read_route(&serde_json::from_value(slice(3, endpoints, ports)).unwrap(), 5432)
}

fn route(epoch: u64) -> Option<Route> {
    Some(Route {
        address: ADDRESS.to_owned(),
        epoch: Epoch(epoch),
    })
}

#[test]
fn a_route_that_leads_to_others_too_is_none_so_that_the_holder_writes_it_again() {
    let own = || endpoint(ADDRESS);
    assert_eq!(read(json!([own()]), postgres(5432)), route(3));
    for changed in [
        json!([own(), endpoint("10.9.9.9")]),
        json!([{"addresses": [ADDRESS, "10.9.9.9"], "conditions": {"ready": true}}]),
        json!([{"addresses": [ADDRESS], "conditions": {"ready": false}}]),
        json!([{"addresses": []}]),
        json!([]),
    ] {
        assert_eq!(read(changed.clone(), postgres(5432)), None, "{changed}");
    }
}

#[test]
fn a_route_with_other_ports_is_none_so_that_the_holder_writes_it_again() {
    let both = json!([postgres(5432)[0], {"name": "other", "port": 5433, "protocol": "TCP"}]);
    let unnamed = json!([{"port": 5432, "protocol": "TCP"}]);
    for changed in [postgres(5433), both, unnamed, json!([]), Value::Null] {
        assert_eq!(read(json!([endpoint(ADDRESS)]), changed.clone()), None, "{changed}");
    }
}

/// An API server with a Lease and an EndpointSlice. It keeps the version of what is written, and may refuse other
/// ports.
#[derive(Clone)]
struct Server {
    slice: Arc<Mutex<Value>>,
    lease: Value,
    keeps_ports: bool,
}

impl Server {
    fn new(slice: Value, lease: Value) -> Self {
        Self {
            slice: Arc::new(Mutex::new(slice)),
            lease,
            keeps_ports: false,
        }
    }

    fn clients(&self) -> Clients {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Clients::of(Client::new(service, "default"), Names::new("db"))
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let (code, answer) = match (parts.method, parts.uri.path().contains("/leases/")) {
            (Method::GET, true) => (200, self.lease.clone()),
            (Method::GET, false) => (200, self.slice.lock().unwrap().clone()),
            (method, _) => {
                assert_eq!(method, Method::PUT);
                self.replace(serde_json::from_slice(&body).unwrap())
            }
        };
        let answer = Response::builder()
            .status(code)
            .body(Body::from(answer.to_string().into_bytes()));
        answer.unwrap()
    }

    fn replace(&self, written: Value) -> (u16, Value) {
        let mut slice = self.slice.lock().unwrap();
        let version = &slice["metadata"]["resourceVersion"];
        assert_eq!(&written["metadata"]["resourceVersion"], version, "compare and swap");
        if self.keeps_ports && written["ports"] != slice["ports"] {
            let refused = json!({"kind": "Status", "status": "Failure", "code": 422, "reason": "Invalid",
                "message": "agents do not change the ports of -rw"});
            return (422, refused);
        }
        *slice = written;
        (200, slice.clone())
    }

    fn route(&self) -> Option<Route> {
        let slice = serde_json::from_value(self.slice.lock().unwrap().clone()).unwrap();
        read_route(&slice, 5432)
    }
}

fn incarnation(run: &str) -> Incarnation {
    Incarnation {
        pod: "db-0".to_owned(),
        pod_uid: "u0".to_owned(),
        run: run.to_owned(),
        member: MemberId::new(0, "c0ffee", 1),
    }
}

fn lease(holder: &Incarnation, epoch: u64) -> Value {
    let record = HolderRecord {
        incarnation: holder.clone(),
        address: ADDRESS.to_owned(),
        timeline: None,
        serving: true,
    };
    let annotations = BTreeMap::from([(LEASE_HOLDER, serde_json::to_string(&record).unwrap())]);
    json!({
        "metadata": {"name": "db", "uid": "l", "resourceVersion": "9", "annotations": annotations},
        "spec": {"holderIdentity": holder.identity(), "leaseTransitions": epoch, "leaseDurationSeconds": 15},
    })
}

async fn write(server: &Server) -> Result<EndpointSlice, RouteError> {
    let holder = incarnation("run-1");
    server.clients().write_route(&holder, ADDRESS, 5432, Epoch(3)).await
}

#[tokio::test]
async fn a_route_of_a_higher_epoch_is_overwritten_while_the_lease_names_this_run_in_its_own() {
    let own = lease(&incarnation("run-1"), 3);
    for epoch in [4, 1_003, 1_004, 2_000_000] {
        let foreign = slice(epoch, json!([endpoint("10.9.9.9")]), postgres(5432));
        let server = Server::new(foreign, own.clone());
        write(&server).await.unwrap();
        assert_eq!(server.route(), route(3), "{epoch}");
    }
}

#[tokio::test]
async fn a_route_of_a_newer_holder_stays() {
    let unreadable = json!({"metadata": {"name": "db", "uid": "l"}, "spec": {}});
    for lease in [
        lease(&incarnation("run-2"), 4),
        lease(&incarnation("run-1"), 4),
        lease(&incarnation("run-2"), 3),
        unreadable,
    ] {
        let newer = slice(4, json!([endpoint("10.0.0.2")]), postgres(5432));
        let server = Server::new(newer.clone(), lease.clone());
        let error = write(&server).await.unwrap_err();
        assert!(matches!(error, RouteError::Newer(4) | RouteError::Lease(_)), "{error}");
        assert_eq!(*server.slice.lock().unwrap(), newer, "{lease}");
    }
}

#[tokio::test]
async fn the_ports_are_written_too_and_where_that_is_refused_the_address_alone() {
    let foreign = slice(3, json!([endpoint("10.9.9.9")]), postgres(5433));
    let mut server = Server::new(foreign.clone(), Value::Null);
    write(&server).await.unwrap();
    assert_eq!(server.route(), route(3));

    server.keeps_ports = true;
    *server.slice.lock().unwrap() = foreign;
    let error = write(&server).await.unwrap_err();
    assert!(matches!(error, RouteError::Ports(_)), "{error}");
    let written = server.slice.lock().unwrap().clone();
    assert_eq!(
        (&written["endpoints"][0]["addresses"], &written["ports"]),
        (&json!([ADDRESS]), &postgres(5433))
    );
}
