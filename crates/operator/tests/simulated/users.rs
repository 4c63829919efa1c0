//! Users: from a resource to a role and back, whoever is lost meanwhile.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fake_api::Verb;
use fake_api::faults::{Faults, Rates};
use fastrand::Rng;
use machine::access::{CERTIFICATES_ROLE, Database, Object, Privilege, Relation, RelationKind, Role, Schema};
use operator::certificates;
use operator::config::Config;
use serde_json::{Value, json};

use super::declared::{Declared, dropping, handed_on};
use super::world::{LONG, NAME, Operator, World, run};

const USERS: &str = "databaseusers";
const KIND: Declared = Declared {
    plural: USERS,
    kind: "DatabaseUser",
    spec: || json!({"database": "app", "permissions": ["SELECT", "INSERT"]}),
    drops: dropping,
};

pub fn declare(world: &World, name: &str, spec: &Value) {
    KIND.declare(world, name, spec);
}

fn change(world: &World, name: &str, spec: &Value) {
    KIND.change(world, name, spec);
}

fn status(world: &World, name: &str) -> Value {
    KIND.status(world, name)
}

pub fn is(world: &World, name: &str, phase: &str) -> bool {
    KIND.is(world, name, phase)
}

fn says(world: &World, name: &str, words: &str) -> bool {
    KIND.says(world, name, words)
}

/// There is a table `orders` in the database `app`.
fn content(world: &World) {
    let table = Relation {
        kind: RelationKind::Table,
        owner: "app".to_owned(),
        acl: Default::default(),
    };
    let public = Schema {
        owner: "app".to_owned(),
        relations: [("orders".to_owned(), table)].into(),
        ..Schema::default()
    };
    let database = Database {
        owner: "app".to_owned(),
        schemas: [("public".to_owned(), public)].into(),
        ..Database::default()
    };
    let mut agents = world.agents.lock().unwrap();
    agents.catalogue.databases.insert("app".to_owned(), database);
}

/// What PostgreSQL says that the role may do with the table; `None`: there is no such role.
fn may(world: &World, role: &str) -> Option<Vec<Privilege>> {
    let catalogue = &world.agents.lock().unwrap().catalogue;
    let on = Object::Relation {
        schema: "public".to_owned(),
        name: "orders".to_owned(),
        kind: RelationKind::Table,
    };
    let has = catalogue.granted("app", &on, role);
    catalogue.roles.contains_key(role).then(|| has.into_iter().collect())
}

fn verifier(world: &World, role: &str) -> Option<String> {
    let catalogue = &world.agents.lock().unwrap().catalogue;
    catalogue
        .roles
        .get(role)?
        .verifier
        .as_ref()
        .map(|verifier| verifier.0.clone())
}

fn text(world: &World, secret: &str, key: &str) -> Option<String> {
    let found = world.get("secrets", secret)?;
    let bytes = STANDARD.decode(found["data"][key].as_str()?).unwrap();
    String::from_utf8(bytes).ok()
}

pub async fn one(world: &World) -> Operator {
    super::declared::one(world, content).await
}

#[test]
fn a_user_with_a_certificate_gets_one_and_goes_back_to_the_password() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = one(&world).await;
        // Of a role that somebody else has made, nobody gets a certificate.
        let mighty = machine::access::Role {
            is_mighty: true,
            ..Default::default()
        };
        world
            .agents
            .lock()
            .unwrap()
            .catalogue
            .roles
            .insert("boss".to_owned(), mighty);
        declare(&world, "boss", &json!({"clientCertificate": true}));
        world.until("refused", |world| is(world, "boss", "Failed")).await;
        world.rests(LONG).await;
        assert!(text(&world, "boss-credentials", "password").is_some());
        assert_eq!(text(&world, "boss-credentials", "tls.crt"), None);

        declare(&world, "orders-rw", &json!({"clientCertificate": true}));
        world.until("ready", |world| is(world, "orders-rw", "Ready")).await;
        let secret = "orders-rw-credentials";
        let certificate = |world: &World| text(world, secret, "tls.crt").unwrap();
        let first = certificate(&world);
        let read = certificates::read(&first).unwrap();
        assert_eq!(
            read.issuer,
            certificates::read(&text(&world, "db-ca", "ca.crt").unwrap())
                .unwrap()
                .identifier
        );
        let uri = text(&world, secret, "uri").unwrap();
        assert!(
            uri.ends_with("&sslcert=/etc/orders-rw-credentials/tls.crt&sslkey=/etc/orders-rw-credentials/tls.key"),
            "{uri}"
        );
        let in_group = |world: &World| {
            let catalogue = &world.agents.lock().unwrap().catalogue;
            catalogue.roles["orders-rw"].groups.contains(CERTIFICATES_ROLE)
        };
        assert!(in_group(&world));
        world.rests(LONG).await;
        assert_eq!(certificate(&world), first, "it is renewed in time, and not before");

        change(&world, "orders-rw", &json!({"clientCertificate": false}));
        world
            .until("gone", |world| {
                text(world, secret, "tls.crt").is_none() && !in_group(world)
            })
            .await;
        assert!(!text(&world, secret, "uri").unwrap().contains("sslcert"));
    });
}

