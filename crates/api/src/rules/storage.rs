//! Rules about volumes and about CPU and memory.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::{Rule, text};
use crate::{ClusteredDatabase, quantity::Quantity, spec::WalStorageSpec};

const SIZE: &str = "spec.storage.size";
const WAL_SIZE: &str = "spec.storage.wal.size";

/// A size that is a quantity at all. The bound on its length keeps the cost of reading it small; the set of letters is
/// there because not every reader of quantities refuses white space around them.
const IS_SIZE: &str = "self.matches('^[-+.0-9A-Za-z]{1,32}$') && isQuantity(self)";
/// The lower bound is what an empty database and a few WAL segments need; the upper one is there to catch slips.
const IN_BOUNDS: &str = "!isQuantity(self) || (quantity(self).compareTo(quantity('256Mi')) >= 0 && quantity(self).compareTo(quantity('1Pi')) <= 0)";
const NO_SHRINK: &str = "!isQuantity(self) || !isQuantity(oldSelf) || quantity(self).compareTo(quantity(oldSelf)) >= 0";
const SAME_CLASS: &str = "has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)";

const NO_SIZE: &str = "size must be a Kubernetes quantity: write a number and a unit, such as 10Gi";
const OUT_OF_BOUNDS: &str = "size must be 256Mi to 1Pi: write a number and a unit, such as 10Gi";
const SHRINKS: &str = "size cannot shrink, since volumes cannot: put back the old size or a larger one";
const NO_CLASS: &str = "storageClassName must name a StorageClass (lower-case letters, digits, dashes and dots); leave it out for the default one";
const OTHER_CLASS: &str = "storageClassName cannot be added, changed or removed: put it back, or make a new database in the other class and move the data";
const OTHER_WAL: &str =
    "wal cannot be added or removed later: put it back as it was, or make a new database and move the data";

pub(super) fn rules() -> Vec<Rule> {
    let class = format!(
        "size(self) <= {} && self.matches('{}')",
        text::MAX_DNS_SUBDOMAIN,
        text::DNS_SUBDOMAIN
    );
    let mut rules = vec![
        Rule::holds(SIZE, IS_SIZE, NO_SIZE, |resource| is_size(&resource.spec.storage.size)),
        Rule::holds(SIZE, IN_BOUNDS, OUT_OF_BOUNDS, |resource| {
            in_bounds(&resource.spec.storage.size)
        }),
        Rule::may_become(SIZE, NO_SHRINK, SHRINKS, |old, new| {
            no_shrink(&old.spec.storage.size, &new.spec.storage.size)
        }),
        Rule::holds("spec.storage.storageClassName", class.clone(), NO_CLASS, |resource| {
            resource
                .spec
                .storage
                .storage_class_name
                .as_deref()
                .is_none_or(text::is_dns_subdomain)
        }),
        Rule::may_become("spec.storage", SAME_CLASS, OTHER_CLASS, |old, new| {
            old.spec.storage.storage_class_name == new.spec.storage.storage_class_name
        }),
        Rule::may_become(
            "spec.storage",
            "has(self.wal) == has(oldSelf.wal)",
            OTHER_WAL,
            |old, new| old.spec.storage.wal.is_some() == new.spec.storage.wal.is_some(),
        ),
        Rule::holds(WAL_SIZE, IS_SIZE, NO_SIZE, |resource| {
            wal(resource).is_none_or(|wal| is_size(&wal.size))
        }),
        Rule::holds(WAL_SIZE, IN_BOUNDS, OUT_OF_BOUNDS, |resource| {
            wal(resource).is_none_or(|wal| in_bounds(&wal.size))
        }),
        Rule::may_become(WAL_SIZE, NO_SHRINK, SHRINKS, |old, new| {
            wal(old)
                .zip(wal(new))
                .is_none_or(|(old, new)| no_shrink(&old.size, &new.size))
        }),
        Rule::holds("spec.storage.wal.storageClassName", class, NO_CLASS, |resource| {
            wal(resource)
                .and_then(|wal| wal.storage_class_name.as_deref())
                .is_none_or(text::is_dns_subdomain)
        }),
        Rule::may_become("spec.storage.wal", SAME_CLASS, OTHER_CLASS, |old, new| {
            wal(old)
                .zip(wal(new))
                .is_none_or(|(old, new)| old.storage_class_name == new.storage_class_name)
        }),
    ];
    rules.push(requests_within_limits());
    rules
}

fn requests_within_limits() -> Rule {
    Rule::holds(
        "spec.resources",
        "!has(self.requests) || !has(self.limits) || ['cpu', 'memory'].all(name, !(name in self.requests) || !(name in self.limits) || !isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) || quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)",
        "resources.requests must not be above resources.limits: raise the limit or lower the request",
        |resource| {
            let Some(resources) = &resource.spec.resources else {
                return true;
            };
            let (Some(requests), Some(limits)) = (&resources.requests, &resources.limits) else {
                return true;
            };
            ["cpu", "memory"].iter().all(|name| {
                amount(requests, name)
                    .zip(amount(limits, name))
                    .is_none_or(|(request, limit)| request <= limit)
            })
        },
    )
}

fn amount(amounts: &BTreeMap<String, Text>, name: &str) -> Option<Quantity> {
    Quantity::parse(&amounts.get(name)?.0).ok()
}

fn wal(resource: &ClusteredDatabase) -> Option<&WalStorageSpec> {
    resource.spec.storage.wal.as_ref()
}

fn is_size(size: &str) -> bool {
    size.len() <= 32 && Quantity::parse(size).is_ok()
}

fn in_bounds(size: &str) -> bool {
    let bounds = Quantity::from_bytes(256 << 20)..=Quantity::from_bytes(1 << 50);
    Quantity::parse(size).map_or(true, |size| bounds.contains(&size))
}

fn no_shrink(old: &str, new: &str) -> bool {
    Quantity::parse(old)
        .ok()
        .zip(Quantity::parse(new).ok())
        .is_none_or(|(old, new)| new >= old)
}
