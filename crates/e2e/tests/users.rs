//! End-to-end: users. A resource becomes a role of PostgreSQL that can do what it says and nothing else.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::declared::DeclaredPhase;
use api::{Database, DatabaseUser};
use e2e::wait::{Seen, until};
use e2e::{Namespace, SqlClient, connect_for_test, connect_for_test_as};
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::POSTGRES_IMAGE;

/// Bound of every step; far above what it takes, since the machine may be busy.
const BOUND: Duration = Duration::from_secs(180);
/// What the role may do with tables, by `information_schema`.
const GRANTS: &str = "SELECT string_agg(table_name || ' ' || privilege_type, ', ' ORDER BY table_name, privilege_type) \
     FROM information_schema.role_table_grants WHERE grantee = 'orders-rw'";

async fn ready(name: &str, replicas: u32) -> Result<(Namespace, SqlClient)> {
    let namespace = Namespace::fresh(connect_for_test().await?, name).await?;
    let spec = json!({"replicas": replicas, "storage": {"data": {"size": "1Gi"}}});
    namespace.create("db", spec).await?;
    namespace.wait_ready("db", BOUND).await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE orders (id serial, v text); INSERT INTO orders (v) VALUES ('a')")
        .await?;
    Ok((namespace, sql))
}

/// Runs `statement` as the user until it succeeds: after a change of the primary the proxies need a moment.
async fn as_user(sql: &SqlClient, uri: &str, statement: &str) -> Result<String> {
    let (said, _) = until(&format!("the user to run {statement}"), BOUND, || async {
        let said = sql.sql_as(uri, statement).await;
        Ok(said.map_or_else(|error| Seen::NotYet(format!("{error:#}")), Seen::Yes))
    })
    .await?;
    Ok(said)
}

async fn is_refused(sql: &SqlClient, uri: &str, statement: &str, words: &str) -> Result<()> {
    let (done, _) = until(&format!("{statement} to be refused"), BOUND, || async {
        Ok(match sql.sql_as(uri, statement).await {
            Ok(_) => Seen::Yes(true),
            Err(error) if format!("{error:#}").contains(words) => Seen::Yes(false),
            Err(error) => Seen::NotYet(format!("{error:#}")),
        })
    })
    .await?;
    ensure!(!done, "{statement} was done");
    Ok(())
}

#[tokio::test]
async fn the_shortest_user_can_do_what_it_says_through_failovers_and_until_it_is_deleted() -> Result<()> {
    let (namespace, sql) = ready("e2e-user", 3).await?;
    let shortest = json!({
        "database": "app", "permissions": ["SELECT", "INSERT", "UPDATE"], "onDelete": "Drop", "memberOf": [{"role": "pg_monitor"}],
    });
    namespace.declare_user("db", "orders-rw", shortest).await?;
    let (user, took) = namespace.wait_user("orders-rw", DeclaredPhase::Ready, BOUND).await?;
    println!("a user is Ready after {:.1} s", took.as_secs_f64());
    let status = user.status.context("a status")?;
    let secret = status.secret_name.context("a Secret")?;
    let uri = namespace.secret_text(&secret, "uri").await?;
    let grants = sql.sql(GRANTS).await?;
    ensure!(grants == "orders INSERT, orders SELECT, orders UPDATE", "{grants}");
    ensure!(as_user(&sql, &uri, "SELECT current_user").await? == "orders-rw");
    for may in ["INSERT INTO orders (v) VALUES ('b')", "UPDATE orders SET v = 'c'"] {
        as_user(&sql, &uri, may).await?;
    }
    is_refused(&sql, &uri, "DELETE FROM orders", "permission denied").await?;
    is_refused(&sql, &uri, "CREATE TABLE mine ()", "permission denied").await?;
    ensure!(as_user(&sql, &uri, "SELECT pg_has_role('pg_monitor', 'SET')").await? == "t");
    sql.sql("CREATE TABLE later (id serial)").await?;
    as_user(&sql, &uri, "INSERT INTO later DEFAULT VALUES").await?;
    logs_in_with_a_certificate(&namespace, &sql).await?;

    // Through a failover the password stays, and a change is taken up by the new primary.
    let before = namespace
        .get("db")
        .await?
        .status
        .and_then(|status| status.current_primary);
    let before = before.context("a primary")?;
    let pods = namespace.api::<Pod>();
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete(&before, &at_once).await?;
    namespace
        .change_user("orders-rw", json!({"permissions": ["SELECT"]}))
        .await?;
    let (after, took) = namespace.wait_user("orders-rw", DeclaredPhase::Ready, BOUND).await?;
    println!("a change while the primary is lost: {:.1} s", took.as_secs_f64());
    let oid = after.status.and_then(|status| status.declared.oid);
    ensure!(oid == status.declared.oid, "another role");
    let now = as_user(&sql, &uri, "SELECT count(*) FROM orders").await?;
    ensure!(now == "2", "{now} rows");
    is_refused(&sql, &uri, "UPDATE orders SET v = 'd'", "permission denied").await?;
    is_refused(&sql, &uri, "INSERT INTO later DEFAULT VALUES", "permission denied").await?;
    ensure!(namespace.secret_text(&secret, "uri").await? == uri, "another password");

    // A role that owns something is not dropped; what is in its way is told.
    sql.sql("CREATE SCHEMA own; GRANT CREATE, USAGE ON SCHEMA own TO \"orders-rw\"")
        .await?;
    as_user(&sql, &uri, "CREATE TABLE own.mine ()").await?;
    let users = namespace.api::<DatabaseUser>();
    users.delete("orders-rw", &DeleteParams::default()).await?;
    until("what is in its way to be told", BOUND, || async {
        let status = users.get("orders-rw").await?.status.unwrap_or_default();
        let message = status.declared.message.unwrap_or_default();
        let is_told = message.contains("cannot be dropped") && message.contains("Retain");
        Ok(if is_told { Seen::Yes(()) } else { Seen::NotYet(message) })
    })
    .await?;
    sql.sql("DROP SCHEMA own CASCADE").await?;
    let took = namespace.wait_user_gone("orders-rw", BOUND).await?;
    println!("gone {:.1} s after nothing is in the way", took.as_secs_f64());
    is_refused(&sql, &uri, "SELECT 1", "authentication failed").await?;
    ensure!(
        sql.sql("SELECT count(*) FROM pg_roles WHERE rolname = 'orders-rw'")
            .await?
            == "0"
    );
    ensure!(
        namespace.api::<Secret>().get_opt(&secret).await?.is_none(),
        "the password is left"
    );
    a_database_comes_and_goes(&namespace, &sql).await?;
    namespace.begin_removal().await
}

