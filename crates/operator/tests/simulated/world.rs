//! A cluster in memory with one database, and the shipped operator's caches, queue and executor on it, on a clock that
//! goes on only when everybody waits.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use api::Unreadable;
use chrono::{DateTime, TimeDelta, Utc};
use fake_api::faults::Faults;
use fake_api::stubs::Stubs;
use fake_api::{Call, Clock, Definition, Kind, Process, Reply, Server, Store, Verb, merge_patch};
use kube::Client;
use kube::runtime::watcher;
use machine::cluster::decide;
use operator::cache::Key;
use operator::caches::{Caches, Report};
use operator::config::Config;
use operator::decisions::Decisions;
use operator::execute::Executor;
use operator::metrics::Metrics;
use operator::queue::Queue;
use operator::requests::Requests;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::agents::Agents;

/// The database's name.
pub const NAME: &str = "db";
/// Its namespace.
pub const NAMESPACE: &str = "ns";
/// For so long nothing is written where a database rests.
pub const LONG: Duration = Duration::from_secs(300);
/// How often controllers, kubelets and agents move.
const TICK: Duration = Duration::from_millis(200);

/// Runs a course on a runtime of its own, whose time is its own, too; with the same seed the same happens in it.
pub fn run<R>(seed: u64, course: impl AsyncFnOnce() -> R) -> R {
    // kube's watches draw their pauses from it.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(course())
}

/// A cluster.
pub struct World {
    /// Its API server.
    pub server: Server,
    /// Its agents.
    pub agents: Arc<Mutex<Agents>>,
    /// The driver of everything that is not the operator.
    tasks: JoinSet<()>,
}

impl World {
    /// A cluster with three nodes and nothing else.
    pub fn new(faults: Faults, pace: Duration) -> Self {
        let epoch: DateTime<Utc> = "2027-01-01T00:00:00Z".parse().unwrap();
        let mut store = Store::default();
        let class = json!({
            "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "p", "allowVolumeExpansion": true,
        });
        let node = |name: &str| json!({"metadata": {"name": name}});
        for (plural, object) in [
            ("namespaces", json!({"metadata": {"name": NAMESPACE}})),
            ("storageclasses", class),
            ("nodes", node("n1")),
            ("nodes", node("n2")),
            ("nodes", node("n3")),
        ] {
            expect(201, store.call(&Call::new(Verb::Create, plural, "", "", object), epoch));
        }
        static DEFINITION: LazyLock<Arc<Definition>> = LazyLock::new(|| {
            let definition = serde_json::to_value(api::crd()).expect("JSON");
            Definition::new(&definition).into()
        });
        static OPERATIONS: LazyLock<Arc<Definition>> = LazyLock::new(|| {
            let definition = serde_json::to_value(api::operation::crd()).expect("JSON");
            Definition::new(&definition).into()
        });
        store.define(Arc::clone(&DEFINITION));
        static BACKUPS: LazyLock<Arc<Definition>> = LazyLock::new(|| {
            let definition = serde_json::to_value(api::backup::crd()).expect("JSON");
            Definition::new(&definition).into()
        });
        store.define(Arc::clone(&OPERATIONS));
        store.define(Arc::clone(&BACKUPS));
        static USERS: LazyLock<Arc<Definition>> = LazyLock::new(|| {
            let definition = serde_json::to_value(api::user::crd()).expect("JSON");
            Definition::new(&definition).into()
        });
        store.define(Arc::clone(&USERS));
        static DATABASES: LazyLock<Arc<Definition>> = LazyLock::new(|| {
            let definition = serde_json::to_value(api::database::crd()).expect("JSON");
            Definition::new(&definition).into()
        });
        store.define(Arc::clone(&DATABASES));
        static POOLERS: LazyLock<Arc<Definition>> = LazyLock::new(|| {
            let definition = serde_json::to_value(api::pooler::crd()).expect("JSON");
            Definition::new(&definition).into()
        });
        store.define(Arc::clone(&POOLERS));
        let mut world = Self {
            server: Server::new(store, faults, Clock::starting(epoch)),
            agents: Arc::default(),
            tasks: JoinSet::new(),
        };
        world.drive(pace);
        world
    }

    fn drive(&mut self, pace: Duration) {
        let (server, agents) = (self.server.clone(), Arc::clone(&self.agents));
        let mut stubs = Stubs::new(TimeDelta::from_std(pace).unwrap());
        self.tasks.spawn(async move {
            let (mut seen, mut moved) = (None, Instant::now());
            loop {
                // Where nothing has changed, nothing moves but what waits for its time.
                let version = server.within(|store, _| store.version());
                if seen != Some(version) || moved.elapsed() >= Duration::from_secs(1) {
                    (seen, moved) = (Some(version), Instant::now());
                    server.within(|store, now| {
                        let mut agents = agents.lock().unwrap();
                        stubs.lost.clone_from(&agents.lost);
                        stubs.tick(store, now);
                        agents.tick(store, &mut stubs, now);
                    });
                }
                tokio::time::sleep(TICK).await;
            }
        });
    }

