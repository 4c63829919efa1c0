//! The members' replication roles and slots on the primary, and the application's password.

use std::collections::BTreeSet;

use machine::protocol::MemberId;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::quote::{identifier, literal};
use super::{MEMBERS_ROLE, Sql, SqlError, Verifier, blocking};

/// Drops a slot unless it is in use.
const DROP_SLOT: &str = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
    WHERE slot_name = $1 AND slot_type = 'physical' AND NOT active";

/// A member that may clone and stream, because its role and slot exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standby {
    /// The member.
    pub member: MemberId,
    /// The slot keeps WAL for it.
    pub reserved: bool,
}

impl Sql {
    /// Makes a member's replication role and its slot, which keeps WAL from now on. Does nothing if they exist. An
    /// unused slot whose WAL is lost is dropped and made again.
    ///
    /// # Errors
    /// As [`Sql::run`].
    pub async fn ensure_member(&mut self, member: &MemberId) -> Result<Standby, SqlError> {
        let reserved = self
            .run(async |client| {
                ensure_role(client, member.as_str()).await?;
                ensure_rewind(client).await?;
                ensure_slot(client, member.as_str()).await
            })
            .await?;
        Ok(Standby {
            member: member.clone(),
            reserved,
        })
    }

    /// Makes the slots of `members`, also on a standby. Does nothing for slots that exist.
    ///
    /// # Errors
    /// As [`Sql::run`].
    pub(super) async fn ensure_slots(&mut self, members: &BTreeSet<MemberId>) -> Result<(), SqlError> {
        self.run(async |client| {
            for member in members {
                ensure_slot(client, member.as_str()).await?;
            }
            Ok(())
        })
        .await
    }

    /// Drops the slots of members other than `wanted`. If such a slot is in use, ends its stream instead. Returns how
    /// many were in use.
    ///
    /// # Errors
    /// As [`Sql::run`].
    pub(super) async fn drop_slots_except(&mut self, wanted: &BTreeSet<MemberId>) -> Result<usize, SqlError> {
        const SLOTS: &str = "SELECT slot_name::text, active_pid FROM pg_replication_slots WHERE slot_type = 'physical'";
        const END: &str = "SELECT pg_terminate_backend($1)";
        self.run(async |client| {
            let mut used = 0;
            for row in client.query_typed(SLOTS, &[]).await? {
                let (name, user): (String, Option<i32>) = (row.try_get(0)?, row.try_get(1)?);
                if MemberId::parse(&name).is_none_or(|member| wanted.contains(&member)) {
                    continue;
                }
                if let Some(user) = user {
                    used += 1;
                    client.query_typed(END, &[(&user, Type::INT4)]).await?;
                } else {
                    client.query_typed(DROP_SLOT, &[(&name, Type::NAME)]).await?;
                }
            }
            Ok(used)
        })
        .await
    }

    /// Drops the slots of members other than `wanted`, and on a primary their roles. Returns the members whose slots
    /// were dropped.
    ///
    /// # Errors
    /// Fails with [`SqlError::Refused`] if some of the slots are in use; the others are dropped all the same. Else as
    /// [`Sql::run`].
    pub async fn drop_members_except(&mut self, wanted: &BTreeSet<MemberId>) -> Result<Vec<MemberId>, SqlError> {
        let (dropped, used) = self
            .run(async |client| {
                let (mut dropped, mut used) = (Vec::new(), Vec::new());
                for member in former_members(client, wanted).await? {
                    let done = drop_member(client, &member).await?;
                    if done { &mut dropped } else { &mut used }.push(member);
                }
                Ok((dropped, used))
            })
            .await?;
        if used.is_empty() {
            return Ok(dropped);
        }
        let used: Vec<&str> = used.iter().map(MemberId::as_str).collect();
        Err(SqlError::Refused(format!(
            "replication slots that are to go are still in use: {}",
            used.join(", ")
        )))
    }

