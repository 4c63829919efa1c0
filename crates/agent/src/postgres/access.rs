//! Roles, databases and grants: the catalogue is read, [`machine::access::plan`] says what is missing, and that is run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::declared::{ManagementPolicy, PlannedStatement};
use chrono::{DateTime, Utc};
use machine::access::{
    Attributes, Available, Batch, Catalogue, Closed, Content, DatabaseChange, Declared, ExtensionChange, Going, LOOKUP,
    LOOKUP_DATABASE, Membership, Object, POOLER_ROLE, Plan, Privilege, RelationKind, SchemaChange, Secret, Statement,
    Step, plan,
};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::members::SILENTLY;
use super::quote::{identifier, literal};
use super::sql::{SLOW, Sql, SqlError};

/// What became of a declared role or database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// UID of the resource.
    pub uid: String,
    /// The OID of what is there and was made for this resource.
    pub oid: Option<u32>,
    /// What was missing.
    pub plan: Plan,
    /// What is missing still.
    pub left: Plan,
    /// Why not all of that was run, in PostgreSQL's words.
    pub error: Option<String>,
    /// When that was over, by PostgreSQL's clock.
    pub at: DateTime<Utc>,
}

impl Settled {
    /// What was missing and is there now.
    pub fn ran(&self) -> impl Iterator<Item = &Step> {
        self.plan.steps.iter().filter(|step| !self.left.steps.contains(step))
    }
}

/// Privileges on something, by the role that has them from the owner. `{acl}` and `{owner}` are columns.
const ACL: &str = "(SELECT coalesce(jsonb_object_agg(g.rolname, g.privileges), '{}') FROM (
    SELECT r.rolname, jsonb_agg(DISTINCT a.privilege_type) AS privileges
      FROM aclexplode({acl}) a JOIN pg_authid r ON r.oid = a.grantee
     WHERE a.grantor = {owner} AND a.grantee <> {owner} GROUP BY r.rolname) g)";

fn acl(column: &str, owner: &str) -> String {
    ACL.replace("{acl}", column).replace("{owner}", owner)
}

/// Time limit of a statement that makes or drops a database or an extension: it copies or removes files.
const LONG: Duration = Duration::from_secs(60);
/// Beyond it nothing more is heard of such a statement.
const LONG_ANSWER: Duration = Duration::from_secs(65);