    /// What a user does to an object; the answer must have this code.
    pub fn user(&self, code: u16, verb: Verb, plural: &str, name: &str, body: Value) -> Value {
        let namespace = if Kind::of(plural).namespaced { NAMESPACE } else { "" };
        let call = Call::new(verb, plural, namespace, name, body).with("fieldManager", "user");
        expect(code, self.server.within(|store, now| store.call(&call, now)))
    }

    /// Makes the database.
    pub fn create(&self, spec: &Value) {
        let mut wanted = json!({"storage": {"data": {"size": "1Gi"}}});
        merge_patch(&mut wanted, spec);
        let db = json!({"metadata": {"name": NAME}, "spec": wanted});
        self.user(201, Verb::Create, "clustereddatabases", "", db);
    }

    /// Changes its spec.
    pub fn edit(&self, spec: &Value) {
        self.user(200, Verb::Merge, "clustereddatabases", NAME, json!({"spec": spec}));
    }

    /// Deletes an object, and what belongs to it.
    pub fn delete(&self, plural: &str, name: &str) {
        let how = json!({"propagationPolicy": "Background"});
        self.user(200, Verb::Delete, plural, name, how);
    }

    /// Changes all nodes.
    pub fn each_node(&self, change: &Value) {
        for node in self.list("nodes") {
            let name = node["metadata"]["name"].as_str().unwrap();
            self.user(200, Verb::Merge, "nodes", name, change.clone());
        }
    }

    /// One object.
    pub fn get(&self, plural: &str, name: &str) -> Option<Arc<Value>> {
        let namespace = if Kind::of(plural).namespaced { NAMESPACE } else { "" };
        self.server.within(|store, _| store.get(plural, namespace, name))
    }

    /// All objects of a kind.
    pub fn list(&self, plural: &str) -> Vec<Arc<Value>> {
        self.server.within(|store, _| store.list(plural))
    }

    /// The database's status; `Null` if there is none.
    pub fn status(&self) -> Value {
        self.get("clustereddatabases", NAME)
            .map_or(Value::Null, |db| db["status"].clone())
    }

    /// The database is as its spec wants it, and says so.
    pub fn is_ready(&self) -> bool {
        let db = self.get("clustereddatabases", NAME);
        db.is_some_and(|db| {
            db["status"]["phase"] == "Ready" && db["status"]["observedGeneration"] == db["metadata"]["generation"]
        })
    }

    /// Waits until it is ready.
    pub async fn ready(&self) {
        self.until("ready", Self::is_ready).await;
    }

