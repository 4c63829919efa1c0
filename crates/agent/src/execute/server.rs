//! Starting and configuring PostgreSQL.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use machine::instance::observer::{self, Event, News};
use machine::instance::{Configured, Mode, Process, Promise, Refused, Upstream, Work};
use machine::protocol::MemberId;
use machine::quorum::SyncRule;
use machine::timing::{BootTime, Timing};

use super::{CONFIGURE, Executor, START, blocking, telling_promise};
use crate::archive::Archiving;
use crate::deadman::boot_time;
use crate::observe::{Effect, Failure, Handle, World, id};
use crate::postgres::{
    Config, Files, PostgresError, Primary, Reload, Role, Server, Settings, StartError, StopMode, reload,
};
use crate::tools::Tools;
use crate::volume::Volume;

/// The content of a primary's configuration files beside the settings. Every write of the files keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// `synchronous_standby_names`.
    pub rule: SyncRule,
    /// Applications may connect.
    pub open: bool,
}

/// The input for a configuration.
pub(super) struct Wanted {
    hash: String,
    parameters: BTreeMap<String, String>,
    upstream: Option<Upstream>,
    member: Option<MemberId>,
    cluster: String,
    port: u16,
    suspicion: Duration,
    locale: String,
    archive: Option<Archiving>,
    volume: Volume,
    files: Files,
    tools: Arc<Tools>,
}

impl Wanted {
    pub(super) async fn config(&self, mode: Mode, written: &Written) -> Result<Config, Failure> {
        let measured = self.volume.clone();
        let settings = Settings {
            major: self.tools.major(),
            cluster: self.cluster.clone(),
            port: self.port,
            locale: self.locale.clone(),
            parameters: self.parameters.clone(),
            suspicion: self.suspicion,
            archive: self.archive.clone(),
            wal: blocking(move || measured.wal_room()).await?,
        };
        let role = match mode {
            Mode::Primary => Role::Primary {
                rule: written.rule.clone(),
                open: written.open,
            },
            Mode::Standby => Role::Standby {
                primary: self.primary()?,
                enforced: self.volume.control_data(&self.tools).await?.enforced,
            },
        };
        Ok(Config::render(&settings, &self.files, &role)?)
    }

    fn primary(&self) -> Result<Option<Primary>, Failure> {
        let (Some(Upstream { address, .. }), Some(member)) = (&self.upstream, &self.member) else {
            return Ok(None);
        };
        let address = address
            .parse()
            .map_err(|_| Failure::said(format!("{address:?} is no address")))?;
        Ok(Some(Primary {
            address,
            port: self.port,
            member: member.clone(),
        }))
    }

    /// The volume.
    pub(super) fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Promises the epoch of the primary that is to be followed, if there is one, and puts the credential into place.
    async fn follow(&self) -> Result<Option<Promise>, Failure> {
        let Some(epoch) = self.upstream.as_ref().map(|upstream| upstream.epoch) else {
            return Ok(None);
        };
        let volume = self.volume.clone();
        match blocking(move || volume.follow(epoch)).await {
            Ok(promise) => Ok(Some(promise)),
            // A higher epoch may be promised than this agent knows.
            Err(failure) => Err(telling_promise(&self.volume, failure).await),
        }
    }

    pub(super) fn configured(&self, config: &Config) -> Configured {
        Configured {
            settings: self.hash.clone(),
            upstream: self.upstream.clone(),
            raised: config.raised,
        }
    }

    fn refused(&self, error: String) -> Failure {
        let failure = Failure::said(format!("the settings are refused: {error}"));
        let settings = self.hash.clone();
        failure.teaching(Some(News::Refused(Refused { settings, error })))
    }
}

impl Executor {
    pub(super) fn start_primary(&self, world: &World, until: BootTime, settings: String, rule: SyncRule) {
        let Some(wanted) = self.wanted(world, Work::StartPrimary, settings, None) else {
            return;
        };
        let allowed = self.allowed_to_write(until);
        self.start(wanted, Mode::Primary, Written { rule, open: false }, None, allowed);
    }

    pub(super) fn start_standby(&self, world: &World, upstream: Option<Upstream>, settings: String, was_primary: bool) {
        let Some(wanted) = self.wanted(world, Work::StartStandby, settings, upstream) else {
            return;
        };
        self.undo_start.store(false, Ordering::SeqCst);
        let undo = Arc::clone(&self.undo_start);
        let allowed = move || !undo.load(Ordering::SeqCst);
        self.start(wanted, Mode::Standby, Written::default(), Some(was_primary), allowed);
    }