/// Roles, and databases without their content. The names are those of [`Catalogue`].
fn shared_query() -> String {
    format!(
        r#"SELECT jsonb_build_object(
            'plain_memberships', {PLAIN},
            'now', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
            'roles', (SELECT jsonb_object_agg(r.rolname, jsonb_build_object(
                'oid', r.oid::int8,
                'attributes', jsonb_build_object(
                    'login', r.rolcanlogin,
                    'connection_limit', nullif(r.rolconnlimit, -1),
                    'valid_until', CASE WHEN r.rolvaliduntil < '9999-12-30' THEN to_char(
                        greatest(r.rolvaliduntil, '0001-01-01 00:00:00+00') AT TIME ZONE 'UTC',
                        'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END),
                'member_of', (SELECT coalesce(jsonb_object_agg(g.rolname, jsonb_build_object('admin', m.admin_option,
                        'inherit', coalesce((to_jsonb(m)->>'inherit_option')::bool, true),
                        'set', coalesce((to_jsonb(m)->>'set_option')::bool, true))), '{{}}')
                   FROM pg_auth_members m JOIN pg_authid g ON g.oid = m.roleid
                  WHERE m.member = r.oid AND (m.grantor = {BOOTSTRAP} OR {PLAIN})),
                'groups', (SELECT coalesce(jsonb_agg(DISTINCT g.rolname), '[]')
                   FROM pg_auth_members m JOIN pg_authid g ON g.oid = m.roleid WHERE m.member = r.oid),
                'sessions', coalesce(a.sessions, 0),
                'is_mighty', r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls,
                'verifier', r.rolpassword,
                'comment', shobj_description(r.oid, 'pg_authid')))
              FROM pg_authid r LEFT JOIN (
                SELECT a.usesysid, count(*) AS sessions FROM pg_stat_activity a
                 WHERE a.backend_type = 'client backend' AND a.pid <> pg_backend_pid() GROUP BY a.usesysid) a ON a.usesysid = r.oid),
            'databases', (SELECT jsonb_object_agg(d.datname, jsonb_build_object(
                'owner', pg_get_userbyid(d.datdba), 'acl', {}, 'schemas', '{{}}'::jsonb,
                'oid', d.oid::int8, 'comment', shobj_description(d.oid, 'pg_database'),
                'connection_limit', nullif(d.datconnlimit, -1),
                'public', (SELECT coalesce(jsonb_agg(DISTINCT a.privilege_type), '[]')
                   FROM aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a
                  WHERE a.grantee = 0 AND a.grantor = d.datdba),
                'encoding', pg_encoding_to_char(d.encoding), 'locale', d.datcollate))
              FROM pg_database d WHERE {OPEN}),
            'closed', (SELECT jsonb_object_agg(d.datname, jsonb_build_object(
                'oid', d.oid::int8, 'owner', pg_get_userbyid(d.datdba), 'comment', shobj_description(d.oid, 'pg_database'),
                'is_invalid', d.datconnlimit = -2))
              FROM pg_database d WHERE NOT ({OPEN})))::text"#,
        acl("d.datacl", "d.datdba")
    )
}

/// The OID of the superuser that `initdb` makes. Since PostgreSQL 16 it counts as the grantor of what any superuser grants.
const BOOTSTRAP: u32 = 10;
/// A membership has no options of its own but ADMIN, and one grantor, whom nobody asks.
const PLAIN: &str = "current_setting('server_version_num')::int < 160000";

/// Databases that take connections and are no templates.
const OPEN: &str = "d.datallowconn AND NOT d.datistemplate AND d.datconnlimit <> -2";

/// Extensions that can be made.
const AVAILABLE: &str = "WITH versions AS MATERIALIZED (
        SELECT v.name, jsonb_object_agg(v.version, jsonb_build_object(
                'schema', v.schema, 'requires', coalesce(to_jsonb(v.requires), '[]'))) AS all
          FROM pg_available_extension_versions v GROUP BY v.name)
    SELECT coalesce(jsonb_object_agg(e.name, jsonb_build_object(
                'default_version', e.default_version, 'versions', v.all)), '{}')::text
      FROM pg_available_extensions e JOIN versions v ON v.name = e.name WHERE e.default_version IS NOT NULL";

/// What is in the database that it runs in: [`Content`].
fn content_query() -> String {
    format!(
        "SELECT jsonb_build_object('schemas', (SELECT coalesce(jsonb_object_agg(n.nspname, jsonb_build_object(
            'owner', pg_get_userbyid(n.nspowner),
            'acl', {},
            'relations', (SELECT coalesce(jsonb_object_agg(c.relname, jsonb_build_object(
                'kind', CASE c.relkind WHEN 'S' THEN 'Sequence' ELSE 'Table' END,
                'owner', pg_get_userbyid(c.relowner), 'acl', {})), '{{}}')
              FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')),
            'defaults', (SELECT coalesce(jsonb_object_agg(pg_get_userbyid(o.defaclrole), o.kinds), '{{}}') FROM (
                SELECT f.defaclrole, jsonb_object_agg(CASE f.defaclobjtype WHEN 'S' THEN 'Sequence' ELSE 'Table' END, {}) AS kinds
                  FROM pg_default_acl f WHERE f.defaclnamespace = n.oid AND f.defaclobjtype IN ('r', 'S')
                 GROUP BY f.defaclrole) o))), '{{}}')
          FROM pg_namespace n WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'),
        'extensions', (SELECT coalesce(jsonb_object_agg(x.extname, jsonb_build_object(
                'version', x.extversion, 'schema', n.nspname)), '{{}}')
          FROM pg_extension x JOIN pg_namespace n ON n.oid = x.extnamespace))::text",
        acl("n.nspacl", "n.nspowner"),
        acl("c.relacl", "c.relowner"),
        acl("f.defaclacl", "f.defaclrole")
    )
}

