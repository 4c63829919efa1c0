//! End-to-end: operations on the real cluster, each to its end. Switchovers are in `planned.rs`, `takeImage` in `operator.rs`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::Phase;
use api::names::{CONTAINER, DATA_PATH, Names};
use api::operation::{AcceptLoss, Action, DiscardQuarantined, OperationPhase, RecreateLease, Restart, RotateAuthority};
use api::status::CertificateStatus;
use e2e::client::exec;
use e2e::namespace::summary;
use e2e::processes::Container;
use e2e::wait::{Seen, until};
use e2e::{Namespace, SqlClient, connect_for_test, writing};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use testbed::{Options, POSTGRES_IMAGE, Signal, Testbed};

/// Bound of every step; far above what it takes, since the machine may be busy.
const BOUND: Duration = Duration::from_secs(180);
/// Longest time without a write while a primary is moved.
const INTERRUPTION: Duration = Duration::from_secs(15);
/// Bound of a rotation: kubelets bring a changed Secret to the pods twice, and take up to two minutes each time.
const ROTATION: Duration = Duration::from_secs(420);

/// A database with a client that has written a hundred rows.
async fn ready(name: &str, replicas: u32) -> Result<(Namespace, SqlClient)> {
    let namespace = Namespace::fresh(connect_for_test().await?, name).await?;
    let spec = json!({"replicas": replicas, "storage": {"data": {"size": "1Gi"}}});
    namespace.create("db", spec).await?;
    namespace.wait_ready("db", BOUND).await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int); INSERT INTO t SELECT generate_series(1, 100)")
        .await?;
    Ok((namespace, sql))
}

