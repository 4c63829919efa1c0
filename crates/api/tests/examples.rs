//! Every file in `examples/` can be read, has no unknown field, and breaks no rule.

use std::{collections::BTreeSet, fs, path::Path};

use api::{ClusteredDatabase, Database, DatabaseUser, Pooler, validate};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The documents of all examples, with their file's name.
fn documents() -> Vec<(String, Value)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut documents = Vec::new();
    for entry in fs::read_dir(directory).expect("list the examples") {
        let path = entry.expect("read the directory").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("read the example");
        let values: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        documents.extend(values.into_iter().map(|value| (name.clone(), value)));
    }
    documents
}

/// Whether everything in `part` stands in `whole` as well.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(key, value)| whole.get(key).is_some_and(|whole| contains(whole, value))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| contains(whole, part))
        }
        (whole, part) => whole == part,
    }
}

/// A document, all of whose fields are known.
fn read<K: Serialize + DeserializeOwned>(file: &str, document: &Value) -> K {
    let read: K = serde_json::from_value(document.clone()).unwrap_or_else(|error| panic!("{file}: {error}"));
    let written = serde_json::to_value(&read).expect("JSON");
    assert!(contains(&written, document), "{file}: a field is unknown");
    read
}

#[test]
fn examples_are_good() {
    let mut names = BTreeSet::new();
    for (file, document) in documents() {
        match document["kind"].as_str() {
            Some("DatabaseUser") => {
                let user: DatabaseUser = read(&file, &document);
                let name = user.metadata.name.expect("a name");
                assert_eq!(api::user::refusal(&user.spec, &name), None, "{file}");
            }
            Some("Database") => {
                let database: Database = read(&file, &document);
                let name = database.metadata.name.expect("a name");
                assert_eq!(api::database::refusal(&database.spec, &name), None, "{file}");
            }
            Some("Pooler") => {
                let pooler: Pooler = read(&file, &document);
                let name = pooler.metadata.name.expect("a name");
                assert_eq!(api::pooler::refusal(&pooler.spec, &name), None, "{file}");
            }
            _ => {}
        }
        if document["kind"] != "ClusteredDatabase" {
            continue;
        }
        let resource: ClusteredDatabase = read(&file, &document);
        assert_eq!(validate(&resource), [], "{file}");
        let name = resource.metadata.name.expect("a name");
        assert_eq!(file, format!("{name}.yaml"), "the file is called like its database");
        names.insert(name);
    }
    assert_eq!(
        names.iter().map(String::as_str).collect::<Vec<_>>(),
        [
            "archive",
            "database",
            "durability",
            "fast-failover",
            "minimal",
            "production",
            "user",
            "user-password"
        ]
    );
}
