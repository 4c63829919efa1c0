//! The simulator has an API server, a controller and kubelets of its own, typed and small. Whatever is asked of it, with versions that are
//! right or old, it answers and does what the API server in memory does, which was held against a real one.

use std::collections::BTreeMap;

use api::names::{LABEL_ROLE as ROLE, ROLE_PRIMARY, ROLE_REPLICA};
use chrono::{DateTime, TimeDelta, Utc};
use fake_api::stubs::Stubs;
use fake_api::{Call, Definition, Reply, Store, Verb};
use proptest::prelude::*;
use serde_json::{Value, json};
use sim::simulator::conformance::requests::{Ask, INSTANCES, SETTLES, Said, Server, Standing};

const NAME: &str = "orders";
const NAMESPACE: &str = "ns";

/// The API server in memory, with what the simulator has at first.
struct Memory {
    store: Store,
    stubs: Stubs,
    now: DateTime<Utc>,
    known: Standing,
    asked: u64,
}

impl Memory {
    fn new() -> Self {
        let mut store = Store::default();
        store.define(Definition::new(&serde_json::to_value(api::crd()).unwrap()).into());
        let claim = json!({"metadata": {"name": "data"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        let labels = json!({"app": NAME, ROLE: ROLE_REPLICA});
        let container = json!({"name": "postgres", "image": "postgres:17"});
        let set = json!({"metadata": {"name": NAME}, "spec": {
            "replicas": INSTANCES.0, "serviceName": NAME, "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"}, "selector": {"matchLabels": {"app": NAME}},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            "volumeClaimTemplates": [claim]}});
        let database = json!({"metadata": {"name": NAME}, "spec": {"storage": {"data": {"size": "1Gi"}}}});
        let mut memory = Self {
            store,
            stubs: Stubs::new(TimeDelta::seconds(1)),
            now: "2027-01-01T00:00:00Z".parse().unwrap(),
            known: Standing::default(),
            asked: 0,
        };
        for (plural, object) in [
            ("namespaces", json!({"metadata": {"name": NAMESPACE}})),
            (
                "storageclasses",
                json!({"metadata": {"name": "standard"}, "provisioner": "p"}),
            ),
            ("nodes", json!({"metadata": {"name": "n1"}})),
            ("leases", json!({"metadata": {"name": NAME}, "spec": {}})),
            ("clustereddatabases", database),
            ("statefulsets", set),
        ] {
            let namespace = if fake_api::Kind::of(plural).namespaced {
                NAMESPACE
            } else {
                ""
            };
            let made = memory.call(Call::new(Verb::Create, plural, namespace, "", object));
            assert_eq!(made.code, 201, "{:#}", made.body);
        }
        memory.settle();
        let first = Ask::Label(0, true);
        assert_eq!(memory.ask(first), Said::Done);
        memory.known = memory.standing();
        memory
    }

    fn call(&mut self, call: Call) -> Reply {
        self.store.call(&call, self.now)
    }

    fn settle(&mut self) {
        for _ in 0..SETTLES {
            self.now += TimeDelta::seconds(1);
            self.stubs.tick(&mut self.store, self.now);
        }
        self.known = self.standing();
    }

    /// An object, by the name that both know it by.
    fn object(&self, name: &str) -> Option<std::sync::Arc<Value>> {
        let (plural, name) = place(name);
        self.store.get(plural, NAMESPACE, name)
    }

    fn standing(&self) -> Standing {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let goes = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
        let (mut standing, mut names) = (Standing::default(), vec![]);
        names.extend(["lease", "database", "set"].map(str::to_owned));
        for ordinal in 0..INSTANCES.1 {
            let [pod, claim] = [format!("{NAME}-{ordinal}"), format!("data-{NAME}-{ordinal}")];
            if let Some(found) = self.object(&pod) {
                let role = text(&found["metadata"]["labels"][ROLE]);
                standing.pods.insert(ordinal, (goes(&found), role));
            }
            if let Some(found) = self.object(&claim) {
                standing.claims.insert(ordinal, goes(&found));
            }
            names.extend([pod, claim]);
        }
        let replicas = self.object("set").map(|set| set["spec"]["replicas"].as_u64());
        standing.replicas = replicas.flatten().unwrap() as u32;
        let versions = names.into_iter().filter_map(|name| {
            let metadata = self.object(&name)?["metadata"].clone();
            Some((name, (text(&metadata["uid"]), text(&metadata["resourceVersion"]))))
        });
        standing.versions = versions.collect::<BTreeMap<_, _>>();
        standing
    }

    /// Asks as the shipped operator and agents do: see `operator::requests` and `agent::kubernetes`.
    fn ask(&mut self, ask: Ask) -> Said {
        self.asked += 1;
        let (name, verb, change) = match ask {
            Ask::Settle => {
                self.settle();
                return Said::Nothing;
            }
            Ask::Look => {
                self.known = self.standing();
                return Said::Nothing;
            }
            Ask::Renew => {
                let time = format!("2027-01-01T00:00:00.{:06}Z", self.asked);
                ("lease".to_owned(), Verb::Update, json!({"spec": {"renewTime": time}}))
            }
            Ask::Status => (
                "database".to_owned(),
                Verb::Update,
                json!({"status": {"epoch": self.asked}}),
            ),
            Ask::Scale(replicas) => ("set".to_owned(), Verb::Merge, json!({"spec": {"replicas": replicas}})),
            Ask::Label(ordinal, primary) => {
                let role = if primary { ROLE_PRIMARY } else { ROLE_REPLICA };
                let change = json!({"metadata": {"labels": {ROLE: role}}});
                (format!("{NAME}-{ordinal}"), Verb::Merge, change)
            }
            Ask::DeletePod(ordinal) => (format!("{NAME}-{ordinal}"), Verb::Delete, Value::Null),
            Ask::DeleteClaim(ordinal) => (format!("data-{NAME}-{ordinal}"), Verb::Delete, Value::Null),
        };
        let Some((uid, version)) = self.known.versions.get(&name).cloned() else {
            return Said::Nothing;
        };
        let exact = json!({"uid": uid, "resourceVersion": version});
        let body = match verb {
            Verb::Delete => json!({"preconditions": exact, "propagationPolicy": "Background"}),
            Verb::Merge => merged(change, &json!({ "metadata": exact })),
            // A PUT has the whole object.
            _ => {
                let object = self.object(&name).as_deref().cloned().unwrap_or_default();
                merged(merged(object, &change), &json!({ "metadata": exact }))
            }
        };
        let (plural, object) = place(&name);
        let call = Call::new(verb, plural, NAMESPACE, object, body);
        let reply = self.call(if ask == Ask::Status { call.to("status") } else { call });
        match reply.code {
            200..300 => Said::Done,
            409 => Said::Conflict,
            404 => Said::Gone,
            other => panic!("{ask:?}: {other}: {:#}", reply.body),
        }
    }
}

/// Kind and name of what both call so.
fn place(name: &str) -> (&'static str, &str) {
    match name {
        "lease" => ("leases", NAME),
        "database" => ("clustereddatabases", NAME),
        "set" => ("statefulsets", NAME),
        claim if claim.starts_with("data-") => ("persistentvolumeclaims", claim),
        pod => ("pods", pod),
    }
}

fn merged(mut object: Value, change: &Value) -> Value {
    fake_api::merge_patch(&mut object, change);
    object
}

fn asks() -> impl Strategy<Value = Ask> {
    let ordinal = 0..INSTANCES.1;
    prop_oneof![
        3 => Just(Ask::Look),
        3 => Just(Ask::Settle),
        1 => Just(Ask::Renew),
        1 => Just(Ask::Status),
        2 => (0..=INSTANCES.1).prop_map(Ask::Scale),
        3 => (ordinal.clone(), any::<bool>()).prop_map(|(ordinal, primary)| Ask::Label(ordinal, primary)),
        3 => ordinal.clone().prop_map(Ask::DeletePod),
        3 => ordinal.prop_map(Ask::DeleteClaim),
    ]
}

fn both(asks: &[Ask]) -> Result<(), TestCaseError> {
    let (mut simulated, mut memory) = (Server::new(), Memory::new());
    for (step, ask) in asks.iter().enumerate() {
        let before = [simulated.standing(), memory.standing()];
        let said = [simulated.ask(*ask), memory.ask(*ask)];
        let now = [simulated.standing(), memory.standing()];
        let facts = |standing: &Standing| (standing.replicas, standing.pods.clone(), standing.claims.clone());
        let told = format!("step {step}, {ask:?}: the simulator's, and the other");
        prop_assert_eq!(said[0], said[1], "{}", told);
        prop_assert_eq!(facts(&now[0]), facts(&now[1]), "{}", told);
        if *ask != Ask::Settle {
            prop_assert_eq!(now[0].changed(&before[0]), now[1].changed(&before[1]), "{}", told);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn both_api_servers_answer_and_do_the_same(asks in prop::collection::vec(asks(), 1..40)) {
        both(&asks)?;
    }
}

/// Found by that.
#[test]
fn a_claim_that_no_pod_uses_goes_when_that_is_seen() -> Result<(), TestCaseError> {
    both(&[Ask::Scale(0), Ask::Settle, Ask::DeleteClaim(0), Ask::Settle])
}