/// With the files of the Secret, as an application mounts them.
async fn logs_in_with_a_certificate(namespace: &Namespace, sql: &SqlClient) -> Result<()> {
    let spec = json!({"database": "app", "permissions": ["SELECT"], "clientCertificate": true});
    namespace.declare_user("db", "orders-cert", spec).await?;
    let (user, _) = namespace.wait_user("orders-cert", DeclaredPhase::Ready, BOUND).await?;
    let secret = user.status.and_then(|status| status.secret_name).context("a Secret")?;
    for key in ["tls.crt", "tls.key", "ca.crt"] {
        let text = namespace.secret_text(&secret, key).await?;
        let script = format!("umask 077; printf %s \"$1\" > /tmp/{key}");
        sql.run(&["sh", "-c", &script, "sh", &text]).await?;
    }
    let uri = namespace.secret_text(&secret, "uri").await?;
    let uri = uri.replace(&format!("/etc/{secret}/"), "/tmp/");
    ensure!(as_user(sql, &uri, "SELECT current_user").await? == "orders-cert");
    let (without, _) = uri.split_once("&sslcert").context("a certificate in the URI")?;
    is_refused(sql, without, "SELECT 1", "requires a valid client certificate").await
}

async fn a_database_comes_and_goes(namespace: &Namespace, sql: &SqlClient) -> Result<()> {
    let databases = namespace.api::<Database>();
    let spec = json!({
        "clusterRef": {"name": "db"}, "owner": "app", "schemas": [{"name": "sales"}], "onDelete": "Drop",
    });
    let database = Database::new("shop-2", serde_json::from_value(spec)?);
    databases.create(&PostParams::default(), &database).await?;
    let (_, took) = namespace.wait_database("shop-2", DeclaredPhase::Ready, BOUND).await?;
    println!("a database is Ready after {:.1} s", took.as_secs_f64());
    let there = "SELECT count(*) FROM pg_database WHERE datname = 'shop-2' AND datallowconn";
    ensure!(sql.sql(there).await? == "1", "there is no such database");
    databases.delete("shop-2", &DeleteParams::default()).await?;
    let (_, took) = until("the database to be gone", BOUND, || async {
        let left = databases.get_opt("shop-2").await?;
        Ok(left.map_or(Seen::Yes(()), |left| Seen::NotYet(format!("{:?}", left.status))))
    })
    .await?;
    println!("it is gone after {:.1} s", took.as_secs_f64());
    ensure!(sql.sql(there).await? == "0", "it was not dropped");
    Ok(())
}

/// A ServiceAccount that may do everything with users and nothing else, and a client that has its rights.
async fn manager(namespace: &Namespace) -> Result<Client> {
    async fn make<K>(namespace: &Namespace, object: Value) -> Result<()>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope> + serde::Serialize + DeserializeOwned,
        K: Clone + std::fmt::Debug,
        K::DynamicType: Default,
    {
        let object: K = serde_json::from_value(object).context("an object")?;
        namespace.api::<K>().create(&PostParams::default(), &object).await?;
        Ok(())
    }
    let metadata = json!({"name": "manager"});
    make::<ServiceAccount>(namespace, json!({"metadata": metadata})).await?;
    let rules = json!([{"apiGroups": [api::GROUP], "resources": ["databaseusers"], "verbs": ["*"]}]);
    make::<Role>(namespace, json!({"metadata": metadata, "rules": rules})).await?;
    let subject = json!({"kind": "ServiceAccount", "name": "manager", "namespace": namespace.name});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "manager"});
    let binding = json!({"metadata": metadata, "subjects": [subject], "roleRef": role});
    make::<RoleBinding>(namespace, binding).await?;
    connect_for_test_as(&format!("system:serviceaccount:{}:manager", namespace.name)).await
}