    /// Sets the password of `role`, unless its stored verifier already matches `password`. Returns `true` if it was
    /// changed.
    ///
    /// # Errors
    /// Fails with [`SqlError::Refused`] if the role does not exist or the password cannot be used. Else as
    /// [`Sql::run`].
    pub async fn ensure_password(&mut self, role: &str, password: &str) -> Result<bool, SqlError> {
        const QUERY: &str = "SELECT rolpassword FROM pg_authid WHERE rolname = $1";
        let row = self
            .run(async |client| client.query_typed_opt(QUERY, &[(&role, Type::TEXT)]).await)
            .await?;
        let row = row.ok_or_else(|| SqlError::Refused(format!("role {role:?} does not exist")))?;
        let stored: Option<String> = row.try_get(0).map_err(|error| SqlError::Broken(error.to_string()))?;
        let password = password.to_owned();
        // The computation would hold up all other tasks of this thread.
        let verifier = blocking(move || {
            let stored = stored.as_deref().and_then(Verifier::parse);
            let differs = stored.is_none_or(|stored| !stored.matches(&password));
            differs.then(|| Verifier::of(&password)).transpose()
        });
        let Some(verifier) = verifier.await.map_err(|error| SqlError::Refused(error.to_string()))? else {
            return Ok(false);
        };
        self.set_verifier(role, &verifier).await?;
        Ok(true)
    }

    /// Sets the password of `role` by its verifier. PostgreSQL does not log the statement.
    ///
    /// # Errors
    /// As [`Sql::run`].
    pub async fn set_verifier(&mut self, role: &str, verifier: &Verifier) -> Result<(), SqlError> {
        let (role, verifier) = (identifier(role), literal(verifier.as_str()));
        let statement = format!("{SILENTLY}; ALTER ROLE {role} PASSWORD {verifier}; COMMIT");
        self.run(async |client| silently(client, &statement).await).await
    }
}

/// Begins a transaction whose statements are not logged, even if they fail.
pub(super) const SILENTLY: &str = "BEGIN; SET LOCAL log_statement = 'none'; SET LOCAL log_min_duration_statement = -1; \
     SET LOCAL log_min_duration_sample = -1; SET LOCAL log_duration = off; SET LOCAL log_min_error_statement = 'panic'";

/// Runs statements that begin with [`SILENTLY`]; if one fails, none takes effect.
pub(super) async fn silently(client: &Client, statements: &str) -> Result<(), Error> {
    let done = client.batch_execute(statements).await;
    if done.is_err() {
        client.batch_execute("ROLLBACK").await?;
    }
    done
}

async fn ensure_role(client: &Client, name: &str) -> Result<(), Error> {
    const QUERY: &str = "SELECT (SELECT count(*) FROM pg_roles WHERE rolname = $2) > 0,
        (SELECT rolcanlogin AND rolreplication AND NOT rolsuper FROM pg_roles WHERE rolname = $1),
        EXISTS (SELECT FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid JOIN pg_roles r ON r.oid = m.member
                 WHERE g.rolname = $2 AND r.rolname = $1)";
    let row = client
        .query_typed_one(QUERY, &[(&name, Type::TEXT), (&MEMBERS_ROLE, Type::TEXT)])
        .await?;
    let (group, fitting, inside): (bool, Option<bool>, bool) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let (role, members) = (identifier(name), identifier(MEMBERS_ROLE));
    let mut statements = Vec::new();
    if !group {
        statements.push(format!("CREATE ROLE {members} NOLOGIN"));
    }
    match fitting {
        None => statements.push(format!("CREATE ROLE {role} LOGIN REPLICATION NOSUPERUSER")),
        Some(false) => statements.push(format!("ALTER ROLE {role} LOGIN REPLICATION NOSUPERUSER")),
        Some(true) => {}
    }
    if !inside {
        statements.push(format!("GRANT {members} TO {role}"));
    }
    if statements.is_empty() {
        return Ok(());
    }
    // One message with several statements is one transaction.
    client.batch_execute(&statements.join("; ")).await
}

