//! `upgrade-preview`: what this version's machine and builders would do about running databases, before it is installed.

use anyhow::{Result, bail};
use api::{ClusteredDatabase, Phase};
use chrono::{DateTime, Utc};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::core::PartialObjectMeta;
use machine::cluster::{Action, Decision};
use serde::Serialize;

use crate::ahead;
use crate::cluster::Cluster;
use crate::look::Look;
use crate::plan::{CHANGES, NOTHING, Step};
use crate::record;
use crate::replay;
use crate::text::{Page, Style, Tone, instant, list};

/// The page.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradePage {
    /// The version that would be installed: this program's.
    pub version: &'static str,
    /// The databases.
    pub databases: Vec<Preview>,
    /// The databases that could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

/// A database that could not be read.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unread {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Why.
    pub why: String,
}

/// What an upgrade means for one database.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// The database's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The state by the running operator.
    pub now: State,
    /// The state by this version after its first actions.
    pub then: State,
    /// Its first actions, up to one whose result depends on others.
    pub actions: Vec<Step>,
    /// Instances whose pods are then of an older template: they are replaced one at a time.
    pub replaced: Vec<String>,
    /// The running operator's recorded decisions, made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
    /// What could not be read or compared.
    pub notes: Vec<String>,
}

/// The state of a database, as an operator reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    /// The phase.
    pub phase: Option<Phase>,
    /// The unmet condition.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
}

/// Recorded decisions, made again.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    /// How many there are.
    pub decisions: usize,
    /// How many differ with this version.
    pub differing: usize,
    /// When the first of them was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<DateTime<Utc>>,
}

impl Preview {
    /// This version reports and does the same as the running one.
    fn is_same(&self) -> bool {
        self.actions.is_empty() && self.replaced.is_empty() && self.now == self.then
    }
}

impl UpgradePage {
    /// The program's exit code: as of `plan`; that of an error if not all databases could be read.
    pub fn exit(&self) -> u8 {
        if !self.unread.is_empty() {
            return 1;
        }
        let same =
            |preview: &Preview| preview.is_same() && preview.replay.as_ref().is_none_or(|replay| replay.differing == 0);
        if self.databases.iter().all(same) {
            NOTHING
        } else {
            CHANGES
        }
    }
}

/// The page for these databases.
pub fn page(databases: Vec<Preview>, unread: Vec<Unread>) -> UpgradePage {
    UpgradePage {
        version: env!("CARGO_PKG_VERSION"),
        databases,
        unread,
    }
}

/// The chosen databases, as namespace and name: the named ones, or all.
///
/// # Errors
/// If they cannot be listed, or there are none.
pub async fn meant(cluster: &Cluster, names: &[String], everywhere: bool) -> Result<Vec<(String, String)>> {
    if !names.is_empty() {
        return Ok(names
            .iter()
            .map(|name| (cluster.namespace.clone(), name.clone()))
            .collect());
    }
    let api: Api<ClusteredDatabase> = if everywhere {
        Api::all(cluster.client.clone())
    } else {
        cluster.databases()
    };
    // Their names alone: one unreadable database must not hide the others.
    let found = api.list_metadata(&ListParams::default()).await;
    let found = found.map_err(|error| cluster.explain(error))?;
    if found.items.is_empty() && !everywhere {
        bail!(
            "there is no ClusteredDatabase in namespace {:?}: give --namespace, or --all-namespaces",
            cluster.namespace
        );
    }
    let of = |db: &PartialObjectMeta<ClusteredDatabase>| (db.namespace().unwrap_or_default(), db.name_any());
    Ok(found.iter().map(of).collect())
}

/// What an upgrade means for one database of a cluster.
///
/// # Errors
/// If it cannot be read.
pub async fn online(cluster: &Cluster, namespace: &str, name: &str) -> Result<Preview> {
    let cluster = Cluster {
        namespace: namespace.to_owned(),
        ..cluster.clone()
    };
    let snapshot = cluster.snapshot(name).await?;
    let mut preview = preview(Look::new(&snapshot, Some(namespace), name)?);
    let recorded = match record::fetch(&cluster, name).await {
        Ok(text) => replay::parse(&text),
        Err(error) => Err(error),
    };
    match recorded {
        Ok(recording) => preview.replay = Some(again(&replay::page(&recording))),
        Err(error) => preview
            .notes
            .push(format!("Its recorded decisions are not compared: {error:#}.")),
    }
    Ok(preview)
}

