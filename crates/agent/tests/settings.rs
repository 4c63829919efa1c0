//! No setting that a user may make keeps the agent from its work. Each setting that reaches a session, or that a reload
//! applies, takes each of its least friendly values on real servers. Meanwhile the agent's functions do all of their
//! work.

#[path = "support/certificates.rs"]
mod certificates;
#[path = "support/instance.rs"]
#[allow(dead_code)]
mod instance;
#[path = "support/unprivileged.rs"]
#[allow(dead_code)]
mod unprivileged;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agent::postgres::{Reload, Role, Server, Status, StopMode, promise, promote, reload, rewind, set_sync};
use api::ClusteredDatabase;
use instance::{Instance, PASSWORD, Scene, copy_files, is_streaming, open_primary};
use machine::protocol::{Epoch, Timeline};
use machine::quorum::SyncRule;
use unprivileged::{Place, unprivileged};

/// A setting and its value.
type Setting = (String, String);

/// Values of text settings that no server lists.
const TEXTS: [(&str, &str); 13] = [
    ("application_name", "cdb_1_1a2b3c4d_0000bef0"),
    ("backtrace_functions", "errstart"),
    ("client_encoding", "latin1"),
    ("createrole_self_grant", "set, inherit"),
    ("datestyle", "german, dmy"),
    ("datestyle", "sql, dmy"),
    ("default_text_search_config", "simple"),
    ("dynamic_library_path", "/nowhere:$libdir"),
    ("lc_monetary", "C"),
    ("log_connections", "all"),
    ("restrict_nonsystem_relation_kind", "view, foreign-table"),
    ("timezone", "Pacific/Chatham"),
    ("timezone_abbreviations", "India"),
];
/// Time limit of a step that usually takes a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(10);
/// The beginning of an error that PostgreSQL reports before anything takes effect.
const REFUSED: &str = "refused";
/// The parts run in parallel.
const PARTS: usize = 2;

#[test]
fn first_half_of_the_settings_stops_no_agent() {
    unprivileged("first_half_of_the_settings_stops_no_agent", |place| part(place, 0));
}

#[test]
fn second_half_of_the_settings_stops_no_agent() {
    unprivileged("second_half_of_the_settings_stops_no_agent", |place| part(place, 1));
}

async fn part(place: Place, part: usize) {
    let scene = Scene::new(place).await;
    let mut servers = Servers::new(&scene).await;
    let (mut found, mut tried) = (Vec::new(), 0);
    // All but some levels of messages have no more than three values: those are spared the copies.
    for (index, batch) in servers.batches().await.into_iter().enumerate() {
        servers.copies = index < 3;
        if index % PARTS != part {
            continue;
        }
        let batch = of_today(batch);
        let begun = Instant::now();
        tried += batch.len();
        println!("batch {index} of {} values", batch.len());
        found.extend(servers.find(&scene, batch).await);
        println!("batch {index} took {:.1} s", begun.elapsed().as_secs_f64());
    }
    assert!(tried > 50, "only {tried} values were tried");
    assert!(
        found.is_empty(),
        "settings that are allowed and stop the agent:\n{}",
        found.join("\n")
    );
}

/// Every other value by the day, or all in a long run: they take minutes.
fn of_today(batch: Vec<Setting>) -> Vec<Setting> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    let (day, all) = (now.as_secs() / (24 * 60 * 60), std::env::var_os("CDB_LONG").is_some());
    let is_tried = |index: &u64| all || (index + day).is_multiple_of(2);
    let numbered = (0..).zip(batch);
    numbered
        .filter(|(index, _)| is_tried(index))
        .map(|(_, setting)| setting)
        .collect()
}

/// A primary, its standby, and a member that does not exist yet.
struct Servers {
    first: Instance,
    second: Instance,
    third: Instance,
    system_id: String,
    scratch: PathBuf,
    /// A member is cloned and the former primary rewound, too.
    copies: bool,
}

