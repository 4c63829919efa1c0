//! D. What users do.

use super::*;
use crate::agents::REFUSED;

fn one_is_lost(script: &Scenario, pods: &std::collections::BTreeMap<String, String>) {
    let now = script.uids("pods");
    let lost: Vec<_> = pods.iter().filter(|(name, uid)| now.get(*name) != Some(uid)).collect();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(script.primaries(), ["db-0"], "the primary serves all the time");
}

#[test]
fn d_25_an_affinity_that_no_node_meets() {
    scenario("25-an-affinity-that-no-node-meets", &three(), async |script| {
        let pods = script.uids("pods");
        let term = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["none"]}]});
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
        script.edit(&json!({"scheduling": {"affinity": {"nodeAffinity": required}}}));
        script.sleep(Duration::from_secs(900)).await;
        one_is_lost(script, &pods);
        assert!(says(&script.world, "no node fits"), "{:#}", script.world.status());
        script.edit(&json!({"scheduling": {"affinity": null}}));
        script.rests().await;
        one_is_lost(script, &pods);
    });
}

#[test]
fn d_26_an_image_that_cannot_be_pulled() {
    scenario("26-an-image-that-cannot-be-pulled", &three(), async |script| {
        let pods = script.uids("pods");
        script.edit(&json!({"postgres": {"image": "example.org/missing:17.7"}}));
        script.sleep(Duration::from_secs(900)).await;
        one_is_lost(script, &pods);
        assert!(
            says(&script.world, "example.org/missing:17.7"),
            "{:#}",
            script.world.status()
        );
        script.edit(&json!({"postgres": {"image": null}}));
        script.rests().await;
        one_is_lost(script, &pods);
    });
}

#[test]
fn d_26_a_container_that_does_not_stay_up() {
    scenario("26-a-container-that-does-not-stay-up", &three(), async |script| {
        let pods = script.uids("pods");
        script.edit(&json!({"postgres": {"image": "example.org/crashing:17.7"}}));
        script.sleep(Duration::from_secs(900)).await;
        one_is_lost(script, &pods);
        let said = "CrashLoopBackOff: container postgres has ended 2 times, last with Error, exit code 1: out of luck";
        assert!(says(&script.world, said), "{:#}", script.world.status());
        let late = script.world.status()["waiting"]["deadline"].clone();
        assert!(
            late.as_str() < Some("2027-01-01T00:12:00Z"),
            "as a copy of the data: {late}"
        );
        script.edit(&json!({"postgres": {"image": null}}));
        script.rests().await;
        one_is_lost(script, &pods);
    });
}

#[test]
fn d_26_a_volume_that_is_not_attached() {
    scenario("26-a-volume-that-is-not-attached", &three(), async |script| {
        let pods = script.uids("pods");
        script.edit(&json!({"postgres": {"image": "example.org/unmounted:17.7"}}));
        script
            .until("replaced", |world| {
                let pod = world.get("pods", "db-2");
                pod.is_some_and(|pod| pod["status"]["phase"] == "Pending" && pods["db-2"] != pod["metadata"]["uid"])
            })
            .await;
        script.does("the kubelet says why", |world| {
            let uid = world.get("pods", "db-2").map(|pod| pod["metadata"]["uid"].clone());
            let event = json!({
                "metadata": {"name": "db-2.1"}, "involvedObject": {"kind": "Pod", "name": "db-2", "uid": uid},
                "type": "Warning", "reason": "FailedMount", "message": "MountVolume.SetUp failed for volume pv-1",
                "lastTimestamp": "2027-01-01T00:01:00Z",
            });
            world.user(201, fake_api::Verb::Create, "events", "", event)
        });
        script.sleep(LONG_ENOUGH).await;
        let said = "FailedMount: MountVolume.SetUp failed for volume pv-1";
        assert!(says(&script.world, said), "{:#}", script.world.status());
        script.edit(&json!({"postgres": {"image": null}}));
        script.rests().await;
        one_is_lost(script, &pods);
    });
}

