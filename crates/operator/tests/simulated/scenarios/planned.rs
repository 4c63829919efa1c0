//! D. What is planned: drains, switchovers, fences, hibernation.

use super::*;

fn cordon(script: &mut Scenario, node: &str, is: bool) {
    script.merge("nodes", node, &json!({"spec": {"unschedulable": is}}));
}

#[test]
fn d_75_the_primarys_node_is_cordoned_and_its_pod_evicted() {
    scenario("75-a-drain", &three(), async |script| {
        let node = node_of(&script.world, "db-0");
        cordon(script, &node, true);
        script
            .until("moved", |world| world.agents.lock().unwrap().primaries.len() == 2)
            .await;
        script.delete("pods", "db-0");
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(script.primaries().len(), 2);
        cordon(script, &node, false);
        script.rests().await;
        assert_eq!(script.primaries().len(), 2, "and it stays there");
    });
}

#[test]
fn d_76_all_nodes_are_cordoned() {
    scenario("76-all-nodes-are-cordoned", &three(), async |script| {
        let all = script.world.uids();
        ["n1", "n2", "n3"]
            .into_iter()
            .for_each(|node| cordon(script, node, true));
        script.sleep(Duration::from_secs(600)).await;
        assert_eq!((script.world.uids(), script.primaries().len()), (all, 1));
    });
}

#[test]
fn d_79_a_switchover_is_requested() {
    scenario("79-a-switchover-is-requested", &three(), async |script| {
        let pods = script.uids("pods");
        let ask = |wish: &str| json!({"metadata": {"annotations": {"clustereddatabase.io/switchover": wish}}});
        script.merge("clustereddatabases", "db", &ask("db-2/1"));
        script.rests().await;
        assert_eq!(script.primaries(), ["db-0", "db-2"]);
        script.merge("clustereddatabases", "db", &ask("db-1/2"));
        script.rests().await;
        assert_eq!(script.primaries(), ["db-0", "db-2", "db-1"], "each once");
        assert_eq!(script.uids("pods"), pods);
    });
}

#[test]
fn d_80_a_supervised_change() {
    let spec = json!({"replicas": 3, "primary": {"updates": "Supervised"}});
    scenario("80-a-supervised-change", &spec, async |script| {
        script.edit(&json!({"postgres": {"image": "example.org/postgres:17.7"}}));
        script.sleep(Duration::from_secs(600)).await;
        assert_eq!(script.primaries(), ["db-0"], "it waits for its user");
        assert_eq!(script.world.status()["step"], "Supervised");
        let ask = json!({"metadata": {"annotations": {"clustereddatabase.io/switchover": "db-1/1"}}});
        script.merge("clustereddatabases", "db", &ask);
        script.rests().await;
        assert_eq!(script.primaries(), ["db-0", "db-1"]);
    });
}

#[test]
fn d_81_the_primary_is_fenced() {
    scenario("81-the-primary-is-fenced", &three(), async |script| {
        let pods = script.uids("pods");
        script.edit(&json!({"fenced": ["db-0"]}));
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(script.world.status()["step"], "Fenced");
        assert_eq!((script.primaries().len(), script.uids("pods")), (2, pods.clone()));
        script.edit(&json!({"fenced": []}));
        script.rests().await;
        assert_eq!((script.primaries().len(), script.uids("pods")), (2, pods));
    });
}

#[test]
fn d_82_it_hibernates_and_wakes() {
    scenario("82-hibernation", &three(), async |script| {
        let claims = script.uids("persistentvolumeclaims");
        script.edit(&json!({"hibernated": true}));
        script
            .until("asleep", |world| world.status()["phase"] == "Hibernated")
            .await;
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(script.uids("pods").len(), 0);
        script.edit(&json!({"hibernated": false}));
        script.rests().await;
        assert_eq!(script.uids("persistentvolumeclaims"), claims);
        assert_eq!(script.world.agents.lock().unwrap().initdbs, 1);
    });
}

#[test]
fn d_83_cpu_is_changed_and_back_on_the_way() {
    scenario("83-cpu-there-and-back", &three(), async |script| {
        let pods = script.uids("pods");
        script.edit(&json!({"resources": {"requests": {"cpu": "250m"}}}));
        script
            .until("one has it", |world| {
                world
                    .list("pods")
                    .iter()
                    .any(|pod| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "250m")
            })
            .await;
        script.edit(&json!({"resources": {"requests": {"cpu": "100m"}}}));
        script.rests().await;
        assert_eq!((script.uids("pods"), script.primaries().len()), (pods, 1));
        for pod in script.world.list("pods") {
            assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"], "100m");
        }
    });
}