impl Servers {
    async fn new(scene: &Scene) -> Self {
        let mut servers = Self {
            first: scene.instance(0),
            second: scene.instance(1),
            third: scene.instance(2),
            system_id: String::new(),
            scratch: scene.place.scratch.clone(),
            copies: true,
        };
        let Self {
            first,
            second,
            system_id,
            ..
        } = &mut servers;
        first.initdb().await.expect("a database");
        *system_id = first.control().await.system_id;
        first.start_primary().await;
        first.sql.ensure_member(&second.member.id).await.expect("admitted");
        second.clone_of(first, system_id).await.expect("a clone");
        second.start_standby(first).await;
        second.stop(StopMode::Fast).await;
        first.stop(StopMode::Fast).await;
        for ordinal in 0..3 {
            let kept = servers.scratch.join(format!("kept-{ordinal}"));
            copy_files(&scene.supervisor, &servers.scratch.join(ordinal.to_string()), &kept).await;
        }
        servers
    }

    /// All values that are tried, at most one of each setting in a batch.
    async fn batches(&mut self) -> Vec<Vec<Setting>> {
        self.first.start_primary().await;
        let settings = self.first.session("postgres").await;
        let query = "SELECT lower(name), vartype, min_val, max_val, enumvals, reset_val FROM pg_settings
            WHERE context IN ('user', 'superuser', 'backend', 'superuser-backend', 'sighup') ORDER BY name";
        let rows = settings.query(query, &[]).await.expect("the settings");
        let mut batches: Vec<Vec<Setting>> = Vec::new();
        for row in rows {
            let name: String = row.get(0);
            let values = unfriendly(&name, row.get(1), row.get(2), row.get(3), row.get(4), row.get(5));
            let allowed = values.into_iter().filter(|value| is_allowed(&name, value));
            for (index, value) in allowed.enumerate() {
                if batches.len() == index {
                    batches.push(Vec::new());
                }
                batches[index].push((name.clone(), value));
            }
        }
        drop(settings);
        self.first.stop(StopMode::Fast).await;
        batches
    }

    /// Tries a batch. If something fails, returns which of its values caused it, and the error.
    async fn find(&mut self, scene: &Scene, batch: Vec<Setting>) -> Vec<String> {
        let (mut left, mut found) = (vec![batch], Vec::new());
        while let Some(batch) = left.pop() {
            let Err(error) = self.try_out(scene, &batch).await else {
                continue;
            };
            match batch.as_slice() {
                // PostgreSQL's refusal is shown to the user.
                [_] if error.starts_with(REFUSED) => {}
                [(name, value)] => {
                    println!("found: {name} = {value:?}: {error}");
                    found.push(format!("{name} = {value:?}: {error}"));
                }
                several => {
                    let (one, other) = several.split_at(several.len() / 2);
                    left.extend([one.to_vec(), other.to_vec()]);
                    if left.len() > 100 {
                        found.push(format!("only together: {several:?}: {error}"));
                        return found;
                    }
                }
            }
        }
        found
    }

    /// Restores the initial state, has the servers apply the settings, and does everything that an agent does.
    async fn try_out(&mut self, scene: &Scene, batch: &[Setting]) -> Result<(), String> {
        let result = self.all_of(batch).await;
        for instance in [&mut self.first, &mut self.second, &mut self.third] {
            instance.server = None;
            instance.settings.parameters.clear();
        }
        scene.supervisor.kill_everything_else(&[]).await.expect("killed");
        for ordinal in 0..3 {
            let place = self.scratch.join(ordinal.to_string());
            fs::remove_dir_all(&place).expect("removed");
            copy_files(&scene.supervisor, &self.scratch.join(format!("kept-{ordinal}")), &place).await;
        }
        result
    }

