use super::*;
use crate::builders::fixture::{database, smallest};
use crate::config::Config;

#[test]
fn names_are_those_of_the_builders() {
    let (db, config) = (smallest(), Config::default());
    for (kind, desired) in all(&Subject::new(&db, &config).unwrap()) {
        assert_eq!(desired.content["metadata"]["name"], desired.name.as_str(), "{kind:?}");
        if !kind.owned().is_metadata_only {
            assert_eq!(desired.content["kind"], kind.kind());
        }
    }
}

#[test]
fn the_hash_does_not_depend_on_the_number_of_members() {
    let (db, config) = (smallest(), Config::default());
    let all = all(&Subject::new(&db, &config).unwrap());
    let set = &all[&OwnedObject::StatefulSet];
    assert!(set.content["spec"].get("replicas").is_none());
    let body = applied(set, OwnedObject::StatefulSet, Some(3));
    assert_eq!(body["spec"]["replicas"], 3);
    assert_eq!(
        body["metadata"]["annotations"][ANNOTATION_APPLIED],
        set.hash.clone().unwrap()
    );
}

#[test]
fn no_secret_is_part_of_what_is_compared() {
    let (db, config) = (smallest(), Config::default());
    for (kind, desired) in all(&Subject::new(&db, &config).unwrap()) {
        if kind.kind() == "Secret" {
            assert_eq!(desired.content.as_object().unwrap().len(), 1);
        }
    }
}

#[test]
fn a_pod_whose_wal_claim_is_named_is_as_one_from_the_claim_template() {
    let db = database(json!({"storage": {"data": {"size": "1Gi"}, "wal": {"size": "1Gi"}}}));
    let config = Config::default();
    let subject = Subject::new(&db, &config).unwrap();
    let template = |wal| {
        let set = desired(&subject.with_wal(wal), OwnedObject::StatefulSet).content;
        set["spec"]["template"].clone()
    };
    let (named, templated) = (template(WalVolumes::Of(1)), template(WalVolumes::Templated));
    assert_eq!(named["metadata"], templated["metadata"], "with the same revision");
    let volumes = named["spec"]["volumes"].as_array().unwrap();
    let claim = volumes.iter().find(|volume| volume["name"] == "wal").unwrap();
    assert_eq!(claim["persistentVolumeClaim"]["claimName"], "wal-db-1");
    let env = named["spec"]["containers"][0]["env"].as_array().unwrap();
    assert_eq!(env.last().unwrap(), &json!({"name": "WAL_VOLUME_OF", "value": "db-1"}));
    let withheld = subject.with_wal(WalVolumes::Withheld);
    let wants = Wants::new(&withheld);
    assert_eq!(
        templated["metadata"]["annotations"][ANNOTATION_REVISION],
        wants.revisions.revision.as_str()
    );
    let db = smallest();
    let subject = Subject::new(&db, &config).unwrap();
    let without = Wants::new(&subject);
    assert_eq!(
        wants.revisions.bare, without.revisions.revision,
        "as before the volume was asked for"
    );
    let set = |subject: &Subject<'_>| desired(subject, OwnedObject::StatefulSet).content;
    assert_eq!(
        set(&withheld),
        set(&subject),
        "nothing is changed before the first pod's turn"
    );
}

#[test]
fn whatever_the_status_remembers_for_the_pods_is_noticed_when_it_changes() {
    let spec = json!({
        "storage": {"data": {"size": "2Gi"}}, "bootstrap": {"recovery": {"from": {"clusterRef": {"name": "shop"}}}},
    });
    let config = Config::default();
    let template = |memo| {
        let mut db = database(spec.clone());
        db.status = Some(serde_json::from_value(json!({"memo": memo})).unwrap());
        let subject = Subject::new(&db, &config).unwrap();
        let set = desired(&subject, OwnedObject::StatefulSet).content;
        (Inputs::of(&subject), set)
    };
    let source = json!({"store": {"s3": {"bucket": "wal", "credentialsSecretRef": {"name": "store"}}}, "cluster": "shop-1a2b3c4d"});
    let without = template(json!({}));
    for memo in [
        json!({"recoverySource": source}),
        json!({"restartedBy": "1a2b"}),
        json!({"volumes": {"current": 1}}),
        json!({"granted": {"data": "1Gi"}}),
        json!({"image": {"image": "another", "majorVersion": 17, "byDefault": true}}),
    ] {
        let with = template(memo.clone());
        assert_ne!(with.1, without.1, "{memo}");
        assert_ne!(with.0, without.0, "{memo}");
    }
}

/// What restarts every database when the operator is upgraded: change the template only for a reason that is worth
/// that, and then put the new values here.
#[test]
fn the_revisions_of_the_smallest_database_and_of_a_full_one_are_pinned() {
    let revisions = |spec| {
        let (db, config) = (database(spec), Config::default());
        let subject = Subject::new(&db, &config).unwrap();
        let wants = Wants::new(&subject);
        let set = desired(&subject, OwnedObject::StatefulSet).content["spec"]["template"].clone();
        let annotation = set["metadata"]["annotations"][ANNOTATION_REVISION].clone();
        assert_eq!(annotation, wants.revisions.revision.as_str());
        [wants.revisions.revision, wants.revisions.base, wants.revisions.bare]
    };
    let smallest = revisions(json!({"storage": {"data": {"size": "1Gi"}}}));
    assert_eq!(smallest, ["349d46666b27abfb", "d192188a1979d7df", "349d46666b27abfb"]);
    let term = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]});
    let full = revisions(json!({
        "storage": {"data": {"size": "10Gi"}, "wal": {"size": "2Gi"}},
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
        "scheduling": {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}},
            "tolerations": [{"key": "databases", "operator": "Exists", "effect": "NoSchedule"}],
            "nodeSelector": {"disk": "ssd"},
            "priorityClassName": "high",
        },
        "pods": {"metadata": {"labels": {"team": "a"}, "annotations": {"x": "y"}}},
    }));
    assert_eq!(full, ["23b00fff041de894", "f087bdfeeab65887", "ca17114b9e472736"]);
}
