//! Carries a command out.

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use api::backup::{BackupKind, BackupSource};
use api::{ClusteredDatabase, Guarded};
use chrono::Utc;
use clap::CommandFactory;
use futures::{Stream, StreamExt};
use kube::ResourceExt;
use kube::api::ListParams;
use serde::Serialize;

use crate::arguments::{Arguments, Command, Format, View};
use crate::change::{self, Wish};
use crate::cluster::{Cluster, Place};
use crate::fleet::FleetPage;
use crate::look::Look;
use crate::snapshot::Snapshot;
use crate::text::{Style, instant, plain};
use crate::upgrade::{Unread, UpgradePage};
use crate::watch::{Change, Watched};
use crate::{
    backup, drill, file, fleet, history, kubectl, plan, record, replay, report, status, upgrade, watch, what_if, why,
};

/// The program's exit code after success.
const DONE: u8 = 0;

/// Carries the command out; returns the program's exit code.
///
/// # Errors
/// If it cannot be done.
pub async fn run(arguments: Arguments) -> Result<u8> {
    let place = &arguments.place;
    match &arguments.command {
        Command::Status {
            name: None,
            all_namespaces,
            source,
            ..
        } => {
            let page = fleet(place, source.file.as_deref(), *all_namespaces).await?;
            show(source.output, &page, |page| fleet::text(page, style()))
        }
        Command::Status {
            name: Some(name),
            source,
            watch: again,
            ..
        } => {
            let view = View {
                name: name.clone(),
                source: source.clone(),
            };
            if *again {
                return watch(place, &view).await;
            }
            let (look, _) = look(place, &view).await?;
            show(source.output, &status::page(&look), |page| status::text(page, style()))
        }
        Command::Why { view } => {
            let (mut look, _) = look(place, view).await?;
            show(view.source.output, &why::page(&mut look), |page| {
                why::text(page, style())
            })
        }
        Command::History { view } => {
            let (look, snapshot) = look(place, view).await?;
            show(view.source.output, &history::page(&look, &snapshot), |page| {
                history::text(page, style())
            })
        }
        Command::Plan { view, new } => plan_of(place, view, new.as_deref()).await,
        Command::WhatIf { view, lose } => {
            let (look, _) = look(place, view).await?;
            show(view.source.output, &what_if::page(look, lose)?, |page| {
                what_if::text(page, style())
            })
        }
        Command::Record { name, output } => record(place, name, output.as_deref()).await,
        Command::Replay { file, output } => {
            let page = replay::page(&replay::read(file)?);
            show(*output, &page, |page| replay::text(page, style()))?;
            Ok(page.exit())
        }
        Command::UpgradePreview {
            names,
            all_namespaces,
            file,
            output,
        } => {
            let page = match file {
                Some(path) => upgrade::page(previews_of_file(place, path, names)?, Vec::new()),
                None => previews(place, names, *all_namespaces).await?,
            };
            show(*output, &page, |page| upgrade::text(page, style()))?;
            Ok(page.exit())
        }
        Command::Promote(of) => wish(place, &of.name, Wish::Promote(&of.instance)).await,
        Command::TakeImage { name, image } => wish(place, name, Wish::TakeImage(image)).await,
        Command::AcceptLoss { name, epoch } => wish(place, name, Wish::AcceptLoss(*epoch)).await,
        Command::DiscardQuarantined { of, data } => {
            wish(place, &of.name, Wish::DiscardQuarantined(&of.instance, data)).await
        }
        Command::RecreateLease(of) => wish(place, &of.name, Wish::RecreateLease).await,
        Command::RotateAuthority { name, compromised } => {
            let compromised = *compromised;
            wish(place, name, Wish::RotateAuthority { compromised }).await
        }
        Command::Backup { name, kind, source } => back_up(place, name, (*kind).into(), (*source).into()).await,
        Command::Backups { name, output } => {
            let cluster = Cluster::connect(place).await?;
            let all = cluster.backups().list(&ListParams::default()).await;
            let all = all.map_err(|error| cluster.explain(error))?;
            let databases = cluster.fleet(false).await?.into_iter();
            let databases: Vec<ClusteredDatabase> = databases.filter_map(|db| db.0.ok()).collect();
            show(
                *output,
                &backup::page(&all.items, &databases, name.as_deref()),
                backup::text,
            )
        }
        Command::Recover {
            name,
            new,
            in_place: _,
            to,
            backup,
            keep_hours,
            dry_run,
        } => {
            let names = (name.as_str(), new.as_deref());
            recover(place, names, to.as_deref(), backup.as_deref(), *keep_hours, *dry_run).await
        }
        Command::UndoRecovery(of) => wish(place, &of.name, Wish::UndoRecovery).await,
        Command::ConfirmRecovery(of) => wish(place, &of.name, Wish::ConfirmRecovery).await,
        Command::Drill(drill) => drill::run(place, drill, say).await,
        Command::Fence(of) => wish(place, &of.name, Wish::Fence(&of.instance)).await,
        Command::Unfence(of) => wish(place, &of.name, Wish::Unfence(&of.instance)).await,
        Command::Restart(of) => wish(place, &of.name, Wish::Restart).await,
        Command::Hibernate(of) => wish(place, &of.name, Wish::Hibernate(true)).await,
        Command::Wake(of) => wish(place, &of.name, Wish::Hibernate(false)).await,
        Command::Pause(of) => wish(place, &of.name, Wish::Pause(true)).await,
        Command::Resume(of) => wish(place, &of.name, Wish::Pause(false)).await,
        Command::Psql {
            name,
            search_path,
            arguments,
        } => psql(place, name, search_path, arguments).await,
        Command::Logs { name, flags } => {
            let cluster = Cluster::connect(place).await?;
            cluster.database(name).await?;
            kubectl::become_kubectl(&kubectl::logs(place, &cluster.namespace, name, flags)).map(|()| DONE)
        }
        Command::Report { name, output } => write_report(place, name, output).await,
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "kubectl-cdb", &mut script);
            say(&String::from_utf8(script).context("cannot write the script")?)
        }
    }
}

