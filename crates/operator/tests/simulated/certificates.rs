//! The rotation of the authority, by the shipped operator: each step waits for what it needs, and each certificate is issued anew.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fake_api::Verb;
use fake_api::faults::{Faults, Rates};
use operator::certificates::{identifiers, read};
use operator::config::Config;
use serde_json::{Value, json};

use super::operations::{OPERATIONS, phase};
use super::world::{LONG, Operator, World, operation, run};

fn part(world: &World, secret: &str, key: &str) -> String {
    let secret = world.get("secrets", secret).unwrap();
    let bytes = STANDARD
        .decode(secret["data"][key].as_str().unwrap_or_default())
        .unwrap();
    String::from_utf8(bytes).unwrap()
}

fn issuing(world: &World) -> String {
    read(&part(world, "db-ca", "ca.crt")).unwrap().identifier
}

/// The state of the rotation, and what it waits for.
fn rotation(world: &World) -> (String, String) {
    let all = world.status()["certificates"].as_array().cloned().unwrap_or_default();
    let authority = all.into_iter().find(|known| known["name"] == "authority");
    let rotation = authority
        .map(|authority| authority["rotation"].clone())
        .unwrap_or_default();
    let text = |key: &str| rotation[key].as_str().unwrap_or_default().to_owned();
    (text("state"), text("message"))
}

/// Everybody presents what this authority has issued, and trusts it alone.
fn is_all_of(world: &World, authority: &str) -> bool {
    let trusts = |secret: &str| identifiers(&part(world, secret, "ca.crt"));
    let mut issuers = vec![read(&part(world, "db-tls", "tls.crt")).unwrap().issuer];
    for member in world.status()["instances"].as_array().into_iter().flatten() {
        issuers.push(read(member["certificate"].as_str().unwrap_or_default()).unwrap().issuer);
    }
    let trusted = [trusts("db-tls"), trusts("db-app")];
    issuers.len() == 4
        && issuers.iter().all(|issuer| issuer == authority)
        && trusted
            .iter()
            .all(|trusted| trusted.len() == 1 && trusted.contains(authority))
}

/// An application with a certificate of its own gets another one, and time to read it before the former authority goes.
#[test]
fn an_application_with_a_certificate_has_time_for_its_next_one() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = super::users::one(&world).await;
        world.edit(&json!({"certificates": {"clientTrustHours": 1}}));
        super::users::declare(&world, "orders-rw", &json!({"clientCertificate": true}));
        let ready = |world: &World| super::users::is(world, "orders-rw", "Ready");
        world.until("ready", ready).await;
        let first = issuing(&world);
        let presents = |world: &World| read(&part(world, "orders-rw-credentials", "tls.crt")).unwrap().issuer;
        assert_eq!(presents(&world), first);
        rotate(&world, "rotate", json!({}));
        world.until("overlap", |world| rotation(world).0 == "Overlap").await;
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        world.until("retire", |world| rotation(world).0 == "Retire").await;
        assert_eq!(presents(&world), issuing(&world));
        assert_eq!(
            identifiers(&part(&world, "db-tls", "ca.crt")).len(),
            2,
            "the former one is trusted still"
        );
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        world.until("over", |world| rotation(world).0.is_empty()).await;
        assert!(issuing(&world) != first && identifiers(&part(&world, "db-tls", "ca.crt")).len() == 1);
    });
}

fn rotate(world: &World, name: &str, rotate: Value) {
    let asked = operation(name, json!({"rotateAuthority": rotate}));
    world.user(201, Verb::Create, OPERATIONS, "", asked);
}

async fn three(faults: Faults) -> (World, Operator) {
    let world = World::new(faults, Duration::from_secs(1));
    let operator = Operator::start(&world.server, Config::default());
    world.create(&json!({"replicas": 3, "certificates": {"clientTrustHours": 1}}));
    world.until("ready", World::is_ready).await;
    (world, operator)
}

#[test]
fn another_authority_takes_over_when_everybody_trusts_it() {
    run(1, async || {
        let (world, _operator) = three(Faults::none()).await;
        world.rests(LONG).await;
        let (first, password) = (issuing(&world), part(&world, "db-app", "password"));
        assert!(is_all_of(&world, &first));
        // An instance whose agent says nothing holds it up.
        world.agents.lock().unwrap().still = true;
        rotate(&world, "rotate", json!({}));
        let waits = |world: &World| rotation(world).1 == "waits for db-0, db-1, db-2";
        world.until("waiting for the instances", waits).await;
        assert_eq!(phase(&world, "rotate"), "Completed");
        assert_eq!(
            (rotation(&world).0.as_str(), issuing(&world)),
            ("Distribute", first.clone())
        );
        world.agents.lock().unwrap().still = false;
        let overlaps = |world: &World| rotation(world).0 == "Overlap";
        world.until("trusted", overlaps).await;
        assert!(
            rotation(&world).1.starts_with("applications have until "),
            "{:?}",
            rotation(&world)
        );
        assert_eq!(identifiers(&part(&world, "db-app", "ca.crt")).len(), 2);
        // They have that hour.
        tokio::time::sleep(Duration::from_secs(3_500)).await;
        assert_eq!(
            (rotation(&world).0.as_str(), issuing(&world)),
            ("Overlap", first.clone())
        );
        world
            .until("over", |world| {
                rotation(world).0.is_empty() && is_all_of(world, &issuing(world))
            })
            .await;
        assert_ne!(issuing(&world), first);
        assert_eq!(part(&world, "db-app", "password"), password, "nothing else is changed");
        for key in ["next.crt", "next.key", "former.crt"] {
            assert_eq!(part(&world, "db-ca", key), "", "{key}");
        }
        world.rests(LONG).await;
    });
}

#[test]
fn an_authority_in_wrong_hands_is_replaced_at_once_whatever_fails() {
    for seed in 0..6 {
        run(seed, async || {
            let (world, operator) = three(Faults::new(seed, Rates::swarm(seed))).await;
            let first = issuing(&world);
            rotate(&world, "rotate", json!({}));
            let begun = |world: &World| phase(world, "rotate") == "Completed";
            world.until(&format!("begun, seed {seed}"), begun).await;
            rotate(&world, "compromised", json!({"compromised": true}));
            tokio::time::sleep(Duration::from_secs(2 * seed)).await;
            drop(operator);
            let _operator = Operator::start(&world.server, Config::default());
            tokio::time::sleep(Duration::from_secs(60)).await;
            world.server.faults(Faults::stop);
            let over = |world: &World| {
                let now = issuing(world);
                now != first && phase(world, "compromised") == "Completed" && is_all_of(world, &now)
            };
            world.until(&format!("over, seed {seed}"), over).await;
            world.rests(LONG).await;
        });
    }
}
