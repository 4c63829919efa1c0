//! The program with an API server and a kubectl of the test's own.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cli::snapshot::{Snapshot, name};
use serde_json::{Value, json};
use support::{of_file, place, ready, recorded, serve, spec};

/// Time without output after which the test takes the output as complete.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// An API server that has the objects of a snapshot.
struct Server {
    snapshot: Mutex<Snapshot>,
    /// Bodies of patches and of created objects.
    patches: Mutex<Vec<String>>,
    /// Paths of reads, without watches.
    reads: Mutex<Vec<String>>,
    /// Events for the watch of the Lease.
    events: Mutex<Receiver<Value>>,
}

impl Server {
    /// Starts it, with a kubeconfig for it and a kubectl that prints its arguments in a directory of its own.
    fn start(test: &str, snapshot: Snapshot) -> (Arc<Self>, Sender<Value>, PathBuf) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, events) = channel();
        let server = Arc::new(Self {
            snapshot: Mutex::new(snapshot),
            patches: Mutex::default(),
            reads: Mutex::default(),
            events: Mutex::new(events),
        });
        let shared = Arc::clone(&server);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let server = Arc::clone(&shared);
                std::thread::spawn(move || server.answer(stream.unwrap()));
            }
        });
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("online-{test}"));
        std::fs::create_dir_all(&directory).unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}],
        });
        std::fs::write(directory.join("kubeconfig"), kubeconfig.to_string()).unwrap();
        let kubectl = directory.join("kubectl");
        std::fs::write(&kubectl, "#!/bin/sh\necho kubectl \"$@\"\nexit 7\n").unwrap();
        std::fs::set_permissions(&kubectl, std::fs::Permissions::from_mode(0o755)).unwrap();
        (server, tell, directory)
    }

    /// Answers one request; every connection has one.
    fn answer(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut request, mut length) = (String::new(), 0);
        reader.read_line(&mut request).unwrap();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let mut words = request.split_whitespace();
        let (Some(method), Some(uri)) = (words.next(), words.next()) else {
            return;
        };
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        if query.contains("watch=true") {
            return self.watch(path, &mut stream);
        }
        if method == "GET" {
            self.reads.lock().unwrap().push(path.to_owned());
        }
        if ["PATCH", "POST"].contains(&method) {
            self.patches
                .lock()
                .unwrap()
                .push(String::from_utf8(body.clone()).unwrap());
        }
        if method == "POST" {
            let head = format!(
                "HTTP/1.1 201 X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).unwrap();
            return stream.write_all(&body).unwrap();
        }
        let (code, value) = serve(&self.snapshot.lock().unwrap(), path);
        let text = value.to_string();
        let head = format!(
            "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            text.len()
        );
        stream.write_all((head + &text).as_bytes()).unwrap();
    }

    /// Answers until the client is gone.
    fn watch(&self, path: &str, stream: &mut TcpStream) {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        if !path.contains("leases") {
            // Nothing happens; the read ends when the client does.
            let _ = stream.read(&mut [0]);
            return;
        }
        while let Ok(event) = self.events.lock().unwrap().recv() {
            let text = event.to_string() + "\n";
            if write!(stream, "{:x}\r\n{text}\r\n", text.len()).is_err() {
                return;
            }
        }
    }
}

fn program(directory: &Path, command: &str) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_kubectl-cdb"));
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    program.args(command.split(' ')).current_dir(directory);
    program
        .env("PATH", path)
        .env("KUBECONFIG", directory.join("kubeconfig"));
    program
}

fn run(directory: &Path, command: &str) -> (String, i32) {
    let output = program(directory, command).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (text, output.status.code().unwrap())
}

fn database() -> Snapshot {
    let mut world = ready(&spec(3));
    place(&mut world, &[0x0300_0148, 0x0300_0148, 0x0300_0060]);
    of_file(&recorded(&world))
}

#[test]
fn kubectl_is_run_in_our_place_for_terminals_and_logs() {
    let (_server, _tell, directory) = Server::start("kubectl", database());
    assert_eq!(
        run(&directory, "psql demo -- -c x"),
        (
            "kubectl --namespace=shop exec --stdin demo-0 --container postgres -- env PGDATABASE=app PGOPTIONS=-c search_path=pg_catalog psql -c x\n"
                .to_owned(),
            7
        )
    );
    let (text, code) = run(&directory, "logs demo --context test -f");
    assert!(
        text.starts_with("kubectl --namespace=shop --context=test logs --selector=") && text.ends_with("--follow\n"),
        "{text}"
    );
    assert_eq!(code, 7, "kubectl's own exit code");
    let (text, code) = run(&directory, "logs other");
    assert!(
        text.starts_with("error: there is no ClusteredDatabase \"other\"") && code == 1,
        "{text}"
    );
}

