//! Three agents, each in a network and a process namespace of its own as in a pod, on one bridge with an API server.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use agent::archive::Archiving;
use agent::deadman::DeadMan;
use agent::kubernetes::Clients;
use agent::process::processes;
use agent::run::{Config, run_with};
use api::backup::{BackupKind, BackupSource, SnapshotProgress, SnapshotState};
use api::names::Names;
use machine::protocol::certificate_digest;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::api_server::{ApiServer, CLUSTERS, LEASES, ROUTES, instance};
use crate::certificates::{Authority, NAME};
use crate::unprivileged::{binaries, place, user};

/// Tells an inner process its scratch directory.
const SCRATCH: &str = "CDB_TEST_CLUSTER";
/// Tells an agent's process its ordinal.
const ORDINAL: &str = "CDB_TEST_ORDINAL";
/// If set, the directories of tests that succeed are kept, too.
const KEEP: &str = "CDB_TEST_KEEP";
/// Those of a store of backups, as in the Secret that is mounted.
const CREDENTIALS: [(&str, &str); 2] = [
    ("AWS_ACCESS_KEY_ID", test_store::KEY),
    ("AWS_SECRET_ACCESS_KEY", test_store::SECRET),
];
/// The number of agents.
pub const AGENTS: u32 = 3;
/// In the scratch directory of a cluster whose PostgreSQL archives WAL.
const ARCHIVES: &str = "archives";
const CLUSTER_UID: &str = "c0ffee00-0000-0000-0000-000000000000";
/// In the scratch directory: the UID of the database.
const UID_FILE: &str = "uid";
/// Also the address of a store of backups.
pub const API_SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const API_PORT: u16 = 6443;

/// If this process is to be an agent, becomes it and never returns.
pub fn become_agent_if_asked() {
    let Some(ordinal) = std::env::var(ORDINAL).ok().and_then(|ordinal| ordinal.parse().ok()) else {
        return;
    };
    let scratch = PathBuf::from(std::env::var_os(SCRATCH).expect("a scratch directory"));
    let dead_man = DeadMan::start_program(&scratch.join("agent")).expect("the dead-man");
    agent::logs::init();
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("a cryptography provider");
    let workers = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let vital = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let result = vital.block_on(async {
        while !is_connected().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let config = config(&scratch, ordinal);
        let server = format!("http://{API_SERVER}:{API_PORT}").parse().expect("an address");
        let clients = Clients::from_config(kube::Config::new(server), &config.namespace, config.names.clone());
        run_with(config, clients.expect("clients"), dead_man, workers.handle().clone()).await
    });
    if let Err(error) = &result {
        tracing::error!("{error:#}");
    }
    agent::logs::flush();
    std::process::exit(i32::from(result.is_err()));
}

/// The test has set up the network.
async fn is_connected() -> bool {
    let connect = tokio::net::TcpStream::connect((API_SERVER, API_PORT));
    matches!(
        tokio::time::timeout(Duration::from_millis(200), connect).await,
        Ok(Ok(_))
    )
}

fn config(scratch: &Path, ordinal: u32) -> Config {
    let root = scratch.join(ordinal.to_string());
    let start = fs::read_to_string(root.join("start")).expect("a number");
    Config {
        names: Names::new("orders"),
        cluster_uid: fs::read_to_string(scratch.join(UID_FILE)).expect("a UID"),
        namespace: "default".to_owned(),
        pod: format!("orders-{ordinal}"),
        ordinal,
        pod_uid: format!("pod-{ordinal}-{start}"),
        address: address(ordinal).to_string(),
        data: root.join("data"),
        wal: None,
        wal_of_another: None,
        socket: root.join("run"),
        alive: root.join("alive"),
        tls: root.join("tls"),
        password: root.join("app/password"),
        program: scratch.join("agent"),
        recovery_access: root.join("store"),
        recovery_volume: scratch.join("recovery-backups"),
        archive: scratch.join(ARCHIVES).exists().then(|| Archiving {
            program: scratch.join("agent"),
            socket: root.join("run/archive"),
            access: root.join("store"),
            volume: scratch.join("backups"),
        }),
    }
}

/// The address of an agent and its PostgreSQL.
pub fn address(ordinal: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 10 + u8::try_from(ordinal).expect("a small number"))
}

