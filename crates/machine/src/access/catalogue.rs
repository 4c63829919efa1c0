//! What PostgreSQL's catalogue says of roles and of what they may do, as far as a [`super::plan`] looks at it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::statement::{Attributes, Object, Privilege, RelationKind, Secret, Statement};

/// A snapshot of the catalogue, or a model of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalogue {
    /// All roles, by name.
    pub roles: BTreeMap<String, Role>,
    /// All databases that take connections, by name.
    pub databases: BTreeMap<String, Database>,
    /// Databases that could not be read, and why. They are not among `databases`.
    #[serde(default)]
    pub unreadable: BTreeMap<String, String>,
}

/// A role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// Its OID: another role of the same name has another one.
    pub oid: u32,
    /// What it may by itself.
    pub attributes: Attributes,
    /// It is a superuser, may create roles or databases, may replicate, or passes over row security.
    pub is_mighty: bool,
    /// It is a member of other roles.
    pub has_groups: bool,
    /// The verifier of its password, as PostgreSQL stores it.
    pub verifier: Option<Secret>,
    /// Its comment.
    pub comment: Option<String>,
}

/// A database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Database {
    /// The role that owns it.
    pub owner: String,
    /// What its owner has granted on it.
    pub acl: Acl,
    /// Its schemas, by name, without PostgreSQL's own. They are read only where a grant names the database.
    pub schemas: BTreeMap<String, Schema>,
}

/// A schema.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// The role that owns it.
    pub owner: String,
    /// What its owner has granted on it.
    pub acl: Acl,
    /// Tables, views and sequences, by name.
    pub relations: BTreeMap<String, Relation>,
    /// What is granted on what is made later, by the role that makes it.
    pub defaults: BTreeMap<String, BTreeMap<RelationKind, Acl>>,
}

/// A table or sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relation {
    /// Which of the two.
    pub kind: RelationKind,
    /// The role that owns it.
    pub owner: String,
    /// What its owner has granted on it.
    pub acl: Acl,
}

/// Privileges by the role that has them. What a role has by being the owner is not in it.
pub type Acl = BTreeMap<String, BTreeSet<Privilege>>;

impl Catalogue {
    /// What PostgreSQL grants on this to this role, apart from what it has as the owner.
    pub fn granted(&self, database: &str, on: &Object, role: &str) -> BTreeSet<Privilege> {
        let acl = self.find(database, on).and_then(|(_, acl)| acl);
        acl.and_then(|acl| acl.get(role)).cloned().unwrap_or_default()
    }

    /// Does in this model what PostgreSQL does when it runs a statement in this database.
    ///
    /// # Errors
    /// Fails if PostgreSQL would refuse it.
    pub fn run(&mut self, database: &str, statement: &Statement) -> Result<(), String> {
        match statement {
            Statement::CreateRole { name, attributes } => {
                if self.roles.contains_key(name) {
                    return Err(format!("role {name:?} already exists"));
                }
                let oid = self.roles.values().map(|role| role.oid).max().unwrap_or(16_383) + 1;
                let role = Role {
                    oid,
                    attributes: attributes.clone(),
                    ..Role::default()
                };
                self.roles.insert(name.clone(), role);
            }
            Statement::AlterRole { name, attributes } => {
                let role = self.role(name)?;
                (role.attributes, role.is_mighty) = (attributes.clone(), false);
            }
            Statement::SetVerifier { name, verifier } => self.role(name)?.verifier.clone_from(verifier),
            Statement::Comment { name, text } => self.role(name)?.comment = Some(text.clone()),
            Statement::DropRole { name } => {
                self.role(name)?;
                if self.databases.values().any(|database| database.depends_on(name)) {
                    return Err(format!(
                        "role {name:?} cannot be dropped because some objects depend on it"
                    ));
                }
                self.roles.remove(name);
            }
            Statement::Grant { on, privileges, to } => {
                self.role(to)?;
                let granted = self.acl(database, on)?.entry(to.clone()).or_default();
                granted.extend(privileges);
            }
            Statement::Revoke { on, privileges, from } => {
                self.role(from)?;
                let acl = self.acl(database, on)?;
                if let Some(granted) = acl.get_mut(from) {
                    granted.retain(|privilege| !privileges.contains(privilege));
                    if granted.is_empty() {
                        acl.remove(from);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the role owns this, so that nothing has to be granted to it.
    pub fn owns(&self, database: &str, on: &Object, role: &str) -> bool {
        self.find(database, on).is_some_and(|(owner, _)| owner == role)
    }

    /// Who owns this, and what that role has granted on it.
    fn find<'a>(&'a self, database: &str, on: &'a Object) -> Option<(&'a str, Option<&'a Acl>)> {
        let database = self.databases.get(database)?;
        let schema = |name: &str| database.schemas.get(name);
        Some(match on {
            Object::Database(_) => (&database.owner, Some(&database.acl)),
            Object::Schema(name) => {
                let found = schema(name)?;
                (&found.owner, Some(&found.acl))
            }
            Object::Relation { schema: of, name, kind } => {
                let found = schema(of)?.relations.get(name).filter(|found| found.kind == *kind)?;
                (&found.owner, Some(&found.acl))
            }
            Object::Future {
                schema: of,
                owner,
                kind,
            } => (owner, schema(of)?.defaults.get(owner).and_then(|kinds| kinds.get(kind))),
        })
    }

    fn role(&mut self, name: &str) -> Result<&mut Role, String> {
        let role = self.roles.get_mut(name);
        role.ok_or_else(|| format!("role {name:?} does not exist"))
    }

    fn acl(&mut self, database: &str, on: &Object) -> Result<&mut Acl, String> {
        let found = self.databases.get_mut(database);
        let found = found.ok_or_else(|| format!("database {database:?} does not exist"))?;
        found.acl_mut(on).ok_or_else(|| format!("{on:?} does not exist"))
    }
}

impl Database {
    /// Whether the role owns something here, or something here is granted to it.
    fn depends_on(&self, role: &str) -> bool {
        let named =
            |owner: &String, acl: &Acl| owner == role || acl.get(role).is_some_and(|granted| !granted.is_empty());
        let in_schema = |schema: &Schema| {
            let mut futures = schema
                .defaults
                .iter()
                .flat_map(|(owner, kinds)| kinds.values().map(move |acl| (owner, acl)));
            named(&schema.owner, &schema.acl)
                || schema.relations.values().any(|found| named(&found.owner, &found.acl))
                || futures.any(|(owner, acl)| !acl.is_empty() && named(owner, acl))
        };
        named(&self.owner, &self.acl) || self.schemas.values().any(in_schema)
    }

    fn acl_mut(&mut self, on: &Object) -> Option<&mut Acl> {
        match on {
            Object::Database(_) => Some(&mut self.acl),
            Object::Schema(name) => Some(&mut self.schemas.get_mut(name)?.acl),
            Object::Relation { schema, name, kind } => {
                let relation = self.schemas.get_mut(schema)?.relations.get_mut(name)?;
                (relation.kind == *kind).then_some(&mut relation.acl)
            }
            Object::Future { schema, owner, kind } => {
                let of = self.schemas.get_mut(schema)?.defaults.entry(owner.clone()).or_default();
                Some(of.entry(*kind).or_default())
            }
        }
    }
}
