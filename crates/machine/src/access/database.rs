//! What is missing of a database.
//!
//! `CREATE DATABASE` runs in no transaction, and a database that has no comment yet would look like somebody else's. So it is made
//! under a name that only this Database can have made ([`temporary_name`]), without connections. One transaction then gives it its
//! comment and its name, and opens it. Whoever dies between the two, the next plan goes on with what is there.

use std::collections::{BTreeMap, BTreeSet};

use api::declared::{Adoption, ManagementPolicy};

use super::catalogue::{Catalogue, Database, Extension, Schema};
use super::declared::{
    DeclaredDatabase, DeclaredExtension, DeclaredSchema, MARK_OF_DATABASE, mark_of_database, temporary_name,
};
use super::plan::{Plan, Step};
use super::role::LONGEST;
use super::statement::{DatabaseChange, ExtensionChange, Privilege, SchemaChange, Statement};

/// What PUBLIC may do with a database unless that is taken from it.
const OF_PUBLIC: [Privilege; 2] = [Privilege::Connect, Privilege::Temporary];
/// Where the objects of an extension are unless it says otherwise.
const PUBLIC: &str = "public";
/// Who owns that schema in a new database: whoever owns the database. To give it away takes nothing from anybody.
const OWNER_OF_PUBLIC: &str = "pg_database_owner";
/// What each database has.
const LANGUAGE: &str = "plpgsql";

/// Plans what is missing, as [`super::plan`]. While a role is missing that is to own something, nothing is done.
pub(super) fn plan_database(declared: &DeclaredDatabase, catalogue: &Catalogue, others: &BTreeSet<&str>) -> Plan {
    if declared.drop {
        return dropping(declared, catalogue);
    }
    let database = catalogue.databases.get(&declared.name);
    let why = cannot_be(declared)
        .or_else(|| refusal(declared, catalogue, others))
        .or_else(|| of_another_owner(declared, database))
        .or_else(|| of_an_extension(declared, database))
        .or_else(|| bad_extension(declared, catalogue, database));
    if let Some(why) = why {
        return Plan::refused(why);
    }
    let owners = declared.schemas.iter().filter_map(|schema| schema.owner.as_ref());
    let mut owners = [&declared.owner].into_iter().chain(owners);
    if let Some(missing) = owners.find(|role| !catalogue.roles.contains_key(*role)) {
        return Plan {
            waits: Some(format!("there is no role {missing}, which is to own something")),
            ..Plan::default()
        };
    }
    let mut steps = Vec::new();
    match database {
        Some(database) => change(declared, catalogue, database, &mut steps),
        None => make(declared, catalogue, &mut steps),
    }
    Plan {
        steps,
        ..Plan::default()
    }
}

/// Drops the database that was made for this Database, also one that cannot be read, and what was left of making it.
fn dropping(declared: &DeclaredDatabase, catalogue: &Catalogue) -> Plan {
    let name = &declared.name;
    let new = temporary_name(&declared.uid);
    let new = catalogue.oid_and_comment(&new).map(|(oid, _)| drops(&new, oid, true));
    let old = match catalogue.oid_and_comment(name) {
        Some((oid, comment)) if comment == Some(&mark_of_database(&declared.uid)) => {
            if let Some(known) = declared.oid.filter(|known| *known != oid) {
                return Plan::refused(format!(
                    "database {name} is another one than was made for this Database: it has the OID {oid}, and not {known}"
                ));
            }
            Some(drops(name, oid, true))
        }
        // It was never made under its name, which somebody else has taken.
        Some(_) if new.is_some() => None,
        Some(_) => {
            return Plan::refused(format!(
                "the comment of database {name} does not say any more that it was made for this Database"
            ));
        }
        None => None,
    };
    Plan {
        steps: new.into_iter().chain(old).collect(),
        ..Plan::default()
    }
}

