//! Settings: reloaded when the spec changes; applied by a restart in place when the operator permits it.

use super::facts::following::{to_follow, to_start_with};
use super::facts::lineage::{self, Lineage, lineage};
use super::facts::{Context, Tenure};
use super::memo::Change;
use super::senders::{Needs, stop_primary};
use super::{Action, Draft, Memo, Mode, OnBackoff, Rule, RuleKind, Verdict, checkpoint, stopping};
use crate::units::Millis;

/// Longest back-off between failed tries.
const RETRY: Millis = Millis::seconds(5);

pub(super) const CONFIGURE: Rule = Rule {
    name: "configure",
    family: "settings",
    what: "Writes the configuration and reloads it when settings or the address of the primary have changed.",
    protocol: &[6],
    kind: RuleKind::Act,
    decide: configure,
    on_backoff: OnBackoff::Yield,
};

/// Applies in three cases: the settings or the primary's address have changed; PostgreSQL uses another address than was
/// written; or limits that a standby has kept for its primary may be lowered.
///
/// A PostgreSQL that does not respond, or accepts no sessions yet, is left alone. One that refuses its agent may do so
/// because of the very settings that are being reverted: it reads the new ones.
fn configure(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let mode = context.running()?;
    let configured = context.observed.postgres.configured.as_ref()?;
    let settings = to_start_with(context)?;
    let upstream = match (mode, context.tenure()) {
        (Mode::Primary, _) => None,
        // A member that cannot follow, or is not known to be able to, receives nothing, and nothing more from a former
        // primary. A PostgreSQL that refuses its agent does not report where its WAL ends, so its upstream stays.
        (Mode::Standby, Tenure::Other(holder)) if context.position().is_some() => {
            to_follow(context, holder).filter(|_| lineage(context) == Lineage::Follows)
        }
        // There is no primary to follow, or it is unknown. The present upstream does no harm.
        (Mode::Standby, _) => configured.upstream.clone(),
    };
    let moved = configured.upstream != upstream;
    // A promise revokes the credential and empties `primary_conninfo` before its end is known here.
    let promises = context.tasks().promise.running.is_some();
    let other = context
        .observed
        .postgres
        .answer
        .is_some_and(|answer| answer.other_upstream);
    let lost = other && upstream.is_some();
    let raised = configured.raised.filter(|_| mode == Mode::Standby);
    let eased = raised.is_some_and(|raised| raised != context.observed.postgres.enforced);
    if !(moved || lost || eased || configured.settings != settings)
        || promises
        || draft.memo.stopping.is_some()
        || !is_reached(context)
    {
        return None;
    }
    if !context.is_free(&context.tasks().configure, RETRY, draft) {
        return None;
    }
    let because = if moved {
        "the address of the primary has changed"
    } else if configured.settings != settings {
        "the settings have changed"
    } else if lost {
        "PostgreSQL does not use the primary's address that was written"
    } else {
        "the primary's limits have changed, to which some of this standby's were raised"
    };
    Verdict::new(Action::Configure { settings, upstream }, because)
}

/// True if PostgreSQL answers its agent, or refuses it.
fn is_reached(context: &Context) -> bool {
    let postgres = &context.observed.postgres;
    postgres.answer.is_some() || postgres.refusal.is_some()
}

pub(super) const RESTART: Rule = Rule {
    name: "restart",
    family: "settings",
    what: "Restarts PostgreSQL in place when settings need it and the operator permits it, once.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: restart,
    on_backoff: OnBackoff::Yield,
};

/// Forgets the settings of a restart once no restart is pending, so that the same settings may cause another one, for
/// example after a promotion.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let answer = context.observed.postgres.answer.filter(|_| context.running().is_some());
    if answer.is_some_and(|answer| !answer.pending_restart) && memo.stopping.is_none() {
        memo.restarted_for = None;
    }
}

/// With the operator's permit for exactly these settings, and once.
fn restart(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    const BECAUSE: &str = "the operator permits the restart that the settings need";
    context.running()?;
    let answer = context.observed.postgres.answer;
    let pending = answer.is_some_and(|answer| answer.pending_restart);
    let permit = context.cluster()?.restart.as_ref()?;
    let own = &context.observed.own;
    let applied = context
        .observed
        .postgres
        .configured
        .as_ref()
        .is_some_and(|configured| configured.settings == permit.settings);
    let ours = permit.pod == own.pod && permit.pod_uid == own.pod_uid;
    if !ours || !applied {
        return None;
    }
    if draft.memo.restarted_for.as_ref() == Some(&permit.settings) {
        // The stop may be under way: it is escalated if it takes too long.
        return draft
            .memo
            .stopping
            .and_then(|_| stop_primary(context, draft, &Needs::Nobody, BECAUSE));
    }
    let idle = context.tasks().configure.running.is_none();
    let can_start_again = match context.tenure() {
        Tenure::Held { .. } => true,
        Tenure::Other(_) => lineage::fault(context).is_none(),
        Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Vacant | Tenure::Unknown => false,
    };
    if !pending || !idle || !can_start_again {
        return None;
    }
    if context.serving() && !checkpoint::is_made(context) {
        return checkpoint::make(context, "for a restart");
    }
    let change = Change::RestartsFor(permit.settings.clone());
    stopping::stop(context, draft, BECAUSE).map(|verdict| verdict.and(change))
}

#[cfg(test)]
mod tests;