#[test]
fn d_25_a_priority_class_that_does_not_exist() {
    scenario("25-a-priority-class-that-does-not-exist", &three(), async |script| {
        let pods = script.uids("pods");
        script.world.server.within(|store, _| {
            store.admit(Box::new(|kind, pod, old| {
                let refused = kind.kind == "Pod" && old.is_none() && pod["spec"]["priorityClassName"] == "nope";
                let message = "pods \"db-2\" is forbidden: no PriorityClass with name nope was found";
                let refusal = refused.then(|| fake_api::Refusal::new(403, "Forbidden", message));
                refusal.map_or(Ok(()), Err)
            }));
        });
        script.edit(&json!({"scheduling": {"priorityClassName": "nope"}}));
        script.sleep(Duration::from_secs(900)).await;
        assert_eq!(script.uids("pods").len(), 2);
        let said = "no PriorityClass with name nope was found";
        assert!(says(&script.world, said), "{:#}", script.world.status());
        script.edit(&json!({"scheduling": {"priorityClassName": null}}));
        script.rests().await;
        one_is_lost(script, &pods);
    });
}

/// What the StatefulSet would make a new data volume with.
fn template_size(world: &World) -> Value {
    let set = world.get("statefulsets", "db").unwrap();
    set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"].clone()
}

#[test]
fn d_28_storage_that_is_refused_is_taken_back() {
    scenario("28-storage-that-is-refused-is-taken-back", &three(), async |script| {
        let all = script.world.uids();
        script.world.server.within(|store, _| {
            store.admit(Box::new(|kind, claim, old| {
                let wanted = &claim["spec"]["resources"]["requests"]["storage"];
                let refused = kind.kind == "PersistentVolumeClaim" && old.is_some() && *wanted == "1Ti";
                let message = "persistentvolumeclaims \"data-db-0\" is forbidden: exceeded quota: q";
                let refusal = refused.then(|| fake_api::Refusal::new(403, "Forbidden", message));
                refusal.map_or(Ok(()), Err)
            }));
        });
        let size = |size: &str| json!({"storage": {"data": {"size": size}}});
        script.edit(&size("1Ti"));
        script.sleep(Duration::from_secs(300)).await;
        assert_eq!(script.world.status()["failure"]["reason"], "QuotaExceeded");
        assert_eq!(template_size(&script.world), "1Gi");
        for words in ["exceeded quota: q", "or the user by spec.storage.data.size 1Gi"] {
            let waiting = script.world.status()["waiting"].to_string();
            assert!(waiting.contains(words), "{waiting}");
        }
        script.does("wants 512Mi, and is refused", |world| {
            let smaller = json!({"spec": size("512Mi")});
            world.user(422, fake_api::Verb::Merge, "clustereddatabases", "db", smaller)
        });
        script.edit(&size("1Gi"));
        script.rests().await;
        assert_eq!(script.world.uids(), all);
        assert!(script.world.status()["memo"]["granted"].is_null());
        script.edit(&size("2Gi"));
        script.until("grown", |world| sizes(world) == ["2Gi"; 3]).await;
        script.rests().await;
        assert_eq!(template_size(&script.world), "2Gi");
        script.does("wants 1Gi again, and is refused", |world| {
            let smaller = json!({"spec": size("1Gi")});
            world.user(422, fake_api::Verb::Merge, "clustereddatabases", "db", smaller)
        });
    });
}

#[test]
fn d_28_storage_that_is_accepted_and_does_not_grow() {
    scenario("28-storage-that-does-not-grow", &three(), async |script| {
        let all = script.world.uids();
        let stays = |stage: Value| json!({"metadata": {"annotations": {fake_api::stubs::GROWTH: stage}}});
        let claim = "data-db-1";
        script.merge("persistentvolumeclaims", claim, &stays(json!("ControllerResizeError")));
        script.edit(&json!({"storage": {"data": {"size": "2Gi"}}}));
        script.sleep(Duration::from_secs(900)).await;
        assert_eq!(sizes(&script.world), ["2Gi"; 3]);
        assert_eq!(script.world.status()["phase"], "Updating");
        for words in ["claim data-db-1 to grow to 2Gi", "ControllerResizeError: in vain"] {
            assert!(says(&script.world, words), "{:#}", script.world.status());
        }
        script.merge("persistentvolumeclaims", claim, &stays(Value::Null));
        script.rests().await;
        let (now, set) = (script.world.uids(), "statefulsets \"db\"");
        assert!(all.iter().all(|(name, uid)| name == set || now[name] == *uid));
    });
}