/// Why there can be no such database. What the API server has checked is checked again: who may write the Secret needs no resource.
fn cannot_be(declared: &DeclaredDatabase) -> Option<String> {
    let bad = |name: &str| name.is_empty() || name.len() > LONGEST || name.contains('\0');
    let name = &declared.name;
    if name.starts_with("cdb_") || ["postgres", "template0", "template1"].contains(&&**name) || bad(name) {
        return Some(format!(
            "a database cannot be called {name:?}: choose a name of 1 to {LONGEST} bytes that is not postgres, template0 or template1, \
             and does not begin with cdb_"
        ));
    }
    let owners = declared.schemas.iter().filter_map(|schema| schema.owner.as_ref());
    let mut owners = [&declared.owner].into_iter().chain(owners);
    let is_reserved = |role: &&String| {
        role.starts_with("pg_") || role.starts_with("cdb_") || ["public", "none"].contains(&&***role) || bad(role)
    };
    if let Some(role) = owners.find(is_reserved) {
        return Some(format!("role {role:?} cannot own anything"));
    }
    let schemas = declared.schemas.iter().map(|schema| &schema.name);
    let of_extensions = declared
        .extensions
        .iter()
        .filter_map(|extension| extension.schema.as_ref());
    let own = |schema: &&String| schema.starts_with("pg_") || *schema == "information_schema" || bad(schema);
    if let Some(schema) = schemas.chain(of_extensions).find(own) {
        return Some(format!("nothing is declared in the schema {schema:?}"));
    }
    let limit = declared.connection_limit;
    if limit.is_some_and(|limit| i32::try_from(limit).is_err()) {
        return Some(format!("the connection limit must be at most {}", i32::MAX));
    }
    None
}

/// Why this database is left alone.
fn refusal(declared: &DeclaredDatabase, catalogue: &Catalogue, others: &BTreeSet<&str>) -> Option<String> {
    let name = &declared.name;
    if let Some(why) = catalogue.unreadable.get(name) {
        return Some(format!("database {name} cannot be read: {why}"));
    }
    if let Some(closed) = catalogue.closed.get(name) {
        return Some(match closed.is_invalid {
            true => format!("the drop of database {name} was interrupted: drop it again"),
            false => format!("database {name} takes no connections, or is a template: change that first"),
        });
    }
    let database = catalogue.databases.get(name)?;
    if database.comment == Some(mark_of_database(&declared.uid)) {
        return None;
    }
    let of_another = database.comment.as_deref();
    let of_another = of_another.and_then(|comment| comment.strip_prefix(MARK_OF_DATABASE));
    if let Some(uid) = of_another.filter(|uid| others.contains(uid)) {
        return Some(format!("database {name} was made for the Database with UID {uid}"));
    }
    if declared.adoption == Adoption::Refuse {
        let by = match of_another {
            Some(_) => "for a Database that is gone",
            None => "by somebody else",
        };
        return Some(format!(
            "there is a database {name} that was made {by}: choose another name, or take it over (spec.adoption)"
        ));
    }
    if database.encoding != "UTF8" {
        return Some(format!(
            "database {name} has the encoding {}, and not UTF8",
            database.encoding
        ));
    }
    let locale = declared.locale.as_ref().filter(|locale| **locale != database.locale)?;
    Some(format!(
        "database {name} has the locale {}, and not {locale}",
        database.locale
    ))
}

/// With `Additive`, what somebody owns is given to nobody else.
fn of_another_owner(declared: &DeclaredDatabase, database: Option<&Database>) -> Option<String> {
    let database = database.filter(|_| declared.policy == ManagementPolicy::Additive)?;
    let (name, owner) = (&declared.name, &database.owner);
    if *owner != declared.owner {
        return Some(format!(
            "database {name} belongs to {owner}, and managementPolicy: Additive takes nothing from it"
        ));
    }
    declared.schemas.iter().find_map(|schema| {
        let found = database.schemas.get(&schema.name)?;
        schema
            .owner
            .as_ref()
            .filter(|owner| **owner != found.owner && found.owner != OWNER_OF_PUBLIC)?;
        Some(format!(
            "schema {} belongs to {}, and managementPolicy: Additive takes nothing from it",
            schema.name, found.owner
        ))
    })
}

/// Who owns the schema of an extension may put there what a superuser runs when the extension is updated.
fn of_an_extension(declared: &DeclaredDatabase, database: Option<&Database>) -> Option<String> {
    let database = database?;
    declared.schemas.iter().find_map(|schema| {
        let found = database.schemas.get(&schema.name)?;
        schema.owner.as_ref().filter(|owner| **owner != found.owner)?;
        let mut extensions = database.extensions.iter();
        let (name, _) = extensions.find(|(name, extension)| extension.schema == schema.name && *name != LANGUAGE)?;
        Some(format!(
            "schema {} has the extension {name}, and keeps its owner {}: remove its owner from the spec, or change it by SQL",
            schema.name, found.owner
        ))
    })
}

