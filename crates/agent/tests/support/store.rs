//! Helpers of the tests of databases with a store: the store, what is archived there, and a restore from it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use test_store::{Options, TestStore};

use crate::cluster::{API_SERVER, Cluster, as_user, user_command};
use crate::{database, unprivileged};

/// The store's port at [`API_SERVER`].
pub const PORT: u16 = 9000;

/// The spec of a user whose WAL is archived.
pub fn spec() -> Value {
    let mut spec = database::spec();
    let store = json!({"s3Path": "s3://wal/eu", "endpoint": format!("http://{API_SERVER}:{PORT}")});
    spec["backup"] = json!({"store": {"s3": store}});
    spec
}

/// Starts the store.
pub async fn store(cluster: &Cluster) -> TestStore {
    store_with(cluster, Options::default()).await
}

/// Starts the store with some options of its own. One that was dropped just now may still have the port.
pub async fn store_with(cluster: &Cluster, options: Options) -> TestStore {
    let options = Options {
        address: API_SERVER.into(),
        directory: cluster.scratch().join("objects"),
        port: PORT,
        ..options
    };
    fs::create_dir_all(&options.directory).expect("a directory");
    let started = async |_: &Cluster| TestStore::start(options.clone()).await.ok();
    let (store, _) = cluster.until("the store has its port", 10, started).await;
    store.make_bucket("wal").expect("a bucket");
    store
}

/// The folder of the database's WAL in the store.
pub fn archived(store: &TestStore) -> PathBuf {
    store.directory().join("wal/eu/default/orders-c0ffee00/lines/1/wal")
}

/// What the Lease says of the archive.
pub fn told(cluster: &Cluster) -> Value {
    cluster.annotation(api::names::LEASE_ARCHIVE)
}

/// Waits until the primary has tried the store.
pub async fn is_tried(cluster: &Cluster) {
    let tried = async |cluster: &Cluster| (told(cluster)["fence"] == "Enforced").then_some(());
    cluster.until("the store is tried", 60, tried).await;
}

/// Waits until nothing waits for the archive on the primary. Each new segment has PostgreSQL's archiver look again, which otherwise
/// rests for a minute after three failures.
pub async fn all_is_archived(cluster: &Cluster, primary: u32, timeline: u32) {
    let done = async |cluster: &Cluster| {
        let told = told(cluster);
        if told["waiting"] == 0 && told["upTo"]["timeline"] == timeline && told.get("fault").is_none() {
            return Some(());
        }
        let next = "SELECT pg_logical_emit_message(true, 'a', 'b'); SELECT pg_switch_wal()";
        cluster.sql(primary, next).await.ok();
        tokio::time::sleep(Duration::from_millis(500)).await;
        None
    };
    cluster.until("all is archived", 90, done).await;
}

/// The lines that docs/operation.md has for a restore by hand.
pub struct ByHand {
    /// Lines of a shell that unpack a backup into `$PGDATA` and verify it.
    pub unpack: Vec<String>,
    /// Settings of PostgreSQL, with names of the page such as `$WAL` in them.
    settings: Vec<String>,
}

/// Those lines, for an encrypted database or for another one.
pub fn by_hand(is_encrypted: bool) -> ByHand {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operation.md");
    let page = fs::read_to_string(page).expect("the page");
    let (_, section) = page.split_once("\n### By hand\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("the next one");
    let blocks: Vec<&str> = section.split("```").skip(1).step_by(2).collect();
    let [unpack, settings, encrypted] = blocks[..] else {
        panic!("the section has the lines of a backup, settings, and what is else if encrypted: {blocks:?}");
    };
    let is_setting = |line: &str| line.split_once(" = ").is_some_and(|(name, _)| is_name(name));
    let lines = |block: &str| -> Vec<String> {
        let lines = block.lines().filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    };
    let (unpack, settings) = (lines(unpack), lines(settings));
    if !is_encrypted {
        return ByHand { unpack, settings };
    }
    let (instead, unpack): (Vec<String>, Vec<String>) = lines(encrypted).into_iter().partition(|line| is_setting(line));
    ByHand {
        unpack,
        // The last setting of a name counts.
        settings: settings.into_iter().chain(instead).collect(),
    }
}

fn is_name(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

/// Restores the base copy and all archived WAL of `timeline`, with PostgreSQL's own programs and the lines that docs/operation.md has
/// for that; `key` is the file with the private key of encrypted WAL. Returns the rows.
pub async fn restored(cluster: &Cluster, base: &Path, wal: &Path, key: Option<&Path>, timeline: u32) -> String {
    let socket = cluster.scratch().join("restored");
    as_user("mkdir", &[socket.to_str().expect("a path")])
        .await
        .expect("a directory");
    let signals = ["recovery.signal", "standby.signal"].map(|name| base.join(name));
    let [recovery, standby] = signals.each_ref().map(|path| path.to_str().expect("a path"));
    as_user("touch", &[recovery]).await.expect("a signal");
    as_user("rm", &["-f", standby]).await.expect("none of a standby");
    let published = by_hand(key.is_some()).settings.join("\n");
    let published = published
        .replace("$WAL", &wal.display().to_string())
        .replace("$TIMELINE", &timeline.to_string())
        .replace("$KEY", &key.unwrap_or(Path::new("no-key")).display().to_string());
    let conf = base.join("postgresql.auto.conf");
    let conf = fs::OpenOptions::new().create(true).append(true).open(conf);
    write!(conf.expect("PostgreSQL's settings"), "\n{published}\n").expect("written");
    let settings = [
        ("archive_mode", "off"),
        ("hot_standby", "off"),
        ("listen_addresses", ""),
        ("port", "5432"),
        ("primary_conninfo", ""),
        ("ssl", "off"),
        ("synchronous_standby_names", ""),
        ("unix_socket_directories", socket.to_str().expect("a path")),
    ];
    let (_, programs) = unprivileged::binaries();
    let mut server = user_command(&programs.join("postgres"));
    server.arg("-D").arg(base).kill_on_drop(true);
    for (name, value) in settings {
        server.arg("-c").arg(format!("{name}={value}"));
    }
    let log = fs::File::create(cluster.scratch().join("restored.log")).expect("a log");
    let mut server = server.stderr(log).spawn().expect("PostgreSQL");
    let select = "SELECT string_agg(number::text, ',' ORDER BY number) FROM entry";
    let psql = programs.join("psql");
    let psql = psql.to_str().expect("a path");
    let arguments = [
        "-X",
        "-At",
        "-U",
        "postgres",
        "-d",
        "app",
        "-h",
        socket.to_str().expect("a path"),
        "-c",
        select,
    ];
    let found = async |_: &Cluster| as_user(psql, &arguments).await.ok();
    let (rows, _) = cluster.until("the restored copy answers", 60, found).await;
    server.kill().await.expect("killed");
    rows
}