#[test]
fn a_user_gets_its_role_and_its_secret_and_then_nothing_is_written() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let operator = one(&world).await;
        declare(&world, "orders-rw", &json!({}));
        world.until("ready", |world| is(world, "orders-rw", "Ready")).await;
        assert_eq!(
            may(&world, "orders-rw"),
            Some(vec![Privilege::Select, Privilege::Insert])
        );
        let told = status(&world, "orders-rw");
        assert_eq!(told["secretName"], "orders-rw-credentials");
        assert_eq!((&told["role"], told["oid"].is_u64()), (&json!("orders-rw"), true));
        assert_eq!(told["conditions"][0]["status"], "True");
        let password = text(&world, "orders-rw-credentials", "password").unwrap();
        let uri = format!("postgresql://orders-rw:{password}@db-rw.ns.svc:5432/app");
        assert_eq!(text(&world, "orders-rw-credentials", "uri"), Some(uri));
        assert!(
            text(&world, "orders-rw-credentials", "ca.crt")
                .unwrap()
                .contains("BEGIN CERTIFICATE")
        );
        let stored = verifier(&world, "orders-rw").unwrap();
        assert!(scram::Verifier::parse(&stored).unwrap().matches(&password));
        // The password stands in its Secret and nowhere else.
        let encoded = STANDARD.encode(&password);
        for plural in [
            "secrets",
            "configmaps",
            "databaseusers",
            "clustereddatabases",
            "events",
            "leases",
        ] {
            for object in world.list(plural) {
                let own = object["metadata"]["name"] == "orders-rw-credentials";
                let text = object.to_string();
                assert_eq!(text.contains(&encoded) || text.contains(&password), own, "{text}");
            }
        }
        world.rests(LONG).await;
        // Another operator finds all of it as it is to be.
        drop(operator);
        let _operator = Operator::start(&world.server, Config::default());
        world.rests(LONG).await;
        assert_eq!(
            verifier(&world, "orders-rw"),
            Some(stored.clone()),
            "no password is written because of a restart"
        );

        // What stands beside the password follows what it says.
        world.user(
            200,
            Verb::Merge,
            "secrets",
            "orders-rw-credentials",
            json!({"data": {"host": STANDARD.encode("elsewhere")}}),
        );
        let corrected = |world: &World| text(world, "orders-rw-credentials", "host").unwrap() == "db-rw.ns.svc";
        world.until("corrected", corrected).await;
        assert_eq!(text(&world, "orders-rw-credentials", "password"), Some(password));

        change(&world, "orders-rw", &json!({"permissions": ["SELECT"]}));
        world.until("taken up", |world| is(world, "orders-rw", "Ready")).await;
        assert_eq!(may(&world, "orders-rw"), Some(vec![Privilege::Select]));
        assert_eq!(verifier(&world, "orders-rw"), Some(stored));
        world.delete(USERS, "orders-rw");
        world.until("gone", |world| world.list(USERS).is_empty()).await;
        world.rests(LONG).await;
        assert_eq!(
            may(&world, "orders-rw"),
            Some(vec![Privilege::Select]),
            "the role stays"
        );
        assert_eq!(handed_on(&world), 0);
    });
}