/// Runs the body of the test called `name` in a network of its own. Needs root, as the testbed does.
pub fn in_a_cluster<F: Future<Output = ()>>(name: &str, spec: Value, body: impl FnOnce(Cluster) -> F) {
    if let Some(scratch) = std::env::var_os(SCRATCH) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        return runtime.block_on(async move { body(Cluster::start(scratch.into(), spec).await).await });
    }
    assert!(
        rustix::process::geteuid().is_root(),
        "namespaces need root: run the tests as root, as `cargo xtask test` does"
    );
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Short: the path of a Unix socket has 107 bytes.
    let scratch = PathBuf::from(format!("/tmp/cdb-c-{}-{number}", std::process::id()));
    fs::create_dir_all(&scratch).expect("a scratch directory");
    for (program, to) in [
        (std::env::current_exe().expect("a program"), "test"),
        (env!("CARGO_BIN_EXE_agent").into(), "agent"),
    ] {
        place(&program, &scratch.join(to));
    }
    // The bridge is in a network namespace of its own, too, and ends with it.
    let status = Command::new("unshare")
        .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(scratch.join("test"))
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(SCRATCH, &scratch)
        .status()
        .expect("the test runs");
    if status.success() && std::env::var_os(KEEP).is_none() {
        let _ = fs::remove_dir_all(&scratch);
    }
    assert!(status.success(), "{name} failed: see above, and {}", scratch.display());
}

/// The agents and their API server.
pub struct Cluster {
    pub api: ApiServer,
    scratch: PathBuf,
    agents: Vec<Option<Child>>,
    /// The bridge's ends.
    cables: Vec<String>,
    starts: u32,
}

impl Cluster {
    async fn start(scratch: PathBuf, spec: Value) -> Self {
        ip("link set lo up");
        // It gets a MAC address of its own: else it takes that of a cable, and changes it when that cable is removed.
        ip("link add cdb address 02:cd:b0:00:00:01 type bridge");
        ip(&format!("addr add {API_SERVER}/24 dev cdb"));
        ip("link set cdb up");
        let authority = Authority::new();
        for ordinal in 0..AGENTS {
            let root = scratch.join(ordinal.to_string());
            for directory in ["data", "run", "app"] {
                fs::create_dir_all(root.join(directory)).expect("a directory");
            }
            authority.write(&root.join("tls"), "orders-agent", &[NAME]);
            fs::write(root.join("app/password"), "geheim").expect("written");
            if spec["backup"].is_object() {
                fs::create_dir_all(root.join("store")).expect("a directory");
                for (name, value) in CREDENTIALS {
                    fs::write(root.join("store").join(name), value).expect("written");
                }
                fs::write(scratch.join(ARCHIVES), "").expect("written");
            }
        }
        fs::write(scratch.join(UID_FILE), CLUSTER_UID).expect("written");
        own(&scratch);
        let api = ApiServer::new(authority, objects(CLUSTER_UID, &spec));
        let listener = TcpListener::bind((API_SERVER, API_PORT)).await.expect("a port");
        tokio::spawn(api.clone().serve(listener));
        let mut cluster = Self {
            api,
            scratch,
            agents: (0..AGENTS).map(|_| None).collect(),
            cables: vec![String::new(); AGENTS as usize],
            starts: 0,
        };
        (0..AGENTS).for_each(|ordinal| cluster.start_agent(ordinal));
        cluster
    }

    /// Starts an agent, as in a new pod on the same volume (with the address of the old one).
    pub fn start_agent(&mut self, ordinal: u32) {
        let start = self.scratch.join(ordinal.to_string()).join("start");
        fs::write(start, self.starts.to_string()).expect("written");
        self.start_container(ordinal);
    }

