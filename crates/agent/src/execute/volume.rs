//! Tasks on the volume. At its end each reads the volume again, so that the next decision sees what was done.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use machine::archive::Fetch;
use machine::instance::archive::line;
use machine::instance::{Upstream, Work, observer};
use machine::protocol::{Fork, MemberId, Timeline};
use machine::recovery::Target;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::Notify;

use super::{Executor, SMALL, blocking};
use crate::archive::{self, place};
use crate::observe::{Effect, Failure, World, scan};
use crate::postgres::{
    CloneSource, InitdbRequest, PostgresError, Primary, Progress, RecoveryRequest, Verifier, clone, initdb, recover,
    rewind,
};
use crate::tools::Tools;
use crate::volume::Volume;

/// How often the progress of a recovery is logged.
const PROGRESS: Duration = Duration::from_secs(10);

impl Executor {
    pub(super) fn create_member(&self, world: &World, claim_uid: String) {
        let Some(tools) = self.tools(world, Work::CreateMember) else {
            return;
        };
        let (volume, ordinal) = (self.volume.clone(), world.observed().own.ordinal);
        self.spawn(Work::CreateMember, Some(SMALL), async move {
            let making = volume.clone();
            let made = blocking(move || {
                if making.member()?.is_some() {
                    making.forget_member()?;
                }
                let mut random = [0_u8; 4];
                let filled = SystemRandom::new().fill(&mut random);
                filled.map_err(|_| crate::volume::VolumeError::Key("no random numbers".to_owned()))?;
                let id = MemberId::new(ordinal, &claim_uid, u32::from_ne_bytes(random));
                making.make_member(&id, &claim_uid).map(|_| ())
            });
            scanned(made.await, &volume, &tools).await
        });
    }

    pub(super) fn store_certificate(&self, world: &World, pem: String) {
        let Some(tools) = self.tools(world, Work::StoreCertificate) else {
            return;
        };
        let volume = self.volume.clone();
        self.spawn(Work::StoreCertificate, Some(SMALL), async move {
            let writing = volume.clone();
            let written = blocking(move || writing.write_certificate(&pem).map(|_| ())).await;
            scanned(written, &volume, &tools).await
        });
    }

    pub(super) fn discard_staging(&self, world: &World) {
        let Some(tools) = self.tools(world, Work::DiscardStaging) else {
            return;
        };
        let volume = self.volume.clone();
        self.spawn(Work::DiscardStaging, None, async move {
            let discarded = volume.discard_unfinished().await.map_err(Failure::from);
            scanned(discarded, &volume, &tools).await
        });
    }

    pub(super) fn take_snapshot(&self, world: &World) {
        let Some(tools) = self.tools(world, Work::TakeSnapshot) else {
            return;
        };
        let volume = self.volume.clone();
        self.spawn(Work::TakeSnapshot, None, async move {
            let taking = volume.clone();
            let taken = blocking(move || taking.take_snapshot()).await;
            scanned(taken, &volume, &tools).await
        });
    }

    pub(super) fn initdb(&self, world: &World, cluster_uid: String) {
        let Some(tools) = self.tools(world, Work::Initdb) else {
            return;
        };
        let Some(spec) = world.spec.as_ref().map(|spec| spec.initdb().clone()) else {
            return self.fail(Work::Initdb, "the ClusteredDatabase is not known");
        };
        let (volume, user, password_file) = (
            self.volume.clone(),
            self.files.system_user.clone(),
            self.password_file.clone(),
        );
        self.spawn(Work::Initdb, None, async move {
            let recording = volume.clone();
            let made = async {
                blocking(move || recording.record_made_for(&cluster_uid)).await?;
                let password = tokio::fs::read_to_string(&password_file).await?;
                let request = InitdbRequest {
                    owner: spec.owner().to_owned(),
                    wal_segment_size: spec.wal_segment_size(),
                    database: spec.database,
                    verifier: Verifier::of(&password)?,
                    data_checksums: spec.data_checksums,
                    locale: spec.locale,
                    post_init_sql: spec.post_init_application_sql,
                };
                initdb(&tools, &volume, &user, &request).await.map_err(Failure::from)
            };
            scanned(made.await, &volume, &tools).await
        });
    }

