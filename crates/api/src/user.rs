//! The `DatabaseUser` resource (short name `dbu`): a role of PostgreSQL, and what it may do in the databases of a ClusteredDatabase.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::crd::{SCHEMA, drop_what_means_nothing_to_a_server, each_schema, field_of, set, shorten_description};
pub use crate::declared::{Adoption, ManagementPolicy};
use crate::declared::{
    DeclaredStatus, LONGEST_SQL_NAME, Rule, first_repeated, is_reserved_role, is_sql_name, validations,
};
use crate::moment;
use crate::operation::{ClusterReference, LONGEST_NAME};

/// A role of PostgreSQL, and what it may do in the databases of a ClusteredDatabase.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "clustereddatabase.io",
    version = "v1alpha2",
    kind = "DatabaseUser",
    plural = "databaseusers",
    shortname = "dbu",
    namespaced,
    derive = "PartialEq",
    doc = "A role of PostgreSQL, and what it may do in the databases of a ClusteredDatabase.",
    status = "DatabaseUserStatus",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.clusterRef.name"}"#,
    printcolumn = r#"{"name":"Role","type":"string","jsonPath":".status.role"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Secret","type":"string","jsonPath":".status.secretName"}"#,
    printcolumn = r#"{"name":"Message","type":"string","priority":1,"jsonPath":".status.message"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseUserSpec {
    /// The ClusteredDatabase in this namespace that has the role. It cannot be changed.
    pub cluster_ref: ClusterReference,
    /// The role's name in PostgreSQL. If absent, the name of this resource. It cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The shortest form of one grant: a database, in whose schema `public` the role has `permissions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// Privileges on all tables and views of the schema `public` of `database`, and on those that the database's owner makes later.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub permissions: BTreeSet<Permission>,
    /// What the role may do beyond that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
    /// Other roles that the role is a member of, and no more. If absent, its memberships are left as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member_of: Option<Vec<Membership>>,
    /// Whether the role may log in.
    #[serde(default = "yes")]
    pub login: bool,
    /// How many sessions the role may have at once. If absent, any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_limit: Option<u32>,
    /// Until when the role may log in by its password. If absent, for ever.
    #[serde(
        default,
        deserialize_with = "moment::deserialize_optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub valid_until: Option<DateTime<Utc>>,
    /// Whether the sessions that the role has on the primary are ended when it may not log in any more: with `login: false`, or after
    /// `validUntil`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end_sessions: bool,
    /// The role's password. If absent, the operator makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<UserPassword>,
    /// Whether the role logs in with a certificate instead of its password. The operator issues it, and renews it in time, in the Secret
    /// that it makes (`tls.crt` and `tls.key`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub client_certificate: bool,
    /// What becomes of a role of this name that is there already and was made by somebody else.
    #[serde(default)]
    pub adoption: Adoption,
    /// How much is done of what is missing.
    #[serde(default)]
    pub management_policy: ManagementPolicy,
    /// What becomes of the role when this resource is deleted.
    #[serde(default)]
    pub on_delete: OnDelete,
    /// With `onDelete: Drop`, the role that is given all that the dropped one owns, in each database (`REASSIGN OWNED`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reassign_to: Option<String>,
}

/// What becomes of the role when the resource is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDelete {
    /// It stays as it is, and nobody manages it any more.
    #[default]
    Retain,
    /// It stays with all that it was granted, and may not log in any more. Its sessions are ended, and its comment says since when.
    Quarantine,
    /// It is dropped. While PostgreSQL refuses that, the message says why; `Retain` then ends the deletion.
    Drop,
}

const fn yes() -> bool {
    true
}

/// A privilege on tables and views. Sequences follow: a role that may insert or update may use them, and one that may select may read
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Permission {
    /// Read rows.
    Select,
    /// Add rows.
    Insert,
    /// Change rows.
    Update,
    /// Remove rows.
    Delete,
    /// Remove all rows at once.
    Truncate,
    /// Make foreign keys that refer to a table.
    References,
    /// Make triggers on a table.
    Trigger,
}

/// Privileges in some schemas of a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// The database.
    pub database: String,
    /// Its schemas.
    #[serde(default = "public")]
    pub schemas: Vec<String>,
    /// Privileges on all tables and views there. Without any, the role may connect to the database and no more.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub permissions: BTreeSet<Permission>,
    /// Whether the same goes for tables that the database's owner makes later.
    #[serde(default = "yes")]
    pub include_future: bool,
}

