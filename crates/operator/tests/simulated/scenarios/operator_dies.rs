//! A. The operator dies in the middle.

use super::*;

/// Operator `a` is killed after this request; after a while `b` finishes what was begun.
async fn killed_after(script: &mut Scenario, request: &'static str) {
    script.stops_after("a", request).await;
    script.kill("a");
    script.sleep(Duration::from_secs(20)).await;
    script.start("b");
}

#[test]
fn a_02_killed_while_volumes_grow() {
    scenario("02-killed-between-claims-and-set", &three(), async |script| {
        let (pods, claims) = (script.uids("pods"), script.uids("persistentvolumeclaims"));
        script.edit(&json!({"storage": {"data": {"size": "2Gi"}}}));
        // The last thing before the StatefulSet is made again with the new size.
        killed_after(script, "Delete statefulsets.apps ns/db").await;
        assert_eq!(sizes(&script.world), ["2Gi"; 3]);
        script.rests().await;
        let set = script.world.get("statefulsets", "db").unwrap();
        assert_eq!(
            set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"],
            "2Gi"
        );
        assert_eq!(
            (script.uids("pods"), script.uids("persistentvolumeclaims")),
            (pods, claims)
        );
    });
}

#[test]
fn a_02_killed_after_the_first_volume() {
    scenario("02-killed-after-one-claim", &three(), async |script| {
        let (pods, claims) = (script.uids("pods"), script.uids("persistentvolumeclaims"));
        script.edit(&json!({"storage": {"data": {"size": "2Gi"}}}));
        killed_after(script, "Merge persistentvolumeclaims").await;
        script.rests().await;
        assert_eq!(sizes(&script.world), ["2Gi"; 3]);
        assert_eq!(
            (script.uids("pods"), script.uids("persistentvolumeclaims")),
            (pods, claims)
        );
    });
}

#[test]
fn a_04_killed_after_each_pod_of_a_rolling_change() {
    scenario("04-killed-after-each-pod", &three(), async |script| {
        let first = script.uids("pods");
        script.always("two of three are ready", |world| ready(world) >= 2);
        script.edit(&json!({"postgres": {"image": "example.org/postgres:17.7"}}));
        for (dies, goes_on, request) in [
            ("a", "b", "Delete pods ns/db-2"),
            ("b", "c", "Delete pods ns/db-1"),
            ("c", "d", "Delete pods ns/db-0"),
        ] {
            script.stops_after(dies, request).await;
            script.kill(dies);
            script.sleep(Duration::from_secs(10)).await;
            script.start(goes_on);
        }
        script.rests().await;
        assert!(script.uids("pods").iter().all(|(name, uid)| first[name] != *uid));
        assert_eq!(script.happened("Pod db-"), 3 * 3, "each goes, is gone and is made once");
        assert_eq!(script.primaries().len(), 2, "and the primary moves once");
    });
}

#[test]
fn a_05_killed_between_the_wish_and_the_handover() {
    scenario("05-killed-during-a-switchover", &three(), async |script| {
        let pods = script.uids("pods");
        script.does("the agents stand still", |world| {
            world.agents.lock().unwrap().still = true
        });
        script.edit(&json!({"primary": {"prefer": "db-2"}}));
        script
            .stops_after("a", "Update clustereddatabases.clustereddatabase.io/status")
            .await;
        assert_eq!(script.world.status()["intent"]["primary"], "db-2");
        script.kill("a");
        script.does("the agents go on", |world| world.agents.lock().unwrap().still = false);
        script.sleep(Duration::from_secs(10)).await;
        script.start("b");
        script.rests().await;
        assert_eq!(script.primaries(), ["db-0", "db-2"], "once, and not back");
        assert_eq!(script.uids("pods"), pods);
    });
}

#[test]
fn a_06_killed_after_a_promotion() {
    scenario("06-killed-after-a-promotion", &three(), async |script| {
        let claims = script.uids("persistentvolumeclaims");
        script.delete("pods", "db-0");
        script
            .stops_before("a", "Update clustereddatabases.clustereddatabase.io/status")
            .await;
        script
            .until("a new primary", |world| {
                world.agents.lock().unwrap().primaries.len() == 2
            })
            .await;
        let primary = script.primaries()[1].clone();
        assert_eq!(
            script.world.status()["currentPrimary"],
            "db-0",
            "nobody has written the new one down"
        );
        script.kill("a");
        script.start("b");
        script.rests().await;
        assert_eq!(script.world.status()["currentPrimary"], primary);
        assert_eq!(script.primaries().len(), 2, "the new one is kept");
        assert_eq!(script.uids("persistentvolumeclaims"), claims);
    });
}

#[test]
fn a_07_killed_after_a_secret_is_made() {
    from_nothing(
        "07-killed-after-the-password",
        fake_api::faults::Rates::NONE,
        async |script| {
            script.start("a");
            script.world.create(&json!({}));
            script.stops_after("a", "Create secrets ns/db-app").await;
            let password = script.world.secrets();
            script.kill("a");
            script.start("b");
            script.rests().await;
            for (name, content) in password {
                assert!(script.world.secrets()[&name] == content, "{name} was made again");
            }
        },
    );
}

#[test]
fn a_09_killed_between_the_volumes_and_the_finalizer() {
    let spec = json!({"replicas": 3, "storage": {"retentionPolicy": {"whenDeleted": "Delete"}}});
    scenario("09-killed-during-a-deletion", &spec, async |script| {
        script.delete("clustereddatabases", "db");
        script
            .stops_before("a", "Merge clustereddatabases.clustereddatabase.io ns/db")
            .await;
        script.kill("a");
        script.sleep(Duration::from_secs(20)).await;
        script.start("b");
        script
            .until("gone", |world| world.list("clustereddatabases").is_empty())
            .await;
        script.sleep(Duration::from_secs(30)).await;
        nothing_is_left(script);
    });
}
