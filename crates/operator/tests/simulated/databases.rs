//! SQL databases: from a resource to a database and back, whoever is lost meanwhile.

use std::time::Duration;

use fake_api::faults::Faults;
use machine::access::{Database, Role, mark_of_database};
use serde_json::{Value, json};

use super::declared::{Declared, dropping, handed_on, one};
use super::world::{LONG, Operator, World, run};

const DATABASES: Declared = Declared {
    plural: "databases",
    kind: "Database",
    spec: || json!({"owner": "app", "schemas": [{"name": "sales"}]}),
    drops: dropping,
};
const USERS: Declared = Declared {
    plural: "databaseusers",
    kind: "DatabaseUser",
    spec: || json!({}),
    drops: dropping,
};

/// There is the role `app`.
fn app(world: &World) {
    let mut agents = world.agents.lock().unwrap();
    agents.catalogue.roles.insert("app".to_owned(), Role::default());
}

fn found(world: &World, name: &str) -> Option<Database> {
    world.agents.lock().unwrap().catalogue.databases.get(name).cloned()
}

/// Somebody makes a database by hand.
fn put(world: &World, name: &str, database: &Database) {
    let mut agents = world.agents.lock().unwrap();
    agents.catalogue.databases.insert(name.to_owned(), database.clone());
}

fn uid(world: &World, name: &str) -> String {
    let found = world.get(DATABASES.plural, name).unwrap();
    found["metadata"]["uid"].as_str().unwrap().to_owned()
}

async fn ready(world: &World) -> Operator {
    one(world, app).await
}

#[test]
fn a_database_is_made_and_then_nothing_is_written() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = ready(&world).await;
        DATABASES.declare(&world, "orders", &json!({"name": "Orders 1", "publicConnect": false}));
        world
            .until("ready", |world| DATABASES.is(world, "orders", "Ready"))
            .await;
        let database = found(&world, "Orders 1").unwrap();
        assert_eq!(database.comment, Some(mark_of_database(&uid(&world, "orders"))));
        assert!(database.schemas.contains_key("sales") && database.public.is_empty());
        let told = DATABASES.status(&world, "orders");
        assert_eq!(told["database"], "Orders 1");
        assert_eq!(
            (&told["oid"], &told["conditions"][0]["status"]),
            (&json!(database.oid), &json!("True"))
        );
        world.rests(LONG).await;
        // A change is taken up.
        DATABASES.change(&world, "orders", &json!({"connectionLimit": 3}));
        let is_changed = |world: &World| found(world, "Orders 1").unwrap().connection_limit == Some(3);
        world.until("changed", is_changed).await;
        // It stays, unless it is to go.
        world.delete(DATABASES.plural, "orders");
        world
            .until("gone", |world| world.list(DATABASES.plural).is_empty())
            .await;
        world.rests(LONG).await;
        assert!(found(&world, "Orders 1").is_some() && handed_on(&world) == 0);
    });
}

#[test]
fn a_user_and_the_database_that_it_owns_and_may_use_wait_for_one_another() {
    for user_first in [true, false] {
        run(1, async || {
            let world = World::new(Faults::none(), Duration::from_secs(1));
            let _operator = ready(&world).await;
            let user = |world: &World| {
                let grants = json!([{"database": "orders", "schemas": ["sales"], "permissions": ["SELECT"]}]);
                USERS.declare(world, "seller", &json!({ "grants": grants }));
            };
            let database = |world: &World| DATABASES.declare(world, "orders", &json!({"owner": "seller"}));
            let (kind, name, words) = match user_first {
                true => (USERS, "seller", "no database orders"),
                false => (DATABASES, "orders", "no role seller"),
            };
            match user_first {
                true => user(&world),
                false => database(&world),
            }
            let waits = |world: &World| kind.is(world, name, "Pending") && kind.says(world, name, words);
            world.until("it says what it waits for", waits).await;
            match user_first {
                true => database(&world),
                false => user(&world),
            }
            let both = |world: &World| USERS.is(world, "seller", "Ready") && DATABASES.is(world, "orders", "Ready");
            world.until("both go on by themselves", both).await;
            assert_eq!(found(&world, "orders").unwrap().owner, "seller");
            world.rests(LONG).await;
        });
    }
}