    fn start(
        &self,
        wanted: Wanted,
        mode: Mode,
        begin: Written,
        was_primary: Option<bool>,
        allowed: impl Fn() -> bool + Send + Sync + 'static,
    ) {
        let work = match mode {
            Mode::Primary => Work::StartPrimary,
            Mode::Standby => Work::StartStandby,
        };
        let written = Arc::clone(&self.written);
        self.spawn(work, Some(START), async move {
            let mut written = written.lock().await;
            *written = begin;
            if let Some(was_primary) = was_primary {
                let volume = wanted.volume.clone();
                blocking(move || volume.note_was_primary(was_primary)).await?;
                if wanted.archive.is_some() {
                    let volume = wanted.volume.clone();
                    blocking(move || volume.archive_again()).await?;
                }
            }
            let promise = wanted.follow().await?;
            let learned = |failure: Failure| failure.teaching(promise.map(News::Promise));
            let config = wanted.config(mode, &written).await.map_err(learned)?;
            let started = Server::start_if(&wanted.tools, &wanted.volume, &wanted.files, &config, &allowed).await;
            let server = match started {
                Ok(server) => server,
                Err(PostgresError::Start(StartError::Settings(error))) => return Err(wanted.refused(error)),
                Err(error) => return Err(learned(error.into())),
            };
            if !allowed() {
                server.stop(StopMode::Immediate)?;
            }
            let started = observer::Effect::Started {
                server: id(server.pid()),
                ended: false,
                mode,
                configured: wanted.configured(&config),
                following: config.following,
                rule: written.rule.clone(),
                promise,
            };
            Ok(Effect::with(started, Handle::Server(Arc::new(server))))
        });
    }

    pub(super) fn configure(&self, world: &World, settings: String, upstream: Option<Upstream>) {
        let Some(wanted) = self.wanted(world, Work::Configure, settings, upstream) else {
            return;
        };
        let Some(server) = world.server.clone() else {
            return self.fail(Work::Configure, "PostgreSQL does not run");
        };
        let mode = match world.observed().postgres.process {
            Process::Running { mode } => mode,
            Process::Stopped { .. } => return self.fail(Work::Configure, "PostgreSQL does not run"),
        };
        let (sql, own, written) = (
            Arc::clone(&self.sql),
            self.own_connection(world),
            Arc::clone(&self.written),
        );
        self.spawn(Work::Configure, Some(CONFIGURE), async move {
            let written = written.lock().await;
            let promise = wanted.follow().await?;
            let learned = |failure: Failure| failure.teaching(promise.map(News::Promise));
            let config = wanted.config(mode, &written).await.map_err(learned)?;
            let mut sql = sql.lock().await;
            let sql = sql.get_or_insert(own);
            let reloaded = reload(&wanted.tools, &wanted.volume, &server, sql, &config).await;
            match reloaded.map_err(|error| learned(error.into()))? {
                Reload::Applied { .. } => {
                    // The earlier status does not tell which of these settings wait for a restart.
                    let asked = boot_time();
                    let status = sql.status().await.map_err(|error| learned(error.into()))?;
                    let configured = observer::Effect::Configured {
                        configured: wanted.configured(&config),
                        following: config.following,
                        status: Box::new(status.seen()),
                        asked,
                        promise,
                    };
                    Ok(Effect::with(configured, Handle::Status(Box::new(status), asked)))
                }
                Reload::Refused { error } => Err(wanted.refused(error)),
            }
        });
    }

    /// Records the settings with which PostgreSQL has just proved to run well.
    pub fn record_good_settings(&self, world: &mut World) {
        let Some(configured) = &world.observed().postgres.configured else {
            return;
        };
        let Some(settings) = world.settings(&configured.settings) else {
            return;
        };
        let hash = configured.settings.clone();
        world.observe(Event::GoodSettings(hash), boot_time());
        world.good_settings = settings.clone();
        let volume = self.volume.clone();
        self.workers.spawn(async move {
            if let Err(failure) = blocking(move || volume.record_good_settings(&settings)).await {
                tracing::warn!("record the settings that PostgreSQL runs with: {}", failure.message());
            }
        });
    }

    /// The input with the settings that PostgreSQL runs with, or else with those that it last ran well with.
    pub(super) fn wanted_as_configured(&self, world: &World, work: Work) -> Option<Wanted> {
        let configured = world.observed().postgres.configured.as_ref();
        let known = configured.map(|configured| &configured.settings);
        let hash = known.filter(|hash| world.settings(hash).is_some());
        let hash = hash.unwrap_or(&world.observed().postgres.good_settings).clone();
        self.wanted(world, work, hash, None)
    }

    fn wanted(&self, world: &World, work: Work, hash: String, upstream: Option<Upstream>) -> Option<Wanted> {
        let tools = self.tools(world, work)?;
        let (Some(spec), Some(parameters)) = (&world.spec, world.settings(&hash)) else {
            self.fail(work, "the settings of this decision are not known any more");
            return None;
        };
        let member = world.observed().volume.is().and_then(|volume| volume.member.as_ref());
        let timing = world
            .observed()
            .cluster
            .is()
            .map_or(Timing::DEFAULT, |cluster| cluster.timing);
        Some(Wanted {
            hash,
            parameters,
            upstream,
            member: member.map(|member| member.id.clone()),
            cluster: self.clients.names().cluster().to_owned(),
            port: spec.postgres.port,
            suspicion: timing.suspect().duration(),
            locale: spec.initdb().locale.clone(),
            archive: self.archive.clone(),
            volume: self.volume.clone(),
            files: self.files.clone(),
            tools,
        })
    }
}
