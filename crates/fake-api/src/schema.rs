//! A CustomResourceDefinition's schema: what it prunes, what it refuses, and what it accepts because it is unchanged.
//!
//! The last is Kubernetes' ratcheting (`CRDValidationRatcheting`): unchanged fields do not make a change invalid.
//! `apiserver/pkg/cel/common/equality.go` defines what is unchanged: it matches elements of a list by the list's keys, never
//! elements of other lists, and a value without a schema always counts as changed.

use std::collections::BTreeMap;

use chrono::DateTime;
use kube_cel::{CompiledSchema, ErrorKind, ValidationError, compile_schema, validate_compiled};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

const RULES: &str = "x-kubernetes-validations";

/// Fields of every object, with any schema.
const COMMON: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// The schema of one place and of all below it. Unknown keywords are refused.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Schema {
    #[serde(rename = "type")]
    is: Option<Type>,
    format: Option<Format>,
    #[serde(default, rename = "x-kubernetes-int-or-string")]
    int_or_string: bool,
    #[serde(default, rename = "x-kubernetes-preserve-unknown-fields")]
    preserves: bool,
    #[serde(rename = "enum")]
    values: Option<Vec<Value>>,
    minimum: Option<f64>,
    maximum: Option<f64>,
    min_length: Option<f64>,
    max_length: Option<f64>,
    min_items: Option<f64>,
    max_items: Option<f64>,
    min_properties: Option<f64>,
    max_properties: Option<f64>,
    #[serde(default)]
    required: Vec<String>,
    #[serde(default)]
    properties: BTreeMap<String, Schema>,
    additional_properties: Option<Box<Schema>>,
    items: Option<Box<Schema>>,
    #[serde(default, rename = "x-kubernetes-list-type")]
    list: List,
    #[serde(default, rename = "x-kubernetes-list-map-keys")]
    keys: Vec<String>,
    /// This place's own rules.
    #[serde(skip)]
    rules: Option<CompiledSchema>,
    /// Here or below is a rule about what there was before.
    #[serde(skip)]
    transitions: bool,
    #[serde(default, rename = "x-kubernetes-validations")]
    _rules: IgnoredAny,
    default: Option<IgnoredAny>,
    #[serde(default, rename = "title")]
    _title: IgnoredAny,
    #[serde(default, rename = "description")]
    _description: IgnoredAny,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

/// Formats of numbers are words for clients: the server checks none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Format {
    Int32,
    Int64,
    DateTime,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum List {
    #[default]
    Atomic,
    Set,
    Map,
}

impl Schema {
    /// Reads an `openAPIV3Schema`.
    ///
    /// # Panics
    /// If it has an unknown keyword, or a rule is invalid.
    pub(crate) fn new(schema: &Value) -> Self {
        let read = Self::deserialize(schema);
        let mut read = read.unwrap_or_else(|why| panic!("a schema says what is not looked at here: {why}"));
        read.compile(schema);
        read
    }

    fn compile(&mut self, schema: &Value) {
        if schema.get(RULES).is_some() {
            let mut own = schema.clone();
            for part in ["properties", "additionalProperties", "items"] {
                own.get_mut(part).into_iter().for_each(without_rules);
            }
            let rules = compile_schema(&own);
            assert!(!rules.has_errors(), "{:#?}", rules.compilation_errors());
            self.transitions = rules.validations.iter().flatten().any(|rule| rule.is_transition_rule);
            self.rules = Some(rules);
        }
        let fields = self.properties.iter_mut();
        let fields = fields.map(|(name, field)| (field, &schema["properties"][name.as_str()]));
        let others = self.additional_properties.as_deref_mut().into_iter();
        let others = others.map(|other| (other, &schema["additionalProperties"]));
        let items = self
            .items
            .as_deref_mut()
            .into_iter()
            .map(|item| (item, &schema["items"]));
        for (part, schema) in fields.chain(others).chain(items) {
            part.compile(schema);
            self.transitions |= part.transitions;
        }
    }

    fn field(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or(self.additional_properties.as_deref())
    }

    /// Removes fields without a schema, and nulls that get a default; `root` is an object's own place.
    pub(crate) fn prune(&self, value: &mut Value, root: bool) {
        let common = |name: &str| root && COMMON.contains(&name);
        match value {
            Value::Object(map) => {
                let replaced = |name: &str| self.field(name).is_some_and(|field| field.default.is_some());
                map.retain(|name, value| !value.is_null() || !replaced(name));
                map.retain(|name, _| self.preserves || common(name) || self.field(name).is_some());
                for (name, value) in map.iter_mut().filter(|(name, _)| !common(name)) {
                    self.field(name).into_iter().for_each(|field| field.prune(value, false));
                }
            }
            Value::Array(list) => {
                let items = self.items.as_deref().into_iter();
                items.for_each(|item| list.iter_mut().for_each(|value| item.prune(value, false)));
            }
            _ => {}
        }
    }

