use api::{ClusteredDatabase, ClusteredDatabaseStatus};
use serde_json::json;

use super::*;
use crate::builders::fixture::{database, smallest};
use crate::config::Config;

fn revision_for(spec: serde_json::Value, config: &Config) -> String {
    let db = database(spec);
    let template = pod_template(&Subject::new(&db, config).unwrap());
    revision_of(&template.metadata.unwrap().annotations.unwrap())
        .unwrap()
        .to_owned()
}

#[test]
fn obeys_the_restricted_pod_security_standard() {
    let (db, config) = (smallest(), Config::default());
    let spec = pod_template(&Subject::new(&db, &config).unwrap()).spec.unwrap();
    let pod = spec.security_context.unwrap();
    assert_eq!((pod.run_as_non_root, pod.fs_group), (Some(true), Some(999)));
    assert_eq!(pod.fs_group_change_policy.as_deref(), Some("OnRootMismatch"));
    assert_eq!(pod.seccomp_profile.unwrap().type_, "RuntimeDefault");
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        let security = container.security_context.as_ref().unwrap();
        assert_eq!(security.allow_privilege_escalation, Some(false));
        assert_eq!(security.read_only_root_filesystem, Some(true));
        assert_eq!(
            security.capabilities.as_ref().unwrap().drop.as_deref(),
            Some(&["ALL".to_owned()][..])
        );
    }
    assert!(spec.volumes.unwrap().iter().all(|volume| volume.host_path.is_none()));
}

#[test]
fn the_agent_is_the_first_process_and_psql_finds_the_socket() {
    let (db, config) = (smallest(), Config::default());
    let spec = pod_template(&Subject::new(&db, &config).unwrap()).spec.unwrap();
    let postgres = &spec.containers[0];
    assert_eq!(postgres.name, CONTAINER);
    assert_eq!(postgres.command.as_ref().unwrap(), &["/cdb/agent/agent", "run"]);
    assert_eq!(postgres.image.as_deref(), Some("clustereddatabase/postgres:17"));
    let env = |name: &str| {
        postgres
            .env
            .as_ref()
            .unwrap()
            .iter()
            .find(|variable| variable.name == name)
            .and_then(|v| v.value.clone())
    };
    assert_eq!(env("PGHOST").as_deref(), Some("/cdb/run/socket"));
    assert_eq!(env("PGDATA").as_deref(), Some("/var/lib/postgresql/data/pgdata"));
    assert_eq!(env("CLUSTER_UID"), db.metadata.uid);
    let install = &spec.init_containers.as_ref().unwrap()[0];
    assert_eq!(
        install.command.as_ref().unwrap(),
        &["/agent", "install", "/cdb/agent/agent"]
    );
    assert_eq!(spec.topology_spread_constraints.unwrap().len(), 2);
}

#[test]
fn the_postgres_container_cannot_write_its_agent() {
    let (db, config) = (smallest(), Config::default());
    let spec = pod_template(&Subject::new(&db, &config).unwrap()).spec.unwrap();
    let postgres = &spec.containers[0];
    let mounts = postgres.volume_mounts.as_ref().unwrap();
    let of_agent: Vec<&VolumeMount> = mounts
        .iter()
        .filter(|mount| postgres.command.as_ref().unwrap()[0].starts_with(&format!("{}/", mount.mount_path)))
        .collect();
    let [of_agent] = of_agent[..] else {
        panic!("the agent lies in one volume: {of_agent:?}");
    };
    assert_eq!(of_agent.read_only, Some(true));
    // Nor by another way into the same volume.
    assert_eq!(mounts.iter().filter(|mount| mount.name == of_agent.name).count(), 1);
}