#[test]
fn what_is_waited_for_is_told_and_taken_up_when_it_is_there() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let operator = Operator::start(&world.server, Config::default());
        let own = json!({"name": "Orders RW", "password": {"secretRef": {"name": "mine", "key": "pw"}}});
        declare(&world, "orders-rw", &own);
        world
            .until("told", |world| says(world, "orders-rw", "there is none"))
            .await;
        world.create(&json!({"replicas": 1}));
        world.ready().await;
        world
            .until("told", |world| says(world, "orders-rw", "Secret mine"))
            .await;
        let secret = |password: &str, labels: &Value| {
            let data = json!({"pw": STANDARD.encode(password)});
            json!({"metadata": {"name": "mine", "labels": labels}, "data": data})
        };
        world.user(201, Verb::Create, "secrets", "", secret("first", &json!({})));
        let needs = |world: &World| is(world, "orders-rw", "Failed") && says(world, "orders-rw", "password-for");
        world.until("its owner's leave is asked for", needs).await;
        let labels = json!({api::names::LABEL_PASSWORD_FOR: NAME});
        world.user(200, Verb::Merge, "secrets", "mine", secret("first", &labels));
        let no_database =
            |world: &World| is(world, "orders-rw", "Pending") && says(world, "orders-rw", "no database app");
        world.until("the primary has no database", no_database).await;
        content(&world);
        world.until("ready", |world| is(world, "orders-rw", "Ready")).await;
        assert_eq!(may(&world, "Orders RW").unwrap().len(), 2);
        let matches = |world: &World, password: &str| {
            let stored = verifier(world, "Orders RW").unwrap();
            scram::Verifier::parse(&stored).unwrap().matches(password)
        };
        assert!(matches(&world, "first") && world.get("secrets", "orders-rw-credentials").is_none());
        // Another password is taken up within ten minutes, and one that cannot be read changes nothing.
        world.user(200, Verb::Merge, "secrets", "mine", secret("second", &labels));
        world.until("taken up", |world| matches(world, "second")).await;
        world.delete("secrets", "mine");
        let lost = |world: &World| is(world, "orders-rw", "Pending") && says(world, "orders-rw", "Secret mine");
        world.until("told", lost).await;
        assert!(matches(&world, "second"));
        drop(operator);
    });
}

/// A user is looked at when something happens, and each ten minutes.
#[test]
fn a_user_whose_password_is_given_elsewhere_now_is_looked_at_no_more_often() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let operator = one(&world).await;
        declare(&world, "orders-rw", &json!({}));
        world.until("ready", |world| is(world, "orders-rw", "Ready")).await;
        change(&world, "orders-rw", &json!({"password": {"external": true}}));
        world.until("taken up", |world| is(world, "orders-rw", "Ready")).await;
        tokio::time::sleep(Duration::from_secs(700)).await;
        let key = operator::cache::Key::user(super::world::NAMESPACE, "orders-rw");
        let again = operator.executor.look(&key).await.again.unwrap();
        assert!(again > Duration::from_secs(300), "{again:?}");
    });
}

#[test]
fn of_two_users_with_one_role_the_older_has_it() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = one(&world).await;
        declare(&world, "first", &json!({"name": "orders", "onDelete": "Drop"}));
        world.until("ready", |world| is(world, "first", "Ready")).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        declare(
            &world,
            "a-second",
            &json!({"name": "orders", "permissions": ["DELETE"]}),
        );
        let conflicts =
            |world: &World| is(world, "a-second", "Failed") && says(world, "a-second", "DatabaseUser first");
        world.until("the younger is told", conflicts).await;
        assert_eq!(may(&world, "orders"), Some(vec![Privilege::Select, Privilege::Insert]));
        assert_eq!(handed_on(&world), 1);
        world.delete(USERS, "first");
        world
            .until("the other has it", |world| is(world, "a-second", "Ready"))
            .await;
        assert_eq!(may(&world, "orders"), Some(vec![Privilege::Delete]));
        world.rests(LONG).await;
    });
}

