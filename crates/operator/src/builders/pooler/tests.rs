use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::builders::fixture::smallest;
use crate::config::Config;

fn pooler(spec: &Value) -> Pooler {
    let mut whole = json!({"clusterRef": {"name": "db"}});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "Pooler",
        "metadata": {"name": "pool", "namespace": "ns", "uid": "u1", "generation": 1}, "spec": whole,
    }))
    .unwrap()
}

fn with<T>(spec: &Value, look: impl FnOnce(&PoolerSubject<'_>) -> T) -> T {
    let (pooler, db, config) = (pooler(spec), smallest(), Config::default());
    look(&PoolerSubject {
        pooler: &pooler,
        cluster: Subject::new(&db, &config).unwrap(),
        replicas: pooler.spec.replicas,
    })
}

fn labels(value: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn its_pods_are_no_instances_of_the_cluster_and_its_service_selects_them() {
    with(&json!({}), |subject| {
        let deployment = deployment(subject, "operator:1");
        let pods = labels(&deployment["spec"]["template"]["metadata"]["labels"]);
        let is_selected = |selector: &Value| labels(selector).iter().all(|(key, value)| pods.get(key) == Some(value));
        assert!(is_selected(&deployment["spec"]["selector"]["matchLabels"]));
        assert!(is_selected(&service(subject)["spec"]["selector"]));
        assert!(is_selected(&budget(subject)["spec"]["selector"]["matchLabels"]));
        let of_cluster = json!(subject.cluster.selector());
        assert!(
            !is_selected(&of_cluster),
            "the Services of the cluster would lead to it"
        );
        // The operator's watch finds the Deployment by it.
        assert_eq!(deployment["metadata"]["labels"][LABEL_CLUSTER], "db");
        assert_eq!(agent_image(&deployment), Some("operator:1"));
    });
}

#[test]
fn limits_and_settings_change_nothing_of_the_pods() {
    let template = |spec: Value| with(&spec, |subject| deployment(subject, "a")["spec"]["template"].clone());
    let plain = template(json!({}));
    let read_again = json!({
        "replicas": 5, "poolMode": "Session", "parameters": {"server_lifetime": "60"}, "role": "ReadOnly",
        "limits": {"maxClientConnections": 5, "poolSize": 3, "maxServerConnections": 50},
    });
    assert_eq!(template(read_again), plain);
    for change in [
        json!({"processes": 2}),
        json!({"drainSeconds": 60}),
        json!({"image": "other:1"}),
        json!({"resources": {"limits": {"cpu": "1"}}}),
        json!({"scheduling": {"nodeSelector": {"a": "b"}, "priorityClassName": "high"}}),
    ] {
        assert_ne!(template(change.clone()), plain, "{change}");
    }
}

#[test]
fn pods_may_read_two_named_objects_and_write_nothing() {
    with(&json!({}), |subject| {
        let role = role(subject);
        let rules = role["rules"].as_array().unwrap();
        let named: Vec<_> = rules
            .iter()
            .map(|rule| (&rule["resources"][0], &rule["resourceNames"]))
            .collect();
        assert_eq!(
            named,
            [
                (&json!("poolers"), &json!(["pool"])),
                (&json!("endpointslices"), &json!(["db-rw"]))
            ]
        );
        for rule in rules {
            assert_eq!(rule["verbs"], json!(["get", "list", "watch"]));
            let (group, resource) = (rule["apiGroups"][0].as_str(), rule["resources"][0].as_str());
            let held = crate::rbac::RULES.iter().any(|held| {
                let verbs = rule["verbs"].as_array().unwrap().iter();
                (Some(held.group), Some(held.resource)) == (group, resource)
                    && verbs.clone().all(|verb| held.verbs.contains(&verb.as_str().unwrap()))
            });
            assert!(held, "the operator cannot grant {rule}");
        }
    });
}

#[test]
fn the_certificates_stay_until_their_renewal_or_another_authority() {
    with(&json!({}), |subject| {
        let now: DateTime<Utc> = "2027-01-01T00:00:00Z".parse().unwrap();
        let authority = certificates::authority(&subject.cluster, now).unwrap();
        let made = |found: Option<&Secret>, authority: &Pair, at| {
            let made = secret(subject, found, (authority, "trusted"), at).unwrap();
            serde_json::from_value::<Secret>(made).unwrap()
        };
        let first = made(None, &authority, now);
        let text = |secret: &Secret, key: &str| secrets::text(secret, key).unwrap();
        assert_eq!(text(&first, "ca.crt"), "trusted");
        for key in [CERTIFICATE_KEY, CLIENT_CERTIFICATE_KEY] {
            let read = certificates::read(&text(&first, key)).unwrap();
            let renewal = read.validity.renewal();
            let second = renewal - chrono::TimeDelta::seconds(1);
            assert_eq!(made(Some(&first), &authority, second).data, first.data);
            assert_ne!(text(&made(Some(&first), &authority, renewal), key), text(&first, key));
        }
        let other = certificates::authority(&subject.cluster, now).unwrap();
        let after = made(Some(&first), &other, now);
        for key in [CERTIFICATE_KEY, CLIENT_CERTIFICATE_KEY] {
            assert_ne!(text(&after, key), text(&first, key));
        }
        let owner = &first.metadata.owner_references.unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Pooler", "u1"));
    });
}