#[test]
fn no_probe_over_the_network_ends_the_container() {
    let (db, config) = (smallest(), Config::default());
    let spec = pod_template(&Subject::new(&db, &config).unwrap()).spec.unwrap();
    let postgres = &spec.containers[0];
    for probe in [&postgres.startup_probe, &postgres.liveness_probe] {
        let probe = probe.as_ref().unwrap();
        let exec = probe.exec.as_ref().unwrap();
        assert_eq!(exec.command.as_ref().unwrap(), &["/cdb/agent/agent", "alive"]);
        assert_eq!((&probe.http_get, &probe.tcp_socket, &probe.grpc), (&None, &None, &None));
    }
}

#[test]
fn the_users_password_secret_is_mounted_and_only_the_password_of_it() {
    let db = database(json!({
        "storage": {"data": {"size": "1Gi"}}, "bootstrap": {"initdb": {"passwordSecretRef": {"name": "mine"}}},
    }));
    let config = Config::default();
    let spec = pod_template(&Subject::new(&db, &config).unwrap()).spec.unwrap();
    let volumes = spec.volumes.unwrap();
    let app = volumes
        .iter()
        .find(|volume| volume.name == APP_VOLUME)
        .unwrap()
        .secret
        .clone()
        .unwrap();
    assert_eq!(app.secret_name.as_deref(), Some("mine"));
    assert_eq!(app.default_mode, Some(0o440));
    assert_eq!(app.items.unwrap()[0].key, "password");
}

#[test]
fn pods_see_the_stores_credentials_and_nothing_else_of_the_secret() {
    let config = Config::default();
    let spec = |store: serde_json::Value| {
        let s3 = json!({"storage": {"data": {"size": "1Gi"}}, "backup": {"store": {"s3": store}}});
        pod_template(&Subject::new(&database(s3), &config).unwrap())
            .spec
            .unwrap()
    };
    let is_set = |spec: &PodSpec| {
        let variables = spec.containers[0].env.iter().flatten();
        variables.into_iter().any(|variable| variable.name == ENV_ARCHIVES)
    };
    let with = spec(json!({
        "bucket": "wal", "credentialsSecretRef": {"name": "store"}, "caSecretRef": {"name": "authority", "key": "ca.pem"},
    }));
    assert!(is_set(&with));
    let volume = with
        .volumes
        .unwrap()
        .into_iter()
        .find(|volume| volume.name == STORE_VOLUME);
    let sources = volume.unwrap().projected.unwrap().sources.unwrap();
    let seen = sources.into_iter().map(|source| {
        let secret = source.secret.unwrap();
        let items = secret.items.unwrap().into_iter().map(|item| (item.key, item.path));
        // Without it the database would wait for its backup.
        assert_eq!(secret.optional, Some(true));
        (secret.name, items.collect::<Vec<_>>())
    });
    let seen: Vec<_> = seen.collect();
    let same = |name: &str| (name.to_owned(), name.to_owned());
    let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];
    assert_eq!(seen[0], ("store".to_owned(), keys.map(same).to_vec()));
    assert_eq!(
        seen[1],
        ("authority".to_owned(), vec![("ca.pem".to_owned(), "ca.crt".to_owned())])
    );

    let from = json!({
        "cluster": "db-1a2b3c4d", "store": {"s3": {"bucket": "wal", "credentialsSecretRef": {"name": "old"}}},
        "identitySecretRef": {"name": "key", "key": "own"},
    });
    let recovered = json!({"storage": {"data": {"size": "1Gi"}}, "bootstrap": {"recovery": {"from": from}}});
    let recovered = pod_template(&Subject::new(&database(recovered), &config).unwrap());
    let recovered = recovered.spec.unwrap();
    let mounts = recovered.containers[0].volume_mounts.clone().unwrap();
    let volumes = recovered.volumes.unwrap();
    let volume = volumes.iter().find(|volume| volume.name == RECOVERY_STORE_VOLUME);
    let sources = volume.unwrap().projected.clone().unwrap().sources.unwrap();
    let identity = sources[1].secret.clone().unwrap();
    assert_eq!((identity.name.as_str(), identity.optional), ("key", Some(true)));
    let items = identity.items.unwrap();
    assert_eq!((items[0].key.as_str(), items[0].path.as_str()), ("own", "identity"));
    let azure = json!({"container": "wal", "credentialsSecretRef": {"name": "a"}, "caSecretRef": {"name": "b"}});
    let of = json!({"storage": {"data": {"size": "1Gi"}}, "backup": {"store": {"azure": azure}}});
    let template = pod_template(&Subject::new(&database(of), &config).unwrap());
    let volumes = template.spec.unwrap().volumes.unwrap();
    let volume = volumes.into_iter().find(|volume| volume.name == STORE_VOLUME).unwrap();
    let sources = volume.projected.unwrap().sources.unwrap();
    let names: Vec<_> = sources.into_iter().map(|source| source.secret.unwrap().name).collect();
    assert_eq!(names, ["a", "b"]);
    let mounted = mounts.iter().filter(|mount| mount.name.ends_with("store"));
    let mounted: Vec<_> = mounted.map(|mount| mount.mount_path.as_str()).collect();
    assert_eq!(mounted, [RECOVERY_STORE_PATH], "of the source alone");

    let alone = spec(json!({"bucket": "wal"}));
    assert!(is_set(&alone) && alone.volumes.unwrap().iter().all(|volume| volume.name != STORE_VOLUME));
    let plain = pod_template(&Subject::new(&smallest(), &config).unwrap()).spec.unwrap();
    assert!(!is_set(&plain));
}