#[tokio::test]
async fn who_may_do_nothing_but_make_users_makes_them_and_bad_ones_are_told_what_to_change() -> Result<()> {
    let (namespace, sql) = ready("e2e-user-only", 1).await?;
    let manager = manager(&namespace).await?;
    let users: Api<DatabaseUser> = Api::namespaced(manager.clone(), &namespace.name);
    let secrets: Api<Secret> = Api::namespaced(manager, &namespace.name);
    ensure!(
        secrets.list(&ListParams::default()).await.is_err(),
        "it may read Secrets"
    );
    let make = async |name: &str, spec: Value| {
        let mut spec = spec;
        spec["clusterRef"] = json!({"name": "db"});
        let user = DatabaseUser::new(name, serde_json::from_value(spec)?);
        let made = users.create(&PostParams::default(), &user).await;
        anyhow::Ok(made.map_or_else(|error| format!("{error:#}"), |_| "made".to_owned()))
    };
    ensure!(make("reader", json!({"database": "app", "permissions": ["SELECT"]})).await? == "made");
    namespace.wait_user("reader", DeclaredPhase::Ready, BOUND).await?;
    let uri = namespace.secret_text("reader-credentials", "uri").await?;
    ensure!(as_user(&sql, &uri, "SELECT count(*) FROM orders").await? == "1");

    for (spec, words) in [
        (json!({"permissions": ["SELECT"]}), "permissions needs database"),
        (json!({"name": "pg_reader"}), "name must not be postgres"),
        (
            json!({"password": {"external": true, "none": true}}),
            "password must be one of secretRef, external and none",
        ),
        (
            json!({"onDelete": "Drop", "managementPolicy": "Observe"}),
            "need managementPolicy: Full",
        ),
        (
            json!({"memberOf": [{"role": "pg_execute_server_program"}]}),
            "memberOf must not name",
        ),
    ] {
        let said = make("bad", spec).await?;
        ensure!(said.contains(words), "{said}");
    }

    // What PostgreSQL knows and the API server does not is told in the status. A change of the user does not wait for the
    // minute after which what was refused is tried again.
    ensure!(
        make(
            "late",
            json!({"grants": [{"database": "app", "schemas": ["sales"], "permissions": ["SELECT"]}]})
        )
        .await?
            == "made"
    );
    until("what is missing to be told", BOUND, || async {
        let late = users.get("late").await?.status.unwrap_or_default().declared;
        let message = late.message.unwrap_or_default();
        Ok(match message.contains("there is no schema sales in database app") {
            true if late.phase == Some(DeclaredPhase::Pending) => Seen::Yes(()),
            _ => Seen::NotYet(message),
        })
    })
    .await?;
    sql.sql("CREATE SCHEMA sales").await?;
    namespace.change_user("late", json!({"connectionLimit": 5})).await?;
    let (_, took) = namespace.wait_user("late", DeclaredPhase::Ready, BOUND).await?;
    println!("Ready {:.1} s after what was missing is there", took.as_secs_f64());

    // Nobody's role is taken over, unless that is asked for; what that takes away is told before.
    ensure!(make("app", json!({})).await? == "made");
    let (refused, _) = namespace.wait_user("app", DeclaredPhase::Failed, BOUND).await?;
    let why = refused
        .status
        .and_then(|status| status.declared.message)
        .unwrap_or_default();
    ensure!(why.contains("password of Secret db-app"), "{why}");
    namespace
        .change_user("app", json!({"password": {"external": true}}))
        .await?;
    let (refused, _) = namespace.wait_user("app", DeclaredPhase::Failed, BOUND).await?;
    let why = refused
        .status
        .and_then(|status| status.declared.message)
        .unwrap_or_default();
    ensure!(
        why.contains("made by somebody else") && why.contains("spec.adoption"),
        "{why}"
    );
    let observe = json!({"adoption": "Full", "managementPolicy": "Observe", "connectionLimit": 50});
    namespace.change_user("app", observe).await?;
    let (planned, _) = namespace.wait_user("app", DeclaredPhase::Planned, BOUND).await?;
    let plan = planned.status.map(|status| status.declared.plan).unwrap_or_default();
    let told: Vec<&str> = plan.iter().map(|step| step.sql.as_str()).collect();
    ensure!(told.iter().any(|sql| sql.contains("CONNECTION LIMIT 50")), "{told:?}");
    ensure!(!told.concat().contains("SCRAM"), "{told:?}");
    let limit = sql
        .sql("SELECT rolconnlimit FROM pg_roles WHERE rolname = 'app'")
        .await?;
    ensure!(limit == "-1", "it was done: {limit}");
    users.delete("app", &DeleteParams::default()).await?;
    namespace.wait_user_gone("app", BOUND).await?;
    ensure!(
        sql.sql("SELECT count(*) FROM orders").await? == "1",
        "the application's role is as it was"
    );
    namespace.begin_removal().await
}