/// Why one of the extensions cannot be.
fn bad_extension(declared: &DeclaredDatabase, catalogue: &Catalogue, database: Option<&Database>) -> Option<String> {
    let mut there: BTreeSet<&str> = BTreeSet::from([LANGUAGE]);
    let mut schemas: BTreeSet<&str> = declared.schemas.iter().map(|schema| schema.name.as_str()).collect();
    match database {
        None => drop(schemas.insert(PUBLIC)),
        Some(database) => {
            there.extend(database.extensions.keys().map(String::as_str));
            schemas.extend(database.schemas.keys().map(String::as_str));
        }
    }
    for extension in &declared.extensions {
        let installed = database.and_then(|database| database.extensions.get(&extension.name));
        let why = match installed {
            Some(installed) => cannot_change(extension, installed, catalogue),
            None if extension.name == LANGUAGE && database.is_none() => None,
            None => cannot_make(extension, catalogue, &there, &schemas),
        };
        if why.is_some() {
            return why;
        }
        there.insert(&extension.name);
    }
    None
}

fn cannot_change(wanted: &DeclaredExtension, installed: &Extension, catalogue: &Catalogue) -> Option<String> {
    let name = &wanted.name;
    if wanted.schema.as_ref().is_some_and(|schema| *schema != installed.schema) {
        return Some(format!(
            "extension {name} is in the schema {}: name that one, or move it (ALTER EXTENSION … SET SCHEMA)",
            installed.schema
        ));
    }
    let version = wanted
        .version
        .as_ref()
        .filter(|version| **version != installed.version)?;
    no_version(name, version, catalogue)
}

fn cannot_make(
    wanted: &DeclaredExtension,
    catalogue: &Catalogue,
    there: &BTreeSet<&str>,
    schemas: &BTreeSet<&str>,
) -> Option<String> {
    let name = &wanted.name;
    let Some(available) = catalogue.available.get(name) else {
        return Some(format!(
            "extension {name} is not available: the image has no such extension"
        ));
    };
    let version = wanted.version.as_ref().unwrap_or(&available.default_version);
    let Some(found) = available.versions.get(version) else {
        return no_version(name, version, catalogue);
    };
    if let Some(lacks) = found.requires.iter().find(|needed| !there.contains(needed.as_str())) {
        return Some(format!(
            "extension {name} needs the extension {lacks}: name {lacks} before {name}"
        ));
    }
    match (&found.schema, &wanted.schema) {
        (Some(only), Some(schema)) if only != schema => Some(format!(
            "extension {name} can only be in the schema {only}: remove its schema"
        )),
        (Some(_), _) => None,
        (None, schema) => {
            let schema = schema.as_deref().unwrap_or(PUBLIC);
            let is_missing = !schemas.contains(schema);
            is_missing.then(|| format!("extension {name} is to be in the schema {schema}: add that one to schemas"))
        }
    }
}

fn no_version(name: &str, version: &str, catalogue: &Catalogue) -> Option<String> {
    let available = catalogue.available.get(name);
    let mut versions = available.into_iter().flat_map(|available| available.versions.keys());
    if versions.any(|found| found == version) {
        return None;
    }
    let versions = available.into_iter().flat_map(|available| available.versions.keys());
    let versions: Vec<&str> = versions.map(String::as_str).collect();
    Some(format!(
        "extension {name} has no version {version} in this image, but {}",
        versions.join(", ")
    ))
}

/// Makes the database, or goes on with it.
fn make(declared: &DeclaredDatabase, catalogue: &Catalogue, steps: &mut Vec<Step>) {
    let new = temporary_name(&declared.uid);
    let (name, owner) = (&declared.name, &declared.owner);
    let begun = catalogue.closed.get(&new);
    if let Some(begun) = begun.filter(|begun| begun.is_invalid) {
        steps.push(drops(&new, begun.oid, false));
    }
    match begun.filter(|begun| !begun.is_invalid) {
        None => {
            let (owner, locale) = (owner.clone(), declared.locale.clone());
            steps.push(shared(&new, DatabaseChange::Create { owner, locale }, false));
        }
        Some(begun) if begun.owner != *owner => {
            steps.push(shared(&new, DatabaseChange::SetOwner(owner.clone()), false));
        }
        Some(_) => {}
    }
    let mark = mark_of_database(&declared.uid);
    steps.push(shared(&new, DatabaseChange::Comment(mark), false));
    steps.push(shared(&new, DatabaseChange::Rename { to: name.clone() }, false));
    steps.push(shared(name, DatabaseChange::Open, false));
    if declared.connection_limit.is_some() {
        steps.push(shared(name, DatabaseChange::Limit(declared.connection_limit), false));
    }
    if !declared.public_connect {
        // Nobody has connected to it yet.
        steps.push(shared(name, DatabaseChange::SetPublic(false), false));
    }
    let public = Schema {
        owner: OWNER_OF_PUBLIC.to_owned(),
        ..Schema::default()
    };
    let schemas = BTreeMap::from([(PUBLIC.to_owned(), public)]);
    let extensions = BTreeMap::from([(LANGUAGE.to_owned(), Extension::default())]);
    content(declared, catalogue, &schemas, &extensions, steps);
}