/// Changes the objects of this kind.
fn edit(snapshot: &mut Snapshot, kind: &str, change: impl Fn(&mut Value)) {
    let of_kind = |object: &&mut Value| object["kind"] == kind;
    snapshot.objects.iter_mut().filter(of_kind).for_each(change);
}

#[test]
fn psql_runs_in_the_lease_holders_pod_whatever_the_status_says() {
    let stale = || {
        let mut snapshot = database();
        edit(&mut snapshot, "ClusteredDatabase", |db| {
            db["status"]["currentPrimary"] = json!("demo-1");
        });
        snapshot
    };
    let (_server, _tell, directory) = Server::start("psql", stale());
    let (text, _) = run(&directory, "psql demo");
    assert!(text.contains(" exec --stdin demo-0 "), "{text}");

    let mut leaderless = stale();
    let no_primary = "error: demo has no primary now: see `kubectl cdb why demo`";
    edit(&mut leaderless, "Lease", |lease| {
        let holder = &mut lease["metadata"]["annotations"]["clustereddatabase.io/holder"];
        let text = holder
            .as_str()
            .unwrap()
            .replace("\"serving\":true", "\"serving\":false");
        *holder = json!(text);
    });
    let (_server, _tell, directory) = Server::start("psql-starting", leaderless);
    let (text, code) = run(&directory, "psql demo");
    assert!(text.starts_with(no_primary) && code == 1, "{text}");

    let mut bare = stale();
    bare.objects.retain(|object| object["kind"] != "Lease");
    let (_server, _tell, directory) = Server::start("psql-without-lease", bare);
    let (text, code) = run(&directory, "psql demo");
    assert!(text.starts_with(no_primary) && code == 1, "{text}");
}

/// Runs these commands, and returns the patches that they sent.
fn patches_of(test: &str, snapshot: Snapshot, commands: &[&str]) -> Vec<Value> {
    let (server, _tell, directory) = Server::start(test, snapshot);
    for command in commands {
        let (text, code) = run(&directory, command);
        assert_eq!(code, 0, "{command}: {text}");
    }
    let patches = server.patches.lock().unwrap();
    patches.iter().map(|body| serde_json::from_str(body).unwrap()).collect()
}

#[test]
fn changes_are_patches() {
    let commands = [
        "promote demo demo-2",
        "fence demo demo-1",
        "pause demo",
        "hibernate demo",
        "restart demo",
    ];
    let mut patches = patches_of("wishes", database(), &commands);
    let asked = json!({"clusterRef": {"name": "demo"}, "switchover": {"to": "demo-2"}, "cancel": false});
    assert_eq!(patches[0]["spec"], asked);
    let restarted = patches.pop().unwrap();
    let asked = json!({"clusterRef": {"name": "demo"}, "restart": {}, "cancel": false});
    assert_eq!(restarted["spec"], asked);
    let specs: Vec<_> = patches.iter().skip(1).map(|patch| patch["spec"].clone()).collect();
    assert_eq!(
        specs,
        [
            json!({"fenced": ["demo-1"]}),
            json!({"paused": true}),
            json!({"hibernated": true})
        ]
    );
    let (_server, _tell, directory) = Server::start("wishes-refused", database());
    let (text, code) = run(&directory, "promote demo demo-7");
    assert!(
        text.starts_with("error: demo has no instance \"demo-7\"") && code == 1,
        "{text}"
    );
}

#[test]
fn changes_are_undone_by_patches() {
    let mut wished = database();
    edit(&mut wished, "ClusteredDatabase", |db| {
        let spec = db["spec"].as_object_mut().unwrap();
        spec.extend([
            ("fenced".to_owned(), json!(["demo-0", "demo-1"])),
            ("paused".to_owned(), json!(true)),
            ("hibernated".to_owned(), json!(true)),
        ]);
    });
    let patches = patches_of(
        "wishes-back",
        wished,
        &["unfence demo demo-1", "resume demo", "wake demo"],
    );
    let specs: Vec<_> = patches.iter().map(|patch| patch["spec"].clone()).collect();
    assert_eq!(
        specs,
        [
            json!({"fenced": ["demo-0"]}),
            json!({"paused": false}),
            json!({"hibernated": false})
        ]
    );
}

