//! End-to-end: the operator's writes, and its recovery when it is killed in the middle.

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::operation::{Action, OperationPhase, TakeImage};
use e2e::audit::{Audit, Write};
use e2e::install::OPERATOR_ACCOUNT;
use e2e::namespace::{members, summary};
use e2e::wait::{Seen, until};
use e2e::{Images, Namespace, OPERATOR_IMAGE_VARIABLE, SqlClient, connect_for_test, is_long, manifest, writing};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ObjectMeta, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use testbed::{Options, POOLER_IMAGE, POSTGRES_IMAGE, Testbed};

/// Bound of every step; far above what it takes, since the machine may be busy.
const BOUND: Duration = Duration::from_secs(180);
/// Most writes that the operator may need for a database of three instances.
const CREATION_WRITES: usize = 25;
/// How long an idle database is watched. `course::a_database_becomes_ready_within_its_budget_and_rests` watches the operator for five
/// minutes of a paused clock.
const IDLE: Duration = Duration::from_secs(45);
const IDLE_LONG: Duration = Duration::from_secs(180);

fn testbed() -> Result<Testbed> {
    Testbed::attach(Options::from_env()?.instance)
}

/// The operator's writes in a namespace.
fn operators(writes: Vec<Write>, namespace: &Namespace) -> Vec<Write> {
    let theirs = |write: &Write| write.user == OPERATOR_ACCOUNT && write.namespace == namespace.name;
    writes.into_iter().filter(theirs).collect()
}

/// The operator's writes once there have been no new ones for ten seconds.
async fn settled(audit: &Audit, namespace: &Namespace) -> Result<Vec<Write>> {
    let (mut seen, mut since) = (0, Instant::now());
    let (writes, _) = until("the operator to be done", BOUND, || {
        let writes = audit.writes().map(|writes| operators(writes, namespace));
        let found = writes.map(|writes| {
            if writes.len() != seen {
                (seen, since) = (writes.len(), Instant::now());
            }
            if since.elapsed() > Duration::from_secs(10) {
                Seen::Yes(writes)
            } else {
                Seen::NotYet(format!("{seen} writes"))
            }
        });
        std::future::ready(found)
    })
    .await?;
    Ok(writes)
}

#[tokio::test]
async fn creation_takes_few_writes_and_an_idle_database_none() -> Result<()> {
    let audit_log = testbed()?.audit_log_path();
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-idle").await?;
    let audit = Audit::from_now(&audit_log)?;
    namespace
        .create("db", json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    let (_, took) = namespace.wait_ready("db", BOUND).await?;
    // Writes after `Ready` belong to the creation as well.
    let writes = settled(&audit, &namespace).await?;
    let mut by_kind: BTreeMap<String, usize> = BTreeMap::new();
    for write in &writes {
        *by_kind.entry(format!("{} {}", write.verb, write.resource)).or_default() += 1;
    }
    println!("operator's writes for three instances: {} {by_kind:?}", writes.len());
    // Changes that can wait are written every three seconds at most: a slow creation writes more of them.
    let most = CREATION_WRITES + usize::try_from(took.as_secs() / 3)?;
    ensure!(writes.len() <= most, "{} writes: {by_kind:?}", writes.len());

    let audit = Audit::from_now(&audit_log)?;
    let before = (namespace.get("db").await?, versions(&namespace, "db").await?);
    tokio::time::sleep(if is_long() { IDLE_LONG } else { IDLE }).await;
    let writes = operators(audit.writes()?, &namespace);
    ensure!(writes.is_empty(), "the operator wrote while idle: {writes:?}");
    let after = (namespace.get("db").await?, versions(&namespace, "db").await?);
    ensure!(
        before.0.metadata.resource_version == after.0.metadata.resource_version,
        "the status changed while idle"
    );
    ensure!(
        before.1 == after.1,
        "objects changed while idle: {:?} {:?}",
        before.1,
        after.1
    );
    namespace.begin_removal().await
}

/// Resource versions of a database's objects, by kind and name; without the Lease, which the primary renews.
async fn versions(namespace: &Namespace, database: &str) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    let selector = members(database);
    let mut note = |kind: &str, name: String, version: Option<String>| {
        all.insert(format!("{kind}/{name}"), version.unwrap_or_default())
    };
    for object in namespace.api::<Pod>().list(&selector).await? {
        note("pod", object.name_any(), object.resource_version());
    }
    for object in namespace.api::<Secret>().list(&selector).await? {
        note("secret", object.name_any(), object.resource_version());
    }
    for object in namespace.api::<Service>().list(&selector).await? {
        note("service", object.name_any(), object.resource_version());
    }
    for object in namespace.api::<StatefulSet>().list(&selector).await? {
        note("statefulset", object.name_any(), object.resource_version());
    }
    ensure!(all.len() >= 11, "too few objects carry the database's label: {all:?}");
    Ok(all)
}