/// Changes a database that is there.
fn change(declared: &DeclaredDatabase, catalogue: &Catalogue, database: &Database, steps: &mut Vec<Step>) {
    let name = &declared.name;
    let keeps = declared.adoption == Adoption::KeepUnlisted || declared.policy == ManagementPolicy::Additive;
    let new = temporary_name(&declared.uid);
    if let Some(begun) = catalogue.closed.get(&new) {
        // One of this name has come meanwhile. Nobody has ever connected to this one.
        steps.push(drops(&new, begun.oid, false));
    }
    let mark = mark_of_database(&declared.uid);
    if database.comment.as_ref() != Some(&mark) {
        steps.push(shared(name, DatabaseChange::Comment(mark), false));
    }
    if database.owner != declared.owner {
        steps.push(shared(name, DatabaseChange::SetOwner(declared.owner.clone()), true));
    }
    let has = database.connection_limit;
    let limit = match keeps {
        true => declared.connection_limit.zip(has).map(|(wanted, has)| wanted.max(has)),
        false => declared.connection_limit,
    };
    if limit != has {
        let takes = limit.is_some_and(|limit| has.is_none_or(|has| limit < has));
        steps.push(shared(name, DatabaseChange::Limit(limit), takes));
    }
    let mut of_public = OF_PUBLIC.iter().map(|privilege| database.public.contains(privilege));
    if declared.public_connect {
        if !of_public.all(|has| has) {
            steps.push(shared(name, DatabaseChange::SetPublic(true), false));
        }
    } else if !keeps && of_public.any(|has| has) {
        steps.push(shared(name, DatabaseChange::SetPublic(false), true));
    }
    content(declared, catalogue, &database.schemas, &database.extensions, steps);
}

/// The schemas and extensions of a database that has these.
fn content(
    declared: &DeclaredDatabase,
    catalogue: &Catalogue,
    schemas: &BTreeMap<String, Schema>,
    extensions: &BTreeMap<String, Extension>,
    steps: &mut Vec<Step>,
) {
    let mut step = |statement, takes| {
        steps.push(Step {
            database: Some(declared.name.clone()),
            statement,
            takes,
        });
    };
    for DeclaredSchema { name, owner } in &declared.schemas {
        let (change, takes) = match (schemas.get(name), owner) {
            (None, owner) => {
                let owner = owner.as_ref().unwrap_or(&declared.owner).clone();
                (SchemaChange::Create { owner }, false)
            }
            (Some(found), Some(owner)) if found.owner != *owner => {
                (SchemaChange::SetOwner(owner.clone()), found.owner != OWNER_OF_PUBLIC)
            }
            (Some(_), _) => continue,
        };
        let name = name.clone();
        step(Statement::Schema { name, change }, takes);
    }
    for wanted in &declared.extensions {
        let change = match (extensions.get(&wanted.name), &wanted.version) {
            (None, version) => {
                let is_fixed = fixed_schema(wanted, catalogue);
                let schema = wanted.schema.clone().unwrap_or_else(|| PUBLIC.to_owned());
                ExtensionChange::Create {
                    version: version.clone(),
                    schema: (!is_fixed).then_some(schema),
                }
            }
            // What a new database has of it is not known yet: the next plan compares the versions.
            (Some(found), Some(version)) if !found.version.is_empty() && found.version != *version => {
                ExtensionChange::Update { to: version.clone() }
            }
            (Some(_), _) => continue,
        };
        let name = wanted.name.clone();
        step(Statement::Extension { name, change }, false);
    }
}

/// Whether an extension says itself in which schema it is.
fn fixed_schema(wanted: &DeclaredExtension, catalogue: &Catalogue) -> bool {
    let available = catalogue.available.get(&wanted.name);
    let found = available.and_then(|available| {
        let version = wanted.version.as_ref().unwrap_or(&available.default_version);
        available.versions.get(version)
    });
    found.is_some_and(|found| found.schema.is_some())
}

fn drops(name: &str, oid: u32, takes: bool) -> Step {
    shared(name, DatabaseChange::Drop { oid }, takes)
}

/// A step about a whole database.
fn shared(name: &str, change: DatabaseChange, takes: bool) -> Step {
    Step {
        database: None,
        statement: Statement::Database {
            name: name.to_owned(),
            change,
        },
        takes,
    }
}

#[cfg(test)]
mod tests;
