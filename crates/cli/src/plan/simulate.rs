//! The cluster machine, step after step, over the world model that its own tests use: what it would do about a new spec.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use api::names::{ANNOTATION_BASE_REVISION, ANNOTATION_REVISION, Names};
use api::quantity::Quantity;
use api::spec::ClusteredDatabaseSpec;
use api::{ClusteredDatabase, Phase};
use chrono::TimeDelta;
use machine::cluster::model::World;
use machine::cluster::{
    Action, Decision, Known, OwnedObject, OwnedState, StatusChange, StatusWrite, Step, StorageClass, WalVolumes,
};
use machine::units::Bytes;
use operator::builders::Subject;
use operator::config::Config;
use operator::desired::{self, Desired};
use operator::observe::verdict;
use serde_json::{Value, json};

use crate::parameters::{self, Effect};
use crate::words;

/// How long the model may take until it is idle. A switchover is given up after 50 s; nothing in the model takes longer.
const WAIT_LIMIT: TimeDelta = TimeDelta::minutes(15);
/// How often the model's agents act.
const TICK: TimeDelta = TimeDelta::milliseconds(100);

/// The actions of the machine and their effects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// Its actions, in order, each with the rule that decides and the reason. Labels and mere records are left out.
    pub actions: Vec<Done>,
    /// Pods that are deleted and made again, in order.
    pub replaced: Vec<String>,
    /// Instances that are new.
    pub added: Vec<String>,
    /// Instances that are gone for good in the end.
    pub removed: Vec<String>,
    /// Pods in which PostgreSQL is restarted in place, in order.
    pub restarted: Vec<String>,
    /// The primaries, from first to last.
    pub primaries: Vec<String>,
    /// The last wait, and who can end it, if the database does not become idle.
    pub stuck: Option<(String, String)>,
}

/// One action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// What.
    pub what: String,
    /// The rule that decides.
    pub rule: &'static str,
    /// Why.
    pub because: String,
}

/// The input of a simulation.
pub struct Case<'a> {
    /// The present resource.
    pub old: &'a ClusteredDatabase,
    /// The new resource.
    pub new: &'a ClusteredDatabase,
    /// The operator's configuration.
    pub config: &'a Config,
    /// The primary.
    pub primary: Option<&'a str>,
    /// Whether volumes can grow: those for data, and those for WAL.
    pub storage_classes: [&'a Known<StorageClass>; 2],
}

/// What the machine does when a database as `old` wants it gets the spec of `new`.
///
/// # Errors
/// If the model cannot take the state of `old`, or cannot carry out what the machine decides.
pub fn run(case: &Case<'_>) -> Result<Course> {
    // If a WAL volume is added, the present objects have none.
    let wal = match case.old.spec.storage.wal {
        Some(_) => WalVolumes::Templated,
        None => WalVolumes::Withheld,
    };
    let objects = |db| objects(db, case.config, wal);
    let (old, new) = (objects(case.old)?, objects(case.new)?);
    let mut world = start(case, revision(&old))?;
    apply(&mut world, case, &old, &new);
    let before = members(&world);
    let lowers = parameters::lowers_limits(&case.old.spec.postgres.parameters, &case.new.spec.postgres.parameters);
    world.primaries.drain(..world.primaries.len().saturating_sub(1));
    let mut course = follow(&mut world, case, lowers);
    course.primaries = world.primaries.clone();
    if let Some(what) = &world.impossible {
        bail!("the model cannot carry out what the operator would do: {what}");
    }
    let after = members(&world);
    course.added = after.difference(&before).cloned().collect();
    course.removed = before.difference(&after).cloned().collect();
    let gone: BTreeSet<_> = course.removed.iter().cloned().collect();
    course.replaced.retain(|pod| !gone.contains(pod));
    Ok(named(course, world.name(), case.old))
}

/// The objects that a resource asks for.
fn objects(db: &ClusteredDatabase, config: &Config, wal: WalVolumes) -> Result<BTreeMap<OwnedObject, Desired>> {
    let subject = Subject::new(db, config).context("cannot compute the objects of the database")?;
    Ok(desired::all(&subject.with_wal(wal)))
}