#[test]
fn d_28_storage_that_shrinks_and_that_cannot_grow() {
    scenario("28-storage-that-cannot-grow", &three(), async |script| {
        let all = script.world.uids();
        script.does("wants 512Mi, and is refused", |world| {
            world.user(
                422,
                fake_api::Verb::Merge,
                "clustereddatabases",
                "db",
                json!({"spec": {"storage": {"data": {"size": "512Mi"}}}}),
            )
        });
        script.merge("storageclasses", "standard", &json!({"allowVolumeExpansion": false}));
        script.edit(&json!({"storage": {"data": {"size": "2Gi"}}}));
        script.sleep(Duration::from_secs(300)).await;
        assert_eq!(sizes(&script.world), ["1Gi"; 3]);
        assert_eq!(
            template_size(&script.world),
            "1Gi",
            "the next instance gets what the others have"
        );
        for words in [
            "a StorageClass that lets claim",
            "or the user by spec.storage.data.size 1Gi",
        ] {
            assert!(says(&script.world, words), "{:#}", script.world.status());
        }
        script.edit(&json!({"postgres": {"parameters": {"max_connections": "200"}}}));
        script
            .until("restarted", |world| {
                let agents = world.agents.lock().unwrap();
                world
                    .list("pods")
                    .iter()
                    .all(|pod| agents.connections(pod["metadata"]["uid"].as_str().unwrap()) == Some(200))
            })
            .await;
        script.merge("storageclasses", "standard", &json!({"allowVolumeExpansion": true}));
        script.until("grown", |world| sizes(world) == ["2Gi"; 3]).await;
        script.rests().await;
        let (now, set) = (script.world.uids(), "statefulsets \"db\"");
        assert!(all.iter().all(|(name, uid)| name == set || now[name] == *uid));
    });
}

#[test]
fn d_29_max_connections_up_and_down() {
    scenario("29-max-connections-up-and-down", &three(), async |script| {
        let pods = script.uids("pods");
        // A standby with less than its primary does not start.
        script.always("no standby has less than the primary", |world| {
            let agents = world.agents.lock().unwrap();
            let of = |pod: &Value| {
                agents
                    .connections(pod["metadata"]["uid"].as_str().unwrap())
                    .unwrap_or(u32::MAX)
            };
            let pods = world.list("pods");
            let primary = pods
                .iter()
                .find(|pod| pod["metadata"]["name"] == "db-0")
                .map_or(0, |pod| of(pod));
            pods.iter().all(|pod| of(pod) >= primary)
        });
        for value in ["200", "50"] {
            script.edit(&json!({"postgres": {"parameters": {"max_connections": value}}}));
            script.ready().await;
        }
        script.rests().await;
        assert_eq!(script.uids("pods"), pods);
        assert_eq!(script.told("PermitRestart"), 6, "each once up and once down");
        assert_eq!(script.primaries(), ["db-0"]);
    });
}

#[test]
fn d_30_a_value_that_postgresql_refuses() {
    scenario("30-a-value-that-is-refused", &three(), async |script| {
        let all = script.world.uids();
        script.edit(&json!({"postgres": {"parameters": {"work_mem": REFUSED}}}));
        script.sleep(LONG_ENOUGH).await;
        assert!(
            says(&script.world, "invalid value for parameter"),
            "{:#}",
            script.world.status()
        );
        script.edit(&json!({"postgres": {"parameters": {"work_mem": null}}}));
        script.rests().await;
        assert_eq!(script.world.uids(), all);
    });
}