#[tokio::test]
async fn a_foreign_object_is_named_and_never_touched() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-foreign").await?;
    let foreign = Service {
        metadata: ObjectMeta {
            name: Some("db-rw".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(serde_json::from_value(json!({"ports": [{"port": 80}]}))?),
        ..Service::default()
    };
    let services = namespace.api::<Service>();
    let made = services.create(&PostParams::default(), &foreign).await?;
    namespace
        .create("db", json!({"replicas": 1, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    let (failed, _) = namespace.wait_phase("db", api::Phase::Failed, BOUND).await?;
    ensure!(
        summary(&failed).contains("db-rw"),
        "the fault does not name the object: {}",
        summary(&failed)
    );
    ensure!(
        services.get("db-rw").await?.resource_version() == made.resource_version(),
        "the foreign Service was changed"
    );
    services.delete("db-rw", &DeleteParams::default()).await?;
    namespace.wait_ready("db", BOUND).await?;
    namespace.begin_removal().await
}

#[tokio::test]
async fn a_missing_storage_class_and_a_bad_image_are_explained_and_can_be_corrected() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-faults").await?;
    namespace
        .create(
            "lost",
            json!({"replicas": 1, "storage": {"data": {"size": "1Gi", "storageClassName": "no-such-class"}}}),
        )
        .await?;
    namespace
        .create(
            "bad",
            json!({"replicas": 1, "storage": {"data": {"size": "1Gi"}}, "postgres": {"image": "localhost/no/such:image"}}),
        )
        .await?;
    let (lost, _) = namespace.wait_phase("lost", api::Phase::Failed, BOUND).await?;
    ensure!(summary(&lost).contains("no-such-class"), "{}", summary(&lost));
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "no-such-class"}, "provisioner": standard_provisioner(&namespace).await?});
    let class = serde_json::from_value(class)?;
    manifest::apply(&namespace.client, "", &[class]).await?;
    // This class never gets volumes, so the database stops here.
    let mended = namespace.wait_phase("lost", api::Phase::Creating, BOUND).await;
    let classes: Api<k8s_openapi::api::storage::v1::StorageClass> = Api::all(namespace.client.clone());
    classes.delete("no-such-class", &DeleteParams::default()).await?;
    mended?;
    let (bad, _) = namespace
        .wait_phase("bad", api::Phase::Failed, Duration::from_secs(300))
        .await?;
    ensure!(summary(&bad).contains("no/such"), "{}", summary(&bad));
    namespace.change("bad", json!({"postgres": {"image": null}})).await?;
    namespace.wait_ready("bad", BOUND).await?;
    namespace.begin_removal().await
}

async fn standard_provisioner(namespace: &Namespace) -> Result<String> {
    let classes: Api<k8s_openapi::api::storage::v1::StorageClass> = Api::all(namespace.client.clone());
    Ok(classes.get("standard").await?.provisioner)
}

#[tokio::test]
async fn an_operator_killed_after_every_write_reaches_the_same_end() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-crash-operator").await?;
    let testbed = testbed()?;
    let reference = reference(&namespace.client).await?;
    let replicas = e2e::install::scale(&namespace.client, 0).await?;
    let outcome = crash_chain(&namespace, &testbed).await;
    let children = children(&namespace).await;
    e2e::install::scale(&namespace.client, replicas).await?;
    outcome?;
    let children = children?;
    let names: std::collections::BTreeSet<_> = reference.keys().chain(children.keys()).collect();
    let differing = names
        .into_iter()
        .filter(|name| reference.get(*name) != children.get(*name));
    let differing: Vec<_> = differing
        .map(|name| format!("{name}: {:?}, and not {:?}", children.get(name), reference.get(name)))
        .collect();
    ensure!(
        differing.is_empty(),
        "not as in an undisturbed database:\n{}",
        differing.join("\n")
    );
    namespace.wait_ready("db", BOUND).await?;
    namespace.begin_removal().await
}

/// The objects of the database `db`.
async fn children(namespace: &Namespace) -> Result<BTreeMap<String, serde_json::Value>> {
    let uid = namespace.get("db").await?.uid().context("a UID")?;
    common::children(namespace, "db", &uid).await
}