/// The template's revision, as the model writes it: the part for cpu and memory follows a `+`.
fn revision(objects: &BTreeMap<OwnedObject, Desired>) -> String {
    let set = objects.get(&OwnedObject::StatefulSet).map(|set| &set.content);
    let annotation = |name: &str| {
        let revision = set.and_then(|set| set["spec"]["template"]["metadata"]["annotations"][name].as_str());
        revision.unwrap_or_default()
    };
    format!(
        "{}+{}",
        annotation(ANNOTATION_BASE_REVISION),
        annotation(ANNOTATION_REVISION)
    )
}

/// A database as its old spec wants it, with the same primary.
fn start(case: &Case<'_>, revision: String) -> Result<World> {
    let spec = modelled(case, &case.old.spec)?;
    let mut world = World::new(u32::try_from(spec.replicas).unwrap_or(1));
    world.scene.data_bytes = bytes(&spec.storage.data.size);
    world.scene.revision = revision;
    let observed = &mut world.scene.observed;
    let models = [&mut observed.storage_class, &mut observed.wal_storage_class];
    for (model, found) in models.into_iter().zip(case.storage_classes) {
        if matches!(found, Known::Known(_)) {
            model.clone_from(found);
        }
    }
    let mut first = spec.clone();
    (first.paused, first.hibernated) = (false, false);
    first.fenced.clear();
    first.primary.prefer = case.primary.and_then(|pod| renamed(pod, case.old, world.name()));
    world.scene.spec = first;
    if !world.settle() {
        let decision = world.scene.decide();
        bail!(
            "the database does not become idle with the present spec in the model ({}): correct the spec first",
            decision.because
        );
    }
    world.scene.edit(|now| *now = spec);
    world.run_until(WAIT_LIMIT, rests);
    Ok(world)
}

/// Nothing more happens, or only the user can continue it; and the status says so.
fn rests(world: &World, decision: &Decision) -> bool {
    let Action::Wait(waiting) = &decision.action else {
        return false;
    };
    let by_user = matches!(decision.step, Some(Step::Paused | Step::Fenced)) || decision.phase == Phase::Hibernated;
    (waiting.resting || by_user) && world.scene.due(decision) == StatusWrite::None
}

/// The user changes the resource.
fn apply(
    world: &mut World,
    case: &Case<'_>,
    old: &BTreeMap<OwnedObject, Desired>,
    new: &BTreeMap<OwnedObject, Desired>,
) {
    // The model accepted the present spec: only names in the new one can be wrong, and the rules have checked these.
    if let Ok(spec) = modelled(case, &case.new.spec) {
        world.scene.edit(|now| *now = spec);
    }
    world.scene.data_bytes = bytes(&case.new.spec.storage.data.size);
    world.scene.revision = revision(new);
    for (kind, desired) in new {
        let Some(before) = old.get(kind) else { continue };
        let Known::Known(OwnedState::Current { uid }) = world.scene.observed.children[*kind].clone() else {
            continue;
        };
        let mut live = desired::applied(before, *kind, None);
        (live["metadata"]["uid"], live["metadata"]["resourceVersion"]) = (json!(uid), json!("1"));
        let mut state = verdict(&live, *kind, case.new, desired, &[]);
        if let OwnedState::Drifted { what, .. } = &mut state {
            // The changed field shows the old value.
            what.truncate(what.find(" is ").unwrap_or(what.len()));
        }
        world.scene.set_child(*kind, state);
    }
}

/// Runs the machine and the model until the database is idle, and records what happens.
fn follow(world: &mut World, case: &Case<'_>, lowers: bool) -> Course {
    let mut course = Course::default();
    let end = world.scene.now + WAIT_LIMIT;
    let (mut last, mut noted) = (None, None);
    while world.scene.now < end {
        let mut rested = false;
        world.run_until(TICK, |world, decision| {
            // A due status is written first; then the machine makes the same decision again.
            if noted.as_ref() != Some(&decision.action) {
                note(&mut course, decision, world.name());
                noted = Some(decision.action.clone());
            }
            if let Action::Wait(waiting) = &decision.action
                && !waiting.resting
            {
                last = Some((waiting.what.to_string(), waiting.who_can_end_it.to_string()));
            }
            rested = rests(world, decision);
            rested
        });
        if rested {
            break;
        }
        for report in world
            .scene
            .lease_mut()
            .into_iter()
            .flat_map(|lease| lease.members.values_mut())
        {
            report.lowers_limits = lowers && report.pending_restart;
        }
    }
    let decision = world.scene.decide();
    let done = matches!(&decision.action, Action::Wait(waiting) if waiting.resting);
    course.stuck = last.filter(|_| !done);
    if case.new.spec.paused {
        course.stuck = None;
    }
    course
}

