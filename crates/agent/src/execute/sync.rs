//! Changing a running primary: its synchronous rule, its opening to applications, a checkpoint.

use std::sync::Arc;
use std::time::Duration;

use machine::instance::observer::Effect;
use machine::instance::{Mode, Work};
use machine::quorum::SyncRule;

use super::{CONFIGURE, Executor};
use crate::observe::World;
use crate::postgres::{open, set_sync};

/// Time limit of a change of the synchronous rule; a checkpoint may be part of it.
const SET_SYNC: Duration = Duration::from_secs(150);

/// Time limit of the checkpoint before a planned stop. After it the checkpoint goes on in the server, and the stop
/// waits for its end.
const CHECKPOINT: Duration = Duration::from_secs(20);
/// The same where the container ends: the stop waits five seconds for this task, in which poolers are to pause, too.
const LAST_CHECKPOINT: Duration = Duration::from_secs(2);

impl Executor {
    pub(super) fn set_sync(&self, world: &World, rule: SyncRule, waits: bool) {
        let Some(wanted) = self.wanted_as_configured(world, Work::SetSync) else {
            return;
        };
        let Some(server) = world.server.clone() else {
            return self.fail(Work::SetSync, "PostgreSQL does not run");
        };
        let (written, sql) = (Arc::clone(&self.written), self.own_connection(world));
        self.spawn(Work::SetSync, Some(SET_SYNC), async move {
            let mut sql = sql;
            let mut written = written.lock().await;
            // From now on the rule may be in force, so every later write of the files keeps it.
            written.rule = rule.clone();
            let config = wanted.config(Mode::Primary, &written).await?;
            let at = set_sync(wanted.volume(), &server, &mut sql, &config, &rule, waits).await?;
            Ok(Effect::Synced { rule, at }.into())
        });
    }

    pub(super) fn open(&self, world: &World) {
        let Some(wanted) = self.wanted_as_configured(world, Work::Open) else {
            return;
        };
        let Some(server) = world.server.clone() else {
            return self.fail(Work::Open, "PostgreSQL does not run");
        };
        let (written, sql) = (Arc::clone(&self.written), self.own_connection(world));
        self.spawn(Work::Open, Some(CONFIGURE), async move {
            let mut sql = sql;
            let mut written = written.lock().await;
            written.open = true;
            let config = wanted.config(Mode::Primary, &written).await?;
            open(wanted.volume(), &server, &mut sql, &config).await?;
            Ok(Effect::Opened.into())
        });
    }

    pub(super) fn checkpoint(&self, world: &World) {
        let (sql, poolers) = (self.own_connection(world), Arc::clone(&self.poolers));
        let limit = if world.observed().terminating {
            LAST_CHECKPOINT
        } else {
            CHECKPOINT
        };
        self.spawn(Work::Checkpoint, None, async move {
            poolers.announce();
            let made = sql.checkpoint(limit).await;
            poolers.pause().await;
            made?;
            Ok(Effect::Checkpointed.into())
        });
    }
}