async fn plan_of(place: &Place, view: &View, new: Option<&Path>) -> Result<u8> {
    let (source, target) = (&view.source, plan::Target::of(&view.name)?);
    let Some(target) = target else {
        let new = new.context("the new spec is missing: name its file with --filename")?;
        let (look, _) = look(place, view).await?;
        let page = plan::page(&look, &plan::read(new, &look)?)?;
        show(source.output, &page, |page| plan::text(page, style()))?;
        return Ok(page.exit());
    };
    if new.is_some() {
        bail!("--filename is for a ClusteredDatabase: to see a plan first, set managementPolicy: Observe");
    }
    let object = match &source.file {
        Some(path) => target.find(&file::read(path)?, place.namespace.as_deref())?,
        None => {
            let cluster = Cluster::connect(place).await?;
            cluster.object(&target.resource(), &target.name).await?
        }
    };
    let page = target.page(object)?;
    show(source.output, &page, |page| plan::statements(page, style()))?;
    Ok(page.exit())
}

async fn back_up(place: &Place, name: &str, kind: BackupKind, source: BackupSource) -> Result<u8> {
    let cluster = Cluster::connect(place).await?;
    let backup = backup::one_more(&cluster.database(name).await?, kind, source, Utc::now())?;
    let made = cluster.backups().create(&change::as_us(), &backup).await;
    made.map_err(|error| cluster.explain(error))?;
    let backup = backup.name_any();
    say(&format!(
        "{name} is to be backed up, as {backup}: see `kubectl get dbb {backup} --watch`\n"
    ))
}