#[test]
fn an_operator_that_has_just_started_knows_who_is_older() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let operator = one(&world).await;
        declare(&world, "first", &json!({"name": "orders", "database": "none"}));
        world
            .until("it waits", |world| says(world, "first", "no database none"))
            .await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        declare(&world, "a-second", &json!({"name": "orders"}));
        world.until("it is told", |world| is(world, "a-second", "Failed")).await;
        drop(operator);
        let operator = Operator::start(&world.server, Config::default());
        tokio::time::sleep(LONG).await;
        // The first one's role is there, without the grants that it waits for.
        assert_eq!((may(&world, "orders"), handed_on(&world)), (Some(Vec::new()), 1));
        let of = operator::cache::Key::database(super::world::NAMESPACE, NAME);
        assert_eq!(operator.caches.declared_in(&of).len(), 2);
        // What is told wakes them.
        world.delete("configmaps", "db-access");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(world.get("configmaps", "db-access").is_some());
    });
}

#[test]
fn what_is_deleted_by_hand_is_made_again() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = one(&world).await;
        declare(&world, "orders-rw", &json!({}));
        world.until("ready", |world| is(world, "orders-rw", "Ready")).await;
        let before = verifier(&world, "orders-rw");
        world.delete("configmaps", "db-access");
        let told = |world: &World| {
            let found = world.get("configmaps", "db-access").unwrap_or_default();
            found["data"].as_object().is_some_and(|data| data.len() == 1)
        };
        world.until("told again", told).await;
        world.delete("secrets", "db-access");
        let both = |world: &World| handed_on(world) == 1 && is(world, "orders-rw", "Ready");
        world.until("handed on again", both).await;
        world.rests(LONG).await;
        assert_ne!(verifier(&world, "orders-rw"), None);
        assert_ne!(verifier(&world, "orders-rw"), before, "the salt is fresh");
        // A lost password is another one.
        let before = text(&world, "orders-rw-credentials", "password").unwrap();
        world.delete("secrets", "orders-rw-credentials");
        let another = |world: &World| {
            let now = text(world, "orders-rw-credentials", "password");
            let stored = verifier(world, "orders-rw").and_then(|stored| scram::Verifier::parse(&stored));
            now.is_some_and(|now| now != before && stored.is_some_and(|stored| stored.matches(&now)))
        };
        world.until("another password is in force", another).await;
    });
}

#[test]
fn a_user_gets_its_memberships_back_and_leaves_a_role_that_nobody_can_use() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = one(&world).await;
        let role = |world: &World, name: &str| world.agents.lock().unwrap().catalogue.roles.get(name).cloned();
        let member_of = json!([{"role": "readers", "admin": true}]);
        declare(
            &world,
            "orders-rw",
            &json!({"memberOf": member_of, "onDelete": "Quarantine"}),
        );
        let waits = |world: &World| is(world, "orders-rw", "Pending") && says(world, "orders-rw", "no role readers");
        world.until("it waits for the role", waits).await;
        let change_roles = |change: &dyn Fn(&mut std::collections::BTreeMap<String, Role>)| {
            change(&mut world.agents.lock().unwrap().catalogue.roles);
        };
        change_roles(&|roles| drop(roles.insert("readers".to_owned(), Role::default())));
        world.until("ready", |world| is(world, "orders-rw", "Ready")).await;
        assert!(role(&world, "orders-rw").unwrap().member_of["readers"].admin);
        world.rests(LONG).await;
        let told = status(&world, "orders-rw");
        assert!(told["drift"].is_null(), "what it waited for is no drift: {told:#}");

        // What somebody takes is given back, and told.
        change_roles(&|roles| {
            let role = roles.get_mut("orders-rw").unwrap();
            (role.member_of, role.groups) = Default::default();
        });
        let mended = |world: &World| status(world, "orders-rw")["drift"]["statements"].is_array();
        world.until("it is mended and told", mended).await;
        assert!(role(&world, "orders-rw").unwrap().groups.contains("readers"));
        let drifts = || {
            world.server.within(|store, _| {
                let events = store.everything().filter(|(key, _)| key.kind.group == "events.k8s.io");
                let events = events.map(|(_, event)| (**event).clone());
                let of_user = events.filter(|event| event["regarding"]["kind"] == "DatabaseUser");
                of_user.filter(|event| event["reason"] == "Drift").collect::<Vec<_>>()
            })
        };
        world.rests(LONG).await;
        let told = drifts();
        assert_eq!(told.len(), 1, "{told:#?}");
        assert!(told[0]["note"].as_str().unwrap().contains("GrantRole"), "{told:#?}");

        world.delete(USERS, "orders-rw");
        world.until("gone", |world| world.list(USERS).is_empty()).await;
        let left = role(&world, "orders-rw").unwrap();
        assert!(!left.attributes.login && left.groups.contains("readers"));
        assert!(left.comment.unwrap().contains(", quarantined since "));
        assert_eq!((may(&world, "orders-rw").unwrap().len(), handed_on(&world)), (2, 0));
        assert_eq!(drifts().len(), 1);
    });
}