#[test]
fn a_volume_that_is_the_store_is_mounted_and_that_of_a_source_cannot_be_written() {
    let config = Config::default();
    let claim = |name: &str| json!({"volume": {"claimName": name}});
    let mut db = database(json!({
        "storage": {"data": {"size": "1Gi"}}, "backup": {"store": claim("own")},
        "bootstrap": {"recovery": {"from": {"clusterRef": {"name": "shop"}}}},
    }));
    let mounted = |db: &ClusteredDatabase| {
        let spec = pod_template(&Subject::new(db, &config).unwrap()).spec.unwrap();
        let claims = spec.volumes.into_iter().flatten();
        let claims = claims.filter_map(|volume| Some((volume.name, volume.persistent_volume_claim?.claim_name)));
        let claims: BTreeMap<_, _> = claims.collect();
        let mounts = spec.containers[0].volume_mounts.clone().unwrap().into_iter();
        let mounts = mounts.filter_map(|mount| {
            Some((
                claims.get(&mount.name)?.clone(),
                mount.mount_path,
                mount.read_only == Some(true),
            ))
        });
        mounts.collect::<Vec<_>>()
    };
    let own = ("own".to_owned(), STORE_VOLUME_PATH.to_owned(), false);
    assert_eq!(mounted(&db), std::slice::from_ref(&own), "the source is not known yet");
    let source = json!({"store": claim("other"), "cluster": "shop-1a2b3c4d"});
    db.status = Some(serde_json::from_value(json!({"memo": {"recoverySource": source}})).unwrap());
    let other = ("other".to_owned(), RECOVERY_STORE_VOLUME_PATH.to_owned(), true);
    assert_eq!(mounted(&db), [own, other]);
}

#[test]
fn users_labels_cannot_displace_ours() {
    let db = database(json!({
        "storage": {"data": {"size": "1Gi"}},
        "pods": {"metadata": {"labels": {"team": "a", "clustereddatabase.io/role": "primary"}, "annotations": {"x": "y"}}},
    }));
    let config = Config::default();
    let metadata = pod_template(&Subject::new(&db, &config).unwrap()).metadata.unwrap();
    let labels = metadata.labels.unwrap();
    assert_eq!((labels["team"].as_str(), labels[LABEL_ROLE].as_str()), ("a", "replica"));
    assert_eq!(metadata.annotations.unwrap()["x"], "y");
}

