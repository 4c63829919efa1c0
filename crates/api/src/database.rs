//! The `Database` resource (short name `dbd`): a database of PostgreSQL in a ClusteredDatabase, with its owner, extensions and schemas.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::crd::{SCHEMA, drop_what_means_nothing_to_a_server, each_schema, field_of, set, shorten_description};
use crate::declared::{
    Adoption, DeclaredStatus, LONGEST_SQL_NAME, ManagementPolicy, Rule, first_repeated, is_sql_name, validations,
};
use crate::operation::{ClusterReference, LONGEST_NAME};

/// A database of PostgreSQL in a ClusteredDatabase, with its owner, extensions and schemas.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "clustereddatabase.io",
    version = "v1alpha2",
    kind = "Database",
    plural = "databases",
    shortname = "dbd",
    namespaced,
    derive = "PartialEq",
    doc = "A database of PostgreSQL in a ClusteredDatabase, with its owner, extensions and schemas.",
    status = "DatabaseStatus",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.clusterRef.name"}"#,
    printcolumn = r#"{"name":"Database","type":"string","jsonPath":".status.database"}"#,
    printcolumn = r#"{"name":"Owner","type":"string","jsonPath":".spec.owner"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Message","type":"string","priority":1,"jsonPath":".status.message"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseSpec {
    /// The ClusteredDatabase in this namespace that has the database. It cannot be changed.
    pub cluster_ref: ClusterReference,
    /// The database's name in PostgreSQL. If absent, the name of this resource. It cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The role that owns the database. While there is no such role, the database waits for it.
    pub owner: String,
    /// Locale of the database. If absent, that of the cluster. It cannot be changed. The encoding is always UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// How many sessions the database may have at once. If absent, any number. Superusers are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_limit: Option<u32>,
    /// Extensions that the database has. One that is removed from this list stays in the database.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<DatabaseExtension>,
    /// Schemas that the database has. One that is removed from this list stays in the database.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schemas: Vec<DatabaseSchema>,
    /// Whether every role may connect to the database and make temporary tables in it, as PostgreSQL permits by default. Otherwise
    /// only its owner may, and those to whom that is granted, as by a DatabaseUser.
    #[serde(default = "yes")]
    pub public_connect: bool,
    /// What becomes of a database of this name that is there already and was made by somebody else.
    #[serde(default)]
    pub adoption: Adoption,
    /// How much is done of what is missing.
    #[serde(default)]
    pub management_policy: ManagementPolicy,
    /// What becomes of the database, with all its data, when this resource is deleted.
    #[serde(default)]
    pub on_delete: OnDelete,
}

const fn yes() -> bool {
    true
}

/// What becomes of the database when the resource is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDelete {
    /// It stays as it is, and nobody manages it any more.
    #[default]
    Retain,
    /// It is dropped. While PostgreSQL refuses that, the message says why; `Retain` then ends the deletion.
    Drop,
}

/// An extension of PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseExtension {
    /// Its name.
    pub name: String,
    /// Its version. If absent, the default one of the image when it is made, and no change after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The schema that its objects are put into when it is made. If absent, that which the extension asks for, or `public`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
}

/// A schema of a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseSchema {
    /// Its name.
    pub name: String,
    /// The role that owns it. If absent, the database's owner when it is made, and no change after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// What is known of a Database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseStatus {
    /// What is known of its database in PostgreSQL.
    #[serde(flatten)]
    pub declared: DeclaredStatus,
    /// The database's name in PostgreSQL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
}

impl DatabaseSpec {
    /// The database's name. `resource` is the name of the Database.
    pub fn database<'a>(&'a self, resource: &'a str) -> &'a str {
        self.name.as_deref().unwrap_or(resource)
    }
}