/// OID of a database, and the number of its clients' sessions.
const SESSIONS: &str = "SELECT d.oid::int8, (SELECT count(*) FROM pg_stat_activity a
         WHERE a.datid = d.oid AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid())
      FROM pg_database d WHERE d.datname = $1";

/// Databases in which something was granted to one of these roles.
const WHERE_GRANTED: &str = "SELECT DISTINCT d.datname::text FROM pg_shdepend s JOIN pg_database d ON d.oid = s.dbid
      JOIN pg_authid r ON r.oid = s.refobjid
     WHERE s.refclassid = 'pg_authid'::regclass AND s.deptype = 'a' AND r.rolname = ANY ($1)";

/// Databases in which one of these roles owns something, and which role.
const WHERE_OWNING: &str = "SELECT DISTINCT r.rolname::text, d.datname::text FROM pg_shdepend s
      JOIN pg_database d ON d.oid = s.dbid JOIN pg_authid r ON r.oid = s.refobjid
     WHERE s.refclassid = 'pg_authid'::regclass AND s.deptype = 'o' AND r.rolname = ANY ($1)";

impl Sql {
    /// Runs what is missing of what is declared, each for itself, and each database in a transaction of its own. What waits for
    /// something that is made meanwhile is planned once more. Something is `Settled` without an error only if a second look at the
    /// catalogue finds nothing missing. A commit waits for the standbys that the durability asks for.
    ///
    /// # Errors
    /// As [`Sql::run`], if the catalogue cannot be read.
    pub async fn settle_access(&mut self, declared: &[Declared]) -> Result<Vec<Settled>, SqlError> {
        let others: BTreeSet<&str> = declared.iter().map(Declared::uid).collect();
        let mut settled: Vec<Settled> = declared.iter().map(|wanted| Settled::of(wanted.uid())).collect();
        let waiting = self
            .settle_once(declared, in_order(declared), &others, &mut settled)
            .await?;
        if settled.iter().any(|settled| !settled.plan.steps.is_empty()) && !waiting.is_empty() {
            self.settle_once(declared, waiting, &others, &mut settled).await?;
        }
        let after = self.catalogue(declared).await?;
        for (wanted, settled) in declared.iter().zip(&mut settled) {
            settled.at = after.now;
            settled.oid = wanted.oid(&after);
            settled.left = planned(wanted, &after, &others);
            let missing = settled.left.steps.len();
            if settled.error.is_none() && wanted.policy() != ManagementPolicy::Observe && missing > 0 {
                settled.error = Some(format!(
                    "PostgreSQL has taken the statements, and {missing} are missing still"
                ));
            }
        }
        Ok(settled)
    }

    /// Plans and runs those with these numbers. Returns the numbers of those that wait for something.
    async fn settle_once(
        &mut self,
        declared: &[Declared],
        numbers: Vec<usize>,
        others: &BTreeSet<&str>,
        settled: &mut [Settled],
    ) -> Result<Vec<usize>, SqlError> {
        let mut known = self.catalogue(declared).await?;
        let mut waiting = Vec::new();
        for number in numbers {
            let (wanted, settled) = (&declared[number], &mut settled[number]);
            let plan = planned(wanted, &known, others);
            if wanted.policy() != ManagementPolicy::Observe {
                settled.error = self
                    .run_plan(&plan, &mut known)
                    .await
                    .err()
                    .map(|error| error.to_string());
            }
            if plan.waits.is_some() {
                waiting.push(number);
            }
            settled.plan.steps.extend(plan.steps);
            (settled.plan.refusal, settled.plan.waits) = (plan.refusal, plan.waits);
        }
        Ok(waiting)
    }