/// Waits until these words stand somewhere in the status.
async fn says(namespace: &Namespace, words: &str) -> Result<()> {
    until(&format!("the status to say {words:?}"), BOUND, || async {
        let database = namespace.get("db").await?;
        let said = serde_json::to_string(&database.status)?.contains(words);
        Ok(match said {
            true => Seen::Yes(()),
            false => Seen::NotYet(summary(&database)),
        })
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_restart_replaces_each_pod_once_under_writes() -> Result<()> {
    let (namespace, sql) = ready("e2e-restart", 3).await?;
    let (pods, claims) = (namespace.pod_uids("db").await?, namespace.claim_uids("db").await?);
    let (_, taken) = namespace.reign("db").await?;
    let restart = async {
        namespace.ask("db", "restart", Action::Restart(Restart {})).await?;
        namespace
            .wait_operation("restart", OperationPhase::Completed, BOUND)
            .await
    };
    let (_, gap) = writing(&sql, restart).await?;
    println!("restarted: {:.2} s without a write", gap.as_secs_f64());
    ensure!(gap < INTERRUPTION, "{gap:?} without a write");
    namespace.wait_ready("db", BOUND).await?;
    let after = namespace.pod_uids("db").await?;
    ensure!(
        after.len() == 3 && after.iter().all(|(pod, uid)| pods[pod] != *uid),
        "a pod was not replaced: {after:?}, before {pods:?}"
    );
    ensure!(namespace.claim_uids("db").await? == claims, "a claim was replaced");
    ensure!(
        namespace.reign("db").await?.1 == taken + 1,
        "the primary moved more than once"
    );
    namespace.begin_removal().await
}

/// The authority's entry in `status.certificates`.
async fn authority(namespace: &Namespace) -> Result<CertificateStatus> {
    let status = namespace.get("db").await?.status.unwrap_or_default();
    let authority = status.certificates.into_iter().find(|known| known.name == "authority");
    authority.context("an authority in the status")
}

#[tokio::test]
async fn another_authority_takes_over_under_writes_and_nobody_restarts() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-authority").await?;
    let spec = json!({
        "replicas": 3, "storage": {"data": {"size": "1Gi"}}, "certificates": {"clientTrustHours": 0},
    });
    namespace.create("db", spec).await?;
    namespace.wait_ready("db", BOUND).await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int)").await?;
    let pods = namespace.pod_uids("db").await?;
    let before = keep_authority(&namespace, &sql, "before.crt").await?;
    verified(&sql, "before.crt").await?;
    let first = authority(&namespace).await?;
    let rotation = async {
        let rotate = Action::RotateAuthority(RotateAuthority { compromised: false });
        namespace.ask("db", "rotate", rotate).await?;
        namespace
            .wait_operation("rotate", OperationPhase::Completed, BOUND)
            .await?;
        let (_, took) = until("the former authority to be gone", ROTATION, || async {
            let told = authority(&namespace).await?;
            let rotation = told.rotation;
            Ok(match (&rotation, bundle(&namespace).await?) {
                (None, trusted) if trusted != before && trusted.matches("BEGIN").count() == 1 => Seen::Yes(()),
                (_, trusted) => Seen::NotYet(format!("{rotation:?}, {} trusted", trusted.matches("BEGIN").count())),
            })
        })
        .await?;
        Ok(took)
    };
    let (took, gap) = writing(&sql, rotation).await?;
    println!(
        "another authority after {:.0} s; {:.2} s without a write",
        took.as_secs_f64(),
        gap.as_secs_f64()
    );
    ensure!(gap < INTERRUPTION, "{gap:?} without a write");
    ensure!(
        authority(&namespace).await?.not_after >= first.not_after,
        "it is not a newer one"
    );
    // Each standby streams with a certificate of the new authority: its stream is begun anew.
    let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_replication";
    let status = namespace.get("db").await?.status.unwrap_or_default();
    let primary = status.current_primary.context("a primary")?;
    let postgres = ["psql", "-X", "-U", "postgres", "-d", "postgres", "-Atc", ended];
    let ended = exec(&namespace, &primary, CONTAINER, &postgres).await?;
    ensure!(ended == "2", "{ended} standbys");
    namespace.wait_ready("db", BOUND).await?;
    // A commit is acknowledged only once a standby has it.
    sql.sql("INSERT INTO t VALUES (0)").await?;
    keep_authority(&namespace, &sql, "after.crt").await?;
    verified(&sql, "after.crt").await?;
    let refused = verified(&sql, "before.crt").await;
    ensure!(
        refused
            .as_ref()
            .is_err_and(|error| error.to_string().contains("certificate verify failed")),
        "the former authority verifies it still: {refused:?}"
    );
    ensure!(namespace.pod_uids("db").await? == pods, "a pod was replaced");
    for pod in namespace.api::<Pod>().list(&ListParams::default()).await? {
        let restarts = pod
            .status
            .and_then(|status| status.container_statuses)
            .unwrap_or_default();
        ensure!(
            restarts.iter().all(|container| container.restart_count == 0),
            "{restarts:?}"
        );
    }
    namespace.begin_removal().await
}

/// What the application's Secret holds under `ca.crt`.
async fn bundle(namespace: &Namespace) -> Result<String> {
    let secret = namespace.api::<Secret>().get("db-app").await?;
    let held = secret.data.unwrap_or_default().remove("ca.crt").context("ca.crt")?;
    Ok(String::from_utf8(held.0)?)
}

/// Stores that in a file of the client.
async fn keep_authority(namespace: &Namespace, sql: &SqlClient, name: &str) -> Result<String> {
    let held = bundle(namespace).await?;
    let script = format!("printf %s \"$1\" > /tmp/{name}");
    sql.run(&["sh", "-c", &script, "sh", &held]).await?;
    Ok(held)
}

/// Connects as one that trusts what is in this file, and verifies the server and its name.
async fn verified(sql: &SqlClient, name: &str) -> Result<()> {
    let uri = format!("$DATABASE_URI?sslmode=verify-full&sslrootcert=/tmp/{name}");
    let one = sql.sql_as(&uri, "SELECT 1").await?;
    ensure!(one == "1", "{one}");
    Ok(())
}

#[tokio::test]
async fn the_loss_of_two_volumes_is_accepted_and_new_members_are_filled_from_the_last_one() -> Result<()> {
    let (namespace, sql) = ready("e2e-accept-loss", 3).await?;
    let testbed = Testbed::attach(Options::from_env()?.instance)?;
    let claims = namespace.claim_uids("db").await?;
    let (holder, _) = namespace.reign("db").await?;
    let status = namespace.get("db").await?.status.unwrap_or_default();
    let primary = status.current_primary.context("a primary")?;
    let names = Names::new("db");
    let mut others = (0..3).filter(|ordinal| names.pod(*ordinal) != primary);
    let lost = [primary.as_str(), &names.pod(others.next().context("a standby")?)].map(str::to_owned);
    // Stopped at once, neither of them can hand over what it has.
    for pod in &lost {
        let container = Container::of(&testbed, &namespace, pod).await?;
        testbed.signal(container.agent, Signal::STOP)?;
        testbed.signal(container.postmaster()?, Signal::KILL)?;
    }
    let now = DeleteParams::default().grace_period(0);
    for ordinal in (0..3).filter(|ordinal| lost.contains(&names.pod(*ordinal))) {
        let claim = names.data_claim(0, ordinal);
        namespace.api::<PersistentVolumeClaim>().delete(&claim, &now).await?;
        namespace.api::<Pod>().delete(&names.pod(ordinal), &now).await?;
    }
    says(&namespace, "kubectl cdb accept-loss db").await?;
    let status = namespace.get("db").await?.status.unwrap_or_default();
    ensure!(status.phase != Some(Phase::Ready), "{status:?}");
    let epoch = status.epoch.context("an epoch")?;
    let accepted = Action::AcceptLoss(AcceptLoss { epoch });
    namespace.ask("db", "accept", accepted).await?;
    let why = namespace
        .wait_operation("accept", OperationPhase::Completed, BOUND)
        .await?;
    let (_, took) = namespace.wait_ready("db", BOUND).await?;
    println!("{why}; Ready {:.1} s later", took.as_secs_f64());
    ensure!(
        namespace.reign("db").await?.0 != holder,
        "the lost primary holds the Lease"
    );
    let rows = sql.sql("SELECT count(*) FROM t").await?;
    ensure!(rows == "100", "{rows} rows");
    // A commit is acknowledged only once a standby has it.
    sql.sql("INSERT INTO t VALUES (101)").await?;
    until("the rows on a standby", BOUND, || async {
        let rows = sql.sql_at("db-ro", "SELECT count(*) FROM t").await?;
        Ok(if rows == "101" {
            Seen::Yes(())
        } else {
            Seen::NotYet(rows)
        })
    })
    .await?;
    let after = namespace.claim_uids("db").await?;
    let kept = after.iter().filter(|(claim, uid)| claims.get(*claim) == Some(*uid));
    ensure!(after.len() == 3 && kept.count() == 1, "{after:?}, before {claims:?}");
    namespace.begin_removal().await
}

#[tokio::test]
async fn a_lost_lease_is_made_again_and_quarantined_data_is_removed_on_request() -> Result<()> {
    let (namespace, sql) = ready("e2e-operations", 1).await?;
    // Nobody else has a copy by which the only instance could prove that the Lease was its own.
    namespace.api::<Lease>().delete("db", &DeleteParams::default()).await?;
    says(&namespace, "kubectl cdb recreate-lease db").await?;
    let again = Action::RecreateLease(RecreateLease {});
    namespace.ask("db", "lease", again.clone()).await?;
    namespace
        .wait_operation("lease", OperationPhase::Completed, BOUND)
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    let rows = sql.sql("SELECT count(*) FROM t").await?;
    ensure!(rows == "100", "{rows} rows");
    namespace.ask("db", "no-lease", again).await?;
    let why = namespace
        .wait_operation("no-lease", OperationPhase::Failed, BOUND)
        .await?;
    ensure!(why.contains("Lease db is there"), "{why}");

    // As the agent sets data aside that has diverged.
    let (name, place) = ("1-0_3000060-1", format!("{DATA_PATH}/aside/1-0_3000060-1"));
    let make = format!("mkdir -p {place} && touch {place}/PG_VERSION");
    exec(&namespace, "db-0", CONTAINER, &["sh", "-c", &make]).await?;
    says(&namespace, &format!("kubectl cdb discard-quarantined db db-0 {name}")).await?;
    let discard = DiscardQuarantined {
        instance: "db-0".to_owned(),
        name: name.to_owned(),
    };
    namespace
        .ask("db", "discard", Action::DiscardQuarantined(discard))
        .await?;
    namespace
        .wait_operation("discard", OperationPhase::Completed, BOUND)
        .await?;
    let left = exec(&namespace, "db-0", CONTAINER, &["ls", &format!("{DATA_PATH}/aside")]).await?;
    ensure!(left.trim().is_empty(), "left: {left}");
    namespace.begin_removal().await
}
