//! `drill`: a database is made from the newest backup and all archived WAL, looked at, and removed again. That it worked is the only
//! proof that backups can be used.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use api::{ClusteredDatabase, Phase};
use chrono::{DateTime, Utc};
use kube::ResourceExt;
use kube::api::DeleteParams;
use kube::runtime::wait::await_condition;

use crate::cluster::{Cluster, Place};
use crate::kubectl::{Psql, psql_in_pod};
use crate::{backup, change};

/// How a drill is made.
#[derive(Clone, Debug, clap::Args)]
pub struct Drill {
    /// The database whose backups are tried. It is not changed.
    pub name: String,
    /// A query to run in the recovered database, such as `SELECT count(*) FROM orders`. It may be given several times.
    #[arg(long)]
    pub sql: Vec<String>,
    /// After so many minutes the drill has failed.
    #[arg(long, value_name = "MINUTES", default_value_t = 60)]
    pub limit: u64,
    /// Leave the recovered database there.
    #[arg(long)]
    pub keep: bool,
}

/// The database that is made for a drill: one instance, which archives nothing.
///
/// # Errors
/// If the database has no store.
pub fn database(db: &ClusteredDatabase, now: DateTime<Utc>) -> Result<ClusteredDatabase> {
    let (name, uid) = (db.name_any(), db.uid().context("the database has no UID")?);
    let mut spec = machine::drill::spec(&name, &uid, &db.spec, None).with_context(|| backup::no_store(&name))?;
    let recovery = spec
        .bootstrap
        .as_mut()
        .and_then(|bootstrap| bootstrap.recovery.as_mut());
    recovery
        .context("a drill is a recovery")?
        .checks
        .get_or_insert_default()
        .amcheck = true;
    let mut drill = ClusteredDatabase::new(&machine::drill::name(&name, now), spec);
    drill.metadata.namespace = db.namespace();
    Ok(drill)
}

/// Makes the drill; `say` is called with what is known. The database that it makes is removed in any case, unless it is to be kept.
///
/// # Errors
/// If the database cannot be recovered, or a check of it fails.
pub async fn run(place: &Place, drill: &Drill, say: impl Fn(&str) -> Result<u8>) -> Result<u8> {
    let cluster = Cluster::connect(place).await?;
    let made = database(&cluster.database(&drill.name).await?, Utc::now())?;
    let name = made.name_any();
    let created = cluster.databases().create(&change::as_us(), &made).await;
    created.map_err(|error| cluster.explain(error))?;
    say(&format!("{name} is made from the backups of {}\n", drill.name))?;
    let tried = tokio::select! {
        tried = try_it(&cluster, drill, &name, &say) => tried,
        ended = tokio::signal::ctrl_c() => Err(ended.map_or_else(anyhow::Error::from, |()| anyhow!("the drill was ended"))),
    };
    if drill.keep {
        say(&format!(
            "{name} stays; remove it with `kubectl delete clustereddatabase {name}`\n"
        ))?;
    } else {
        let removed = cluster.databases().delete(&name, &DeleteParams::foreground()).await;
        removed.map_err(|error| {
            cluster
                .explain(error)
                .context(format!("cannot remove {name}: delete it yourself"))
        })?;
        say(&format!("{name} is removed\n"))?;
    }
    tried
}

