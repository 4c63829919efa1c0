//! `plan`: what the operator would do about a new spec.

mod declared;
mod fields;
mod simulate;

use std::path::Path;

use anyhow::{Context, Result, bail};
use api::status::MemberRole;
use api::{ClusteredDatabase, ClusteredDatabaseStatus, Phase, validate, validate_update};
use serde::Serialize;
use serde_json::Value;

use crate::look::Look;
use crate::parameters::{self, Effect};
use crate::text::{Page, Style, Tone, list};

pub use declared::{StatementsPage, Target, text as statements};
pub use fields::{Change, changes, unknown};
use simulate::{Case, Course};

/// Exit code of `plan` when nothing is to be done.
pub const NOTHING: u8 = 0;
/// Exit code when there are changes.
pub const CHANGES: u8 = 2;
/// Exit code when the new spec is refused.
pub const REFUSED: u8 = 3;

/// The page.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanPage {
    /// The database's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Why the new spec is refused. Then the page has nothing else except the changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// What a commit waits for before and after, if that changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promise: Option<Promise>,
    /// The fields that change.
    pub changes: Vec<Change>,
    /// The operator's actions, in order.
    pub actions: Vec<Step>,
    /// Instances whose pods are deleted and made again, in order.
    pub replaced: Vec<String>,
    /// Instances whose PostgreSQL is restarted in place, in order.
    pub restarted: Vec<String>,
    /// New instances.
    pub added: Vec<String>,
    /// Instances that are removed.
    pub removed: Vec<String>,
    /// The primaries, from first to last: each except the first by a switchover.
    pub primaries: Vec<String>,
    /// What applications notice, in words.
    pub interruption: Vec<String>,
    /// Further notes.
    pub notes: Vec<String>,
}

/// A promise that changes.
#[derive(Clone, Debug, Serialize)]
pub struct Promise {
    /// What a commit waits for now.
    pub before: String,
    /// And afterwards.
    pub after: String,
}

/// One action of the operator.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The action.
    pub action: String,
    /// The rule that decides it.
    pub rule: String,
    /// Why.
    pub because: String,
}

impl PlanPage {
    /// The program's exit code.
    pub fn exit(&self) -> u8 {
        if !self.refused.is_empty() {
            REFUSED
        } else if self.changes.is_empty() && self.actions.is_empty() {
            NOTHING
        } else {
            CHANGES
        }
    }
}

/// The new resource in `path`, for the database of the snapshot: it has the live one's identity and status.
///
/// # Errors
/// If the file has no such resource, or one with fields that this version does not know.
pub fn read(path: &Path, look: &Look) -> Result<ClusteredDatabase> {
    let name = look.db.metadata.name.clone().unwrap_or_default();
    let snapshot = crate::file::read(path)?;
    let namespaces = |object: &&Value| {
        let namespace = object["metadata"]["namespace"].as_str();
        namespace.is_none_or(|namespace| namespace == look.namespace())
    };
    let mut found = snapshot
        .of("ClusteredDatabase")
        .filter(|object| crate::snapshot::name(object) == name)
        .filter(namespaces);
    let Some(given) = found.next() else {
        let there: Vec<_> = snapshot.of("ClusteredDatabase").map(crate::snapshot::name).collect();
        bail!(
            "{} holds no ClusteredDatabase {name:?} (it has: {}): name the file with its new spec",
            path.display(),
            if there.is_empty() {
                "none".to_owned()
            } else {
                there.join(", ")
            }
        );
    };
    if found.next().is_some() {
        bail!(
            "{} holds several ClusteredDatabases {name:?}: leave one",
            path.display()
        );
    }
    let mut new: ClusteredDatabase = serde_json::from_value(given.clone())
        .with_context(|| format!("the API server would refuse {} (correct its spec)", path.display()))?;
    let understood = serde_json::to_value(&new.spec).context("cannot write the new spec")?;
    let unknown = fields::unknown("spec", &given["spec"], &understood);
    if !unknown.is_empty() {
        bail!(
            "{} has unknown fields: {}: correct or remove them",
            path.display(),
            unknown.join(", ")
        );
    }
    // kubectl would send labels and annotations too; they decide nothing.
    new.metadata = look.db.metadata.clone();
    new.status = look.db.status.clone();
    if new.spec != look.db.spec {
        new.metadata.generation = new.metadata.generation.map(|generation| generation + 1);
    }
    Ok(new)
}

