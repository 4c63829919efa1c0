//! Three whole agents with real PostgreSQL servers, and settings, files and roles that work against them.

#[path = "support/api_server.rs"]
#[allow(dead_code)]
mod api_server;
#[path = "support/certificates.rs"]
mod certificates;
#[path = "support/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "support/database.rs"]
#[allow(dead_code)]
mod database;
#[path = "support/unprivileged.rs"]
#[allow(dead_code)]
mod unprivileged;

use std::process::Stdio;

use cluster::{Cluster, address, become_agent_if_asked, in_a_cluster};
use database::{healthy, replaced, rows, spec, with_a_row};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// An agent of the other tests; nothing by itself.
#[test]
fn an_agent() {
    become_agent_if_asked();
}

fn others(first: u32) -> [u32; 2] {
    [(first + 1) % 3, (first + 2) % 3]
}

const ISOLATION: &str = "default_transaction_isolation";

/// Waits until sessions everywhere have this isolation.
async fn isolated(cluster: &Cluster, wanted: &str) {
    let show = format!("SHOW {ISOLATION}");
    let look = async |cluster: &Cluster| {
        for ordinal in 0..3 {
            if cluster.sql(ordinal, &show).await.as_deref() != Ok(wanted) {
                return None;
            }
        }
        Some(())
    };
    cluster.until("the setting is in force everywhere", 30, look).await;
}

#[test]
fn what_keeps_agents_out_costs_no_failover_and_is_taken_back() {
    let name = "what_keeps_agents_out_costs_no_failover_and_is_taken_back";
    in_a_cluster(name, spec(), |mut cluster| async move {
        let first = with_a_row(&cluster).await;
        // A standby refuses all that a session in that mode asks.
        cluster.set_parameter(ISOLATION, "serializable");
        isolated(&cluster, "serializable").await;
        cluster.kill_agent(first);
        let (second, _) = replaced(&cluster, first, 2, 30).await;
        cluster.start_agent(first);
        assert_eq!(healthy(&cluster, "the old primary follows", 60).await, second);

        let standby = others(second)[0];
        let started = "SELECT pg_postmaster_start_time()";
        cluster.set_parameter(ISOLATION, "read committed");
        isolated(&cluster, "read committed").await;
        let before = cluster.sql(standby, started).await.expect("an answer");
        cluster.keep_agent_out(standby);
        let told = async |cluster: &Cluster| {
            let members = cluster.annotation(api::names::LEASE_MEMBERS);
            let fault = members[format!("orders-{standby}")]["fault"].as_str()?.to_owned();
            fault.starts_with("PostgreSQL refuses its agent").then_some(fault)
        };
        let (fault, _) = cluster.until("the refusal is told", 20, told).await;
        assert!(fault.contains("pg_hba.conf rejects"), "{fault}");
        cluster.set_parameter("work_mem", "5MB");
        let taken = async |cluster: &Cluster| {
            let shown = cluster.sql(standby, "SHOW work_mem").await;
            (shown.as_deref() == Ok("5MB")).then_some(())
        };
        cluster.until("other settings are taken up", 30, taken).await;
        assert_eq!(healthy(&cluster, "three members again", 30).await, second);
        assert_eq!(cluster.sql(standby, started).await, Ok(before), "nothing was restarted");
    });
}

/// Receives the changes that slot `slot` decodes, as `cdc`, under this name, and says every three seconds how far it has got.
fn receive(ordinal: u32, slot: &str, name: &str) -> Child {
    let (_, programs) = unprivileged::binaries();
    let source = format!(
        "host={} user=cdc dbname=app sslmode=require application_name={name}",
        address(ordinal)
    );
    Command::new(programs.join("pg_recvlogical"))
        .args(["--dbname", &source, "--slot", slot, "--start", "--file", "/dev/null"])
        .args(["--status-interval=3", "--fsync-interval=1"])
        .env("PGPASSWORD", "geheim")
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("pg_recvlogical")
}

/// How often a WAL sender was ended that bears a member's name.
fn ended(cluster: &Cluster, ordinal: u32) -> usize {
    cluster
        .log(ordinal)
        .matches("ending a WAL sender that bears a member's name")
        .count()
}