fn public() -> Vec<String> {
    vec!["public".to_owned()]
}

/// Membership in another role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    /// The other role. While there is no such role, the membership waits for it.
    pub role: String,
    /// Whether the role may make others members of it (`ADMIN`).
    #[serde(default)]
    pub admin: bool,
    /// Whether the role may do what the other one may, without `SET ROLE` (`INHERIT`). Since PostgreSQL 16.
    #[serde(default = "yes")]
    pub inherit: bool,
    /// Whether the role may become the other one by `SET ROLE` (`SET`). Since PostgreSQL 16.
    #[serde(default = "yes")]
    pub set: bool,
}

/// PostgreSQL's own roles that a user may be a member of. The others reach files, programs or other servers, have no members, or can stop the
/// whole cluster: `pg_signal_backend` ends replication, `pg_maintain` locks PostgreSQL's own tables.
pub const PREDEFINED_ROLES: [&str; 9] = [
    "pg_monitor",
    "pg_read_all_settings",
    "pg_read_all_stats",
    "pg_stat_scan_tables",
    "pg_read_all_data",
    "pg_write_all_data",
    "pg_signal_autovacuum_worker",
    "pg_checkpoint",
    "pg_use_reserved_connections",
];

/// Whether a user may be a member of a role of this name, as far as the name says it.
pub fn may_have_members(role: &str) -> bool {
    !is_reserved_role(role) || PREDEFINED_ROLES.contains(&role)
}

/// Where a role's password comes from: one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserPassword {
    /// A Secret in this namespace with the password. It must have the label `clustereddatabase.io/password-for` with the cluster's name.
    /// Another password there is taken up within ten minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<PasswordReference>,
    /// Somebody else gives the role its password, and nobody changes it here.
    #[serde(default)]
    pub external: bool,
    /// The role has no password.
    #[serde(default)]
    pub none: bool,
}

impl UserPassword {
    /// How many of them are set.
    fn kinds(&self) -> usize {
        let set = [self.secret_ref.is_some(), self.external, self.none];
        set.into_iter().filter(|is| *is).count()
    }
}

/// A password in a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PasswordReference {
    /// Name of the Secret.
    pub name: String,
    /// Its key.
    #[serde(default = "password_key")]
    pub key: String,
}

fn password_key() -> String {
    "password".to_owned()
}

/// What is known of a DatabaseUser.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseUserStatus {
    /// What is known of its role in PostgreSQL.
    #[serde(flatten)]
    pub declared: DeclaredStatus,
    /// The role's name in PostgreSQL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Name of the Secret with the password that the operator has made, and with all else that an application needs to connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
    /// The certificate in that Secret, if the role has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<UserCertificate>,
}

/// A certificate with which a role logs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserCertificate {
    /// When it ends. The operator renews it when two thirds of its time are over.
    #[serde(deserialize_with = "moment::deserialize")]
    pub not_after: DateTime<Utc>,
    /// Key identifier of the authority that has issued it.
    pub issuer: String,
}

impl DatabaseUserSpec {
    /// The role's name. `resource` is the name of the DatabaseUser.
    pub fn role<'a>(&'a self, resource: &'a str) -> &'a str {
        self.name.as_deref().unwrap_or(resource)
    }

    /// All grants, with that of the shortest form as the first.
    pub fn all_grants(&self) -> Vec<Grant> {
        let shortest = self.database.as_ref().map(|database| Grant {
            database: database.clone(),
            schemas: public(),
            permissions: self.permissions.clone(),
            include_future: true,
        });
        shortest.into_iter().chain(self.grants.iter().cloned()).collect()
    }

    /// Whether the operator makes the password.
    pub fn has_made_password(&self) -> bool {
        let password = self.password.as_ref();
        self.login && password.is_none_or(|password| password.kinds() == 0)
    }
}

