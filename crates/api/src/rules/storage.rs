//! Rules about volumes and about CPU and memory.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::{Rule, text};
use crate::{ClusteredDatabase, quantity::Quantity, spec::VolumeSpec, status::GrantedStorage};

/// The lower bound fits an empty database and a few WAL segments; the upper one catches slips.
const IN_BOUNDS: &str =
    "quantity(self).compareTo(quantity('256Mi')) >= 0 && quantity(self).compareTo(quantity('1Pi')) <= 0";

const SAME_CLASS: &str = "has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)";

const NO_SIZE: &str = "size must be a Kubernetes quantity: write a number and a unit, such as 10Gi";
const OUT_OF_BOUNDS: &str = "size must be 256Mi to 1Pi: write a number and a unit, such as 10Gi";
const SHRINKS: &str = "storage.data.size cannot shrink, since volumes cannot: put back the old size, a larger one, or the one that status.waiting names";
const WAL_SHRINKS: &str = "storage.wal.size cannot shrink, since volumes cannot: put back the old size, a larger one, or the one that status.waiting names";
const NO_CLASS: &str = "storageClassName must name a StorageClass (lower-case letters, digits, dashes and dots); leave it out for the default one";
const OTHER_CLASS: &str = "storageClassName cannot be added, changed or removed: put it back, or make a new database in the other class and move the data";
const OTHER_WAL_CLASS: &str = "wal.storageClassName cannot be added, changed or removed: put it back; or, while no instance has its WAL volume, take wal away and add it again";
const NO_MORE_WAL: &str = "storage.wal cannot be removed, since instances have WAL volumes: put it back as it was, or make a new database and move the data";

/// CEL for: `value` is a quantity. CEL's `quantity` and `isQuantity` must get no other text: they compute the power of ten of
/// an exponent, and an exponent of nine digits keeps a core of the API server busy for hours.
fn is_quantity(value: &str) -> String {
    format!(
        "size({value}) <= {} && {value}.matches('{}')",
        text::MAX_QUANTITY,
        text::QUANTITY
    )
}

fn size_rules(at: &'static str, size: fn(&ClusteredDatabase) -> Option<&str>) -> [Rule; 2] {
    let new = is_quantity("self");
    [
        Rule::holds(at, new.clone(), NO_SIZE, move |resource| {
            size(resource).is_none_or(text::is_quantity)
        }),
        Rule::holds(
            at,
            format!("!({new}) || ({IN_BOUNDS})"),
            OUT_OF_BOUNDS,
            move |resource| size(resource).is_none_or(in_bounds),
        ),
    ]
}

/// CEL for: the size at `field` stays, grows, or is at least the one in `granted` of the memo.
fn no_shrink_but_to(field: &str, granted: &str) -> String {
    let (new, old) = (format!("self.{field}"), format!("oldSelf.{field}"));
    let granted = format!("oldSelf.status.memo.granted.{granted}");
    let recorded = format!(
        "has(oldSelf.status) && has(oldSelf.status.memo) && has(oldSelf.status.memo.granted) && has({granted}) && {}",
        is_quantity(&granted)
    );
    let (is_new, is_old) = (is_quantity(&new), is_quantity(&old));
    format!(
        "!({is_new}) || !({is_old}) || quantity({new}).compareTo(quantity({old})) >= 0 || ({recorded} && quantity({new}).compareTo(quantity({granted})) >= 0)"
    )
}

/// A size may shrink only to the largest size of a claim. The status has that size, so the rules belong to the whole resource.
fn sizes_do_not_shrink() -> [Rule; 2] {
    let wal = no_shrink_but_to("spec.storage.wal.size", "wal");
    [
        Rule::may_become(
            "",
            no_shrink_but_to("spec.storage.data.size", "data"),
            SHRINKS,
            |old, new| {
                let granted = granted(old).and_then(|granted| granted.data.as_deref());
                no_shrink(data_size(old), data_size(new)) || went_back(granted, data_size(new))
            },
        )
        .about("spec.storage.data.size"),
        Rule::may_become(
            "",
            format!("!has(self.spec.storage.wal) || !has(oldSelf.spec.storage.wal) || {wal}"),
            WAL_SHRINKS,
            |old, new| {
                let granted = granted(old).and_then(|granted| granted.wal.as_deref());
                no_shrink(wal_size(old), wal_size(new)) || went_back(granted, wal_size(new))
            },
        )
        .about("spec.storage.wal.size"),
    ]
}