    /// Starts an agent again, as the kubelet does when a container has ended.
    pub fn start_container(&mut self, ordinal: u32) {
        self.starts += 1;
        let root = self.scratch.join(ordinal.to_string());
        let log = File::options()
            .create(true)
            .append(true)
            .open(root.join("log"))
            .expect("a log");
        let (_, uid, gid) = user();
        let child = Command::new("unshare")
            .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
            .args([
                "setpriv",
                &format!("--reuid={uid}"),
                &format!("--regid={gid}"),
                "--clear-groups",
                "--",
            ])
            .arg(self.scratch.join("test"))
            .args(["--exact", "an_agent", "--nocapture", "--test-threads=1"])
            .env(ORDINAL, ordinal.to_string())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("an agent");
        let unshare = child.id();
        self.agents[ordinal as usize] = Some(child);
        // The network is there as soon as `unshare` has forked.
        let own = fs::read_link("/proc/self/ns/net").expect("a network");
        until("a network of its own", || {
            fs::read_link(format!("/proc/{unshare}/ns/net")).is_ok_and(|network| network != own)
        });
        let cable = format!("v{ordinal}-{}", self.starts);
        ip(&format!("link add {cable} type veth peer name eth0 netns {unshare}"));
        ip(&format!("link set {cable} master cdb up"));
        self.cables[ordinal as usize] = cable;
        let address = address(ordinal);
        for command in [
            format!("addr add {address}/24 dev eth0"),
            "link set eth0 up".to_owned(),
            "link set lo up".to_owned(),
        ] {
            run("nsenter", &format!("--target {unshare} --net ip {command}"));
        }
    }

    /// Acts like a power loss of a node: every process of the pod dies, and its address is silent.
    pub fn kill_agent(&mut self, ordinal: u32) {
        self.signal(ordinal, Signal::KILL);
        self.ended(ordinal);
    }

    /// Waits until the agent has ended, and with it its namespaces.
    pub fn ended(&mut self, ordinal: u32) {
        let mut child = self.agents[ordinal as usize].take().expect("a running agent");
        child.wait().expect("ended");
    }

