//! Three whole agents with real PostgreSQL servers, and a role that replicates under the name of a member.

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
use database::{healthy, spec, with_a_row};
use tokio::process::{Child, Command};

/// An agent of the other tests; nothing by itself.
#[test]
fn an_agent() {
    become_agent_if_asked();
}

fn others(first: u32) -> [u32; 2] {
    [(first + 1) % 3, (first + 2) % 3]
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

#[test]
fn a_role_under_a_members_name_counts_for_nobody() {
    let name = "a_role_under_a_members_name_counts_for_nobody";
    let mut spec = spec();
    spec["postgres"]["parameters"]["wal_level"] = "logical".into();
    in_a_cluster(name, spec, |cluster| async move {
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
    });
}