const RULES: [Rule<DatabaseUserSpec>; 10] = [
    Rule {
        cel: "!has(self.permissions) || size(self.permissions) == 0 || has(self.database)",
        message: "permissions needs database: name the database, or use grants",
        holds: |spec| spec.permissions.is_empty() || spec.database.is_some(),
    },
    Rule {
        cel: "!has(self.name) || !(self.name in ['postgres', 'public', 'none'] || self.name.startsWith('pg_') \
              || self.name.startsWith('cdb_'))",
        message: "name must not be postgres, public or none, and must not begin with pg_ or cdb_: choose another one",
        holds: |spec| spec.name.as_deref().is_none_or(|name| !is_reserved_role(name)),
    },
    Rule {
        cel: "!has(self.password) || [has(self.password.secretRef), has(self.password.external) && self.password.external, \
              has(self.password.none) && self.password.none].filter(is, is).size() <= 1",
        message: "password must be one of secretRef, external and none: set one of them, or remove password to have one made",
        holds: |spec| spec.password.as_ref().is_none_or(|password| password.kinds() <= 1),
    },
    Rule {
        cel: "!has(self.clientCertificate) || !self.clientCertificate || !has(self.password) && !has(self.validUntil)",
        message: "clientCertificate goes into the Secret that the operator makes, and PostgreSQL asks no certificate for validUntil: remove \
                  password and validUntil",
        holds: |spec| !spec.client_certificate || (spec.password.is_none() && spec.valid_until.is_none()),
    },
    Rule {
        cel: "!has(self.onDelete) || self.onDelete == 'Retain' || !has(self.managementPolicy) || self.managementPolicy == 'Full'",
        message: "onDelete: Drop and Quarantine take something away: they need managementPolicy: Full",
        holds: |spec| spec.on_delete == OnDelete::Retain || spec.management_policy == ManagementPolicy::Full,
    },
    Rule {
        cel: "!has(self.reassignTo) || !(self.reassignTo in ['postgres', 'public', 'none'] || self.reassignTo.startsWith('pg_') \
              || self.reassignTo.startsWith('cdb_'))",
        message: "reassignTo must not be postgres, public or none, and must not begin with pg_ or cdb_: name another role",
        holds: |spec| spec.reassign_to.as_deref().is_none_or(|name| !is_reserved_role(name)),
    },
    Rule {
        cel: "!has(self.memberOf) || self.memberOf.all(of, of.role in ['pg_monitor', 'pg_read_all_settings', 'pg_read_all_stats', \
              'pg_stat_scan_tables', 'pg_read_all_data', 'pg_write_all_data', 'pg_signal_autovacuum_worker', \
              'pg_checkpoint', 'pg_use_reserved_connections'] || !(of.role in ['postgres', 'public', 'none'] \
              || of.role.startsWith('pg_') || of.role.startsWith('cdb_')))",
        message: "memberOf must not name postgres, public, none, a role of the operator (cdb_), or one of PostgreSQL (pg_) that reaches \
                  files, programs or other servers, or can stop the cluster: remove it",
        holds: |spec| spec.member_of.iter().flatten().all(|of| may_have_members(&of.role)),
    },
    Rule {
        cel: "!has(self.memberOf) || self.memberOf.all(of, !(has(of.admin) && of.admin) || of.inherit || of.set)",
        message: "memberOf: admin alone is what PostgreSQL gives to who makes a role, and cannot be told from that: set inherit or set, too",
        holds: |spec| {
            let mut all = spec.member_of.iter().flatten();
            all.all(|of| !of.admin || of.inherit || of.set)
        },
    },
    Rule {
        cel: "!has(self.connectionLimit) || self.connectionLimit <= 2147483647",
        message: "connectionLimit must be at most 2147483647: lower or remove it",
        holds: |spec| spec.connection_limit.is_none_or(|limit| i32::try_from(limit).is_ok()),
    },
    Rule {
        cel: "!has(self.grants) || self.grants.all(grant, size(grant.schemas) > 0)",
        message: "schemas must name a schema: add one, or remove schemas for public",
        holds: |spec| spec.grants.iter().all(|grant| !grant.schemas.is_empty()),
    },
];

const CLUSTER_UNCHANGED: &str = "clusterRef cannot be changed: make another DatabaseUser";
const NAME_UNCHANGED: &str = "name cannot be changed, since the role would stay: make another DatabaseUser";