fn note(course: &mut Course, decision: &Decision, name: &str) {
    let done = |what: String| Done {
        what,
        rule: decision.rule,
        because: decision.because.to_string(),
    };
    match &decision.action {
        Action::Wait(_) | Action::LabelPod { .. } | Action::MarkPod { .. } => {}
        Action::WriteStatus(changes) => {
            for change in changes {
                if let StatusChange::PermitRestart(permit) = change {
                    course.restarted.push(permit.pod.clone());
                }
                if let Some(what) = words::change(change) {
                    course.actions.push(done(what));
                }
            }
        }
        action => {
            if let Action::ReplacePod(pod) = action {
                course.replaced.push(pod.name().to_owned());
            }
            course.actions.push(done(words::action(action, name)));
        }
    }
}

/// The instances, also of a database that hibernates.
fn members(world: &World) -> BTreeSet<String> {
    world.scene.stored.members.keys().cloned().collect()
}

fn bytes(size: &str) -> Bytes {
    Bytes(Quantity::parse(size).map_or(0, Quantity::bytes))
}

/// The spec as the model takes it: the model's names, and only the parameters that need a restart. In the model every
/// changed parameter does; the agents take up the others without the operator.
fn modelled(case: &Case<'_>, spec: &ClusteredDatabaseSpec) -> Result<ClusteredDatabaseSpec> {
    let mut spec = spec.clone();
    let major = spec.postgres.major_version;
    spec.postgres
        .parameters
        .retain(|name, _| parameters::effect(name, major) == Effect::Restart);
    let mut value = serde_json::to_value(&spec).context("cannot write the spec")?;
    let model = World::new(1);
    for part in ["primary", "fenced"] {
        if let Some(part) = value.get_mut(part) {
            rename(part, case.old, model.name());
        }
    }
    serde_json::from_value(value).context("cannot read the spec")
}

/// Replaces the names of instances in a value by the model's.
fn rename(value: &mut Value, db: &ClusteredDatabase, model: &str) {
    match value {
        Value::String(text) => {
            if let Some(new) = renamed(text, db, model) {
                *text = new;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, db, model)),
        Value::Object(fields) => fields.values_mut().for_each(|field| rename(field, db, model)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn renamed(pod: &str, db: &ClusteredDatabase, model: &str) -> Option<String> {
    let names = Names::new(db.metadata.name.clone().unwrap_or_default());
    Some(Names::new(model).pod(names.ordinal(pod)?))
}

/// What happened in the model, with the database's own name.
fn named(mut course: Course, model: &str, db: &ClusteredDatabase) -> Course {
    let own = db.metadata.name.clone().unwrap_or_default();
    let put = |text: &mut String| *text = with_name(text, model, &own);
    for done in &mut course.actions {
        put(&mut done.what);
        put(&mut done.because);
    }
    let lists = [
        &mut course.replaced,
        &mut course.added,
        &mut course.removed,
        &mut course.restarted,
        &mut course.primaries,
    ];
    lists.into_iter().flatten().for_each(put);
    if let Some((what, who)) = &mut course.stuck {
        put(what);
        put(who);
    }
    course
}

/// `text` with the name `model` replaced by `own`, where it begins a name or follows a dash.
fn with_name(text: &str, model: &str, own: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(model) {
        let (before, found) = rest.split_at(at);
        let after = &found[model.len()..];
        let word = |c: char| c.is_ascii_alphanumeric();
        let whole = !before.ends_with(word) && !after.starts_with(word);
        out.push_str(before);
        out.push_str(if whole { own } else { model });
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_are_turned() {
        assert_eq!(
            with_name(
                "Pod demo-0 of demo, claim data-demo-0, not demons or undemo",
                "demo",
                "shop"
            ),
            "Pod shop-0 of shop, claim data-shop-0, not demons or undemo"
        );
    }
}
