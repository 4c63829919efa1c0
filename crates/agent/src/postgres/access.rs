//! Roles and what they may do: the catalogue is read, [`machine::access::plan`] says what is missing, and that is run.

use std::collections::BTreeSet;

use api::user::{ManagementPolicy, PlannedStatement};
use machine::access::{
    Attributes, Catalogue, Declared, Object, Plan, Privilege, RelationKind, Secret, Statement, Step, mark, plan,
};
use tokio_postgres::types::Type;

use super::members::SILENTLY;
use super::quote::{identifier, literal};
use super::sql::{Sql, SqlError};

/// What became of a declared role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// UID of the DatabaseUser.
    pub uid: String,
    /// The role's OID, if it is there and was made for this DatabaseUser.
    pub oid: Option<u32>,
    /// What was missing.
    pub plan: Plan,
    /// What is missing still.
    pub left: Plan,
    /// Why not all of that was run, in PostgreSQL's words.
    pub error: Option<String>,
}

/// Privileges on something, by the role that has them from the owner. `{acl}` and `{owner}` are columns.
const ACL: &str = "(SELECT coalesce(jsonb_object_agg(g.rolname, g.privileges), '{}') FROM (
    SELECT r.rolname, jsonb_agg(DISTINCT a.privilege_type) AS privileges
      FROM aclexplode({acl}) a JOIN pg_authid r ON r.oid = a.grantee
     WHERE a.grantor = {owner} AND a.grantee <> {owner} GROUP BY r.rolname) g)";

fn acl(column: &str, owner: &str) -> String {
    ACL.replace("{acl}", column).replace("{owner}", owner)
}

/// Roles, and databases without their content. The names are those of [`Catalogue`].
fn shared_query() -> String {
    format!(
        r#"SELECT jsonb_build_object(
            'roles', (SELECT jsonb_object_agg(r.rolname, jsonb_build_object(
                'oid', r.oid::int8,
                'attributes', jsonb_build_object(
                    'login', r.rolcanlogin,
                    'connection_limit', nullif(r.rolconnlimit, -1),
                    'valid_until', CASE WHEN r.rolvaliduntil < '9999-12-30' THEN to_char(
                        greatest(r.rolvaliduntil, '0001-01-01 00:00:00+00') AT TIME ZONE 'UTC',
                        'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END),
                'has_groups', EXISTS (SELECT FROM pg_auth_members m WHERE m.member = r.oid),
                'is_mighty', r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls,
                'verifier', r.rolpassword,
                'comment', shobj_description(r.oid, 'pg_authid'))) FROM pg_authid r),
            'databases', (SELECT jsonb_object_agg(d.datname, jsonb_build_object(
                'owner', pg_get_userbyid(d.datdba), 'acl', {}, 'schemas', '{{}}'::jsonb))
              FROM pg_database d WHERE d.datallowconn AND NOT d.datistemplate AND d.datconnlimit <> -2))::text"#,
        acl("d.datacl", "d.datdba")
    )
}

/// The content of the database that it runs in: the schemas of [`Database`].
fn content_query() -> String {
    format!(
        "SELECT coalesce(jsonb_object_agg(n.nspname, jsonb_build_object(
            'owner', pg_get_userbyid(n.nspowner),
            'acl', {},
            'relations', (SELECT coalesce(jsonb_object_agg(c.relname, jsonb_build_object(
                'kind', CASE c.relkind WHEN 'S' THEN 'Sequence' ELSE 'Table' END,
                'owner', pg_get_userbyid(c.relowner), 'acl', {})), '{{}}')
              FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')),
            'defaults', (SELECT coalesce(jsonb_object_agg(pg_get_userbyid(o.defaclrole), o.kinds), '{{}}') FROM (
                SELECT f.defaclrole, jsonb_object_agg(CASE f.defaclobjtype WHEN 'S' THEN 'Sequence' ELSE 'Table' END, {}) AS kinds
                  FROM pg_default_acl f WHERE f.defaclnamespace = n.oid AND f.defaclobjtype IN ('r', 'S')
                 GROUP BY f.defaclrole) o))), '{{}}')::text
          FROM pg_namespace n WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'",
        acl("n.nspacl", "n.nspowner"),
        acl("c.relacl", "c.relowner"),
        acl("f.defaclacl", "f.defaclrole")
    )
}