    /// The element that had the keys of this one.
    fn counterpart<'a>(&self, old: &'a Value, element: &Value) -> Option<&'a Value> {
        let known = |other: &&Value| self.keys.iter().all(|key| other.get(key) == element.get(key));
        let list = old.as_array().filter(|_| self.list == List::Map)?;
        list.iter().find(known)
    }

    fn same(&self, new: &Value, old: &Value) -> bool {
        match (new, old) {
            (Value::Object(new), Value::Object(old)) => {
                let same = |(name, value): (&String, _)| Some(self.field(name)?.same(value, old.get(name)?));
                new.len() == old.len() && new.iter().all(|field| same(field).unwrap_or(false))
            }
            (Value::Array(new), Value::Array(was)) if self.list == List::Map => {
                let same = |element| Some(self.items.as_ref()?.same(element, self.counterpart(old, element)?));
                new.len() == was.len() && new.iter().all(|element| same(element).unwrap_or(false))
            }
            _ => new == old,
        }
    }

    fn fits(&self, value: &Value) -> bool {
        let integer = value.is_number() && value.as_f64().is_none_or(|number| number.fract() == 0.0);
        match self.is {
            None => !self.int_or_string || integer || value.is_string(),
            Some(Type::Object) => value.is_object(),
            Some(Type::Array) => value.is_array(),
            Some(Type::String) => value.is_string(),
            Some(Type::Integer) => integer,
            Some(Type::Number) => value.is_number(),
            Some(Type::Boolean) => value.is_boolean(),
        }
    }

    fn word(&self) -> String {
        self.is
            .map_or("integer,string".to_owned(), |is| format!("{is:?}").to_lowercase())
    }

    /// How much there is of a value, and how much there must and may be.
    fn bounds(&self, value: &Value) -> Option<(f64, Option<f64>, Option<f64>)> {
        let length = |length: usize| length as f64;
        match value {
            Value::Number(number) => Some((number.as_f64()?, self.minimum, self.maximum)),
            Value::String(text) => Some((length(text.chars().count()), self.min_length, self.max_length)),
            Value::Array(list) => Some((length(list.len()), self.min_items, self.max_items)),
            Value::Object(map) => Some((length(map.len()), self.min_properties, self.max_properties)),
            Value::Null | Value::Bool(_) => None,
        }
    }
}

fn without_rules(schema: &mut Value) {
    if let Some(map) = schema.as_object_mut() {
        map.remove(RULES);
        map.values_mut().for_each(without_rules);
    }
}

/// A place in an object.
pub(crate) struct Place<'a> {
    path: String,
    schema: &'a Schema,
    new: &'a Value,
    /// What was there before.
    old: Option<&'a Value>,
    /// This, or something around it, is as it was.
    same: bool,
}

impl<'a> Place<'a> {
    /// An object's own place.
    pub(crate) fn root(schema: &'a Schema, new: &'a Value, old: Option<&'a Value>) -> Self {
        Self::at(String::new(), schema, (new, old), false)
    }

    fn at(path: String, schema: &'a Schema, (new, old): (&'a Value, Option<&'a Value>), same: bool) -> Self {
        Self {
            path,
            schema,
            new,
            old,
            same: same || old.is_some_and(|old| schema.same(new, old)),
        }
    }

    /// The place of a field that there is.
    pub(crate) fn field(&self, name: &str) -> Option<Self> {
        let (schema, value) = (self.schema.field(name)?, self.new.get(name)?);
        let old = self.old.and_then(|old| old.get(name));
        Some(Self::at(self.path_of(name), schema, (value, old), self.same))
    }

    fn path_of(&self, field: &str) -> String {
        match self.path.as_str() {
            "" => field.to_owned(),
            path => format!("{path}.{field}"),
        }
    }

    /// The places right below.
    fn below(&self) -> Vec<Self> {
        let schema = self.schema;
        match (self.new, schema.items.as_deref()) {
            (Value::Object(map), _) => map.keys().filter_map(|name| self.field(name)).collect(),
            (Value::Array(list), Some(item)) => {
                let place = |(index, element): (usize, &'a Value)| {
                    let old = self.old.and_then(|old| schema.counterpart(old, element));
                    Self::at(format!("{}[{index}]", self.path), item, (element, old), self.same)
                };
                list.iter().enumerate().map(place).collect()
            }
            _ => Vec::new(),
        }
    }