/// The page for a change of the database into `new`.
///
/// # Errors
/// If the model cannot take the present spec.
pub fn page(look: &Look, new: &ClusteredDatabase) -> Result<PlanPage> {
    let old = &look.db;
    let json = |db: &ClusteredDatabase| serde_json::to_value(&db.spec).context("cannot write a spec");
    let mut page = PlanPage {
        name: old.metadata.name.clone().unwrap_or_default(),
        namespace: look.namespace().to_owned(),
        refused: Vec::new(),
        promise: promise(look, new),
        changes: fields::changes("spec", &json(old)?, &json(new)?),
        actions: Vec::new(),
        replaced: Vec::new(),
        restarted: Vec::new(),
        added: Vec::new(),
        removed: Vec::new(),
        primaries: Vec::new(),
        interruption: Vec::new(),
        notes: Vec::new(),
    };
    let violations = validate_update(old, new).into_iter().chain(validate(new));
    page.refused = violations.map(|violation| violation.to_string()).collect();
    if !page.refused.is_empty() {
        return Ok(page);
    }
    let status = look.status();
    // The WAL volume may be removed only while no instance has its volume.
    let mut before = old.clone();
    before.spec.storage.wal = before.spec.storage.wal.filter(|_| new.spec.storage.wal.is_some());
    let case = Case {
        old: &before,
        new,
        config: &look.config,
        primary: primary(&status),
        storage_classes: [&look.observed.storage_class, &look.observed.wal_storage_class],
    };
    let course = simulate::run(&case)?;
    page.interruption = interruption(old, new, &course);
    page.notes = notes(look, new, &course);
    page.actions = steps(old, new, &course);
    (page.replaced, page.restarted) = (course.replaced, course.restarted);
    (page.added, page.removed, page.primaries) = (course.added, course.removed, course.primaries);
    Ok(page)
}

/// The operator's actions, and those for WAL claims, which the model lacks: they grow as those for data do.
fn steps(old: &ClusteredDatabase, new: &ClusteredDatabase, course: &Course) -> Vec<Step> {
    let wal = |db: &ClusteredDatabase| db.spec.storage.wal.as_ref().map(|wal| wal.size.clone());
    let grows = wal(old).is_some() && wal(new).is_some() && wal(old) != wal(new);
    let set = old.status.as_ref().map_or(0, |status| status.memo.volume_set());
    let names = api::names::Names::new(old.metadata.name.clone().unwrap_or_default());
    let instances = u32::try_from(old.spec.replicas).unwrap_or(0);
    let claims = (0..instances)
        .filter(|_| grows && !new.spec.paused)
        .map(|ordinal| Step {
            action: format!(
                "grow claim {} to {}",
                names.wal_claim(set, ordinal),
                wal(new).unwrap_or_default()
            ),
            rule: "grow-volumes".to_owned(),
            because: format!(
                "claim {} asks for {}",
                names.wal_claim(set, ordinal),
                wal(old).unwrap_or_default()
            ),
        });
    let actions = course.actions.iter().map(|done| Step {
        action: done.what.clone(),
        rule: done.rule.to_owned(),
        because: done.because.clone(),
    });
    claims.chain(actions).collect()
}

/// The present or the last primary.
fn primary(status: &ClusteredDatabaseStatus) -> Option<&str> {
    let mut members = status.members.iter();
    let last = members.find(|(_, member)| member.role == Some(MemberRole::Primary));
    status.current_primary.as_deref().or(last.map(|(pod, _)| pod.as_str()))
}