/// Connects with names that hold what a log record begins with, and waits until PostgreSQL has refused.
async fn forge(ordinal: u32) {
    let forged = "x\n\u{1e}9\u{1f}client backend\u{1f}u\u{1f}d\u{1f}28000\u{1f}FATAL:  forged";
    let mut packet = 196_608_u32.to_be_bytes().to_vec();
    for text in ["user", forged, "database", forged, ""] {
        packet.extend(text.bytes().chain([0]));
    }
    let mut connection = TcpStream::connect((address(ordinal), 5432))
        .await
        .expect("a connection");
    let length = u32::try_from(packet.len() + 4).expect("short");
    connection.write_all(&length.to_be_bytes()).await.expect("sent");
    connection.write_all(&packet).await.expect("sent");
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await.expect("an answer");
    assert!(String::from_utf8_lossy(&answer).contains("pg_hba.conf rejects"));
}

/// Sessions of the application, as many as it gets.
async fn occupy(cluster: &Cluster, ordinal: u32) -> Vec<Child> {
    let (_, programs) = unprivileged::binaries();
    let target = format!("host={} user=app dbname=app sslmode=require", address(ordinal));
    let session = |_| {
        Command::new(programs.join("psql"))
            .args(["-X", "-c", "SELECT pg_sleep(300)", &target])
            .env("PGPASSWORD", "geheim")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("psql")
    };
    let sessions = (0..20).map(session).collect();
    let full = async |cluster: &Cluster| {
        let log = cluster.log(ordinal);
        log.contains("remaining connection slots are reserved").then_some(())
    };
    cluster.until("all connections are taken", 20, full).await;
    sessions
}

#[test]
fn a_role_counts_for_no_member_and_keeps_no_agent_out() {
    let name = "a_role_counts_for_no_member_and_keeps_no_agent_out";
    let mut spec = spec();
    let parameters = &mut spec["postgres"]["parameters"];
    parameters["wal_level"] = "logical".into();
    parameters["max_connections"] = "20".into();
    parameters["superuser_reserved_connections"] = "6".into();
    in_a_cluster(name, spec, |mut cluster| async move {
        let first = with_a_row(&cluster).await;
        for statement in [
            "CREATE ROLE cdc LOGIN REPLICATION PASSWORD 'geheim'",
            "SELECT pg_create_logical_replication_slot('honest', 'test_decoding')",
            "SELECT pg_create_logical_replication_slot('false', 'test_decoding')",
        ] {
            cluster.sql(first, statement).await.expect("done");
        }
        let _honest = receive(first, "honest", "debezium");
        let own = "SELECT pid FROM pg_stat_replication WHERE application_name = 'debezium'";
        let streams = async |cluster: &Cluster| cluster.sql(first, own).await.ok().filter(|pid| !pid.is_empty());
        let (honest, _) = cluster.until("the honest one streams", 20, streams).await;

        others(first).into_iter().for_each(|other| cluster.cut_off(other));
        let rule = cluster.annotation(api::names::LEASE_RULE);
        let member = rule["names"][0].as_str().expect("a name").to_ascii_uppercase();
        let mut other = receive(first, "false", &member);
        let again = async |cluster: &Cluster| (ended(cluster, first) > 1).then_some(());
        let insert = "INSERT INTO entry VALUES (2)";
        let committed = tokio::select! {
            committed = cluster.sql(first, insert) => Some(committed),
            _ = cluster.until("it is ended twice", 18, again) => None,
        };
        assert_eq!(committed, None, "no standby has it");
        let told = async |cluster: &Cluster| {
            let report = &cluster.annotation(api::names::LEASE_MEMBERS)[format!("orders-{first}")];
            (report["impostors"][0] == "cdc").then_some(())
        };
        cluster.until("it is told", 10, told).await;
        other.kill().await.expect("killed");
        others(first).into_iter().for_each(|other| cluster.reconnect(other));
        assert_eq!(healthy(&cluster, "three members", 60).await, first);
        assert_eq!(cluster.sql(first, own).await, Ok(honest), "it streams on");

        forge(first).await;
        let refused = async |cluster: &Cluster| cluster.log(first).contains("pg_hba.conf rejects").then_some(());
        cluster.until("the refusal is logged", 10, refused).await;
        assert!(
            !cluster.log(first).contains("\"message\":\"forged\""),
            "a record is forged"
        );

        let [one, two] = others(first);
        let _sessions = [occupy(&cluster, one).await, occupy(&cluster, two).await];
        cluster.kill_agent(first);
        let (second, _) = replaced(&cluster, first, 3, 60).await;
        let all = rows(&cluster, second).await;
        assert!(all.starts_with("1,") && all.ends_with(",3"), "{all}");
    });
}