#[test]
fn the_revision_changes_with_what_needs_a_new_pod_and_with_nothing_else() {
    let config = Config::default();
    let first = revision_for(json!({"storage": {"data": {"size": "1Gi"}}}), &config);
    let same = revision_for(
        json!({"storage": {"data": {"size": "2Gi"}}, "replicas": 5, "postgres": {"parameters": {"work_mem": "8MB"}}}),
        &config,
    );
    assert_eq!(first, same);
    let newer = Config {
        agent_image: "clustereddatabase/operator:next".to_owned(),
        ..Config::default()
    };
    assert_eq!(
        first,
        revision_for(json!({"storage": {"data": {"size": "1Gi"}}}), &newer),
        "an operator upgrade restarts nobody"
    );
    for changed in [
        json!({"storage": {"data": {"size": "1Gi"}}, "postgres": {"image": "other:17"}}),
        json!({"storage": {"data": {"size": "1Gi"}}, "resources": {"limits": {"cpu": "1"}}}),
        json!({"storage": {"data": {"size": "1Gi"}}, "scheduling": {"nodeSelector": {"disk": "ssd"}}}),
        json!({"storage": {"data": {"size": "1Gi"}}, "pods": {"metadata": {"labels": {"a": "b"}}}}),
    ] {
        assert_ne!(first, revision_for(changed, &config));
    }
}

#[test]
fn a_template_names_a_restart_only_where_one_was_asked_for_and_is_another_one_then() {
    let config = Config::default();
    let mut db = smallest();
    let template = |db: &ClusteredDatabase| {
        let template = pod_template(&Subject::new(db, &config).unwrap());
        template.metadata.unwrap().annotations.unwrap()
    };
    let before = template(&db);
    assert!(!before.contains_key(ANNOTATION_RESTARTED_BY));
    db.status = Some(ClusteredDatabaseStatus::default());
    assert_eq!(template(&db), before);
    db.status.as_mut().unwrap().memo.restarted_by = Some("uid".to_owned());
    let after = template(&db);
    assert_eq!(after[ANNOTATION_RESTARTED_BY], "uid");
    for revision in [ANNOTATION_REVISION, ANNOTATION_BASE_REVISION] {
        assert_ne!(after[revision], before[revision]);
    }
}

#[test]
fn the_base_revision_changes_with_what_a_running_pod_cannot_be_given() {
    let config = Config::default();
    let base = |spec: serde_json::Value| {
        let db = database(spec);
        let template = pod_template(&Subject::new(&db, &config).unwrap());
        template.metadata.unwrap().annotations.unwrap()[ANNOTATION_BASE_REVISION].clone()
    };
    let first = base(json!({"storage": {"data": {"size": "1Gi"}}}));
    for same in [
        json!({"storage": {"data": {"size": "1Gi"}}, "resources": {"limits": {"cpu": "1", "memory": "2Gi"}}}),
        json!({"storage": {"data": {"size": "1Gi"}}, "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}),
    ] {
        assert_eq!(first, base(same));
    }
    for changed in [
        json!({"storage": {"data": {"size": "1Gi"}}, "postgres": {"image": "other:17"}}),
        json!({"storage": {"data": {"size": "1Gi"}}, "resources": {"limits": {"ephemeral-storage": "1Gi"}}}),
        json!({"storage": {"data": {"size": "1Gi"}}, "pods": {"metadata": {"labels": {"a": "b"}}}}),
    ] {
        assert_ne!(first, base(changed));
    }
}

#[test]
fn shared_memory_is_bounded_by_the_memory_limit() {
    let db = database(json!({"storage": {"data": {"size": "1Gi"}}, "resources": {"limits": {"memory": "512Mi"}}}));
    let config = Config::default();
    let source = shared_memory(&Subject::new(&db, &config).unwrap());
    assert_eq!(source.size_limit, Some(Quantity("512Mi".to_owned())));
}