/// The objects of a database that was made without faults.
async fn reference(client: &kube::Client) -> Result<BTreeMap<String, serde_json::Value>> {
    let namespace = Namespace::fresh(client.clone(), "e2e-crash-reference").await?;
    namespace
        .create("db", json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    let children = children(&namespace).await?;
    println!("an undisturbed database has {:?}", children.keys().collect::<Vec<_>>());
    ensure!(children.len() >= 17, "14 objects and 3 claims, not {}", children.len());
    namespace.begin_removal().await?;
    Ok(children)
}

#[tokio::test]
async fn decisions_of_a_failover_are_recorded_and_replay_to_the_same() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-record").await?;
    namespace
        .create("db", json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    let before = namespace.holder("db").await?.context("a holder of the lease")?;
    let primary = before.split('/').next().unwrap_or_default();
    let at_once = DeleteParams::default().grace_period(0);
    namespace.api::<Pod>().delete(primary, &at_once).await?;
    until("another holder, and everything as before", BOUND, || async {
        let holder = namespace.holder("db").await?;
        let database = namespace.get("db").await?;
        let ready = database.status.as_ref().and_then(|status| status.phase) == Some(api::Phase::Ready);
        let other = holder.is_some_and(|holder| holder != before);
        Ok(if ready && other {
            Seen::Yes(())
        } else {
            Seen::NotYet(summary(&database))
        })
    })
    .await?;

    let cluster = cli::cluster::Cluster {
        client: namespace.client.clone(),
        namespace: namespace.name.clone(),
    };
    let text = cli::record::fetch(&cluster, "db").await?;
    let page = cli::replay::page(&cli::replay::parse(&text)?);
    println!("{}", cli::replay::text(&page, cli::text::Style::default()));
    for rule in ["children", "await-primary", "rest"] {
        ensure!(
            page.decisions.iter().any(|decision| decision.rule == rule),
            "no decision by {rule}"
        );
    }
    ensure!(page.differing == 0, "{} decisions are other ones", page.differing);

    let preview = cli::upgrade::online(&cluster, &namespace.name, "db").await?;
    ensure!(preview.replay.is_some(), "what was decided was not decided again");
    let same = cli::upgrade::page(vec![preview], Vec::new());
    ensure!(
        same.exit() == 0,
        "the version that runs would change something: {}",
        cli::upgrade::text(&same, cli::text::Style::default())
    );
    namespace.begin_removal().await
}

#[tokio::test]
async fn an_operator_for_one_namespace_needs_no_right_beyond_it() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-namespaced").await?;
    let replicas = e2e::install::scale(&namespace.client, 0).await?;
    let outcome = namespaced(&namespace).await;
    e2e::install::scale(&namespace.client, replicas).await?;
    outcome?;
    namespace.begin_removal().await
}

/// Installs the operator into the namespace from `manifests/namespaced`; it makes, changes and deletes a database.
async fn namespaced(namespace: &Namespace) -> Result<()> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/namespaced/install.yaml");
    let image = std::env::var(OPERATOR_IMAGE_VARIABLE).context("read the operator image's name")?;
    let yaml = std::fs::read_to_string(path)
        .context("read the manifests")?
        .replace("namespace: databases", &format!("namespace: {}", namespace.name))
        .replace("clustereddatabase/operator:latest", &image)
        .replace("clustereddatabase/postgres:17", POSTGRES_IMAGE);
    manifest::apply(&namespace.client, &namespace.name, &manifest::parse(&yaml)?).await?;
    namespace
        .create(
            "db",
            json!({"replicas": 2, "storage": {"data": {"size": "1Gi"}, "retentionPolicy": {"whenDeleted": "Delete"}}}),
        )
        .await?;
    let (database, took) = namespace.wait_ready("db", BOUND).await?;
    println!(
        "Ready under an operator for one namespace after {:.1} s",
        took.as_secs_f64()
    );
    namespace
        .change("db", json!({"postgres": {"parameters": {"work_mem": "7MB"}}}))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    let uid = database.uid().context("a UID")?;
    let databases = namespace.api::<api::ClusteredDatabase>();
    databases.delete("db", &DeleteParams::default()).await?;
    namespace.wait_gone("db", BOUND).await?;
    until("everything to be gone", BOUND, || async {
        let left = common::left_of(namespace, "db", &uid).await?;
        Ok(if left.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(left.join(", "))
        })
    })
    .await?;
    Ok(())
}