    async fn all_of(&mut self, batch: &[Setting]) -> Result<(), String> {
        let Self {
            first, second, third, ..
        } = self;
        let parameters: BTreeMap<String, String> = batch.iter().cloned().collect();
        // A running primary applies them. A standby is started with them, reverts them, and applies them again.
        started(first, &open_primary(), "primary").await?;
        let parameters = configured(first, &open_primary(), &parameters).await?;
        second.settings.parameters = parameters.clone();
        second.volume.follow(Epoch(1)).map_err(|error| error.to_string())?;
        let follows = second.standby_of(first).await;
        started(second, &follows, "standby").await?;
        told(second, "streams", is_streaming).await?;
        configured(second, &follows, &BTreeMap::new()).await?;
        configured(second, &follows, &parameters).await?;
        // The work of a primary.
        let rule = SyncRule::any(1, [second.member.id.clone()]);
        words("admit", first.sql.ensure_member(&third.member.id).await)?;
        words("set the password", first.sql.ensure_password("app", "another").await)?;
        words("set it again", first.sql.ensure_password("app", PASSWORD).await)?;
        if !first.sql.greet().await {
            return Err("no new session is taken".to_owned());
        }
        words("write the canary", first.sql.write_canary().await)?;
        words("make a checkpoint", first.sql.checkpoint(PATIENCE).await)?;
        let role = Role::Primary {
            rule: rule.clone(),
            open: true,
        };
        let config = first.config(&role);
        let server = first.server.as_ref().expect("a server");
        let set = set_sync(&first.volume, server, &mut first.sql, &config, &rule, false).await;
        words("prove the rule", set)?;
        if self.copies {
            words("clone", third.clone_of(first, &self.system_id).await)?;
        }
        let keep = BTreeSet::from([second.member.id.clone()]);
        words("drop a member", first.sql.drop_members_except(&keep).await)?;
        // Its writes arrive.
        words("write the canary", first.sql.write_canary().await)?;
        let end = words("ask the primary", first.sql.status().await)?.position.lsn;
        told(second, "has replayed all", |status| status.replayed >= Some(end)).await?;
        let standbys = words("ask the primary", first.sql.status().await)?.standbys();
        if standbys.keys().next() != Some(&second.member.id) {
            return Err(format!("the standby is not counted: {standbys:?}"));
        }
        // An election, a promotion, and the way back of the former primary.
        let server = second.server.as_ref();
        words("promise", promise(&second.volume, server, Epoch(2)).await)?;
        let status = told(second, "knows the end of what it received", |status| {
            status.received_all
        })
        .await?;
        if status.position.lsn < end || status.position.timeline != Timeline(1) {
            return Err(format!("a wrong position: {:?}", status.position));
        }
        words("write what is lost", first.sql.write_canary().await)?;
        stopped(first).await?;
        let config = second.config(&Role::Primary {
            rule: SyncRule::default(),
            open: false,
        });
        let server = second.server.as_ref().expect("a server");
        let members = BTreeSet::from([first.member.id.clone()]);
        let sql = &mut second.sql;
        let promoted = promote(&second.volume, server, sql, &config, Timeline(2), &members, || true).await;
        words("promote", promoted)?;
        words("make a checkpoint", second.sql.checkpoint(PATIENCE).await)?;
        words("admit", second.sql.ensure_member(&first.member.id).await)?;
        configured(second, &open_primary(), &BTreeMap::new()).await?;
        if !self.copies {
            return Ok(());
        }
        configured(second, &open_primary(), &parameters).await?;
        let source = first.upstream(second);
        let rewound = rewind(&first.tools, &first.volume, &first.files, &source, Epoch(2)).await;
        if let Err(error) = words("rewind", rewound) {
            // A rewind needs WAL from before the fork, which settings may remove. The agent then copies the primary
            // again.
            if !error.contains("could not open file") && !error.contains("could not find") {
                return Err(error);
            }
            let wal = first.volume.wal_directory().expect("a WAL volume");
            for directory in [first.volume.pgdata(), wal.to_path_buf()] {
                fs::remove_dir_all(directory).map_err(|error| error.to_string())?;
            }
            words("clone again", first.clone_of(second, &self.system_id).await)?;
        }
        first.volume.follow(Epoch(2)).map_err(|error| error.to_string())?;
        let follows = first.standby_of(second).await;
        started(first, &follows, "standby").await?;
        told(first, "streams again", is_streaming).await?;
        configured(first, &follows, &BTreeMap::new()).await?;
        Ok(())
    }
}