#[test]
fn a_user_goes_though_its_cluster_hibernates_or_is_gone() {
    KIND.deletions_end(content);
}

#[test]
fn a_kill_at_any_write_for_a_user_leads_to_the_same_end() {
    let writes = KIND.survives_kills(content, |world, is_there| {
        let password = text(world, "o-credentials", "password");
        assert_eq!(may(world, "o").map(|has| has.len()), is_there.then_some(2));
        assert_eq!(password.is_some(), is_there);
        if let Some(password) = password {
            let stored = verifier(world, "o").unwrap();
            assert!(scram::Verifier::parse(&stored).unwrap().matches(&password));
        }
    });
    assert!(writes >= 10, "{writes}");
}

#[test]
fn users_come_and_go_whatever_becomes_of_single_requests() {
    for seed in 0..6 {
        run(seed, async || {
            let mut rng = Rng::with_seed(seed);
            let world = World::new(Faults::new(seed, Rates::swarm(seed)), Duration::from_secs(1));
            let mut operator = Operator::start(&world.server, Config::default());
            content(&world);
            world.create(&json!({"replicas": rng.i32(1..=3)}));
            let names = ["a", "b", "c", "d"];
            for name in names {
                let on_delete = ["Drop", "Quarantine", "Retain"][rng.usize(..3)];
                declare(&world, name, &json!({ "onDelete": on_delete }));
                tokio::time::sleep(Duration::from_millis(rng.u64(0..8_000))).await;
            }
            for _ in 0..rng.u32(2..8) {
                tokio::time::sleep(Duration::from_millis(rng.u64(0..20_000))).await;
                let name = names[rng.usize(..4)];
                match rng.u32(..4) {
                    0 => {
                        drop(operator);
                        operator = Operator::start(&world.server, Config::default());
                    }
                    1 if world
                        .get(USERS, name)
                        .is_some_and(|user| user["metadata"]["deletionTimestamp"].is_null()) =>
                    {
                        world.delete(USERS, name);
                    }
                    2 if world.get(USERS, name).is_some() => {
                        change(&world, name, &json!({"connectionLimit": rng.u32(1..9)}));
                    }
                    _ => {
                        let secret = ["db-access", "a-credentials", "b-credentials"][rng.usize(..3)];
                        if world.get("secrets", secret).is_some() {
                            world.delete("secrets", secret);
                        }
                    }
                }
            }
            world.server.faults(Faults::stop);
            world.ready().await;
            let settled = |world: &World| {
                names.iter().all(|name| match world.get(USERS, name) {
                    Some(user) => user["metadata"]["deletionTimestamp"].is_null() && is(world, name, "Ready"),
                    None => true,
                })
            };
            world.until(&format!("seed {seed} settled"), settled).await;
            // A password that was lost is found out about within ten minutes.
            tokio::time::sleep(Duration::from_secs(700)).await;
            world.until(&format!("seed {seed} settled"), settled).await;
            world.rests(LONG).await;
            for name in names.iter().filter(|name| world.get(USERS, name).is_some()) {
                let password = text(&world, &format!("{name}-credentials"), "password").unwrap();
                let stored = verifier(&world, name).unwrap();
                assert!(
                    scram::Verifier::parse(&stored).unwrap().matches(&password),
                    "seed {seed}: {name}"
                );
                assert_eq!(may(&world, name).unwrap().len(), 2, "seed {seed}: {name}");
            }
            assert_eq!(handed_on(&world), world.list(USERS).len(), "seed {seed}");
            drop(operator);
        });
    }
}