    pub(super) fn recover(&self, world: &World, cluster_uid: String, after: Timeline) {
        let Some(tools) = self.tools(world, Work::Initdb) else {
            return;
        };
        let spec = world.spec.as_ref();
        let Some((initdb, recovery)) = spec.and_then(|spec| Some((spec.initdb().clone(), spec.recovery()?.clone())))
        else {
            return self.fail(Work::Initdb, "the ClusteredDatabase is not known");
        };
        let (volume, user, password_file, recovering) = (
            self.volume.clone(),
            self.files.system_user.clone(),
            self.password_file.clone(),
            self.recovering.clone(),
        );
        self.spawn(Work::Initdb, None, async move {
            let recording = volume.clone();
            let made = async {
                blocking(move || recording.record_made_for(&cluster_uid)).await?;
                let password = tokio::fs::read_to_string(&password_file).await?;
                let from = &recovery.from;
                let (Some(store), Some(cluster)) = (&from.store, &from.cluster) else {
                    return Err(Failure::said(
                        "the operator has not yet found the database to recover from",
                    ));
                };
                let (target, exclusive) = Target::of_spec(recovery.target.as_ref()).map_err(Failure::said)?;
                let namespace = from.namespace.as_deref().unwrap_or(&recovering.namespace);
                let request = RecoveryRequest {
                    place: place(store, &recovering.volume)
                        .ok_or_else(|| Failure::said("the spec names no store to recover from"))?,
                    access: recovering.access,
                    identity_secret: from.identity_secret_ref.as_ref().map(|secret| secret.name.clone()),
                    folder: format!("{namespace}/{cluster}"),
                    target,
                    exclusive,
                    verify_files: recovery.verify_files,
                    checks: recovery.checks,
                    database: initdb.database.clone(),
                    backup: recovery.backup,
                    program: recovering.program,
                    after,
                    owner: initdb.owner().to_owned(),
                    verifier: Verifier::of(&password)?,
                };
                let recovered = recover(&tools, &volume, &user, &request, &log_progress()).await?;
                tracing::info!(?recovered, "the database is recovered");
                Ok::<_, Failure>(())
            };
            scanned(made.await, &volume, &tools).await
        });
    }

    pub(super) fn clone_primary(&self, world: &World, upstream: &str, member: MemberId, system_id: String) {
        let Some(tools) = self.tools(world, Work::Clone) else {
            return;
        };
        let port = world.spec.as_ref().map_or(5432, |spec| spec.postgres.port);
        let Ok(address) = upstream.parse() else {
            return self.fail(Work::Clone, &format!("{upstream:?} is no address"));
        };
        let primary = Primary { address, port, member };
        let source = CloneSource {
            primary,
            files: self.files.clone(),
            system_id,
        };
        let (volume, cancelled) = (self.volume.clone(), Arc::clone(&self.cancelled));
        self.spawn(Work::Clone, None, async move {
            let cloned = unless(&cancelled, clone(&tools, &volume, &source)).await;
            scanned(cloned, &volume, &tools).await
        });
    }

    pub(super) fn rewind(&self, world: &World, upstream: Upstream, member: MemberId, keep: Option<Vec<Fork>>) {
        let Some(tools) = self.tools(world, Work::Rewind) else {
            return;
        };
        let port = world.spec.as_ref().map_or(5432, |spec| spec.postgres.port);
        let Ok(address) = upstream.address.parse() else {
            return self.fail(Work::Rewind, &format!("{:?} is no address", upstream.address));
        };
        let primary = Primary { address, port, member };
        let (volume, files, cancelled) = (self.volume.clone(), self.files.clone(), Arc::clone(&self.cancelled));
        self.spawn(Work::Rewind, None, async move {
            let rewound = async {
                if let Some(history) = keep {
                    volume.keep_tail(&tools, history).await?;
                }
                let rewound = rewind(&tools, &volume, &files, &primary, upstream.epoch);
                unless(&cancelled, rewound).await
            };
            scanned(rewound.await, &volume, &tools).await
        });
    }

