//! D. What is planned: drains, switchovers, fences, hibernation.

use fake_api::Verb;
use fake_api::stubs::NO_VOLUMES;

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
        script.ask("first", "db-2");
        script.rests().await;
        assert_eq!(script.primaries(), ["db-0", "db-2"]);
        script.ask("second", "db-1");
        script.rests().await;
        assert_eq!(script.primaries(), ["db-0", "db-2", "db-1"], "each once");
        assert_eq!(script.uids("pods"), pods);
    });
}

#[test]
fn d_80_a_supervised_change() {
    let spec = json!({"replicas": 3, "primary": {"updatePolicy": "Supervised"}});
    scenario("80-a-supervised-change", &spec, async |script| {
        script.edit(&json!({"postgres": {"image": "example.org/postgres:17.7"}}));
        script.sleep(Duration::from_secs(600)).await;
        assert_eq!(script.primaries(), ["db-0"], "it waits for its user");
        assert_eq!(script.world.status()["step"], "Supervised");
        script.ask("go-on", "db-1");
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

/// The pods with a WAL volume of their own, and how many claims for WAL there are.
fn wal_volumes(world: &World) -> (usize, usize) {
    let has = |pod: &Value| {
        let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let own = format!("wal-{}", pod["metadata"]["name"].as_str().unwrap());
        volumes.any(|volume| volume["persistentVolumeClaim"]["claimName"] == *own)
    };
    let claims = world.list("persistentvolumeclaims");
    let of_wal = |claim: &Value| claim["metadata"]["name"].as_str().unwrap().starts_with("wal-");
    (
        world.list("pods").iter().filter(|pod| has(pod)).count(),
        claims.iter().filter(|claim| of_wal(claim)).count(),
    )
}

#[test]
fn d_84_a_wal_volume_that_cannot_be_had_is_taken_back() {
    scenario("84-a-wal-volume-that-cannot-be-had", &three(), async |script| {
        let pods = script.uids("pods");
        let wal = |class: &str| json!({"storage": {"wal": {"size": "1Gi", "storageClassName": class}}});
        let none = json!({"storage": {"wal": null}});
        script.edit(&wal("nowhere"));
        script
            .until("the class is named", |world| {
                says(world, "StorageClass nowhere for WAL volumes")
            })
            .await;
        script.edit(&none);
        script.rests().await;
        script.does("a class that has no volumes", |world| {
            let class = json!({"metadata": {"name": NO_VOLUMES}, "provisioner": "p"});
            world.user(201, Verb::Create, "storageclasses", "", class)
        });
        script.edit(&wal(NO_VOLUMES));
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(wal_volumes(&script.world), (0, 1));
        assert_eq!(script.uids("pods"), pods, "no pod is touched");
        script.edit(&json!({"postgres": {"image": "example.org/postgres:17.7"}}));
        script
            .until("all have the image", |world| {
                let pods = world.list("pods");
                let image = |pod: &Value| pod["spec"]["containers"][0]["image"] == "example.org/postgres:17.7";
                ready(world) == 3 && pods.iter().all(|pod| image(pod))
            })
            .await;
        let pods = script.uids("pods");
        script.edit(&none);
        script.rests().await;
        assert_eq!((wal_volumes(&script.world), script.uids("pods")), ((0, 0), pods));
        script.edit(&wal("standard"));
        script.rests().await;
        assert_eq!(wal_volumes(&script.world), (3, 3));
        script.does("takes it away, and is refused", |world| {
            let change = json!({"spec": none});
            world.user(422, Verb::Merge, "clustereddatabases", "db", change)
        });
        script.edit(&json!({"storage": {"wal": {"size": "2Gi"}}}));
        script.rests().await;
        assert_eq!(sizes(&script.world).iter().filter(|size| *size == "2Gi").count(), 3);
    });
}