async fn recover(
    place: &Place,
    (name, new): (&str, Option<&str>),
    to: Option<&str>,
    of: Option<&str>,
    keep_hours: Option<u32>,
    dry_run: bool,
) -> Result<u8> {
    let now = Utc::now();
    let time = to.map(|text| backup::time(text, now)).transpose()?;
    let cluster = Cluster::connect(place).await?;
    let Some(new) = new else {
        let in_place = Wish::Recover {
            backup: of,
            time,
            keep_hours,
        };
        if !dry_run {
            return wish(place, name, in_place).await;
        }
        let plan = change::plan_recovery(&cluster, name, in_place).await?;
        return say(&format!("{plan}\n"));
    };
    let recovered = backup::recovered(&cluster.database(name).await?, new, time, of.map(str::to_owned))?;
    if dry_run {
        return say(&serde_saphyr::to_string(&recovered).context("cannot write YAML")?);
    }
    let made = cluster.databases().create(&change::as_us(), &recovered).await;
    made.map_err(|error| cluster.explain(error))?;
    let when = time.map_or("the end of its archived WAL".to_owned(), instant);
    say(&format!(
        "{new} is to be made from the backups of {name}, as of {when}: see `kubectl cdb status {new} --watch`\n"
    ))
}

/// The snapshot for a page: from files if they are named, else from the cluster.
async fn look(place: &Place, view: &View) -> Result<(Look, Snapshot)> {
    let (snapshot, namespace) = match &view.source.file {
        Some(path) => (file::read(path)?, place.namespace.clone()),
        None => {
            let cluster = Cluster::connect(place).await?;
            (cluster.snapshot(&view.name).await?, Some(cluster.namespace))
        }
    };
    Ok((Look::new(&snapshot, namespace.as_deref(), &view.name)?, snapshot))
}

/// The databases of a file, or of the cluster.
async fn fleet(place: &Place, file: Option<&Path>, everywhere: bool) -> Result<FleetPage> {
    let Some(path) = file else {
        let databases = Cluster::connect(place).await?.fleet(everywhere).await?;
        return Ok(fleet::page(&databases, everywhere, Utc::now()));
    };
    let snapshot = file::read(path)?;
    let mut databases: Vec<Guarded<ClusteredDatabase>> = snapshot.typed("ClusteredDatabase")?;
    if let (Some(namespace), false) = (&place.namespace, everywhere) {
        databases.retain(|db| db.namespace().as_ref() == Some(namespace));
    }
    Ok(fleet::page(&databases, everywhere, snapshot.at))
}

fn style() -> Style {
    Style::of(std::io::stdout().is_terminal(), |name| std::env::var(name).ok())
}

fn show<P: Serialize>(format: Format, page: &P, text: impl Fn(&P) -> String) -> Result<u8> {
    say(&rendered(format, page, text)?)
}

fn rendered<P: Serialize>(format: Format, page: &P, text: impl Fn(&P) -> String) -> Result<String> {
    Ok(match format {
        Format::Text => text(page),
        Format::Json => serde_json::to_string_pretty(page).context("cannot write JSON")? + "\n",
        Format::Yaml => serde_saphyr::to_string(page).context("cannot write YAML")?,
    })
}

fn say(text: &str) -> Result<u8> {
    heard(text).map(|_| DONE)
}

/// Writes to the standard output; false if its reader has closed it (`| head`), which is no fault.
fn heard(text: &str) -> Result<bool> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write the page"),
    }
}

async fn wish(place: &Place, name: &str, wish: Wish<'_>) -> Result<u8> {
    let cluster = Cluster::connect(place).await?;
    let told = change::carry_out(&cluster, name, wish).await?;
    say(&format!("{told}\n"))
}

async fn record(place: &Place, name: &str, output: Option<&Path>) -> Result<u8> {
    let cluster = Cluster::connect(place).await?;
    let text = record::fetch(&cluster, name).await?;
    let Some(path) = output else { return say(&text) };
    record::write(path, &text)?;
    let decisions = text.lines().count().saturating_sub(1);
    say(&format!(
        "{} is written, with {decisions} decisions: kubectl cdb replay {}\n",
        path.display(),
        path.display()
    ))
}

