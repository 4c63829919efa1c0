//! The owners of fields: server-side apply, and the effects of other writes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::fields::{Path, Step, fields_v1, is_key, leaves, overlay, remove, spoken};
use crate::kinds::Kind;
use crate::merge::without_nulls;
use crate::reply::Refusal;

/// How a manager came by its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// By server-side apply: a later apply that no longer names a field removes it.
    Apply,
    /// By any other write.
    Update,
}

/// The author of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) name: String,
    pub(crate) how: How,
    pub(crate) subresource: String,
}

#[derive(Clone, Debug, PartialEq)]
struct Manager {
    writer: Writer,
    time: String,
    fields: BTreeSet<Path>,
}

/// The managers of one object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Owners(Vec<Manager>);

impl Owners {
    /// The same apart from times.
    pub(crate) fn same_as(&self, other: &Self) -> bool {
        let told = |owners: &Self| -> Vec<_> {
            let managers = owners.0.iter();
            managers
                .map(|manager| (manager.writer.clone(), manager.fields.clone()))
                .collect()
        };
        told(self) == told(other)
    }

    /// The entry in `managedFields`.
    pub(crate) fn to_json(&self, kind: &Kind) -> Value {
        let entry = |manager: &Manager| {
            let operation = match manager.writer.how {
                How::Apply => "Apply",
                How::Update => "Update",
            };
            let mut entry = json!({
                "manager": manager.writer.name, "operation": operation, "apiVersion": kind.api_version(),
                "time": manager.time, "fieldsType": "FieldsV1", "fieldsV1": fields_v1(&manager.fields),
            });
            if !manager.writer.subresource.is_empty() {
                entry["subresource"] = json!(manager.writer.subresource);
            }
            entry
        };
        self.0.iter().map(entry).collect()
    }

    /// Records that `writer` changed `before` into `after`: it alone owns the changed fields.
    pub(crate) fn note_update(&mut self, kind: &Kind, writer: Writer, before: &Value, after: &Value, time: &str) {
        let (before, after) = (leaves(kind, before), leaves(kind, after));
        let changed: BTreeSet<Path> = after
            .iter()
            .filter(|(path, value)| before.get(*path) != Some(value))
            .map(|(path, _)| path.clone())
            .collect();
        for manager in self.0.iter_mut().filter(|manager| manager.writer != writer) {
            manager
                .fields
                .retain(|path| after.contains_key(path) && !changed.contains(path));
        }
        let own = self.entry(writer, time);
        own.fields.retain(|path| after.contains_key(path));
        own.fields.extend(changed);
        self.0.retain(|manager| !manager.fields.is_empty());
    }

    /// What server-side apply of `config` makes of `live`.
    ///
    /// # Errors
    /// If others own what would change, and it is not forced.
    pub(crate) fn apply(
        &mut self,
        (kind, name): (&Kind, &str),
        writer: Writer,
        live: &Value,
        config: &Value,
        (force, time): (bool, &str),
    ) -> Result<Value, Refusal> {
        let mut config = config.clone();
        without_nulls(&mut config);
        let wanted: BTreeSet<Path> = leaves(kind, &config).into_keys().collect();
        let mut merged = overlay(kind, live, &config);
        let others = |path: &Path| {
            let mut others = self.0.iter().filter(|manager| manager.writer != writer);
            others.any(|manager| manager.fields.iter().any(|owned| owned.starts_with(path)))
        };
        let before = self.0.iter().find(|manager| manager.writer == writer);
        let given_up = before
            .into_iter()
            .flat_map(|manager| manager.fields.difference(&wanted));
        // An element goes as a whole or keeps the keys by which it is known; a map that was empty may have got something.
        let holds = |path: &Path| wanted.iter().any(|wanted| wanted.starts_with(path));
        let given_up: Vec<Path> = given_up
            .filter(|path| !others(path) && !is_key(path) && !holds(path))
            .cloned()
            .collect();
        let named = |path: &[Step]| wanted.contains(path);
        given_up.iter().for_each(|path| remove(&mut merged, path, &named));

        let (was, is) = (leaves(kind, live), leaves(kind, &merged));
        let changed = changed(&was, &is);
        let conflicts = self.conflicts(&writer, &changed);
        if !conflicts.is_empty() && !force {
            let message = format!(
                "Apply failed with {} conflicts: {}",
                conflicts.len(),
                conflicts.join(", ")
            );
            return Err(Refusal::conflict(kind, name, &message));
        }
        for manager in self.0.iter_mut().filter(|manager| manager.writer != writer) {
            manager
                .fields
                .retain(|path| is.contains_key(path) && !changed.contains(path));
        }
        self.entry(writer, time).fields = wanted;
        self.0.retain(|manager| !manager.fields.is_empty());
        Ok(merged)
    }

    fn conflicts(&self, writer: &Writer, changed: &BTreeSet<Path>) -> Vec<String> {
        let others = self.0.iter().filter(|manager| manager.writer != *writer);
        let owned = others.flat_map(|manager| manager.fields.intersection(changed).map(move |path| (manager, path)));
        owned
            .map(|(manager, path)| format!("conflict with {:?}: {}", manager.writer.name, spoken(path)))
            .collect()
    }

    fn entry(&mut self, writer: Writer, time: &str) -> &mut Manager {
        let known = self.0.iter().position(|manager| manager.writer == writer);
        let index = known.unwrap_or_else(|| {
            self.0.push(Manager {
                writer,
                time: String::new(),
                fields: BTreeSet::new(),
            });
            self.0.len() - 1
        });
        self.0[index].time = time.to_owned();
        &mut self.0[index]
    }
}

fn changed(was: &BTreeMap<Path, Value>, is: &BTreeMap<Path, Value>) -> BTreeSet<Path> {
    let differs = is.iter().filter(|(path, value)| was.get(*path) != Some(value));
    differs.map(|(path, _)| path.clone()).collect()
}
