//! Every case of `bad_specs.yaml` is refused with exactly its messages, by the rules in Rust and by those in CEL.

use std::collections::BTreeSet;

use api::{ClusteredDatabase, validate, validate_update};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    base: Value,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    name: String,
    patch: Value,
    old: Option<Value>,
    #[serde(default)]
    messages: BTreeSet<String>,
    server_message: Option<String>,
    /// Only the end-to-end tests have a server to ask.
    #[serde(rename = "serverAlso")]
    _server_also: Option<String>,
}

fn table() -> Table {
    serde_saphyr::from_str(include_str!("bad_specs.yaml")).expect("read the table")
}

/// Applies a JSON merge patch (RFC 7386).
fn merged(target: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else {
        return patch.clone();
    };
    let mut result = target.as_object().cloned().unwrap_or_default();
    for (key, value) in patch {
        if value.is_null() {
            result.remove(key);
        } else {
            let value = merged(result.get(key).unwrap_or(&Value::Null), value);
            result.insert(key.clone(), value);
        }
    }
    Value::Object(result)
}

fn schema() -> Value {
    let version = &api::crd().spec.versions[0];
    let schema = version
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api_v3_schema.as_ref());
    serde_json::to_value(schema.expect("the definition has a schema")).expect("JSON")
}

/// The messages that the rules in CEL have for a resource.
fn cel(schema: &Value, new: &Value, old: Option<&Value>) -> BTreeSet<String> {
    let defaulted = |value| kube_cel::apply_defaults(schema, value);
    match kube_cel::Validator::new().validate(schema, &defaulted(new), old.map(defaulted).as_ref()) {
        Ok(()) => BTreeSet::new(),
        Err(errors) => errors.into_vec().into_iter().map(|error| error.message).collect(),
    }
}

/// The messages that the rules in Rust have for a resource.
fn rust(new: &ClusteredDatabase, old: Option<&ClusteredDatabase>) -> BTreeSet<String> {
    let mut violations = validate(new);
    violations.extend(old.into_iter().flat_map(|old| validate_update(old, new)));
    violations.into_iter().map(|violation| violation.message).collect()
}

fn read(value: &Value) -> ClusteredDatabase {
    serde_json::from_value(value.clone()).expect("read the resource")
}

