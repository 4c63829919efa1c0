//! An operation that accepts the loss of what missing instances have (`acceptLoss`). The agents read it in
//! `status.intent.acceptLoss`, and elect by it in that very epoch alone (`instance::loss`).

use api::status::RequestOutcome;

use super::action::StatusChange;
use super::facts::Facts;
use super::rule::Progress;

/// What becomes of an acceptance for this epoch. Other epochs than the Lease's are refused, and so is any while a primary
/// serves: left behind, it would count when that one is lost.
pub(super) fn accept(facts: &Facts<'_>, epoch: u64) -> Option<Progress> {
    let name = facts.wanted.name;
    let given = facts.status.intent.accept_loss == Some(epoch);
    let refused = |why: String| Some(Progress::Ends(RequestOutcome::GivenUp, why));
    facts.observed.lease.get()?;
    if !facts.bootstrapped() {
        return refused("there is no database yet that could lose anything".to_owned());
    }
    let Some(lease) = facts.lease else {
        // What was accepted holds on: the last primary must not take the Lease again.
        let why = format!("Lease {name} is lost or empty: that comes first, see kubectl cdb why {name}");
        return (!given).then(|| refused(why)).flatten();
    };
    let now = lease.epoch.0;
    if facts.status.epoch.is_some_and(|seen| now < seen) {
        return None;
    }
    if given && let Some(why) = is_used(facts, epoch) {
        return Some(Progress::Ends(RequestOutcome::Done, why));
    }
    if now != epoch {
        return refused(format!(
            "Lease {name} is in epoch {now}, and not in {epoch}: kubectl cdb accept-loss {name} {now}"
        ));
    }
    if let Some(primary) = facts.primary() {
        return refused(format!(
            "{} is the primary and serves: nothing has to be given up",
            primary.name
        ));
    }
    let why = format!("the loss of what missing instances have is accepted in epoch {epoch}");
    (!given).then_some(Progress::Changes(StatusChange::AcceptLoss(epoch), why))
}

/// Somebody has taken the Lease in a later epoch than this.
pub(super) fn is_used(facts: &Facts<'_>, epoch: u64) -> Option<String> {
    let lease = facts.lease?;
    let now = lease.epoch.0;
    let holder = lease.holder.as_ref();
    let by = holder.map_or("an instance", |holder| holder.incarnation.pod.as_str());
    let used = now > epoch && !lease.is_made_again();
    used.then(|| format!("{by} has taken the Lease in epoch {now}"))
}

#[cfg(test)]
mod tests;