/// Databases in which something was granted to one of these roles.
const WHERE_GRANTED: &str = "SELECT DISTINCT d.datname::text FROM pg_shdepend s JOIN pg_database d ON d.oid = s.dbid
      JOIN pg_authid r ON r.oid = s.refobjid
     WHERE s.refclassid = 'pg_authid'::regclass AND s.deptype = 'a' AND r.rolname = ANY ($1)";

impl Sql {
    /// Runs what is missing of what is declared, each role for itself, and each database in a transaction of its own. A role is
    /// `Settled` without an error only if a second look at the catalogue finds nothing missing. A commit waits for the standbys that
    /// the durability asks for.
    ///
    /// # Errors
    /// As [`Sql::run`], if the catalogue cannot be read.
    pub async fn settle_access(&mut self, declared: &[Declared]) -> Result<Vec<Settled>, SqlError> {
        let mut known = self.catalogue(declared).await?;
        let others = declared.iter().map(|wanted| wanted.uid.as_str()).collect();
        let mut settled = Vec::new();
        for wanted in declared {
            let plan = planned(wanted, &known, &others);
            let mut error = None;
            if wanted.policy != ManagementPolicy::Observe {
                error = self.run_plan(&plan).await.err().map(|error| error.to_string());
                // The next one sees it: of two of one name the first has the role.
                for step in &plan.steps {
                    let _ = known.run(step.database.as_deref().unwrap_or(""), &step.statement);
                }
            }
            settled.push(Settled {
                uid: wanted.uid.clone(),
                oid: None,
                plan,
                left: Plan::default(),
                error,
            });
        }
        drop(known);
        let after = self.catalogue(declared).await?;
        for (wanted, settled) in declared.iter().zip(&mut settled) {
            let own = mark(&wanted.uid);
            let role = after.roles.get(&wanted.name);
            settled.oid = role
                .filter(|role| role.comment.as_ref() == Some(&own))
                .map(|role| role.oid);
            settled.left = planned(wanted, &after, &others);
            let missing = settled.left.steps.len();
            if settled.error.is_none() && wanted.policy != ManagementPolicy::Observe && missing > 0 {
                settled.error = Some(format!(
                    "PostgreSQL has taken the statements, and {missing} are missing still"
                ));
            }
        }
        Ok(settled)
    }