#[test]
fn rules_in_rust_and_in_cel_say_the_same() {
    let (table, schema) = (table(), schema());
    let mut wrong = Vec::new();
    for case in table.cases.iter().filter(|case| case.server_message.is_none()) {
        assert!(!case.messages.is_empty(), "{}: no message is expected", case.name);
        let new = merged(&table.base, &case.patch);
        let old = case.old.as_ref().map(|old| merged(&table.base, old));
        if let Some(old) = &old {
            assert_eq!(
                rust(&read(old), None),
                BTreeSet::new(),
                "{}: the old resource is bad itself",
                case.name
            );
        }
        for (language, found) in [
            ("Rust", rust(&read(&new), old.as_ref().map(read).as_ref())),
            ("CEL", cel(&schema, &new, old.as_ref())),
        ] {
            if found != case.messages {
                wrong.push(format!("{} ({language}): {found:#?}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_breaks_the_schema_cannot_be_read() {
    let table = table();
    let cases: Vec<_> = table
        .cases
        .iter()
        .filter(|case| case.server_message.is_some())
        .collect();
    assert!(!cases.is_empty());
    for case in cases {
        assert!(case.messages.is_empty(), "{}: has both kinds of message", case.name);
        let new = merged(&table.base, &case.patch);
        assert!(
            serde_json::from_value::<ClusteredDatabase>(new).is_err(),
            "{}: can be read",
            case.name
        );
    }
}

#[test]
fn negative_numbers_are_refused_in_the_words_of_their_rules() {
    let (table, schema) = (table(), schema());
    let negative = |case: &&Case| case.name.starts_with("negative") && case.server_message.is_some();
    let cases: Vec<_> = table.cases.iter().filter(negative).collect();
    assert!(cases.len() >= 5, "{}", cases.len());
    for case in cases {
        let found = cel(&schema, &merged(&table.base, &case.patch), None);
        let said = case.server_message.iter().all(|message| found.contains(message));
        assert!(said, "{}: {found:#?}", case.name);
    }
}

#[test]
fn the_table_is_large_and_its_names_differ() {
    let names: Vec<_> = table().cases.into_iter().map(|case| case.name).collect();
    assert!(names.len() >= 40, "{} cases", names.len());
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}

#[test]
fn the_base_and_its_growth_are_good() {
    let (table, schema) = (table(), schema());
    let growth = serde_json::json!({
        "spec": {
            "replicas": 9,
            "postgres": {
                "image": "registry.example.com:5000/postgres@sha256:0123",
                "parameters": { "work_mem": "8MB", "auto_explain.log_min_duration": "1s", "fsync": "on", "max_wal_senders": "20", "ssl_min_protocol_version": "TLSv1.2" },
                "sharedPreloadLibraries": ["pg_stat_statements", "auto_explain"],
                "hba": ["hostssl all all 10.0.0.0/8 md5", "hostnossl shop,app +readers 2001:db8::/32 scram-sha-256", "host all all samenet reject"],
                "imagePullPolicy": "Always",
                "imagePullSecrets": [{ "name": "registry" }]
            },
            "services": {
                "readWrite": { "type": "LoadBalancer", "loadBalancerClass": "example.com/internal", "loadBalancerSourceRanges": ["10.0.0.0/8"] },
                "readOnly": { "type": "NodePort", "metadata": { "labels": { "a": "b" } } }
            },
            "backup": { "store": { "s3": {
                "s3Path": "s3://wal.example/.shop/a_b-c..d/...e/", "region": "eu-central-1", "endpoint": "https://minio.storage.svc:9000",
                "addressing": "Path", "credentialsSecretRef": { "name": "store" }, "caSecretRef": { "name": "store" },
                "serverSideEncryption": { "algorithm": "aws:kms", "kmsKeyId": "arn:aws:kms:eu-central-1:111122223333:key/1234abcd" }
            } }, "encryption": { "recipients": ["age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"], "identitySecretRef": { "name": "key" } } },
            "storage": { "data": { "size": "1.5Gi", "volumeAttributesClassName": "gold", "metadata": { "annotations": { "a": "b" } } }, "wal": { "size": "1Gi" } },
            "resources": { "requests": { "cpu": 1, "memory": "1Gi" }, "limits": { "memory": "1024Mi" } },
            "pods": { "metadata": { "labels": { "example.com/team": "shop", "empty": "" }, "annotations": { "a": "b" } } },
            "scheduling": { "nodeSelector": { "topology.kubernetes.io/zone": "a" } },
            "networkPolicy": {
                "mode": "Managed",
                "clients": [
                    { "namespaceSelector": { "matchLabels": { "team": "shop" } }, "podSelector": {} },
                    { "ipBlock": { "cidr": "10.0.0.0/8" } }
                ],
                "monitoring": []
            }
        }
    });
    let new = merged(&table.base, &growth);
    let with_wal =
        serde_json::json!({ "spec": { "storage": { "wal": { "size": "1Gi", "storageClassName": "none" } } } });
    let with_wal = merged(&table.base, &with_wal);
    let sizes = |size: &str, wal: &str| {
        let storage = serde_json::json!({ "data": { "size": size }, "wal": { "size": wal } });
        let granted = serde_json::json!({ "data": "9Gi", "wal": "2Gi" });
        let resource =
            serde_json::json!({ "spec": { "storage": storage }, "status": { "memo": { "granted": granted } } });
        merged(&table.base, &resource)
    };
    let (refused, taken_back) = (sizes("1Ti", "2Ti"), sizes("9Gi", "2Gi"));
    for (new, old) in [
        // No claim was given more.
        (&taken_back, Some(&refused)),
        (&table.base, None),
        (&table.base, Some(&table.base)),
        (&new, Some(&table.base)),
        // No instance has its WAL volume yet.
        (&table.base, Some(&with_wal)),
    ] {
        assert_eq!(rust(&read(new), old.map(read).as_ref()), BTreeSet::new());
        assert_eq!(cel(&schema, new, old), BTreeSet::new());
    }
}

/// Where labels and annotations for objects stand in the spec.
const METADATA: [&str; 7] = [
    "pods",
    "serviceAccount",
    "storage.data",
    "storage.wal",
    "services.readWrite",
    "services.readOnly",
    "services.read",
];

/// Messages that need more than fits in a table to bring about, and resources that do.
fn oversized() -> Vec<(String, Value)> {
    let many = |count: usize, value: &str| -> serde_json::Map<String, Value> {
        (0..count)
            .map(|number| (format!("key_{number}"), Value::from(value)))
            .collect()
    };
    let (labels, annotations) = (many(65, "x"), many(65, "x"));
    let large = many(5, &"x".repeat(13_200));
    let case = |message: &str, spec: Value| (message.to_owned(), serde_json::json!({ "spec": spec }));
    let metadata = METADATA.into_iter().flat_map(|place| {
        let case = |part: &str, what: &str, map: &serde_json::Map<String, Value>| {
            let inner = serde_json::json!({ "metadata": { part: map } });
            let spec = place
                .rsplit('.')
                .fold(inner, |inner, name| serde_json::json!({ name: inner }));
            case(&format!("{place}.metadata.{part} must {what}"), spec)
        };
        let of = |key: &str, value: &str| serde_json::Map::from_iter([(key.to_owned(), value.into())]);
        let own = "not have keys of clustereddatabase.io/, which are the operator's: remove them";
        [
            case("labels", "hold at most 64 labels: remove some", &labels),
            case(
                "labels",
                "hold valid label keys and values: correct them",
                &of("team", "a/b"),
            ),
            case("labels", own, &of("clustereddatabase.io/x", "x")),
            case("annotations", "hold at most 64 annotations: remove some", &annotations),
            case(
                "annotations",
                "have keys like example.com/name or name: correct the key",
                &of("a b", "x"),
            ),
            case("annotations", "hold at most 64 KiB in all: remove some", &large),
            case("annotations", own, &of("clustereddatabase.io/x", "x")),
        ]
    });
    let clients = vec![serde_json::json!({ "podSelector": {} }); 33];
    let secrets: Vec<_> = (0..33)
        .map(|number| serde_json::json!({ "name": format!("s{number}") }))
        .collect();
    let others = vec![
        case(
            "networkPolicy.clients must hold at most 32 entries: let one selector match several, or remove some",
            serde_json::json!({ "networkPolicy": { "mode": "Managed", "clients": clients } }),
        ),
        case(
            "networkPolicy.monitoring must hold at most 32 entries: let one selector match several, or remove some",
            serde_json::json!({ "networkPolicy": { "mode": "Managed", "monitoring": clients } }),
        ),
        case(
            "parameters must hold at most 256 settings: remove some",
            serde_json::json!({ "postgres": { "parameters": many(257, "1") } }),
        ),
        case(
            "parameters must have values of at most 1024 characters without line breaks or other control characters: correct the value",
            serde_json::json!({ "postgres": { "parameters": { "work_mem": "é".repeat(1_025) } } }),
        ),
        case(
            "postInitApplicationSQL must hold at most 64 statements: join some, or run them later",
            serde_json::json!({ "bootstrap": { "initdb": { "postInitApplicationSQL": vec!["SELECT 1"; 65] } } }),
        ),
        case(
            "postInitApplicationSQL must hold statements of 1 to 16384 characters without NUL: split or correct them",
            serde_json::json!({ "bootstrap": { "initdb": { "postInitApplicationSQL": ["x".repeat(16_385)] } } }),
        ),
        case(
            "nodeSelector must hold at most 64 labels: remove some",
            serde_json::json!({ "scheduling": { "nodeSelector": labels } }),
        ),
        case(
            "imagePullSecrets must hold at most 32 Secrets: remove some",
            serde_json::json!({ "postgres": { "imagePullSecrets": secrets } }),
        ),
    ];
    others.into_iter().chain(metadata).collect()
}

#[test]
fn too_much_is_refused() {
    let (base, schema) = (table().base, schema());
    for (message, patch) in oversized() {
        // A WAL volume needs a size.
        let sized = serde_json::json!({ "spec": { "storage": { "wal": { "size": "1Gi" } } } });
        let new = merged(&merged(&base, &sized), &patch);
        let expected = BTreeSet::from([message]);
        assert_eq!(rust(&read(&new), None), expected);
        assert_eq!(cel(&schema, &new, None), expected);
    }
}

/// The message of every rule in a schema.
fn messages(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(object) => {
            let rules = object.get("x-kubernetes-validations").and_then(Value::as_array);
            found.extend(
                rules
                    .into_iter()
                    .flatten()
                    .filter_map(|rule| rule["message"].as_str())
                    .map(str::to_owned),
            );
            object.values().for_each(|inner| messages(inner, found));
        }
        Value::Array(list) => list.iter().for_each(|inner| messages(inner, found)),
        _ => {}
    }
}

#[test]
fn every_rule_refuses_something() {
    let mut rules = BTreeSet::new();
    messages(&schema(), &mut rules);
    let mut shown: BTreeSet<_> = table().cases.into_iter().flat_map(|case| case.messages).collect();
    shown.extend(oversized().into_iter().map(|(message, _)| message));
    // One rule per forbidden parameter, made by one function: the table shows a dozen, and here each is tried.
    let base = table().base;
    let forbidden = "parameters must not set ";
    for message in rules.iter().filter(|message| message.starts_with(forbidden)) {
        let name = message[forbidden.len()..].split([',', ':']).next().unwrap_or_default();
        let patch = serde_json::json!({ "spec": { "postgres": { "parameters": { name: "1" } } } });
        let found = rust(&read(&merged(&base, &patch)), None);
        assert_eq!(found, BTreeSet::from([message.clone()]));
        shown.extend(found);
    }
    assert_eq!(rules.difference(&shown).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(shown.difference(&rules).collect::<Vec<_>>(), Vec::<&String>::new());
}