    /// What a server-side apply cannot read: fields that are not declared, and values of other types. In a place that is
    /// `open`, all fields are declared.
    pub(crate) fn unreadable(&self, open: bool) -> Option<String> {
        let (path, schema, value) = (&self.path, self.schema, self.new);
        let open = open || schema.preserves;
        let number = schema.is == Some(Type::Integer) && value.is_number();
        if !(value.is_null() || schema.is.is_none() || number || schema.fits(value)) {
            return Some(format!(".{path}: expected {}, got {value}", schema.word()));
        }
        let free = open || (schema.properties.is_empty() && schema.additional_properties.is_none());
        let known = |name: &str| free || schema.field(name).is_some() || (path.is_empty() && COMMON.contains(&name));
        let mut names = value.as_object().into_iter().flat_map(|map| map.keys());
        match names.find(|name| !known(name)) {
            Some(name) => Some(format!(".{}: field not declared in schema", self.path_of(name))),
            None => self.below().iter().find_map(|place| place.unreadable(open)),
        }
    }

    /// What is wrong with the values.
    pub(crate) fn values(&self) -> Vec<String> {
        if self.same {
            return Vec::new();
        }
        let mut wrong = self.value();
        wrong.extend(self.below().iter().flat_map(Place::values));
        wrong
    }

    fn value(&self) -> Vec<String> {
        let (path, schema, value) = (&self.path, self.schema, self.new);
        let invalid = |why: String| format!("{path}: Invalid value: {value}: {path} in body {why}");
        if !schema.fits(value) {
            return vec![invalid(format!("must be of type {}", schema.word()))];
        }
        let mut wrong = Vec::new();
        let time = |text| DateTime::parse_from_rfc3339(text).is_ok();
        if schema.format == Some(Format::DateTime) && !value.as_str().is_some_and(time) {
            wrong.push(invalid("must be of type date-time".to_owned()));
        }
        if let Some(values) = schema.values.as_ref().filter(|values| !values.contains(value)) {
            let values: Vec<_> = values.iter().map(Value::to_string).collect();
            let values = values.join(", ");
            wrong.push(format!(
                "{path}: Unsupported value: {value}: supported values: {values}"
            ));
        }
        if let Some((size, least, most)) = schema.bounds(value) {
            let too_little = least.filter(|least| size < *least).map(|least| ("least", least));
            let too_much = most.filter(|most| size > *most).map(|most| ("most", most));
            let broken = too_little.into_iter().chain(too_much);
            wrong.extend(broken.map(|(word, bound)| invalid(format!("should be at {word} {bound}, and is {size}"))));
        }
        let missing = schema.required.iter().filter(|name| value.get(name).is_none());
        wrong.extend(missing.map(|name| format!("{}: Required value", self.path_of(name))));
        wrong
    }

    /// Elements that a list may hold once only.
    pub(crate) fn duplicates(&self) -> Vec<String> {
        let list = self.new.as_array().map_or(&[][..], Vec::as_slice);
        let keys = |element: &Value| -> Vec<_> {
            let keys = self.schema.keys.iter();
            keys.map(|key| element.get(key).cloned()).collect()
        };
        let again = |(index, element): &(usize, &Value)| match self.schema.list {
            List::Atomic => false,
            List::Set => list[..*index].contains(element),
            List::Map => list[..*index].iter().any(|other| keys(other) == keys(element)),
        };
        let again = list.iter().enumerate().filter(again);
        let path = &self.path;
        let again = again.map(|(index, element)| format!("{path}[{index}]: Duplicate value: {element}"));
        again.chain(self.below().iter().flat_map(Place::duplicates)).collect()
    }

    /// What breaks rules.
    pub(crate) fn rules(&self) -> Vec<String> {
        if self.same && !self.schema.transitions {
            return Vec::new();
        }
        let own = self.schema.rules.as_ref();
        let broken = own.and_then(|rules| validate_compiled(rules, self.new, self.old).err());
        let broken = broken.into_iter().flatten().filter(|broken| self.counts(broken));
        let told = |broken: ValidationError| {
            let path = format!("{}{}", self.path, broken.field_path);
            let path = if path.is_empty() {
                "<nil>"
            } else {
                path.trim_start_matches('.')
            };
            format!("{path}: Invalid value: {:?}: {}", self.schema.word(), broken.message)
        };
        let mut wrong: Vec<_> = broken.map(told).collect();
        wrong.extend(self.below().iter().flat_map(Place::rules));
        wrong
    }

    /// A broken rule about what is as it was counts only if it is one about what was before, or cannot be answered.
    fn counts(&self, broken: &ValidationError) -> bool {
        let mut rules = self
            .schema
            .rules
            .iter()
            .flat_map(|rules| rules.validations.iter().flatten());
        let transition = rules.any(|rule| rule.is_transition_rule && rule.rule.rule == broken.rule);
        !self.same || transition || broken.kind != ErrorKind::ValidationFailure
    }
}