#[test]
fn d_33_deleted_while_it_is_made() {
    for (number, request) in [
        "Create secrets ns/db-app",
        "Apply statefulsets.apps ns/db",
        "Merge pods ns/db-0",
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("33-deleted-while-it-is-made-{}", number + 1);
        from_nothing(&name, fake_api::faults::Rates::NONE, async |script| {
            script.start("a");
            script
                .world
                .create(&json!({"replicas": 3, "storage": {"retentionPolicy": {"whenDeleted": "Delete"}}}));
            script.stops_after("a", request).await;
            script.delete("clustereddatabases", "db");
            script.goes_on("a");
            script
                .until("gone", |world| world.list("clustereddatabases").is_empty())
                .await;
            script.sleep(Duration::from_secs(30)).await;
            nothing_is_left(script);
        });
    }
}

#[test]
fn d_34_made_again_over_the_volumes_of_before() {
    scenario("34-over-retained-volumes", &json!({"replicas": 2}), async |script| {
        let claims = script.uids("persistentvolumeclaims");
        script.delete("clustereddatabases", "db");
        script
            .until("gone", |world| world.list("clustereddatabases").is_empty())
            .await;
        script.sleep(Duration::from_secs(30)).await;
        assert_eq!(script.uids("persistentvolumeclaims"), claims, "kept");
        script.does("makes it again", |world| world.create(&json!({"replicas": 2})));
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(script.uids("pods").len(), 0, "nothing runs on what is not known");
        assert_eq!(script.uids("persistentvolumeclaims"), claims);
        let said = script.world.status()["failure"]["message"].to_string();
        assert!(said.contains("spec.bootstrap.volumes.adopt"), "{said}");
        for plural in ["leases", "secrets", "persistentvolumeclaims"] {
            for name in script.uids(plural).keys() {
                script.delete(plural, name);
            }
        }
        script.rests().await;
        assert_eq!(script.world.agents.lock().unwrap().initdbs, 2, "another database");
    });
}

#[test]
fn d_34_made_again_with_the_volumes_of_before() {
    scenario("34-with-retained-volumes", &json!({"replicas": 2}), async |script| {
        let kept = |script: &Scenario| ["leases", "persistentvolumeclaims"].map(|plural| script.uids(plural));
        let secrets = |script: &Scenario| {
            let secrets = script.uids("secrets");
            ["db-app", "db-ca"].map(|name| secrets[name].clone())
        };
        let before = (
            kept(script),
            secrets(script),
            script.world.status()["systemIdentifier"].clone(),
        );
        script.delete("clustereddatabases", "db");
        script
            .until("gone", |world| world.list("clustereddatabases").is_empty())
            .await;
        script.does("makes it again", |world| world.create(&json!({"replicas": 2})));
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(script.uids("pods").len(), 0, "nothing runs on what is not known");
        script.edit(&json!({"bootstrap": {"volumes": {"adopt": "Newest"}}}));
        script
            .until("the decision is on record", |world| {
                world.status()["memo"]["adopted"].is_string()
            })
            .await;
        script.kill("a");
        script.start("b");
        script.rests().await;
        let after = (
            kept(script),
            secrets(script),
            script.world.status()["systemIdentifier"].clone(),
        );
        assert_eq!(after, before);
        assert_eq!(script.world.agents.lock().unwrap().initdbs, 1);
    });
}

#[test]
fn d_35_the_namespace_is_deleted_during_a_failover() {
    scenario(
        "35-the-namespace-is-deleted-during-a-failover",
        &three(),
        async |script| {
            script.does("the agents stand still", |world| {
                world.agents.lock().unwrap().still = true
            });
            script.delete("pods", "db-0");
            script
                .until("failing over", |world| world.status()["phase"] == "FailingOver")
                .await;
            script.delete("namespaces", "ns");
            script
                .until("gone", |world| world.get("namespaces", "ns").is_none())
                .await;
            nothing_is_left(script);
        },
    );
}

