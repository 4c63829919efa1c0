//! The scripts, on the server in memory. The same ones run on a real API server in `crates/e2e/tests/conformance.rs`.

use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use fake_api::conformance::{run, stages};
use fake_api::faults::Faults;
use fake_api::stubs::Stubs;
use fake_api::{Clock, Definition, Server, Store};

#[tokio::test(start_paused = true)]
async fn the_server_in_memory_answers_as_a_real_one() {
    let server = Server::new(Store::default(), Faults::none(), Clock::starting(DateTime::UNIX_EPOCH));
    let cluster = server.clone();
    tokio::spawn(async move {
        let mut stubs = Stubs::new(TimeDelta::seconds(1));
        loop {
            cluster.within(|store, now| stubs.tick(store, now));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let mut wrong = Vec::new();
    for (definition, scripts) in stages() {
        server.within(|store, _| store.define(Definition::new(&definition).into()));
        for script in scripts {
            wrong.extend(run(&server.client(), "conformance", &script).await.err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
#[should_panic(expected = "unknown field `pattern`")]
fn a_definition_with_unknown_keywords_is_refused() {
    let [(mut definition, _), _] = stages();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["properties"]["word"]["pattern"] = "[a-z]*".into();
    let _ = Definition::new(&definition);
}