async fn previews(place: &Place, names: &[String], everywhere: bool) -> Result<UpgradePage> {
    let cluster = Cluster::connect(place).await?;
    let meant = upgrade::meant(&cluster, names, everywhere).await?;
    let alone = meant.len() == 1;
    let (mut previews, mut unread) = (Vec::new(), Vec::new());
    for (namespace, name) in meant {
        match upgrade::online(&cluster, &namespace, &name).await {
            Ok(preview) => previews.push(preview),
            Err(error) if alone => return Err(error),
            Err(error) => unread.push(Unread {
                name,
                namespace,
                why: format!("{error:#}"),
            }),
        }
    }
    Ok(upgrade::page(previews, unread))
}

fn previews_of_file(place: &Place, path: &Path, names: &[String]) -> Result<Vec<upgrade::Preview>> {
    let snapshot = file::read(path)?;
    let look = |name: &String| Look::new(&snapshot, place.namespace.as_deref(), name);
    names.iter().map(|name| Ok(upgrade::preview(look(name)?))).collect()
}

async fn psql(place: &Place, name: &str, search_path: &str, arguments: &[String]) -> Result<u8> {
    let cluster = Cluster::connect(place).await?;
    let db = cluster.database(name).await?;
    let primary = cluster.primary(&db).await?;
    let how = kubectl::Psql {
        pod: &primary,
        database: &db.spec.initdb().database,
        search_path,
        terminal: std::io::stdin().is_terminal() && std::io::stdout().is_terminal(),
        arguments,
    };
    let command = kubectl::psql(place, &cluster.namespace, &how);
    kubectl::become_kubectl(&command).map(|()| DONE)
}

async fn write_report(place: &Place, name: &str, output: &Path) -> Result<u8> {
    let cluster = Cluster::connect(place).await?;
    let snapshot = cluster.snapshot(name).await?;
    let at = snapshot.at;
    let files = report::files(snapshot, name, &report::logs(&cluster).await)?;
    report::write(output, name, &files, at)?;
    say(&format!(
        "{} is written: read it before you send it to anybody\n",
        output.display()
    ))
}

/// Shows the page whenever the resource, its Lease or a pod changes and the page with it.
async fn watch(place: &Place, view: &View) -> Result<u8> {
    let cluster = Cluster::connect(place).await?;
    let snapshot = cluster.snapshot(&view.name).await?;
    let mut changes = watch::changes(&cluster, &view.name, &snapshot);
    let mut watched = Watched::new(snapshot);
    let mut before = String::new();
    loop {
        let now = watched.now();
        if now.of("ClusteredDatabase").next().is_none() {
            bail!("ClusteredDatabase {:?} is gone", view.name);
        }
        let look = Look::new(now, Some(&cluster.namespace), &view.name)?;
        let page = rendered(view.source.output, &status::page(&look), |page| {
            status::text(page, style())
        })?;
        if page != before {
            let text = if style().colour && view.source.output == Format::Text {
                format!("\u{1b}[2J\u{1b}[H{page}")
            } else {
                format!("{page}---\n")
            };
            if !heard(&text)? {
                return Ok(DONE);
            }
            before = page;
        }
        next(&mut watched, &mut changes).await?;
    }
}

/// Waits for the next change.
async fn next(watched: &mut Watched, changes: &mut (impl Stream<Item = Change> + Unpin)) -> Result<()> {
    loop {
        let (kind, event) = changes.next().await.context("all watches have ended")?;
        match event {
            Ok(event) => {
                if watched.take(&kind, event) {
                    return Ok(());
                }
            }
            Err(error) => {
                let error = plain(&error.to_string());
                eprintln!("kubectl cdb: the watch failed ({error}); it restarts by itself");
            }
        }
    }
}