#[test]
fn each_shell_has_a_completion() {
    let (_server, _tell, directory) = Server::start("completion", database());
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let (text, code) = run(&directory, &format!("completion {shell}"));
        assert!(code == 0 && text.contains("upgrade-preview"), "{shell}: {text}");
    }
}

#[test]
fn a_report_of_a_cluster_can_be_looked_at_offline() {
    let (_server, _tell, directory) = Server::start("report", database());
    let _ = std::fs::remove_file(directory.join("demo.tar.gz"));
    let (text, code) = run(&directory, "report demo -o demo.tar.gz");
    assert_eq!(code, 0, "{text}");
    let (online, _) = run(&directory, "status demo -o json");
    let (offline, _) = run(&directory, "status demo -o json -F demo.tar.gz");
    let instances = |text: &str| serde_json::from_str::<Value>(text).unwrap()["instances"].clone();
    assert_eq!(instances(&online), instances(&offline));
    let (text, code) = run(&directory, "report demo -o demo.tar.gz");
    assert!(text.contains("File exists") && code == 1, "{text}");
}

#[test]
fn a_database_that_cannot_be_read_is_listed_beside_the_others() {
    let mut snapshot = database();
    let mut other = snapshot.of("ClusteredDatabase").next().unwrap().clone();
    (other["metadata"]["name"], other["spec"]["replicas"]) = (json!("other"), json!("five"));
    snapshot.objects.push(other);
    let (_server, _tell, directory) = Server::start("upgrade", snapshot);
    let (text, code) = run(&directory, "upgrade-preview");
    assert!(text.contains("Database    demo in shop\nNow         Ready\n"), "{text}");
    assert!(
        text.contains("Database    other in shop\nNot read    cannot reach"),
        "{text}"
    );
    assert_eq!(code, 1);
    let (text, code) = run(&directory, "upgrade-preview other");
    assert!(text.starts_with("error: ") && code == 1, "{text}");
    let (text, code) = run(&directory, "status");
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[1].starts_with("other  UNKNOWN") && lines[1].contains("needs YOU: cannot be read"),
        "{text}"
    );
    assert!(lines[2].starts_with("demo   HEALTHY") && code == 0, "{text}");
    let (text, code) = run(&directory, "status -A -n elsewhere");
    assert!(text.contains("\nshop       other  UNKNOWN") && code == 0, "{text}");
}

#[test]
fn a_watch_shows_the_page_again_when_the_lease_changes_and_reads_nothing_again() {
    let (server, tell, directory) = Server::start("watch", database());
    let mut child = program(&directory, "status demo --watch")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let child = Arc::new(Mutex::new(child));
    let late = Arc::clone(&child);
    std::thread::spawn(move || {
        std::thread::sleep(WAIT_LIMIT);
        late.lock().unwrap().kill()
    });
    let mut page = || {
        let lines: Vec<String> = lines
            .by_ref()
            .map(Result::unwrap)
            .take_while(|line| line != "---")
            .collect();
        lines.join("\n")
    };
    assert!(page().contains("232 B"));
    let lease = {
        let mut snapshot = server.snapshot.lock().unwrap();
        let lease = snapshot
            .objects
            .iter_mut()
            .find(|object| object["kind"] == "Lease" && name(object) == "demo")
            .unwrap();
        let positions = &mut lease["metadata"]["annotations"]["clustereddatabase.io/positions"];
        *positions = json!(positions.as_str().unwrap().replace("0/3000060", "0/3000140"));
        lease["metadata"]["resourceVersion"] = json!("2");
        lease.clone()
    };
    tell.send(json!({"type": "MODIFIED", "object": lease})).unwrap();
    // A page also changes after a second.
    assert!((0..9).any(|_| page().contains("8 B")), "the page was shown again");
    let mut child = child.lock().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let reads = server.reads.lock().unwrap();
    let times = |end: &str| reads.iter().filter(|path| path.ends_with(end)).count();
    assert_eq!(times("/services/demo-rw"), 1, "{reads:?}");
    assert!(
        times("/leases/demo") == 1 && times("/leases") >= 1,
        "the watch began with a list: {reads:?}"
    );
}