/// What applications notice.
fn interruption(old: &ClusteredDatabase, new: &ClusteredDatabase, course: &Course) -> Vec<String> {
    if new.spec.paused {
        return vec!["None while spec.paused is true: the operator changes nothing.".to_owned()];
    }
    match (old.spec.hibernated, new.spec.hibernated) {
        (true, true) => return vec!["None: the database hibernates and serves nothing.".to_owned()],
        (false, true) => {
            return vec![
                "Reads and writes stop until the database is woken: all instances stop, and their pods are deleted."
                    .to_owned(),
            ];
        }
        (true, false) => {
            return vec!["None: the database served nothing. It serves again when it has woken.".to_owned()];
        }
        (false, false) => {}
    }
    let (first, last) = (course.primaries.first(), course.primaries.last());
    let mut effects = Vec::new();
    let moves: Vec<_> = course
        .primaries
        .windows(2)
        .map(|pair| format!("{} to {}", pair[0], pair[1]))
        .collect();
    if !moves.is_empty() {
        let which = if moves.len() == 1 {
            "one switchover"
        } else {
            "each switchover"
        };
        effects.push(format!(
            "Writes stop during {which}: from {}. Connections to the primary are cut then.",
            list(&moves)
        ));
    }
    // A restart in place that comes with a switchover is a standby's: the primary is restarted last, or first.
    let in_place = course
        .restarted
        .iter()
        .find(|pod| moves.is_empty() && Some(*pod) == last);
    if in_place.is_some() {
        effects.push(
            "Writes stop while PostgreSQL restarts in the primary's pod. Connections to it are cut then.".to_owned(),
        );
    }
    let alone = course
        .replaced
        .iter()
        .find(|pod| moves.is_empty() && Some(*pod) == first);
    if let Some(pod) = alone {
        effects.push(format!(
            "Reads and writes stop while pod {pod} is replaced: no other instance could take over."
        ));
    }
    let mut standbys: Vec<_> = course.replaced.iter().chain(&course.restarted).cloned().collect();
    standbys.retain(|pod| Some(pod) != in_place && Some(pod) != alone);
    if !standbys.is_empty() {
        effects.push(format!(
            "Connections to standbys are cut one after another: {}.",
            list(&standbys)
        ));
    }
    if !course.removed.is_empty() {
        effects.push(format!("Connections to {} end with it.", list(&course.removed)));
    }
    let fenced = only_in(&new.spec.fenced, &old.spec.fenced);
    if !fenced.is_empty() {
        effects.push(format!(
            "Connections to {} are cut: PostgreSQL stops there and stays stopped; pods and volumes stay.",
            list(&fenced)
        ));
    }
    if effects.is_empty() && old.spec.fenced.len() == usize::try_from(old.spec.replicas).unwrap_or(0) {
        effects.push("None: all instances were fenced and served nothing.".to_owned());
    }
    if effects.is_empty() {
        effects.push("None: no instance is restarted, and the primary stays where it is.".to_owned());
    }
    effects
}

/// The names in the first list that are not in the other.
fn only_in(one: &[String], other: &[String]) -> Vec<String> {
    one.iter().filter(|name| !other.contains(name)).cloned().collect()
}