/// Databases under an operator that is upgraded, and how many instances they have.
const UPGRADED: [(&str, u32); 2] = [("three", 3), ("one", 1)];
/// A second name of the operator's image: for Kubernetes another version.
const OTHER_VERSION: &str = "localhost/cdb/operator:again";
/// A second name of the image with PostgreSQL.
const OTHER_POSTGRES: &str = "localhost/cdb/postgres:again";
/// Longest time without a write while nothing is interrupted: the machine may be busy.
const UNINTERRUPTED: Duration = Duration::from_secs(10);

#[tokio::test]
async fn an_upgrade_of_the_operator_restarts_no_pod_and_the_new_one_continues() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-upgrade").await?;
    for (name, replicas) in UPGRADED {
        let spec = json!({"replicas": replicas, "storage": {"data": {"size": "1Gi"}}});
        namespace.create(name, spec).await?;
    }
    for (name, _) in UPGRADED {
        namespace.wait_ready(name, BOUND).await?;
    }
    strangers_lease(&namespace).await?;
    let image = std::env::var(OPERATOR_IMAGE_VARIABLE).context("read the operator image's name")?;
    testbed()?.tag_image(&image, OTHER_VERSION).await?;
    testbed()?.tag_image(POSTGRES_IMAGE, OTHER_POSTGRES).await?;
    let upgraded = upgraded(&namespace).await;
    let before = Images {
        operator: image,
        postgres: POSTGRES_IMAGE.to_owned(),
        pooler: POOLER_IMAGE.to_owned(),
    };
    e2e::install::upgrade(&namespace.client, &before).await?;
    upgraded?;
    namespace.begin_removal().await
}

/// A Lease with the operator's label and a time that the operator's types cannot hold: the next operator lists it at its start.
async fn strangers_lease(namespace: &Namespace) -> Result<()> {
    let lease: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "strangers", "labels": {"clustereddatabase.io/cluster": "strangers"}},
        "spec": {"renewTime": "9999-12-31T23:59:59.000000Z"},
    }))?;
    let leases = ApiResource::erase::<Lease>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(namespace.client.clone(), &namespace.name, &leases);
    let made = api.create(&PostParams::default(), &lease).await?;
    ensure!(
        made.data["spec"]["renewTime"] == lease.data["spec"]["renewTime"],
        "the API server changed it: {made:?}"
    );
    Ok(())
}

/// Upgrades the operator, with another default image for PostgreSQL, under writes to all databases, and has the new one carry out a
/// change of each. One database then takes the new default.
async fn upgraded(namespace: &Namespace) -> Result<()> {
    let [(first, _), (second, _)] = UPGRADED;
    let (to_first, to_second) = (writer(namespace, first).await?, writer(namespace, second).await?);
    let before = untouched(namespace).await?;
    let upgrade = async {
        let images = Images {
            operator: OTHER_VERSION.to_owned(),
            postgres: OTHER_POSTGRES.to_owned(),
            pooler: POOLER_IMAGE.to_owned(),
        };
        e2e::install::upgrade(&namespace.client, &images).await?;
        for (name, _) in UPGRADED {
            taken_up(namespace, name).await?;
            let change = json!({"postgres": {"parameters": {"work_mem": "7MB"}}});
            namespace.change(name, change).await?;
            namespace.wait_ready(name, BOUND).await?;
        }
        Ok(())
    };
    let (((), gap), other_gap) = writing(&to_second, writing(&to_first, upgrade)).await?;
    println!(
        "longest time without a write: {first} {:.2} s, {second} {:.2} s",
        gap.as_secs_f64(),
        other_gap.as_secs_f64()
    );
    ensure!(
        gap.max(other_gap) < UNINTERRUPTED,
        "{gap:?} and {other_gap:?} without a write"
    );
    for (name, sql) in [(first, &to_first), (second, &to_second)] {
        let found = sql.sql("SHOW work_mem").await?;
        ensure!(found == "7MB", "{name} has work_mem {found}");
    }
    let after = untouched(namespace).await?;
    ensure!(after == before, "not as before: {after:#?}, and not {before:#?}");
    takes_the_image(namespace, second).await
}

