//! How much memory the shipped program takes, and how fast it is beside broken databases: in a process of its own, against an
//! API server in memory on a TCP port.
//!
//! `cargo xtask memory` runs it. It takes minutes, so `cargo test` leaves it out.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[path = "../simulated/agents.rs"]
#[allow(dead_code, reason = "a database is made and sent to sleep here, and no more")]
mod agents;
#[path = "../simulated/world.rs"]
#[allow(dead_code, reason = "a database is made and sent to sleep here, and no more")]
mod world;

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use api::ClusteredDatabase;
use api::names::{ANNOTATION_APPLIED, LABEL_ROLE};
use chrono::Utc;
use fake_api::faults::Faults;
use fake_api::{Call, Clock, Kind, Server, Store, Verb, merge_patch};
use operator::builders::Subject;
use operator::config::Config;
use operator::desired;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use world::{NAMESPACE, Operator, World, run};

/// How many databases there are in the measurement.
const VARIABLE: &str = "CDB_MEMORY";
/// Which operator is measured, if not the one that cargo has built for this test.
const PROGRAM: &str = "CDB_OPERATOR";
/// The most that the leader and the standby may take, at any time, in KiB: 100 MiB.
const MOST: u64 = 100 << 10;
/// The most that strangers' objects may add, in KiB: 30 MiB.
const MOST_OF_STRANGERS: u64 = 30 << 10;
/// What the lease of the operators' election is called in requests.
const ELECTION: &str = "clustereddatabase-operator";
/// So many kinds are watched.
const WATCHED: usize = 14;
/// An operator that sends nothing for so long has nothing to do.
const QUIET: Duration = Duration::from_secs(3);

/// How long a pod takes from one thing to the next, where the database is made.
const PACE: Duration = Duration::from_millis(400);

fn databases() -> usize {
    let number = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
    number.unwrap_or(1_000)
}

/// All objects of a database that is ready or hibernates, by the names of their kinds.
fn template(hibernated: bool) -> Vec<(&'static str, String)> {
    run(1, async || {
        let world = World::new(Faults::none(), PACE);
        let _operator = Operator::start(&world.server, Config::default());
        world.create(&json!({"replicas": 3}));
        world.ready().await;
        if hibernated {
            world.edit(&json!({"hibernated": true}));
            world
                .until("hibernated", |world| world.status()["phase"] == "Hibernated")
                .await;
        }
        // What can wait is written by then.
        tokio::time::sleep(Duration::from_secs(60)).await;
        world.server.within(|store, _| {
            let all = store.everything().filter(|(key, _)| key.namespace == NAMESPACE);
            let kept = all.filter(|(key, _)| key.kind.plural != "events");
            kept.map(|(key, object)| (key.kind.plural, object.to_string()))
                .collect()
        })
    })
}

/// The object as that of the database of the same name in another namespace.
fn copy(text: &str, number: usize) -> Value {
    let text = text
        .replace(&format!("\"{NAMESPACE}\""), &format!("\"{NAMESPACE}-{number:04}\""))
        .replace(&format!(".{NAMESPACE}."), &format!(".{NAMESPACE}-{number:04}."))
        .replace("-0000-4000-8000-", &format!("-{number:04x}-4000-8000-"));
    serde_json::from_str(&text).unwrap()
}