pub(super) fn rules() -> Vec<Rule> {
    let class = text::dns_subdomain();
    let mut rules = Vec::new();
    rules.extend([
        attributes_class("spec.storage.data.volumeAttributesClassName", |resource| {
            Some(&resource.spec.storage.data)
        }),
        attributes_class("spec.storage.wal.volumeAttributesClassName", wal),
    ]);
    rules.extend(size_rules("spec.storage.data.size", data_size));
    rules.extend(sizes_do_not_shrink());
    rules.extend([
        Rule::holds("spec.storage.data.storageClassName", class.clone(), NO_CLASS, |resource| {
            let class = resource.spec.storage.data.storage_class_name.as_deref();
            class.is_none_or(text::is_dns_subdomain)
        }),
        Rule::may_become("spec.storage.data", SAME_CLASS, OTHER_CLASS, |old, new| {
            old.spec.storage.data.storage_class_name == new.spec.storage.data.storage_class_name
        }),
        // Not only of changes of the spec: nor is an instance named once it is taken away.
        Rule::holds(
            "",
            "has(self.spec.storage.wal) || !has(self.status) || !has(self.status.memo) || !has(self.status.memo.walVolumes) || self.status.memo.walVolumes.size() == 0",
            NO_MORE_WAL,
            |resource| {
                let given = resource.status.as_ref().map(|status| &status.memo.wal_volumes);
                wal(resource).is_some() || given.is_none_or(Vec::is_empty)
            },
        )
        .about("spec.storage"),
    ]);
    rules.extend(size_rules("spec.storage.wal.size", wal_size));
    rules.extend([
        Rule::holds("spec.storage.wal.storageClassName", class, NO_CLASS, |resource| {
            wal(resource)
                .and_then(|wal| wal.storage_class_name.as_deref())
                .is_none_or(text::is_dns_subdomain)
        }),
        Rule::may_become("spec.storage.wal", SAME_CLASS, OTHER_WAL_CLASS, |old, new| {
            wal(old)
                .zip(wal(new))
                .is_none_or(|(old, new)| old.storage_class_name == new.storage_class_name)
        }),
        resources_are_quantities(),
        requests_within_limits(),
    ]);
    rules
}

fn attributes_class(at: &'static str, volume: fn(&ClusteredDatabase) -> Option<&VolumeSpec>) -> Rule {
    Rule::holds(
        at,
        text::dns_subdomain(),
        "volumeAttributesClassName must name a VolumeAttributesClass (lower-case letters, digits, dashes and dots); leave it out for none",
        move |resource| {
            let class = volume(resource).and_then(|volume| volume.volume_attributes_class_name.as_deref());
            class.is_none_or(text::is_dns_subdomain)
        },
    )
}

fn resources_are_quantities() -> Rule {
    let amounts = |field: &str| {
        let value = format!("string(self.{field}[name])");
        format!(
            "(!has(self.{field}) || self.{field}.all(name, {}))",
            is_quantity(&value)
        )
    };
    Rule::holds(
        "spec.resources",
        format!("{} && {}", amounts("requests"), amounts("limits")),
        "resources must hold quantities: write a number and a unit, such as 500m of cpu or 2Gi of memory",
        |resource| {
            let Some(resources) = &resource.spec.resources else {
                return true;
            };
            let amounts = [&resources.requests, &resources.limits];
            amounts
                .into_iter()
                .flatten()
                .flat_map(BTreeMap::values)
                .all(|amount| text::is_quantity(&amount.0))
        },
    )
}

fn requests_within_limits() -> Rule {
    let amount = |field: &str| format!("string(self.{field}[name])");
    let (request, limit) = (amount("requests"), amount("limits"));
    let compared = format!("quantity({request}).compareTo(quantity({limit})) <= 0");
    let (request, limit) = (is_quantity(&request), is_quantity(&limit));
    Rule::holds(
        "spec.resources",
        format!(
            "!has(self.requests) || !has(self.limits) || ['cpu', 'memory'].all(name, !(name in self.requests) || !(name in self.limits) || !({request}) || !({limit}) || {compared})"
        ),
        "resources.requests must not be above resources.limits: raise the limit or lower the request",
        |resource| {
            let Some(resources) = &resource.spec.resources else {
                return true;
            };
            let (Some(requests), Some(limits)) = (&resources.requests, &resources.limits) else {
                return true;
            };
            ["cpu", "memory"].iter().all(|name| {
                amount_of(requests, name)
                    .zip(amount_of(limits, name))
                    .is_none_or(|(request, limit)| request <= limit)
            })
        },
    )
}

fn amount_of(amounts: &BTreeMap<String, Text>, name: &str) -> Option<Quantity> {
    Quantity::parse(&amounts.get(name)?.0).ok()
}

fn wal(resource: &ClusteredDatabase) -> Option<&VolumeSpec> {
    resource.spec.storage.wal.as_ref()
}

fn data_size(resource: &ClusteredDatabase) -> Option<&str> {
    Some(&resource.spec.storage.data.size)
}

fn wal_size(resource: &ClusteredDatabase) -> Option<&str> {
    wal(resource).map(|wal| wal.size.as_str())
}

fn in_bounds(size: &str) -> bool {
    let bounds = Quantity::from_bytes(256 << 20)..=Quantity::from_bytes(1 << 50);
    !text::is_quantity(size) || Quantity::parse(size).is_ok_and(|size| bounds.contains(&size))
}

fn granted(resource: &ClusteredDatabase) -> Option<&GrantedStorage> {
    resource.status.as_ref().map(|status| &status.memo.granted)
}

fn read(size: Option<&str>) -> Option<Quantity> {
    Quantity::parse(size?).ok()
}

fn no_shrink(old: Option<&str>, new: Option<&str>) -> bool {
    read(old).zip(read(new)).is_none_or(|(old, new)| new >= old)
}

fn went_back(granted: Option<&str>, new: Option<&str>) -> bool {
    read(granted)
        .zip(read(new))
        .is_some_and(|(granted, new)| new >= granted)
}
