//! Where `-rw` leads, compared with the addresses of the database's own pods. The holder's agent writes the route; the
//! operator only says that it is wrong.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};

use super::facts::{Facts, hibernation, list};
use super::health::FOREIGN_ROUTE;
use super::observed::{ForeignRoute, Known, OwnedState};
use super::owned::OwnedObject;

/// A holder corrects the route within seconds, and an election, after which another does, takes less than a minute.
const WAIT_LIMIT: TimeDelta = TimeDelta::minutes(1);

/// What no pod of the database has (`own`) of the addresses to which `-rw` leads (`routed`). `before` was found last; it stays
/// as long as something is unknown.
pub fn foreign_route(
    before: Option<&ForeignRoute>,
    routed: &Known<BTreeSet<String>>,
    own: &Known<BTreeSet<String>>,
    now: DateTime<Utc>,
) -> Option<ForeignRoute> {
    let (Some(routed), Some(own)) = (routed.get(), own.get()) else {
        return before.cloned();
    };
    let addresses: BTreeSet<String> = routed.difference(own).cloned().collect();
    let since = before.map_or(now, |before| before.since);
    (!addresses.is_empty()).then_some(ForeignRoute { addresses, since })
}

/// The message about a foreign route that has lasted [`WAIT_LIMIT`]; `None` if there is none.
pub(super) fn describe(facts: &Facts<'_>) -> Option<String> {
    let foreign = unwanted(facts)?;
    // A new operator counts the time from its start.
    let is_said = facts.status.conditions.iter().any(|said| said.type_ == FOREIGN_ROUTE);
    if !is_said && facts.now < foreign.since + WAIT_LIMIT {
        return None;
    }
    let who = match facts.primary() {
        Some(pod) => format!("the agent in pod {} should have corrected it, see its log", pod.name),
        None => "the next primary corrects it".to_owned(),
    };
    Some(format!(
        "-rw leads to {}, which no pod of this database has: {who}; to see who wrote it: \
         kubectl get endpointslice {} -o yaml --show-managed-fields",
        list(foreign.addresses.iter().map(String::as_str)),
        facts.child_name(OwnedObject::EndpointSlice),
    ))
}

/// When a foreign route has lasted long enough, if that is still to come.
pub(super) fn lasts_at(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    let at = unwanted(facts)?.since + WAIT_LIMIT;
    Some(at).filter(|at| *at > facts.now)
}

/// The foreign route in an EndpointSlice of this database, unless it hibernates or goes: then it has no pods, and its
/// route stays.
fn unwanted<'a>(facts: &Facts<'a>) -> Option<&'a ForeignRoute> {
    let state = facts.child(OwnedObject::EndpointSlice);
    let is_ours = matches!(state, Some(OwnedState::Current { .. } | OwnedState::Drifted { .. }));
    let is_down = facts.wanted.deleting || hibernation::wanted(facts);
    facts.observed.foreign_route.as_ref().filter(|_| is_ours && !is_down)
}

#[cfg(test)]
mod tests;