/// An API server on a TCP port, and the directory with the configuration that leads to it.
struct Cluster {
    server: Server,
    _runtime: Runtime,
    directory: PathBuf,
    template: Vec<(&'static str, String)>,
    /// What operators wrote since the last one was started.
    writes: RefCell<Vec<String>>,
    /// How many watches were opened since then.
    watches: Cell<usize>,
}

impl Cluster {
    fn new(name: &str, databases: usize, template: Vec<(&'static str, String)>) -> Self {
        let mut store = Store::default();
        let class = json!({"metadata": {"name": "standard", "uid": "c", "annotations":
            {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "p", "allowVolumeExpansion": true});
        store.restore("storageclasses", class, Utc::now());
        store.restore("nodes", json!({"metadata": {"name": "n1", "uid": "n"}}), Utc::now());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let server = {
            let _guard = runtime.enter();
            Server::new(store, Faults::none(), Clock::starting(Utc::now()))
        };
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(server.clone().serve(listener));
        let directory = std::env::temp_dir().join(format!("cdb-memory-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(directory.join("kubeconfig"), config.to_string()).unwrap();
        let cluster = Self {
            server,
            _runtime: runtime,
            directory,
            template,
            writes: RefCell::default(),
            watches: Cell::default(),
        };
        for number in 0..databases {
            cluster.add(number, |_| {});
        }
        cluster
    }

    /// Puts a database there that hibernates, with all that belongs to it.
    fn add(&self, number: usize, change: impl Fn(&mut Value)) {
        let copied = self.template.iter().map(|(plural, text)| (*plural, copy(text, number)));
        let mut objects: Vec<_> = copied.collect();
        let (_, db) = objects
            .iter_mut()
            .find(|(plural, _)| *plural == "clustereddatabases")
            .unwrap();
        change(db);
        let db: ClusteredDatabase = serde_json::from_value(db.clone()).unwrap();
        let config = Config::default();
        let wanted = desired::all(&Subject::new(&db, &config).unwrap());
        self.server.within(|store, now| {
            for (plural, mut object) in objects {
                // The namespace is part of hashes.
                let is_this =
                    |kind: &str, name: &str| kind == Kind::of(plural).kind && object["metadata"]["name"] == name;
                let found = wanted
                    .iter()
                    .find(|(kind, desired)| is_this(kind.kind(), &desired.name));
                if let Some((desired, hash)) = found.and_then(|(_, desired)| Some((desired, desired.hash.as_ref()?))) {
                    merge_patch(&mut object, &desired.content);
                    object["metadata"]["annotations"][ANNOTATION_APPLIED] = json!(hash);
                }
                store.restore(plural, object, now);
            }
        });
    }

    /// Changes each of the first databases, as its user.
    fn edit(&self, databases: usize, spec: &Value) {
        for number in 0..databases {
            let namespace = format!("{NAMESPACE}-{number:04}");
            let call = Call::new(
                Verb::Merge,
                "clustereddatabases",
                &namespace,
                "db",
                json!({"spec": spec}),
            );
            let reply = self.server.within(|store, now| store.call(&call, now));
            assert_eq!(reply.code, 200, "{:#}", reply.body);
        }
    }

    /// Waits until this operator has asked for nothing for a while, apart from its election, and has hardly computed.
    fn settle(&self, program: &Program) {
        let (mut since, mut computed) = (Instant::now(), program.computed());
        let limit = Instant::now() + Duration::from_secs(900);
        while since.elapsed() < QUIET {
            assert!(Instant::now() < limit, "still busy");
            std::thread::sleep(Duration::from_millis(100));
            if self.take_requests() > 0 || program.computed() - computed > QUIET / 4 {
                (since, computed) = (Instant::now(), program.computed());
            }
        }
    }

    /// How many requests have come, apart from the election, since this was last asked. Remembers the writes, and counts the watches.
    fn take_requests(&self) -> usize {
        let mut requests = self.server.take_trace();
        requests.retain(|line| !line.contains(ELECTION) && line.ends_with(')'));
        let watches = requests.iter().filter(|line| line.starts_with("Watch ")).count();
        self.watches.set(self.watches.get() + watches);
        let reads = ["Get ", "List ", "Watch "];
        let writes = requests
            .iter()
            .filter(|line| !reads.iter().any(|verb| line.starts_with(verb)));
        self.writes.borrow_mut().extend(writes.cloned());
        requests.len()
    }

    /// Starts an operator and waits until it has listed everything and has nothing to do.
    fn start(&self, election: bool) -> Program {
        // No request of the one before counts any more.
        self.take_requests();
        self.writes.borrow_mut().clear();
        self.watches.set(0);
        let program = Program::start(&self.directory, election);
        let limit = Instant::now() + Duration::from_secs(300);
        let began = Instant::now();
        while self.watches.get() < WATCHED {
            assert!(Instant::now() < limit, "not all is listed: {}", program.log());
            std::thread::sleep(Duration::from_millis(50));
            self.take_requests();
        }
        println!("All is listed {:.1} s after a start.", began.elapsed().as_secs_f64());
        self.settle(&program);
        program
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

/// What the manifests tell glibc's allocator.
fn allocation() -> Vec<(String, String)> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/base/deployment.yaml");
    let manifest: Value = serde_saphyr::from_str(&std::fs::read_to_string(manifest).unwrap()).unwrap();
    let variables = &manifest["spec"]["template"]["spec"]["containers"][0]["env"];
    let text = |variable: &Value, field: &str| variable[field].as_str().unwrap_or_default().to_owned();
    let all = variables.as_array().unwrap().iter();
    let all = all.map(|variable| (text(variable, "name"), text(variable, "value")));
    all.filter(|(name, _)| name.starts_with("MALLOC_")).collect()
}

/// An operator in a process of its own; it ends when this is dropped.
struct Program {
    child: Child,
    pages: SocketAddr,
    log: PathBuf,
}

impl Program {
    fn start(directory: &Path, election: bool) -> Self {
        let pages = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = directory.join(format!("operator-{}.log", pages.port()));
        let mut command = Command::new(
            std::env::var(PROGRAM)
                .as_deref()
                .unwrap_or(env!("CARGO_BIN_EXE_operator")),
        );
        command
            .env("KUBECONFIG", directory.join("kubeconfig"))
            .env("LOG_FORMAT", "json")
            .envs(allocation())
            .args(["--listen", &pages.to_string(), "--decisions", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap());
        if !election {
            command.arg("--no-leader-election");
        }
        let child = command.spawn().unwrap();
        Self { child, pages, log }
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.pages).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// A number of its metrics.
    fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse::<f64>().unwrap() as u64
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// For how long it has computed.
    fn computed(&self) -> Duration {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let after_name = text.rsplit(')').next().unwrap();
        // Hundredths of a second, in user mode and in the kernel.
        let ticks = after_name.split_whitespace().skip(11).take(2);
        Duration::from_millis(10 * ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>())
    }

    fn takes(&self) -> Takes {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let number = |field: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        Takes {
            now: number("VmRSS"),
            peak: number("VmHWM"),
            program: number("RssFile"),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Resident memory, in KiB.
#[derive(Clone, Copy, Debug)]
struct Takes {
    now: u64,
    peak: u64,
    /// Of `now`, what is the program's file in memory.
    program: u64,
}

impl std::fmt::Display for Takes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |kib: u64| kib as f64 / 1024.0;
        let (now, peak, program) = (mib(self.now), mib(self.peak), mib(self.program));
        write!(
            f,
            "{now:.1} MiB, at most {peak:.1} ({program:.1} are the program's file)"
        )
    }
}

/// What is measured.
fn build() -> String {
    match std::env::var(PROGRAM) {
        Ok(program) => program,
        Err(_) if cfg!(debug_assertions) => "dev build".to_owned(),
        Err(_) => "release build".to_owned(),
    }
}

#[test]
fn leader_and_standby_of_many_databases_that_hibernate() {
    let databases = databases();
    let cluster = Cluster::new("databases", databases, template(true));
    let mut all = Vec::new();
    let mut note = |what: &'static str, takes: Takes| {
        println!("{databases} hibernated databases, {what}: {takes}; {}", build());
        all.push((what, takes));
    };
    let leader = cluster.start(true);
    assert_eq!(leader.metric("cdb_operator_leader "), 1);
    assert!(leader.metric("cdb_operator_reconciles_total ") >= databases as u64);
    let writes = cluster.writes.borrow().clone();
    for line in writes.iter().take(3) {
        let namespace = line.split([' ', '/']).find(|word| word.starts_with("ns-")).unwrap();
        let db = cluster
            .server
            .within(|store, _| store.get("clustereddatabases", namespace, "db"));
        println!("{line}: {:#}", db.unwrap()["status"]["conditions"]);
    }
    // On a busy machine a request may fail, which a status tells.
    assert!(
        writes.len() <= databases / 50,
        "nothing is to be done: {} writes, such as {:#?}\n{}",
        writes.len(),
        &writes[..writes.len().min(20)],
        leader.log().lines().take(9).collect::<Vec<_>>().join("\n")
    );
    note("leader after its start", leader.takes());
    let standby = cluster.start(true);
    assert_eq!(standby.metric("cdb_operator_leader "), 0);
    note("standby after its start", standby.takes());
    for paused in [true, false, true, false] {
        cluster.edit(databases, &json!({"paused": paused}));
        cluster.settle(&leader);
    }
    cluster.settle(&standby);
    note("leader after four changes of each", leader.takes());
    note("standby after four changes of each", standby.takes());
    for (what, takes) in all {
        assert!(takes.peak <= MOST, "{what}: {takes}");
    }
}

/// 256 KiB is the most that Kubernetes takes of annotations.
fn stranger(plural: &str, number: usize) -> Value {
    let long = "x".repeat(256 << 10);
    let name = format!("stranger-{number}");
    let mut object = json!({
        "metadata": {
            "name": name, "namespace": "strangers", "uid": format!("stranger-{plural}-{number}"),
            "labels": {"clustereddatabase.io/cluster": name},
        },
    });
    match plural {
        "statefulsets" => {
            let container = json!({"name": "c", "image": "i", "env": [{"name": "A", "value": long}]});
            object["spec"] = json!({"replicas": 0, "serviceName": "s", "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}});
        }
        "persistentvolumeclaims" => {
            object["metadata"]["name"] = json!(format!("data-stranger-{number}"));
            object["metadata"]["annotations"] = json!({"a": long});
        }
        _ => object["metadata"]["annotations"] = json!({"a": long}),
    }
    object
}

#[test]
fn strangers_objects_and_long_sql_move_nothing() {
    const KINDS: [&str; 8] = [
        "secrets",
        "statefulsets",
        "services",
        "roles",
        "leases",
        "endpointslices",
        "pods",
        "persistentvolumeclaims",
    ];
    let strangers = databases() * 2;
    let resources = databases() / 5;
    let cluster = Cluster::new("strangers", 10, template(true));
    let first = cluster.start(false);
    let without = {
        let again = cluster.start(false);
        again.takes()
    };
    println!("10 databases and no stranger's object: {without}; {}", build());
    for number in 0..strangers {
        let plural = KINDS[number % KINDS.len()];
        cluster
            .server
            .within(|store, now| store.restore(plural, stranger(plural, number), now));
    }
    cluster.settle(&first);
    let seen = first.takes();
    println!(
        "{strangers} labelled objects of 256 KiB more, as they come: {seen}; {}",
        build()
    );
    drop(first);
    let started = cluster.start(false);
    let listed = started.takes();
    println!(
        "{strangers} labelled objects of 256 KiB more, after a start: {listed}; {}",
        build()
    );
    let sql: Vec<String> = (0..64)
        .map(|number| format!("SELECT '{number}{}'", "x".repeat(16_300)))
        .collect();
    for number in 0..resources {
        cluster.add(1_000 + number, |db| {
            db["spec"]["bootstrap"] = json!({"initdb": {"postInitApplicationSQL": sql}});
        });
    }
    cluster.settle(&started);
    let with_sql = started.takes();
    println!(
        "{resources} resources with 1 MiB of SQL more, as they come: {with_sql}; {}",
        build()
    );
    drop(started);
    let all = cluster.start(false).takes();
    println!(
        "{resources} resources with 1 MiB of SQL more, after a start: {all}; {}",
        build()
    );
    for (what, takes) in [
        ("seen", seen),
        ("listed", listed),
        ("SQL, seen", with_sql),
        ("SQL, listed", all),
    ] {
        assert!(takes.peak <= without.peak + MOST_OF_STRANGERS, "{what}: {takes}");
    }
}

/// How long the operator takes to put the label of the primary's pod back, as it does after a failover: the median of many
/// times.
fn bookkeeping(cluster: &Cluster) -> Duration {
    let pod = |store: &Store| {
        let pods = store.list("pods").into_iter();
        let of_database = pods.filter(|pod| pod["metadata"]["namespace"] == "ns-0000");
        of_database.map(|pod| (*pod).clone()).collect::<Vec<_>>()
    };
    let is_primary = |pod: &Value| pod["metadata"]["labels"][LABEL_ROLE] == "primary";
    let primary = || {
        cluster
            .server
            .within(|store, _| pod(store).into_iter().find(is_primary))
    };
    let mut times: Vec<_> = (0..31)
        .map(|_| {
            let name = primary().unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
            let change = json!({"metadata": {"labels": {LABEL_ROLE: null}}});
            let call = Call::new(Verb::Merge, "pods", "ns-0000", &name, change);
            cluster
                .server
                .within(|store, now| assert_eq!(store.call(&call, now).code, 200));
            let began = Instant::now();
            while primary().is_none() {
                assert!(began.elapsed() < Duration::from_secs(60), "no label");
                std::thread::sleep(Duration::from_millis(1));
            }
            let took = began.elapsed();
            std::thread::sleep(Duration::from_millis(150));
            took
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

#[test]
fn broken_databases_do_not_slow_another_namespace() {
    let cluster = Cluster::new("broken", 1, template(false));
    let operator = cluster.start(false);
    let alone = bookkeeping(&cluster);
    println!(
        "A primary's label is put back after {alone:?}, without other databases; {}",
        build()
    );
    let broken = databases() / 2;
    for number in 0..broken {
        // Nobody makes the pods of their StatefulSets.
        let db = json!({
            "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
            "metadata": {"name": format!("db-{number}"), "namespace": "broken", "uid": format!("broken-{number}"), "generation": 1},
            "spec": {"replicas": 3, "storage": {"data": {"size": "1Gi"}}},
        });
        cluster
            .server
            .within(|store, now| store.restore("clustereddatabases", db, now));
    }
    let busy = bookkeeping(&cluster);
    println!(
        "{busy:?} while {broken} broken databases are made in another namespace; {}",
        build()
    );
    let sets = || cluster.server.within(|store, _| store.list("statefulsets").len());
    let limit = Instant::now() + Duration::from_secs(600);
    while sets() <= broken {
        assert!(Instant::now() < limit, "{} StatefulSets", sets());
        std::thread::sleep(Duration::from_millis(500));
    }
    let beside = bookkeeping(&cluster);
    println!(
        "{beside:?} while {broken} broken databases wait for pods in another namespace; {}",
        build()
    );
    drop(operator);
    for slowed in [busy, beside] {
        assert!(slowed <= 2 * alone, "{slowed:?} instead of {alone:?}");
    }
}