#[test]
fn of_two_with_one_database_the_older_has_it_and_nobody_elses_is_touched() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = ready(&world).await;
        let by_hand = Database {
            owner: "app".to_owned(),
            encoding: "UTF8".to_owned(),
            ..Database::default()
        };
        put(&world, "by-hand", &by_hand);
        let drops = json!({"name": "orders", "onDelete": "Drop"});
        DATABASES.declare(&world, "first", &drops);
        world
            .until("ready", |world| DATABASES.is(world, "first", "Ready"))
            .await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        DATABASES.declare(&world, "a-second", &drops);
        let conflicts = |world: &World| {
            DATABASES.is(world, "a-second", "Failed")
                && DATABASES.says(world, "a-second", "Database first, which is older")
        };
        world.until("the younger is told", conflicts).await;
        DATABASES.declare(&world, "by-hand", &json!({"onDelete": "Drop"}));
        let refused = |world: &World| {
            DATABASES.is(world, "by-hand", "Failed") && DATABASES.says(world, "by-hand", "made by somebody else")
        };
        world.until("it is refused", refused).await;
        // Neither takes anything with it.
        for name in ["a-second", "by-hand"] {
            world.delete(DATABASES.plural, name);
            world
                .until("gone", |world| world.get(DATABASES.plural, name).is_none())
                .await;
        }
        assert_eq!(found(&world, "by-hand"), Some(by_hand));
        let mark = mark_of_database(&uid(&world, "first"));
        assert_eq!(found(&world, "orders").unwrap().comment, Some(mark));
    });
}

#[test]
fn a_database_with_sessions_is_not_dropped_until_they_have_ended() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = ready(&world).await;
        DATABASES.declare(&world, "orders", &json!({"onDelete": "Drop"}));
        world
            .until("ready", |world| DATABASES.is(world, "orders", "Ready"))
            .await;
        world.agents.lock().unwrap().busy.insert("orders".to_owned());
        world.delete(DATABASES.plural, "orders");
        let told = |world: &World| {
            DATABASES.says(world, "orders", "accessed by other users") && DATABASES.says(world, "orders", "Retain")
        };
        world.until("what is in the way is told", told).await;
        tokio::time::sleep(LONG).await;
        assert!(found(&world, "orders").is_some());
        world.agents.lock().unwrap().busy.clear();
        world
            .until("gone", |world| world.list(DATABASES.plural).is_empty())
            .await;
        assert_eq!(found(&world, "orders"), None);
    });
}

/// Nothing was ever made for it, so nothing is waited for.
#[test]
fn a_database_that_waits_for_its_owner_goes_at_once() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = ready(&world).await;
        DATABASES.declare(&world, "orders", &json!({"owner": "nobody", "onDelete": "Drop"}));
        let waits = |world: &World| DATABASES.says(world, "orders", "no role nobody");
        world.until("it waits", waits).await;
        world.delete(DATABASES.plural, "orders");
        world
            .until("gone", |world| world.list(DATABASES.plural).is_empty())
            .await;
        assert_eq!(handed_on(&world), 0);
    });
}

#[test]
fn a_database_goes_though_its_cluster_hibernates_or_is_gone() {
    DATABASES.deletions_end(app);
}

#[test]
fn a_kill_at_any_write_for_a_database_leads_to_the_same_end() {
    let writes = DATABASES.survives_kills(app, |world, is_there| {
        let database = found(world, "o");
        assert_eq!(database.is_some(), is_there);
        assert!(database.is_none_or(|database| database.schemas.contains_key("sales")));
        let closed: Value = json!(world.agents.lock().unwrap().catalogue.closed);
        assert_eq!(closed, json!({}));
    });
    assert!(writes >= 8, "{writes}");
}