/// The values of a setting that might do most harm.
fn unfriendly(
    name: &str,
    kind: &str,
    least: Option<String>,
    most: Option<String>,
    all: Option<Vec<String>>,
    present: Option<String>,
) -> Vec<String> {
    let mut values = match kind {
        "bool" => vec!["on".to_owned(), "off".to_owned()],
        "enum" => all.unwrap_or_default(),
        // A value that switches a limit off is mostly below one.
        "integer" | "real" => least.into_iter().chain(["1".to_owned()]).chain(most).collect(),
        _ => vec![String::new(), "nowhere".to_owned()],
    };
    let texts = TEXTS.iter().filter(|(known, _)| *known == name);
    values.extend(texts.map(|(_, value)| (*value).to_owned()));
    values.retain(|value| Some(value) != present.as_ref());
    values.dedup();
    values
}

/// True if the API server accepts the setting.
fn is_allowed(name: &str, value: &str) -> bool {
    let resource: ClusteredDatabase = serde_json::from_value(serde_json::json!({
        "apiVersion": "clustereddatabase.io/v1alpha2",
        "kind": "ClusteredDatabase",
        "metadata": {"name": "orders"},
        "spec": {"storage": {"data": {"size": "1Gi"}}, "postgres": {"parameters": {name: value}}},
    }))
    .expect("a resource");
    api::validate(&resource).is_empty()
}

fn words<T, E: std::error::Error>(what: &str, result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| match error.source() {
        Some(source) => format!("{what}: {error}: {source}"),
        None => format!("{what}: {error}"),
    })
}

async fn started(instance: &mut Instance, role: &Role, what: &str) -> Result<(), String> {
    words(&format!("start the {what}"), instance.try_start(role).await)?;
    let standby = matches!(role, Role::Standby { .. });
    told(instance, "answers", |status| status.in_recovery == standby).await?;
    Ok(())
}

async fn stopped(instance: &mut Instance) -> Result<(), String> {
    let server: Server = instance.server.take().expect("a server");
    words("stop", server.stop(StopMode::Fast))?;
    let ended = server.stopped(PATIENCE).await;
    ended
        .map(|_| ())
        .ok_or_else(|| format!("it did not stop within {} s", PATIENCE.as_secs()))
}

/// Has a running server apply `parameters`, without those that PostgreSQL refuses. Returns the others.
async fn configured(
    instance: &mut Instance,
    role: &Role,
    parameters: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, String> {
    let mut taken = parameters.clone();
    loop {
        instance.settings.parameters = taken.clone();
        let config = instance.config(role);
        let server = instance.server.as_ref().expect("a server");
        let reloaded = reload(&instance.tools, &instance.volume, server, &mut instance.sql, &config).await;
        let error = match words("configure", reloaded)? {
            Reload::Applied { .. } => return Ok(taken),
            Reload::Refused { error } => error,
        };
        let before = taken.len();
        taken.retain(|name, _| !error.to_lowercase().contains(&format!("parameter \"{name}\"")));
        if taken.len() == before {
            return Err(format!("{REFUSED}: {error}"));
        }
    }
}

/// Waits until a session shows what is wanted.
async fn told(instance: &mut Instance, what: &str, wanted: impl Fn(&Status) -> bool) -> Result<Status, String> {
    let (begun, mut last) = (Instant::now(), String::new());
    while begun.elapsed() < PATIENCE {
        match instance.sql.status().await {
            Ok(status) if wanted(&status) => return Ok(status),
            Ok(status) => last = format!("{status:?}"),
            Err(error) => last = error.to_string(),
        }
        if let Some(status) = instance.server.as_ref().and_then(Server::exited) {
            return Err(format!("the server ended ({status}) before it {what}"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err(format!("not within {} s: {what}; last: {last}", PATIENCE.as_secs()))
}