fn again(page: &replay::ReplayPage) -> Replay {
    let mut differing = page.decisions.iter().filter(|decision| !decision.differs.is_empty());
    Replay {
        decisions: page.decisions.len(),
        differing: page.differing,
        first: differing.next().map(|decision| decision.at),
    }
}

/// What an upgrade means for one database.
pub fn preview(mut look: Look) -> Preview {
    look.presume();
    let status = look.status();
    let now = State {
        phase: status.phase,
        what: status.waiting.map(|waiting| waiting.what),
    };
    let decisions = ahead::decisions(&mut look);
    let name = look.db.name_any();
    let older = look.with_facts(|facts| {
        let older = facts.pods().iter().filter(|pod| !facts.current_revision(pod));
        older.map(|pod| pod.name.clone()).collect()
    });
    let unknown = look.unknown();
    let mut notes = Vec::new();
    if !unknown.is_empty() {
        notes.push(format!("Not read, and counted as unknown: {}.", unknown.join(", ")));
    }
    Preview {
        namespace: look.namespace().to_owned(),
        actions: ahead::steps(&decisions, &name),
        name,
        then: decisions.last().map_or_else(|| now.clone(), then),
        now,
        replaced: older,
        replay: None,
        notes,
    }
}

fn then(decision: &Decision) -> State {
    let what = match &decision.action {
        Action::Wait(waiting) if !waiting.resting => Some(waiting.what.to_string()),
        _ => None,
    };
    State {
        phase: Some(decision.phase),
        what,
    }
}

/// The page as text.
pub fn text(page: &UpgradePage, style: Style) -> String {
    let mut out = Page::default();
    out.line(format!("By the operator of version {}", page.version));
    for preview in &page.databases {
        out.line("");
        one(&mut out, preview, style);
    }
    for unread in &page.unread {
        out.line("");
        let name = format!("{} in {}", unread.name, unread.namespace);
        out.field("Database", style.paint(Tone::Strong, &name));
        out.field("Not read", style.paint(Tone::Bad, &unread.why));
    }
    out.line("");
    out.line(
        "This preview assumes the operator's present configuration (its own image, default images of PostgreSQL). Another image of \
         the operator changes each StatefulSet and replaces no pod. Another default image of PostgreSQL applies to new \
         databases, and to others only by the user's order.",
    );
    out.finish()
}

fn one(out: &mut Page, preview: &Preview, style: Style) {
    let name = format!("{} in {}", preview.name, preview.namespace);
    out.field("Database", style.paint(Tone::Strong, &name));
    out.field("Now", state(&preview.now));
    if preview.is_same() {
        out.field("Upgraded", style.paint(Tone::Good, "nothing would change"));
    } else {
        out.field("Upgraded", state(&preview.then));
    }
    for (index, step) in preview.actions.iter().enumerate() {
        out.line(format!("  {:>2}. {}", index + 1, step.action));
        out.line(format!("      {}: {}", step.rule, step.because));
    }
    if !preview.replaced.is_empty() {
        let pods = list(&preview.replaced);
        let told = format!("the pods {pods}, which are of an older template, one at a time");
        out.field("Replaced", style.paint(Tone::Busy, &told));
    }
    if let Some(replay) = &preview.replay {
        let told = match (replay.differing, replay.first) {
            (0, _) | (_, None) => format!("{} decisions, as recorded", replay.decisions),
            (differing, Some(first)) => format!(
                "{differing} of {} decisions differ, first the one of {}: see `kubectl cdb record` and `replay`",
                replay.decisions,
                instant(first)
            ),
        };
        out.field("Recorded", told);
    }
    preview.notes.iter().for_each(|note| out.field("Note", note));
}

fn state(state: &State) -> String {
    let phase = state.phase.map_or("no phase yet", Phase::as_str);
    match &state.what {
        Some(what) => format!("{phase}, waits for {what}"),
        None => phase.to_owned(),
    }
}