#[test]
fn d_37_storage_and_resources_at_once() {
    scenario("37-storage-and-resources-at-once", &three(), async |script| {
        let (pods, claims) = (script.uids("pods"), script.uids("persistentvolumeclaims"));
        script
            .edit(&json!({"storage": {"data": {"size": "2Gi"}}, "resources": {"requests": {"cpu": "250m", "memory": "300Mi"}}}));
        script.rests().await;
        assert_eq!(sizes(&script.world), ["2Gi"; 3]);
        assert_eq!(
            (script.uids("pods"), script.uids("persistentvolumeclaims")),
            (pods, claims)
        );
        for pod in script.world.list("pods") {
            assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"], "250m");
        }
    });
}

#[test]
fn d_85_claims_are_deleted_and_then_their_pods() {
    scenario("85-claims-and-their-pods-are-deleted", &three(), async |script| {
        let (pods, claims) = (script.uids("pods"), script.uids("persistentvolumeclaims"));
        let claim_of = |pod: &str| format!("data-{pod}");
        for (pod, primaries) in [("db-2", 1), ("db-0", 2)] {
            script.delete("persistentvolumeclaims", &claim_of(pod));
            script.sleep(LONG_ENOUGH).await;
            let before = script.uids("pods");
            assert_eq!(before[pod], pods[pod], "its pod goes on");
            assert_eq!(
                script.uids("persistentvolumeclaims")[&claim_of(pod)],
                claims[&claim_of(pod)]
            );
            script.delete("pods", pod);
            script.rests().await;
            let now = script.uids("persistentvolumeclaims");
            assert_ne!(
                now[&claim_of(pod)],
                claims[&claim_of(pod)],
                "with a volume of its own, copied anew"
            );
            assert_eq!(now["data-db-1"], claims["data-db-1"]);
            assert_eq!(script.primaries().len(), primaries);
            let mut others = script.uids("pods").into_iter().filter(|(name, _)| name != pod);
            assert!(others.all(|(name, uid)| before[&name] == uid));
        }
        assert_eq!(script.world.agents.lock().unwrap().initdbs, 1);
    });
}

#[test]
fn d_85_the_only_claim_is_deleted() {
    let one = json!({"replicas": 1});
    scenario("85-the-only-claim-is-deleted", &one, async |script| {
        let pods = script.uids("pods");
        script.delete("persistentvolumeclaims", "data-db-0");
        script.sleep(LONG_ENOUGH).await;
        assert!(says(&script.world, "data-db-0"), "{:#}", script.world.status());
        script.edit(&json!({"postgres": {"image": "example.org/postgres:17.7"}}));
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(script.uids("pods"), pods, "its data would go with it");
        assert!(says(&script.world, "another copy"), "{:#}", script.world.status());
        script.edit(&json!({"replicas": 2}));
        script.rests().await;
        assert_ne!(script.uids("pods")["db-0"], pods["db-0"], "there is a copy");
        assert_eq!(script.primaries(), ["db-0", "db-1"]);
        assert_eq!(script.world.agents.lock().unwrap().initdbs, 1);
    });
}

#[test]
fn d_86_a_lease_that_nobody_understands() {
    // Where commits wait for standbys, the holder writes it again.
    let mut spec = three();
    spec["durability"] = json!({"mode": "Async"});
    scenario("86-a-lease-that-nobody-understands", &spec, async |script| {
        let pods = script.uids("pods");
        let rule = script.world.get("leases", "db").unwrap()["metadata"]["annotations"][api::names::LEASE_RULE].clone();
        let edit = |rule: &Value| json!({"metadata": {"annotations": {api::names::LEASE_RULE: rule}}});
        script.merge("leases", "db", &edit(&json!("ANY 1 (db-1")));
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(script.world.status()["phase"], "Failed");
        for words in [api::names::LEASE_RULE, "expected value", "kubectl edit lease"] {
            assert!(says(&script.world, words), "{:#}", script.world.status());
        }
        script.merge("leases", "db", &edit(&rule));
        script.rests().await;
        assert_eq!((script.uids("pods"), script.primaries().len()), (pods, 1));
    });
}
