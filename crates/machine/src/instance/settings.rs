//! Settings: taken up by a reload when the spec changes; by a restart in place when the operator permits it.

use super::context::{Context, Tenure};
use super::lineage::{Lineage, lineage};
use super::memo::Change;
use super::senders::Needs;
use super::{Action, Draft, Memo, Mode, Rule, Verdict, checkpoint, shutdown, standby};

/// Longest wait between failed tries, in milliseconds.
const RETRY: u64 = 5_000;

/// Hash of the settings to start with: the wanted ones, or the last good ones if PostgreSQL has refused those.
pub(super) fn to_start_with(context: &Context) -> Option<String> {
    let wanted = &context.cluster()?.settings;
    let refused = context.observed.postgres.refused.as_ref();
    let good = &context.observed.postgres.good_settings;
    Some(
        if refused.is_some_and(|refused| refused.settings == *wanted) {
            good
        } else {
            wanted
        }
        .clone(),
    )
}

pub(super) const CONFIGURE: Rule = Rule {
    name: "configure",
    family: "settings",
    what: "Writes the configuration and reloads it when settings or the address of the primary have changed.",
    protocol: &[6],
    decide: configure,
};

/// Writes the configuration and reloads it, when the settings or the primary's address have changed, PostgreSQL goes by another one
/// than was written, or limits that a standby has kept for its primary need not be so high any more.
///
/// A PostgreSQL that is silent, or takes no sessions yet, is left alone. One that refuses its agent may do so by the very settings
/// that are to be taken back: it reads the new ones.
fn configure(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let mode = context.running()?;
    let configured = context.observed.postgres.configured.as_ref()?;
    let settings = to_start_with(context)?;
    let upstream = match (mode, context.tenure()) {
        (Mode::Primary, _) => None,
        // Who cannot follow, or is not known to be able to, receives nothing, and nothing more from a former primary. A PostgreSQL that
        // refuses its agent does not say where its WAL ends: it goes on with what it follows.
        (Mode::Standby, Tenure::Other(holder)) if context.position().is_some() => {
            standby::to_follow(context, holder).filter(|_| lineage(context) == Lineage::Follows)
        }
        // Nobody to follow, or nobody knows whom: what it follows now does no harm.
        (Mode::Standby, _) => configured.upstream.clone(),
    };
    let moved = configured.upstream != upstream;
    // A promise takes away the credential, and empties `primary_conninfo` before that is known here.
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
        "PostgreSQL does not go by the primary's address that was written"
    } else {
        "the primary's limits have changed, to which some of this standby's were raised"
    };
    Verdict::new(Action::Configure { settings, upstream }, because)
}

/// PostgreSQL answers its agent, or refuses to.
fn is_reached(context: &Context) -> bool {
    let postgres = &context.observed.postgres;
    postgres.answer.is_some() || postgres.refusal.is_some()
}

pub(super) const RESTART: Rule = Rule {
    name: "restart",
    family: "settings",
    what: "Restarts PostgreSQL in place when settings need it and the operator permits it, once.",
    protocol: &[],
    decide: restart,
};

/// A restart for settings has brought what it was for. Should these settings need another one (after a promotion, say), it may be made.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let answer = context.observed.postgres.answer.filter(|_| context.running().is_some());
    if answer.is_some_and(|answer| !answer.pending_restart) && memo.stopping.is_none() {
        memo.restarted_for = None;
    }
}

/// Restarts PostgreSQL in place for settings that need it: with the operator's permit for exactly these, and once.
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
        // The stop may be under way: harder, if it takes too long.
        return draft
            .memo
            .stopping
            .and_then(|_| shutdown::stop_primary(context, draft, &Needs::Nobody, BECAUSE));
    }
    let idle = context.tasks().configure.running.is_none();
    let can_start_again = match context.tenure() {
        Tenure::Held { .. } => true,
        Tenure::Other(_) => standby::fault(context).is_none(),
        Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Vacant | Tenure::Unknown => false,
    };
    if !pending || !idle || !can_start_again {
        return None;
    }
    if context.serving() && !checkpoint::is_made(context) {
        return checkpoint::make(context, "for a restart");
    }
    let change = Change::RestartsFor(permit.settings.clone());
    shutdown::stop(context, draft, BECAUSE).map(|verdict| verdict.and(change))
}

#[cfg(test)]
mod tests;