    /// The catalogue, with the content of the databases that matter to these roles.
    ///
    /// # Errors
    /// As [`Sql::run`].
    pub async fn catalogue(&mut self, declared: &[Declared]) -> Result<Catalogue, SqlError> {
        let mut catalogue: Catalogue = self.json(&shared_query()).await?;
        let names: Vec<&str> = declared.iter().map(|wanted| wanted.name.as_str()).collect();
        let granted = self
            .run(async |client| client.query_typed(WHERE_GRANTED, &[(&names, Type::TEXT_ARRAY)]).await)
            .await?;
        let granted = granted.iter().filter_map(|row| row.try_get::<_, String>(0).ok());
        let named = declared.iter().flat_map(|wanted| &wanted.grants);
        let all: BTreeSet<String> = named.map(|access| access.database.clone()).chain(granted).collect();
        for name in all {
            let Some(database) = catalogue.databases.get_mut(&name) else {
                continue;
            };
            match self.in_database(&name).json(&content_query()).await {
                Ok(schemas) => database.schemas = schemas,
                // The roles that have nothing to do with it need not wait for it.
                Err(SqlError::Refused(why)) => {
                    catalogue.databases.remove(&name);
                    catalogue.unreadable.insert(name, why);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(catalogue)
    }

    async fn json<T: serde::de::DeserializeOwned>(&mut self, query: &str) -> Result<T, SqlError> {
        let row = self
            .run(async |client| client.query_typed_one(query, &[]).await)
            .await?;
        let broken = |error: &dyn std::fmt::Display| SqlError::Broken(error.to_string());
        let text: String = row.try_get(0).map_err(|error| broken(&error))?;
        serde_json::from_str(&text).map_err(|error| broken(&error))
    }

    /// Runs what belongs to one database after the other. What fails in one keeps nothing from being done in the next, but what
    /// fails about the role itself does.
    async fn run_plan(&mut self, plan: &Plan) -> Result<(), SqlError> {
        let mut rest = plan.steps.as_slice();
        let mut done = Ok(());
        while let Some(first) = rest.first() {
            let same = rest.iter().take_while(|step| step.database == first.database).count();
            let (now, later) = rest.split_at(same);
            match &first.database {
                None => self.run_steps(now).await?,
                Some(database) => done = done.and(self.in_database(database).run_steps(now).await),
            }
            rest = later;
        }
        done
    }

    /// Runs them in one transaction.
    async fn run_steps(&mut self, steps: &[Step]) -> Result<(), SqlError> {
        let statements: Vec<String> = steps.iter().map(|step| render(&step.statement)).collect();
        let statements = statements.join("; ");
        // Event triggers would run as a superuser, and their functions may belong to anybody.
        let script = format!(
            "{SILENTLY}; SET LOCAL synchronous_commit = on; SET LOCAL session_replication_role = replica; {statements}; COMMIT"
        );
        self.run(async |client| super::members::silently(client, &script).await)
            .await?;
        for step in steps {
            let PlannedStatement { database, sql, .. } = told(step);
            tracing::info!(database, sql, "done for a DatabaseUser");
        }
        Ok(())
    }
}

fn planned(wanted: &Declared, catalogue: &Catalogue, others: &BTreeSet<&str>) -> Plan {
    plan(wanted, catalogue, others, |stored, wanted| stored == wanted)
}

/// A statement for people: without a verifier.
pub fn told(step: &Step) -> PlannedStatement {
    let hidden = match &step.statement {
        Statement::SetVerifier { name, verifier } => Some(Statement::SetVerifier {
            name: name.clone(),
            verifier: verifier.as_ref().map(|_| Secret("…".to_owned())),
        }),
        Statement::CreateRole { .. }
        | Statement::AlterRole { .. }
        | Statement::Comment { .. }
        | Statement::DropRole { .. }
        | Statement::Grant { .. }
        | Statement::Revoke { .. } => None,
    };
    PlannedStatement {
        database: step.database.clone(),
        sql: render(hidden.as_ref().unwrap_or(&step.statement)),
        takes: step.takes,
    }
}

/// The statement in SQL. Every name and every text goes through its quoting function.
fn render(statement: &Statement) -> String {
    match statement {
        Statement::CreateRole { name, attributes } => {
            format!("CREATE ROLE {} {}", identifier(name), options(attributes))
        }
        Statement::AlterRole { name, attributes } => format!("ALTER ROLE {} {}", identifier(name), options(attributes)),
        Statement::SetVerifier { name, verifier } => {
            let verifier = verifier
                .as_ref()
                .map_or("NULL".to_owned(), |verifier| literal(&verifier.0));
            format!("ALTER ROLE {} PASSWORD {verifier}", identifier(name))
        }
        Statement::Comment { name, text } => format!("COMMENT ON ROLE {} IS {}", identifier(name), literal(text)),
        Statement::DropRole { name } => format!("DROP ROLE {}", identifier(name)),
        Statement::Grant { on, privileges, to } => change("GRANT", on, privileges, "TO", to),
        Statement::Revoke { on, privileges, from } => change("REVOKE", on, privileges, "FROM", from),
    }
}

fn options(attributes: &Attributes) -> String {
    let login = if attributes.login { "LOGIN" } else { "NOLOGIN" };
    let limit = attributes.connection_limit.map_or(-1, i64::from);
    let until = attributes
        .valid_until
        .map_or("infinity".to_owned(), |time| time.to_rfc3339());
    let until = literal(&until);
    format!(
        "NOSUPERUSER NOCREATEDB NOCREATEROLE INHERIT NOREPLICATION NOBYPASSRLS {login} CONNECTION LIMIT {limit} VALID UNTIL {until}"
    )
}

fn change(verb: &str, on: &Object, privileges: &BTreeSet<Privilege>, preposition: &str, role: &str) -> String {
    let privileges: Vec<&str> = privileges.iter().map(|privilege| privilege.as_str()).collect();
    let (privileges, role) = (privileges.join(", "), identifier(role));
    let changes = |on: String| format!("{verb} {privileges} ON {on} {preposition} {role}");
    let of_kind = |kind: &RelationKind| match kind {
        RelationKind::Table => "TABLE",
        RelationKind::Sequence => "SEQUENCE",
    };
    match on {
        Object::Database(name) => changes(format!("DATABASE {}", identifier(name))),
        Object::Schema(name) => changes(format!("SCHEMA {}", identifier(name))),
        Object::Relation { schema, name, kind } => {
            changes(format!("{} {}.{}", of_kind(kind), identifier(schema), identifier(name)))
        }
        Object::Future { schema, owner, kind } => format!(
            "ALTER DEFAULT PRIVILEGES FOR ROLE {} IN SCHEMA {} {}",
            identifier(owner),
            identifier(schema),
            changes(format!("{}S", of_kind(kind)))
        ),
    }
}
