//! Starting and configuring PostgreSQL.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use machine::instance::{Configured, Mode, Refused, Work};
use machine::protocol::MemberId;
use machine::timing::BootTime;

use super::{CONFIGURE, Executor, START, blocking};
use crate::deadman::boot_time;
use crate::observe::{Effect, Failure, News, World};
use crate::postgres::{
    Config, Files, PostgresError, Primary, Reload, Role, Server, Settings, Sql, StartError, StopMode, Tools, reload,
};
use crate::volume::Volume;

/// All that is needed to write a configuration.
struct Wanted {
    hash: String,
    parameters: BTreeMap<String, String>,
    upstream: Option<String>,
    member: Option<MemberId>,
    cluster: String,
    port: u16,
    locale: String,
    volume: Volume,
    files: Files,
    tools: Arc<Tools>,
}

impl Wanted {
    async fn config(&self, mode: Mode) -> Result<Config, Failure> {
        let measured = self.volume.clone();
        let settings = Settings {
            major: self.tools.major(),
            cluster: self.cluster.clone(),
            port: self.port,
            locale: self.locale.clone(),
            parameters: self.parameters.clone(),
            wal_capacity: blocking(move || measured.wal_capacity()).await?,
        };
        let role = match mode {
            Mode::Primary => Role::Primary,
            Mode::Standby => Role::Standby {
                primary: self.primary()?,
                enforced: self.volume.control_data(&self.tools).await?.enforced,
            },
        };
        Ok(Config::render(&settings, &self.files, &role)?)
    }

    fn primary(&self) -> Result<Option<Primary>, Failure> {
        let (Some(address), Some(member)) = (&self.upstream, &self.member) else {
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

    fn configured(&self) -> Configured {
        Configured {
            settings: self.hash.clone(),
            upstream: self.upstream.clone(),
        }
    }

    fn refused(&self, error: String) -> Failure {
        let news = News::Refused(Refused {
            settings: self.hash.clone(),
            error: error.clone(),
        });
        Failure {
            message: format!("the settings are refused: {error}"),
            news: Some(news),
        }
    }
}

impl Executor {
    pub(super) fn start_primary(&self, world: &World, until: BootTime, settings: String) {
        self.start(world, Mode::Primary, Some(until), settings, None);
    }

    pub(super) fn start_standby(&self, world: &World, upstream: Option<String>, settings: String) {
        self.start(world, Mode::Standby, None, settings, upstream);
    }

    fn start(&self, world: &World, mode: Mode, until: Option<BootTime>, settings: String, upstream: Option<String>) {
        let work = match mode {
            Mode::Primary => Work::StartPrimary,
            Mode::Standby => Work::StartStandby,
        };
        let Some(wanted) = self.wanted(world, work, settings, upstream) else {
            return;
        };
        self.undo_start.store(false, Ordering::SeqCst);
        let undo = Arc::clone(&self.undo_start);
        let allowed = move || !undo.load(Ordering::SeqCst) && until.is_none_or(|until| boot_time() < until);
        self.spawn(work, Some(START), async move {
            let config = wanted.config(mode).await?;
            let started = Server::start_if(&wanted.tools, &wanted.volume, &wanted.files, &config, &allowed).await;
            let server = match started {
                Ok(server) => server,
                Err(PostgresError::Start(StartError::Settings(error))) => return Err(wanted.refused(error)),
                Err(error) => return Err(error.into()),
            };
            if !allowed() {
                server.stop(StopMode::Immediate)?;
            }
            Ok(Effect::Started {
                server: Arc::new(server),
                mode,
                configured: wanted.configured(),
            })
        });
    }

    pub(super) fn configure(&self, world: &World, settings: String, upstream: Option<String>) {
        let Some(wanted) = self.wanted(world, Work::Configure, settings, upstream) else {
            return;
        };
        let Some(server) = world.server.as_ref().map(|running| Arc::clone(&running.server)) else {
            return self.fail(Work::Configure, "PostgreSQL does not run");
        };
        let mode = match world.observed.postgres.process {
            machine::instance::Process::Running { mode } => mode,
            machine::instance::Process::Stopped { .. } => return self.fail(Work::Configure, "PostgreSQL does not run"),
        };
        let sql = Arc::clone(&self.sql);
        self.spawn(Work::Configure, Some(CONFIGURE), async move {
            let config = wanted.config(mode).await?;
            let mut sql = sql.lock().await;
            let sql = sql.get_or_insert_with(|| Sql::new(wanted.files.socket.clone(), wanted.port));
            match reload(&wanted.tools, &wanted.volume, &server, sql, &config).await? {
                Reload::Applied { .. } => {
                    // What the agent knew before does not tell which of these settings wait for a restart.
                    let asked = boot_time();
                    let status = Box::new(sql.status().await.map_err(|error| Failure::said(error.to_string()))?);
                    Ok(Effect::Configured {
                        configured: wanted.configured(),
                        status,
                        asked,
                    })
                }
                Reload::Refused { error } => Err(wanted.refused(error)),
            }
        });
    }

    /// Records the settings that PostgreSQL has just proved to run with.
    pub fn record_good_settings(&self, world: &mut World) {
        let Some(configured) = &world.observed.postgres.configured else {
            return;
        };
        let Some(settings) = world.settings(&configured.settings) else {
            return;
        };
        world.observed.postgres.good_settings = configured.settings.clone();
        world.good_settings = settings.clone();
        let volume = self.volume.clone();
        tokio::spawn(async move {
            if let Err(Failure { message, .. }) = blocking(move || volume.record_good_settings(&settings)).await {
                tracing::warn!("record the settings that PostgreSQL runs with: {message}");
            }
        });
    }

    fn wanted(&self, world: &World, work: Work, hash: String, upstream: Option<String>) -> Option<Wanted> {
        let tools = self.tools(world, work)?;
        let (Some(spec), Some(parameters)) = (&world.spec, world.settings(&hash)) else {
            self.fail(work, "these settings are not wanted any more");
            return None;
        };
        let member = world.observed.volume.is().and_then(|volume| volume.member.as_ref());
        Some(Wanted {
            hash,
            parameters,
            upstream,
            member: member.map(|member| member.id.clone()),
            cluster: self.clients.names().cluster().to_owned(),
            port: spec.postgres.port,
            locale: spec.bootstrap.initdb.locale.clone(),
            volume: self.volume.clone(),
            files: self.files.clone(),
            tools,
        })
    }
}