/// Lets the members call the functions that `pg_rewind` calls, in the database that it connects to.
async fn ensure_rewind(client: &Client) -> Result<(), Error> {
    const MISSING: &str = "SELECT f FROM unnest($1::text[]) f WHERE NOT has_function_privilege($2, f, 'EXECUTE')";
    const FUNCTIONS: [&str; 4] = [
        "pg_catalog.pg_ls_dir(text, boolean, boolean)",
        "pg_catalog.pg_stat_file(text, boolean)",
        "pg_catalog.pg_read_binary_file(text)",
        "pg_catalog.pg_read_binary_file(text, bigint, bigint, boolean)",
    ];
    let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
        [(&FUNCTIONS.as_slice(), Type::TEXT_ARRAY), (&MEMBERS_ROLE, Type::TEXT)];
    let rows = client.query_typed(MISSING, &parameters).await?;
    let members = identifier(MEMBERS_ROLE);
    for row in rows {
        let function: &str = row.try_get(0)?;
        client
            .batch_execute(&format!("GRANT EXECUTE ON FUNCTION {function} TO {members}"))
            .await?;
    }
    Ok(())
}

/// Makes the slot. Returns `true` if it keeps WAL.
async fn ensure_slot(client: &Client, name: &str) -> Result<bool, Error> {
    const LOST: &str = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
        WHERE slot_name = $1 AND slot_type = 'physical' AND wal_status = 'lost' AND NOT active";
    const MAKE: &str = "SELECT pg_create_physical_replication_slot($1, true)
        WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)";
    const KEEPS: &str = "SELECT restart_lsn IS NOT NULL AND wal_status <> 'lost'
        FROM pg_replication_slots WHERE slot_name = $1";
    for statement in [LOST, MAKE] {
        client.query_typed(statement, &[(&name, Type::NAME)]).await?;
    }
    let row = client.query_typed_opt(KEEPS, &[(&name, Type::NAME)]).await?;
    row.map_or(Ok(false), |row| Ok(row.try_get::<_, Option<bool>>(0)?.unwrap_or(false)))
}

/// Members that have a slot, or on a primary a role, and that are not wanted.
async fn former_members(client: &Client, wanted: &BTreeSet<MemberId>) -> Result<Vec<MemberId>, Error> {
    const QUERY: &str = "SELECT slot_name::text FROM pg_replication_slots WHERE slot_type = 'physical'
        UNION SELECT r.rolname::text FROM pg_auth_members m
          JOIN pg_roles g ON g.oid = m.roleid JOIN pg_roles r ON r.oid = m.member
         WHERE g.rolname = $1 AND NOT pg_is_in_recovery()";
    let rows = client.query_typed(QUERY, &[(&MEMBERS_ROLE, Type::TEXT)]).await?;
    let names: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    // Slots with other names belong to users.
    let members = names.iter().filter_map(|name| MemberId::parse(name));
    Ok(members.filter(|member| !wanted.contains(member)).collect())
}

/// Drops a member's slot, and on a primary its role. Returns `false`, and drops nothing, if either is in use.
async fn drop_member(client: &Client, member: &MemberId) -> Result<bool, Error> {
    const USED: &str = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active)
        OR EXISTS (SELECT FROM pg_stat_activity WHERE usename = $1), pg_is_in_recovery()";
    let name = member.as_str();
    let row = client.query_typed_one(USED, &[(&name, Type::NAME)]).await?;
    let (used, standby): (bool, bool) = (row.try_get(0)?, row.try_get(1)?);
    if used {
        return Ok(false);
    }
    client.query_typed(DROP_SLOT, &[(&name, Type::NAME)]).await?;
    if standby {
        return Ok(true);
    }
    match client
        .batch_execute(&format!("DROP ROLE IF EXISTS {}", identifier(name)))
        .await
    {
        Ok(()) => {}
        // A user gave objects to the role; without the slot the role does no harm.
        Err(error) if error.as_db_error().is_some() => tracing::warn!("drop role {name}: {error}"),
        Err(error) => return Err(error),
    }
    Ok(true)
}