const RULES: [Rule<DatabaseSpec>; 7] = [
    Rule {
        cel: "!has(self.name) || !(self.name in ['postgres', 'template0', 'template1'] || self.name.startsWith('cdb_'))",
        message: "name must not be postgres, template0 or template1, and must not begin with cdb_: choose another one",
        holds: |spec| spec.name.as_deref().is_none_or(|name| !is_reserved(name)),
    },
    Rule {
        cel: "!(self.owner in ['public', 'none'] || self.owner.startsWith('pg_') || self.owner.startsWith('cdb_'))",
        message: "owner must not be public or none, and must not begin with pg_ or cdb_: name another role",
        holds: |spec| !is_reserved_role(&spec.owner),
    },
    Rule {
        cel: "!has(self.locale) || self.locale.matches('^[A-Za-z0-9_.@-]{1,64}$')",
        message: "locale must be the name of a locale in the image, such as C.UTF-8 or en_US.UTF-8",
        holds: |spec| spec.locale.as_deref().is_none_or(crate::rules::is_locale),
    },
    Rule {
        cel: "!has(self.connectionLimit) || self.connectionLimit <= 2147483647",
        message: "connectionLimit must be at most 2147483647: lower or remove it",
        holds: |spec| spec.connection_limit.is_none_or(|limit| i32::try_from(limit).is_ok()),
    },
    Rule {
        cel: "!has(self.schemas) || self.schemas.all(schema, !(schema.name == 'information_schema' || schema.name.startsWith('pg_')) \
              && (!has(schema.owner) || !(schema.owner in ['public', 'none'] || schema.owner.startsWith('pg_') \
              || schema.owner.startsWith('cdb_'))))",
        message: "schemas must not be PostgreSQL's own (information_schema, pg_), nor belong to public, none, pg_ or cdb_: correct them",
        holds: |spec| {
            let own = |schema: &DatabaseSchema| schema.owner.as_deref().is_some_and(is_reserved_role);
            spec.schemas
                .iter()
                .all(|schema| !is_reserved_schema(&schema.name) && !own(schema))
        },
    },
    Rule {
        cel: "!has(self.extensions) || self.extensions.all(extension, !has(extension.schema) \
              || !(extension.schema == 'information_schema' || extension.schema.startsWith('pg_')))",
        message: "the schema of an extension must not be PostgreSQL's own (information_schema, pg_): choose another one, or remove it",
        holds: |spec| {
            let mut schemas = spec
                .extensions
                .iter()
                .filter_map(|extension| extension.schema.as_deref());
            !schemas.any(is_reserved_schema)
        },
    },
    Rule {
        cel: "!has(self.onDelete) || self.onDelete != 'Drop' || !has(self.managementPolicy) || self.managementPolicy == 'Full'",
        message: "onDelete: Drop takes everything away: it needs managementPolicy: Full",
        holds: |spec| spec.on_delete != OnDelete::Drop || spec.management_policy == ManagementPolicy::Full,
    },
];

fn is_reserved(name: &str) -> bool {
    ["postgres", "template0", "template1"].contains(&name) || name.starts_with("cdb_")
}

fn is_reserved_role(name: &str) -> bool {
    ["public", "none"].contains(&name) || name.starts_with("pg_") || name.starts_with("cdb_")
}

fn is_reserved_schema(name: &str) -> bool {
    name == "information_schema" || name.starts_with("pg_")
}

const UNCHANGED: [(&str, &str); 3] = [
    (
        "self.clusterRef == oldSelf.clusterRef",
        "clusterRef cannot be changed: make another Database",
    ),
    (
        "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
        "name cannot be changed, since the database would stay: make another Database",
    ),
    (
        "has(self.locale) == has(oldSelf.locale) && (!has(self.locale) || self.locale == oldSelf.locale)",
        "locale cannot be changed, since PostgreSQL cannot change it: make another Database",
    ),
];

