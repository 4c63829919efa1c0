//! Which primary a standby follows, what that primary has reported, and which settings this member's PostgreSQL starts
//! with.

use super::{Context, Tenure};
use crate::instance::observed::Upstream;
use crate::protocol::HolderRecord;
use crate::units::Millis;

/// How long an answer of the primary is valid as to which WAL it has.
pub(in crate::instance) const FRESH: Millis = Millis::seconds(5);

/// The primary to follow: another member that holds the lease.
pub(in crate::instance) fn upstream<'a>(context: &Context<'a>) -> Option<&'a HolderRecord> {
    match context.tenure() {
        Tenure::Other(holder) => Some(holder),
        Tenure::Held { .. } | Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Vacant | Tenure::Unknown => None,
    }
}

/// True if the primary has answered, in this epoch, that this member's role and slot exist.
pub(in crate::instance) fn is_admitted(context: &Context) -> bool {
    let (Some(reply), Some(record)) = (&context.observed.reply, context.record()) else {
        return false;
    };
    let same_member = context.member().is_some_and(|member| member.id == reply.report.member);
    reply.admitted && reply.epoch == record.epoch && same_member
}

/// `holder` as an upstream in the epoch of the Lease. `None` while this member has promised a higher epoch, or its
/// promise cannot be read (protocol.md rules 2, 6 and 7).
pub(in crate::instance) fn to_follow(context: &Context, holder: &HolderRecord) -> Option<Upstream> {
    let epoch = context.record()?.epoch;
    let promised = context.promise()?.epoch;
    (promised <= epoch).then(|| Upstream {
        address: holder.address.clone(),
        epoch,
    })
}

/// True if it already follows `holder` in the epoch of the Lease.
pub(in crate::instance) fn follows(context: &Context, holder: &HolderRecord) -> bool {
    let configured = context.running().and(context.observed.postgres.configured.as_ref());
    let followed = configured.and_then(|configured| configured.upstream.as_ref());
    followed.is_some() && followed == to_follow(context, holder).as_ref()
}

/// True if the data is a primary's, or was one's and has not yet been found to be part of another primary's history.
pub(in crate::instance) fn was_primary(context: &Context) -> bool {
    let noted = context.volume().is_some_and(|volume| volume.was_primary);
    noted || context.database().is_some_and(|database| database.primary)
}

/// True if the primary has answered recently.
pub(in crate::instance) fn is_heard(context: &Context) -> bool {
    let reply = context.observed.reply.as_ref();
    reply.is_some_and(|reply| context.now.since(reply.sent) < FRESH)
}

/// Hash of the settings for the next start: the wanted ones, or the last good ones if PostgreSQL has refused the wanted
/// ones.
pub(in crate::instance) fn to_start_with(context: &Context) -> Option<String> {
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
