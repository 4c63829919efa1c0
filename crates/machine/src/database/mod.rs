//! The machine of `Database`, run by the operator: a database with its owner, extensions and schemas ([`crate::declaration`]).

use api::database::{DatabaseExtension, DatabaseSchema, DatabaseSpec, DatabaseStatus, OnDelete, refusal};
use api::declared::DeclaredStatus;

use crate::access::{Declared, DeclaredDatabase, DeclaredExtension, DeclaredSchema};
use crate::declaration::{
    Declares, Observed, Rule, Wanted, cluster, conflict, drop_object, finalizer, foreign, invalid, publish, release,
    reports, size, tell, withdraw,
};

/// The kind `Database`.
#[derive(Clone, Copy, Debug)]
pub struct Database;

/// All rules, the most important first. The last one always proposes something.
pub const RULES: [Rule<Database>; 12] = [
    release(),
    drop_object(),
    withdraw(),
    invalid(),
    size(),
    finalizer(),
    cluster(),
    conflict(),
    foreign(),
    reports(),
    publish(),
    tell(),
];

impl Declares for Database {
    type Spec = DatabaseSpec;
    type Status = DatabaseStatus;

    const KIND: &'static str = "Database";
    const OBJECT: &'static str = "database";

    fn rules() -> &'static [Rule<Self>] {
        &RULES
    }

    fn refusal(spec: &DatabaseSpec, resource: &str) -> Option<String> {
        refusal(spec, resource)
    }

    fn cluster(spec: &DatabaseSpec) -> &str {
        &spec.cluster_ref.name
    }

    fn object<'a>(spec: &'a DatabaseSpec, resource: &'a str) -> &'a str {
        spec.database(resource)
    }

    fn going(wanted: &Wanted<'_, DatabaseSpec>, oid: u32, _owner: Option<&str>) -> Option<Declared> {
        let going = DeclaredDatabase {
            drop: true,
            oid: Some(oid),
            ..declared(wanted)
        };
        (wanted.spec.on_delete == OnDelete::Drop).then_some(Declared::Database(going))
    }

    fn declared(wanted: &Wanted<'_, DatabaseSpec>) -> Declared {
        Declared::Database(declared(wanted))
    }

    fn common(status: &DatabaseStatus) -> &DeclaredStatus {
        &status.declared
    }

    fn common_mut(status: &mut DatabaseStatus) -> &mut DeclaredStatus {
        &mut status.declared
    }

    fn complete(wanted: &Wanted<'_, DatabaseSpec>, _observed: &Observed, status: &mut DatabaseStatus) {
        status.database = Some(wanted.spec.database(wanted.name).to_owned());
    }
}

fn declared(wanted: &Wanted<'_, DatabaseSpec>) -> DeclaredDatabase {
    let spec = wanted.spec;
    let extension = |extension: &DatabaseExtension| DeclaredExtension {
        name: extension.name.clone(),
        version: extension.version.clone(),
        schema: extension.schema.clone(),
    };
    let schema = |schema: &DatabaseSchema| DeclaredSchema {
        name: schema.name.clone(),
        owner: schema.owner.clone(),
    };
    DeclaredDatabase {
        uid: wanted.uid.to_owned(),
        name: spec.database(wanted.name).to_owned(),
        owner: spec.owner.clone(),
        locale: spec.locale.clone(),
        connection_limit: spec.connection_limit,
        public_connect: spec.public_connect,
        extensions: spec.extensions.iter().map(extension).collect(),
        schemas: spec.schemas.iter().map(schema).collect(),
        adoption: spec.adoption,
        policy: spec.management_policy,
        drop: false,
        oid: None,
    }
}

#[cfg(test)]
mod tests;