    /// Waits until it is so, at most twenty minutes of this world's time.
    pub async fn until(&self, what: &str, so: impl Fn(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(20 * 60);
        while !so(self) {
            if Instant::now() > end {
                let requests = self.server.trace();
                let last = &requests[requests.len().saturating_sub(30)..];
                panic!("not {what}: {:#}\nthe last requests: {last:#?}", self.status());
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// The operator's writes so far: what was asked, and what became of it.
    pub fn writes(&self) -> Vec<String> {
        let reads = ["Get ", "List ", "Watch "];
        let trace = self.server.trace().into_iter();
        trace
            .filter(|line| line.ends_with(')') && !reads.iter().any(|verb| line.starts_with(verb)))
            .collect()
    }

    /// From now on nobody but the agents writes anything: not for so long, after a status that can wait was written.
    pub async fn rests(&self, time: Duration) {
        tokio::time::sleep(Duration::from_secs(40)).await;
        let before = self.writes();
        tokio::time::sleep(time).await;
        let after = self.writes();
        assert_eq!(
            after.len(),
            before.len(),
            "{:#?}\n{:#}",
            &after[before.len()..],
            self.status()
        );
        assert!(self.is_ready(), "{:#}", self.status());
    }

    /// UIDs and contents of the Secrets, by name.
    pub fn secrets(&self) -> BTreeMap<String, (Value, Value)> {
        let secrets = self.list("secrets").into_iter();
        let told = |secret: &Value| (secret["metadata"]["uid"].clone(), secret["data"].clone());
        secrets
            .map(|secret| (secret["metadata"]["name"].to_string(), told(&secret)))
            .collect()
    }

    /// UIDs of pods, claims and what is made once, by kind and name.
    pub fn uids(&self) -> BTreeMap<String, String> {
        let kinds = [
            "pods",
            "persistentvolumeclaims",
            "secrets",
            "leases",
            "services",
            "statefulsets",
            "roles",
        ];
        let all = kinds
            .iter()
            .flat_map(|kind| self.list(kind).into_iter().map(move |object| (kind, object)));
        all.map(|(kind, object)| {
            let metadata = &object["metadata"];
            (format!("{kind} {}", metadata["name"]), metadata["uid"].to_string())
        })
        .collect()
    }
}

/// The answer's body; its code must be this.
fn expect(code: u16, reply: Reply) -> Value {
    assert_eq!(reply.code, code, "{:#}", reply.body);
    reply.body
}

/// An operation that asks for a switchover to this instance.
pub fn switchover(name: &str, to: &str) -> Value {
    operation(name, json!({"switchover": {"to": to}}))
}

/// An operation that asks for this.
pub fn operation(name: &str, action: Value) -> Value {
    let mut spec = json!({"clusterRef": {"name": NAME}});
    merge_patch(&mut spec, &action);
    json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
}

/// One operator's process, without leader election and pages.
pub struct Operator {
    /// What it decided.
    pub decisions: Arc<Decisions>,
    /// What it knows of the cluster.
    pub caches: Arc<Caches>,
    /// What carries out what it decides.
    pub executor: Arc<Executor>,
    /// What its watches reported besides changes.
    pub heard: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
    _watches: JoinSet<()>,
}

struct Reporter {
    queue: Arc<Queue>,
    caches: Arc<Caches>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Report for Reporter {
    fn touched(&self, key: Key) {
        let keys = if key == Key::all() {
            self.caches.databases.keys()
        } else {
            vec![key]
        };
        keys.into_iter().for_each(|key| self.queue.add(key, Instant::now()));
    }

    fn failed(&self, kind: &'static str, error: &watcher::Error) {
        self.heard
            .lock()
            .unwrap()
            .push(format!("the watch of {kind} failed: {error}"));
    }

    fn unreadable(&self, kind: &'static str, object: &Unreadable) {
        let name = object.metadata.name.clone().unwrap_or_default();
        let line = format!("{kind} {name} cannot be read: {}", object.why);
        self.heard.lock().unwrap().push(line);
    }
}

impl Operator {
    /// Starts one; it ends, wherever it is, when it is dropped.
    pub fn start(server: &Server, config: Config) -> Self {
        Self::start_as(server, config, &Process::new("operator"), server.client())
    }

    /// One that panics at each decision about the database called `name`, as long as `so` says so.
    pub fn start_with_a_bug(
        server: &Server,
        name: &'static str,
        so: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        let process = Process::new("operator");
        Self::start_with(server, Config::default(), &process, server.client(), |executor| {
            executor.with_decide(move |wanted, observed, stored, now| {
                assert!(wanted.name != name || !so(), "a rule with a bug");
                decide(wanted, observed, stored, now)
            })
        })
    }

    /// The same in this process, which can be stopped.
    pub fn start_in(server: &Server, config: Config, process: &Process) -> Self {
        Self::start_as(server, config, process, server.client_of(process))
    }

    fn start_as(server: &Server, config: Config, process: &Process, client: Client) -> Self {
        Self::start_with(server, config, process, client, |executor| executor)
    }

    fn start_with(
        server: &Server,
        config: Config,
        process: &Process,
        client: Client,
        change: impl FnOnce(Executor) -> Executor,
    ) -> Self {
        let (caches, queue) = (Arc::new(Caches::default()), Arc::new(Queue::default()));
        let (metrics, clock) = (Metrics::default(), server.clock());
        let requests = Requests::new(client.clone(), metrics.clone());
        let executor = Executor::new(requests, Arc::clone(&caches), config, metrics, "test".to_owned());
        let executor = Arc::new(change(executor.with_clock(move || clock.now())));
        let decisions = executor.decisions();
        let heard = Arc::default();
        let reporter = Arc::new(Reporter {
            queue: Arc::clone(&queue),
            caches: Arc::clone(&caches),
            heard: Arc::clone(&heard),
        });
        let watches = caches.watch(&client, None, &reporter);
        let mut tasks = JoinSet::new();
        let process = process.clone();
        let looker = Arc::clone(&executor);
        let work = async move {
            while let Some(key) = queue.next().await {
                let looked = looker.look(&key).await;
                if let Some(wait) = looked.again {
                    queue.add(key.clone(), Instant::now() + wait);
                }
                looked.wakes.into_iter().for_each(|key| queue.add(key, Instant::now()));
                queue.done(&key);
            }
        };
        tasks.spawn(async move { process.run(work).await });
        Self {
            decisions,
            caches,
            executor,
            heard,
            _tasks: tasks,
            _watches: watches,
        }
    }
}