/// An operation has a database take the operator's default image; any other image is refused.
async fn takes_the_image(namespace: &Namespace, database: &str) -> Result<()> {
    let take = |image: &str| {
        Action::TakeImage(TakeImage {
            image: image.to_owned(),
        })
    };
    namespace
        .ask(database, "wrong-image", take("example.org/none:1"))
        .await?;
    let why = namespace
        .wait_operation("wrong-image", OperationPhase::Failed, BOUND)
        .await?;
    ensure!(why.contains(OTHER_POSTGRES), "{why}");
    namespace.ask(database, "image", take(OTHER_POSTGRES)).await?;
    namespace
        .wait_operation("image", OperationPhase::Completed, BOUND)
        .await?;
    for pod in namespace.api::<Pod>().list(&members(database)).await?.items {
        let containers = pod.spec.clone().map(|spec| spec.containers).unwrap_or_default();
        let images: Vec<String> = containers.into_iter().filter_map(|container| container.image).collect();
        ensure!(
            images.iter().any(|image| image == OTHER_POSTGRES),
            "{} runs {images:?}",
            pod.name_any()
        );
    }
    Ok(())
}

/// A client that has made a table.
async fn writer(namespace: &Namespace, database: &str) -> Result<SqlClient> {
    let sql = SqlClient::start(namespace, database, POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int)").await?;
    Ok(sql)
}

/// Waits until the new operator has reconciled a database: new pods get its agent from now on.
async fn taken_up(namespace: &Namespace, database: &str) -> Result<()> {
    until(&format!("{database} to be taken up"), BOUND, || async {
        let set = namespace.api::<StatefulSet>().get(database).await?;
        let pods = set.spec.and_then(|spec| spec.template.spec).unwrap_or_default();
        let containers = pods.init_containers.into_iter().flatten().chain(pods.containers);
        let images: Vec<String> = containers.filter_map(|container| container.image).collect();
        Ok(if images.iter().any(|image| image == OTHER_VERSION) {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("its pods are made with {images:?}"))
        })
    })
    .await?;
    Ok(())
}

/// What an upgrade leaves unchanged: by pod its UID and the restarts of each container, and by database the holder of its
/// lease and how often that was taken.
async fn untouched(namespace: &Namespace) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for (name, replicas) in UPGRADED {
        all.insert(name.to_owned(), format!("{:?}", namespace.reign(name).await?));
        let pods = namespace.api::<Pod>().list(&members(name)).await?.items;
        ensure!(
            pods.len() == usize::try_from(replicas)?,
            "{name} has {} pods",
            pods.len()
        );
        for pod in pods {
            let statuses = pod.status.clone().and_then(|status| status.container_statuses);
            let restarts: Vec<i32> = statuses
                .into_iter()
                .flatten()
                .map(|found| found.restart_count)
                .collect();
            all.insert(pod.name_any(), format!("{:?} {restarts:?}", pod.uid()));
        }
    }
    Ok(all)
}

/// Runs the operator again and again; each run ends itself right after one write to the API server.
async fn crash_chain(namespace: &Namespace, testbed: &Testbed) -> Result<()> {
    let audit = Audit::from_now(&testbed.audit_log_path())?;
    namespace
        .create("db", json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    let mut passwords: Option<(Option<String>, Option<String>)> = None;
    let mut crashes = 0;
    loop {
        let ended =
            e2e::install::run_operator_until_it_has_written(testbed, namespace, 1, Duration::from_secs(20)).await?;
        crashes += u32::from(ended);
        ensure!(
            crashes <= 60,
            "still writing after 60 crashes: {}",
            summary(&namespace.get("db").await?)
        );
        if let Some(secret) = namespace.api::<Secret>().get_opt("db-app").await? {
            let now = (secret.uid(), Some(format!("{:?}", secret.data)));
            let first = passwords.get_or_insert_with(|| now.clone());
            ensure!(*first == now, "the credentials were made again");
        }
        let database = namespace.get("db").await?;
        let ready = database.status.as_ref().and_then(|status| status.phase) == Some(api::Phase::Ready);
        if ready && !ended {
            break;
        }
    }
    let creations: Vec<String> = audit
        .writes()?
        .into_iter()
        .filter(|write| write.namespace == namespace.name && write.code == 201 && write.resource == "secrets")
        .map(|write| write.name)
        .collect();
    println!("{crashes} crashes; Secrets made: {creations:?}");
    ensure!(crashes >= 10, "only {crashes} crashes: the test did not do its work");
    let maps = namespace.api::<ConfigMap>().list(&members("db")).await?;
    ensure!(maps.items.is_empty(), "unexpected objects");
    let status = namespace.get("db").await?.status.context("a status")?;
    ensure!(status.ready == "3/3", "ready is {}", status.ready);
    Ok(())
}