    /// The catalogue, with the content of the databases that matter to what is declared.
    ///
    /// # Errors
    /// As [`Sql::run`].
    pub async fn catalogue(&mut self, declared: &[Declared]) -> Result<Catalogue, SqlError> {
        let mut catalogue: Catalogue = self.json(&shared_query()).await?;
        let mut names: Vec<&str> = Vec::new();
        let mut all: BTreeSet<String> = BTreeSet::new();
        for wanted in declared {
            match wanted {
                Declared::Role(role) => {
                    names.push(&role.name);
                    all.extend(role.grants.iter().map(|access| access.database.clone()));
                }
                Declared::Database(database) => all.extend((!database.drop).then(|| database.name.clone())),
                // The content of that database is not looked at.
                Declared::Pooler(_) => {}
            }
        }
        let granted = self
            .run(async |client| client.query_typed(WHERE_GRANTED, &[(&names, Type::TEXT_ARRAY)]).await)
            .await?;
        all.extend(granted.iter().filter_map(|row| row.try_get::<_, String>(0).ok()));
        self.read_owned(declared, &mut catalogue).await?;
        for name in all {
            let Some(database) = catalogue.databases.get_mut(&name) else {
                continue;
            };
            match self.in_database(&name).json::<Content>(&content_query()).await {
                Ok(content) => (database.schemas, database.extensions) = (content.schemas, content.extensions),
                // Those that have nothing to do with it need not wait for it.
                Err(error @ (SqlError::Refused(_) | SqlError::Silent(_))) => {
                    let closed = Closed {
                        oid: database.oid,
                        owner: database.owner.clone(),
                        comment: database.comment.clone(),
                        is_invalid: false,
                    };
                    catalogue.databases.remove(&name);
                    catalogue.closed.insert(name.clone(), closed);
                    catalogue.unreadable.insert(name, error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        if declared.iter().any(|wanted| matches!(wanted, Declared::Pooler(_))) {
            self.read_lookup(&mut catalogue).await?;
        }
        let has_extensions =
            |wanted: &Declared| matches!(wanted, Declared::Database(database) if !database.extensions.is_empty());
        if declared.iter().any(has_extensions) {
            catalogue.available = self.available().await?;
        }
        Ok(catalogue)
    }

    /// Reads whether the function for poolers is there as it should be.
    async fn read_lookup(&mut self, catalogue: &mut Catalogue) -> Result<(), SqlError> {
        if !catalogue.databases.contains_key(LOOKUP_DATABASE) {
            return Ok(());
        }
        let query = has_lookup();
        match self.in_database(LOOKUP_DATABASE).json(&query).await {
            Ok(has_lookup) => catalogue.has_lookup = has_lookup,
            Err(error @ (SqlError::Refused(_) | SqlError::Silent(_))) => {
                catalogue
                    .unreadable
                    .insert(LOOKUP_DATABASE.to_owned(), error.to_string());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reads where roles own something that is to be given to another one.
    async fn read_owned(&mut self, declared: &[Declared], catalogue: &mut Catalogue) -> Result<(), SqlError> {
        let gives = |wanted: &Declared| match wanted {
            Declared::Role(role) => {
                matches!(role.going, Some(Going::Drop { reassign_to: Some(_) })).then(|| role.name.clone())
            }
            Declared::Database(_) | Declared::Pooler(_) => None,
        };
        let names: Vec<String> = declared.iter().filter_map(gives).collect();
        if names.is_empty() {
            return Ok(());
        }
        let owning = self
            .run(async |client| client.query_typed(WHERE_OWNING, &[(&names, Type::TEXT_ARRAY)]).await)
            .await?;
        for row in &owning {
            let found = row.try_get(0).and_then(|role: String| Ok((role, row.try_get(1)?)));
            let (role, database) = found.map_err(|error| SqlError::Broken(error.to_string()))?;
            if let Some(role) = catalogue.roles.get_mut(&role) {
                role.owns_in.insert(database);
            }
        }
        Ok(())
    }

    /// Extensions that can be made.
    async fn available(&mut self) -> Result<BTreeMap<String, Available>, SqlError> {
        match self.json(AVAILABLE).await {
            // The control file of one extension is broken, and PostgreSQL lists none. Databases without extensions go on.
            Err(SqlError::Refused(error)) => {
                tracing::error!("read which extensions the image has: {error}");
                Ok(BTreeMap::new())
            }
            read => read,
        }
    }

    async fn json<T: serde::de::DeserializeOwned>(&mut self, query: &str) -> Result<T, SqlError> {
        let row = self
            .run(async |client| client.query_typed_one(query, &[]).await)
            .await?;
        let broken = |error: &dyn std::fmt::Display| SqlError::Broken(error.to_string());
        let text: String = row.try_get(0).map_err(|error| broken(&error))?;
        serde_json::from_str(&text).map_err(|error| broken(&error))
    }

    /// Runs one batch after the other, and has `known` say so. What fails in one database keeps nothing from being done in the next,
    /// but what fails about the role or database itself does.
    async fn run_plan(&mut self, plan: &Plan, known: &mut Catalogue) -> Result<(), SqlError> {
        let mut done = Ok(());
        for batch in plan.batches() {
            let ran = match batch.database {
                None if batch.alone => self.run_alone(batch.steps).await,
                None => self.run_steps(batch.steps).await,
                Some(database) => self.in_database(database).run_steps(batch.steps).await,
            };
            match ran {
                // The next one sees it: of two of one name the first has the role.
                Ok(()) => model(&batch, known),
                Err(error) if batch.database.is_none() && !batch.memberships => return done.and(Err(error)),
                Err(error) => done = done.and(Err(error)),
            }
        }
        done
    }

    /// Runs them in one transaction.
    async fn run_steps(&mut self, steps: &[Step]) -> Result<(), SqlError> {
        let statements: Vec<String> = steps.iter().map(|step| render(&step.statement)).collect();
        let statements = statements.join("; ");
        let is_long = |step: &Step| matches!(step.statement, Statement::Extension { .. });
        let (limit, more) = match steps.iter().any(is_long) {
            true => (
                LONG_ANSWER,
                format!("SET LOCAL statement_timeout = {}; ", LONG.as_millis()),
            ),
            false => (SLOW, String::new()),
        };
        // Event triggers would run as a superuser, and their functions may belong to anybody.
        let script = format!(
            "{SILENTLY}; SET LOCAL synchronous_commit = on; SET LOCAL session_replication_role = replica; {more}{statements}; COMMIT"
        );
        self.within(limit, async |client| super::members::silently(client, &script).await)
            .await?;
        tell_of(steps);
        Ok(())
    }

    /// Runs each in no transaction block, in a session of its own.
    async fn run_alone(&self, steps: &[Step]) -> Result<(), SqlError> {
        let settings = format!(
            "SET synchronous_commit = on; SET statement_timeout = {}",
            LONG.as_millis()
        );
        for step in steps {
            let statement = render(&step.statement);
            let work = async |client: &Client| {
                client.batch_execute(&settings).await?;
                client.batch_execute(&statement).await
            };
            let mut session = self.another();
            if let Statement::Database {
                name,
                change: DatabaseChange::Drop { oid },
            } = &step.statement
            {
                session.may_be_dropped(name, *oid).await?;
            }
            session.within(LONG_ANSWER, work).await?;
        }
        tell_of(steps);
        Ok(())
    }

    /// Looks once more just before a drop. PostgreSQL itself would hold up those who connect for five seconds before it refuses to drop
    /// a database that has sessions.
    async fn may_be_dropped(&mut self, name: &str, oid: u32) -> Result<(), SqlError> {
        let found = self
            .run(async |client| client.query_typed_opt(SESSIONS, &[(&name, Type::TEXT)]).await)
            .await?;
        let Some(found) = found else { return Ok(()) };
        let broken = |error: tokio_postgres::Error| SqlError::Broken(error.to_string());
        let there: i64 = found.try_get(0).map_err(broken)?;
        let sessions: i64 = found.try_get(1).map_err(broken)?;
        if there != i64::from(oid) {
            return Err(SqlError::Refused(format!("database {name} is another one by now")));
        }
        match sessions {
            0 => Ok(()),
            1 => Err(SqlError::Refused(format!("database {name} has a session"))),
            more => Err(SqlError::Refused(format!("database {name} has {more} sessions"))),
        }
    }
}

fn tell_of(steps: &[Step]) {
    for step in steps {
        let PlannedStatement { database, sql, .. } = told(step);
        tracing::info!(database, sql, "done for what is declared");
    }
}

fn model(batch: &Batch<'_>, known: &mut Catalogue) {
    for step in batch.steps {
        let _ = known.run(batch.database.unwrap_or(""), &step.statement);
    }
}

impl Settled {
    fn of(uid: &str) -> Self {
        Self {
            uid: uid.to_owned(),
            ..Self::default()
        }
    }
}

/// The numbers of what is declared in the order in which it is settled: roles first, since they own databases.
fn in_order(declared: &[Declared]) -> Vec<usize> {
    let is_role = |number: &usize| matches!(declared[*number], Declared::Role(_));
    let (roles, databases): (Vec<usize>, Vec<usize>) = (0..declared.len()).partition(is_role);
    roles.into_iter().chain(databases).collect()
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
        | Statement::GrantRole { .. }
        | Statement::RevokeRole { .. }
        | Statement::EndSessions { .. }
        | Statement::Reassign { .. }
        | Statement::Database { .. }
        | Statement::Schema { .. }
        | Statement::Extension { .. }
        | Statement::MakeLookup
        | Statement::Grant { .. }
        | Statement::Revoke { .. } => None,
    };
    PlannedStatement {
        database: step.database.clone(),
        sql: render(hidden.as_ref().unwrap_or(&step.statement)),
        takes: step.takes,
        locks: step.statement.locks().map(str::to_owned),
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
        Statement::GrantRole {
            role,
            to,
            membership,
            plain,
        } => format!(
            "GRANT {} TO {}{}",
            identifier(role),
            identifier(to),
            member_options(membership, *plain)
        ),
        Statement::RevokeRole { role, from } => format!("REVOKE {} FROM {}", identifier(role), identifier(from)),
        // The second time waits until each has ended.
        Statement::EndSessions { name } => [", 0", ", 5000"]
            .map(|wait| {
                let name = literal(name);
                format!("SELECT pg_terminate_backend(pid{wait}) FROM pg_stat_activity WHERE usename = {name}")
            })
            .join("; "),
        Statement::Reassign { from, to } => {
            format!("REASSIGN OWNED BY {} TO {}", identifier(from), identifier(to))
        }
        Statement::Database { name, change } => of_database(&identifier(name), change),
        Statement::Schema { name, change } => match change {
            SchemaChange::Create { owner } => {
                format!("CREATE SCHEMA {} AUTHORIZATION {}", identifier(name), identifier(owner))
            }
            SchemaChange::SetOwner(owner) => {
                format!("ALTER SCHEMA {} OWNER TO {}", identifier(name), identifier(owner))
            }
        },
        Statement::Extension { name, change } => of_extension(&identifier(name), change),
        Statement::MakeLookup => make_lookup(),
        Statement::Grant { on, privileges, to } => change("GRANT", on, privileges, "TO", to),
        Statement::Revoke { on, privileges, from } => change("REVOKE", on, privileges, "FROM", from),
    }
}

/// What the function for poolers runs, as its owner, a superuser: every name in it is PostgreSQL's own.
const LOOKUP_BODY: &str = "
    SELECT a.rolname::pg_catalog.text, a.rolpassword FROM pg_catalog.pg_authid a
     WHERE a.rolname::pg_catalog.text OPERATOR(pg_catalog.=) wanted
       AND a.rolcanlogin AND NOT (a.rolsuper OR a.rolreplication)
       AND a.rolpassword OPERATOR(pg_catalog.~) '^SCRAM-SHA-256[$]'
       AND (a.rolvaliduntil IS NULL OR a.rolvaliduntil OPERATOR(pg_catalog.>) pg_catalog.now())";
const LOOKUP_PATH: &str = "pg_catalog, pg_temp";

/// The schema is made anew: whatever somebody has put there under its name goes.
fn make_lookup() -> String {
    let (schema, role) = (identifier(POOLER_ROLE), identifier(POOLER_ROLE));
    format!(
        "DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}; \
         CREATE FUNCTION {LOOKUP}(wanted pg_catalog.text, OUT role pg_catalog.text, OUT verifier pg_catalog.text) \
         RETURNS SETOF record LANGUAGE sql STABLE STRICT SECURITY DEFINER SET search_path = {LOOKUP_PATH} AS {}; \
         REVOKE ALL ON FUNCTION {LOOKUP}(pg_catalog.text) FROM PUBLIC; GRANT USAGE ON SCHEMA {schema} TO {role}; \
         GRANT EXECUTE ON FUNCTION {LOOKUP}(pg_catalog.text) TO {role}",
        literal(LOOKUP_BODY)
    )
}

/// Whether [`make_lookup`] was run, and nothing of it has changed.
fn has_lookup() -> String {
    format!(
        "SELECT coalesce((SELECT count(*) = 1 AND bool_and(p.proname = 'lookup' AND p.prosrc = {} AND p.prosecdef
                AND p.proowner = {BOOTSTRAP} AND n.nspowner = {BOOTSTRAP} AND p.proconfig = ARRAY[{}]
                AND pg_get_function_identity_arguments(p.oid) = 'wanted text, OUT role text, OUT verifier text'
                AND p.proacl::text = format('{{%1$s=X/%1$s,%2$s=X/%1$s}}', quote_ident(pg_get_userbyid({BOOTSTRAP})), {role})
                AND n.nspacl::text = format('{{%1$s=UC/%1$s,%2$s=U/%1$s}}', quote_ident(pg_get_userbyid({BOOTSTRAP})), {role}))
           FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = {role}), false)::text",
        literal(LOOKUP_BODY),
        literal(&format!("search_path={LOOKUP_PATH}")),
        role = literal(POOLER_ROLE),
    )
}

fn member_options(membership: &Membership, plain: bool) -> String {
    let word = |is| if is { "TRUE" } else { "FALSE" };
    match (plain, membership.admin) {
        (true, true) => " WITH ADMIN OPTION".to_owned(),
        (true, false) => String::new(),
        (false, admin) => format!(
            " WITH ADMIN {}, INHERIT {}, SET {}",
            word(admin),
            word(membership.inherit),
            word(membership.set)
        ),
    }
}

/// `name` is quoted.
fn of_database(name: &str, change: &DatabaseChange) -> String {
    match change {
        DatabaseChange::Create { owner, locale } => {
            let owner = identifier(owner);
            let locale = locale
                .as_ref()
                .map_or(String::new(), |locale| format!(" LOCALE {}", literal(locale)));
            format!(
                "CREATE DATABASE {name} OWNER {owner} TEMPLATE template0 ENCODING 'UTF8'{locale} ALLOW_CONNECTIONS false"
            )
        }
        DatabaseChange::Comment(text) => format!("COMMENT ON DATABASE {name} IS {}", literal(text)),
        DatabaseChange::Rename { to } => format!("ALTER DATABASE {name} RENAME TO {}", identifier(to)),
        DatabaseChange::Open => format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true"),
        DatabaseChange::Limit(limit) => {
            format!("ALTER DATABASE {name} CONNECTION LIMIT {}", limit.map_or(-1, i64::from))
        }
        DatabaseChange::SetOwner(owner) => format!("ALTER DATABASE {name} OWNER TO {}", identifier(owner)),
        DatabaseChange::SetPublic(true) => format!("GRANT CONNECT, TEMPORARY ON DATABASE {name} TO PUBLIC"),
        DatabaseChange::SetPublic(false) => format!("REVOKE CONNECT, TEMPORARY ON DATABASE {name} FROM PUBLIC"),
        DatabaseChange::Drop { .. } => format!("DROP DATABASE {name}"),
    }
}

/// `name` is quoted.
fn of_extension(name: &str, change: &ExtensionChange) -> String {
    match change {
        ExtensionChange::Create { version, schema } => {
            // The search path has PostgreSQL's own schema only, which is no place for it.
            let schema = schema
                .as_ref()
                .map_or(String::new(), |schema| format!(" SCHEMA {}", identifier(schema)));
            let version = version
                .as_ref()
                .map_or(String::new(), |version| format!(" VERSION {}", literal(version)));
            format!("CREATE EXTENSION IF NOT EXISTS {name}{schema}{version}")
        }
        ExtensionChange::Update { to } => format!("ALTER EXTENSION {name} UPDATE TO {}", literal(to)),
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
