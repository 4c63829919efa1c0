//! A model of the catalogue: what PostgreSQL does with it when it runs a statement.

use std::collections::BTreeMap;

use super::catalogue::{Acl, Catalogue, Closed, Database, Extension, Role, Schema};
use super::pooler::POOLER_ROLE;
use super::statement::{DatabaseChange, ExtensionChange, Membership, Object, Privilege, SchemaChange, Statement};

impl Catalogue {
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
            Statement::GrantRole {
                role,
                to,
                membership,
                plain,
            } => {
                let is_there = self.roles.contains_key(role);
                let member = self.role(to)?;
                if !is_there {
                    return Err(missing_role(role));
                }
                let has = member.member_of.get(role).filter(|_| *plain);
                let admin = membership.admin || has.is_some_and(|has| has.admin);
                let membership = Membership { admin, ..*membership };
                member.member_of.insert(role.clone(), membership);
                member.groups.insert(role.clone());
            }
            Statement::RevokeRole { role, from } => {
                let member = self.role(from)?;
                member.member_of.remove(role);
                member.groups.remove(role);
            }
            Statement::EndSessions { name } => self.role(name)?.sessions = 0,
            Statement::Reassign { from, to } => self.reassign(database, from, to)?,
            Statement::DropRole { name } => {
                self.role(name)?;
                let owns_closed = self.closed.values().any(|database| database.owner == *name);
                if owns_closed || self.databases.values().any(|database| database.depends_on(name)) {
                    return Err(format!(
                        "role {name:?} cannot be dropped because some objects depend on it"
                    ));
                }
                self.roles.remove(name);
                for role in self.roles.values_mut() {
                    role.member_of.remove(name);
                    role.groups.remove(name);
                }
            }
            Statement::Database { name, change } => self.change_database(name, change)?,
            Statement::Schema { name, change } => self.change_schema(database, name, change)?,
            Statement::Extension { name, change } => self.change_extension(database, name, change)?,
            Statement::MakeLookup => {
                self.role(POOLER_ROLE)?;
                self.has_lookup = true;
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

    fn change_database(&mut self, name: &str, change: &DatabaseChange) -> Result<(), String> {
        match change {
            DatabaseChange::Create { owner, .. } => {
                self.is_free(name)?;
                self.role(owner)?;
                let oids = self.databases.values().map(|found| found.oid);
                let oids = oids.chain(self.closed.values().map(|found| found.oid));
                let made = Closed {
                    oid: oids.max().unwrap_or_default().max(16_383) + 1,
                    owner: owner.clone(),
                    ..Closed::default()
                };
                self.closed.insert(name.to_owned(), made);
            }
            DatabaseChange::Comment(text) => match self.closed.get_mut(name) {
                Some(closed) => closed.comment = Some(text.clone()),
                None => self.database(name)?.comment = Some(text.clone()),
            },
            DatabaseChange::Rename { to } => {
                self.is_free(to)?;
                match self.closed.remove(name) {
                    Some(closed) => drop(self.closed.insert(to.clone(), closed)),
                    None => {
                        let found = std::mem::take(self.database(name)?);
                        self.databases.remove(name);
                        self.databases.insert(to.clone(), found);
                    }
                }
            }
            DatabaseChange::Open => self.open(name),
            DatabaseChange::Limit(limit) => self.database(name)?.connection_limit = *limit,
            DatabaseChange::SetOwner(owner) => {
                self.role(owner)?;
                match self.closed.get_mut(name) {
                    Some(closed) => closed.owner.clone_from(owner),
                    None => {
                        let found = self.database(name)?;
                        give(&mut found.owner, &mut found.acl, owner);
                    }
                }
            }
            DatabaseChange::SetPublic(may) => {
                let public = &mut self.database(name)?.public;
                match may {
                    true => public.extend(OF_PUBLIC),
                    false => public.retain(|privilege| !OF_PUBLIC.contains(privilege)),
                }
            }
            DatabaseChange::Drop { oid } => {
                let open = self.databases.get(name).map(|found| found.oid);
                let found = open.or_else(|| self.closed.get(name).map(|found| found.oid));
                if found != Some(*oid) {
                    return Err(missing(name));
                }
                self.databases.remove(name);
                self.closed.remove(name);
                self.unreadable.remove(name);
            }
        }
        Ok(())
    }

    /// Another role owns what `from` owns in this database, and all databases that it owns. Default privileges stay.
    fn reassign(&mut self, database: &str, from: &str, to: &str) -> Result<(), String> {
        self.role(to)?;
        self.role(from)?.owns_in.remove(database);
        for closed in self.closed.values_mut().filter(|closed| closed.owner == from) {
            to.clone_into(&mut closed.owner);
        }
        for found in self.databases.values_mut().filter(|found| found.owner == from) {
            give(&mut found.owner, &mut found.acl, to);
        }
        let schemas = self.databases.get_mut(database).map(|found| &mut found.schemas);
        for schema in schemas.into_iter().flat_map(BTreeMap::values_mut) {
            if schema.owner == from {
                give(&mut schema.owner, &mut schema.acl, to);
            }
            let relations = schema.relations.values_mut();
            relations
                .filter(|found| found.owner == from)
                .for_each(|found| give(&mut found.owner, &mut found.acl, to));
        }
        Ok(())
    }

    /// A database that was just made takes connections, and has what PostgreSQL gives to each.
    fn open(&mut self, name: &str) {
        let Some(closed) = self.closed.remove(name) else { return };
        let public = Schema {
            owner: "pg_database_owner".to_owned(),
            ..Schema::default()
        };
        let language = Extension {
            version: "1.0".to_owned(),
            schema: "pg_catalog".to_owned(),
        };
        let open = Database {
            owner: closed.owner,
            oid: closed.oid,
            comment: closed.comment,
            public: OF_PUBLIC.into(),
            encoding: "UTF8".to_owned(),
            schemas: BTreeMap::from([("public".to_owned(), public)]),
            extensions: BTreeMap::from([("plpgsql".to_owned(), language)]),
            ..Database::default()
        };
        self.databases.insert(name.to_owned(), open);
    }

    fn change_schema(&mut self, database: &str, name: &str, change: &SchemaChange) -> Result<(), String> {
        let (SchemaChange::Create { owner } | SchemaChange::SetOwner(owner)) = change;
        self.role(owner)?;
        let schemas = &mut self.database(database)?.schemas;
        match (change, schemas.get_mut(name)) {
            (SchemaChange::Create { .. }, Some(_)) => return Err(format!("schema {name:?} already exists")),
            (SchemaChange::Create { .. }, None) => {
                let owner = owner.clone();
                let made = Schema {
                    owner,
                    ..Schema::default()
                };
                schemas.insert(name.to_owned(), made);
            }
            (SchemaChange::SetOwner(_), Some(found)) => give(&mut found.owner, &mut found.acl, owner),
            (SchemaChange::SetOwner(_), None) => return Err(format!("schema {name:?} does not exist")),
        }
        Ok(())
    }

    fn change_extension(&mut self, database: &str, name: &str, change: &ExtensionChange) -> Result<(), String> {
        let available = self.available.get(name).cloned();
        let database = self.database(database)?;
        match (change, database.extensions.get_mut(name)) {
            (ExtensionChange::Create { .. }, Some(_)) => return Err(format!("extension {name:?} already exists")),
            (ExtensionChange::Create { version, schema }, None) => {
                let available = available.ok_or_else(|| format!("extension {name:?} is not available"))?;
                let version = version.as_ref().unwrap_or(&available.default_version).clone();
                let found = available.versions.get(&version);
                let found = found.ok_or_else(|| format!("extension {name:?} has no version {version:?}"))?;
                if let Some(lacks) = found
                    .requires
                    .iter()
                    .find(|name| !database.extensions.contains_key(*name))
                {
                    return Err(format!("required extension {lacks:?} is not installed"));
                }
                let schema = schema
                    .as_ref()
                    .or(found.schema.as_ref())
                    .map_or("public", String::as_str);
                let schema = schema.to_owned();
                database
                    .extensions
                    .insert(name.to_owned(), Extension { version, schema });
            }
            (ExtensionChange::Update { to }, Some(found)) => found.version.clone_from(to),
            (ExtensionChange::Update { .. }, None) => return Err(format!("extension {name:?} does not exist")),
        }
        Ok(())
    }

    fn is_free(&self, name: &str) -> Result<(), String> {
        let is_there = self.databases.contains_key(name) || self.closed.contains_key(name);
        (!is_there)
            .then_some(())
            .ok_or_else(|| format!("database {name:?} already exists"))
    }

    fn database(&mut self, name: &str) -> Result<&mut Database, String> {
        self.databases.get_mut(name).ok_or_else(|| missing(name))
    }

    fn role(&mut self, name: &str) -> Result<&mut Role, String> {
        let role = self.roles.get_mut(name);
        role.ok_or_else(|| missing_role(name))
    }

    fn acl(&mut self, database: &str, on: &Object) -> Result<&mut Acl, String> {
        let found = self.database(database)?;
        found.acl_mut(on).ok_or_else(|| format!("{on:?} does not exist"))
    }
}

fn missing_role(name: &str) -> String {
    format!("role {name:?} does not exist")
}

fn missing(database: &str) -> String {
    format!("database {database:?} does not exist")
}

/// Another role owns this: it needs no grant any more.
fn give(owned_by: &mut String, acl: &mut Acl, owner: &str) {
    owner.clone_into(owned_by);
    acl.remove(owner);
}

/// What PUBLIC may do with a database that is made.
const OF_PUBLIC: [Privilege; 2] = [Privilege::Connect, Privilege::Temporary];

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
