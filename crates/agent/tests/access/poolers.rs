//! What poolers need.

use machine::access::{Declared, DeclaredPooler, PoolerProgram};
use tokio_postgres::Client;

use super::instance::{Instance, Scene};
use super::unprivileged::unprivileged;
use super::{prepared, settle_one};

async fn settle(instance: &mut Instance) -> usize {
    let pooler = DeclaredPooler {
        uid: "uid of pool".to_owned(),
        pooler: PoolerProgram::PgBouncer,
    };
    let settled = settle_one(instance, Declared::Pooler(pooler)).await;
    assert_eq!(
        (settled.error, settled.left.steps.len()),
        (None, 0),
        "{:?}",
        settled.plan
    );
    settled.plan.steps.len()
}

/// The roles of which a verifier is told.
async fn told(session: &Client) -> Vec<String> {
    let query = "SELECT r.rolname::text FROM pg_roles r, cdb_pooler.lookup(r.rolname::text) l
                  WHERE l.role = r.rolname::text AND l.verifier LIKE 'SCRAM-SHA-256$%' ORDER BY 1";
    session
        .batch_execute("SET SESSION AUTHORIZATION cdb_pooler")
        .await
        .expect("become the pooler");
    let rows = session.query(query, &[]).await.expect("a lookup");
    session
        .batch_execute("RESET SESSION AUTHORIZATION")
        .await
        .expect("become oneself");
    rows.iter().map(|row| row.get(0)).collect()
}

#[test]
fn a_pooler_is_told_the_verifiers_of_those_who_may_log_in_with_one() {
    unprivileged(
        "poolers::a_pooler_is_told_the_verifiers_of_those_who_may_log_in_with_one",
        |place| async {
            let scene = Scene::new(place).await;
            let mut instance = prepared(&scene).await;
            let session = instance.session("postgres").await;
            // Somebody was there first: their operators and functions would run as the owner of ours.
            let trap = "CREATE SCHEMA cdb_pooler AUTHORIZATION other;
                CREATE FUNCTION cdb_pooler.lookup(wanted text, OUT role text, OUT verifier text) RETURNS SETOF record
                    LANGUAGE sql AS $$ SELECT wanted, 'SCRAM-SHA-256$trap' $$;
                ALTER FUNCTION cdb_pooler.lookup(text) OWNER TO other;
                CREATE SCHEMA trap;
                CREATE FUNCTION trap.always(text, text) RETURNS bool LANGUAGE sql AS 'SELECT true';
                CREATE OPERATOR trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.always);
                CREATE OPERATOR trap.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.always);
                GRANT USAGE ON SCHEMA trap TO PUBLIC";
            session.batch_execute(trap).await.expect("a trap");
            let roles = "SET password_encryption = 'scram-sha-256';
                CREATE ROLE good LOGIN PASSWORD 'a';
                CREATE ROLE until LOGIN PASSWORD 'a' VALID UNTIL 'infinity';
                CREATE ROLE over LOGIN PASSWORD 'a' VALID UNTIL '2020-01-01';
                CREATE ROLE nologin PASSWORD 'a';
                CREATE ROLE mighty SUPERUSER LOGIN PASSWORD 'a';
                CREATE ROLE replicates REPLICATION LOGIN PASSWORD 'a';
                CREATE ROLE without LOGIN;
                SET password_encryption = 'md5';
                CREATE ROLE old LOGIN PASSWORD 'a'";
            session.batch_execute(roles).await.expect("roles");
            assert!(settle(&mut instance).await > 0);
            assert_eq!(settle(&mut instance).await, 0, "nothing is missing");
            let expected = ["app", "good", "until"];
            assert_eq!(told(&session).await, expected);
            session
                .batch_execute("SET search_path = trap, pg_catalog")
                .await
                .expect("a path");
            assert_eq!(told(&session).await, expected, "with somebody's operators");
            session.batch_execute("RESET search_path").await.expect("a path");

            // Nobody else asks, and a pooler's role reads nothing itself.
            for (role, query) in [
                ("other", "SELECT * FROM cdb_pooler.lookup('good')"),
                ("cdb_pooler", "SELECT rolpassword FROM pg_authid"),
                ("cdb_pooler", "CREATE TABLE cdb_pooler.mine ()"),
            ] {
                session
                    .batch_execute(&format!("SET SESSION AUTHORIZATION {role}"))
                    .await
                    .expect("another role");
                let refused = session.batch_execute(query).await.expect_err("a refusal");
                let message = refused.as_db_error().map(|error| error.message().to_owned());
                assert!(
                    message.is_some_and(|text| text.contains("permission denied")),
                    "{role}: {query}"
                );
                session
                    .batch_execute("RESET SESSION AUTHORIZATION")
                    .await
                    .expect("become oneself");
            }

            // Whatever is done to it is undone.
            for change in [
                "GRANT EXECUTE ON FUNCTION cdb_pooler.lookup(text) TO PUBLIC",
                "GRANT CREATE ON SCHEMA cdb_pooler TO other",
                "ALTER FUNCTION cdb_pooler.lookup(text) RESET search_path",
                "ALTER FUNCTION cdb_pooler.lookup(text) OWNER TO other",
                "CREATE FUNCTION cdb_pooler.lookup(wanted name, OUT role text, OUT verifier text) RETURNS SETOF record
                    LANGUAGE sql AS $$ SELECT 'x', 'y' $$",
                "DROP SCHEMA cdb_pooler CASCADE",
                "ALTER ROLE cdb_pooler NOLOGIN",
                "ALTER ROLE cdb_pooler CREATEROLE",
                "REVOKE cdb_certificates FROM cdb_pooler",
            ] {
                session.batch_execute(change).await.expect("a change");
                assert!(settle(&mut instance).await > 0, "{change}");
                assert_eq!(settle(&mut instance).await, 0, "{change}");
                assert_eq!(told(&session).await, expected, "{change}");
            }
        },
    );
}