/// Bounds of single fields.
const LIMITS: [(&str, &str, usize); 19] = [
    ("spec.clusterRef.name", "minLength", 1),
    ("spec.clusterRef.name", "maxLength", LONGEST_NAME),
    ("spec.name", "minLength", 1),
    ("spec.name", "maxLength", LONGEST_SQL_NAME),
    ("spec.owner", "minLength", 1),
    ("spec.owner", "maxLength", LONGEST_SQL_NAME),
    ("spec.locale", "maxLength", 256),
    ("spec.extensions", "maxItems", 64),
    ("spec.extensions.*.name", "minLength", 1),
    ("spec.extensions.*.name", "maxLength", LONGEST_SQL_NAME),
    ("spec.extensions.*.version", "minLength", 1),
    ("spec.extensions.*.version", "maxLength", LONGEST_SQL_NAME),
    ("spec.extensions.*.schema", "minLength", 1),
    ("spec.extensions.*.schema", "maxLength", LONGEST_SQL_NAME),
    ("spec.schemas", "maxItems", 64),
    ("spec.schemas.*.name", "minLength", 1),
    ("spec.schemas.*.name", "maxLength", LONGEST_SQL_NAME),
    ("spec.schemas.*.owner", "minLength", 1),
    ("spec.schemas.*.owner", "maxLength", LONGEST_SQL_NAME),
];

/// What is wrong with a spec: the rules that the API server checks, checked again, and the names that it cannot check.
pub fn refusal(spec: &DatabaseSpec, resource: &str) -> Option<String> {
    let broken = RULES.iter().find(|rule| !(rule.holds)(spec));
    if let Some(rule) = broken {
        return Some(rule.message.to_owned());
    }
    let name = spec.database(resource);
    if is_reserved(name) || !is_sql_name(name) {
        return Some(format!(
            "no database can be called {name:?}: set spec.name to a name of 1 to {LONGEST_SQL_NAME} bytes that is not postgres, \
             template0 or template1, and does not begin with cdb_"
        ));
    }
    let extensions = spec.extensions.iter();
    let of_extensions = extensions.flat_map(|found| [Some(&found.name), found.version.as_ref(), found.schema.as_ref()]);
    let of_schemas = spec
        .schemas
        .iter()
        .flat_map(|schema| [Some(&schema.name), schema.owner.as_ref()]);
    let mut names = of_extensions.chain(of_schemas).flatten().chain([&spec.owner]);
    if let Some(name) = names.find(|name| !is_sql_name(name)) {
        return Some(format!(
            "{name:?} is no name in PostgreSQL: it must have 1 to {LONGEST_SQL_NAME} bytes"
        ));
    }
    let extensions = spec.extensions.iter().map(|extension| &extension.name);
    let schemas = spec.schemas.iter().map(|schema| &schema.name);
    let twice = first_repeated(extensions).or_else(|| first_repeated(schemas));
    twice.map(|name| format!("{name:?} is named twice: remove one of them"))
}

/// The CustomResourceDefinition of `Database`.
///
/// # Panics
/// If the types in this file do not make a definition, which the tests exclude.
pub fn crd() -> CustomResourceDefinition {
    let mut definition = serde_json::to_value(Database::crd()).expect("a definition is JSON");
    let schema = definition.pointer_mut(SCHEMA).expect("the definition has a schema");
    each_schema(field_of(schema, "status.conditions"), &mut shorten_description);
    each_schema(schema, &mut drop_what_means_nothing_to_a_server);
    crate::values::explain::<Database>(schema);
    for (field, keyword, bound) in LIMITS {
        set(field_of(schema, field), keyword, bound.into());
    }
    for list in ["spec.extensions", "spec.schemas"] {
        let list = field_of(schema, list);
        set(list, "x-kubernetes-list-type", "map".into());
        set(list, "x-kubernetes-list-map-keys", vec!["name"].into());
    }
    let rules = validations(&RULES, &UNCHANGED);
    set(field_of(schema, "spec"), "x-kubernetes-validations", rules);
    serde_json::from_value(definition).expect("still a definition")
}

/// [`crd`] as the YAML that is checked in as `manifests/crd/databases.yaml`.
///
/// # Panics
/// As [`crd`].
pub fn crd_yaml() -> String {
    let yaml = serde_saphyr::to_string(&crd()).expect("a definition is YAML");
    format!("# Generated from crates/api; `UPDATE=1 cargo test -p api` writes it again.\n{yaml}")
}
