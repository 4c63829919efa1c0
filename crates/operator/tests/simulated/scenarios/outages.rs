//! E. Nodes and networks, as the operator sees them: what the agents do about it is in the simulator.

use super::*;

/// The message of a condition, if it has this status.
fn condition(world: &World, kind: &str, status: &str) -> Option<String> {
    let conditions = world.status()["conditions"].as_array()?.clone();
    let found = conditions.into_iter().find(|found| found["type"] == kind)?;
    (found["status"] == status).then(|| found["message"].to_string())
}

#[test]
fn e_47_a_node_stays_away_with_the_primarys_pod() {
    scenario("47-a-node-stays-away", &three(), async |script| {
        let (pods, claims) = (script.uids("pods"), script.uids("persistentvolumeclaims"));
        let node = node_of(&script.world, "db-0");
        script.does("the node of db-0 loses its power", |world| {
            world.agents.lock().unwrap().lost.insert(node)
        });
        script
            .until("another primary", |world| {
                world.agents.lock().unwrap().primaries.len() == 2
            })
            .await;
        // Its pod is not ready after 40 s, and is to go after 340 s: but nobody can end it.
        script.sleep(Duration::from_secs(600)).await;
        let going = |world: &World| !world.get("pods", "db-0").unwrap()["metadata"]["deletionTimestamp"].is_null();
        assert!(going(&script.world));
        assert_eq!(
            (script.uids("pods"), script.uids("persistentvolumeclaims")),
            (pods.clone(), claims.clone()),
            "nothing else goes"
        );
        let what = condition(&script.world, "Degraded", "True").unwrap_or_default();
        let who = "kubectl delete pod db-0 --force";
        assert!(what.contains("db-0") && says(&script.world, who), "{what}");
        assert!(condition(&script.world, "Available", "True").is_some());
        let before = script.world.writes().len();
        script.sleep(Duration::from_secs(300)).await;
        assert_eq!(script.world.writes().len(), before, "nothing is tried again and again");
        script.edit(&json!({"postgres": {"image": "example.org/postgres:17.7"}}));
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(script.uids("pods"), pods, "no other member is taken down meanwhile");
        script.does("the power is back", |world| world.agents.lock().unwrap().lost.clear());
        script.rests().await;
        assert_eq!(script.uids("persistentvolumeclaims"), claims);
        assert!(
            script.uids("pods").iter().all(|(name, uid)| pods[name] != *uid),
            "and the change goes on"
        );
    });
}

#[test]
fn e_55_the_agents_port_is_blocked() {
    scenario("55-the-agents-port-is-blocked", &three(), async |script| {
        let all = script.world.uids();
        script.does("nobody reaches the agents any more", |world| {
            world.agents.lock().unwrap().mute = true
        });
        script.sleep(Duration::from_secs(600)).await;
        let what = condition(&script.world, "Degraded", "True").unwrap_or_default();
        assert!(
            what.contains("db-1") && what.contains("db-2"),
            "{:#}",
            script.world.status()
        );
        assert!(condition(&script.world, "Available", "True").is_some());
        script.does("and does so again", |world| world.agents.lock().unwrap().mute = false);
        script.rests().await;
        assert_eq!(
            (script.world.uids(), script.primaries().len()),
            (all, 1),
            "nothing was touched"
        );
    });
}
