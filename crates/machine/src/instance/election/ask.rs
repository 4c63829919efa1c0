//! Requesting promises from the other members.

use std::collections::BTreeMap;

use super::suspicion::suspicion;
use super::{PAUSE, is_behind_status};
use crate::instance::facts::Context;
use crate::instance::{Action, Draft, Mode, OnBackoff, Rule, RuleKind, Verdict};
use crate::protocol::{LeaseRecord, PromiseRequest};

pub(in crate::instance) const ASK: Rule = Rule {
    name: "ask",
    family: "election",
    what: "Asks the other members for their promises, round after round, while the primary is suspected.",
    protocol: &[9, 18, 23],
    kind: RuleKind::Act,
    decide: ask,
    on_backoff: OnBackoff::Yield,
};

/// Requests promises, round after round, while the primary is suspected and the lease is not taken.
fn ask(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let record = context.record()?;
    if context.running() != Some(Mode::Standby) || !context.is_our_data() || is_behind_status(context, record) {
        return None;
    }
    context.promise()?;
    suspicion(context, draft)?;
    let own = &context.observed.own.pod;
    let holder = record.holder.as_ref().map(|holder| &holder.incarnation.pod);
    let others = record
        .members
        .iter()
        .filter(|(pod, _)| *pod != own && Some(*pod) != holder);
    let mut peers: BTreeMap<_, _> = others
        .map(|(pod, report)| (pod.clone(), report.address.clone()))
        .collect();
    let unreported = unreported(record, own).filter(|pod| Some(pod) != holder);
    peers.extend(unreported.map(|pod| (pod.clone(), pod)));
    if peers.is_empty() {
        return None;
    }
    let task = &context.tasks().ask;
    if task.running.is_some() {
        return None;
    }
    let at = task.ended.plus(PAUSE);
    if !context.reached(at, draft) {
        return None;
    }
    let request = PromiseRequest {
        epoch: record.epoch.next()?,
        pod: own.clone(),
        lease: record.uid.clone(),
    };
    Verdict::new(
        Action::Ask { peers, request },
        "the primary is suspected: the others are asked",
    )
}

/// Pods of members that an election counts and that the Lease has no report of, as after it was made again. Each is
/// asked by its name.
fn unreported<'a>(record: &'a LeaseRecord, own: &'a str) -> impl Iterator<Item = String> + 'a {
    let counted = record.rule.names.iter().chain(record.to_be_heard());
    let pods = counted.filter_map(|name| Some(format!("{}-{}", own.rsplit_once('-')?.0, name.ordinal()?)));
    pods.filter(move |pod| pod != own && !record.members.contains_key(pod))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;

    #[test]
    fn asks_unreported_members_of_the_rule_by_pod_name() {
        let asked = |observed: &Observed| match decided(observed, SILENT).action {
            Action::Ask { peers, .. } => peers.into_iter().collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let named = |pod: &str| (pod.to_owned(), pod.to_owned());
        let both = vec![named("orders-1"), named("orders-2")];
        assert_eq!(asked(&made_again(silenced())), both);
        let mut taken = silenced();
        record(&mut taken).members.remove("orders-2");
        assert_eq!(asked(&taken), both[1..], "not its holder");
    }
}