fn notes(look: &Look, new: &ClusteredDatabase, course: &Course) -> Vec<String> {
    let mut notes = Vec::new();
    let status = look.status();
    if status.phase != Some(Phase::Ready) {
        let phase = status.phase.map_or("not begun yet", Phase::as_str);
        notes.push(format!(
            "The database is {phase} now. The plan begins with a database as the present spec wants it."
        ));
    }
    let (old, major) = (&look.db.spec.postgres.parameters, new.spec.postgres.major_version);
    let changed = parameters::changed(old, &new.spec.postgres.parameters);
    let of = |effect: Effect| -> Vec<String> {
        let names = changed.iter().filter(|name| parameters::effect(name, major) == effect);
        names.map(|name| (*name).to_owned()).collect()
    };
    let (reloaded, unknown) = (of(Effect::Reload), of(Effect::Unknown));
    if !reloaded.is_empty() {
        notes.push(format!(
            "Every instance takes up {} by itself, without a restart.",
            list(&reloaded)
        ));
    }
    if !unknown.is_empty() {
        notes.push(format!(
            "Settings of extensions: {}. If PostgreSQL needs a restart, the instances restart in place, one at a time.",
            list(&unknown)
        ));
    }
    let unfenced = only_in(&look.db.spec.fenced, &new.spec.fenced);
    if !unfenced.is_empty() && !new.spec.paused {
        notes.push(format!(
            "The agents start PostgreSQL again by themselves in {}: as standbys, unless no other instance has taken over.",
            list(&unfenced)
        ));
    }
    if look.db.spec.storage.wal.is_some() && new.spec.storage.wal.is_none() {
        notes.push("Claims for WAL that never had a volume are deleted; others stay, unused.".to_owned());
    }
    if let Some((what, who)) = &course.stuck {
        notes.push(format!("The plan ends in a wait for {what}. To end it: {who}."));
    }
    let retained = new.spec.storage.retention_policy.when_scaled == api::spec::VolumeFate::Retain;
    if !course.removed.is_empty() && retained {
        notes.push("The volumes of removed instances stay (storage.retentionPolicy.whenScaled).".to_owned());
    }
    notes
}

/// How the promise changes, if it does.
fn promise(look: &Look, new: &ClusteredDatabase) -> Option<Promise> {
    let chosen = look.status().memo.durability;
    let [before, after] = [&look.db, new].map(|db| {
        let wanted = db.spec.wanted_durability(chosen);
        match wanted.standbys {
            0 => format!(
                "{:?}: no standby, the last commits can be lost with the primary",
                wanted.mode
            ),
            1 => format!("{:?}: 1 standby, no single failure loses a commit", wanted.mode),
            several => format!(
                "{:?}: {several} standbys, no {several} failures at once lose a commit",
                wanted.mode
            ),
        }
    });
    (before != after).then_some(Promise { before, after })
}

/// The page as text.
pub fn text(page: &PlanPage, style: Style) -> String {
    let mut out = Page::default();
    out.line(style.paint(Tone::Strong, &format!("Plan for {} in {}", page.name, page.namespace)));
    out.line("");
    if !page.refused.is_empty() {
        out.line(style.paint(Tone::Bad, "Refused: the API server does not accept this spec."));
        page.refused.iter().for_each(|why| out.line(format!("  {why}")));
        return out.finish();
    }
    if page.exit() == NOTHING {
        out.line(style.paint(Tone::Good, "Nothing changes."));
        return out.finish();
    }
    if let Some(promise) = &page.promise {
        out.line(style.paint(Tone::Strong, "What a commit waits for changes"));
        out.line(format!("  before  {}", promise.before));
        out.line(format!("  after   {}", promise.after));
        out.line("");
    }
    out.line("Changes");
    page.changes.iter().for_each(|change| out.line(format!("  {change}")));
    out.line("");
    out.line("The operator");
    for (index, step) in page.actions.iter().enumerate() {
        out.line(format!("  {:>2}. {}", index + 1, step.action));
        out.line(format!("      {}: {}", step.rule, step.because));
    }
    if page.actions.is_empty() {
        out.line("  does nothing itself.");
    }
    out.line("");
    let instances = [
        ("Pods replaced", &page.replaced),
        ("Restarted in place", &page.restarted),
        ("Added", &page.added),
        ("Removed", &page.removed),
    ];
    let rows: Vec<_> = instances
        .iter()
        .map(|(what, pods)| {
            let pods = if pods.is_empty() {
                "none".to_owned()
            } else {
                pods.join(", then ")
            };
            vec![(*what).to_owned(), pods]
        })
        .chain([vec!["Primary".to_owned(), page.primaries.join(", then ")]])
        .collect();
    out.table(&[], &rows);
    out.line("");
    out.line("Interruption");
    page.interruption.iter().for_each(|line| out.line(format!("  {line}")));
    for note in &page.notes {
        out.line(format!("Note: {note}"));
    }
    out.finish()
}