    /// Sends a signal to the agent.
    pub fn signal(&self, ordinal: u32, signal: Signal) {
        let unshare = self.agents[ordinal as usize].as_ref().expect("a running agent").id();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).expect("its child");
        // The first process of its namespace: all others die with it.
        let agent = children.trim().parse().ok().and_then(Pid::from_raw).expect("the agent");
        kill_process(agent, signal).expect("a signal");
    }

    /// Acts like a pulled cable: the processes live on.
    pub fn cut_off(&self, ordinal: u32) {
        ip(&format!("link set {} down", self.cables[ordinal as usize]));
    }

    /// Takes back [`Cluster::cut_off`].
    pub fn reconnect(&self, ordinal: u32) {
        ip(&format!("link set {} up", self.cables[ordinal as usize]));
    }

    /// Acts like a slow network: data to the pod arrives at this rate, in bits a second, and waits for up to ten
    /// seconds. `None` takes it back.
    pub fn slow_down(&self, ordinal: u32, rate: Option<u32>) {
        let cable = &self.cables[ordinal as usize];
        match rate {
            Some(rate) => run(
                "tc",
                &format!("qdisc add dev {cable} root tbf rate {rate}bit burst 3000 latency 10s"),
            ),
            None => run("tc", &format!("qdisc del dev {cable} root")),
        }
    }

    /// Acts like a network policy that lets nobody call the agents: no agent gets an answer of another one. Or takes it
    /// back.
    pub fn block_agents(&self, blocked: bool) {
        let change = if blocked { "add" } else { "del" };
        let rule = format!(
            "rule {change} pref 1 ipproto tcp dport {} blackhole",
            api::names::PEER_PORT
        );
        for agent in self.agents.iter().flatten() {
            run("nsenter", &format!("--target {} --net ip {rule}", agent.id()));
        }
    }

    /// Kills the postmaster; its children end soon after.
    pub fn kill_postmaster(&self, ordinal: u32) {
        kill_process(self.postmaster(ordinal), Signal::KILL).expect("killed");
    }

    /// Kills the archive's worker of an agent.
    pub fn kill_archive_worker(&self, ordinal: u32) {
        kill_process(self.archive_worker(ordinal), Signal::KILL).expect("killed");
    }

    /// The archive's worker of an agent.
    pub fn archive_worker(&self, ordinal: u32) -> Pid {
        let socket = self.scratch.join(ordinal.to_string()).join("run/archive");
        let socket = socket.to_str().expect("a path");
        let command = |pid: u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_worker = |pid: u32| {
            let command = command(pid);
            let mut words = command.split('\0');
            words.clone().any(|word| word == "archive-worker") && words.any(|word| word == socket)
        };
        let mut processes = processes().expect("/proc").into_iter();
        let worker = processes.find(|process| is_worker(process.pid)).expect("a worker");
        let worker = i32::try_from(worker.pid).ok();
        worker.and_then(Pid::from_raw).expect("a process")
    }

    /// Stops the postmaster (SIGSTOP); its children go on.
    pub fn stop_postmaster(&self, ordinal: u32) {
        kill_process(self.postmaster(ordinal), Signal::STOP).expect("stopped");
    }

    fn postmaster(&self, ordinal: u32) -> Pid {
        // The oldest is the parent of the others.
        let servers = self.servers(ordinal).into_iter();
        servers.min_by_key(|(started, _)| *started).expect("a server").1
    }

    /// Sends a signal to the WAL receiver of an agent's PostgreSQL.
    pub fn signal_receiver(&self, ordinal: u32, signal: Signal) {
        let title =
            |pid: Pid| fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        let mut servers = self.servers(ordinal).into_iter().map(|(_, server)| server);
        let receiver = servers.find(|server| title(*server).contains("walreceiver"));
        kill_process(receiver.expect("a WAL receiver"), signal).expect("a signal");
    }

    /// Whether a PostgreSQL sends a copy of itself.
    pub fn sends_a_copy(&self) -> bool {
        let title = |pid: u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut servers = processes().expect("/proc").into_iter();
        servers.any(|process| process.name == "postgres" && title(process.pid).contains("sending backup"))
    }

    /// A process that copies a primary.
    pub fn copying(&self) -> Option<Pid> {
        let processes = processes().expect("/proc").into_iter();
        let mut copying = processes.filter(|process| process.name == "pg_basebackup");
        Pid::from_raw(i32::try_from(copying.next()?.pid).ok()?)
    }

    /// Acts like a hanging disk: no process of PostgreSQL goes on, and none ends.
    pub fn freeze_servers(&self, ordinal: u32) {
        // It starts no more; a session may end by itself meanwhile.
        kill_process(self.postmaster(ordinal), Signal::STOP).expect("stopped");
        for (_, server) in self.servers(ordinal) {
            let stopped = kill_process(server, Signal::STOP);
            assert!(matches!(stopped, Ok(()) | Err(Errno::SRCH)), "{stopped:?}");
        }
    }

    /// The processes of an agent's PostgreSQL, and when they started.
    fn servers(&self, ordinal: u32) -> Vec<(u64, Pid)> {
        let place = fs::canonicalize(self.scratch.join(ordinal.to_string()).join("data/pgdata")).expect("PGDATA");
        let servers = processes().expect("/proc").into_iter().filter(|process| {
            process.name == "postgres"
                && fs::read_link(format!("/proc/{}/cwd", process.pid)).is_ok_and(|cwd| cwd == place)
        });
        let pid = |pid: u32| i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process");
        servers.map(|process| (process.started, pid(process.pid))).collect()
    }

    /// The agent's data volume.
    pub fn volume(&self, ordinal: u32) -> PathBuf {
        self.scratch.join(ordinal.to_string()).join("data")
    }

    /// Acts like a deleted claim: the agent finds a new volume.
    pub fn lose_volume(&self, ordinal: u32) {
        self.empty_volume(ordinal);
        let mut cluster = self.api.get(CLUSTERS);
        let claim = format!("f{}", &claim(ordinal)[1..]);
        let name = format!("orders-{ordinal}");
        *instance(&mut cluster, &name) = json!({"name": name, "claimUID": claim});
        self.api.put(CLUSTERS, cluster);
    }

    fn empty_volume(&self, ordinal: u32) {
        let data = self.volume(ordinal);
        fs::remove_dir_all(&data).expect("removed");
        fs::create_dir(&data).expect("made");
        own(&data);
    }

    /// Acts as a user who makes a database of the same name once all agents of the first have ended. Its volumes are empty.
    pub fn make_again(&mut self, uid: &str) {
        let spec = self.api.get(CLUSTERS)["spec"].clone();
        for (resource, object) in objects(uid, &spec) {
            self.api.put(resource, object);
        }
        fs::write(self.scratch.join(UID_FILE), uid).expect("written");
        for ordinal in 0..AGENTS {
            self.empty_volume(ordinal);
            self.start_agent(ordinal);
        }
    }

    /// Acts as the operator when the user wants another primary.
    pub fn wish_for(&self, ordinal: u32) {
        let mut cluster = self.api.get(CLUSTERS);
        cluster["status"]["intent"]["primary"] = format!("orders-{ordinal}").into();
        self.api.put(CLUSTERS, cluster);
    }

    /// Acts as a user who changes a parameter.
    pub fn set_parameter(&self, name: &str, value: &str) {
        let mut cluster = self.api.get(CLUSTERS);
        cluster["spec"]["postgres"]["parameters"][name] = value.into();
        self.api.put(CLUSTERS, cluster);
    }

    /// Acts as the operator when it restarts an instance's PostgreSQL in place. Only for pods that were never replaced.
    pub fn let_restart(&self, ordinal: u32) {
        let mut cluster = self.api.get(CLUSTERS);
        let parameters = cluster["spec"]["postgres"]["parameters"].clone();
        let parameters = serde_json::from_value(parameters).expect("parameters");
        let settings = machine::protocol::settings_hash(&parameters);
        let permit = json!({"pod": format!("orders-{ordinal}"), "podUID": format!("pod-{ordinal}-{ordinal}"), "settings": settings});
        cluster["status"]["intent"]["restart"] = permit;
        self.api.put(CLUSTERS, cluster);
    }

    /// As the operator does where a user asks for the backup of this UID, or for none any more.
    pub fn back_up(&self, uid: Option<&str>, source: BackupSource) {
        let mut cluster = self.api.get(CLUSTERS);
        cluster["status"]["intent"]["backup"] = uid.into();
        cluster["status"]["intent"]["backupSource"] = json!(source);
        self.api.put(CLUSTERS, cluster);
    }

    /// As the operator does where a user asks for a backup of this UID of kind Snapshot.
    pub fn snapshot(&self, uid: &str) {
        let mut cluster = self.api.get(CLUSTERS);
        cluster["status"]["intent"]["backup"] = uid.into();
        cluster["status"]["intent"]["backupKind"] = json!(BackupKind::Snapshot);
        self.api.put(CLUSTERS, cluster);
    }

    /// As the operator does once the storage has said something of a VolumeSnapshot.
    pub fn tell_of_snapshot(&self, name: &str, state: SnapshotState) {
        let mut cluster = self.api.get(CLUSTERS);
        let message = (state == SnapshotState::Failed).then(|| "no such class".to_owned());
        cluster["status"]["intent"]["snapshot"] = json!(SnapshotProgress {
            name: name.to_owned(),
            state,
            message,
        });
        self.api.put(CLUSTERS, cluster);
    }

    /// As the operator does where a database is deleted with all that it has in the store.
    pub fn delete_archive(&self) {
        let mut cluster = self.api.get(CLUSTERS);
        cluster["status"]["intent"]["deleteArchive"] = true.into();
        cluster["spec"]["backup"]["onDelete"] = json!({"finalBackup": "None", "data": "Delete"});
        cluster["metadata"]["deletionTimestamp"] = "2027-01-01T00:00:00Z".into();
        cluster["metadata"]["annotations"][api::names::ANNOTATION_DELETE_ARCHIVE] = cluster["metadata"]["uid"].clone();
        self.api.put(CLUSTERS, cluster);
    }

    /// As the operator does where all instances are to stop.
    pub fn stop_all(&self) {
        let mut cluster = self.api.get(CLUSTERS);
        cluster["status"]["intent"]["stop"] = true.into();
        self.api.put(CLUSTERS, cluster);
    }

    /// As the operator does when a drill has ended: the last one that succeeded has recovered this backup.
    pub fn tell_of_drill(&self, proven: Option<&str>) {
        let mut cluster = self.api.get(CLUSTERS);
        let time = "2027-01-01T00:00:00Z";
        cluster["status"]["backup"]["drill"] = json!({
            "name": "drill", "succeeded": true, "startTime": time, "endTime": time, "provenBackup": proven,
        });
        self.api.put(CLUSTERS, cluster);
    }

    /// As the operator does where a user asks for a recovery in place.
    pub fn check_recovery(&self, check: Value) {
        let mut cluster = self.api.get(CLUSTERS);
        cluster["status"]["intent"]["recoveryCheck"] = check;
        self.api.put(CLUSTERS, cluster);
    }

    /// Acts as a user who sets `spec.backup.retention`.
    pub fn retain(&self, retention: Value) {
        let mut cluster = self.api.get(CLUSTERS);
        cluster["spec"]["backup"]["retention"] = retention;
        self.api.put(CLUSTERS, cluster);
    }

    /// As the operator does where the user gives up what the missing members have.
    pub fn accept_loss(&self, epoch: u64) {
        let mut cluster = self.api.get(CLUSTERS);
        cluster["status"]["intent"]["acceptLoss"] = epoch.into();
        self.api.put(CLUSTERS, cluster);
    }

    /// As the operator does where the user has quarantined data removed.
    pub fn discard_quarantined(&self, ordinal: u32, name: &str) {
        let mut cluster = self.api.get(CLUSTERS);
        cluster["status"]["intent"]["discard"] = json!({"instance": format!("orders-{ordinal}"), "name": name});
        self.api.put(CLUSTERS, cluster);
    }

    /// Acts as a user who sets `spec.fenced`.
    pub fn fence(&self, ordinals: &[u32]) {
        let mut cluster = self.api.get(CLUSTERS);
        let names: Vec<String> = ordinals.iter().map(|ordinal| format!("orders-{ordinal}")).collect();
        cluster["spec"]["fenced"] = names.into();
        self.api.put(CLUSTERS, cluster);
    }

    /// True if a process of the agent's PostgreSQL lives.
    pub fn runs(&self, ordinal: u32) -> bool {
        !self.servers(ordinal).is_empty()
    }

    /// Replaces a file of the store's Secret in all pods.
    pub fn write_store_secret(&self, name: &str, content: &str) {
        (0..AGENTS).for_each(|ordinal| self.write_secret(ordinal, &format!("store/{name}"), content));
    }

    /// Replaces a file of a Secret, as the kubelet does.
    pub fn write_secret(&self, ordinal: u32, name: &str, content: &str) {
        let path = self.scratch.join(ordinal.to_string()).join(name);
        let staged = path.with_extension("new");
        fs::write(&staged, content).expect("written");
        let (_, uid, gid) = user();
        chown(&staged, Some(uid), Some(gid)).expect("the user's");
        fs::rename(staged, path).expect("in place");
    }

    /// Acts as the operator before the cluster's certificate expires.
    pub fn renew_certificate(&self, ordinal: u32) {
        self.write_certificate(ordinal, Authority::write);
    }

    /// Digest of the cluster's certificate and authority, as they lie in this pod.
    pub fn certificates(&self, ordinal: u32) -> String {
        let directory = self.scratch.join(ordinal.to_string()).join("tls");
        let read = |name: &str| fs::read(directory.join(name)).expect("read");
        certificate_digest(&read("tls.crt"), &read("ca.crt"))
    }

    /// Acts like an operator that did not renew the certificate in time.
    pub fn end_certificate(&self, ordinal: u32) {
        self.write_certificate(ordinal, Authority::write_ended);
    }

    fn write_certificate(&self, ordinal: u32, write: impl FnOnce(&Authority, &Path, &str, &[&str])) {
        let directory = self.scratch.join(ordinal.to_string()).join("tls");
        write(self.api.authority(), &directory, "orders-agent", &[NAME]);
        own(&directory);
    }

    /// A directory for the test's own files.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// The Lease's annotation, parsed as JSON.
    pub fn annotation(&self, name: &str) -> Value {
        let lease = self.api.get(LEASES);
        let text = lease["metadata"]["annotations"][name].as_str().unwrap_or("null");
        serde_json::from_str(text).expect("JSON")
    }

    /// The ordinal of the pod that holds the lease and serves.
    pub fn serving(&self) -> Option<u32> {
        let holder = self.annotation(api::names::LEASE_HOLDER);
        let serves = holder["serving"].as_bool().unwrap_or(false);
        let pod = holder["pod"].as_str().filter(|_| serves)?;
        pod.strip_prefix("orders-")?.parse().ok()
    }

    /// The epoch.
    pub fn epoch(&self) -> u64 {
        self.api.get(LEASES)["spec"]["leaseTransitions"]
            .as_u64()
            .unwrap_or_default()
    }

    /// What the agent has logged so far.
    pub fn log(&self, ordinal: u32) -> String {
        fs::read_to_string(self.scratch.join(ordinal.to_string()).join("log")).unwrap_or_default()
    }

    /// The answer of the agent's PostgreSQL to a statement of a superuser. `Err` holds its message, also if the
    /// statement was done with the warning that no standby has confirmed it.
    pub async fn sql(&self, ordinal: u32, statement: &str) -> Result<String, String> {
        let (_, programs) = binaries();
        let output = user_command(&programs.join("psql"))
            .args([
                "-X",
                "-A",
                "-t",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                "postgres",
                "-d",
                "app",
                "-h",
            ])
            .arg(self.scratch.join(ordinal.to_string()).join("run"))
            .args(["-c", statement])
            .env("PGCONNECT_TIMEOUT", "2")
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(Duration::from_secs(20), output).await;
        let output = output
            .map_err(|_| "no answer within 20 s".to_owned())?
            .expect("psql runs");
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        match output.status.success() && !words.contains("canceling wait for synchronous replication") {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(words),
        }
    }

    /// Waits for a condition, and prints how long it took.
    pub async fn until<T>(
        &self,
        what: &str,
        limit: u64,
        mut look: impl AsyncFnMut(&Self) -> Option<T>,
    ) -> (T, Duration) {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(limit) {
            if let Some(found) = look(self).await {
                let took = begun.elapsed();
                println!("{what}: after {} ms", took.as_millis());
                return (found, took);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for ordinal in 0..AGENTS {
            let log = self.log(ordinal);
            let boring = |line: &&str| !line.contains("waiting for WAL") && !line.contains("starting up");
            let lines: Vec<&str> = log.lines().filter(boring).collect();
            println!("--- orders-{ordinal}");
            lines[lines.len().saturating_sub(25)..]
                .iter()
                .for_each(|line| println!("{line}"));
        }
        println!("--- {}", self.api.get(LEASES));
        panic!("not within {limit} s: {what}");
    }
}

/// A command that runs as the user of the servers.
pub fn user_command(program: &Path) -> tokio::process::Command {
    let (_, uid, gid) = user();
    let mut command = tokio::process::Command::new("setpriv");
    command
        .args([
            &format!("--reuid={uid}"),
            &format!("--regid={gid}"),
            "--clear-groups",
            "--",
        ])
        .arg(program)
        .current_dir("/");
    command
}

/// Runs a program to its end, as the user of the servers. Returns what it wrote; the error is what it complained about.
pub async fn as_user(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = user_command(Path::new(program))
        .args(arguments)
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(60), output).await;
    let output = output
        .map_err(|_| "it did not end within 60 s".to_owned())?
        .expect("it runs");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// What the API server has when a database is made, as far as agents need it.
fn objects(uid: &str, spec: &Value) -> [(&'static str, Value); 3] {
    // As the operator records it before the first database is made.
    let read: api::ClusteredDatabaseSpec = serde_json::from_value(spec.clone()).expect("a spec");
    let chosen = read.wanted_durability(None);
    let instances = (0..AGENTS).map(|ordinal| json!({"name": format!("orders-{ordinal}"), "claimUID": claim(ordinal)}));
    let cluster = json!({
        "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
        "metadata": {"name": "orders", "namespace": "default", "uid": uid},
        "spec": spec,
        "status": {
            "instances": instances.collect::<Vec<_>>(),
            "intent": {"bootstrap": {"pod": "orders-0", "claimUID": claim(0)}},
            "memo": {"durability": chosen},
        },
    });
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "orders", "namespace": "default", "uid": "lease"}, "spec": {}});
    let route = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "orders-rw", "namespace": "default", "uid": "route"}, "endpoints": []});
    [(CLUSTERS, cluster), (LEASES, lease), (ROUTES, route)]
}

fn claim(ordinal: u32) -> String {
    format!("{ordinal}1a2b3c4-5e6f-7081-92a3-b4c5d6e7f809")
}

fn ip(words: &str) {
    run("ip", words);
}

fn run(program: &str, words: &str) {
    let output = Command::new(program).args(words.split(' ')).output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words}: {error}");
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Gives everything in a directory to the user that runs PostgreSQL.
fn own(directory: &Path) {
    let (_, uid, gid) = user();
    chown(directory, Some(uid), Some(gid)).expect("the user's");
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        // A program that is linked here keeps its owner.
        let linked = entry.metadata().is_ok_and(|found| found.nlink() > 1);
        if entry.path().is_dir() {
            own(&entry.path());
        } else if !linked {
            chown(entry.path(), Some(uid), Some(gid)).expect("the user's");
        }
    }
}