    pub(super) fn fetch_wal(&self, world: &World, fetch: Fetch) {
        let Some(tools) = self.tools(world, Work::FetchWal) else {
            return;
        };
        let Some(archive) = self.archived_to(world) else {
            return self.fail(Work::FetchWal, "it is not known where WAL is archived");
        };
        let volume = self.volume.clone();
        self.spawn(Work::FetchWal, None, async move {
            let wal = volume.pgdata().join("pg_wal");
            let fetched = archive::fetch(&archive, &wal, &fetch).await;
            let fetched = fetched.map_err(|error| Failure::said(format!("{error:#}")));
            scanned(fetched, &volume, &tools).await
        });
    }

    fn archived_to(&self, world: &World) -> Option<archive::Archive> {
        let archiving = self.archive.as_ref()?;
        Some(archive::Archive {
            place: place(&world.spec.as_ref()?.backup.as_ref()?.store, &archiving.volume)?,
            folder: self.recovering.folder.clone(),
            line: line(world.observed()),
            access: archiving.access.clone(),
            system_id: world.observed().lease.record.is()?.system_id.clone()?,
        })
    }

    pub(super) fn set_aside(&self, world: &World, keep: bool) {
        let Some(tools) = self.tools(world, Work::SetAside) else {
            return;
        };
        let volume = self.volume.clone();
        self.spawn(Work::SetAside, None, async move {
            let moved = volume.set_aside(&tools, keep).await.map_err(Failure::from);
            scanned(moved, &volume, &tools).await
        });
    }

    pub(super) fn discard_kept(&self, name: String) {
        let volume = self.volume.clone();
        self.spawn(Work::DiscardKept, None, async move {
            blocking(move || volume.discard_kept(&name))
                .await
                .map(|left| observer::Effect::Discarded(left).into())
        });
    }

    /// PostgreSQL's programs. If they are not known yet, reports that the task has failed.
    pub(super) fn tools(&self, world: &World, work: Work) -> Option<Arc<Tools>> {
        if world.tools.is_none() {
            self.fail(work, "PostgreSQL's programs have not been found yet");
        }
        world.tools.clone()
    }
}

/// Runs a copy to its end, or until it is cancelled; its tool is then killed.
async fn unless(cancelled: &Notify, copy: impl Future<Output = Result<(), PostgresError>>) -> Result<(), Failure> {
    tokio::select! {
        done = copy => done.map_err(Failure::from),
        () = cancelled.notified() => Err(Failure::said("it was cancelled: its source is not the primary any more")),
    }
}

/// The end of a task on the volume: its result, with a new reading of the volume in either case.
async fn scanned(result: Result<(), Failure>, volume: &Volume, tools: &Tools) -> Result<Effect, Failure> {
    let scan = scan(volume, tools).await;
    match result {
        Ok(()) => Ok(Effect::volume(scan?)),
        Err(failure) => Err(match scan {
            Ok(scan) => failure.with_scan(scan),
            Err(_) => failure,
        }),
    }
}

/// Logs how far a recovery is, each step at its begin and every 10 s.
fn log_progress() -> impl Fn(Progress) + Sync {
    let logged = Mutex::new(None::<(&str, Instant)>);
    move |progress: Progress| {
        let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = logged.is_none_or(|(what, at)| what != progress.what || at.elapsed() >= PROGRESS);
        if is_new {
            *logged = Some((progress.what, Instant::now()));
            tracing::info!(
                step = progress.what,
                bytes = progress.bytes,
                of = progress.total,
                "recovering"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_copy_ends_when_it_is_cancelled() {
        let cancelled = Notify::new();
        let frozen = unless(&cancelled, std::future::pending());
        let (ended, ()) = tokio::join!(frozen, async { cancelled.notify_waiters() });
        assert!(ended.expect_err("cancelled").message().contains("cancelled"));
        assert!(unless(&cancelled, async { Ok(()) }).await.is_ok());
    }
}
