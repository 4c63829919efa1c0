//! Applying changed Secrets while PostgreSQL runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::declared::{Drift, ManagementPolicy, PlannedStatement};
use machine::access::{Declared, Published, Report};

use super::{Executor, SMALL};
use crate::event::{Event, Settling};
use crate::kubernetes::ReportError;
use crate::observe::World;
use crate::postgres::{Settled, Sql, told};

/// Time limit of settling all that is declared, in all databases.
const SETTLE: Duration = Duration::from_secs(120);

impl Executor {
    /// Asks PostgreSQL, if it runs, for its certificate. If that is not what this agent has loaded, PostgreSQL reads its files again. Ends
    /// with [`Event::Certificates`].
    pub fn check_certificates(&self, world: &World) {
        let server = world.server.clone().zip(world.port());
        let (tls, written) = (self.peers.tls().clone(), Arc::clone(&self.written));
        let events = self.events.clone();
        self.workers.spawn(async move {
            let work = async {
                let Some((server, port)) = server else {
                    return tls.digest().map_err(|error| error.to_string());
                };
                if let Some(digest) = tls.presented(port).await.map_err(|error| error.to_string())? {
                    return Ok(digest);
                }
                // Held so that the configuration is not being written meanwhile: PostgreSQL would read half of it.
                let _written = written.lock().await;
                server.reload().map_err(|error| error.to_string())?;
                Err("it is not that of the Secret yet".to_owned())
            };
            let done = tokio::time::timeout(SMALL, work).await;
            let done = done.unwrap_or_else(|_| Err(format!("it did not end within {} s", SMALL.as_secs())));
            let _ = events.send(Event::Certificates(done));
        });
    }

    /// Sets the password of the application's role to that of the Secret, unless it is that already. Ends with
    /// [`Event::Password`].
    pub fn set_password(&self, world: &World) {
        let Some(owner) = world.spec.as_ref().map(|spec| spec.initdb().owner().to_owned()) else {
            let _ = self
                .events
                .send(Event::Password(Err("the owner is not known".to_owned())));
            return;
        };
        let mut sql = self.own_connection(world);
        let (file, events) = (self.password_file.clone(), self.events.clone());
        self.workers.spawn(async move {
            let work = async {
                let password = tokio::fs::read_to_string(&file)
                    .await
                    .map_err(|error| error.to_string())?;
                sql.ensure_password(&owner, &password)
                    .await
                    .map_err(|error| error.to_string())
            };
            let done = tokio::time::timeout(SMALL, work).await;
            let done = done.unwrap_or_else(|_| Err(format!("it did not end within {} s", SMALL.as_secs())));
            let _ = events.send(Event::Password(done));
        });
    }

    /// Gives PostgreSQL the roles and databases that are declared, and tells what became of it. Ends with [`Event::Settled`].
    pub fn settle_access(&self, world: &World, declared: BTreeMap<String, Published>) {
        let mut sql = self.own_connection(world);
        let (clients, events, deadline) = (self.clients.clone(), self.events.clone(), Arc::clone(&self.deadline));
        self.workers.spawn(async move {
            let settled = tokio::time::timeout(SETTLE, settle(&mut sql, &declared)).await;
            let settled = settled.unwrap_or_else(|_| Err(format!("it did not end within {} s", SETTLE.as_secs())));
            let (reports, keeps) = match settled {
                Ok(reports) => (reports, false),
                // What was told before still holds, as far as is known.
                Err(error) => (failed(&declared, &error), true),
            };
            // Another primary may have told more by now.
            if !deadline.is_ahead() {
                let _ = events.send(Event::Settled(Settling::Failed(
                    "the lease is not held any more".to_owned(),
                )));
                return;
            }
            let told = match clients.report_access(&reports, keeps).await {
                // Nobody has ever declared anything.
                Err(ReportError::Missing(_)) if reports.is_empty() => Ok(()),
                told => told,
            };
            let mut errors = reports.values().filter_map(|report| report.error.clone());
            let settling = match (told, errors.next()) {
                (Err(error), _) => Settling::Failed(format!("{:#}", anyhow::Error::new(error))),
                (Ok(()), Some(error)) => Settling::Failed(error),
                (Ok(()), None) if reports.values().any(|report| report.refusal.is_some()) => Settling::Refused,
                (Ok(()), None) => Settling::Whole,
            };
            let _ = events.send(Event::Settled(settling));
        });
    }
}

async fn settle(sql: &mut Sql, declared: &BTreeMap<String, Published>) -> Result<BTreeMap<String, Report>, String> {
    let wanted: Vec<Declared> = declared.values().map(|published| published.declared.clone()).collect();
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let settled = sql.settle_access(&wanted).await.map_err(|error| error.to_string())?;
    let told = declared.iter().zip(settled);
    Ok(told
        .map(|((uid, published), settled)| (uid.clone(), report(published, &settled)))
        .collect())
}

/// The statements of a plan that are told.
const TOLD: usize = 20;

/// The statements of a drift that are told.
const TOLD_OF_DRIFT: usize = 10;

fn report(published: &Published, settled: &Settled) -> Report {
    let beyond = |all: usize, told: usize| u32::try_from(all.saturating_sub(told)).unwrap_or(u32::MAX);
    let is_run = published.declared.policy() != ManagementPolicy::Observe;
    let ran: Vec<PlannedStatement> = settled.ran().filter(|_| is_run).map(told).collect();
    let drift = (!ran.is_empty()).then(|| Drift {
        at: settled.at,
        more: Some(beyond(ran.len(), TOLD_OF_DRIFT)).filter(|more| *more > 0),
        statements: ran.into_iter().take(TOLD_OF_DRIFT).collect(),
    });
    Report {
        of: published.at,
        oid: settled.oid,
        unseen: false,
        waits: settled.left.refusal.is_none() && settled.left.waits.is_some(),
        refusal: settled.left.refusal.clone().or_else(|| settled.left.waits.clone()),
        error: settled.error.clone(),
        plan: settled.left.steps.iter().take(TOLD).map(told).collect(),
        more: beyond(settled.left.steps.len(), TOLD),
        had_all: false,
        drift,
    }
}

fn failed(declared: &BTreeMap<String, Published>, error: &str) -> BTreeMap<String, Report> {
    let report = |published: &Published| Report {
        of: published.at,
        unseen: true,
        error: Some(error.to_owned()),
        ..Report::default()
    };
    let all = declared.iter();
    all.map(|(uid, published)| (uid.clone(), report(published))).collect()
}