/// Bounds of single fields.
const LIMITS: [(&str, &str, usize); 21] = [
    ("spec.clusterRef.name", "minLength", 1),
    ("spec.clusterRef.name", "maxLength", LONGEST_NAME),
    ("spec.name", "minLength", 1),
    ("spec.name", "maxLength", LONGEST_SQL_NAME),
    ("spec.database", "minLength", 1),
    ("spec.database", "maxLength", LONGEST_SQL_NAME),
    ("spec.permissions", "maxItems", 7),
    ("spec.grants", "maxItems", 64),
    ("spec.grants.*.permissions", "maxItems", 7),
    ("spec.grants.*.database", "minLength", 1),
    ("spec.grants.*.database", "maxLength", LONGEST_SQL_NAME),
    ("spec.grants.*.schemas", "maxItems", 64),
    ("spec.grants.*.schemas.*", "minLength", 1),
    ("spec.grants.*.schemas.*", "maxLength", LONGEST_SQL_NAME),
    ("spec.memberOf", "maxItems", 64),
    ("spec.memberOf.*.role", "minLength", 1),
    ("spec.memberOf.*.role", "maxLength", LONGEST_SQL_NAME),
    ("spec.reassignTo", "minLength", 1),
    ("spec.reassignTo", "maxLength", LONGEST_SQL_NAME),
    ("spec.password.secretRef.name", "minLength", 1),
    ("spec.password.secretRef.key", "minLength", 1),
];

/// What is wrong with a spec: the rules that the API server checks, checked again, and the name of the role.
pub fn refusal(spec: &DatabaseUserSpec, resource: &str) -> Option<String> {
    let broken = RULES.iter().find(|rule| !(rule.holds)(spec));
    if let Some(rule) = broken {
        return Some(rule.message.to_owned());
    }
    let name = spec.role(resource);
    if is_reserved_role(name) || !is_sql_name(name) {
        return Some(format!(
            "no role can be called {name:?}: set spec.name to a name of 1 to {LONGEST_SQL_NAME} bytes that is not postgres, public or none, \
             and does not begin with pg_ or cdb_"
        ));
    }
    let roles = spec.member_of.iter().flatten().map(|of| &of.role);
    let grants = spec.all_grants();
    let in_grants = grants
        .iter()
        .flat_map(|grant| grant.schemas.iter().chain([&grant.database]));
    let mut names = in_grants.chain(roles.clone()).chain(&spec.reassign_to);
    if let Some(name) = names.find(|name| !is_sql_name(name)) {
        return Some(format!(
            "{name:?} is no name in PostgreSQL: it must have 1 to {LONGEST_SQL_NAME} bytes"
        ));
    }
    first_repeated(roles).map(|name| format!("memberOf names {name:?} twice: remove one of them"))
}

/// The CustomResourceDefinition of `DatabaseUser`.
///
/// # Panics
/// If the types in this file do not make a definition, which the tests exclude.
pub fn crd() -> CustomResourceDefinition {
    let mut definition = serde_json::to_value(DatabaseUser::crd()).expect("a definition is JSON");
    let schema = definition.pointer_mut(SCHEMA).expect("the definition has a schema");
    each_schema(field_of(schema, "status.conditions"), &mut shorten_description);
    each_schema(schema, &mut drop_what_means_nothing_to_a_server);
    crate::values::explain::<DatabaseUser>(schema);
    for (field, keyword, bound) in LIMITS {
        set(field_of(schema, field), keyword, bound.into());
    }
    for permissions in ["spec.permissions", "spec.grants.*.permissions"] {
        let permissions = field_of(schema, permissions);
        permissions.as_object_mut().expect("an object").remove("uniqueItems");
        set(permissions, "x-kubernetes-list-type", "set".into());
    }
    let member_of = field_of(schema, "spec.memberOf");
    set(member_of, "x-kubernetes-list-type", "map".into());
    set(member_of, "x-kubernetes-list-map-keys", vec!["role"].into());
    let unchanged = [
        ("self.clusterRef == oldSelf.clusterRef", CLUSTER_UNCHANGED),
        (
            "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
            NAME_UNCHANGED,
        ),
    ];
    let rules = validations(&RULES, &unchanged);
    set(field_of(schema, "spec"), "x-kubernetes-validations", rules);
    serde_json::from_value(definition).expect("still a definition")
}

/// [`crd`] as the YAML that is checked in as `manifests/crd/databaseusers.yaml`.
///
/// # Panics
/// As [`crd`].
pub fn crd_yaml() -> String {
    let yaml = serde_saphyr::to_string(&crd()).expect("a definition is YAML");
    format!("# Generated from crates/api; `UPDATE=1 cargo test -p api` writes it again.\n{yaml}")
}