async fn try_it(cluster: &Cluster, drill: &Drill, name: &str, say: &impl Fn(&str) -> Result<u8>) -> Result<u8> {
    let begun = Instant::now();
    let limit = Duration::from_secs(drill.limit * 60);
    let has_ended = |db: Option<&ClusteredDatabase>| db.is_none_or(|db| outcome(db).is_some());
    let waited = tokio::time::timeout(limit, await_condition(cluster.databases(), name, has_ended)).await;
    let Ok(seen) = waited else {
        bail!(
            "{name} was not Ready within {} minutes: see `kubectl cdb why {name}`",
            drill.limit
        );
    };
    let db = seen
        .context("watch the database")?
        .with_context(|| format!("{name} was removed"))?;
    outcome(&db)
        .unwrap_or(Ok(()))
        .map_err(|why| anyhow!("{} cannot be recovered: {why}", drill.name))?;
    let status = db.status.clone().unwrap_or_default();
    say(&format!(
        "recovered in {:.1} s: PostgreSQL {}, timeline {}; all files are as the backup's manifest says, and pg_amcheck finds all \
         tables and indexes in order\n",
        begun.elapsed().as_secs_f64(),
        status.version.unwrap_or_default(),
        status.timeline.unwrap_or_default()
    ))?;
    let primary = cluster.primary(&db).await?;
    let database = &db.spec.initdb().database;
    for query in &drill.sql {
        let arguments = ["-X", "-At", "-v", "ON_ERROR_STOP=1", "-c", query].map(str::to_owned);
        let psql = Psql {
            pod: &primary,
            database,
            search_path: "\"$user\",public",
            terminal: false,
            arguments: &arguments,
        };
        let answer = cluster
            .exec(&primary, &psql_in_pod(&psql))
            .await
            .with_context(|| query.clone())?;
        say(&format!("{query}: {}\n", answer.trim_end()))?;
    }
    Ok(0)
}

/// How the recovery has ended; `None` while it has not.
fn outcome(db: &ClusteredDatabase) -> Option<Result<(), String>> {
    let status = db.status.as_ref()?;
    match status.phase? {
        Phase::Ready => Some(Ok(())),
        Phase::Failed => Some(Err(status
            .failure
            .as_ref()
            .map_or_else(String::new, |failure| failure.message.clone()))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use api::spec::{ServicesSpec, VolumeFate};
    use serde_json::json;

    use super::*;

    fn of(spec: serde_json::Value) -> ClusteredDatabase {
        serde_json::from_value(json!({
            "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
            "metadata": {"name": "a-name-of-forty-characters-is-the-longest", "namespace": "shop", "uid": "1a2b3c4d-0000"},
            "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn a_drill_is_one_instance_that_leaves_nothing() {
        let db = of(json!({
            "replicas": 3, "storage": {"data": {"size": "1Gi"}}, "durability": {"mode": "Required", "synchronousStandbys": 2},
            "backup": {"store": {"s3": {"bucket": "wal"}}}, "services": {"readWrite": {"type": "LoadBalancer"}},
        }));
        let drill = database(&db, "2027-01-01T13:14:15Z".parse().unwrap()).unwrap();
        assert_eq!(drill.name_any(), "a-name-of-forty-charact-drill-0101131415");
        assert_eq!(api::validate(&drill), []);
        assert_eq!((drill.spec.replicas, drill.spec.backup.as_ref()), (1, None));
        assert_eq!(drill.spec.storage.retention_policy.when_deleted, VolumeFate::Delete);
        assert_eq!(drill.spec.services, ServicesSpec::default());
        let recovery = drill.spec.recovery().unwrap();
        assert!(recovery.verify_files && recovery.checks.as_ref().is_some_and(|checks| checks.amcheck));
        assert_eq!(
            recovery.from.cluster.as_deref(),
            Some("a-name-of-forty-characters-is-the-longest-1a2b3c4d")
        );
        assert!(database(&of(json!({"storage": {"data": {"size": "1Gi"}}})), Utc::now()).is_err());
    }

    #[test]
    fn a_drill_ends_when_it_is_ready_or_has_failed() {
        let mut db = of(json!({"storage": {"data": {"size": "1Gi"}}}));
        assert_eq!(outcome(&db), None);
        let mut is = |status| {
            db.status = Some(serde_json::from_value(status).unwrap());
            outcome(&db)
        };
        assert_eq!(is(json!({"phase": "Restoring"})), None);
        assert_eq!(is(json!({"phase": "Ready"})), Some(Ok(())));
        let failed = json!({"phase": "Failed", "failure": {"reason": "BootstrapFailed", "message": "no backup"}});
        assert_eq!(is(failed), Some(Err("no backup".to_owned())));
    }
}
